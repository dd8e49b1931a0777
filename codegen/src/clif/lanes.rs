//! Registers and vectors: their Cranelift types, moves between lanes, conversions to and from memory form, calls, and
//! the instruction stream that expansions of the scalar table are written to.

use super::emit::{Emitter, FusedMultiply};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{self, AbiParam, InstBuilder, MemFlagsData, Signature, Value, types};
use intwain_ir::DType;
use intwain_ir::kernel::RegType;
use intwain_ir::scalar::expand::{self, Emit};
use intwain_ir::scalar::{Compare, Libcall};

/// The type of a register. Vectors of bool are masks of 32-bit lanes; f16 and bf16 are kept as f32.
pub(super) fn clif_type(ty: RegType) -> ir::Type {
    match (ty.dtype, ty.lanes) {
        (DType::F16 | DType::BF16 | DType::F32, 4) => types::F32X4,
        (DType::Bool | DType::I32 | DType::U32, 4) => types::I32X4,
        (dtype, _) => scalar_type(dtype),
    }
}

pub(super) fn scalar_type(dtype: DType) -> ir::Type {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 => types::I8,
        DType::I16 => types::I16,
        DType::I32 | DType::U32 => types::I32,
        DType::I64 => types::I64,
        DType::F16 | DType::BF16 | DType::F32 => types::F32,
        DType::F64 => types::F64,
    }
}

pub(super) fn float_cc(op: Compare) -> FloatCC {
    match op {
        Compare::Eq => FloatCC::Equal,
        Compare::Ne => FloatCC::NotEqual,
        Compare::Lt => FloatCC::LessThan,
        Compare::Le => FloatCC::LessThanOrEqual,
        Compare::Gt => FloatCC::GreaterThan,
        Compare::Ge => FloatCC::GreaterThanOrEqual,
    }
}

pub(super) fn signed(dtype: DType) -> bool {
    matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64)
}

pub(super) fn int_cc(op: Compare, dtype: DType) -> IntCC {
    let signed = signed(dtype);
    let pick = |s: IntCC, u: IntCC| if signed { s } else { u };
    match op {
        Compare::Eq => IntCC::Equal,
        Compare::Ne => IntCC::NotEqual,
        Compare::Lt => pick(IntCC::SignedLessThan, IntCC::UnsignedLessThan),
        Compare::Le => pick(IntCC::SignedLessThanOrEqual, IntCC::UnsignedLessThanOrEqual),
        Compare::Gt => pick(IntCC::SignedGreaterThan, IntCC::UnsignedGreaterThan),
        Compare::Ge => pick(IntCC::SignedGreaterThanOrEqual, IntCC::UnsignedGreaterThanOrEqual),
    }
}

impl Emitter<'_, '_> {
    /// Reinterprets bits.
    pub(super) fn bitcast(&mut self, ty: ir::Type, x: Value) -> Value {
        if self.b.func.dfg.value_type(x) == ty {
            return x;
        }
        let flags = MemFlagsData::new().with_endianness(ir::Endianness::Little);
        self.b.ins().bitcast(ty, flags, x)
    }

    /// A lane of a vector, as a scalar register holds it.
    pub(super) fn extract(&mut self, dtype: DType, v: Value, lane: u8) -> Value {
        let x = self.b.ins().extractlane(v, lane);
        if dtype == DType::Bool { self.b.ins().icmp_imm_s(IntCC::NotEqual, x, 0) } else { x }
    }

    /// A vector from scalars.
    pub(super) fn pack(&mut self, dtype: DType, lanes: &[Value]) -> Value {
        let lanes: Vec<Value> = lanes.iter().map(|&x| self.lane(dtype, x)).collect();
        let ty = clif_type(RegType { dtype, lanes: 4 });
        let mut v = self.b.ins().scalar_to_vector(ty, lanes[0]);
        for (i, &x) in lanes.iter().enumerate().skip(1) {
            v = self.b.ins().insertlane(v, x, i as u8);
        }
        v
    }

    /// The same scalar in every lane.
    pub(super) fn splat(&mut self, dtype: DType, x: Value) -> Value {
        let x = self.lane(dtype, x);
        self.b.ins().splat(clif_type(RegType { dtype, lanes: 4 }), x)
    }

    /// A scalar as a vector holds it: bools become masks.
    fn lane(&mut self, dtype: DType, x: Value) -> Value {
        if dtype == DType::Bool { self.b.ins().bmask(types::I32, x) } else { x }
    }

