//! Losses of directions and distances: cosine similarity, circle loss.

use std::sync::Arc;

use intwain_ir::ops::{Contract, TypeError};
use intwain_ir::scalar::{Binary as B, Compare, Reduce, Unary};
use intwain_ir::{DType, Shape, Value};

use super::Coupling;
use super::function::{Function, Pair, Values};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{EPSILON, Made, Math};

/// −Σ of products of unit vectors.
#[derive(Clone, Copy, Debug)]
struct Cosine {
    axis: i64,
}

pub(super) fn cosine(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Cosine { axis: fields.int_or("axis", -1)? }))
}

impl Function for Cosine {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let (values, dim) = cosine_similarity(m, pair, self.axis)?;
        Ok(Values::reduced(m.neg(values)?, &[dim]))
    }
}

/// Σ of products of unit vectors, and the dimension they lie along.
pub(in crate::train) fn cosine_similarity(
    m: &mut Math<'_>,
    pair: &Pair,
    axis: i64,
) -> Result<(Value, usize), TypeError> {
    let pair = pair.same_rank(m)?;
    let truth = pair.truth(m)?;
    let unit = |m: &mut Math<'_>, x| -> Made {
        let dim = m.dim(x, axis)?;
        unit(m, x, dim)
    };
    let (p, t) = (unit(m, pair.predicted)?, unit(m, truth)?);
    let product = m.mul(t, p)?;
    let dim = m.dim(product, axis)?;
    Ok((m.sum(product, &[dim])?, dim))
}

/// x · min(1/√Σx², 1/ε). A vector of zeros passes the gradient on as one that is short.
fn unit(m: &mut Math<'_>, x: Value, dim: usize) -> Made {
    let square = m.square(x)?;
    let sum = m.sum_along(square, dim)?;
    let some = m.is(sum, Compare::Gt, 0.0)?;
    let safe = m.where_or(some, sum, 1.0)?;
    let inverse = m.unary(Unary::Rsqrt, safe)?;
    let inverse = m.where_or(some, inverse, 1.0 / EPSILON)?;
    let inverse = m.at_most(inverse, 1.0 / EPSILON)?;
    m.mul(x, inverse)
}

/// Pairs of rows of one class should be near, others far; every row of the batch is compared with every other.
#[derive(Clone, Copy, Debug)]
struct Circle {
    gamma: f64,
    margin: f64,
    diagonal: Diagonal,
}

/// Whether a row is compared with itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Diagonal {
    Kept,
    Removed,
}

pub(super) fn circle(fields: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    let removed = fields.bool_or("remove_diagonal", true)?;
    let diagonal = if removed { Diagonal::Removed } else { Diagonal::Kept };
    Ok(Arc::new(Circle { gamma: fields.f64_or("gamma", 80.0)?, margin: fields.f64_or("margin", 0.4)?, diagonal }))
}

impl Function for Circle {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let (labels, embeddings) = (m.shape(pair.labels), m.shape(pair.predicted));
        if embeddings.len() != 2 || labels.elements() != embeddings[0] {
            let problem = format!("labels of shape {labels} for embeddings of shape {embeddings}");
            return Err(TypeError::new(format!("{problem}; takes a class number and a vector for each row")));
        }
        let (same, other) = self.pairs(m, pair.labels, embeddings[0])?;
        let products =
            m.g.push(Contract { batch: vec![], contract: vec![(1, 1)] }, &[pair.predicted, pair.predicted])?;
        let apart = m.from(1.0, products)?;
        let apart = m.at_least(apart, 0.0)?;
        let near = {
            let weight = m.plus(apart, self.margin)?;
            let weight = masked(m, weight, same)?;
            let weight = m.at_least(weight, 0.0)?;
            let distance = m.from(self.margin, apart)?;
            let product = m.mul(weight, distance)?;
            let scaled = m.times(product, -self.gamma)?;
            log_sum_exp(m, scaled, same)?
        };
        let far = {
            let weight = m.from(1.0 + self.margin, apart)?;
            let weight = masked(m, weight, other)?;
            let weight = m.at_least(weight, 0.0)?;
            let distance = m.from(1.0 - self.margin, apart)?;
            let product = m.mul(weight, distance)?;
            let scaled = m.times(product, self.gamma)?;
            log_sum_exp(m, scaled, other)?
        };
        let sum = m.add(near, far)?;
        let values = m.softplus(sum)?;
        let mask = m.is(values, Compare::Gt, 0.0)?;
        Ok(Values { values, mask: Some(mask), coupling: Coupling::Together })
    }
}

impl Circle {
    /// Which pairs are of one class, and which are not.
    fn pairs(&self, m: &mut Math<'_>, labels: Value, rows: usize) -> Result<(Value, Value), TypeError> {
        let labels = m.g.cast(DType::I32, labels)?;
        let labels = m.g.reshape(labels, &Shape::from([rows]))?;
        let square = Shape::from([rows, rows]);
        let (own, others) = (m.g.broadcast(labels, &square, &[0])?, m.g.broadcast(labels, &square, &[1])?);
        let same = m.g.compare(Compare::Eq, own, others)?;
        let other = m.unary(Unary::Not, same)?;
        if self.diagonal == Diagonal::Kept {
            return Ok((same, other));
        }
        let (here, there) = (m.positions(&square, 0)?, m.positions(&square, 1)?);
        let elsewhere = m.g.compare(Compare::Ne, here, there)?;
        Ok((m.g.binary(B::And, same, elsewhere)?, other))
    }
}

fn masked(m: &mut Math<'_>, x: Value, mask: Value) -> Made {
    let mask = m.g.cast(m.dtype(x), mask)?;
    m.mul(x, mask)
}

/// log Σ e^x over what the mask leaves of each row; −∞ where it leaves nothing.
fn log_sum_exp(m: &mut Math<'_>, x: Value, mask: Value) -> Made {
    let shape = m.shape(x);
    let kept = m.where_or(mask, x, f64::NEG_INFINITY)?;
    let max = m.g.reduce(Reduce::Max, kept, &[1])?;
    let max = m.constant(max)?;
    let some = m.is(max, Compare::Gt, f64::NEG_INFINITY)?;
    let max = m.where_or(some, max, 0.0)?;
    let beside = m.g.broadcast(max, &shape, &[0])?;
    let d = m.sub(kept, beside)?;
    let e = m.unary(Unary::Exp, d)?;
    let sum = m.sum(e, &[1])?;
    let sum = m.where_or(some, sum, 1.0)?;
    let log = m.log(sum)?;
    let log = m.add(log, max)?;
    m.where_or(some, log, f64::NEG_INFINITY)
}
