//! `reduce`: combination of all elements along dimensions.

use super::prelude::*;
use crate::scalar::{Compare as C, Reduce as R};

/// Combines the elements along `dims`, which disappear. Sums of f16 and bf16 are accumulated in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct Reduce {
    /// How elements combine.
    pub function: R,
    /// The dimensions, increasing.
    pub dims: Vec<usize>,
}

impl OpDef for Reduce {
    const NAME: &'static str = "reduce";
    attributes!(function, dims);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        distinct_dims(&self.dims, x.rank())?;
        ensure(self.dims.is_sorted(), || "dims are not increasing".into())?;
        let kept = (0..x.rank()).filter(|d| !self.dims.contains(d)).map(|d| x.shape[d]);
        Ok(smallvec![x.with_shape(Shape::new(kept))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let x = args[0];
        let mut c = Compute::new(&results[0].shape);
        let mut kept = c.axes();
        let mut axes = Vec::new();
        let mut index = Vec::new();
        for d in 0..x.rank() {
            let a = match self.dims.contains(&d) {
                true => {
                    let a = c.reduce_axis(x.shape[d]);
                    axes.push(a);
                    a
                }
                false => kept.next().expect("one result axis per kept dimension"),
            };
            index.push(Index::axis(a));
        }
        let load = c.load(0, x, index);
        let body = c.cast(x.dtype.accumulator(), load);
        let sum = c.reduce(self.function, axes, reduction_order(&self.dims, x.rank()), body);
        let y = c.cast(x.dtype, sum);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (x, y, ty) = (cx.args[0], cx.results[0], cx.ty(0));
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let dy = cx.dy();
        let kept: Vec<usize> = (0..ty.rank()).filter(|d| !self.dims.contains(d)).collect();
        let g = &mut *cx.g;
        let dy = g.broadcast(dy, &ty.shape, &kept)?;
        if self.function == R::Sum {
            return Ok(vec![Some(dy)]);
        }
        let (zero, one) = (g.full(ty.dtype, 0.0, &ty.shape)?, g.full(ty.dtype, 1.0, &ty.shape)?);
        let count = |g: &mut crate::Graph, hit: Value| -> Result<Value, TypeError> {
            let ones = g.select(hit, one, zero)?;
            let n = g.reduce(R::Sum, ones, &self.dims)?;
            g.broadcast(n, &ty.shape, &kept)
        };
        let dx = match self.function {
            R::Sum => dy,
            // Ties share the gradient equally.
            R::Max | R::Min => {
                let whole = g.broadcast(y, &ty.shape, &kept)?;
                let hit = g.compare(C::Eq, x, whole)?;
                let n = count(g, hit)?;
                let share = g.div(dy, n)?;
                g.select(hit, share, zero)?
            }
            // The product of the other elements, also where one of them, or this one, is 0.
            R::Prod => {
                let is_zero = g.compare(C::Eq, x, zero)?;
                let safe = g.select(is_zero, one, x)?;
                let p = g.reduce(R::Prod, safe, &self.dims)?;
                let p = g.broadcast(p, &ty.shape, &kept)?;
                let zeros = count(g, is_zero)?;
                let none = g.compare(C::Eq, zeros, zero)?;
                let single = g.compare(C::Eq, zeros, one)?;
                let others = g.div(p, safe)?;
                let at_zero = g.select(is_zero, p, zero)?;
                let rest = g.select(single, at_zero, zero)?;
                let others = g.select(none, others, rest)?;
                g.mul(dy, others)?
            }
        };
        Ok(vec![Some(dx)])
    }
}
