//! The layout of a value on the device axis.
//!
//! | layout | text | meaning |
//! | --- | --- | --- |
//! | `Replicated` | `R` | every device holds an equal copy |
//! | `Split` | `S(0,[3,2])` | device k holds `sizes[k]` consecutive positions of a dimension, in device order; a size may be 0 |
//! | `Partial` | `P(sum)` | the value is the combination of what the devices hold, each of full shape |
//! | `On` | `X(1)` | one device holds it; on the others it does not exist |
//!
//! On one device every value is `R`. Sizes are explicit, so uneven batches, odd dimensions and unlike devices are
//! ordinary cases.

use crate::scalar::Reduce;
use crate::{Shape, Type};
use smallvec::SmallVec;
use std::fmt;
use std::ops::Range;

/// Positions of a dimension that each device holds.
pub type Sizes = SmallVec<[usize; 2]>;

/// How a value is divided over the devices. See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layout {
    /// Equal copies.
    Replicated,
    /// Consecutive parts of a dimension.
    Split {
        /// The dimension.
        dim: usize,
        /// Positions per device; they add up to the extent.
        sizes: Sizes,
    },
    /// To be combined over the devices.
    Partial(Reduce),
    /// On one device only.
    On(usize),
}

impl Layout {
    /// A split of `dim`.
    pub fn split(dim: usize, sizes: impl IntoIterator<Item = usize>) -> Layout {
        Layout::Split { dim, sizes: sizes.into_iter().collect() }
    }

    /// The shape that `device` holds, `None` where the value does not exist there.
    pub fn local_shape(&self, shape: &Shape, device: usize) -> Option<Shape> {
        match self {
            Layout::Replicated | Layout::Partial(_) => Some(shape.clone()),
            Layout::Split { dim, sizes } => Some(shape.with(*dim, sizes[device])),
            Layout::On(k) => (*k == device).then(|| shape.clone()),
        }
    }

    /// The type that `device` holds, `None` where the value does not exist there.
    pub fn local_type(&self, ty: &Type, device: usize) -> Option<Type> {
        Some(ty.with_shape(self.local_shape(&ty.shape, device)?))
    }

    /// The positions of dimension `dim` that `device` holds.
    pub fn region(&self, shape: &Shape, dim: usize, device: usize) -> Range<usize> {
        match self {
            Layout::Split { dim: d, sizes } if *d == dim => {
                let start = sizes[..device].iter().sum();
                start..start + sizes[device]
            }
            Layout::Replicated | Layout::Split { .. } | Layout::Partial(_) | Layout::On(_) => 0..shape[dim],
        }
    }

    /// Whether the layout is possible for a type over this many devices.
    pub fn fits(&self, ty: &Type, devices: usize) -> bool {
        match self {
            Layout::Replicated => true,
            Layout::Partial(_) => ty.dtype != crate::DType::Bool,
            Layout::Split { dim, sizes } => {
                *dim < ty.rank() && sizes.len() == devices && total(sizes) == Some(ty.shape[*dim])
            }
            Layout::On(k) => *k < devices,
        }
    }

    /// Whether the layout is a split.
    pub fn is_split(&self) -> bool {
        matches!(self, Layout::Split { .. })
    }
}

/// The sum of sizes, unless it overflows.
pub(crate) fn total(sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(0usize, |sum, &s| sum.checked_add(s))
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layout::Replicated => f.write_str("R"),
            Layout::Split { dim, sizes } => {
                write!(f, "S({dim},[")?;
                for (i, s) in sizes.iter().enumerate() {
                    write!(f, "{}{s}", if i > 0 { "," } else { "" })?;
                }
                f.write_str("])")
            }
            Layout::Partial(op) => write!(f, "P({})", op.name()),
            Layout::On(k) => write!(f, "X({k})"),
        }
    }
}
