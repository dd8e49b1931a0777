//! Cross-entropies of two classes and of many.
//!
//! Where the predictions come out of a softmax or sigmoid, they are computed from what went in, as on TensorFlow: nothing is
//! clipped then. The gradient of the softmax form is softmax − labels, also for labels that do not add up to 1.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Compare, Reduce, Unary};
use intwain_ir::{DType, Value};

use super::Coupling;
use super::function::{Classification, Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{EPSILON, Made, Math};

/// Whether predictions are probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Probabilities,
    Logits,
}

impl Scale {
    pub(super) fn read(fields: &Fields<'_>) -> Result<Scale, ImportError> {
        Ok(if fields.bool_or("from_logits", false)? { Scale::Logits } else { Scale::Probabilities })
    }

    /// What went into the softmax or sigmoid, if that is known.
    fn logits(self, pair: &Pair) -> Option<Value> {
        pair.logits.or((self == Scale::Logits).then_some(pair.predicted))
    }
}

/// −(t·log p + (1 − t)·log(1 − p)), mean over an axis.
#[derive(Clone, Copy, Debug)]
struct Binary {
    scale: Scale,
    smoothing: f64,
    axis: i64,
}

pub(super) fn binary(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let (scale, smoothing) = (Scale::read(fields)?, fields.f64_or("label_smoothing", 0.0)?);
    Ok(Arc::new(Binary { scale, smoothing, axis: fields.int_or("axis", -1)? }))
}

impl Function for Binary {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let (truth, predicted) = pair.equal(m)?;
        let truth = smoothed_binary(m, truth, self.smoothing)?;
        let each = match self.scale.logits(&pair) {
            Some(logits) => binary_of_logits(m, truth, logits)?,
            None => binary_of_probabilities(m, truth, predicted)?,
        };
        let dim = m.dim(each, self.axis)?;
        Ok(Values::reduced(m.mean(each, &[dim])?, &[dim]))
    }
}

/// Labels drawn towards ½.
pub(super) fn smoothed_binary(m: &mut Math<'_>, truth: Value, smoothing: f64) -> Made {
    if smoothing == 0.0 {
        return Ok(truth);
    }
    let less = m.times(truth, 1.0 - smoothing)?;
    m.plus(less, 0.5 * smoothing)
}

/// max(z, 0) − z·t + log(1 + e^−|z|).
pub(super) fn binary_of_logits(m: &mut Math<'_>, truth: Value, z: Value) -> Made {
    let zero = m.like(z, 0.0)?;
    let up = m.g.compare(Compare::Ge, z, zero)?;
    let minus = m.neg(z)?;
    let (kept, away) = (m.g.select(up, z, zero)?, m.g.select(up, minus, z)?);
    let agreed = m.mul(z, truth)?;
    let line = m.sub(kept, agreed)?;
    let e = m.unary(Unary::Exp, away)?;
    let log = m.unary(Unary::Log1p, e)?;
    m.add(line, log)
}

pub(super) fn binary_of_probabilities(m: &mut Math<'_>, truth: Value, p: Value) -> Made {
    let p = m.clip(p, EPSILON, 1.0 - EPSILON)?;
    let (q, no) = (m.from(1.0, p)?, m.from(1.0, truth)?);
    let (log_p, log_q) = (m.log(p)?, m.log(q)?);
    let (yes, no) = (m.mul(truth, log_p)?, m.mul(no, log_q)?);
    let sum = m.add(yes, no)?;
    m.neg(sum)
}

/// −Σ t·log p along an axis.
#[derive(Clone, Copy, Debug)]
struct Categorical {
    scale: Scale,
    smoothing: f64,
    axis: i64,
}

pub(super) fn categorical(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let (scale, smoothing) = (Scale::read(fields)?, fields.f64_or("label_smoothing", 0.0)?);
    Ok(Arc::new(Categorical { scale, smoothing, axis: fields.int_or("axis", -1)? }))
}

impl Function for Categorical {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let (truth, predicted) = pair.equal(m)?;
        let truth = smoothed(m, truth, self.smoothing)?;
        let dim = m.dim(predicted, self.axis)?;
        let values = match self.scale.logits(&pair) {
            Some(logits) => categorical_of_logits(m, truth, logits, dim)?,
            None => {
                let p = normalized(m, predicted, dim)?;
                let log = m.log(p)?;
                let each = m.mul(truth, log)?;
                let sum = m.sum(each, &[dim])?;
                m.neg(sum)?
            }
        };
        Ok(Values::reduced(values, &[dim]))
    }
}

/// Labels drawn towards equal shares of the last axis.
pub(super) fn smoothed(m: &mut Math<'_>, truth: Value, smoothing: f64) -> Made {
    if smoothing == 0.0 {
        return Ok(truth);
    }
    let last = m.dim(truth, -1)?;
    let classes = m.shape(truth)[last] as f64;
    let less = m.times(truth, 1.0 - smoothing)?;
    m.plus(less, smoothing / classes)
}

/// Probabilities that add up to 1, away from 0 and 1.
pub(super) fn normalized(m: &mut Math<'_>, p: Value, dim: usize) -> Made {
    let sum = m.sum_along(p, dim)?;
    let p = m.div(p, sum)?;
    m.clip(p, EPSILON, 1.0 - EPSILON)
}

/// What a softmax is made of: differences to the greatest, and the logarithm of their exponentials' sum.
struct Exponents {
    each: Value,
    log_sum: Value,
}

