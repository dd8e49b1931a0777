//! Evaluation of the scalar table: the meaning of every operation, executable.
//!
//! f16 and bf16 are computed in f32 and rounded. Integers wrap. A NaN result is some NaN: its sign and payload are not
//! part of the meaning, except that `neg`, `abs`, `select` and moves keep the bits. Operations that a type doesn't
//! have ([`Unary::accepts`], [`Binary::accepts`]) go through f64 and are cast back; verifiers refuse them earlier.

use super::{Binary, Compare, Libcall, Scalar, Unary, lanes};
use crate::DType;

fn single(x: Scalar) -> f32 {
    x.to_f64() as f32
}

fn from_single(dtype: DType, x: f32) -> Scalar {
    match dtype {
        DType::F16 => Scalar::from_bits(dtype, u64::from(half::f16::from_f32(x).to_bits())),
        DType::BF16 => Scalar::from_bits(dtype, u64::from(half::bf16::from_f32(x).to_bits())),
        DType::Bool
        | DType::I8
        | DType::I16
        | DType::I32
        | DType::I64
        | DType::U8
        | DType::U32
        | DType::F32
        | DType::F64 => Scalar::from_f64(dtype, f64::from(x)),
    }
}

impl Unary {
    /// Whether the operation exists for elements of type `dtype`.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            Unary::Neg | Unary::Abs | Unary::Sign => dtype != DType::Bool,
            Unary::Not => !dtype.is_float(),
            Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc | Unary::IsNan | Unary::IsFinite => {
                dtype != DType::Bool
            }
            Unary::Sqrt
            | Unary::Rsqrt
            | Unary::Exp
            | Unary::Expm1
            | Unary::Log
            | Unary::Log1p
            | Unary::Tanh
            | Unary::Logistic
            | Unary::Erf
            | Unary::Sin
            | Unary::Cos
            | Unary::Tan
            | Unary::Asin
            | Unary::Acos
            | Unary::Atan
            | Unary::Sinh
            | Unary::Cosh
            | Unary::Asinh
            | Unary::Acosh
            | Unary::Atanh => dtype.is_float(),
        }
    }
}

impl Binary {
    /// Whether the operation exists for elements of type `dtype`.
    pub fn accepts(self, dtype: DType) -> bool {
        match self {
            Binary::Add | Binary::Mul | Binary::Max | Binary::Min => true,
            Binary::Sub | Binary::Div | Binary::FloorDiv | Binary::Mod | Binary::Pow => dtype != DType::Bool,
            Binary::Atan2 => dtype.is_float(),
            Binary::And | Binary::Or | Binary::Xor => !dtype.is_float(),
            Binary::Shl | Binary::Shr => dtype.is_int(),
        }
    }
}

/// `op` on one f32.
pub(super) fn unary_single(op: Unary, x: f32) -> f32 {
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => sign(f64::from(x)) as f32,
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Not => f32::from(u8::from(x == 0.0)),
        Unary::IsNan => f32::from(u8::from(x.is_nan())),
        Unary::IsFinite => f32::from(u8::from(x.is_finite())),
        Unary::Exp
        | Unary::Expm1
        | Unary::Log
        | Unary::Log1p
        | Unary::Tanh
        | Unary::Logistic
        | Unary::Erf
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Asin
        | Unary::Acos
        | Unary::Atan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Asinh
        | Unary::Acosh
        | Unary::Atanh => lanes::unary_one(op, x).expect("expansions cover every function that isn't native"),
    }
}

fn unary_double(op: Unary, x: f64) -> f64 {
    let call = |f: Libcall| f64::from_bits(f.call_bits([x.to_bits(), 0, 0]));
    match op {
        Unary::Neg => -x,
        Unary::Abs => x.abs(),
        Unary::Sign => sign(x),
        Unary::Sqrt => x.sqrt(),
        Unary::Rsqrt => 1.0 / x.sqrt(),
        Unary::Floor => x.floor(),
        Unary::Ceil => x.ceil(),
        Unary::Round => x.round_ties_even(),
        Unary::Trunc => x.trunc(),
        Unary::Not => f64::from(u8::from(x == 0.0)),
        Unary::IsNan => f64::from(u8::from(x.is_nan())),
        Unary::IsFinite => f64::from(u8::from(x.is_finite())),
        Unary::Exp => call(Libcall::ExpF64),
        Unary::Expm1 => call(Libcall::Expm1F64),
        Unary::Log => call(Libcall::LogF64),
        Unary::Log1p => call(Libcall::Log1pF64),
        Unary::Tanh => call(Libcall::TanhF64),
        Unary::Logistic => call(Libcall::LogisticF64),
        Unary::Erf => call(Libcall::ErfF64),
        Unary::Sin => call(Libcall::SinF64),
        Unary::Cos => call(Libcall::CosF64),
        Unary::Tan => call(Libcall::TanF64),
        Unary::Asin => call(Libcall::AsinF64),
        Unary::Acos => call(Libcall::AcosF64),
        Unary::Atan => call(Libcall::AtanF64),
        Unary::Sinh => call(Libcall::SinhF64),
        Unary::Cosh => call(Libcall::CoshF64),
        Unary::Asinh => call(Libcall::AsinhF64),
        Unary::Acosh => call(Libcall::AcoshF64),
        Unary::Atanh => call(Libcall::AtanhF64),
    }
}

