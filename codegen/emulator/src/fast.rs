//! Frequent operations over 32 lanes at once, written so that the compiler vectorises them.
//!
//! Results equal those of [`crate::scalar`] bit for bit (a test compares them).

mod compare;

pub(crate) use compare::{View32, compare32, compare64};

use crate::op::{Class, Reg, Shift};
use crate::regs::Regs;

/// 32-bit operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fast32 {
    Add,
    Sub,
    MulLow,
    MulHigh,
    MulHighSigned,
    MadLow,
    And,
    Or,
    Xor,
    Not,
    Negate,
    ShiftLeft,
    ShiftRight,
    ShiftRightSigned,
    FAdd,
    FSub,
    FMul,
    Fma,
    FMin,
    FMax,
    FMinNan,
    FMaxNan,
    FNegate,
    FAbs,
    FDiv,
    FSqrt,
    FRcp,
    /// `cvt.rn.bf16x2.f32` of two, a high
    ToBrains,
    /// `cvt.rn.bf16.f32`
    ToBrain,
    /// bf16 to f32
    FromBrain,
    /// f16 to f32
    FromHalf,
    /// `cvt.rna.tf32.f32`
    ToTf32,
    Rsqrt,
    FromSigned,
    FromUnsigned,
    Min,
    Max,
    MinSigned,
    MaxSigned,
}

/// 64-bit operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fast64 {
    Add,
    Sub,
    MulLow,
    MulHigh,
    MadLow,
    And,
    Or,
    Xor,
    Min,
    Max,
    MinSigned,
    MaxSigned,
    FSub,
    FAdd,
    FMul,
    Fma,
}

/// Whether the processor has what the vectorised interpreter is compiled for.
#[cfg(target_arch = "x86_64")]
pub(crate) fn vectors() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("fma") && has!("bmi1") && has!("bmi2") && has!("popcnt") && has!("lzcnt")
}

/// One bit a lane.
const BITS: [u32; 32] = {
    let mut bits = [0; 32];
    let mut lane = 0;
    while lane < 32 {
        bits[lane] = 1 << lane;
        lane += 1;
    }
    bits
};

/// An array of `f(i)`. Unlike `array::from_fn` and `map` it is always compiled into its caller, vectors and all.
#[inline(always)]
pub(crate) fn each<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (i, slot) in out.iter_mut().enumerate() {
        *slot = f(i);
    }
    out
}

/// The lanes for which `f` holds, as a mask.
#[inline(always)]
pub(crate) fn mask(f: impl Fn(usize) -> bool) -> u32 {
    let mut picked = [0; 32];
    for lane in 0..32 {
        picked[lane] = if f(lane) { BITS[lane] } else { 0 };
    }
    picked.iter().fold(0, |all, p| all | p)
}

#[inline(always)]
fn blend<T: Copy>(d: &mut [T; 32], new: [T; 32], exec: u32) {
    if exec == u32::MAX {
        *d = new;
    } else {
        for (lane, slot) in d.iter_mut().enumerate() {
            *slot = if exec & BITS[lane] != 0 { new[lane] } else { *slot };
        }
    }
}

macro_rules! lanes {
    ($file:expr, $d:expr, $src:expr, $exec:expr, |$a:ident, $b:ident, $c:ident| $e:expr) => {{
        let (x, y, z) = (&$file[$src[0] as usize], &$file[$src[1] as usize], &$file[$src[2] as usize]);
        let mut out = [Default::default(); 32];
        for lane in 0..32 {
            let ($a, $b, $c) = (x[lane], y[lane], z[lane]);
            let _ = ($b, $c);
            out[lane] = $e;
        }
        blend(&mut $file[$d as usize], out, $exec)
    }};
}

#[inline(always)]
fn canonical(v: f32) -> u32 {
    if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
}

/// An f16 as f32 bits: by scaling an f32 of the same digits, exact for all but infinities and NaN, which are put in.
#[inline(always)]
pub(crate) fn half_bits(bits: u32) -> u32 {
    let digits = (bits & 0x7fff) << 13;
    let finite = (f32::from_bits(digits) * f32::from_bits((254 - 15) << 23)).to_bits();
    let magnitude = if bits & 0x7c00 == 0x7c00 { digits | 0x7f80_0000 } else { finite };
    magnitude | (bits & 0x8000) << 16
}

