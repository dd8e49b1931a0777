//! Losses of numbers: squared, absolute, relative and logarithmic errors, Huber's loss, log cosh.

use std::f64::consts::LN_2;
use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Compare, Unary};

use super::function::{Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{EPSILON, Made, Math};

/// An error of every element; the loss is its mean over the last axis.
#[derive(Clone, Copy, Debug)]
enum Error {
    Squared,
    Absolute,
    /// 100·|t − p| / max(|t|, ε).
    Percentage,
    /// (log(max(p, ε) + 1) − log(max(t, ε) + 1))².
    SquaredLogarithmic,
    /// Squared up to δ, linear beyond.
    Huber {
        delta: f64,
    },
    LogCosh,
}

pub(super) fn squared(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::Squared))
}

pub(super) fn absolute(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::Absolute))
}

pub(super) fn percentage(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::Percentage))
}

pub(super) fn squared_logarithmic(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::SquaredLogarithmic))
}

pub(super) fn huber(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::Huber { delta: fields.f64_or("delta", 1.0)? }))
}

pub(super) fn log_cosh(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Error::LogCosh))
}

impl Function for Error {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let errors = self.errors(m, truth, predicted)?;
        let last = m.dim(errors, -1)?;
        let mean = m.mean(errors, &[last])?;
        let mean = if matches!(self, Error::Percentage) { m.times(mean, 100.0)? } else { mean };
        Ok(Values::reduced(mean, &[last]))
    }
}

impl Error {
    fn errors(self, m: &mut Math<'_>, truth: Value, predicted: Value) -> Made {
        match self {
            Error::Squared => {
                let d = m.sub(truth, predicted)?;
                m.square(d)
            }
            Error::Absolute => {
                let d = m.sub(truth, predicted)?;
                m.unary(Unary::Abs, d)
            }
            Error::Percentage => {
                let d = m.sub(truth, predicted)?;
                let size = m.unary(Unary::Abs, truth)?;
                let size = m.at_least(size, EPSILON)?;
                let ratio = m.div(d, size)?;
                m.unary(Unary::Abs, ratio)
            }
            Error::SquaredLogarithmic => {
                // Keras's is of f32, also where everything else is f64.
                let least = f64::from(EPSILON as f32);
                let log = |m: &mut Math<'_>, x| {
                    let x = m.at_least(x, least)?;
                    let x = m.plus(x, 1.0)?;
                    m.log(x)
                };
                let (p, t) = (log(m, predicted)?, log(m, truth)?);
                let d = m.sub(p, t)?;
                m.square(d)
            }
            Error::Huber { delta } => {
                let d = m.sub(predicted, truth)?;
                let size = m.unary(Unary::Abs, d)?;
                let near = m.is(size, Compare::Le, delta)?;
                let square = m.square(d)?;
                let low = m.times(square, 0.5)?;
                let line = m.times(size, delta)?;
                let high = m.plus(line, -0.5 * delta * delta)?;
                m.g.select(near, low, high)
            }
            Error::LogCosh => {
                let d = m.sub(predicted, truth)?;
                let twice = m.times(d, -2.0)?;
                let soft = m.softplus(twice)?;
                let sum = m.add(d, soft)?;
                // Keras's is of f32, also where everything else is f64.
                m.plus(sum, -f64::from(LN_2 as f32))
            }
        }
    }
}
