//! What every loss is made from: predictions beside labels, and the values that come of them.

use std::fmt::Debug;

use intwain_ir::ops::TypeError;
use intwain_ir::{DType, Graph, Value};

use super::Coupling;
use crate::train::math::{Made, Math};

/// Predictions beside labels, before or after their ranks were made to agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// The labels as given: class numbers may be integers.
    pub(crate) labels: Value,
    /// The predictions, in the type in which the loss is computed.
    pub(crate) predicted: Value,
    /// What went into the softmax or sigmoid that made the predictions.
    pub(crate) logits: Option<Value>,
}

impl Pair {
    /// The labels as numbers of the predictions' type.
    pub(crate) fn truth(&self, m: &mut Math<'_>) -> Made {
        let dtype = m.dtype(self.predicted);
        m.g.cast(dtype, self.labels)
    }

    /// Labels and predictions of one rank, where the ranks differ by a trailing 1. Predictions of another shape have lost the
    /// softmax or sigmoid that made them, as in TensorFlow.
    pub(crate) fn same_rank(self, m: &mut Math<'_>) -> Result<Pair, TypeError> {
        let (labels, predicted) = m.same_rank(self.labels, self.predicted)?;
        let logits = self.logits.filter(|_| predicted == self.predicted);
        Ok(Pair { labels, predicted, logits })
    }

    /// Labels as numbers beside predictions of equal shape.
    pub(crate) fn equal(&self, m: &mut Math<'_>) -> Result<(Value, Value), TypeError> {
        let (a, b) = (m.shape(self.labels), m.shape(self.predicted));
        if a != b {
            return Err(TypeError::new(format!("labels of shape {a} for predictions of shape {b}")));
        }
        Ok((self.truth(m)?, self.predicted))
    }

    /// Labels as numbers and predictions, broadcast to each other.
    pub(crate) fn broadcast(&self, m: &mut Math<'_>) -> Result<(Value, Value), TypeError> {
        let truth = self.truth(m)?;
        m.matched(truth, self.predicted).map_err(|_| {
            let (a, b) = (m.shape(self.labels), m.shape(self.predicted));
            TypeError::new(format!("labels of shape {a} for predictions of shape {b}"))
        })
    }
}

/// A loss before weights, masks and its sum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values {
    /// The values; dimension 0 counts rows unless rows are coupled.
    pub(crate) values: Value,
    /// Which of them count at all.
    pub(crate) mask: Option<Value>,
    /// Whether a value depends on its own row only.
    pub(crate) coupling: Coupling,
}

impl Values {
    /// Values of which all count.
    pub(crate) fn all(values: Value, coupling: Coupling) -> Values {
        Values { values, mask: None, coupling }
    }

    /// Values after a reduction along these dimensions.
    pub(crate) fn reduced(values: Value, dims: &[usize]) -> Values {
        Values::all(values, if dims.contains(&0) { Coupling::Together } else { Coupling::Apart })
    }
}

/// What a loss computes, as its class and configuration say.
pub(crate) trait Function: Debug + Send + Sync {
    /// The values for predictions beside labels.
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError>;
}

/// What the shapes of labels and predictions say about the kind of a classification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Classification {
    /// One probability.
    Binary,
    /// Class numbers.
    Sparse,
    /// A probability for each class.
    Dense,
}

impl Classification {
    /// As Keras tells for `accuracy` and `crossentropy`.
    pub(crate) fn of(g: &Graph, labels: Value, predicted: Value) -> Classification {
        let (a, b) = (g.shape(labels), g.shape(predicted));
        let last = b.last().copied().unwrap_or(1);
        match () {
            () if last == 1 => Classification::Binary,
            () if a.len() < b.len() || a.last() == Some(&1) && last > 1 => Classification::Sparse,
            () => Classification::Dense,
        }
    }
}

/// The type in which losses and metrics of these predictions are computed: f64 in graphs of f64, else f32.
pub(crate) fn float_of(g: &Graph, predicted: Value) -> DType {
    if g.ty(predicted).dtype == DType::F64 { DType::F64 } else { DType::F32 }
}
