//! The scalar table on floats.

use super::EmitError;
use super::elementary;
use super::emit::Emitter;
use super::range::{Interval, of_type};
use super::stream::Stream;
use super::text::{Agreement, Class, Value, When, float, int, literal, long};
use intwain_ir::DType;
use intwain_ir::scalar::expand;
use intwain_ir::scalar::{self, Binary, Compare, Scalar, Unary};

/// The type in which floats are computed.
fn arithmetic(dtype: DType) -> (Class, &'static str) {
    match dtype {
        DType::F64 => (Class::Double, "f64"),
        _ => (Class::Float, "f32"),
    }
}

impl Emitter<'_> {
    /// f16 and bf16 as f32; other floats as they are.
    pub(super) fn widen(&mut self, dtype: DType, x: Value) -> Value {
        if let (DType::F16 | DType::BF16, Some(k)) = (dtype, Self::element(dtype, x)) {
            return literal(scalar::cast(DType::F32, k));
        }
        match dtype {
            DType::F16 => self.t.op(Class::Float, "cvt.f32.f16", &[x]),
            DType::BF16 => {
                let bits = self.t.op(Class::Int, "cvt.u32.u16", &[x]);
                let high = self.t.op(Class::Int, "shl.b32", &[bits, int(16)]);
                self.t.op(Class::Float, "mov.b32", &[high])
            }
            _ => x,
        }
    }

    /// From f32 to the form of f16 and bf16; other floats as they are.
    pub(super) fn narrow(&mut self, dtype: DType, x: Value) -> Value {
        let code = match dtype {
            DType::F16 => "cvt.rn.f16.f32",
            DType::BF16 => "cvt.rn.bf16.f32",
            _ => return x,
        };
        let x = self.t.in_reg(x);
        let half = self.t.op(Class::Half, code, &[x]);
        self.rounded.insert(half, (dtype, x));
        half
    }

    /// A function of one element.
    pub(super) fn unary(&mut self, op: Unary, dtype: DType, x: Value) -> Result<Value, EmitError> {
        if let Some(k) = Self::element(dtype, x) {
            return Ok(literal(scalar::unary(op, k)));
        }
        if !dtype.is_float() {
            return Ok(self.unary_int(op, dtype, x));
        }
        // These two work on bits, so that they keep those of NaN.
        match op {
            Unary::Neg => return Ok(self.on_bits("xor", dtype, x, 1 << (dtype.size() * 8 - 1))),
            Unary::Abs => return Ok(self.on_bits("and", dtype, x, (1 << (dtype.size() * 8 - 1)) - 1)),
            _ => {}
        }
        let v = self.widen(dtype, x);
        let y = self.unary_float(op, dtype, v)?;
        Ok(if op.result(dtype) == DType::Bool { y } else { self.narrow(dtype, y) })
    }

    fn on_bits(&mut self, op: &str, dtype: DType, x: Value, mask: u64) -> Value {
        match dtype {
            DType::F16 | DType::BF16 => {
                self.t.op(Class::Half, &format!("{op}.b16"), &[x, Value::Literal(Class::Half, mask)])
            }
            DType::F64 => {
                let bits = self.t.op(Class::Long, "mov.b64", &[x]);
                let bits = self.t.op(Class::Long, &format!("{op}.b64"), &[bits, long(mask as i64)]);
                self.t.op(Class::Double, "mov.b64", &[bits])
            }
            _ => {
                let bits = self.t.op(Class::Int, "mov.b32", &[x]);
                let bits = self.t.op(Class::Int, &format!("{op}.b32"), &[bits, int(mask as u32 as i32)]);
                self.t.op(Class::Float, "mov.b32", &[bits])
            }
        }
    }

    fn unary_float(&mut self, op: Unary, dtype: DType, v: Value) -> Result<Value, EmitError> {
        let (class, ty) = arithmetic(dtype);
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let k = |x: f64| literal(Scalar::from_f64(wide, x));
        Ok(match op {
            Unary::IsNan => self.t.op(Class::Pred, &format!("setp.nan.{ty}"), &[v, v]),
            Unary::IsFinite => {
                let magnitude = self.t.op(class, &format!("abs.{ty}"), &[v]);
                self.t.op(Class::Pred, &format!("setp.lt.{ty}"), &[magnitude, k(f64::INFINITY)])
            }
            Unary::Sign => {
                let above = self.t.op(Class::Pred, &format!("setp.gt.{ty}"), &[v, k(0.0)]);
                let below = self.t.op(Class::Pred, &format!("setp.lt.{ty}"), &[v, k(0.0)]);
                let y = self.select(above, k(1.0), v);
                self.select(below, k(-1.0), y)
            }
            Unary::Exp if class == Class::Float => elementary::exp(self, v),
            Unary::Sqrt if class == Class::Float => elementary::root(self, v),
            Unary::Rsqrt if class == Class::Float => elementary::reciprocal_root(self, v),
            Unary::Sqrt => self.t.op(class, &format!("sqrt.rn.{ty}"), &[v]),
            Unary::Rsqrt => {
                let root = self.t.op(class, &format!("sqrt.rn.{ty}"), &[v]);
                self.t.op(class, &format!("rcp.rn.{ty}"), &[root])
            }
            Unary::Floor => self.t.op(class, &format!("cvt.rmi.{ty}.{ty}"), &[v]),
            Unary::Ceil => self.t.op(class, &format!("cvt.rpi.{ty}.{ty}"), &[v]),
            Unary::Round => self.t.op(class, &format!("cvt.rni.{ty}.{ty}"), &[v]),
            Unary::Trunc => self.t.op(class, &format!("cvt.rzi.{ty}.{ty}"), &[v]),
            _ if dtype == DType::F64 => return Err(self.unsupported(format!("{} of f64", op.name()))),
            _ => {
                let y = expand::unary_f32(&mut Stream::new(self), op, v);
                return y.ok_or_else(|| self.unsupported(op.name()));
            }
        })
    }

    /// A function of two elements.
    pub(super) fn binary(&mut self, op: Binary, dtype: DType, x: Value, y: Value) -> Result<Value, EmitError> {
        self.binary_in_range(op, dtype, x, y, of_type(dtype))
    }

    /// The same where more is known of an integer x than its type.
    pub(super) fn binary_in_range(
        &mut self,
        op: Binary,
        dtype: DType,
        x: Value,
        y: Value,
        range: Interval,
    ) -> Result<Value, EmitError> {
        if let (Some(a), Some(b)) = (Self::element(dtype, x), Self::element(dtype, y)) {
            return Ok(literal(scalar::binary(op, a, b)));
        }
        if dtype == DType::Bool {
            return Ok(self.binary_bool(op, x, y));
        }
        if !dtype.is_float() {
            return self.binary_int(op, dtype, x, y, range);
        }
        // What reductions begin with adds nothing.
        let neutral = match op {
            Binary::Add => Some(Scalar::from_f64(dtype, -0.0)),
            Binary::Max => Some(Scalar::lowest(dtype)),
            Binary::Min => Some(Scalar::highest(dtype)),
            _ => None,
        };
        if neutral.is_some_and(|n| Self::element(dtype, x).is_some_and(|x| x.bits() == n.bits())) {
            return Ok(y);
        }
        let (a, b) = (self.widen(dtype, x), self.widen(dtype, y));
        let z = self.binary_float(op, dtype, a, b)?;
        Ok(self.narrow(dtype, z))
    }

    fn binary_float(&mut self, op: Binary, dtype: DType, a: Value, b: Value) -> Result<Value, EmitError> {
        let (class, ty) = arithmetic(dtype);
        let code = match op {
            Binary::Add => "add.rn",
            Binary::Sub => "sub.rn",
            Binary::Mul => "mul.rn",
            Binary::Div if a == float(1.0) => return Ok(elementary::reciprocal(self, b)),
            Binary::Div => "div.rn",
            Binary::FloorDiv => {
                let q = self.t.op(class, &format!("div.rn.{ty}"), &[a, b]);
                return Ok(self.t.op(class, &format!("cvt.rmi.{ty}.{ty}"), &[q]));
            }
            Binary::Max | Binary::Min => return Ok(self.extremum(op, class, ty, a, b)),
            Binary::Pow | Binary::Atan2 if dtype != DType::F64 => {
                let y = expand::binary_f32(&mut Stream::new(self), op, a, b);
                return y.ok_or_else(|| self.unsupported(op.name()));
            }
            Binary::Mod if dtype != DType::F64 => return Ok(self.modulo(a, b)),
            Binary::Mod
            | Binary::Pow
            | Binary::Atan2
            | Binary::And
            | Binary::Or
            | Binary::Xor
            | Binary::Shl
            | Binary::Shr => return Err(self.unsupported(format!("{} of {dtype}", op.name()))),
        };
        Ok(self.t.op(class, &format!("{code}.{ty}"), &[a, b]))
    }

    fn extremum(&mut self, op: Binary, class: Class, ty: &str, a: Value, b: Value) -> Value {
        let name = if op == Binary::Max { "max" } else { "min" };
        if class == Class::Float {
            return self.t.op(class, &format!("{name}.NaN.f32"), &[a, b]);
        }
        // There is no such form for f64: where an operand is NaN, so is the sum.
        let y = self.t.op(class, &format!("{name}.{ty}"), &[a, b]);
        let nan = self.t.op(Class::Pred, &format!("setp.nan.{ty}"), &[a, b]);
        let sum = self.t.op(class, &format!("add.rn.{ty}"), &[a, b]);
        self.select(nan, sum, y)
    }

    /// x − y·⌊x/y⌋ of f32: the exact remainder by integer division, 32 bits of the quotient a trip, then its sign.
    fn modulo(&mut self, x: Value, y: Value) -> Value {
        let (x, y) = (self.t.in_reg(x), self.t.in_reg(y));
        let ([mx, ex], [my, ey]) = (self.parts(x), self.parts(y));
        // Without a finite x and a y other than 0 the loop isn't to run.
        let magnitudes = [x, y].map(|v| self.t.op(Class::Float, "abs.f32", &[v]));
        let finite = self.t.op(Class::Pred, "setp.lt.f32", &[magnitudes[0], float(f32::INFINITY)]);
        let nonzero = self.t.op(Class::Pred, "setp.gt.f32", &[magnitudes[1], float(0.0)]);
        let defined = self.t.op(Class::Pred, "and.pred", &[finite, nonzero]);
        let divisor = self.select(defined, my, int(1));
        let divisor = self.t.op(Class::Long, "cvt.u64.u32", &[divisor]);
        let smaller = self.t.op(Class::Pred, "setp.lt.f32", &[magnitudes[0], magnitudes[1]]);
        let (left, r) = (self.t.fresh(Class::Int), self.t.fresh(Class::Long));
        self.t.to(left, "sub.s32", &[ex, ey]);
        let start = self.t.op(Class::Long, "cvt.u64.u32", &[mx]);
        self.t.to(r, "rem.u64", &[start, divisor]);
        let (again, done) = (self.t.label("remainder"), self.t.label("remaindered"));
        self.t.mark(&again);
        let none = self.t.op(Class::Pred, "setp.le.s32", &[left, int(0)]);
        self.t.jump_if(none, When::True, Agreement::Divergent, &done);
        let step = self.t.op(Class::Int, "min.s32", &[left, int(32)]);
        let raised = self.t.op(Class::Long, "shl.b64", &[r, step]);
        self.t.to(r, "rem.u64", &[raised, divisor]);
        self.t.to(left, "sub.s32", &[left, step]);
        self.t.jump(&again);
        self.t.place(&done);
        // r · 2^(ey − 150), which is exact; the power may be subnormal.
        let low = self.t.op(Class::Int, "cvt.u32.u64", &[r]);
        let whole = self.t.op(Class::Float, "cvt.rn.f32.u32", &[low]);
        let below = self.t.op(Class::Int, "add.s32", &[ey, int(-1)]);
        let subnormal = self.t.op(Class::Int, "shl.b32", &[int(1), below]);
        let biased = self.t.op(Class::Int, "add.s32", &[ey, int(-23)]);
        let normal = self.t.op(Class::Int, "shl.b32", &[biased, int(23)]);
        let is_normal = self.t.op(Class::Pred, "setp.gt.s32", &[biased, int(0)]);
        let bits = self.select(is_normal, normal, subnormal);
        let scale = self.t.op(Class::Float, "mov.b32", &[bits]);
        let rest = self.t.op(Class::Float, "mul.rn.f32", &[whole, scale]);
        let rest = self.select(smaller, magnitudes[0], rest);
        let rest = self.select(defined, rest, float(f32::NAN));
        self.floored(x, y, rest)
    }

    /// From the magnitude of a truncated remainder to that of a floored one.
    fn floored(&mut self, x: Value, y: Value, magnitude: Value) -> Value {
        let r = self.with_sign(magnitude, x);
        let zero = self.t.op(Class::Pred, "setp.eq.f32", &[r, float(0.0)]);
        let (a, b) = (
            self.t.op(Class::Pred, "setp.lt.f32", &[r, float(0.0)]),
            self.t.op(Class::Pred, "setp.lt.f32", &[y, float(0.0)]),
        );
        let differ = self.t.op(Class::Pred, "xor.pred", &[a, b]);
        let sum = self.t.op(Class::Float, "add.rn.f32", &[r, y]);
        let z = self.select(differ, sum, r);
        let signed = self.with_sign(r, y);
        let z = self.select(zero, signed, z);
        let nan = self.t.op(Class::Pred, "setp.nan.f32", &[y, y]);
        self.select(nan, y, z)
    }

    /// The magnitude of x with the sign of another.
    fn with_sign(&mut self, x: Value, sign: Value) -> Value {
        let [x, sign] = [x, sign].map(|v| self.t.op(Class::Int, "mov.b32", &[v]));
        let magnitude = self.t.op(Class::Int, "and.b32", &[x, int(i32::MAX)]);
        let sign = self.t.op(Class::Int, "and.b32", &[sign, int(i32::MIN)]);
        let bits = self.t.op(Class::Int, "or.b32", &[magnitude, sign]);
        self.t.op(Class::Float, "mov.b32", &[bits])
    }

    /// m and e with |x| = m · 2^(e − 150), e ≥ 1.
    fn parts(&mut self, x: Value) -> [Value; 2] {
        let bits = self.t.op(Class::Int, "mov.b32", &[x]);
        let bits = self.t.op(Class::Int, "and.b32", &[bits, int(i32::MAX)]);
        let exponent = self.t.op(Class::Int, "shr.u32", &[bits, int(23)]);
        let fraction = self.t.op(Class::Int, "and.b32", &[bits, int(0x007f_ffff)]);
        let normal = self.t.op(Class::Int, "or.b32", &[fraction, int(0x0080_0000)]);
        let subnormal = self.t.op(Class::Pred, "setp.eq.s32", &[exponent, int(0)]);
        let m = self.select(subnormal, fraction, normal);
        [m, self.t.op(Class::Int, "max.s32", &[exponent, int(1)])]
    }

    pub(super) fn fma_float(&mut self, dtype: DType, x: Value, y: Value, z: Value) -> Value {
        let (class, ty) = arithmetic(dtype);
        let [x, y, z] = [x, y, z].map(|v| self.widen(dtype, v));
        let sum = self.t.op(class, &format!("fma.rn.{ty}"), &[x, y, z]);
        self.narrow(dtype, sum)
    }

    /// A comparison; a predicate.
    pub(super) fn compare(&mut self, op: Compare, dtype: DType, x: Value, y: Value) -> Value {
        if let (Some(a), Some(b)) = (Self::element(dtype, x), Self::element(dtype, y)) {
            return Value::Literal(Class::Pred, u64::from(scalar::compare(op, a, b)));
        }
        if dtype == DType::Bool {
            return self.compare_bool(op, x, y);
        }
        if !dtype.is_float() {
            return self.compare_int(op, dtype, x, y);
        }
        let (_, ty) = arithmetic(dtype);
        let (a, b) = (self.widen(dtype, x), self.widen(dtype, y));
        // Only this one holds for NaN.
        let name = if op == Compare::Ne { "neu" } else { op.name() };
        self.t.op(Class::Pred, &format!("setp.{name}.{ty}"), &[a, b])
    }

    /// f32 to bf16 goes through `narrow`; f64 first becomes an f32 with an odd last bit where that is inexact, so that
    /// the second rounding gives what one would.
    pub(super) fn odd_single(&mut self, x: Value) -> Value {
        let down = self.t.op(Class::Float, "cvt.rz.f32.f64", &[x]);
        let back = self.t.op(Class::Double, "cvt.f64.f32", &[down]);
        let inexact = self.t.op(Class::Pred, "setp.ne.f64", &[back, x]);
        let bits = self.t.op(Class::Int, "mov.b32", &[down]);
        let odd = self.t.op(Class::Int, "or.b32", &[bits, int(1)]);
        let bits = self.select(inexact, odd, bits);
        self.t.op(Class::Float, "mov.b32", &[bits])
    }
}

/// The literals that bool becomes.
pub(super) fn truth(dtype: DType) -> [Value; 2] {
    match dtype {
        DType::F32 => [float(1.0), float(0.0)],
        _ => [literal(Scalar::one(dtype)), literal(Scalar::zero(dtype))],
    }
}
