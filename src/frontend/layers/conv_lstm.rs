//! Convolutional LSTM layers: the products of an LSTM are convolutions.
//!
//! As in [`recurrent`](super::recurrent), the input's convolution is computed for all steps at once, before the scan.

use std::sync::Arc;

use intwain_ir::ops::{Conv, Reverse, Scan};
use intwain_ir::{DType, Graph, Rows, Shape, Trainable, Type, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::Inputs;
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;
use crate::frontend::weights::Slot;

pub(super) fn conv_lstm_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, 1)
}

pub(super) fn conv_lstm_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, 2)
}

pub(super) fn conv_lstm_3d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    layer(b, fields, inputs, 3)
}

/// Keys that matter for training only, or say how and not what is computed.
const NEUTRAL: [&str; 10] = [
    "dropout",
    "recurrent_dropout",
    "seed",
    "unroll",
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
];

struct Cell {
    filters: usize,
    activation: Activation,
    recurrent: Activation,
    size: Vec<usize>,
}

fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    fields.irrelevant(&NEUTRAL);
    fields.neutral("stateful", &[Json::Bool(false)])?;
    let format = Format::read(fields)?;
    let windows = Windows {
        size: sizes(&fields.require("kernel_size")?, n)?,
        stride: sizes_or(fields, "strides", n, 1)?,
        dilation: sizes_or(fields, "dilation_rate", n, 1)?,
        padding: Padding::read(fields)?,
    };
    let cell = Cell {
        filters: fields.require("filters")?.positive()?,
        activation: Activation::read(&b.cx, fields, "activation", Activation::Tanh)?,
        recurrent: Activation::read(&b.cx, fields, "recurrent_activation", Activation::Sigmoid)?,
        size: windows.size.clone(),
    };
    let f = cell.filters;
    let kernel_init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let recurrent_init = initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?;
    let mut bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
    if fields.bool_or("unit_forget_bias", true)? && bias_init == Initializer::ZEROS {
        bias_init = Initializer::Stretches(vec![(f, 0.0), (f, 1.0), (2 * f, 0.0)]);
    }
    let use_bias = fields.bool_or("use_bias", true)?;
    let backwards = fields.bool_or("go_backwards", false)?;
    let sequences = fields.bool_or("return_sequences", false)?;
    let state = fields.bool_or("return_state", false)?;
    fields.neutral("zero_output_for_mask", &[Json::Bool(false)])?;
    if inputs.many()?.len() > 1 || inputs.named("initial_state").is_some() {
        return Err(unsupported("an initial state of a convolutional LSTM"));
    }
    let x = inputs.one()?;
    if x.mask.is_some() || inputs.tensor(1, "mask")?.is_some() {
        return Err(unsupported("a mask on a convolutional LSTM"));
    }

    let dims = b.cx.dims(x.value);
    if dims.len() != n + 3 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {dims:?}", n + 3)));
    }
    let (rows, steps) = (dims[0], dims[1]);
    b.cx.channels(format.channels());
    let cx = &mut b.cx;
    let value = cx.floating(x.value)?;
    let folded: Vec<usize> = [rows * steps].into_iter().chain(dims[2..].iter().copied()).collect();
    let folded = cx.g.reshape(value, &Shape::from(folded))?;
    let folded = format.to_last(cx, folded)?;
    let image = cx.dims(folded);
    let part = cx.part(Slot::Attribute("cell"), "ConvLSTMCell", "conv_lstm_cell", true);
    let outer = cx.enter(part);
    let vars = (|| -> Out<(Value, Value, Option<Value>)> {
        let shape = |channels: usize| -> Vec<usize> { cell.size.iter().copied().chain([channels, 4 * f]).collect() };
        let kernel = cx.var("kernel", &shape(image[n + 1]), kernel_init, Trainable::Yes)?;
        let recurrent = cx.var("recurrent_kernel", &shape(f), recurrent_init, Trainable::Yes)?;
        let bias = if use_bias { Some(cx.var("bias", &[4 * f], bias_init, Trainable::Yes)?) } else { None };
        Ok((kernel, recurrent, bias))
    })();
    cx.enter(outer);
    let (kernel, recurrent, bias) = vars?;
    let mut xs = convolve(cx, folded, kernel, &windows, &image[1..=n])?;
    if let Some(bias) = bias {
        xs = add_bias(cx, xs, bias)?;
    }
    // [N·T, ..] → [T, N, ..]
    let positions = cx.dims(xs)[1..].to_vec();
    let unfolded: Vec<usize> = [rows, steps].into_iter().chain(positions.iter().copied()).collect();
    let xs = cx.g.reshape(xs, &Shape::from(unfolded))?;
    let perm: Vec<usize> = [1, 0].into_iter().chain(2..n + 3).collect();
    let mut xs = cx.g.transpose(xs, &perm)?;
    if backwards {
        xs = cx.g.push(Reverse { dims: vec![0] }, &[xs])?;
    }
    let (y, states) = scan(cx, &cell, xs, recurrent, sequences)?;
    let y = if sequences {
        // Every step's image goes back to the format of the input.
        let y = cx.g.transpose(y, &perm)?;
        match format {
            Format::Last => y,
            Format::First => {
                let perm: Vec<usize> = [0, 1, n + 2].into_iter().chain(2..n + 2).collect();
                cx.g.transpose(y, &perm)?
            }
        }
    } else {
        format.of_last(cx, y)?
    };
    let mut out = vec![T::from(y)];
    if state {
        for s in states {
            out.push(format.of_last(cx, s)?.into());
        }
    }
    Ok(out)
}