    /// Four bytes of 0 or 1 as a mask.
    pub(super) fn mask_from_bytes(&mut self, bytes: Value) -> Value {
        let v = self.b.ins().scalar_to_vector(types::I32X4, bytes);
        let v = self.bitcast(types::I8X16, v);
        let v = self.b.ins().uwiden_low(v);
        let v = self.b.ins().uwiden_low(v);
        self.b.ins().ineg(v)
    }

    /// A mask as four bytes of 0 or 1.
    pub(super) fn bytes_from_mask(&mut self, mask: Value) -> Value {
        let v = self.b.ins().ineg(mask);
        let v = self.b.ins().snarrow(v, v);
        let v = self.b.ins().snarrow(v, v);
        let v = self.bitcast(types::I32X4, v);
        self.b.ins().extractlane(v, 0)
    }

    /// From memory form to register form; f16 and bf16 as 32-bit lanes.
    pub(super) fn widen(&mut self, dtype: DType, raw: Value) -> Value {
        match dtype {
            DType::F16 => {
                let lanes = self.lanes_of(raw);
                expand::widen_f16(&mut Stream { e: self, lanes }, raw)
            }
            DType::BF16 => {
                let lanes = self.lanes_of(raw);
                let bits = self.b.ins().ishl_imm_u(raw, 16);
                self.bitcast(clif_type(RegType { dtype, lanes }), bits)
            }
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U32
            | DType::F32
            | DType::F64 => raw,
        }
    }

    /// From register form to memory form; f16 and bf16 as 32-bit lanes.
    pub(super) fn narrow(&mut self, dtype: DType, x: Value) -> Value {
        match dtype {
            DType::F16 => {
                let lanes = self.lanes_of(x);
                expand::narrow_f16(&mut Stream { e: self, lanes }, x)
            }
            DType::BF16 => {
                let lanes = self.lanes_of(x);
                let bits = self.bitcast(clif_type(RegType { dtype: DType::I32, lanes }), x);
                self.b.ins().ushr_imm_u(bits, 16)
            }
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U32
            | DType::F32
            | DType::F64 => x,
        }
    }

    fn lanes_of(&self, x: Value) -> u8 {
        self.b.func.dfg.value_type(x).lane_count() as u8
    }

    /// The nearest f16 or bf16 to an f32, as f32; other types as they are.
    pub(super) fn round(&mut self, dtype: DType, x: Value) -> Value {
        let lanes = self.lanes_of(x);
        match dtype {
            DType::F16 => expand::round_f16(&mut Stream { e: self, lanes }, x),
            DType::BF16 => expand::round_bf16(&mut Stream { e: self, lanes }, x),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U32
            | DType::F32
            | DType::F64 => x,
        }
    }

    /// Calls a library function.
    pub(super) fn call(&mut self, f: Libcall, args: &[Value]) -> Value {
        let (params, result) = f.signature();
        let mut sig = Signature::new(self.isa.default_call_conv());
        sig.params = params.iter().map(|&d| AbiParam::new(scalar_type(d))).collect();
        sig.returns = vec![AbiParam::new(scalar_type(result))];
        let sig = self.b.import_signature(sig);
        let address = self.b.ins().iconst(types::I64, f.address() as usize as i64);
        let call = self.b.ins().call_indirect(sig, address, args);
        self.b.inst_results(call)[0]
    }

    /// x·y + z on f32, f64 or vectors of f32.
    pub(super) fn fused(&mut self, x: Value, y: Value, z: Value) -> Value {
        if self.fma == FusedMultiply::Native {
            return self.b.ins().fma(x, y, z);
        }
        let ty = self.b.func.dfg.value_type(x);
        let f = if ty == types::F64 { Libcall::FmaF64 } else { Libcall::FmaF32 };
        if ty.lane_count() == 1 {
            return self.call(f, &[x, y, z]);
        }
        let lanes: Vec<Value> = (0..4)
            .map(|i| {
                let args = [x, y, z].map(|v| self.b.ins().extractlane(v, i));
                self.call(f, &args)
            })
            .collect();
        self.pack(DType::F32, &lanes)
    }

    /// Where a comparison holds, the first; on scalars or vectors.
    pub(super) fn choose(&mut self, cond: Value, x: Value, y: Value) -> Value {
        let ty = self.b.func.dfg.value_type(x);
        if ty.lane_count() == 1 {
            return self.b.ins().select(cond, x, y);
        }
        let mask = self.bitcast(ty, cond);
        self.b.ins().bitselect(mask, x, y)
    }
}

