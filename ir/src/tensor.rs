//! Tensors in host memory, row-major: the interpreter's values and what programs are fed with.

use crate::shard::Layout;
use crate::{DType, Scalar, Shape, Type, scalar};

/// A tensor in host memory: elements little-endian, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Element type and shape.
    pub ty: Type,
    /// The elements' bytes.
    pub data: Vec<u8>,
}

impl Tensor {
    /// A tensor of zeros.
    pub fn zeros(ty: Type) -> Tensor {
        Tensor { data: vec![0; ty.bytes()], ty }
    }

    /// A tensor from its bytes; `None` if their number does not fit the type.
    pub fn from_bytes(ty: Type, data: Vec<u8>) -> Option<Tensor> {
        (data.len() == ty.bytes()).then_some(Tensor { ty, data })
    }

    /// A tensor from its elements, or one element for all.
    pub fn from_scalars(ty: Type, elements: &[Scalar]) -> Tensor {
        let mut t = Tensor::zeros(ty);
        for i in 0..t.elements() {
            t.set(i, if elements.len() == 1 { elements[0] } else { elements[i] });
        }
        t
    }

    /// A tensor of the elements nearest to the numbers given.
    pub fn from_f64(dtype: DType, shape: impl Into<Shape>, numbers: &[f64]) -> Tensor {
        let ty = Type::new(dtype, shape);
        debug_assert_eq!(ty.shape.elements(), numbers.len());
        let elements: Vec<Scalar> = numbers.iter().map(|&x| Scalar::from_f64(dtype, x)).collect();
        Tensor::from_scalars(ty, &elements)
    }

    /// An f32 tensor.
    pub fn from_f32(shape: impl Into<Shape>, numbers: &[f32]) -> Tensor {
        let ty = Type::new(DType::F32, shape);
        debug_assert_eq!(ty.shape.elements(), numbers.len());
        Tensor { ty, data: numbers.iter().flat_map(|x| x.to_le_bytes()).collect() }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.ty.shape.elements()
    }

    /// Element `i` in row-major order.
    #[inline]
    pub fn get(&self, i: usize) -> Scalar {
        let n = self.ty.dtype.size();
        Scalar::read(self.ty.dtype, &self.data[i * n..])
    }

    /// Changes element `i`.
    #[inline]
    pub fn set(&mut self, i: usize, x: Scalar) {
        debug_assert_eq!(x.dtype(), self.ty.dtype);
        let n = self.ty.dtype.size();
        x.write(&mut self.data[i * n..]);
    }

    /// All elements.
    pub fn scalars(&self) -> Vec<Scalar> {
        (0..self.elements()).map(|i| self.get(i)).collect()
    }

    /// All elements as f64.
    pub fn to_f64(&self) -> Vec<f64> {
        (0..self.elements()).map(|i| self.get(i).to_f64()).collect()
    }

    /// The elements converted to another type.
    pub fn cast(&self, dtype: DType) -> Tensor {
        if dtype == self.ty.dtype {
            return self.clone();
        }
        let elements: Vec<Scalar> = (0..self.elements()).map(|i| scalar::cast(dtype, self.get(i))).collect();
        let mut out = Tensor::zeros(self.ty.with_dtype(dtype));
        elements.into_iter().enumerate().for_each(|(i, x)| out.set(i, x));
        out
    }

    /// What `device` holds of this tensor; the whole for layouts that do not divide it.
    pub fn part(&self, layout: &Layout, device: usize) -> Tensor {
        match layout {
            Layout::Split { dim, .. } => {
                let region = layout.region(&self.ty.shape, *dim, device);
                self.slice(*dim, region)
            }
            Layout::Replicated | Layout::Partial(_) | Layout::On(_) => self.clone(),
        }
    }

    /// Positions of one dimension.
    pub fn slice(&self, dim: usize, range: std::ops::Range<usize>) -> Tensor {
        let shape = &self.ty.shape;
        let inner: usize = shape[dim + 1..].iter().product::<usize>() * self.ty.dtype.size();
        let outer: usize = shape[..dim].iter().product();
        let mut data = Vec::with_capacity(outer * range.len() * inner);
        for o in 0..outer {
            let base = o * shape[dim] * inner;
            data.extend_from_slice(&self.data[base + range.start * inner..base + range.end * inner]);
        }
        Tensor { ty: self.ty.with_shape(shape.with(dim, range.len())), data }
    }

    /// Tensors one after another along a dimension.
    pub fn join(parts: &[Tensor], dim: usize) -> Tensor {
        let first = &parts[0].ty;
        let total = parts.iter().map(|p| p.ty.shape[dim]).sum();
        let ty = first.with_shape(first.shape.with(dim, total));
        let outer: usize = first.shape[..dim].iter().product();
        let mut data = Vec::with_capacity(ty.bytes());
        for o in 0..outer {
            for p in parts {
                let n = p.ty.shape[dim..].iter().product::<usize>() * ty.dtype.size();
                data.extend_from_slice(&p.data[o * n..(o + 1) * n]);
            }
        }
        Tensor { ty, data }
    }

    /// Position `i` of dimension 0, without that dimension.
    pub fn row(&self, i: usize) -> Tensor {
        let ty = self.ty.with_shape(Shape::from(&self.ty.shape[1..]));
        let n = ty.bytes();
        Tensor { data: self.data[i * n..(i + 1) * n].to_vec(), ty }
    }

    /// Changes position `i` of dimension 0.
    pub fn set_row(&mut self, i: usize, row: &Tensor) {
        let n = row.data.len();
        self.data[i * n..(i + 1) * n].copy_from_slice(&row.data);
    }
}
