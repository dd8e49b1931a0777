//! `softmax`: exponentials that add up to 1 along a dimension.

use super::prelude::*;
use crate::scalar::{Binary as B, Reduce as R, Unary as U};

/// exp(x − max) / Σ exp(x − max) along `dim`; computed in f32 for f16 and bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct Softmax {
    /// The dimension.
    pub dim: usize,
}

/// Shared by softmax and log_softmax: checks the operand.
pub(super) fn infer(args: &[&Type], dim: usize) -> Result<Types, TypeError> {
    let [x] = exactly(args)?;
    ensure(dim < x.rank(), || format!("dimension {dim} of {x}"))?;
    ensure(x.dtype.is_float(), || format!("{x} is not floating"))?;
    Ok(smallvec![x.clone()])
}

/// Shared by softmax and log_softmax: x − max at this position, and Σ exp(x − max) of its row.
pub(super) fn shifted(c: &mut Compute, x: &Type, dim: usize) -> (crate::compute::ExprId, crate::compute::ExprId) {
    let order = reduction_order(&[dim], x.rank());
    let acc = x.dtype.accumulator();
    let at = |c: &mut Compute, along: Axis| {
        let mut index = c.position();
        index[dim] = Index::axis(along);
        let v = c.load(0, x, index);
        c.cast(acc, v)
    };
    let k = c.reduce_axis(x.shape[dim]);
    let (here, there) = (at(c, Axis(dim as u8)), at(c, k));
    let max = c.reduce(R::Max, vec![k], order, there);
    let (d, dk) = (c.binary(B::Sub, here, max), c.binary(B::Sub, there, max));
    let e = c.unary(U::Exp, dk);
    (d, c.reduce(R::Sum, vec![k], order, e))
}

impl OpDef for Softmax {
    const NAME: &'static str = "softmax";
    attributes!(dim);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        infer(args, self.dim)
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let (d, sum) = shifted(&mut c, args[0], self.dim);
        let one = c.number(args[0].dtype.accumulator(), 1.0);
        let (e, scale) = (c.unary(U::Exp, d), c.binary(B::Div, one, sum));
        let y = c.binary(B::Mul, e, scale);
        let y = c.cast(args[0].dtype, y);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (y, dy, ty) = (cx.results[0], cx.dy(), cx.ty(0));
        let g = &mut *cx.g;
        let t = g.mul(dy, y)?;
        let sum = g.reduce_keep(R::Sum, t, &[self.dim])?;
        let sum = g.broadcast_to(sum, &ty.shape)?;
        let d = g.sub(dy, sum)?;
        Ok(vec![Some(g.mul(d, y)?)])
    }
}
