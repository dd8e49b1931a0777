//! Expansions: transcendental functions written once in terms of primitive instructions.
//!
//! An expansion is a function generic over [`Emit`]. The interpreter implements [`Emit`] on numbers (`lanes`),
//! a code generator on the values of its instruction stream, so both compute the same bits because they run the same
//! instructions. Every instruction is correctly rounded IEEE 754 arithmetic on f32 or wrapping arithmetic on 32-bit
//! integers, never contracted, reassociated or flushed to zero.
//!
//! Error bounds over all finite arguments, in units in the last place of the result (tested in `tests`):
//! exp, sin and cos 1; expm1, log, log1p, tanh, logistic, erf, asin, acos, atan, atan2, sinh, cosh and pow 2; tan,
//! asinh, acosh and atanh 3. Polynomials are minimax fits, leading coefficients rounded to f32 first. NaN gives NaN;
//! infinities and signed zeros give the limits. On GPUs exp alone is another sequence, with a bound of its own.
//!
//! The remainder of a division is a call ([`Libcall`]), and so are all functions of f64. f16 and bf16 go through f32.

mod hyperbolic;
mod narrow;
mod power;
mod trig;

pub use narrow::{narrow_f16, round_bf16, round_f16, widen_f16};

use super::{Binary, Compare, Libcall, Unary};
use crate::DType;

/// An instruction stream on 32-bit lanes. A value holds an f32, an i32 or the outcome of a comparison.
pub trait Emit {
    /// A value, possibly of several lanes.
    type V: Copy;

