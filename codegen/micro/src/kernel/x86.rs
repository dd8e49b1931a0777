//! Kernels for AVX2 with FMA and for AVX-512.

use super::{Kernels, Tile, Width, width};
use std::arch::x86_64::*;

/// Row pointers are kept for every third row; the two after it are at one and two strides from it, which x86
/// addressing does for free.
const GROUP: usize = 3;
const GROUPS: usize = 5;

/// A loop over rows that is unrolled in any case: accumulators indexed at run time would live in memory.
macro_rules! rows {
    ($rows:ident, $r:ident, $body:block) => {
        rows!($rows, $r, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13)
    };
    ($rows:ident, $r:ident, $body:block, $($row:literal)+) => {
        $(if $row < $rows {
            let $r: usize = $row;
            $body
        })+
    };
}

macro_rules! vector_kernel {
    ($name:ident, $t:ty, $feature:literal, $lanes:literal, $zero:ident, $splat:ident, $read:ident, $write:ident,
     $fma:ident, $add:ident, $mask:ident, $masked_read:ident, $masked_write:ident) => {
        /// # Safety
        /// See [`Kernel`](super::Kernel).
        #[target_feature(enable = $feature)]
        unsafe fn $name<const R: usize, const V: usize, const COLUMNS: bool>(t: &Tile<$t>) {
            let mut acc = [[$zero(); V]; R];
            let full = t.columns == V * $lanes;
            // SAFETY: the caller vouches for the extents that the tile names; masked lanes are not touched.
            unsafe {
                if t.load {
                    for (r, acc) in acc.iter_mut().enumerate() {
                        let row = t.c.offset(*t.c_rows.add(r));
                        for (v, acc) in acc.iter_mut().enumerate() {
                            let at = row.wrapping_add(v * $lanes);
                            *acc = if full { $read(at) } else { $masked_read(at, $mask(t.columns, v)) };
                        }
                    }
                }
                let step = t.a_step;
                let mut b = t.b;
                for s in 0..t.segments {
                    let a = t.a.offset(s as isize * t.a_segment);
                    let mut heads: [*const $t; GROUPS] =
                        std::array::from_fn(|g| a.wrapping_offset((g * GROUP) as isize * step));
                    for _ in 0..t.segment {
                        let right: [_; V] =
                            std::array::from_fn(|v| $read(b.offset((v / 2) as isize * t.b_panel).add(v % 2 * $lanes)));
                        rows!(R, r, {
                            let left = if COLUMNS {
                                *heads[0].add(r)
                            } else {
                                *heads[r / GROUP].offset((r % GROUP) as isize * step)
                            };
                            let left = $splat(left);
                            for (acc, right) in acc[r].iter_mut().zip(right) {
                                *acc = $fma(left, right, *acc);
                            }
                        });
                        for head in &mut heads {
                            *head = head.wrapping_offset(if COLUMNS { step } else { 1 });
                        }
                        b = b.wrapping_offset(t.b_step);
                    }
                }
                let end = &t.end;
                if end.fill {
                    for acc in acc.as_flattened_mut() {
                        *acc = $add(*acc, $zero());
                    }
                }
                for join in 0..end.joins {
                    let part = *end.join.add(join);
                    for (r, acc) in acc.iter_mut().enumerate() {
                        for (v, acc) in acc.iter_mut().enumerate() {
                            *acc = $add($read(part.offset(r as isize * end.pitch).add(v * $lanes)), *acc);
                        }
                    }
                }
                if !end.to.is_null() {
                    for (r, acc) in acc.iter().enumerate() {
                        for (v, acc) in acc.iter().enumerate() {
                            $write(end.to.offset(r as isize * end.pitch).add(v * $lanes), *acc);
                        }
                    }
                    return;
                }
                for (r, acc) in acc.iter().enumerate() {
                    let row = t.c.offset(*t.c_rows.add(r));
                    for (v, acc) in acc.iter().enumerate() {
                        let at = row.wrapping_add(v * $lanes);
                        if full {
                            $write(at, *acc);
                        } else {
                            $masked_write(at, $mask(t.columns, v), *acc);
                        }
                    }
                }
            }
        }
    };
}

