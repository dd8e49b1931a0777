//! Plans: a validated descriptor with its blocking.

use std::ops::Range;

use crate::descriptor::{Contraction, Element, RightForm, Start, Storage, Summation, Sums};
use crate::error::Error;
use crate::image::Image;
use crate::isa::Isa;
use crate::kernel::{Float, Kernels, Order};
use crate::left::Strip;
use crate::run;
use crate::stored;
use crate::view::{Along, Canonical, canonical};

/// Called on a rectangle of C once its chains are complete: `(ctx, b, m0, m1, n0, n1)`, ends exclusive, b, m and n
/// flattened row-major over their dims. It may rewrite that rectangle of C in place. Every element is passed once.
pub type EpilogueFn = unsafe extern "C" fn(ctx: *const (), b: usize, m0: usize, m1: usize, n0: usize, n1: usize);

/// An epilogue with its context.
#[derive(Debug, Clone, Copy)]
pub struct Epilogue {
    /// The function.
    pub function: EpilogueFn,
    /// Its first argument.
    pub context: *const (),
    /// Of [`Sums::Scratch`]: where it finds the address of the sums, as if that of row 0 and column 0 were stored too. Null
    /// otherwise.
    pub sums: *mut *mut u8,
}

/// How the kernels get A.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Straight from the array, rows or columns `step` apart.
    Direct { order: Order, step: isize },
    /// Copied as rows.
    Rows,
    /// Copied as one column-major panel per tile.
    Columns,
    /// As image rows, see [`Image`].
    Image { order: Order },
}

/// How k falls into blocks: never across a multiple of `unit`, unless as whole units inside one period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Split {
    pub(crate) unit: usize,
    /// Part of a unit per block, if less than one.
    piece: usize,
    /// Units per block otherwise, and units after which a block ends in any case.
    count: usize,
    period: usize,
}

impl Split {
    /// Near-equal blocks of at most `longest`.
    fn new(unit: usize, period: usize, longest: usize) -> Split {
        let even = |whole: usize, most: usize| whole.div_ceil(whole.div_ceil(most.max(1)).max(1));
        Split { unit, piece: even(unit, longest), count: even(period, longest / unit.max(1)), period }
    }

    /// Length of the block that begins at `k0 < k`.
    pub(crate) fn block(&self, k0: usize) -> usize {
        let (u, r) = (k0 / self.unit, k0 % self.unit);
        if self.piece < self.unit {
            self.piece.min(self.unit - r)
        } else {
            self.count.min(self.period - u % self.period) * self.unit
        }
    }

    fn longest(&self) -> usize {
        if self.piece < self.unit { self.piece } else { self.count * self.unit }
    }
}

/// How the kernels get B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Already packed.
    Packed,
    /// Whole panels straight from the array, `step` between k; a narrower last panel is packed.
    Direct { step: isize },
    /// Packed for all of K, and kept for the following tasks on the same columns.
    Whole,
    /// Packed for one block of K at a time.
    Block,
}

/// The chains that add up to one element.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chains {
    /// Positions of k in a chain.
    pub(crate) length: usize,
    /// How many there are, at least one.
    pub(crate) count: usize,
    /// Whether the last one is filled up with zeros.
    pub(crate) fill: bool,
    /// Where subtrees wait.
    pub(crate) parts: Parts,
}

/// Where the finished subtrees of a tree wait for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parts {
    /// In scratch for one tile, rows of so many elements: all of k is one block.
    Tile { pitch: usize },
    /// In scratch for all elements worked on together, rows as of sums in scratch.
    Rectangle,
}

impl Chains {
    fn new(d: &Contraction, k: usize) -> Chains {
        let one = Chains { length: k, count: 1, fill: false, parts: Parts::Rectangle };
        match d.summation {
            Summation::Chain => one,
            Summation::Tree { .. } if k == 0 => one,
            Summation::Tree { length } => {
                Chains { length, count: k.div_ceil(length), fill: !k.is_multiple_of(length), ..one }
            }
        }
    }

