//! Simplification, folding of constants, common subexpressions and dead code. Every rule keeps the bits of the results.
//!
//! A graph that is still to be differentiated must not come here: what stops a gradient is dropped.

use intwain_ir::interp;
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Binary, Scalar};
use intwain_ir::{Graph, NodeId, ParamKind, Rewriter, Value};
use std::collections::BTreeMap;

use crate::PassError;

/// Rewrites nodes to simpler ones, folds constants and merges equal nodes, in one walk.
pub fn simplify(graph: &Graph) -> Result<Graph, PassError> {
    let mut rw = Rewriter::new(graph);
    let mut seen: BTreeMap<(String, Vec<Value>), Vec<Value>> = BTreeMap::new();
    for (id, node) in &graph.nodes {
        let (mut op, mut args) = (node.op.clone(), rw.args(id).to_vec());
        // What an operation becomes may be simplified again, until nothing changes or an operand says it all.
        let same = loop {
            if let [result] = node.results.as_slice()
                && let Some(value) = same_as(&rw.new, &op, &args)
                && rw.new.ty(value) == graph.ty(*result)
                && rw.new.values[value].layout == graph.values[*result].layout
            {
                break Some((*result, value));
            }
            match fold(&rw.new, &op, &args).or_else(|| compose(&rw.new, &op, &args)) {
                Some((simpler, of)) if (&simpler, &of) != (&op, &args) => (op, args) = (simpler, of),
                Some(_) | None => break None,
            }
        };
        if let Some((result, value)) = same {
            rw.set(result, value);
            continue;
        }
        if op.is_communication() {
            rw.copy_with(id, op, &args)?;
            continue;
        }
        let layouts: Vec<String> = node.results.iter().map(|r| format!("{:?}", graph.values[*r].layout)).collect();
        // What is computed again is not merged with what was computed before.
        let again = if node.origin.is_again() { " again" } else { "" };
        let key = (format!("{op} {}{again}", layouts.join(" ")), args.clone());
        match seen.get(&key) {
            Some(results) => node.results.iter().zip(results).for_each(|(o, n)| rw.set(*o, *n)),
            None => {
                rw.copy_with(id, op, &args)?;
                seen.insert(key, node.results.iter().map(|r| rw.value(*r)).collect());
            }
        }
    }
    Ok(rw.finish())
}

/// Drops nodes whose results nobody needs. Parameters stay: they are the graph's signature.
pub fn dead_code(graph: &Graph) -> Result<Graph, PassError> {
    let mut live = vec![false; graph.values.len()];
    let mut mark = |v: Value| live[v.as_u32() as usize] = true;
    graph.outputs.iter().for_each(|o| mark(o.value));
    for p in &graph.params {
        if let ParamKind::State { next: Some(v) } = p.kind {
            mark(v);
        }
    }
    let mut keep = vec![false; graph.nodes.len()];
    for (id, node) in graph.nodes.iter().rev() {
        // What a device gives to another is needed there.
        let needed = node.op.is_communication() || node.results.iter().any(|r| live[r.as_u32() as usize]);
        if needed {
            keep[id.as_u32() as usize] = true;
            node.args.iter().for_each(|a| live[a.as_u32() as usize] = true);
        }
    }
    let mut rw = Rewriter::new(graph);
    for id in graph.nodes.keys().filter(|id| keep[id.as_u32() as usize]) {
        rw.copy(id)?;
    }
    Ok(rw.finish())
}

