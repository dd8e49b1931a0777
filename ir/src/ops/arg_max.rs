//! `arg_max`: the position of the first greatest element.

use super::prelude::*;

/// The position along `dim` of the first greatest element, a NaN counting as greatest. `T[..] → i32[.. without dim]`.
#[derive(Clone, Debug, PartialEq)]
pub struct ArgMax {
    /// The dimension, which disappears.
    pub dim: usize,
}

impl OpDef for ArgMax {
    const NAME: &'static str = "arg_max";
    attributes!(dim);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(self.dim < x.rank(), || format!("dimension {} of {x}", self.dim))?;
        ensure(x.shape[self.dim] > 0, || format!("dimension {} of {x} is empty", self.dim))?;
        let kept = (0..x.rank()).filter(|d| *d != self.dim).map(|d| x.shape[d]);
        Ok(smallvec![Type::new(DType::I32, Shape::new(kept))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let k = c.reduce_axis(args[0].shape[self.dim]);
        let mut index = c.position();
        index.insert(self.dim, Index::axis(k));
        let x = c.load(0, args[0], index);
        let y = c.arg_max(vec![k], x);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![None])
    }
}
