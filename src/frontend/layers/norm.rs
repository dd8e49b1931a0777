//! Normalisation and scaling.

use intwain_ir::ops::Standardize;
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::activations::initializer;
use super::build::Builder;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::Inputs;
use super::masks::heeded;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportError;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;

/// A vector along one dimension of a tensor.
pub(super) fn along(cx: &mut Cx, v: Value, x: Value, dim: usize) -> Out<Value> {
    let shape = cx.g.shape(x).clone();
    Ok(cx.g.broadcast(v, &shape, &[dim])?)
}

pub(super) fn axes(fields: &Fields<'_>, default: i64) -> Result<Vec<i64>, ImportError> {
    match fields.opt("axis") {
        None => Ok(vec![default]),
        Some(at) => at.one_or_many().iter().map(At::int).collect(),
    }
}

/// Constraints and regularisers matter for training only: training reads them from the model file.
pub(super) const TRAINING: [&str; 4] = ["beta_regularizer", "gamma_regularizer", "beta_constraint", "gamma_constraint"];

pub(super) fn layer(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    fields.irrelevant(&TRAINING);
    let epsilon = fields.f64_or("epsilon", 1e-3)?;
    let (center, scale) = (fields.bool_or("center", true)?, fields.bool_or("scale", true)?);
    let rms = fields.bool_or("rms_scaling", false)?;
    let value = b.cx.for_statistics(x.value)?;
    let rank = b.cx.rank(value);
    let mut dims = axes(fields, -1)?.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    dims.sort_unstable();
    let shape: Vec<usize> = dims.iter().map(|&d| b.cx.dims(value)[d]).collect();
    let gamma_init = initializer(fields, "gamma_initializer", Initializer::ONES)?;
    let beta_init = initializer(fields, "beta_initializer", Initializer::ZEROS)?;
    let cx = &mut b.cx;
    let dtype = cx.g.ty(value).dtype;
    // With RMS scaling there is a scale whatever the configuration says, and no offset.
    let gamma = if scale || rms { Some(cx.var_as(dtype, "gamma", &shape, gamma_init, Trainable::Yes)?) } else { None };
    let beta = if center && !rms { Some(cx.var_as(dtype, "beta", &shape, beta_init, Trainable::Yes)?) } else { None };
    let mut y = if rms {
        // The variance is about the mean; what is scaled is the input.
        let standard = variance(cx, value, &dims)?;
        scaled_by_rsqrt(cx, value, standard, epsilon)?
    } else {
        cx.g.push(Standardize { dims: dims.clone(), epsilon }, &[value])?
    };
    let full = cx.g.shape(y).clone();
    if let Some(gamma) = gamma {
        let gamma = cx.g.broadcast(gamma, &full, &dims)?;
        y = cx.g.mul(y, gamma)?;
    }
    if let Some(beta) = beta {
        let beta = cx.g.broadcast(beta, &full, &dims)?;
        y = cx.g.add(y, beta)?;
    }
    Ok(vec![T { value: cx.of_statistics(y, x.value)?, mask: x.mask }])
}

pub(super) fn mean(cx: &mut Cx, x: Value, dims: &[usize]) -> Out<Value> {
    let n: usize = dims.iter().map(|&d| cx.dims(x)[d]).product();
    let sum = cx.g.reduce_keep(Reduce::Sum, x, dims)?;
    let ty = cx.g.ty(sum).clone();
    let n = cx.g.full(ty.dtype, n as f64, &ty.shape)?;
    Ok(cx.g.div(sum, n)?)
}

fn variance(cx: &mut Cx, x: Value, dims: &[usize]) -> Out<Value> {
    let m = mean(cx, x, dims)?;
    let d = cx.g.binary_broadcast(Binary::Sub, x, m)?;
    let square = cx.g.mul(d, d)?;
    mean(cx, square, dims)
}

/// x / √(moment + ε), the moment broadcast.
fn scaled_by_rsqrt(cx: &mut Cx, x: Value, moment: Value, epsilon: f64) -> Out<Value> {
    let ty = cx.g.ty(moment).clone();
    let epsilon = cx.g.full(ty.dtype, epsilon, &ty.shape)?;
    let sum = cx.g.add(moment, epsilon)?;
    let r = cx.g.unary(Unary::Rsqrt, sum)?;
    Ok(cx.g.binary_broadcast(Binary::Mul, x, r)?)
}

