//! The kernel IR: structured programs at instruction level, from which PTX and machine code are emitted.
//!
//! A [`Kernel`] has parameters, private buffers and a body. The body is structured SSA: every register is defined once,
//! before its uses, in the block that contains them or in an enclosing one; loops carry values explicitly, conditionals
//! merge them explicitly. There are no labels, no phis and no mutable registers, so both emitters are one `match` per
//! construct.
//!
//! Registers hold one element or a short vector ([`RegType`]). Operations have the meaning of the scalar table
//! ([`crate::scalar`]), lane by lane. Addresses are counted in elements, as i64, from the start of a [`Place`].
//!
//! How often a kernel runs is its [`Entry`]. On a CPU it executes a range of independent *tasks* or one rectangle of a
//! matrix; on a GPU it is one thread of a grid. [`verify`] refuses what an entry can't have: thread ids, barriers and
//! shuffles on a CPU, task ranges on a GPU. Tiles, layouts, swizzles and pipelines are not in the IR: they are values
//! in the schedules that build kernels.

mod build;
mod interp;
mod print;
mod verify;

#[cfg(test)]
mod tests;

pub use build::{Builder, Loop, Suspended};
pub use interp::{Fault, Memory, run};
pub use verify::{Defect, verify};

use crate::DType;
use crate::scalar::Reduce;
use crate::scalar::{Binary, Compare, Scalar, Unary};
use cranelift_entity::{PrimaryMap, entity_impl};
use smallvec::SmallVec;

/// A register: the result of one instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(u32);
entity_impl!(Reg, "r");

/// What a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegType {
    /// Element type.
    pub dtype: DType,
    /// Number of elements: 1, or a vector of 2, 4 or (elements of 2 bytes, on a GPU) 8.
    pub lanes: u8,
}

impl RegType {
    /// One element.
    pub fn scalar(dtype: DType) -> RegType {
        RegType { dtype, lanes: 1 }
    }

    /// The type of addresses, counters and task numbers.
    pub const INDEX: RegType = RegType { dtype: DType::I64, lanes: 1 };
}

/// How a kernel is entered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Entry {
    /// CPU: `fn(params: *const *mut u8, begin: i64, end: i64, scratch: *mut u8)` executes the tasks `begin..end`, which
    /// don't depend on each other.
    Tasks,
    /// CPU: `fn(params: *const *mut u8, batch: i64, row_begin: i64, row_end: i64, column_begin: i64, column_end: i64)`
    /// works on one rectangle of a matrix; rectangles don't depend on each other. It has no scratch.
    Tile,
    /// GPU: one thread of a grid.
    Grid {
        /// Thread blocks along x, y, z.
        blocks: [u32; 3],
        /// Threads of a block along x, y, z.
        threads: [u32; 3],
    },
}

/// What may happen to a parameter's memory while the kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Read only, and nobody writes it meanwhile: loads may move freely.
    Constant,
    /// Read only by this name, though a store through another parameter may change it.
    Read,
    /// Written, not read.
    Write,
    /// Read and written.
    Update,
}

/// A pointer parameter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Param {
    /// Element type.
    pub dtype: DType,
    /// Number of elements; every access is below it.
    pub elements: usize,
    /// What is done with it.
    pub access: Access,
    /// Guaranteed alignment in bytes.
    pub align: u32,
}

/// Private memory: per task range on a CPU, per thread block on a GPU (shared memory). Its content is undefined at
/// first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// Element type.
    pub dtype: DType,
    /// Number of elements.
    pub elements: usize,
}

/// Memory that instructions address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// A parameter.
    Param(u32),
    /// A private buffer.
    Buffer(u32),
}

/// Numbers that an entry gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    /// First task ([`Entry::Tasks`]).
    TaskBegin,
    /// End of the tasks, exclusive ([`Entry::Tasks`]).
    TaskEnd,
    /// The matrix ([`Entry::Tile`]).
    Batch,
    /// First row ([`Entry::Tile`]).
    RowBegin,
    /// End of the rows, exclusive ([`Entry::Tile`]).
    RowEnd,
    /// First column ([`Entry::Tile`]).
    ColumnBegin,
    /// End of the columns, exclusive ([`Entry::Tile`]).
    ColumnEnd,
    /// Position of the thread block along x, y or z ([`Entry::Grid`]).
    Block(u8),
    /// Position of the thread in its block along x, y or z ([`Entry::Grid`]).
    Thread(u8),
}

/// How a shuffle chooses the lane that it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Lane xor n.
    Butterfly(u8),
    /// Lane + n; its own value beyond the warp.
    Down(u8),
    /// Lane n for all.
    From(u8),
}