/// An f32 rounded to bf16, to nearest even.
#[inline(always)]
fn brain(bits: u32) -> u32 {
    if f32::from_bits(bits).is_nan() { 0x7fff } else { (bits + 0x7fff + (bits >> 16 & 1)) >> 16 }
}

/// The operand to keep: `first` says whether it is `a` among two numbers.
#[inline(always)]
fn chosen(a: f32, b: f32, nan: bool, first: bool) -> u32 {
    let number = if first || b.is_nan() { a } else { b };
    let number = if a.is_nan() { b } else { number };
    canonical(if nan && (a.is_nan() || b.is_nan()) { f32::NAN } else { number })
}

#[inline(always)]
fn less(a: f32, b: f32) -> bool {
    a < b || a == b && a.is_sign_negative()
}

/// Copies the lanes of `exec`.
#[inline(always)]
pub(crate) fn copy32(regs: &mut Regs, d: u32, s: u32, exec: u32) {
    let from = regs.w32[s as usize];
    blend(&mut regs.w32[d as usize], from, exec);
}

/// Copies the lanes of `exec`.
#[inline(always)]
pub(crate) fn copy64(regs: &mut Regs, d: u32, s: u32, exec: u32) {
    let from = regs.w64[s as usize];
    blend(&mut regs.w64[d as usize], from, exec);
}

/// Copies `a` where `p` is set and `b` elsewhere.
#[inline(always)]
pub(crate) fn select32(regs: &mut Regs, d: u32, [a, b]: [u32; 2], p: u32, exec: u32) {
    let (a, b) = (&regs.w32[a as usize], &regs.w32[b as usize]);
    let mut out = [0; 32];
    for lane in 0..32 {
        out[lane] = if p & BITS[lane] != 0 { a[lane] } else { b[lane] };
    }
    blend(&mut regs.w32[d as usize], out, exec);
}

