//! One element: a type and its bits.

use crate::DType;
use half::{bf16, f16};
use std::fmt;

/// One element of a given type. Equality and hash are those of the bits, so NaN equals itself and −0 differs from +0.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Scalar {
    dtype: DType,
    bits: u64,
}

impl Scalar {
    /// An element from its bits, low bits first; bits above the type's width are dropped.
    pub fn from_bits(dtype: DType, bits: u64) -> Scalar {
        let width = dtype.size() as u32 * 8;
        let bits = if width == 64 { bits } else { bits & ((1u64 << width) - 1) };
        Scalar { dtype, bits: if dtype == DType::Bool { u64::from(bits != 0) } else { bits } }
    }

    /// The nearest element of `dtype` to `x`: ties to even for floats, saturating truncation for integers, NaN to 0.
    pub fn from_f64(dtype: DType, x: f64) -> Scalar {
        let bits = match dtype {
            DType::Bool => u64::from(x != 0.0),
            DType::I8 => u64::from(x as i8 as u8),
            DType::I16 => u64::from(x as i16 as u16),
            DType::I32 => u64::from(x as i32 as u32),
            DType::I64 => x as i64 as u64,
            DType::U8 => u64::from(x as u8),
            DType::U32 => u64::from(x as u32),
            DType::F16 => u64::from(f16::from_f32(round_to_odd(x)).to_bits()),
            DType::BF16 => u64::from(bf16::from_f32(round_to_odd(x)).to_bits()),
            DType::F32 => u64::from((x as f32).to_bits()),
            DType::F64 => x.to_bits(),
        };
        Scalar { dtype, bits }
    }

    /// The element of `dtype` nearest to the integer `x`; integer types wrap.
    pub fn from_i64(dtype: DType, x: i64) -> Scalar {
        match dtype {
            DType::Bool => Scalar { dtype, bits: u64::from(x != 0) },
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
                Scalar::from_bits(dtype, x as u64)
            }
            DType::F32 => Scalar { dtype, bits: u64::from((x as f32).to_bits()) },
            DType::F16 | DType::BF16 | DType::F64 => Scalar::from_f64(dtype, x as f64),
        }
    }

    /// 0 of a type.
    pub fn zero(dtype: DType) -> Scalar {
        Scalar { dtype, bits: 0 }
    }

    /// 1 of a type.
    pub fn one(dtype: DType) -> Scalar {
        Scalar::from_i64(dtype, 1)
    }

    /// −∞, the least integer, or false.
    pub fn lowest(dtype: DType) -> Scalar {
        if dtype == DType::Bool { Scalar::zero(dtype) } else { Scalar::from_f64(dtype, f64::NEG_INFINITY) }
    }

    /// +∞, the greatest integer, or true.
    pub fn highest(dtype: DType) -> Scalar {
        Scalar::from_f64(dtype, f64::INFINITY)
    }

    /// The element's type.
    pub fn dtype(self) -> DType {
        self.dtype
    }

    /// The element's bits.
    pub fn bits(self) -> u64 {
        self.bits
    }

    /// The value as f64; 64-bit integers round.
    pub fn to_f64(self) -> f64 {
        match self.dtype {
            DType::F16 => f16::from_bits(self.bits as u16).to_f64(),
            DType::BF16 => bf16::from_bits(self.bits as u16).to_f64(),
            DType::F32 => f64::from(f32::from_bits(self.bits as u32)),
            DType::F64 => f64::from_bits(self.bits),
            DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
                self.to_i64() as f64
            }
        }
    }

    /// The value as i64; floats truncate and saturate.
    pub fn to_i64(self) -> i64 {
        match self.dtype {
            DType::Bool | DType::U8 | DType::U32 => self.bits as i64,
            DType::I8 => i64::from(self.bits as u8 as i8),
            DType::I16 => i64::from(self.bits as u16 as i16),
            DType::I32 => i64::from(self.bits as u32 as i32),
            DType::I64 => self.bits as i64,
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => self.to_f64() as i64,
        }
    }

    /// The inverse of `Display`.
    pub fn parse(dtype: DType, word: &str) -> Option<Scalar> {
        if let Some(hex) = word.strip_prefix("0x") {
            return u64::from_str_radix(hex, 16).ok().map(|bits| Scalar::from_bits(dtype, bits));
        }
        match dtype {
            DType::Bool => match word {
                "true" => Some(Scalar::one(dtype)),
                "false" => Some(Scalar::zero(dtype)),
                _ => None,
            },
            DType::F32 => word.parse().ok().map(|x: f32| Scalar::from_bits(dtype, u64::from(x.to_bits()))),
            DType::F16 | DType::BF16 | DType::F64 => word.parse().ok().map(|x| Scalar::from_f64(dtype, x)),
            DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => {
                let x: i64 = word.parse().ok()?;
                let s = Scalar::from_i64(dtype, x);
                (s.to_i64() == x).then_some(s)
            }
        }
    }

    /// Reads an element from little-endian bytes.
    pub fn read(dtype: DType, bytes: &[u8]) -> Scalar {
        let mut raw = [0u8; 8];
        raw[..dtype.size()].copy_from_slice(&bytes[..dtype.size()]);
        Scalar::from_bits(dtype, u64::from_le_bytes(raw))
    }

    /// Writes the element as little-endian bytes.
    pub fn write(self, bytes: &mut [u8]) {
        let n = self.dtype.size();
        bytes[..n].copy_from_slice(&self.bits.to_le_bytes()[..n]);
    }
}

/// `x` as f32 where an inexact result has an odd last bit, so that rounding it again to a type at least two bits
/// narrower gives what rounding `x` once would.
pub(super) fn round_to_odd(x: f64) -> f32 {
    let nearest = x as f32;
    if f64::from(nearest) == x || x.is_nan() {
        return nearest;
    }
    let bits = nearest.to_bits();
    let towards_zero = if f64::from(nearest).abs() > x.abs() { bits - 1 } else { bits };
    f32::from_bits(towards_zero | 1)
}

impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Scalar {
    /// Decimal where it reads back to the same bits, else the bits in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.dtype == DType::Bool {
            return f.write_str(if self.bits != 0 { "true" } else { "false" });
        }
        if !self.dtype.is_float() {
            return write!(f, "{}", self.to_i64());
        }
        let x = self.to_f64();
        if x.is_nan() && *self != Scalar::from_f64(self.dtype, f64::NAN) {
            return write!(f, "{:#x}", self.bits);
        }
        if x.is_nan() {
            return f.write_str("NaN");
        }
        match self.dtype {
            DType::F32 => write!(f, "{:?}", x as f32),
            _ => write!(f, "{x:?}"),
        }
    }
}
