//! The share of the labels' variance that predictions explain.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;

use super::{Measure, Measured};
use crate::frontend::{Fields, ImportError};
use crate::train::loss::Comparison;
use crate::train::math::Math;

/// What becomes of several outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Aggregation {
    Mean,
    /// Weighted by the variance of each.
    ByVariance,
    None,
}

#[derive(Clone, Copy, Debug)]
struct R2 {
    aggregation: Aggregation,
    regressors: usize,
}

pub(super) fn r2(fields: &Fields<'_>) -> Result<Arc<dyn Measure>, ImportError> {
    let key = "class_aggregation";
    let said = fields.get(key).is_some_and(|at| at.is_null());
    let aggregation = match fields.choice(key, &["uniform_average", "variance_weighted_average"])? {
        _ if said => Aggregation::None,
        0 => Aggregation::Mean,
        _ => Aggregation::ByVariance,
    };
    Ok(Arc::new(R2 { aggregation, regressors: fields.usize_or("num_regressors", 0)? }))
}

impl Measure for R2 {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let dtype = m.dtype(of.y_pred);
        let truth = m.g.cast(dtype, of.y_true)?;
        let (truth, predicted) = m.same_rank(truth, of.y_pred)?;
        let (a, shape) = (m.shape(truth), m.shape(predicted));
        if a != shape || shape.len() != 2 {
            let problem = format!("labels of shape {a} and predictions of shape {shape}; takes rows of outputs");
            return Err(TypeError::new(problem));
        }
        let weight = match of.weight {
            None => m.like(truth, 1.0)?,
            Some(weight) => {
                let found = m.shape(weight);
                let mut weight = m.g.cast(dtype, weight)?;
                if found.len() == 1 {
                    weight = m.expanded(weight, 1)?;
                }
                let fits =
                    m.rank(weight) == 2 && m.shape(weight).iter().zip(shape.iter()).all(|(w, s)| w == s || *w == 1);
                if !fits {
                    return Err(TypeError::new(format!("sample weights of shape {found} for labels of shape {shape}")));
                }
                m.g.broadcast_to(weight, &shape)?
            }
        };
        let weighted = m.mul(truth, weight)?;
        let square = m.mul(truth, weighted)?;
        let error = m.sub(truth, predicted)?;
        let error = m.square(error)?;
        let error = m.mul(error, weight)?;
        let ones = m.like(truth, 1.0)?;
        Ok(vec![weighted, square, error, weight, ones])
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        let outputs = sums[0].len();
        let of = |i: usize| {
            let total = sums[1][i] - sums[0][i] * (sums[0][i] / sums[3][i]);
            let score = 1.0 - sums[2][i] / total;
            (if score.is_infinite() { 0.0 } else { score }, total)
        };
        let (scores, totals): (Vec<f64>, Vec<f64>) = (0..outputs).map(of).unzip();
        let mut scores = match self.aggregation {
            Aggregation::Mean => vec![scores.iter().sum::<f64>() / outputs as f64],
            Aggregation::ByVariance => {
                let weighted: f64 = scores.iter().zip(&totals).map(|(score, total)| score * total).sum();
                vec![weighted / totals.iter().sum::<f64>()]
            }
            Aggregation::None => scores,
        };
        // Keras counts elements as samples.
        let (n, p) = (sums[4].iter().sum::<f64>(), self.regressors as f64);
        if p != 0.0 && p < n - 1.0 {
            scores.iter_mut().for_each(|score| *score = 1.0 - (1.0 - *score) * (n - 1.0) / (n - p - 1.0));
        }
        if self.aggregation == Aggregation::None { Measured::Each(scores) } else { Measured::of(scores) }
    }
}
