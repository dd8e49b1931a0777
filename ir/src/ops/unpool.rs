//! `unpool`: values put back where windows had their greatest elements.

use super::pool::Windows;
use super::prelude::*;
use crate::scalar::{Compare as C, Reduce as R};

/// For each input position the sum, in row-major order of the windows touching it from last to first, of the values of
/// those windows whose chosen element it is: the gradient of max pooling.
/// `which: i32[N, out.., C], y: T[N, out.., C] → T[N, input.., C]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Unpool {
    /// Window extents.
    pub size: Vec<usize>,
    /// Steps.
    pub stride: Vec<usize>,
    /// Elements added before and after, negative to crop.
    pub pads: Vec<(i64, i64)>,
    /// Distance of neighbouring window elements.
    pub dilation: Vec<usize>,
    /// Spatial extents of the result.
    pub input: Vec<usize>,
}

impl OpDef for Unpool {
    const NAME: &'static str = "unpool";
    attributes!(size, stride, pads, dilation, input);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [which, y] = exactly(args)?;
        let n = self.size.len();
        ensure(*which == y.with_dtype(DType::I32) && y.rank() == n + 2 && self.input.len() == n, || {
            format!("positions {which} and values {y} of {n}-dimensional windows")
        })?;
        let shape = std::iter::once(y.shape[0]).chain(self.input.iter().copied()).chain([y.shape[n + 1]]);
        let x = y.with_shape(Shape::new(shape));
        let ones = vec![1; n];
        let out = self.forward(&ones).infer(&x)?;
        ensure(out == y.shape, || format!("windows at {out}, values {y}"))?;
        Ok(smallvec![x])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (which, y, x) = (args[0], args[1], results[0]);
        let n = self.size.len();
        let ones = vec![1; n];
        let mut c = Compute::new(&x.shape);
        let axes: Vec<Axis> = self.size.iter().map(|&k| c.reduce_axis(k)).collect();
        // Offset k of the reversed window is offset size − 1 − k of the window itself.
        let pads = self.forward(&ones).reversed(&self.input, &y.shape[1..=n]);
        let back = Windows {
            size: &self.size,
            stride: &ones,
            pads: &pads,
            dilation: &self.dilation,
            input_dilation: &self.stride,
        };
        let at: Vec<Index> = (1..=n as u8).map(|a| Index::axis(Axis(a))).collect();
        let k: Vec<Index> = axes.iter().map(|a| Index::axis(*a)).collect();
        let (index, guards) = back.touch(&c, y, &at, &k);
        let here = axes.iter().zip(&self.size).fold(Index::constant(0), |flat, (a, &size)| {
            flat.times(size as i64) + Index::axis(*a).times(-1).plus(size as i64 - 1)
        });
        let which = c.load_guarded(0, which, index.clone(), guards.clone(), Scalar::from_i64(DType::I32, -1));
        let value = c.load_guarded(1, y, index, guards, Scalar::zero(y.dtype));
        let here = c.index_value(DType::I32, here);
        let chosen = c.compare(C::Eq, which, here);
        let zero = c.number(y.dtype, 0.0);
        let part = c.select(chosen, value, zero);
        let part = c.cast(y.dtype.accumulator(), part);
        let sum = c.reduce(R::Sum, axes, Order::Sequential, part);
        let sum = c.cast(y.dtype, sum);
        Body::Compute(c.with_results([sum]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (which, d) = (cx.args[0], cx.dy());
        let pick = super::Pick {
            size: self.size.clone(),
            stride: self.stride.clone(),
            pads: self.pads.clone(),
            dilation: self.dilation.clone(),
        };
        Ok(vec![None, Some(cx.g.push(pick, &[which, d])?)])
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Unpool {
        Unpool { input: cx.results[0].shape[1..=self.size.len()].to_vec(), ..self.clone() }
    }
}

impl Unpool {
    fn forward<'a>(&'a self, ones: &'a [usize]) -> Windows<'a> {
        Windows {
            size: &self.size,
            stride: &self.stride,
            pads: &self.pads,
            dilation: &self.dilation,
            input_dilation: ones,
        }
    }
}
