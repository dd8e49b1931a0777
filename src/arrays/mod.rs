//! Arrays on the host and the files that hold them: npz, npy, safetensors.
//!
//! An [`Array`] is row-major and native-endian. Readers are safe on hostile files: what a header declares is compared
//! with the bytes that are there before anything of that size is allocated, and nothing pickled is ever opened.

mod error;
mod mapped;
mod npy;
mod npz;
mod rows;
mod tensors;

pub use error::{ArrayError, ArrayErrorKind};
pub use intwain_ir::DType;
pub use mapped::FileBytes;
pub use npz::{Npz, read_npy, write_npz};
pub use rows::Rows;
pub use tensors::SafetensorsFile;
pub(crate) use tensors::safetensors_dtype;

/// Bytes aligned for every element type.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    words: Vec<u64>,
    len: usize,
}

impl Buffer {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Buffer {
        Buffer { words: vec![0; len.div_ceil(8)], len }
    }

    /// A copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Buffer {
        let mut out = Buffer::zeroed(bytes.len());
        out.bytes_mut().copy_from_slice(bytes);
        out
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// A dense row-major array.
#[derive(Clone, Debug)]
pub struct Array {
    dtype: DType,
    shape: Vec<usize>,
    data: Buffer,
}

impl Array {
    /// An array from its bytes, `None` where their number is not what dtype and shape ask for.
    pub fn from_bytes(dtype: DType, shape: impl Into<Vec<usize>>, bytes: &[u8]) -> Option<Array> {
        let shape = shape.into();
        let want = byte_len(dtype, &shape)?;
        (want == bytes.len()).then(|| Array { dtype, shape, data: Buffer::from_bytes(bytes) })
    }

    /// Zeros. `None` where the size overflows.
    pub fn zeros(dtype: DType, shape: impl Into<Vec<usize>>) -> Option<Array> {
        let shape = shape.into();
        let len = byte_len(dtype, &shape)?;
        Some(Array { dtype, shape, data: Buffer::zeroed(len) })
    }

    /// An `f32` array.
    ///
    /// # Panics
    /// Where the number of values is not the shape's.
    pub fn from_f32(shape: impl Into<Vec<usize>>, values: &[f32]) -> Array {
        Array::from_bytes(DType::F32, shape, bytemuck::cast_slice(values))
            .expect("as many values as the shape has elements")
    }

    /// An `f64` array.
    ///
    /// # Panics
    /// Where the number of values is not the shape's.
    pub fn from_f64(shape: impl Into<Vec<usize>>, values: &[f64]) -> Array {
        Array::from_bytes(DType::F64, shape, bytemuck::cast_slice(values))
            .expect("as many values as the shape has elements")
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All bytes, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.data.bytes()
    }

    /// All bytes, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.bytes_mut()
    }

