//! `compare`: a comparison of the elements of two tensors.

use super::prelude::*;

/// A comparison of pairs of elements. `x, y: T[..] → bool[..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Compare {
    /// The comparison.
    pub relation: scalar::Compare,
}

impl OpDef for Compare {
    const NAME: &'static str = "compare";
    attributes!(relation);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x, y] = exactly(args)?;
        ensure(x == y, || format!("operands {x} and {y} differ"))?;
        Ok(smallvec![x.with_dtype(DType::Bool)])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let (x, y) = (c.load(0, args[0], c.position()), c.load(1, args[1], c.position()));
        let z = c.compare(self.relation, x, y);
        Body::Compute(c.with_results([z]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![None, None])
    }
}
