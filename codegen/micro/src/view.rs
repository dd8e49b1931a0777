//! Operands in canonical form, and the walk over them.
//!
//! Dims of extent 1 are gone, windows that always hit are ordinary strides, and neighbouring dims that every array
//! steps through evenly are one dim. An operand is then seen as *lines* along one axis (the one with unit stride) at a
//! fixed place of the other; a line falls into *runs* of evenly spaced elements whose validity is one interval.

use crate::descriptor::{Contraction, Operand, Window};
use crate::error::Error;
use crate::stored::Stored;

pub(crate) const MAX_DIMS: usize = 8;
pub(crate) const MAX_WINDOWS: usize = 6;

/// One dim as one array sees it: element stride, and the factor with which the index enters each window's coordinate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dim {
    pub(crate) extent: usize,
    pub(crate) stride: isize,
    pub(crate) coef: [isize; MAX_WINDOWS],
}

/// A window in canonical form; its linear part is in the strides if `dilation == 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Guard {
    /// Coordinate at which both indices are zero.
    pub(crate) origin: isize,
    pub(crate) dilation: isize,
    pub(crate) extent: isize,
    pub(crate) address_stride: isize,
}

/// Dims of one axis, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Side {
    pub(crate) dims: Vec<Dim>,
}

/// A place on a [`Side`]: its digits, and what they contribute to the address and to each window's coordinate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor {
    digits: [usize; MAX_DIMS],
    pub(crate) offset: isize,
    pub(crate) coord: [isize; MAX_WINDOWS],
}

impl Side {
    /// The cursor at row-major position `flat`.
    pub(crate) fn seek(&self, flat: usize) -> Cursor {
        let mut cursor = Cursor { digits: [0; MAX_DIMS], offset: 0, coord: [0; MAX_WINDOWS] };
        let mut rest = flat;
        for (digit, dim) in cursor.digits.iter_mut().zip(&self.dims).rev() {
            *digit = rest % dim.extent;
            rest /= dim.extent;
            cursor.offset += *digit as isize * dim.stride;
            for (c, f) in cursor.coord.iter_mut().zip(&dim.coef) {
                *c += *digit as isize * f;
            }
        }
        cursor
    }

    /// Moves to the next position; from the last one it wraps to the first.
    #[inline]
    pub(crate) fn advance(&self, cursor: &mut Cursor) {
        for (digit, dim) in cursor.digits.iter_mut().zip(&self.dims).rev() {
            *digit += 1;
            cursor.offset += dim.stride;
            for (c, f) in cursor.coord.iter_mut().zip(&dim.coef) {
                *c += f;
            }
            if *digit < dim.extent {
                return;
            }
            let back = *digit as isize;
            *digit = 0;
            cursor.offset -= back * dim.stride;
            for (c, f) in cursor.coord.iter_mut().zip(&dim.coef) {
                *c -= back * f;
            }
        }
    }

    /// The one stride of the axis, if it is at most one dim.
    pub(crate) fn uniform(&self) -> Option<isize> {
        match self.dims.as_slice() {
            [] => Some(0),
            [dim] => Some(dim.stride),
            _ => None,
        }
    }
}

/// The evenly spaced inner part of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) len: usize,
    pub(crate) step: isize,
    /// The window whose coordinate rises by one every `unit` elements of the run, if one does.
    pub(crate) window: Option<(usize, isize)>,
}

/// An operand as lines along one axis.
#[derive(Debug, Clone)]
pub(crate) struct Lines {
    pub(crate) fixed: Side,
    /// Dims of the line axis outside the run.
    pub(crate) along: Side,
    pub(crate) run: Run,
    pub(crate) guards: Vec<Guard>,
}

impl Lines {
    fn new(fixed: &Side, along: &Side, guards: &[Guard]) -> Lines {
        let mut outer = along.dims.clone();
        let mut run = Run { len: 1, step: 0, window: None };
        while let Some(dim) = outer.last() {
            let fits = run.len == 1 || dim.stride == run.step.wrapping_mul(run.len as isize);
            let windows: Vec<usize> = (0..guards.len()).filter(|w| dim.coef[*w] != 0).collect();
            let window = match (windows.as_slice(), run.window) {
                ([], known) => Some(known),
                ([w], None) if dim.coef[*w] == 1 && guards[*w].dilation == 1 => Some(Some((*w, run.len as isize))),
                _ => None,
            };
            // A dim outside a windowed one would repeat the interval.
            let (true, None, Some(window)) = (fits, run.window, window) else { break };
            run.step = if run.len == 1 { dim.stride } else { run.step };
            run.len *= dim.extent;
            run.window = window;
            outer.pop();
        }
        Lines { fixed: fixed.clone(), along: Side { dims: outer }, run, guards: guards.to_vec() }
    }

    /// Whether every line is one run without windows.
    pub(crate) fn is_plain(&self) -> bool {
        self.guards.is_empty() && self.along.dims.is_empty()
    }

    /// Position `flat` of the line axis: the cursor of its run, and the place inside the run.
    pub(crate) fn locate(&self, flat: usize) -> (Cursor, usize) {
        (self.along.seek(flat / self.run.len), flat % self.run.len)
    }