/// The operand that an operation merely repeats.
fn same_as(g: &Graph, op: &Op, args: &[Value]) -> Option<Value> {
    let x = *args.first()?;
    match op {
        Op::Cast(c) if c.to == g.ty(x).dtype => Some(x),
        Op::StopGradient(_) => Some(x),
        Op::Reshape(r) if r.shape == *g.shape(x) => Some(x),
        Op::Transpose(t) if t.perm.is_sorted() => Some(x),
        Op::Broadcast(b) if b.shape == *g.shape(x) => Some(x),
        Op::Slice(s)
            if s.stride.iter().all(|&s| s == 1) && s.start.iter().all(|&s| s == 0) && s.limit[..] == g.shape(x)[..] =>
        {
            Some(x)
        }
        Op::Concat(_) if args.len() == 1 => Some(x),
        Op::Reverse(r) if r.dims.iter().all(|&d| g.shape(x)[d] < 2) => Some(x),
        Op::Reduce(r) if r.dims.is_empty() => Some(x),
        Op::Pad(p) if p.low.iter().chain(&p.high).all(|&e| e == 0) && p.interior.iter().all(|&i| i == 0) => Some(x),
        // x·1 and x/1 are x, also for NaN and −0; x + 0 is not (−0 + 0 = +0), x − 0 is.
        Op::Binary(b) => {
            let splat = |v: Value| splat(g, v);
            let one = |v: Value| splat(v).is_some_and(|s| s == Scalar::one(s.dtype()));
            match b.function {
                Binary::Mul if one(args[1]) => Some(x),
                Binary::Mul if one(x) => Some(args[1]),
                Binary::Div if one(args[1]) => Some(x),
                Binary::Sub if splat(args[1]).is_some_and(|s| s.bits() == 0) => Some(x),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The element that a value repeats, if it is such a constant.
fn splat(g: &Graph, v: Value) -> Option<Scalar> {
    let node = g.def_node(v)?;
    match &g.nodes[node].op {
        Op::Constant(c) if c.elements.len() == 1 => Some(c.elements[0]),
        Op::Broadcast(_) => splat(g, g.nodes[node].args[0]),
        _ => None,
    }
}

type Replacement = Option<(Op, Vec<Value>)>;

/// Pointwise work on repeated constants is a repeated constant.
fn fold(g: &Graph, op: &Op, args: &[Value]) -> Replacement {
    let pointwise = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_));
    let moves = matches!(op, Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Reverse(_));
    if args.is_empty() || !(pointwise || moves) {
        return None;
    }
    let elements: Option<Vec<Scalar>> = args.iter().map(|a| splat(g, *a)).collect();
    let elements = elements?;
    let types: Vec<&intwain_ir::Type> = args.iter().map(|a| g.ty(*a)).collect();
    let shape = op.infer(&types).ok()?.first()?.shape.clone();
    let element = if moves { elements[0] } else { apply(op, &elements)? };
    Some((ops::Constant { shape, elements: vec![element] }.into(), vec![]))
}

fn apply(op: &Op, elements: &[Scalar]) -> Option<Scalar> {
    let mut g = Graph::new("fold");
    let args: Vec<Value> = elements
        .iter()
        .map(|e| g.push(ops::Constant { shape: Default::default(), elements: vec![*e] }, &[]))
        .collect::<Result<_, _>>()
        .ok()?;
    let y = g.push(op.clone(), &args).ok()?;
    g.output("y", y);
    Some(interp::run(&g, vec![]).ok()?.first()?.get(0))
}

/// Two views or permutations in a row are one.
fn compose(g: &Graph, op: &Op, args: &[Value]) -> Replacement {
    let inner: NodeId = g.def_node(*args.first()?)?;
    let below = &g.nodes[inner];
    match (op, &below.op) {
        (Op::Reshape(_), Op::Reshape(_)) => Some((op.clone(), below.args.to_vec())),
        (Op::Transpose(outer), Op::Transpose(first)) => {
            let perm = outer.perm.iter().map(|&d| first.perm[d]).collect();
            Some((ops::Transpose { perm }.into(), below.args.to_vec()))
        }
        (Op::Broadcast(outer), Op::Broadcast(first)) => {
            let dims = first.dims.iter().map(|&d| outer.dims[d]).collect();
            Some((ops::Broadcast { shape: outer.shape.clone(), dims }.into(), below.args.to_vec()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{DType, Rows, Type};

    /// Once gradients are written, what stops them costs nothing.
    #[test]
    fn what_stops_gradients_is_dropped() {
        let mut g = Graph::new("stopped");
        let x = g.input("x", Type::new(DType::F32, [2, 3]), Rows::Batched);
        let stopped = g.push(ops::StopGradient {}, &[x]).unwrap();
        let y = g.mul(x, stopped).unwrap();
        g.output("y", y);
        let simple = simplify(&g).unwrap();
        let names: Vec<&str> = simple.nodes.values().map(|n| n.op.name()).collect();
        assert_eq!(names, ["binary"]);
    }
}
