//! From the losses to what variables and slots become.

use super::{Builder, StepError, Totals};
use crate::train::hook::Gradient;
use crate::train::optimizer::{Given, Optimizer, Slot};
use intwain_ir::ops::{Op, TypeError};
use intwain_ir::scalar::Binary;
use intwain_ir::{DType, Graph, Origin, ParamKind, Type, Value, grad};

impl Builder<'_> {
    /// Differentiates, and gives the trainable variables and the optimizer's slots their next values.
    pub(super) fn train(&mut self, optimizer: &Optimizer, totals: &Totals) -> Result<Vec<Slot>, StepError> {
        let trained: Vec<usize> = (0..self.variables.len()).filter(|&v| self.variables[v].trains).collect();
        if trained.is_empty() {
            return Err(StepError::NothingTrainable);
        }
        let of = |b: &Self, v: usize| b.graph.ty(b.variables[v].before).clone();
        let named: Vec<(String, Type)> = trained
            .iter()
            .map(|&v| (self.graph.params[self.variables[v].param].name.to_string(), of(self, v)))
            .collect();
        let slots = optimizer.slots(&named);
        let mut kept = Vec::new();
        for slot in &slots {
            kept.push((
                self.graph.params.len(),
                self.graph.param(&slot.path, slot.ty.clone(), ParamKind::State { next: None }),
            ));
        }
        let slot_values: Vec<Value> = kept.iter().map(|k| k.1).collect();
        let scale = optimizer.loss_scale(&mut self.graph, &slot_values)?;
        let before: Vec<Value> = trained.iter().map(|&v| self.variables[v].now).collect();
        let gradients = self.gradients(totals, &trained, scale)?;
        let waited = match self.parts.staleness {
            0 => None,
            steps => Some(self.wait(steps, &named, &gradients, scale)?),
        };
        let gradients = waited.as_ref().map_or(gradients, |w| w.gradients.clone());
        let gradients = self.changed(&named, &before, gradients, scale)?;
        let constraints: Vec<_> =
            trained.iter().map(|&v| self.variables[v].spec.as_ref().and_then(|s| s.constraint.clone())).collect();
        let mut constrain = |g: &mut Graph, v: usize, w: Value| match &constraints[v] {
            Some(constraint) => constraint.apply(g, w),
            None => Ok(w),
        };
        let given = Given { named: &named, variables: &before, gradients: &gradients, slots: &slot_values };
        let mut updated = optimizer.step(&mut self.graph, &given, &mut constrain)?;
        if let Some(waited) = &waited {
            let variables = updated.variables.iter_mut().zip(&before);
            for (next, before) in variables.chain(updated.slots.iter_mut().zip(&slot_values)) {
                *next = waited.choose(&mut self.graph, *next, *before)?;
            }
        }
        for (&v, now) in trained.iter().zip(updated.variables) {
            self.variables[v].now = now;
        }
        for ((param, _), next) in kept.iter().zip(updated.slots) {
            self.graph.params[*param].kind = ParamKind::State { next: Some(next) };
        }
        Ok(slots)
    }

    /// What the library's user makes of the gradients.
    fn changed(
        &mut self,
        named: &[(String, Type)],
        variables: &[Value],
        gradients: Vec<Option<Value>>,
        scale: Option<Value>,
    ) -> Result<Vec<Option<Value>>, StepError> {
        let Some(hook) = self.parts.with_gradients else { return Ok(gradients) };
        let mut given = Vec::new();
        for ((&variable, (path, _)), value) in variables.iter().zip(named).zip(&gradients) {
            let Some(value) = *value else { continue };
            let value = self.scaled(value, scale, Binary::Div)?;
            given.push(Gradient { path, variable, value });
        }
        let mut changed = hook.apply(&mut self.graph, &given)?.into_iter();
        let mut all = Vec::new();
        for gradient in gradients {
            all.push(match gradient.and_then(|_| changed.next()) {
                Some(value) => Some(self.scaled(value, scale, Binary::Mul)?),
                None => None,
            });
        }
        Ok(all)
    }

    /// The gradient of the total loss times `scale` for each variable.
    fn gradients(
        &mut self,
        totals: &Totals,
        trained: &[usize],
        scale: Option<Value>,
    ) -> Result<Vec<Option<Value>>, StepError> {
        let mut found: Vec<Vec<Option<Value>>> = Vec::new();
        for k in 0..self.ran.len() {
            let seeds = self.seeds(k, totals, scale)?;
            let wanted: Vec<Value> = trained.iter().map(|&v| self.variables[v].read[k]).collect();
            found.push(grad::backward(&mut self.graph, &seeds, &wanted)?);
        }
        let mut sums = Vec::new();
        for v in 0..trained.len() {
            // A variable takes part in every micro-batch or in none.
            let parts: Vec<Value> = found.iter().filter_map(|f| f[v]).collect();
            sums.push(if parts.len() == found.len() { Some(self.whole(parts)?) } else { None });
        }
        let mut seeds = Vec::new();
        for &penalty in &totals.penalties {
            let seed = match scale {
                Some(scale) => self.graph.cast(self.float, scale)?,
                None => self.scalar(1.0)?,
            };
            seeds.push((penalty, seed));
        }
        let wanted: Vec<Value> = trained.iter().map(|&v| self.variables[v].now).collect();
        let penalties = grad::backward(&mut self.graph, &seeds, &wanted)?;
        for (sum, more) in sums.iter_mut().zip(penalties) {
            *sum = match (*sum, more) {
                (Some(a), Some(b)) => Some(self.graph.add(a, b)?),
                (a, b) => a.or(b),
            };
        }
        Ok(sums)
    }

    /// The gradient of the whole batch. Where those of micro-batches are sums in 16 bits, so is it, whatever the order in which
    /// it is made: it overflows where such a sum does.
    fn whole(&mut self, parts: Vec<Value>) -> Result<Value, TypeError> {
        let narrow: Option<Vec<DType>> = parts.iter().map(|part| self.narrow(*part)).collect();
        let sum = self.join(parts)?;
        let Some([narrow, ..]) = narrow.as_deref() else { return Ok(sum) };
        let wide = self.graph.ty(sum).dtype;
        let rounded = self.graph.cast(*narrow, sum)?;
        self.graph.cast(wide, rounded)
    }

    /// The type of 16 bits that a value is widened from.
    fn narrow(&self, value: Value) -> Option<DType> {
        let node = &self.graph.nodes[self.graph.def_node(value)?];
        let from = self.graph.ty(*node.args.first()?).dtype;
        (matches!(node.op, Op::Cast(_)) && from != from.accumulator()).then_some(from)
    }

    /// The cotangents of a micro-batch's values.
    fn seeds(&mut self, k: usize, totals: &Totals, scale: Option<Value>) -> Result<Vec<(Value, Value)>, StepError> {
        self.graph.origin = Origin::default();
        let mut seeds = Vec::new();
        for (i, total) in totals.losses.iter().enumerate() {
            let (Some((_, share)), Some(terms)) = (total, self.ran[k].terms[i]) else { continue };
            let weight = self.parts.objectives[i].weight;
            let factor = if weight == 1.0 {
                *share
            } else {
                let weight = self.scalar(weight)?;
                self.graph.mul(*share, weight)?
            };
            seeds.push((terms.values, self.spread(factor, scale, terms.values)?));
        }
        for p in 0..self.ran[k].penalties.len() {
            let values = self.ran[k].penalties[p];
            let share = self.scalar(1.0 / self.rows as f64)?;
            seeds.push((values, self.spread(share, scale, values)?));
        }
        Ok(seeds)
    }

    /// A scalar, scaled, as a tensor like another.
    fn spread(&mut self, factor: Value, scale: Option<Value>, like: Value) -> Result<Value, TypeError> {
        let factor = match scale {
            Some(scale) => {
                let scale = self.graph.cast(self.float, scale)?;
                self.graph.binary(Binary::Mul, factor, scale)?
            }
            None => factor,
        };
        spread_like(&mut self.graph, factor, like)
    }
}

/// A scalar as a tensor like another.
pub(super) fn spread_like(g: &mut Graph, scalar: Value, like: Value) -> Result<Value, TypeError> {
    let ty = g.ty(like).clone();
    let scalar = g.cast(ty.dtype, scalar)?;
    g.broadcast_to(scalar, &ty.shape)
}
