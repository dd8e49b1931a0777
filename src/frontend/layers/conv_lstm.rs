//! Convolutional LSTM layers: the products of an LSTM are convolutions.

use intwain_ir::ops::Conv;
use intwain_ir::{Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::cells::{forget_bias, gates};
use super::conv::add_bias;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::lost::{CellLoss, CellMasks, columns_for, products};
use super::steps::{Arguments, Step, Walk, Walked, run};
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
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
const NEUTRAL: [&str; 6] = [
    "kernel_regularizer",
    "recurrent_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "recurrent_constraint",
    "bias_constraint",
];

/// A cell without its variables.
struct Cell {
    filters: usize,
    windows: Windows,
    format: Format,
    activation: Activation,
    recurrent: Activation,
    use_bias: bool,
    kernel_init: Initializer,
    recurrent_init: Initializer,
    bias_init: Initializer,
    loss: CellLoss,
}

/// A cell's variables, as they are used.
struct Variables {
    /// One kernel, or one for each mask.
    kernels: Vec<Value>,
    recurrent: Vec<Value>,
    bias: Option<Value>,
    masks: CellMasks,
}

fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let cell = Cell::read(b, fields, n)?;
    let walk = Walk::read(fields)?;
    // Keras 2's convolutional layers know nothing of zeros in masked steps.
    let walk = if b.cx.generation == Generation::Three { walk } else { walk.repeating() };
    let mut args = Arguments::read(b, inputs)?;
    b.cx.channels(cell.format.channels());
    let cx = &mut b.cx;
    let dims = cx.dims(args.x);
    if dims.len() != n + 3 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {dims:?}", n + 3)));
    }
    for state in &mut args.initial {
        *state = cell.format.to_last(cx, *state)?;
    }
    // Steps become rows, and rows come apart again.
    let folded: Vec<usize> = [dims[0] * dims[1]].into_iter().chain(dims[2..].iter().copied()).collect();
    let folded = cx.g.reshape(args.x, &Shape::from(folded))?;
    let folded = cell.format.to_last(cx, folded)?;
    let image = cx.dims(folded);
    let part = cx.part(Slot::Attribute("cell"), "ConvLSTMCell", "conv_lstm_cell", true);
    let outer = cx.enter(part);
    let one = [&dims[..1], &image[1..]].concat();
    let vars = cell.declare(cx, &one);
    cx.enter(outer);
    let vars = vars?;
    let masks = vars.masks.input.iter().map(|mask| every_step(cx, *mask, dims[1])).collect::<Out<Vec<_>>>()?;
    let convolved = |cx: &mut Cx, x, kernel| convolve(cx, x, kernel, &cell.windows, &image[1..=n]);
    let mut xs = products(cx, folded, &masks, &vars.kernels, convolved)?;
    if let Some(bias) = vars.bias {
        xs = add_bias(cx, xs, bias)?;
    }
    let positions = cx.dims(xs)[1..=n].to_vec();
    let unfolded: Vec<usize> = dims[..2].iter().chain(&positions).copied().chain([4 * cell.filters]).collect();
    let xs = cx.g.reshape(xs, &Shape::from(unfolded))?;
    let format = cell.format;
    let step = ConvStep { cell, positions, recurrent: vars.recurrent, masks: vars.masks.state };
    let walked = run(b, &walk, &step, xs, &args)?;
    Ok(in_format(&mut b.cx, &walk, format, walked)?.results(&walk, &args))
}

/// `[N, ..]` as `[N·T, ..]`, the same in all steps.
fn every_step(cx: &mut Cx, mask: Value, steps: usize) -> Out<Value> {
    let dims = cx.dims(mask);
    let wide = [&dims[..1], &[steps], &dims[1..]].concat();
    let own: Vec<usize> = (0..wide.len()).filter(|d| *d != 1).collect();
    let repeated = cx.g.broadcast(mask, &Shape::from(wide), &own)?;
    let folded = [&[dims[0] * steps], &dims[1..]].concat();
    Ok(cx.g.reshape(repeated, &Shape::from(folded))?)
}

/// What a walk gives, in the format of the layer.
fn in_format(cx: &mut Cx, walk: &Walk, format: Format, walked: Walked) -> Out<Walked> {
    let rank = cx.rank(walked.y);
    let y = match format {
        Format::First if walk.sequences() => {
            let perm: Vec<usize> = [0, 1, rank - 1].into_iter().chain(2..rank - 1).collect();
            cx.g.transpose(walked.y, &perm)?
        }
        Format::First | Format::Last if walk.sequences() => walked.y,
        Format::First | Format::Last => format.of_last(cx, walked.y)?,
    };
    let states = walked.states.into_iter().map(|s| format.of_last(cx, s)).collect::<Out<_>>()?;
    Ok(Walked { y, states })
}

