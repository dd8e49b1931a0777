//! `binary`: a scalar function of the elements of two tensors of one type.

use super::prelude::*;
use crate::scalar::{Binary as F, Compare as C, Unary as U};

/// A scalar function of pairs of elements. `x, y: T[..] → T[..]`; shapes are equal, broadcasting is explicit.
#[derive(Clone, Debug, PartialEq)]
pub struct Binary {
    /// The function.
    pub function: F,
}

impl OpDef for Binary {
    const NAME: &'static str = "binary";
    attributes!(function);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x, y] = exactly(args)?;
        let f = self.function;
        ensure(x == y, || format!("operands {x} and {y} of {} differ", f.name()))?;
        let fits = f.accepts(x.dtype);
        ensure(fits, || format!("{} does not apply to {}", f.name(), x.dtype))?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let (x, y) = (c.load(0, args[0], c.position()), c.load(1, args[1], c.position()));
        let z = c.binary(self.function, x, y);
        Body::Compute(c.with_results([z]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (x, y, z, ty) = (cx.args[0], cx.args[1], cx.results[0], cx.ty(0));
        if !ty.dtype.is_float() {
            return Ok(vec![None, None]);
        }
        let dz = cx.dy();
        let g = &mut *cx.g;
        let (dx, dy) = match self.function {
            F::Add => (dz, dz),
            F::Sub => (dz, g.unary(U::Neg, dz)?),
            F::Mul => (g.mul(dz, y)?, g.mul(dz, x)?),
            F::Div => {
                let dx = g.div(dz, y)?;
                let t = g.mul(dx, z)?;
                (dx, g.unary(U::Neg, t)?)
            }
            F::FloorDiv => return Ok(vec![None, None]),
            F::Mod => {
                let q = g.binary(F::FloorDiv, x, y)?;
                let t = g.mul(dz, q)?;
                (dz, g.unary(U::Neg, t)?)
            }
            // The larger operand takes all; ties are shared, as in TensorFlow's reduce_max.
            F::Max | F::Min => {
                let wins = if self.function == F::Max { C::Gt } else { C::Lt };
                let (half, zero) = (g.full(ty.dtype, 0.5, &ty.shape)?, g.full(ty.dtype, 0.0, &ty.shape)?);
                let (won, tie) = (g.compare(wins, x, y)?, g.compare(C::Eq, x, y)?);
                let shared = g.mul(dz, half)?;
                let rest = g.select(tie, shared, zero)?;
                let dx = g.select(won, dz, rest)?;
                (dx, g.sub(dz, dx)?)
            }
            F::Pow => {
                let one = g.full(ty.dtype, 1.0, &ty.shape)?;
                let zero = g.full(ty.dtype, 0.0, &ty.shape)?;
                let y1 = g.sub(y, one)?;
                let p = g.binary(F::Pow, x, y1)?;
                let t = g.mul(y, p)?;
                // y·x^(y−1) at y = 0 is 0, also where x is 0.
                let flat = g.compare(C::Eq, y, zero)?;
                let t = g.select(flat, zero, t)?;
                let positive = g.compare(C::Gt, x, zero)?;
                let safe = g.select(positive, x, one)?;
                let log = g.unary(U::Log, safe)?;
                let s = g.mul(z, log)?;
                (g.mul(dz, t)?, g.mul(dz, s)?)
            }
            F::Atan2 => {
                let (x2, y2) = (g.mul(x, x)?, g.mul(y, y)?);
                let r2 = g.add(x2, y2)?;
                let s = g.div(dz, r2)?;
                let t = g.mul(s, x)?;
                (g.mul(s, y)?, g.unary(U::Neg, t)?)
            }
            F::And | F::Or | F::Xor | F::Shl | F::Shr => return Ok(vec![None, None]),
        };
        Ok(vec![Some(dx), Some(dy)])
    }
}
