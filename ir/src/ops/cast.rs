//! `cast`: conversion of every element.

use super::prelude::*;

/// Conversion to another element type: floats round to nearest even; to integers they truncate and saturate, NaN
/// becomes 0; integers wrap; to bool is x ≠ 0. `T[..] → to[..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Cast {
    /// The result's element type.
    pub to: DType,
}

impl OpDef for Cast {
    const NAME: &'static str = "cast";
    attributes!(to);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        Ok(smallvec![x.with_dtype(self.to)])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let x = c.load(0, args[0], c.position());
        let y = c.cast(self.to, x);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let from = cx.ty(0).dtype;
        if !from.is_float() || !self.to.is_float() {
            return Ok(vec![None]);
        }
        let dy = cx.dy();
        Ok(vec![Some(cx.g.cast(from, dy)?)])
    }
}
