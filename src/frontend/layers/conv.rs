//! Convolutions: plain, grouped, depthwise, separable, transposed.

use intwain_ir::ops::{Conv, Reverse};
use intwain_ir::{Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::error::ImportErrorKind;
use crate::frontend::init::Initializer;

pub(super) fn conv_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    conv(b, fields, inputs, 1)
}

pub(super) fn conv_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    conv(b, fields, inputs, 2)
}

pub(super) fn conv_3d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    conv(b, fields, inputs, 3)
}

pub(super) fn depthwise_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    depthwise(b, fields, inputs, 1)
}

pub(super) fn depthwise_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    depthwise(b, fields, inputs, 2)
}

pub(super) fn separable_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    separable(b, fields, inputs, 1)
}

pub(super) fn separable_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    separable(b, fields, inputs, 2)
}

pub(super) fn transpose_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    transposed(b, fields, inputs, 1, None)
}

pub(super) fn transpose_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    transposed(b, fields, inputs, 2, None)
}

pub(super) fn transpose_3d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    transposed(b, fields, inputs, 3, None)
}

/// A transposed convolution of Keras 1, which says the shape of its result and not what is cut from it.
pub(super) fn deconvolution_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let shape = fields.require("output_shape")?;
    let items = shape.array()?;
    let spatial = match (items.as_slice(), Format::read(fields)?) {
        ([_, rows, columns, _], Format::Last) | ([_, _, rows, columns], Format::First) => [rows, columns],
        _ => return Err(shape.expected("a shape of four extents").into()),
    };
    let extents = spatial.iter().map(|d| d.positive()).collect::<Result<Vec<_>, _>>()?;
    transposed(b, fields, inputs, 2, Some(&extents))
}

/// Keys that matter for training only: training reads them from the model file.
const TRAINING: [&str; 9] = [
    "kernel_regularizer",
    "bias_regularizer",
    "kernel_constraint",
    "bias_constraint",
    "depthwise_regularizer",
    "pointwise_regularizer",
    "depthwise_constraint",
    "pointwise_constraint",
    "quantization_config_none",
];

struct Common {
    format: Format,
    windows: Windows,
    activation: Activation,
    use_bias: bool,
}

/// What all convolutions read.
fn common(b: &Builder, fields: &Fields<'_>, n: usize, padding: Padding) -> Out<Common> {
    fields.irrelevant(&TRAINING);
    fields.neutral("quantization_config", &[])?;
    Ok(Common {
        format: Format::read(fields)?,
        windows: Windows {
            size: sizes(&fields.require("kernel_size")?, n)?,
            stride: sizes_or(fields, "strides", n, 1)?,
            dilation: sizes_or(fields, "dilation_rate", n, 1)?,
            padding,
        },
        activation: Activation::read(&b.cx, fields, "activation", Activation::Linear)?,
        use_bias: fields.bool_or("use_bias", true)?,
    })
}

/// The input, channels last, its spatial extents and its channels.
fn input(b: &mut Builder, inputs: &Inputs, format: Format, n: usize) -> Out<(Value, Vec<usize>, usize)> {
    let x = inputs.one()?.value;
    if b.cx.rank(x) != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {:?}", n + 2, b.cx.dims(x))));
    }
    b.cx.channels(format.channels());
    let x = b.cx.floating(x)?;
    let x = format.to_last(&mut b.cx, x)?;
    let dims = b.cx.dims(x);
    Ok((x, dims[1..=n].to_vec(), dims[n + 1]))
}

fn finish(b: &mut Builder, fields: &Fields<'_>, common: &Common, y: Value, filters: usize) -> Out {
    let init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
    let y = if common.use_bias {
        let bias = b.cx.var("bias", &[filters], init, Trainable::Yes)?;
        add_bias(&mut b.cx, y, bias)?
    } else {
        y
    };
    let y = common.activation.apply(&mut b.cx, y)?;
    Ok(vec![common.format.of_last(&mut b.cx, y)?.into()])
}

/// Adds a vector to every position, the vector along the last dimension.
pub(super) fn add_bias(cx: &mut Cx, x: Value, bias: Value) -> Out<Value> {
    let shape = cx.g.shape(x).clone();
    let bias = cx.g.broadcast_to(bias, &shape)?;
    Ok(cx.g.add(x, bias)?)
}

pub(super) fn plain(
    cx: &mut Cx,
    x: Value,
    w: Value,
    windows: &Windows,
    spatial: &[usize],
    groups: usize,
) -> Out<Value> {
    let op = Conv {
        stride: windows.stride.clone(),
        pads: windows.pads(spatial)?,
        input_dilation: vec![1; spatial.len()],
        kernel_dilation: windows.dilation.clone(),
        groups,
        batch_groups: 1,
    };
    Ok(cx.g.push(op, &[x, w])?)
}

