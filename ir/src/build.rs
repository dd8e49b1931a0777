//! Shorthands for appending operations.

use crate::ops::{self, TypeError};
use crate::scalar::{Binary, Compare, Reduce, Unary};
use crate::{DType, Graph, Scalar, Shape, Value};
use std::ops::Range;

type Built = Result<Value, TypeError>;

impl Graph {
    /// A tensor of one repeated number.
    pub fn full(&mut self, dtype: DType, x: f64, shape: &Shape) -> Built {
        self.push(ops::Constant { shape: shape.clone(), elements: vec![Scalar::from_f64(dtype, x)] }, &[])
    }

    /// A scalar function of every element.
    pub fn unary(&mut self, function: Unary, x: Value) -> Built {
        self.push(ops::Unary { function }, &[x])
    }

    /// A scalar function of pairs of elements; shapes are equal.
    pub fn binary(&mut self, function: Binary, x: Value, y: Value) -> Built {
        self.push(ops::Binary { function }, &[x, y])
    }

    /// A scalar function of pairs of elements; shapes are broadcast against each other from the right.
    pub fn binary_broadcast(&mut self, function: Binary, x: Value, y: Value) -> Built {
        let (x, y) = self.broadcast_pair(x, y)?;
        self.binary(function, x, y)
    }

    /// Both values broadcast to their common shape, aligned from the right.
    pub fn broadcast_pair(&mut self, x: Value, y: Value) -> Result<(Value, Value), TypeError> {
        let (a, b) = (self.shape(x).clone(), self.shape(y).clone());
        let rank = a.len().max(b.len());
        let at = |s: &Shape, d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
        let shape = Shape::new((0..rank).map(|d| if at(&a, d) == 1 { at(&b, d) } else { at(&a, d) }));
        Ok((self.broadcast_to(x, &shape)?, self.broadcast_to(y, &shape)?))
    }

    /// Sum of equal shapes.
    pub fn add(&mut self, x: Value, y: Value) -> Built {
        self.binary(Binary::Add, x, y)
    }

    /// Difference of equal shapes.
    pub fn sub(&mut self, x: Value, y: Value) -> Built {
        self.binary(Binary::Sub, x, y)
    }

    /// Product of equal shapes, element by element.
    pub fn mul(&mut self, x: Value, y: Value) -> Built {
        self.binary(Binary::Mul, x, y)
    }

    /// Quotient of equal shapes.
    pub fn div(&mut self, x: Value, y: Value) -> Built {
        self.binary(Binary::Div, x, y)
    }

    /// Comparison of equal shapes.
    pub fn compare(&mut self, relation: Compare, x: Value, y: Value) -> Built {
        self.push(ops::Compare { relation }, &[x, y])
    }

    /// The second where the first is true, else the third.
    pub fn select(&mut self, cond: Value, yes: Value, no: Value) -> Built {
        self.push(ops::Select {}, &[cond, yes, no])
    }

    /// Conversion; nothing is appended when the type is the same.
    pub fn cast(&mut self, to: DType, x: Value) -> Built {
        if self.ty(x).dtype == to { Ok(x) } else { self.push(ops::Cast { to }, &[x]) }
    }

    /// Repetition; see [`ops::Broadcast`]. Nothing is appended when the shape is the same.
    pub fn broadcast(&mut self, x: Value, shape: &Shape, dims: &[usize]) -> Built {
        if self.shape(x) == shape && dims.iter().enumerate().all(|(i, d)| i == *d) {
            return Ok(x);
        }
        self.push(ops::Broadcast { shape: shape.clone(), dims: dims.to_vec() }, &[x])
    }

    /// Repetition to a shape of the same or a higher rank, aligned from the right.
    pub fn broadcast_to(&mut self, x: Value, shape: &Shape) -> Built {
        let rank = self.shape(x).len();
        let Some(first) = shape.len().checked_sub(rank) else {
            return Err(TypeError::new(format!("{} does not broadcast to {shape}", self.shape(x))).of("broadcast"));
        };
        let dims: Vec<usize> = (first..shape.len()).collect();
        self.broadcast(x, shape, &dims)
    }

    /// Another shape for the same elements; nothing is appended when the shape is the same.
    pub fn reshape(&mut self, x: Value, shape: &Shape) -> Built {
        if self.shape(x) == shape { Ok(x) } else { self.push(ops::Reshape { shape: shape.clone() }, &[x]) }
    }

    /// A permutation of the dimensions; nothing is appended for the identity.
    pub fn transpose(&mut self, x: Value, perm: &[usize]) -> Built {
        if perm.iter().enumerate().all(|(i, d)| i == *d) && perm.len() == self.shape(x).len() {
            return Ok(x);
        }
        self.push(ops::Transpose { perm: perm.to_vec() }, &[x])
    }

    /// Combination along dimensions, which disappear.
    pub fn reduce(&mut self, function: Reduce, x: Value, dims: &[usize]) -> Built {
        let mut dims = dims.to_vec();
        dims.sort_unstable();
        self.push(ops::Reduce { function, dims }, &[x])
    }

    /// Combination along dimensions, which get extent 1.
    pub fn reduce_keep(&mut self, function: Reduce, x: Value, dims: &[usize]) -> Built {
        let kept = dims.iter().fold(self.shape(x).clone(), |s, &d| s.with(d, 1));
        let y = self.reduce(function, x, dims)?;
        self.reshape(y, &kept)
    }

    /// Positions of one dimension.
    pub fn slice_dim(&mut self, x: Value, dim: usize, range: Range<usize>) -> Built {
        let shape = self.shape(x).clone();
        if range == (0..shape[dim]) {
            return Ok(x);
        }
        let mut start = vec![0; shape.len()];
        let mut limit = shape.to_vec();
        (start[dim], limit[dim]) = (range.start, range.end);
        self.push(ops::Slice { start, limit, stride: vec![1; shape.len()] }, &[x])
    }

    /// Sum of products over the last dimension of x and the first of y: `[.., k] × [k, ..] → [.., ..]`.
    pub fn matmul(&mut self, x: Value, y: Value) -> Built {
        let k = self.shape(x).len().saturating_sub(1);
        self.push(ops::Contract { batch: vec![], contract: vec![(k, 0)] }, &[x, y])
    }
}
