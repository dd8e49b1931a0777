//! Accuracy against `f64` and special values.

use super::*;
use crate::DType;

/// Distance of `got` from the real number `want` in units of the last place of an f32 near `want`.
fn ulps(got: f32, want: f64) -> f64 {
    if want.is_nan() {
        return if got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let nearest = want as f32;
    if f64::from(nearest) == f64::from(got) || (nearest.is_infinite() && got == nearest) {
        return 0.0;
    }
    let exponent = want.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor() as i32;
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// Largest error of `op` over every `step`-th f32, and where it is.
fn worst(op: Unary, step: usize, reference: fn(f64) -> f64) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    let xs: Vec<u32> = (0..=u32::MAX).step_by(step).collect();
    for block in xs.chunks(4096) {
        let x: Vec<f32> = block.iter().map(|&b| f32::from_bits(b)).collect();
        let mut y = vec![0.0; x.len()];
        unary_slice_f32(op, &x, &mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let error = ulps(y, reference(f64::from(x)));
            if error > worst.0 || error.is_nan() {
                worst = (error, x);
            }
        }
    }
    worst
}

fn logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// Checks every 1021st f32; `SCALAR_STEP=1` checks all of them.
#[test]
fn expansions_keep_their_bounds() {
    type Reference = fn(f64) -> f64;
    let cases: [(Unary, f64, Reference); 18] = [
        (Unary::Exp, 1.0, f64::exp),
        (Unary::Expm1, 2.0, f64::exp_m1),
        (Unary::Log, 2.0, f64::ln),
        (Unary::Log1p, 2.0, f64::ln_1p),
        (Unary::Tanh, 2.0, f64::tanh),
        (Unary::Logistic, 2.0, logistic),
        (Unary::Erf, 2.0, libm::erf),
        (Unary::Sin, 1.0, libm::sin),
        (Unary::Cos, 1.0, libm::cos),
        (Unary::Tan, 3.0, libm::tan),
        (Unary::Asin, 2.0, libm::asin),
        (Unary::Acos, 2.0, libm::acos),
        (Unary::Atan, 2.0, libm::atan),
        (Unary::Sinh, 2.0, libm::sinh),
        (Unary::Cosh, 2.0, libm::cosh),
        (Unary::Asinh, 3.0, libm::asinh),
        (Unary::Acosh, 3.0, |x| if x < 1.0 { f64::NAN } else { libm::acosh(x) }),
        (Unary::Atanh, 3.0, libm::atanh),
    ];
    let step = std::env::var("SCALAR_STEP").ok().and_then(|s| s.parse().ok()).unwrap_or(1021);
    let mut report = Vec::new();
    for (op, bound, reference) in cases {
        let (error, x) = worst(op, step, reference);
        report.push((op, error, x, error <= bound));
    }
    assert!(report.iter().all(|r| r.3), "{report:?}");
}

/// Bits that look random.
fn scattered(i: u64) -> u64 {
    let x = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 31).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

/// Any two floats, then bases near 1 and moderate exponents, where the logarithm's last bits count.
fn pairs() -> impl Iterator<Item = (f32, f32)> {
    (0..400_000u64).map(|i| {
        let bits = scattered(i);
        let (x, y) = (f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32));
        let unit = |b: u64| (b & 0xff_ffff) as f32 / 16_777_216.0;
        match i % 4 {
            0 => (x, y),
            1 => (x.abs(), 40.0 * unit(bits >> 40) - 20.0),
            2 => (0.25 + 4.0 * unit(bits), 180.0 * unit(bits >> 40) - 90.0),
            _ => (1.0 + (unit(bits) - 0.5) / 256.0, (unit(bits >> 40) - 0.5) * 60_000.0),
        }
    })
}

#[test]
fn functions_of_two_keep_their_bounds() {
    type Reference = fn(f64, f64) -> f64;
    let cases: [(Binary, f64, Reference); 2] = [(Binary::Pow, 2.0, libm::pow), (Binary::Atan2, 2.0, libm::atan2)];
    for (op, bound, reference) in cases {
        let mut worst = (0.0, 0.0, 0.0);
        for (x, y) in pairs() {
            let [a, b] = [x, y].map(|v| Scalar::from_bits(DType::F32, u64::from(v.to_bits())));
            let got = f32::from_bits(binary(op, a, b).bits() as u32);
            let error = ulps(got, reference(f64::from(x), f64::from(y)));
            if error > worst.0 || error.is_nan() {
                worst = (error, x, y);
            }
        }
        assert!(worst.0 <= bound, "{}: {worst:?}", op.name());
    }
}

