//! What sums of products have in common, whichever device computes them: which reduction it is, which factor is left
//! and which right, and axes that fall into groups.

use super::nest::{Nest, NodeId, Op};
use intwain_ir::compute::{Atom, Axis, Index, Order};
use intwain_ir::scalar::Reduce;

/// The only reduction, if it is a chain of fused multiply-adds.
pub(super) fn the_sum(nest: &Nest) -> Option<NodeId> {
    let mut reductions =
        nest.nodes.iter().enumerate().filter(|(_, n)| matches!(n.op, Op::Reduce { .. } | Op::ArgMax { .. }));
    let (sum, node) = reductions.next()?;
    let chain = matches!(node.op, Op::Reduce { op: Reduce::Sum, order: Order::Fma, .. });
    (chain && reductions.next().is_none()).then_some(sum)
}

/// A sum of products as a tree of chains, or as one chain.
pub(super) struct Chains {
    /// The node that is the sum.
    pub(super) sum: NodeId,
    /// The reduction that is a chain of fused multiply-adds.
    pub(super) chain: NodeId,
    /// Axes whose positions are the leaves of the tree, outermost first.
    pub(super) leaves: Vec<Axis>,
}

/// The only reduction, if it is a chain, or the only two, if they are chains and a tree over them.
pub(super) fn the_chains(nest: &Nest) -> Option<Chains> {
    if let Some(sum) = the_sum(nest) {
        return Some(Chains { sum, chain: sum, leaves: Vec::new() });
    }
    let reductions: Vec<NodeId> = (0..nest.nodes.len()).filter(|n| is_reduction(&nest.nodes[*n].op)).collect();
    let [chain, sum] = reductions[..] else { return None };
    let is_chain = matches!(nest.nodes[chain].op, Op::Reduce { op: Reduce::Sum, order: Order::Fma, .. });
    match &nest.nodes[sum].op {
        Op::Reduce { op: Reduce::Sum, axes, order: Order::Tree, body } if is_chain && *body == chain => {
            let only = nest.nodes.iter().enumerate().all(|(i, n)| i == sum || n.op.children().all(|c| c != chain));
            (only && !nest.results.contains(&chain)).then(|| Chains { sum, chain, leaves: axes.clone() })
        }
        _ => None,
    }
}

fn is_reduction(op: &Op) -> bool {
    matches!(op, Op::Reduce { .. } | Op::ArgMax { .. })
}

/// Makes the leaves of a tree and the outermost axis of the chains one axis, where the last leaf is shorter than the others:
/// both factors are zero from some position on. The chains are then as long as they were, and the axis ends early.
pub(super) fn join_leaves(nest: &mut Nest, chains: &mut Chains) {
    let Op::Reduce { axes, body, .. } = &nest.nodes[chains.chain].op else { return };
    let ([leaf], Some(&row), Op::Binary(_, x, y)) = (&chains.leaves[..], axes.first(), &nest.nodes[*body].op) else {
        return;
    };
    let (leaf, each) = (*leaf, nest.extent(row) as i64);
    let position = Index::axis(leaf).times(each) + Index::axis(row);
    let ends = |factor: NodeId| -> Option<i64> {
        let node = match nest.nodes[factor].op {
            Op::Cast(inner) => inner,
            _ => factor,
        };
        let Op::Load { guards, fill, .. } = &nest.nodes[node].op else { return None };
        let end = guards.iter().find(|g| g.index == position && g.lo == 0)?.hi;
        (fill.bits() == 0).then_some(end)
    };
    let (Some(end), true) = (ends(*x), ends(*x) == ends(*y) && nest.even(leaf, row)) else { return };
    let shorter = (nest.extent(leaf) as i64 - 1) * each < end && end < nest.extent(leaf) as i64 * each;
    if shorter {
        let mut extents = nest.extents.clone();
        (extents[leaf.0 as usize], extents[row.0 as usize]) = (1, end as usize);
        nest.substitute(&|a| if a == leaf { Index::constant(0) } else { Index::axis(a) }, extents);
        chains.leaves.clear();
    }
}

/// Which factor is left and which right: the right one reads the innermost result axis alone.
pub(super) fn orient(nest: &Nest, x: NodeId, y: NodeId) -> Option<(NodeId, NodeId)> {
    let (fx, fy) = (nest.nodes[x].free, nest.nodes[y].free);
    let Some(inner) = nest.axes.last() else { return Some((x, y)) };
    match (fx & (1 << inner.0) != 0, fy & (1 << inner.0) != 0) {
        (false, true) => Some((x, y)),
        (true, false) => Some((y, x)),
        _ => None,
    }
}

/// Divides axes that an index divides by a constant, where the constant divides the extent.
pub(super) fn divide_groups(nest: &mut Nest) {
    while let Some((axis, n)) = nest.axes.iter().copied().find_map(|a| {
        let divisor = nest.nodes.iter().flat_map(|node| node.op.indices()).find_map(|i| divisor_of(i, a))?;
        (nest.extent(a) as i64 % divisor == 0 && divisor > 1).then_some((a, divisor))
    }) {
        let whole = Axis(nest.extents.len() as u8);
        let mut extents = nest.extents.clone();
        extents.push(extents[axis.0 as usize] / n as usize);
        extents[axis.0 as usize] = n as usize;
        let at = nest.axes.iter().position(|a| *a == axis).unwrap_or(0);
        nest.axes.insert(at, whole);
        let by = |a: Axis| if a == axis { Index::axis(whole).times(n) + Index::axis(a) } else { Index::axis(a) };
        nest.substitute(&by, extents);
    }
}

fn divisor_of(index: &Index, axis: Axis) -> Option<i64> {
    index.terms().iter().find_map(|t| match &t.atom {
        Atom::FloorDiv(inner, n) | Atom::Mod(inner, n) => (inner.bare() == Some(axis)).then_some(*n),
        Atom::Axis(_) => None,
    })
}
