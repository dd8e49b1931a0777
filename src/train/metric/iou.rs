//! Intersection over union of classes.
//!
//! The result needs of the table of labels against predictions its diagonal and the sums of its rows and columns only, so only
//! these are counted.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary as B, Compare};
use intwain_ir::{DType, Shape, Value};

use super::{Measure, Measured};
use crate::frontend::{Fields, ImportError, ImportErrorKind};
use crate::train::loss::Comparison;
use crate::train::math::{EPSILON, Made, Math};

type Read = Result<Arc<dyn Measure>, ImportError>;

/// How classes are written.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Their numbers.
    Numbers,
    /// A score for each along an axis.
    Scores,
    /// One number, of class 1 from a threshold on.
    Above(f64),
}

/// The type in which Keras counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counting {
    /// Labels and weights lose their fractions.
    Whole,
    Fractions,
}

#[derive(Clone, Debug)]
struct Iou {
    classes: usize,
    targets: Vec<usize>,
    ignored: Option<i64>,
    labels: Form,
    predictions: Form,
    axis: i64,
    counting: Counting,
}

/// Which classes the mean is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Targets {
    Listed,
    All,
}

/// Whether labels may be class numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Labels {
    AsSaid,
    OneHot,
}

pub(super) fn iou(fields: &Fields<'_>) -> Read {
    read(fields, Targets::Listed, Labels::AsSaid)
}

pub(super) fn mean_iou(fields: &Fields<'_>) -> Read {
    read(fields, Targets::All, Labels::AsSaid)
}

pub(super) fn one_hot_iou(fields: &Fields<'_>) -> Read {
    read(fields, Targets::Listed, Labels::OneHot)
}

pub(super) fn one_hot_mean_iou(fields: &Fields<'_>) -> Read {
    read(fields, Targets::All, Labels::OneHot)
}

pub(super) fn binary_iou(fields: &Fields<'_>) -> Read {
    let targets = fields.opt("target_class_ids").map_or(Ok(vec![0, 1]), |_| targets(fields, 2))?;
    let above = Form::Above(fields.f64_or("threshold", 0.5)?);
    let (labels, axis, counting) = (Form::Numbers, -1, counting(fields)?);
    Ok(Arc::new(Iou { classes: 2, targets, ignored: None, labels, predictions: above, axis, counting }))
}

fn read(fields: &Fields<'_>, which: Targets, labels: Labels) -> Read {
    let classes = fields.require("num_classes")?.positive()?;
    let targets = if which == Targets::All { (0..classes).collect() } else { targets(fields, classes)? };
    let ignored = fields.opt("ignore_class").map(|at| at.int()).transpose()?;
    let form = |key: &str, default| Ok(if fields.bool_or(key, default)? { Form::Numbers } else { Form::Scores });
    let (labels, predictions) = match labels {
        Labels::AsSaid => (form("sparse_y_true", true)?, form("sparse_y_pred", true)?),
        Labels::OneHot => (Form::Scores, form("sparse_y_pred", false)?),
    };
    let axis = fields.int_or("axis", -1)?;
    Ok(Arc::new(Iou { classes, targets, ignored, labels, predictions, axis, counting: counting(fields)? }))
}

fn targets(fields: &Fields<'_>, classes: usize) -> Result<Vec<usize>, ImportError> {
    let at = fields.require("target_class_ids")?;
    let one = |at: &crate::frontend::At<'_>| {
        let class = at.usize()?;
        let outside = || ImportErrorKind::Value {
            found: class.to_string(),
            accepted: format!("a class below {classes}"),
            nearest: None,
        };
        if class < classes { Ok(class) } else { Err(at.error(outside())) }
    };
    at.one_or_many().iter().map(one).collect()
}

fn counting(fields: &Fields<'_>) -> Result<Counting, ImportError> {
    let Some(at) = fields.opt("dtype") else { return Ok(Counting::Whole) };
    let name = at.get("config").and_then(|config| config.get("name")).unwrap_or_else(|| at.clone());
    match name.str()? {
        "int" | "int32" | "int64" => Ok(Counting::Whole),
        "float32" | "float64" => Ok(Counting::Fractions),
        _ => Err(name.accepted(&["int", "int32", "int64", "float32", "float64"])),
    }
}

