//! `reverse`: dimensions read backwards.

use super::prelude::*;

/// The elements with the positions along `dims` reversed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reverse {
    /// The dimensions.
    pub dims: Vec<usize>,
}

impl OpDef for Reverse {
    const NAME: &'static str = "reverse";
    attributes!(dims);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        distinct_dims(&self.dims, x.rank())?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let mut index = c.position();
        for &d in self.dims.iter().filter(|&&d| args[0].shape[d] > 1) {
            index[d] = index[d].clone().times(-1).plus(args[0].shape[d] as i64 - 1);
        }
        let x = c.load(0, args[0], index);
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let dy = cx.dy();
        Ok(vec![cx.ty(0).dtype.is_float().then(|| cx.g.push(self.clone(), &[dy])).transpose()?])
    }
}
