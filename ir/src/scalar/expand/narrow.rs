//! f16 and bf16 in lanes of 32 bits: a value is an f32 that the narrow type holds, its memory form the low 16 bits of an i32.

use super::Emit;
use crate::scalar::Compare;

/// Makes a NaN quiet, in f32.
const QUIET: i32 = 0x0040_0000;

/// The nearest f16 to an f32, ties to even.
pub fn round_f16<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let a = e.abs(x);
    let magnitude = e.bits(a);
    let exponent = e.i32(0x7f80_0000);
    let power = e.iand(magnitude, exponent);
    let power = e.float(power);
    // Added to a number of 2¹³ times the power of two below it, x loses the bits that f16 has no room for. Subnormals are
    // multiples of 2⁻²⁴, as f32 from ½ to 1 are.
    let (shift, half) = (e.f32(8192.0), e.f32(0.5));
    let large = e.mul(power, shift);
    let below = e.compare(Compare::Lt, large, half);
    let large = e.select(below, half, large);
    let y = e.add(a, large);
    let y = e.sub(y, large);
    let (limit, infinity) = (e.f32(65520.0), e.f32(f32::INFINITY));
    let beyond = e.compare(Compare::Ge, a, limit);
    let y = e.select(beyond, infinity, y);
    let (bits, sign) = (e.bits(x), e.i32(i32::MIN));
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
    let kept = e.i32(0x8fff_e000_u32 as i32);
    let high = e.shl(bits, 16);
    let high = e.sar(high, 3);
    let small = e.iand(high, kept);
    // Exponents are 112 lower, and subnormals become subnormals: all that is missing is a factor.
    let (narrow, scale, infinite) = (e.float(small), e.f32(2f32.powi(112)), e.i32(0x7f80_0000));
    let finite = e.mul(narrow, scale);
    let special = e.ior(small, infinite);
    let special = e.float(special);
    let (magnitude, limit) = (e.abs(narrow), e.f32(2f32.powi(-96)));
    let below = e.compare(Compare::Lt, magnitude, limit);
    e.select(below, finite, special)
}

/// The bits of an f16's value.
pub fn narrow_f16<E: Emit>(e: &mut E, x: E::V) -> E::V {
    let scale = e.f32(2f32.powi(-112));
    let y = e.mul(x, scale);
    let bits = e.bits(y);
    // Infinity and NaN have the exponent of f32, of which as many bits are left as f16 has.
    let (magnitude, sign) = (e.i32(0x7fff), e.i32(0x8000));
    let low = e.shr(bits, 13);
    let low = e.iand(low, magnitude);
    let high = e.shr(bits, 16);
    let high = e.iand(high, sign);
    e.ior(low, high)
}
