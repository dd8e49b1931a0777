//! Scalar functions that are called rather than expanded: one Rust function each, which the interpreter calls directly
//! and generated code calls by address, so both give the same bits.
//!
//! They come from the `libm` crate, not from the system's library, so results don't depend on the machine.

use super::Scalar;
use super::value::round_to_odd;
use crate::DType;
use half::{bf16, f16};

/// The address and signature of a library function.
#[derive(Clone, Copy, Debug)]
enum Entry {
    F32x2(extern "C" fn(f32, f32) -> f32),
    F32x3(extern "C" fn(f32, f32, f32) -> f32),
    F64(extern "C" fn(f64) -> f64),
    F64x2(extern "C" fn(f64, f64) -> f64),
    F64x3(extern "C" fn(f64, f64, f64) -> f64),
    I64x2(extern "C" fn(i64, i64) -> i64),
    F64Bits(extern "C" fn(f64) -> u32),
}

macro_rules! libcalls {
    ($($variant:ident $symbol:literal $kind:ident ($($arg:ident : $ty:ty),+) -> $ret:ty = $body:expr;)+) => {
        /// A function of the scalar library.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "each is named after the function it calls")]
        pub enum Libcall { $($variant),+ }

        impl Libcall {
            /// Every function, in declaration order.
            pub const ALL: &'static [Libcall] = &[$(Libcall::$variant),+];

            /// The symbol under which generated code finds the function.
            pub fn symbol(self) -> &'static str {
                match self { $(Libcall::$variant => $symbol),+ }
            }

            fn entry(self) -> Entry {
                match self {
                    $(Libcall::$variant => {
                        extern "C" fn call($($arg: $ty),+) -> $ret { $body }
                        Entry::$kind(call)
                    }),+
                }
            }
        }
    };
}

libcalls! {
    // libm answers with a number for some arguments below −1.
    ModF32 "scalar_modf" F32x2 (x: f32, y: f32) -> f32 = floored_mod_f32(x, y);
    FmaF32 "scalar_fmaf" F32x3 (x: f32, y: f32, z: f32) -> f32 = x.mul_add(y, z);
    ExpF64 "scalar_exp" F64 (x: f64) -> f64 = libm::exp(x);
    Expm1F64 "scalar_expm1" F64 (x: f64) -> f64 = libm::expm1(x);
    LogF64 "scalar_log" F64 (x: f64) -> f64 = libm::log(x);
    Log1pF64 "scalar_log1p" F64 (x: f64) -> f64 = libm::log1p(x);
    TanhF64 "scalar_tanh" F64 (x: f64) -> f64 = libm::tanh(x);
    LogisticF64 "scalar_logistic" F64 (x: f64) -> f64 = logistic_f64(x);
    ErfF64 "scalar_erf" F64 (x: f64) -> f64 = libm::erf(x);
    SinF64 "scalar_sin" F64 (x: f64) -> f64 = libm::sin(x);
    CosF64 "scalar_cos" F64 (x: f64) -> f64 = libm::cos(x);
    TanF64 "scalar_tan" F64 (x: f64) -> f64 = libm::tan(x);
    AsinF64 "scalar_asin" F64 (x: f64) -> f64 = libm::asin(x);
    AcosF64 "scalar_acos" F64 (x: f64) -> f64 = libm::acos(x);
    AtanF64 "scalar_atan" F64 (x: f64) -> f64 = libm::atan(x);
    SinhF64 "scalar_sinh" F64 (x: f64) -> f64 = libm::sinh(x);
    CoshF64 "scalar_cosh" F64 (x: f64) -> f64 = libm::cosh(x);
    AsinhF64 "scalar_asinh" F64 (x: f64) -> f64 = libm::asinh(x);
    AcoshF64 "scalar_acosh" F64 (x: f64) -> f64 = if x < 1.0 { f64::NAN } else { libm::acosh(x) };
    AtanhF64 "scalar_atanh" F64 (x: f64) -> f64 = libm::atanh(x);
    PowF64 "scalar_pow" F64x2 (x: f64, y: f64) -> f64 = libm::pow(x, y);
    Atan2F64 "scalar_atan2" F64x2 (y: f64, x: f64) -> f64 = libm::atan2(y, x);
    ModF64 "scalar_mod" F64x2 (x: f64, y: f64) -> f64 = floored_mod_f64(x, y);
    FmaF64 "scalar_fma" F64x3 (x: f64, y: f64, z: f64) -> f64 = x.mul_add(y, z);
    DivI64 "scalar_idiv" I64x2 (x: i64, y: i64) -> i64 = if y == 0 { 0 } else { x.wrapping_div(y) };
    FloorDivI64 "scalar_ifloordiv" I64x2 (x: i64, y: i64) -> i64 = floor_div(x, y);
    ModI64 "scalar_imod" I64x2 (x: i64, y: i64) -> i64 = floored_mod_i64(x, y);
    PowI64 "scalar_ipow" I64x2 (x: i64, y: i64) -> i64 = pow_i64(x, y);
    F64ToF16 "scalar_f64_f16" F64Bits (x: f64) -> u32 = u32::from(f16::from_f32(round_to_odd(x)).to_bits());
    F64ToBf16 "scalar_f64_bf16" F64Bits (x: f64) -> u32 = u32::from(bf16::from_f32(round_to_odd(x)).to_bits());
}

