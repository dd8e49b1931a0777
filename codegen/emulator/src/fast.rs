//! Frequent operations over 32 lanes at once, written so that the compiler vectorises them.
//!
//! Results equal those of [`crate::scalar`] bit for bit (a test compares them).

use crate::regs::Regs;

/// 32-bit operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fast32 {
    Add,
    Sub,
    MulLow,
    MadLow,
    And,
    Or,
    Xor,
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
    MadLow,
    And,
    Or,
    FAdd,
    FMul,
    Fma,
}

/// Runs one operation for the lanes of `exec`.
pub(crate) fn run32(f: Fast32, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { run32_avx2(f, regs, d, src, exec) };
    }
    run32_body(f, regs, d, src, exec);
}

/// Runs one operation for the lanes of `exec`.
pub(crate) fn run64(f: Fast64, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { run64_avx2(f, regs, d, src, exec) };
    }
    run64_body(f, regs, d, src, exec);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run32_avx2(f: Fast32, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    run32_body(f, regs, d, src, exec);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run64_avx2(f: Fast64, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    run64_body(f, regs, d, src, exec);
}

#[inline(always)]
fn blend<T: Copy>(d: &mut [T; 32], new: [T; 32], exec: u32) {
    if exec == u32::MAX {
        *d = new;
    } else {
        for (lane, slot) in d.iter_mut().enumerate() {
            if exec >> lane & 1 == 1 {
                *slot = new[lane];
            }
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

/// How to read 32 bits for a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum View32 {
    Signed,
    Unsigned,
    Float,
}

/// Compares all lanes: which are less, equal, greater.
pub(crate) fn compare32(view: View32, a: &[u32; 32], b: &[u32; 32]) -> [u32; 3] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { compare32_avx2(view, a, b) };
    }
    compare32_body(view, a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn compare32_avx2(view: View32, a: &[u32; 32], b: &[u32; 32]) -> [u32; 3] {
    compare32_body(view, a, b)
}

#[inline(always)]
fn compare32_body(view: View32, a: &[u32; 32], b: &[u32; 32]) -> [u32; 3] {
    let v = f32::from_bits;
    match view {
        View32::Signed => relations(a, b, |a, b| (a as i32) < b as i32, |a, b| a == b),
        View32::Unsigned => relations(a, b, |a, b| a < b, |a, b| a == b),
        View32::Float => relations(a, b, |a, b| v(a) < v(b), |a, b| v(a) == v(b)),
    }
}

#[inline(always)]
fn relations(
    a: &[u32; 32],
    b: &[u32; 32],
    less: impl Fn(u32, u32) -> bool,
    equal: impl Fn(u32, u32) -> bool,
) -> [u32; 3] {
    let mut out = [0; 3];
    for lane in 0..32 {
        out[0] |= u32::from(less(a[lane], b[lane])) << lane;
    }
    for lane in 0..32 {
        out[1] |= u32::from(equal(a[lane], b[lane])) << lane;
    }
    for lane in 0..32 {
        out[2] |= u32::from(less(b[lane], a[lane])) << lane;
    }
    out
}

/// The 16×8 product of two fragments, each element summed in order of k.
pub(crate) fn products(left: &[[f64; 16]; 16], right: &[[f64; 8]]) -> [[f64; 8]; 16] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        // SAFETY: both features were just detected.
        return unsafe { products_avx2(left, right) };
    }
    products_body(left, right)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn products_avx2(left: &[[f64; 16]; 16], right: &[[f64; 8]]) -> [[f64; 8]; 16] {
    products_body(left, right)
}

#[inline(always)]
fn products_body(left: &[[f64; 16]; 16], right: &[[f64; 8]]) -> [[f64; 8]; 16] {
    let mut sums = [[0f64; 8]; 16];
    for (sums, left) in sums.iter_mut().zip(left) {
        let mut row = [0f64; 8];
        for (&x, right) in left.iter().zip(right) {
            row.iter_mut().zip(right).for_each(|(sum, &y)| *sum += x * y);
        }
        *sums = row;
    }
    sums
}

/// Copies the lanes of `exec`.
pub(crate) fn copy32(regs: &mut Regs, d: u32, s: u32, exec: u32) {
    let from = regs.w32[s as usize];
    blend(&mut regs.w32[d as usize], from, exec);
}

#[inline(always)]
fn run32_body(f: Fast32, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
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
        Fast32::Min => lanes!(file, d, src, exec, |a, b, _c| a.min(b)),
        Fast32::Max => lanes!(file, d, src, exec, |a, b, _c| a.max(b)),
        Fast32::MinSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i32).min(b as i32) as u32),
        Fast32::MaxSigned => lanes!(file, d, src, exec, |a, b, _c| (a as i32).max(b as i32) as u32),
    }
}

#[inline(always)]
fn run64_body(f: Fast64, regs: &mut Regs, d: u32, src: [u32; 3], exec: u32) {
    let file = &mut regs.w64;
    let v = f64::from_bits;
    match f {
        Fast64::Add => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_add(b)),
        Fast64::Sub => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_sub(b)),
        Fast64::MulLow => lanes!(file, d, src, exec, |a, b, _c| a.wrapping_mul(b)),
        Fast64::MadLow => lanes!(file, d, src, exec, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        Fast64::And => lanes!(file, d, src, exec, |a, b, _c| a & b),
        Fast64::Or => lanes!(file, d, src, exec, |a, b, _c| a | b),
        Fast64::FAdd => lanes!(file, d, src, exec, |a, b, _c| (v(a) + v(b)).to_bits()),
        Fast64::FMul => lanes!(file, d, src, exec, |a, b, _c| (v(a) * v(b)).to_bits()),
        Fast64::Fma => lanes!(file, d, src, exec, |a, b, c| v(a).mul_add(v(b), v(c)).to_bits()),
    }
}