fn conv(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let padding = if n == 1 { Padding::read_causal(fields)? } else { Padding::read(fields)? };
    let common = common(b, fields, n, padding)?;
    let filters = fields.require("filters")?.positive()?;
    let groups = fields.positive_or("groups", 1)?;
    // Keras refuses what it says of strides and dilation too.
    if common.windows.stride.iter().any(|&s| s > 1) && common.windows.dilation.iter().any(|&d| d > 1) {
        return Err(misfit("strides and dilation rates above 1 do not go together"));
    }
    let (x, spatial, channels) = input(b, inputs, common.format, n)?;
    if !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
        return Err(misfit(format!(
            "{groups} groups divide neither {channels} channels nor {filters} filters, or not both"
        )));
    }
    let init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let mut shape = common.windows.size.clone();
    shape.extend([channels / groups, filters]);
    b.cx.low_rank(fields, &shape)?;
    let kernel = b.cx.var("kernel", &shape, init, Trainable::Yes)?;
    let y = plain(&mut b.cx, x, kernel, &common.windows, &spatial, groups)?;
    finish(b, fields, &common, y, filters)
}

/// A depthwise kernel `[k.., C, M]` is a grouped one `[k.., 1, C·M]`: output channel c·M + m.
pub(super) fn depthwise_product(
    cx: &mut Cx,
    x: Value,
    kernel: Value,
    windows: &Windows,
    spatial: &[usize],
) -> Out<Value> {
    let n = spatial.len();
    let dims = cx.dims(kernel);
    let (channels, multiplier) = (dims[n], dims[n + 1]);
    let mut shape = dims[..n].to_vec();
    shape.extend([1, channels * multiplier]);
    let grouped = cx.g.reshape(kernel, &shape.into())?;
    plain(cx, x, grouped, windows, spatial, channels)
}

fn depthwise(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let common = common(b, fields, n, Padding::read(fields)?)?;
    let multiplier = fields.positive_or("depth_multiplier", 1)?;
    // Keys of the class it derives from.
    fields.irrelevant(&["filters", "groups", "kernel_initializer"]);
    let (x, spatial, channels) = input(b, inputs, common.format, n)?;
    let init = initializer(fields, "depthwise_initializer", Initializer::glorot_uniform())?;
    let mut shape = common.windows.size.clone();
    shape.extend([channels, multiplier]);
    let name = match b.cx.generation {
        crate::frontend::file::Generation::One | crate::frontend::file::Generation::Two => "depthwise_kernel",
        crate::frontend::file::Generation::Three => "kernel",
    };
    let kernel = b.cx.var(name, &shape, init, Trainable::Yes)?;
    let y = depthwise_product(&mut b.cx, x, kernel, &common.windows, &spatial)?;
    finish(b, fields, &common, y, channels * multiplier)
}

fn separable(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let padding = if n == 1 { Padding::read_causal(fields)? } else { Padding::read(fields)? };
    let common = common(b, fields, n, padding)?;
    let filters = fields.require("filters")?.positive()?;
    let multiplier = fields.positive_or("depth_multiplier", 1)?;
    fields.irrelevant(&["groups", "kernel_initializer"]);
    let (x, spatial, channels) = input(b, inputs, common.format, n)?;
    let init = initializer(fields, "depthwise_initializer", Initializer::glorot_uniform())?;
    let mut shape = common.windows.size.clone();
    shape.extend([channels, multiplier]);
    let depthwise = b.cx.var("depthwise_kernel", &shape, init, Trainable::Yes)?;
    let init = initializer(fields, "pointwise_initializer", Initializer::glorot_uniform())?;
    let mut shape = vec![1; n];
    shape.extend([channels * multiplier, filters]);
    let pointwise = b.cx.var("pointwise_kernel", &shape, init, Trainable::Yes)?;
    let y = depthwise_product(&mut b.cx, x, depthwise, &common.windows, &spatial)?;
    let ones = Windows { size: vec![1; n], stride: vec![1; n], dilation: vec![1; n], padding: Padding::Valid };
    let spatial = b.cx.dims(y)[1..=n].to_vec();
    let y = plain(&mut b.cx, y, pointwise, &ones, &spatial, 1)?;
    finish(b, fields, &common, y, filters)
}

