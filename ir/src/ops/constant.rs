//! `constant`: elements written into the program.

use super::prelude::*;

/// Greatest size of a constant in bytes: larger tables are weights, given at run time.
pub(crate) const MAX_BYTES: usize = 4096;

/// A constant. One element fills the shape; otherwise the elements are listed in row-major order. `→ T[shape]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Constant {
    /// The extents.
    pub shape: Shape,
    /// One element, or as many as the shape has.
    pub elements: Vec<Scalar>,
}

impl OpDef for Constant {
    const NAME: &'static str = "constant";
    attributes!(shape, elements);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [] = exactly(args)?;
        let n = self.elements.len();
        ensure(n == 1 || (n > 0 && n == self.shape.elements()), || format!("{n} elements for {}", self.shape))?;
        let dtype = self.elements[0].dtype();
        ensure(self.elements.iter().all(|e| e.dtype() == dtype), || "elements of several types".into())?;
        ensure(n == 1 || n * dtype.size() <= MAX_BYTES, || format!("{n} elements are too many for a constant"))?;
        Ok(smallvec![Type::new(dtype, self.shape.clone())])
    }

    fn body(&self, _: &[&Type], results: &[&Type]) -> Body {
        if self.elements.len() != 1 {
            return Body::Leaf;
        }
        let mut c = Compute::new(&results[0].shape);
        let x = c.constant(self.elements[0]);
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

    fn localize(&self, cx: &LocalCx<'_>) -> Constant {
        let local = &cx.results[0].shape;
        if self.elements.len() == 1 {
            return Constant { shape: local.clone(), elements: self.elements.clone() };
        }
        let whole = Tensor::from_scalars(cx.global_results[0].clone(), &self.elements);
        let part = whole.part(&cx.result_layouts[0], cx.device);
        let elements = match local.elements() {
            0 => vec![Scalar::zero(whole.ty.dtype)],
            _ => part.scalars(),
        };
        Constant { shape: local.clone(), elements }
    }

    fn eval(&self, _: &[&Tensor], results: &[Type], _: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![Tensor::from_scalars(results[0].clone(), &self.elements)])
    }

    fn leaf_flops(&self, _: &[&Type], _: &[&Type]) -> u64 {
        0
    }
}
