//! Convolutions without im2col: a padded copy of image rows that kernels read in place.
//!
//! In a convolution over a channels-last image, the columns of one output row and the elements under the kernel's row
//! are evenly spaced in one image row. With the image row copied between zeros (or as it is, if no element is absent),
//! the rows of a tile lie `pixel` elements apart, each kernel row is one contiguous segment of k, and the next kernel
//! row is a whole number of copied rows further. Every element is copied once instead of once per kernel element.
//! With roles exchanged (weight gradients) the same copy serves: k runs over pixels, and rows are contiguous.

use crate::descriptor::Storage;
use crate::stored::Stored;
use crate::view::{Lines, Side};

/// An operand seen as an image: the fixed axis is `(planes.., heights, width)`, a line is `segments` runs.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// Fixed dims outside the two innermost.
    planes: Side,
    /// Extent of the second innermost fixed dim.
    pub(crate) heights: usize,
    /// Extent of the innermost fixed dim, and the distance between its neighbours.
    pub(crate) width: usize,
    pub(crate) pixel: isize,
    /// Runs of a line.
    pub(crate) segments: usize,
    /// Elements that one copied row holds.
    row: usize,
    /// Copied rows from one height to the next, and from one segment to the next.
    down: usize,
    segment_down: usize,
    /// Distance between image rows in the operand.
    row_stride: isize,
    /// Coordinate of the first copied row and stored rows, if rows can be absent.
    vertical: Option<(isize, isize)>,
    /// Elements of a copied row that exist.
    present: (usize, usize),
    /// Nothing is absent or converted: the operand itself serves as the copy.
    pub(crate) in_place: bool,
    /// In place, the distance from one height to the next and from one segment to the next.
    strides: (isize, isize),
}

/// Heights `h0..h1` of one plane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Band {
    pub(crate) plane: usize,
    pub(crate) h0: usize,
    pub(crate) h1: usize,
}

impl Image {
    /// The operand as an image, if it has that form.
    pub(crate) fn new(lines: &Lines, storage: Storage) -> Option<Image> {
        let (width, outer) = lines.fixed.dims.split_last()?;
        let (height, planes) = match outer.split_last() {
            Some((height, planes)) => (Some(height), planes),
            None => (None, outer),
        };
        let segment = match lines.along.dims.as_slice() {
            [] => None,
            [dim] => Some(dim),
            _ => return None,
        };
        if lines.run.step != 1 || width.stride <= 0 || lines.guards.iter().any(|g| g.dilation != 1) {
            return None;
        }
        let row = (width.extent - 1).checked_mul(width.stride as usize)?.checked_add(lines.run.len)?;
        let mut present = (0, row);
        if let Some((w, unit)) = lines.run.window {
            let guard = &lines.guards[w];
            if width.coef[w].checked_mul(unit)? != width.stride {
                return None;
            }
            let clip = |v: isize| (v.max(0).saturating_mul(unit) as usize).min(row);
            present = (clip(-guard.origin), clip(guard.extent.saturating_sub(guard.origin)));
            present.1 = present.1.max(present.0);
        }
        let horizontal = lines.run.window.map(|(w, _)| w);
        let vertical = (0..lines.guards.len()).find(|w| Some(*w) != horizontal);
        let foreign = |dim: &crate::view::Dim, own: Option<usize>| {
            (0..lines.guards.len()).any(|w| dim.coef[w] != 0 && Some(w) != own)
        };
        if lines.guards.len() > usize::from(horizontal.is_some()) + usize::from(vertical.is_some())
            || foreign(width, horizontal)
            || height.is_some_and(|d| foreign(d, vertical))
            || segment.is_some_and(|d| foreign(d, vertical))
            || planes.iter().any(|d| foreign(d, None))
        {
            return None;
        }
        let h = height.map_or(0, |d| d.stride);
        let s = segment.map_or(0, |d| d.stride);
        let (row_stride, down, segment_down) = match (vertical, segment) {
            (Some(w), Some(segment)) => {
                let (rise, fall) = (segment.coef[w], height.map_or(0, |d| d.coef[w]));
                if rise <= 0 || segment.stride % rise != 0 {
                    return None;
                }
                let row_stride = segment.stride / rise;
                if row_stride.checked_mul(fall)? != h {
                    return None;
                }
                (row_stride, fall as usize, rise as usize)
            }
            (Some(_), None) => return None,
            (None, Some(_)) if s <= 0 || h < 0 => return None,
            (None, Some(_)) => {
                let g = gcd(s, h);
                (g, (h / g) as usize, (s / g) as usize)
            }
            (None, None) => (h, usize::from(height.is_some()), 0),
        };
        Some(Image {
            planes: Side { dims: planes.to_vec() },
            heights: height.map_or(1, |d| d.extent),
            width: width.extent,
            pixel: width.stride,
            segments: segment.map_or(1, |d| d.extent),
            row,
            down,
            segment_down,
            row_stride,
            vertical: vertical.map(|w| (lines.guards[w].origin, lines.guards[w].extent)),
            present,
            in_place: storage == Storage::Element && lines.guards.is_empty(),
            strides: (h, s),
        })
    }

