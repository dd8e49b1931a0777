//! Hyperbolic sine and cosine, and the inverse hyperbolic functions.

use super::{Emit, copysign, exp_reduced, horner, log, log1p, reduce, scaled};
use crate::scalar::Compare;

/// (sinh(x) − x)/x³ in x² for |x| ≤ 1.
const SINH: [u32; 4] = [0x3e2a_aaab, 0x3c08_8871, 0x3950_10ab, 0x363a_d37a];
const LN2: f32 = std::f32::consts::LN_2;

/// e^a/2 and e^−a/2 for a ≥ 0: half scale, because e^a overflows before its half does.
#[inline(always)]
fn halves<E: Emit>(e: &mut E, a: E::V) -> (E::V, E::V) {
    let most = e.f32(90.0);
    let above = e.compare(Compare::Gt, a, most);
    let a = e.select(above, most, a);
    let [n, r, s] = reduce(e, a);
    let p = exp_reduced(e, r, s);
    let one = e.i32(1);
    let n = e.isub(n, one);
    let grown = scaled(e, p, n);
    let quarter = e.f32(0.25);
    (grown, e.div(quarter, grown))
}

#[inline(always)]
pub(super) fn sinh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, one) = (e.abs(x), e.f32(1.0));
    let s = e.mul(x, x);
    let p = horner(e, s, &SINH);
    let sp = e.mul(s, p);
    let small = e.fma(sp, ax, ax);
    let (grown, shrunk) = halves(e, ax);
    let large = e.sub(grown, shrunk);
    let is_small = e.compare(Compare::Lt, ax, one);
    let y = e.select(is_small, small, large);
    copysign(e, y, x)
}

#[inline(always)]
pub(super) fn cosh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let ax = e.abs(x);
    let (grown, shrunk) = halves(e, ax);
    e.add(grown, shrunk)
}

/// log(2a) for large a.
#[inline(always)]
fn log_twice<E: Emit>(e: &mut E, a: E::V) -> E::V {
    let (y, ln2) = (log(e, a), e.f32(LN2));
    e.add(y, ln2)
}

#[inline(always)]
pub(super) fn asinh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, one, limit) = (e.abs(x), e.f32(1.0), e.f32(8192.0));
    let is_large = e.compare(Compare::Gt, ax, limit);
    let a = e.select(is_large, one, ax);
    // a + a²/(1 + √(1 + a²)) is e^y − 1.
    let aa = e.mul(a, a);
    let root = e.add(aa, one);
    let root = e.sqrt(root);
    let below = e.add(root, one);
    let more = e.div(aa, below);
    let grown = e.add(a, more);
    let y = log1p(e, grown);
    let large = log_twice(e, ax);
    let y = e.select(is_large, large, y);
    copysign(e, y, x)
}

#[inline(always)]
pub(super) fn acosh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (one, limit, nan) = (e.f32(1.0), e.f32(8192.0), e.f32(f32::NAN));
    let is_large = e.compare(Compare::Gt, x, limit);
    let a = e.select(is_large, one, x);
    // t + √(t² + 2t) with t = x − 1 is e^y − 1.
    let t = e.sub(a, one);
    let twice = e.add(t, t);
    let square = e.fma(t, t, twice);
    let root = e.sqrt(square);
    let grown = e.add(t, root);
    let y = log1p(e, grown);
    let large = log_twice(e, x);
    let y = e.select(is_large, large, y);
    let outside = e.compare(Compare::Lt, x, one);
    e.select(outside, nan, y)
}

#[inline(always)]
pub(super) fn atanh<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (ax, one, half) = (e.abs(x), e.f32(1.0), e.f32(0.5));
    let twice = e.add(ax, ax);
    let rest = e.sub(one, ax);
    let ratio = e.div(twice, rest);
    let y = log1p(e, ratio);
    let y = e.mul(y, half);
    copysign(e, y, x)
}
