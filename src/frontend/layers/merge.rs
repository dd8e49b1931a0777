//! Layers that bring tensors together.

use intwain_ir::ops::{Concat, Contract};
use intwain_ir::scalar::Binary;
use intwain_ir::{DType, Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T, misfit};
use super::inputs::Inputs;
use super::masks::spread;
use super::norm::l2_normalized;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::file::Generation;

macro_rules! merges {
    ($($name:ident = $function:expr;)+) => {
        $(pub(super) fn $name(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
            let tensors = inputs.many()?;
            Ok(vec![fold(&mut b.cx, &tensors, $function)?.into()])
        })+
    };
}

merges! {
    add = Binary::Add;
}

pub(super) fn multiply(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let tensors = inputs.many()?;
    let wide = masks_beside(&mut b.cx, &tensors)?;
    if wide.iter().all(Option::is_none) {
        return Ok(vec![fold(&mut b.cx, &tensors, Binary::Mul)?.into()]);
    }
    let cx = &mut b.cx;
    // What is masked in one factor counts as 1, what is masked in all gives 0.
    let (mut product, mut left) = (None, None);
    for (x, mask) in aligned(cx, &tensors)?.into_iter().zip(&wide) {
        let x = match mask {
            None => x,
            Some(mask) => {
                let ty = cx.g.ty(x).clone();
                let one = cx.g.full(ty.dtype, 1.0, &ty.shape)?;
                left = Some(joined(cx, Binary::Or, left, *mask)?);
                cx.g.select(*mask, x, one)?
            }
        };
        product = Some(joined(cx, Binary::Mul, product, x)?);
    }
    let product = product.ok_or_else(|| misfit("takes at least one tensor"))?;
    match left {
        Some(left) if wide.iter().all(Option::is_some) => {
            let ty = cx.g.ty(product).clone();
            let (left, zero) = (cx.g.broadcast_to(left, &ty.shape)?, cx.g.full(ty.dtype, 0.0, &ty.shape)?);
            Ok(vec![cx.g.select(left, product, zero)?.into()])
        }
        _ => Ok(vec![product.into()]),
    }
}

pub(super) fn maximum(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    extreme(&mut b.cx, inputs, Binary::Max)
}

pub(super) fn minimum(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    extreme(&mut b.cx, inputs, Binary::Min)
}

/// From left to right; a masked side takes the other's value, the left one only while everything before it is masked.
fn extreme(cx: &mut Cx, inputs: &Inputs, function: Binary) -> Out {
    let tensors = inputs.many()?;
    let wide = masks_beside(cx, &tensors)?;
    let mut parts = aligned(cx, &tensors)?.into_iter().zip(wide);
    let (mut before, mut left) = parts.next().ok_or_else(|| misfit("takes at least one tensor"))?;
    for (x, mask) in parts {
        let x = match mask {
            None => x,
            Some(mask) => chosen(cx, mask, x, before)?,
        };
        if let Some(left) = left {
            before = chosen(cx, left, before, x)?;
        }
        left = match (left, mask) {
            (Some(left), Some(mask)) => Some(joined(cx, Binary::Or, Some(left), mask)?),
            (Some(_) | None, _) => None,
        };
        before = cx.g.binary_broadcast(function, before, x)?;
    }
    Ok(vec![before.into()])
}

/// The first where the mask is true, else the second; all three broadcast.
fn chosen(cx: &mut Cx, mask: Value, yes: Value, no: Value) -> Out<Value> {
    let (yes, no) = cx.g.broadcast_pair(yes, no)?;
    let shape = cx.g.shape(yes).clone();
    let mask = cx.g.broadcast_to(mask, &shape)?;
    Ok(cx.g.select(mask, yes, no)?)
}

fn joined(cx: &mut Cx, function: Binary, before: Option<Value>, x: Value) -> Out<Value> {
    match before {
        None => Ok(x),
        Some(before) => Ok(cx.g.binary_broadcast(function, before, x)?),
    }
}

/// The masks that change values, at every feature. Only Keras 3 heeds them, and not those of tensors of lower rank, which
/// it reshapes first.
fn masks_beside(cx: &mut Cx, tensors: &[T]) -> Out<Vec<Option<Value>>> {
    let rank = tensors.iter().map(|t| cx.rank(t.value)).max().unwrap_or(0);
    let mut wide = Vec::new();
    for t in tensors {
        let heeded = cx.generation == Generation::Three && cx.rank(t.value) == rank;
        let shape = cx.g.shape(t.value).clone();
        wide.push(match t.mask {
            Some(mask) if heeded => Some(spread(cx, mask, &shape)?),
            Some(_) | None => None,
        });
    }
    Ok(wide)
}

/// Keras inserts dimensions of extent 1 behind the batch of inputs of lower rank.
fn aligned(cx: &mut Cx, tensors: &[T]) -> Out<Vec<Value>> {
    let rank = tensors.iter().map(|t| cx.rank(t.value)).max().unwrap_or(0);
    let dtype = common(cx, tensors.iter().map(|t| t.value));
    let mut out = Vec::new();
    for t in tensors {
        let mut dims = cx.dims(t.value);
        let missing = rank - dims.len();
        if !dims.is_empty() {
            dims.splice(1..1, std::iter::repeat_n(1, missing));
        }
        let x = cx.g.reshape(t.value, &Shape::from(dims))?;
        out.push(cx.g.cast(dtype, x)?);
    }
    Ok(out)
}

