//! The transposing schedule: what is read along one axis and written along another goes through shared memory.
//!
//! A block has a tile of 32 positions of the axis that is read by 64 of the axis that is written (half as many of 8
//! bytes). Its threads first read the tile along the one, groups of 16 bytes where addresses allow, all loads before the
//! first is stored; then they compute and write the results along the other. Rows of the tile in shared memory are one
//! element apart more than they are long, so that neither way round two threads of a warp meet in a bank.

use super::Launch;
use super::launch::{Arrays, Draft, digits, positions};
use super::pointwise::{Ends, lanes};
use super::shape::reductions;
use crate::schedule::loops::{Bound, Val, moves_groups};
use crate::schedule::nest::{Nest, NodeId, Op, coefficient};
use intwain_ir::DType;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Place, Reg, Stmt};
use intwain_ir::scalar::Binary;

/// Most threads of a block.
const THREADS: usize = 256;
/// Squares of a tile, along the axis that is written.
const SQUARES: usize = 2;
/// Least extent of both axes: below, most of a tile would be idle.
const LEAST: usize = 16;
/// Most loads that go through shared memory.
const MOST: usize = 4;

/// What is transposed.
#[derive(Clone, Debug)]
pub(super) struct Transposed {
    /// The loads, all along `read`.
    loads: Vec<NodeId>,
    /// The axis that the loads run along.
    read: Axis,
    /// The axis that the results run along.
    written: Axis,
    /// The others.
    outer: Vec<Axis>,
    /// Side of a square: as many elements as there are banks for.
    side: usize,
    /// Neighbouring positions that a thread reads.
    read_width: usize,
    /// Neighbouring positions that a thread writes.
    write_width: usize,
}

impl Transposed {
    /// The loads of a nest that run along another axis than its results; `None` if there are none.
    pub(super) fn find(nest: &Nest) -> Option<Transposed> {
        if reductions(nest).next().is_some() {
            return None;
        }
        let &written = nest.axes.last()?;
        let (mut loads, mut read) = (Vec::new(), None);
        for (i, n) in nest.nodes.iter().enumerate() {
            let Op::Load { at, .. } = &n.op else { continue };
            if matches!(coefficient(at, written), None | Some(-1..=1)) {
                continue;
            }
            let along = nest.axes.iter().copied().find(|a| coefficient(at, *a) == Some(1));
            let Some(along) = along.filter(|a| nest.extent(*a) >= LEAST) else { continue };
            if *read.get_or_insert(along) == along {
                loads.push(i);
            }
        }
        let read = read?;
        let fits = nest.extent(written) >= LEAST && loads.len() <= MOST;
        let outer = nest.axes.iter().copied().filter(|a| *a != read && *a != written).collect();
        let widest = loads.iter().map(|&n| nest.nodes[n].dtype.size()).max()?;
        let side = if widest > 4 { 16 } else { 32 };
        let stores: Vec<DType> = nest.results.iter().map(|&r| nest.nodes[r].dtype).collect();
        let (read_width, write_width) = (read_width(nest, &loads, read), lanes(nest, written, &stores, Ends::Whole));
        fits.then_some(Transposed { loads, read, written, outer, side, read_width, write_width })
    }

    /// Threads of a block: no more than groups of a tile, whichever way it is walked.
    fn threads(&self) -> usize {
        THREADS.min(self.side * self.rows() / self.read_width.max(self.write_width))
    }

    /// Distance of rows in shared memory.
    fn pitch(&self) -> usize {
        self.side + 1
    }

    /// Rows of a tile.
    fn rows(&self) -> usize {
        self.side * SQUARES
    }
}

/// How many neighbouring positions a thread reads: as many as 16 bytes of the smallest type hold, where all loads move
/// whole groups.
fn read_width(nest: &Nest, loads: &[NodeId], read: Axis) -> usize {
    let loads = || loads.iter().map(|&n| &nest.nodes[n]);
    let size = loads().map(|n| n.dtype.size()).filter(|&s| s > 1).min().unwrap_or(4);
    let moves = |v: usize| {
        loads().all(|n| match &n.op {
            Op::Load { at, guards, .. } => moves_groups(at, guards, read, v),
            _ => false,
        })
    };
    let extent = nest.extent(read);
    [8, 4, 2].into_iter().find(|&v| v <= 16 / size && extent.is_multiple_of(v) && moves(v)).unwrap_or(1)
}

/// A kernel with a block for each tile.
pub(super) fn launch(name: &str, nest: &Nest, arrays: &Arrays, t: &Transposed) -> Launch {
    let tiles = [nest.extent(t.read).div_ceil(t.side), nest.extent(t.written).div_ceil(t.rows())];
    let blocks = positions(nest, &t.outer) * tiles[0] * tiles[1];
    let mut d = Draft::new(name, nest, arrays, blocks, t.threads() as u32);
    let block = d.block();
    let b = &mut d.l.b;
    let [across, down] = tiles.map(|n| b.index(n as i64));
    let column = b.binary(Binary::Mod, block, across);
    let rest = b.binary(Binary::FloorDiv, block, across);
    let row = b.binary(Binary::Mod, rest, down);
    let rest = b.binary(Binary::FloorDiv, rest, down);
    let [side, height] = [t.side, t.rows()].map(|n| b.index(n as i64));
    let (p, q) = (b.binary(Binary::Mul, column, side), b.binary(Binary::Mul, row, height));
    let outer = digits(&mut d.l.b, nest, rest, &t.outer, 1);
    d.l.push_scope(outer);
    let dtypes: Vec<DType> = t.loads.iter().map(|&n| nest.nodes[n].dtype).collect();
    let places: Vec<Place> =
        dtypes.iter().map(|&dtype| d.l.b.buffer(dtype, t.rows() * t.pitch() * slot(dtype))).collect();
    fill(&mut d, t, &places, (p, q));
    d.l.b.push(Stmt::Barrier);
    drain(&mut d, t, &places, (p, q));
    d.l.pop_scope();
    d.finish()
}

