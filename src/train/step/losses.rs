//! What a batch amounts to: losses, penalties and metrics of all micro-batches together.

use super::{Builder, StepError, Totals};
use crate::train::loss::{Divisor, Terms};
use intwain_ir::scalar::{Compare, Reduce};
use intwain_ir::{Origin, Value};

impl Builder<'_> {
    /// The losses of the whole batch.
    pub(super) fn totals(&mut self) -> Result<Totals, StepError> {
        self.graph.origin = Origin::default();
        let mut losses = Vec::new();
        for i in 0..self.parts.objectives.len() {
            let terms: Vec<Terms> = self.ran.iter().filter_map(|r| r.terms[i]).collect();
            losses.push(if terms.is_empty() { None } else { Some(self.loss(&terms)?) });
        }
        if losses.iter().all(Option::is_none) {
            return Err(StepError::NoLoss);
        }
        let mut activities = Vec::new();
        for p in 0..self.ran[0].penalties.len() {
            let values: Vec<Value> = self.ran.iter().map(|r| r.penalties[p]).collect();
            let sums = values.into_iter().map(|v| self.sum_all(v)).collect::<Result<Vec<_>, _>>()?;
            let sum = self.join(sums)?;
            let rows = self.scalar(self.rows as f64)?;
            activities.push(self.graph.div(sum, rows)?);
        }
        let regularized: Vec<_> = self
            .variables
            .iter()
            .filter(|v| v.trains)
            .filter_map(|v| Some((v.now, v.spec.as_ref()?.regularizer.clone()?)))
            .collect();
        let mut penalties = Vec::new();
        for (weight, regularizer) in regularized {
            let penalty = regularizer.penalty(&mut self.graph, weight)?;
            penalties.push(self.graph.cast(self.float, penalty)?);
        }
        Ok(Totals { losses, penalties, activities })
    }

    /// A loss for the whole batch, and 1 divided by its divisor.
    fn loss(&mut self, terms: &[Terms]) -> Result<(Value, Value), StepError> {
        let sums = terms.iter().map(|t| self.sum_all(t.values)).collect::<Result<Vec<_>, _>>()?;
        let sum = self.join(sums)?;
        let one = self.scalar(1.0)?;
        match terms[0].divisor {
            Divisor::One => Ok((sum, one)),
            Divisor::Count => {
                let elements: usize = terms.iter().map(|t| self.graph.shape(t.values).elements()).sum();
                let count = self.scalar(elements as f64)?;
                Ok((self.graph.div(sum, count)?, self.graph.div(one, count)?))
            }
            Divisor::Sum(_) => {
                let mut sums = Vec::new();
                for t in terms {
                    let Divisor::Sum(weights) = t.divisor else { continue };
                    sums.push(self.sum_all(weights)?);
                }
                let total = self.join(sums)?;
                let zero = self.scalar(0.0)?;
                let none = self.graph.compare(Compare::Eq, total, zero)?;
                let safe = self.graph.select(none, one, total)?;
                let (loss, share) = (self.graph.div(sum, safe)?, self.graph.div(one, safe)?);
                Ok((self.graph.select(none, zero, loss)?, self.graph.select(none, zero, share)?))
            }
        }
    }

    /// Declares the loss as an output, and those of several outputs; gives the outputs that have one of their own.
    pub(super) fn report_losses(&mut self, totals: &Totals) -> Result<Vec<usize>, StepError> {
        let mut all = Vec::new();
        for (i, loss) in totals.losses.iter().enumerate() {
            let Some((loss, _)) = loss else { continue };
            let weight = self.parts.objectives[i].weight;
            all.push(if weight == 1.0 {
                *loss
            } else {
                let weight = self.scalar(weight)?;
                self.graph.mul(*loss, weight)?
            });
        }
        all.extend(totals.activities.iter().chain(&totals.penalties));
        let mut total = all[0];
        for more in &all[1..] {
            total = self.graph.add(total, *more)?;
        }
        self.graph.output("loss", total);
        let mut apart = Vec::new();
        if self.parts.objectives.len() > 1 {
            for (i, loss) in totals.losses.iter().enumerate() {
                let Some((loss, _)) = loss else { continue };
                apart.push(i);
                self.graph.output(&format!("loss/{i}"), *loss);
            }
        }
        Ok(apart)
    }

    /// Declares what metrics add as outputs; gives the number of outputs of each metric.
    pub(super) fn report_metrics(&mut self) -> Result<Vec<usize>, StepError> {
        self.graph.origin = Origin::default();
        let mut metrics = Vec::new();
        for m in 0..self.ran[0].increments.len() {
            let parts = self.ran[0].increments[m].len();
            for part in 0..parts {
                let mut sums = Vec::new();
                for k in 0..self.ran.len() {
                    let added = self.ran[k].increments[m][part];
                    let is_sum = self.graph.ty(added).rank() == 0;
                    sums.push(if is_sum { added } else { self.graph.reduce(Reduce::Sum, added, &[0])? });
                }
                let sum = self.join(sums)?;
                self.graph.output(&format!("metric/{m}/{part}"), sum);
            }
            metrics.push(parts);
        }
        Ok(metrics)
    }
}