fn convolve(cx: &mut Cx, x: Value, w: Value, windows: &Windows, spatial: &[usize]) -> Out<Value> {
    let op = Conv {
        stride: windows.stride.clone(),
        pads: windows.pads(spatial)?,
        input_dilation: vec![1; spatial.len()],
        kernel_dilation: windows.dilation.clone(),
        groups: 1,
        batch_groups: 1,
    };
    Ok(cx.g.push(op, &[x, w])?)
}

/// All outputs `[T, N, ..]` or the last one, and the last states.
fn scan(cx: &mut Cx, cell: &Cell, xs: Value, recurrent: Value, sequences: bool) -> Out<(Value, Vec<Value>)> {
    let dims = cx.dims(xs);
    let n = dims.len() - 3;
    let dtype: DType = cx.g.ty(xs).dtype;
    let mut state = dims[1..].to_vec();
    state[n + 1] = cell.filters;
    let state = Type::new(dtype, Shape::from(state));
    let mut step = Cx::new("step", "", true, cx.generation, cx.float);
    step.dtype = dtype;
    step.g.origin = cx.g.origin.clone();
    let h = step.g.input("state0", state.clone(), Rows::Batched);
    let c = step.g.input("state1", state.clone(), Rows::Batched);
    let x = step.g.input("x0", Type::new(dtype, Shape::from(&dims[1..])), Rows::Batched);
    let w = step.g.input("w0", cx.g.ty(recurrent).clone(), Rows::Whole);

    let ones = vec![1; n];
    let same = Windows { size: cell.size.clone(), stride: ones.clone(), dilation: ones, padding: Padding::Same };
    let product = convolve(&mut step, h, w, &same, &dims[2..2 + n])?;
    let z = step.g.add(x, product)?;
    let f = cell.filters;
    let part = |step: &mut Cx, i: usize| step.g.slice_dim(z, n + 1, i * f..(i + 1) * f);
    let parts = [part(&mut step, 0)?, part(&mut step, 1)?, part(&mut step, 2)?, part(&mut step, 3)?];
    let i = cell.recurrent.apply(&mut step, parts[0])?;
    let forget = cell.recurrent.apply(&mut step, parts[1])?;
    let candidate = cell.activation.apply(&mut step, parts[2])?;
    let o = cell.recurrent.apply(&mut step, parts[3])?;
    let (kept, new) = (step.g.mul(forget, c)?, step.g.mul(i, candidate)?);
    let c = step.g.add(kept, new)?;
    let shown = cell.activation.apply(&mut step, c)?;
    let h = step.g.mul(o, shown)?;
    step.g.output("state0", h);
    step.g.output("state1", c);
    if sequences {
        step.g.output("y", h);
    }
    let body = Arc::new(Graph { origin: Default::default(), ..step.g });
    let zeros = cx.g.full(dtype, 0.0, &state.shape)?;
    let op = Scan { count: dims[0], states: 2, sequences: 1, body };
    let results = cx.g.push_all(op, &[zeros, zeros, xs, recurrent])?;
    Ok((if sequences { results[2] } else { results[0] }, results[..2].to_vec()))
}
