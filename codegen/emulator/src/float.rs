//! Rounding to any format in any mode, from one function.
//!
//! Every narrow result is first computed as an f64 *rounded to odd*: if the f64 is inexact, its last bit is 1. Since
//! an f64 has at least two more digits than twice-rounding could confuse, rounding that value to f32, f16, bf16 or
//! tf32 in any mode equals rounding the exact result (Boldo and Melquiond, 2008).

/// Rounding modes (PTX ISA 6.5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    /// `.rn`: to nearest, ties to even
    Nearest,
    /// `.rna`: to nearest, ties away from zero
    Away,
    /// `.rz`
    Zero,
    /// `.rm`
    Down,
    /// `.rp`
    Up,
}

/// A binary format with an implicit leading bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) exponent: u32,
    pub(crate) mantissa: u32,
    /// Zero bits below the mantissa in a register (tf32 is an f32 with 13 of them).
    pub(crate) padding: u32,
}

pub(crate) const F32: Format = Format { exponent: 8, mantissa: 23, padding: 0 };
pub(crate) const F16: Format = Format { exponent: 5, mantissa: 10, padding: 0 };
pub(crate) const BF16: Format = Format { exponent: 8, mantissa: 7, padding: 0 };
pub(crate) const TF32: Format = Format { exponent: 8, mantissa: 10, padding: 13 };

impl Format {
    /// The NaN that arithmetic produces: all bits but the sign.
    pub(crate) fn nan(self) -> u64 {
        ((1 << (self.exponent + self.mantissa)) - 1) << self.padding
    }

    /// Rounds `v`.
    pub(crate) fn round(self, v: f64, mode: Round) -> u64 {
        if v.is_nan() {
            return self.nan();
        }
        let (bias, sign) = ((1i32 << (self.exponent - 1)) - 1, u64::from(v.is_sign_negative()));
        let infinity = ((1u64 << self.exponent) - 1) << self.mantissa;
        let magnitude = if v.is_infinite() {
            infinity
        } else if v == 0.0 {
            0
        } else {
            let raw = v.abs().to_bits();
            // Subnormals of f64 lie below every format here; their exponent only has to be small.
            let (exponent, significand) = match raw >> 52 {
                0 => (-1022, raw),
                e => (e as i32 - 1023, raw & ((1 << 52) - 1) | 1 << 52),
            };
            let quantum = exponent.max(1 - bias) - self.mantissa as i32;
            let drop = (quantum - (exponent - 52)).min(60) as u32;
            let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u64 << (drop - 1));
            let up = match mode {
                Round::Nearest => rest > half || rest == half && kept & 1 == 1,
                Round::Away => rest >= half,
                Round::Zero => false,
                Round::Down => sign == 1 && rest > 0,
                Round::Up => sign == 0 && rest > 0,
            };
            let biased = quantum + self.mantissa as i32 + bias;
            let bits = (((biased - 1) as u64) << self.mantissa) + kept + u64::from(up);
            let outward = match mode {
                Round::Nearest | Round::Away => true,
                Round::Zero => false,
                Round::Down => sign == 1,
                Round::Up => sign == 0,
            };
            if bits < infinity { bits } else { infinity - u64::from(!outward) }
        };
        (sign << (self.exponent + self.mantissa) | magnitude) << self.padding
    }

    /// The value of `bits`, exactly.
    pub(crate) fn value(self, bits: u64) -> f64 {
        let bits = bits >> self.padding;
        let mantissa = bits & ((1 << self.mantissa) - 1);
        let exponent = (bits >> self.mantissa) & ((1 << self.exponent) - 1);
        let bias = (1i32 << (self.exponent - 1)) - 1;
        let scale = |e: i32| f64::from_bits(((e + 1023) as u64) << 52);
        let magnitude = if exponent == (1 << self.exponent) - 1 {
            if mantissa == 0 { f64::INFINITY } else { f64::NAN }
        } else if exponent == 0 {
            mantissa as f64 * scale(1 - bias - self.mantissa as i32)
        } else {
            (mantissa | 1 << self.mantissa) as f64 * scale(exponent as i32 - bias - self.mantissa as i32)
        };
        if bits >> (self.exponent + self.mantissa) & 1 == 1 { -magnitude } else { magnitude }
    }
}

