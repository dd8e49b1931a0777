//! The pointwise schedule: a thread computes neighbouring elements, as many as 16 bytes hold.
//!
//! Threads are numbered along the innermost axis, then along the outer ones, so that neighbouring threads touch
//! neighbouring memory. Where addresses and conditions come in whole groups, a thread takes a group: each load and
//! store is then one access of up to 16 bytes. Elsewhere, as for rows of odd length, a thread takes one element. For
//! large results a thread has several groups, whose loads are all issued before the first is used.
//!
//! Reductions that depend on the innermost axis, such as windows, run inside a thread, in their stated order: they give
//! the CPU's bits. Where conditions depend on a window's position, one test tells whether the whole window lies inside.

use super::Launch;
use super::launch::{Arrays, Draft, digits, positions};
use crate::schedule::loops::{Bound, moves_groups};
use crate::schedule::nest::{Nest, NodeId, Op, coefficient};
use crate::schedule::rows::window_inside;
use intwain_ir::DType;
use intwain_ir::compute::Axis;

/// Most threads of a block.
const THREADS: usize = 256;
/// Groups of a result from which on a thread has several.
const MANY: usize = 1 << 17;
/// Most elements loaded ahead by a thread.
const AHEAD: usize = 32;

/// A kernel with one thread for each group of neighbouring elements.
pub(super) fn launch(name: &str, nest: &Nest, arrays: &Arrays) -> Launch {
    let types: Vec<DType> = arrays.results.iter().map(|a| a.dtype).collect();
    let whole = if nest.axes.len() == 1 { Ends::Ragged } else { Ends::Whole };
    let width = nest.axes.last().map_or(1, |&axis| lanes(nest, axis, &types, whole));
    let total = positions(nest, &nest.axes);
    let (groups, rest) = (total / width, total % width);
    let threads = groups.next_multiple_of(32).clamp(32, THREADS);
    let each = in_flight(nest, width, groups);
    let blocks = groups.div_ceil(threads * each).max(1);
    let mut d = Draft::new(name, nest, arrays, blocks, threads as u32);
    let first = d.number(threads * each);
    match each {
        1 => {
            let inside = d.below(first, groups, blocks * threads);
            d.when(inside, |d| {
                let axes = digits(&mut d.l.b, nest, first, &nest.axes, width);
                group(d, axes, width);
            });
        }
        _ => several(&mut d, first, (groups, blocks * threads * each), (threads, each), width),
    }
    if rest > 0 {
        let number = d.number(threads * each);
        let few = d.below(number, rest, threads);
        let axis = nest.axes[0];
        d.when(few, |d| {
            let begin = (total - rest) as i64;
            let offset = d.l.b.index(begin);
            let base = d.l.b.binary(intwain_ir::scalar::Binary::Add, number, offset);
            group(d, vec![(axis, Bound::one(base, (begin, total as i64 - 1)))], 1);
        });
    }
    d.finish()
}

/// One group: outer axes first, so that conditions on windows are tested once.
fn group(d: &mut Draft<'_>, axes: Vec<(Axis, Bound)>, width: usize) {
    let nest = d.l.nest;
    let Some(&inner) = nest.axes.last() else { return d.elements(1) };
    let (inner, outer): (Vec<_>, Vec<_>) = axes.into_iter().partition(|(a, _)| *a == inner);
    d.l.push_scope(outer);
    match nest.axes.last().and_then(|&axis| window_inside(nest, axis)) {
        None => {
            d.l.push_scope(inner);
            d.elements(width);
            d.l.pop_scope();
        }
        Some((tests, taken)) => {
            let whole = d.l.all_hold(&tests);
            d.either(
                whole,
                |d| {
                    d.l.assume(taken);
                    d.l.push_scope(inner.clone());
                    d.elements(width);
                    d.l.pop_scope();
                    d.l.forget();
                },
                |d| {
                    d.l.push_scope(inner.clone());
                    d.elements(width);
                    d.l.pop_scope();
                },
            );
        }
    }
    d.l.pop_scope();
}