/// The table of special cases of IEEE 754 (9.2.1), from libm.
#[test]
fn special_values_of_two() {
    let inf = f32::INFINITY;
    let values = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        2.5,
        -2.5,
        8_388_607.0,
        8_388_608.0,
        16_777_215.0,
        -16_777_215.0,
        16_777_216.0,
        1e30,
        -1e30,
        1e-40,
        -1e-40,
        f32::MAX,
        f32::MIN,
        inf,
        -inf,
        f32::NAN,
    ];
    for (op, reference) in [(Binary::Pow, libm::powf as fn(f32, f32) -> f32), (Binary::Atan2, libm::atan2f)] {
        for x in values {
            for y in values {
                let [a, b] = [x, y].map(|v: f32| Scalar::from_bits(DType::F32, u64::from(v.to_bits())));
                let got = f32::from_bits(binary(op, a, b).bits() as u32);
                let want = reference(x, y);
                let exact = want == 0.0 || want.is_infinite() || want.abs() == 1.0;
                let same = got.to_bits() == want.to_bits()
                    || got.is_nan() && want.is_nan()
                    || !exact && got.signum() == want.signum() && ulps(got, f64::from(want)) <= 2.0;
                assert!(same, "{}({x:?}, {y:?}) = {got:?}, not {want:?}", op.name());
            }
        }
    }
}

#[test]
fn special_values() {
    let nan = f32::NAN;
    let inf = f32::INFINITY;
    let tiny = f32::from_bits(1);
    let cases = [
        (Unary::Exp, -0.0, 1.0),
        (Unary::Exp, inf, inf),
        (Unary::Exp, -inf, 0.0),
        (Unary::Exp, 88.722_83, f32::from_bits(0x7f7f_ff84)),
        (Unary::Exp, 89.0, inf),
        (Unary::Exp, -103.5, tiny),
        (Unary::Expm1, -0.0, -0.0),
        (Unary::Expm1, tiny, tiny),
        (Unary::Expm1, -inf, -1.0),
        (Unary::Expm1, inf, inf),
        (Unary::Log, 0.0, -inf),
        (Unary::Log, -0.0, -inf),
        (Unary::Log, -1.0, nan),
        (Unary::Log, -inf, nan),
        (Unary::Log, inf, inf),
        (Unary::Log, 1.0, 0.0),
        (Unary::Log, tiny, -103.278_93),
        (Unary::Log1p, -1.0, -inf),
        (Unary::Log1p, -2.0, nan),
        (Unary::Log1p, -0.0, -0.0),
        (Unary::Log1p, tiny, tiny),
        (Unary::Log1p, inf, inf),
        (Unary::Tanh, inf, 1.0),
        (Unary::Tanh, -inf, -1.0),
        (Unary::Tanh, -0.0, -0.0),
        (Unary::Tanh, -tiny, -tiny),
        (Unary::Logistic, inf, 1.0),
        (Unary::Logistic, -inf, 0.0),
        (Unary::Logistic, 0.0, 0.5),
        (Unary::Logistic, -0.0, 0.5),
        (Unary::Erf, inf, 1.0),
        (Unary::Erf, -inf, -1.0),
        (Unary::Erf, -0.0, -0.0),
        (Unary::Sin, -0.0, -0.0),
        (Unary::Sin, tiny, tiny),
        (Unary::Sin, inf, nan),
        (Unary::Cos, -0.0, 1.0),
        (Unary::Cos, -inf, nan),
        (Unary::Tan, -0.0, -0.0),
        (Unary::Tan, inf, nan),
        (Unary::Asin, -0.0, -0.0),
        (Unary::Asin, 1.0, std::f32::consts::FRAC_PI_2),
        (Unary::Asin, 1.5, nan),
        (Unary::Acos, 1.0, 0.0),
        (Unary::Acos, -1.0, std::f32::consts::PI),
        (Unary::Acos, -inf, nan),
        (Unary::Atan, -0.0, -0.0),
        (Unary::Atan, -inf, -std::f32::consts::FRAC_PI_2),
        (Unary::Sinh, -0.0, -0.0),
        (Unary::Sinh, tiny, tiny),
        (Unary::Sinh, -inf, -inf),
        (Unary::Cosh, -inf, inf),
        (Unary::Cosh, 0.0, 1.0),
        (Unary::Asinh, -0.0, -0.0),
        (Unary::Asinh, -inf, -inf),
        (Unary::Acosh, 1.0, 0.0),
        (Unary::Acosh, 0.5, nan),
        (Unary::Acosh, -3.0, nan),
        (Unary::Acosh, inf, inf),
        (Unary::Atanh, -0.0, -0.0),
        (Unary::Atanh, 1.0, inf),
        (Unary::Atanh, -1.0, -inf),
        (Unary::Atanh, 2.0, nan),
        (Unary::Sign, -0.0, -0.0),
        (Unary::Sign, -3.0, -1.0),
        (Unary::Round, 2.5, 2.0),
        (Unary::Round, -0.5, -0.0),
        (Unary::Rsqrt, 4.0, 0.5),
    ];
    for (op, x, want) in cases {
        let y = unary(op, Scalar::from_f64(DType::F32, f64::from(x)));
        let same = y.to_f64().is_nan() && want.is_nan() || y.bits() == u64::from(want.to_bits());
        assert!(same, "{}({x:?}) = {y}, not {want:?}", op.name());
    }
    for &op in Unary::ALL {
        let y = unary(op, Scalar::from_f64(DType::F32, f64::NAN));
        assert!(y.dtype() == DType::Bool || op == Unary::Not || y.to_f64().is_nan(), "{}(nan) = {y}", op.name());
    }
}

