//! The rules of kernels. [`verify`] reports every violation.
//!
//! Checked: registers are defined once and before use, in scope; types and lanes fit; places exist and are used as
//! their access says; steps are positive; constants that address memory are in bounds; nothing stands in a kernel that
//! its entry can't execute. Not checked: that computed addresses are in bounds, that tasks are independent, that
//! barriers are reached by all threads.

use super::{Access, Block, Entry, Id, Inst, Kernel, Place, Reg, RegType, Stmt};
use crate::DType;
use std::collections::HashSet;

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("kernel {kernel}: {problem}")]
pub struct Defect {
    kernel: String,
    problem: String,
}

/// Checks a kernel; gives every violation.
pub fn verify(kernel: &Kernel) -> Result<(), Vec<Defect>> {
    let mut v = Verifier { kernel, defined: HashSet::new(), scope: HashSet::new(), defects: Vec::new() };
    v.block(&kernel.body);
    if v.defects.is_empty() { Ok(()) } else { Err(v.defects) }
}

struct Verifier<'k> {
    kernel: &'k Kernel,
    defined: HashSet<Reg>,
    scope: HashSet<Reg>,
    defects: Vec<Defect>,
}

/// The element types that CPU vectors have.
fn cpu_vector(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::I32 | DType::U32 | DType::Bool)
}

