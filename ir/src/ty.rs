//! Element types, shapes and tensor types.

use smallvec::SmallVec;
use std::fmt;

/// The type of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Signed 8-bit integer, wrapping.
    I8,
    /// Signed 16-bit integer, wrapping.
    I16,
    /// Signed 32-bit integer, wrapping.
    I32,
    /// Signed 64-bit integer, wrapping.
    I64,
    /// Unsigned 8-bit integer, wrapping.
    U8,
    /// Unsigned 32-bit integer, wrapping.
    U32,
    /// IEEE 754 binary16; arithmetic is done in f32 and rounded.
    F16,
    /// bfloat16; arithmetic is done in f32 and rounded.
    BF16,
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary64.
    F64,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 11] = [
        DType::Bool,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U32,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U32 => "u32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// The type with this text name.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Size of one element in bytes.
    pub fn size(self) -> usize {
        match self {
            DType::Bool | DType::I8 | DType::U8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Whether elements are floating-point numbers.
    pub fn is_float(self) -> bool {
        match self {
            DType::F16 | DType::BF16 | DType::F32 | DType::F64 => true,
            DType::Bool | DType::I8 | DType::I16 | DType::I32 | DType::I64 | DType::U8 | DType::U32 => false,
        }
    }

    /// Whether elements are integers (booleans are not).
    pub fn is_int(self) -> bool {
        !self.is_float() && self != DType::Bool
    }

    /// The type in which sums of this type are accumulated: f32 for f16 and bf16, else itself.
    pub fn accumulator(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U32
            | DType::F32
            | DType::F64 => self,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The extents of a tensor, outermost first. A rank-0 shape holds one element.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Shape(SmallVec<[usize; 6]>);

impl Shape {
    /// A shape from its extents.
    pub fn new(dims: impl IntoIterator<Item = usize>) -> Shape {
        Shape(dims.into_iter().collect())
    }

    /// Number of elements; saturates instead of overflowing.
    pub fn elements(&self) -> usize {
        self.0.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Row-major element strides.
    pub fn strides(&self) -> SmallVec<[usize; 6]> {
        let mut strides: SmallVec<[usize; 6]> = SmallVec::from_elem(1, self.0.len());
        for d in (1..self.0.len()).rev() {
            strides[d - 1] = strides[d].saturating_mul(self.0[d]);
        }
        strides
    }

    /// This shape with dimension `dim` changed to `extent`.
    pub fn with(&self, dim: usize, extent: usize) -> Shape {
        let mut s = self.clone();
        s.0[dim] = extent;
        s
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape::new(dims.iter().copied())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape::new(dims)
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape::new(dims)
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

/// Element type and shape of a value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Shape,
}

/// Greatest number of dimensions of a tensor.
pub const MAX_RANK: usize = 16;

/// Greatest extent of a dimension: positions fit an i32.
pub const MAX_EXTENT: usize = i32::MAX as usize;

impl Type {
    /// Why no tensor may have this type, if none may.
    pub fn refused(&self) -> Option<String> {
        if self.rank() > MAX_RANK {
            return Some(format!("{} dimensions are more than {MAX_RANK}", self.rank()));
        }
        if self.shape.iter().any(|&d| d > MAX_EXTENT) {
            return Some(format!("an extent of {self} is greater than {MAX_EXTENT}"));
        }
        // As if no extent were 0, so that products of any of the extents fit.
        let most = self.shape.iter().fold(self.dtype.size(), |n, &d| n.saturating_mul(d.max(1)));
        if most > isize::MAX as usize {
            return Some(format!("{self} has too many elements"));
        }
        None
    }

    /// A tensor type.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Type {
        Type { dtype, shape: shape.into() }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Size of the whole tensor in bytes; saturates instead of overflowing.
    pub fn bytes(&self) -> usize {
        self.shape.elements().saturating_mul(self.dtype.size())
    }

    /// The same element type with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Type {
        Type { dtype: self.dtype, shape: shape.into() }
    }

    /// The same shape with another element type.
    pub fn with_dtype(&self, dtype: DType) -> Type {
        Type { dtype, shape: self.shape.clone() }
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}
