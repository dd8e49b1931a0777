//! `blocks`: a dimension in blocks of equal size, zeros where the last one ends early.

use super::prelude::*;

/// Dimension `dim` in blocks of `size` consecutive positions: `[.., B, ..] → [.., n, size, ..]` with n = ⌈B / size⌉. What
/// the last block lacks is zero.
#[derive(Clone, Debug, PartialEq)]
pub struct Blocks {
    /// The dimension.
    pub dim: usize,
    /// Positions of a block.
    pub size: usize,
}

impl OpDef for Blocks {
    const NAME: &'static str = "blocks";
    attributes!(dim, size);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        distinct_dims(&[self.dim], x.rank())?;
        ensure((1..=MAX_STEP).contains(&self.size), || format!("blocks of {}", self.size))?;
        let (before, after) = (&x.shape[..self.dim], &x.shape[self.dim + 1..]);
        let count = x.shape[self.dim].div_ceil(self.size);
        let dims = before.iter().copied().chain([count, self.size]).chain(after.iter().copied());
        Ok(smallvec![x.with_shape(Shape::new(dims))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (x, extent) = (args[0], args[0].shape[self.dim]);
        let mut c = Compute::new(&results[0].shape);
        let mut index = c.position();
        let within = index.remove(self.dim + 1);
        let at = index[self.dim].clone().times(self.size as i64) + within;
        let guards = vec![Guard { index: at.clone(), lo: 0, hi: extent as i64 }];
        index[self.dim] = at;
        let y = c.load_guarded(0, x, index, guards, Scalar::zero(x.dtype));
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let shape = cx.g.shape(dy).clone();
        let (before, after) = (&shape[..self.dim], &shape[self.dim + 2..]);
        let count = shape[self.dim] * self.size;
        let flat = Shape::new(before.iter().copied().chain([count]).chain(after.iter().copied()));
        let flat = cx.g.reshape(dy, &flat)?;
        Ok(vec![Some(cx.g.slice_dim(flat, self.dim, 0..ty.shape[self.dim])?)])
    }

    /// Whole blocks pass, the last with the positions that it has; so does every other dimension.
    fn rule(&self, args: &[&Type], _: &[&Type]) -> ShardingRule {
        let shape = &args[0].shape;
        let cut = |d: usize| {
            let (extent, from) = match d == self.dim {
                true => (shape[d].div_ceil(self.size), FactorDim::ending(d, self.size, shape[d])),
                false => (shape[d], FactorDim::new(d, 1)),
            };
            let to = FactorDim::new(if d > self.dim { d + 1 } else { d }, 1);
            Factor { extent, kind: FactorKind::Pass, operands: vec![Some(from)], results: vec![Some(to)] }
        };
        let linear = if args[0].dtype.is_float() { vec![1] } else { Vec::new() };
        ShardingRule { factors: (0..shape.len()).map(cut).collect(), linear }
    }
}