    /// The same f32 in every lane.
    fn f32(&mut self, x: f32) -> Self::V;
    /// The same i32 in every lane.
    fn i32(&mut self, x: i32) -> Self::V;
    /// −x.
    fn neg(&mut self, x: Self::V) -> Self::V;
    /// |x|.
    fn abs(&mut self, x: Self::V) -> Self::V;
    /// x + y.
    fn add(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x − y.
    fn sub(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x · y.
    fn mul(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x / y.
    fn div(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x · y + z, rounded once.
    fn fma(&mut self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// √x.
    fn sqrt(&mut self, x: Self::V) -> Self::V;
    /// Comparison of two f32.
    fn compare(&mut self, op: Compare, x: Self::V, y: Self::V) -> Self::V;
    /// x where the comparison `mask` holds, else y.
    fn select(&mut self, mask: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The bits of an f32 as i32.
    fn bits(&mut self, x: Self::V) -> Self::V;
    /// The f32 with the bits of an i32.
    fn float(&mut self, x: Self::V) -> Self::V;
    /// The nearest f32 to an i32.
    fn to_float(&mut self, x: Self::V) -> Self::V;
    /// Integer sum.
    fn iadd(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Integer difference.
    fn isub(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Bitwise and.
    fn iand(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Bitwise or.
    fn ior(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Bitwise exclusive or.
    fn ixor(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Low half of an integer product.
    fn imul(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// High half of the product of two unsigned numbers.
    fn umulhi(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// Left shift by a number that is below 32 in each lane.
    fn shl_by(&mut self, x: Self::V, n: Self::V) -> Self::V;
    /// Logical right shift by `n` < 32.
    fn shr(&mut self, x: Self::V, n: u32) -> Self::V;
    /// Left shift by `n` < 32.
    fn shl(&mut self, x: Self::V, n: u32) -> Self::V;
    /// Arithmetic right shift by `n` < 32.
    fn sar(&mut self, x: Self::V, n: u32) -> Self::V;
}

/// How an operation on one float is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A primitive instruction of every back end.
    Native,
    /// [`unary_f32`].
    Expansion,
    /// A library function.
    Libcall(Libcall),
}

/// How `op` is computed on f32 or f64. Other types convert first.
pub fn means(op: Unary, dtype: DType) -> Means {
    let single = dtype != DType::F64;
    let expand = |d: Libcall| if single { Means::Expansion } else { Means::Libcall(d) };
    match op {
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Sqrt
        | Unary::Rsqrt
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Trunc
        | Unary::Not
        | Unary::IsNan
        | Unary::IsFinite => Means::Native,
        Unary::Exp => expand(Libcall::ExpF64),
        Unary::Expm1 => expand(Libcall::Expm1F64),
        Unary::Log => expand(Libcall::LogF64),
        Unary::Log1p => expand(Libcall::Log1pF64),
        Unary::Tanh => expand(Libcall::TanhF64),
        Unary::Logistic => expand(Libcall::LogisticF64),
        Unary::Erf => expand(Libcall::ErfF64),
        Unary::Sin => expand(Libcall::SinF64),
        Unary::Cos => expand(Libcall::CosF64),
        Unary::Tan => expand(Libcall::TanF64),
        Unary::Asin => expand(Libcall::AsinF64),
        Unary::Acos => expand(Libcall::AcosF64),
        Unary::Atan => expand(Libcall::AtanF64),
        Unary::Sinh => expand(Libcall::SinhF64),
        Unary::Cosh => expand(Libcall::CoshF64),
        Unary::Asinh => expand(Libcall::AsinhF64),
        Unary::Acosh => expand(Libcall::AcoshF64),
        Unary::Atanh => expand(Libcall::AtanhF64),
    }
}

/// Emits `op` on f32 where it is an expansion; nothing for operations that every back end has.
#[inline(always)]
pub fn unary_f32<E: Emit>(e: &mut E, op: Unary, x: E::V) -> Option<E::V> {
    match means(op, DType::F32) {
        Means::Native | Means::Libcall(_) => None,
        Means::Expansion => match op {
            Unary::Exp => Some(exp(e, x)),
            Unary::Expm1 => Some(expm1(e, x)),
            Unary::Log => Some(log(e, x)),
            Unary::Log1p => Some(log1p(e, x)),
            Unary::Tanh => Some(tanh(e, x)),
            Unary::Logistic => Some(logistic(e, x)),
            Unary::Erf => Some(erf(e, x)),
            Unary::Sin => Some(trig::sin(e, x)),
            Unary::Cos => Some(trig::cos(e, x)),
            Unary::Tan => Some(trig::tan(e, x)),
            Unary::Asin => Some(trig::asin(e, x)),
            Unary::Acos => Some(trig::acos(e, x)),
            Unary::Atan => Some(trig::atan(e, x)),
            Unary::Sinh => Some(hyperbolic::sinh(e, x)),
            Unary::Cosh => Some(hyperbolic::cosh(e, x)),
            Unary::Asinh => Some(hyperbolic::asinh(e, x)),
            Unary::Acosh => Some(hyperbolic::acosh(e, x)),
            Unary::Atanh => Some(hyperbolic::atanh(e, x)),
            _ => None,
        },
    }
}

/// Emits `op` on two f32 where it is an expansion; nothing for the other operations.
#[inline(always)]
pub fn binary_f32<E: Emit>(e: &mut E, op: Binary, x: E::V, y: E::V) -> Option<E::V> {
    match op {
        Binary::Pow => Some(power::pow(e, x, y)),
        Binary::Atan2 => Some(trig::atan2(e, x, y)),
        _ => None,
    }
}

const LOG2_E: f32 = f32::from_bits(0x3fb8_aa3b);
/// ln 2 to 16 bits, exact times any exponent, and the remainder.
const LN2_HI: f32 = f32::from_bits(0x3f31_7200);
const LN2_LO: f32 = f32::from_bits(0x35bf_be8e);
/// ln 2 to 9 bits, exact times any exponent, and the remainder.
const LN2_SHORT: f32 = 355.0 / 512.0;
const LN2_REST: f32 = f32::from_bits(0xb95e_8083);
/// 1.5 · 2²³: adding it rounds to the nearest integer, which then stands in the low bits.
const ROUNDER: f32 = 12_582_912.0;

/// (e^r − 1 − r)/r² on |r| ≤ ln2/2, relative to e^r.
const EXP: [u32; 5] = [0x3eff_ffff, 0x3e2a_aa59, 0x3d2a_ab7c, 0x3c09_136c, 0x3ab5_cb82];
/// The same, relative to e^r − 1.
const EXPM1: [u32; 6] = [0x3f00_0000, 0x3e2a_aaaa, 0x3d2a_aa7c, 0x3c08_896a, 0x3ab6_9d50, 0x394f_3eb2];
/// (log(1 + f) − f + f²/2)/f³ on [√½ − 1, √2 − 1].
const LOG: [u32; 9] = [
    0x3eaa_aaa4,
    0xbe80_0003,
    0x3e4c_d23c,
    0xbe2a_ae26,
    0x3e11_9db8,
    0xbdfe_1377,
    0x3df3_60ae,
    0xbdef_07c8,
    0x3d8a_40dd,
];
/// (tanh(x) − x)/x³ in x² for |x| ≤ 0.625.
const TANH: [u32; 5] = [0xbeaa_aa99, 0x3e08_837b, 0xbd5c_1ad2, 0x3ca8_fc67, 0xbbba_8671];
/// erf(x)/x − 1 in x² for |x| ≤ 0.93.
const ERF_SMALL: [u32; 7] = [0x3e03_75d4, 0xbec0_93a0, 0x3de7_16b2, 0xbcdc_008d, 0x3baa_250d, 0xba53_0517, 0x38a7_b3b0];
/// −log(1 − erf(x))/x − 1 for 0.92 ≤ x ≤ 3.95.
const ERF_LARGE: [u32; 7] = [0x3e03_bc6e, 0x3f22_9947, 0x3dd9_92b4, 0xbcc2_a891, 0x3b6e_b5d4, 0xb9a9_3cae, 0x373c_6889];

/// Σ cᵢ xⁱ by Horner's rule.
#[inline(always)]
fn horner<E: Emit>(e: &mut E, x: E::V, coefficients: &[u32]) -> E::V {
    let mut terms = coefficients.iter().rev().map(|&c| f32::from_bits(c));
    let mut sum = e.f32(terms.next().unwrap_or(0.0));
    for c in terms {
        let c = e.f32(c);
        sum = e.fma(sum, x, c);
    }
    sum
}

/// x unless it is above `hi` or below `lo`; NaN stays.
#[inline(always)]
fn clamp<E: Emit>(e: &mut E, x: E::V, lo: f32, hi: f32) -> E::V {
    let (lo, hi) = (e.f32(lo), e.f32(hi));
    let above = e.compare(Compare::Gt, x, hi);
    let x = e.select(above, hi, x);
    let below = e.compare(Compare::Lt, x, lo);
    e.select(below, lo, x)
}

/// The magnitude of `x` with the sign of `sign`.
#[inline(always)]
fn copysign<E: Emit>(e: &mut E, x: E::V, sign: E::V) -> E::V {
    let (x, sign) = (e.bits(x), e.bits(sign));
    let (low, high) = (e.i32(i32::MAX), e.i32(i32::MIN));
    let (x, sign) = (e.iand(x, low), e.iand(sign, high));
    let both = e.ior(x, sign);
    e.float(both)
}

/// 2ⁿ for −126 ≤ n ≤ 127.
#[inline(always)]
fn power_of_two<E: Emit>(e: &mut E, n: E::V) -> E::V {
    let bias = e.i32(127);
    let biased = e.iadd(n, bias);
    let bits = e.shl(biased, 23);
    e.float(bits)
}

/// x = n · ln 2 + r + s with |r| ≤ ln2/2 and s below the last bit of r, for |x| ≤ 128; n is an integer.
#[inline(always)]
fn reduce<E: Emit>(e: &mut E, x: E::V) -> [E::V; 3] {
    let (rounder, log2e) = (e.f32(ROUNDER), e.f32(LOG2_E));
    let shifted = e.fma(x, log2e, rounder);
    let n = e.sub(shifted, rounder);
    let (hi, lo) = (e.f32(-LN2_HI), e.f32(-LN2_LO));
    let exact = e.fma(n, hi, x);
    let r = e.fma(n, lo, exact);
    let lost = e.sub(exact, r);
    let s = e.fma(n, lo, lost);
    let (bits, zero) = (e.bits(shifted), e.i32(ROUNDER.to_bits() as i32));
    [e.isub(bits, zero), r, s]
}

#[inline(always)]
fn exp<E: Emit>(e: &mut E, x: E::V) -> E::V {
    // Below −104 the result is 0. It isn't computed there, because underflow traps into microcode on some processors,
    // and masked scores are far below.
    let (zero, least, most) = (e.f32(0.0), e.f32(-104.0), e.f32(89.0));
    let below = e.compare(Compare::Lt, x, least);
    let x = e.select(below, zero, x);
    let above = e.compare(Compare::Gt, x, most);
    let x = e.select(above, most, x);
    let [n, r, s] = reduce(e, x);
    let p = exp_reduced(e, r, s);
    let y = scaled(e, p, n);
    e.select(below, zero, y)
}

/// e^(r + s) for what [`reduce`] leaves.
#[inline(always)]
fn exp_reduced<E: Emit>(e: &mut E, r: E::V, s: E::V) -> E::V {
    let q = horner(e, r, &EXP);
    let rr = e.mul(r, r);
    let tail = e.fma(rr, q, s);
    let tail = e.add(tail, r);
    let one = e.f32(1.0);
    e.add(tail, one)
}

/// p · 2ⁿ for p near 1 and |n| ≤ 252, rounded once.
#[inline(always)]
fn scaled<E: Emit>(e: &mut E, p: E::V, n: E::V) -> E::V {
    // Two factors, so that only the last product can round: the first stays normal.
    let half = e.sar(n, 1);
    let rest = e.isub(n, half);
    let (s, t) = (power_of_two(e, half), power_of_two(e, rest));
    let p = e.mul(p, s);
    e.mul(p, t)
}

#[inline(always)]
fn expm1<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let y = clamp(e, x, -20.0, 89.0);
    let [n, r, s] = reduce(e, y);
    let q = horner(e, r, &EXPM1);
    let rr = e.mul(r, r);
    let p = e.fma(rr, q, s);
    let p = e.add(p, r);
    // 2ⁿ(p + 1) − 1 at half scale, where 2ⁿ can't overflow.
    let one = e.i32(1);
    let n1 = e.isub(n, one);
    let t = power_of_two(e, n1);
    let half = e.f32(0.5);
    let t1 = e.sub(t, half);
    let y = e.fma(p, t, t1);
    let y = e.add(y, y);
    // Near 0 nothing may touch the last bits: p where n = 0, x itself where even x²/2 is lost.
    let ax = e.abs(x);
    let (small, tiny) = (e.f32(0.34), e.f32(3.0e-8));
    let is_small = e.compare(Compare::Lt, ax, small);
    let y = e.select(is_small, p, y);
    let is_tiny = e.compare(Compare::Lt, ax, tiny);
    e.select(is_tiny, x, y)
}

/// x = 2ᵏ · (1 + f) with √½ ≤ 1 + f < √2, for normal positive x; gives k as a float, and f.
#[inline(always)]
fn split<E: Emit>(e: &mut E, x: E::V) -> (E::V, E::V) {
    let bits = e.bits(x);
    let root = e.i32(0x3f35_04f3);
    let shifted = e.isub(bits, root);
    let k = e.sar(shifted, 23);
    let scale = e.shl(k, 23);
    let mantissa = e.isub(bits, scale);
    let (m, one) = (e.float(mantissa), e.f32(1.0));
    (e.to_float(k), e.sub(m, one))
}

/// k · ln 2 + log(1 + f) + rest.
#[inline(always)]
fn log_sum<E: Emit>(e: &mut E, k: E::V, f: E::V, rest: E::V) -> E::V {
    let ff = e.mul(f, f);
    let p = horner(e, f, &LOG);
    let fff = e.mul(ff, f);
    let (lo, hi, half) = (e.f32(LN2_REST), e.f32(LN2_SHORT), e.f32(-0.5));
    let tail = e.fma(k, lo, rest);
    let tail = e.fma(fff, p, tail);
    let tail = e.fma(ff, half, tail);
    let sum = e.add(f, tail);
    e.fma(k, hi, sum)
}

/// The values of log(x) that arithmetic doesn't give: 0, negative, infinite and NaN arguments.
#[inline(always)]
fn log_limits<E: Emit>(e: &mut E, x: E::V, y: E::V) -> E::V {
    let (zero, inf, minus_inf, nan) = (e.f32(0.0), e.f32(f32::INFINITY), e.f32(f32::NEG_INFINITY), e.f32(f32::NAN));
    let is_zero = e.compare(Compare::Eq, x, zero);
    let y = e.select(is_zero, minus_inf, y);
    let finite_or_nan = e.compare(Compare::Lt, x, inf);
    let y = e.select(finite_or_nan, y, x);
    let negative = e.compare(Compare::Lt, x, zero);
    e.select(negative, nan, y)
}

#[inline(always)]
fn log<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (least_normal, up) = (e.f32(f32::MIN_POSITIVE), e.f32(8_388_608.0));
    let subnormal = e.compare(Compare::Lt, x, least_normal);
    let scaled = e.mul(x, up);
    let y = e.select(subnormal, scaled, x);
    let (k, f) = split(e, y);
    let (zero, shift) = (e.f32(0.0), e.f32(23.0));
    let shift = e.select(subnormal, shift, zero);
    let k = e.sub(k, shift);
    let y = log_sum(e, k, f, zero);
    log_limits(e, x, y)
}

#[inline(always)]
fn log1p<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let one = e.f32(1.0);
    let u = e.add(x, one);
    let (k, f) = split(e, u);
    // What the rounding of 1 + x lost, relative to u; exact whichever of 1 and x is larger.
    let (a, b) = (e.sub(u, x), e.sub(u, one));
    let (a, b) = (e.sub(one, a), e.sub(x, b));
    let large = e.compare(Compare::Gt, x, one);
    let lost = e.select(large, a, b);
    let rest = e.div(lost, u);
    let zero = e.f32(0.0);
    let unscaled = e.compare(Compare::Eq, k, zero);
    let (f, rest) = (e.select(unscaled, x, f), e.select(unscaled, zero, rest));
    let y = log_sum(e, k, f, rest);
    let y = log_limits(e, u, y);
    let (ax, tiny) = (e.abs(x), e.f32(3.0e-8));
    let is_tiny = e.compare(Compare::Lt, ax, tiny);
    e.select(is_tiny, x, y)
}

#[inline(always)]
fn tanh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let xx = e.mul(x, x);
    let p = horner(e, xx, &TANH);
    let xp = e.mul(xx, p);
    let small = e.fma(xp, x, x);
    let twice = e.add(ax, ax);
    let grown = exp(e, twice);
    let (one, minus_two, limit) = (e.f32(1.0), e.f32(-2.0), e.f32(0.625));
    let denominator = e.add(grown, one);
    let lacking = e.div(minus_two, denominator);
    let large = e.add(lacking, one);
    let large = copysign(e, large, x);
    let is_large = e.compare(Compare::Gt, ax, limit);
    let y = e.select(is_large, large, small);
    // Keeps −0 and subnormals, whose square is lost.
    let tiny = e.f32(1.0e-4);
    let is_tiny = e.compare(Compare::Lt, ax, tiny);
    e.select(is_tiny, x, y)
}

#[inline(always)]
fn logistic<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let minus = e.neg(ax);
    let shrunk = exp(e, minus);
    let (one, zero) = (e.f32(1.0), e.f32(0.0));
    let negative = e.compare(Compare::Lt, x, zero);
    let numerator = e.select(negative, shrunk, one);
    let denominator = e.add(shrunk, one);
    let y = e.div(numerator, denominator);
    // Takes back what the rounding of 1 + e^−|x| lost; 1/denominator is y or 1 − y.
    let rounded = e.sub(denominator, one);
    let lost = e.sub(shrunk, rounded);
    let other = e.sub(one, y);
    let reciprocal = e.select(negative, other, y);
    let share = e.mul(lost, reciprocal);
    let share = e.neg(share);
    e.fma(y, share, y)
}

#[inline(always)]
fn erf<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let xx = e.mul(x, x);
    let p = horner(e, xx, &ERF_SMALL);
    let small = e.fma(p, x, x);
    // Beyond 3.92 the result rounds to 1.
    let (limit, saturated) = (e.f32(0.925), e.f32(3.95));
    let beyond = e.compare(Compare::Gt, ax, saturated);
    let t = e.select(beyond, saturated, ax);
    let q = horner(e, t, &ERF_LARGE);
    let exponent = e.fma(q, t, t);
    let exponent = e.neg(exponent);
    let complement = exp(e, exponent);
    let one = e.f32(1.0);
    let large = e.sub(one, complement);
    let large = copysign(e, large, x);
    let is_large = e.compare(Compare::Gt, ax, limit);
    e.select(is_large, large, small)
}
