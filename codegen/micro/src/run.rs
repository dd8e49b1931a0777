//! Running tasks: the loops around the micro-kernels.

use std::ops::Range;

use crate::descriptor::{Start, Sums};
use crate::kernel::{End, Float, Kernel, Kernels, Order, Tile};
use crate::left::{LeftPart, Strip};
use crate::pack::{self, Part};
use crate::plan::{ALIGNMENT, Epilogue, Parts, Plan, Right};
use crate::stored::Stored;
use crate::view::Along;

/// A rectangle of C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) batch: usize,
    pub(crate) m0: usize,
    pub(crate) m1: usize,
    pub(crate) n0: usize,
    pub(crate) n1: usize,
}

/// The arrays and scratch of one call.
pub(crate) struct Call<'p, T: 'static, S> {
    pub(crate) plan: &'p Plan,
    pub(crate) kernels: &'static Kernels<T>,
    pub(crate) a: *const S,
    pub(crate) b: *const S,
    pub(crate) c: *mut T,
    pub(crate) epilogue: Option<Epilogue>,
    pub(crate) c_rows: *mut isize,
    pub(crate) strips: *mut Strip,
    pub(crate) left: *mut T,
    pub(crate) right: *mut T,
    pub(crate) spare: *mut T,
    pub(crate) sums: *mut T,
    pub(crate) parts: *mut T,
    /// Copy and columns whose B is packed in scratch for all of K.
    pub(crate) kept: Option<(isize, usize, usize)>,
}