#[test]
fn slices_and_elements_agree() {
    let x: Vec<f32> = (0..10_007u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
    let mut y = vec![0.0; x.len()];
    for &op in Unary::ALL {
        if matches!(op, Unary::IsNan | Unary::IsFinite | Unary::Not) {
            continue;
        }
        unary_slice_f32(op, &x, &mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let one = unary(op, Scalar::from_f64(DType::F32, f64::from(x)));
            assert!(one.bits() as u32 == y.to_bits() || (y.is_nan() && one.to_f64().is_nan()), "{}({x:?})", op.name());
        }
    }
}

fn int(dtype: DType, x: i64) -> Scalar {
    Scalar::from_i64(dtype, x)
}

#[test]
fn integers() {
    let cases = [
        (Binary::Add, DType::I8, 127, 1, -128),
        (Binary::Mul, DType::U8, 16, 17, 16),
        (Binary::Sub, DType::U32, 0, 1, 0xffff_ffff),
        (Binary::Div, DType::I32, -7, 2, -3),
        (Binary::Div, DType::I32, i64::from(i32::MIN), -1, i64::from(i32::MIN)),
        (Binary::Div, DType::I32, 5, 0, 0),
        (Binary::FloorDiv, DType::I32, -7, 2, -4),
        (Binary::Mod, DType::I32, -7, 2, 1),
        (Binary::Mod, DType::I32, 7, -2, -1),
        (Binary::Mod, DType::I32, 7, 0, 0),
        (Binary::Pow, DType::I32, 3, 5, 243),
        (Binary::Pow, DType::I32, -1, -3, -1),
        (Binary::Pow, DType::I32, 2, -1, 0),
        (Binary::Pow, DType::I64, 0, 0, 1),
        (Binary::Shl, DType::I32, 1, 31, i64::from(i32::MIN)),
        (Binary::Shl, DType::I32, 1, 32, 0),
        (Binary::Shl, DType::I32, 1, -1, 0),
        (Binary::Shr, DType::I32, -8, 1, -4),
        (Binary::Shr, DType::I32, -8, 40, -1),
        (Binary::Shr, DType::U32, 0xffff_fff0, 4, 0x0fff_ffff),
        (Binary::Shr, DType::U8, 200, 9, 0),
        (Binary::Max, DType::U32, 0xffff_ffff, 1, 0xffff_ffff),
        (Binary::Min, DType::I8, -128, 3, -128),
    ];
    for (op, dtype, x, y, want) in cases {
        let got = binary(op, int(dtype, x), int(dtype, y));
        assert_eq!(got, int(dtype, want), "{}({x}, {y}) of {dtype}", op.name());
    }
}

#[test]
fn float_extremes() {
    let f = |x: f64| Scalar::from_f64(DType::F32, x);
    assert_eq!(binary(Binary::Max, f(-0.0), f(0.0)), f(0.0));
    assert_eq!(binary(Binary::Max, f(0.0), f(-0.0)), f(0.0));
    assert_eq!(binary(Binary::Min, f(0.0), f(-0.0)), f(-0.0));
    assert!(binary(Binary::Max, f(f64::NAN), f(1.0)).to_f64().is_nan());
    assert!(binary(Binary::Min, f(1.0), f(f64::NAN)).to_f64().is_nan());
    assert_eq!(binary(Binary::Mod, f(-7.5), f(2.0)), f(0.5));
    assert_eq!(binary(Binary::FloorDiv, f(-7.5), f(2.0)), f(-4.0));
    assert!(!compare(Compare::Eq, f(f64::NAN), f(f64::NAN)));
    assert!(compare(Compare::Ne, f(f64::NAN), f(f64::NAN)));
    assert!(compare(Compare::Eq, f(-0.0), f(0.0)));
}

#[test]
fn casts() {
    let f = |x: f64| Scalar::from_f64(DType::F32, x);
    assert_eq!(cast(DType::I8, f(-300.0)), int(DType::I8, -128));
    assert_eq!(cast(DType::U8, f(-1.0)), int(DType::U8, 0));
    assert_eq!(cast(DType::I32, f(f64::NAN)), int(DType::I32, 0));
    assert_eq!(cast(DType::I32, f(-1.9)), int(DType::I32, -1));
    assert_eq!(cast(DType::Bool, f(f64::NAN)), Scalar::one(DType::Bool));
    assert_eq!(cast(DType::Bool, f(-0.0)), Scalar::zero(DType::Bool));
    assert_eq!(cast(DType::U8, int(DType::I32, -1)), int(DType::U8, 255));
    assert_eq!(cast(DType::F32, int(DType::I64, (1 << 24) + 1)).to_f64(), f64::from(1 << 24));
    assert_eq!(cast(DType::BF16, f(1.003_906_25)).to_f64(), 1.0);
    // Just above half way between two f16: one rounding must go up, two would tie to even.
    let above_tie = Scalar::from_f64(DType::F64, 1.0 + 2f64.powi(-11) + 2f64.powi(-40));
    assert_eq!(cast(DType::F16, above_tie).to_f64(), 1.0 + 2f64.powi(-10));
}

/// All f16 and the f32 between and beside them, against the `half` crate.
#[test]
fn narrow_types_in_lanes() {
    use super::expand::{narrow_f16, round_bf16, round_f16, widen_f16};
    use super::lanes::Lanes;
    let (mut one, single) = (Lanes::<1>, |x: f32| [x.to_bits()]);
    let same = |got: u32, want: f32, what: &str| {
        let got = f32::from_bits(got);
        assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{what}: {got} and {want}");
    };
    for bits in 0..=u16::MAX {
        let value = half::f16::from_bits(bits).to_f32();
        let wide = widen_f16(&mut one, [u32::from(bits)]);
        same(wide[0], value, "widened");
        let back = narrow_f16(&mut one, wide)[0];
        assert!(back == u32::from(bits) || value.is_nan() && half::f16::from_bits(back as u16).is_nan(), "{bits:x}");
        // Ties and their neighbours, and the ends of the range.
        let spacing = [0x0fff, 0x1000, 0x1001, 0x1800, 1, 0x1fff];
        for x in spacing.map(|d| f32::from_bits(value.to_bits().wrapping_add(d))).into_iter().chain([value]) {
            same(round_f16(&mut one, single(x))[0], half::f16::from_f32(x).to_f32(), "f16");
        }
        let value = half::bf16::from_bits(bits).to_f32();
        for x in [0, 0x7fff, 0x8000, 0x8001, 0xffff].map(|d| f32::from_bits(value.to_bits().wrapping_add(d))) {
            same(round_bf16(&mut one, single(x))[0], half::bf16::from_f32(x).to_f32(), "bf16");
            same(round_f16(&mut one, single(x))[0], half::f16::from_f32(x).to_f32(), "f16");
        }
    }
    for i in 0..100_000u32 {
        // Around the subnormals of f16.
        let x = f32::from_bits(0x3000_0000 + i.wrapping_mul(2_654_435_761) % 0x0a00_0000);
        same(round_f16(&mut one, single(-x))[0], half::f16::from_f32(-x).to_f32(), "f16");
    }
}
