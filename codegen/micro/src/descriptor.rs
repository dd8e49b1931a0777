//! What is to be computed, as plain data, and the checks that make running it sound.

use crate::error::{Array, Error};

/// Element type of all three arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Element {
    /// 32-bit IEEE.
    F32,
    /// 64-bit IEEE.
    F64,
}

impl Element {
    /// Size in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Element::F32 => 4,
            Element::F64 => 8,
        }
    }
}

/// How the elements of A and B are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Storage {
    /// As the element type.
    Element,
    /// As IEEE binary16; the element type is f32.
    F16,
    /// As bfloat16; the element type is f32.
    Bf16,
}

/// Where the sums are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sums {
    /// In C.
    Result,
    /// In scratch, rows of [`Plan::sums_pitch`](crate::Plan::sums_pitch) elements, for the epilogue alone. C is not touched; its
    /// strides say how m merges, and chains start from zero.
    Scratch,
}

/// How the sum over k is ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Summation {
    /// One chain over all of k.
    Chain,
    /// k falls into blocks of `length` consecutive positions. Each is a chain of its own from +0, the last one, if k ends
    /// early, filled up with zeros on both sides. The blocks are combined by a balanced tree: adjacent pairs are added,
    /// then adjacent pairs of those; an odd last one goes on as it is.
    Tree {
        /// Positions of k in a block, at least 1.
        length: usize,
    },
}

/// What a chain starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Start {
    /// From +0; the old contents of C are not read.
    Zero,
    /// From the old value of C.
    Accumulate,
}

/// How B is handed to [`Plan::run`](crate::Plan::run).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RightForm {
    /// As the array that the operand describes; packed on the fly where that pays.
    Plain,
    /// As the buffer that [`Plan::pack`](crate::Plan::pack) wrote.
    Packed,
}

/// Couples a dim of an operand's outer axis (m for A, n for B) with a dim of the k axis, as a convolution does.
///
/// With `v = i_outer * stride + i_k * dilation - low_pad`, the element exists if `v >= 0`, `v` is a multiple of
/// `input_dilation` and `v / input_dilation < extent`; then `(v / input_dilation) * address_stride` is added to the
/// address. Otherwise the element's value is 0, and it takes part in the chain as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Window {
    /// Index of the dim of the outer axis.
    pub outer_dim: usize,
    /// Index of the dim of the k axis.
    pub k_dim: usize,
    /// Factor of the outer index, at least 1.
    pub stride: usize,
    /// Factor of the k index, at least 1.
    pub dilation: usize,
    /// Subtracted from the coordinate; negative values crop.
    pub low_pad: isize,
    /// Distance between stored elements in the coordinate, at least 1.
    pub input_dilation: usize,
    /// Number of stored elements along the coordinate.
    pub extent: usize,
    /// Distance in elements between neighbours along the coordinate.
    pub address_stride: isize,
}

/// Where the elements of A or B lie. All strides are in elements and may be zero (broadcast) or negative.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operand {
    /// Length of the buffer in elements; every reachable address is checked against it.
    pub len: usize,
    /// Element at which all indices are zero (before windows add to it).
    pub base: usize,
    /// Strides of the batch dims.
    pub batch: Vec<isize>,
    /// Strides of the m dims (A) or n dims (B). A dim that only a window reads has stride 0 here.
    pub outer: Vec<isize>,
    /// Strides of the k dims. A dim that only a window reads has stride 0 here.
    pub k: Vec<isize>,
    /// Coordinates that an outer and a k dim make together.
    pub windows: Vec<Window>,
}

/// Where the elements of C lie. The n axis must be contiguous and row-major; no two elements may overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Length of the buffer in elements.
    pub len: usize,
    /// Element at which all indices are zero.
    pub base: usize,
    /// Strides of the batch dims.
    pub batch: Vec<isize>,
    /// Strides of the m dims.
    pub m: Vec<isize>,
    /// Strides of the n dims.
    pub n: Vec<isize>,
}

