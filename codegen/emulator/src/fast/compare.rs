//! Comparisons of 32 lanes, the results as a mask.

use super::mask;
use crate::scalar::Compare;

/// How to read 32 bits for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View32 {
    Signed,
    Unsigned,
    Float,
}

/// The lanes of which one of the given relations holds; `unordered` lanes have an operand that is no number.
#[inline(always)]
pub(crate) fn compare32(view: View32, f: Compare, a: &[u32; 32], b: &[u32; 32]) -> u32 {
    let v = f32::from_bits;
    match view {
        View32::Signed => relations(f, a, b, |a, b| (a as i32) < b as i32, |a, b| a == b, |_, _| false),
        View32::Unsigned => relations(f, a, b, |a, b| a < b, |a, b| a == b, |_, _| false),
        View32::Float => {
            relations(f, a, b, |a, b| v(a) < v(b), |a, b| v(a) == v(b), |a, b| v(a).is_nan() | v(b).is_nan())
        }
    }
}

/// The same for 64-bit integers.
#[inline(always)]
pub(crate) fn compare64(signed: bool, f: Compare, a: &[u64; 32], b: &[u64; 32]) -> u32 {
    match signed {
        true => relations(f, a, b, |a, b| (a as i64) < b as i64, |a, b| a == b, |_, _| false),
        false => relations(f, a, b, |a, b| a < b, |a, b| a == b, |_, _| false),
    }
}

#[inline(always)]
fn relations<T: Copy>(
    f: Compare,
    a: &[T; 32],
    b: &[T; 32],
    less: impl Fn(T, T) -> bool,
    equal: impl Fn(T, T) -> bool,
    unordered: impl Fn(T, T) -> bool,
) -> u32 {
    let mut holds = 0;
    if f.less {
        holds |= mask(|lane| less(a[lane], b[lane]));
    }
    if f.equal {
        holds |= mask(|lane| equal(a[lane], b[lane]));
    }
    if f.greater {
        holds |= mask(|lane| less(b[lane], a[lane]));
    }
    if f.unordered {
        holds |= mask(|lane| unordered(a[lane], b[lane]));
    }
    holds
}
