//! Convolutions over channels-last images as descriptors.

use intwain_micro::{Contraction, Element, Operand, Output, RightForm, Start, Storage, Summation, Sums, Window};

/// One spatial dim.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    pub input: usize,
    pub output: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub low_pad: isize,
    pub input_dilation: usize,
}

impl Space {
    /// Keras' `same` padding.
    pub fn same(input: usize, kernel: usize, stride: usize) -> Space {
        let output = input.div_ceil(stride);
        let low_pad = (((output - 1) * stride + kernel).saturating_sub(input) / 2) as isize;
        Space { input, output, kernel, stride, dilation: 1, low_pad, input_dilation: 1 }
    }
}

/// `channels` and `filters` are per group.
#[derive(Debug, Clone)]
pub struct Conv {
    pub batch: usize,
    pub groups: usize,
    pub channels: usize,
    pub filters: usize,
    pub space: Vec<Space>,
}

fn row_major(extents: &[usize]) -> Vec<isize> {
    (0..extents.len()).map(|i| extents[i + 1..].iter().product::<usize>() as isize).collect()
}

impl Conv {
    pub fn forward(&self, element: Element) -> Contraction {
        let rank = self.space.len();
        let of = |f: fn(&Space) -> usize| self.space.iter().map(f).collect::<Vec<_>>();
        let (input, output, kernel) = (of(|s| s.input), of(|s| s.output), of(|s| s.kernel));
        let around = |space: &[usize], channels: usize| [&[self.batch], space, &[self.groups, channels]].concat();
        let image = around(&input, self.channels);
        let result = around(&output, self.filters);
        let weights = [kernel.as_slice(), &[self.channels, self.groups, self.filters]].concat();
        let (i, w, o) = (row_major(&image), row_major(&weights), row_major(&result));
        let length = |e: &[usize]| e.iter().product();
        let window = |d: usize| {
            let s = &self.space[d];
            Window {
                outer_dim: d + 1,
                k_dim: d,
                stride: s.stride,
                dilation: s.dilation,
                low_pad: s.low_pad,
                input_dilation: s.input_dilation,
                extent: s.input,
                address_stride: i[d + 1],
            }
        };
        let mut outer = vec![0; rank + 1];
        outer[0] = i[0];
        let mut inner = vec![0; rank + 1];
        inner[rank] = 1;
        Contraction {
            element,
            batch: vec![self.groups],
            m: [&[self.batch], output.as_slice()].concat(),
            n: vec![self.filters],
            k: [kernel.as_slice(), &[self.channels]].concat(),
            a: Operand {
                len: length(&image),
                base: 0,
                batch: vec![self.channels as isize],
                outer,
                k: inner,
                windows: (0..rank).map(window).collect(),
            },
            b: Operand {
                len: length(&weights),
                base: 0,
                batch: vec![self.filters as isize],
                outer: vec![1],
                k: w[..=rank].to_vec(),
                windows: vec![],
            },
            c: Output {
                len: length(&result),
                base: 0,
                batch: vec![self.filters as isize],
                m: o[..=rank].to_vec(),
                n: vec![1],
            },
            start: Start::Zero,
            summation: Summation::Chain,
            right: RightForm::Plain,
            storage: Storage::Element,
            sums: Sums::Result,
        }
    }

    /// The input's windows with roles exchanged, contracted with the gradient of the result.
    pub fn weight_gradient(&self, element: Element) -> Contraction {
        let f = self.forward(element);
        let exchange = |w: &Window| Window {
            outer_dim: w.k_dim,
            k_dim: w.outer_dim,
            stride: w.dilation,
            dilation: w.stride,
            ..*w
        };
        Contraction {
            m: f.k.clone(),
            k: f.m.clone(),
            a: Operand {
                outer: f.a.k.clone(),
                k: f.a.outer.clone(),
                windows: f.a.windows.iter().map(exchange).collect(),
                ..f.a
            },
            b: Operand { len: f.c.len, base: 0, batch: f.c.batch, outer: vec![1], k: f.c.m, windows: vec![] },
            c: Output { len: f.b.len, base: 0, batch: f.b.batch, m: f.b.k, n: vec![1] },
            ..f
        }
    }
}
