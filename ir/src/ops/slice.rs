//! `slice`: every stride-th element of a box.

use super::prelude::*;

/// Elements `start, start + stride, …` below `limit` of every dimension. `T[..] → T[⌈(limit − start)/stride⌉, ..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// First positions.
    pub start: Vec<usize>,
    /// Exclusive bounds.
    pub limit: Vec<usize>,
    /// Steps, at least 1.
    pub stride: Vec<usize>,
}

impl OpDef for Slice {
    const NAME: &'static str = "slice";
    attributes!(start, limit, stride);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let n = x.rank();
        let counts = self.start.len() == n && self.limit.len() == n && self.stride.len() == n;
        ensure(counts, || format!("bounds of another rank than {x}"))?;
        for d in 0..n {
            let fits = self.start[d] <= self.limit[d] && self.limit[d] <= x.shape[d] && (1..=MAX_STEP).contains(&self.stride[d]);
            ensure(fits, || {
                format!("{}..{} by {} in dimension {d} of {x}", self.start[d], self.limit[d], self.stride[d])
            })?;
        }
        let extent = |d: usize| (self.limit[d] - self.start[d]).div_ceil(self.stride[d]);
        Ok(smallvec![x.with_shape(Shape::new((0..n).map(extent)))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let index = c.axes().zip(self.start.iter().zip(&self.stride));
        let index = index.map(|(a, (&s, &t))| Index::axis(a).times(t as i64).plus(s as i64)).collect();
        let x = c.load(0, args[0], index);
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let out = cx.g.shape(dy).clone();
        let edges = |d: usize| {
            let spread = if out[d] == 0 { 0 } else { (out[d] - 1) * self.stride[d] + 1 };
            (self.start[d] as i64, ty.shape[d] as i64 - self.start[d] as i64 - spread as i64)
        };
        let (low, high): (Vec<i64>, Vec<i64>) = (0..ty.rank()).map(edges).unzip();
        let interior = self.stride.iter().map(|s| s - 1).collect();
        let pad = super::Pad { low, high, interior, value: vec![Scalar::zero(ty.dtype)] };
        Ok(vec![Some(cx.g.push(pad, &[dy])?)])
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Slice {
        let mut local = self.clone();
        // Only whole dimensions can be cut.
        if let Layout::Split { dim, .. } = &cx.result_layouts[0] {
            local.limit[*dim] = cx.results[0].shape[*dim];
        }
        local
    }
}
