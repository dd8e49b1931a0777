//! `conv`: convolution of any rank, stride, dilation, padding and grouping, closed under its gradient.

use super::prelude::*;
use crate::scalar::{Binary as B, Reduce as R};

/// Convolution in the sense of neural networks (cross-correlation).
///
/// `x: T[N, spatial.., C] , w: T[kernel.., C / groups, O] → T[N / batch_groups, out.., O]`, with
/// y[n, p, o] = Σ over k, c of x[n, (p·stride + k·kernel_dilation − low) / input_dilation, c] · w[k, c, o], where terms
/// outside the input or between its dilated elements have x = 0 and take part in the sum. The sum runs over the kernel
/// positions in row-major order, then channels, as one chain of fused multiply-adds (in f32 for f16 and bf16).
#[derive(Clone, Debug, PartialEq)]
pub struct Conv {
    /// Step of the output per spatial dimension.
    pub stride: Vec<usize>,
    /// Elements added before and after, negative to crop, counted after input dilation.
    pub pads: Vec<(i64, i64)>,
    /// Distance of neighbouring input elements.
    pub input_dilation: Vec<usize>,
    /// Distance of neighbouring kernel elements.
    pub kernel_dilation: Vec<usize>,
    /// Output channels are divided into this many groups, each reading its own input channels.
    pub groups: usize,
    /// Output channels are divided into this many groups, each reading its own rows.
    pub batch_groups: usize,
}

impl Conv {
    fn spatial(&self) -> usize {
        self.stride.len()
    }

    fn out_extent(&self, x: usize, k: usize, d: usize) -> i64 {
        let reach = dilated(k, self.kernel_dilation[d]);
        let room = dilated(x, self.input_dilation[d]) + self.pads[d].0 + self.pads[d].1 - reach;
        if room < 0 { 0 } else { room / self.stride[d] as i64 + 1 }
    }
}

fn dilated(extent: usize, dilation: usize) -> i64 {
    if extent == 0 { 0 } else { (extent as i64 - 1) * dilation as i64 + 1 }
}

