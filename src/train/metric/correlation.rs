//! How labels and predictions of a row go together.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Unary;

use super::{Measure, mean::Mean};
use crate::frontend::{Fields, ImportError};
use crate::train::loss::function::{Function, Pair, Values};
use crate::train::loss::similarity::cosine_similarity;
use crate::train::math::{EPSILON, Made, Math};

type Read = Result<Arc<dyn Measure>, ImportError>;

/// A measure along an axis.
#[derive(Clone, Copy, Debug)]
struct Along {
    kind: Kind,
    axis: i64,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Σ of products of unit vectors.
    Cosine,
    /// Mean of products of standardised values.
    Pearson,
    /// Twice the covariance by the variances and the square of the means' difference. Both factors of the covariance are taken
    /// from the mean of the predictions, as in Keras.
    Concordance,
}

fn along(kind: Kind, fields: &Fields<'_>) -> Read {
    Ok(Arc::new(Mean(Arc::new(Along { kind, axis: fields.int_or("axis", -1)? }))))
}

pub(super) fn cosine(fields: &Fields<'_>) -> Read {
    along(Kind::Cosine, fields)
}

pub(super) fn pearson(fields: &Fields<'_>) -> Read {
    along(Kind::Pearson, fields)
}

pub(super) fn concordance(fields: &Fields<'_>) -> Read {
    along(Kind::Concordance, fields)
}

impl Function for Along {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        if let Kind::Cosine = self.kind {
            let (values, dim) = cosine_similarity(m, pair, self.axis)?;
            return Ok(Values::reduced(values, &[dim]));
        }
        let (truth, predicted) = pair.same_rank(m)?.broadcast(m)?;
        let dim = m.dim(predicted, self.axis)?;
        let each = match self.kind {
            Kind::Cosine | Kind::Pearson => {
                let (t, p) = (standardized(m, truth, dim)?, standardized(m, predicted, dim)?);
                m.mul(t, p)?
            }
            Kind::Concordance => concordant(m, truth, predicted, dim)?,
        };
        Ok(Values::reduced(m.mean(each, &[dim])?, &[dim]))
    }
}

/// The mean along a dimension, repeated over it.
fn mean_along(m: &mut Math<'_>, x: Value, dim: usize) -> Made {
    let n = m.shape(x)[dim] as f64;
    let sum = m.sum_along(x, dim)?;
    m.over(sum, n)
}

fn standardized(m: &mut Math<'_>, x: Value, dim: usize) -> Made {
    let mean = mean_along(m, x, dim)?;
    let d = m.sub(x, mean)?;
    let variance = variance(m, d, dim)?;
    let deviation = m.unary(Unary::Sqrt, variance)?;
    m.div(d, deviation)
}

/// The mean of squared differences from the mean.
fn variance(m: &mut Math<'_>, x: Value, dim: usize) -> Made {
    let mean = mean_along(m, x, dim)?;
    let d = m.sub(x, mean)?;
    let square = m.square(d)?;
    mean_along(m, square, dim)
}

fn concordant(m: &mut Math<'_>, truth: Value, predicted: Value, dim: usize) -> Made {
    let (mean_t, mean_p) = (mean_along(m, truth, dim)?, mean_along(m, predicted, dim)?);
    let (dt, dp) = (m.sub(truth, mean_t)?, m.sub(predicted, mean_p)?);
    let (var_t, var_p) = (variance(m, dt, dim)?, variance(m, dp, dim)?);
    let off = m.sub(truth, mean_p)?;
    let covariance = m.mul(off, dp)?;
    let shift = m.sub(mean_t, mean_p)?;
    let shift = m.square(shift)?;
    let norm = m.add(var_t, var_p)?;
    let norm = m.add(norm, shift)?;
    let norm = m.plus(norm, EPSILON)?;
    let twice = m.times(covariance, 2.0)?;
    m.div(twice, norm)
}
