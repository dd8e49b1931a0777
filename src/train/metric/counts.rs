//! Counts of positives and negatives, precision, recall.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Unary;

use super::confusion::{Cells, Selection, Thresholds, counted};
use super::{Measure, Measured, quotient};
use crate::frontend::{At, Fields, ImportError, ImportErrorKind};
use crate::train::loss::Comparison;
use crate::train::math::Math;

type Read = Result<Arc<dyn Measure>, ImportError>;

/// Thresholds in [0, 1], one or several.
pub(super) fn thresholds(fields: &Fields<'_>, default: f64) -> Result<Vec<f64>, ImportError> {
    fields.opt("thresholds").map_or(Ok(vec![default]), |at| within_0_and_1(&at))
}

pub(super) fn within_0_and_1(at: &At<'_>) -> Result<Vec<f64>, ImportError> {
    let one = |at: &At<'_>| {
        let t = at.f64()?;
        let outside = || ImportErrorKind::Value {
            found: t.to_string(),
            accepted: "a number from 0 to 1".to_string(),
            nearest: None,
        };
        if (0.0..=1.0).contains(&t) { Ok(t) } else { Err(at.error(outside())) }
    };
    at.one_or_many().iter().map(one).collect()
}

/// Labels and predictions that agree or do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    TruePositive,
    FalsePositive,
    TrueNegative,
    FalseNegative,
}

impl Outcome {
    /// How often it occurs at each threshold, in each row.
    fn counts(self, m: &mut Math<'_>, cells: &Cells, above: Value) -> Result<Value, TypeError> {
        let [positive, negative] = cells.apart(m)?;
        match self {
            Outcome::TruePositive => counted(m, positive, above),
            Outcome::FalsePositive => counted(m, negative, above),
            Outcome::TrueNegative | Outcome::FalseNegative => {
                let below = m.unary(Unary::Not, above)?;
                counted(m, if self == Outcome::TrueNegative { negative } else { positive }, below)
            }
        }
    }
}

/// How often an outcome occurs.
#[derive(Clone, Debug)]
struct Count {
    outcome: Outcome,
    thresholds: Thresholds,
}

fn count(fields: &Fields<'_>, outcome: Outcome) -> Read {
    Ok(Arc::new(Count { outcome, thresholds: Thresholds::listed(thresholds(fields, 0.5)?) }))
}

pub(super) fn true_positives(fields: &Fields<'_>) -> Read {
    count(fields, Outcome::TruePositive)
}

pub(super) fn false_positives(fields: &Fields<'_>) -> Read {
    count(fields, Outcome::FalsePositive)
}

pub(super) fn true_negatives(fields: &Fields<'_>) -> Read {
    count(fields, Outcome::TrueNegative)
}

pub(super) fn false_negatives(fields: &Fields<'_>) -> Read {
    count(fields, Outcome::FalseNegative)
}

impl Measure for Count {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let cells = Cells::of(m, of, Selection::default())?.flat(m)?;
        let above = self.thresholds.above(m, cells.predicted)?;
        Ok(vec![self.outcome.counts(m, &cells, above)?])
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        Measured::of(sums[0].clone())
    }
}

/// True positives as a part of those and another outcome.
#[derive(Clone, Debug)]
struct Share {
    /// What is wrong.
    wrong: Outcome,
    thresholds: Thresholds,
    selection: Selection,
}

fn share(fields: &Fields<'_>, wrong: Outcome) -> Read {
    let top_k = fields.opt("top_k").map(|at| at.positive()).transpose()?;
    let class = fields.opt("class_id").map(|at| at.usize()).transpose()?;
    // Of the greatest, all are positive.
    let default = if top_k.is_some() { -1e10 } else { 0.5 };
    let thresholds = Thresholds::listed(thresholds(fields, default)?);
    Ok(Arc::new(Share { wrong, thresholds, selection: Selection { top_k, class } }))
}

pub(super) fn precision(fields: &Fields<'_>) -> Read {
    share(fields, Outcome::FalsePositive)
}

pub(super) fn recall(fields: &Fields<'_>) -> Read {
    share(fields, Outcome::FalseNegative)
}

impl Measure for Share {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let cells = Cells::of(m, of, self.selection)?.flat(m)?;
        let above = self.thresholds.above(m, cells.predicted)?;
        let right = Outcome::TruePositive.counts(m, &cells, above)?;
        Ok(vec![right, self.wrong.counts(m, &cells, above)?])
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        Measured::of(sums[0].iter().zip(&sums[1]).map(|(right, wrong)| quotient(*right, right + wrong)).collect())
    }
}
