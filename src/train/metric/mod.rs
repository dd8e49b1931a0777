//! Metrics, as Keras 3.15 computes them on TensorFlow.
//!
//! A metric adds something up over the rows of every batch, and makes its result of the sums:
//!
//! * [`Metric::read`] takes a name of Keras or Keras's serialised document, [`Metric::named`] a name.
//! * [`Metric::increments`] appends what a batch adds: tensors whose dimension 0 counts rows, to be summed over the rows. A
//!   scalar is a sum over the rows already, and is added once for a batch.
//! * [`Metric::result`] makes the number, or numbers, of the sums over all batches.
//! * [`reported`] gives the names under which a model reports its metrics.
//!
//! Weights and masks do what they do in Keras: means heed both, the others weights only. Sums are linear in the rows, so those
//! of parts of a batch add up, whatever the parts.

mod accuracy;
mod auc;
mod confusion;
mod correlation;
mod counts;
mod f_score;
mod iou;
mod mean;
mod names;
mod operating;
mod r2;
mod read;
mod table;

#[cfg(test)]
mod tests;

use std::fmt::Debug;
use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, Value};

pub use names::{Listed, reported};

use super::loss::{Comparison, function};
use super::math::Math;
use crate::frontend::{At, ImportError, Json};

/// What a metric says.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    /// A number.
    One(f64),
    /// A number for each threshold, class or output.
    Each(Vec<f64>),
}

impl Measured {
    /// One number where there is one only.
    fn of(mut numbers: Vec<f64>) -> Measured {
        if numbers.len() == 1 { Measured::One(numbers.remove(0)) } else { Measured::Each(numbers) }
    }

    /// The numbers.
    pub fn numbers(&self) -> &[f64] {
        match self {
            Measured::One(number) => std::slice::from_ref(number),
            Measured::Each(numbers) => numbers,
        }
    }
}

/// What a metric adds up and makes of the sums.
pub(crate) trait Measure: Debug + Send + Sync {
    /// What a batch adds.
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError>;

    /// What the sums say, each flattened.
    fn result(&self, sums: &[Vec<f64>]) -> Measured;
}

/// A metric.
#[derive(Clone, Debug)]
pub struct Metric {
    name: String,
    measure: Arc<dyn Measure>,
}

impl Metric {
    /// The metric that Keras's name or serialised document says.
    pub fn read(at: &At<'_>) -> Result<Metric, ImportError> {
        read::metric(at)
    }

    /// The metric of that name.
    pub fn named(name: &str) -> Result<Metric, ImportError> {
        let json = Json::String(name.to_string());
        read::metric(&At::root(&json))
    }

    /// Its name, as Keras has it; see [`reported`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Appends what a batch adds.
    pub fn increments(&self, g: &mut Graph, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let dtype = function::float_of(g, of.y_pred);
        let made = (|| {
            let y_pred = g.cast(dtype, of.y_pred)?;
            // What was converted has lost the softmax or sigmoid that made it.
            let logits = of.logits.filter(|_| y_pred == of.y_pred);
            self.measure.increments(&mut Math { g }, &Comparison { y_pred, logits, ..*of })
        })();
        made.map_err(|e: TypeError| e.of(&self.name))
    }

    /// What the sums of all increments over all batches say; each is flattened, in the order of the increments.
    pub fn result(&self, sums: &[Vec<f64>]) -> Measured {
        self.measure.result(sums)
    }
}

/// The quotient, 0 where it has none.
pub(crate) fn quotient(x: f64, y: f64) -> f64 {
    if y == 0.0 { 0.0 } else { x / y }
}
