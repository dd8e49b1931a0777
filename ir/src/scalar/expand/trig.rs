//! Sine, cosine, tangent and their inverses.

use super::{Emit, copysign, horner};
use crate::scalar::Compare;

/// 2/π behind the point, after two words of zeros.
const TWO_OVER_PI: [u32; 8] = [0, 0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041];
/// π/2 · 2⁻³² and the remainder.
const QUARTER: [u32; 2] = [0x2fc9_0fdb, 0xa33b_bd2e];
/// π/2 and the remainder.
const HALF_PI: [f32; 2] = [f32::from_bits(0x3fc9_0fdb), f32::from_bits(0xb33b_bd2e)];
/// π and the remainder.
const PI: [f32; 2] = [f32::from_bits(0x4049_0fdb), f32::from_bits(0xb3bb_bd2e)];
/// π/4 rounded down.
const EIGHTH: f32 = f32::from_bits(0x3f49_0fda);

/// (sin(x) − x)/x³ in x² for |x| ≤ π/4.
const SIN: [u32; 4] = [0xbe2a_aaab, 0x3c08_88bb, 0xb950_2dca, 0x363e_6272];
/// (cos(x) − 1 + x²/2)/x⁴ in x² for |x| ≤ π/4.
const COS: [u32; 3] = [0x3d2a_aaa5, 0xbab6_060d, 0x37cc_f076];
/// (atan(x) − x)/x³ in x² for |x| ≤ 1.
const ATAN: [u32; 9] = [
    0xbeaa_aaa0,
    0x3e4c_c933,
    0xbe12_1315,
    0x3de0_6471,
    0xbdac_5e7f,
    0x3d6e_4c29,
    0xbd00_978f,
    0x3c34_b32a,
    0xbaee_62da,
];
/// (asin(x) − x)/x³ in x² for |x| ≤ ½.
const ASIN: [u32; 5] = [0x3e2a_aae6, 0x3d99_8063, 0x3d3a_4d5b, 0x3cc5_8670, 0x3d2d_2fd5];

/// An angle less a multiple of π/2.
struct Reduced<V> {
    /// The multiple, modulo 4.
    quadrant: V,
    /// What is left, at most π/4.
    rest: V,
    /// Below the last bit of `rest`.
    tail: V,
}

/// |x| reduced exactly, by Payne and Hanek: the mantissa times those 96 bits of 2/π that matter for its exponent.
#[inline(always)]
fn reduce<E: Emit>(e: &mut E, ax: E::V) -> Reduced<E::V> {
    let bits = e.bits(ax);
    let (fraction, implicit) = (e.i32(0x007f_ffff), e.i32(0x0080_0000));
    let low = e.iand(bits, fraction);
    let whole = e.ior(low, implicit);
    let m = e.shl(whole, 8);
    let exponent = e.sar(bits, 23);
    let (first, mask) = (e.i32(96), e.i32(31));
    let at = e.isub(exponent, first);
    let [a, b, c] = window(e, at, mask);
    // Bits 32 to 95 of m · (a, b, c), of which 94 and 95 are whole quadrants.
    let (mc, mb) = (e.umulhi(m, c), e.imul(m, b));
    let lo = e.iadd(mc, mb);
    let carry = carry(e, mc, mb, lo);
    let (ma, mb) = (e.imul(m, a), e.umulhi(m, b));
    let hi = e.iadd(ma, mb);
    let hi = e.iadd(hi, carry);
    // To the nearest quadrant: a negative rest belongs to the next one.
    let quadrant = e.shr(hi, 30);
    let (up, over) = (e.shl(hi, 2), e.shr(lo, 30));
    let (hi, lo) = (e.ior(up, over), e.shl(lo, 2));
    let sign = e.sar(hi, 31);
    let quadrant = e.isub(quadrant, sign);
    let (hi, lo) = (e.ixor(hi, sign), e.ixor(lo, sign));
    let (rest, tail) = angle(e, hi, lo);
    let top = e.i32(i32::MIN);
    let sign = e.iand(sign, top);
    let (rest, tail) = (flip(e, rest, sign), flip(e, tail, sign));
    // Small angles are themselves.
    let (limit, zero, none) = (e.f32(EIGHTH), e.f32(0.0), e.i32(0));
    let small = e.compare(Compare::Le, ax, limit);
    Reduced {
        quadrant: e.select(small, none, quadrant),
        rest: e.select(small, ax, rest),
        tail: e.select(small, zero, tail),
    }
}

