//! `scan`: a graph applied step after step, its states carried from one to the next.

use super::{prelude::*, scan_cuts, scan_grad};
use crate::Graph;
use std::sync::Arc;

/// Applies `body` to each of `count` positions of stacked sequences.
///
/// Operands: `states` initial states, `sequences` tensors `[count, ..]`, then tensors that every step sees whole.
/// The body's inputs are, in that order, the states, one position of each sequence, the whole tensors; its outputs the
/// new states, then what is stacked. Results: the last states, then the stacked outputs `[count, ..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scan {
    /// Number of steps.
    pub count: usize,
    /// Number of states.
    pub states: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// One step.
    pub body: Arc<Graph>,
}

impl Scan {
    /// One position of a stacked sequence.
    pub(super) fn inner(&self, ty: &Type) -> Type {
        ty.with_shape(Shape::from(&ty.shape[1..]))
    }
}

impl OpDef for Scan {
    const NAME: &'static str = "scan";
    attributes!(count, states, sequences, body);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let (params, outputs) = (&self.body.params, &self.body.outputs);
        let first_whole = self.states.saturating_add(self.sequences);
        ensure(args.len() == params.len() && args.len() >= first_whole && outputs.len() >= self.states, || {
            format!("{} operands for a body of {} inputs and {} outputs", args.len(), params.len(), outputs.len())
        })?;
        for (i, (arg, p)) in args.iter().zip(params).enumerate() {
            let want = self.body.ty(p.value);
            let sequence = (self.states..first_whole).contains(&i);
            let fits = match sequence {
                true => arg.rank() > 0 && arg.shape[0] == self.count && self.inner(arg) == *want,
                false => *arg == want,
            };
            ensure(fits, || format!("operand {i} is {arg}, a step takes {want}"))?;
        }
        let mut types = Types::new();
        for (i, o) in outputs.iter().enumerate() {
            let ty = self.body.ty(o.value);
            if i < self.states {
                ensure(ty == args[i], || format!("state {i} is {} before a step and {ty} after", args[i]))?;
                types.push(ty.clone());
            } else {
                types.push(ty.with_shape(Shape::new(std::iter::once(self.count).chain(ty.shape.iter().copied()))));
            }
        }
        Ok(types)
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Leaf
    }

    /// What the body lets pass; see `scan_cuts`.
    fn rule(&self, _: &[&Type], _: &[&Type]) -> ShardingRule {
        let factors = scan_cuts::cuts(self).iter().map(|c| scan_cuts::factor(self, c)).collect();
        ShardingRule { factors, linear: vec![] }
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Scan {
        let local = scan_cuts::cuts(self).into_iter().find_map(|c| {
            let units = scan_cuts::factor(self, &c).units(cx.arg_layouts, cx.result_layouts)?;
            scan_cuts::local_body(self, &c, &units, cx.device).ok()
        });
        match local {
            Some(body) => Scan { body, ..self.clone() },
            None => self.clone(),
        }
    }

    /// Backpropagation through time; see `scan_grad`.
    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        scan_grad::grad(self, cx)
    }

    fn eval(&self, args: &[&Tensor], results: &[Type], _: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let first_whole = self.states + self.sequences;
        let mut states: Vec<Tensor> = args[..self.states].iter().map(|t| (*t).clone()).collect();
        let mut stacks: Vec<Tensor> = results[self.states..].iter().map(|t| Tensor::zeros(t.clone())).collect();
        for step in 0..self.count {
            let mut inputs = states.clone();
            inputs.extend(args[self.states..first_whole].iter().map(|s| s.row(step)));
            inputs.extend(args[first_whole..].iter().map(|t| (*t).clone()));
            let mut outputs = crate::interp::run(&self.body, inputs)?;
            for (stack, y) in stacks.iter_mut().zip(outputs.drain(self.states..)) {
                stack.set_row(step, &y);
            }
            states = outputs;
        }
        states.extend(stacks);
        Ok(states)
    }

    fn leaf_flops(&self, _: &[&Type], _: &[&Type]) -> u64 {
        self.body.nodes.keys().map(|n| self.body.flops(n)).sum::<u64>().saturating_mul(self.count as u64)
    }
}
