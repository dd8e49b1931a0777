//! `unary`: a scalar function of every element.

use super::prelude::*;
use crate::scalar::Unary as F;

/// A scalar function of every element. `x: T[..] → result(T)[..]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Unary {
    /// The function.
    pub function: F,
}

impl OpDef for Unary {
    const NAME: &'static str = "unary";
    attributes!(function);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let f = self.function;
        let fits = f.accepts(x.dtype);
        ensure(fits, || format!("{} does not apply to {}", f.name(), x.dtype))?;
        Ok(smallvec![x.with_dtype(f.result(x.dtype))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let x = c.load(0, args[0], c.position());
        let y = c.unary(self.function, x);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (x, y) = (cx.args[0], cx.results[0]);
        let ty = cx.ty(0);
        if !ty.dtype.is_float() || !cx.g.ty(y).dtype.is_float() {
            return Ok(vec![None]);
        }
        let dy = cx.dy();
        let g = &mut *cx.g;
        let number = |g: &mut crate::Graph, v: f64| g.full(ty.dtype, v, &ty.shape);
        let d = match self.function {
            F::Neg => return Ok(vec![Some(g.unary(F::Neg, dy)?)]),
            F::Sign | F::Floor | F::Ceil | F::Round | F::Trunc | F::Not | F::IsNan | F::IsFinite => {
                return Ok(vec![None]);
            }
            F::Abs => g.unary(F::Sign, x)?,
            F::Sqrt => {
                let half = number(g, 0.5)?;
                g.div(half, y)?
            }
            F::Rsqrt => {
                let (y2, minus_half) = (g.mul(y, y)?, number(g, -0.5)?);
                let y3 = g.mul(y2, y)?;
                g.mul(minus_half, y3)?
            }
            F::Exp => y,
            F::Expm1 => {
                let one = number(g, 1.0)?;
                g.add(y, one)?
            }
            F::Log => {
                let one = number(g, 1.0)?;
                g.div(one, x)?
            }
            F::Log1p => {
                let one = number(g, 1.0)?;
                let sum = g.add(one, x)?;
                g.div(one, sum)?
            }
            F::Tanh => {
                let (one, y2) = (number(g, 1.0)?, g.mul(y, y)?);
                g.sub(one, y2)?
            }
            F::Logistic => {
                let one = number(g, 1.0)?;
                let rest = g.sub(one, y)?;
                g.mul(y, rest)?
            }
            F::Erf => {
                let x2 = g.mul(x, x)?;
                let minus = g.unary(F::Neg, x2)?;
                let (e, k) = (g.unary(F::Exp, minus)?, number(g, std::f64::consts::FRAC_2_SQRT_PI)?);
                g.mul(k, e)?
            }
            F::Sin => g.unary(F::Cos, x)?,
            F::Cos => {
                let s = g.unary(F::Sin, x)?;
                g.unary(F::Neg, s)?
            }
            F::Tan => {
                let (one, y2) = (number(g, 1.0)?, g.mul(y, y)?);
                g.add(one, y2)?
            }
            F::Sinh => g.unary(F::Cosh, x)?,
            F::Cosh => g.unary(F::Sinh, x)?,
            F::Asin | F::Acos => {
                let (one, x2) = (number(g, 1.0)?, g.mul(x, x)?);
                let rest = g.sub(one, x2)?;
                let r = g.unary(F::Rsqrt, rest)?;
                if self.function == F::Asin { r } else { g.unary(F::Neg, r)? }
            }
            F::Atan | F::Atanh => {
                let (one, x2) = (number(g, 1.0)?, g.mul(x, x)?);
                let den = if self.function == F::Atan { g.add(one, x2)? } else { g.sub(one, x2)? };
                g.div(one, den)?
            }
            F::Asinh | F::Acosh => {
                let (one, x2) = (number(g, 1.0)?, g.mul(x, x)?);
                let sum = if self.function == F::Asinh { g.add(x2, one)? } else { g.sub(x2, one)? };
                g.unary(F::Rsqrt, sum)?
            }
        };
        Ok(vec![Some(g.mul(dy, d)?)])
    }
}
