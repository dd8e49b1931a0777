//! `select`: one of two tensors, element by element.

use super::prelude::*;

/// The second operand's element where the first is true, else the third's. `bool[..], T[..], T[..] → T[..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Select {}

impl OpDef for Select {
    const NAME: &'static str = "select";
    attributes!();

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [c, x, y] = exactly(args)?;
        ensure(x == y, || format!("alternatives {x} and {y} differ"))?;
        ensure(*c == x.with_dtype(DType::Bool), || format!("condition {c} for {x}"))?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let [cond, x, y] = [0, 1, 2].map(|i| c.load(i, args[i], c.position()));
        let z = c.select(cond, x, y);
        Body::Compute(c.with_results([z]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let ty = cx.ty(1);
        if !ty.dtype.is_float() {
            return Ok(vec![None, None, None]);
        }
        let (cond, dz) = (cx.args[0], cx.dy());
        let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
        Ok(vec![None, Some(cx.g.select(cond, dz, zero)?), Some(cx.g.select(cond, zero, dz)?)])
    }
}