/// `mul.wide` (with the constant-zero slot as `c`) and `mad.wide`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float::Round;
    use crate::op::{Class, Reg};
    use crate::scalar::{FloatOp, IntOp, Mods, Scalar};
    use crate::types::{Kind, Ty};

    const MODS: Mods = Mods { round: Round::Nearest, flush: false, saturate: false, relu: false };

    fn registers() -> (Regs, [Reg; 3], [Reg; 3]) {
        let mut regs = Regs::new();
        let narrow = [(); 3].map(|()| regs.fresh(Class::W32));
        let wide = [(); 3].map(|()| regs.fresh(Class::W64));
        (regs, narrow, wide)
    }

    /// Runs `fast` on random and on special values and compares every lane with the scalar definition.
    fn agree(scalar: Scalar, regs: [Reg; 3], file: &mut Regs, fast: impl Fn(&mut Regs, u32)) {
        let mut x = 0x1234_5678_9abc_def1u64;
        let mut random = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            let special = [0, 1, 31, 32, 0x8000_0000, 0x7f80_0000, 0xff80_0000, 0x7fc0_0000, 0x0000_0001, 0x3f80_0000];
            match x >> 60 {
                0..=5 => special[(x >> 8) as usize % special.len()],
                _ => x,
            }
        };
        let d = file.fresh(regs[0].class);
        for _ in 0..2000 {
            regs.iter().for_each(|&r| file.fill(r, |_| random()));
            fast(file, d.slot);
            for lane in 0..32 {
                let [a, b, c] = regs.map(|r| file.get(r, lane));
                let wanted = scalar.eval(a, b, c);
                assert_eq!(file.get(d, lane), wanted, "{scalar:?} {a:#x} {b:#x} {c:#x}");
            }
        }
    }

    #[test]
    fn fast_and_scalar_definitions_agree() {
        let (mut file, narrow, wide) = registers();
        let (signed, unsigned) = (Ty::new(Kind::Signed, 32), Ty::U32);
        let float = |op| Scalar::Float(op, Ty::F32, MODS);
        let table = [
            (Fast32::Add, Scalar::Int(IntOp::Add, unsigned)),
            (Fast32::Sub, Scalar::Int(IntOp::Sub, unsigned)),
            (Fast32::MulLow, Scalar::Int(IntOp::MulLow, signed)),
            (Fast32::MadLow, Scalar::Int(IntOp::MadLow, unsigned)),
            (Fast32::And, Scalar::Int(IntOp::And, unsigned)),
            (Fast32::Or, Scalar::Int(IntOp::Or, unsigned)),
            (Fast32::Xor, Scalar::Int(IntOp::Xor, unsigned)),
            (Fast32::ShiftLeft, Scalar::Int(IntOp::ShiftLeft, unsigned)),
            (Fast32::ShiftRight, Scalar::Int(IntOp::ShiftRight, unsigned)),
            (Fast32::ShiftRightSigned, Scalar::Int(IntOp::ShiftRight, signed)),
            (Fast32::FAdd, float(FloatOp::Add)),
            (Fast32::FSub, float(FloatOp::Sub)),
            (Fast32::FMul, float(FloatOp::Mul)),
            (Fast32::Fma, float(FloatOp::Fma)),
            (Fast32::FMin, float(FloatOp::Min { nan: false })),
            (Fast32::FMax, float(FloatOp::Max { nan: false })),
            (Fast32::FMinNan, float(FloatOp::Min { nan: true })),
            (Fast32::FMaxNan, float(FloatOp::Max { nan: true })),
            (Fast32::Min, Scalar::Int(IntOp::Min, unsigned)),
            (Fast32::Max, Scalar::Int(IntOp::Max, unsigned)),
            (Fast32::MinSigned, Scalar::Int(IntOp::Min, signed)),
            (Fast32::MaxSigned, Scalar::Int(IntOp::Max, signed)),
        ];
        for (fast, scalar) in table {
            let slots = narrow.map(|r| r.slot);
            agree(scalar, narrow, &mut file, |regs, d| run32(fast, regs, d, slots, u32::MAX));
        }
        let table = [
            (Fast64::Add, IntOp::Add),
            (Fast64::Sub, IntOp::Sub),
            (Fast64::MulLow, IntOp::MulLow),
            (Fast64::MadLow, IntOp::MadLow),
            (Fast64::And, IntOp::And),
            (Fast64::Or, IntOp::Or),
        ];
        for (fast, op) in table {
            let slots = wide.map(|r| r.slot);
            agree(Scalar::Int(op, Ty::U64), wide, &mut file, |regs, d| run64(fast, regs, d, slots, u32::MAX));
        }
    }

    #[test]
    fn inactive_lanes_keep_their_values() {
        let (mut file, [a, b, d], _) = registers();
        file.fill(a, |lane| lane as u64);
        file.fill(b, |_| 100);
        file.fill(d, |_| 7);
        run32(Fast32::Add, &mut file, d.slot, [a.slot, b.slot, 0], 0x0000_ff00);
        for lane in 0..32 {
            assert_eq!(file.get(d, lane), if (8..16).contains(&lane) { 100 + lane as u64 } else { 7 });
        }
    }
}