#[inline]
fn lanes_left(columns: usize, v: usize, lanes: usize) -> usize {
    columns.saturating_sub(v * lanes).min(lanes)
}

#[inline]
fn mask16(columns: usize, v: usize) -> __mmask16 {
    ((1u32 << lanes_left(columns, v, 16)) - 1) as __mmask16
}

#[inline]
fn mask8(columns: usize, v: usize) -> __mmask8 {
    ((1u32 << lanes_left(columns, v, 8)) - 1) as __mmask8
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn read_masked_512(p: *const f32, mask: __mmask16) -> __m512 {
    // SAFETY: lanes outside the mask are not read.
    unsafe { _mm512_maskz_loadu_ps(mask, p) }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn read_masked_512d(p: *const f64, mask: __mmask8) -> __m512d {
    // SAFETY: lanes outside the mask are not read.
    unsafe { _mm512_maskz_loadu_pd(mask, p) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn mask_ps(columns: usize, v: usize) -> __m256i {
    let lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes_left(columns, v, 8) as i32), lane)
}

#[inline]
#[target_feature(enable = "avx2")]
fn mask_pd(columns: usize, v: usize) -> __m256i {
    let lane = _mm256_setr_epi64x(0, 1, 2, 3);
    _mm256_cmpgt_epi64(_mm256_set1_epi64x(lanes_left(columns, v, 4) as i64), lane)
}

vector_kernel!(
    avx512_f32,
    f32,
    "avx512f",
    16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps,
    mask16,
    read_masked_512,
    _mm512_mask_storeu_ps
);
vector_kernel!(
    avx512_f64,
    f64,
    "avx512f",
    8,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd,
    mask8,
    read_masked_512d,
    _mm512_mask_storeu_pd
);
vector_kernel!(
    avx2_f32,
    f32,
    "avx2,fma",
    8,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps,
    mask_ps,
    _mm256_maskload_ps,
    _mm256_maskstore_ps
);
vector_kernel!(
    avx2_f64,
    f64,
    "avx2,fma",
    4,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd,
    mask_pd,
    _mm256_maskload_pd,
    _mm256_maskstore_pd
);

/// Whole blocks by shuffles, what is left over element by element.
macro_rules! vector_transpose {
    ($name:ident, $t:ty, $side:literal, $square:ident) => {
        /// # Safety
        /// See [`Transpose`](crate::pack::Transpose).
        #[target_feature(enable = "avx2")]
        unsafe fn $name(lines: *const $t, step: isize, ks: usize, os: usize, width: usize, target: *mut $t) {
            let (whole_k, whole_o) = (ks / $side * $side, os / $side * $side);
            // SAFETY: blocks and remainders lie inside what the caller vouches for.
            unsafe {
                for o in (0..whole_o).step_by($side) {
                    let line = lines.wrapping_offset(o as isize * step);
                    for k in (0..whole_k).step_by($side) {
                        $square(line.wrapping_add(k), step, target.add(k * width + o), width);
                    }
                }
                for k in whole_k..ks {
                    for o in 0..whole_o {
                        *target.add(k * width + o) = *lines.wrapping_offset(o as isize * step).add(k);
                    }
                }
                if whole_o < width {
                    let rest = lines.wrapping_offset(whole_o as isize * step);
                    narrow(rest, step, ks, os - whole_o, width, width - whole_o, target.add(whole_o));
                }
            }
        }
    };
}

vector_transpose!(transpose_f32, f32, 8, square_f32);
vector_transpose!(transpose_f64, f64, 4, square_f64);

/// The columns of a panel that do not fill a block.
unsafe fn narrow<T: Copy + Default>(
    lines: *const T,
    step: isize,
    ks: usize,
    os: usize,
    pitch: usize,
    width: usize,
    target: *mut T,
) {
    for k in 0..ks {
        for o in 0..width {
            let line = lines.wrapping_offset(o as isize * step);
            // SAFETY: only the `os` lines that exist are read.
            unsafe { *target.add(k * pitch + o) = if o < os { *line.add(k) } else { T::default() } };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn square_f32(lines: *const f32, step: isize, target: *mut f32, pitch: usize) {
    // Lines o and o + 4 share a register, so that 128-bit loads do the cross-lane half of the work.
    let pair = |o: isize, half: usize| {
        let (low, high) = (lines.wrapping_offset(o * step), lines.wrapping_offset((o + 4) * step));
        // SAFETY: four elements of an existing line each.
        unsafe { _mm256_set_m128(_mm_loadu_ps(high.add(4 * half)), _mm_loadu_ps(low.add(4 * half))) }
    };
    for half in 0..2 {
        let (a, b, c, d) = (pair(0, half), pair(1, half), pair(2, half), pair(3, half));
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ef, gh) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        let rows = [
            _mm256_shuffle_ps::<0x44>(ab, cd),
            _mm256_shuffle_ps::<0xEE>(ab, cd),
            _mm256_shuffle_ps::<0x44>(ef, gh),
            _mm256_shuffle_ps::<0xEE>(ef, gh),
        ];
        for (k, row) in rows.into_iter().enumerate() {
            // SAFETY: the block's rows are inside the panel.
            unsafe { _mm256_storeu_ps(target.add((4 * half + k) * pitch), row) };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
unsafe fn square_f64(lines: *const f64, step: isize, target: *mut f64, pitch: usize) {
    let pair = |o: isize, half: usize| {
        let (low, high) = (lines.wrapping_offset(o * step), lines.wrapping_offset((o + 2) * step));
        // SAFETY: two elements of an existing line each.
        unsafe { _mm256_set_m128d(_mm_loadu_pd(high.add(2 * half)), _mm_loadu_pd(low.add(2 * half))) }
    };
    for half in 0..2 {
        let (a, b) = (pair(0, half), pair(1, half));
        for (k, row) in [_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b)].into_iter().enumerate() {
            // SAFETY: the block's rows are inside the panel.
            unsafe { _mm256_storeu_pd(target.add((2 * half + k) * pitch), row) };
        }
    }
}

pub(super) static AVX512_F32: Kernels<f32> = Kernels {
    lanes: 16,
    transpose: transpose_f32,
    widths: &[
        width!(avx512_f32, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]),
        width!(avx512_f32, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]),
        width!(avx512_f32, 4, [1 2 3 4 5 6]),
        width!(avx512_f32, 8, [1 2]),
    ],
};
pub(super) static AVX512_F64: Kernels<f64> = Kernels {
    lanes: 8,
    transpose: transpose_f64,
    widths: &[
        width!(avx512_f64, 1, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]),
        width!(avx512_f64, 2, [1 2 3 4 5 6 7 8 9 10 11 12 13 14]),
        width!(avx512_f64, 4, [1 2 3 4 5 6]),
        width!(avx512_f64, 8, [1 2]),
    ],
};
pub(super) static AVX2_F32: Kernels<f32> = Kernels {
    lanes: 8,
    transpose: transpose_f32,
    widths: &[
        width!(avx2_f32, 1, [1 2 3 4 5 6]),
        width!(avx2_f32, 2, [1 2 3 4 5 6]),
        width!(avx2_f32, 4, [1 2 3]),
        width!(avx2_f32, 8, [1]),
    ],
};
pub(super) static AVX2_F64: Kernels<f64> = Kernels {
    lanes: 4,
    transpose: transpose_f64,
    widths: &[
        width!(avx2_f64, 1, [1 2 3 4 5 6]),
        width!(avx2_f64, 2, [1 2 3 4 5 6]),
        width!(avx2_f64, 4, [1 2 3]),
        width!(avx2_f64, 8, [1]),
    ],
};
