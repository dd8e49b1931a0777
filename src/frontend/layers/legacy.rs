//! Layers that later versions of Keras do not have.

use intwain_ir::ops::{Concat, Contract};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::Builder;
use super::conv::add_bias;
use super::cx::{Cx, Out, T, misfit};
use super::inputs::Inputs;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportErrorKind;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;

/// Keys that matter for training only.
const TRAINING: [&str; 4] = ["W_regularizer", "b_regularizer", "W_constraint", "b_constraint"];

/// What a merge does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Fold(Binary),
    Average,
    Concat,
    Dot,
    Cosine,
}

/// `Merge`: one class for every way of bringing tensors together.
pub(super) fn merge(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let mode = read_mode(fields)?;
    // What a mode of the model's own would need.
    fields.irrelevant(&["output_shape", "output_shape_type", "output_mask", "output_mask_type", "arguments"]);
    let concat_axis = fields.int_or("concat_axis", -1)?;
    let dot_axes = match fields.opt("dot_axes") {
        Some(at) => at.one_or_many().iter().map(axis_of).collect::<Result<Vec<_>, _>>()?,
        None => vec![-1],
    };
    // A list with a mask for every tensor, which they carry themselves.
    inputs.named("mask");
    let tensors = inputs.many()?;
    if tensors.len() < 2 {
        return Err(misfit(format!("merges two tensors or more, {} is given", tensors.len())));
    }
    let cx = &mut b.cx;
    let values = tensors.iter().map(|t| t.value).collect::<Vec<_>>();
    let value = match mode {
        Mode::Fold(function) => fold(cx, &values, function)?,
        Mode::Average => {
            let sum = fold(cx, &values, Binary::Add)?;
            let ty = cx.g.ty(sum).clone();
            let count = cx.g.full(ty.dtype, values.len() as f64, &ty.shape)?;
            cx.g.div(sum, count)?
        }
        Mode::Concat => return concat(cx, &tensors, concat_axis),
        Mode::Dot => return Ok(vec![dot(cx, &values, &dot_axes)?.into()]),
        Mode::Cosine => return Ok(vec![cosine(cx, &values, &dot_axes)?.into()]),
    };
    let masks: Vec<Value> = tensors.iter().filter_map(|t| t.mask).collect();
    let mut joined = masks.first().copied();
    for mask in masks.iter().skip(1) {
        joined = joined.map(|j| cx.g.binary_broadcast(Binary::And, j, *mask)).transpose()?;
    }
    Ok(vec![T { value, mask: joined }])
}

fn read_mode(fields: &Fields<'_>) -> Out<Mode> {
    if let Some(kind) = fields.opt("mode_type")
        && kind.str()? != "raw"
    {
        return Err(kind
            .error(ImportErrorKind::Custom { class: format!("a merge mode of type {}", kind.json) })
            .into());
    }
    let Some(at) = fields.opt("mode") else { return Ok(Mode::Fold(Binary::Add)) };
    Ok(match at.str()? {
        "sum" => Mode::Fold(Binary::Add),
        "mul" => Mode::Fold(Binary::Mul),
        "max" => Mode::Fold(Binary::Max),
        "ave" => Mode::Average,
        "concat" => Mode::Concat,
        "dot" => Mode::Dot,
        "cos" => Mode::Cosine,
        _ => return Err(at.accepted(&["sum", "mul", "max", "ave", "concat", "dot", "cos"]).into()),
    })
}

/// An axis, which Keras 0.3 puts into a list of its own.
fn axis_of(at: &At<'_>) -> Out<i64> {
    match at.json {
        Json::Array(_) => match at.array()?.as_slice() {
            [only] => Ok(only.int()?),
            _ => Err(at.expected("one axis of each tensor").into()),
        },
        _ => Ok(at.int()?),
    }
}

fn fold(cx: &mut Cx, values: &[Value], function: Binary) -> Out<Value> {
    let mut joined = values[0];
    for value in &values[1..] {
        joined = cx.g.binary_broadcast(function, joined, *value)?;
    }
    Ok(joined)
}

/// Concatenation; a step is kept where every tensor keeps it.
fn concat(cx: &mut Cx, tensors: &[T], axis: i64) -> Out {
    let rank = cx.rank(tensors[0].value);
    let dim = cx.axis(axis, rank)?;
    let values: Vec<Value> = tensors.iter().map(|t| t.value).collect();
    let value = cx.g.push(Concat { dim }, &values)?;
    if tensors.iter().all(|t| t.mask.is_none()) {
        return Ok(vec![value.into()]);
    }
    let mut masks = Vec::new();
    for t in tensors {
        let shape = cx.g.shape(t.value).clone();
        masks.push(match t.mask {
            None => cx.g.full(DType::Bool, 1.0, &shape)?,
            Some(mask) => {
                let dims: Vec<usize> = (0..cx.rank(mask)).collect();
                cx.g.broadcast(mask, &shape, &dims)?
            }
        });
    }
    let all = cx.g.push(Concat { dim }, &masks)?;
    let mask = cx.g.reduce(Reduce::Prod, all, &[rank - 1])?;
    Ok(vec![T { value, mask: Some(mask) }])
}

