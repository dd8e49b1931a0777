//! Emission of instructions: vectors where the machine has the operation, else lane by lane.

use super::emit::Emitter;
use super::lanes::{clif_type, float_cc, int_cc, scalar_type};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use intwain_ir::DType;
use intwain_ir::kernel::{Inst, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar, Unary};

impl Emitter<'_, '_> {
    /// The value of an instruction that neither reads memory nor asks for an id.
    pub(super) fn inst(&mut self, ty: RegType, inst: &Inst) -> Value {
        let dtype = ty.dtype;
        match inst {
            Inst::Const(x) => {
                let c = self.scalar_constant(*x);
                if ty.lanes == 1 { c } else { self.splat(dtype, c) }
            }
            Inst::Unary(op, x) => self.unary(*op, *x),
            Inst::Binary(op, x, y) => self.binary(*op, *x, *y),
            Inst::Fma(x, y, z) => self.multiply_add(dtype, *x, *y, *z),
            Inst::Compare(op, x, y) => {
                let from = self.ty(*x).dtype;
                let (x, y) = (self.value(*x), self.value(*y));
                self.compare(*op, from, x, y)
            }
            Inst::Select(c, x, y) => {
                let (c, x, y) = (self.value(*c), self.value(*x), self.value(*y));
                self.choose(c, x, y)
            }
            Inst::Cast(x) => {
                let from = self.ty(*x).dtype;
                let v = self.value(*x);
                if ty.lanes == 1 { self.cast(from, dtype, v) } else { self.cast_vector(from, dtype, v) }
            }
            Inst::Splat(x) => {
                let v = self.value(*x);
                self.splat(dtype, v)
            }
            Inst::Extract(x, lane) => {
                let v = self.value(*x);
                self.extract(dtype, v, *lane)
            }
            Inst::Pack(xs) => {
                let lanes: Vec<Value> = xs.iter().map(|x| self.value(*x)).collect();
                self.pack(dtype, &lanes)
            }
            Inst::Id(_) | Inst::Load { .. } | Inst::Shuffle(..) | Inst::Bits(_) | Inst::Tf32(_) => {
                unreachable!("ids and loads are emitted elsewhere, the verifier refuses the rest")
            }
        }
    }

    pub(super) fn scalar_constant(&mut self, x: Scalar) -> Value {
        match x.dtype() {
            DType::F32 => self.b.ins().f32const(f32::from_bits(x.bits() as u32)),
            DType::F16 | DType::BF16 => self.b.ins().f32const(x.to_f64() as f32),
            DType::F64 => self.b.ins().f64const(f64::from_bits(x.bits())),
            d @ (DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32) => {
                self.b.ins().iconst(scalar_type(d), x.bits() as i64)
            }
        }
    }

    /// A function of one vector, lane by lane.
    fn lanewise(&mut self, from: DType, to: DType, v: Value, f: impl Fn(&mut Self, Value) -> Value) -> Value {
        let lanes: Vec<Value> = (0..4u8)
            .map(|i| {
                let x = self.extract(from, v, i);
                f(self, x)
            })
            .collect();
        self.pack(to, &lanes)
    }

    fn unary(&mut self, op: Unary, x: Reg) -> Value {
        let ty = self.ty(x);
        let v = self.value(x);
        match (ty.lanes, ty.dtype) {
            (1, d) if d.is_float() => self.unary_float(op, d, 1, v),
            (1, d) => self.unary_int(op, d, v),
            (_, d) if d.is_float() => self.unary_float(op, d, 4, v),
            (_, d) => match op {
                Unary::Not => self.b.ins().bnot(v),
                Unary::Neg => self.b.ins().ineg(v),
                _ => self.lanewise(d, op.result(d), v, |e, x| e.unary_int(op, d, x)),
            },
        }
    }

    fn binary(&mut self, op: Binary, x: Reg, y: Reg) -> Value {
        let ty = self.ty(x);
        let (a, b) = (self.value(x), self.value(y));
        let constant = self.constant(y);
        match (ty.lanes, ty.dtype) {
            (1, d) if d.is_float() => self.binary_float(op, d, 1, a, b, (self.constant(x), constant)),
            (1, d) => self.binary_int(op, d, a, b, constant),
            (_, d) if d.is_float() => self.binary_float(op, d, 4, a, b, (self.constant(x), constant)),
            (_, d) => self.binary_int_vector(op, d, a, b, constant),
        }
    }