/// `s + err` rounded to odd, where `s` is the sum rounded to nearest.
fn to_odd(s: f64, err: f64) -> f64 {
    let bits = s.to_bits();
    if err == 0.0 || !err.is_finite() || bits & 1 == 1 {
        return s;
    }
    f64::from_bits(if (err > 0.0) == (s > 0.0) { bits + 1 } else { bits - 1 })
}

/// `x + y` rounded to odd; exact zeros follow `mode`'s sign rule.
pub(crate) fn add(x: f64, y: f64, mode: Round) -> f64 {
    let s = x + y;
    if s == 0.0 {
        let opposite = x.is_sign_negative() != y.is_sign_negative();
        return if mode == Round::Down && opposite { -0.0 } else { s };
    }
    if !s.is_finite() {
        return s;
    }
    let virtual_y = s - x;
    to_odd(s, (x - (s - virtual_y)) + (y - virtual_y))
}

/// `a * b + c` rounded to odd, for operands of at most 24 digits (their product is exact).
pub(crate) fn fma(a: f64, b: f64, c: f64, mode: Round) -> f64 {
    add(a * b, c, mode)
}

/// `a / b` rounded to odd, for operands of at most 24 digits.
pub(crate) fn div(a: f64, b: f64) -> f64 {
    let q = a / b;
    if !q.is_finite() || q == 0.0 || !b.is_finite() {
        return q;
    }
    let rest = libm::fma(-q, b, a);
    to_odd(q, if b > 0.0 { rest } else { -rest })
}

/// `√a` rounded to odd, for operands of at most 24 digits.
pub(crate) fn sqrt(a: f64) -> f64 {
    let s = a.sqrt();
    if !s.is_finite() || s == 0.0 { s } else { to_odd(s, libm::fma(-s, s, a)) }
}

/// An integer as an f64 rounded to odd.
pub(crate) fn from_integer(value: i128) -> f64 {
    let magnitude = value.unsigned_abs();
    let shift = (128 - magnitude.leading_zeros()).saturating_sub(53);
    let mut kept = (magnitude >> shift) as u64;
    if magnitude & ((1 << shift) - 1) != 0 {
        kept |= 1;
    }
    let v = kept as f64 * (1u64 << shift) as f64;
    if value < 0 { -v } else { v }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_to_f32_is_that_of_rust() {
        let mut x = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200_000 {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let v = f64::from_bits((x & !(0x7ff << 52)) | ((x % 320 + 860) << 52));
            assert_eq!(F32.round(v, Round::Nearest) as u32, (v as f32).to_bits(), "{v:e}");
            let f = f32::from_bits(x as u32);
            if !f.is_nan() {
                assert_eq!(F32.value(u64::from(f.to_bits())), f64::from(f));
            }
            let (a, b) = (f32::from_bits(x as u32), f32::from_bits((x >> 32) as u32));
            let check = |odd: f64, native: f32| {
                if !native.is_nan() {
                    assert_eq!(F32.round(odd, Round::Nearest) as u32, native.to_bits(), "{a:e} {b:e}");
                }
            };
            check(add(f64::from(a), f64::from(b), Round::Nearest), a + b);
            check(div(f64::from(a), f64::from(b)), a / b);
            check(sqrt(f64::from(a)), a.sqrt());
            check(fma(f64::from(a), f64::from(b), f64::from(a), Round::Nearest), a.mul_add(b, a));
            check(from_integer(i128::from(x)), x as f32);
        }
    }

    #[test]
    fn halves_round_trip() {
        for bits in 0..=0xffffu64 {
            for format in [F16, BF16] {
                let v = format.value(bits);
                if !v.is_nan() {
                    assert_eq!(format.round(v, Round::Down), bits);
                }
            }
        }
        assert_eq!(F16.round(65520.0, Round::Nearest), 0x7c00);
        assert_eq!(F16.round(65519.0, Round::Nearest), 0x7bff);
        assert_eq!(F16.round(65520.0, Round::Zero), 0x7bff);
        assert_eq!(
            TF32.round(1.0 + f64::powi(2.0, -11), Round::Away),
            u64::from((1.0f32 + f32::powi(2.0, -10)).to_bits())
        );
    }
}
