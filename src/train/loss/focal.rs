//! Focal cross-entropies: what is predicted well counts less.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::{Softmax, TypeError};
use intwain_ir::scalar::{Binary as B, Unary};

use super::crossentropy::{Scale, binary_of_logits, binary_of_probabilities, normalized, smoothed, smoothed_binary};
use super::function::{Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{Made, Math};

/// What both forms have.
#[derive(Clone, Copy, Debug)]
struct Options {
    scale: Scale,
    smoothing: f64,
    alpha: f64,
    gamma: f64,
    axis: i64,
}

impl Options {
    fn read(fields: &Fields<'_>) -> Result<Options, ImportError> {
        Ok(Options {
            scale: Scale::read(fields)?,
            smoothing: fields.f64_or("label_smoothing", 0.0)?,
            alpha: fields.f64_or("alpha", 0.25)?,
            gamma: fields.f64_or("gamma", 2.0)?,
            axis: fields.int_or("axis", -1)?,
        })
    }
}

/// How much each class counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Balance {
    /// Equally.
    None,
    /// α for ones, 1 − α for zeros.
    Alpha,
}

#[derive(Clone, Copy, Debug)]
struct BinaryFocal {
    options: Options,
    balance: Balance,
}

pub(super) fn binary(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let balanced = fields.bool_or("apply_class_balancing", false)?;
    let balance = if balanced { Balance::Alpha } else { Balance::None };
    Ok(Arc::new(BinaryFocal { options: Options::read(fields)?, balance }))
}

/// (1 − p)^γ.
fn difficulty(m: &mut Math<'_>, p: Value, gamma: f64) -> Made {
    let rest = m.from(1.0, p)?;
    let gamma = m.like(rest, gamma)?;
    m.g.binary(B::Pow, rest, gamma)
}

impl Function for BinaryFocal {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let (truth, predicted) = pair.equal(m)?;
        let Options { scale, smoothing, alpha, gamma, axis } = self.options;
        let truth = smoothed_binary(m, truth, smoothing)?;
        let (p, logits) = match scale {
            Scale::Logits => (m.unary(Unary::Logistic, predicted)?, Some(predicted)),
            Scale::Probabilities => (predicted, pair.logits),
        };
        let entropy = match logits {
            Some(logits) => binary_of_logits(m, truth, logits)?,
            None => binary_of_probabilities(m, truth, p)?,
        };
        let (no, q) = (m.from(1.0, truth)?, m.from(1.0, p)?);
        let (yes, no_q) = (m.mul(truth, p)?, m.mul(no, q)?);
        let right = m.add(yes, no_q)?;
        let factor = difficulty(m, right, gamma)?;
        let mut each = m.mul(factor, entropy)?;
        if self.balance == Balance::Alpha {
            let (ones, zeros) = (m.times(truth, alpha)?, m.times(no, 1.0 - alpha)?);
            let weight = m.add(ones, zeros)?;
            each = m.mul(weight, each)?;
        }
        let dim = m.dim(each, axis)?;
        Ok(Values::reduced(m.mean(each, &[dim])?, &[dim]))
    }
}

#[derive(Clone, Copy, Debug)]
struct CategoricalFocal {
    options: Options,
}

pub(super) fn categorical(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(CategoricalFocal { options: Options::read(fields)? }))
}

impl Function for CategoricalFocal {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let Options { scale, smoothing, alpha, gamma, axis } = self.options;
        let truth = smoothed(m, truth, smoothing)?;
        let dim = m.dim(predicted, axis)?;
        let p = match scale {
            Scale::Logits => m.g.push(Softmax { dim }, &[predicted])?,
            Scale::Probabilities => predicted,
        };
        let p = normalized(m, p, dim)?;
        let log = m.log(p)?;
        let agreed = m.mul(truth, log)?;
        let entropy = m.neg(agreed)?;
        let factor = difficulty(m, p, gamma)?;
        let weight = m.times(factor, alpha)?;
        let each = m.mul(weight, entropy)?;
        Ok(Values::reduced(m.sum(each, &[dim])?, &[dim]))
    }
}
