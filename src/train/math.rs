//! Arithmetic of losses and metrics: shorthands with constants, broadcasting, and forms whose gradients are those of Keras on
//! TensorFlow, which differ from those of the plain operations at ties and at infinities.

use intwain_ir::ops::{ArgMax, Iota, StopGradient, TypeError};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Graph, Shape, Value};

/// What keeps Keras's divisions and logarithms finite.
pub(crate) const EPSILON: f64 = 1e-7;

/// A value or why there is none.
pub(crate) type Made = Result<Value, TypeError>;

/// A graph to which arithmetic is appended.
#[derive(Debug)]
pub(crate) struct Math<'g> {
    /// The graph.
    pub(crate) g: &'g mut Graph,
}

impl Math<'_> {
    pub(crate) fn shape(&self, x: Value) -> Shape {
        self.g.shape(x).clone()
    }

    pub(crate) fn rank(&self, x: Value) -> usize {
        self.g.shape(x).len()
    }

    pub(crate) fn dtype(&self, x: Value) -> DType {
        self.g.ty(x).dtype
    }

    /// A repeated number of the type and shape of a value.
    pub(crate) fn like(&mut self, x: Value, number: f64) -> Made {
        let ty = self.g.ty(x).clone();
        self.g.full(ty.dtype, number, &ty.shape)
    }

    /// The dimension that an axis, perhaps counted from the end, means.
    pub(crate) fn dim(&self, x: Value, axis: i64) -> Result<usize, TypeError> {
        let rank = self.rank(x);
        let dim = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(dim)
            .ok()
            .filter(|&d| d < rank)
            .ok_or_else(|| TypeError::new(format!("there is no axis {axis} in {}", self.g.ty(x))))
    }

    pub(crate) fn unary(&mut self, function: Unary, x: Value) -> Made {
        self.g.unary(function, x)
    }

    pub(crate) fn neg(&mut self, x: Value) -> Made {
        self.g.unary(Unary::Neg, x)
    }

    pub(crate) fn log(&mut self, x: Value) -> Made {
        self.g.unary(Unary::Log, x)
    }

    pub(crate) fn square(&mut self, x: Value) -> Made {
        self.g.mul(x, x)
    }

    /// x + number.
    pub(crate) fn plus(&mut self, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        self.g.add(x, number)
    }

    /// x · number.
    pub(crate) fn times(&mut self, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        self.g.mul(x, number)
    }

    /// x / number.
    pub(crate) fn over(&mut self, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        self.g.div(x, number)
    }

    /// number − x.
    pub(crate) fn from(&mut self, number: f64, x: Value) -> Made {
        let number = self.like(x, number)?;
        self.g.sub(number, x)
    }

    pub(crate) fn add(&mut self, x: Value, y: Value) -> Made {
        self.pairwise(Binary::Add, x, y)
    }

    pub(crate) fn sub(&mut self, x: Value, y: Value) -> Made {
        self.pairwise(Binary::Sub, x, y)
    }

    pub(crate) fn mul(&mut self, x: Value, y: Value) -> Made {
        self.pairwise(Binary::Mul, x, y)
    }

    pub(crate) fn div(&mut self, x: Value, y: Value) -> Made {
        self.pairwise(Binary::Div, x, y)
    }

    fn pairwise(&mut self, function: Binary, x: Value, y: Value) -> Made {
        let (x, y) = self.matched(x, y)?;
        self.g.binary(function, x, y)
    }

    /// Two values broadcast to each other. Ranks are equal, or one is a scalar: a lower rank is never aligned from the right,
    /// which would lay rows beside something else.
    pub(crate) fn matched(&mut self, x: Value, y: Value) -> Result<(Value, Value), TypeError> {
        let (a, b) = (self.shape(x), self.shape(y));
        let fits = a.len() == b.len() && a.iter().zip(b.iter()).all(|(m, n)| m == n || *m == 1 || *n == 1);
        if !fits && !a.is_empty() && !b.is_empty() {
            return Err(TypeError::new(format!("the shapes {a} and {b} do not fit each other")));
        }
        self.g.broadcast_pair(x, y)
    }

    /// Whether elements relate to a number.
    pub(crate) fn is(&mut self, x: Value, relation: Compare, number: f64) -> Made {
        let number = self.like(x, number)?;
        self.g.compare(relation, x, number)
    }

    /// Two truth values together, shapes broadcast.
    pub(crate) fn both(&mut self, x: Value, y: Value) -> Made {
        self.pairwise(Binary::And, x, y)
    }

    /// x where the condition holds, else the number.
    pub(crate) fn where_or(&mut self, condition: Value, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        self.g.select(condition, x, number)
    }

    /// The greater of x and a number; x takes the gradient where they are equal. NaN stays.
    pub(crate) fn at_least(&mut self, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        let below = self.g.compare(Compare::Lt, x, number)?;
        self.g.select(below, number, x)
    }

    /// The lesser of x and a number; x takes the gradient where they are equal. NaN stays.
    pub(crate) fn at_most(&mut self, x: Value, number: f64) -> Made {
        let number = self.like(x, number)?;
        let above = self.g.compare(Compare::Gt, x, number)?;
        self.g.select(above, number, x)
    }

    /// x limited to [low, high], where the limits pass the gradient on.
    pub(crate) fn clip(&mut self, x: Value, low: f64, high: f64) -> Made {
        let x = self.at_most(x, high)?;
        self.at_least(x, low)
    }

    /// log(1 + e^x) without overflow.
    pub(crate) fn softplus(&mut self, x: Value) -> Made {
        let zero = self.like(x, 0.0)?;
        let up = self.g.compare(Compare::Ge, x, zero)?;
        let minus = self.neg(x)?;
        let (kept, away) = (self.g.select(up, x, zero)?, self.g.select(up, minus, x)?);
        let e = self.unary(Unary::Exp, away)?;
        let log = self.unary(Unary::Log1p, e)?;
        self.g.add(kept, log)
    }

    pub(crate) fn constant(&mut self, x: Value) -> Made {
        self.g.push(StopGradient {}, &[x])
    }

    pub(crate) fn sum(&mut self, x: Value, dims: &[usize]) -> Made {
        self.g.reduce(Reduce::Sum, x, dims)
    }

    /// Sums that keep their dimension, repeated over it.
    pub(crate) fn sum_along(&mut self, x: Value, dim: usize) -> Made {
        let sum = self.g.reduce_keep(Reduce::Sum, x, &[dim])?;
        let shape = self.shape(x);
        self.g.broadcast_to(sum, &shape)
    }

    pub(crate) fn mean(&mut self, x: Value, dims: &[usize]) -> Made {
        let n: usize = dims.iter().map(|&d| self.g.shape(x)[d]).product();
        let sum = self.sum(x, dims)?;
        self.over(sum, n as f64)
    }

    /// Positions along a dimension, as integers of the shape of a value.
    pub(crate) fn positions(&mut self, shape: &Shape, dim: usize) -> Made {
        self.g.push(Iota { dtype: DType::I32, shape: shape.clone(), dim, start: 0 }, &[])
    }

    pub(crate) fn arg_max(&mut self, x: Value, dim: usize) -> Made {
        self.g.push(ArgMax { dim }, &[x])
    }

    /// A dimension of extent 1 added before dimension `dim`.
    pub(crate) fn expanded(&mut self, x: Value, dim: usize) -> Made {
        let mut dims = self.shape(x).to_vec();
        dims.insert(dim, 1);
        self.g.reshape(x, &dims.into())
    }

    /// A dimension of extent 1 taken away.
    pub(crate) fn squeezed(&mut self, x: Value, dim: usize) -> Made {
        let mut dims = self.shape(x).to_vec();
        dims.remove(dim);
        self.g.reshape(x, &dims.into())
    }

    /// Keras's way with ranks that differ by one: of two values, the one with a trailing 1 loses it, or the other gets one
    /// where it is a vector.
    pub(crate) fn same_rank(&mut self, x: Value, y: Value) -> Result<(Value, Value), TypeError> {
        let (a, b) = (self.shape(x), self.shape(y));
        if a.len() == b.len() + 1 && a.last() == Some(&1) {
            return match b.len() {
                1 => Ok((x, self.expanded(y, 1)?)),
                rank => Ok((self.squeezed(x, rank)?, y)),
            };
        }
        if b.len() == a.len() + 1 && b.last() == Some(&1) {
            return match a.len() {
                1 => Ok((self.expanded(x, 1)?, y)),
                rank => Ok((x, self.squeezed(y, rank)?)),
            };
        }
        Ok((x, y))
    }
}
