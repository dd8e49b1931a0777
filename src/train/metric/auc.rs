//! The area under a curve through all thresholds.

use std::sync::Arc;

use intwain_ir::ops::{Constant, TypeError};
use intwain_ir::scalar::Unary;
use intwain_ir::{Scalar, Shape, Value};

use super::confusion::{Cells, Selection, Thresholds, counted, weighted};
use super::{Measure, Measured, quotient};
use crate::frontend::{Fields, ImportError, ImportErrorKind};
use crate::train::loss::Comparison;
use crate::train::math::Math;

/// What lies against what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Curve {
    /// Recall against the share of negatives above the threshold.
    Roc,
    /// Precision against recall.
    Pr,
    /// Gain of precision against gain of recall.
    PrGain,
}

/// What the area between two thresholds is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Summation {
    Interpolation,
    Minoring,
    Majoring,
}

/// What is one curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Labels {
    /// All predictions together.
    Together,
    /// Those of each label; the mean of the areas counts.
    Apart,
}

#[derive(Clone, Debug)]
struct Auc {
    thresholds: Thresholds,
    curve: Curve,
    summation: Summation,
    labels: Labels,
    /// Labels that are asked for.
    count: Option<usize>,
    label_weights: Option<Vec<f64>>,
    logits: Logits,
}

/// What predictions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Logits {
    /// To be put through a sigmoid.
    Given,
    /// Probabilities.
    No,
}

pub(super) fn auc(fields: &Fields<'_>) -> Result<Arc<dyn Measure>, ImportError> {
    let pick = |key: &str, accepted: &[&str]| fields.choice(key, accepted);
    let curve = match pick("curve", &["ROC", "roc", "PR", "pr", "PRGAIN", "prgain"])? {
        0 | 1 => Curve::Roc,
        2 | 3 => Curve::Pr,
        _ => Curve::PrGain,
    };
    let accepted = ["interpolation", "Interpolation", "minoring", "Minoring", "majoring", "Majoring"];
    let summation = match pick("summation_method", &accepted)? {
        0 | 1 => Summation::Interpolation,
        2 | 3 => Summation::Minoring,
        _ => Summation::Majoring,
    };
    let labels = if fields.bool_or("multi_label", false)? { Labels::Apart } else { Labels::Together };
    let count = fields.opt("num_labels").map(|at| at.usize()).transpose()?.filter(|&n| n > 0);
    if let (Labels::Together, Some(_), Some(at)) = (labels, count, fields.get("num_labels")) {
        return Err(at.unsupported("`num_labels` without `multi_label`"));
    }
    let label_weights = fields.opt("label_weights").map(|at| at.array()?.iter().map(|w| w.f64()).collect());
    let logits = if fields.bool_or("from_logits", false)? { Logits::Given } else { Logits::No };
    let thresholds = thresholds(fields)?;
    Ok(Arc::new(Auc { thresholds, curve, summation, labels, count, label_weights: label_weights.transpose()?, logits }))
}

/// Those listed, or equal steps; a threshold below and one above everything are added.
fn thresholds(fields: &Fields<'_>) -> Result<Thresholds, ImportError> {
    let count = fields.positive_or("num_thresholds", 200)?;
    if let Some(at) = fields.opt("thresholds") {
        let mut inner: Vec<f64> = at.array()?.iter().map(|t| t.f64()).collect::<Result<_, _>>()?;
        inner.sort_by(f64::total_cmp);
        return Ok(Thresholds::with_ends(inner));
    }
    if count < 2 {
        let accepted = "an integer of at least 2".to_string();
        let kind = ImportErrorKind::Value { found: count.to_string(), accepted, nearest: None };
        return Err(fields.require("num_thresholds")?.error(kind));
    }
    Ok(Thresholds::Even { count, ends: super::confusion::Ends::Beyond })
}

/// What the counts at thresholds are computed from: true and false positives at each, positives, negatives.
pub(super) fn sums(m: &mut Math<'_>, cells: &Cells, thresholds: &Thresholds) -> Result<Vec<Value>, TypeError> {
    let above = thresholds.above(m, cells.predicted)?;
    let [positive, negative] = cells.apart(m)?;
    let (tp, fp) = (counted(m, positive, above)?, counted(m, negative, above)?);
    Ok(vec![tp, fp, m.sum(positive, &[1])?, m.sum(negative, &[1])?])
}

/// The sums at one threshold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    tp: f64,
    fp: f64,
    positive: f64,
    negative: f64,
}

impl Sums {
    /// Of what [`sums`] gives, those at each threshold.
    pub(super) fn all(sums: &[Vec<f64>]) -> Vec<Sums> {
        let (positive, negative) = (sums[2][0], sums[3][0]);
        sums[0].iter().zip(&sums[1]).map(|(&tp, &fp)| Sums { tp, fp, positive, negative }).collect()
    }