pub(super) fn rms(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let epsilon = fields.f64_or("epsilon", 1e-6)?;
    let value = b.cx.for_statistics(x.value)?;
    let rank = b.cx.rank(value);
    let mut dims = axes(fields, -1)?.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    dims.sort_unstable();
    let shape: Vec<usize> = dims.iter().map(|&d| b.cx.dims(value)[d]).collect();
    let cx = &mut b.cx;
    let scale = cx.var("scale", &shape, Initializer::ONES, Trainable::Yes)?;
    let scale = cx.for_statistics(scale)?;
    let square = cx.g.mul(value, value)?;
    let moment = mean(cx, square, &dims)?;
    let y = scaled_by_rsqrt(cx, value, moment, epsilon)?;
    let full = cx.g.shape(y).clone();
    let scale = cx.g.broadcast(scale, &full, &dims)?;
    let y = cx.g.mul(y, scale)?;
    Ok(vec![cx.of_statistics(y, x.value)?.into()])
}

/// Channels in groups; statistics over a group and all of space.
pub(super) fn group(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    // Keras 2 leaves masked elements out of the statistics, and fails where a mask has not all dimensions.
    if b.cx.generation != Generation::Three
        && let Some(mask) = heeded(&b.cx, inputs, 1, x)
    {
        return Err(unsupported(format!("group normalisation under a mask of shape {:?}", b.cx.dims(mask))));
    }
    fields.irrelevant(&TRAINING);
    let epsilon = fields.f64_or("epsilon", 1e-3)?;
    let (center, scale) = (fields.bool_or("center", true)?, fields.bool_or("scale", true)?);
    let &[axis] = axes(fields, -1)?.as_slice() else { return Err(unsupported("normalisation over several axes")) };
    let value = b.cx.for_statistics(x.value)?;
    let dim = b.cx.axis(axis, b.cx.rank(value))?;
    let shape = b.cx.dims(value);
    let channels = shape[dim];
    let groups = match fields.int_or("groups", 32)? {
        -1 => channels,
        n => usize::try_from(n)
            .ok()
            .filter(|&n| n > 0 && channels.is_multiple_of(n))
            .ok_or_else(|| misfit(format!("{n} groups do not divide {channels} channels")))?,
    };
    let gamma_init = initializer(fields, "gamma_initializer", Initializer::ONES)?;
    let beta_init = initializer(fields, "beta_initializer", Initializer::ZEROS)?;
    let cx = &mut b.cx;
    let dtype = cx.g.ty(value).dtype;
    let gamma = if scale { Some(cx.var_as(dtype, "gamma", &[channels], gamma_init, Trainable::Yes)?) } else { None };
    let beta = if center { Some(cx.var_as(dtype, "beta", &[channels], beta_init, Trainable::Yes)?) } else { None };
    let mut split = shape.clone();
    split.splice(dim..=dim, [groups, channels / groups]);
    let grouped = cx.g.reshape(value, &Shape::from(split.clone()))?;
    let dims = (1..split.len()).filter(|&d| d != dim).collect();
    let y = cx.g.push(Standardize { dims, epsilon }, &[grouped])?;
    let mut y = cx.g.reshape(y, &Shape::from(shape))?;
    if let Some(gamma) = gamma {
        let gamma = along(cx, gamma, y, dim)?;
        y = cx.g.mul(y, gamma)?;
    }
    if let Some(beta) = beta {
        let beta = along(cx, beta, y, dim)?;
        y = cx.g.add(y, beta)?;
    }
    Ok(vec![T { value: cx.of_statistics(y, x.value)?, mask: x.mask }])
}

/// x·min(1/‖x‖, 10¹²): a zero vector stays zero.
pub(super) fn unit(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let value = b.cx.floating(x.value)?;
    let rank = b.cx.rank(value);
    let dims = axes(fields, -1)?.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    Ok(vec![T { value: l2_normalized(&mut b.cx, value, &dims)?, mask: x.mask }])
}

/// Divides by the Euclidean norm along dimensions, at most multiplying by 10¹² (Keras's epsilon is 10⁻¹² under the root's
/// square).
pub(super) fn l2_normalized(cx: &mut Cx, x: Value, dims: &[usize]) -> Out<Value> {
    let square = cx.g.mul(x, x)?;
    let sum = cx.g.reduce_keep(Reduce::Sum, square, dims)?;
    let ty = cx.g.ty(sum).clone();
    let least = cx.g.full(ty.dtype, 1e-24, &ty.shape)?;
    let sum = cx.g.binary(Binary::Max, sum, least)?;
    let r = cx.g.unary(Unary::Rsqrt, sum)?;
    Ok(cx.g.binary_broadcast(Binary::Mul, x, r)?)
}

