//! The gradient of a scan: backpropagation through time.
//!
//! The states before every step are computed again and stacked; then the gradient of one step is scanned backwards,
//! carrying the states' gradients. What tensors that every step sees whole get is summed after the scan, all steps at
//! once, where that is a contraction or a sum of what steps compute (`scan_hoist`); else the sum is carried too.

use super::prelude::*;
use super::scan_hoist::{Hoist, Sum};
use super::{Reverse, Scan};
use crate::{Graph, Rewriter, Rows};
use cranelift_entity::SecondaryMap;

/// One step backwards, before it is known what is carried.
struct Draft {
    g: Graph,
    /// Inputs: the gradients of the floating states, with the state.
    states: Vec<(usize, Value)>,
    /// Inputs: what is stacked: the states before the step, the sequences, the gradients of stacked outputs.
    sequences: Vec<Stacked>,
    /// Inputs: the whole tensors.
    wholes: Vec<Value>,
    /// The gradient of every operand.
    grads: Vec<Option<Value>>,
}

/// An input of the draft that is a position of a stacked tensor.
struct Stacked {
    input: Value,
    /// The tensor, in the order of the walk forwards.
    outer: Value,
}

pub(super) fn grad(scan: &Scan, cx: &mut GradCx<'_>) -> Grads {
    let first_whole = scan.states + scan.sequences;
    let float = |i: usize| cx.ty(i).dtype.is_float();
    let floats: Vec<usize> = (0..cx.args.len()).filter(|&i| float(i)).collect();
    let replayed = replay(scan, cx)?;
    let draft = Draft::new(scan, cx, &replayed)?;

    // What every whole tensor gets: sums after the scan, and what is left to be carried.
    let mut hoist = Hoist::new(scan, &draft.g, &draft.inputs(), &draft.wholes);
    let mut sums: Vec<(usize, Vec<Sum>)> = Vec::new();
    let mut carried: Vec<(usize, Vec<Value>)> = Vec::new();
    for &i in floats.iter().filter(|&&i| i >= first_whole) {
        let Some(contribution) = draft.grads[i] else { continue };
        let (outside, inside) = hoist.divide(i, contribution);
        sums.push((i, outside));
        if !inside.is_empty() {
            carried.push((i, inside));
        }
    }
    let stacks = hoist.stacks();

    let Draft { g: mut step, states, sequences, wholes, grads } = draft;
    let mut params: Vec<Value> = states.iter().map(|s| s.1).collect();
    let mut outputs: Vec<Value> = Vec::new();
    for &(i, _) in &states {
        let value = grads[i];
        outputs.push(match value {
            Some(v) => v,
            None => zeros(&mut step, &cx.ty(i))?,
        });
    }
    for (i, terms) in &carried {
        let mut sum = step.input(&format!("d{i}"), cx.ty(*i), Rows::Whole);
        params.push(sum);
        for &term in terms {
            sum = step.add(sum, term)?;
        }
        outputs.push(sum);
    }
    let inputs: Vec<usize> = floats.iter().copied().filter(|i| (scan.states..first_whole).contains(i)).collect();
    for &i in &inputs {
        outputs.push(match grads[i] {
            Some(v) => v,
            None => zeros(&mut step, &scan.inner(&cx.ty(i)))?,
        });
    }
    outputs.extend_from_slice(&stacks);

    // Only what the outputs need is part of the step.
    let used = used(&step, &outputs);
    let (mut operands, mut count) = (Vec::new(), 0);
    for &(i, _) in &states {
        operands.push(match cx.cotangents[i] {
            Some(d) => d,
            None => zeros(cx.g, &cx.ty(i))?,
        });
    }
    for (i, _) in &carried {
        operands.push(zeros(cx.g, &cx.ty(*i))?);
    }
    let mut reversed: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for s in &sequences {
        if used[s.input] || hoist.reads(s.input) {
            reversed[s.input] = Some(backwards(cx.g, s.outer)?);
        }
        if let Some(outer) = reversed[s.input].filter(|_| used[s.input]) {
            params.push(s.input);
            operands.push(outer);
            count += 1;
        }
    }
    for (&w, &outer) in wholes.iter().zip(&cx.args[first_whole..]).filter(|(w, _)| used[**w]) {
        params.push(w);
        operands.push(outer);
    }
    let body = part(&step, &format!("{}.grad", scan.body.name), &params, &outputs)?;
    let op = Scan { count: scan.count, states: states.len() + carried.len(), sequences: count, body: body.into() };
    let results = cx.g.push_all(op, &operands)?;

    let mut all = vec![None; cx.args.len()];
    let (last, stacked) = results.split_at(states.len() + carried.len());
    for (&i, &r) in states.iter().map(|(i, _)| i).chain(carried.iter().map(|(i, _)| i)).zip(last) {
        all[i] = Some(r);
    }
    for (&i, &r) in inputs.iter().zip(stacked) {
        all[i] = Some(backwards(cx.g, r)?);
    }
    for (&v, &r) in stacks.iter().zip(&stacked[inputs.len()..]) {
        reversed[v] = Some(r);
    }
    let mut outside = hoist.outside(&step, reversed, &cx.args[first_whole..]);
    for (i, terms) in &sums {
        for term in terms {
            let sum = outside.make(cx.g, term)?;
            all[*i] = Some(match all[*i] {
                Some(before) => cx.g.add(before, sum)?,
                None => sum,
            });
        }
    }
    Ok(all)
}