/// An instruction that gives a value.
#[derive(Clone, Debug, PartialEq)]
pub enum Inst {
    /// A constant, the same in every lane.
    Const(Scalar),
    /// A number that the entry gives; i64.
    Id(Id),
    /// A function of one value.
    Unary(Unary, Reg),
    /// A function of two values.
    Binary(Binary, Reg, Reg),
    /// x·y + z, rounded once.
    Fma(Reg, Reg, Reg),
    /// A comparison; bool.
    Compare(Compare, Reg, Reg),
    /// The second where the first (bool) holds, else the third.
    Select(Reg, Reg, Reg),
    /// Conversion to the result's element type.
    Cast(Reg),
    /// One element in every lane.
    Splat(Reg),
    /// One lane of a vector.
    Extract(Reg, u8),
    /// A vector from its lanes.
    Pack(SmallVec<[Reg; 4]>),
    /// As many neighbouring elements as the result has lanes, from `index + offset` on.
    Load {
        /// Memory.
        from: Place,
        /// First element, i64.
        index: Reg,
        /// Added to the index.
        offset: i64,
    },
    /// The value of another lane of the warp. GPU.
    Shuffle(Shuffle, Reg),
    /// The bits of a value of as many bytes, first lane lowest. GPU.
    Bits(Reg),
    /// An f32 rounded to the nearest tf32 (10 bits of mantissa), ties away from zero, as an f32. GPU.
    Tf32(Reg),
}

impl Inst {
    /// The registers read.
    pub fn uses(&self) -> SmallVec<[Reg; 4]> {
        match self {
            Inst::Const(_) | Inst::Id(_) => SmallVec::new(),
            Inst::Unary(_, x)
            | Inst::Cast(x)
            | Inst::Splat(x)
            | Inst::Extract(x, _)
            | Inst::Shuffle(_, x)
            | Inst::Bits(x)
            | Inst::Tf32(x)
            | Inst::Load { index: x, .. } => SmallVec::from_slice(&[*x]),
            Inst::Binary(_, x, y) | Inst::Compare(_, x, y) => SmallVec::from_slice(&[*x, *y]),
            Inst::Fma(x, y, z) | Inst::Select(x, y, z) => SmallVec::from_slice(&[*x, *y, *z]),
            Inst::Pack(xs) => xs.clone(),
        }
    }
}

/// A value that a loop hands from trip to trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Carried {
    /// Before the first trip.
    pub init: Reg,
    /// Inside, at the start of a trip.
    pub arg: Reg,
    /// At the end of a trip.
    pub next: Reg,
    /// After the loop.
    pub result: Reg,
}

/// A value that a conditional gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Merge {
    /// Where the condition holds.
    pub then: Reg,
    /// Elsewhere.
    pub otherwise: Reg,
    /// After the conditional.
    pub result: Reg,
}

/// A counted loop: `var` runs over `begin, begin + step, …` below `end`.
#[derive(Clone, Debug, PartialEq)]
pub struct For {
    /// The counter, i64.
    pub var: Reg,
    /// First value.
    pub begin: Reg,
    /// Bound, exclusive.
    pub end: Reg,
    /// Distance between values, positive.
    pub step: i64,
    /// Values handed on.
    pub carried: Vec<Carried>,
    /// What is repeated.
    pub body: Block,
}

/// How the fragments of [`Stmt::LoadMatrix`] lie in the matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatrixForm {
    /// Thread i has elements 2·(i mod 4) and the next of row i / 4.
    Rows,
    /// Thread i has elements 2·(i mod 4) and the next of column i / 4 (`.trans`).
    Columns,
}