/// `C[b, m, n] (+)= Σ_k A[b, m, k] · B[b, k, n]`; each of b, m, n, k is a list of dims, flattened row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contraction {
    /// Element type.
    pub element: Element,
    /// Extents of the batch dims.
    pub batch: Vec<usize>,
    /// Extents of the m dims.
    pub m: Vec<usize>,
    /// Extents of the n dims.
    pub n: Vec<usize>,
    /// Extents of the k dims.
    pub k: Vec<usize>,
    /// Left operand.
    pub a: Operand,
    /// Right operand.
    pub b: Operand,
    /// Result.
    pub c: Output,
    /// What each chain starts from.
    pub start: Start,
    /// How each sum is ordered; blocks of a tree start from zero.
    pub summation: Summation,
    /// Form in which B is given.
    pub right: RightForm,
    /// How A and B are stored; a packed B has elements of the element type.
    pub storage: Storage,
    /// Where the sums are.
    pub sums: Sums,
}

impl Contraction {
    /// The product of two dense row-major matrices, `m × k` and `k × n`.
    #[must_use]
    pub fn product(element: Element, m: usize, n: usize, k: usize) -> Contraction {
        let operand = |rows: usize, columns: usize, outer: isize, inner: isize| Operand {
            len: rows.saturating_mul(columns),
            base: 0,
            batch: vec![],
            outer: vec![outer],
            k: vec![inner],
            windows: vec![],
        };
        Contraction {
            element,
            batch: vec![],
            m: vec![m],
            n: vec![n],
            k: vec![k],
            a: operand(m, k, k as isize, 1),
            b: operand(k, n, 1, n as isize),
            c: Output { len: m.saturating_mul(n), base: 0, batch: vec![], m: vec![n as isize], n: vec![1] },
            start: Start::Zero,
            summation: Summation::Chain,
            right: RightForm::Plain,
            storage: Storage::Element,
            sums: Sums::Result,
        }
    }

    /// Checks ranks, sizes, overflow, bounds and that results do not overlap.
    pub(crate) fn validate(&self) -> Result<(), Error> {
        if self.storage != Storage::Element && self.element != Element::F32 {
            return Err(Error::Storage);
        }
        if self.sums == Sums::Scratch && self.start == Start::Accumulate {
            return Err(Error::NothingToContinue);
        }
        if let Summation::Tree { length } = self.summation {
            if length == 0 {
                return Err(Error::EmptyBlocks);
            }
            if self.start == Start::Accumulate {
                return Err(Error::TreeContinued);
            }
        }
        let bytes = self.element.bytes() as i128;
        for (what, extents) in [("batch", &self.batch), ("m", &self.m), ("n", &self.n), ("k", &self.k)] {
            volume(extents, bytes).ok_or(Error::Overflow { what })?;
        }
        let all: Vec<usize> = self.batch.iter().chain(&self.m).chain(&self.n).copied().collect();
        volume(&all, bytes).ok_or(Error::Overflow { what: "C" })?;
        self.operand(Array::A, &self.a, "m", &self.m)?;
        self.operand(Array::B, &self.b, "n", &self.n)?;
        let outer_k: Vec<usize> = self.batch.iter().chain(&self.n).chain(&self.k).copied().collect();
        volume(&outer_k, bytes).ok_or(Error::Overflow { what: "B" })?;
        self.output()
    }

    fn operand(&self, array: Array, o: &Operand, axis: &'static str, outer: &[usize]) -> Result<(), Error> {
        rank(array, "batch", &o.batch, &self.batch)?;
        rank(array, axis, &o.outer, outer)?;
        rank(array, "k", &o.k, &self.k)?;
        for (window, w) in o.windows.iter().enumerate() {
            for (axis, dim, dims) in [(axis, w.outer_dim, outer.len()), ("k", w.k_dim, self.k.len())] {
                if dim >= dims {
                    return Err(Error::WindowDim { array, window, axis, dim, dims });
                }
            }
            let fields = [("stride", w.stride), ("dilation", w.dilation), ("input_dilation", w.input_dilation)];
            if let Some((field, _)) = fields.into_iter().find(|(_, value)| *value == 0) {
                return Err(Error::WindowZero { array, window, field });
            }
        }
        let mut span = Span::new(o.base);
        span.plain(&self.batch, &o.batch);
        span.plain(outer, &o.outer);
        span.plain(&self.k, &o.k);
        for w in &o.windows {
            span.window(w, outer[w.outer_dim], self.k[w.k_dim]);
        }
        span.check(array, o.len)
    }

