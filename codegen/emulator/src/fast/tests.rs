//! The vectorised forms against the scalar definitions.

use super::*;
use crate::float::Round;
use crate::scalar::{Approx, Convert, FloatOp, IntOp, Mods, Scalar};
use crate::types::{Kind, Ty};

const MODS: Mods = Mods { round: Round::Nearest, flush: false, saturate: false, relu: false };

fn registers() -> (Regs, [Reg; 3], [Reg; 3]) {
    let mut regs = Regs::new();
    let narrow = [(); 3].map(|()| regs.fresh(Class::W32));
    let wide = [(); 3].map(|()| regs.fresh(Class::W64));
    (regs, narrow, wide)
}

/// Runs `fast` on random and on special values and compares every lane with the scalar definition.
fn agree(scalar: Scalar, regs: [Reg; 3], file: &mut Regs, fast: impl Fn(&mut Regs, u32)) {
    let mut x = 0x1234_5678_9abc_def1u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let special = [0, 1, 31, 32, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x0000_0001, 0x3f80_0000];
        match x >> 60 {
            0..=5 => special[(x >> 8) as usize % special.len()],
            _ => x,
        }
    };
    let d = file.fresh(regs[0].class);
    for _ in 0..2000 {
        regs.iter().for_each(|&r| file.fill(r, |_| random()));
        fast(file, d.slot);
        for lane in 0..32 {
            let [a, b, c] = regs.map(|r| file.get(r, lane));
            let wanted = scalar.eval(a, b, c);
            assert_eq!(file.get(d, lane), wanted, "{scalar:?} {a:#x} {b:#x} {c:#x}");
        }
    }
}

#[test]
fn fast_and_scalar_definitions_agree() {
    let (mut file, narrow, wide) = registers();
    let (signed, unsigned) = (Ty::new(Kind::Signed, 32), Ty::U32);
    let float = |op| Scalar::Float(op, Ty::F32, MODS);
    let convert = |to, from| Scalar::Convert(Convert { to, from, mods: MODS, integral: false });
    let mods = Mods { round: Round::Away, ..MODS };
    let away = Scalar::Convert(Convert { to: Ty::new(Kind::Tf32, 32), from: Ty::F32, mods, integral: false });
    let table = [
        (Fast32::Add, Scalar::Int(IntOp::Add, unsigned)),
        (Fast32::Sub, Scalar::Int(IntOp::Sub, unsigned)),
        (Fast32::MulLow, Scalar::Int(IntOp::MulLow, signed)),
        (Fast32::MadLow, Scalar::Int(IntOp::MadLow, unsigned)),
        (Fast32::And, Scalar::Int(IntOp::And, unsigned)),
        (Fast32::Or, Scalar::Int(IntOp::Or, unsigned)),
        (Fast32::Xor, Scalar::Int(IntOp::Xor, unsigned)),
        (Fast32::ShiftLeft, Scalar::Int(IntOp::ShiftLeft, unsigned)),
        (Fast32::ShiftRight, Scalar::Int(IntOp::ShiftRight, unsigned)),
        (Fast32::ShiftRightSigned, Scalar::Int(IntOp::ShiftRight, signed)),
        (Fast32::FAdd, float(FloatOp::Add)),
        (Fast32::FSub, float(FloatOp::Sub)),
        (Fast32::FMul, float(FloatOp::Mul)),
        (Fast32::Fma, float(FloatOp::Fma)),
        (Fast32::FMin, float(FloatOp::Min { nan: false })),
        (Fast32::FMax, float(FloatOp::Max { nan: false })),
        (Fast32::FMinNan, float(FloatOp::Min { nan: true })),
        (Fast32::FMaxNan, float(FloatOp::Max { nan: true })),
        (Fast32::MulHigh, Scalar::Int(IntOp::MulHigh, unsigned)),
        (Fast32::MulHighSigned, Scalar::Int(IntOp::MulHigh, signed)),
        (Fast32::Not, Scalar::Int(IntOp::Not, unsigned)),
        (Fast32::Negate, Scalar::Int(IntOp::Neg, signed)),
        (Fast32::FNegate, float(FloatOp::Neg)),
        (Fast32::FAbs, float(FloatOp::Abs)),
        (Fast32::FDiv, float(FloatOp::Div)),
        (Fast32::FSqrt, float(FloatOp::Sqrt)),
        (Fast32::FRcp, float(FloatOp::Rcp)),
        (Fast32::ToBrains, convert(Ty { packed: true, ..Ty::BF16 }, Ty::F32)),
        (Fast32::ToBrain, convert(Ty::BF16, Ty::F32)),
        (Fast32::FromBrain, convert(Ty::F32, Ty::BF16)),
        (Fast32::FromHalf, convert(Ty::F32, Ty::F16)),
        (Fast32::ToTf32, away),
        (Fast32::Rsqrt, Scalar::Approx(Approx::Rsqrt, Ty::F32, MODS)),
        (Fast32::FromSigned, convert(Ty::F32, signed)),
        (Fast32::FromUnsigned, convert(Ty::F32, unsigned)),
        (Fast32::Min, Scalar::Int(IntOp::Min, unsigned)),
        (Fast32::Max, Scalar::Int(IntOp::Max, unsigned)),
        (Fast32::MinSigned, Scalar::Int(IntOp::Min, signed)),
        (Fast32::MaxSigned, Scalar::Int(IntOp::Max, signed)),
    ];
    for (fast, scalar) in table {
        let slots = narrow.map(|r| r.slot);
        agree(scalar, narrow, &mut file, |regs, d| run32(fast, regs, d, slots, u32::MAX));
    }
    let table = [
        (Fast64::Add, IntOp::Add),
        (Fast64::Sub, IntOp::Sub),
        (Fast64::MulLow, IntOp::MulLow),
        (Fast64::MadLow, IntOp::MadLow),
        (Fast64::And, IntOp::And),
        (Fast64::Or, IntOp::Or),
        (Fast64::Xor, IntOp::Xor),
        (Fast64::MulHigh, IntOp::MulHigh),
        (Fast64::Min, IntOp::Min),
        (Fast64::Max, IntOp::Max),
        (Fast64::MinSigned, IntOp::Min),
        (Fast64::MaxSigned, IntOp::Max),
    ];
    for (fast, op) in table {
        let slots = wide.map(|r| r.slot);
        let signed = matches!(fast, Fast64::MinSigned | Fast64::MaxSigned);
        let ty = if signed { Ty::new(Kind::Signed, 64) } else { Ty::U64 };
        agree(Scalar::Int(op, ty), wide, &mut file, |regs, d| run64(fast, regs, d, slots, u32::MAX));
    }
}

#[test]
fn inactive_lanes_keep_their_values() {
    let (mut file, [a, b, d], _) = registers();
    file.fill(a, |lane| lane as u64);
    file.fill(b, |_| 100);
    file.fill(d, |_| 7);
    run32(Fast32::Add, &mut file, d.slot, [a.slot, b.slot, 0], 0x0000_ff00);
    for lane in 0..32 {
        assert_eq!(file.get(d, lane), if (8..16).contains(&lane) { 100 + lane as u64 } else { 7 });
    }
}
