//! [`Emit`] on numbers: an expansion run directly, on one lane or on several at once.

use super::expand::{self, Emit, Means};
use super::{Binary, Compare, Unary};
use crate::DType;

/// Runs instructions on `N` lanes, each 32 bits; a comparison gives all ones or zero.
pub(super) struct Lanes<const N: usize>;

#[inline(always)]
fn map<const N: usize>(x: [u32; N], f: impl Fn(f32) -> f32) -> [u32; N] {
    x.map(|x| f(f32::from_bits(x)).to_bits())
}

#[inline(always)]
fn zip<const N: usize>(x: [u32; N], y: [u32; N], f: impl Fn(u32, u32) -> u32) -> [u32; N] {
    let mut out = x;
    for i in 0..N {
        out[i] = f(x[i], y[i]);
    }
    out
}

#[inline(always)]
fn zip_float<const N: usize>(x: [u32; N], y: [u32; N], f: impl Fn(f32, f32) -> f32) -> [u32; N] {
    zip(x, y, |a, b| f(f32::from_bits(a), f32::from_bits(b)).to_bits())
}

#[inline(always)]
fn mask<const N: usize>(x: [u32; N], y: [u32; N], f: impl Fn(&f32, &f32) -> bool) -> [u32; N] {
    zip(x, y, |a, b| if f(&f32::from_bits(a), &f32::from_bits(b)) { u32::MAX } else { 0 })
}

impl<const N: usize> Emit for Lanes<N> {
    type V = [u32; N];

    #[inline(always)]
    fn f32(&mut self, x: f32) -> [u32; N] {
        [x.to_bits(); N]
    }
    #[inline(always)]
    fn i32(&mut self, x: i32) -> [u32; N] {
        [x as u32; N]
    }
    #[inline(always)]
    fn neg(&mut self, x: [u32; N]) -> [u32; N] {
        x.map(|x| x ^ 0x8000_0000)
    }
    #[inline(always)]
    fn abs(&mut self, x: [u32; N]) -> [u32; N] {
        x.map(|x| x & 0x7fff_ffff)
    }
    #[inline(always)]
    fn add(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip_float(x, y, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip_float(x, y, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip_float(x, y, |a, b| a * b)
    }
    #[inline(always)]
    fn div(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip_float(x, y, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(&mut self, x: [u32; N], y: [u32; N], z: [u32; N]) -> [u32; N] {
        let mut out = x;
        for i in 0..N {
            out[i] = f32::from_bits(x[i]).mul_add(f32::from_bits(y[i]), f32::from_bits(z[i])).to_bits();
        }
        out
    }
    #[inline(always)]
    fn sqrt(&mut self, x: [u32; N]) -> [u32; N] {
        map(x, f32::sqrt)
    }
    #[inline(always)]
    fn compare(&mut self, op: Compare, x: [u32; N], y: [u32; N]) -> [u32; N] {
        match op {
            Compare::Eq => mask(x, y, f32::eq),
            Compare::Ne => mask(x, y, f32::ne),
            Compare::Lt => mask(x, y, f32::lt),
            Compare::Le => mask(x, y, f32::le),
            Compare::Gt => mask(x, y, f32::gt),
            Compare::Ge => mask(x, y, f32::ge),
        }
    }
    #[inline(always)]
    fn select(&mut self, mask: [u32; N], x: [u32; N], y: [u32; N]) -> [u32; N] {
        let mut out = x;
        for i in 0..N {
            out[i] = (x[i] & mask[i]) | (y[i] & !mask[i]);
        }
        out
    }
    #[inline(always)]
    fn bits(&mut self, x: [u32; N]) -> [u32; N] {
        x
    }
    #[inline(always)]
    fn float(&mut self, x: [u32; N]) -> [u32; N] {
        x
    }
    #[inline(always)]
    fn to_float(&mut self, x: [u32; N]) -> [u32; N] {
        x.map(|x| (x as i32 as f32).to_bits())
    }
    #[inline(always)]
    fn iadd(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, u32::wrapping_add)
    }
    #[inline(always)]
    fn isub(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, u32::wrapping_sub)
    }
    #[inline(always)]
    fn iand(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, |a, b| a & b)
    }
    #[inline(always)]
    fn ior(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, |a, b| a | b)
    }
    #[inline(always)]
    fn shl(&mut self, x: [u32; N], n: u32) -> [u32; N] {
        x.map(|x| x << n)
    }
    #[inline(always)]
    fn sar(&mut self, x: [u32; N], n: u32) -> [u32; N] {
        x.map(|x| ((x as i32) >> n) as u32)
    }
    #[inline(always)]
    fn ixor(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, |a, b| a ^ b)
    }
    #[inline(always)]
    fn imul(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, u32::wrapping_mul)
    }
    #[inline(always)]
    fn umulhi(&mut self, x: [u32; N], y: [u32; N]) -> [u32; N] {
        zip(x, y, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32)
    }
    #[inline(always)]
    fn shl_by(&mut self, x: [u32; N], n: [u32; N]) -> [u32; N] {
        zip(x, n, |a, n| a << (n & 31))
    }
    #[inline(always)]
    fn shr(&mut self, x: [u32; N], n: u32) -> [u32; N] {
        x.map(|x| x >> n)
    }
}

