//! Layouts as values: tiles, swizzled shared memory, fragments of matrix products, the ring of stages.
//!
//! Each value says where something lies, in numbers for tests and choices and in registers for the generator; both come
//! from the same fields.

use intwain_ir::DType;
use intwain_ir::kernel::{Builder, MmaShape, Reg};
use intwain_ir::scalar::Binary;

/// Bytes of a chunk: what one asynchronous copy moves at most, and one row of an 8 × 8 matrix of 16-bit elements.
pub(super) const CHUNK: usize = 16;
/// Words of a chunk.
pub(super) const CHUNK_WORDS: usize = CHUNK / 4;
/// Bytes that shared memory serves at a time: 32 banks of 4.
const LINE: usize = 128;
/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// How a contraction is cut: what a block computes, in steps of how much of the inner extent, and how its warps share
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows of a block.
    pub rows: usize,
    /// Columns of a block.
    pub columns: usize,
    /// Inner extent of a step.
    pub inner: usize,
    /// Warps along rows and columns.
    pub warps: [usize; 2],
    /// Steps whose operands are in shared memory at a time, at least 2.
    pub stages: usize,
}

impl Tile {
    /// Threads of a block.
    pub(super) fn threads(&self) -> usize {
        self.warps[0] * self.warps[1] * LANES
    }

    /// Rows and columns of a warp.
    pub(super) fn warp(&self) -> [usize; 2] {
        [self.rows / self.warps[0], self.columns / self.warps[1]]
    }
}

/// What a matrix product multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// 16-bit floats of this type, m16n8k16.
    Half(DType),
    /// f32 rounded to tf32, m16n8k8.
    Tf32,
}

impl Unit {
    /// The warp's product.
    pub(super) fn shape(self) -> MmaShape {
        let (k, operand) = match self {
            Unit::Half(dtype) => (16, dtype),
            Unit::Tf32 => (8, DType::F32),
        };
        MmaShape { m: 16, n: 8, k, operand, accumulator: DType::F32 }
    }

    /// Inner extent of one product.
    pub(super) fn inner(self) -> usize {
        self.shape().k as usize
    }

    /// Neighbouring inner positions in one register of a fragment.
    pub(super) fn packed(self) -> usize {
        match self {
            Unit::Half(_) => 2,
            Unit::Tf32 => 1,
        }
    }
}

/// A factor of a product, by what its outer positions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Rows of the result.
    Left,
    /// Columns of the result.
    Right,
}

/// Where the fragments of a block of 16 outer × `inner` positions lie: four registers, quarters of the block. For the
/// left factor these are the fragment A of one product, for the right one the fragments B of two (PTX ISA 9.7.14.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fragment {
    pub(super) unit: Unit,
    pub(super) role: Role,
}

impl Fragment {
    /// Which half of the outer and which of the inner positions register `r` has.
    pub(super) fn halves(self, r: usize) -> (usize, usize) {
        match self.role {
            Role::Left => (r & 1, r >> 1),
            Role::Right => (r >> 1, r & 1),
        }
    }

    /// Outer and first inner position of register `r` of a lane.
    #[cfg(test)]
    pub(super) fn place(self, lane: usize, r: usize) -> (usize, usize) {
        let (outer, inner) = self.halves(r);
        (8 * outer + lane / 4, self.unit.inner() / 2 * inner + self.unit.packed() * (lane % 4))
    }
}

/// Row and column of accumulator `r` of a lane in a product of 16 × 8.
#[cfg(test)]
pub(super) fn accumulator(lane: usize, r: usize) -> (usize, usize) {
    (lane / 4 + 8 * (r / 2), 2 * (lane % 4) + r % 2)
}

/// How lanes read fragments from shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// `ldmatrix`: a row of 8 chunks names an 8 × 8 matrix.
    Matrix,
    /// One word a register, from rows `lane mod 4` and columns `lane / 4`.
    Words,
    /// Two words a register, neighbours in a row, from rows `lane / 4`.
    Pairs,
    /// Two words a register, from rows 2·(`lane mod 4`) and the next, columns `lane / 4`.
    Columns,
}

/// Chunks of a row are permuted: chunk c of row r stands at c xor ((r ≫ shift) & mask) ≪ scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Swizzle {
    pub(super) shift: u32,
    pub(super) mask: usize,
    pub(super) scale: u32,
}

