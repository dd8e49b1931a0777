//! How often predictions agree with labels.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary as B, Compare, Reduce, Unary};
use intwain_ir::{Shape, Value};

use super::{Measure, mean::Mean};
use crate::frontend::{Fields, ImportError};
use crate::train::loss::Coupling;
use crate::train::loss::function::{Classification, Function, Pair, Values};
use crate::train::math::{Made, Math};

type Read = Result<Arc<dyn Measure>, ImportError>;

/// What agrees with what.
#[derive(Clone, Copy, Debug)]
enum Accuracy {
    /// The one that the shapes say.
    ByShapes,
    /// A number and the same number.
    Equal,
    /// A bit and a number above a threshold.
    Binary { threshold: f64 },
    /// The greatest of the labels and the greatest prediction.
    Categorical,
    /// A class number and the greatest prediction.
    Sparse,
    /// The greatest of the labels and one of the `k` greatest predictions.
    TopK { k: usize },
    /// A class number and one of the `k` greatest predictions.
    SparseTopK { k: usize, given: Given },
}

/// What predictions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Given {
    Scores,
    /// Class numbers, the likeliest first.
    SortedClasses,
}

fn mean(accuracy: Accuracy) -> Read {
    Ok(Arc::new(Mean(Arc::new(accuracy))))
}

pub(super) fn by_shapes(_: &Fields<'_>) -> Read {
    mean(Accuracy::ByShapes)
}

pub(super) fn equal(_: &Fields<'_>) -> Read {
    mean(Accuracy::Equal)
}

pub(super) fn binary(fields: &Fields<'_>) -> Read {
    mean(Accuracy::Binary { threshold: fields.f64_or("threshold", 0.5)? })
}

pub(super) fn categorical(_: &Fields<'_>) -> Read {
    mean(Accuracy::Categorical)
}

pub(super) fn sparse(_: &Fields<'_>) -> Read {
    mean(Accuracy::Sparse)
}

pub(super) fn top_k(fields: &Fields<'_>) -> Read {
    mean(Accuracy::TopK { k: fields.positive_or("k", 5)? })
}

pub(super) fn sparse_top_k(fields: &Fields<'_>) -> Read {
    let given = if fields.bool_or("from_sorted_ids", false)? { Given::SortedClasses } else { Given::Scores };
    mean(Accuracy::SparseTopK { k: fields.positive_or("k", 5)?, given })
}

impl Function for Accuracy {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let agrees = self.agrees(m, pair)?;
        let values = m.g.cast(m.dtype(pair.predicted), agrees)?;
        Ok(Values::all(values, Coupling::Apart))
    }
}

impl Accuracy {
    fn agrees(self, m: &mut Math<'_>, pair: &Pair) -> Made {
        match self {
            Accuracy::ByShapes => match Classification::of(m.g, pair.labels, pair.predicted) {
                Classification::Binary => Accuracy::Binary { threshold: 0.5 }.agrees(m, pair),
                Classification::Sparse => Accuracy::Sparse.agrees(m, pair),
                Classification::Dense => Accuracy::Categorical.agrees(m, pair),
            },
            Accuracy::Equal => {
                let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
                m.g.compare(Compare::Eq, truth, predicted)
            }
            Accuracy::Binary { threshold } => {
                let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
                let above = m.is(predicted, Compare::Gt, threshold)?;
                let above = m.g.cast(m.dtype(truth), above)?;
                m.g.compare(Compare::Eq, truth, above)
            }
            Accuracy::Categorical => {
                let labels = greatest(m, pair)?;
                let last = m.dim(pair.predicted, -1)?;
                let predicted = m.arg_max(pair.predicted, last)?;
                compare(m, labels, predicted)
            }
            Accuracy::Sparse => {
                let last = m.dim(pair.predicted, -1)?;
                let predicted = m.arg_max(pair.predicted, last)?;
                let mut labels = pair.truth(m)?;
                if m.rank(labels) == last + 1 && m.shape(labels)[last] == 1 {
                    labels = m.squeezed(labels, last)?;
                }
                let predicted = m.g.cast(m.dtype(labels), predicted)?;
                let agrees = compare(m, labels, predicted)?;
                // A single step of each row is the row's.
                let single = m.rank(agrees) > 1 && m.shape(agrees).last() == Some(&1);
                if single { m.squeezed(agrees, m.rank(agrees) - 1) } else { Ok(agrees) }
            }
            Accuracy::TopK { k } => {
                let labels = greatest(m, pair)?;
                let labels = m.g.cast(m.dtype(pair.predicted), labels)?;
                among_greatest(m, labels, pair.predicted, k)
            }
            Accuracy::SparseTopK { k, given } => {
                let labels = pair.truth(m)?;
                match given {
                    Given::Scores => {
                        let labels = m.unary(Unary::Trunc, labels)?;
                        among_greatest(m, labels, pair.predicted, k)
                    }
                    Given::SortedClasses => among_first(m, labels, pair.predicted, k),
                }
            }
        }
    }
}