fn exponents(m: &mut Math<'_>, x: Value, dim: usize) -> Result<Exponents, TypeError> {
    let shape = m.shape(x);
    let max = m.g.reduce_keep(Reduce::Max, x, &[dim])?;
    let max = m.constant(max)?;
    let max = m.g.broadcast_to(max, &shape)?;
    let each = m.sub(x, max)?;
    let e = m.unary(Unary::Exp, each)?;
    let sum = m.sum(e, &[dim])?;
    Ok(Exponents { each, log_sum: m.log(sum)? })
}

/// Σ t·(log Σ e^x − x). The factor Σ t of the first part is no part of the gradient, which makes that softmax − t.
fn categorical_of_logits(m: &mut Math<'_>, truth: Value, x: Value, dim: usize) -> Made {
    let Exponents { each, log_sum } = exponents(m, x, dim)?;
    let none = m.is(truth, Compare::Eq, 0.0)?;
    let agreed = m.mul(truth, each)?;
    let zero = m.like(agreed, 0.0)?;
    // A class that is ruled out may have −∞.
    let agreed = m.g.select(none, zero, agreed)?;
    let agreed = m.sum(agreed, &[dim])?;
    let total = m.sum(truth, &[dim])?;
    let beyond = m.plus(total, -1.0)?;
    let fixed = m.constant(log_sum)?;
    let rest = m.mul(beyond, fixed)?;
    let sum = m.add(log_sum, rest)?;
    m.sub(sum, agreed)
}

/// −log p of the class that a number names.
#[derive(Clone, Copy, Debug)]
struct Sparse {
    scale: Scale,
    ignored: Option<i64>,
    axis: i64,
}

pub(super) fn sparse(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let ignored = fields.opt("ignore_class").map(|at| at.int()).transpose()?;
    Ok(Arc::new(Sparse { scale: Scale::read(fields)?, ignored, axis: fields.int_or("axis", -1)? }))
}

impl Function for Sparse {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let dim = m.dim(pair.predicted, self.axis)?;
        if dim + 1 != m.rank(pair.predicted) {
            return Err(TypeError::new(format!("classes are along the last axis, not along axis {}", self.axis)));
        }
        let classes = class_numbers(m, pair.labels, pair.predicted, dim)?;
        let Some(ignored) = self.ignored else {
            let values = self.each(m, classes, pair.predicted, self.scale.logits(&pair), dim)?;
            return Ok(Values::all(values, Coupling::Apart));
        };
        let valid = m.is(classes, Compare::Ne, ignored as f64)?;
        let classes = m.where_or(valid, classes, 0.0)?;
        let shape = m.shape(pair.predicted);
        let beside = m.expanded(valid, dim)?;
        let beside = m.g.broadcast_to(beside, &shape)?;
        // A choice is no softmax: TensorFlow takes the probabilities as they are.
        let predicted = m.where_or(beside, pair.predicted, 0.0)?;
        let logits = (self.scale == Scale::Logits).then_some(predicted);
        let values = self.each(m, classes, predicted, logits, dim)?;
        Ok(Values { values: m.where_or(valid, values, 0.0)?, mask: Some(valid), coupling: Coupling::Apart })
    }
}

impl Sparse {
    /// The loss of each class number. A number that names no class gives NaN, as on TensorFlow's GPUs.
    fn each(&self, m: &mut Math<'_>, classes: Value, predicted: Value, logits: Option<Value>, dim: usize) -> Made {
        let scores = match logits {
            Some(logits) => logits,
            None => {
                let p = m.clip(predicted, EPSILON, 1.0 - EPSILON)?;
                m.log(p)?
            }
        };
        let Exponents { each, log_sum } = exponents(m, scores, dim)?;
        let chosen = one_hot(m, classes, each, dim)?;
        let chosen = m.where_or(chosen, each, 0.0)?;
        let chosen = m.sum(chosen, &[dim])?;
        let values = m.sub(log_sum, chosen)?;
        let extent = m.shape(predicted)[dim] as f64;
        let (low, high) = (m.is(classes, Compare::Ge, 0.0)?, m.is(classes, Compare::Lt, extent)?);
        let known = m.both(low, high)?;
        m.where_or(known, values, f64::NAN)
    }
}

/// Class numbers of the predictions' shape without the classes.
pub(super) fn class_numbers(m: &mut Math<'_>, labels: Value, predicted: Value, dim: usize) -> Made {
    let (mut labels, shape) = (labels, m.shape(predicted));
    if m.rank(labels) == shape.len() && m.shape(labels)[dim] == 1 {
        labels = m.squeezed(labels, dim)?;
    }
    if m.shape(labels)[..] != shape[..dim] {
        let found = m.shape(labels);
        return Err(TypeError::new(format!("class numbers of shape {found} for predictions of shape {shape}")));
    }
    m.g.cast(DType::I32, labels)
}

/// Where a position along a dimension is the class number beside it.
pub(super) fn one_hot(m: &mut Math<'_>, classes: Value, like: Value, dim: usize) -> Made {
    let shape = m.shape(like);
    let positions = m.positions(&shape, dim)?;
    let classes = m.expanded(classes, dim)?;
    let classes = m.g.broadcast_to(classes, &shape)?;
    m.g.compare(Compare::Eq, positions, classes)
}

/// `crossentropy`: the kind that the shapes say.
#[derive(Clone, Copy, Debug)]
struct ByShapes;

pub(super) fn by_shapes(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(ByShapes))
}

impl Function for ByShapes {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (scale, smoothing, axis) = (Scale::Probabilities, 0.0, -1);
        match Classification::of(m.g, pair.labels, pair.predicted) {
            Classification::Binary => Binary { scale, smoothing, axis }.values(m, pair),
            Classification::Sparse => Sparse { scale, ignored: None, axis }.values(m, pair),
            Classification::Dense => Categorical { scale, smoothing, axis }.values(m, pair),
        }
    }
}