    /// Copies `count` elements of the line at `fixed`, from `start` on, to `target`; absent elements become zero.
    ///
    /// # Safety
    /// `base` is the operand's first element of a buffer that holds every valid element, the positions exist, and
    /// `target` has room for `count` elements.
    pub(crate) unsafe fn gather<T: Copy + Default, S: Stored<T>>(
        &self,
        base: *const S,
        fixed: &Cursor,
        start: &(Cursor, usize),
        count: usize,
        target: *mut T,
    ) {
        let (mut place, mut first) = *start;
        let mut left = count;
        let mut target = target;
        loop {
            let take = left.min(self.run.len - first);
            // SAFETY: `take` elements fit the target; the piece reads only elements whose windows are valid.
            unsafe { self.piece(base, fixed, &place, first, take, target) };
            left -= take;
            if left == 0 {
                return;
            }
            // SAFETY: fewer than `count` elements have been written.
            target = unsafe { target.add(take) };
            first = 0;
            self.along.advance(&mut place);
        }
    }

    /// The part of one run: elements `first .. first + take`.
    ///
    /// # Safety
    /// As for [`Lines::gather`].
    #[inline]
    unsafe fn piece<T: Copy + Default, S: Stored<T>>(
        &self,
        base: *const S,
        fixed: &Cursor,
        place: &Cursor,
        first: usize,
        take: usize,
        target: *mut T,
    ) {
        let mut offset = fixed.offset + place.offset;
        let end = (first + take) as isize;
        let (mut low, mut high) = (first as isize, end);
        for (w, guard) in self.guards.iter().enumerate() {
            let v = guard.origin + fixed.coord[w] + place.coord[w];
            match self.run.window {
                Some((window, unit)) if window == w => {
                    low = low.max((-v).max(0).saturating_mul(unit));
                    high = high.min((guard.extent - v).max(0).saturating_mul(unit));
                }
                _ if guard.dilation == 1 => {
                    if v < 0 || v >= guard.extent {
                        high = low;
                    }
                }
                _ => {
                    let (q, r) = (v.div_euclid(guard.dilation), v.rem_euclid(guard.dilation));
                    if r != 0 || q < 0 || q >= guard.extent {
                        high = low;
                    } else {
                        offset += q * guard.address_stride;
                    }
                }
            }
        }
        let (low, high) = if low >= high { (end, end) } else { (low, high) };
        let first = first as isize;
        // SAFETY: `first <= low <= high <= end`, and elements `low..high` pass every window.
        unsafe {
            zero(target, (low - first) as usize);
            let source = base.wrapping_offset(offset + low * self.run.step);
            copy(source, self.run.step, target.offset(low - first), (high - low) as usize);
            zero(target.offset(high - first), (end - high) as usize);
        }
    }
}

#[inline]
unsafe fn zero<T: Copy + Default>(target: *mut T, count: usize) {
    for i in 0..count {
        // SAFETY: the caller gives room for `count` elements.
        unsafe { *target.add(i) = T::default() };
    }
}

#[inline]
unsafe fn copy<T: Copy, S: Stored<T>>(source: *const S, step: isize, target: *mut T, count: usize) {
    if step == 1 {
        // SAFETY: both sides hold `count` elements; the target is scratch, which no operand overlaps.
        unsafe { S::copy(source, target, count) };
        return;
    }
    for i in 0..count {
        // SAFETY: as above, with the source spaced by `step`.
        unsafe { *target.add(i) = (*source.offset(i as isize * step)).value() };
    }
}

/// Axis along which an operand's lines run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Along {
    K,
    Outer,
}

/// The problem in canonical form.
#[derive(Debug)]
pub(crate) struct Canonical {
    /// Batch dims as A, B, C and the packed form of B see them.
    pub(crate) batch: [Side; 4],
    pub(crate) a: Source,
    pub(crate) b: Source,
    /// The m axis as C sees it.
    pub(crate) c_rows: Side,
}

/// One operand in canonical form.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) base: isize,
    pub(crate) along: Along,
    pub(crate) lines: Lines,
}

struct Axes {
    base: isize,
    outer: Vec<Dim>,
    k: Vec<Dim>,
    guards: Vec<Guard>,
}

pub(crate) fn canonical(d: &Contraction) -> Result<Canonical, Error> {
    let mut a = axes(&d.a, &d.m, &d.k)?;
    let mut b = axes(&d.b, &d.n, &d.k)?;
    let mut c_rows = plain(&d.m, &d.c.m);
    merge(&mut [&mut a.k, &mut b.k]);
    merge(&mut [&mut a.outer, &mut c_rows]);
    merge(&mut [&mut b.outer]);
    let mut batch = [&d.a.batch, &d.b.batch, &d.c.batch, &packed_batch(d)].map(|strides| plain(&d.batch, strides));
    let [ba, bb, bc, bp] = &mut batch;
    merge(&mut [ba, bb, bc, bp]);
    for (what, dims) in [("the m axis", &a.outer), ("the n axis", &b.outer), ("the k axis", &a.k), ("batch", &batch[0])]
    {
        if dims.len() > MAX_DIMS {
            return Err(Error::TooMany { what, count: dims.len(), limit: MAX_DIMS });
        }
    }
    let batch = batch.map(|dims| Side { dims });
    Ok(Canonical { batch, a: source(a, Along::K), b: source(b, Along::Outer), c_rows: Side { dims: c_rows } })
}

