//! Hinge losses.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary as B, Compare, Reduce, Unary};

use super::Coupling;
use super::function::{Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{Made, Math};

/// max(1 − t·p, 0), or its square; mean over the last axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hinge {
    Linear,
    Squared,
}

pub(super) fn linear(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Hinge::Linear))
}

pub(super) fn squared(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Hinge::Squared))
}

/// Labels of −1 and 1: where all labels of the batch are 0 or 1, the zeros are −1.
fn signed(m: &mut Math<'_>, truth: Value) -> Made {
    let (zero, one) = (m.is(truth, Compare::Eq, 0.0)?, m.is(truth, Compare::Eq, 1.0)?);
    let bit = m.g.binary(B::Or, zero, one)?;
    let other = m.unary(Unary::Not, bit)?;
    let other = m.g.cast(m.dtype(truth), other)?;
    let dims: Vec<usize> = (0..m.rank(truth)).collect();
    let any = m.g.reduce(Reduce::Max, other, &dims)?;
    let none = m.is(any, Compare::Le, 0.0)?;
    let shape = m.shape(truth);
    let none = m.g.broadcast(none, &shape, &[])?;
    let twice = m.times(truth, 2.0)?;
    let signed = m.plus(twice, -1.0)?;
    m.g.select(none, signed, truth)
}

impl Function for Hinge {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let truth = pair.truth(m)?;
        let truth = signed(m, truth)?;
        let margin = m.mul(truth, pair.predicted)?;
        let short = m.from(1.0, margin)?;
        let mut each = m.at_least(short, 0.0)?;
        if *self == Hinge::Squared {
            each = m.square(each)?;
        }
        let last = m.dim(each, -1)?;
        Ok(Values::all(m.mean(each, &[last])?, Coupling::Together))
    }
}

/// max(max((1 − t)·p) − Σ t·p + 1, 0).
#[derive(Clone, Copy, Debug)]
struct CategoricalHinge;

pub(super) fn categorical(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(CategoricalHinge))
}

impl Function for CategoricalHinge {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let last = m.dim(predicted, -1)?;
        let agreed = m.mul(truth, predicted)?;
        let right = m.sum(agreed, &[last])?;
        let no = m.from(1.0, truth)?;
        let wrong = m.mul(no, predicted)?;
        let wrong = m.g.reduce(Reduce::Max, wrong, &[last])?;
        let d = m.sub(wrong, right)?;
        let d = m.plus(d, 1.0)?;
        Ok(Values::reduced(m.at_least(d, 0.0)?, &[last]))
    }
}