/// Numbers of a configuration that broadcast from the right, as a tensor of the layer's type.
fn numbers(cx: &mut Cx, at: &At<'_>) -> Out<Value> {
    let at = match at.json {
        // Keras 3 writes arrays as objects.
        Json::Object(_) => at.require("config")?.require("value")?,
        _ => at.clone(),
    };
    let mut shape = Vec::new();
    let mut values = Vec::new();
    nested(&at, 0, &mut shape, &mut values)?;
    if values.len() != shape.iter().product::<usize>() {
        return Err(at.expected("lists of one length").into());
    }
    // Keras makes f32 of them before it makes the layer's type of them, f64 included.
    let elements = values.iter().map(|&v| intwain_ir::Scalar::from_f64(cx.dtype, f64::from(v as f32))).collect();
    Ok(cx.g.push(intwain_ir::ops::Constant { shape: Shape::from(shape), elements }, &[])?)
}

fn nested(at: &At<'_>, depth: usize, shape: &mut Vec<usize>, values: &mut Vec<f64>) -> Result<(), ImportError> {
    if at.json.as_array().is_none() {
        values.push(at.any_f64()?);
        return Ok(());
    }
    let items = at.array()?;
    if shape.len() == depth {
        shape.push(items.len());
    }
    items.iter().try_for_each(|item| nested(item, depth + 1, shape, values))
}

pub(super) fn rescaling(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let value = b.cx.floating(x.value)?;
    let (scale, offset) = (fields.require("scale")?, fields.opt("offset"));
    let scale = numbers(&mut b.cx, &scale)?;
    let offset = offset.map(|at| numbers(&mut b.cx, &at)).transpose()?;
    let mut y = b.cx.g.binary_broadcast(Binary::Mul, value, scale)?;
    if let Some(offset) = offset {
        y = b.cx.g.binary_broadcast(Binary::Add, y, offset)?;
    }
    Ok(vec![T { value: y, mask: x.mask }])
}

/// (x − mean) / max(√variance, 10⁻⁷), or back. The statistics are in the configuration or variables.
pub(super) fn normalization(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let invert = fields.bool_or("invert", false)?;
    let value = b.cx.floating(x.value)?;
    let rank = b.cx.rank(value);
    let kept = match fields.get("axis") {
        None => vec![-1],
        Some(at) if at.is_null() => Vec::new(),
        Some(at) => at.one_or_many().iter().map(At::int).collect::<Result<_, _>>()?,
    };
    let mut dims = kept.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    dims.sort_unstable();
    let shape: Vec<usize> = dims.iter().map(|&d| b.cx.dims(value)[d]).collect();
    let given = (fields.opt("mean"), fields.opt("variance"));
    let cx = &mut b.cx;
    let (mean, variance) = match given {
        (Some(mean), Some(variance)) => (numbers(cx, &mean)?, numbers(cx, &variance)?),
        (None, None) => {
            let mean = cx.var("mean", &shape, Initializer::ZEROS, Trainable::Frozen)?;
            let variance = cx.var("variance", &shape, Initializer::ONES, Trainable::Frozen)?;
            cx.var_of(DType::I32, "count", &[], Initializer::ZEROS, Trainable::Frozen)?;
            (mean, variance)
        }
        (Some(_), None) | (None, Some(_)) => return Err(misfit("has one of `mean` and `variance` only")),
    };
    let spread = |cx: &mut Cx, v: Value| -> Out<Value> {
        let shape = cx.g.shape(value).clone();
        let rank = cx.rank(v);
        // Statistics of fewer dimensions belong to the last of those kept; a larger rank broadcasts as it is.
        match dims.len().checked_sub(rank) {
            Some(skip) => Ok(cx.g.broadcast(v, &shape, &dims[skip..])?),
            None => Ok(cx.g.broadcast_to(v, &shape)?),
        }
    };
    let root = cx.g.unary(Unary::Sqrt, variance)?;
    let ty = cx.g.ty(root).clone();
    let least = cx.g.full(ty.dtype, 1e-7, &ty.shape)?;
    let deviation = cx.g.binary(Binary::Max, root, least)?;
    let (mean, deviation) = (spread(cx, mean)?, spread(cx, deviation)?);
    let y = if invert {
        let scaled = cx.g.mul(value, deviation)?;
        cx.g.add(scaled, mean)?
    } else {
        let centred = cx.g.sub(value, mean)?;
        cx.g.div(centred, deviation)?
    };
    Ok(vec![T { value: y, mask: x.mask }])
}

/// ConvNeXt's scale per channel.
pub(super) fn layer_scale(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let init = fields.f64_or("init_values", 1e-6)?;
    let dim = fields.require("projection_dim")?.positive()?;
    let gamma = b.cx.var("gamma", &[dim], Initializer::Constant(init), Trainable::Yes)?;
    Ok(vec![b.cx.g.binary_broadcast(Binary::Mul, x, gamma)?.into()])
}
