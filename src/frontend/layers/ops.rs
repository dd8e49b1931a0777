//! Bare operations: nodes that a functional model got from `x + 1`, `x[:, 0]` or `keras.ops`.

use intwain_ir::ops::{Concat, Contract, Slice};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::activations::{Activation, softmax_over};
use super::build::{Builder, element};
use super::cx::{Cx, Out, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::merge::common;
use super::shape::resolve;
use crate::frontend::cursor::Fields;
use crate::frontend::json::Json;

macro_rules! binaries {
    ($($name:ident = $function:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
            binary(b, fields, inputs, $function)
        })+
    };
}

binaries! {
    add = Binary::Add;
    subtract = Binary::Sub;
    multiply = Binary::Mul;
    divide = Binary::Div;
    maximum = Binary::Max;
    minimum = Binary::Min;
    power = Binary::Pow;
}

macro_rules! comparisons {
    ($($name:ident = $relation:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
            let (x, y) = pair(&mut b.cx, inputs)?;
            let (x, y) = b.cx.g.broadcast_pair(x, y)?;
            Ok(vec![b.cx.g.compare($relation, x, y)?.into()])
        })+
    };
}

comparisons! {
    equal = Compare::Eq;
    greater = Compare::Gt;
    greater_equal = Compare::Ge;
    less = Compare::Lt;
    less_equal = Compare::Le;
    not_equal = Compare::Ne;
}

macro_rules! logicals {
    ($($name:ident = $function:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
            let cx = &mut b.cx;
            let (x, y) = pair(cx, inputs)?;
            let (x, y) = (cx.g.cast(DType::Bool, x)?, cx.g.cast(DType::Bool, y)?);
            Ok(vec![cx.g.binary_broadcast($function, x, y)?.into()])
        })+
    };
}

logicals! {
    logical_and = Binary::And;
    logical_or = Binary::Or;
    logical_xor = Binary::Xor;
}

macro_rules! unaries {
    ($($name:ident = $function:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
            let x = operand(&mut b.cx, inputs, 0, "x", None)?;
            Ok(vec![b.cx.g.unary($function, x)?.into()])
        })+
    };
}

unaries! {
    absolute = Unary::Abs;
    exp = Unary::Exp;
    log = Unary::Log;
    negative = Unary::Neg;
    rsqrt = Unary::Rsqrt;
    sigmoid = Unary::Logistic;
    sqrt = Unary::Sqrt;
    tanh = Unary::Tanh;
}

macro_rules! reductions {
    ($($name:ident = $function:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
            Ok(vec![reduction(b, fields, inputs, $function)?.0.into()])
        })+
    };
}

reductions! {
    max = Reduce::Max;
    min = Reduce::Min;
    sum = Reduce::Sum;
}

/// A tensor, or a number or array of the file in the type of the tensor beside it.
fn operand(cx: &mut Cx, inputs: &Inputs, position: usize, name: &str, beside: Option<DType>) -> Out<Value> {
    let item = inputs.get(position, name).ok_or_else(|| misfit(format!("is called without `{name}`")))?;
    match item {
        Item::Tensor(t) => Ok(t.value),
        Item::Const(json) => constant(cx, json, beside.unwrap_or(DType::F32)),
        Item::Array { value, dtype } => {
            let dtype = element(dtype).ok_or_else(|| unsupported(format!("an array of type `{dtype}`")))?;
            constant(cx, value, dtype)
        }
        Item::List(_) | Item::Dict(_) | Item::Slice(_) | Item::Ellipsis => {
            Err(unsupported(format!("an argument `{name}` that is neither tensor nor number")))
        }
    }
}

fn constant(cx: &mut Cx, json: &Json, dtype: DType) -> Out<Value> {
    let (mut shape, mut values) = (Vec::new(), Vec::new());
    numbers(json, 0, &mut shape, &mut values)?;
    if values.len() != shape.iter().product::<usize>() {
        return Err(misfit("lists of several lengths"));
    }
    let elements = values.into_iter().map(|v| Scalar::from_f64(dtype, v)).collect();
    Ok(cx.g.push(intwain_ir::ops::Constant { shape: Shape::from(shape), elements }, &[])?)
}

fn numbers(json: &Json, depth: usize, shape: &mut Vec<usize>, values: &mut Vec<f64>) -> Out<()> {
    match json {
        Json::Int(i) => values.push(*i as f64),
        Json::Float(x) => values.push(*x),
        Json::Bool(b) => values.push(f64::from(u8::from(*b))),
        Json::Array(items) => {
            if shape.len() == depth {
                shape.push(items.len());
            }
            items.iter().try_for_each(|item| numbers(item, depth + 1, shape, values))?;
        }
        Json::Null | Json::String(_) | Json::Object(_) => return Err(unsupported(format!("the operand {json}"))),
    }
    Ok(())
}