/// The instruction stream for expansions on f32, in one or in four lanes.
pub(super) struct Stream<'e, 'a, 'f> {
    pub(super) e: &'e mut Emitter<'a, 'f>,
    pub(super) lanes: u8,
}

impl Stream<'_, '_, '_> {
    fn float(&self) -> ir::Type {
        clif_type(RegType { dtype: DType::F32, lanes: self.lanes })
    }

    fn int(&self) -> ir::Type {
        clif_type(RegType { dtype: DType::I32, lanes: self.lanes })
    }

    /// An integer operation that vectors lack, lane by lane.
    fn each(&mut self, x: Value, y: Value, f: impl Fn(&mut Emitter<'_, '_>, Value, Value) -> Value) -> Value {
        if self.lanes == 1 {
            return f(self.e, x, y);
        }
        let lanes = [0u8, 1, 2, 3].map(|i| {
            let (a, b) = (self.e.b.ins().extractlane(x, i), self.e.b.ins().extractlane(y, i));
            f(self.e, a, b)
        });
        self.e.pack(DType::I32, &lanes)
    }
}

impl Emit for Stream<'_, '_, '_> {
    type V = Value;

    fn f32(&mut self, x: f32) -> Value {
        let c = self.e.b.ins().f32const(x);
        if self.lanes == 1 { c } else { self.e.b.ins().splat(types::F32X4, c) }
    }
    fn i32(&mut self, x: i32) -> Value {
        let c = self.e.b.ins().iconst(types::I32, i64::from(x as u32));
        if self.lanes == 1 { c } else { self.e.b.ins().splat(types::I32X4, c) }
    }
    fn neg(&mut self, x: Value) -> Value {
        self.e.b.ins().fneg(x)
    }
    fn abs(&mut self, x: Value) -> Value {
        self.e.b.ins().fabs(x)
    }
    fn add(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().fadd(x, y)
    }
    fn sub(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().fsub(x, y)
    }
    fn mul(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().fmul(x, y)
    }
    fn div(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().fdiv(x, y)
    }
    fn fma(&mut self, x: Value, y: Value, z: Value) -> Value {
        self.e.fused(x, y, z)
    }
    fn sqrt(&mut self, x: Value) -> Value {
        self.e.b.ins().sqrt(x)
    }
    fn compare(&mut self, op: Compare, x: Value, y: Value) -> Value {
        self.e.b.ins().fcmp(float_cc(op), x, y)
    }
    fn select(&mut self, mask: Value, x: Value, y: Value) -> Value {
        self.e.choose(mask, x, y)
    }
    fn bits(&mut self, x: Value) -> Value {
        let ty = self.int();
        self.e.bitcast(ty, x)
    }
    fn float(&mut self, x: Value) -> Value {
        let ty = Stream::float(self);
        self.e.bitcast(ty, x)
    }
    fn to_float(&mut self, x: Value) -> Value {
        let ty = Stream::float(self);
        self.e.b.ins().fcvt_from_sint(ty, x)
    }
    fn iadd(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().iadd(x, y)
    }
    fn isub(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().isub(x, y)
    }
    fn iand(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().band(x, y)
    }
    fn ior(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().bor(x, y)
    }
    fn shl(&mut self, x: Value, n: u32) -> Value {
        self.e.b.ins().ishl_imm_u(x, i64::from(n))
    }
    fn sar(&mut self, x: Value, n: u32) -> Value {
        self.e.b.ins().sshr_imm_u(x, i64::from(n))
    }
    fn ixor(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().bxor(x, y)
    }
    fn imul(&mut self, x: Value, y: Value) -> Value {
        self.e.b.ins().imul(x, y)
    }
    fn umulhi(&mut self, x: Value, y: Value) -> Value {
        self.each(x, y, |e, x, y| {
            let (x, y) = (e.b.ins().uextend(types::I64, x), e.b.ins().uextend(types::I64, y));
            let product = e.b.ins().imul(x, y);
            let high = e.b.ins().ushr_imm_u(product, 32);
            e.b.ins().ireduce(types::I32, high)
        })
    }
    fn shl_by(&mut self, x: Value, n: Value) -> Value {
        self.each(x, n, |e, x, n| e.b.ins().ishl(x, n))
    }
    fn shr(&mut self, x: Value, n: u32) -> Value {
        self.e.b.ins().ushr_imm_u(x, i64::from(n))
    }
}
