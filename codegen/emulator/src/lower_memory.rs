//! Lowers memory, control and synchronisation instructions (PTX ISA 9.7.9, 9.7.12 to 9.7.14).

use crate::error::ParseError;
use crate::lower::Lower;
use crate::op::{Access, Atom, AtomOp, Class, Fragment, Op, Order, Reg, Scope, Space};
use crate::opcode::Code;
use crate::scalar::{FloatOp, IntOp, Mods, Scalar};
use crate::syntax::Operand;
use crate::types::{Kind, Ty};

/// Where shared memory, local memory and constants begin in the generic address space.
pub(crate) const SHARED_WINDOW: u64 = 1 << 60;
pub(crate) const LOCAL_WINDOW: u64 = 2 << 60;
pub(crate) const CONST_WINDOW: u64 = 3 << 60;
pub(crate) const PARAM_WINDOW: u64 = 4 << 60;

fn space(name: &str) -> Option<Space> {
    match name {
        "global" => Some(Space::Global),
        "shared" | "shared::cta" => Some(Space::Shared),
        "local" => Some(Space::Local),
        "const" => Some(Space::Const),
        "param" | "param::entry" => Some(Space::Param),
        _ => None,
    }
}

pub(crate) fn order(name: &str) -> Option<Order> {
    match name {
        "weak" => Some(Order::Weak),
        "relaxed" | "volatile" => Some(Order::Relaxed),
        "acquire" => Some(Order::Acquire),
        "release" => Some(Order::Release),
        "acq_rel" => Some(Order::AcqRel),
        _ => None,
    }
}

pub(crate) fn scope(name: &str) -> Option<Scope> {
    match name {
        "cta" | "cluster" => Some(Scope::Cta),
        "gpu" => Some(Scope::Gpu),
        "sys" => Some(Scope::Sys),
        _ => None,
    }
}

/// Cache operators and eviction priorities change speed only (9.7.9.1, 9.7.9.2).
fn is_cache_hint(name: &str) -> bool {
    matches!(name, "ca" | "cg" | "cs" | "lu" | "cv" | "wb" | "wt")
        || ["L1::evict_", "L2::evict_", "L1::no_allocate"].iter().any(|p| name.starts_with(p))
        || matches!(name, "L2::64B" | "L2::128B" | "L2::256B")
}

pub(crate) fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Const => CONST_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Generic => 0,
    }
}

/// Which way an access moves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Load,
    Store,
}