/// The input is spread by the strides and correlated with the flipped kernel. `extents` are the result's, where they do not
/// follow from the input's.
fn transposed(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize, extents: Option<&[usize]>) -> Out {
    let common = common(b, fields, n, Padding::read(fields)?)?;
    let filters = fields.require("filters")?.positive()?;
    fields.neutral("groups", &[crate::frontend::json::Json::Int(1)])?;
    let extra = match fields.opt("output_padding") {
        None => vec![None; n],
        Some(at) if at.json.as_array().is_some() => at
            .array()?
            .iter()
            .map(|a| if a.is_null() { Ok(None) } else { a.usize().map(Some) })
            .collect::<Result<_, _>>()?,
        Some(at) => vec![Some(at.usize()?); n],
    };
    let (x, spatial, channels) = input(b, inputs, common.format, n)?;
    let init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let mut shape = common.windows.size.clone();
    shape.extend([filters, channels]);
    let kernel = b.cx.var("kernel", &shape, init, Trainable::Yes)?;

    let Windows { size, stride, dilation, padding } = &common.windows;
    let mut pads = Vec::new();
    for d in 0..n {
        let reach = (size[d] - 1) * dilation[d] + 1;
        if let Some(extents) = extents {
            pads.push(pads_to(spatial[d], reach, stride[d], *padding, extents[d])?);
            continue;
        }
        let extra =
            *extra.get(d).ok_or_else(|| misfit(format!("{} output paddings for {n} dimensions", extra.len())))?;
        pads.push(transposed_pads(spatial[d], reach, stride[d], *padding, extra)?);
    }
    let cx = &mut b.cx;
    let flipped = cx.g.push(Reverse { dims: (0..n).collect() }, &[kernel])?;
    let perm: Vec<usize> = (0..n).chain([n + 1, n]).collect();
    let flipped = cx.g.transpose(flipped, &perm)?;
    let op = Conv {
        stride: vec![1; n],
        pads,
        input_dilation: stride.clone(),
        kernel_dilation: dilation.clone(),
        groups: 1,
        batch_groups: 1,
    };
    let y = cx.g.push(op, &[x, flipped])?;
    finish(b, fields, &common, y, filters)
}

/// Elements added before and after one spread dimension, for `n` elements, a kernel that reaches over `reach`, a stride and
/// an output padding.
pub(super) fn transposed_pads(
    n: usize,
    reach: usize,
    stride: usize,
    padding: Padding,
    extra: Option<usize>,
) -> Out<(i64, i64)> {
    if extra.is_some_and(|e| e >= stride) {
        let kind = ImportErrorKind::Value {
            found: format!("an output padding of {}", extra.unwrap_or(0)),
            accepted: format!("less than the stride {stride}"),
            nearest: None,
        };
        return Err(kind.into());
    }
    let (n, ke, s) = (n as i64, reach as i64, stride as i64);
    let (before, out) = match (padding, extra.map(|e| e as i64)) {
        (Padding::Valid | Padding::Causal, None) => (ke - 1, (n - 1) * s + ke.max(s)),
        (Padding::Valid | Padding::Causal, Some(op)) => (ke - 1, (n - 1) * s + ke + op),
        (Padding::Same, None) => ((s + ke - 2 + 1).div_euclid(2).min(ke - 1), n * s),
        (Padding::Same, Some(op)) => {
            let total = ke + ke % 2 - 2 + op;
            ((total + 1).div_euclid(2).min(ke - 1), (n - 1) * s + ke % 2 + op)
        }
    };
    let spread = (n - 1) * s + 1;
    Ok((before, out + ke - 1 - spread - before))
}

/// The same for a result of `out` elements: the gradient of the convolution that makes `n` elements out of them.
fn pads_to(n: usize, reach: usize, stride: usize, padding: Padding, out: usize) -> Out<(i64, i64)> {
    let made = match padding {
        Padding::Valid | Padding::Causal => (out + stride).saturating_sub(reach) / stride,
        Padding::Same => out.div_ceil(stride),
    };
    if made != n {
        return Err(misfit(format!("{out} elements are not what {n} elements give with the stride {stride}")));
    }
    let (n, ke, s, out) = (n as i64, reach as i64, stride as i64, out as i64);
    let cut = match padding {
        Padding::Valid | Padding::Causal => 0,
        Padding::Same => ((n - 1) * s + ke - out).max(0) / 2,
    };
    let before = ke - 1 - cut;
    let spread = (n - 1) * s + 1;
    Ok((before, out + ke - 1 - spread - before))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(n: i64, k: i64, s: i64, padding: Padding, extra: Option<usize>) -> i64 {
        let (low, high) = transposed_pads(n as usize, k as usize, s as usize, padding, extra).unwrap();
        (n - 1) * s + 1 + low + high - k + 1
    }

    /// Sizes computed with Keras 3.15.1.
    #[test]
    fn transposed_convolutions_have_keras_sizes() {
        assert_eq!(out(4, 4, 2, Padding::Same, None), 8);
        assert_eq!(out(4, 3, 2, Padding::Same, None), 8);
        assert_eq!(out(4, 3, 2, Padding::Same, Some(0)), 7);
        assert_eq!(out(4, 3, 2, Padding::Same, Some(1)), 8);
        assert_eq!(out(4, 2, 2, Padding::Valid, None), 8);
        assert_eq!(out(4, 8, 4, Padding::Valid, None), 20);
        assert_eq!(out(4, 2, 3, Padding::Valid, None), 12);
        assert_eq!(out(4, 3, 2, Padding::Valid, None), 9);
        assert!(transposed_pads(4, 3, 2, Padding::Same, Some(2)).is_err());
    }
}