/// `op` on one f32, for expansions; the rest is nothing.
pub(super) fn unary_one(op: Unary, x: f32) -> Option<f32> {
    expand::unary_f32(&mut Lanes::<1>, op, [x.to_bits()]).map(|[y]| f32::from_bits(y))
}

/// `op` on two f32, for expansions; the rest is nothing.
pub(super) fn binary_one(op: Binary, x: f32, y: f32) -> Option<f32> {
    expand::binary_f32(&mut Lanes::<1>, op, [x.to_bits()], [y.to_bits()]).map(|[z]| f32::from_bits(z))
}

/// `op` on a whole slice, with the bits of [`super::unary`] on each element. The slices have one length.
pub fn unary_slice_f32(op: Unary, x: &[f32], y: &mut [f32]) {
    match expand::means(op, DType::F32) {
        Means::Expansion => {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                // SAFETY: the two features that the function is compiled with were just detected.
                unsafe { expand_slice_avx2(op, x, y) };
                return;
            }
            expand_slice::<1>(op, x, y);
        }
        Means::Native | Means::Libcall(_) => {
            for (x, y) in x.iter().zip(y) {
                *y = super::eval::unary_single(op, *x);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn expand_slice_avx2(op: Unary, x: &[f32], y: &mut [f32]) {
    expand_slice::<8>(op, x, y);
}

/// Chunks of `N` elements; the last is filled up with zeros whose results are dropped.
#[inline(always)]
fn expand_slice<const N: usize>(op: Unary, x: &[f32], y: &mut [f32]) {
    macro_rules! each {
        ($($op:ident),+) => {
            match op {
                $(Unary::$op => chunks::<N>(x, y, |v| expand::unary_f32(&mut Lanes::<N>, Unary::$op, v).unwrap_or(v)),)+
                _ => chunks::<N>(x, y, |v| expand::unary_f32(&mut Lanes::<N>, op, v).unwrap_or(v)),
            }
        };
    }
    each!(Exp, Expm1, Log, Log1p, Tanh, Logistic, Erf, Sin, Cos);
}

#[inline(always)]
fn chunks<const N: usize>(x: &[f32], y: &mut [f32], f: impl Fn([u32; N]) -> [u32; N]) {
    for (x, y) in x.chunks(N).zip(y.chunks_mut(N)) {
        let mut lanes = [0; N];
        for (lane, x) in lanes.iter_mut().zip(x) {
            *lane = x.to_bits();
        }
        let lanes = f(lanes);
        for (y, lane) in y.iter_mut().zip(lanes) {
            *y = f32::from_bits(lane);
        }
    }
}
