//! Data augmentation outside of training: what these layers pass on, and the few that act on every call.

use intwain_ir::scalar::{Binary, Compare, Reduce};
use intwain_ir::{DType, Value};

use super::activations::clip;
use super::build::Builder;
use super::cx::{Cx, Out, misfit, unsupported};
use super::image::smart_resized;
use super::inputs::{Inputs, Item};
use super::windows::Format;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::model::KerasModel;
use crate::frontend::weights::Slot;

/// What says how images are altered in training.
const TRAINING: [&str; 35] = [
    "addition_factor",
    "all_ops",
    "alpha",
    "bins",
    "bounding_box_format",
    "brightness_factor",
    "chain_depth",
    "contrast_factor",
    "data_format",
    "factor",
    "fill_mode",
    "fill_value",
    "height",
    "height_factor",
    "hue_factor",
    "interpolation",
    "kernel_size",
    "lower",
    "max_number",
    "mode",
    "num_chains",
    "num_ops",
    "rate",
    "rng_type",
    "saturation_factor",
    "scale",
    "seed",
    "sigma",
    "threshold_factor",
    "upper",
    "value_range",
    "width",
    "width_factor",
    "x_factor",
    "y_factor",
];

/// Layers that give their input in the layer's type.
pub(super) fn cast(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&TRAINING);
    let x = images(inputs)?;
    Ok(vec![b.cx.floating(x)?.into()])
}

/// Layers that give their input, of whatever type.
pub(super) fn same(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    // Keras 2 brings every input of these layers to the layer's type.
    if b.cx.generation != Generation::Three {
        return cast(b, fields, inputs);
    }
    fields.irrelevant(&TRAINING);
    Ok(vec![images(inputs)?.into()])
}

/// The only tensor. Dictionaries with labels and boxes beside the images have rules of their own.
pub(super) fn images(inputs: &Inputs) -> Out<Value> {
    match inputs.get(0, "inputs").or_else(|| inputs.named("data")) {
        Some(Item::Dict(_)) => Err(unsupported("augmentation of a dictionary of images, labels and boxes")),
        Some(Item::Tensor(t)) => Ok(t.value),
        _ => Ok(inputs.one()?.value),
    }
}

/// Outside of training Keras 3 passes the whole image on; Keras 2 takes the largest middle part with the proportions asked
/// for and resizes it.
pub(super) fn random_crop(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (height, width) = (fields.require("height")?.positive()?, fields.require("width")?.positive()?);
    if b.cx.generation == Generation::Three {
        return same(b, fields, inputs);
    }
    fields.irrelevant(&["seed", "rng_type"]);
    let x = images(inputs)?;
    let x = b.cx.floating(x)?;
    Ok(vec![smart_resized(&mut b.cx, x, Format::Last, height, width)?.into()])
}

/// Stretches the values of every channel of every image over the whole range, in training or not.
pub(super) fn auto_contrast(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&["data_format", "bounding_box_format"]);
    let (low, high) = value_range(fields)?;
    let x = images(inputs)?;
    let x = b.cx.floating(x)?;
    let cx = &mut b.cx;
    let first = match cx.rank(x) {
        4 => 1,
        3 => 0,
        _ => return Err(misfit(format!("takes a tensor of rank 3 or 4, its input has the shape {:?}", cx.dims(x)))),
    };
    let scaled = to_range(cx, x, (low, high), (0.0, 255.0))?;
    // Dimensions 1 and 2 whatever the format, as in Keras.
    let dims = [first, first + 1];
    let least = cx.g.reduce_keep(Reduce::Min, scaled, &dims)?;
    let most = cx.g.reduce_keep(Reduce::Max, scaled, &dims)?;
    let spread = cx.g.sub(most, least)?;
    let ty = cx.g.ty(spread).clone();
    let full = cx.g.full(ty.dtype, 255.0, &ty.shape)?;
    let scale = cx.g.div(full, spread)?;
    let offset = cx.g.mul(least, scale)?;
    let y = cx.g.binary_broadcast(Binary::Mul, scaled, scale)?;
    let y = cx.g.binary_broadcast(Binary::Sub, y, offset)?;
    let y = clip(cx, y, 0.0, 255.0)?;
    let y = to_range(cx, y, (0.0, 255.0), (low, high))?;
    // A channel of one value has no contrast to stretch.
    let number = cx.g.compare(Compare::Eq, y, y)?;
    Ok(vec![cx.g.select(number, y, x)?.into()])
}

pub(super) fn value_range(fields: &Fields<'_>) -> Out<(f64, f64)> {
    let Some(at) = fields.opt("value_range") else { return Ok((0.0, 255.0)) };
    match at.array()?.as_slice() {
        [a, b] => {
            let (a, b) = (a.f64()?, b.f64()?);
            Ok((a.min(b), a.max(b)))
        }
        _ => Err(at.expected("two numbers").into()),
    }
}

/// (x − a) / (b − a) · (d − c) + c
pub(super) fn to_range(cx: &mut Cx, x: Value, from: (f64, f64), to: (f64, f64)) -> Out<Value> {
    if from == to {
        return Ok(x);
    }
    let ty = cx.g.ty(x).clone();
    let dtype = if ty.dtype.is_float() { ty.dtype } else { DType::F32 };
    let mut num = |v: f64| cx.g.full(dtype, v, &ty.shape);
    let (a, width, stretch, c) = (num(from.0)?, num(from.1 - from.0)?, num(to.1 - to.0)?, num(to.0)?);
    let y = cx.g.sub(x, a)?;
    let y = cx.g.div(y, width)?;
    let y = cx.g.mul(y, stretch)?;
    Ok(cx.g.add(y, c)?)
}

/// Layers one after another.
pub(super) fn pipeline(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let mut tensors = inputs.many()?;
    inputs.tensor(1, "mask")?;
    let outer = b.cx.path().to_string();
    for at in fields.require("layers")?.array()? {
        let layer = KerasModel::read_inner_layer(&at, b.cx.generation, &outer)?;
        let owner = b.declare_inner(&layer, Slot::Listed("_pipeline_layers"));
        let &[only] = tensors.as_slice() else {
            return Err(unsupported("a pipeline whose layers take several tensors"));
        };
        tensors = b.layer(&layer, owner, &Inputs::single(only))?;
    }
    Ok(tensors)
}
