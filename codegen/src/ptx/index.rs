//! Indices: i64 in the IR, in 32-bit registers where they are known to fit.

use super::EmitError;
use super::emit::{Emitter, Lanes};
use super::text::{Class, Value, int, long};
use intwain_ir::DType;
use intwain_ir::kernel::{Inst, Reg, RegType};
use intwain_ir::scalar::{Binary, Unary};
use smallvec::SmallVec;

/// Whether a 32-bit instruction can take it.
fn short(x: Value) -> bool {
    match x.known() {
        Some(k) => i32::try_from(k).is_ok(),
        None => x.class() == Class::Int,
    }
}

impl Emitter<'_> {
    /// The class of an element of a register.
    pub(super) fn class(&self, r: Reg) -> Class {
        if self.ranges.narrow(r) { Class::Int } else { Class::of(self.ty(r).dtype) }
    }

    /// A signed integer in another width.
    pub(super) fn fit(&mut self, x: Value, class: Class) -> Value {
        if x.class() == class {
            return x;
        }
        match (class, x.known()) {
            (Class::Long, Some(k)) => long(k),
            (Class::Int, Some(k)) => int(k as i32),
            (Class::Long, None) => self.t.op(Class::Long, "cvt.s64.s32", &[x]),
            _ => self.t.op(Class::Int, "cvt.u32.u64", &[x]),
        }
    }

    /// The lanes of an i64 register in full width.
    pub(super) fn long_lanes(&mut self, r: Reg) -> Lanes {
        self.lanes(r).into_iter().map(|x| self.fit(x, Class::Long)).collect()
    }

    /// The lanes of a register in the form of its type.
    pub(super) fn full_lanes(&mut self, r: Reg) -> Lanes {
        if self.ty(r) == RegType::INDEX { self.long_lanes(r) } else { self.lanes(r) }
    }

    /// An instruction that gives an index.
    pub(super) fn index_inst(&mut self, r: Reg, inst: &Inst) -> Result<Value, EmitError> {
        let class = self.class(r);
        let y = match inst {
            Inst::Const(x) => long(x.to_i64()),
            Inst::Id(id) => self.id(*id)?,
            Inst::Binary(op, x, y) => self.index_binary(class, *op, *x, *y)?,
            Inst::Unary(op, x) => self.index_unary(class, *op, *x)?,
            Inst::Fma(x, y, z) => {
                let (x, y, z) = (self.value(*x), self.value(*y), self.value(*z));
                let product = self.product(class, x, y)?;
                let dtype = if class == Class::Int { DType::I32 } else { DType::I64 };
                let (product, z) = (self.fit(product, class), self.fit(z, class));
                self.binary(Binary::Add, dtype, product, z)?
            }
            Inst::Select(c, x, y) => {
                let (c, x, y) = (self.value(*c), self.value(*x), self.value(*y));
                let (x, y) = (self.fit(x, class), self.fit(y, class));
                self.select(c, x, y)
            }
            Inst::Cast(x) => {
                let (from, v) = (self.ty(*x).dtype, self.value(*x));
                match from {
                    DType::I64 => v,
                    DType::Bool => self.number(v),
                    DType::I8 | DType::U8 | DType::I16 | DType::I32 => v,
                    DType::U32 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => self.cast(from, DType::I64, v),
                }
            }
            Inst::Splat(x) => self.value(*x),
            Inst::Extract(x, lane) => self.lanes(*x)[*lane as usize],
            Inst::Pack(xs) => self.value(xs[0]),
            Inst::Shuffle(how, x) => {
                let v = self.value(*x);
                self.shuffle(*how, v)
            }
            Inst::Load { .. } | Inst::Bits(_) | Inst::Compare(..) | Inst::Tf32(_) => {
                return Ok(self.plain_inst(RegType::INDEX, inst)?[0]);
            }
        };
        Ok(match y {
            Value::Literal(..) => y,
            Value::Reg(..) => self.fit(y, class),
        })
    }

    /// x·y, as wide as `class` or narrower.
    fn product(&mut self, class: Class, x: Value, y: Value) -> Result<Value, EmitError> {
        if class == Class::Long && short(x) && short(y) && (x.known().is_none() || y.known().is_none()) {
            let (x, y) = (self.fit(x, Class::Int), self.fit(y, Class::Int));
            return Ok(self.t.op(Class::Long, "mul.wide.s32", &[x, y]));
        }
        let all_short = class == Class::Int && short(x) && short(y);
        let (class, dtype) = if all_short { (Class::Int, DType::I32) } else { (Class::Long, DType::I64) };
        let (x, y) = (self.fit(x, class), self.fit(y, class));
        self.binary(Binary::Mul, dtype, x, y)
    }

    fn index_binary(&mut self, class: Class, op: Binary, x: Reg, y: Reg) -> Result<Value, EmitError> {
        let range = self.ranges.get(x);
        let (a, b) = (self.value(x), self.value(y));
        if op == Binary::Mul {
            return self.product(class, a, b);
        }
        let (class, dtype) = match class {
            Class::Int if short(a) && short(b) => (Class::Int, DType::I32),
            _ => (Class::Long, DType::I64),
        };
        let (a, b) = (self.fit(a, class), self.fit(b, class));
        self.binary_in_range(op, dtype, a, b, range)
    }

    fn index_unary(&mut self, class: Class, op: Unary, x: Reg) -> Result<Value, EmitError> {
        let v = self.value(x);
        let (class, dtype) = match class {
            Class::Int if short(v) => (Class::Int, DType::I32),
            _ => (Class::Long, DType::I64),
        };
        let v = self.fit(v, class);
        self.unary(op, dtype, v)
    }

    /// The operands of a comparison or conversion, in 32 bits if they are indices that fit.
    pub(super) fn shortest<const N: usize>(&mut self, rs: [Reg; N]) -> (DType, [Lanes; N]) {
        let ty = self.ty(rs[0]);
        if ty != RegType::INDEX {
            return (ty.dtype, rs.map(|r| self.lanes(r)));
        }
        let all = rs.iter().all(|r| short(self.value(*r)));
        let (class, dtype) = if all { (Class::Int, DType::I32) } else { (Class::Long, DType::I64) };
        let lanes = rs.map(|r| {
            let v = self.value(r);
            SmallVec::from_elem(self.fit(v, class), 1)
        });
        (dtype, lanes)
    }
}