/// Several groups of a thread, a block's width apart; the loads of all come first.
fn several(
    d: &mut Draft<'_>,
    first: intwain_ir::kernel::Reg,
    (groups, most): (usize, usize),
    (threads, each): (usize, usize),
    width: usize,
) {
    let nest = d.l.nest;
    let mut open = Vec::new();
    for i in 0..each {
        let offset = d.l.b.index((i * threads) as i64);
        let number = d.l.b.binary(intwain_ir::scalar::Binary::Add, first, offset);
        let inside = d.below(number, groups, most);
        let axes = digits(&mut d.l.b, nest, number, &nest.axes, width);
        d.l.push_limited(axes, inside);
        for load in loads(nest) {
            d.l.value(load);
        }
        open.push((inside, d.l.take_scope()));
    }
    for (inside, scope) in open {
        d.l.put_scope(scope);
        d.when(inside, |d| d.elements(width));
        d.l.pop_scope();
    }
}

/// The loads of every element, look-ups after the others.
fn loads(nest: &Nest) -> impl Iterator<Item = NodeId> + '_ {
    let of = |take: bool| {
        nest.nodes.iter().enumerate().filter(move |(_, n)| {
            let found = if take { matches!(n.op, Op::Take { .. }) } else { matches!(n.op, Op::Load { .. }) };
            found && n.free != 0
        })
    };
    of(false).chain(of(true)).map(|(i, _)| i)
}

/// How many groups a thread takes.
fn in_flight(nest: &Nest, width: usize, groups: usize) -> usize {
    let reduces = nest.nodes.iter().any(|n| !n.op.bound_axes().is_empty());
    if reduces || groups < MANY {
        return 1;
    }
    let loaded = loads(nest).count().max(1) * width;
    let wanted = if groups < 4 * MANY { 2 } else { 4 };
    [4, 2].into_iter().find(|&n| n <= wanted && n * loaded <= AHEAD).unwrap_or(1)
}

/// Whether the positions of an axis must come in whole groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Yes.
    Whole,
    /// The last group may be short.
    Ragged,
}

/// How many neighbouring positions of an axis a thread takes: as many as 16 bytes of the smallest type hold, if most
/// accesses along the axis then move whole groups. `stores` are the types of results stored along the axis.
pub(super) fn lanes(nest: &Nest, axis: Axis, stores: &[DType], ends: Ends) -> usize {
    let extent = nest.extent(axis);
    let mut sizes: Vec<usize> = stores.iter().map(|d| d.size()).collect();
    sizes.extend(nest.depends_on(axis).filter(|n| along(&n.op, axis)).map(|n| n.dtype.size()));
    let smallest = sizes.into_iter().filter(|&s| s > 1).min().unwrap_or(4);
    let most = 16 / smallest;
    let fits = |&v: &usize| {
        let divides = extent.is_multiple_of(v) || (ends == Ends::Ragged && extent > v);
        v <= most && divides && (stores.is_empty() || moves_groups(&nest.store, &[], axis, v)) && mostly(nest, axis, v)
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// Whether an operation reads neighbouring elements along the axis.
fn along(op: &Op, axis: Axis) -> bool {
    match op {
        Op::Load { at, .. } | Op::Take { at, .. } => coefficient(at, axis) == Some(1),
        Op::Const(_)
        | Op::Position(_)
        | Op::InRange(_)
        | Op::Unary(..)
        | Op::Binary(..)
        | Op::Compare(..)
        | Op::Select(..)
        | Op::Cast(_)
        | Op::Reduce { .. }
        | Op::ArgMax { .. } => false,
    }
}

/// Whether at least half of the accesses along the axis move groups of `width`.
fn mostly(nest: &Nest, axis: Axis, width: usize) -> bool {
    let (mut whole, mut split) = (0, 0);
    for n in nest.depends_on(axis) {
        let groups = match &n.op {
            Op::Load { at, guards, .. } => match coefficient(at, axis) {
                Some(1) => moves_groups(at, guards, axis, width),
                Some(0) | None => false,
                Some(_) => continue,
            },
            Op::Take { at, stride, .. } => match coefficient(at, axis) {
                Some(1) => moves_groups(at, &[], axis, width) && stride % width as i64 == 0,
                Some(_) | None => continue,
            },
            Op::Const(_)
            | Op::Position(_)
            | Op::InRange(_)
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Compare(..)
            | Op::Select(..)
            | Op::Cast(_)
            | Op::Reduce { .. }
            | Op::ArgMax { .. } => continue,
        };
        if groups {
            whole += 1;
        } else {
            split += 1;
        }
    }
    whole >= split
}