impl Libcall {
    /// The address of the function; it follows the platform's C calling convention.
    pub fn address(self) -> *const u8 {
        match self.entry() {
            Entry::F32x2(f) => f as *const u8,
            Entry::F32x3(f) => f as *const u8,
            Entry::F64(f) => f as *const u8,
            Entry::F64x2(f) => f as *const u8,
            Entry::F64x3(f) => f as *const u8,
            Entry::I64x2(f) => f as *const u8,
            Entry::F64Bits(f) => f as *const u8,
        }
    }

    /// Types of the arguments and of the result.
    pub fn signature(self) -> (&'static [DType], DType) {
        match self.entry() {
            Entry::F32x2(_) => (&[DType::F32; 2], DType::F32),
            Entry::F32x3(_) => (&[DType::F32; 3], DType::F32),
            Entry::F64(_) => (&[DType::F64], DType::F64),
            Entry::F64x2(_) => (&[DType::F64; 2], DType::F64),
            Entry::F64x3(_) => (&[DType::F64; 3], DType::F64),
            Entry::I64x2(_) => (&[DType::I64; 2], DType::I64),
            Entry::F64Bits(_) => (&[DType::F64], DType::U32),
        }
    }

    /// Calls the function on the bits of its arguments, as many as its signature has, and gives the result's bits.
    pub fn call_bits(self, args: [u64; 3]) -> u64 {
        let [a, b, c] = args;
        let single = |bits: u64| f32::from_bits(bits as u32);
        let double = f64::from_bits;
        match self.entry() {
            Entry::F32x2(f) => u64::from(f(single(a), single(b)).to_bits()),
            Entry::F32x3(f) => u64::from(f(single(a), single(b), single(c)).to_bits()),
            Entry::F64(f) => f(double(a)).to_bits(),
            Entry::F64x2(f) => f(double(a), double(b)).to_bits(),
            Entry::F64x3(f) => f(double(a), double(b), double(c)).to_bits(),
            Entry::I64x2(f) => f(a as i64, b as i64) as u64,
            Entry::F64Bits(f) => u64::from(f(double(a))),
        }
    }

    /// Calls the function on elements of its argument types.
    pub fn call(self, args: &[Scalar]) -> Scalar {
        let mut bits = [0; 3];
        for (slot, x) in bits.iter_mut().zip(args) {
            *slot = x.bits();
        }
        Scalar::from_bits(self.signature().1, self.call_bits(bits))
    }
}

fn floored_mod_f32(x: f32, y: f32) -> f32 {
    let r = libm::fmodf(x, y);
    if r == 0.0 {
        return r.copysign(y);
    }
    if (r < 0.0) != (y < 0.0) { r + y } else { r }
}

fn floored_mod_f64(x: f64, y: f64) -> f64 {
    let r = libm::fmod(x, y);
    if r == 0.0 {
        return r.copysign(y);
    }
    if (r < 0.0) != (y < 0.0) { r + y } else { r }
}

fn logistic_f64(x: f64) -> f64 {
    let e = libm::exp(-x.abs());
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

fn floor_div(x: i64, y: i64) -> i64 {
    if y == 0 {
        return 0;
    }
    let q = x.wrapping_div(y);
    if x.wrapping_rem(y) != 0 && (x < 0) != (y < 0) { q - 1 } else { q }
}

fn floored_mod_i64(x: i64, y: i64) -> i64 {
    if y == 0 {
        return 0;
    }
    let r = x.wrapping_rem(y);
    if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
}

fn pow_i64(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1i64, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = result.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        rest >>= 1;
    }
    result
}