impl Lower {
    /// Lowers a memory instruction; false if it is none.
    pub(crate) fn memory(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<bool, ParseError> {
        let name = c.name;
        match name {
            "ld" | "ldu" => self.access(c, o, Direction::Load)?,
            "st" => self.access(c, o, Direction::Store)?,
            "atom" | "red" => self.atom(c, o)?,
            "cvta" => {
                let to = c.take("to");
                let base = window(c.take_map(space).unwrap_or(Space::Global));
                let ty = c.ty()?;
                let [d, a] = c.operands(o)?;
                if ty.bits != 64 {
                    return Err(c.refuse("32-bit generic addresses", "9.7.9.19"));
                }
                let (a, d) = (self.source(a, ty)?, self.dest(d, ty)?);
                let base = self.immediate(if to { base.wrapping_neg() } else { base }, ty);
                let f = crate::fast::Fast64::Add;
                self.push(Op::Fast64 { f, d: d.slot, src: [a.slot, base.slot, 0] });
            }
            "prefetch" | "prefetchu" | "discard" | "applypriority" => while c.take_map(|_| Some(())).is_some() {},
            "cp" if c.take("async") => self.copy_async(c, o)?,
            "ldmatrix" => {
                if !(c.take("sync") & c.take("aligned") & c.take("m8n8")) {
                    return Err(c.refuse("only .sync.aligned.m8n8", "9.7.14.5.15"));
                }
                let count = c.take_map(|m| m.strip_prefix('x').and_then(|n| n.parse().ok()));
                let transposed = c.take("trans");
                c.take_map(space);
                if c.ty()? != Ty::new(Kind::Bits, 16) {
                    return Err(c.refuse("only .b16", "9.7.14.5.15"));
                }
                let [d, address] = c.operands(o)?;
                let d: Vec<Reg> = Self::elements(d).iter().map(|d| self.dest(d, Ty::B32)).collect::<Result<_, _>>()?;
                if count != Some(d.len()) || !matches!(d.len(), 1 | 2 | 4) {
                    return Err(c.refuse("the number of destinations", "9.7.14.5.15"));
                }
                let address = self.address(address, Space::Shared)?;
                self.push(Op::LoadMatrix { d, address, transposed });
            }
            "mma" => self.mma(c, o)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn access(&mut self, c: &mut Code<'_>, o: &[Operand], direction: Direction) -> Result<(), ParseError> {
        let read_only = c.take("nc") || c.name == "ldu";
        while c.take_map(|m| is_cache_hint(m).then_some(())).is_some() {}
        let hint = c.take("L2::cache_hint");
        let order = c.take_map(order).unwrap_or(Order::Weak);
        let scope = c.take_map(scope).unwrap_or(Scope::Sys);
        let space = c.take_map(space).unwrap_or(Space::Generic);
        let vector = c.take_map(|m| m.strip_prefix('v').and_then(|n| n.parse::<usize>().ok())).unwrap_or(1);
        let ty = c.ty()?;
        let o = if hint && o.len() == 3 { &o[..2] } else { o };
        let (value, address) = match (o, direction) {
            ([value, address], Direction::Load) | ([address, value], Direction::Store) => (value, address),
            _ => return Err(c.refuse("this number of operands", "9.7.9.8")),
        };
        let elements = Self::elements(value);
        if elements.len() != vector
            || !vector.is_power_of_two()
            || vector as u32 * ty.bytes() > 32
            || ty.kind == Kind::Pred
        {
            return Err(c.refuse("the number or size of elements", "9.7.9.8"));
        }
        let mut regs = Vec::new();
        let mut extend = ty.width();
        for e in elements {
            regs.push(if direction == Direction::Store {
                Some(self.wide_source(e, ty)?)
            } else if *e == Operand::Name("_".to_owned()) {
                None
            } else {
                let (reg, width) = self.wider(e, ty)?;
                extend = width;
                Some(reg)
            });
        }
        self.touches(space, ty);
        let narrow = |r: &Option<Reg>| r.filter(|r| r.class == Class::W32 && ty.bytes() == 4).map(|r| r.slot);
        let words = regs.iter().map(narrow).collect::<Option<_>>().unwrap_or_default();
        let address = self.address(address, space)?;
        let access = Box::new(Access { space, ty, order, scope, read_only, address, regs, words, extend });
        self.push(match direction {
            Direction::Load => Op::Load(access),
            Direction::Store => Op::Store(access),
        });
        Ok(())
    }

    fn touches(&mut self, space: Space, ty: Ty) {
        if matches!(space, Space::Shared | Space::Generic) {
            self.program.granule = self.program.granule.min(ty.bytes());
        }
    }

    fn atom(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        while c.take_map(|m| is_cache_hint(m).then_some(())).is_some() {}
        let order = c.take_map(order).unwrap_or(Order::Relaxed);
        let scope = c.take_map(scope).unwrap_or(Scope::Gpu);
        let space = c.take_map(space).unwrap_or(Space::Generic);
        let name = c.take_map(|m| {
            matches!(m, "add" | "min" | "max" | "and" | "or" | "xor" | "exch" | "cas" | "inc" | "dec")
                .then(|| m.to_owned())
        });
        let name = name.ok_or_else(|| c.refuse("this function", "9.7.13.5"))?;
        c.take("noftz");
        let ty = c.ty()?;
        let mods = Mods {
            round: crate::float::Round::Nearest,
            flush: ty == Ty::F32 && space == Space::Global,
            saturate: false,
            relu: false,
        };
        let int = |op| Ok(AtomOp::Lane(Scalar::Int(op, ty)));
        let op: Result<AtomOp, ParseError> = match name.as_str() {
            "add" if ty.is_float() => Ok(AtomOp::Lane(Scalar::Float(FloatOp::Add, ty, mods))),
            _ if ty.is_float() => Err(c.refuse("this function of floats", "9.7.13.5")),
            "add" => int(IntOp::Add),
            "min" => int(IntOp::Min),
            "max" => int(IntOp::Max),
            "and" => int(IntOp::And),
            "or" => int(IntOp::Or),
            "xor" => int(IntOp::Xor),
            "exch" => Ok(AtomOp::Exch),
            "inc" => Ok(AtomOp::Inc),
            "dec" => Ok(AtomOp::Dec),
            _ => Ok(AtomOp::Cas),
        };
        let op = op?;
        let n = if op == AtomOp::Cas { 2 } else { 1 } + usize::from(c.name == "atom");
        if o.len() != n + 1 {
            return Err(c.refuse("this number of operands", "9.7.13.5"));
        }
        let (result, rest) = if c.name == "atom" { (Some(self.dest(&o[0], ty)?), &o[1..]) } else { (None, o) };
        let address = self.address(&rest[0], space)?;
        let b = self.source(&rest[1], ty)?;
        let third = match rest.get(2) {
            Some(e) => Some(self.source(e, ty)?),
            None => None,
        };
        self.touches(space, ty);
        self.push(Op::Atom(Box::new(Atom { space, ty, op, order, scope, address, result, b, c: third })));
        Ok(())
    }

    fn copy_async(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        if c.take("commit_group") {
            self.push(Op::CopyCommit);
            return Ok(());
        }
        if c.take("wait_all") {
            self.push(Op::CopyWait { pending: None });
            return Ok(());
        }
        if c.take("wait_group") {
            let [Operand::Int(n)] = o else { return Err(c.refuse("the count must be a literal", "9.7.9.25.3.3")) };
            self.push(Op::CopyWait { pending: Some(*n as u32) });
            return Ok(());
        }
        while c.take_map(|m| is_cache_hint(m).then_some(())).is_some() {}
        let hint = c.take("L2::cache_hint");
        if !(c.take("shared") || c.take("shared::cta")) || !c.take("global") {
            return Err(c.refuse("only cp.async.c{a,g}.shared.global", "9.7.9.25.3.1"));
        }
        let o = if hint { &o[..o.len().saturating_sub(1)] } else { o };
        let (shared, global, bytes, source) = match o {
            [shared, global, Operand::Int(n)] => (shared, global, *n, None),
            [shared, global, Operand::Int(n), source] => (shared, global, *n, Some(source)),
            _ => return Err(c.refuse("these operands", "9.7.9.25.3.1")),
        };
        if !matches!(bytes, 4 | 8 | 16) {
            return Err(c.refuse("a size other than 4, 8 and 16", "9.7.9.25.3.1"));
        }
        let source = match source {
            Some(s) => Some(self.source(s, Ty::U32)?),
            None => None,
        };
        let (shared, global) = (self.address(shared, Space::Shared)?, self.address(global, Space::Global)?);
        self.push(Op::CopyAsync { shared, global, bytes: bytes as u32, source });
        Ok(())
    }

    fn mma(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        const SECTION: &str = "9.7.14.5.14";
        let form = c.take("sync") & c.take("aligned") & c.take("row") & c.take("col");
        let k = c.take_map(|m| m.strip_prefix("m16n8k").and_then(|k| k.parse::<u32>().ok()));
        let (Some(k), true) = (k, form) else { return Err(c.refuse("only .sync.aligned.m16n8kK.row.col", SECTION)) };
        let (dt, at, bt, ct) = (c.ty()?, c.ty()?, c.ty()?, c.ty()?);
        let f = match (at.kind, at.bits, k) {
            (Kind::Float, 16, 8 | 16) => Fragment::Half { brain: false },
            (Kind::Brain, 16, 8 | 16) => Fragment::Half { brain: true },
            (Kind::Tf32, 32, 4 | 8) => Fragment::Tf32,
            _ => return Err(c.refuse("this element type or shape", SECTION)),
        };
        let half_accumulators = dt == Ty::F16;
        if at != bt || dt != ct || !(dt == Ty::F32 || half_accumulators && f == Fragment::Half { brain: false }) {
            return Err(c.refuse("this combination of types", SECTION));
        }
        let [d, a, b, e] = c.operands(o)?;
        let accumulator = if half_accumulators { Ty::B32 } else { Ty::F32 };
        let list = |l: &mut Lower, o: &Operand, n: u32, ty: Ty| -> Result<Vec<Reg>, ParseError> {
            let regs: Vec<Reg> = Self::elements(o).iter().map(|r| l.source(r, ty)).collect::<Result<_, _>>()?;
            if regs.len() as u32 == n { Ok(regs) } else { Err(c.refuse("the number of registers", SECTION)) }
        };
        let unit = if f == Fragment::Tf32 { 4 } else { 8 };
        let n = if half_accumulators { 2 } else { 4 };
        let (a, b) = (list(self, a, 2 * k / unit, Ty::B32)?, list(self, b, k / unit, Ty::B32)?);
        let (e, d) = (list(self, e, n, accumulator)?, list(self, d, n, accumulator)?);
        for register in Self::elements(&o[0]) {
            self.dest(register, accumulator)?;
        }
        self.push(Op::Mma { f, k, half_accumulators, d, a, b, c: e });
        Ok(())
    }
}
