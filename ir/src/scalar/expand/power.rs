//! Powers.

use super::trig::either_nan;
use super::{Emit, ROUNDER, horner, scaled, split};
use crate::scalar::Compare;

/// 2/ln 2 and the remainder.
const TWO_LOG2_E: [f32; 2] = [f32::from_bits(0x4038_aa3b), f32::from_bits(0x3325_7060)];
/// (log₂((1 + q)/(1 − q)) − 2q/ln 2)/q³ in q² for |q| ≤ 0.172.
const LOG2: [u32; 4] = [0x3f76_384f, 0x3f13_bb72, 0x3ed2_e68b, 0x3eac_6e78];
/// (2^f − 1)/f for |f| ≤ ½.
const EXP2: [u32; 7] = [0x3f31_7218, 0x3e75_fdf0, 0x3d63_583a, 0x3c1d_952f, 0x3aae_ce64, 0x3922_0651, 0x3776_3858];
/// Floats from here on are integers.
const WHOLE: f32 = 8_388_608.0;

/// log₂ of a positive finite number, and what that loses: together to about 2⁻³² of the value.
#[inline(always)]
fn log2<E: Emit>(e: &mut E, x: E::V) -> (E::V, E::V) {
    let (least_normal, up, zero, shift) = (e.f32(f32::MIN_POSITIVE), e.f32(WHOLE), e.f32(0.0), e.f32(23.0));
    let subnormal = e.compare(Compare::Lt, x, least_normal);
    let raised = e.mul(x, up);
    let y = e.select(subnormal, raised, x);
    let (k, f) = split(e, y);
    let shift = e.select(subnormal, shift, zero);
    let k = e.sub(k, shift);
    // q = f/(2 + f) in two parts; log(1 + f) is 2·artanh(q).
    let two = e.f32(2.0);
    let d = e.add(f, two);
    let back = e.sub(d, two);
    let d_rest = e.sub(f, back);
    let q = e.div(f, d);
    let minus = e.neg(q);
    let left = e.fma(minus, d, f);
    let left = e.fma(minus, d_rest, left);
    let q_rest = e.div(left, d);
    let s = e.mul(q, q);
    let p = horner(e, s, &LOG2);
    let cube = e.mul(s, q);
    let (c, c_rest) = (e.f32(TWO_LOG2_E[0]), e.f32(TWO_LOG2_E[1]));
    let h = e.mul(q, c);
    let minus = e.neg(h);
    let tail = e.fma(q, c, minus);
    let tail = e.fma(q, c_rest, tail);
    let tail = e.fma(q_rest, c, tail);
    let tail = e.fma(cube, p, tail);
    let (h, tail) = two_sum(e, h, tail);
    let (sum, lost) = two_sum(e, k, h);
    let tail = e.add(lost, tail);
    two_sum(e, sum, tail)
}

/// x + y and what that loses, where x is 0 or at least as large as y.
#[inline(always)]
fn two_sum<E: Emit>(e: &mut E, x: E::V, y: E::V) -> (E::V, E::V) {
    let sum = e.add(x, y);
    let back = e.sub(sum, x);
    (sum, e.sub(y, back))
}

/// 2^(p + rest), with `rest` below the last bits of p.
#[inline(always)]
fn exp2<E: Emit>(e: &mut E, p: E::V, rest: E::V) -> E::V {
    let (most, least, rounder, zero) = (e.f32(160.0), e.f32(-160.0), e.f32(ROUNDER), e.f32(0.0));
    // Beyond the range the rest may be NaN, as ∞ − ∞.
    let above = e.compare(Compare::Gt, p, most);
    let (p, rest) = (e.select(above, most, p), e.select(above, zero, rest));
    let below = e.compare(Compare::Lt, p, least);
    let (p, rest) = (e.select(below, least, p), e.select(below, zero, rest));
    let shifted = e.add(p, rounder);
    let n = e.sub(shifted, rounder);
    let f = e.sub(p, n);
    let f = e.add(f, rest);
    let q = horner(e, f, &EXP2);
    let one = e.f32(1.0);
    let y = e.fma(q, f, one);
    let (bits, start) = (e.bits(shifted), e.i32(ROUNDER.to_bits() as i32));
    let n = e.isub(bits, start);
    scaled(e, y, n)
}

/// Whether |z| is an integer: 1 or 0.
#[inline(always)]
fn whole<E: Emit>(e: &mut E, az: E::V) -> E::V {
    let (limit, one, zero) = (e.f32(WHOLE), e.f32(1.0), e.f32(0.0));
    let up = e.add(az, limit);
    let back = e.sub(up, limit);
    let same = e.compare(Compare::Eq, back, az);
    let y = e.select(same, one, zero);
    let large = e.compare(Compare::Ge, az, limit);
    e.select(large, one, y)
}

/// x^y, with the special cases of IEEE 754.
#[inline(always)]
pub(super) fn pow<E: Emit>(e: &mut E, x: E::V, y: E::V) -> E::V {
    let (zero, one, inf, minus_inf, nan) =
        (e.f32(0.0), e.f32(1.0), e.f32(f32::INFINITY), e.f32(f32::NEG_INFINITY), e.f32(f32::NAN));
    let (ax, ay) = (e.abs(x), e.abs(y));
    let (hi, lo) = log2(e, ax);
    let is_zero = e.compare(Compare::Eq, ax, zero);
    let hi = e.select(is_zero, minus_inf, hi);
    let is_inf = e.compare(Compare::Eq, ax, inf);
    let hi = e.select(is_inf, inf, hi);
    let p = e.mul(hi, y);
    let minus = e.neg(p);
    let rest = e.fma(hi, y, minus);
    let rest = e.fma(lo, y, rest);
    let magnitude = exp2(e, p, rest);
    let unit = e.compare(Compare::Eq, ax, one);
    let magnitude = e.select(unit, one, magnitude);
    // Negative x: y must be an integer, and the sign is that of −1 to it.
    let half = e.f32(0.5);
    let ay_half = e.mul(ay, half);
    let (whole_y, whole_half) = (whole(e, ay), whole(e, ay_half));
    let odd = e.sub(whole_y, whole_half);
    let is_odd = e.compare(Compare::Gt, odd, zero);
    let (bits, top, none) = (e.bits(x), e.i32(i32::MIN), e.i32(0));
    let sign = e.iand(bits, top);
    let sign = e.select(is_odd, sign, none);
    let bits = e.bits(magnitude);
    let signed = e.ior(bits, sign);
    let result = e.float(signed);
    let negative = e.compare(Compare::Lt, x, zero);
    let finite = e.compare(Compare::Gt, x, minus_inf);
    let fraction = e.compare(Compare::Eq, whole_y, zero);
    let undefined = e.select(fraction, nan, result);
    let undefined = e.select(finite, undefined, result);
    let result = e.select(negative, undefined, result);
    // 1 to anything and anything to 0 are 1, NaN included; otherwise NaN stays.
    let sum = e.add(x, y);
    let nan = either_nan(e, x, y);
    let result = e.select(nan, sum, result);
    let is_one = e.compare(Compare::Eq, x, one);
    let result = e.select(is_one, one, result);
    let none = e.compare(Compare::Eq, y, zero);
    e.select(none, one, result)
}
