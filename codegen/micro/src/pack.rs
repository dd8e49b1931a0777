//! Packing: operands as the micro-kernels read them.

use crate::view::{Along, Source};

/// A rectangle of an operand: `k` from `k0`, and places of the outer axis (m or n) from `o0`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) k0: usize,
    pub(crate) ks: usize,
    pub(crate) o0: usize,
    pub(crate) os: usize,
}

/// Writes `target[k * width + o]`, with zeros from `part.os` to `width`.
///
/// # Safety
/// As for [`Lines::gather`](crate::view::Lines::gather); `target` holds `ks * width` elements and `spare` holds
/// `ks * os` if lines run along k.
pub(crate) unsafe fn panel<T: Copy + Default>(
    source: &Source,
    base: *const T,
    part: Part,
    width: usize,
    target: *mut T,
    spare: *mut T,
) {
    let Part { k0, ks, o0, os } = part;
    let lines = &source.lines;
    match source.along {
        Along::Outer => {
            let start = lines.locate(o0);
            let mut fixed = lines.fixed.seek(k0);
            for k in 0..ks {
                // SAFETY: row k of the target is inside it; the caller vouches for the source.
                unsafe {
                    let row = target.add(k * width);
                    lines.gather(base, &fixed, &start, os, row);
                    for o in os..width {
                        *row.add(o) = T::default();
                    }
                }
                lines.fixed.advance(&mut fixed);
            }
        }
        Along::K => {
            // SAFETY: `spare` holds the lines one after another.
            unsafe {
                rows(source, base, part, ks, spare);
                transpose(spare, ks, os, width, target);
            }
        }
    }
}

/// Writes `target[o * pitch + k]` from an operand whose lines run along k.
///
/// # Safety
/// As for [`Lines::gather`](crate::view::Lines::gather); `target` holds `os` lines of `pitch >= ks` elements.
pub(crate) unsafe fn rows<T: Copy + Default>(
    source: &Source,
    base: *const T,
    part: Part,
    pitch: usize,
    target: *mut T,
) {
    let Part { k0, ks, o0, os } = part;
    let lines = &source.lines;
    let start = lines.locate(k0);
    let mut fixed = lines.fixed.seek(o0);
    for o in 0..os {
        // SAFETY: line o of the target is inside it; the caller vouches for the source.
        unsafe { lines.gather(base, &fixed, &start, ks, target.add(o * pitch)) };
        lines.fixed.advance(&mut fixed);
    }
}

/// `target[k * width + o] = lines[o * ks + k]`, zero from `os` to `width`.
///
/// # Safety
/// `lines` holds `os * ks` elements and `target` `ks * width`.
unsafe fn transpose<T: Copy + Default>(lines: *const T, ks: usize, os: usize, width: usize, target: *mut T) {
    const BLOCK: usize = 16;
    for from in (0..ks).step_by(BLOCK) {
        let to = (from + BLOCK).min(ks);
        for o in 0..width {
            for k in from..to {
                // SAFETY: `k < ks` and `o < width`; lines are read only for `o < os`.
                unsafe {
                    *target.add(k * width + o) = if o < os { *lines.add(o * ks + k) } else { T::default() };
                }
            }
        }
    }
}