/// Strides of the batch dims over packed copies of B: only dims that B depends on count.
fn packed_batch(d: &Contraction) -> Vec<isize> {
    let mut copies = 1isize;
    let mut strides = vec![0; d.batch.len()];
    for (i, &extent) in d.batch.iter().enumerate().rev() {
        if d.b.batch[i] != 0 && extent > 1 {
            strides[i] = copies;
            copies *= extent as isize;
        }
    }
    strides
}

fn plain(extents: &[usize], strides: &[isize]) -> Vec<Dim> {
    let dims = extents.iter().zip(strides).filter(|(extent, _)| **extent != 1);
    dims.map(|(&extent, &stride)| Dim { extent, stride, coef: [0; MAX_WINDOWS] }).collect()
}

/// Folds windows into strides where they are linear, and drops dims of extent 1.
fn axes(o: &Operand, outer: &[usize], k: &[usize]) -> Result<Axes, Error> {
    let dim = |(&extent, &stride)| Dim { extent, stride, coef: [0; MAX_WINDOWS] };
    let mut axes = Axes {
        base: o.base as isize,
        outer: outer.iter().zip(&o.outer).map(dim).collect(),
        k: k.iter().zip(&o.k).map(dim).collect(),
        guards: vec![],
    };
    for window in &o.windows {
        let w = lower(window);
        let (i, j) = (axes.outer[w.outer_dim].extent, axes.k[w.k_dim].extent);
        if w.input_dilation == 1 {
            let d = &mut axes.outer[w.outer_dim];
            d.stride = d.stride.wrapping_add((w.stride as isize).wrapping_mul(w.address_stride));
            let d = &mut axes.k[w.k_dim];
            d.stride = d.stride.wrapping_add((w.dilation as isize).wrapping_mul(w.address_stride));
            axes.base = axes.base.wrapping_sub(w.low_pad.wrapping_mul(w.address_stride));
            let greatest = i.saturating_sub(1) * w.stride + j.saturating_sub(1) * w.dilation;
            if i == 0 || j == 0 || (w.low_pad <= 0 && (greatest as isize) - w.low_pad < w.extent as isize) {
                continue;
            }
        }
        let slot = axes.guards.len();
        if slot == MAX_WINDOWS {
            return Err(Error::TooMany { what: "windows", count: o.windows.len(), limit: MAX_WINDOWS });
        }
        axes.outer[w.outer_dim].coef[slot] = w.stride as isize;
        axes.k[w.k_dim].coef[slot] = w.dilation as isize;
        axes.guards.push(Guard {
            origin: w.low_pad.wrapping_neg(),
            dilation: w.input_dilation as isize,
            extent: w.extent as isize,
            address_stride: w.address_stride,
        });
    }
    axes.outer.retain(|d| d.extent != 1);
    axes.k.retain(|d| d.extent != 1);
    Ok(axes)
}

/// Divides out an input dilation that every index is a multiple of.
fn lower(w: &Window) -> Window {
    let q = w.input_dilation;
    if w.stride.is_multiple_of(q) && w.dilation.is_multiple_of(q) && w.low_pad % q as isize == 0 {
        let low_pad = w.low_pad / q as isize;
        return Window { stride: w.stride / q, dilation: w.dilation / q, low_pad, input_dilation: 1, ..*w };
    }
    *w
}

/// Joins neighbouring dims that every array sharing the axis steps through evenly and no window reads.
fn merge(arrays: &mut [&mut Vec<Dim>]) {
    let mut i = 1;
    while i < arrays[0].len() {
        let joins = arrays.iter().all(|dims| {
            let (outer, inner) = (&dims[i - 1], &dims[i]);
            let free = outer.coef == [0; MAX_WINDOWS] && inner.coef == [0; MAX_WINDOWS];
            free && outer.stride == inner.stride.wrapping_mul(inner.extent as isize)
        });
        if !joins {
            i += 1;
            continue;
        }
        for dims in arrays.iter_mut() {
            let outer = dims.remove(i - 1);
            dims[i - 1].extent *= outer.extent;
        }
    }
}

fn source(axes: Axes, otherwise: Along) -> Source {
    let (outer, k) = (Side { dims: axes.outer }, Side { dims: axes.k });
    let by_k = Lines::new(&outer, &k, &axes.guards);
    let by_outer = Lines::new(&k, &outer, &axes.guards);
    let along = match (by_k.run.step == 1, by_outer.run.step == 1) {
        (true, false) => Along::K,
        (false, true) => Along::Outer,
        (true, true) if by_k.run.len >= by_outer.run.len => Along::K,
        (true, true) => Along::Outer,
        (false, false) => otherwise,
    };
    let lines = match along {
        Along::K => by_k,
        Along::Outer => by_outer,
    };
    Source { base: axes.base, along, lines }
}