/// The type operands of several types have in common: a float before an integer, else the widest.
pub(super) fn common(cx: &Cx, values: impl IntoIterator<Item = Value>) -> DType {
    let rank = |d: DType| (d.is_float(), d != DType::Bool, d.size());
    let types: Vec<DType> = values.into_iter().map(|v| cx.g.ty(v).dtype).collect();
    match types.iter().copied().max_by_key(|d| rank(*d)) {
        // Neither of the two holds the other's values.
        Some(DType::F16 | DType::BF16) if types.contains(&DType::F16) && types.contains(&DType::BF16) => DType::F32,
        Some(dtype) => dtype,
        None => DType::F32,
    }
}

fn fold(cx: &mut Cx, tensors: &[T], function: Binary) -> Out<Value> {
    let values = aligned(cx, tensors)?;
    let mut joined = values[0];
    for value in &values[1..] {
        joined = cx.g.binary_broadcast(function, joined, *value)?;
    }
    Ok(joined)
}

pub(super) fn subtract(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let tensors = inputs.many()?;
    if tensors.len() != 2 {
        return Err(misfit(format!("takes two tensors, {} are given", tensors.len())));
    }
    let value = fold(&mut b.cx, &tensors, Binary::Sub)?;
    Ok(vec![value.into()])
}

pub(super) fn average(b: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    let tensors = inputs.many()?;
    let cx = &mut b.cx;
    let sum = fold(cx, &tensors, Binary::Add)?;
    // Integers have a mean between them.
    let sum = if cx.g.ty(sum).dtype.is_float() { sum } else { cx.floating(sum)? };
    let ty = cx.g.ty(sum).clone();
    let n = cx.g.full(ty.dtype, tensors.len() as f64, &ty.shape)?;
    let value = cx.g.div(sum, n)?;
    Ok(vec![value.into()])
}

pub(super) fn concatenate(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let tensors = inputs.many()?;
    let axis = fields.int_or("axis", -1)?;
    let cx = &mut b.cx;
    let rank = cx.rank(tensors[0].value);
    let dim = cx.axis(axis, rank)?;
    let dtype = common(cx, tensors.iter().map(|t| t.value));
    let values = tensors.iter().map(|t| Ok(cx.g.cast(dtype, t.value)?)).collect::<Out<Vec<_>>>()?;
    let value = cx.g.push(Concat { dim }, &values)?;
    Ok(vec![value.into()])
}

/// inputs[0] + inputs[1]·scale.
pub(super) fn custom_scale(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let scale = fields.require("scale")?.f64()?;
    let tensors = inputs.many()?;
    let &[x, y] = tensors.as_slice() else {
        return Err(misfit(format!("takes two tensors, {} are given", tensors.len())));
    };
    let cx = &mut b.cx;
    let ty = cx.g.ty(y.value).clone();
    let scale = cx.g.full(ty.dtype, scale, &ty.shape)?;
    let scaled = cx.g.mul(y.value, scale)?;
    Ok(vec![cx.g.add(x.value, scaled)?.into()])
}

/// Contracts one dimension of each of two tensors per row; what is left of the first comes before what is left of the second.
pub(super) fn dot(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let tensors = inputs.many()?;
    let &[x, y] = tensors.as_slice() else {
        return Err(misfit(format!("takes two tensors, {} are given", tensors.len())));
    };
    let axes = fields.opt_any(&["axes", "dot_axes"]);
    let axes = axes.ok_or_else(|| misfit("has no `axes`"))?;
    let axes = axes.one_or_many().iter().map(At::int).collect::<Result<Vec<_>, _>>()?;
    let normalize = fields.bool_or("normalize", false)?;
    let cx = &mut b.cx;
    let (mut x, mut y) = (x.value, y.value);
    let (rank_x, rank_y) = (cx.rank(x), cx.rank(y));
    let (ax, ay) = match axes.as_slice() {
        [both] => (*both, *both),
        [ax, ay] => (*ax, *ay),
        _ => return Err(misfit("contracts one dimension of each tensor")),
    };
    let (ax, ay) = (cx.axis(ax, rank_x)?, cx.axis(ay, rank_y)?);
    if ax == 0 || ay == 0 {
        return Err(misfit("does not contract the batch"));
    }
    if normalize {
        x = l2_normalized(cx, x, &[ax])?;
        y = l2_normalized(cx, y, &[ay])?;
    }
    let z = cx.g.push(Contract { batch: vec![(0, 0)], contract: vec![(ax, ay)] }, &[x, y])?;
    // Two vectors per row give a column.
    let z = if cx.rank(z) == 1 {
        let rows = cx.dims(z)[0];
        cx.g.reshape(z, &Shape::from([rows, 1]))?
    } else {
        z
    };
    Ok(vec![z.into()])
}
