//! Changes of a nest that keep its meaning, before a schedule is chosen.

use crate::schedule::nest::{Nest, Node, NodeId, Op, coefficient};
use intwain_ir::compute::{Axis, Guard, Index, Order};
use intwain_ir::scalar::{Binary, Reduce, Scalar};
use intwain_ir::{DType, Shape};

/// Lets reductions bind the result axes that they run along, where that makes loads of the result's own position and
/// loads under the reduction one: softmax then has a single load. Merges axes afterwards.
pub(super) fn normalise(nest: &mut Nest) {
    while let Some(pairs) = axes_run_along(nest) {
        let renamed = |a: Axis| pairs.iter().find(|(k, _)| *k == a).map_or(a, |(_, to)| *to);
        for n in &mut nest.nodes {
            if let Op::Reduce { axes, .. } | Op::ArgMax { axes, .. } = &mut n.op {
                axes.iter_mut().for_each(|a| *a = renamed(*a));
            }
        }
        let mut extents = nest.extents.clone();
        pairs.iter().for_each(|(k, _)| extents[k.0 as usize] = 1);
        nest.substitute(&|a| Index::axis(renamed(a)), extents);
        share(nest);
    }
    nest.merge_jointly();
}

/// Makes equal nodes one.
fn share(nest: &mut Nest) {
    let mut kept: Vec<Node> = Vec::new();
    let mut map: Vec<NodeId> = Vec::new();
    for mut n in std::mem::take(&mut nest.nodes) {
        n.op.renumber(&map);
        let found = kept.iter().position(|k| k.dtype == n.dtype && k.op == n.op);
        map.push(found.unwrap_or(kept.len()));
        if found.is_none() {
            kept.push(n);
        }
    }
    nest.nodes = kept;
    nest.results.iter_mut().for_each(|r| *r = map[*r]);
    nest.prune();
}

/// Axes of a reduction with the result axes that they can be renamed to.
fn axes_run_along(nest: &Nest) -> Option<Vec<(Axis, Axis)>> {
    let lists = nest.nodes.iter().map(|n| n.op.bound_axes()).filter(|l| l.iter().any(|a| !nest.axes.contains(a)));
    lists.into_iter().find_map(|list| {
        let loads = || nest.nodes.iter().filter(|n| matches!(n.op, Op::Load { .. }));
        loads().find_map(|under| loads().find_map(|own| pairing(nest, list, &under.op, &own.op)))
    })
}

fn pairing(nest: &Nest, list: &[Axis], under: &Op, own: &Op) -> Option<Vec<(Axis, Axis)>> {
    let (Op::Load { operand: p, at: x, guards: g, .. }, Op::Load { operand: q, at: y, guards: h, .. }) = (under, own)
    else {
        return None;
    };
    if p != q || list.iter().any(|k| y.uses(*k) || !x.uses(*k) || nest.axes.contains(k)) {
        return None;
    }
    let mut pairs: Vec<(Axis, Axis)> = Vec::new();
    for &k in list {
        let step = coefficient(x, k)?;
        let fits = |a: &&Axis| {
            let apart = nest.nodes.iter().all(|n| n.free & (1 << k.0) == 0 || n.free & (1 << a.0) == 0);
            let free = pairs.iter().all(|(_, b)| b != *a);
            free && apart && nest.extent(**a) == nest.extent(k) && coefficient(y, **a) == Some(step)
        };
        pairs.push((k, *nest.axes.iter().find(fits)?));
    }
    let ordered = pairs.windows(2).all(|w| {
        let at = |a: Axis| nest.axes.iter().position(|x| *x == a);
        at(w[0].1) < at(w[1].1)
    });
    let by = |a: Axis| Index::axis(pairs.iter().find(|(k, _)| *k == a).map_or(a, |(_, to)| *to));
    let renamed = |i: &Index| i.substitute(&by, &nest.extents);
    let same = g.len() == h.len() && g.iter().all(|g| h.contains(&Guard { index: renamed(&g.index), ..g.clone() }));
    (ordered && renamed(x) == *y && same).then_some(pairs)
}

/// The row-major position of axes.
pub(super) fn row_major(nest: &Nest, axes: &[Axis]) -> Index {
    let strides = Shape::new(axes.iter().map(|a| nest.extent(*a))).strides();
    axes.iter().zip(&strides).fold(Index::constant(0), |sum, (a, &s)| sum + Index::axis(*a).times(s as i64))
}