/// Runs one operation for the lanes of `exec`.
#[inline(always)]
pub(crate) fn run32(f: Fast32, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    let file = &mut regs.w32;
    let v = f32::from_bits;
    match f {
        Fast32::Add => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_add(b)),
        Fast32::Sub => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_sub(b)),
        Fast32::MulLow => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_mul(b)),
        Fast32::MadLow => lanes!(file, d, src, exec, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Fast32::And => lanes!(file, d, src, exec, |a, b, _c| a & b),
        Fast32::Or => lanes!(file, d, src, exec, |a, b, _c| a | b),
        Fast32::Xor => lanes!(file, d, src, exec, |a, b, _c| a ^ b),
        Fast32::ShiftLeft => lanes!(file, d, src, exec, |a, b, _c| if b > 31 { 0 } else { a << (b & 31) }),
        Fast32::ShiftRight => lanes!(file, d, src, exec, |a, b, _c| if b > 31 { 0 } else { a >> (b & 31) }),
        Fast32::ShiftRightSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i32 >> b.min(31)) as u32),
        Fast32::FAdd => lanes!(file, d, src, exec, |a, b, _c| canonical(v(a) + v(b))),
        Fast32::FSub => lanes!(file, d, src, exec, |a, b, _c| canonical(v(a) - v(b))),
        Fast32::FMul => lanes!(file, d, src, exec, |a, b, _c| canonical(v(a) * v(b))),
        Fast32::Fma => lanes!(file, d, src, exec, |a, b, c| canonical(v(a).mul_add(v(b), v(c)))),
        Fast32::FMin => lanes!(file, d, src, exec, |a, b, _c| chosen(v(a), v(b), false, less(v(a), v(b)))),
        Fast32::FMax => lanes!(file, d, src, exec, |a, b, _c| chosen(v(a), v(b), false, !less(v(a), v(b)))),
        Fast32::FMinNan => lanes!(file, d, src, exec, |a, b, _c| chosen(v(a), v(b), true, less(v(a), v(b)))),
        Fast32::FMaxNan => lanes!(file, d, src, exec, |a, b, _c| chosen(v(a), v(b), true, !less(v(a), v(b)))),
        Fast32::MulHigh => lanes!(file, d, src, exec, |a, b, _c| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        Fast32::MulHighSigned => {
            lanes!(file, d, src, exec, |a, b, _c| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32)
        }
        Fast32::Not => lanes!(file, d, src, exec, |a, _b, _c| !a),
        Fast32::Negate => lanes!(file, d, src, exec, |a, _b, _c| a.wrapping_neg()),
        Fast32::FNegate => lanes!(file, d, src, exec, |a, _b, _c| a ^ 1 << 31),
        Fast32::FAbs => lanes!(file, d, src, exec, |a, _b, _c| canonical(v(a).abs())),
        Fast32::FDiv => lanes!(file, d, src, exec, |a, b, _c| canonical(v(a) / v(b))),
        Fast32::FSqrt => lanes!(file, d, src, exec, |a, _b, _c| canonical(v(a).sqrt())),
        Fast32::FRcp => lanes!(file, d, src, exec, |a, _b, _c| canonical(1.0 / v(a))),
        Fast32::ToBrains => lanes!(file, d, src, exec, |a, b, _c| brain(a) << 16 | brain(b)),
        Fast32::ToBrain => lanes!(file, d, src, exec, |a, _b, _c| brain(a)),
        Fast32::FromHalf => lanes!(file, d, src, exec, |a, _b, _c| canonical(v(half_bits(a & 0xffff)))),
        Fast32::ToTf32 => {
            lanes!(file, d, src, exec, |a, _b, _c| if v(a).is_nan() { 0x7fff_e000 } else { (a + 0x1000) & !0x1fff })
        }
        Fast32::Rsqrt => {
            lanes!(file, d, src, exec, |a, _b, _c| canonical((1.0 / f64::from(v(a)).sqrt()) as f32))
        }
        Fast32::FromBrain => lanes!(file, d, src, exec, |a, _b, _c| canonical(v(a << 16))),
        Fast32::FromSigned => lanes!(file, d, src, exec, |a, _b, _c| (a as i32 as f32).to_bits()),
        Fast32::FromUnsigned => lanes!(file, d, src, exec, |a, _b, _c| (a as f32).to_bits()),
        Fast32::Min => lanes!(file, d, src, exec, |a, b, _c| a.min(b)),
        Fast32::Max => lanes!(file, d, src, exec, |a, b, _c| a.max(b)),
        Fast32::MinSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i32).min(b as i32) as u32),
        Fast32::MaxSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i32).max(b as i32) as u32),
    }
}

/// Runs one operation for the lanes of `exec`.
#[inline(always)]
pub(crate) fn run64(f: Fast64, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    let file = &mut regs.w64;
    let v = f64::from_bits;
    match f {
        Fast64::Add => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_add(b)),
        Fast64::Sub => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_sub(b)),
        Fast64::MulLow => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_mul(b)),
        Fast64::MadLow => lanes!(file, d, src, exec, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Fast64::And => lanes!(file, d, src, exec, |a, b, _c| a & b),
        Fast64::Or => lanes!(file, d, src, exec, |a, b, _c| a | b),
        Fast64::Xor => lanes!(file, d, src, exec, |a, b, _c| a ^ b),
        Fast64::MulHigh => lanes!(file, d, src, exec, |a, b, _c| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Fast64::Min => lanes!(file, d, src, exec, |a, b, _c| a.min(b)),
        Fast64::Max => lanes!(file, d, src, exec, |a, b, _c| a.max(b)),
        Fast64::MinSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i64).min(b as i64) as u64),
        Fast64::MaxSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i64).max(b as i64) as u64),
        Fast64::FSub => lanes!(file, d, src, exec, |a, b, _c| (v(a) - v(b)).to_bits()),
        Fast64::FAdd => lanes!(file, d, src, exec, |a, b, _c| (v(a) + v(b)).to_bits()),
        Fast64::FMul => lanes!(file, d, src, exec, |a, b, _c| (v(a) * v(b)).to_bits()),
        Fast64::Fma => lanes!(file, d, src, exec, |a, b, c| v(a).mul_add(v(b), v(c)).to_bits()),
    }
}

