//! The column schedule: reductions of elements that lie a row apart, results next to each other.
//!
//! The threads of a block form a rectangle. Those of a row of it compute neighbouring results, in groups of 16 bytes;
//! those of a column share the elements of one result, each taking every n-th, several loads ahead. Their partial
//! results meet in shared memory and are combined in the order of the threads: no atomics, the same bits in every run.

use super::Launch;
use super::accumulate::{LanesRun, accumulate, loads_along, merge_of, needed};
use super::launch::{Arrays, Draft, digits, positions};
use super::pointwise::{Ends, lanes};
use super::shape::reductions;
use crate::schedule::loops::{Bound, Val, access_lanes};
use crate::schedule::nest::{Nest, NodeId};
use intwain_ir::DType;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Inst, Place, Reg, RegType, Stmt};
use intwain_ir::scalar::{Binary, Compare};

/// Threads of a block.
const THREADS: usize = 256;
/// Most threads that share a result.
const SHARE: usize = 32;
/// Elements that a thread loads before it uses them.
const AHEAD: usize = 4;

/// The rectangle of threads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Columns {
    /// Neighbouring results of a thread.
    width: usize,
    /// Groups of results.
    groups: usize,
    /// Threads along the results.
    across: usize,
    /// Threads that share a result.
    share: usize,
}

impl Columns {
    /// The rectangle for a nest.
    pub(super) fn new(nest: &Nest, stores: &[DType]) -> Columns {
        let width = nest.axes.last().map_or(1, |&a| lanes(nest, a, stores, Ends::Whole));
        let groups = positions(nest, &nest.axes) / width;
        let longest = reductions(nest).map(|r| positions(nest, nest.nodes[r].op.bound_axes())).max().unwrap_or(1);
        let across = groups.next_power_of_two().min(32);
        let share = (THREADS / across).min(SHARE).min(longest.div_ceil(AHEAD).next_power_of_two());
        Columns { width, groups, across, share }
    }

    /// Number of thread blocks.
    pub(super) fn blocks(&self) -> usize {
        self.groups.div_ceil(self.across)
    }
}

/// Shared memory with the partial results of a block.
struct Partials {
    place: Place,
    dtype: DType,
}

/// A kernel in which no reduction depends on another, and all depend on every result axis.
pub(super) fn launch(name: &str, nest: &Nest, arrays: &Arrays, c: Columns) -> Launch {
    let mut d = Draft::new(name, nest, arrays, c.blocks(), (c.across * c.share) as u32);
    let (block, thread) = (d.block(), d.thread());
    let b = &mut d.l.b;
    let across = b.index(c.across as i64);
    let (x, y) = (b.binary(Binary::Mod, thread, across), b.binary(Binary::FloorDiv, thread, across));
    let first = b.binary(Binary::Mul, block, across);
    let group = b.binary(Binary::Add, first, x);
    let exists = d.below(group, c.groups, c.blocks() * c.across);
    let axes = digits(&mut d.l.b, nest, group, &nest.axes, c.width);
    d.l.push_limited(axes.clone(), exists);
    let sums: Vec<(NodeId, Vec<Vec<Reg>>)> = walks(&mut d, c, y);
    d.l.pop_scope();
    finish(&mut d, c, sums, (x, y), axes, exists);
    d.finish()
}

/// A walk for each list of axes; gives the accumulators of each reduction.
fn walks(d: &mut Draft<'_>, c: Columns, y: Reg) -> Vec<(NodeId, Vec<Vec<Reg>>)> {
    let nest = d.l.nest;
    let mut lists: Vec<&[Axis]> = Vec::new();
    for r in reductions(nest) {
        let axes = nest.nodes[r].op.bound_axes();
        if !lists.contains(&axes) {
            lists.push(axes);
        }
    }
    let of = |axes: &[Axis]| reductions(nest).filter(|&r| nest.nodes[r].op.bound_axes() == axes).collect::<Vec<_>>();
    lists.into_iter().flat_map(|axes| walk(d, c, y, axes, &of(axes))).collect()
}

/// A loop over the elements of a thread.
fn walk(d: &mut Draft<'_>, c: Columns, y: Reg, axes: &[Axis], here: &[NodeId]) -> Vec<(NodeId, Vec<Vec<Reg>>)> {
    let nest = d.l.nest;
    let elements = positions(nest, axes);
    let step = c.share * AHEAD;
    let mut accs: Vec<Vec<Vec<Reg>>> = Vec::new();
    for &r in here {
        let one: Vec<Reg> = merge_of(nest, r).identity().iter().map(|x| d.l.b.constant(*x)).collect();
        accs.push(vec![one; c.width]);
    }
    let carried: Vec<Reg> = accs.iter().flatten().flatten().copied().collect();
    let (begin, end) = (d.l.b.index(0), d.l.b.index(elements as i64));
    let l = d.l.b.open_loop(begin, end, step as i64, &carried);
    replace(&mut accs, l.args());
    let bodies: Vec<NodeId> = here.iter().flat_map(|&r| nest.nodes[r].op.children()).collect();
    let ahead = loads_along(nest, axes, &needed(nest, &bodies));
    let mut open = Vec::new();
    for i in 0..AHEAD {
        let offset = d.l.b.index((i * c.share) as i64);
        let first = d.l.b.binary(Binary::Add, l.var(), y);
        let number = d.l.b.binary(Binary::Add, first, offset);
        let inside = d.below(number, elements, elements.next_multiple_of(step));
        let bounds = digits(&mut d.l.b, nest, number, axes, 1);
        d.l.push_limited(bounds, inside);
        ahead.iter().for_each(|&n| drop(d.l.value(n)));
        open.push((inside, d.l.take_scope()));
    }
    for (inside, scope) in open {
        d.l.put_scope(scope);
        for (&r, acc) in here.iter().zip(&mut accs) {
            let next = accumulate(d, r, acc, LanesRun::Across);
            *acc = match inside {
                None => next,
                Some(inside) => {
                    let pick = |d: &mut Draft<'_>, (n, o): (&Vec<Reg>, &Vec<Reg>)| -> Vec<Reg> {
                        n.iter().zip(o).map(|(&n, &o)| d.l.b.select(inside, n, o)).collect()
                    };
                    next.iter().zip(acc.iter()).map(|pair| pick(d, pair)).collect()
                }
            };
        }
        d.l.pop_scope();
    }
    let next: Vec<Reg> = accs.iter().flatten().flatten().copied().collect();
    let after = d.l.b.close_loop(l, &next);
    replace(&mut accs, after.into_iter());
    here.iter().copied().zip(accs).collect()
}

