//! Decoded instructions. Operands are slots of the register file; immediates and special registers are slots too, filled
//! before the first instruction, so the interpreter never asks what kind of operand it has.

use crate::scalar::{BoolOp, Compare, Scalar};
use crate::types::Ty;

/// Which of the three register files a slot lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Pred,
    W32,
    W64,
}

/// A slot. Values of 8 and 16 bits live zero-extended in 32-bit slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reg {
    pub(crate) class: Class,
    pub(crate) slot: u32,
}

/// An instruction with its guard.
#[derive(Debug, Clone)]
pub(crate) struct Inst {
    pub(crate) line: u32,
    pub(crate) guard: Option<(u32, bool)>,
    pub(crate) op: Op,
}

/// State spaces that memory instructions name (PTX ISA 5.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Generic,
    Global,
    Shared,
    Local,
    Const,
    Param,
}

/// How a memory instruction orders others (PTX ISA 8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// No ordering, no other thread expected
    Weak,
    /// `.relaxed`, `.volatile`: other threads may access at the same time
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

/// Who an ordered access synchronises with (PTX ISA 8.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    Cta,
    Gpu,
    Sys,
}

/// `[base + offset]`; without a base the offset is the address.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: Option<Reg>,
    pub(crate) offset: i64,
}

/// `ld` and `st`.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) ty: Ty,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    /// `.nc`
    pub(crate) read_only: bool,
    pub(crate) address: Address,
    /// One register an element; `None` discards a loaded element.
    pub(crate) regs: Vec<Option<Reg>>,
    /// The slots of the registers if all elements are words in 32-bit registers, else nothing.
    pub(crate) words: Vec<u32>,
    /// Bits a loaded signed value is extended to.
    pub(crate) extend: u32,
}

/// Read-modify-write functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtomOp {
    Exch,
    Cas,
    /// `old >= b ? 0 : old + 1`
    Inc,
    /// `old == 0 || old > b ? b : old - 1`
    Dec,
    Lane(Scalar),
}

/// `atom` and `red`.
#[derive(Debug, Clone)]
pub(crate) struct Atom {
    pub(crate) space: Space,
    pub(crate) ty: Ty,
    pub(crate) op: AtomOp,
    pub(crate) order: Order,
    pub(crate) scope: Scope,
    pub(crate) address: Address,
    pub(crate) result: Option<Reg>,
    pub(crate) b: Reg,
    pub(crate) c: Option<Reg>,
}

/// Shifts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shift {
    Left,
    Right,
    RightSigned,
}

/// `shfl.sync` modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

/// `vote.sync` modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uni,
    Ballot,
}

/// What a barrier does besides waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Sync,
    Arrive,
    /// `barrier.red`: the predicate (negated or not) is combined over the block.
    Reduce {
        how: Vote,
        count: bool,
        d: Reg,
        p: u32,
        negated: bool,
    },
}

/// A multiply of fragments, `m16n8kK`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fragment {
    /// k = 16 or 8, 16-bit elements, two a register
    Half { brain: bool },
    /// k = 8 or 4, 32-bit elements
    Tf32,
}

/// One instruction without its guard.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    /// A frequent 32-bit operation, vectorised; the same function as its scalar form.
    Fast32 {
        f: crate::fast::Fast32,
        d: u32,
        src: [u32; 3],
    },
    /// The same for 64 bits.
    Fast64 {
        f: crate::fast::Fast64,
        d: u32,
        src: [u32; 3],
    },
    /// `mul.wide` and `mad.wide` from 32 to 64 bits.
    Wide {
        signed: bool,
        d: u32,
        a: u32,
        b: u32,
        c: u32,
    },
    /// `cvt` from a 32-bit to a 64-bit integer.
    Extend {
        signed: bool,
        d: u32,
        a: u32,
    },
    /// `cvt` from a 64-bit to a 32-bit integer.
    Truncate {
        d: u32,
        a: u32,
    },
    /// 64-bit shifts: the count is 32 bits wide.
    Shift64 {
        f: Shift,
        d: u32,
        a: u32,
        by: u32,
    },
    Scalar {
        f: Scalar,
        d: Reg,
        src: [Reg; 3],
    },
    Mov {
        d: Reg,
        s: Reg,
    },
    Pack {
        d: Reg,
        parts: Vec<Reg>,
        bits: u32,
    },
    Unpack {
        parts: Vec<Option<Reg>>,
        s: Reg,
        bits: u32,
    },
    Setp {
        f: Compare,
        ty: Ty,
        a: Reg,
        b: Reg,
        p: Option<u32>,
        q: Option<u32>,
        with: Option<(BoolOp, u32, bool)>,
    },
    /// `set`: the predicate as all ones (or 1.0) in a register.
    Set {
        f: Compare,
        ty: Ty,
        float: bool,
        a: Reg,
        b: Reg,
        d: Reg,
    },
    Select {
        d: Reg,
        a: Reg,
        b: Reg,
        p: u32,
    },
    Predicate {
        f: BoolOp,
        d: u32,
        a: u32,
        b: u32,
        negate: [bool; 2],
    },
    Branch {
        target: u32,
    },
    Exit,
    Trap,
    Load(Box<Access>),
    Store(Box<Access>),
    Atom(Box<Atom>),
    Shfl {
        mode: Shuffle,
        d: Reg,
        p: Option<u32>,
        a: Reg,
        b: Reg,
        c: Reg,
        mask: Reg,
    },
    Vote {
        mode: Vote,
        d: Reg,
        p: u32,
        negated: bool,
        mask: Reg,
    },
    Redux {
        f: Scalar,
        d: Reg,
        a: Reg,
        mask: Reg,
    },
    Match {
        all: bool,
        d: Reg,
        p: Option<u32>,
        a: Reg,
        mask: Reg,
    },
    ActiveMask {
        d: Reg,
    },
    /// `elect.sync`: the lowest lane of the mask.
    Elect {
        d: Option<Reg>,
        p: u32,
        mask: Reg,
    },
    Barrier {
        kind: BarrierKind,
        aligned: bool,
        id: Reg,
        threads: Option<Reg>,
    },
    WarpSync {
        mask: Reg,
    },
    /// `fence` and `membar` order nothing that this emulator reorders, but they make flags of plain accesses.
    Fence {
        scope: Scope,
    },
    Clock {
        d: Reg,
    },
    CopyAsync {
        shared: Address,
        global: Address,
        bytes: u32,
        source: Option<Reg>,
    },
    CopyCommit,
    /// Waits until at most `pending` groups are in flight; `None` waits for everything, grouped or not.
    CopyWait {
        pending: Option<u32>,
    },
    LoadMatrix {
        d: Vec<Reg>,
        address: Address,
        transposed: bool,
    },
    Mma {
        f: Fragment,
        k: u32,
        half_accumulators: bool,
        d: Vec<Reg>,
        a: Vec<Reg>,
        b: Vec<Reg>,
        c: Vec<Reg>,
    },
}