fn sign(x: f64) -> f64 {
    if x == 0.0 || x.is_nan() { x } else { 1f64.copysign(x) }
}

/// The value of `op` on `x`.
pub fn unary(op: Unary, x: Scalar) -> Scalar {
    let dtype = x.dtype();
    match op {
        Unary::IsNan => return Scalar::from_bits(DType::Bool, u64::from(x.to_f64().is_nan())),
        Unary::IsFinite => return Scalar::from_bits(DType::Bool, u64::from(x.to_f64().is_finite())),
        Unary::Neg if dtype.is_float() => return Scalar::from_bits(dtype, x.bits() ^ sign_bit(dtype)),
        Unary::Abs if dtype.is_float() => return Scalar::from_bits(dtype, x.bits() & !sign_bit(dtype)),
        _ => {}
    }
    match dtype {
        DType::F32 => Scalar::from_bits(dtype, u64::from(unary_single(op, f32::from_bits(x.bits() as u32)).to_bits())),
        DType::F16 | DType::BF16 => from_single(dtype, unary_single(op, single(x))),
        DType::F64 => Scalar::from_bits(dtype, unary_double(op, f64::from_bits(x.bits())).to_bits()),
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => unary_integer(op, x),
    }
}

fn sign_bit(dtype: DType) -> u64 {
    1 << (dtype.size() * 8 - 1)
}

fn unary_integer(op: Unary, x: Scalar) -> Scalar {
    let dtype = x.dtype();
    match op {
        Unary::Neg => Scalar::from_bits(dtype, x.bits().wrapping_neg()),
        Unary::Abs => Scalar::from_bits(dtype, x.to_i64().wrapping_abs() as u64),
        Unary::Sign => Scalar::from_bits(dtype, x.to_i64().signum() as u64),
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc => x,
        Unary::Not if dtype == DType::Bool => Scalar::from_bits(dtype, u64::from(x.bits() == 0)),
        Unary::Not => Scalar::from_bits(dtype, !x.bits()),
        _ => Scalar::from_f64(dtype, unary_double(op, x.to_f64())),
    }
}

/// The value of `op` on `x` and `y`, which have one type.
pub fn binary(op: Binary, x: Scalar, y: Scalar) -> Scalar {
    let dtype = x.dtype();
    match dtype {
        DType::F32 => {
            let [x, y] = [x, y].map(|v| f32::from_bits(v.bits() as u32));
            Scalar::from_bits(dtype, u64::from(binary_single(op, x, y).to_bits()))
        }
        DType::F16 | DType::BF16 => from_single(dtype, binary_single(op, single(x), single(y))),
        DType::F64 => {
            Scalar::from_bits(dtype, binary_double(op, f64::from_bits(x.bits()), f64::from_bits(y.bits())).to_bits())
        }
        DType::Bool => {
            let (x, y) = (x.bits() != 0, y.bits() != 0);
            Scalar::from_bits(dtype, u64::from(binary_bool(op, x, y)))
        }
        DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => binary_integer(op, x, y),
    }
}

/// `op` on two f32.
pub(super) fn binary_single(op: Binary, x: f32, y: f32) -> f32 {
    let call = |f: Libcall| f32::from_bits(f.call_bits([u64::from(x.to_bits()), u64::from(y.to_bits()), 0]) as u32);
    match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::FloorDiv => (x / y).floor(),
        Binary::Mod => call(Libcall::ModF32),
        Binary::Max => maximum(f64::from(x), f64::from(y)) as f32,
        Binary::Min => minimum(f64::from(x), f64::from(y)) as f32,
        Binary::Pow | Binary::Atan2 => lanes::binary_one(op, x, y).expect("these are expansions"),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            binary_integer(op, Scalar::from_f64(DType::I64, f64::from(x)), Scalar::from_f64(DType::I64, f64::from(y)))
                .to_f64() as f32
        }
    }
}

fn binary_double(op: Binary, x: f64, y: f64) -> f64 {
    let call = |f: Libcall| f64::from_bits(f.call_bits([x.to_bits(), y.to_bits(), 0]));
    match op {
        Binary::Add => x + y,
        Binary::Sub => x - y,
        Binary::Mul => x * y,
        Binary::Div => x / y,
        Binary::FloorDiv => (x / y).floor(),
        Binary::Mod => call(Libcall::ModF64),
        Binary::Max => maximum(x, y),
        Binary::Min => minimum(x, y),
        Binary::Pow => call(Libcall::PowF64),
        Binary::Atan2 => call(Libcall::Atan2F64),
        Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
            binary_integer(op, Scalar::from_f64(DType::I64, x), Scalar::from_f64(DType::I64, y)).to_f64()
        }
    }
}

