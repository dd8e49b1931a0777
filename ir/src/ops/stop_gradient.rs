//! `stop_gradient`: a tensor that differentiation takes for a constant.

use super::prelude::*;

/// The operand, whose gradient does not pass. `T[..] → T[..]`. Passes run after differentiation and drop it.
#[derive(Clone, Debug, PartialEq)]
pub struct StopGradient {}

impl OpDef for StopGradient {
    const NAME: &'static str = "stop_gradient";
    attributes!();

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let x = c.load(0, args[0], c.position());
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![None])
    }
}
