//! Losses, as Keras 3.15 computes them on TensorFlow.
//!
//! A loss is read once and written into a graph as often as wanted:
//!
//! * [`Loss::read`] takes a name of Keras (2 or 3) or Keras's serialised document, [`Loss::named`] a name.
//! * [`Loss::terms`] appends what it computes for a [`Comparison`] of predictions with labels: [`Terms`], values whose sum over
//!   the whole batch is divided by a [`Divisor`].
//! * [`logits_of`] finds what went into the softmax or sigmoid that made an output, which belongs into the comparison.
//!
//! [`Terms::coupling`] says whether a row's values depend on that row only. Where rows are coupled (a hinge loss looks at all
//! labels of the batch, Dice without axes is one number), a batch cannot be taken apart into micro-batches.
//!
//! A file has a family of losses, `table` a row for each. A loss computes in f32, or in f64 where predictions are f64.

mod crossentropy;
mod ctc;
mod divergence;
mod focal;
pub(crate) mod function;
mod hinge;
mod overlap;
pub(crate) mod read;
pub(crate) mod reduction;
mod regression;
pub(crate) mod similarity;
pub(crate) mod table;

#[cfg(test)]
mod split;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use intwain_ir::ops::{Op, TypeError, Unary};
use intwain_ir::scalar::Unary as Function1;
use intwain_ir::{DType, Graph, Value};

use crate::frontend::{At, ImportError, Json};
use crate::train::math::Math;
use function::{Function, Pair};
pub use reduction::Reduction;

/// A loss before its sum: Σ `values` / `divisor` over the whole batch is the scalar that Keras reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Weighted values, dimension 0 counting rows; of at least f32. Where rows are coupled, it may be a scalar, which has been
    /// summed already.
    pub values: Value,
    /// What their sum is divided by.
    pub divisor: Divisor,
    /// Whether a value depends on its own row only.
    pub coupling: Coupling,
}

/// Whether what belongs to a row depends on that row only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coupling {
    /// It does.
    Apart,
    /// It depends on the whole batch.
    Together,
}

/// What a sum of values is divided by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divisor {
    /// Nothing.
    One,
    /// The number of values in the whole batch.
    Count,
    /// The sum of this tensor, whose dimension 0 counts rows, over the whole batch; where that is 0 the loss is 0. It does
    /// not depend on weights.
    Sum(Value),
}

/// What a model gave beside what it should have given.
#[derive(Clone, Copy, Debug)]
pub struct Comparison {
    /// The labels, as they come; any type.
    pub y_true: Value,
    /// The model's output.
    pub y_pred: Value,
    /// What went into the softmax or sigmoid whose result is the output; see [`logits_of`].
    pub logits: Option<Value>,
    /// The mask that the output carries.
    pub mask: Option<Value>,
    /// Sample weights: one for each value, or `[rows]` or `[rows, 1]`.
    pub weight: Option<Value>,
}

/// What went into the softmax or sigmoid that gives this value, whose result nothing has changed since.
pub fn logits_of(g: &Graph, y_pred: Value) -> Option<Value> {
    let node = &g.nodes[g.def_node(y_pred)?];
    let is_made = matches!(&node.op, Op::Softmax(_) | Op::Unary(Unary { function: Function1::Logistic }));
    is_made.then(|| node.args[0])
}

/// A loss.
#[derive(Clone, Debug)]
pub struct Loss {
    name: String,
    function: Arc<dyn Function>,
    reduction: Reduction,
    dtype: Option<DType>,
}

impl Loss {
    /// The loss that Keras's name or serialised document says.
    pub fn read(at: &At<'_>) -> Result<Loss, ImportError> {
        read::loss(at)
    }

    /// The loss of that name.
    pub fn named(name: &str) -> Result<Loss, ImportError> {
        let json = Json::String(name.to_string());
        read::loss(&At::root(&json))
    }

    /// Its name, as Keras has it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What becomes of its values.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    /// Appends what it computes.
    pub fn terms(&self, g: &mut Graph, of: &Comparison) -> Result<Terms, TypeError> {
        self.append(g, of).map_err(|e| e.of(&self.name))
    }

    fn append(&self, g: &mut Graph, of: &Comparison) -> Result<Terms, TypeError> {
        let floatx = function::float_of(g, of.y_pred);
        let dtype = if self.dtype == Some(DType::F64) { DType::F64 } else { floatx };
        let predicted = g.cast(dtype, of.y_pred)?;
        // What was converted has lost the softmax or sigmoid that made it.
        let logits = of.logits.filter(|_| predicted == of.y_pred);
        let mut m = Math { g };
        let found = self.function.values(&mut m, &Pair { labels: of.y_true, predicted, logits })?;
        let terms = reduction::terms(&mut m, found, of.weight, of.mask, self.reduction)?;
        Ok(Terms { values: m.g.cast(floatx, terms.values)?, ..terms })
    }
}