/// The 96 bits of 2/π from bit `at` of the table on.
#[inline(always)]
fn window<E: Emit>(e: &mut E, at: E::V, mask: E::V) -> [E::V; 3] {
    let word = e.sar(at, 5);
    let word = e.to_float(word);
    let shift = e.iand(at, mask);
    let mut t = [0, 1, 2, 3].map(|j| e.i32(TWO_OVER_PI[j] as i32));
    for level in 1..=4 {
        let limit = e.f32(level as f32);
        let beyond = e.compare(Compare::Ge, word, limit);
        for (j, t) in t.iter_mut().enumerate() {
            let next = e.i32(TWO_OVER_PI[j + level] as i32);
            *t = e.select(beyond, next, *t);
        }
    }
    let one = e.i32(1);
    let scale = e.shl_by(one, shift);
    [0, 1, 2].map(|j| {
        let (high, low) = (e.imul(t[j], scale), e.umulhi(t[j + 1], scale));
        e.ior(high, low)
    })
}

/// 1 if the sum of x and y, as unsigned numbers, left 32 bits.
#[inline(always)]
fn carry<E: Emit>(e: &mut E, x: E::V, y: E::V, sum: E::V) -> E::V {
    let (both, either, ones) = (e.iand(x, y), e.ior(x, y), e.i32(-1));
    let lost = e.ixor(sum, ones);
    let through = e.iand(either, lost);
    let out = e.ior(both, through);
    e.shr(out, 31)
}

/// π/2 times the 64-bit fraction (hi, lo), which is below ½; and what that loses.
#[inline(always)]
fn angle<E: Emit>(e: &mut E, hi: E::V, lo: E::V) -> (E::V, E::V) {
    let (byte, half) = (e.i32(0xff), e.i32(0xffff));
    let bottom = e.iand(hi, byte);
    let head = e.isub(hi, bottom);
    let (raised, upper) = (e.shl(bottom, 16), e.shr(lo, 16));
    let middle = e.ior(raised, upper);
    let last = e.iand(lo, half);
    // Each of the three parts is exact.
    let (head, middle, last) = (e.to_float(head), e.to_float(middle), e.to_float(last));
    let scale = e.f32(f32::from_bits(0x3780_0000));
    let rest = e.fma(last, scale, middle);
    let y = e.fma(rest, scale, head);
    let back = e.sub(head, y);
    let lost = e.fma(rest, scale, back);
    let (c, c_rest) = (e.f32(f32::from_bits(QUARTER[0])), e.f32(f32::from_bits(QUARTER[1])));
    let r = e.mul(y, c);
    let minus = e.neg(r);
    let tail = e.fma(y, c, minus);
    let tail = e.fma(y, c_rest, tail);
    let tail = e.fma(lost, c, tail);
    let sum = e.add(r, tail);
    let back = e.sub(sum, r);
    (sum, e.sub(tail, back))
}

/// x with its sign turned where `sign` has the sign bit.
#[inline(always)]
fn flip<E: Emit>(e: &mut E, x: E::V, sign: E::V) -> E::V {
    let bits = e.bits(x);
    let turned = e.ixor(bits, sign);
    e.float(turned)
}

/// The sine and the cosine of what is left of an angle.
#[inline(always)]
fn kernels<E: Emit>(e: &mut E, r: &Reduced<E::V>) -> (E::V, E::V) {
    let s = e.mul(r.rest, r.rest);
    let (half, one) = (e.f32(0.5), e.f32(1.0));
    let h = e.mul(s, half);
    let w = e.sub(one, h);
    let p = horner(e, s, &SIN);
    let cube = e.mul(s, r.rest);
    let tail = e.mul(r.tail, w);
    let sine = e.fma(cube, p, tail);
    let sine = e.add(r.rest, sine);
    let q = horner(e, s, &COS);
    let ss = e.mul(s, s);
    let lost = e.mul(r.rest, r.tail);
    let lost = e.neg(lost);
    let more = e.fma(ss, q, lost);
    let back = e.sub(one, w);
    let back = e.sub(back, h);
    let more = e.add(back, more);
    (sine, e.add(w, more))
}