/// The contracted dimension of each of two tensors.
fn axes(cx: &Cx, values: &[Value], axes: &[i64]) -> Out<(usize, usize)> {
    let &[x, y] = values else {
        return Err(misfit(format!("takes two tensors, {} are given", values.len())));
    };
    let (ax, ay) = match axes {
        [both] => (*both, *both),
        [ax, ay] => (*ax, *ay),
        _ => return Err(misfit("contracts one dimension of each tensor")),
    };
    let found = (cx.axis(ax, cx.rank(x))?, cx.axis(ay, cx.rank(y))?);
    if found.0 == 0 || found.1 == 0 {
        return Err(misfit("does not contract the batch"));
    }
    Ok(found)
}

fn dot(cx: &mut Cx, values: &[Value], dims: &[i64]) -> Out<Value> {
    let contract = axes(cx, values, dims)?;
    batch_dot(cx, values[0], values[1], contract)
}

/// Row by row; two vectors give a column.
fn batch_dot(cx: &mut Cx, x: Value, y: Value, contract: (usize, usize)) -> Out<Value> {
    let z = cx.g.push(Contract { batch: vec![(0, 0)], contract: vec![contract] }, &[x, y])?;
    if cx.rank(z) > 1 {
        return Ok(z);
    }
    let rows = cx.dims(z)[0];
    Ok(cx.g.reshape(z, &Shape::from([rows, 1]))?)
}

/// The product over the root of both tensors' products with themselves, with a dimension inserted behind the batch.
fn cosine(cx: &mut Cx, values: &[Value], dims: &[i64]) -> Out<Value> {
    let (ax, ay) = axes(cx, values, dims)?;
    let (x, y) = (values[0], values[1]);
    let product = batch_dot(cx, x, y, (ax, ay))?;
    let (of_x, of_y) = (batch_dot(cx, x, x, (ax, ax))?, batch_dot(cx, y, y, (ay, ay))?);
    let squares = cx.g.binary_broadcast(Binary::Mul, of_x, of_y)?;
    let root = cx.g.unary(Unary::Sqrt, squares)?;
    let ty = cx.g.ty(root).clone();
    let least = cx.g.full(ty.dtype, 1e-7, &ty.shape)?;
    let divisor = cx.g.binary_broadcast(Binary::Max, root, least)?;
    let ratio = cx.g.binary_broadcast(Binary::Div, product, divisor)?;
    let mut shape = cx.dims(ratio);
    shape.insert(1, 1);
    Ok(cx.g.reshape(ratio, &Shape::from(shape))?)
}

/// The features of a tensor of rank 2.
fn features(cx: &Cx, x: Value) -> Out<usize> {
    match cx.dims(x).as_slice() {
        [_, features] => Ok(*features),
        dims => Err(misfit(format!("takes a tensor of rank 2, its input has the shape {dims:?}"))),
    }
}

/// A dense layer and its input, mixed by a gate that the input decides.
pub(super) fn highway(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let activation = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    let use_bias = fields.bool_or("bias", true)?;
    let init = initializer(fields, "init", Initializer::glorot_uniform())?;
    let gate_bias = Initializer::Constant(fields.f64_or("transform_bias", 1.0)?);
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["input_dim"]);
    let cx = &mut b.cx;
    let value = cx.floating(x.value)?;
    let n = features(cx, value)?;
    let kernel = cx.var("W", &[n, n], init.clone(), Trainable::Yes)?;
    let gate_kernel = cx.var("W_carry", &[n, n], init, Trainable::Yes)?;
    let (mut inner, mut gate) = (cx.g.matmul(value, kernel)?, cx.g.matmul(value, gate_kernel)?);
    if use_bias {
        let bias = cx.var("b", &[n], Initializer::ZEROS, Trainable::Yes)?;
        let carry = cx.var("b_carry", &[n], gate_bias, Trainable::Yes)?;
        inner = add_bias(cx, inner, bias)?;
        gate = add_bias(cx, gate, carry)?;
    }
    let gate = Activation::Sigmoid.apply(cx, gate)?;
    let inner = activation.apply(cx, inner)?;
    let ty = cx.g.ty(gate).clone();
    let one = cx.g.full(ty.dtype, 1.0, &ty.shape)?;
    let rest = cx.g.sub(one, gate)?;
    let (changed, kept) = (cx.g.mul(inner, gate)?, cx.g.mul(rest, value)?);
    Ok(vec![T { value: cx.g.add(changed, kept)?, mask: x.mask }])
}