/// Shape of a warp-wide matrix product: D (m × n) = A (m × k) · B (k × n) + C.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MmaShape {
    /// Rows.
    pub m: u8,
    /// Columns.
    pub n: u8,
    /// Inner extent.
    pub k: u8,
    /// Element type of A and B.
    pub operand: DType,
    /// Element type of C and D.
    pub accumulator: DType,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Stmt {
    /// Defines a register.
    Let(Reg, Inst),
    /// Writes the lanes of `value` to neighbouring elements from `index + offset` on.
    Store {
        /// Memory.
        to: Place,
        /// First element, i64.
        index: Reg,
        /// Added to the index.
        offset: i64,
        /// What is written.
        value: Reg,
    },
    /// Runs one of two blocks.
    If {
        /// The condition, bool.
        cond: Reg,
        /// Where it holds.
        then: Block,
        /// Elsewhere.
        otherwise: Block,
        /// Values that the conditional gives.
        merges: Vec<Merge>,
    },
    /// Repeats a block.
    For(For),
    /// All threads of the block wait for each other, and see each other's writes. GPU.
    Barrier,
    /// Starts copying `bytes` (4, 8 or 16) from a parameter to a buffer, both addressed in elements. GPU.
    AsyncCopy {
        /// A buffer.
        to: Place,
        /// Element in the buffer.
        to_index: Reg,
        /// Added to it.
        to_offset: i64,
        /// A parameter.
        from: Place,
        /// Element in the parameter.
        from_index: Reg,
        /// Added to it.
        from_offset: i64,
        /// How much.
        bytes: u8,
        /// Condition for reading; the buffer gets zeros elsewhere.
        guard: Option<Reg>,
    },
    /// Closes a group of asynchronous copies. GPU.
    AsyncCommit,
    /// Waits until at most this many groups are under way. GPU.
    AsyncWait(u8),
    /// Loads one, two or four 8 × 8 matrices of 16-bit elements from shared memory, a fragment of each to a u32 register
    /// (`ldmatrix`, PTX ISA 9.7.14.5.15). Thread i names row i mod 8 of matrix i / 8: 16 bytes, aligned to 16. GPU.
    LoadMatrix {
        /// Fragments, u32, defined here.
        d: SmallVec<[Reg; 4]>,
        /// A buffer.
        from: Place,
        /// First element of the thread's row, i64.
        index: Reg,
        /// Added to the index.
        offset: i64,
        /// Which way round fragments are.
        form: MatrixForm,
    },
    /// Says to the other device that all writes of this thread, and all that it has seen, are done: a u32 store with
    /// release semantics in system scope. GPU.
    Signal {
        /// A parameter of u32.
        to: Place,
        /// Element, i64.
        index: Reg,
        /// What is written, u32.
        value: Reg,
    },
    /// Waits until an element, seen as a number that wraps, is `value` or has passed it: u32 loads with acquire
    /// semantics in system scope. GPU.
    Await {
        /// A parameter of u32.
        from: Place,
        /// Element, i64.
        index: Reg,
        /// What is waited for, u32.
        value: Reg,
    },
    /// Matrix product of a warp; registers hold the fragments in the order the instruction set defines: of A and B u32
    /// registers (two 16-bit elements each, or the bits of one tf32), of C and D elements of the accumulator. GPU.
    Mma {
        /// Extents and types.
        shape: MmaShape,
        /// Fragments of the result, defined here.
        d: SmallVec<[Reg; 4]>,
        /// Fragments of the left operand.
        a: SmallVec<[Reg; 4]>,
        /// Fragments of the right operand.
        b: SmallVec<[Reg; 4]>,
        /// Fragments added.
        c: SmallVec<[Reg; 4]>,
    },
}

/// Statements in order.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Block(pub Vec<Stmt>);

/// What limits a kernel, for the emitter's choice of effort.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// Memory, or few registers: values may be hoisted and shared freely.
    Memory,
    /// Arithmetic with all registers in use: instructions stay where the schedule put them.
    Arithmetic,
}

/// A program for one device. See the module's documentation.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Unique in its program; made of letters, digits and `_`.
    pub name: String,
    /// How it is entered.
    pub entry: Entry,
    /// What limits it.
    pub bound: Bound,
    /// Pointer parameters.
    pub params: Vec<Param>,
    /// Private buffers.
    pub buffers: Vec<Buffer>,
    /// Types of the registers.
    pub regs: PrimaryMap<Reg, RegType>,
    /// What it does.
    pub body: Block,
}

/// Alignment of each buffer of a kernel in its private memory.
pub const BUFFER_ALIGN: usize = 64;

impl Kernel {
    /// Byte offset of each private buffer, and the total.
    pub fn buffer_offsets(&self) -> (Vec<usize>, usize) {
        let mut at = 0usize;
        let offsets = self
            .buffers
            .iter()
            .map(|b| {
                let here = at;
                at = (at + b.elements * b.dtype.size()).next_multiple_of(BUFFER_ALIGN);
                here
            })
            .collect();
        (offsets, at)
    }

    /// Element type and number of elements of a place.
    pub fn place(&self, place: Place) -> Option<(DType, usize)> {
        match place {
            Place::Param(i) => self.params.get(i as usize).map(|p| (p.dtype, p.elements)),
            Place::Buffer(i) => self.buffers.get(i as usize).map(|b| (b.dtype, b.elements)),
        }
    }
}

/// The instruction that combines an accumulator with an element.
pub fn combine(op: Reduce, acc: Reg, x: Reg) -> Inst {
    Inst::Binary(op.combine(), acc, x)
}