/// Both operands in their common type. A number takes the type of the tensor beside it; of integers only where it is
/// one.
fn pair(cx: &mut Cx, inputs: &Inputs) -> Out<(Value, Value)> {
    let tensor = |item: Option<&Item>| if let Some(Item::Tensor(t)) = item { Some(t.value) } else { None };
    let fractional = |item: Option<&Item>| matches!(item, Some(Item::Const(Json::Float(_))));
    let (first, second) = (inputs.get(0, "x1"), inputs.get(1, "x2"));
    let beside = tensor(first).or(tensor(second)).map(|v| cx.g.ty(v).dtype);
    let beside = match beside {
        Some(dtype) if !dtype.is_float() && (fractional(first) || fractional(second)) => Some(DType::F32),
        other => other,
    };
    let x = operand(cx, inputs, 0, "x1", beside)?;
    let y = operand(cx, inputs, 1, "x2", beside)?;
    let dtype = common(cx, [x, y]);
    Ok((cx.g.cast(dtype, x)?, cx.g.cast(dtype, y)?))
}

fn binary(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs, function: Binary) -> Out {
    let cx = &mut b.cx;
    let (mut x, mut y) = pair(cx, inputs)?;
    if function == Binary::Div && !cx.g.ty(x).dtype.is_float() {
        (x, y) = (cx.g.cast(DType::F32, x)?, cx.g.cast(DType::F32, y)?);
    }
    Ok(vec![cx.g.binary_broadcast(function, x, y)?.into()])
}

pub(super) fn logical_not(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let x = b.cx.g.cast(DType::Bool, x)?;
    Ok(vec![b.cx.g.unary(Unary::Not, x)?.into()])
}

/// `where(condition, x1, x2)`; the form that gives positions has no shape of its own.
pub(super) fn where_(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    if inputs.get(1, "x1").is_none() {
        return Err(unsupported("`where` with a condition alone".to_string()));
    }
    let cx = &mut b.cx;
    let condition = operand(cx, inputs, 0, "condition", Some(DType::Bool))?;
    let tensor = |item: Option<&Item>| if let Some(Item::Tensor(t)) = item { Some(t.value) } else { None };
    let beside = tensor(inputs.get(1, "x1")).or(tensor(inputs.get(2, "x2"))).map(|v| cx.g.ty(v).dtype);
    let (x, y) = (operand(cx, inputs, 1, "x1", beside)?, operand(cx, inputs, 2, "x2", beside)?);
    let dtype = common(cx, [x, y]);
    let (x, y) = (cx.g.cast(dtype, x)?, cx.g.cast(dtype, y)?);
    let condition = cx.g.cast(DType::Bool, condition)?;
    let (x, y) = cx.g.broadcast_pair(x, y)?;
    let (condition, x) = cx.g.broadcast_pair(condition, x)?;
    let shape = cx.g.shape(x).clone();
    let y = cx.g.broadcast_to(y, &shape)?;
    Ok(vec![cx.g.select(condition, x, y)?.into()])
}

pub(super) fn square(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    Ok(vec![b.cx.g.mul(x, x)?.into()])
}

pub(super) fn relu(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    Ok(vec![Activation::Relu { slope: 0.0, max: None, threshold: 0.0 }.apply(&mut b.cx, x)?.into()])
}

pub(super) fn relu_6(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    Ok(vec![Activation::Relu { slope: 0.0, max: Some(6.0), threshold: 0.0 }.apply(&mut b.cx, x)?.into()])
}

/// The bare operation approximates unless told otherwise, the activation does not.
pub(super) fn gelu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let exact = attribute(fields, inputs, 1, "approximate")? == Some(Json::Bool(false));
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let function = if exact { Activation::Gelu } else { Activation::GeluTanh };
    Ok(vec![function.apply(&mut b.cx, x)?.into()])
}

/// An attribute of an operation: in its configuration, or an argument of the call.
fn attribute(fields: &Fields<'_>, inputs: &Inputs, position: usize, key: &str) -> Out<Option<Json>> {
    let configured = fields.get(key).map(|at| at.json.clone());
    let found = match inputs.get(position, key) {
        Some(Item::Const(json)) => Some(json.clone()),
        Some(_) => return Err(unsupported(format!("an argument `{key}` that is a tensor"))),
        None => configured,
    };
    Ok(found.filter(|json| *json != Json::Null))
}

