//! How sums lie in shared memory on their way from accumulators to rows.

use super::layout::{LANES, Tile, halved, low_bits, times};
use super::problem::Problem;
use crate::schedule::loops::Loops;
use intwain_ir::kernel::Reg;
use intwain_ir::scalar::Binary;

/// Lanes that have the sums of a row in a product's accumulators.
pub(super) const QUAD: usize = 4;

/// How a thread gets neighbouring columns out of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gather {
    /// It loads the vectors of all four lanes: of every column tile in them it then has a row's columns.
    Vectors,
    /// `ldmatrix` takes one word of each: the vectors of eight rows are an 8 × 8 matrix, so that the lanes that get a row
    /// have its column tiles, one each, in registers in order.
    Matrices,
}

/// How a warp's sums lie in shared memory: for every row, sets of four vectors, one from each lane that has sums of the
/// row. A vector has the words of several column tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Staging {
    /// Rows and columns of a warp.
    pub(super) warp: [usize; 2],
    /// Words of two neighbouring columns.
    pub(super) pair: usize,
    /// Columns that a thread takes from it at a time.
    pub(super) width: usize,
}

impl Staging {
    pub(super) fn new(problem: &Problem, tile: &Tile) -> Staging {
        Staging { warp: tile.warp(), pair: problem.words_of_pair(), width: problem.width() }
    }

    /// Words of a vector: so many that every lane has something to read.
    pub(super) fn vector(self) -> usize {
        let least_sets = (LANES * self.width / 8 / self.warp[0]).max(1);
        (self.warp[1] / 8 * self.pair / least_sets).min(4)
    }

    /// How vectors are read.
    pub(super) fn gather(self) -> Gather {
        if self.pair == 1 && self.vector() == 4 { Gather::Matrices } else { Gather::Vectors }
    }

    /// The column tile of which a vector of a set has its word `q`, or its words from `2 · q` on.
    pub(super) fn tile(self, set: usize, q: usize) -> usize {
        match self.gather() {
            Gather::Matrices => set * self.tiles() + q,
            Gather::Vectors => set + q * self.sets(),
        }
    }

    /// Sets of a row.
    pub(super) fn sets(self) -> usize {
        self.warp[1] / 8 * self.pair / self.vector()
    }

    /// Column tiles of a vector.
    pub(super) fn tiles(self) -> usize {
        self.vector() / self.pair
    }

    /// Words of a row.
    pub(super) fn pitch(self) -> usize {
        self.sets() * 4 * self.vector()
    }

    /// Words of a warp's part.
    pub(super) fn words(self) -> usize {
        self.warp[0] * self.pitch()
    }

    /// What the vectors of a set are turned by, so that neither writing nor reading meets a bank twice.
    #[cfg(test)]
    pub(super) fn turn(self, row: usize, set: usize) -> usize {
        match self.sets() {
            1 => (row >> 1) & 3,
            _ if self.gather() == Gather::Matrices => ((row >> 1) & 3) | ((row & 1) << 2),
            2 => (row & 3) ^ ((row & 1) << 2),
            _ => ((set >> 1) & 1) ^ ((row & 1) * 6),
        }
    }

    /// First word of the vector of lane `quarter` of four, of a set of a row.
    #[cfg(test)]
    pub(super) fn index(self, row: usize, set: usize, quarter: usize) -> usize {
        (row * self.sets() * 4 + ((set * 4 + quarter) ^ self.turn(row, set))) * self.vector()
    }

    /// First word of the vector of lane `quarter` of four, of a set of a row, in registers, from word `start` on.
    pub(super) fn emit_index(self, l: &mut Loops<'_>, start: Reg, row: Reg, set: usize, quarter: Reg) -> Reg {
        let which = l.b.index(set as i64);
        let turn = self.emit_turn(l, row, which);
        let before = l.b.index(set as i64 * 4);
        let at = l.b.binary(Binary::Add, before, quarter);
        let at = l.b.binary(Binary::Xor, at, turn);
        let at = times(&mut l.b, at, self.vector());
        let line = times(&mut l.b, row, self.pitch());
        let line = l.b.binary(Binary::Add, start, line);
        l.b.binary(Binary::Add, line, at)
    }

    /// What the vectors of a set are turned by, in registers.
    pub(super) fn emit_turn(self, l: &mut Loops<'_>, row: Reg, set: Reg) -> Reg {
        match self.sets() {
            1 => {
                let half = halved(&mut l.b, row, 1);
                low_bits(&mut l.b, half, 4)
            }
            _ if self.gather() == Gather::Matrices => {
                let (half, odd) = (halved(&mut l.b, row, 1), low_bits(&mut l.b, row, 2));
                let (low, high) = (low_bits(&mut l.b, half, 4), times(&mut l.b, odd, 4));
                l.b.binary(Binary::Add, low, high)
            }
            2 => {
                let (low, odd) = (low_bits(&mut l.b, row, 4), low_bits(&mut l.b, row, 2));
                let high = times(&mut l.b, odd, 4);
                l.b.binary(Binary::Xor, low, high)
            }
            _ => {
                let (half, odd) = (halved(&mut l.b, set, 1), low_bits(&mut l.b, row, 2));
                let (low, high) = (low_bits(&mut l.b, half, 2), times(&mut l.b, odd, 6));
                l.b.binary(Binary::Xor, low, high)
            }
        }
    }
}
