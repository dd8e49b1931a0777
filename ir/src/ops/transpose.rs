//! `transpose`: a permutation of the dimensions.

use super::prelude::*;

/// Result dimension i is operand dimension `perm[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Transpose {
    /// The permutation.
    pub perm: Vec<usize>,
}

impl OpDef for Transpose {
    const NAME: &'static str = "transpose";
    attributes!(perm);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(self.perm.len() == x.rank(), || format!("{} dimensions for {x}", self.perm.len()))?;
        distinct_dims(&self.perm, x.rank())?;
        Ok(smallvec![x.with_shape(Shape::new(self.perm.iter().map(|&d| x.shape[d])))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let index = inverse(&self.perm).into_iter().map(|d| Index::axis(Axis(d as u8))).collect();
        let x = c.load(0, args[0], index);
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let dy = cx.dy();
        Ok(vec![cx.ty(0).dtype.is_float().then(|| cx.g.transpose(dy, &inverse(&self.perm))).transpose()?])
    }
}

/// The permutation that undoes another.
pub(crate) fn inverse(perm: &[usize]) -> Vec<usize> {
    let mut inv = vec![0; perm.len()];
    for (i, &d) in perm.iter().enumerate() {
        inv[d] = i;
    }
    inv
}