fn integers(json: &Json) -> Out<Vec<i64>> {
    let one = |json: &Json| json.as_int().ok_or_else(|| misfit(format!("{json} is no integer")));
    match json {
        Json::Array(items) => items.iter().map(one).collect(),
        _ => Ok(vec![one(json)?]),
    }
}

fn reduction(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, function: Reduce) -> Out<(Value, usize)> {
    let axis = attribute(fields, inputs, 1, "axis")?;
    let keep = attribute(fields, inputs, 2, "keepdims")? == Some(Json::Bool(true));
    if attribute(fields, inputs, 3, "initial")?.is_some() {
        return Err(unsupported("an initial value of a reduction"));
    }
    if inputs.named("dtype").is_some() {
        return Err(unsupported("a reduction in another type"));
    }
    let cx = &mut b.cx;
    let x = operand(cx, inputs, 0, "x", None)?;
    let dims = cx.dims(x);
    let over = match axis {
        None => (0..dims.len()).collect(),
        Some(axis) => integers(&axis)?.iter().map(|&a| cx.axis(a, dims.len())).collect::<Out<Vec<_>>>()?,
    };
    let count = over.iter().map(|&d| dims[d]).product();
    let y = if keep { cx.g.reduce_keep(function, x, &over)? } else { cx.g.reduce(function, x, &over)? };
    Ok((y, count))
}

pub(super) fn mean(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (sum, count) = reduction(b, fields, inputs, Reduce::Sum)?;
    let sum = b.cx.floating(sum)?;
    let ty = b.cx.g.ty(sum).clone();
    let count = b.cx.g.full(ty.dtype, count as f64, &ty.shape)?;
    Ok(vec![b.cx.g.div(sum, count)?.into()])
}

pub(super) fn softmax(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axis = attribute(fields, inputs, 1, "axis")?.map_or(Ok(vec![-1]), |a| integers(&a))?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let rank = b.cx.rank(x);
    let dims = axis.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    Ok(vec![softmax_over(&mut b.cx, x, &dims)?.into()])
}

pub(super) fn cast(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let Some(Json::String(name)) = attribute(fields, inputs, 1, "dtype")? else { return Err(misfit("has no dtype")) };
    let dtype = element(&name).ok_or_else(|| unsupported(format!("the type `{name}`")))?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    Ok(vec![b.cx.g.cast(dtype, x)?.into()])
}

fn tensors(cx: &mut Cx, inputs: &Inputs) -> Out<Vec<Value>> {
    let all = inputs.get(0, "xs").map(Item::tensors).unwrap_or_default();
    let dtype = common(cx, all.iter().map(|t| t.value));
    match all.is_empty() {
        true => Err(misfit("is called without a tensor")),
        false => all.iter().map(|t| Ok(cx.g.cast(dtype, t.value)?)).collect(),
    }
}

pub(super) fn concatenate(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axis = attribute(fields, inputs, 1, "axis")?.and_then(|a| a.as_int()).unwrap_or(0);
    let values = tensors(&mut b.cx, inputs)?;
    let dim = b.cx.axis(axis, b.cx.rank(values[0]))?;
    Ok(vec![b.cx.g.push(Concat { dim }, &values)?.into()])
}

pub(super) fn stack(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axis = attribute(fields, inputs, 1, "axis")?.and_then(|a| a.as_int()).unwrap_or(0);
    let values = tensors(&mut b.cx, inputs)?;
    let mut shape = b.cx.dims(values[0]);
    let dim = b.cx.axis(axis, shape.len() + 1)?;
    shape.insert(dim, 1);
    let shape = Shape::from(shape);
    let wide = values.iter().map(|&v| Ok(b.cx.g.reshape(v, &shape)?)).collect::<Out<Vec<_>>>()?;
    Ok(vec![b.cx.g.push(Concat { dim }, &wide)?.into()])
}

pub(super) fn reshape(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let wanted = attribute(fields, inputs, 1, "newshape")?.ok_or_else(|| misfit("has no new shape"))?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let dims = b.cx.dims(x);
    // An open batch is written as null.
    let target = match &wanted {
        Json::Array(items) => {
            items.iter().map(|d| if *d == Json::Null { Ok(-1) } else { d.as_int().ok_or(()) }).collect()
        }
        other => other.as_int().map(|d| vec![d]).ok_or(()),
    };
    let shape = target.ok().and_then(|t: Vec<i64>| resolve(&t, dims.iter().product()));
    let shape = shape.ok_or_else(|| misfit(format!("{dims:?} does not reshape to {wanted}")))?;
    Ok(vec![b.cx.g.reshape(x, &Shape::from(shape))?.into()])
}