    fn output(&self) -> Result<(), Error> {
        let c = &self.c;
        rank(Array::C, "batch", &c.batch, &self.batch)?;
        rank(Array::C, "m", &c.m, &self.m)?;
        rank(Array::C, "n", &c.n, &self.n)?;
        let mut span = Span::new(c.base);
        span.plain(&self.batch, &c.batch);
        span.plain(&self.m, &c.m);
        span.plain(&self.n, &c.n);
        span.check(Array::C, c.len)?;
        if span.empty {
            return Ok(());
        }
        let mut expected = 1isize;
        for (dim, (&extent, &found)) in self.n.iter().zip(&c.n).enumerate().rev() {
            if extent > 1 && found != expected {
                return Err(Error::ColumnStride { dim, found, expected });
            }
            expected *= extent as isize;
        }
        let dims = self.batch.iter().zip(&c.batch).chain(self.m.iter().zip(&c.m)).chain(self.n.iter().zip(&c.n));
        let mut dims: Vec<(isize, usize)> = dims.filter(|(e, _)| **e > 1).map(|(e, s)| (*s, *e)).collect();
        dims.sort_by_key(|(stride, _)| stride.unsigned_abs());
        let mut reach = 1i128;
        for (stride, extent) in dims {
            let step = (stride as i128).abs();
            if step < reach {
                return Err(Error::Overlap { stride, reach });
            }
            reach += step * (extent as i128 - 1);
        }
        Ok(())
    }
}

/// Least and greatest address of an array.
struct Span {
    low: i128,
    high: i128,
    /// Sum of absolute contributions, windows unclipped: a bound on every intermediate of the address arithmetic.
    gross: Option<i128>,
    empty: bool,
}

impl Span {
    fn new(base: usize) -> Span {
        Span { low: base as i128, high: base as i128, gross: Some(base as i128), empty: false }
    }

    fn plain(&mut self, extents: &[usize], strides: &[isize]) {
        for (&extent, &stride) in extents.iter().zip(strides) {
            if extent == 0 {
                self.empty = true;
                continue;
            }
            let reach = (extent as i128 - 1).saturating_mul(stride as i128);
            self.low = self.low.saturating_add(reach.min(0));
            self.high = self.high.saturating_add(reach.max(0));
            self.gross = self.gross.and_then(|g| g.checked_add(reach.checked_abs()?));
        }
    }

    fn window(&mut self, w: &Window, outer: usize, k: usize) {
        if outer == 0 || k == 0 {
            self.empty = true;
            return;
        }
        let least = -(w.low_pad as i128);
        let greatest = (outer as i128 - 1) * w.stride as i128 + (k as i128 - 1) * w.dilation as i128 + least;
        let address = (w.address_stride as i128).abs();
        let largest = least.abs().max(greatest.abs());
        let gross = address.checked_mul(largest).and_then(|g| g.checked_mul(2)?.checked_add(largest));
        let fields = w.extent as i128 + w.stride as i128 + w.dilation as i128 + w.input_dilation as i128;
        self.gross = self.gross.and_then(|g| g.checked_add(gross?)?.checked_add(fields));
        let dilation = w.input_dilation as i128;
        let first = (least.max(0) + dilation - 1) / dilation;
        let last = (w.extent as i128 - 1).min(greatest.div_euclid(dilation));
        if first > last {
            self.empty = true;
            return;
        }
        let ends = [first * w.address_stride as i128, last * w.address_stride as i128];
        self.low = self.low.saturating_add(ends[0].min(ends[1]));
        self.high = self.high.saturating_add(ends[0].max(ends[1]));
    }

    fn check(&self, array: Array, len: usize) -> Result<(), Error> {
        let what = match array {
            Array::A => "A",
            Array::B => "B",
            Array::C => "C",
        };
        if self.gross.is_none_or(|g| g > LARGEST) {
            return Err(Error::Overflow { what });
        }
        if !self.empty && (self.low < 0 || self.high >= len as i128) {
            return Err(Error::OutOfBounds { array, low: self.low, high: self.high, len });
        }
        Ok(())
    }
}

/// Bound on extents and addresses; leaves room for the byte size and for sums of a few of them.
const LARGEST: i128 = (isize::MAX as i128) >> 8;

fn volume(extents: &[usize], bytes: i128) -> Option<i128> {
    // A zero extent makes the product 0, yet the other extents still take part in index arithmetic.
    extents.iter().try_fold(bytes, |p, &e| p.checked_mul((e as i128).max(1)).filter(|p| *p <= LARGEST))
}

fn rank(array: Array, axis: &'static str, strides: &[isize], extents: &[usize]) -> Result<(), Error> {
    if strides.len() == extents.len() {
        return Ok(());
    }
    Err(Error::Rank { array, axis, strides: strides.len(), dims: extents.len() })
}
