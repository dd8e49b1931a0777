//! `standardize`: mean 0 and variance 1 along dimensions, the core of layer and group normalisation.

use super::prelude::*;
use crate::scalar::{Binary as B, Reduce as R, Unary as U};

/// (x − mean) · rsqrt(variance + epsilon) with the population statistics along `dims`, in two passes; computed in f32
/// for f16 and bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct Standardize {
    /// The dimensions, increasing.
    pub dims: Vec<usize>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl OpDef for Standardize {
    const NAME: &'static str = "standardize";
    attributes!(dims, epsilon);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        distinct_dims(&self.dims, x.rank())?;
        ensure(self.dims.is_sorted(), || "dims are not increasing".into())?;
        ensure(x.dtype.is_float(), || format!("{x} is not floating"))?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (x, acc) = (args[0], args[0].dtype.accumulator());
        let order = reduction_order(&self.dims, x.rank());
        let mut c = Compute::new(&results[0].shape);
        let axes: Vec<Axis> = self.dims.iter().map(|&d| c.reduce_axis(x.shape[d])).collect();
        let mut inner = c.position();
        for (&d, &a) in self.dims.iter().zip(&axes) {
            inner[d] = Index::axis(a);
        }
        let (here, there) = (c.load(0, x, c.position()), c.load(0, x, inner));
        let (here, there) = (c.cast(acc, here), c.cast(acc, there));
        let n: usize = self.dims.iter().map(|&d| x.shape[d]).product();
        let (scale, epsilon) = (c.number(acc, 1.0 / n as f64), c.number(acc, self.epsilon));
        let sum = c.reduce(R::Sum, axes.clone(), order, there);
        let mean = c.binary(B::Mul, sum, scale);
        let (d, dk) = (c.binary(B::Sub, here, mean), c.binary(B::Sub, there, mean));
        let square = c.binary(B::Mul, dk, dk);
        let sum = c.reduce(R::Sum, axes, order, square);
        let variance = c.binary(B::Mul, sum, scale);
        let variance = c.binary(B::Add, variance, epsilon);
        let r = c.unary(U::Rsqrt, variance);
        let y = c.binary(B::Mul, d, r);
        let y = c.cast(x.dtype, y);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (x, y, dy, ty) = (cx.args[0], cx.results[0], cx.dy(), cx.ty(0));
        let n: usize = self.dims.iter().map(|&d| ty.shape[d]).product();
        let g = &mut *cx.g;
        let mean = |g: &mut crate::Graph, v: Value| -> Result<Value, TypeError> {
            let sum = g.reduce_keep(R::Sum, v, &self.dims)?;
            let scale = g.full(ty.dtype, 1.0 / n as f64, &g.shape(sum).clone())?;
            g.mul(sum, scale)
        };
        let spread = |g: &mut crate::Graph, v: Value| g.broadcast_to(v, &ty.shape);
        let m = mean(g, x)?;
        let m = spread(g, m)?;
        let d = g.sub(x, m)?;
        let d2 = g.mul(d, d)?;
        let variance = mean(g, d2)?;
        let epsilon = g.full(ty.dtype, self.epsilon, &g.shape(variance).clone())?;
        let variance = g.add(variance, epsilon)?;
        let r = g.unary(U::Rsqrt, variance)?;
        let r = spread(g, r)?;
        let dyy = g.mul(dy, y)?;
        let (m1, m2) = (mean(g, dy)?, mean(g, dyy)?);
        let (m1, m2) = (spread(g, m1)?, spread(g, m2)?);
        let t = g.mul(y, m2)?;
        let s = g.sub(dy, m1)?;
        let s = g.sub(s, t)?;
        Ok(vec![Some(g.mul(r, s)?)])
    }
}
