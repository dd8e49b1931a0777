//! Positives and negatives, true and false, at thresholds.

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary as B, Compare, Unary};
use intwain_ir::{Shape, Value};

use crate::train::loss::Comparison;
use crate::train::math::{EPSILON, Made, Math};

/// What takes a prediction below every threshold.
const NEVER: f64 = -1e10;

/// Where predictions become positive.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Thresholds {
    /// Above each of these.
    List(Vec<f64>),
    /// i/(n − 1) for i from 0 to n − 1: predictions are limited to [0, 1] and sorted into n − 1 buckets, as Keras does, which
    /// rounds otherwise than a comparison.
    Even {
        /// Their number, at least 2.
        count: usize,
        /// Where the first and the last lie.
        ends: Ends,
    },
}

/// Where the first and the last threshold lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// At 0 and 1.
    Exact,
    /// Below 0 and above 1: everything is above the first.
    Beyond,
}

impl Thresholds {
    /// Thresholds as a user lists them.
    pub(super) fn listed(thresholds: Vec<f64>) -> Thresholds {
        match is_even(&thresholds) {
            true => Thresholds::Even { count: thresholds.len(), ends: Ends::Exact },
            false => Thresholds::List(thresholds),
        }
    }

    /// Thresholds between 0 and 1, to which one below and one above all predictions are added.
    pub(super) fn with_ends(inner: Vec<f64>) -> Thresholds {
        let around = |low: f64, high: f64| [vec![low], inner.clone(), vec![high]].concat();
        match is_even(&around(0.0, 1.0)) {
            true => Thresholds::Even { count: inner.len() + 2, ends: Ends::Beyond },
            false => Thresholds::List(around(-EPSILON, 1.0 + EPSILON)),
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Thresholds::List(list) => list.len(),
            Thresholds::Even { count, .. } => *count,
        }
    }

    /// Whether each prediction is above each threshold: `[rows, cells] → bool[rows, cells, thresholds]`.
    pub(super) fn above(&self, m: &mut Math<'_>, predicted: Value) -> Made {
        let shape = Shape::new(m.shape(predicted).iter().copied().chain([self.count()]));
        let last = shape.len() - 1;
        let own: Vec<usize> = (0..last).collect();
        let dtype = m.dtype(predicted);
        match self {
            Thresholds::List(list) => {
                let predicted = m.g.broadcast(predicted, &shape, &own)?;
                let elements = list.iter().map(|&t| intwain_ir::Scalar::from_f64(dtype, t)).collect();
                let row = Shape::from([list.len()]);
                let list = m.g.push(intwain_ir::ops::Constant { shape: row, elements }, &[])?;
                let list = m.g.broadcast(list, &shape, &[last])?;
                m.g.compare(Compare::Gt, predicted, list)
            }
            Thresholds::Even { count, ends } => {
                let limited = m.clip(predicted, 0.0, 1.0)?;
                let place = m.times(limited, (count - 1) as f64)?;
                let place = m.unary(Unary::Ceil, place)?;
                let mut bucket = m.plus(place, -1.0)?;
                if *ends == Ends::Beyond {
                    bucket = m.at_least(bucket, 0.0)?;
                }
                let bucket = m.g.broadcast(bucket, &shape, &own)?;
                let threshold = m.positions(&shape, last)?;
                let threshold = m.g.cast(dtype, threshold)?;
                m.g.compare(Compare::Ge, bucket, threshold)
            }
        }
    }
}

/// Whether thresholds are those of `n` equal steps from 0 to 1, but for rounding.
fn is_even(thresholds: &[f64]) -> bool {
    let n = thresholds.len();
    let near = |(i, &t): (usize, &f64)| {
        let want = f64::from(i as f32 / (n - 1) as f32);
        (t - want).abs() <= EPSILON + 1e-5 * want.abs()
    };
    n >= 3 && thresholds.iter().enumerate().all(near)
}

/// Which predictions are looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Selection {
    /// The others of each row are never positive.
    pub(super) top_k: Option<usize>,
    /// One class only.
    pub(super) class: Option<usize>,
}

/// Labels and predictions, a weight beside each where there are any: `[rows, ..]`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cells {
    /// Which labels are positive.
    pub(super) positive: Value,
    /// The predictions.
    pub(super) predicted: Value,
    /// How much each counts.
    pub(super) weight: Value,
}

