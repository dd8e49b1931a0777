//! The best of one rate where another is at least what is asked for.

use std::sync::Arc;

use intwain_ir::Value;
use intwain_ir::ops::TypeError;

use super::confusion::{Cells, Ends, Selection, Thresholds};
use super::{Measure, Measured, auc};
use crate::frontend::{Fields, ImportError};
use crate::train::loss::Comparison;
use crate::train::math::Math;

type Read = Result<Arc<dyn Measure>, ImportError>;

/// A share of positives or negatives.
#[derive(Clone, Copy, Debug)]
enum Rate {
    /// Recall.
    Sensitivity,
    Specificity,
    Precision,
}

impl Rate {
    fn of(self, sums: &auc::Sums) -> f64 {
        match self {
            Rate::Sensitivity => sums.recall(),
            Rate::Specificity => sums.specificity(),
            Rate::Precision => sums.precision(),
        }
    }
}

/// The greatest of a rate over all thresholds at which another reaches a value.
#[derive(Clone, Debug)]
struct At {
    best: Rate,
    held: Rate,
    least: f64,
    thresholds: Thresholds,
    selection: Selection,
}

fn at(fields: &Fields<'_>, key: &str, best: Rate, held: Rate) -> Read {
    let value = fields.require(key)?;
    let least = super::counts::within_0_and_1(&value)?[0];
    let class = fields.opt("class_id").map(|at| at.usize()).transpose()?;
    let thresholds = match fields.positive_or("num_thresholds", 200)? {
        1 => Thresholds::List(vec![0.5]),
        count => Thresholds::Even { count, ends: Ends::Exact },
    };
    Ok(Arc::new(At { best, held, least, thresholds, selection: Selection { top_k: None, class } }))
}

pub(super) fn sensitivity_at_specificity(fields: &Fields<'_>) -> Read {
    at(fields, "specificity", Rate::Sensitivity, Rate::Specificity)
}

pub(super) fn specificity_at_sensitivity(fields: &Fields<'_>) -> Read {
    at(fields, "sensitivity", Rate::Specificity, Rate::Sensitivity)
}

pub(super) fn precision_at_recall(fields: &Fields<'_>) -> Read {
    at(fields, "recall", Rate::Precision, Rate::Sensitivity)
}

pub(super) fn recall_at_precision(fields: &Fields<'_>) -> Read {
    at(fields, "precision", Rate::Sensitivity, Rate::Precision)
}

impl Measure for At {
    fn increments(&self, m: &mut Math<'_>, of: &Comparison) -> Result<Vec<Value>, TypeError> {
        let cells = Cells::of(m, of, self.selection)?.flat(m)?;
        auc::sums(m, &cells, &self.thresholds)
    }

    fn result(&self, sums: &[Vec<f64>]) -> Measured {
        let feasible = auc::Sums::all(sums).into_iter().filter(|s| self.held.of(s) >= self.least);
        Measured::One(feasible.map(|s| self.best.of(&s)).fold(0.0, f64::max))
    }
}
