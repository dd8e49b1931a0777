//! Long sums in parts: several blocks add up a range of the inner axis each, and a second kernel adds the parts, in
//! order, and does what follows.

use super::recognise::{Product, Rest};
use crate::schedule::gpu::Argument;
use crate::schedule::gpu::launch::{Array, Arrays};
use crate::schedule::nest::{Nest, Node, Op};
use intwain_ir::compute::{Axis, Index, Order};
use intwain_ir::scalar::{Reduce, Scalar};

/// The parts in memory: a result of the first kernel and an operand of the second.
pub(super) fn parts(product: &Product, count: usize) -> Array {
    let elements = count * product.batch * product.rows * product.columns;
    Array { dtype: product.dtype, elements, argument: Argument::Workspace(0) }
}

/// The product without what follows: part s of element (row, column) of matrix b is stored at [s, b, row, column].
pub(super) fn partial(product: &Product, count: usize) -> Option<Product> {
    let mut nest = product.nest.clone();
    let first = nest.extents.len();
    let extents = [count, product.batch, product.rows, product.columns];
    let mut stored = Vec::new();
    let mut stride = extents.iter().product::<usize>();
    nest.store = Index::constant(0);
    for (i, extent) in extents.into_iter().enumerate().filter(|(_, extent)| *extent > 1) {
        let axis = Axis(u8::try_from(nest.extents.len()).ok().filter(|a| *a < 64)?);
        stride /= extent;
        nest.extents.push(extent);
        nest.store = nest.store.clone() + Index::axis(axis).times(stride as i64);
        stored.push((i, axis));
    }
    nest.axes.extend((first..nest.extents.len()).map(|a| Axis(a as u8)));
    let sum = product.rest.sum;
    let Op::Load { operand, guards, fill, .. } = nest.nodes[sum].op.clone() else { return None };
    nest.nodes[sum].op = Op::Load { operand, at: nest.store.clone(), guards, fill };
    nest.results = vec![product.left.node, product.right.node, sum];
    nest.prune();
    let [left, right, sum] = nest.results[..] else { return None };
    nest.results = vec![sum];
    let of = |roles: &[usize]| stored.iter().filter(|(i, _)| roles.contains(i)).map(|(_, a)| *a).collect::<Vec<_>>();
    let rest = Rest { sum, batch: of(&[0, 1]), rows: of(&[2]), columns: of(&[3]) };
    let (mut l, mut r) = (product.left.clone(), product.right.clone());
    (l.node, r.node) = (left, right);
    Some(Product { nest, left: l, right: r, rest, ..*product })
}

/// What follows, with the sum of the parts in the place of the sum. The parts are the operand after the last of
/// `arrays`.
pub(super) fn finish(product: &Product, count: usize, arrays: &Arrays) -> Option<(Nest, Arrays)> {
    let mut nest = product.nest.clone();
    let axis = Axis(u8::try_from(nest.extents.len()).ok().filter(|a| *a < 64)?);
    nest.extents.push(count);
    let rest = &product.rest;
    let number =
        |axes: &[Axis]| axes.iter().fold(Index::constant(0), |n, a| n.times(nest.extent(*a) as i64) + Index::axis(*a));
    let (rows, columns) = (product.rows as i64, product.columns as i64);
    let at = number(&rest.columns)
        + number(&rest.rows).times(columns)
        + number(&rest.batch).times(rows * columns)
        + Index::axis(axis).times(product.batch as i64 * rows * columns);
    let parts = parts(product, count);
    let free = at.axes();
    let load = Op::Load { operand: arrays.operands.len(), at, guards: Vec::new(), fill: Scalar::zero(parts.dtype) };
    let body = nest.nodes.len();
    let sum = Op::Reduce { op: Reduce::Sum, axes: vec![axis], order: Order::Sequential, body };
    // Operands stand before users: the load goes before everything.
    let map: Vec<usize> = (1..=nest.nodes.len()).collect();
    nest.nodes[rest.sum].op = sum;
    for node in &mut nest.nodes {
        match &mut node.op {
            Op::Reduce { body, .. } => *body = 0,
            op => op.renumber(&map),
        }
    }
    nest.nodes.insert(0, Node { op: load, dtype: parts.dtype, free });
    nest.results.iter_mut().for_each(|r| *r += 1);
    nest.axes = [&rest.batch[..], &rest.rows, &rest.columns].concat();
    nest.prune();
    nest.merge();
    let mut arrays = arrays.clone();
    arrays.operands.push(parts);
    Some((nest, arrays))
}
