//! Which numbers an index can be: intervals that hold for every thread.
//!
//! Ids are bounded by the entry, constants are themselves, the rest follows by interval arithmetic; what may leave 64
//! bits may be anything. An index that fits in 32 bits lives in a 32-bit register.

use intwain_ir::DType;
use intwain_ir::kernel::{Block, Carried, Entry, For, Id, Inst, Kernel, Reg, RegType, Stmt};
use intwain_ir::scalar::{Binary, Unary};
use std::collections::HashMap;

/// Numbers from `lo` to `hi`, both possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) lo: i64,
    pub(super) hi: i64,
}

impl Interval {
    pub(super) const FULL: Interval = Interval { lo: i64::MIN, hi: i64::MAX };
    const NARROW: Interval = Interval { lo: i32::MIN as i64, hi: i32::MAX as i64 };

    fn point(x: i64) -> Interval {
        Interval { lo: x, hi: x }
    }

    /// The interval of exact results; everything if they leave 64 bits, where they wrap.
    fn exact(lo: i128, hi: i128) -> Interval {
        match (i64::try_from(lo), i64::try_from(hi)) {
            (Ok(lo), Ok(hi)) => Interval { lo, hi },
            _ => Interval::FULL,
        }
    }

    /// The hull of the results of a function that is monotonic in each operand.
    fn corners(x: Interval, y: Interval, f: impl Fn(i128, i128) -> i128) -> Interval {
        let all = [(x.lo, y.lo), (x.lo, y.hi), (x.hi, y.lo), (x.hi, y.hi)].map(|(a, b)| f(a.into(), b.into()));
        Interval::exact(all.into_iter().fold(i128::MAX, i128::min), all.into_iter().fold(i128::MIN, i128::max))
    }

    fn within(self, other: Interval) -> bool {
        other.lo <= self.lo && self.hi <= other.hi
    }

    fn join(self, other: Interval) -> Interval {
        Interval { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// Whether a 32-bit register holds it.
    pub(super) fn narrow(self) -> bool {
        self.within(Interval::NARROW)
    }

    /// The largest magnitude.
    fn magnitude(self) -> i128 {
        i128::from(self.lo).abs().max(i128::from(self.hi).abs())
    }

    fn around(m: i128) -> Interval {
        Interval::exact(-m, m)
    }
}

fn binary(op: Binary, x: Interval, y: Interval) -> Interval {
    let natural = x.lo >= 0 && y.lo >= 0;
    match op {
        Binary::Add => Interval::corners(x, y, |a, b| a + b),
        Binary::Sub => Interval::corners(x, y, |a, b| a - b),
        Binary::Mul => Interval::corners(x, y, |a, b| a * b),
        Binary::Max => Interval::corners(x, y, i128::max),
        Binary::Min => Interval::corners(x, y, i128::min),
        Binary::FloorDiv if y.lo > 0 => Interval::corners(x, y, i128::div_euclid),
        Binary::Div if y.lo > 0 => Interval::corners(x, y, |a, b| a / b),
        Binary::FloorDiv | Binary::Div => Interval::around(x.magnitude()),
        Binary::Mod if x.lo >= 0 && x.hi < y.lo => x,
        Binary::Mod if y.lo > 0 => Interval { lo: 0, hi: if x.lo >= 0 { x.hi.min(y.hi - 1) } else { y.hi - 1 } },
        Binary::Mod => Interval::around(y.magnitude()),
        Binary::And if natural => Interval { lo: 0, hi: x.hi.min(y.hi) },
        Binary::And if y.lo >= 0 => Interval { lo: 0, hi: y.hi },
        Binary::And if x.lo >= 0 => Interval { lo: 0, hi: x.hi },
        Binary::Or | Binary::Xor if natural => {
            let bits = 64 - (x.hi | y.hi).leading_zeros();
            Interval { lo: 0, hi: if bits >= 63 { i64::MAX } else { (1 << bits) - 1 } }
        }
        Binary::And | Binary::Or | Binary::Xor if x.narrow() && y.narrow() => Interval::NARROW,
        Binary::Shl if natural && y.hi < 63 => Interval::corners(x, y, |a, b| a << b),
        Binary::Shr => Interval { lo: x.lo.min(0), hi: x.hi.max(0) },
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Pow | Binary::Atan2 => Interval::FULL,
    }
}

/// The values that an integer type can have.
pub(super) fn of_type(dtype: DType) -> Interval {
    match dtype {
        DType::Bool => Interval { lo: 0, hi: 1 },
        DType::I8 => Interval { lo: -128, hi: 127 },
        DType::U8 => Interval { lo: 0, hi: 255 },
        DType::I16 => Interval { lo: -32768, hi: 32767 },
        DType::I32 => Interval::NARROW,
        DType::U32 => Interval { lo: 0, hi: u32::MAX.into() },
        DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => Interval::FULL,
    }
}

/// The intervals of a kernel's indices.
#[derive(Debug)]
pub(super) struct Ranges<'k> {
    kernel: &'k Kernel,
    of: HashMap<Reg, Interval>,
}

impl<'k> Ranges<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Ranges<'k> {
        let mut r = Ranges { kernel, of: HashMap::new() };
        r.block(&kernel.body);
        r
    }