    /// The elements as `T`, `None` where the size of `T` is not the element size.
    pub fn as_slice<T: bytemuck::Pod>(&self) -> Option<&[T]> {
        (size_of::<T>() == self.dtype.size()).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// Every element as `f64`. `i64` above 2⁵³ rounds.
    pub fn to_f64(&self) -> Vec<f64> {
        let mut values = Vec::with_capacity(self.len());
        self.each_f64(|v| values.push(v));
        values
    }

    fn each_f64(&self, mut to: impl FnMut(f64)) {
        fn each<T: bytemuck::Pod>(array: &Array, f: impl Fn(T) -> f64, to: &mut impl FnMut(f64)) {
            bytemuck::cast_slice(array.bytes()).iter().for_each(|&v| to(f(v)));
        }
        let to = &mut to;
        match self.dtype {
            DType::Bool | DType::U8 => each(self, |v: u8| v.into(), to),
            DType::I8 => each(self, |v: i8| v.into(), to),
            DType::I16 => each(self, |v: i16| v.into(), to),
            DType::I32 => each(self, |v: i32| v.into(), to),
            DType::I64 => each(self, |v: i64| v as f64, to),
            DType::U32 => each(self, |v: u32| v.into(), to),
            DType::F16 => each(self, |v: half::f16| v.to_f64(), to),
            DType::BF16 => each(self, |v: half::bf16| v.to_f64(), to),
            DType::F32 => each(self, |v: f32| v.into(), to),
            DType::F64 => each(self, |v: f64| v, to),
        }
    }

    /// The same elements converted to `dtype`: to the nearest value for floats, by wrapping for integers, `x ≠ 0` for bool.
    /// Floats become integers by truncation towards zero, saturating.
    pub fn cast(&self, dtype: DType) -> Array {
        if dtype == self.dtype {
            return self.clone();
        }
        let mut out = Vec::with_capacity(self.len() * dtype.size());
        if self.dtype == DType::I64 && !dtype.is_float() && dtype != DType::Bool {
            // Through i64 and not f64, which would round.
            for v in bytemuck::cast_slice::<u8, i64>(self.bytes()) {
                out.extend_from_slice(&v.to_le_bytes()[..dtype.size()]);
            }
        } else {
            self.each_f64(|v| push_f64(&mut out, dtype, v));
        }
        Array { dtype, shape: self.shape.clone(), data: Buffer::from_bytes(&out) }
    }

    /// `cast` where it changes no value (and NaN stays NaN), else `None`: how inputs are brought to a model's input dtype.
    pub fn cast_exact(&self, dtype: DType) -> Option<Array> {
        let out = self.cast(dtype);
        let same = if self.dtype == DType::I64 || dtype == DType::I64 {
            let back = out.cast(self.dtype);
            back.bytes() == self.bytes() || (self.dtype.is_float() && same_values(&back, self))
        } else {
            same_values(&out, self)
        };
        same.then_some(out)
    }

    /// The rows `start..end` along the first dimension, `None` where they are not all there.
    pub fn rows(&self, start: usize, end: usize) -> Option<Array> {
        let (&rows, rest) = self.shape.split_first()?;
        if start > end || end > rows {
            return None;
        }
        let row = rest.iter().product::<usize>() * self.dtype.size();
        let mut shape = self.shape.clone();
        shape[0] = end - start;
        Some(Array { dtype: self.dtype, shape, data: Buffer::from_bytes(&self.bytes()[start * row..end * row]) })
    }
}

fn same_values(a: &Array, b: &Array) -> bool {
    a.to_f64().iter().zip(b.to_f64()).all(|(x, y)| *x == y || (x.is_nan() && y.is_nan()))
}

/// Bytes of an array, `None` where the product overflows or no allocation could be that large.
pub(crate) fn byte_len(dtype: DType, shape: &[usize]) -> Option<usize> {
    let len = shape.iter().try_fold(dtype.size(), |n, &d| n.checked_mul(d))?;
    (len <= isize::MAX as usize).then_some(len)
}

/// Appends `value` rounded to `dtype`, little-endian.
pub(crate) fn push_f64(out: &mut Vec<u8>, dtype: DType, value: f64) {
    match dtype {
        DType::Bool => out.push(u8::from(value != 0.0)),
        DType::I8 => out.extend((value as i64 as i8).to_le_bytes()),
        DType::I16 => out.extend((value as i64 as i16).to_le_bytes()),
        DType::I32 => out.extend((value as i64 as i32).to_le_bytes()),
        DType::I64 => out.extend((value as i64).to_le_bytes()),
        DType::U8 => out.extend((value as i64 as u8).to_le_bytes()),
        DType::U32 => out.extend((value as i64 as u32).to_le_bytes()),
        DType::F16 => out.extend(half::f16::from_f64(value).to_le_bytes()),
        DType::BF16 => out.extend(half::bf16::from_f64(value).to_le_bytes()),
        DType::F32 => out.extend((value as f32).to_le_bytes()),
        DType::F64 => out.extend(value.to_le_bytes()),
    }
}
