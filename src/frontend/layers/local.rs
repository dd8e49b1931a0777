//! Convolutions whose kernel is another one at every position.

use intwain_ir::ops::{Concat, Contract, Iota, Slice};
use intwain_ir::scalar::{Binary, Compare};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out, misfit, unsupported};
use super::inputs::Inputs;
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::init::Initializer;

pub(super) fn locally_connected_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    locally_connected(b, fields, inputs, 1)
}

pub(super) fn locally_connected_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    locally_connected(b, fields, inputs, 2)
}

/// Keys that matter for training only.
const TRAINING: [&str; 4] = ["kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint"];

/// How Keras stores the kernel, which decides nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stored {
    /// `[positions, features, filters]`
    PerPosition,
    /// A weight for every pair of elements, of which those between the windows are not used.
    Dense,
    /// The used weights alone, in the order of result and input.
    Used,
}

/// The layer without its variables.
struct Local {
    format: Format,
    windows: Windows,
    filters: usize,
    stored: Stored,
    init: Initializer,
    /// Extents of input and result.
    spatial: Vec<usize>,
    out: Vec<usize>,
}

fn locally_connected(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["input_dim", "input_length"]);
    let format = Format::read(fields)?;
    let stored = match fields.opt("implementation") {
        None => Stored::PerPosition,
        Some(at) => match at.int()? {
            1 => Stored::PerPosition,
            2 => Stored::Dense,
            3 => Stored::Used,
            _ => return Err(at.accepted(&["1", "2", "3"]).into()),
        },
    };
    let windows = Windows {
        size: sizes(&fields.require("kernel_size")?, n)?,
        stride: sizes_or(fields, "strides", n, 1)?,
        dilation: vec![1; n],
        padding: Padding::read(fields)?,
    };
    if windows.padding != Padding::Valid && stored != Stored::Dense {
        return Err(unsupported("`padding` \"same\" where the kernel has no weights outside of the input"));
    }
    let filters = fields.require("filters")?.positive()?;
    let activation = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    let use_bias = fields.bool_or("use_bias", true)?;
    let init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;

    let cx = &mut b.cx;
    let x = cx.floating(inputs.one()?.value)?;
    let dims = cx.dims(x);
    if dims.len() != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {dims:?}", n + 2)));
    }
    let start = match format {
        Format::Last => 1,
        Format::First => 2,
    };
    let spatial = dims[start..start + n].to_vec();
    windows.pads(&spatial)?;
    let out = |d: usize| match windows.padding {
        Padding::Same => spatial[d].div_ceil(windows.stride[d]),
        Padding::Valid | Padding::Causal => (spatial[d] - windows.size[d]) / windows.stride[d] + 1,
    };
    let out: Vec<usize> = (0..n).map(out).collect();
    let local = Local { format, windows, filters, stored, init, spatial, out };
    let mut y = match stored {
        Stored::Dense => local.masked(cx, x)?,
        Stored::PerPosition | Stored::Used => local.windowed(cx, x)?,
    };
    if use_bias {
        let shape: Vec<usize> = local.out.iter().copied().chain([filters]).collect();
        let bias = cx.var("bias", &shape, bias_init, Trainable::Yes)?;
        // Where channels come first, Keras sees the same elements in the order of the result and does not turn them.
        let bias = cx.g.reshape(bias, &Shape::from(&cx.dims(y)[1..]))?;
        y = add_bias(cx, y, bias)?;
    }
    Ok(vec![activation.apply(cx, y)?.into()])
}

impl Local {
    /// Every position's window by that position's weights.
    fn windowed(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        let rows = cx.dims(x)[0];
        let (patches, features) = patches(cx, x, self.format, &self.windows, &self.out)?;
        let positions: usize = self.out.iter().product();
        let (filters, init) = (self.filters, self.init.clone());
        let kernel = match (self.stored, self.format) {
            (Stored::Used, Format::Last) => {
                let used = cx.var("kernel", &[positions * filters * features], init, Trainable::Yes)?;
                let apart = cx.g.reshape(used, &Shape::from([positions, filters, features]))?;
                cx.g.transpose(apart, &[0, 2, 1])?
            }
            (Stored::Used, Format::First) => {
                let used = cx.var("kernel", &[positions * filters * features], init, Trainable::Yes)?;
                let apart = cx.g.reshape(used, &Shape::from([filters, positions, features]))?;
                cx.g.transpose(apart, &[1, 2, 0])?
            }
            (Stored::PerPosition | Stored::Dense, _) => {
                cx.var("kernel", &[positions, features, filters], init, Trainable::Yes)?
            }
        };
        let y = cx.g.push(Contract { batch: vec![(1, 0)], contract: vec![(2, 1)] }, &[patches, kernel])?;
        let y = cx.g.transpose(y, &[1, 0, 2])?;
        let shape: Vec<usize> = [rows].into_iter().chain(self.out.iter().copied()).chain([filters]).collect();
        let y = cx.g.reshape(y, &Shape::from(shape))?;
        self.format.of_last(cx, y)
    }

