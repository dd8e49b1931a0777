//! Micro-kernels: a tile of C stays in registers while k runs.
//!
//! Every kernel computes `C[r, j] = fma(A[r, k], B[k, j], C[r, j])` for k in order, each element a chain of its own,
//! so the choice of kernel never shows in the result.

#[cfg(target_arch = "x86_64")]
mod x86;

mod portable;

use crate::isa::Isa;
use crate::pack::Transpose;

/// Arguments of one micro-kernel call. Strides are in elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tile<T> {
    /// `A[0, 0]`.
    pub(crate) a: *const T,
    /// Row-major A: distance between rows (k is contiguous). Column-major A: distance between k (rows are contiguous).
    pub(crate) a_step: isize,
    /// `B[0, 0]`.
    pub(crate) b: *const T,
    /// Distance between k in B.
    pub(crate) b_step: isize,
    /// Distance between panels of `2 * lanes` columns in B.
    pub(crate) b_panel: isize,
    /// k is walked as `segments` pieces of `segment` elements; A jumps by `a_segment` from one to the next.
    pub(crate) segments: usize,
    pub(crate) segment: usize,
    pub(crate) a_segment: isize,
    /// `C[0, 0]` without the row offset.
    pub(crate) c: *mut T,
    /// Offset of each row of C.
    pub(crate) c_rows: *const isize,
    /// Columns of C that exist, of the kernel's width.
    pub(crate) columns: usize,
    /// Whether the chains go on from C.
    pub(crate) load: bool,
    /// What becomes of the chains.
    pub(crate) end: End<T>,
}

/// What a tile does with its chains after the last k. Subtrees are matrices of whole vectors whose rows are `pitch` apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End<T> {
    /// Whether a zero is added first, as zeros multiplied beyond the end of k would be.
    pub(crate) fill: bool,
    /// Subtrees to which the chains are added, one after another.
    pub(crate) joins: usize,
    pub(crate) join: *const *mut T,
    pub(crate) pitch: isize,
    /// The subtree that is written; null where C is.
    pub(crate) to: *mut T,
}

impl<T> End<T> {
    /// Chains that are written to C as they are.
    pub(crate) fn in_place() -> End<T> {
        End { fill: false, joins: 0, join: std::ptr::null(), pitch: 0, to: std::ptr::null_mut() }
    }
}

/// # Safety
/// The processor supports the kernel's instructions; A, B (whole vectors, masked or not) and the rows and columns of C
/// that the tile names are readable, and those of C writable; so are whole vectors of the subtrees it names.
pub(crate) type Kernel<T> = unsafe fn(&Tile<T>);

/// How A lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Rows are contiguous in k.
    Rows,
    /// Columns are contiguous in m.
    Columns,
}

/// Kernels by number of rows, for one width.
pub(crate) struct Width<T: 'static> {
    /// Vectors side by side.
    pub(crate) vectors: usize,
    /// `[rows - 1][order]`.
    pub(crate) kernels: &'static [[Kernel<T>; 2]],
}

/// The kernels of one instruction set and element type.
pub(crate) struct Kernels<T: 'static> {
    /// Elements per vector.
    pub(crate) lanes: usize,
    /// Transposes lines into a panel.
    pub(crate) transpose: Transpose<T>,
    /// Widths in ascending order: one vector, one panel of two, then several panels for few rows.
    pub(crate) widths: &'static [Width<T>],
}

impl<T> Kernels<T> {
    /// Most rows of a tile.
    pub(crate) fn rows(&self) -> usize {
        self.widths[0].kernels.len()
    }

    /// Most columns of a tile.
    pub(crate) fn columns(&self) -> usize {
        self.widths.iter().map(|w| w.vectors * self.lanes).max().unwrap_or(0)
    }

    /// Columns of a panel of B.
    pub(crate) fn panel(&self) -> usize {
        2 * self.lanes
    }

    /// The widest kernel for `rows` rows within `vectors` vectors: its width in vectors, and the kernel.
    #[inline]
    pub(crate) fn pick(&self, rows: usize, vectors: usize, order: Order) -> (usize, Kernel<T>) {
        let fits = |w: &&Width<T>| w.kernels.len() >= rows && w.vectors <= vectors;
        let width = self.widths.iter().rev().find(fits).unwrap_or(&self.widths[0]);
        let kernel = &width.kernels[rows - 1];
        (
            width.vectors,
            match order {
                Order::Rows => kernel[0],
                Order::Columns => kernel[1],
            },
        )
    }
}

/// f32 or f64.
pub(crate) trait Float: Copy + Default + Send + Sync + 'static {
    /// The kernels of an instruction set that the processor supports.
    fn kernels(isa: Isa) -> &'static Kernels<Self>;
}

impl Float for f32 {
    fn kernels(isa: Isa) -> &'static Kernels<f32> {
        match isa {
            Isa::Portable => &portable::F32,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2_F32,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &x86::AVX512_F32,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => &portable::F32,
        }
    }
}

impl Float for f64 {
    fn kernels(isa: Isa) -> &'static Kernels<f64> {
        match isa {
            Isa::Portable => &portable::F64,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => &x86::AVX2_F64,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => &x86::AVX512_F64,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => &portable::F64,
        }
    }
}

/// The table of one width: kernels for 1, 2, … rows in both orders of A.
macro_rules! width {
    ($kernel:ident, $vectors:literal, [$($rows:literal)+]) => {
        Width { vectors: $vectors, kernels: &[$([$kernel::<$rows, $vectors, false>, $kernel::<$rows, $vectors, true>]),+] }
    };
}
pub(crate) use width;
