//! f16 and bf16 in lanes of 32 bits: a value is an f32 that the narrow type holds, its memory form the low 16 bits of an i32.

use super::Emit;
use crate::scalar::Compare;

const SIGN: i32 = i32::MIN;
/// Makes a NaN quiet, in f32.
const QUIET: i32 = 0x0040_0000;

/// The nearest f16 to an f32, ties to even.
pub fn round_f16<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (bits, a) = (e.bits(x), e.abs(x));
    let magnitude = e.bits(a);
    let normal = nearest(e, magnitude, 13);
    let normal = e.float(normal);
    // Subnormals are multiples of 2⁻²⁴, as f32 from ½ to 1 are.
    let half = e.f32(0.5);
    let small = e.add(a, half);
    let small = e.sub(small, half);
    let least = e.f32(1.0 / 16384.0);
    let below = e.compare(Compare::Lt, a, least);
    let y = e.select(below, small, normal);
    let (greatest, infinity) = (e.f32(65504.0), e.f32(f32::INFINITY));
    let above = e.compare(Compare::Gt, y, greatest);
    let y = e.select(above, infinity, y);
    let quiet = e.i32(QUIET);
    let nan = e.ior(magnitude, quiet);
    let nan = e.float(nan);
    let unordered = e.compare(Compare::Ne, x, x);
    let y = e.select(unordered, nan, y);
    let sign = e.i32(SIGN);
    let (sign, y) = (e.iand(bits, sign), e.bits(y));
    let y = e.ior(y, sign);
    e.float(y)
}

/// The nearest bf16 to an f32, ties to even.
pub fn round_bf16<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let bits = e.bits(x);
    let y = nearest(e, bits, 16);
    let y = e.float(y);
    let (high, quiet) = (e.i32(-1 << 16), e.i32(QUIET));
    let nan = e.iand(bits, high);
    let nan = e.ior(nan, quiet);
    let nan = e.float(nan);
    let unordered = e.compare(Compare::Ne, x, x);
    e.select(unordered, nan, y)
}

/// The nearest multiple of 2ⁿ, ties to an even one.
fn nearest<E: Emit>(e: &mut E, bits: E::V, n: u32) -> E::V {
    let one = e.i32(1);
    let odd = e.shr(bits, n);
    let odd = e.iand(odd, one);
    let below_half = e.i32((1 << (n - 1)) - 1);
    let up = e.iadd(odd, below_half);
    let up = e.iadd(bits, up);
    let kept = e.i32(-1 << n);
    e.iand(up, kept)
}

/// The value of an f16 from its bits.
pub fn widen_f16<E: Emit>(e: &mut E, bits: E::V) -> E::V {
    let (low, sign) = (e.i32(0x7fff), e.i32(0x8000));
    let magnitude = e.iand(bits, low);
    let magnitude = e.shl(magnitude, 13);
    // Exponents are 112 lower, and subnormals become subnormals: all that is missing is a factor.
    let scale = e.f32(2f32.powi(112));
    let (small, infinite) = (e.float(magnitude), e.i32(0x7f80_0000));
    let finite = e.mul(small, scale);
    let special = e.ior(magnitude, infinite);
    let special = e.float(special);
    let limit = e.f32(2f32.powi(-96));
    let below = e.compare(Compare::Lt, small, limit);
    let y = e.select(below, finite, special);
    let sign = e.iand(bits, sign);
    let (sign, y) = (e.shl(sign, 16), e.bits(y));
    let y = e.ior(y, sign);
    e.float(y)
}

/// The bits of an f16's value.
pub fn narrow_f16<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let (bits, a) = (e.bits(x), e.abs(x));
    let scale = e.f32(2f32.powi(-112));
    let finite = e.mul(a, scale);
    let finite = e.bits(finite);
    let magnitude = e.bits(a);
    let (greatest, low) = (e.f32(65504.0), e.i32(0x0fff_ffff));
    // Infinity and NaN keep their fraction; the exponent of f32 is cut to that of f16.
    let special = e.iand(magnitude, low);
    let within = e.compare(Compare::Le, a, greatest);
    let (finite, special) = (e.float(finite), e.float(special));
    let y = e.select(within, finite, special);
    let y = e.bits(y);
    let y = e.shr(y, 13);
    let sign = e.i32(SIGN);
    let sign = e.iand(bits, sign);
    let sign = e.shr(sign, 16);
    e.ior(y, sign)
}