    fn binary_int_vector(&mut self, op: Binary, dtype: DType, a: Value, b: Value, constant: Option<Scalar>) -> Value {
        let bool = dtype == DType::Bool;
        match op {
            Binary::Add | Binary::Max if bool => self.b.ins().bor(a, b),
            Binary::Mul | Binary::Min if bool => self.b.ins().band(a, b),
            Binary::And => self.b.ins().band(a, b),
            Binary::Or => self.b.ins().bor(a, b),
            Binary::Xor => self.b.ins().bxor(a, b),
            Binary::Add => self.b.ins().iadd(a, b),
            Binary::Sub => self.b.ins().isub(a, b),
            Binary::Mul => self.b.ins().imul(a, b),
            Binary::Max | Binary::Min => {
                let cc = if op == Binary::Max { Compare::Gt } else { Compare::Lt };
                let better = self.b.ins().icmp(int_cc(cc, dtype), a, b);
                self.b.ins().bitselect(better, a, b)
            }
            Binary::Shl | Binary::Shr if let Some(count) = constant.filter(|c| c.to_i64() >= 0 && c.to_i64() < 32) => {
                let count = count.to_i64();
                match (op, dtype) {
                    (Binary::Shl, _) => self.b.ins().ishl_imm_u(a, count),
                    (_, DType::I32) => self.b.ins().sshr_imm_u(a, count),
                    _ => self.b.ins().ushr_imm_u(a, count),
                }
            }
            Binary::Div | Binary::FloorDiv | Binary::Mod | Binary::Pow | Binary::Atan2 | Binary::Shl | Binary::Shr => {
                let lanes: Vec<Value> = (0..4u8)
                    .map(|i| {
                        let (x, y) = (self.extract(dtype, a, i), self.extract(dtype, b, i));
                        self.binary_int(op, dtype, x, y, constant)
                    })
                    .collect();
                self.pack(dtype, &lanes)
            }
        }
    }

    fn multiply_add(&mut self, dtype: DType, x: Reg, y: Reg, z: Reg) -> Value {
        let lanes = self.ty(x).lanes;
        let (a, b, c) = (self.value(x), self.value(y), self.value(z));
        if dtype.is_float() {
            let sum = self.fused(a, b, c);
            return self.round(dtype, sum);
        }
        if lanes == 1 {
            let product = self.binary_int(Binary::Mul, dtype, a, b, None);
            return self.binary_int(Binary::Add, dtype, product, c, None);
        }
        let product = self.binary_int_vector(Binary::Mul, dtype, a, b, None);
        self.binary_int_vector(Binary::Add, dtype, product, c, None)
    }

    /// A comparison; vectors give masks.
    pub(super) fn compare(&mut self, op: Compare, dtype: DType, x: Value, y: Value) -> Value {
        if dtype.is_float() {
            self.b.ins().fcmp(float_cc(op), x, y)
        } else if dtype == DType::Bool && self.b.func.dfg.value_type(x) == types::I32X4 {
            // Masks are 0 and −1: compare as unsigned, where true is greater.
            self.b.ins().icmp(int_cc(op, DType::U32), x, y)
        } else {
            self.b.ins().icmp(int_cc(op, dtype), x, y)
        }
    }

    fn cast_vector(&mut self, from: DType, to: DType, v: Value) -> Value {
        let int = |d: DType| matches!(d, DType::I32 | DType::U32);
        match (from, to) {
            (f, t) if f == t || (int(f) && int(t)) => v,
            (f, t) if f.is_float() && t.is_float() => self.round(t, v),
            (f, DType::I32) if f.is_float() => self.b.ins().fcvt_to_sint_sat(types::I32X4, v),
            (DType::I32, t) if t.is_float() => {
                let y = self.b.ins().fcvt_from_sint(types::F32X4, v);
                self.round(t, y)
            }
            (DType::Bool, t) => {
                let one = self.scalar_constant(Scalar::one(t));
                let ones = self.splat(t, one);
                let ones = self.bitcast(types::I32X4, ones);
                let bits = self.b.ins().band(v, ones);
                self.bitcast(clif_type(RegType { dtype: t, lanes: 4 }), bits)
            }
            (f, DType::Bool) => {
                let zero = self.scalar_constant(Scalar::zero(f));
                let zeros = self.splat(f, zero);
                self.compare(Compare::Ne, f, v, zeros)
            }
            (f, t) => self.lanewise(f, t, v, |e, x| e.cast(f, t, x)),
        }
    }
}
