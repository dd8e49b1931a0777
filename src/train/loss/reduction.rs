//! Weights, masks and what a sum of values is divided by.

use intwain_ir::ops::TypeError;
use intwain_ir::{DType, Value};

use super::function::Values;
use super::{Divisor, Terms};
use crate::train::math::Math;

/// What becomes of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean; `mean`, `sum_over_batch_size` and Keras 2's `auto`.
    Mean,
    /// Their sum.
    Sum,
    /// The sum of the weighted values by the sum of the weights.
    WeightedMean,
    /// None: what is minimised is their sum, what is reported their mean.
    None,
}

/// Sample weights and the mask of an output as one factor.
pub(crate) struct Factor {
    /// What values are multiplied by, if anything.
    pub(crate) weight: Option<Value>,
    /// The mask as numbers.
    pub(crate) mask: Option<Value>,
}

impl Factor {
    /// Keras's rules for ranks: a trailing 1 comes or goes, and nothing else.
    pub(crate) fn of(
        m: &mut Math<'_>,
        weight: Option<Value>,
        mask: Option<Value>,
        dtype: DType,
    ) -> Result<Factor, TypeError> {
        let mask = mask.map(|mask| m.g.cast(dtype, mask)).transpose()?;
        let weight = weight.map(|weight| m.g.cast(dtype, weight)).transpose()?;
        let weight = match (mask, weight) {
            (Some(mask), Some(weight)) => {
                let (a, b) = (m.shape(mask), m.shape(weight));
                let (mask, weight) = m.same_rank(mask, weight)?;
                let product = m.mul(weight, mask);
                Some(
                    product
                        .map_err(|_| TypeError::new(format!("sample weights of shape {b} for a mask of shape {a}")))?,
                )
            }
            (mask, weight) => mask.or(weight),
        };
        Ok(Factor { weight, mask })
    }
}

/// Values with weights and masks applied, and their divisor.
pub(super) fn terms(
    m: &mut Math<'_>,
    found: Values,
    weight: Option<Value>,
    mask: Option<Value>,
    reduction: Reduction,
) -> Result<Terms, TypeError> {
    let mask = match (mask, found.mask) {
        (Some(a), Some(b)) => {
            let (a, b) = (m.g.cast(DType::Bool, a)?, m.g.cast(DType::Bool, b)?);
            Some(m.both(a, b)?)
        }
        (a, b) => a.or(b),
    };
    let dtype = m.dtype(found.values);
    let factor = Factor::of(m, weight, mask, dtype)?;
    let mut values = found.values;
    let mut divisors = factor.weight;
    if let Some(weight) = factor.weight {
        let (a, b) = (m.shape(values), m.shape(weight));
        let (v, w) = m.same_rank(values, weight)?;
        let product = m.mul(v, w).map_err(|_| {
            TypeError::new(format!(
                "sample weights or a mask of shape {b} for values of shape {a}; there is a weight for each value, or for \
                 each row: [rows, 1] where a row has several values"
            ))
        });
        (values, divisors) = (product?, Some(w));
    }
    let divisor = match reduction {
        Reduction::Sum | Reduction::None => Divisor::One,
        // Keras leaves a single number as it is.
        Reduction::Mean | Reduction::WeightedMean if m.rank(values) == 0 => Divisor::One,
        Reduction::Mean => match factor.mask {
            None => Divisor::Count,
            // Values that count are weighted by total/valid, so that the mean is over them.
            Some(mask) => {
                let share = m.shape(values).elements() as f64 / m.shape(mask).elements() as f64;
                Divisor::Sum(if share == 1.0 { mask } else { m.times(mask, share)? })
            }
        },
        Reduction::WeightedMean => divisors.map_or(Divisor::Count, Divisor::Sum),
    };
    Ok(Terms { values, divisor, coupling: found.coupling })
}