pub(super) fn transpose(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axes = attribute(fields, inputs, 1, "axes")?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let rank = b.cx.rank(x);
    let perm = match axes {
        None => (0..rank).rev().collect(),
        Some(axes) => integers(&axes)?.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?,
    };
    Ok(vec![b.cx.g.transpose(x, &perm)?.into()])
}

pub(super) fn expand_dims(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axes = attribute(fields, inputs, 1, "axis")?.ok_or_else(|| misfit("has no axis"))?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let axes = integers(&axes)?;
    let mut shape = b.cx.dims(x);
    let rank = shape.len() + axes.len();
    let mut dims = axes.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    dims.sort_unstable();
    dims.iter().for_each(|&d| shape.insert(d, 1));
    Ok(vec![b.cx.g.reshape(x, &Shape::from(shape))?.into()])
}

pub(super) fn squeeze(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let axes = attribute(fields, inputs, 1, "axis")?;
    let x = operand(&mut b.cx, inputs, 0, "x", None)?;
    let shape = b.cx.dims(x);
    let gone = match axes {
        None => (0..shape.len()).filter(|&d| shape[d] == 1).collect(),
        Some(axes) => integers(&axes)?.iter().map(|&a| b.cx.axis(a, shape.len())).collect::<Out<Vec<_>>>()?,
    };
    if let Some(&d) = gone.iter().find(|&&d| shape[d] != 1) {
        return Err(misfit(format!("dimension {d} has {} elements and cannot be dropped", shape[d])));
    }
    let kept: Vec<usize> = (0..shape.len()).filter(|d| !gone.contains(d)).map(|d| shape[d]).collect();
    Ok(vec![b.cx.g.reshape(x, &Shape::from(kept))?.into()])
}