/// The axes of a set, result axes first.
fn in_order(nest: &Nest, set: u64) -> Vec<Axis> {
    let holds = |a: &Axis| set & (1 << a.0) != 0;
    let own = nest.axes.iter().copied().filter(holds);
    let others = (0..nest.extents.len() as u8).map(Axis).filter(|a| holds(a) && !nest.axes.contains(a));
    own.chain(others).collect()
}

/// Divides a nest in two: one that computes some nodes, which depend on the same axes, and one that reads them as
/// operands from number `first` on.
pub(super) fn divide(nest: &Nest, nodes: &[NodeId], first: usize) -> (Nest, Nest) {
    let (mut before, mut after) = (nest.clone(), nest.clone());
    let axes = in_order(nest, nodes.iter().fold(0, |s, &n| s | nest.nodes[n].free));
    let at = row_major(nest, &axes);
    before.axes = axes;
    before.store = at.clone();
    before.results = nodes.to_vec();
    before.prune();
    before.merge_jointly();
    for (i, &n) in nodes.iter().enumerate() {
        let fill = Scalar::zero(nest.nodes[n].dtype);
        after.nodes[n].op = Op::Load { operand: first + i, at: at.clone(), guards: Vec::new(), fill };
    }
    after.prune();
    after.merge_jointly();
    (before, after)
}

/// Where partial results of segments stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Segments {
    /// Next to each other.
    Innermost,
    /// All results of a segment next to each other.
    Outermost,
}

/// A nest whose reductions are divided into segments: what computes the partial results, and what combines them.
pub(super) struct Split {
    pub(super) partial: Nest,
    pub(super) combined: Nest,
}

/// Divides the outermost axis of all reductions into segments of `length`. The nest's results depend on no axis that is
/// reduced, and no reduction on another; all have the same outermost axis. Partial results are operands from number
/// `first` on. `None` where a look-up would leave its operand.
pub(super) fn split(nest: &Nest, length: usize, order: Segments, first: usize) -> Option<Split> {
    let reductions: Vec<NodeId> = reductions(nest).collect();
    let axis = *nest.nodes[*reductions.first()?].op.bound_axes().first()?;
    let extent = nest.extent(axis);
    let count = extent.div_ceil(length);
    let segment = Axis(nest.extents.len() as u8);
    let mut partial = nest.clone();
    let mut extents = nest.extents.clone();
    extents[axis.0 as usize] = length;
    extents.push(count);
    let position = Index::axis(segment).times(length as i64) + Index::axis(axis);
    let by = |a: Axis| if a == axis { position.clone() } else { Index::axis(a) };
    partial.substitute(&by, extents);
    partial.axes = match order {
        Segments::Innermost => nest.axes.iter().copied().chain([segment]).collect(),
        Segments::Outermost => std::iter::once(segment).chain(nest.axes.iter().copied()).collect(),
    };
    if count * length > extent {
        let inside = Guard { index: position, lo: 0, hi: extent as i64 };
        guard(&mut partial, axis, &reductions, &inside)?;
    }
    partial.store = row_major(&partial, &partial.axes);
    let at = partial.store.clone();
    let mut combined = nest.clone();
    combined.extents.push(count);
    let mut results = Vec::new();
    for &r in &reductions {
        results.extend(partial_results(&mut partial, r, segment, length));
        combine(&mut combined, (r, segment), &at, first + results.len());
    }
    partial.results = results;
    for n in [&mut partial, &mut combined] {
        sort(n);
        n.prune();
        n.merge_jointly();
    }
    Some(Split { partial, combined })
}

/// The nodes that reduce.
pub(super) fn reductions(nest: &Nest) -> impl Iterator<Item = NodeId> + '_ {
    nest.nodes.iter().enumerate().filter(|(_, n)| matches!(n.op, Op::Reduce { .. } | Op::ArgMax { .. })).map(|(i, _)| i)
}

/// Adds a node; [`sort`] puts it in its place.
fn push(nest: &mut Nest, op: Op, dtype: DType) -> NodeId {
    nest.nodes.push(Node { op, dtype, free: 0 });
    nest.nodes.len() - 1
}