/// The largest of several dense layers, feature by feature.
pub(super) fn maxout_dense(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let units = fields.require("output_dim")?.positive()?;
    let pieces = fields.positive_or("nb_feature", 4)?;
    let use_bias = fields.bool_or("bias", true)?;
    let init = initializer(fields, "init", Initializer::glorot_uniform())?;
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["input_dim"]);
    let cx = &mut b.cx;
    let x = cx.floating(x)?;
    let n = features(cx, x)?;
    let kernel = cx.var("W", &[pieces, n, units], init, Trainable::Yes)?;
    let mut y = cx.g.push(Contract { batch: vec![], contract: vec![(1, 1)] }, &[x, kernel])?;
    if use_bias {
        let bias = cx.var("b", &[pieces, units], Initializer::ZEROS, Trainable::Yes)?;
        y = add_bias(cx, y, bias)?;
    }
    Ok(vec![cx.g.reduce(Reduce::Max, y, &[1])?.into()])
}

/// A variable for every element of a row, but for the axes that share one.
fn parameter(cx: &mut Cx, fields: &Fields<'_>, x: Value, name: &str, init: Initializer) -> Out<Value> {
    let mut shape = cx.dims(x);
    if shape.is_empty() {
        return Err(misfit("takes a tensor with a batch dimension"));
    }
    shape.remove(0);
    if let Some(shared) = fields.opt("shared_axes") {
        for axis in shared.one_or_many() {
            let d = axis.positive()?;
            let rank = shape.len() + 1;
            *shape.get_mut(d - 1).ok_or_else(|| misfit(format!("shared axis {d} of a tensor of rank {rank}")))? = 1;
        }
    }
    let var = cx.var(name, &shape, init, Trainable::Yes)?;
    let full = cx.g.shape(x).clone();
    Ok(cx.g.broadcast_to(var, &full)?)
}

/// α·log(1 + exp(β·x)).
pub(super) fn parametric_softplus(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let alpha = Initializer::Constant(fields.f64_or("alpha_init", 0.2)?);
    let beta = Initializer::Constant(fields.f64_or("beta_init", 5.0)?);
    let cx = &mut b.cx;
    let value = cx.floating(x.value)?;
    let alpha = parameter(cx, fields, value, "alphas", alpha)?;
    let beta = parameter(cx, fields, value, "betas", beta)?;
    let scaled = cx.g.mul(beta, value)?;
    let soft = Activation::Softplus.apply(cx, scaled)?;
    Ok(vec![T { value: cx.g.mul(soft, alpha)?, mask: x.mask }])
}

/// Three straight lines that meet at two thresholds, the right one |t_right| above the left.
pub(super) fn srelu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let uniform = Initializer::glorot_uniform();
    let t_left = initializer(fields, "t_left_init", Initializer::ZEROS)?;
    let a_left = initializer(fields, "a_left_init", uniform.clone())?;
    let t_right = initializer(fields, "t_right_init", uniform)?;
    let a_right = initializer(fields, "a_right_init", Initializer::ONES)?;
    let cx = &mut b.cx;
    let value = cx.floating(x.value)?;
    let t_left = parameter(cx, fields, value, "t_left", t_left)?;
    let a_left = parameter(cx, fields, value, "a_left", a_left)?;
    let t_right = parameter(cx, fields, value, "t_right", t_right)?;
    let a_right = parameter(cx, fields, value, "a_right", a_right)?;
    let width = cx.g.unary(Unary::Abs, t_right)?;
    let t_right = cx.g.add(t_left, width)?;
    let ty = cx.g.ty(value).clone();
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    // Up to the right threshold, from the left one on with the slope 1 and below it with a_left.
    let from_left = cx.g.sub(value, t_left)?;
    let limit = cx.g.sub(t_right, t_left)?;
    let above = cx.g.binary(Binary::Max, from_left, zero)?;
    let limited = cx.g.binary(Binary::Min, above, limit)?;
    let below = cx.g.binary(Binary::Min, from_left, zero)?;
    let sloped = cx.g.mul(below, a_left)?;
    let centre = cx.g.add(limited, sloped)?;
    let from_right = cx.g.sub(value, t_right)?;
    let beyond = cx.g.binary(Binary::Max, from_right, zero)?;
    let right = cx.g.mul(beyond, a_right)?;
    let left_and_centre = cx.g.add(t_left, centre)?;
    Ok(vec![T { value: cx.g.add(left_and_centre, right)?, mask: x.mask }])
}
