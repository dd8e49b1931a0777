//! `iota`: positions along a dimension.

use super::prelude::*;

/// The position along `dim`, plus `start`, as an element. `→ T[shape]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Iota {
    /// Element type.
    pub dtype: DType,
    /// The extents.
    pub shape: Shape,
    /// The dimension counted.
    pub dim: usize,
    /// The first position; a device's part does not begin at 0.
    pub start: i64,
}

impl OpDef for Iota {
    const NAME: &'static str = "iota";
    attributes!(dtype, shape, dim, start);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [] = exactly(args)?;
        ensure(self.dim < self.shape.len(), || format!("dimension {} of {}", self.dim, self.shape))?;
        Ok(smallvec![Type::new(self.dtype, self.shape.clone())])
    }

    fn body(&self, _: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let x = c.index_value(self.dtype, Index::axis(Axis(self.dim as u8)).plus(self.start));
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> ShardingRule {
        let factor = |dim: usize| Factor {
            extent: results[0].shape[dim],
            kind: FactorKind::Pass,
            operands: vec![],
            results: vec![Some(FactorDim::new(dim, 1))],
        };
        ShardingRule { factors: (0..results[0].rank()).map(factor).collect(), linear: vec![] }
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Iota {
        let region = cx.result_layouts[0].region(&cx.global_results[0].shape, self.dim, cx.device);
        Iota { shape: cx.results[0].shape.clone(), start: self.start + region.start as i64, ..self.clone() }
    }
}
