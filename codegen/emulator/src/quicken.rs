//! Picks the vectorised form of frequent operations.

use crate::fast::{Fast32, Fast64};
use crate::float::Round;
use crate::op::{Class, Op, Reg, Shift};
use crate::scalar::{Approx, Convert, FloatOp, IntOp, Mods, Scalar};
use crate::types::{Kind, Ty};

/// Stands where an operation takes fewer than three operands.
pub(crate) const ZERO: Reg = Reg { class: Class::W32, slot: 0 };

/// Replaces frequent operations by their vectorised form.
pub(crate) fn quicken(f: Scalar, d: Reg, src: [Reg; 3]) -> Op {
    let slots = src.map(|r| r.slot);
    let plain = |m: Mods| m.round == Round::Nearest && !m.flush && !m.saturate && !m.relu;
    let (narrow, wide) = match f {
        Scalar::Int(op, ty) if ty.bits == 32 && !ty.packed => (narrow_int(op, ty), None),
        Scalar::Int(op, ty) if ty.bits == 64 => (None, wide_int(op, ty)),
        Scalar::Float(op, ty, m) if ty == Ty::F32 && plain(m) => (narrow_float(op), None),
        Scalar::Float(op, ty, m) if ty == Ty::F64 && plain(m) => (None, wide_float(op)),
        Scalar::Approx(Approx::Rsqrt, Ty::F32, m) if plain(m) => (Some(Fast32::Rsqrt), None),
        Scalar::Convert(Convert { to, from: Ty::F32, mods, integral: false })
            if to.kind == Kind::Tf32 && plain(Mods { round: Round::Nearest, ..mods }) && mods.round == Round::Away =>
        {
            (Some(Fast32::ToTf32), None)
        }
        Scalar::Convert(convert) if plain(convert.mods) && !convert.integral => (conversion(convert), None),
        _ => (None, None),
    };
    if let (Scalar::Int(IntOp::MulWide | IntOp::MadWide, ty), Class::W64) = (f, d.class)
        && ty.bits == 32
    {
        return Op::Wide { signed: ty.is_signed(), d: d.slot, a: slots[0], b: slots[1], c: slots[2] };
    }
    if let (Scalar::Int(op @ (IntOp::ShiftLeft | IntOp::ShiftRight), ty), Class::W64) = (f, d.class) {
        let f = match (op, ty.is_signed()) {
            (IntOp::ShiftLeft, _) => Shift::Left,
            (_, true) => Shift::RightSigned,
            (_, false) => Shift::Right,
        };
        return Op::Shift64 { f, d: d.slot, a: slots[0], by: slots[1] };
    }
    match (narrow, wide) {
        (Some(f), _) => Op::Fast32 { f, d: d.slot, src: slots },
        (_, Some(f)) => Op::Fast64 { f, d: d.slot, src: slots },
        _ => Op::Scalar { f, d, src },
    }
}

fn narrow_int(op: IntOp, ty: Ty) -> Option<Fast32> {
    Some(match op {
        IntOp::Add => Fast32::Add,
        IntOp::Sub => Fast32::Sub,
        IntOp::MulLow => Fast32::MulLow,
        IntOp::MadLow => Fast32::MadLow,
        IntOp::And => Fast32::And,
        IntOp::Or => Fast32::Or,
        IntOp::Xor => Fast32::Xor,
        IntOp::ShiftLeft => Fast32::ShiftLeft,
        IntOp::ShiftRight if ty.is_signed() => Fast32::ShiftRightSigned,
        IntOp::ShiftRight => Fast32::ShiftRight,
        IntOp::MulHigh if ty.is_signed() => Fast32::MulHighSigned,
        IntOp::MulHigh => Fast32::MulHigh,
        IntOp::Not => Fast32::Not,
        IntOp::Neg => Fast32::Negate,
        IntOp::Min if ty.is_signed() => Fast32::MinSigned,
        IntOp::Max if ty.is_signed() => Fast32::MaxSigned,
        IntOp::Min => Fast32::Min,
        IntOp::Max => Fast32::Max,
        _ => return None,
    })
}

