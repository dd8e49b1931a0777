//! Overlaps of regions: Dice and Tversky. Without axes, one number for the whole batch.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;

use super::function::{Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{EPSILON, Math};

/// What is summed over; `None` is everything.
#[derive(Clone, Debug)]
struct Axes(Option<Vec<i64>>);

impl Axes {
    fn read(fields: &Fields<'_>) -> Result<Axes, ImportError> {
        let axes = fields.opt("axis").map(|at| at.one_or_many().iter().map(|a| a.int()).collect());
        Ok(Axes(axes.transpose()?))
    }

    fn dims(&self, m: &Math<'_>, x: Value) -> Result<Vec<usize>, TypeError> {
        let mut dims = match &self.0 {
            None => (0..m.rank(x)).collect(),
            Some(axes) => axes.iter().map(|&a| m.dim(x, a)).collect::<Result<Vec<_>, _>>()?,
        };
        dims.sort_unstable();
        dims.dedup();
        Ok(dims)
    }
}

/// 1 − 2·Σ t·p / (Σ t + Σ p + ε).
#[derive(Clone, Debug)]
struct Dice {
    axes: Axes,
}

pub(super) fn dice(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Dice { axes: Axes::read(fields)? }))
}

impl Function for Dice {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let dims = self.axes.dims(m, predicted)?;
        let both = m.mul(truth, predicted)?;
        let both = m.sum(both, &dims)?;
        let (t, p) = (m.sum(truth, &dims)?, m.sum(predicted, &dims)?);
        let all = m.add(t, p)?;
        let all = m.plus(all, EPSILON)?;
        let twice = m.times(both, 2.0)?;
        let ratio = m.div(twice, all)?;
        Ok(Values::reduced(m.from(1.0, ratio)?, &dims))
    }
}

/// 1 − Σ t·p / (Σ t·p + α·Σ t·(1 − p) + β·Σ p·(1 − t) + ε).
#[derive(Clone, Debug)]
struct Tversky {
    alpha: f64,
    beta: f64,
    axes: Axes,
}

pub(super) fn tversky(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let (alpha, beta) = (fields.f64_or("alpha", 0.5)?, fields.f64_or("beta", 0.5)?);
    Ok(Arc::new(Tversky { alpha, beta, axes: Axes::read(fields)? }))
}

impl Function for Tversky {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let dims = self.axes.dims(m, predicted)?;
        let product = |m: &mut Math<'_>, x, y| {
            let both = m.mul(x, y)?;
            m.sum(both, &dims)
        };
        let both = product(m, truth, predicted)?;
        let (no_truth, no_predicted) = (m.from(1.0, truth)?, m.from(1.0, predicted)?);
        let (missed, invented) = (product(m, no_predicted, truth)?, product(m, predicted, no_truth)?);
        let (missed, invented) = (m.times(missed, self.alpha)?, m.times(invented, self.beta)?);
        let all = m.add(both, missed)?;
        let all = m.add(all, invented)?;
        let all = m.plus(all, EPSILON)?;
        let ratio = m.div(both, all)?;
        Ok(Values::reduced(m.from(1.0, ratio)?, &dims))
    }
}
