//! Packing: operands as the micro-kernels read them.

use crate::stored::Stored;
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
/// `ks * os` if lines run along k. `transpose` suits the processor.
pub(crate) unsafe fn panel<T: Copy + Default, S: Stored<T>>(
    source: &Source,
    base: *const S,
    part: Part,
    width: usize,
    target: *mut T,
    spare: *mut T,
    transpose: Transpose<T>,
) {
    let Part { k0, ks, o0, os } = part;
    let lines = &source.lines;
    let even = lines.fixed.uniform().filter(|_| lines.is_plain() && lines.run.step == 1);
    match (source.along, even) {
        (Along::Outer, Some(step)) => {
            let first = base.wrapping_offset(o0 as isize + k0 as isize * step);
            // SAFETY: row k of the source is `os` elements at `k * step`; the target has room for `width`.
            unsafe {
                match (os == width && S::IN_PLACE, width) {
                    (true, 32) => blocks::<T, 32>(first.cast(), step, ks, target),
                    (true, 16) => blocks::<T, 16>(first.cast(), step, ks, target),
                    (true, 8) => blocks::<T, 8>(first.cast(), step, ks, target),
                    _ => {
                        for k in 0..ks {
                            let row = target.add(k * width);
                            S::copy(first.wrapping_offset(k as isize * step), row, os);
                            row.add(os).write_bytes(0, width - os);
                        }
                    }
                }
            }
        }
        (Along::Outer, None) => {
            let start = lines.locate(o0);
            let mut fixed = lines.fixed.seek(k0);
            for k in 0..ks {
                // SAFETY: row k of the target is inside it; the caller vouches for the source.
                unsafe {
                    let row = target.add(k * width);
                    lines.gather(base, &fixed, &start, os, row);
                    row.add(os).write_bytes(0, width - os);
                }
                lines.fixed.advance(&mut fixed);
            }
        }
        (Along::K, Some(step)) if S::IN_PLACE => {
            let first = base.wrapping_offset(o0 as isize * step + k0 as isize);
            // SAFETY: line o of the source is `ks` elements at `o * step`.
            unsafe { transpose(first.cast(), step, ks, os, width, target) };
        }
        (Along::K, Some(_) | None) => {
            // SAFETY: `spare` holds the lines one after another.
            unsafe {
                rows(source, base, part, ks, spare);
                transpose(spare, ks as isize, ks, os, width, target);
            }
        }
    }
}

/// Copies `count` elements, few as a rule: two pieces of fixed length that may overlap spare a call.
///
/// # Safety
/// Both sides hold `count` elements and are apart.
#[inline]
pub(crate) unsafe fn copy_short<T: Copy>(source: *const T, target: *mut T, count: usize) {
    // SAFETY: each piece begins and ends inside `0..count`.
    unsafe {
        match count {
            4..8 => both_ends::<T, 4>(source, target, count),
            8..16 => both_ends::<T, 8>(source, target, count),
            16..=32 => both_ends::<T, 16>(source, target, count),
            _ => target.copy_from_nonoverlapping(source, count),
        }
    }
}

#[inline]
unsafe fn both_ends<T: Copy, const N: usize>(source: *const T, target: *mut T, count: usize) {
    let last = count - N;
    // SAFETY: `N <= count <= 2 * N`; the reads come first.
    unsafe {
        let (head, tail) = (source.cast::<[T; N]>().read(), source.add(last).cast::<[T; N]>().read());
        target.cast::<[T; N]>().write(head);
        target.add(last).cast::<[T; N]>().write(tail);
    }
}

/// Copies `count` rows of `N` elements that are `step` apart.
///
/// # Safety
/// The rows exist and the target holds them.
unsafe fn blocks<T: Copy, const N: usize>(first: *const T, step: isize, count: usize, target: *mut T) {
    for k in 0..count {
        // SAFETY: the caller's promise; neither side is aligned beyond its elements.
        unsafe {
            let row = first.wrapping_offset(k as isize * step).cast::<[T; N]>();
            target.add(k * N).cast::<[T; N]>().write(row.read());
        }
    }
}

/// Writes `target[o * pitch + k]` from an operand whose lines run along k.
///
/// # Safety
/// As for [`Lines::gather`](crate::view::Lines::gather); `target` holds `os` lines of `pitch >= ks` elements.
pub(crate) unsafe fn rows<T: Copy + Default, S: Stored<T>>(
    source: &Source,
    base: *const S,
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

/// `(lines, step, ks, os, width, target)`: `target[k * width + o] = lines[o * step + k]`, zero from `os` to `width`.
///
/// # Safety
/// `lines` holds `os` lines of `ks` elements, `target` holds `ks * width`, and the processor supports the function.
pub(crate) type Transpose<T> = unsafe fn(*const T, isize, usize, usize, usize, *mut T);

/// [`Transpose`] in plain Rust.
///
/// # Safety
/// See [`Transpose`].
pub(crate) unsafe fn transpose<T: Copy + Default>(
    lines: *const T,
    step: isize,
    ks: usize,
    os: usize,
    width: usize,
    target: *mut T,
) {
    const BLOCK: usize = 16;
    for from in (0..ks).step_by(BLOCK) {
        let to = (from + BLOCK).min(ks);
        for o in 0..width {
            let line = lines.wrapping_offset(o as isize * step);
            for k in from..to {
                // SAFETY: `k < ks` and `o < width`; lines are read only for `o < os`.
                unsafe { *target.add(k * width + o) = if o < os { *line.add(k) } else { T::default() } };
            }
        }
    }
}