    /// The whole input by a kernel that is zero between the windows.
    fn masked(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        let n = self.out.len();
        let dims = cx.dims(x);
        let (spatial, out) = (&self.spatial, &self.out);
        let shape: Vec<usize> = match self.format {
            Format::Last => {
                spatial.iter().copied().chain([dims[n + 1]]).chain(out.iter().copied()).chain([self.filters]).collect()
            }
            Format::First => [dims[1]]
                .into_iter()
                .chain(spatial.iter().copied())
                .chain([self.filters])
                .chain(out.iter().copied())
                .collect(),
        };
        let mut kernel = cx.var("kernel", &shape, self.init.clone(), Trainable::Yes)?;
        let ty = cx.g.ty(kernel).clone();
        let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
        let first = match self.format {
            Format::Last => 0,
            Format::First => 1,
        };
        for d in 0..n {
            let connected = self.connected(cx, d)?;
            // Input extents come before those of the result, each with the channels beside them.
            let wide = cx.g.broadcast(connected, &ty.shape, &[first + d, first + d + n + 1])?;
            kernel = cx.g.select(wide, kernel, zero)?;
        }
        let contract = (0..=n).map(|d| (d + 1, d)).collect();
        Ok(cx.g.push(Contract { batch: vec![], contract }, &[x, kernel])?)
    }

    /// Which elements of a dimension each position sees, `[input, result]`.
    fn connected(&self, cx: &mut Cx, d: usize) -> Out<Value> {
        let (size, stride) = (self.windows.size[d] as f64, self.windows.stride[d] as f64);
        let before = match self.windows.padding {
            Padding::Same => self.windows.size[d] / 2,
            Padding::Valid | Padding::Causal => 0,
        };
        let shape = Shape::from([self.spatial[d], self.out[d]]);
        let mut place = |dim| cx.g.push(Iota { dtype: DType::I32, shape: shape.clone(), dim, start: 0 }, &[]);
        let (element, position) = (place(0)?, place(1)?);
        let mut number = |x: f64| cx.g.full(DType::I32, x, &shape);
        let (stride, before, size, zero) = (number(stride)?, number(before as f64)?, number(size)?, number(0.0)?);
        let start = cx.g.mul(position, stride)?;
        let moved = cx.g.add(element, before)?;
        let inside = cx.g.sub(moved, start)?;
        let (from, to) = (cx.g.compare(Compare::Ge, inside, zero)?, cx.g.compare(Compare::Lt, inside, size)?);
        Ok(cx.g.binary(Binary::And, from, to)?)
    }
}

/// What each window holds, `[N, positions, features]`: the elements of a window in the order they have in the image, its
/// channels in front of them or behind each.
fn patches(cx: &mut Cx, x: Value, format: Format, windows: &Windows, out: &[usize]) -> Out<(Value, usize)> {
    let n = out.len();
    let x = format.to_last(cx, x)?;
    let dims = cx.dims(x);
    let (rows, channels) = (dims[0], dims[n + 1]);
    let positions: usize = out.iter().product();
    let taps: usize = windows.size.iter().product();
    let mut parts = Vec::new();
    for tap in 0..taps {
        // The tap's place in the window, the last dimension fastest.
        let mut rest = tap;
        let mut at = vec![0; n];
        for d in (0..n).rev() {
            (at[d], rest) = (rest % windows.size[d], rest / windows.size[d]);
        }
        let (mut from, mut to, mut stride) = (vec![0; n + 2], dims.clone(), vec![1; n + 2]);
        for d in 0..n {
            from[d + 1] = at[d];
            to[d + 1] = at[d] + (out[d] - 1) * windows.stride[d] + 1;
            stride[d + 1] = windows.stride[d];
        }
        let part = cx.g.push(Slice { start: from, limit: to, stride }, &[x])?;
        let shape = match format {
            Format::Last => [rows, positions, 1, channels],
            Format::First => [rows, positions, channels, 1],
        };
        parts.push(cx.g.reshape(part, &Shape::from(shape))?);
    }
    let dim = match format {
        Format::Last => 2,
        Format::First => 3,
    };
    let joined = cx.g.push(Concat { dim }, &parts)?;
    let features = taps * channels;
    Ok((cx.g.reshape(joined, &Shape::from([rows, positions, features]))?, features))
}