/// `y` where x is finite, else NaN.
#[inline(always)]
fn finite<E: Emit>(e: &mut E, ax: E::V, y: E::V) -> E::V {
    let (inf, nan) = (e.f32(f32::INFINITY), e.f32(f32::NAN));
    let inside = e.compare(Compare::Lt, ax, inf);
    e.select(inside, y, nan)
}

/// Whether the quadrant is odd.
#[inline(always)]
fn odd<E: Emit>(e: &mut E, quadrant: E::V) -> E::V {
    let (one, zero) = (e.i32(1), e.f32(0.0));
    let bit = e.iand(quadrant, one);
    let bit = e.to_float(bit);
    e.compare(Compare::Ne, bit, zero)
}

#[inline(always)]
fn sign_of<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (bits, top) = (e.bits(x), e.i32(i32::MIN));
    e.iand(bits, top)
}

#[inline(always)]
pub(super) fn sin<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let r = reduce(e, ax);
    let (sine, cosine) = kernels(e, &r);
    let odd = odd(e, r.quadrant);
    let y = e.select(odd, cosine, sine);
    let (two, sign) = (e.i32(2), sign_of(e, x));
    let turn = e.iand(r.quadrant, two);
    let turn = e.shl(turn, 30);
    let sign = e.ixor(sign, turn);
    let y = flip(e, y, sign);
    finite(e, ax, y)
}

#[inline(always)]
pub(super) fn cos<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let r = reduce(e, ax);
    let (sine, cosine) = kernels(e, &r);
    let odd = odd(e, r.quadrant);
    let y = e.select(odd, sine, cosine);
    let (one, two) = (e.i32(1), e.i32(2));
    let next = e.iadd(r.quadrant, one);
    let turn = e.iand(next, two);
    let sign = e.shl(turn, 30);
    let y = flip(e, y, sign);
    finite(e, ax, y)
}

#[inline(always)]
pub(super) fn tan<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let r = reduce(e, ax);
    let (sine, cosine) = kernels(e, &r);
    let odd = odd(e, r.quadrant);
    let (above, below) = (e.select(odd, cosine, sine), e.select(odd, sine, cosine));
    let y = e.div(above, below);
    let turn = e.shl(r.quadrant, 31);
    let sign = sign_of(e, x);
    let sign = e.ixor(sign, turn);
    let y = flip(e, y, sign);
    finite(e, ax, y)
}

/// atan(t) for 0 ≤ t ≤ 1.
#[inline(always)]
fn atan_small<E: Emit>(e: &mut E, t: E::V) -> E::V {
    let s = e.mul(t, t);
    let p = horner(e, s, &ATAN);
    let sp = e.mul(s, p);
    e.fma(sp, t, t)
}

/// c − y for a constant of two parts.
#[inline(always)]
fn less<E: Emit>(e: &mut E, [c, rest]: [f32; 2], y: E::V) -> E::V {
    let (c, rest) = (e.f32(c), e.f32(rest));
    let y = e.sub(y, rest);
    e.sub(c, y)
}

#[inline(always)]
pub(super) fn atan<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, one) = (e.abs(x), e.f32(1.0));
    let large = e.compare(Compare::Gt, ax, one);
    let inverse = e.div(one, ax);
    let t = e.select(large, inverse, ax);
    let y = atan_small(e, t);
    let turned = less(e, HALF_PI, y);
    let y = e.select(large, turned, y);
    copysign(e, y, x)
}