/// `mul.wide` (with the constant-zero slot as `c`) and `mad.wide`.
#[inline(always)]
pub(crate) fn run_wide(signed: bool, regs: &mut Regs, d: u32, [a, b, c]: [u32; 3], exec: u32) {
    let (x, y, z) = (&regs.w32[a as usize], &regs.w32[b as usize], &regs.w64[c as usize]);
    let mut out = [0u64; 32];
    for lane in 0..32 {
        let product = match signed {
            true => (i64::from(x[lane] as i32) * i64::from(y[lane] as i32)) as u64,
            false => u64::from(x[lane]) * u64::from(y[lane]),
        };
        out[lane] = product.wrapping_add(z[lane]);
    }
    blend(&mut regs.w64[d as usize], out, exec);
}

/// Two registers of half the width into one.
#[inline(always)]
pub(crate) fn pack(regs: &mut Regs, d: Reg, [low, high]: [u32; 2], exec: u32) {
    let (a, b) = (&regs.w32[low as usize], &regs.w32[high as usize]);
    if d.class == Class::W64 {
        let out = each(|lane| u64::from(a[lane]) | u64::from(b[lane]) << 32);
        blend(&mut regs.w64[d.slot as usize], out, exec);
    } else {
        let out = each(|lane| a[lane] & 0xffff | b[lane] << 16);
        blend(&mut regs.w32[d.slot as usize], out, exec);
    }
}

/// A register into two of half the width, of which one may be missing.
#[inline(always)]
pub(crate) fn unpack(regs: &mut Regs, parts: [Option<u32>; 2], s: Reg, exec: u32) {
    let halves = if s.class == Class::W64 {
        let from = &regs.w64[s.slot as usize];
        [each(|lane| from[lane] as u32), each(|lane| (from[lane] >> 32) as u32)]
    } else {
        let from = &regs.w32[s.slot as usize];
        [each(|lane| from[lane] & 0xffff), each(|lane| from[lane] >> 16)]
    };
    for (part, half) in parts.into_iter().zip(halves) {
        if let Some(d) = part {
            blend(&mut regs.w32[d as usize], half, exec);
        }
    }
}

/// 32 bits to 64.
#[inline(always)]
pub(crate) fn extend(signed: bool, regs: &mut Regs, d: u32, a: u32, exec: u32) {
    let from = &regs.w32[a as usize];
    let out = match signed {
        true => each(|lane| i64::from(from[lane] as i32) as u64),
        false => each(|lane| u64::from(from[lane])),
    };
    blend(&mut regs.w64[d as usize], out, exec);
}

/// 64 bits to 32.
#[inline(always)]
pub(crate) fn truncate(regs: &mut Regs, d: u32, a: u32, exec: u32) {
    let from = &regs.w64[a as usize];
    let out = each(|lane| from[lane] as u32);
    blend(&mut regs.w32[d as usize], out, exec);
}

/// 64-bit shifts; counts past 63 shift everything out.
#[inline(always)]
pub(crate) fn shift64(f: Shift, regs: &mut Regs, d: u32, [a, by]: [u32; 2], exec: u32) {
    let (x, n) = (&regs.w64[a as usize], &regs.w32[by as usize]);
    let mut out = [0; 32];
    for lane in 0..32 {
        let (x, n) = (x[lane], n[lane]);
        out[lane] = match f {
            Shift::Left => {
                if n > 63 {
                    0
                } else {
                    x << (n & 63)
                }
            }
            Shift::Right => {
                if n > 63 {
                    0
                } else {
                    x >> (n & 63)
                }
            }
            Shift::RightSigned => (x as i64 >> n.min(63)) as u64,
        };
    }
    blend(&mut regs.w64[d as usize], out, exec);
}

#[cfg(test)]
mod tests;
