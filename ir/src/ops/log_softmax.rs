//! `log_softmax`: logarithm of the softmax.

use super::prelude::*;
use crate::scalar::{Binary as B, Reduce as R, Unary as U};

/// x − max − log Σ exp(x − max) along `dim`; computed in f32 for f16 and bf16.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSoftmax {
    /// The dimension.
    pub dim: usize,
}

impl OpDef for LogSoftmax {
    const NAME: &'static str = "log_softmax";
    attributes!(dim);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        super::softmax::infer(args, self.dim)
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let (d, sum) = super::softmax::shifted(&mut c, args[0], self.dim);
        let log = c.unary(U::Log, sum);
        let y = c.binary(B::Sub, d, log);
        let y = c.cast(args[0].dtype, y);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (y, dy, ty) = (cx.results[0], cx.dy(), cx.ty(0));
        let g = &mut *cx.g;
        let sum = g.reduce_keep(R::Sum, dy, &[self.dim])?;
        let sum = g.broadcast_to(sum, &ty.shape)?;
        let p = g.unary(U::Exp, y)?;
        let t = g.mul(p, sum)?;
        Ok(vec![Some(g.sub(dy, t)?)])
    }
}
