//! What every arithmetic instruction computes, for one lane: the definition that `fast` only accelerates.
//!
//! Values are held zero-extended in 64 bits. Integer division by zero gives all ones, the remainder the dividend, as
//! current hardware does (PTX ISA 9.7.1.8 leaves it open).

use crate::float::Round;
use crate::scalar_float::{approx, float_op};
use crate::types::Ty;

/// Operations on one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Int(IntOp, Ty),
    Float(FloatOp, Ty, Mods),
    Approx(Approx, Ty, Mods),
    Convert(Convert),
}

/// Integer, logic and bit operations (PTX ISA 9.7.1, 9.7.8, 9.7.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IntOp {
    Add,
    AddSaturated,
    Sub,
    SubSaturated,
    MulLow,
    MulHigh,
    MulWide,
    MadLow,
    MadHigh,
    MadWide,
    Mul24Low,
    Sad,
    Div,
    Rem,
    Abs,
    Neg,
    Min,
    Max,
    And,
    Or,
    Xor,
    Not,
    CNot,
    ShiftLeft,
    ShiftRight,
    Lop3(u8),
    Extract,
    /// Takes its position and length from one operand, `length << 32 | position`.
    Insert,
    Count,
    LeadingZeros,
    Reverse,
    FindHigh {
        shift: bool,
    },
    Permute,
    FunnelLeft {
        wrap: bool,
    },
    FunnelRight {
        wrap: bool,
    },
}

/// Floating-point operations defined exactly (PTX ISA 9.7.3, 9.7.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FloatOp {
    Add,
    Sub,
    Mul,
    Fma,
    Div,
    Sqrt,
    Rcp,
    Min { nan: bool },
    Max { nan: bool },
    Abs,
    Neg,
    CopySign,
}

/// Functions the ISA bounds instead of defining. Computed in f64 and rounded once: within the bound, the same everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Approx {
    Rsqrt,
    Ex2,
    Lg2,
    Sin,
    Cos,
    Tanh,
}

/// Modifiers of floating-point operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mods {
    pub(crate) round: Round,
    pub(crate) flush: bool,
    pub(crate) saturate: bool,
    pub(crate) relu: bool,
}

/// `cvt`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Convert {
    pub(crate) to: Ty,
    pub(crate) from: Ty,
    pub(crate) mods: Mods,
    /// `.rni`, `.rzi`, `.rmi`, `.rpi`: round to an integral value.
    pub(crate) integral: bool,
}

/// Comparisons; the float forms ending in `u` also hold when an operand is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Compare {
    pub(crate) less: bool,
    pub(crate) equal: bool,
    pub(crate) greater: bool,
    pub(crate) unordered: bool,
    pub(crate) flush: bool,
}

/// Functions of predicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BoolOp {
    And,
    Or,
    Xor,
}

pub(crate) fn keep(v: u64, bits: u32) -> u64 {
    if bits >= 64 { v } else { v & ((1 << bits) - 1) }
}

fn signed(v: u64, bits: u32) -> i64 {
    (v << (64 - bits)) as i64 >> (64 - bits)
}

/// The integer of type `ty` that `v` holds.
pub(crate) fn integer(v: u64, ty: Ty) -> i128 {
    if ty.is_signed() { i128::from(signed(v, ty.bits)) } else { i128::from(keep(v, ty.bits)) }
}

pub(crate) fn clamp(v: i128, ty: Ty) -> u64 {
    let (low, high) = match ty.is_signed() {
        true => (-(1i128 << (ty.bits - 1)), (1i128 << (ty.bits - 1)) - 1),
        false => (0, (1i128 << ty.bits) - 1),
    };
    keep(v.clamp(low, high) as u64, ty.bits)
}

impl Scalar {
    /// Computes one lane.
    pub(crate) fn eval(self, a: u64, b: u64, c: u64) -> u64 {
        match self {
            Scalar::Int(op, ty) => int(op, ty, a, b, c),
            Scalar::Float(op, ty, mods) => packed(ty, |ty, a, b, c| float_op(op, ty, mods, a, b, c), a, b, c),
            Scalar::Approx(f, ty, mods) => packed(ty, |ty, a, _, _| approx(f, ty, mods, a), a, b, c),
            Scalar::Convert(convert) => convert.eval(a, b),
        }
    }
}

fn packed(ty: Ty, f: impl Fn(Ty, u64, u64, u64) -> u64, a: u64, b: u64, c: u64) -> u64 {
    if !ty.packed {
        return f(ty, a, b, c);
    }
    let one = Ty { packed: false, ..ty };
    f(one, a & 0xffff, b & 0xffff, c & 0xffff) | f(one, a >> 16, b >> 16, c >> 16) << 16
}