impl Cell {
    fn read(b: &Builder, fields: &Fields<'_>, n: usize) -> Out<Cell> {
        fields.irrelevant(&NEUTRAL);
        let loss = CellLoss::read_apart(fields)?;
        let filters = fields.require("filters")?.positive()?;
        let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
        let unit_forget = fields.bool_or("unit_forget_bias", true)?;
        Ok(Cell {
            filters,
            windows: Windows {
                size: sizes(&fields.require("kernel_size")?, n)?,
                stride: sizes_or(fields, "strides", n, 1)?,
                dilation: sizes_or(fields, "dilation_rate", n, 1)?,
                padding: Padding::read(fields)?,
            },
            format: Format::read(fields)?,
            activation: Activation::read(&b.cx, fields, "activation", Activation::Tanh)?,
            recurrent: Activation::read(&b.cx, fields, "recurrent_activation", gates(&b.cx))?,
            use_bias: fields.bool_or("use_bias", true)?,
            kernel_init: initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?,
            recurrent_init: initializer(fields, "recurrent_initializer", Initializer::Orthogonal { gain: 1.0 })?,
            bias_init: if unit_forget { forget_bias(bias_init, filters) } else { bias_init },
            loss,
        })
    }

    /// Extents of the images of states and outputs, for those of a step's.
    fn positions(&self, image: &[usize]) -> Out<Vec<usize>> {
        let n = image.len() - 2;
        let pads = self.windows.pads(&image[1..=n])?;
        let of = |d: usize| {
            let reach = (self.windows.size[d] - 1) * self.windows.dilation[d] + 1;
            let padded = image[d + 1] as i64 + pads[d].0 + pads[d].1;
            let free = usize::try_from(padded - reach as i64).map_err(|_| misfit("windows larger than the images"))?;
            Ok(free / self.windows.stride[d] + 1)
        };
        (0..n).map(of).collect()
    }

    /// Declares the variables of the current owner, and draws what is lost of a sequence. `image` is a step's, with rows
    /// and channels.
    fn declare(&self, cx: &mut Cx, image: &[usize]) -> Out<Variables> {
        let (f, channels) = (self.filters, image[image.len() - 1]);
        let shape = |from: usize| -> Vec<usize> { self.windows.size.iter().copied().chain([from, 4 * f]).collect() };
        let kernel = cx.var("kernel", &shape(channels), self.kernel_init.clone(), Trainable::Yes)?;
        let recurrent = cx.var("recurrent_kernel", &shape(f), self.recurrent_init.clone(), Trainable::Yes)?;
        let bias = match self.use_bias {
            true => Some(cx.var("bias", &[4 * f], self.bias_init.clone(), Trainable::Yes)?),
            false => None,
        };
        let state = [&image[..1], &self.positions(image)?, &[f]].concat();
        let masks = self.loss.draw(cx, 4, image, &state)?;
        let kernels = columns_for(cx, kernel, &masks.input)?;
        let recurrent = columns_for(cx, recurrent, &masks.state)?;
        Ok(Variables { kernels, recurrent, bias, masks })
    }
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

/// A cell at work, channels last.
struct ConvStep {
    cell: Cell,
    /// Extents of the images of states and outputs.
    positions: Vec<usize>,
    recurrent: Vec<Value>,
    /// What the products of the state see of it.
    masks: Vec<Value>,
}

impl Step for ConvStep {
    fn states(&self) -> Vec<Vec<usize>> {
        vec![self.output(); 2]
    }

    fn output(&self) -> Vec<usize> {
        self.positions.iter().copied().chain([self.cell.filters]).collect()
    }

    fn output_state(&self) -> Option<usize> {
        Some(0)
    }

    fn wholes(&self) -> Vec<Value> {
        self.recurrent.iter().chain(&self.masks).copied().collect()
    }

    fn advance(&self, cx: &mut Cx, x: Value, states: &[Value], wholes: &[Value]) -> Out<(Value, Vec<Value>)> {
        let n = self.positions.len();
        let ones = vec![1; n];
        let size = self.cell.windows.size.clone();
        let same = Windows { size, stride: ones.clone(), dilation: ones, padding: Padding::Same };
        let (kernels, masks) = wholes.split_at(self.recurrent.len());
        let convolved = |cx: &mut Cx, h, kernel| convolve(cx, h, kernel, &same, &self.positions);
        let product = products(cx, states[0], masks, kernels, convolved)?;
        let z = cx.g.add(x, product)?;
        let f = self.cell.filters;
        let part = |cx: &mut Cx, i: usize| cx.g.slice_dim(z, n + 1, i * f..(i + 1) * f);
        let parts = [part(cx, 0)?, part(cx, 1)?, part(cx, 2)?, part(cx, 3)?];
        let i = self.cell.recurrent.apply(cx, parts[0])?;
        let forget = self.cell.recurrent.apply(cx, parts[1])?;
        let candidate = self.cell.activation.apply(cx, parts[2])?;
        let o = self.cell.recurrent.apply(cx, parts[3])?;
        let (kept, new) = (cx.g.mul(forget, states[1])?, cx.g.mul(i, candidate)?);
        let c = cx.g.add(kept, new)?;
        let shown = self.cell.activation.apply(cx, c)?;
        let h = cx.g.mul(o, shown)?;
        Ok((h, vec![h, c]))
    }
}
