//! Convolutions whose kernel is another one at every position.

use intwain_ir::ops::{Concat, Contract, Slice};
use intwain_ir::{Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::error::ImportErrorKind;
use crate::frontend::init::Initializer;

pub(super) fn locally_connected_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    locally_connected(b, fields, inputs, 1)
}

pub(super) fn locally_connected_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    locally_connected(b, fields, inputs, 2)
}

/// Keys that matter for training only.
const TRAINING: [&str; 4] = ["kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint"];

fn locally_connected(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["input_dim", "input_length"]);
    if let Some(at) = fields.opt("implementation")
        && at.int()? != 1
    {
        let kind = ImportErrorKind::Unsupported {
            what: format!("`implementation` {}, whose kernel has zeros between the windows", at.json),
            remedy: Some("build the layer with implementation=1 and set its weights"),
        };
        return Err(at.error(kind).into());
    }
    let format = Format::read(fields)?;
    let windows = Windows {
        size: sizes(&fields.require("kernel_size")?, n)?,
        stride: sizes_or(fields, "strides", n, 1)?,
        dilation: vec![1; n],
        padding: Padding::Valid,
    };
    if Padding::read(fields)? != Padding::Valid {
        return Err(misfit("pads nothing, as Keras has it for this implementation"));
    }
    let filters = fields.require("filters")?.positive()?;
    let activation = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    let use_bias = fields.bool_or("use_bias", true)?;
    let kernel_init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
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
    let spatial = &dims[start..start + n];
    windows.pads(spatial)?;
    let out: Vec<usize> = (0..n).map(|d| (spatial[d] - windows.size[d]) / windows.stride[d] + 1).collect();
    let (patches, features) = patches(cx, x, format, &windows, &out)?;
    let positions: usize = out.iter().product();
    let kernel = cx.var("kernel", &[positions, features, filters], kernel_init, Trainable::Yes)?;
    let y = cx.g.push(Contract { batch: vec![(1, 0)], contract: vec![(2, 1)] }, &[patches, kernel])?;
    let y = cx.g.transpose(y, &[1, 0, 2])?;
    let shape: Vec<usize> = [dims[0]].into_iter().chain(out.iter().copied()).chain([filters]).collect();
    let y = cx.g.reshape(y, &Shape::from(shape))?;
    let mut y = format.of_last(cx, y)?;
    if use_bias {
        let shape: Vec<usize> = out.iter().copied().chain([filters]).collect();
        let bias = cx.var("bias", &shape, bias_init, Trainable::Yes)?;
        // Where channels come first, Keras sees the same elements in the order of the result and does not turn them.
        let bias = cx.g.reshape(bias, &Shape::from(&cx.dims(y)[1..]))?;
        y = add_bias(cx, y, bias)?;
    }
    Ok(vec![activation.apply(cx, y)?.into()])
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