    /// Where the register's value lies, if it is an index.
    pub(super) fn get(&self, r: Reg) -> Interval {
        self.of.get(&r).copied().unwrap_or(Interval::FULL)
    }

    /// Whether the register is an index that fits in 32 bits.
    pub(super) fn narrow(&self, r: Reg) -> bool {
        self.kernel.regs[r] == RegType::INDEX && self.get(r).narrow()
    }

    /// Whether a loop can count in 32 bits, the value that ends it included.
    pub(super) fn narrow_loop(&self, l: &For) -> bool {
        let last = i128::from(self.get(l.end).hi) - 1 + i128::from(l.step);
        self.narrow(l.begin) && self.narrow(l.end) && last <= i32::MAX.into()
    }

    fn set(&mut self, r: Reg, i: Interval) {
        if self.kernel.regs[r] == RegType::INDEX {
            self.of.insert(r, i);
        }
    }

    fn block(&mut self, block: &Block) {
        for s in &block.0 {
            match s {
                Stmt::Let(r, inst) => {
                    if self.kernel.regs[*r] == RegType::INDEX {
                        let i = self.inst(inst);
                        self.set(*r, i);
                    }
                }
                Stmt::If { cond: _, then, otherwise, merges } => {
                    self.block(then);
                    self.block(otherwise);
                    for m in merges {
                        let i = self.get(m.then).join(self.get(m.otherwise));
                        self.set(m.result, i);
                    }
                }
                Stmt::For(l) => self.looped(l),
                Stmt::Store { .. }
                | Stmt::Barrier
                | Stmt::AsyncCopy { .. }
                | Stmt::AsyncCommit
                | Stmt::AsyncWait(_)
                | Stmt::LoadMatrix { .. }
                | Stmt::Signal { .. }
                | Stmt::Await { .. }
                | Stmt::Mma { .. } => {}
            }
        }
    }