impl Swizzle {
    /// The permutation under which rows of so many bytes are read without bank conflicts.
    pub(super) fn of(reading: Reading, pitch: usize) -> Swizzle {
        let chunks = pitch / CHUNK;
        let sharing = (LINE / pitch).max(1).trailing_zeros();
        match reading {
            Reading::Matrix => Swizzle { shift: sharing, mask: chunks.min(8) - 1, scale: 0 },
            Reading::Words | Reading::Pairs => Swizzle { shift: sharing, mask: (chunks / 2).clamp(1, 4) - 1, scale: 1 },
            Reading::Columns => Swizzle { shift: sharing.max(1), mask: (chunks / 2).clamp(1, 4) - 1, scale: 1 },
        }
    }

    /// What the chunk numbers of a row are combined with.
    #[cfg(test)]
    pub(super) fn term(self, row: usize) -> usize {
        ((row >> self.shift) & self.mask) << self.scale
    }

    /// Rows after which terms repeat.
    pub(super) fn period(self) -> usize {
        (self.mask + 1) << self.shift
    }

    /// The term times words of a chunk, for a row in a register.
    fn emit(self, b: &mut Builder, row: Reg) -> Reg {
        // (r ≫ shift & mask) ≪ (scale + 2), as few instructions as the direction of the shift allows.
        let to = self.scale + CHUNK_WORDS.trailing_zeros();
        let mask = b.index((self.mask << self.shift) as i64);
        let bits = b.binary(Binary::And, row, mask);
        if to >= self.shift { times(b, bits, 1 << (to - self.shift)) } else { halved(b, bits, self.shift - to) }
    }
}

/// x · n.
pub(super) fn times(b: &mut Builder, x: Reg, n: usize) -> Reg {
    let n = b.index(n as i64);
    b.binary(Binary::Mul, x, n)
}

/// x ≫ n for x ≥ 0.
pub(super) fn halved(b: &mut Builder, x: Reg, n: u32) -> Reg {
    if n == 0 {
        return x;
    }
    let n = b.index(i64::from(n));
    b.binary(Binary::Shr, x, n)
}

/// x mod n for x ≥ 0 and a power of two n.
pub(super) fn low_bits(b: &mut Builder, x: Reg, n: usize) -> Reg {
    if n == 1 {
        return b.index(0);
    }
    let mask = b.index(n as i64 - 1);
    b.binary(Binary::And, x, mask)
}

/// A matrix in shared memory: rows of words, a power of two of them, chunks swizzled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plane {
    pub(super) rows: usize,
    /// Words of a row.
    pub(super) pitch: usize,
    pub(super) swizzle: Swizzle,
}

impl Plane {
    pub(super) fn words(self) -> usize {
        self.rows * self.pitch
    }

    /// Where a word of a row stands.
    #[cfg(test)]
    pub(super) fn index(self, row: usize, word: usize) -> usize {
        row * self.pitch + (word ^ (self.swizzle.term(row) * CHUNK_WORDS))
    }

    /// Where a word of a row stands, in registers.
    pub(super) fn emit(self, b: &mut Builder, row: Reg, word: Reg) -> Reg {
        let term = self.swizzle.emit(b, row);
        let word = b.binary(Binary::Xor, word, term);
        let start = times(b, row, self.pitch);
        b.binary(Binary::Add, start, word)
    }

    /// How the place of a word changes when `rows` and `words` are added, where no bits carry: what the index is xor-ed
    /// with, and what is added to that.
    pub(super) fn moved(self, rows: usize, words: usize) -> (usize, usize) {
        debug_assert!(rows.is_multiple_of(self.swizzle.period()), "rows of other terms");
        let swizzled = (self.swizzle.mask << self.swizzle.scale) * CHUNK_WORDS;
        (words & swizzled, rows * self.pitch + (words & !swizzled))
    }
}

/// Stages in a ring of shared memory: stage s of step t is t mod stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ring {
    pub(super) stages: usize,
    /// Words of a stage.
    pub(super) words: usize,
}

impl Ring {
    /// First word of the stage of a step.
    pub(super) fn stage(self, step: usize) -> usize {
        step % self.stages * self.words
    }

    /// Steps whose copies are under way when a step is computed.
    pub(super) fn ahead(self) -> usize {
        self.stages - 1
    }

    /// Groups of copies that may be under way when the operands of a step must have arrived.
    pub(super) fn in_flight(self) -> u8 {
        self.stages as u8 - 2
    }
}