/// NumPy's matrix product: the last two dimensions, those before broadcast.
pub(super) fn matmul(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let cx = &mut b.cx;
    let (x, y) = (operand(cx, inputs, 0, "x1", None)?, operand(cx, inputs, 1, "x2", None)?);
    let dtype = common(cx, [x, y]);
    let (x, y) = (cx.g.cast(dtype, x)?, cx.g.cast(dtype, y)?);
    let (rx, ry) = (cx.rank(x), cx.rank(y));
    if rx < 2 || ry < 2 {
        return Err(unsupported("a product with a vector"));
    }
    if ry == 2 {
        return Ok(vec![cx.g.matmul(x, y)?.into()]);
    }
    let rank = rx.max(ry);
    let (sx, sy) = (cx.dims(x), cx.dims(y));
    let at = |s: &[usize], d: usize| (d + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
    let batch: Vec<usize> = (0..rank - 2).map(|d| at(&sx, d).max(at(&sy, d))).collect();
    let with = |s: &[usize]| -> Vec<usize> { batch.iter().chain(&s[s.len() - 2..]).copied().collect() };
    let (x, y) = (cx.g.broadcast_to(x, &Shape::from(with(&sx)))?, cx.g.broadcast_to(y, &Shape::from(with(&sy)))?);
    let op = Contract { batch: (0..rank - 2).map(|d| (d, d)).collect(), contract: vec![(rank - 1, rank - 2)] };
    Ok(vec![cx.g.push(op, &[x, y])?.into()])
}

/// `x[key]`: integers, slices, `...` and new dimensions.
pub(super) fn get_item(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let cx = &mut b.cx;
    let x = operand(cx, inputs, 0, "x", None)?;
    let key = inputs.get(1, "key").ok_or_else(|| misfit("is called without `key`"))?;
    let parts: Vec<Item> = match key {
        Item::List(items) => items.clone(),
        Item::Const(Json::Array(items)) => items.iter().cloned().map(Item::Const).collect(),
        other => vec![other.clone()],
    };
    let dims = cx.dims(x);
    let takes = |item: &Item| !matches!(item, Item::Ellipsis | Item::Const(Json::Null));
    let rest = dims.len().checked_sub(parts.iter().filter(|p| takes(p)).count());
    let rest = rest.ok_or_else(|| misfit(format!("more indices than the {} dimensions", dims.len())))?;
    let (mut start, mut limit, mut stride) = (vec![0; dims.len()], dims.clone(), vec![1; dims.len()]);
    let mut reversed = Vec::new();
    let mut shape = Vec::new();
    let mut d = 0;
    for part in &parts {
        match part {
            Item::Ellipsis => {
                shape.extend((d..d + rest).map(Extent::Of));
                d += rest;
            }
            Item::Const(Json::Null) => shape.push(Extent::One),
            Item::Const(json) => {
                let i = json.as_int().ok_or_else(|| unsupported(format!("the index {json}")))?;
                let i = cx.axis(i, dims[d]).map_err(|_| misfit(format!("index {i} of {} elements", dims[d])))?;
                (start[d], limit[d]) = (i, i + 1);
                d += 1;
            }
            Item::Slice(bounds) => {
                let bound = |item: &Item| match item {
                    Item::Const(Json::Null) => Ok(None),
                    Item::Const(json) => {
                        json.as_int().map(Some).ok_or_else(|| unsupported(format!("the bound {json}")))
                    }
                    _ => Err(unsupported("a bound that is a tensor")),
                };
                let range = python_range(bound(&bounds[0])?, bound(&bounds[1])?, bound(&bounds[2])?, dims[d]);
                let range = range.ok_or_else(|| misfit("a step of 0"))?;
                (start[d], limit[d], stride[d]) = (range.start, range.limit, range.stride);
                if range.backwards {
                    reversed.push(d);
                }
                shape.push(Extent::Of(d));
                d += 1;
            }
            Item::Tensor(_) | Item::Array { .. } | Item::List(_) | Item::Dict(_) => {
                return Err(unsupported("indexing by a tensor or list"));
            }
        }
    }
    shape.extend((d..dims.len()).map(Extent::Of));
    let mut y = cx.g.push(Slice { start, limit, stride }, &[x])?;
    if !reversed.is_empty() {
        y = cx.g.push(intwain_ir::ops::Reverse { dims: reversed }, &[y])?;
    }
    let cut = cx.dims(y);
    let shape: Vec<usize> = shape.into_iter().map(|e| if let Extent::Of(d) = e { cut[d] } else { 1 }).collect();
    Ok(vec![cx.g.reshape(y, &Shape::from(shape))?.into()])
}

/// Where an extent of a result comes from.
enum Extent {
    Of(usize),
    One,
}

struct Range {
    start: usize,
    limit: usize,
    stride: usize,
    backwards: bool,
}

/// Python's slice rules for `n` elements. A backward walk is a forward one, to be reversed.
fn python_range(start: Option<i64>, stop: Option<i64>, step: Option<i64>, n: usize) -> Option<Range> {
    // Steps beyond the extent all pick the first element.
    let n = n as i64;
    let step = step.unwrap_or(1).clamp(-n - 1, n + 1);
    let clamp = |i: i64, low: i64, high: i64| (if i < 0 { i + n } else { i }).clamp(low, high);
    if step > 0 {
        let start = clamp(start.unwrap_or(0), 0, n);
        let stop = stop.map_or(n, |i| clamp(i, 0, n)).max(start);
        return Some(Range { start: start as usize, limit: stop as usize, stride: step as usize, backwards: false });
    }
    if step == 0 {
        return None;
    }
    let first = start.map_or(n - 1, |i| clamp(i, -1, n - 1));
    let stop = stop.map_or(-1, |i| clamp(i, -1, n - 1));
    let count = if first > stop { (first - stop - 1) / -step + 1 } else { 0 };
    let low = (first + step * (count - 1)).max(0);
    let limit = if count == 0 { low } else { first + 1 };
    Some(Range { start: low as usize, limit: limit as usize, stride: -step as usize, backwards: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picked(start: Option<i64>, stop: Option<i64>, step: Option<i64>) -> Vec<usize> {
        let r = python_range(start, stop, step, 5).unwrap();
        let mut all: Vec<usize> = (r.start..r.limit).step_by(r.stride).collect();
        if r.backwards {
            all.reverse();
        }
        all
    }

    /// `list(range(5))[start:stop:step]` in Python.
    #[test]
    fn slices_are_pythons() {
        assert_eq!(picked(None, None, None), [0, 1, 2, 3, 4]);
        assert_eq!(picked(Some(1), Some(-1), None), [1, 2, 3]);
        assert_eq!(picked(Some(-2), None, None), [3, 4]);
        assert_eq!(picked(None, None, Some(2)), [0, 2, 4]);
        assert_eq!(picked(None, None, Some(-1)), [4, 3, 2, 1, 0]);
        assert_eq!(picked(None, None, Some(-2)), [4, 2, 0]);
        assert_eq!(picked(Some(3), Some(0), Some(-2)), [3, 1]);
        assert_eq!(picked(Some(4), Some(1), None), [0usize; 0]);
        assert_eq!(picked(Some(1), Some(3), Some(-1)), [0usize; 0]);
        assert_eq!(picked(Some(-9), Some(9), None), [0, 1, 2, 3, 4]);
    }
}