impl Iou {
    /// Class numbers `[rows, cells]`.
    fn classes_of(&self, m: &mut Math<'_>, x: Value, form: Form) -> Made {
        let dtype = if self.counting == Counting::Whole { DType::I32 } else { DType::F32 };
        let classes = match form {
            Form::Numbers => x,
            Form::Scores => {
                let dim = m.dim(x, self.axis)?;
                m.arg_max(x, dim)?
            }
            Form::Above(threshold) => m.is(x, Compare::Ge, threshold)?,
        };
        let classes = m.g.cast(dtype, classes)?;
        let shape = m.shape(classes);
        let Some(&rows) = shape.first() else { return Err(TypeError::new("a scalar has no rows")) };
        m.g.reshape(classes, &Shape::from([rows, shape[1..].iter().product()]))
    }

    fn weight(&self, m: &mut Math<'_>, weight: Option<Value>, shape: &Shape, dtype: DType) -> Made {
        let Some(weight) = weight else { return m.g.full(dtype, 1.0, shape) };
        let found = m.shape(weight);
        if found.elements() != shape.elements() || found.first() != shape.first() {
            return Err(TypeError::new(format!(
                "sample weights of shape {found} for {shape} cells; takes one for each"
            )));
        }
        let weight = m.g.reshape(weight, shape)?;
        let weight = if self.counting == Counting::Whole { m.g.cast(DType::I32, weight)? } else { weight };
        m.g.cast(dtype, weight)
    }
}

impl Measure for Iou {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let float = m.dtype(of.y_pred);
        let labels = self.classes_of(m, of.y_true, self.labels)?;
        let predicted = self.classes_of(m, of.y_pred, self.predictions)?;
        let (a, shape) = (m.shape(labels), m.shape(predicted));
        if a != shape {
            return Err(TypeError::new(format!("{a} labelled cells for {shape} predicted ones")));
        }
        let weight = self.weight(m, of.weight, &shape, float)?;
        let mut counts = None;
        for x in [labels, predicted] {
            let (low, high) = (m.is(x, Compare::Ge, 0.0)?, m.is(x, Compare::Lt, self.classes as f64)?);
            let known = m.both(low, high)?;
            counts = Some(counts.map_or(Ok(known), |c| m.both(c, known))?);
        }
        if let Some(ignored) = self.ignored {
            let kept = m.is(labels, Compare::Ne, ignored as f64)?;
            counts = Some(counts.map_or(Ok(kept), |c| m.both(c, kept))?);
        }
        let weight = counts.map_or(Ok(weight), |c| m.where_or(c, weight, 0.0))?;
        let wide = Shape::from([shape[0], shape[1], self.classes]);
        let class = m.positions(&wide, 2)?;
        let is_class = |m: &mut Math<'_>, x: Value| {
            let x = m.g.cast(DType::I32, x)?;
            let x = m.g.broadcast(x, &wide, &[0, 1])?;
            m.g.compare(Compare::Eq, x, class)
        };
        let (label, predicted) = (is_class(m, labels)?, is_class(m, predicted)?);
        let both = m.g.binary(B::And, label, predicted)?;
        let weight = m.g.broadcast(weight, &wide, &[0, 1])?;
        [both, label, predicted]
            .into_iter()
            .map(|which| {
                let counted = m.where_or(which, weight, 0.0)?;
                m.sum(counted, &[1])
            })
            .collect()
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        let (mut total, mut valid) = (0.0, 0.0);
        for &class in &self.targets {
            let union = sums[1][class] + sums[2][class] - sums[0][class];
            if union > 1e-9 {
                total += sums[0][class] / (union + EPSILON);
                valid += 1.0;
            }
        }
        Measured::One(total / (valid + EPSILON))
    }
}