fn replace(accs: &mut [Vec<Vec<Reg>>], by: impl Iterator<Item = Reg>) {
    accs.iter_mut().flatten().flatten().zip(by).for_each(|(r, new)| *r = new);
}

/// Combines what the threads that share results have, and stores what follows.
fn finish(
    d: &mut Draft<'_>,
    c: Columns,
    mut sums: Vec<(NodeId, Vec<Vec<Reg>>)>,
    (x, y): (Reg, Reg),
    axes: Vec<(Axis, Bound)>,
    exists: Option<Reg>,
) {
    let nest = d.l.nest;
    let mut partials: Vec<Vec<Partials>> = Vec::new();
    let mut leads = exists;
    let row = (c.across * c.width) as i64;
    if c.share > 1 {
        let size = d.l.b.index(row);
        let at = d.l.b.binary(Binary::Mul, y, size);
        for (_, accs) in &sums {
            let mut places = Vec::new();
            for part in 0..accs[0].len() {
                let regs: Vec<Reg> = accs.iter().map(|a| a[part]).collect();
                let dtype = d.l.b.ty(regs[0]).dtype;
                let place = d.l.b.buffer(dtype, c.share * row as usize);
                put(d, c, place, (at, x), &regs);
                places.push(Partials { place, dtype });
            }
            partials.push(places);
        }
        d.l.b.push(Stmt::Barrier);
        let zero = d.l.b.index(0);
        let first = d.l.b.compare(Compare::Eq, y, zero);
        leads = Some(match exists {
            Some(e) => d.l.b.binary(Binary::And, first, e),
            None => first,
        });
    }
    let alone = nest.axes.is_empty();
    if alone {
        // What depends on no axis is computed outside of all conditions: so must be what it follows from.
        combine(d, c, &mut sums, &partials, x);
    }
    d.when(leads, |d| {
        d.l.push_scope(axes);
        if !alone {
            combine(d, c, &mut sums, &partials, x);
        }
        d.elements(c.width);
        d.l.pop_scope();
    });
}

/// Combines the partial results in shared memory with a thread's own, in the order of the threads; without any, the
/// thread's own are all.
fn combine(d: &mut Draft<'_>, c: Columns, sums: &mut [(NodeId, Vec<Vec<Reg>>)], partials: &[Vec<Partials>], x: Reg) {
    let row = (c.across * c.width) as i64;
    for (i, (r, accs)) in sums.iter_mut().enumerate() {
        let merge = merge_of(d.l.nest, *r);
        for other in 1..if partials.is_empty() { 1 } else { c.share } {
            let parts: Vec<Vec<Reg>> = partials[i].iter().map(|p| get(d, c, p, x, other as i64 * row)).collect();
            for (lane, acc) in accs.iter_mut().enumerate() {
                let theirs: Vec<Reg> = parts.iter().map(|p| p[lane]).collect();
                *acc = merge.combine(&mut d.l.b, acc, &theirs);
            }
        }
        let regs = accs.iter().map(|a| merge.outcome(&mut d.l.b, a)).collect();
        d.l.define(*r, Val { regs, lanes: 1 });
    }
}

/// Writes a thread's partial results to shared memory, groups of 16 bytes beside those of its neighbours. `at` is where
/// the thread's row begins.
fn put(d: &mut Draft<'_>, c: Columns, place: Place, (at, x): (Reg, Reg), regs: &[Reg]) {
    let dtype = d.l.b.ty(regs[0]).dtype;
    let n = access_lanes(dtype, regs.len(), regs.len() as i64);
    let size = d.l.b.index(n as i64);
    let own = d.l.b.binary(Binary::Mul, x, size);
    let at = d.l.b.binary(Binary::Add, at, own);
    for (i, lanes) in regs.chunks(n).enumerate() {
        let ty = RegType { dtype, lanes: n as u8 };
        let value = if n == 1 { lanes[0] } else { d.l.b.inst(ty, Inst::Pack(lanes.iter().copied().collect())) };
        d.l.b.store(place, at, (i * n * c.across) as i64, value);
    }
}

/// Reads partial results of the thread's column from the row that begins at `offset`.
fn get(d: &mut Draft<'_>, c: Columns, from: &Partials, x: Reg, offset: i64) -> Vec<Reg> {
    let n = access_lanes(from.dtype, c.width, c.width as i64);
    let ty = RegType::scalar(from.dtype);
    let size = d.l.b.index(n as i64);
    let own = d.l.b.binary(Binary::Mul, x, size);
    let mut regs = Vec::new();
    for i in 0..c.width / n {
        let v = d.l.b.load(from.place, own, offset + (i * n * c.across) as i64, n as u8);
        match n {
            1 => regs.push(v),
            _ => regs.extend((0..n as u8).map(|lane| d.l.b.inst(ty, Inst::Extract(v, lane)))),
        }
    }
    regs
}