fn int(op: IntOp, ty: Ty, a: u64, b: u64, c: u64) -> u64 {
    let n = ty.bits;
    let (x, y, z) = (integer(a, ty), integer(b, ty), integer(c, ty));
    let wide = || x * y;
    let shift = || (b & 0xffff_ffff).min(127) as u32;
    let result = match op {
        IntOp::Add => a.wrapping_add(b),
        IntOp::AddSaturated => clamp(x + y, ty),
        IntOp::Sub => a.wrapping_sub(b),
        IntOp::SubSaturated => clamp(x - y, ty),
        IntOp::MulLow => a.wrapping_mul(b),
        IntOp::MulHigh if ty.is_signed() => (wide() >> n) as u64,
        IntOp::MulHigh => ((x as u128 * y as u128) >> n) as u64,
        IntOp::MulWide => return keep(wide() as u64, 2 * n),
        IntOp::MadLow => a.wrapping_mul(b).wrapping_add(c),
        IntOp::MadHigh if ty.is_signed() => ((wide() >> n) as u64).wrapping_add(c),
        IntOp::MadHigh => (((x as u128 * y as u128) >> n) as u64).wrapping_add(c),
        IntOp::MadWide => return keep((wide() as u64).wrapping_add(c), 2 * n),
        IntOp::Mul24Low => match ty.is_signed() {
            true => signed(a, 24).wrapping_mul(signed(b, 24)) as u64,
            false => keep(a, 24).wrapping_mul(keep(b, 24)),
        },
        IntOp::Sad => ((x - y).abs() + z) as u64,
        IntOp::Div => x.checked_div(y).unwrap_or(-1) as u64,
        IntOp::Rem => x.checked_rem(y).unwrap_or(x) as u64,
        IntOp::Abs => x.unsigned_abs() as u64,
        IntOp::Neg => a.wrapping_neg(),
        IntOp::Min => x.min(y) as u64,
        IntOp::Max => x.max(y) as u64,
        IntOp::And => a & b,
        IntOp::Or => a | b,
        IntOp::Xor => a ^ b,
        IntOp::Not => !a,
        IntOp::CNot => u64::from(a == 0),
        IntOp::ShiftLeft => {
            if shift() >= n {
                0
            } else {
                a << shift()
            }
        }
        IntOp::ShiftRight => (x >> shift()) as u64,
        IntOp::Lop3(table) => lop3(table, a, b, c),
        IntOp::Extract => extract(ty, a, (b & 0xff) as u32, (c & 0xff) as u32),
        IntOp::Insert => {
            let (position, length) = ((c & 0xff) as u32, ((c >> 32) & 0xff) as u32);
            let field = if position >= n { 0 } else { keep(u64::MAX, length) << position };
            b & !field | if position >= n { 0 } else { a << position & field }
        }
        IntOp::Count => return u64::from(a.count_ones()),
        IntOp::LeadingZeros => return u64::from(keep(a, n).leading_zeros() - (64 - n)),
        IntOp::Reverse => a.reverse_bits() >> (64 - n),
        IntOp::FindHigh { shift } => {
            let probe = if x < 0 { !x as u64 } else { x as u64 };
            let high = 63u64.wrapping_sub(u64::from(probe.leading_zeros()));
            return keep(
                if probe == 0 {
                    u64::MAX
                } else if shift {
                    u64::from(n) - 1 - high
                } else {
                    high
                },
                32,
            );
        }
        IntOp::Permute => permute(a, b, c),
        IntOp::FunnelLeft { wrap } => {
            let by = if wrap { c & 31 } else { (c & 0xffff_ffff).min(32) };
            (b << 32 | a) << by >> 32
        }
        IntOp::FunnelRight { wrap } => (b << 32 | a) >> if wrap { c & 31 } else { (c & 0xffff_ffff).min(32) },
    };
    keep(result, n)
}

fn lop3(table: u8, a: u64, b: u64, c: u64) -> u64 {
    (0..8u32).filter(|i| table >> i & 1 == 1).fold(0, |all, i| {
        let pick = |v: u64, bit: u32| if i >> bit & 1 == 1 { v } else { !v };
        all | pick(a, 2) & pick(b, 1) & pick(c, 0)
    })
}

/// `bfe` (9.7.1.19): bits past the top repeat the sign bit, or 0 for unsigned types.
fn extract(ty: Ty, a: u64, position: u32, length: u32) -> u64 {
    let msb = ty.bits - 1;
    let sign_at = (position + length.max(1) - 1).min(msb);
    let sign = ty.is_signed() && length > 0 && a >> sign_at & 1 == 1;
    (0..ty.bits).fold(0, |out, i| {
        let bit = if i < length && position + i <= msb { a >> (position + i) & 1 == 1 } else { sign };
        out | u64::from(bit) << i
    })
}

/// `prmt` in its default mode (9.7.9.7).
fn permute(a: u64, b: u64, selector: u64) -> u64 {
    let bytes = (b << 32 | a & 0xffff_ffff).to_le_bytes();
    (0..4).fold(0, |out, i| {
        let nibble = (selector >> (4 * i)) as usize & 0xf;
        let byte = bytes[nibble & 7];
        let byte = if nibble & 8 != 0 { (byte as i8 >> 7) as u8 } else { byte };
        out | u64::from(byte) << (8 * i)
    })
}
