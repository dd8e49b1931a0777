//! Emission of statements and instructions.

use super::EmitError;
use super::address::Addresses;
use super::range::Ranges;
use super::text::{Class, Text, Value, int, literal};
use super::uniform::Divergence;
use intwain_ir::DType;
use intwain_ir::kernel::{Block, Id, Inst, Kernel, Reg, RegType, Stmt};
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
    pub(super) ranges: Ranges<'k>,
    pub(super) divergence: Divergence<'k>,
    /// Halves that are a rounded f32, which holds its value as long as they do.
    pub(super) rounded: HashMap<Value, (DType, Value)>,
    /// Registers that a result is to be loaded to.
    pub(super) targets: HashMap<Reg, Lanes>,
    values: HashMap<Reg, Lanes>,
}

/// The body of a kernel, between its braces.
pub(super) fn body(kernel: &Kernel) -> Result<String, EmitError> {
    let mut e = Emitter {
        kernel,
        t: Text::default(),
        addresses: Addresses::new(kernel),
        ranges: Ranges::new(kernel),
        divergence: Divergence::new(kernel),
        rounded: HashMap::new(),
        targets: HashMap::new(),
        values: HashMap::new(),
    };
    e.block(&kernel.body)?;
    e.t.line(&[], format_args!("ret;"));
    let mut prologue = Text::default();
    e.addresses.prologue(&mut prologue);
    Ok(e.t.finish(prologue))
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
        self.addresses.define(r);
        self.values.insert(r, lanes);
    }

    /// New registers for a register of the IR.
    pub(super) fn fresh_lanes(&mut self, r: Reg) -> Lanes {
        let class = self.class(r);
        (0..self.ty(r).lanes).map(|_| self.t.fresh(class)).collect()
    }

    /// A predicate that can guard an instruction or be combined: literals go to a register.
    pub(super) fn pred(&mut self, x: Value) -> Value {
        self.t.in_reg(x)
    }

    pub(super) fn block(&mut self, block: &Block) -> Result<(), EmitError> {
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
                self.addresses.learn(*r, inst);
                let lanes = self.inst(*r, inst)?;
                self.define(*r, lanes);
            }
            Stmt::Store { to, index, offset, value } => self.store(*to, *index, *offset, *value),
            Stmt::If { cond, then, otherwise, merges } => self.conditional(*cond, then, otherwise, merges)?,
            Stmt::For(l) => self.looped(l)?,
            Stmt::Barrier => self.t.line(&[], format_args!("bar.sync 0;")),
            Stmt::AsyncCopy { to, to_index, to_offset, from, from_index, from_offset, bytes, guard } => {
                let to = self.address(*to, *to_index, *to_offset);
                let from = self.address(*from, *from_index, *from_offset);
                self.async_copy(to, from, *bytes, *guard);
            }
            Stmt::AsyncCommit => self.t.line(&[], format_args!("cp.async.commit_group;")),
            Stmt::AsyncWait(n) => self.t.line(&[], format_args!("cp.async.wait_group {n};")),
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
    fn inst(&mut self, r: Reg, inst: &Inst) -> Result<Lanes, EmitError> {
        match self.ty(r) {
            RegType::INDEX => Ok(SmallVec::from_elem(self.index_inst(r, inst)?, 1)),
            ty => match (inst, self.targets.remove(&r)) {
                (Inst::Load { from, index, offset }, Some(to)) => Ok(self.load_to(to, ty, *from, *index, *offset)),
                _ => self.plain_inst(ty, inst),
            },
        }
    }

    /// An instruction in the width of its type.
    pub(super) fn plain_inst(&mut self, ty: RegType, inst: &Inst) -> Result<Lanes, EmitError> {
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
                let (from, [x, y]) = self.shortest([*x, *y]);
                x.iter().zip(&y).map(|(x, y)| self.compare(*op, from, *x, *y)).collect()
            }
            Inst::Select(c, x, y) => self.each(n, [*c, *x, *y], |e, [c, x, y]| Ok(e.select(c, x, y)))?,
            Inst::Cast(x) => {
                let (from, [x]) = self.shortest([*x]);
                x.iter().map(|x| self.cast(from, ty.dtype, *x)).collect()
            }
            Inst::Splat(x) => SmallVec::from_elem(self.full_lanes(*x)[0], n),
            Inst::Extract(x, lane) => SmallVec::from_elem(self.lanes(*x)[*lane as usize], 1),
            Inst::Pack(xs) => xs.iter().map(|x| self.full_lanes(*x)[0]).collect(),
            Inst::Load { from, index, offset } => {
                let to = (0..ty.lanes).map(|_| self.t.fresh(Class::of(ty.dtype))).collect();
                self.load_to(to, ty, *from, *index, *offset)
            }
            Inst::Bits(x) => {
                let lanes = self.full_lanes(*x);
                let words = self.words_of(self.ty(*x).dtype, &lanes);
                self.lanes_of(ty, &words)
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
        let args = args.map(|r| self.full_lanes(r));
        (0..lanes).map(|i| f(self, std::array::from_fn(|a| args[a][i]))).collect()
    }

    /// An id; 32 bits.
    pub(super) fn id(&mut self, id: Id) -> Result<Value, EmitError> {
        let (name, axis) = match id {
            Id::Block(axis) => ("ctaid", axis),
            Id::Thread(axis) => ("tid", axis),
            Id::TaskBegin | Id::TaskEnd | Id::Batch | Id::RowBegin | Id::RowEnd | Id::ColumnBegin | Id::ColumnEnd => {
                return Err(self.unsupported(format!("{id:?}")));
            }
        };
        let d = self.t.fresh(Class::Int);
        self.t.pure(&[d], &[], format_args!("mov.u32 {d}, %{name}.{};", ["x", "y", "z"][axis as usize]));
        Ok(d)
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
    pub(super) fn element(dtype: DType, x: Value) -> Option<Scalar> {
        match x {
            Value::Literal(_, bits) => Some(Scalar::from_bits(dtype, bits)),
            Value::Reg(..) => None,
        }
    }

    /// x·y + z with one rounding.
    fn fma(&mut self, dtype: DType, x: Value, y: Value, z: Value) -> Value {
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