/// The states before every step, stacked.
fn replay(scan: &Scan, cx: &mut GradCx<'_>) -> Result<Vec<Value>, TypeError> {
    let n = scan.states;
    let params: Vec<Value> = scan.body.params.iter().map(|p| p.value).collect();
    let next = scan.body.outputs[..n].iter().map(|o| o.value);
    let outputs: Vec<Value> = next.chain(params[..n].iter().copied()).collect();
    let body = part(&scan.body, &scan.body.name, &params, &outputs)?;
    let results = cx.g.push_all(Scan { body: body.into(), ..scan.clone() }, cx.args)?;
    Ok(results[n..].to_vec())
}

impl Draft {
    fn new(scan: &Scan, cx: &GradCx<'_>, replayed: &[Value]) -> Result<Draft, GradError> {
        let (n, first_whole) = (scan.states, scan.states + scan.sequences);
        let mut g = Graph::new("step");
        let mut input = |name: &str, i: usize, ty: Type| g.input(&format!("{name}{i}"), ty, Rows::Whole);
        let states: Vec<(usize, Value)> =
            (0..n).filter(|&i| cx.ty(i).dtype.is_float()).map(|i| (i, input("d", i, cx.ty(i)))).collect();
        let mut sequences = Vec::new();
        for (i, &outer) in replayed.iter().enumerate() {
            sequences.push(Stacked { input: input("s", i, cx.ty(i)), outer });
        }
        for (i, &outer) in cx.args.iter().enumerate().take(first_whole).skip(n) {
            sequences.push(Stacked { input: input("x", i, scan.inner(&cx.ty(i))), outer });
        }
        let given = sequences.len();
        for (i, outer) in cx.cotangents.iter().enumerate().skip(n) {
            let ty = scan.body.ty(scan.body.outputs[i].value);
            if let Some(outer) = outer.filter(|_| ty.dtype.is_float()) {
                sequences.push(Stacked { input: input("dy", i, ty.clone()), outer });
            }
        }
        let wholes: Vec<Value> = (first_whole..cx.args.len()).map(|i| input("w", i, cx.ty(i))).collect();
        let inputs: Vec<Value> = sequences[..given].iter().map(|s| s.input).chain(wholes.iter().copied()).collect();
        let outputs = inline_body(&mut g, &scan.body, &inputs)?;
        let mut seeds: Vec<(Value, Value)> = states.iter().map(|&(i, d)| (outputs[i], d)).collect();
        let cotangents = (n..outputs.len()).filter(|&i| {
            let float = scan.body.ty(scan.body.outputs[i].value).dtype.is_float();
            float && cx.cotangents[i].is_some()
        });
        seeds.extend(cotangents.map(|i| outputs[i]).zip(sequences[given..].iter().map(|s| s.input)));
        let grads = crate::grad::backward(&mut g, &seeds, &inputs)?;
        Ok(Draft { g, states, sequences, wholes, grads })
    }

    /// The inputs that are positions of stacked tensors.
    fn inputs(&self) -> Vec<Value> {
        self.sequences.iter().map(|s| s.input).collect()
    }
}

fn zeros(g: &mut Graph, ty: &Type) -> Result<Value, TypeError> {
    g.full(ty.dtype, 0.0, &ty.shape)
}

fn backwards(g: &mut Graph, v: Value) -> Result<Value, TypeError> {
    g.push(Reverse { dims: vec![0] }, &[v])
}

/// Which values the outputs need.
fn used(g: &Graph, outputs: &[Value]) -> SecondaryMap<Value, bool> {
    let mut used = SecondaryMap::new();
    for o in outputs {
        used[*o] = true;
    }
    for node in g.nodes.values().rev() {
        if node.results.iter().any(|r| used[*r]) {
            for a in &node.args {
                used[*a] = true;
            }
        }
    }
    used
}

/// The part of a graph that computes some outputs from some of its parameters.
fn part(g: &Graph, name: &str, params: &[Value], outputs: &[Value]) -> Result<Graph, TypeError> {
    let used = used(g, outputs);
    let mut bare = Graph::new(name);
    bare.origin = g.origin.clone();
    let mut rw = Rewriter::onto(g, bare);
    for &p in params {
        let name = g.params.iter().find(|q| q.value == p).map_or("", |q| &*q.name);
        let new = rw.new.input(name, g.ty(p).clone(), Rows::Whole);
        rw.set(p, new);
    }
    for (id, node) in &g.nodes {
        if node.results.iter().any(|r| used[*r]) {
            rw.copy(id)?;
        }
    }
    for (i, o) in outputs.iter().enumerate() {
        let new = rw.value(*o);
        rw.new.output(&format!("y{i}"), new);
    }
    Ok(rw.new)
}

/// Appends a body's nodes to a graph, its inputs replaced, and returns its outputs.
fn inline_body(g: &mut Graph, body: &Graph, inputs: &[Value]) -> Result<Vec<Value>, TypeError> {
    let mut map: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for (p, &v) in body.params.iter().zip(inputs) {
        map[p.value] = Some(v);
    }
    let new = |map: &SecondaryMap<Value, Option<Value>>, v: Value| map[v].expect("defined before use");
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
