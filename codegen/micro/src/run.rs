//! Running tasks: the loops around the micro-kernels.

use std::ops::Range;

use crate::descriptor::Start;
use crate::image::Image;
use crate::kernel::{Float, Kernels, Order, Tile};
use crate::pack::{self, Part};
use crate::plan::{ALIGNMENT, Epilogue, Left, Plan, Right};

/// A rectangle of C.
#[derive(Debug, Clone, Copy)]
struct Block {
    batch: usize,
    m0: usize,
    m1: usize,
    n0: usize,
    n1: usize,
}

/// The arrays and scratch of one call.
struct Call<'p, T: 'static> {
    plan: &'p Plan,
    kernels: &'static Kernels<T>,
    a: *const T,
    b: *const T,
    c: *mut T,
    epilogue: Option<Epilogue>,
    c_rows: *mut isize,
    strips: *mut Strip,
    left: *mut T,
    right: *mut T,
    spare: *mut T,
    /// Copy and columns whose B is packed in scratch for all of K.
    kept: Option<(isize, usize, usize)>,
}

/// # Safety
/// See [`Plan::run`].
pub(crate) unsafe fn tasks<T: Float>(
    plan: &Plan,
    a: *const T,
    b: *const T,
    c: *mut T,
    epilogue: Option<Epilogue>,
    tasks: Range<usize>,
    scratch: &mut [u8],
) {
    if tasks.is_empty() {
        return;
    }
    let start = scratch.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(ALIGNMENT));
    let layout = &plan.scratch;
    let mut call = Call {
        plan,
        kernels: T::kernels(plan.isa),
        a,
        b,
        c,
        epilogue,
        c_rows: start.cast(),
        strips: start.wrapping_add(layout.strips).cast(),
        left: start.wrapping_add(layout.a).cast(),
        right: start.wrapping_add(layout.b).cast(),
        spare: start.wrapping_add(layout.spare).cast(),
        kept: None,
    };
    let (rows, columns) = (plan.row_tasks(), plan.column_tasks());
    let mut task = tasks.start;
    while task < tasks.end {
        let (batch, place) = (task / (rows * columns), task % (rows * columns));
        let (column, row) = (place / rows, place % rows);
        let left = tasks.end - task;
        let (down, across) = match rows {
            1 => (1, left.min(columns - column).min(plan.n_block / plan.n_grain)),
            _ => (left.min(rows - row).min(plan.m_block / plan.m_grain), 1),
        };
        let block = Block {
            batch,
            m0: row * plan.m_grain,
            m1: ((row + down) * plan.m_grain).min(plan.m),
            n0: column * plan.n_grain,
            n1: ((column + across) * plan.n_grain).min(plan.n),
        };
        // SAFETY: the block consists of tasks of this call.
        unsafe { call.block(block) };
        task += down * across;
    }
}

/// The rows of one tile: the first, their number, and where their A begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Strip {
    row: usize,
    count: usize,
    a: isize,
}

/// Where the kernels find a block of A; `strips` of the call hold the tiles.
struct LeftPart<T> {
    base: *const T,
    order: Order,
    /// Distance between rows or columns; in copied panels, columns are as far apart as the tile has rows.
    step: Option<isize>,
    strips: usize,
    segments: usize,
    segment: usize,
    segment_step: isize,
}

/// Where the kernels find a block of B.
struct RightPart<T> {
    /// First panel.
    base: *const T,
    step: isize,
    panel: isize,
    /// A last, narrower panel that lies elsewhere.
    tail: Option<*const T>,
}

