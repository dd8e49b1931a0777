//! `concat`: tensors one after another along a dimension.

use super::prelude::*;

/// The operands one after another along `dim`; the other dimensions agree.
#[derive(Clone, Debug, PartialEq)]
pub struct Concat {
    /// The dimension.
    pub dim: usize,
}

impl OpDef for Concat {
    const NAME: &'static str = "concat";
    attributes!(dim);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let Some(first) = args.first() else { return Err(TypeError::new("takes at least one operand")) };
        ensure(self.dim < first.rank(), || format!("dimension {} of {first}", self.dim))?;
        let mut total = 0usize;
        for x in args {
            let fits = x.rank() == first.rank()
                && x.with_shape(x.shape.with(self.dim, 0)) == first.with_shape(first.shape.with(self.dim, 0));
            ensure(fits, || format!("{first} and {x} differ outside dimension {}", self.dim))?;
            total = total.saturating_add(x.shape[self.dim]);
        }
        Ok(smallvec![first.with_shape(first.shape.with(self.dim, total))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let mut end = results[0].shape[self.dim] as i64;
        let along = Index::axis(Axis(self.dim as u8));
        let mut value = None;
        for (i, x) in args.iter().enumerate().rev() {
            let start = end - x.shape[self.dim] as i64;
            let mut index = c.position();
            index[self.dim] = along.clone().plus(-start);
            let here = Guard { index: along.clone(), lo: start, hi: end };
            let load = c.load_guarded(i, x, index, vec![here.clone()], Scalar::zero(x.dtype));
            value = Some(match value {
                None => load,
                Some(rest) => {
                    let here = c.add(Expr::InRange(vec![here]), DType::Bool);
                    c.select(here, load, rest)
                }
            });
            end = start;
        }
        let value = value.expect("infer demands an operand");
        Body::Compute(c.with_results([value]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let dy = cx.dy();
        if !cx.ty(0).dtype.is_float() {
            return Ok(vec![None; cx.args.len()]);
        }
        let mut at = 0;
        let mut grads = Vec::new();
        for &x in cx.args {
            let n = cx.g.shape(x)[self.dim];
            grads.push(Some(cx.g.slice_dim(dy, self.dim, at..at + n)?));
            at += n;
        }
        Ok(grads)
    }
}
