//! Why a descriptor is refused.

use crate::isa::Isa;

/// Which of the three arrays an error speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Array {
    /// The left operand.
    A,
    /// The right operand.
    B,
    /// The result.
    C,
}

impl std::fmt::Display for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Array::A => "A",
            Array::B => "B",
            Array::C => "C",
        })
    }
}

/// A descriptor that cannot be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An array gives another number of strides than the axis has dims.
    #[error("{array} has {strides} strides for the {axis} axis, which has {dims} dims")]
    Rank {
        /// The array.
        array: Array,
        /// The axis.
        axis: &'static str,
        /// Strides given.
        strides: usize,
        /// Dims of the axis.
        dims: usize,
    },
    /// A window names a dim that does not exist.
    #[error("window {window} of {array} names dim {dim} of the {axis} axis, which has {dims} dims")]
    WindowDim {
        /// The array.
        array: Array,
        /// Position in the list of windows.
        window: usize,
        /// The axis.
        axis: &'static str,
        /// The dim named.
        dim: usize,
        /// Dims of the axis.
        dims: usize,
    },
    /// A window has a zero stride, dilation or input dilation.
    #[error("window {window} of {array} has {field} = 0; it must be at least 1")]
    WindowZero {
        /// The array.
        array: Array,
        /// Position in the list of windows.
        window: usize,
        /// The field.
        field: &'static str,
    },
    /// Operands of 16 bits with another element type than f32.
    #[error("operands of 16 bits are summed in f32 only")]
    Storage,
    /// Chains that go on from old sums where the sums are in scratch.
    #[error("sums in scratch start from zero")]
    NothingToContinue,
    /// Blocks of k without elements.
    #[error("k falls into blocks of no elements")]
    EmptyBlocks,
    /// Trees that go on from old sums.
    #[error("trees of sums start from zero")]
    TreeContinued,
    /// Extents or strides whose products overflow the address arithmetic.
    #[error("the extents or strides of {what} overflow address arithmetic")]
    Overflow {
        /// The axis or array.
        what: &'static str,
    },
    /// An address outside the buffer is reachable.
    #[error("{array} reaches elements {low}..={high} of a buffer of {len} elements")]
    OutOfBounds {
        /// The array.
        array: Array,
        /// Least reachable element.
        low: i128,
        /// Greatest reachable element.
        high: i128,
        /// Length of the buffer in elements.
        len: usize,
    },
    /// The n axis of the result is not contiguous.
    #[error("C must hold the n axis contiguously in row-major order: dim {dim} has stride {found}, not {expected}")]
    ColumnStride {
        /// The dim of the n axis.
        dim: usize,
        /// Its stride.
        found: isize,
        /// The stride it must have.
        expected: isize,
    },
    /// Two result elements may share an address.
    #[error("C elements overlap: a stride of {stride} is smaller than the {reach} elements spanned by the inner dims")]
    Overlap {
        /// The stride that is too small.
        stride: isize,
        /// Elements spanned by dims of lesser stride.
        reach: i128,
    },
    /// More dims or windows than the fixed-size cursors hold.
    #[error("{what} needs {count} entries after merging; at most {limit} are supported")]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// The processor lacks the instructions asked for.
    #[error("this processor does not support {0:?}")]
    Isa(Isa),
}