/// IEEE 754-2019 maximum.
fn maximum(x: f64, y: f64) -> f64 {
    if x > y || (x == y && x.is_sign_positive()) || x.is_nan() { x } else { y }
}

/// IEEE 754-2019 minimum.
fn minimum(x: f64, y: f64) -> f64 {
    if x < y || (x == y && x.is_sign_negative()) || x.is_nan() { x } else { y }
}

fn binary_bool(op: Binary, x: bool, y: bool) -> bool {
    match op {
        Binary::Add | Binary::Max | Binary::Or => x | y,
        Binary::Mul | Binary::Min | Binary::And => x & y,
        Binary::Sub | Binary::Xor => x ^ y,
        Binary::Div | Binary::FloorDiv => x & y,
        Binary::Pow => x | !y,
        Binary::Mod | Binary::Atan2 | Binary::Shl | Binary::Shr => x & !y,
    }
}

fn binary_integer(op: Binary, x: Scalar, y: Scalar) -> Scalar {
    let dtype = x.dtype();
    let (a, b) = (x.to_i64(), y.to_i64());
    let call = |f: Libcall| f.call_bits([a as u64, b as u64, 0]) as i64;
    let bits = dtype.size() as u32 * 8;
    // A shift count is the unsigned value of its bits, so negative counts shift everything out.
    let count = if y.bits() >= u64::from(bits) { bits } else { y.bits() as u32 };
    let result = match op {
        Binary::Add => a.wrapping_add(b),
        Binary::Sub => a.wrapping_sub(b),
        Binary::Mul => a.wrapping_mul(b),
        Binary::Div => call(Libcall::DivI64),
        Binary::FloorDiv => call(Libcall::FloorDivI64),
        Binary::Mod => call(Libcall::ModI64),
        Binary::Max => a.max(b),
        Binary::Min => a.min(b),
        Binary::Pow => call(Libcall::PowI64),
        Binary::And => a & b,
        Binary::Or => a | b,
        Binary::Xor => a ^ b,
        Binary::Shl => a.checked_shl(count).unwrap_or(0),
        Binary::Shr => a >> count.min(63),
        Binary::Atan2 => return Scalar::from_f64(dtype, libm::atan2(a as f64, b as f64)),
    };
    Scalar::from_bits(dtype, result as u64)
}

/// Whether `x` and `y`, of one type, compare as `op` says.
pub fn compare(op: Compare, x: Scalar, y: Scalar) -> bool {
    fn holds<T: PartialOrd>(op: Compare, x: T, y: T) -> bool {
        match op {
            Compare::Eq => x == y,
            Compare::Ne => x != y,
            Compare::Lt => x < y,
            Compare::Le => x <= y,
            Compare::Gt => x > y,
            Compare::Ge => x >= y,
        }
    }
    if x.dtype().is_float() { holds(op, x.to_f64(), y.to_f64()) } else { holds(op, x.to_i64(), y.to_i64()) }
}

/// x·y + z with one rounding, in f32 for f16 and bf16; integers wrap.
pub fn fma(x: Scalar, y: Scalar, z: Scalar) -> Scalar {
    let dtype = x.dtype();
    match dtype {
        DType::F32 => {
            let [x, y, z] = [x, y, z].map(|v| f32::from_bits(v.bits() as u32));
            Scalar::from_bits(dtype, u64::from(x.mul_add(y, z).to_bits()))
        }
        DType::F16 | DType::BF16 => from_single(dtype, single(x).mul_add(single(y), single(z))),
        DType::F64 => {
            let [x, y, z] = [x, y, z].map(|v| f64::from_bits(v.bits()));
            Scalar::from_bits(dtype, x.mul_add(y, z).to_bits())
        }
        DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
            binary(Binary::Add, binary(Binary::Mul, x, y), z)
        }
    }
}

/// `x` as an element of `dtype`.
///
/// Float to integer truncates and saturates, NaN becomes 0. Anything to bool is x ≠ 0, so NaN is true. Integers convert
/// to integers by wrapping, to f32 and f64 by rounding to nearest even, to f16 and bf16 through f32. Floats convert to
/// floats by rounding to nearest even, once.
pub fn cast(dtype: DType, x: Scalar) -> Scalar {
    let from = x.dtype();
    if from == dtype {
        return x;
    }
    if dtype == DType::Bool {
        return Scalar::from_bits(dtype, u64::from(if from.is_float() { x.to_f64() != 0.0 } else { x.bits() != 0 }));
    }
    match (from.is_float(), dtype.is_float()) {
        (true, _) => Scalar::from_f64(dtype, x.to_f64()),
        (false, true) if dtype == DType::F64 => Scalar::from_f64(dtype, x.to_i64() as f64),
        (false, true) => from_single(dtype, x.to_i64() as f32),
        (false, false) => Scalar::from_bits(dtype, x.to_i64() as u64),
    }
}
