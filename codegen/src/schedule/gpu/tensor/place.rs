//! Which part of the result a block computes, and positions from numbers.

use super::layout::Tile;
use super::problem::Problem;
use crate::schedule::loops::Bound;
use crate::schedule::nest::Nest;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Builder, Reg};
use intwain_ir::scalar::Binary;

/// Row tiles whose blocks are neighbours, so that they find each other's operands in the second cache.
const GROUP: usize = 8;

/// Blocks of a launch, numbered so: rows within a group fastest, then columns, groups, batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    /// Tiles along rows and columns.
    pub(super) tiles: [usize; 2],
    batch: usize,
    /// Row tiles of a group; it divides their number.
    group: usize,
}

impl Grid {
    pub(super) fn new(problem: &Problem, tile: &Tile) -> Grid {
        let [m, n, _, batch] = problem.extents();
        let rows = m.div_ceil(tile.rows);
        let group = (1..=GROUP.min(rows)).rev().find(|g| rows.is_multiple_of(*g)).unwrap_or(1);
        Grid { tiles: [rows, n.div_ceil(tile.columns)], batch, group }
    }

    pub(super) fn blocks(&self) -> usize {
        self.tiles[0] * self.tiles[1] * self.batch
    }

    /// Numbers of the row tile, the column tile and the product, all i64.
    pub(super) fn emit(&self, b: &mut Builder, block: Reg) -> [Reg; 3] {
        let [rows, columns] = self.tiles;
        let counts = [self.batch, rows / self.group, columns, self.group];
        let [batch, group, column, row] = split(b, block, counts);
        let size = b.index(self.group as i64);
        let before = b.binary(Binary::Mul, group, size);
        [b.binary(Binary::Add, before, row), column, batch]
    }
}

/// Digits of a number, most significant first.
fn split<const N: usize>(b: &mut Builder, number: Reg, counts: [usize; N]) -> [Reg; N] {
    let zero = b.index(0);
    let mut digits = [zero; N];
    let mut rest = number;
    for i in (0..N).rev() {
        if counts[i] == 1 {
            continue;
        }
        if counts[..i].iter().all(|&n| n == 1) {
            digits[i] = rest;
            break;
        }
        (rest, digits[i]) = divided(b, rest, counts[i]);
    }
    digits
}

/// Quotient and remainder.
fn divided(b: &mut Builder, x: Reg, n: usize) -> (Reg, Reg) {
    let n = b.index(n as i64);
    (b.binary(Binary::FloorDiv, x, n), b.binary(Binary::Mod, x, n))
}

/// Positions of axes, outermost first, from `number + shift`, which numbers them in row-major order. Numbers past the
/// last stand for no position; what they give must not be used.
pub(super) fn positions_at(
    b: &mut Builder,
    nest: &Nest,
    axes: &[Axis],
    (number, shift): (Reg, i64),
) -> Vec<(Axis, Bound)> {
    let range = |axis: Axis| (0, nest.extent(axis) as i64 - 1);
    let shift = b.index(shift);
    let mut rest = b.binary(Binary::Add, number, shift);
    let mut bounds = Vec::new();
    for (i, &axis) in axes.iter().enumerate().rev() {
        let n = nest.extent(axis);
        let digit = if i == 0 {
            rest
        } else {
            let digit;
            (rest, digit) = divided(b, rest, n);
            digit
        };
        bounds.push((axis, Bound::one(digit, range(axis))));
    }
    bounds
}