    /// Most subtrees that wait at a time.
    pub(crate) fn levels(&self) -> usize {
        (usize::BITS - (self.count - 1).leading_zeros()) as usize
    }
}

/// Byte offsets into (aligned) scratch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Scratch {
    pub(crate) strips: usize,
    pub(crate) a: usize,
    pub(crate) b: usize,
    pub(crate) spare: usize,
    pub(crate) sums: usize,
    pub(crate) parts: usize,
    pub(crate) total: usize,
}

/// Alignment that scratch is brought to, and that pays for the buffer of packed B.
pub const ALIGNMENT: usize = 64;

/// A contraction ready to run: checked, canonical, blocked for one instruction set.
#[derive(Debug)]
pub struct Plan {
    element: Element,
    storage: Storage,
    pub(crate) sums: Sums,
    pub(crate) isa: Isa,
    pub(crate) start: Start,
    pub(crate) chains: Chains,
    pub(crate) batches: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) problem: Canonical,
    pub(crate) c_base: isize,
    pub(crate) left: Left,
    pub(crate) right: Right,
    /// Columns of a panel of B.
    pub(crate) panel: usize,
    pub(crate) image: Option<Image>,
    pub(crate) split: Split,
    /// Longest block of k.
    k_block: usize,
    /// Rows and columns of one task.
    pub(crate) m_grain: usize,
    pub(crate) n_grain: usize,
    /// Most rows and columns worked on together, when neighbouring tasks are run in one call.
    pub(crate) m_block: usize,
    pub(crate) n_block: usize,
    pub(crate) scratch: Scratch,
}

