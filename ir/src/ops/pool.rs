//! `pool`: combination over sliding windows.

use super::prelude::*;
use crate::scalar::Reduce as R;

/// Where the windows of pooling operations lie, per spatial dimension. Shared by [`Pool`], [`PoolArgMax`](super::PoolArgMax),
/// [`Pick`](super::Pick) and [`Unpool`](super::Unpool): position p and offset k of the window touch the input at
/// (p·stride + k·dilation − low) / input_dilation.
pub(super) struct Windows<'a> {
    pub(super) size: &'a [usize],
    pub(super) stride: &'a [usize],
    pub(super) pads: &'a [(i64, i64)],
    pub(super) dilation: &'a [usize],
    pub(super) input_dilation: &'a [usize],
}

impl Windows<'_> {
    /// Checks the operand `[N, spatial.., C]` and gives the shape of the windows' positions.
    pub(super) fn infer(&self, x: &Type) -> Result<Shape, TypeError> {
        let n = self.size.len();
        let counts = self.stride.len() == n && self.pads.len() == n && self.dilation.len() == n;
        ensure(x.rank() == n + 2 && counts && self.input_dilation.len() == n, || {
            format!("{n} window dimensions for {x}")
        })?;
        steps(self.size.iter().chain(self.stride).chain(self.dilation).chain(self.input_dilation), self.pads)?;
        ensure(self.size.iter().fold(1usize, |n, &s| n.saturating_mul(s)) <= MAX_STEP, || "windows have too many elements".into())?;
        let out = (0..n).map(|d| {
            let reach = (self.size[d] as i64 - 1) * self.dilation[d] as i64 + 1;
            let room = self.span(x.shape[d + 1], d) + self.pads[d].0 + self.pads[d].1 - reach;
            if room < 0 { 0 } else { room as usize / self.stride[d] + 1 }
        });
        Ok(Shape::new(std::iter::once(x.shape[0]).chain(out).chain([x.shape[n + 1]])))
    }

    fn span(&self, extent: usize, d: usize) -> i64 {
        if extent == 0 { 0 } else { (extent as i64 - 1) * self.input_dilation[d] as i64 + 1 }
    }

    /// Index and guards of the input element at the window position `at` (spatial axes) and offsets `k`.
    pub(super) fn touch(&self, c: &Compute, x: &Type, at: &[Index], k: &[Index]) -> (Vec<Index>, Vec<Guard>) {
        let n = self.size.len();
        let (mut index, mut guards) = (vec![Index::axis(Axis(0))], Vec::new());
        for d in 0..n {
            let i = at[d].clone().times(self.stride[d] as i64)
                + k[d].clone().times(self.dilation[d] as i64).plus(-self.pads[d].0);
            let step = self.input_dilation[d] as i64;
            guards.push(Guard { index: i.clone(), lo: 0, hi: self.span(x.shape[d + 1], d) });
            if step > 1 {
                guards.push(Guard { index: i.clone().modulo(step, c.extents()), lo: 0, hi: 1 });
            }
            index.push(i.floor_div(step, c.extents()));
        }
        index.push(Index::axis(Axis(n as u8 + 1)));
        (index, guards)
    }

    /// The windows seen from the input: which positions p and offsets k touch an input element, for an input of
    /// extents `input` and windows at `output` positions. The offsets count backwards.
    pub(super) fn reversed(&self, input: &[usize], output: &[usize]) -> Vec<(i64, i64)> {
        (0..self.size.len())
            .map(|d| {
                let reach = (self.size[d] as i64 - 1) * self.dilation[d] as i64;
                let low = reach - self.pads[d].0;
                let span = (input[d] as i64 - 1) * self.input_dilation[d] as i64 + reach + 1;
                let dilated = if output[d] == 0 { 0 } else { (output[d] as i64 - 1) * self.stride[d] as i64 + 1 };
                (low, span - dilated - low)
            })
            .collect()
    }
}

/// Combines the elements of every window: `x: T[N, spatial.., C] → T[N, out.., C]`. Positions outside the input take no
/// part. The order is row-major over the window.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// How elements combine: sum or max.
    pub function: R,
    /// Window extents.
    pub size: Vec<usize>,
    /// Steps.
    pub stride: Vec<usize>,
    /// Elements added before and after, negative to crop.
    pub pads: Vec<(i64, i64)>,
    /// Distance of neighbouring window elements.
    pub dilation: Vec<usize>,
    /// Distance of neighbouring input elements.
    pub input_dilation: Vec<usize>,
}

impl Pool {
    fn windows(&self) -> Windows<'_> {
        Windows {
            size: &self.size,
            stride: &self.stride,
            pads: &self.pads,
            dilation: &self.dilation,
            input_dilation: &self.input_dilation,
        }
    }
}

impl OpDef for Pool {
    const NAME: &'static str = "pool";
    attributes!(function, size, stride, pads, dilation, input_dilation);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(matches!(self.function, R::Sum | R::Max), || format!("windows of {}", self.function.name()))?;
        ensure(self.function == R::Sum || self.input_dilation.iter().all(|&d| d == 1), || {
            "input dilation is for sums".into()
        })?;
        Ok(smallvec![x.with_shape(self.windows().infer(x)?)])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let x = args[0];
        let n = self.size.len();
        let mut c = Compute::new(&results[0].shape);
        let axes: Vec<Axis> = self.size.iter().map(|&k| c.reduce_axis(k)).collect();
        let at: Vec<Index> = (1..=n as u8).map(|a| Index::axis(Axis(a))).collect();
        let k: Vec<Index> = axes.iter().map(|a| Index::axis(*a)).collect();
        let (index, guards) = self.windows().touch(&c, x, &at, &k);
        let load = c.load_guarded(0, x, index, guards, self.function.identity(x.dtype));
        let body = c.cast(x.dtype.accumulator(), load);
        let y = c.reduce(self.function, axes, Order::Sequential, body);
        let y = c.cast(x.dtype, y);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let n = self.size.len();
        let dx = match self.function {
            R::Sum => {
                let out = cx.g.shape(dy).clone();
                let op = Pool {
                    function: R::Sum,
                    size: self.size.clone(),
                    stride: self.input_dilation.clone(),
                    pads: self.windows().reversed(&ty.shape[1..=n], &out[1..=n]),
                    dilation: self.dilation.clone(),
                    input_dilation: self.stride.clone(),
                };
                cx.g.push(op, &[dy])?
            }
            R::Max | R::Min | R::Prod => {
                let (size, stride) = (self.size.clone(), self.stride.clone());
                let (pads, dilation) = (self.pads.clone(), self.dilation.clone());
                let which = super::PoolArgMax {
                    size: size.clone(),
                    stride: stride.clone(),
                    pads: pads.clone(),
                    dilation: dilation.clone(),
                };
                let which = cx.g.push(which, &[cx.args[0]])?;
                let input = ty.shape[1..=n].to_vec();
                cx.g.push(super::Unpool { size, stride, pads, dilation, input }, &[which, dy])?
            }
        };
        Ok(vec![Some(dx)])
    }
}