/// Loads what depends on `axis` only where a guard holds; elsewhere nothing is reduced.
fn guard(nest: &mut Nest, axis: Axis, reductions: &[NodeId], inside: &Guard) -> Option<()> {
    for n in nest.nodes.iter_mut().filter(|n| n.free & (1 << axis.0) != 0) {
        match &mut n.op {
            Op::Load { guards, .. } => guards.push(inside.clone()),
            Op::Take { .. } => return None,
            _ => {}
        }
    }
    let test = push(nest, Op::InRange(vec![inside.clone()]), DType::Bool);
    let choose = |nest: &mut Nest, x: NodeId, other: Scalar| {
        let dtype = other.dtype();
        let other = push(nest, Op::Const(other), dtype);
        push(nest, Op::Select(test, x, other), dtype)
    };
    for &r in reductions {
        let (identity, old, order) = match nest.nodes[r].op {
            Op::Reduce { op, body, order, .. } => (op.identity(nest.nodes[body].dtype), body, order),
            Op::ArgMax { body, .. } => (Scalar::lowest(nest.nodes[body].dtype), body, Order::Sequential),
            _ => continue,
        };
        let new = match (order, nest.nodes[old].op.clone()) {
            (Order::Fma, Op::Binary(Binary::Mul, x, y)) => {
                let (x, y) = (choose(nest, x, identity), choose(nest, y, identity));
                push(nest, Op::Binary(Binary::Mul, x, y), identity.dtype())
            }
            _ => choose(nest, old, identity),
        };
        if let Op::Reduce { body, .. } | Op::ArgMax { body, .. } = &mut nest.nodes[r].op {
            *body = new;
        }
    }
    Some(())
}

/// The nodes that hold the partial results of a reduction.
fn partial_results(nest: &mut Nest, r: NodeId, segment: Axis, length: usize) -> Vec<NodeId> {
    let Op::ArgMax { axes, body } = nest.nodes[r].op.clone() else { return vec![r] };
    let dtype = nest.nodes[body].dtype;
    let each = length * axes[1..].iter().map(|a| nest.extent(*a)).product::<usize>();
    let greatest = push(nest, Op::Reduce { op: Reduce::Max, axes, order: Order::Sequential, body }, dtype);
    let begin = push(nest, Op::Position(Index::axis(segment).times(each as i64)), DType::I32);
    vec![greatest, push(nest, Op::Binary(Binary::Add, begin, r), DType::I32)]
}

/// Makes a reduction one of its partial results, the last of which are the operands before `end`.
fn combine(nest: &mut Nest, (r, segment): (NodeId, Axis), at: &Index, end: usize) {
    let load = |operand: usize, dtype: DType| Op::Load {
        operand,
        at: at.clone(),
        guards: Vec::new(),
        fill: Scalar::zero(dtype),
    };
    let axes = vec![segment];
    nest.nodes[r].op = match nest.nodes[r].op.clone() {
        Op::Reduce { op, .. } => {
            let dtype = nest.nodes[r].dtype;
            let body = push(nest, load(end - 1, dtype), dtype);
            Op::Reduce { op, axes, order: Order::Sequential, body }
        }
        Op::ArgMax { body, .. } => {
            let dtype = nest.nodes[body].dtype;
            let body = push(nest, load(end - 2, dtype), dtype);
            let row = push(nest, Op::ArgMax { axes, body }, DType::I32);
            let stride = coefficient(at, segment).unwrap_or(1);
            let by = |a: Axis| if a == segment { Index::constant(0) } else { Index::axis(a) };
            let rows = nest.extent(segment) as i64;
            Op::Take { operand: end - 1, at: at.substitute(&by, &nest.extents), stride, rows, row, base: 0 }
        }
        other => other,
    };
}

/// Puts operands before users again.
fn sort(nest: &mut Nest) {
    fn place(nest: &Nest, n: NodeId, map: &mut [Option<NodeId>], order: &mut Vec<NodeId>) {
        if map[n].is_none() {
            nest.nodes[n].op.children().for_each(|c| place(nest, c, map, order));
            map[n] = Some(order.len());
            order.push(n);
        }
    }
    let (mut map, mut order) = (vec![None; nest.nodes.len()], Vec::new());
    (0..nest.nodes.len()).for_each(|n| place(nest, n, &mut map, &mut order));
    let map: Vec<NodeId> = map.into_iter().flatten().collect();
    nest.nodes = order.iter().map(|&n| nest.nodes[n].clone()).collect();
    nest.nodes.iter_mut().for_each(|n| n.op.renumber(&map));
    nest.results.iter_mut().for_each(|r| *r = map[*r]);
}
