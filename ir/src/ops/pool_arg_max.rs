//! `pool_arg_max`: which element of every window is the greatest.

use super::pool::Windows;
use super::prelude::*;

/// The row-major position within each window of its first greatest element, a NaN counting as greatest and elements
/// outside the input as −∞. `x: T[N, spatial.., C] → i32[N, out.., C]`.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolArgMax {
    /// Window extents.
    pub size: Vec<usize>,
    /// Steps.
    pub stride: Vec<usize>,
    /// Elements added before and after, negative to crop.
    pub pads: Vec<(i64, i64)>,
    /// Distance of neighbouring window elements.
    pub dilation: Vec<usize>,
}

impl OpDef for PoolArgMax {
    const NAME: &'static str = "pool_arg_max";
    attributes!(size, stride, pads, dilation);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let ones = vec![1; self.size.len()];
        Ok(smallvec![Type::new(DType::I32, self.windows(&ones).infer(x)?)])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let x = args[0];
        let n = self.size.len();
        let ones = vec![1; n];
        let mut c = Compute::new(&results[0].shape);
        let axes: Vec<Axis> = self.size.iter().map(|&k| c.reduce_axis(k)).collect();
        let at: Vec<Index> = (1..=n as u8).map(|a| Index::axis(Axis(a))).collect();
        let k: Vec<Index> = axes.iter().map(|a| Index::axis(*a)).collect();
        let (index, guards) = self.windows(&ones).touch(&c, x, &at, &k);
        let load = c.load_guarded(0, x, index, guards, Scalar::lowest(x.dtype));
        let y = c.arg_max(axes, load);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![None])
    }
}

impl PoolArgMax {
    fn windows<'a>(&'a self, ones: &'a [usize]) -> Windows<'a> {
        Windows {
            size: &self.size,
            stride: &self.stride,
            pads: &self.pads,
            dilation: &self.dilation,
            input_dilation: ones,
        }
    }
}
