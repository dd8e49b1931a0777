//! Emission of statements: loops and conditionals.

use super::EmitError;
use super::address::Addresses;
use super::text::{Class, Text, Value, When, int, literal, long};
use intwain_ir::kernel::{Block, For, Id, Inst, Kernel, Merge, Reg, RegType, Stmt};
use intwain_ir::scalar::{self, Scalar};
use smallvec::SmallVec;
use std::collections::HashMap;

/// The lanes of a register.
pub(super) type Lanes = SmallVec<[Value; 4]>;

/// The state of emission.
pub(super) struct Emitter<'k> {
    pub(super) kernel: &'k Kernel,
    pub(super) t: Text,
    pub(super) addresses: Addresses,
    values: HashMap<Reg, Lanes>,
}

/// The body of a kernel, between its braces.
pub(super) fn body(kernel: &Kernel) -> Result<String, EmitError> {
    let mut e = Emitter { kernel, t: Text::default(), addresses: Addresses::new(kernel), values: HashMap::new() };
    e.block(&kernel.body)?;
    e.t.line(format_args!("ret;"));
    let mut prologue = Text::default();
    e.addresses.prologue(&mut prologue);
    Ok(e.t.finish(&prologue))
}

impl Emitter<'_> {
    pub(super) fn unsupported(&self, what: impl Into<String>) -> EmitError {
        EmitError::Unsupported { kernel: self.kernel.name.clone(), what: what.into() }
    }

    pub(super) fn ty(&self, r: Reg) -> RegType {
        self.kernel.regs[r]
    }

    pub(super) fn lanes(&self, r: Reg) -> Lanes {
        self.values[&r].clone()
    }

    /// The only lane of a register.
    pub(super) fn value(&self, r: Reg) -> Value {
        self.values[&r][0]
    }

    pub(super) fn define(&mut self, r: Reg, lanes: Lanes) {
        self.values.insert(r, lanes);
    }

    fn fresh_lanes(&mut self, r: Reg) -> Lanes {
        let ty = self.ty(r);
        (0..ty.lanes).map(|_| self.t.fresh(Class::of(ty.dtype))).collect()
    }

    /// A predicate that can guard an instruction or be combined: literals go to a register.
    pub(super) fn pred(&mut self, x: Value) -> Value {
        self.t.in_reg(x)
    }

    fn block(&mut self, block: &Block) -> Result<(), EmitError> {
        self.addresses.enter();
        for s in &block.0 {
            self.stmt(s)?;
        }
        self.addresses.leave();
        Ok(())
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), EmitError> {
        match stmt {
            Stmt::Let(r, inst) => {
                let lanes = self.inst(self.ty(*r), inst)?;
                self.define(*r, lanes);
            }
            Stmt::Store { to, index, offset, value } => self.store(*to, *index, *offset, *value),
            Stmt::If { cond, then, otherwise, merges } => self.conditional(*cond, then, otherwise, merges)?,
            Stmt::For(l) => self.looped(l)?,
            Stmt::Barrier => self.t.line(format_args!("bar.sync 0;")),
            Stmt::AsyncCopy { to, to_index, to_offset, from, from_index, from_offset, bytes, guard } => {
                let to = self.address(*to, *to_index, *to_offset);
                let from = self.address(*from, *from_index, *from_offset);
                self.async_copy(to, from, *bytes, *guard);
            }
            Stmt::AsyncCommit => self.t.line(format_args!("cp.async.commit_group;")),
            Stmt::AsyncWait(n) => self.t.line(format_args!("cp.async.wait_group {n};")),
            Stmt::LoadMatrix { d, from, index, offset, form } => {
                let address = self.address(*from, *index, *offset);
                self.load_matrix(d, address, *form);
            }
            Stmt::Mma { shape, d, a, b, c } => self.mma(shape, d, a, b, c)?,
            Stmt::Signal { to, index, value } => self.signal(*to, *index, *value),
            Stmt::Await { from, index, value } => self.wait_for(*from, *index, *value),
        }
        Ok(())
    }

    /// The lanes of an instruction's result.
    fn inst(&mut self, ty: RegType, inst: &Inst) -> Result<Lanes, EmitError> {
        let n = ty.lanes as usize;
        Ok(match inst {
            Inst::Const(x) => SmallVec::from_elem(literal(*x), n),
            Inst::Id(id) => SmallVec::from_elem(self.id(*id)?, 1),
            Inst::Unary(op, x) => {
                let from = self.ty(*x).dtype;
                self.each(n, [*x], |e, [x]| e.unary(*op, from, x))?
            }
            Inst::Binary(op, x, y) => self.each(n, [*x, *y], |e, [x, y]| e.binary(*op, ty.dtype, x, y))?,
            Inst::Fma(x, y, z) => self.each(n, [*x, *y, *z], |e, [x, y, z]| Ok(e.fma(ty.dtype, x, y, z)))?,
            Inst::Compare(op, x, y) => {
                let from = self.ty(*x).dtype;
                self.each(n, [*x, *y], |e, [x, y]| Ok(e.compare(*op, from, x, y)))?
            }
            Inst::Select(c, x, y) => self.each(n, [*c, *x, *y], |e, [c, x, y]| Ok(e.select(c, x, y)))?,
            Inst::Cast(x) => {
                let from = self.ty(*x).dtype;
                self.each(n, [*x], |e, [x]| Ok(e.cast(from, ty.dtype, x)))?
            }
            Inst::Splat(x) => SmallVec::from_elem(self.value(*x), n),
            Inst::Extract(x, lane) => SmallVec::from_elem(self.lanes(*x)[*lane as usize], 1),
            Inst::Pack(xs) => xs.iter().map(|x| self.value(*x)).collect(),
            Inst::Load { from, index, offset } => self.load(ty, *from, *index, *offset),
            Inst::Bits(x) => {
                let words = self.to_words(self.ty(*x).dtype, &self.lanes(*x));
                self.from_words(ty, &words)
            }
            Inst::Tf32(x) => self.each(n, [*x], |e, [x]| Ok(e.tf32(x)))?,
            Inst::Shuffle(how, x) => self.each(n, [*x], |e, [x]| Ok(e.shuffle(*how, x)))?,
        })
    }

    /// Lane by lane.
    fn each<const N: usize>(
        &mut self,
        lanes: usize,
        args: [Reg; N],
        mut f: impl FnMut(&mut Self, [Value; N]) -> Result<Value, EmitError>,
    ) -> Result<Lanes, EmitError> {
        let args = args.map(|r| self.lanes(r));
        (0..lanes).map(|i| f(self, std::array::from_fn(|a| args[a][i]))).collect()
    }

    fn id(&mut self, id: Id) -> Result<Value, EmitError> {
        let (name, axis) = match id {
            Id::Block(axis) => ("ctaid", axis),
            Id::Thread(axis) => ("tid", axis),
            Id::TaskBegin | Id::TaskEnd | Id::Batch | Id::RowBegin | Id::RowEnd | Id::ColumnBegin | Id::ColumnEnd => {
                return Err(self.unsupported(format!("{id:?}")));
            }
        };
        let narrow = self.t.fresh(Class::Int);
        self.t.line(format_args!("mov.u32 {narrow}, %{name}.{};", ["x", "y", "z"][axis as usize]));
        Ok(self.t.op(Class::Long, "cvt.u64.u32", &[narrow]))
    }

    fn conditional(&mut self, cond: Reg, then: &Block, otherwise: &Block, merges: &[Merge]) -> Result<(), EmitError> {
        let cond = self.pred(self.value(cond));
        let results: Vec<Lanes> = merges.iter().map(|m| self.fresh_lanes(m.result)).collect();
        let (no, after) = (self.t.label("else"), self.t.label("endif"));
        let two = !otherwise.0.is_empty() || !merges.is_empty();
        self.t.jump_if(cond, When::False, if two { &no } else { &after });
        self.branch(then, merges, &results, |m| m.then)?;
        if two {
            self.t.jump(&after);
            self.t.place(&no);
            self.branch(otherwise, merges, &results, |m| m.otherwise)?;
        }
        self.t.place(&after);
        for (m, lanes) in merges.iter().zip(results) {
            self.define(m.result, lanes);
        }
        Ok(())
    }

    /// One side of a conditional, and its values in the registers of the results. Those are new, so order is free.
    fn branch(
        &mut self,
        block: &Block,
        merges: &[Merge],
        results: &[Lanes],
        pick: impl Fn(&Merge) -> Reg,
    ) -> Result<(), EmitError> {
        self.block(block)?;
        for (m, lanes) in merges.iter().zip(results) {
            for (d, s) in lanes.iter().zip(self.lanes(pick(m))) {
                self.t.copy(*d, s);
            }
        }
        Ok(())
    }

    /// A loop tested at its end, behind a test of whether it runs at all.
    fn looped(&mut self, l: &For) -> Result<(), EmitError> {
        let (begin, end) = (self.value(l.begin), self.value(l.end));
        let var = self.t.fresh(Class::Long);
        self.t.copy(var, begin);
        let args: Vec<Lanes> = l.carried.iter().map(|c| self.fresh_lanes(c.arg)).collect();
        for (c, lanes) in l.carried.iter().zip(&args) {
            for (d, s) in lanes.iter().zip(self.lanes(c.init)) {
                self.t.copy(*d, s);
            }
            self.define(c.arg, lanes.clone());
        }
        self.define(l.var, SmallVec::from_elem(var, 1));
        let (again, after) = (self.t.label("loop"), self.t.label("done"));
        let runs = matches!((begin.known(), end.known()), (Some(a), Some(b)) if a < b);
        if !runs {
            let none = self.t.op(Class::Pred, "setp.ge.s64", &[var, end]);
            self.t.jump_if(none, When::True, &after);
        }
        self.t.place(&again);
        self.block(&l.body)?;
        let moves =
            l.carried.iter().zip(&args).flat_map(|(c, lanes)| {
                lanes.iter().copied().zip(self.values[&c.next].iter().copied()).collect::<Vec<_>>()
            });
        let moves: Vec<(Value, Value)> = moves.collect();
        self.parallel_copy(moves);
        self.t.to(var, "add.s64", &[var, long(l.step)]);
        let more = self.t.op(Class::Pred, "setp.lt.s64", &[var, end]);
        self.t.jump_if(more, When::True, &again);
        self.t.place(&after);
        for (c, lanes) in l.carried.iter().zip(args) {
            self.define(c.result, lanes);
        }
        Ok(())
    }

    /// Copies as if all sources were read before any destination is written. Destinations are distinct.
    fn parallel_copy(&mut self, mut moves: Vec<(Value, Value)>) {
        moves.retain(|(d, s)| d != s);
        while !moves.is_empty() {
            match moves.iter().position(|(d, _)| moves.iter().all(|(_, s)| s != d)) {
                Some(i) => {
                    let (d, s) = moves.remove(i);
                    self.t.copy(d, s);
                }
                None => {
                    // Only cycles are left: set one source aside.
                    let s = moves[0].1;
                    let aside = self.t.fresh(s.class());
                    self.t.copy(aside, s);
                    moves.iter_mut().filter(|m| m.1 == s).for_each(|m| m.1 = aside);
                }
            }
        }
    }

    /// Where a predicate holds, the first.
    pub(super) fn select(&mut self, c: Value, x: Value, y: Value) -> Value {
        if x == y {
            return x;
        }
        if let Value::Literal(_, c) = c {
            return if c != 0 { x } else { y };
        }
        let class = x.class();
        if class != Class::Pred {
            return self.t.op(class, &format!("selp.{}", class.ty()), &[x, y, c]);
        }
        match (x, y) {
            (Value::Literal(_, 1), Value::Literal(..)) => c,
            (Value::Literal(..), Value::Literal(..)) => self.t.op(class, "not.pred", &[c]),
            _ => {
                let (x, y) = (self.pred(x), self.pred(y));
                let no = self.t.op(class, "not.pred", &[c]);
                let (a, b) = (self.t.op(class, "and.pred", &[c, x]), self.t.op(class, "and.pred", &[no, y]));
                self.t.op(class, "or.pred", &[a, b])
            }
        }
    }

    /// The element that a literal stands for.
    pub(super) fn element(dtype: intwain_ir::DType, x: Value) -> Option<Scalar> {
        match x {
            Value::Literal(_, bits) => Some(Scalar::from_bits(dtype, bits)),
            Value::Reg(..) => None,
        }
    }

    /// x·y + z with one rounding.
    fn fma(&mut self, dtype: intwain_ir::DType, x: Value, y: Value, z: Value) -> Value {
        let known = [x, y, z].map(|v| Self::element(dtype, v));
        if let [Some(x), Some(y), Some(z)] = known {
            return literal(scalar::fma(x, y, z));
        }
        if dtype.is_float() { self.fma_float(dtype, x, y, z) } else { self.fma_int(dtype, x, y, z) }
    }

    /// 0 or 1 from a predicate.
    pub(super) fn number(&mut self, p: Value) -> Value {
        self.select(p, int(1), int(0))
    }
}