fn wide_int(op: IntOp, ty: Ty) -> Option<Fast64> {
    Some(match op {
        IntOp::Add => Fast64::Add,
        IntOp::Sub => Fast64::Sub,
        IntOp::MulLow => Fast64::MulLow,
        IntOp::MadLow => Fast64::MadLow,
        IntOp::And => Fast64::And,
        IntOp::Or => Fast64::Or,
        IntOp::Xor => Fast64::Xor,
        IntOp::MulHigh if !ty.is_signed() => Fast64::MulHigh,
        IntOp::Min if ty.is_signed() => Fast64::MinSigned,
        IntOp::Max if ty.is_signed() => Fast64::MaxSigned,
        IntOp::Min => Fast64::Min,
        IntOp::Max => Fast64::Max,
        _ => return None,
    })
}

fn narrow_float(op: FloatOp) -> Option<Fast32> {
    Some(match op {
        FloatOp::Add => Fast32::FAdd,
        FloatOp::Sub => Fast32::FSub,
        FloatOp::Mul => Fast32::FMul,
        FloatOp::Fma => Fast32::Fma,
        FloatOp::Min { nan: false } => Fast32::FMin,
        FloatOp::Max { nan: false } => Fast32::FMax,
        FloatOp::Min { nan: true } => Fast32::FMinNan,
        FloatOp::Max { nan: true } => Fast32::FMaxNan,
        FloatOp::Neg => Fast32::FNegate,
        FloatOp::Abs => Fast32::FAbs,
        FloatOp::Div => Fast32::FDiv,
        FloatOp::Sqrt => Fast32::FSqrt,
        FloatOp::Rcp => Fast32::FRcp,
        FloatOp::CopySign => return None,
    })
}

fn wide_float(op: FloatOp) -> Option<Fast64> {
    Some(match op {
        FloatOp::Add => Fast64::FAdd,
        FloatOp::Sub => Fast64::FSub,
        FloatOp::Mul => Fast64::FMul,
        FloatOp::Fma => Fast64::Fma,
        _ => return None,
    })
}

/// Conversions with a vectorised form; those from integers of 32 bits must not be saturated or partial.
fn conversion(c: Convert) -> Option<Fast32> {
    Some(match (c.to, c.from) {
        (Ty { packed: true, kind: Kind::Brain, .. }, Ty::F32) => Fast32::ToBrains,
        (Ty::BF16, Ty::F32) => Fast32::ToBrain,
        (Ty::F32, Ty::BF16) => Fast32::FromBrain,
        (Ty::F32, Ty::F16) => Fast32::FromHalf,
        (Ty::F32, Ty { kind: Kind::Signed, bits: 32, packed: false }) => Fast32::FromSigned,
        (Ty::F32, Ty::U32) => Fast32::FromUnsigned,
        _ => return None,
    })
}

/// Conversions between 32-bit and 64-bit integers as what they are, sums and copies.
pub(crate) fn widen(c: Convert, d: Reg, a: Reg) -> Op {
    let whole = |t: Ty| !t.is_float() && matches!(t.bits, 32 | 64);
    if whole(c.to) && whole(c.from) && !c.mods.saturate {
        match (a.class, d.class) {
            (Class::W32, Class::W64) if c.from.bits == 32 && c.to.bits == 64 => {
                return Op::Extend { signed: c.from.is_signed(), d: d.slot, a: a.slot };
            }
            (Class::W64, Class::W32) if c.from.bits == 64 && c.to.bits == 32 => {
                return Op::Truncate { d: d.slot, a: a.slot };
            }
            _ => {}
        }
    }
    Op::Scalar { f: Scalar::Convert(c), d, src: [a, ZERO, ZERO] }
}
