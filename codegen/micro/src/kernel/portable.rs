//! Kernels in plain Rust. `mul_add` is exact on every target, and fast where the target has fused multiply-add.

use crate::pack::transpose;

use super::{Kernels, Tile, Width, width};

const LANES: usize = 8;

macro_rules! portable_kernel {
    ($name:ident, $t:ty) => {
        /// # Safety
        /// See [`Kernel`](super::Kernel).
        unsafe fn $name<const R: usize, const V: usize, const COLUMNS: bool>(t: &Tile<$t>) {
            let mut acc = [[[0.0; LANES]; V]; R];
            // SAFETY: the caller vouches for the extents that the tile names.
            unsafe {
                let rows = std::slice::from_raw_parts(t.c_rows, R);
                if t.load {
                    for (acc, row) in acc.iter_mut().zip(rows) {
                        for (j, lane) in acc.as_flattened_mut().iter_mut().enumerate().take(t.columns) {
                            *lane = *t.c.offset(row + j as isize);
                        }
                    }
                }
                let mut b = t.b;
                for s in 0..t.segments {
                    let mut a = t.a.offset(s as isize * t.a_segment);
                    for _ in 0..t.segment {
                        for (r, acc) in acc.iter_mut().enumerate() {
                            let left = *a.offset(if COLUMNS { r as isize } else { r as isize * t.a_step });
                            for (v, acc) in acc.iter_mut().enumerate() {
                                let right = b.offset((v / 2) as isize * t.b_panel).add(v % 2 * LANES);
                                for (j, lane) in acc.iter_mut().enumerate() {
                                    *lane = left.mul_add(*right.add(j), *lane);
                                }
                            }
                        }
                        a = a.wrapping_offset(if COLUMNS { t.a_step } else { 1 });
                        b = b.wrapping_offset(t.b_step);
                    }
                }
                let end = &t.end;
                for (r, (acc, row)) in acc.iter_mut().zip(rows).enumerate() {
                    let part = r as isize * end.pitch;
                    for (j, lane) in acc.as_flattened_mut().iter_mut().enumerate().take(t.columns) {
                        if end.fill {
                            *lane += 0.0;
                        }
                        for join in 0..end.joins {
                            *lane += *(*end.join.add(join)).offset(part + j as isize);
                        }
                        match end.to.is_null() {
                            true => *t.c.offset(row + j as isize) = *lane,
                            false => *end.to.offset(part + j as isize) = *lane,
                        }
                    }
                }
            }
        }
    };
}

portable_kernel!(kernel_f32, f32);
portable_kernel!(kernel_f64, f64);

pub(super) static F32: Kernels<f32> =
    Kernels { lanes: LANES, transpose, widths: &[width!(kernel_f32, 1, [1 2 3 4]), width!(kernel_f32, 2, [1 2 3 4])] };
pub(super) static F64: Kernels<f64> =
    Kernels { lanes: LANES, transpose, widths: &[width!(kernel_f64, 1, [1 2 3 4]), width!(kernel_f64, 2, [1 2 3 4])] };