/// The angle of (y, x); the first argument is y.
#[inline(always)]
pub(super) fn atan2<E: Emit>(e: &mut E, y: E::V, x: E::V) -> E::V {
    let (ay, ax, zero, one) = (e.abs(y), e.abs(x), e.f32(0.0), e.f32(1.0));
    let steep = e.compare(Compare::Gt, ay, ax);
    let (below, above) = (e.select(steep, ay, ax), e.select(steep, ax, ay));
    let t = e.div(above, below);
    // 0/0 counts as 0, ∞/∞ as 1.
    let equal = e.compare(Compare::Eq, above, below);
    let t = e.select(equal, one, t);
    let none = e.compare(Compare::Eq, below, zero);
    let t = e.select(none, zero, t);
    let r = atan_small(e, t);
    let turned = less(e, HALF_PI, r);
    let r = e.select(steep, turned, r);
    let unit = copysign(e, one, x);
    let left = e.compare(Compare::Lt, unit, zero);
    let turned = less(e, PI, r);
    let r = e.select(left, turned, r);
    let r = copysign(e, r, y);
    let sum = e.add(x, y);
    let nan = either_nan(e, x, y);
    e.select(nan, sum, r)
}

/// Whether x or y is NaN.
#[inline(always)]
pub(super) fn either_nan<E: Emit>(e: &mut E, x: E::V, y: E::V) -> E::V {
    let (zero, one) = (e.f32(0.0), e.f32(1.0));
    let (a, b) = (e.compare(Compare::Ne, x, x), e.compare(Compare::Ne, y, y));
    let either = e.select(b, one, zero);
    let either = e.select(a, one, either);
    e.compare(Compare::Ne, either, zero)
}

/// √s and, relative to the root, what asin adds beyond it: the parts of asin(√s) for 0 ≤ s ≤ ¼.
#[inline(always)]
fn asin_root<E: Emit>(e: &mut E, s: E::V) -> (E::V, E::V) {
    let r = e.sqrt(s);
    let p = horner(e, s, &ASIN);
    let rs = e.mul(r, s);
    // What the root's rounding lost, by one step of Newton's.
    let (minus, zero, one) = (e.neg(r), e.f32(0.0), e.f32(1.0));
    let rest = e.fma(minus, r, s);
    let twice = e.add(r, r);
    let none = e.compare(Compare::Eq, twice, zero);
    let twice = e.select(none, one, twice);
    let lost = e.div(rest, twice);
    (r, e.fma(rs, p, lost))
}

#[inline(always)]
pub(super) fn asin<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, half, minus_half) = (e.abs(x), e.f32(0.5), e.f32(-0.5));
    let s = e.mul(x, x);
    let p = horner(e, s, &ASIN);
    let sp = e.mul(s, p);
    let small = e.fma(sp, ax, ax);
    let (r, more) = {
        let s = e.fma(ax, minus_half, half);
        asin_root(e, s)
    };
    // π/2 − 2(r + more)
    let (c, rest) = (e.f32(HALF_PI[0]), e.f32(HALF_PI[1]));
    let minus_two = e.f32(-2.0);
    let tail = e.fma(more, minus_two, rest);
    let head = e.fma(r, minus_two, c);
    let large = e.add(head, tail);
    let is_large = e.compare(Compare::Gt, ax, half);
    let y = e.select(is_large, large, small);
    copysign(e, y, x)
}

#[inline(always)]
pub(super) fn acos<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, half, minus_half, zero) = (e.abs(x), e.f32(0.5), e.f32(-0.5), e.f32(0.0));
    let s = e.mul(x, x);
    let p = horner(e, s, &ASIN);
    let sp = e.mul(s, p);
    let asin = e.mul(sp, x);
    // π/2 − (x + asin(x) − x)
    let (c, rest) = (e.f32(HALF_PI[0]), e.f32(HALF_PI[1]));
    let tail = e.sub(asin, rest);
    let small = {
        let head = e.sub(c, x);
        let back = e.sub(c, head);
        let lost = e.sub(back, x);
        let tail = e.sub(lost, tail);
        e.add(head, tail)
    };
    let (r, more) = {
        let s = e.fma(ax, minus_half, half);
        asin_root(e, s)
    };
    let right = e.add(r, more);
    let right = e.add(right, right);
    let left = less(e, PI, right);
    let negative = e.compare(Compare::Lt, x, zero);
    let large = e.select(negative, left, right);
    let is_large = e.compare(Compare::Gt, ax, half);
    let y = e.select(is_large, large, small);
    let nan = e.compare(Compare::Ne, x, x);
    e.select(nan, x, y)
}
