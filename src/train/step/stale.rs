//! Gradients that wait for some steps before they are applied.
//!
//! A parameter server lets a worker compute with variables that lack the newest updates; how many, decides who happens to
//! be faster. Here the bound itself is the delay (Ho et al. 2013, "More effective distributed ML via a stale synchronous
//! parallel parameter server", with every worker at its bound): the update of a step takes the gradients of K steps before.
//! So nothing in a step has to wait for what it exchanges, and results depend on K alone, not on who was faster.
//!
//! What waits is a queue of states, as the loss has it, without the scale of its step: the scale may change meanwhile.

use super::Builder;
use super::gradients::spread_like;
use crate::train::optimizer::{Formula, each, of};
use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary, Compare};
use intwain_ir::{DType, Graph, ParamKind, Shape, Type, Value};

/// What the names of states that hold waiting gradients begin with.
pub const WAITING: &str = "@staleness/";

/// Gradients of an earlier step.
pub(super) struct Waited {
    /// The gradients, as those of the step are given.
    pub(super) gradients: Vec<Option<Value>>,
    /// Whether there are any: so many steps were taken.
    due: Formula,
}

impl Waited {
    /// What something becomes in this step: what it was where no gradients have come yet.
    pub(super) fn choose(&self, g: &mut Graph, next: Value, before: Value) -> Result<Value, TypeError> {
        if next == before { Ok(before) } else { self.due.clone().choose(of(next), of(before)).build(g) }
    }
}

impl Builder<'_> {
    /// Has the gradients wait for `steps` steps, and gives those that have.
    pub(super) fn wait(
        &mut self,
        steps: usize,
        named: &[(String, Type)],
        gradients: &[Option<Value>],
        scale: Option<Value>,
    ) -> Result<Waited, TypeError> {
        let taken = self.graph.params.len();
        let count = Type::new(DType::I64, Shape::default());
        let before = self.graph.param(&format!("{WAITING}steps"), count, ParamKind::State { next: None });
        let next = (of(before) + 1.0).with(Binary::Min, steps as f64).build(&mut self.graph)?;
        self.graph.params[taken].kind = ParamKind::State { next: Some(next) };
        let due = of(of(before).is(Compare::Ge, steps as f64).build(&mut self.graph)?);
        let mut come = Vec::new();
        for ((path, _), gradient) in named.iter().zip(gradients) {
            come.push(match gradient {
                Some(gradient) => Some(self.queue(steps, path, *gradient, scale)?),
                None => None,
            });
        }
        Ok(Waited { gradients: come, due })
    }

    /// Puts a gradient at the end of its queue, and gives the one that leaves it.
    fn queue(&mut self, steps: usize, path: &str, gradient: Value, scale: Option<Value>) -> Result<Value, TypeError> {
        let ty = self.graph.ty(gradient).clone();
        let mut next = self.scaled(gradient, scale, Binary::Div)?;
        for age in 1..=steps {
            let param = self.graph.params.len();
            let held = self.graph.param(&format!("{WAITING}{age}/{path}"), ty.clone(), ParamKind::State { next: None });
            self.graph.params[param].kind = ParamKind::State { next: Some(next) };
            next = held;
        }
        self.scaled(next, scale, Binary::Mul)
    }

    /// A gradient multiplied with the loss's scale, or divided by it.
    pub(super) fn scaled(
        &mut self,
        gradient: Value,
        scale: Option<Value>,
        function: Binary,
    ) -> Result<Value, TypeError> {
        let Some(scale) = scale else { return Ok(gradient) };
        each(&mut self.graph, gradient, &|g, x| {
            let scale = spread_like(g, scale, x)?;
            g.binary(function, x, scale)
        })
    }
}