/// Runs a call with the types of stored elements and of the kernels' elements.
macro_rules! dispatch {
    ($plan:expr, $stored:ident, $element:ident, $call:expr) => {
        dispatch!(@ $plan, $stored, $element, $call, [
            (Element::F32, Storage::Element, _) => f32, f32;
            (Element::F64, _, _) => f64, f64;
            #[cfg(target_arch = "x86_64")] (Element::F32, Storage::F16, Isa::Avx512) => stored::F16Avx512, f32;
            #[cfg(target_arch = "x86_64")] (Element::F32, Storage::F16, Isa::Avx2) => stored::F16Avx2, f32;
            #[cfg(target_arch = "x86_64")] (Element::F32, Storage::Bf16, Isa::Avx512) => stored::Bf16Avx512, f32;
            #[cfg(target_arch = "x86_64")] (Element::F32, Storage::Bf16, Isa::Avx2) => stored::Bf16Avx2, f32;
            (Element::F32, Storage::F16, _) => stored::F16, f32;
            (Element::F32, Storage::Bf16, _) => stored::Bf16, f32;
        ])
    };
    (@ $plan:expr, $stored:ident, $element:ident, $call:expr,
     [$($(#[$only:meta])? ($of:pat, $storage:pat, $isa:pat) => $s:ty, $t:ty;)+]) => {
        match ($plan.element, $plan.storage, $plan.isa) {
            $($(#[$only])? ($of, $storage, $isa) => {
                type $stored = $s;
                type $element = $t;
                $call
            })+
        }
    };
}

impl Plan {
    /// Checks `contraction` and chooses how to run it with `isa`.
    ///
    /// # Errors
    /// Says which rule the descriptor breaks, or that the processor lacks `isa`.
    pub fn new(contraction: &Contraction, isa: Isa) -> Result<Plan, Error> {
        if !isa.is_supported() {
            return Err(Error::Isa(isa));
        }
        contraction.validate()?;
        match contraction.element {
            Element::F32 => Plan::with(contraction, isa, f32::kernels(isa)),
            Element::F64 => Plan::with(contraction, isa, f64::kernels(isa)),
        }
    }

    fn with<T: Float>(d: &Contraction, isa: Isa, kernels: &Kernels<T>) -> Result<Plan, Error> {
        let problem = canonical(d)?;
        let product = |extents: &[usize]| extents.iter().product::<usize>();
        let mut plan = Plan {
            element: d.element,
            storage: d.storage,
            sums: d.sums,
            isa,
            start: d.start,
            chains: Chains::new(d, product(&d.k)),
            batches: product(&d.batch),
            m: product(&d.m),
            n: product(&d.n),
            k: product(&d.k),
            problem,
            c_base: d.c.base as isize,
            left: Left::Rows,
            right: Right::Packed,
            panel: kernels.panel(),
            image: None,
            split: Split::new(1, 1, 1),
            k_block: 0,
            m_grain: 1,
            n_grain: 1,
            m_block: 1,
            n_block: 1,
            scratch: Scratch::default(),
        };
        if plan.batches != 0 && plan.m != 0 && plan.n != 0 {
            plan.block(kernels.rows(), kernels.columns(), d.right);
        }
        Ok(plan)
    }

    /// Chooses blocks, grains and how the operands are read.
    fn block(&mut self, tile: usize, widest: usize, form: RightForm) {
        let bytes = self.element.bytes();
        let size = |elements: usize| elements.saturating_mul(bytes);
        let few_rows = self.m <= 8 && size(self.m.saturating_mul(self.k)) <= LEFT_BYTES;
        let longest = if few_rows { self.k } else { K_BYTES / bytes };
        self.choose_left(tile, bytes);
        let is_image = matches!(self.left, Left::Image { .. });
        if !is_image && (few_rows || size(self.k) <= TREE_BYTES) {
            self.chains.parts = Parts::Tile { pitch: widest };
        }
        let line = self.problem.a.lines.run.len;
        self.split = match (self.left, &self.image) {
            (Left::Image { order: Order::Rows }, Some(image)) => Split::new(line, image.segments, longest),
            (Left::Image { order: Order::Columns }, Some(image)) => {
                Split::new(image.width, image.heights, longest.max(image.width))
            }
            (Left::Direct { .. } | Left::Rows | Left::Columns | Left::Image { .. }, _) => match self.chains.parts {
                Parts::Tile { .. } if self.chains.count > 1 => Split::new(1, self.k, self.k),
                Parts::Tile { .. } | Parts::Rectangle => Split::new(1, self.chains.length.max(1), longest),
            },
        };
        self.k_block = self.split.longest().min(self.k);
        self.right = match form {
            RightForm::Packed => Right::Packed,
            RightForm::Plain => self.plain_right(tile, bytes),
        };

        let (row_unit, row_bytes) = match (self.left, &self.image) {
            (Left::Image { order: Order::Rows }, Some(image)) => {
                (image.width, size(image.height_step().unsigned_abs() / image.width))
            }
            (Left::Image { .. } | Left::Direct { .. } | Left::Rows | Left::Columns, _) => (tile, 0),
        };
        let column_limit = match self.right {
            Right::Packed | Right::Direct { .. } | Right::Whole => MOST_COLUMNS,
            Right::Block => (RIGHT_BYTES / size(self.k_block).max(1)).clamp(self.panel, MOST_COLUMNS),
        }
        .next_multiple_of(self.panel);
        let most_rows = match self.chains {
            Chains { parts: Parts::Rectangle, count: 2.., .. } => {
                let waiting = size(self.chains.levels() * self.n.min(column_limit));
                (PARTS_BYTES / waiting.max(1)).min(MOST_ROWS)
            }
            Chains { .. } => MOST_ROWS,
        };
        let row_limit = (LEFT_BYTES / row_bytes.max(1)).min(most_rows) / row_unit * row_unit;
        let row_limit = row_limit.max(row_unit);
        let work = self.m.saturating_mul(self.n).saturating_mul(self.k.max(16));
        let wanted = (work.saturating_mul(self.batches) / TASK_WORK).clamp(1, MOST_TASKS).div_ceil(self.batches);
        let row_units = self.m.div_ceil(row_unit);
        let panels = self.n.div_ceil(self.panel);
        // Tasks that copy operands for themselves need rows over which that pays, unless too few tasks are left.
        let alone = match (self.right, self.left) {
            (Right::Whole | Right::Block, _) | (_, Left::Image { order: Order::Columns }) => 4 * tile,
            (Right::Packed | Right::Direct { .. }, Left::Direct { .. } | Left::Rows | Left::Columns)
            | (Right::Packed | Right::Direct { .. }, Left::Image { order: Order::Rows }) => 1,
        };
        let sparing = row_units.div_ceil((alone / row_unit).max(1)).max(FEW_TASKS.div_ceil(panels));
        // Columns of B that are packed side by side are read from end to end: rows are divided only where columns are few.
        let packs = matches!(self.right, Right::Whole | Right::Block);
        let by_rows = match packs && self.m <= row_limit && panels >= FEW_TASKS {
            true => 1,
            false => wanted.min(sparing).min(row_units),
        };
        self.m_grain = (row_units.div_ceil(by_rows) * row_unit).min(row_limit).min(self.m);
        let by_columns = wanted.div_ceil(self.m.div_ceil(self.m_grain)).min(panels);
        self.n_grain = (panels.div_ceil(by_columns) * self.panel).min(column_limit);
        self.m_block = (row_limit / self.m_grain).max(1) * self.m_grain;
        self.n_block = (column_limit / self.n_grain).max(1) * self.n_grain;
        self.lay_out(tile, bytes);
    }

    fn choose_left(&mut self, tile: usize, bytes: usize) {
        let lines = &self.problem.a.lines;
        let plain = lines.is_plain() && (lines.run.step == 1 || lines.run.len == 1);
        let (order, copied) = match self.problem.a.along {
            Along::K => (Order::Rows, Left::Rows),
            Along::Outer => (Order::Columns, Left::Columns),
        };
        let in_place = self.storage == Storage::Element;
        if let Some(step) = lines.fixed.uniform().filter(|_| plain && in_place)
            && (order == Order::Columns || self.n <= 2 * self.panel || !aliases(step, bytes))
        {
            self.left = Left::Direct { order, step };
            return;
        }
        let image = if self.k == 0 { None } else { Image::new(lines, self.storage) };
        self.image = image.filter(|image| {
            let (copied, im2col) = image.copied(lines.run.len * image.segments);
            let pays = image.in_place || copied.saturating_mul(3) <= im2col.saturating_mul(2);
            let (rows, fits) = match order {
                Order::Rows => (image.width, !aliases(image.pixel, bytes) && image.width <= MOST_ROWS),
                Order::Columns => (lines.run.len, image.width * bytes <= 2 * K_BYTES),
            };
            let whole = match order {
                Order::Rows => self.chains.count == 1,
                Order::Columns => {
                    self.chains.count == 1 || self.chains.length.is_multiple_of(image.width * image.heights)
                }
            };
            // Tiles end with an image row (or a run of rows): few rows in each would waste the kernels.
            whole && pays && fits && 2 * rows >= rows.div_ceil(tile) * tile
        });
        self.left = if self.image.is_some() { Left::Image { order } } else { copied };
    }

    fn plain_right(&self, tile: usize, bytes: usize) -> Right {
        let lines = &self.problem.b.lines;
        let step = lines.fixed.uniform().filter(|_| {
            lines.is_plain() && self.problem.b.along == Along::Outer && (lines.run.step == 1 || lines.run.len == 1)
        });
        let whole = self.n.next_multiple_of(self.panel).saturating_mul(self.k).saturating_mul(bytes);
        match step.filter(|_| self.storage == Storage::Element) {
            Some(step) if self.m <= 2 * tile => Right::Direct { step },
            Some(step) if whole <= DIRECT_BYTES && !aliases(step, bytes) => Right::Direct { step },
            Some(_) | None if whole <= WHOLE_BYTES && self.m > MOST_ROWS => Right::Whole,
            Some(_) | None => Right::Block,
        }
    }

    fn lay_out(&mut self, tile: usize, bytes: usize) {
        let round = |bytes: usize| bytes.next_multiple_of(ALIGNMENT);
        let rows = self.m_block.min(self.m);
        let columns = self.n_block.min(self.n.next_multiple_of(self.panel));
        let a = match self.left {
            Left::Direct { .. } => 0,
            Left::Rows => rows.min(tile) * self.left_pitch(),
            Left::Columns => rows.min(tile) * self.k_block,
            Left::Image { order } => self.image.as_ref().map_or(0, |image| {
                image.room(match order {
                    Order::Rows => rows / image.width,
                    Order::Columns => self.k_block / image.width,
                })
            }),
        };
        let b = match self.right {
            Right::Packed => 0,
            Right::Direct { .. } => self.panel * self.k_block,
            Right::Whole => columns * self.k,
            Right::Block => columns * self.k_block,
        };
        let spare_k = match self.right {
            Right::Whole => self.k,
            Right::Packed | Right::Direct { .. } | Right::Block => self.k_block,
        };
        let spare = match (self.right, self.problem.b.along) {
            (Right::Packed, _) | (_, Along::Outer) => 0,
            (Right::Direct { .. } | Right::Whole | Right::Block, Along::K) => self.panel * spare_k,
        };
        let mut s = Scratch { strips: round(rows * size_of::<isize>()), ..Scratch::default() };
        s.a = s.strips + round(rows * size_of::<Strip>());
        s.b = s.a + round(a * bytes);
        s.spare = s.b + round(b * bytes);
        s.sums = s.spare + round(spare * bytes);
        let sums = match self.sums {
            Sums::Result => 0,
            Sums::Scratch => rows * self.sums_pitch(),
        };
        s.parts = s.sums + round(sums * bytes);
        let waiting = match self.chains.parts {
            Parts::Tile { pitch } => rows.min(tile) * pitch,
            Parts::Rectangle => rows * self.sums_pitch(),
        };
        s.total = s.parts + round(self.chains.levels() * waiting * bytes) + ALIGNMENT;
        self.scratch = s;
    }

    /// Distance between rows of A copied as rows: whole cache lines, and never a distance at which the rows of a tile
    /// meet in the same cache set.
    pub(crate) fn left_pitch(&self) -> usize {
        let line = ALIGNMENT / self.element.bytes();
        let pitch = self.k_block.next_multiple_of(line);
        if (pitch / line).is_multiple_of(8) { pitch + line } else { pitch }
    }

    /// Distance between rows of sums in scratch, chosen like that of copied rows.
    #[must_use]
    pub fn sums_pitch(&self) -> usize {
        let line = ALIGNMENT / self.element.bytes();
        let pitch = self.n_block.min(self.n.next_multiple_of(self.panel)).next_multiple_of(line);
        if (pitch / line).is_multiple_of(8) { pitch + line } else { pitch }
    }

    pub(crate) fn row_tasks(&self) -> usize {
        self.m.div_ceil(self.m_grain)
    }

    pub(crate) fn column_tasks(&self) -> usize {
        self.n.div_ceil(self.n_grain)
    }

    /// Number of independent tasks. Consecutive tasks share operands: hand each thread a range.
    #[must_use]
    pub fn tasks(&self) -> usize {
        if self.m == 0 || self.n == 0 { 0 } else { self.batches * self.row_tasks() * self.column_tasks() }
    }

    /// Bytes of scratch that each concurrent [`Plan::run`] needs.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.scratch.total
    }

    /// Elements of the packed form of B. The form depends on the element type, the instruction set, and B's side of the
    /// descriptor (batch, n and k extents, B's operand) alone, so plans that agree in those share a packed buffer.
    #[must_use]
    pub fn packed_len(&self) -> usize {
        if self.n == 0 { 0 } else { self.packed_copies() * self.packed_copy_len() }
    }

    pub(crate) fn packed_copy_len(&self) -> usize {
        self.n.next_multiple_of(self.panel) * self.k
    }

    fn packed_copies(&self) -> usize {
        let packed = &self.problem.batch[3];
        packed.dims.iter().filter(|d| d.stride != 0).map(|d| d.extent).product()
    }

    /// Size of an element in bytes.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        self.element.bytes()
    }

    /// Writes the packed form of B.
    ///
    /// # Safety
    /// `b` points to B's buffer as the descriptor has it, `packed` to [`Plan::packed_len`] elements that do not overlap
    /// it; both are aligned for the element type.
    pub unsafe fn pack(&self, b: *const u8, packed: *mut u8) {
        // SAFETY: the caller's promise, passed on; the processor has the plan's instruction set.
        dispatch!(self, S, T, unsafe { run::pack::<T, S>(self, b.cast(), packed.cast()) });
    }

    /// Runs a range of tasks. Each task writes its own elements of C only; any division of `0..tasks()` over threads, in
    /// any order, gives the same bits.
    ///
    /// # Panics
    /// If `tasks` exceeds [`Plan::tasks`] or `scratch` is smaller than [`Plan::scratch_bytes`].
    ///
    /// # Safety
    /// `a`, `b` and `c` point to the buffers that the descriptor describes (`b` to the packed form if it says so),
    /// aligned for the element type. Nothing else writes A or B or touches the tasks' elements of C meanwhile, and C
    /// overlaps neither operand. The epilogue touches C only inside the rectangle it is given.
    pub unsafe fn run(
        &self,
        a: *const u8,
        b: *const u8,
        c: *mut u8,
        epilogue: Option<Epilogue>,
        tasks: Range<usize>,
        scratch: &mut [u8],
    ) {
        assert!(tasks.end <= self.tasks(), "tasks {tasks:?} of {}", self.tasks());
        assert!(scratch.len() >= self.scratch.total, "{} bytes of scratch, not {}", scratch.len(), self.scratch.total);
        // SAFETY: the caller's promise, passed on; scratch is large enough, the processor has the plan's instruction set.
        dispatch!(self, S, T, unsafe {
            run::tasks::<T, S>(self, a.cast(), b.cast(), c.cast(), epilogue, tasks, scratch);
        });
    }
}

/// Bytes of k per block: what a tile's rows of A take stays in the first cache, and a block of B in the second.
const K_BYTES: usize = 1 << 10;
/// Bytes of copied image rows, and of B packed for one block of k, for the second cache.
const LEFT_BYTES: usize = 384 << 10;
const RIGHT_BYTES: usize = 1 << 20;
/// Bytes of k of a tree that are one block.
const TREE_BYTES: usize = 2 << 10;
/// Bytes of subtrees that wait in scratch, if they are those of a rectangle.
const PARTS_BYTES: usize = 1 << 20;
/// B up to this size is packed for all of K at once if several blocks of rows use it.
const WHOLE_BYTES: usize = 4 << 20;
/// B up to this size is read in place.
const DIRECT_BYTES: usize = 32 << 10;
/// Most rows and columns of C that are worked on together.
const MOST_ROWS: usize = 448;
const MOST_COLUMNS: usize = 1024;
/// Multiply-adds worth a task of their own, and a bound on the number of tasks.
const TASK_WORK: usize = 1 << 18;
const MOST_TASKS: usize = 96;
/// Tasks that a contraction with enough work falls into in any case.
const FEW_TASKS: usize = 16;

/// Whether lines `step` apart fall on so few cache sets that a tile's worth of them evict each other.
fn aliases(step: isize, bytes: usize) -> bool {
    (step.unsigned_abs() * bytes).is_multiple_of(2048)
}
