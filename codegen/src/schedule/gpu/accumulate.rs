//! What schedules of reductions share: what is loaded ahead, and how elements are accumulated.

use super::launch::Draft;
use super::shape::row_major;
use super::team::Merge;
use crate::schedule::nest::{Nest, NodeId, Op};
use intwain_ir::DType;
use intwain_ir::compute::{Axis, Order};
use intwain_ir::kernel::Reg;
use intwain_ir::scalar::Binary;

/// The nodes that some nodes need, up to reductions.
pub(super) fn needed(nest: &Nest, roots: &[NodeId]) -> Vec<bool> {
    let mut needed = vec![false; nest.nodes.len()];
    roots.iter().for_each(|&r| needed[r] = true);
    for i in (0..nest.nodes.len()).rev() {
        if needed[i] && nest.nodes[i].op.bound_axes().is_empty() {
            nest.nodes[i].op.children().for_each(|c| needed[c] = true);
        }
    }
    needed
}

/// The loads among the nodes chosen that depend on the axes.
pub(super) fn loads_along(nest: &Nest, axes: &[Axis], chosen: &[bool]) -> Vec<NodeId> {
    let set = axes.iter().fold(0u64, |s, a| s | 1 << a.0);
    let loads = nest
        .nodes
        .iter()
        .enumerate()
        .filter(|(i, n)| chosen[*i] && n.free & set != 0 && matches!(n.op, Op::Load { .. } | Op::Take { .. }));
    loads.map(|(i, _)| i).collect()
}

/// How the partial results of a reduction become one.
pub(super) fn merge_of(nest: &Nest, r: NodeId) -> Merge {
    match nest.nodes[r].op {
        Op::ArgMax { body, .. } => Merge::Greatest(nest.nodes[body].dtype),
        Op::Reduce { op, .. } => Merge::Values(op, nest.nodes[r].dtype),
        _ => unreachable!("only reductions are merged"),
    }
}

/// What the lanes of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LanesRun {
    /// Neighbouring elements of one reduction.
    Along,
    /// The same element of neighbouring reductions.
    Across,
}

/// Accumulators, one for each lane, after the elements at the current positions.
pub(super) fn accumulate(d: &mut Draft<'_>, r: NodeId, accs: &[Vec<Reg>], run: LanesRun) -> Vec<Vec<Reg>> {
    let nest = d.l.nest;
    let merge = merge_of(nest, r);
    let width = accs.len();
    match &nest.nodes[r].op {
        Op::Reduce { order: Order::Fma, body, .. } => {
            let Op::Binary(Binary::Mul, x, y) = nest.nodes[*body].op else {
                unreachable!("a fused chain is over products")
            };
            let (v, w) = (d.l.wide(x, width), d.l.wide(y, width));
            (0..width).map(|i| vec![d.l.b.fma(v.regs[i], w.regs[i], accs[i][0])]).collect()
        }
        Op::Reduce { body, .. } => {
            let v = d.l.wide(*body, width);
            (0..width).map(|i| merge.combine(&mut d.l.b, &accs[i], &[v.regs[i]])).collect()
        }
        Op::ArgMax { axes, body } => {
            let v = d.l.wide(*body, width);
            let at = d.l.index(&row_major(nest, axes));
            (0..width)
                .map(|i| {
                    let offset = d.l.b.index(if run == LanesRun::Along { i as i64 } else { 0 });
                    let position = d.l.b.binary(Binary::Add, at, offset);
                    let position = d.l.b.cast(DType::I32, position);
                    merge.combine(&mut d.l.b, &accs[i], &[v.regs[i], position])
                })
                .collect()
        }
        _ => unreachable!("only reductions accumulate"),
    }
}
