//! A call of a model in training mode, without an optimizer.

use super::{RunError, Session, check_lookups, check_types, compile, count_rows, order};
use crate::frontend::{Imported, TrainingPhase};
use crate::runtime::{self, Call};
use intwain_ir::{Tensor, Type};
use std::collections::BTreeMap;

/// What a call in training mode gives.
#[derive(Clone, Debug)]
pub struct TrainingCall {
    /// The outputs, in model order.
    pub outputs: Vec<(String, Tensor)>,
    /// Every variable with its path, as the call has left it, in the order of Keras's `model.weights`.
    pub weights: Vec<(String, Tensor)>,
}

impl Session<'_> {
    /// Calls the model in training mode with all rows at once. The session's own weights and states stay as they are.
    pub fn training_call(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
        phase: &TrainingPhase,
    ) -> Result<TrainingCall, RunError> {
        let ordered = order(&self.signature, inputs)?;
        check_lookups(&self.signature, &self.lookups, &ordered)?;
        let rows = count_rows(&self.signature, &ordered)?;
        let Imported { graph, vars, .. } = self.model.training_graph(rows, phase)?;
        check_types(&graph, &ordered)?;
        let compiled = compile(graph, &self.options, &mut self.timings)?;
        let mut variant = self.load_timed(&compiled)?;
        let names: Vec<(String, Type)> = variant.states().map(|(n, t)| (n.to_string(), t.clone())).collect();
        let known = |name: &str| self.model.weight_shape(name).is_some();
        let initial = names.iter().map(|(name, ty)| match known(name) {
            true => self.model.weight(name),
            false => Ok(Tensor::zeros(ty.clone())),
        });
        let initial = initial.collect::<Result<Vec<_>, _>>()?;
        variant.write_states(&initial.iter().collect::<Vec<_>>())?;
        let mut outputs: Vec<Tensor> = compiled.outputs.iter().map(|o| Tensor::zeros(o.ty.clone())).collect();
        let call = [Call { variant: 0, rows: None }];
        let ordered: Vec<&Tensor> = ordered.iter().map(AsRef::as_ref).collect();
        runtime::run(&mut [&mut variant], &call, &ordered, &mut outputs)
            .inspect_err(|_| self.variants.iter_mut().for_each(|v| v.variant.distrust()))?;
        let mut changed: BTreeMap<String, Tensor> =
            names.into_iter().map(|(name, _)| name).zip(variant.read_states()?).collect();
        let listed = vars.listed(self.model.keras().generation);
        let weights = listed.into_iter().map(|spec| match changed.remove(&spec.path) {
            Some(value) => Ok((spec.path.clone(), value)),
            None => Ok((spec.path.clone(), self.model.weight(&spec.path)?)),
        });
        let weights = weights.collect::<Result<Vec<_>, RunError>>()?;
        let outputs = compiled.outputs.iter().map(|o| o.name.to_string()).zip(outputs).collect();
        Ok(TrainingCall { outputs, weights })
    }
}
