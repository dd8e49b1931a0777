//! `pick`: one chosen element of every window.

use super::pool::Windows;
use super::prelude::*;
use crate::scalar::{Compare as C, Reduce as R};

/// The element of each window at the row-major position given, 0 where that lies outside the input.
/// `which: i32[N, out.., C], x: T[N, spatial.., C] → T[N, out.., C]`. Inverse of [`Unpool`](super::Unpool).
#[derive(Clone, Debug, PartialEq)]
pub struct Pick {
    /// Window extents.
    pub size: Vec<usize>,
    /// Steps.
    pub stride: Vec<usize>,
    /// Elements added before and after, negative to crop.
    pub pads: Vec<(i64, i64)>,
    /// Distance of neighbouring window elements.
    pub dilation: Vec<usize>,
}

impl OpDef for Pick {
    const NAME: &'static str = "pick";
    attributes!(size, stride, pads, dilation);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [which, x] = exactly(args)?;
        let ones = vec![1; self.size.len()];
        let y = x.with_shape(self.windows(&ones).infer(x)?);
        ensure(*which == y.with_dtype(DType::I32), || format!("positions {which} for windows {y}"))?;
        Ok(smallvec![y])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (which, x) = (args[0], args[1]);
        let n = self.size.len();
        let ones = vec![1; n];
        let mut c = Compute::new(&results[0].shape);
        let axes: Vec<Axis> = self.size.iter().map(|&k| c.reduce_axis(k)).collect();
        let at: Vec<Index> = (1..=n as u8).map(|a| Index::axis(Axis(a))).collect();
        let k: Vec<Index> = axes.iter().map(|a| Index::axis(*a)).collect();
        let (index, guards) = self.windows(&ones).touch(&c, x, &at, &k);
        let here = k.iter().zip(&self.size).fold(Index::constant(0), |flat, (a, &size)| {
            flat.times(size as i64) + a.clone()
        });
        let value = c.load_guarded(1, x, index, guards, Scalar::zero(x.dtype));
        let which = c.load(0, which, c.position());
        let here = c.index_value(DType::I32, here);
        let chosen = c.compare(C::Eq, which, here);
        let zero = c.number(x.dtype, 0.0);
        let part = c.select(chosen, value, zero);
        let part = c.cast(x.dtype.accumulator(), part);
        let sum = c.reduce(R::Sum, axes, Order::Sequential, part);
        let sum = c.cast(x.dtype, sum);
        Body::Compute(c.with_results([sum]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (which, d, n) = (cx.args[0], cx.dy(), self.size.len());
        let unpool = super::Unpool {
            size: self.size.clone(),
            stride: self.stride.clone(),
            pads: self.pads.clone(),
            dilation: self.dilation.clone(),
            input: cx.ty(1).shape[1..=n].to_vec(),
        };
        Ok(vec![None, Some(cx.g.push(unpool, &[which, d])?)])
    }
}

impl Pick {
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
