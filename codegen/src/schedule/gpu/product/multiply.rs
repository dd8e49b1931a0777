//! The main loop: tiles of both factors pass through shared memory, and every thread adds the products of its rows and
//! columns, one inner position after another.
//!
//! Shared memory has two stages. While a stage is multiplied, the next tile is on its way to registers; it is written to
//! the other stage afterwards, behind which a barrier stands. So one barrier a tile is enough: whoever writes a stage
//! has passed the barrier after the multiplication that read it.

use super::fetch::Fetch;
use super::recognise::Product;
use super::share::{Parts, Share, Side};
use super::tile::{GROUP, Tile, plus};
use crate::schedule::loops::Loops;
use intwain_ir::DType;
use intwain_ir::kernel::{Inst, Place, Reg, RegType, Stmt};
use intwain_ir::scalar::{Binary, Scalar};

/// Where a thread block and its thread are.
#[derive(Clone, Copy)]
pub(super) struct Position {
    /// The thread in its block.
    pub(super) thread: Reg,
    /// First row of the tile.
    pub(super) row: Reg,
    /// First column of the tile.
    pub(super) column: Reg,
    /// The thread's first row within the tile.
    pub(super) own_row: Reg,
    /// The thread's first column within the tile.
    pub(super) own_column: Reg,
}

/// The inner positions that are summed.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) begin: Reg,
    pub(super) end: Reg,
}

/// What the inner loop reads: a stage of shared memory.
struct Stage {
    shared: Place,
    dtype: DType,
    /// Pitches of the left and the right tile.
    pitch: [usize; 2],
    /// How their rows are divided.
    parts: [Parts; 2],
    /// Elements of the left tile, behind which the right one begins.
    left: usize,
}

/// The sums of a thread: `tile.thread_rows` times `tile.thread_columns`, row by row. Batch axes are bound.
pub(super) fn sums(l: &mut Loops<'_>, product: &Product, tile: &Tile, at: &Position, range: Option<Range>) -> Vec<Reg> {
    let dtype = product.dtype;
    let zero = l.b.constant(Scalar::zero(dtype));
    let zeros = vec![zero; tile.thread_rows * tile.thread_columns];
    let Some(range) = range else { return zeros };
    let shares = [Side::Left, Side::Right].map(|s| Share::new(product, s, tile));
    let stage_size = shares[0].elements() + shares[1].elements();
    let shared = l.b.buffer(dtype, 2 * stage_size);
    let pitch = [shares[0].pitch, shares[1].pitch];
    let parts = [shares[0].parts, shares[1].parts];
    let stage = Stage { shared, dtype, pitch, parts, left: shares[0].elements() };
    let [left, right] = shares;
    let left = Fetch::new(l, product, (Side::Left, tile, left), (at.thread, at.row, 0));
    let right = Fetch::new(l, product, (Side::Right, tile, right), (at.thread, at.column, stage.left));
    // A part of a ragged inner axis may be less than a tile.
    let first = (!product.inner.is_multiple_of(tile.depth)).then_some(range.end);
    let none = l.b.index(0);
    let chunks = [left.load(l, range.begin, first), right.load(l, range.begin, first)];
    left.store(l, shared, none, &chunks[0]);
    right.store(l, shared, none, &chunks[1]);
    l.b.push(Stmt::Barrier);
    let carried: Vec<Reg> = zeros.into_iter().chain([none]).collect();
    let steps = l.b.open_loop(range.begin, range.end, tile.depth as i64, &carried);
    let mut sums: Vec<Reg> = steps.args().collect();
    let now = sums.pop().expect("the stage is carried");
    let size = l.b.index(stage_size as i64);
    let other = l.b.binary(Binary::Sub, size, now);
    let next = plus(&mut l.b, steps.var(), tile.depth as i64);
    let chunks = [left.load(l, next, Some(range.end)), right.load(l, next, Some(range.end))];
    let own = [(parts[0], at.own_row), (parts[1], at.own_column)].map(|(parts, own)| {
        let own = parts.of_groups(&mut l.b, own);
        l.b.binary(Binary::Add, own, now)
    });
    for k in 0..tile.depth {
        stage.multiply(l, tile, own, k, &mut sums);
    }
    left.store(l, shared, other, &chunks[0]);
    right.store(l, shared, other, &chunks[1]);
    l.b.push(Stmt::Barrier);
    sums.push(other);
    let mut sums = l.b.close_loop(steps, &sums);
    sums.pop();
    sums
}

impl Stage {
    /// Adds the products of one inner position.
    fn multiply(&self, l: &mut Loops<'_>, tile: &Tile, [row, column]: [Reg; 2], k: usize, sums: &mut [Reg]) {
        let a = self.read(l, (row, self.parts[0]), k * self.pitch[0], (tile.thread_rows, tile.row_step()));
        let b = self.read(
            l,
            (column, self.parts[1]),
            self.left + k * self.pitch[1],
            (tile.thread_columns, tile.column_step()),
        );
        for (a, sums) in a.iter().zip(sums.chunks_mut(b.len())) {
            for (b, sum) in b.iter().zip(sums) {
                *sum = l.b.fma(*a, *b, *sum);
            }
        }
    }

    /// A thread's `count` elements of a row of a tile, in groups `step` apart.
    fn read(
        &self,
        l: &mut Loops<'_>,
        (index, parts): (Reg, Parts),
        offset: usize,
        (count, step): (usize, usize),
    ) -> Vec<Reg> {
        let lanes = parts.lanes().min(16 / self.dtype.size());
        let scalar = RegType::scalar(self.dtype);
        let mut elements = Vec::new();
        for group in 0..count / GROUP {
            for first in (0..GROUP).step_by(lanes) {
                let at = offset + parts.place(group * step + first);
                let v = l.b.load(self.shared, index, at as i64, lanes as u8);
                elements.extend((0..lanes as u8).map(|i| l.b.inst(scalar, Inst::Extract(v, i))));
            }
        }
        elements
    }
}
