//! `contract`: sums of products over shared dimensions: matrix products, batched or not.

use super::prelude::*;
use crate::scalar::{Binary as B, Reduce as R};

/// Σ lhs·rhs over the contracted dimensions. The result's dimensions are the batch dimensions, then the remaining ones
/// of lhs, then those of rhs, each in order. The sum runs over the contracted dimensions in the order listed, as one
/// chain of fused multiply-adds (in f32 for f16 and bf16).
#[derive(Clone, Debug, PartialEq)]
pub struct Contract {
    /// Pairs of dimensions (lhs, rhs) that both have and the result keeps.
    pub batch: Vec<(usize, usize)>,
    /// Pairs of dimensions (lhs, rhs) that are summed over, outermost first.
    pub contract: Vec<(usize, usize)>,
}

impl Contract {
    /// The dimensions of each side that are neither batch nor contracted.
    pub fn free(&self, lhs_rank: usize, rhs_rank: usize) -> (Vec<usize>, Vec<usize>) {
        let used = |pick: fn(&(usize, usize)) -> usize| -> Vec<usize> {
            self.batch.iter().chain(&self.contract).map(pick).collect()
        };
        let (l, r) = (used(|p| p.0), used(|p| p.1));
        let rest = |used: &[usize], rank: usize| (0..rank).filter(|d| !used.contains(d)).collect();
        (rest(&l, lhs_rank), rest(&r, rhs_rank))
    }
}

impl OpDef for Contract {
    const NAME: &'static str = "contract";
    attributes!(batch, contract);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x, y] = exactly(args)?;
        ensure(x.dtype == y.dtype && x.dtype != DType::Bool, || format!("operands {x} and {y}"))?;
        let pairs = || self.batch.iter().chain(&self.contract);
        distinct_dims(&pairs().map(|p| p.0).collect::<Vec<_>>(), x.rank())?;
        distinct_dims(&pairs().map(|p| p.1).collect::<Vec<_>>(), y.rank())?;
        for &(a, b) in pairs() {
            ensure(x.shape[a] == y.shape[b], || format!("dimension {a} of {x} is not as dimension {b} of {y}"))?;
        }
        let (fx, fy) = self.free(x.rank(), y.rank());
        let dims = self.batch.iter().map(|p| x.shape[p.0]);
        let dims = dims.chain(fx.iter().map(|&d| x.shape[d])).chain(fy.iter().map(|&d| y.shape[d]));
        Ok(smallvec![x.with_shape(Shape::new(dims))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (x, y) = (args[0], args[1]);
        let mut c = Compute::new(&results[0].shape);
        let (fx, fy) = self.free(x.rank(), y.rank());
        let (mut ix, mut iy) = (vec![Index::default(); x.rank()], vec![Index::default(); y.rank()]);
        let mut result = c.axes();
        let mut next = || Index::axis(result.next().expect("result axes are batch, then free"));
        for &(a, b) in &self.batch {
            ix[a] = next();
            iy[b] = ix[a].clone();
        }
        fx.iter().for_each(|&d| ix[d] = next());
        fy.iter().for_each(|&d| iy[d] = next());
        let mut axes = Vec::new();
        for &(a, b) in &self.contract {
            let k = c.reduce_axis(x.shape[a]);
            axes.push(k);
            ix[a] = Index::axis(k);
            iy[b] = Index::axis(k);
        }
        let acc = x.dtype.accumulator();
        let (x, y) = (c.load(0, x, ix), c.load(1, y, iy));
        let (x, y) = (c.cast(acc, x), c.cast(acc, y));
        let product = c.binary(B::Mul, x, y);
        let sum = c.reduce(R::Sum, axes, Order::Fma, product);
        let z = c.cast(args[0].dtype, sum);
        Body::Compute(c.with_results([z]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (x, y) = (cx.args[0], cx.args[1]);
        let (tx, ty, dz) = (cx.ty(0), cx.ty(1), cx.dy());
        if !tx.dtype.is_float() {
            return Ok(vec![None, None]);
        }
        let (fx, fy) = self.free(tx.rank(), ty.rank());
        let b = self.batch.len();
        // Positions of the free dimensions of each side in dz.
        let (px, py) = (b..b + fx.len(), b + fx.len()..b + fx.len() + fy.len());
        let side = |g: &mut crate::Graph,
                    other: Value,
                    other_free: &[usize],
                    other_at: std::ops::Range<usize>,
                    mine: &dyn Fn(&(usize, usize)) -> usize,
                    theirs: &dyn Fn(&(usize, usize)) -> usize,
                    my_free: &[usize]|
         -> Result<Value, TypeError> {
            let op = Contract {
                batch: self.batch.iter().enumerate().map(|(i, p)| (i, theirs(p))).collect(),
                contract: other_at.clone().zip(other_free.iter().copied()).collect(),
            };
            let d = g.push(op, &[dz, other])?;
            // d: batch, my free dimensions, then the contracted ones in the other side's order.
            let mut summed: Vec<&(usize, usize)> = self.contract.iter().collect();
            summed.sort_by_key(|p| theirs(p));
            let order = self.batch.iter().map(mine).chain(my_free.iter().copied());
            let order: Vec<usize> = order.chain(summed.into_iter().map(mine)).collect();
            g.transpose(d, &super::transpose::inverse(&order))
        };
        let dx = side(cx.g, y, &fy, py, &|p| p.0, &|p| p.1, &fx)?;
        let dy = side(cx.g, x, &fx, px, &|p| p.1, &|p| p.0, &fy)?;
        Ok(vec![Some(dx), Some(dy)])
    }
}