impl Verifier<'_> {
    fn problem(&mut self, problem: impl Into<String>) {
        self.defects.push(Defect { kernel: self.kernel.name.clone(), problem: problem.into() });
    }

    fn require(&mut self, holds: bool, problem: impl FnOnce() -> String) {
        if !holds {
            self.problem(problem());
        }
    }

    fn cpu(&self) -> bool {
        !matches!(self.kernel.entry, Entry::Grid { .. })
    }

    fn define(&mut self, r: Reg) {
        let ty = self.kernel.regs.get(r).copied();
        self.require(self.defined.contains(&r).eq(&false), || format!("{r} is defined twice"));
        self.defined.insert(r);
        self.scope.insert(r);
        match ty {
            None => self.problem(format!("{r} has no type")),
            Some(t) => {
                let fits = match t.lanes {
                    1 => true,
                    4 => !self.cpu() || cpu_vector(t.dtype),
                    2 => !self.cpu(),
                    8 => !self.cpu() && t.dtype.size() == 2,
                    _ => false,
                };
                self.require(fits, || format!("{r} has type {t}, which the target lacks"));
            }
        }
    }

    fn define_as(&mut self, r: Reg, ty: RegType) {
        let found = self.kernel.regs.get(r).copied();
        self.require(found == Some(ty), || format!("{r} is not of type {ty}"));
        self.define(r);
    }

    fn used(&mut self, r: Reg) -> RegType {
        self.require(self.scope.contains(&r), || format!("{r} is used where it is not defined"));
        self.kernel.regs.get(r).copied().unwrap_or(RegType::INDEX)
    }

    fn expect(&mut self, r: Reg, ty: RegType, what: &str) {
        let found = self.used(r);
        self.require(found == ty, || format!("{what} {r} has type {found}, not {ty}"));
    }

    fn block(&mut self, block: &Block) {
        for s in &block.0 {
            self.stmt(s);
        }
    }

    /// A block whose definitions end with it, after checking the values it ends with.
    fn scoped(&mut self, block: &Block, before: &[Reg], ends: &[(Reg, RegType)]) {
        let outer = self.scope.clone();
        for &r in before {
            self.define(r);
        }
        self.block(block);
        for &(r, ty) in ends {
            self.expect(r, ty, "the value at the end of a block");
        }
        self.scope = outer;
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Let(r, inst) => {
                let ty = self.kernel.regs.get(*r).copied().unwrap_or(RegType::INDEX);
                self.inst(*r, ty, inst);
                self.define(*r);
            }
            Stmt::Store { to, index, offset, value } => {
                let ty = self.used(*value);
                self.access(*to, *index, *offset, ty, Stores::Yes);
            }
            Stmt::If { cond, then, otherwise, merges } => {
                self.expect(*cond, RegType::scalar(DType::Bool), "the condition");
                let ends = |pick: fn(&super::Merge) -> Reg, k: &Kernel| -> Vec<(Reg, RegType)> {
                    merges.iter().map(|m| (pick(m), k.regs[m.result])).collect()
                };
                let (yes, no) = (ends(|m| m.then, self.kernel), ends(|m| m.otherwise, self.kernel));
                self.scoped(then, &[], &yes);
                self.scoped(otherwise, &[], &no);
                merges.iter().for_each(|m| self.define(m.result));
            }
            Stmt::For(l) => {
                self.expect(l.begin, RegType::INDEX, "the loop's begin");
                self.expect(l.end, RegType::INDEX, "the loop's end");
                self.require(l.step > 0, || format!("the loop of {} has step {}", l.var, l.step));
                let types: Vec<RegType> = l.carried.iter().map(|c| self.used(c.init)).collect();
                let before: Vec<Reg> = std::iter::once(l.var).chain(l.carried.iter().map(|c| c.arg)).collect();
                let ends: Vec<(Reg, RegType)> = l.carried.iter().zip(&types).map(|(c, t)| (c.next, *t)).collect();
                self.scoped(&l.body, &before, &ends);
                for (c, ty) in l.carried.iter().zip(types) {
                    self.define(c.result);
                    self.require(self.kernel.regs[c.arg] == ty && self.kernel.regs[c.result] == ty, || {
                        format!("{} changes type on its way through the loop", c.result)
                    });
                }
            }
            Stmt::Barrier | Stmt::AsyncCommit | Stmt::AsyncWait(_) => self.gpu_only("synchronisation"),
            Stmt::AsyncCopy { to, to_index, to_offset: _, from, from_index, from_offset: _, bytes, guard } => {
                self.gpu_only("an asynchronous copy");
                self.require(matches!(bytes, 4 | 8 | 16), || format!("an asynchronous copy of {bytes} bytes"));
                let places = matches!((to, from), (Place::Buffer(_), Place::Param(_)));
                self.require(places, || "an asynchronous copy goes from a parameter to a buffer".into());
                self.expect(*to_index, RegType::INDEX, "the address");
                self.expect(*from_index, RegType::INDEX, "the address");
                if let Some(g) = guard {
                    self.expect(*g, RegType::scalar(DType::Bool), "the guard");
                }
            }
            Stmt::LoadMatrix { d, from, index, offset: _, form: _ } => {
                self.gpu_only("a matrix load");
                self.require(matches!(d.len(), 1 | 2 | 4), || format!("a load of {} matrices", d.len()));
                self.require(matches!(from, Place::Buffer(_)), || "matrices are loaded from a buffer".into());
                self.expect(*index, RegType::INDEX, "the address");
                d.iter().for_each(|r| self.define_as(*r, RegType::scalar(DType::U32)));
            }
            Stmt::Signal { to: place, index, value } | Stmt::Await { from: place, index, value } => {
                self.gpu_only("a flag");
                let flags =
                    matches!(place, Place::Param(_)) && self.kernel.place(*place).is_some_and(|p| p.0 == DType::U32);
                self.require(flags, || format!("flags are a parameter of u32, not {place}"));
                self.expect(*index, RegType::INDEX, "the address");
                self.expect(*value, RegType::scalar(DType::U32), "the flag");
            }
            Stmt::Mma { shape, d, a, b, c } => {
                self.gpu_only("a matrix product");
                a.iter().chain(b).for_each(|r| self.expect(*r, RegType::scalar(DType::U32), "the fragment"));
                let sum = RegType::scalar(shape.accumulator);
                c.iter().for_each(|r| self.expect(*r, sum, "the fragment"));
                self.require(d.len() == c.len(), || "a matrix product adds fragments of another number".into());
                d.iter().for_each(|r| self.define_as(*r, sum));
            }
        }
    }

    fn gpu_only(&mut self, what: &str) {
        if self.cpu() {
            self.problem(format!("{what} in a kernel for a CPU"));
        }
    }

    fn inst(&mut self, r: Reg, ty: RegType, inst: &Inst) {
        let same = |v: &mut Self, x: Reg| v.expect(x, ty, "the operand");
        match inst {
            Inst::Const(x) => self.require(x.dtype() == ty.dtype, || format!("{r} holds a {}", x.dtype())),
            Inst::Id(id) => {
                self.require(ty == RegType::INDEX, || format!("{r} holds an id"));
                let fits = match id {
                    Id::TaskBegin | Id::TaskEnd => self.kernel.entry == Entry::Tasks,
                    Id::Batch | Id::RowBegin | Id::RowEnd | Id::ColumnBegin | Id::ColumnEnd => {
                        self.kernel.entry == Entry::Tile
                    }
                    Id::Block(axis) | Id::Thread(axis) => !self.cpu() && *axis < 3,
                };
                self.require(fits, || format!("{id:?} does not exist in this kernel"));
            }
            Inst::Unary(op, x) => {
                let t = self.used(*x);
                let fits = op.accepts(t.dtype) && op.result(t.dtype) == ty.dtype && t.lanes == ty.lanes;
                self.require(fits, || format!("{r}: {ty} = {} of {t}", op.name()));
            }
            Inst::Binary(op, x, y) => {
                same(self, *x);
                same(self, *y);
                self.require(op.accepts(ty.dtype), || format!("{} of {ty}", op.name()));
            }
            Inst::Fma(x, y, z) => [x, y, z].into_iter().for_each(|x| same(self, *x)),
            Inst::Compare(op, x, y) => {
                let (a, b) = (self.used(*x), self.used(*y));
                let fits = a == b && ty == RegType { dtype: DType::Bool, lanes: a.lanes };
                self.require(fits, || format!("{r}: {ty} = {} of {a} and {b}", op.name()));
            }
            Inst::Select(c, x, y) => {
                self.expect(*c, RegType { dtype: DType::Bool, lanes: ty.lanes }, "the condition");
                same(self, *x);
                same(self, *y);
            }
            Inst::Cast(x) => {
                let t = self.used(*x);
                self.require(t.lanes == ty.lanes, || format!("{r}: {ty} = cast of {t}"));
            }
            Inst::Splat(x) => self.expect(*x, RegType::scalar(ty.dtype), "the element"),
            Inst::Extract(x, lane) => {
                let t = self.used(*x);
                let fits = ty == RegType::scalar(t.dtype) && *lane < t.lanes;
                self.require(fits, || format!("{r}: {ty} = lane {lane} of {t}"));
            }
            Inst::Pack(xs) => {
                self.require(xs.len() == ty.lanes as usize, || format!("{r}: {ty} of {} elements", xs.len()));
                xs.iter().for_each(|x| self.expect(*x, RegType::scalar(ty.dtype), "the element"));
            }
            Inst::Load { from, index, offset } => self.access(*from, *index, *offset, ty, Stores::No),
            Inst::Shuffle(_, x) => {
                self.gpu_only("a shuffle");
                same(self, *x);
            }
            Inst::Bits(x) => {
                self.gpu_only("a change of type");
                let t = self.used(*x);
                let bytes = |t: RegType| t.dtype.size() * t.lanes as usize;
                let fits = bytes(t) == bytes(ty) && t.dtype != DType::Bool && ty.dtype != DType::Bool;
                self.require(fits, || format!("{r}: {ty} = bits of {t}"));
            }
            Inst::Tf32(x) => {
                self.gpu_only("rounding to tf32");
                same(self, *x);
                self.require(ty.dtype == DType::F32, || format!("{r}: {ty} = tf32"));
            }
        }
    }

    fn access(&mut self, place: Place, index: Reg, offset: i64, ty: RegType, stores: Stores) {
        self.expect(index, RegType::INDEX, "the address");
        let Some((dtype, _)) = self.kernel.place(place) else {
            return self.problem(format!("{place} does not exist"));
        };
        self.require(dtype == ty.dtype, || format!("{place} holds {dtype}, not {ty}"));
        let constant = offset.checked_mul(dtype.size() as i64).is_some_and(|o| o.unsigned_abs() < 1 << 56);
        self.require(constant, || format!("{place} offset {offset}"));
        if let Place::Param(i) = place {
            let access = self.kernel.params[i as usize].access;
            let fits = match stores {
                Stores::Yes => matches!(access, Access::Write | Access::Update),
                Stores::No => access != Access::Write,
            };
            self.require(fits, || format!("{place} is {access:?}"));
        }
        if place == Place::Buffer(0) && self.kernel.entry == Entry::Tile {
            self.problem("a kernel on rectangles has no private memory");
        }
    }
}

#[derive(Clone, Copy)]
enum Stores {
    Yes,
    No,
}
