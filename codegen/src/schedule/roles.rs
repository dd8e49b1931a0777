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