/// The class of the greatest label.
fn greatest(m: &mut Math<'_>, pair: &Pair) -> Made {
    let last = m.dim(pair.labels, -1)?;
    let truth = pair.truth(m)?;
    m.arg_max(truth, last)
}

fn compare(m: &mut Math<'_>, labels: Value, predicted: Value) -> Made {
    let (a, b) = (m.shape(labels), m.shape(predicted));
    if a != b {
        return Err(TypeError::new(format!("class numbers of shape {a} for predicted ones of shape {b}")));
    }
    m.g.compare(Compare::Eq, labels, predicted)
}

/// Labels of a shape that has as many elements as there are rows of classes, and that row's class beside every prediction.
fn beside(m: &mut Math<'_>, labels: Value, predicted: Value) -> Result<(Shape, Value, usize), TypeError> {
    let last = m.dim(predicted, -1)?;
    let (shape, wide) = (m.shape(labels), m.shape(predicted));
    let rows = Shape::new(wide[..last].iter().copied());
    if shape.elements() != rows.elements() || shape.first() != rows.first() {
        return Err(TypeError::new(format!("class numbers of shape {shape} for predictions of shape {wide}")));
    }
    let labels = m.g.reshape(labels, &rows)?;
    let labels = m.expanded(labels, last)?;
    Ok((shape, m.g.broadcast_to(labels, &wide)?, last))
}

/// Whether fewer than k predictions are greater than that of the class; never where one is not finite.
fn among_greatest(m: &mut Math<'_>, labels: Value, predicted: Value, k: usize) -> Made {
    let (shape, labels, last) = beside(m, labels, predicted)?;
    let wide = m.shape(predicted);
    let positions = m.positions(&wide, last)?;
    let positions = m.g.cast(m.dtype(predicted), positions)?;
    let own = m.g.compare(Compare::Eq, positions, labels)?;
    let score = m.where_or(own, predicted, 0.0)?;
    let score = m.sum_along(score, last)?;
    let greater = m.g.compare(Compare::Gt, predicted, score)?;
    let dtype = m.dtype(predicted);
    let greater = m.g.cast(dtype, greater)?;
    let greater = m.sum(greater, &[last])?;
    let few = m.is(greater, Compare::Lt, k as f64)?;
    let finite = m.unary(Unary::IsFinite, predicted)?;
    let (finite, own) = (m.g.cast(dtype, finite)?, m.g.cast(dtype, own)?);
    let finite = m.g.reduce(Reduce::Min, finite, &[last])?;
    let known = m.g.reduce(Reduce::Max, own, &[last])?;
    let said = m.mul(finite, known)?;
    let said = m.is(said, Compare::Gt, 0.0)?;
    let agrees = m.g.binary(B::And, few, said)?;
    m.g.reshape(agrees, &shape)
}

/// Whether the class is one of the first k predicted.
fn among_first(m: &mut Math<'_>, labels: Value, predicted: Value, k: usize) -> Made {
    let (shape, labels, last) = beside(m, labels, predicted)?;
    let same = m.g.compare(Compare::Eq, labels, predicted)?;
    let same = m.g.cast(m.dtype(predicted), same)?;
    let first = m.g.slice_dim(same, last, 0..k.min(m.shape(predicted)[last]))?;
    let any = m.g.reduce(Reduce::Max, first, &[last])?;
    let any = m.is(any, Compare::Gt, 0.0)?;
    m.g.reshape(any, &shape)
}
