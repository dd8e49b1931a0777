//! Losses of distributions: Kullback–Leibler, Poisson, generalised cross-entropy.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Binary as B;

use super::function::{Function, Pair, Values};
use super::{Coupling, crossentropy};
use crate::frontend::{Fields, ImportError, ImportErrorKind};
use crate::train::math::{EPSILON, Math};

/// Σ t·log(t / p), both limited to [ε, 1].
#[derive(Clone, Copy, Debug)]
struct KullbackLeibler;

pub(super) fn kullback_leibler(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(KullbackLeibler))
}

impl Function for KullbackLeibler {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let (truth, predicted) = (m.clip(truth, EPSILON, 1.0)?, m.clip(predicted, EPSILON, 1.0)?);
        let ratio = m.div(truth, predicted)?;
        let log = m.log(ratio)?;
        let each = m.mul(truth, log)?;
        let last = m.dim(each, -1)?;
        Ok(Values::reduced(m.sum(each, &[last])?, &[last]))
    }
}

/// Mean of p − t·log(p + ε).
#[derive(Clone, Copy, Debug)]
struct Poisson;

pub(super) fn poisson(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Poisson))
}

impl Function for Poisson {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let above = m.plus(predicted, EPSILON)?;
        let log = m.log(above)?;
        let agreed = m.mul(truth, log)?;
        let each = m.sub(predicted, agreed)?;
        let last = m.dim(each, -1)?;
        Ok(Values::reduced(m.mean(each, &[last])?, &[last]))
    }
}

/// (1 − p^q) / q for the probability p of the class that a number names.
#[derive(Clone, Copy, Debug)]
struct Generalized {
    q: f64,
}

pub(super) fn generalized(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let q = fields.f64_or("q", 0.5)?;
    if !(0.0 < q && q < 1.0) {
        let accepted = "a number between 0 and 1, neither of them".to_string();
        let kind = ImportErrorKind::Value { found: q.to_string(), accepted, nearest: None };
        return Err(fields.get("q").unwrap_or_else(|| fields.at().clone()).error(kind));
    }
    Ok(Arc::new(Generalized { q }))
}

impl Function for Generalized {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let last = m.dim(pair.predicted, -1)?;
        let classes = crossentropy::class_numbers(m, pair.labels, pair.predicted, last)?;
        let chosen = crossentropy::one_hot(m, classes, pair.predicted, last)?;
        let p = m.where_or(chosen, pair.predicted, 0.0)?;
        let p = m.sum(p, &[last])?;
        let q = m.like(p, self.q)?;
        let power = m.g.binary(B::Pow, p, q)?;
        let rest = m.from(1.0, power)?;
        Ok(Values::all(m.over(rest, self.q)?, Coupling::Apart))
    }
}