    pub(super) fn recall(&self) -> f64 {
        quotient(self.tp, self.positive)
    }

    pub(super) fn specificity(&self) -> f64 {
        quotient(self.negative - self.fp, self.negative)
    }

    pub(super) fn precision(&self) -> f64 {
        quotient(self.tp, self.tp + self.fp)
    }

    fn false_positive_rate(&self) -> f64 {
        quotient(self.fp, self.negative)
    }
}

impl Curve {
    fn point(self, s: &Sums) -> (f64, f64) {
        match self {
            Curve::Roc => (s.false_positive_rate(), s.recall()),
            Curve::Pr => (s.recall(), s.precision()),
            Curve::PrGain if s.tp == 0.0 => (0.0, 1.0),
            Curve::PrGain => {
                let scale = quotient(s.positive, s.negative);
                let gain = |wrong: f64| 1.0 - scale * quotient(wrong, s.tp);
                (gain(s.positive - s.tp).max(0.0), gain(s.fp))
            }
        }
    }
}

impl Auc {
    /// The area under the curve of one set of labels.
    fn area(&self, sums: &[Sums]) -> f64 {
        if self.curve == Curve::Pr && self.summation == Summation::Interpolation {
            return sums.windows(2).map(|pair| pr_between(&pair[0], &pair[1])).sum();
        }
        let points: Vec<(f64, f64)> = sums.iter().map(|s| self.curve.point(s)).collect();
        let between = |pair: &[(f64, f64)]| {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let height = match self.summation {
                Summation::Interpolation => (y0 + y1) / 2.0,
                Summation::Minoring => y0.min(y1),
                Summation::Majoring => y0.max(y1),
            };
            (x0 - x1) * height
        };
        points.windows(2).map(between).sum()
    }
}

/// The area between two thresholds under precision against recall, where true positives grow linearly with all positives.
fn pr_between(a: &Sums, b: &Sums) -> f64 {
    let (p, q) = (a.tp + a.fp, b.tp + b.fp);
    let dtp = a.tp - b.tp;
    let slope = quotient(dtp, (p - q).max(0.0));
    let intercept = b.tp - slope * q;
    let ratio = if p > 0.0 && q > 0.0 { quotient(p, q.max(0.0)) } else { 1.0 };
    quotient(slope * (dtp + intercept * ratio.ln()), b.positive.max(0.0))
}

impl Measure for Auc {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let y_pred = match self.logits {
            Logits::Given => m.unary(Unary::Logistic, of.y_pred)?,
            Logits::No => of.y_pred,
        };
        let mut cells = Cells::of(m, &Comparison { y_pred, ..*of }, Selection::default())?;
        let shape = m.shape(cells.predicted);
        let fits = shape.len() == 2 && self.count.is_none_or(|n| n == shape[1]);
        if self.labels == Labels::Apart && !fits {
            let labels = self.count.map_or(String::new(), |n| format!(" of {n}"));
            let problem = format!("predictions of shape {shape}; multi_label takes rows{labels} of labels");
            return Err(TypeError::new(problem));
        }
        if let Some(weights) = &self.label_weights {
            if shape.last() != Some(&weights.len()) {
                return Err(TypeError::new(format!("{} label weights for predictions {shape}", weights.len())));
            }
            if self.labels == Labels::Together {
                let dtype = m.dtype(cells.predicted);
                let elements = weights.iter().map(|&w| Scalar::from_f64(dtype, w)).collect();
                let row = m.g.push(Constant { shape: Shape::from([weights.len()]), elements }, &[])?;
                let row = m.g.broadcast_to(row, &shape)?;
                cells.weight = m.mul(cells.weight, row)?;
            }
        }
        match self.labels {
            Labels::Together => {
                let cells = cells.flat(m)?;
                sums(m, &cells, &self.thresholds)
            }
            Labels::Apart => {
                let above = self.thresholds.above(m, cells.predicted)?;
                let [positive, negative] = cells.apart(m)?;
                Ok(vec![weighted(m, positive, above)?, weighted(m, negative, above)?, positive, negative])
            }
        }
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        if self.labels == Labels::Together {
            return Measured::One(self.area(&Sums::all(sums)));
        }
        let n = self.thresholds.count();
        let of = |label: usize| {
            let part = |all: &[f64]| all[label * n..(label + 1) * n].to_vec();
            Sums::all(&[part(&sums[0]), part(&sums[1]), vec![sums[2][label]], vec![sums[3][label]]])
        };
        let areas: Vec<f64> = (0..sums[2].len()).map(|label| self.area(&of(label))).collect();
        let ones = vec![1.0; areas.len()];
        let weights = self.label_weights.as_ref().unwrap_or(&ones);
        let total: f64 = areas.iter().zip(weights).map(|(area, weight)| area * weight).sum();
        Measured::One(quotient(total, weights.iter().sum()))
    }
}