impl OpDef for Conv {
    const NAME: &'static str = "conv";
    attributes!(stride, pads, input_dilation, kernel_dilation, groups, batch_groups);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x, w] = exactly(args)?;
        let n = self.spatial();
        let ranks = x.rank() == n + 2 && w.rank() == n + 2;
        let counts = self.pads.len() == n && self.input_dilation.len() == n && self.kernel_dilation.len() == n;
        ensure(ranks && counts && x.dtype == w.dtype && x.dtype.is_float(), || {
            format!("operands {x} and {w} with {n} spatial dimensions")
        })?;
        steps(self.stride.iter().chain(&self.input_dilation).chain(&self.kernel_dilation), &self.pads)?;
        let (channels, outputs) = (w.shape[n], w.shape[n + 1]);
        ensure(self.groups > 0 && self.batch_groups > 0 && (self.groups == 1 || self.batch_groups == 1), || {
            "groups and batch_groups are at least 1 and not both above".into()
        })?;
        // A device that gets none of the groups has neither input nor output channels.
        let no_group = x.shape[n + 1] == 0 && outputs == 0;
        ensure(channels.checked_mul(self.groups) == Some(x.shape[n + 1]) || no_group, || {
            format!("{} groups of {channels} channels for input {x}", self.groups)
        })?;
        // One of them is 1.
        ensure(outputs.is_multiple_of(self.groups.max(self.batch_groups)), || {
            format!("{outputs} output channels in {} groups", self.groups.max(self.batch_groups))
        })?;
        ensure(x.shape[0].is_multiple_of(self.batch_groups), || {
            format!("{} rows in {} batch groups", x.shape[0], self.batch_groups)
        })?;
        let rows = x.shape[0] / self.batch_groups;
        let out = (0..n).map(|d| self.out_extent(x.shape[d + 1], w.shape[d], d) as usize);
        Ok(smallvec![x.with_shape(Shape::new(std::iter::once(rows).chain(out).chain([outputs])))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (x, w, n) = (args[0], args[1], self.spatial());
        let mut c = Compute::new(&results[0].shape);
        let mut axes: Vec<Axis> = (0..n).map(|d| c.reduce_axis(w.shape[d])).collect();
        axes.push(c.reduce_axis(w.shape[n]));
        let outputs = w.shape[n + 1];
        let out = Index::axis(Axis(n as u8 + 1));
        let group = |groups: usize, each: usize, within: Index, c: &Compute| match groups {
            1 => within,
            _ => out.clone().floor_div((outputs / groups) as i64, c.extents()).times(each as i64) + within,
        };
        let mut ix = vec![group(self.batch_groups, results[0].shape[0], Index::axis(Axis(0)), &c)];
        let mut guards = Vec::new();
        for (d, k) in axes[..n].iter().enumerate() {
            let at = Index::axis(Axis(d as u8 + 1)).times(self.stride[d] as i64)
                + Index::axis(*k).times(self.kernel_dilation[d] as i64).plus(-self.pads[d].0);
            let step = self.input_dilation[d];
            guards.push(Guard { index: at.clone(), lo: 0, hi: dilated(x.shape[d + 1], step) });
            if step > 1 {
                guards.push(Guard { index: at.clone().modulo(step as i64, c.extents()), lo: 0, hi: 1 });
            }
            ix.push(at.floor_div(step as i64, c.extents()));
        }
        // Without the lone channel, a depthwise input is indexed by the output channel alone and can be cut with it.
        let channel = if w.shape[n] == 1 { Index::constant(0) } else { Index::axis(axes[n]) };
        ix.push(group(self.groups, w.shape[n], channel, &c));
        let iw = axes.iter().map(|a| Index::axis(*a)).chain([out.clone()]).collect();
        let acc = x.dtype.accumulator();
        let lx = c.load_guarded(0, x, ix, guards, Scalar::zero(x.dtype));
        let lw = c.load(1, w, iw);
        let (lx, lw) = (c.cast(acc, lx), c.cast(acc, lw));
        let product = c.binary(B::Mul, lx, lw);
        let sum = c.reduce(R::Sum, axes, Order::Fma, product);
        let y = c.cast(x.dtype, sum);
        Body::Compute(c.with_results([y]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        Ok(vec![Some(self.input_grad(cx)?), Some(self.kernel_grad(cx)?)])
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Conv {
        // A cut of the output channels takes whole groups.
        let cut = |layout: &Layout, groups: usize| match layout {
            Layout::Split { dim, sizes } if *dim == self.spatial() + 1 && groups > 1 => {
                let whole: usize = sizes.iter().sum();
                (groups * sizes[cx.device]).checked_div(whole).unwrap_or(groups).max(1)
            }
            Layout::Split { .. } | Layout::Replicated | Layout::Partial(_) | Layout::On(_) => groups,
        };
        Conv {
            groups: cut(&cx.result_layouts[0], self.groups),
            batch_groups: cut(&cx.result_layouts[0], self.batch_groups),
            ..self.clone()
        }
    }
}

impl Conv {
    /// Σ over p, k, o of dy[p, o] · w[k, c, o] at the input positions they touched: a convolution of dy, dilated by
    /// the stride, with the reversed kernel.
    fn input_grad(&self, cx: &mut GradCx<'_>) -> Result<Value, TypeError> {
        let (tx, tw, n, dy) = (cx.ty(0), cx.ty(1), self.spatial(), cx.dy());
        let g = &mut *cx.g;
        let ty = g.ty(dy).clone();
        let (channels, outputs) = (tw.shape[n], tw.shape[n + 1]);
        // w[k, c, (q, o)] → w'[k reversed, o, (q, c)] with q the group.
        let q = self.groups * self.batch_groups;
        let kernel: Vec<usize> = tw.shape[..n].to_vec();
        let split: Vec<usize> = kernel.iter().copied().chain([channels, q, outputs / q]).collect();
        let w = g.push(super::Reverse { dims: (0..n).collect() }, &[cx.args[1]])?;
        let w = g.reshape(w, &Shape::from(split))?;
        let perm: Vec<usize> = (0..n).chain([n + 2, n + 1, n]).collect();
        let w = g.transpose(w, &perm)?;
        let w = g.reshape(w, &Shape::new(kernel.iter().copied().chain([outputs / q, q * channels])))?;
        let pads = (0..n).map(|d| {
            let reach = (tw.shape[d] as i64 - 1) * self.kernel_dilation[d] as i64;
            let low = reach - self.pads[d].0;
            let span = (tx.shape[d + 1] as i64 - 1) * self.input_dilation[d] as i64 + reach + 1;
            (low, span - dilated(ty.shape[d + 1], self.stride[d]) - low)
        });
        let op = Conv {
            stride: self.input_dilation.clone(),
            pads: pads.collect(),
            input_dilation: self.stride.clone(),
            kernel_dilation: self.kernel_dilation.clone(),
            groups: q,
            batch_groups: 1,
        };
        // Under a kernel of one position, what a stride leaves out is not multiplied, but zero.
        let apart = kernel.iter().all(|k| *k == 1) && self.stride.iter().any(|s| *s > 1);
        let dx = match apart && self.input_dilation.iter().all(|s| *s == 1) {
            true => {
                let alone = Conv { pads: vec![(0, 0); n], input_dilation: vec![1; n], ..op.clone() };
                let dx = g.push(alone, &[dy, w])?;
                let edges = |edge: fn(&(i64, i64)) -> i64| {
                    std::iter::once(0).chain(op.pads.iter().map(edge)).chain([0]).collect()
                };
                let between = self.stride.iter().map(|s| s - 1);
                let pad = super::Pad {
                    low: edges(|p| p.0),
                    high: edges(|p| p.1),
                    interior: std::iter::once(0).chain(between).chain([0]).collect(),
                    value: vec![Scalar::zero(ty.dtype)],
                };
                g.push(pad, &[dx])?
            }
            false => g.push(op, &[dy, w])?,
        };
        if self.batch_groups == 1 {
            return Ok(dx);
        }
        // [n, i, (q, c)] → [(q, n), i, c]
        let space: Vec<usize> = tx.shape[1..=n].to_vec();
        let split = std::iter::once(ty.shape[0]).chain(space.iter().copied()).chain([q, channels]);
        let dx = g.reshape(dx, &Shape::new(split))?;
        let perm: Vec<usize> = std::iter::once(n + 1).chain(0..=n).chain([n + 2]).collect();
        let dx = g.transpose(dx, &perm)?;
        g.reshape(dx, &tx.shape)
    }

    /// Σ over n, p of x[n, p·stride + k·dilation, c] · dy[n, p, o]: a convolution with channels as rows, rows as
    /// channels and dy as the kernel.
    fn kernel_grad(&self, cx: &mut GradCx<'_>) -> Result<Value, TypeError> {
        let (tx, tw, n, dy) = (cx.ty(0), cx.ty(1), self.spatial(), cx.dy());
        let g = &mut *cx.g;
        let ty = g.ty(dy).clone();
        let swap: Vec<usize> = std::iter::once(n + 1).chain(1..=n).chain([0]).collect();
        let x = g.transpose(cx.args[0], &swap)?;
        let as_kernel: Vec<usize> = (1..=n).chain([0, n + 1]).collect();
        let k = g.transpose(dy, &as_kernel)?;
        let pads = (0..n).map(|d| {
            let low = self.pads[d].0;
            let span = (tw.shape[d] as i64 - 1) * self.kernel_dilation[d] as i64
                + (ty.shape[d + 1] as i64 - 1) * self.stride[d] as i64
                + 1;
            (low, span - dilated(tx.shape[d + 1], self.input_dilation[d]) - low)
        });
        let op = Conv {
            stride: self.kernel_dilation.clone(),
            pads: pads.collect(),
            input_dilation: self.input_dilation.clone(),
            kernel_dilation: self.stride.clone(),
            groups: self.batch_groups,
            batch_groups: self.groups,
        };
        let dw = g.push(op, &[x, k])?;
        let back: Vec<usize> = (1..=n).chain([0, n + 1]).collect();
        g.transpose(dw, &back)
    }
}