    /// Copied rows for `heights` consecutive heights of a plane.
    fn rows(&self, heights: usize) -> usize {
        (heights - 1) * self.down + (self.segments - 1) * self.segment_down + 1
    }

    /// Elements copied for a plane, and elements that im2col would copy.
    pub(crate) fn copied(&self, line: usize) -> (usize, usize) {
        (self.rows(self.heights).saturating_mul(self.row), (self.heights * self.width).saturating_mul(line))
    }

    /// Room for the copies of any `heights` consecutive heights, planes crossed.
    pub(crate) fn room(&self, heights: usize) -> usize {
        if self.in_place {
            return 0;
        }
        let bands = (heights.saturating_sub(2) / self.heights + 2).min(heights);
        (heights * self.down + bands * self.rows(1)).saturating_mul(self.row)
    }

    /// The bands of heights `from..to`, counted over all planes.
    pub(crate) fn bands(&self, from: usize, to: usize) -> impl Iterator<Item = Band> {
        let mut at = from;
        let heights = self.heights;
        std::iter::from_fn(move || {
            let (plane, h0) = (at / heights, at % heights);
            let h1 = (h0 + to - at).min(heights);
            at += h1 - h0;
            (h1 > h0).then_some(Band { plane, h0, h1 })
        })
    }

    /// Elements that the copy of a band takes.
    pub(crate) fn band_len(&self, band: &Band) -> usize {
        if self.in_place { 0 } else { self.rows(band.h1 - band.h0) * self.row }
    }

    /// Distance from one height to the next, in place or in the copy.
    pub(crate) fn height_step(&self) -> isize {
        if self.in_place { self.strides.0 } else { (self.down * self.row) as isize }
    }

    /// Distance from one segment to the next, in place or in the copy.
    pub(crate) fn segment_step(&self) -> isize {
        if self.in_place { self.strides.1 } else { (self.segment_down * self.row) as isize }
    }

    /// Where the band's first element lies in place.
    pub(crate) fn offset(&self, band: &Band) -> isize {
        self.planes.seek(band.plane).offset + band.h0 as isize * self.strides.0
    }

    /// Copies a band to `target`.
    ///
    /// # Safety
    /// `base` is the operand's first element of a buffer that holds every present element; `target` holds
    /// [`Image::band_len`] elements.
    pub(crate) unsafe fn copy<T: Copy + Default, S: Stored<T>>(&self, base: *const S, band: &Band, target: *mut T) {
        let offset = self.planes.seek(band.plane).offset;
        let (low, high) = self.present;
        for r in 0..self.rows(band.h1 - band.h0) {
            let y = (band.h0 * self.down + r) as isize;
            let exists = self.vertical.is_none_or(|(origin, extent)| (0..extent).contains(&(origin + y)));
            let (low, high) = if exists { (low, high) } else { (0, 0) };
            let source = base.wrapping_offset(offset + y * self.row_stride + low as isize);
            // SAFETY: row r is inside the target; elements `low..high` of an existing row are present.
            unsafe {
                let row = target.add(r * self.row);
                row.write_bytes(0, low);
                S::copy(source, row.add(low), high - low);
                row.add(high).write_bytes(0, self.row - high);
            }
        }
    }
}

fn gcd(a: isize, b: isize) -> isize {
    if b == 0 { a } else { gcd(b, a % b) }
}