impl Cells {
    /// As Keras lays them beside each other. Masks are not heeded.
    pub(super) fn of(m: &mut Math<'_>, of: &Comparison, selection: Selection) -> Result<Cells, TypeError> {
        let dtype = m.dtype(of.y_pred);
        let truth = m.g.cast(dtype, of.y_true)?;
        let (mut predicted, mut truth) = m.same_rank(of.y_pred, truth)?;
        if let Some(k) = selection.top_k {
            predicted = only_greatest(m, predicted, k)?;
        }
        if let Some(class) = selection.class {
            let last = m.dim(predicted, -1)?;
            let classes = m.shape(predicted)[last];
            if last == 0 || class >= classes || m.shape(truth).last() != Some(&classes) {
                let (a, b) = (m.shape(truth), m.shape(predicted));
                let problem = format!("class_id {class} for labels of shape {a} and predictions of shape {b}");
                return Err(TypeError::new(problem));
            }
            let one = |m: &mut Math<'_>, x| m.g.slice_dim(x, last, class..class + 1);
            (predicted, truth) = (one(m, predicted)?, one(m, truth)?);
        }
        let shape = m.shape(predicted);
        if m.shape(truth) != shape || shape.is_empty() {
            let found = m.shape(truth);
            return Err(TypeError::new(format!("labels of shape {found} for predictions of shape {shape}")));
        }
        let weight = match of.weight {
            None => m.like(predicted, 1.0)?,
            Some(weight) => {
                let found = m.shape(weight);
                let mut weight = m.g.cast(dtype, weight)?;
                // A weight for every vector of the last axis, or for every element.
                let fits =
                    |w: &[usize]| w.len() == shape.len() && w.iter().zip(shape.iter()).all(|(w, s)| w == s || *w == 1);
                if found.len() + 1 == shape.len() {
                    weight = m.expanded(weight, found.len())?;
                }
                if !fits(&m.shape(weight)) {
                    let problem = format!("sample weights of shape {found} for predictions of shape {shape}");
                    return Err(TypeError::new(problem));
                }
                m.g.broadcast_to(weight, &shape)?
            }
        };
        Ok(Cells { positive: m.is(truth, Compare::Ne, 0.0)?, predicted, weight })
    }

    /// Each row's cells in one dimension.
    pub(super) fn flat(self, m: &mut Math<'_>) -> Result<Cells, TypeError> {
        let shape = m.shape(self.predicted);
        let flat = Shape::from([shape[0], shape[1..].iter().product()]);
        let Cells { positive, predicted, weight } = self;
        let mut one = |x| m.g.reshape(x, &flat);
        Ok(Cells { positive: one(positive)?, predicted: one(predicted)?, weight: one(weight)? })
    }

    /// Weights of the positive labels and of the negative ones, 0 elsewhere.
    pub(super) fn apart(&self, m: &mut Math<'_>) -> Result<[Value; 2], TypeError> {
        let negative = m.unary(Unary::Not, self.positive)?;
        Ok([m.where_or(self.positive, self.weight, 0.0)?, m.where_or(negative, self.weight, 0.0)?])
    }
}

/// Predictions of which all but the k greatest of the last axis are never positive; of equal ones the first are greater.
fn only_greatest(m: &mut Math<'_>, x: Value, k: usize) -> Made {
    let last = m.dim(x, -1)?;
    let shape = m.shape(x);
    if k > shape[last] {
        return Err(TypeError::new(format!("top_k {k} of {} classes", shape[last])));
    }
    let wide = Shape::new(shape.iter().copied().chain([shape[last]]));
    let own: Vec<usize> = (0..=last).collect();
    let others: Vec<usize> = (0..last).chain([last + 1]).collect();
    let (each, other) = (m.g.broadcast(x, &wide, &own)?, m.g.broadcast(x, &wide, &others)?);
    let (here, there) = (m.positions(&wide, last)?, m.positions(&wide, last + 1)?);
    let (above, equal) = (m.g.compare(Compare::Gt, other, each)?, m.g.compare(Compare::Eq, other, each)?);
    let before = m.g.compare(Compare::Lt, there, here)?;
    let tied = m.g.binary(B::And, equal, before)?;
    let greater = m.g.binary(B::Or, above, tied)?;
    let greater = m.g.cast(m.dtype(x), greater)?;
    let greater = m.sum(greater, &[last + 1])?;
    let kept = m.is(greater, Compare::Lt, k as f64)?;
    m.where_or(kept, x, NEVER)
}

/// For each row the weights of what is above each threshold: `[rows, cells], [rows, cells, thresholds] → [rows, thresholds]`.
pub(super) fn counted(m: &mut Math<'_>, weight: Value, above: Value) -> Made {
    let each = weighted(m, weight, above)?;
    m.sum(each, &[1])
}

/// The weights of what is above each threshold, 0 elsewhere.
pub(super) fn weighted(m: &mut Math<'_>, weight: Value, above: Value) -> Made {
    let shape = m.shape(above);
    let own: Vec<usize> = (0..shape.len() - 1).collect();
    let weight = m.g.broadcast(weight, &shape, &own)?;
    m.where_or(above, weight, 0.0)
}