/// Where a thread is in the passes over a tile whose rows are taken `width` elements at a time: the first element of
/// its group in a row of a square, and the rows it has.
fn passes(d: &mut Draft<'_>, t: &Transposed, width: usize) -> (Reg, Vec<Reg>) {
    let across = t.side / width;
    let thread = d.thread();
    let b = &mut d.l.b;
    let (n, w) = (b.index(across as i64), b.index(width as i64));
    let group = b.binary(Binary::Mod, thread, n);
    let (first, row) = (b.binary(Binary::Mul, group, w), b.binary(Binary::FloorDiv, thread, n));
    let rows = t.threads() / across;
    let each = (0..t.rows()).step_by(rows).map(|i| {
        let i = b.index(i as i64);
        b.binary(Binary::Add, row, i)
    });
    (first, each.collect())
}

/// Positions of the two axes with the condition that they exist.
fn position(d: &mut Draft<'_>, t: &Transposed, p: (Reg, usize), q: (Reg, usize)) -> (Vec<(Axis, Bound)>, Option<Reg>) {
    let nest = d.l.nest;
    let mut bounds = Vec::new();
    let mut inside: Option<Reg> = None;
    for (axis, (base, width), unit) in [(t.read, p, t.side), (t.written, q, t.rows())] {
        let extent = nest.extent(axis);
        let bound = Bound::lanes(base, width, (0, extent as i64 - 1)).multiple_of(width as i64);
        bounds.push((axis, bound));
        if let Some(c) = d.below(base, extent, extent.next_multiple_of(unit)) {
            inside = Some(inside.map_or(c, |a| d.l.b.binary(Binary::And, a, c)));
        }
    }
    (bounds, inside)
}

/// Reads the tile.
fn fill(d: &mut Draft<'_>, t: &Transposed, places: &[Place], (p, q): (Reg, Reg)) {
    let width = t.read_width;
    let (first, rows) = passes(d, t, width);
    let mut loaded = Vec::new();
    for row in rows {
        let b = &mut d.l.b;
        let (x, y) = (b.binary(Binary::Add, p, first), b.binary(Binary::Add, q, row));
        let (bounds, inside) = position(d, t, (x, width), (y, 1));
        d.l.push_limited(bounds, inside);
        let values: Vec<Val> = t.loads.iter().map(|&n| d.l.wide(n, width)).collect();
        d.l.pop_scope();
        loaded.push((row, values));
    }
    for (row, values) in loaded {
        for (v, &place) in values.iter().zip(places) {
            let (at, slot) = element(d, t, place, row, first);
            v.regs.iter().enumerate().for_each(|(i, &r)| d.l.b.store(place, at, (i * slot) as i64, r));
        }
    }
}

/// Elements that make a word of a bank: short ones have a word each.
fn slot(dtype: DType) -> usize {
    (4 / dtype.size()).max(1)
}

/// Position in shared memory, and how far apart neighbouring elements are.
fn element(d: &mut Draft<'_>, t: &Transposed, place: Place, row: Reg, column: Reg) -> (Reg, usize) {
    let b = &mut d.l.b;
    let slot = slot(b.place_type(place));
    let (pitch, each) = (b.index(t.pitch() as i64), b.index(slot as i64));
    let begin = b.binary(Binary::Mul, row, pitch);
    let at = b.binary(Binary::Add, begin, column);
    (b.binary(Binary::Mul, at, each), slot)
}

/// Computes and writes the results.
fn drain(d: &mut Draft<'_>, t: &Transposed, places: &[Place], (p, q): (Reg, Reg)) {
    let width = t.write_width;
    let (first, rows) = passes(d, t, width);
    for row in rows {
        let b = &mut d.l.b;
        let side = b.index(t.side as i64);
        let (square, line) = (b.binary(Binary::FloorDiv, row, side), b.binary(Binary::Mod, row, side));
        let begin = b.binary(Binary::Mul, square, side);
        let column = b.binary(Binary::Add, begin, first);
        let (x, y) = (b.binary(Binary::Add, p, line), b.binary(Binary::Add, q, column));
        let (bounds, inside) = position(d, t, (x, 1), (y, width));
        d.l.push_limited(bounds, inside);
        for (&n, &place) in t.loads.iter().zip(places) {
            let (at, slot) = element(d, t, place, column, line);
            let regs = (0..width).map(|i| d.l.b.load(place, at, (i * t.pitch() * slot) as i64, 1)).collect();
            d.l.define(n, Val { regs, lanes: 1 });
        }
        d.when(inside, |d| d.elements(width));
        d.l.pop_scope();
    }
}