impl<T: Float> Call<'_, T> {
    /// Computes one rectangle of C.
    ///
    /// # Safety
    /// The rectangle is this call's to write, within the scratch's block sizes.
    unsafe fn block(&mut self, block: Block) {
        let plan = self.plan;
        let [a_batch, b_batch, c_batch, packed_batch] = &plan.problem.batch;
        let a = self.a.wrapping_offset(plan.problem.a.base + a_batch.seek(block.batch).offset);
        let b = match plan.right {
            Right::Packed => {
                self.b.wrapping_add(packed_batch.seek(block.batch).offset as usize * plan.packed_copy_len())
            }
            Right::Direct { .. } | Right::Whole | Right::Block => {
                self.b.wrapping_offset(plan.problem.b.base + b_batch.seek(block.batch).offset)
            }
        };
        let c = self.c.wrapping_offset(plan.c_base + c_batch.seek(block.batch).offset);
        let mut row = plan.problem.c_rows.seek(block.m0);
        for i in 0..block.m1 - block.m0 {
            // SAFETY: scratch holds an offset for every row of a block.
            unsafe { *self.c_rows.add(i) = row.offset };
            plan.problem.c_rows.advance(&mut row);
        }
        let mut k0 = 0;
        loop {
            let ks = if plan.k == 0 { 0 } else { plan.split.block(k0).min(plan.k - k0) };
            // SAFETY: the parts lie inside the operands and the scratch laid out for them.
            unsafe {
                let left = self.left_part(a, &block, k0, ks);
                let right = self.right_part(b, &block, k0, ks);
                self.macro_kernel(&block, &left, &right, c, k0, ks);
            }
            k0 += ks;
            if k0 == plan.k {
                return;
            }
        }
    }

    unsafe fn left_part(&self, a: *const T, block: &Block, k0: usize, ks: usize) -> LeftPart<T> {
        let plan = self.plan;
        let source = &plan.problem.a;
        let part = Part { k0, ks, o0: block.m0, os: block.m1 - block.m0 };
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
                let base = a.wrapping_offset(block.m0 as isize * row + k0 as isize * column);
                // SAFETY: scratch holds a strip for every row.
                let strips = unsafe { self.even_strips(part.os, row) };
                LeftPart { strips, ..whole(base, order, Some(step)) }
            }
            Left::Rows => {
                let pitch = plan.left_pitch();
                // SAFETY: scratch holds the block's rows at this pitch, and a strip for every row.
                let strips = unsafe {
                    if ks > 0 {
                        pack::rows(source, a, part, pitch, self.left);
                    }
                    self.even_strips(part.os, pitch as isize)
                };
                LeftPart { strips, ..whole(self.left, Order::Rows, Some(pitch as isize)) }
            }
            Left::Columns => {
                // SAFETY: the panels of the strips lie one after another in scratch.
                let strips = unsafe {
                    if ks > 0 {
                        for (row, rows) in strips(part.os, self.kernels.rows()) {
                            let strip = Part { o0: block.m0 + row, os: rows, ..part };
                            pack::panel(source, a, strip, rows, self.left.add(row * ks), self.spare);
                        }
                    }
                    self.even_strips(part.os, ks as isize)
                };
                LeftPart { strips, ..whole(self.left, Order::Columns, None) }
            }
            Left::Image { order } => {
                let image = plan.image.as_ref().expect("an image plan has an image");
                let base = if image.in_place { a } else { self.left.cast_const() };
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
    unsafe fn image_rows(&self, image: &Image, a: *const T, block: &Block, k0: usize) -> usize {
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
    unsafe fn image_columns(&self, image: &Image, a: *const T, block: &Block, first: usize, heights: usize) -> usize {
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

    unsafe fn right_part(&mut self, b: *const T, block: &Block, k0: usize, ks: usize) -> RightPart<T> {
        let plan = self.plan;
        let width = plan.panel;
        let panel = (plan.k * width) as isize;
        let (step, columns) = (width as isize, block.n1 - block.n0);
        let slot = plan.problem.batch[3].seek(block.batch).offset;
        match plan.right {
            Right::Packed => {
                let base = b.wrapping_add(block.n0 * plan.k + k0 * width);
                RightPart { base, step, panel, tail: None }
            }
            Right::Direct { step } => {
                let base = b.wrapping_offset(block.n0 as isize + k0 as isize * step);
                let whole = columns / width * width;
                let tail = (whole < columns).then(|| {
                    let part = Part { k0, ks, o0: block.n0 + whole, os: columns - whole };
                    // SAFETY: scratch holds one panel of a block of k.
                    unsafe { self.pack_right(b, part, ks) };
                    self.right.cast_const()
                });
                RightPart { base, step, panel: width as isize, tail }
            }
            Right::Whole => {
                let key = (slot, block.n0, block.n1);
                if self.kept != Some(key) {
                    // SAFETY: scratch holds the columns of a block for all of k.
                    unsafe { self.pack_right(b, Part { k0: 0, ks: plan.k, o0: block.n0, os: columns }, plan.k) };
                    self.kept = Some(key);
                }
                RightPart { base: self.right.wrapping_add(k0 * width), step, panel, tail: None }
            }
            Right::Block => {
                // SAFETY: scratch holds the columns of a block for one block of k.
                unsafe { self.pack_right(b, Part { k0, ks, o0: block.n0, os: columns }, ks) };
                RightPart { base: self.right, step, panel: (ks * width) as isize, tail: None }
            }
        }
    }

    /// Packs columns of B into scratch, panels of `depth` rows.
    unsafe fn pack_right(&self, b: *const T, part: Part, depth: usize) {
        if part.ks > 0 {
            // SAFETY: the caller chose a part that scratch holds.
            unsafe { panels(self.plan, b, part, depth, self.right, self.spare) };
        }
    }

    unsafe fn macro_kernel(
        &self,
        block: &Block,
        left: &LeftPart<T>,
        right: &RightPart<T>,
        c: *mut T,
        k0: usize,
        ks: usize,
    ) {
        let plan = self.plan;
        let columns = block.n1 - block.n0;
        let whole = if right.tail.is_some() { columns / plan.panel * plan.panel } else { columns };
        let lanes = self.kernels.lanes;
        let last = k0 + ks == plan.k;
        let (mut column, mut finished) = (0, 0);
        while column < columns {
            let in_tail = column >= whole;
            let left_over = if in_tail { columns - column } else { whole - column };
            let widest = if left.strips == 1 { left_over.div_ceil(lanes) } else { left_over.div_ceil(lanes).min(2) };
            let b = match right.tail {
                Some(tail) if in_tail => tail,
                _ => right.base.wrapping_offset((column / plan.panel) as isize * right.panel),
            };
            let b_step = if in_tail { plan.panel as isize } else { right.step };
            let mut width = 0;
            for i in 0..left.strips {
                // SAFETY: the left part has written its strips.
                let Strip { row, count, a } = unsafe { *self.strips.add(i) };
                let (vectors, kernel) = self.kernels.pick(count, widest, left.order);
                width = (vectors * lanes).min(left_over);
                let tile = Tile {
                    a: left.base.wrapping_offset(a),
                    a_step: left.step.unwrap_or(count as isize),
                    b,
                    b_step,
                    b_panel: right.panel,
                    segments: left.segments,
                    segment: left.segment,
                    a_segment: left.segment_step,
                    c: c.wrapping_add(block.n0 + column),
                    c_rows: self.c_rows.wrapping_add(row).cast_const(),
                    columns: width,
                    load: k0 > 0 || plan.start == Start::Accumulate,
                };
                // SAFETY: the plan's instruction set is supported, and the tile lies inside block and operands.
                unsafe { kernel(&tile) };
            }
            column += width;
            if last && (column == columns || column - finished >= EPILOGUE_COLUMNS) {
                if let Some(Epilogue { function, context }) = self.epilogue {
                    let (n0, n1) = (block.n0 + finished, block.n0 + column);
                    // SAFETY: the chains of this rectangle are complete and nobody else touches it.
                    unsafe { function(context, block.batch, block.m0, block.m1, n0, n1) };
                }
                finished = column;
            }
        }
    }
}

/// Columns after which the epilogue is called on a block, while they are still in cache.
const EPILOGUE_COLUMNS: usize = 256;

/// Divides `rows` into near-equal tiles of at most `most`: `(first, count)`.
fn strips(rows: usize, most: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = rows.div_ceil(most);
    let (each, longer) = (rows / count.max(1), rows % count.max(1));
    (0..count).map(move |i| (i * each + i.min(longer), each + usize::from(i < longer)))
}

/// Packs whole panels of B; panel p starts at `target + p * depth * width`.
///
/// # Safety
/// See [`pack::panel`].
unsafe fn panels<T: Float>(plan: &Plan, b: *const T, part: Part, depth: usize, target: *mut T, spare: *mut T) {
    let width = plan.panel;
    for (p, o) in (0..part.os).step_by(width).enumerate() {
        let one = Part { o0: part.o0 + o, os: width.min(part.os - o), ..part };
        // SAFETY: the caller gives room for every panel.
        unsafe { pack::panel(&plan.problem.b, b, one, width, target.add(p * depth * width), spare) };
    }
}

/// # Safety
/// See [`Plan::pack`].
pub(crate) unsafe fn pack<T: Float>(plan: &Plan, b: *const T, packed: *mut T) {
    if plan.packed_len() == 0 {
        return;
    }
    let copy = plan.packed_copy_len();
    let mut spare = vec![T::default(); plan.panel * plan.k];
    let [_, b_batch, _, packed_batch] = &plan.problem.batch;
    let mut done = vec![false; plan.packed_len() / copy];
    for batch in 0..plan.batches {
        let slot = packed_batch.seek(batch).offset as usize;
        if std::mem::replace(&mut done[slot], true) {
            continue;
        }
        let base = b.wrapping_offset(plan.problem.b.base + b_batch.seek(batch).offset);
        let part = Part { k0: 0, ks: plan.k, o0: 0, os: plan.n };
        // SAFETY: the caller gives room for every copy.
        unsafe { panels(plan, base, part, plan.k, packed.add(slot * copy), spare.as_mut_ptr()) };
    }
}