    fn looped(&mut self, l: &For) {
        let (begin, end) = (self.get(l.begin), self.get(l.end));
        self.set(l.var, Interval { lo: begin.lo, hi: end.hi.saturating_sub(1).max(begin.lo) });
        let carried: Vec<&Carried> = l.carried.iter().filter(|c| self.kernel.regs[c.arg] == RegType::INDEX).collect();
        let inits: Vec<Interval> = carried.iter().map(|c| self.get(c.init)).collect();
        let mut args = inits.clone();
        // Guess that trips keep the interval, then that one more trip's does, then what a bounded sum gives, then all.
        for attempt in 0..4 {
            for (c, i) in carried.iter().zip(&args) {
                self.set(c.arg, *i);
            }
            self.block(&l.body);
            let nexts: Vec<Interval> = carried.iter().map(|c| self.get(c.next)).collect();
            let mut stable = true;
            for (n, c) in carried.iter().enumerate() {
                if !nexts[n].within(args[n]) {
                    stable = false;
                    args[n] = match attempt {
                        0 => args[n].join(nexts[n]),
                        1 => self.summed(l, c, inits[n]),
                        _ => Interval::FULL,
                    };
                }
            }
            if stable {
                break;
            }
            if attempt >= 2 {
                args.iter_mut().for_each(|a| *a = Interval::FULL);
            }
        }
        for (c, i) in carried.iter().zip(args) {
            self.set(c.result, i);
        }
    }

    /// The interval of a value to which each trip adds or subtracts something bounded.
    fn summed(&self, l: &For, c: &Carried, init: Interval) -> Interval {
        let step = l.body.0.iter().find_map(|s| match s {
            Stmt::Let(r, Inst::Binary(Binary::Add, x, y)) if *r == c.next && *x == c.arg => Some(self.get(*y)),
            Stmt::Let(r, Inst::Binary(Binary::Add, x, y)) if *r == c.next && *y == c.arg => Some(self.get(*x)),
            _ => None,
        });
        let Some(step) = step else { return Interval::FULL };
        let span = i128::from(self.get(l.end).hi) - i128::from(self.get(l.begin).lo);
        let trips = (span.max(0) + i128::from(l.step) - 1) / i128::from(l.step);
        let lo = i128::from(step.lo).min(0).checked_mul(trips);
        let hi = i128::from(step.hi).max(0).checked_mul(trips);
        match (lo, hi) {
            (Some(lo), Some(hi)) => Interval::exact(i128::from(init.lo) + lo, i128::from(init.hi) + hi),
            _ => Interval::FULL,
        }
    }

    fn id(&self, id: Id) -> Interval {
        let Entry::Grid { blocks, threads } = self.kernel.entry else { return Interval::FULL };
        let n = match id {
            Id::Block(axis) => blocks[axis as usize],
            Id::Thread(axis) => threads[axis as usize],
            Id::TaskBegin | Id::TaskEnd | Id::Batch | Id::RowBegin | Id::RowEnd | Id::ColumnBegin | Id::ColumnEnd => {
                return Interval::FULL;
            }
        };
        Interval { lo: 0, hi: i64::from(n.max(1)) - 1 }
    }

    fn inst(&self, inst: &Inst) -> Interval {
        match inst {
            Inst::Const(x) => Interval::point(x.to_i64()),
            Inst::Id(id) => self.id(*id),
            Inst::Unary(op, x) => {
                let i = self.get(*x);
                match op {
                    Unary::Neg => Interval::exact(-i128::from(i.hi), -i128::from(i.lo)),
                    Unary::Abs => Interval::exact(0, i.magnitude()),
                    Unary::Sign => Interval { lo: -1, hi: 1 },
                    Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => i,
                    Unary::Not => Interval { lo: !i.hi, hi: !i.lo },
                    _ => Interval::FULL,
                }
            }
            Inst::Binary(op, x, y) => binary(*op, self.get(*x), self.get(*y)),
            Inst::Fma(x, y, z) => {
                let product = binary(Binary::Mul, self.get(*x), self.get(*y));
                binary(Binary::Add, product, self.get(*z))
            }
            Inst::Select(_, x, y) => self.get(*x).join(self.get(*y)),
            Inst::Cast(x) => of_type(self.kernel.regs[*x].dtype),
            Inst::Shuffle(_, x) => self.get(*x),
            Inst::Compare(..)
            | Inst::Splat(_)
            | Inst::Extract(..)
            | Inst::Pack(_)
            | Inst::Load { .. }
            | Inst::Bits(_)
            | Inst::Tf32(_) => Interval::FULL,
        }
    }
}
