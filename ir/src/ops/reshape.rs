//! `reshape`: the same elements in row-major order under another shape.

use super::prelude::*;

/// Another shape for the same elements in the same order. `T[..] → T[shape]`; no data moves.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshape {
    /// Extents of the result.
    pub shape: Shape,
}

impl OpDef for Reshape {
    const NAME: &'static str = "reshape";
    attributes!(shape);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let (from, to) = (x.shape.elements(), self.shape.elements());
        ensure(from == to, || format!("{x} has {from} elements, {} has {to}", self.shape))?;
        Ok(smallvec![x.with_shape(self.shape.clone())])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::View
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        Ok(vec![ty.dtype.is_float().then(|| cx.g.reshape(dy, &ty.shape)).transpose()?])
    }

    /// A part of a dimension stays consecutive where the products of the extents before it agree on both sides: then
    /// the greatest common divisor of the two extents is the number of units.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> ShardingRule {
        let (from, to) = (&args[0].shape, &results[0].shape);
        let mut factors = Vec::new();
        if from.elements() == 0 {
            return ShardingRule { factors, linear: vec![1] };
        }
        let before = |s: &Shape, d: usize| s[..d].iter().product::<usize>();
        for i in (0..from.len()).filter(|&i| from[i] > 1) {
            for j in (0..to.len()).filter(|&j| to[j] > 1 && before(from, i) == before(to, j)) {
                let extent = gcd(from[i], to[j]);
                if extent > 1 {
                    factors.push(Factor {
                        extent,
                        kind: FactorKind::Pass,
                        operands: vec![Some(FactorDim::new(i, from[i] / extent))],
                        results: vec![Some(FactorDim::new(j, to[j] / extent))],
                    });
                }
            }
        }
        ShardingRule { factors, linear: vec![1] }
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Reshape {
        Reshape { shape: cx.results[0].shape.clone() }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
