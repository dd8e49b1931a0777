//! Means of values of a function, one for each row or each cell of a row.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;

use super::{Measure, Measured, quotient};
use crate::train::loss::Comparison;
use crate::train::loss::function::{Function, Pair};
use crate::train::loss::reduction::Factor;
use crate::train::math::Math;

/// The mean of what a function gives.
#[derive(Clone, Debug)]
pub(super) struct Mean(pub(super) Arc<dyn Function>);

impl Measure for Mean {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let found = self.0.values(m, &Pair { labels: of.y_true, predicted: of.y_pred, logits: of.logits })?;
        let dtype = m.dtype(of.y_pred);
        let mut weight = Factor::of(m, of.weight, of.mask, dtype)?.weight;
        // Cells that a function leaves out count unless there are weights.
        if weight.is_some() && found.mask.is_some() {
            weight = Factor::of(m, weight, found.mask, dtype)?.weight;
        }
        samplewise(m, found.values, weight)
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        Measured::One(quotient(sums[0][0], sums[1][0]))
    }
}

/// The root of the mean of squared errors. Masks are not heeded.
#[derive(Clone, Copy, Debug)]
pub(super) struct RootMeanSquared;

impl Measure for RootMeanSquared {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let pair = Pair { labels: of.y_true, predicted: of.y_pred, logits: None };
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let d = m.sub(predicted, truth)?;
        let square = m.square(d)?;
        let weight = Factor::of(m, of.weight, None, m.dtype(predicted))?.weight;
        samplewise(m, square, weight)
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        Measured::One(quotient(sums[0][0], sums[1][0]).sqrt())
    }
}

/// The weighted value and the weight of each row: means over its cells.
fn samplewise(m: &mut Math<'_>, values: Value, weight: Option<Value>) -> Result<Vec<Value>, TypeError> {
    let rows = |m: &mut Math<'_>, x: Value, from: usize| {
        let dims: Vec<usize> = (from..m.rank(x)).collect();
        if dims.is_empty() { Ok(x) } else { m.mean(x, &dims) }
    };
    let Some(weight) = weight else {
        let total = rows(m, values, 1)?;
        return Ok(vec![total, m.like(total, 1.0)?]);
    };
    let (a, b) = (m.shape(values), m.shape(weight));
    let (values, weight) = m.same_rank(values, weight)?;
    let values = rows(m, values, m.rank(weight))?;
    let shape = m.shape(values);
    let fits =
        m.rank(weight) == shape.len() && m.shape(weight).iter().zip(shape.iter()).all(|(w, v)| w == v || *w == 1);
    if !fits || shape.is_empty() {
        return Err(TypeError::new(format!("sample weights or a mask of shape {b} for values of shape {a}")));
    }
    let weight = m.g.broadcast_to(weight, &shape)?;
    let weighted = m.mul(values, weight)?;
    Ok(vec![rows(m, weighted, 1)?, rows(m, weight, 1)?])
}
