//! A as the kernels read it: in place, as image rows, or copied tile by tile.

use crate::image::Image;
use crate::kernel::{Float, Order};
use crate::pack::{self, Part};
use crate::plan::Left;
use crate::run::{Block, Call, Work};
use crate::stored::Stored;

/// The rows of one tile: the first, their number, and where their A begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip {
    pub(crate) row: usize,
    pub(crate) count: usize,
    pub(crate) a: isize,
}

/// Where the kernels find a block of A; `strips` of the call hold the tiles.
pub(crate) struct LeftPart<T> {
    pub(crate) base: *const T,
    pub(crate) order: Order,
    /// Distance between rows or columns; in copied panels, columns are as far apart as the tile has rows.
    pub(crate) step: Option<isize>,
    pub(crate) strips: usize,
    pub(crate) segments: usize,
    pub(crate) segment: usize,
    pub(crate) segment_step: isize,
}

impl<T: Float, S: Stored<T>> Call<'_, T, S> {
    /// A for one block of k.
    ///
    /// # Safety
    /// `a` is the operand's first element for the block's batch; the part lies inside the operand.
    pub(crate) unsafe fn left_part(&self, a: *const S, block: &Block, k0: usize, ks: usize) -> LeftPart<T> {
        let plan = self.plan;
        let rows = block.m1 - block.m0;
        let whole = |base: *const T, order, step| LeftPart {
            base,
            order,
            step,
            strips: 0,
            segments: 1,
            segment: ks,
            segment_step: 0,
        };
        match plan.left {
            Left::Direct { order, step } => {
                let (row, column) = match order {
                    Order::Rows => (step, 1),
                    Order::Columns => (1, step),
                };
                let base = a.cast::<T>().wrapping_offset(block.m0 as isize * row + k0 as isize * column);
                // SAFETY: scratch holds a strip for every row.
                let strips = unsafe { self.even_strips(rows, row) };
                LeftPart { strips, ..whole(base, order, Some(step)) }
            }
            Left::Rows => {
                let pitch = plan.left_pitch() as isize;
                // SAFETY: scratch holds a strip for every row.
                let strips = unsafe { self.even_strips(rows, 0) };
                LeftPart { strips, ..whole(self.left, Order::Rows, Some(pitch)) }
            }
            Left::Columns => {
                // SAFETY: scratch holds a strip for every row.
                let strips = unsafe { self.even_strips(rows, 0) };
                LeftPart { strips, ..whole(self.left, Order::Columns, None) }
            }
            Left::Image { order } => {
                let image = plan.image.as_ref().expect("an image plan has an image");
                let base = if image.in_place { a.cast() } else { self.left.cast_const() };
                let part = LeftPart { segment: ks.min(plan.split.unit), ..whole(base, order, Some(image.pixel)) };
                let segments = ks.div_ceil(plan.split.unit);
                // SAFETY: scratch holds the copy of the block's rows, and a strip for every row.
                unsafe {
                    match order {
                        Order::Rows => {
                            let strips = self.image_rows(image, a, block, k0);
                            LeftPart { strips, segments, segment_step: image.segment_step(), ..part }
                        }
                        Order::Columns => {
                            let strips = self.image_columns(image, a, block, k0 / image.width, segments);
                            LeftPart { strips, segments, segment_step: image.height_step(), ..part }
                        }
                    }
                }
            }
        }
    }

    /// Copies the strip's A to scratch, where the plan does not read it in place.
    ///
    /// # Safety
    /// The strip is one of `work`'s.
    pub(crate) unsafe fn copy(&self, work: &Work<T, S>, strip: Strip) {
        let plan = self.plan;
        let part = Part { k0: work.k0, ks: work.ks, o0: work.block.m0 + strip.row, os: strip.count };
        if part.ks == 0 {
            return;
        }
        // SAFETY: scratch holds the rows of a tile.
        unsafe {
            match plan.left {
                Left::Direct { .. } | Left::Image { .. } => {}
                Left::Rows => pack::rows(&plan.problem.a, work.a, part, plan.left_pitch(), self.left),
                Left::Columns => pack::panel(
                    &plan.problem.a,
                    work.a,
                    part,
                    strip.count,
                    self.left,
                    self.spare,
                    self.kernels.transpose,
                ),
            }
        }
    }

    /// Tiles over rows that are `step` apart.
    unsafe fn even_strips(&self, rows: usize, step: isize) -> usize {
        let mut count = 0;
        for (row, rows) in strips(rows, self.kernels.rows()) {
            // SAFETY: scratch holds a strip for every row.
            unsafe { *self.strips.add(count) = Strip { row, count: rows, a: row as isize * step } };
            count += 1;
        }
        count
    }

    /// Tiles over whole image rows; the first block of k copies them.
    unsafe fn image_rows(&self, image: &Image, a: *const S, block: &Block, k0: usize) -> usize {
        let unit = self.plan.split.unit;
        let inside = (k0 / unit) as isize * image.segment_step() + (k0 % unit) as isize;
        let (mut copied, mut count, mut first) = (0, 0, 0);
        for band in image.bands(block.m0 / image.width, block.m1 / image.width) {
            let start = if image.in_place { image.offset(&band) } else { copied as isize };
            if k0 == 0 && !image.in_place {
                // SAFETY: scratch has room for the bands of a block.
                unsafe { image.copy(a, &band, self.left.add(copied)) };
            }
            copied += image.band_len(&band);
            for height in 0..band.h1 - band.h0 {
                let start = start + height as isize * image.height_step() + inside;
                for (column, rows) in strips(image.width, self.kernels.rows()) {
                    let a = start + column as isize * image.pixel;
                    // SAFETY: scratch holds a strip for every row.
                    unsafe { *self.strips.add(count) = Strip { row: first + column, count: rows, a } };
                    count += 1;
                }
                first += image.width;
            }
        }
        count
    }

    /// Tiles over the contiguous runs of m, with k over the pixels of `heights` image rows from `first` on.
    unsafe fn image_columns(&self, image: &Image, a: *const S, block: &Block, first: usize, heights: usize) -> usize {
        let mut start = 0;
        for band in image.bands(first, first + heights) {
            if image.in_place {
                start = image.offset(&band);
            } else {
                // SAFETY: a block of k lies in one band, for which scratch has room.
                unsafe { image.copy(a, &band, self.left) };
            }
        }
        let run = self.plan.problem.a.lines.run.len;
        let (mut count, mut row) = (0, block.m0);
        while row < block.m1 {
            let length = (run - row % run).min(block.m1 - row);
            for (inside, rows) in strips(length, self.kernels.rows()) {
                let m = row + inside;
                let a = start + (m / run) as isize * image.segment_step() + (m % run) as isize;
                // SAFETY: scratch holds a strip for every row.
                unsafe { *self.strips.add(count) = Strip { row: m - block.m0, count: rows, a } };
                count += 1;
            }
            row += length;
        }
        count
    }
}

/// Divides `rows` into near-equal tiles of at most `most`: `(first, count)`.
fn strips(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = rows.div_ceil(most);
    let (each, longer) = (rows / count.max(1), rows % count.max(1));
    (0..count).map(move |i| (i * each + i.min(longer), each + usize::from(i < longer)))
}
