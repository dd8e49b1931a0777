//! `broadcast`: repetition along new or unit dimensions.

use super::prelude::*;

/// Repeats the operand. Operand dimension i becomes result dimension `dims[i]`, with the same extent or extent 1.
/// `T[..] → T[shape]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Broadcast {
    /// Extents of the result.
    pub shape: Shape,
    /// For each operand dimension its result dimension, increasing.
    pub dims: Vec<usize>,
}

impl OpDef for Broadcast {
    const NAME: &'static str = "broadcast";
    attributes!(shape, dims);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(self.dims.len() == x.rank(), || format!("{} dims for {x}", self.dims.len()))?;
        distinct_dims(&self.dims, self.shape.len())?;
        ensure(self.dims.is_sorted(), || "dims are not increasing".into())?;
        for (i, &d) in self.dims.iter().enumerate() {
            let fits = x.shape[i] == self.shape[d] || x.shape[i] == 1;
            ensure(fits, || format!("dimension {i} of {x} does not broadcast to {}", self.shape))?;
        }
        Ok(smallvec![x.with_shape(self.shape.clone())])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let index = self.dims.iter().enumerate().map(|(i, &d)| {
            let repeats = args[0].shape[i] == 1 && self.shape[d] != 1;
            if repeats { Index::constant(0) } else { Index::axis(Axis(d as u8)) }
        });
        let index = index.collect();
        let x = c.load(0, args[0], index);
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let repeated = |d: &usize| match self.dims.iter().position(|x| x == d) {
            Some(i) => ty.shape[i] == 1 && self.shape[*d] != 1,
            None => true,
        };
        let over: Vec<usize> = (0..self.shape.len()).filter(repeated).collect();
        let sum = if over.is_empty() { dy } else { cx.g.reduce(scalar::Reduce::Sum, dy, &over)? };
        Ok(vec![Some(cx.g.reshape(sum, &ty.shape)?)])
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Broadcast {
        Broadcast { shape: cx.results[0].shape.clone(), dims: self.dims.clone() }
    }
}
