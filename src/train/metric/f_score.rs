//! F-scores: precision and recall in one number.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary as B, Compare, Reduce, Unary};

use super::{Measure, Measured};
use crate::frontend::{Fields, ImportError, ImportErrorKind};
use crate::train::loss::Comparison;
use crate::train::math::{EPSILON, Math};

/// What becomes of the classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Average {
    /// A score for each.
    None,
    /// All counts together.
    Micro,
    /// The mean of the scores.
    Macro,
    /// The mean of the scores, weighted by how often a class occurs.
    Weighted,
}

#[derive(Clone, Copy, Debug)]
struct FBeta {
    average: Average,
    beta: f64,
    /// Above what a prediction is positive; without one, the greatest of a row is.
    threshold: Option<f64>,
}

pub(super) fn f1(fields: &Fields<'_>) -> Result<Arc<dyn Measure>, ImportError> {
    read(fields, 1.0)
}

pub(super) fn f_beta(fields: &Fields<'_>) -> Result<Arc<dyn Measure>, ImportError> {
    let beta = fields.f64_or("beta", 1.0)?;
    above_0(fields, "beta", beta, f64::INFINITY)?;
    read(fields, beta)
}

fn above_0(fields: &Fields<'_>, key: &str, value: f64, most: f64) -> Result<(), ImportError> {
    if value > 0.0 && value <= most {
        return Ok(());
    }
    let accepted =
        if most.is_finite() { format!("a number above 0, at most {most}") } else { "a number above 0".into() };
    Err(fields.require(key)?.error(ImportErrorKind::Value { found: value.to_string(), accepted, nearest: None }))
}

fn read(fields: &Fields<'_>, beta: f64) -> Result<Arc<dyn Measure>, ImportError> {
    let average = match fields.opt("average") {
        None => Average::None,
        Some(_) => match fields.choice("average", &["micro", "macro", "weighted"])? {
            0 => Average::Micro,
            1 => Average::Macro,
            _ => Average::Weighted,
        },
    };
    let threshold = fields.opt("threshold").map(|at| at.f64()).transpose()?;
    if let Some(threshold) = threshold {
        above_0(fields, "threshold", threshold, 1.0)?;
    }
    Ok(Arc::new(FBeta { average, beta, threshold }))
}

impl Measure for FBeta {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let predicted = of.y_pred;
        let truth = m.g.cast(m.dtype(predicted), of.y_true)?;
        let (a, b) = (m.shape(truth), m.shape(predicted));
        if a != b || b.len() != 2 {
            return Err(TypeError::new(format!(
                "labels of shape {a} and predictions of shape {b}; takes rows of classes"
            )));
        }
        let positive = match self.threshold {
            Some(threshold) => m.is(predicted, Compare::Gt, threshold)?,
            None => {
                let max = m.g.reduce_keep(Reduce::Max, predicted, &[1])?;
                let max = m.g.broadcast_to(max, &b)?;
                let greatest = m.g.compare(Compare::Ge, predicted, max)?;
                let size = m.unary(Unary::Abs, predicted)?;
                let some = m.is(size, Compare::Gt, 1e-9)?;
                m.g.binary(B::And, greatest, some)?
            }
        };
        let positive = m.g.cast(m.dtype(truth), positive)?;
        let (negative, no) = (m.from(1.0, positive)?, m.from(1.0, truth)?);
        let each = [m.mul(positive, truth)?, m.mul(positive, no)?, m.mul(negative, truth)?, truth];
        let weight = match of.weight {
            None => None,
            Some(weight) if m.shape(weight)[..] == b[..1] => {
                let weight = m.g.cast(m.dtype(truth), weight)?;
                Some(m.g.broadcast(weight, &b, &[0])?)
            }
            Some(weight) => {
                let found = m.shape(weight);
                return Err(TypeError::new(format!("sample weights of shape {found}; takes one for each row")));
            }
        };
        each.into_iter()
            .map(|x| {
                let x = weight.map_or(Ok(x), |w| m.mul(x, w))?;
                if self.average == Average::Micro { m.sum(x, &[1]) } else { Ok(x) }
            })
            .collect()
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        let square = self.beta * self.beta;
        let score = |class: usize| {
            let (tp, fp, fn_) = (sums[0][class], sums[1][class], sums[2][class]);
            let (precision, recall) = (tp / (tp + fp + EPSILON), tp / (tp + fn_ + EPSILON));
            precision * recall / (square * precision + recall + EPSILON) * (1.0 + square)
        };
        let scores: Vec<f64> = (0..sums[0].len()).map(score).collect();
        match self.average {
            Average::None => Measured::Each(scores),
            Average::Micro | Average::Macro => Measured::One(scores.iter().sum::<f64>() / scores.len() as f64),
            Average::Weighted => {
                let all = sums[3].iter().sum::<f64>() + EPSILON;
                Measured::One(scores.iter().zip(&sums[3]).map(|(score, weight)| score * (weight / all)).sum())
            }
        }
    }
}