/// # Safety
/// See [`Plan::run`].
pub(crate) unsafe fn tasks<T: Float, S: Stored<T>>(
    plan: &Plan,
    a: *const S,
    b: *const S,
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
        sums: start.wrapping_add(layout.sums).cast(),
        parts: start.wrapping_add(layout.parts).cast(),
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

/// Where the kernels find a block of B.
pub(crate) struct RightPart<T> {
    /// First panel.
    base: *const T,
    step: isize,
    panel: isize,
    /// A last, narrower panel that lies elsewhere.
    tail: Option<*const T>,
}

impl<T: Float, S: Stored<T>> Call<'_, T, S> {
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
                let packed = self.b.cast::<T>();
                packed.wrapping_add(packed_batch.seek(block.batch).offset as usize * plan.packed_copy_len()).cast()
            }
            Right::Direct { .. } | Right::Whole | Right::Block => {
                self.b.wrapping_offset(plan.problem.b.base + b_batch.seek(block.batch).offset)
            }
        };
        let pitch = plan.sums_pitch();
        let c = match plan.sums {
            Sums::Result => self.c.wrapping_offset(plan.c_base + c_batch.seek(block.batch).offset),
            Sums::Scratch => self.sums.wrapping_sub(block.n0),
        };
        let mut row = plan.problem.c_rows.seek(block.m0);
        for i in 0..block.m1 - block.m0 {
            let offset = match plan.sums {
                Sums::Result => row.offset,
                Sums::Scratch => (i * pitch) as isize,
            };
            // SAFETY: scratch holds an offset for every row of a block.
            unsafe { *self.c_rows.add(i) = offset };
            plan.problem.c_rows.advance(&mut row);
        }
        if let (Sums::Scratch, Some(epilogue)) = (plan.sums, &self.epilogue) {
            let first = c.wrapping_sub(block.m0 * pitch);
            // SAFETY: the caller gives a place for the address.
            unsafe { *epilogue.sums = first.cast() };
        }
        let mut k0 = 0;
        loop {
            let ks = if plan.k == 0 { 0 } else { plan.split.block(k0).min(plan.k - k0) };
            // SAFETY: the parts lie inside the operands and the scratch laid out for them.
            unsafe {
                let left = self.left_part(a, &block, k0, ks);
                let right = self.right_part(b, &block, k0, ks);
                let last = k0 + ks == plan.k;
                self.tiles(&Work { block, k0, ks, a, left, right, c, last });
            }
            k0 += ks;
            if k0 == plan.k {
                return;
            }
        }
    }

    unsafe fn right_part(&mut self, b: *const S, block: &Block, k0: usize, ks: usize) -> RightPart<T> {
        let plan = self.plan;
        let width = plan.panel;
        let panel = (plan.k * width) as isize;
        let (step, columns) = (width as isize, block.n1 - block.n0);
        let slot = plan.problem.batch[3].seek(block.batch).offset;
        match plan.right {
            Right::Packed => {
                let base = b.cast::<T>().wrapping_add(block.n0 * plan.k + k0 * width);
                RightPart { base, step, panel, tail: None }
            }
            Right::Direct { step } => {
                let base = b.cast::<T>().wrapping_offset(block.n0 as isize + k0 as isize * step);
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
    unsafe fn pack_right(&self, b: *const S, part: Part, depth: usize) {
        if part.ks > 0 {
            // SAFETY: the caller chose a part that scratch holds.
            unsafe { panels(self.plan, b, part, depth, self.right, self.spare) };
        }
    }

    /// All tiles of a rectangle for one block of k.
    ///
    /// A tile's rows of A stay in the first cache while panels of B stream by from the second, and rows of C are
    /// written as a whole.
    unsafe fn tiles(&self, work: &Work<T, S>) {
        let block = &work.block;
        let columns = block.n1 - block.n0;
        let mut finished = 0;
        for i in 0..work.left.strips {
            // SAFETY: the left part has written its strips, and scratch holds the copy of one.
            let strip = unsafe { *self.strips.add(i) };
            unsafe { self.copy(work, strip) };
            let mut column = 0;
            while column < columns {
                // SAFETY: the tile lies inside the rectangle.
                column += unsafe { self.tile(work, strip, column) };
            }
            let end = strip.row + strip.count;
            if work.last && (i + 1 == work.left.strips || (end - finished) * columns >= EPILOGUE_ELEMENTS) {
                let done = Block { m0: block.m0 + finished, m1: block.m0 + end, ..*block };
                // SAFETY: the chains of these rows are complete.
                unsafe { self.finish(&done) };
                finished = end;
            }
        }
    }

    unsafe fn finish(&self, done: &Block) {
        if let Some(Epilogue { function, context, .. }) = self.epilogue {
            // SAFETY: the chains of this rectangle are complete and nobody else touches it.
            unsafe { function(context, done.batch, done.m0, done.m1, done.n0, done.n1) };
        }
    }

    /// One tile for the block of k; returns its columns.
    unsafe fn tile(&self, work: &Work<T, S>, strip: Strip, column: usize) -> usize {
        let Work { block, left, right, .. } = work;
        let panel = self.plan.panel;
        let lanes = self.kernels.lanes;
        let columns = block.n1 - block.n0;
        let whole = if right.tail.is_some() { columns / panel * panel } else { columns };
        let (left_over, b, b_step) = match right.tail {
            Some(tail) if column >= whole => (columns - column, tail, panel as isize),
            _ => {
                let b = right.base.wrapping_offset((column / panel) as isize * right.panel);
                (whole - column, b, right.step)
            }
        };
        let Strip { row, count, a } = strip;
        let (vectors, kernel) = self.kernels.pick(count, left_over.div_ceil(lanes), left.order);
        let columns = (vectors * lanes).min(left_over);
        let mut tile = Tile {
            a: left.base.wrapping_offset(a),
            a_step: left.step.unwrap_or(count as isize),
            b,
            b_step,
            b_panel: right.panel,
            segments: left.segments,
            segment: left.segment,
            a_segment: left.segment_step,
            c: work.c.wrapping_add(block.n0 + column),
            c_rows: self.c_rows.wrapping_add(row).cast_const(),
            columns,
            load: work.k0 > 0 || self.plan.start == Start::Accumulate,
            end: End::in_place(),
        };
        // SAFETY: the plan's instruction set is supported, and the tile lies inside block and operands.
        unsafe {
            match self.plan.chains.count {
                1 => {
                    tile.end.fill = self.plan.chains.fill && work.last;
                    kernel(&tile);
                }
                _ => self.chains(work, strip, column, tile, kernel),
            }
        }
        columns
    }

    /// The chains of one tile that the block of k is part of; each finished one joins the subtrees to its left that it
    /// completes.
    unsafe fn chains(&self, work: &Work<T, S>, strip: Strip, column: usize, whole: Tile<T>, kernel: Kernel<T>) {
        let chains = &self.plan.chains;
        let along_k = match work.left.order {
            Order::Rows => 1,
            Order::Columns => whole.a_step,
        };
        let (pitch, first, each) = match chains.parts {
            Parts::Tile { pitch } => (pitch, 0, self.kernels.rows().min(self.plan.m_block).min(self.plan.m) * pitch),
            Parts::Rectangle => {
                let pitch = self.plan.sums_pitch();
                (pitch, strip.row * pitch + column, (work.block.m1 - work.block.m0) * pitch)
            }
        };
        let part = |level: usize| self.parts.wrapping_add(level * each + first);
        let stop = work.k0 + work.ks;
        let mut k = work.k0;
        while k < stop {
            let (chain, begin) = (k / chains.length, k / chains.length * chains.length);
            let (end, last) = ((begin + chains.length).min(self.plan.k), chain + 1 == chains.count);
            let until = end.min(stop);
            let inside = (k - work.k0) as isize;
            let (segments, segment) = match until - k == work.ks {
                true => (whole.segments, whole.segment),
                false => (1, until - k),
            };
            let mut joined = [std::ptr::null_mut(); usize::BITS as usize];
            let mut to = End::in_place();
            if until == end {
                // Subtrees wait where the number of finished chains has a 1. One more is added with carry; the last one adds
                // up all.
                let carried = chain.trailing_ones() as usize;
                let waiting = |level: &usize| chain >> level & 1 == 1;
                let levels = (0..chains.levels()).filter(waiting).take(if last { chains.levels() } else { carried });
                let mut joins = 0;
                for level in levels {
                    joined[joins] = part(level);
                    joins += 1;
                }
                let target = if last { std::ptr::null_mut() } else { part(carried) };
                to = End { fill: last && chains.fill, joins, join: joined.as_ptr(), pitch: pitch as isize, to: target };
            }
            let tile = Tile {
                a: whole.a.wrapping_offset(inside * along_k),
                b: whole.b.wrapping_offset(inside * whole.b_step),
                segments,
                segment,
                load: k > begin,
                end: to,
                ..whole
            };
            // SAFETY: the piece lies inside the block of k, and scratch holds the subtrees.
            unsafe { kernel(&tile) };
            k = until;
        }
    }
}

/// A rectangle of C and a block of k, with the operands ready for the kernels.
pub(crate) struct Work<T, S> {
    pub(crate) block: Block,
    pub(crate) k0: usize,
    pub(crate) ks: usize,
    pub(crate) a: *const S,
    pub(crate) left: LeftPart<T>,
    pub(crate) right: RightPart<T>,
    pub(crate) c: *mut T,
    pub(crate) last: bool,
}

/// Elements after which the epilogue is called on finished rows, while they are still in cache.
const EPILOGUE_ELEMENTS: usize = 4096;

/// Packs whole panels of B; panel p starts at `target + p * depth * width`.
///
/// # Safety
/// See [`pack::panel`].
unsafe fn panels<T: Float, S: Stored<T>>(
    plan: &Plan,
    b: *const S,
    part: Part,
    depth: usize,
    target: *mut T,
    spare: *mut T,
) {
    let source = &plan.problem.b;
    let width = plan.panel;
    let transpose = T::kernels(plan.isa).transpose;
    // Rows that are contiguous in memory are read from end to end, a few side by side.
    let chunk = match source.along {
        Along::Outer => ROWS_PACKED_TOGETHER,
        Along::K => part.ks,
    };
    for k in (0..part.ks).step_by(chunk) {
        for (p, o) in (0..part.os).step_by(width).enumerate() {
            let (o0, os) = (part.o0 + o, width.min(part.os - o));
            let one = Part { k0: part.k0 + k, ks: chunk.min(part.ks - k), o0, os };
            // SAFETY: the caller gives room for every panel.
            unsafe { pack::panel(source, b, one, width, target.add((p * depth + k) * width), spare, transpose) };
        }
    }
}

const ROWS_PACKED_TOGETHER: usize = 8;

/// # Safety
/// See [`Plan::pack`].
pub(crate) unsafe fn pack<T: Float, S: Stored<T>>(plan: &Plan, b: *const S, packed: *mut T) {
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
