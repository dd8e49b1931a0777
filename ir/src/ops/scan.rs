//! `scan`: a graph applied step after step, its states carried from one to the next.

use super::{prelude::*, scan_cuts};
use crate::{Def, Graph, ParamKind, Rows};
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
    fn inner(&self, ty: &Type) -> Type {
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

    /// Backpropagation through time: the states before every step are computed again and stacked; then the gradient of
    /// one step is scanned backwards, carrying the states' gradients and the sums for the whole tensors.
    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (n, first_whole) = (self.states, self.states + self.sequences);
        let types: Vec<Type> = (0..cx.args.len()).map(|i| cx.ty(i)).collect();
        let zeros = |g: &mut Graph, ty: &Type| g.full(ty.dtype, 0.0, &ty.shape);
        let float = |i: usize| types[i].dtype.is_float();

        // States before every step.
        let mut replay = (*self.body).clone();
        let before: Vec<Value> = replay.params[..n].iter().map(|p| p.value).collect();
        replay.outputs.truncate(n);
        for (i, v) in before.into_iter().enumerate() {
            replay.output(&format!("before{i}"), v);
        }
        let replay = Scan { body: Arc::new(replay), ..self.clone() };
        let replayed = cx.g.push_all(replay, cx.args)?;

        // One step backwards: states are the gradients of states and whole tensors; sequences are the states before,
        // the sequences and the gradients of stacked outputs; whole tensors are as they were.
        let carried: Vec<usize> = (0..n).chain(first_whole..types.len()).filter(|&i| float(i)).collect();
        let stacked: Vec<usize> =
            (n..self.body.outputs.len()).filter(|&i| self.body.ty(self.body.outputs[i].value).dtype.is_float()).collect();
        let mut step = Graph::new(&format!("{}.grad", self.body.name));
        let input = |step: &mut Graph, name: String, ty: Type| step.input(&name, ty, Rows::Whole);
        let d_in: Vec<Value> =
            carried.iter().map(|&i| input(&mut step, format!("d{i}"), types[i].clone())).collect();
        let s_in: Vec<Value> = (0..n).map(|i| input(&mut step, format!("s{i}"), types[i].clone())).collect();
        let x_in: Vec<Value> =
            (n..first_whole).map(|i| input(&mut step, format!("x{i}"), self.inner(&types[i]))).collect();
        let dy_in: Vec<Value> = stacked
            .iter()
            .map(|&i| input(&mut step, format!("dy{i}"), self.body.ty(self.body.outputs[i].value).clone()))
            .collect();
        let w_in: Vec<Value> =
            (first_whole..types.len()).map(|i| input(&mut step, format!("w{i}"), types[i].clone())).collect();
        let inputs: Vec<Value> = s_in.iter().chain(&x_in).chain(&w_in).copied().collect();
        let outputs = inline_body(&mut step, &self.body, &inputs)?;
        let seeds: Vec<(Value, Value)> = carried
            .iter()
            .zip(&d_in)
            .filter(|(i, _)| **i < n)
            .map(|(&i, &d)| (outputs[i], d))
            .chain(stacked.iter().zip(&dy_in).map(|(&i, &d)| (outputs[i], d)))
            .collect();
        let grads = crate::grad::backward(&mut step, &seeds, &inputs)?;
        for (&i, &d) in carried.iter().zip(&d_in) {
            let fresh = grads[i];
            let value = match (fresh, i < n) {
                (Some(v), true) => v,
                (None, true) => zeros(&mut step, &types[i])?,
                (Some(v), false) => step.add(d, v)?,
                (None, false) => d,
            };
            step.output(&format!("d{i}"), value);
        }
        let sequences: Vec<usize> = (n..first_whole).filter(|&i| float(i)).collect();
        for &i in &sequences {
            let value = match grads[i] {
                Some(v) => v,
                None => zeros(&mut step, &self.inner(&types[i]))?,
            };
            step.output(&format!("dx{i}"), value);
        }

        let g = &mut *cx.g;
        let mut operands = Vec::new();
        for &i in &carried {
            let known = (i < n).then(|| cx.cotangents[i]).flatten();
            operands.push(match known {
                Some(d) => d,
                None => zeros(g, &types[i])?,
            });
        }
        let backwards = |g: &mut Graph, v: Value| g.push(super::Reverse { dims: vec![0] }, &[v]);
        for &v in &replayed[n..] {
            operands.push(backwards(g, v)?);
        }
        for &v in &cx.args[n..first_whole] {
            operands.push(backwards(g, v)?);
        }
        for &i in &stacked {
            let d = match cx.cotangents[i] {
                Some(d) => d,
                None => {
                    let ty = g.ty(cx.results[i]).clone();
                    zeros(g, &ty)?
                }
            };
            operands.push(backwards(g, d)?);
        }
        operands.extend_from_slice(&cx.args[first_whole..]);
        let op = Scan {
            count: self.count,
            states: carried.len(),
            sequences: n + self.sequences + stacked.len(),
            body: Arc::new(step),
        };
        let results = g.push_all(op, &operands)?;
        let mut all = vec![None; types.len()];
        for (k, &i) in carried.iter().enumerate() {
            all[i] = Some(results[k]);
        }
        for (k, &i) in sequences.iter().enumerate() {
            all[i] = Some(backwards(g, results[carried.len() + k])?);
        }
        Ok(all)
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

/// Appends a body's nodes to a graph, its inputs replaced, and returns its outputs.
fn inline_body(g: &mut Graph, body: &Graph, inputs: &[Value]) -> Result<Vec<Value>, TypeError> {
    let mut map: cranelift_entity::SecondaryMap<Value, Option<Value>> = cranelift_entity::SecondaryMap::new();
    for (p, &v) in body.params.iter().zip(inputs) {
        debug_assert!(matches!(p.kind, ParamKind::Input { .. }), "a body's parameters are inputs");
        debug_assert!(matches!(body.values[p.value].def, Def::Param(_)));
        map[p.value] = Some(v);
    }
    let new = |map: &cranelift_entity::SecondaryMap<Value, Option<Value>>, v: Value| map[v].expect("defined before use");
    for node in body.nodes.values() {
        let args: Vec<Value> = node.args.iter().map(|a| new(&map, *a)).collect();
        g.origin = node.origin.clone();
        let results = g.push_all(node.op.clone(), &args)?;
        for (old, &r) in node.results.iter().zip(&results) {
            map[*old] = Some(r);
        }
    }
    Ok(body.outputs.iter().map(|o| new(&map, o.value)).collect())
}
