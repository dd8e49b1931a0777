//! Operations that move elements, and those that make tensors of them.

use intwain_ir::ops::{Concat, Iota, Pad, Reverse};
use intwain_ir::scalar::Compare;
use intwain_ir::{DType, Scalar, Shape, Value};

use super::args::{Call, Operand, integer, integers, joined, operations, stacked, table};
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, misfit, unsupported};
use crate::frontend::layers::inputs::Item;
use crate::frontend::layers::shape::resolve;

operations! {
    identity = |c| {
        c.irrelevant(&["sparse", "ragged", "dtype_hint"]);
        let x = c.tensor(0, "x")?;
        let dtype = c.dtype("dtype")?.unwrap_or(c.cx.g.ty(x).dtype);
        Ok(c.cx.g.cast(dtype, x)?)
    };
    cast = |c| {
        let dtype = c.dtype("dtype")?.ok_or_else(|| misfit("has no dtype"))?;
        let x = c.tensor(0, "x")?;
        Ok(c.cx.g.cast(dtype, x)?)
    };
    saturate_cast = |c| {
        let dtype = c.dtype("dtype")?.ok_or_else(|| misfit("has no dtype"))?;
        let x = c.tensor(0, "x")?;
        // Casts of floats saturate; an integer goes by way of f64, which holds those of 32 bits.
        let x = if dtype.is_int() { c.cx.g.cast(DType::F64, x)? } else { x };
        Ok(c.cx.g.cast(dtype, x)?)
    };
    reshape = |c| reshaped(c);
    ravel = |c| {
        let x = c.tensor(0, "x")?;
        let n = c.cx.g.shape(x).elements();
        Ok(c.cx.g.reshape(x, &Shape::from([n]))?)
    };
    transpose = |c| {
        let x = c.tensor(0, "x")?;
        c.neutral("conjugate", &[Json::Bool(false)])?;
        let rank = c.cx.rank(x);
        let perm = c.dims("axes", rank)?.unwrap_or_else(|| (0..rank).rev().collect());
        Ok(c.cx.g.transpose(x, &perm)?)
    };
    swapaxes = |c| {
        let x = c.tensor(0, "x")?;
        let rank = c.cx.rank(x);
        let axis = |c: &mut Call<'_>, key| -> Out<usize> {
            let a = c.int(key)?.ok_or_else(|| misfit("lacks an axis"))?;
            c.cx.axis(a, rank)
        };
        let (a, b) = (axis(c, "axis1")?, axis(c, "axis2")?);
        let mut perm: Vec<usize> = (0..rank).collect();
        perm.swap(a, b);
        Ok(c.cx.g.transpose(x, &perm)?)
    };
    matrix_transpose = |c| {
        let x = c.tensor(0, "x")?;
        c.neutral("conjugate", &[Json::Bool(false)])?;
        let mut perm: Vec<usize> = (0..c.cx.rank(x)).collect();
        let n = perm.len();
        if n < 2 {
            return Err(misfit("transposes matrices"));
        }
        perm.swap(n - 2, n - 1);
        Ok(c.cx.g.transpose(x, &perm)?)
    };
    moveaxis = |c| {
        let x = c.tensor(0, "x")?;
        let rank = c.cx.rank(x);
        let lacks = || misfit("lacks an axis");
        let from = c.dims("source", rank)?.ok_or_else(lacks)?;
        let to = c.dims("destination", rank)?.ok_or_else(lacks)?;
        let mut perm: Vec<usize> = (0..rank).filter(|d| !from.contains(d)).collect();
        let mut moves: Vec<(usize, usize)> = to.into_iter().zip(from).collect();
        moves.sort_unstable();
        for (to, from) in moves {
            perm.insert(to.min(perm.len()), from);
        }
        Ok(c.cx.g.transpose(x, &perm)?)
    };
    expand_dims = |c| {
        let x = c.tensor(0, "x")?;
        let axes = c.ints("axis")?.ok_or_else(|| misfit("has no axis"))?;
        let mut shape = c.cx.dims(x);
        let rank = shape.len() + axes.len();
        let mut dims = axes.iter().map(|&a| c.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
        dims.sort_unstable();
        dims.iter().for_each(|&d| shape.insert(d, 1));
        Ok(c.cx.g.reshape(x, &Shape::from(shape))?)
    };
    squeeze = |c| {
        let x = c.tensor(0, "x")?;
        let shape = c.cx.dims(x);
        let axes = c.dims("axis", shape.len())?.filter(|axes| !axes.is_empty());
        let gone = axes.unwrap_or_else(|| (0..shape.len()).filter(|&d| shape[d] == 1).collect());
        if let Some(&d) = gone.iter().find(|&&d| shape[d] != 1) {
            return Err(misfit(format!("dimension {d} has {} elements and cannot be dropped", shape[d])));
        }
        let kept: Vec<usize> = (0..shape.len()).filter(|d| !gone.contains(d)).map(|d| shape[d]).collect();
        Ok(c.cx.g.reshape(x, &Shape::from(kept))?)
    };
    flip = |c| {
        let x = c.tensor(0, "x")?;
        let rank = c.cx.rank(x);
        let dims = c.dims("axis", rank)?.unwrap_or_else(|| (0..rank).collect());
        Ok(c.cx.g.push(Reverse { dims }, &[x])?)
    };
    flip_left_right = |c| { let x = c.tensor(0, "x")?; Ok(c.cx.g.push(Reverse { dims: vec![1] }, &[x])?) };
    flip_up_down = |c| { let x = c.tensor(0, "x")?; Ok(c.cx.g.push(Reverse { dims: vec![0] }, &[x])?) };
    roll = |c| rolled(c);
    rot_90 = |c| {
        let x = c.tensor(0, "array")?;
        let rank = c.cx.rank(x);
        let k = c.int("k")?.unwrap_or(1).rem_euclid(4);
        let axes = c.dims("axes", rank)?.unwrap_or_else(|| vec![0, 1]);
        let &[a, b] = axes.as_slice() else { return Err(misfit("turns two axes")) };
        let mut y = x;
        for _ in 0..k {
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(a, b);
            y = c.cx.g.transpose(y, &perm)?;
            y = c.cx.g.push(Reverse { dims: vec![a] }, &[y])?;
        }
        Ok(y)
    };
    repeat = |c| repeated(c);
    tile = |c| tiled(c);
    broadcast_to = |c| {
        let x = c.tensor(0, "x")?;
        let wanted = c.ints("shape")?.ok_or_else(|| misfit("has no shape"))?;
        let dims = c.cx.dims(x);
        let skip = wanted.len().checked_sub(dims.len());
        let skip = skip.ok_or_else(|| misfit(format!("{dims:?} does not broadcast to {wanted:?}")))?;
        let shape = extents(&wanted, |d| d.checked_sub(skip).map(|d| dims[d]))?;
        Ok(c.cx.g.broadcast_to(x, &Shape::from(shape))?)
    };
    concatenate = |c| {
        let axis = c.int("axis")?.unwrap_or(0);
        let values = c.many("xs")?;
        let dim = c.cx.axis(axis, c.cx.rank(values[0]))?;
        joined(c.cx, &values, dim)
    };
    append = |c| {
        let (x, y) = c.pair()?;
        let (x, y, dim) = match c.int("axis")? {
            Some(axis) => (x, y, c.cx.axis(axis, c.cx.rank(x))?),
            None => {
                let flat = |c: &mut Call<'_>, x| { let n = c.cx.g.shape(x).elements(); c.cx.g.reshape(x, &Shape::from([n])) };
                (flat(c, x)?, flat(c, y)?, 0)
            }
        };
        Ok(c.cx.g.push(Concat { dim }, &[x, y])?)
    };
    stack = |c| { let axis = c.int("axis")?.unwrap_or(0); let values = c.many("xs")?; stacked(c.cx, &values, axis) };
    hstack = |c| side_by_side(c, 1, 1);
    vstack = |c| side_by_side(c, 2, 0);
    dstack = |c| side_by_side(c, 3, 2);
    unstack = |c| {
        let x = c.tensor(0, "x")?;
        let rank = c.cx.rank(x);
        let dim = c.dim_or("axis", 0, rank)?.ok_or_else(|| misfit("has no axis"))?;
        c.irrelevant(&["num"]);
        let mut shape = c.cx.dims(x);
        let n = shape.remove(dim);
        let mut parts = Vec::new();
        for i in 0..n {
            let part = c.cx.g.slice_dim(x, dim, i..i + 1)?;
            parts.push(c.cx.g.reshape(part, &Shape::from(shape.clone()))?);
        }
        Ok(parts)
    };
    split = |c| { let dim = split_dim(c)?; split_along(c, dim, Rest::Refused) };
    array_split = |c| { let dim = split_dim(c)?; split_along(c, dim, Rest::Spread) };
    hsplit = |c| { let dim = usize::from(rank_of(c)? > 1); split_along(c, dim, Rest::Refused) };
    vsplit = |c| split_along(c, 0, Rest::Refused);
    dsplit = |c| split_along(c, 2, Rest::Refused);
    pad = |c| padded(c);
    zeros_like = |c| filled_like(c, Some(0.0));
    ones_like = |c| filled_like(c, Some(1.0));
    full_like = |c| filled_like(c, None);
    zeros = |c| filled(c, Some(0.0));
    ones = |c| filled(c, Some(1.0));
    full = |c| filled(c, None);
    shape = |c| {
        let x = c.tensor(0, "x")?;
        let dtype = c.dtype("out_type")?.unwrap_or(DType::I32);
        let dims: Vec<Scalar> = c.cx.dims(x).into_iter().map(|d| Scalar::from_i64(dtype, d as i64)).collect();
        let n = dims.len();
        let shape = table(c.cx, &dims, dtype, &Shape::from([n]))?;
        c.cx.extents.push(shape);
        Ok(shape)
    };
    size = |c| {
        let x = c.tensor(0, "x")?;
        let dtype = c.dtype("out_type")?.unwrap_or(DType::I32);
        let n = c.cx.g.shape(x).elements();
        let size = table(c.cx, &[Scalar::from_i64(dtype, n as i64)], dtype, &Shape::from([0usize; 0]))?;
        c.cx.extents.push(size);
        Ok(size)
    };
    ndim = |c| {
        let x = c.tensor(0, "x")?;
        let n = c.cx.rank(x);
        table(c.cx, &[Scalar::from_i64(DType::I32, n as i64)], DType::I32, &Shape::from([0usize; 0]))
    };
    arange = |c| ranged(c);
    linspace = |c| {
        c.neutral("retstep", &[Json::Bool(false)])?;
        let endpoint = c.attr("endpoint")? != Some(Json::Bool(false));
        let n = c.count("num")?.unwrap_or(50);
        let axis = c.int("axis")?.unwrap_or(0);
        let (start, stop) = (c.floating(0, "start")?, c.floating(1, "stop")?);
        let (start, stop) = c.cx.g.broadcast_pair(start, stop)?;
        let gaps = if endpoint { n.saturating_sub(1) } else { n }.max(1) as f64;
        let step = c.cx.g.sub(stop, start)?;
        let mut points = Vec::new();
        for i in 0..n {
            let at = super::arith::scaled(c, step, i as f64 / gaps)?;
            points.push(c.cx.g.add(start, at)?);
        }
        if points.is_empty() {
            return Err(unsupported("a range of no numbers"));
        }
        stacked(c.cx, &points, axis)
    };
    eye = |c| {
        let n = c.count("N")?.ok_or_else(|| misfit("has no size"))?;
        let m = c.count("M")?.unwrap_or(n);
        let k = c.int("k")?.unwrap_or(0);
        let dtype = c.dtype("dtype")?.unwrap_or(c.float());
        let on = band(c, &Shape::from([n, m]), Compare::Eq, k)?;
        Ok(c.cx.g.cast(dtype, on)?)
    };
    tril = |c| triangle(c, Compare::Le);
    triu = |c| triangle(c, Compare::Ge);
    meshgrid = |c| {
        let indexing = c.text("indexing")?.unwrap_or_else(|| "xy".to_string());
        let n = c.inputs.args.len();
        let mut values = Vec::new();
        for i in 0..n {
            let x = c.tensor(i, "x")?;
            values.push(x);
        }
        let mut dims: Vec<usize> = (0..n).collect();
        if indexing == "xy" && n > 1 {
            dims.swap(0, 1);
        }
        let mut shape = vec![1; n];
        for (i, &x) in values.iter().enumerate() {
            shape[dims[i]] = c.cx.g.shape(x).elements();
        }
        let shape = Shape::from(shape);
        let mut out = Vec::new();
        for (i, x) in values.into_iter().enumerate() {
            let n = c.cx.g.shape(x).elements();
            let flat = c.cx.g.reshape(x, &Shape::from([n]))?;
            out.push(c.cx.g.broadcast(flat, &shape, &[dims[i]])?);
        }
        Ok(out)
    };
}

fn rank_of(c: &mut Call<'_>) -> Out<usize> {
    let x = c.tensor(0, "x")?;
    Ok(c.cx.rank(x))
}

/// Extents of a shape; −1 stands for what `open` says.
pub(super) fn extents(wanted: &[i64], open: impl Fn(usize) -> Option<usize>) -> Out<Vec<usize>> {
    let one = |(d, &n): (usize, &i64)| if n == -1 { open(d) } else { usize::try_from(n).ok() };
    let all: Option<Vec<usize>> = wanted.iter().enumerate().map(one).collect();
    all.ok_or_else(|| misfit(format!("the shape {wanted:?}")))
}

/// An open batch is written as null, and stays what it is beside a −1.
fn reshaped(c: &mut Call<'_>) -> Out<Value> {
    let wanted = c.attr("newshape")?.ok_or_else(|| misfit("has no new shape"))?;
    let x = c.tensor(0, "x")?;
    let dims = c.cx.dims(x);
    let listed = match &wanted {
        Json::Array(items) => items.clone(),
        one => vec![one.clone()],
    };
    let free = listed.iter().any(|d| d.as_int() == Some(-1));
    let target = |(d, json): (usize, &Json)| match json {
        Json::Null if free => dims.get(d).map(|&n| n as i64),
        Json::Null => Some(-1),
        other => other.as_int(),
    };
    let target: Option<Vec<i64>> = listed.iter().enumerate().map(target).collect();
    let shape = target.and_then(|t| resolve(&t, dims.iter().product()));
    let shape = shape.ok_or_else(|| misfit(format!("{dims:?} does not reshape to {wanted}")))?;
    Ok(c.cx.g.reshape(x, &Shape::from(shape))?)
}

fn rolled(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let shifts = c.ints("shift")?.ok_or_else(|| misfit("has no shift"))?;
    let shape = c.cx.g.shape(x).clone();
    let (mut y, dims) = match c.dims("axis", shape.len())? {
        Some(dims) => (x, dims),
        None => (c.cx.g.reshape(x, &Shape::from([shape.elements()]))?, vec![0]),
    };
    for (i, &dim) in dims.iter().enumerate() {
        let shift = if shifts.len() == 1 { Some(&shifts[0]) } else { shifts.get(i) };
        let shift = *shift.ok_or_else(|| misfit("has fewer shifts than axes"))?;
        let n = c.cx.dims(y)[dim];
        let cut = if n == 0 { 0 } else { (-shift).rem_euclid(n as i64) as usize };
        if cut > 0 {
            let (front, back) = (c.cx.g.slice_dim(y, dim, 0..cut)?, c.cx.g.slice_dim(y, dim, cut..n)?);
            y = c.cx.g.push(Concat { dim }, &[back, front])?;
        }
    }
    Ok(c.cx.g.reshape(y, &shape)?)
}

fn repeated(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let times = c.ints("repeats")?.ok_or_else(|| misfit("has no repeats"))?;
    let rank = c.cx.rank(x);
    let (x, dim) = match c.dims("axis", rank)? {
        Some(dims) if dims.len() == 1 => (x, dims[0]),
        Some(_) => return Err(misfit("repeats along one axis")),
        None => {
            let n = c.cx.g.shape(x).elements();
            (c.cx.g.reshape(x, &Shape::from([n]))?, 0)
        }
    };
    let shape = c.cx.dims(x);
    let count = |n: i64| usize::try_from(n).map_err(|_| misfit(format!("{n} repeats")));
    if let [n] = times.as_slice() {
        let n = count(*n)?;
        let mut wide = shape.clone();
        wide.insert(dim + 1, n);
        let places: Vec<usize> = (0..shape.len()).map(|d| if d <= dim { d } else { d + 1 }).collect();
        let y = c.cx.g.broadcast(x, &Shape::from(wide), &places)?;
        return Ok(c.cx.g.reshape(y, &Shape::from(shape).with(dim, c.cx.dims(x)[dim] * n))?);
    }
    if times.len() != shape[dim] {
        return Err(misfit(format!("{} repeats for {} elements", times.len(), shape[dim])));
    }
    let mut parts = Vec::new();
    for (i, &n) in times.iter().enumerate() {
        if n != 0 {
            let part = c.cx.g.slice_dim(x, dim, i..i + 1)?;
            let wide = Shape::from(shape.clone()).with(dim, count(n)?);
            parts.push(c.cx.g.broadcast_to(part, &wide)?);
        }
    }
    match parts.is_empty() {
        true => Ok(c.cx.g.slice_dim(x, dim, 0..0)?),
        false => joined(c.cx, &parts, dim),
    }
}

fn tiled(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let times = c.ints("repeats")?.ok_or_else(|| misfit("has no repeats"))?;
    let mut dims = c.cx.dims(x);
    let rank = dims.len().max(times.len());
    dims.splice(0..0, vec![1; rank - dims.len()]);
    let mut all = vec![1i64; rank - times.len()];
    all.extend(times);
    let all = extents(&all, |_| None)?;
    // Every dimension gets one in front of it, along which it is repeated.
    let wide: Vec<usize> = all.iter().zip(&dims).flat_map(|(&t, &d)| [t, d]).collect();
    let places: Vec<usize> = (0..rank).map(|d| 2 * d + 1).collect();
    let y = c.cx.g.reshape(x, &Shape::from(dims.clone()))?;
    let y = c.cx.g.broadcast(y, &Shape::from(wide), &places)?;
    let shape: Vec<usize> = all.iter().zip(&dims).map(|(t, d)| t * d).collect();
    Ok(c.cx.g.reshape(y, &Shape::from(shape))?)
}

/// `hstack` and its kin: ranks are raised to `least` first.
fn side_by_side(c: &mut Call<'_>, least: usize, axis: usize) -> Out<Value> {
    let values = c.many("xs")?;
    let mut raised = Vec::new();
    for v in values {
        let dims = c.cx.dims(v);
        let dims = match (least, dims.as_slice()) {
            (1, []) => vec![1],
            (2, []) => vec![1, 1],
            (2, [n]) => vec![1, *n],
            (3, []) => vec![1, 1, 1],
            (3, [n]) => vec![1, *n, 1],
            (3, [m, n]) => vec![*m, *n, 1],
            _ => dims,
        };
        raised.push(c.cx.g.reshape(v, &Shape::from(dims))?);
    }
    let dim = if least == 1 && c.cx.rank(raised[0]) == 1 { 0 } else { axis };
    joined(c.cx, &raised, dim)
}

fn split_dim(c: &mut Call<'_>) -> Out<usize> {
    let rank = rank_of(c)?;
    c.dim_or("axis", 0, rank)?.ok_or_else(|| misfit("has no axis"))
}

/// What becomes of elements that do not divide evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Refused,
    Spread,
}

fn split_along(c: &mut Call<'_>, dim: usize, rest: Rest) -> Out<Vec<Value>> {
    let x = c.tensor(0, "x")?;
    let n = *c.cx.dims(x).get(dim).ok_or_else(|| misfit(format!("has no dimension {dim}")))?;
    // TensorFlow lists sizes where Keras lists positions.
    let sizes = c.attr("size_splits")?;
    let ends: Vec<usize> = match (sizes, c.attr("indices_or_sections")?) {
        (Some(Json::Array(items)), _) => {
            let sizes = items.iter().map(integer).collect::<Out<Vec<_>>>()?;
            let known: i64 = sizes.iter().filter(|&&s| s >= 0).sum();
            let sizes = extents(&sizes, |_| usize::try_from(n as i64 - known).ok())?;
            sizes
                .iter()
                .scan(0, |end, s| {
                    *end += s;
                    Some(*end)
                })
                .collect()
        }
        (Some(sections), _) | (None, Some(sections @ (Json::Int(_) | Json::Float(_)))) => {
            let parts = usize::try_from(integer(&sections)?).unwrap_or(0);
            if parts == 0 || (rest == Rest::Refused && !n.is_multiple_of(parts)) {
                return Err(misfit(format!("{n} elements do not split into {parts} parts")));
            }
            (1..=parts).map(|i| i * (n / parts) + i.min(n % parts)).collect()
        }
        (None, Some(positions)) => {
            let at = |&i: &i64| if i < 0 { (i + n as i64).max(0) as usize } else { (i as usize).min(n) };
            integers(&positions)?.iter().map(at).chain([n]).collect()
        }
        (None, None) => return Err(misfit("does not say into what it splits")),
    };
    if ends.last() != Some(&n) {
        return Err(misfit(format!("parts that end at {ends:?} of {n} elements")));
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for end in ends {
        parts.push(c.cx.g.slice_dim(x, dim, start.min(end)..end)?);
        start = end;
    }
    Ok(parts)
}

fn padded(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let ty = c.cx.g.ty(x).clone();
    let widths = c.attr("pad_width")?.ok_or_else(|| misfit("has no widths"))?;
    let pair = |json: &Json| -> Out<(i64, i64)> {
        match integers(json)?.as_slice() {
            [both] => Ok((*both, *both)),
            [low, high] => Ok((*low, *high)),
            _ => Err(misfit(format!("the edges {json}"))),
        }
    };
    let nested = |items: &[Json]| items.iter().any(|i| matches!(i, Json::Array(_)));
    let edges = match &widths {
        Json::Array(items) if nested(items) => items.iter().map(pair).collect::<Out<Vec<_>>>()?,
        one => vec![pair(one)?],
    };
    let edges = if edges.len() == 1 { vec![edges[0]; ty.rank()] } else { edges };
    if edges.len() != ty.rank() || edges.iter().any(|e| e.0 < 0 || e.1 < 0) {
        return Err(misfit(format!("the edges {widths} for {}", ty.shape)));
    }
    let mode = c.text("mode")?.unwrap_or_else(|| "constant".to_string()).to_lowercase();
    if mode == "constant" {
        let value = match c.maybe_operand(1, "constant_values")? {
            None => Scalar::zero(ty.dtype),
            Some(Operand::Number(json)) => {
                let value = super::args::number(&json).ok_or_else(|| unsupported("several values to pad with"))?;
                Scalar::from_f64(ty.dtype, value)
            }
            Some(Operand::Tensor(v)) => {
                let value = super::known::known(c.cx, v).as_ref().and_then(super::args::number);
                let value = value.ok_or_else(|| unsupported("a computed value to pad with"))?;
                Scalar::from_f64(ty.dtype, value)
            }
        };
        let (low, high) = edges.into_iter().unzip();
        return Ok(c.cx.g.push(Pad { low, high, interior: vec![0; ty.rank()], value: vec![value] }, &[x])?);
    }
    let mut y = x;
    for (dim, (low, high)) in edges.into_iter().enumerate() {
        y = mirrored(c, y, dim, low as usize, high as usize, &mode)?;
    }
    Ok(y)
}

/// Pads one dimension from its own elements.
fn mirrored(c: &mut Call<'_>, x: Value, dim: usize, low: usize, high: usize, mode: &str) -> Out<Value> {
    if low == 0 && high == 0 {
        return Ok(x);
    }
    let shape = c.cx.g.shape(x).clone();
    let n = shape[dim];
    let (before, after) = match mode {
        "edge" if n > 0 => {
            let (first, last) = (c.cx.g.slice_dim(x, dim, 0..1)?, c.cx.g.slice_dim(x, dim, n - 1..n)?);
            (c.cx.g.broadcast_to(first, &shape.with(dim, low))?, c.cx.g.broadcast_to(last, &shape.with(dim, high))?)
        }
        "wrap" if low <= n && high <= n => (c.cx.g.slice_dim(x, dim, n - low..n)?, c.cx.g.slice_dim(x, dim, 0..high)?),
        "reflect" | "symmetric" => {
            let skip = usize::from(mode == "reflect");
            if low + skip > n || high + skip > n {
                return Err(misfit(format!("padding {n} elements with {low} and {high} of their own")));
            }
            let (a, b) =
                (c.cx.g.slice_dim(x, dim, skip..skip + low)?, c.cx.g.slice_dim(x, dim, n - skip - high..n - skip)?);
            let dims = vec![dim];
            (c.cx.g.push(Reverse { dims: dims.clone() }, &[a])?, c.cx.g.push(Reverse { dims }, &[b])?)
        }
        other => return Err(unsupported(format!("padding in the mode `{other}` with these edges"))),
    };
    Ok(c.cx.g.push(Concat { dim }, &[before, x, after])?)
}

fn filled_like(c: &mut Call<'_>, number: Option<f64>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    c.irrelevant(&["optimize", "layout"]);
    let dtype = c.dtype("dtype")?.unwrap_or(c.cx.g.ty(x).dtype);
    let shape = c.cx.g.shape(x).clone();
    match number {
        Some(number) => Ok(c.cx.g.full(dtype, number, &shape)?),
        None => {
            let fill = c.operand(1, "fill_value")?;
            let fill = c.typed(&fill, dtype)?;
            Ok(c.cx.g.broadcast_to(fill, &shape)?)
        }
    }
}

fn filled(c: &mut Call<'_>, number: Option<f64>) -> Out<Value> {
    let shape = c.attr("shape")?.ok_or_else(|| misfit("has no shape"))?;
    let shape = Shape::from(extents(&integers(&shape)?, |_| None)?);
    c.irrelevant(&["layout"]);
    let dtype = c.dtype("dtype")?;
    match number {
        Some(number) => Ok(c.cx.g.full(dtype.unwrap_or(c.float()), number, &shape)?),
        None => {
            let fill = c.tensor(0, "fill_value")?;
            let fill = c.cx.g.cast(dtype.unwrap_or(c.cx.g.ty(fill).dtype), fill)?;
            Ok(c.cx.g.broadcast_to(fill, &shape)?)
        }
    }
}

fn ranged(c: &mut Call<'_>) -> Out<Value> {
    let bound = |c: &mut Call<'_>, position, name| c.constant_at(position, name);
    let first = bound(c, 0, "start")?.filter(|j| *j != Json::Null).ok_or_else(|| misfit("has no bound"))?;
    let second = bound(c, 1, "stop")?.filter(|j| *j != Json::Null);
    let step = bound(c, 2, "step")?.filter(|j| *j != Json::Null).unwrap_or(Json::Int(1));
    let (start, stop) = match second {
        Some(stop) => (first, stop),
        None => (Json::Int(0), first),
    };
    let whole = [&start, &stop, &step].iter().all(|j| matches!(j, Json::Int(_)));
    let value = |j: &Json| super::args::number(j).ok_or_else(|| misfit(format!("the bound {j}")));
    let (start, stop, step) = (value(&start)?, value(&stop)?, value(&step)?);
    if step == 0.0 {
        return Err(misfit("a step of 0"));
    }
    let n = ((stop - start) / step).ceil().max(0.0);
    let dtype = c.dtype("dtype")?.unwrap_or(if whole { DType::I32 } else { c.float() });
    if n > 1e9 {
        return Err(misfit(format!("a range of {n} elements")));
    }
    let shape = Shape::from([n as usize]);
    if step == 1.0 && start.fract() == 0.0 {
        return Ok(c.cx.g.push(Iota { dtype, shape, dim: 0, start: start as i64 }, &[])?);
    }
    let count = c.cx.g.push(Iota { dtype, shape, dim: 0, start: 0 }, &[])?;
    let scaled = super::arith::scaled(c, count, step)?;
    let start = c.like(scaled, start)?;
    Ok(c.cx.g.add(scaled, start)?)
}

/// Where column − row stands in a relation to k, in the last two dimensions.
pub(super) fn band(c: &mut Call<'_>, shape: &Shape, relation: Compare, k: i64) -> Out<Value> {
    let rank = shape.len();
    if rank < 2 {
        return Err(misfit("takes matrices"));
    }
    let column = Iota { dtype: DType::I32, shape: shape.clone(), dim: rank - 1, start: 0 };
    let row = Iota { dtype: DType::I32, shape: shape.clone(), dim: rank - 2, start: k };
    let (column, row) = (c.cx.g.push(column, &[])?, c.cx.g.push(row, &[])?);
    Ok(c.cx.g.compare(relation, column, row)?)
}

fn triangle(c: &mut Call<'_>, relation: Compare) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let k = c.int("k")?.unwrap_or(0);
    let shape = c.cx.dims(x);
    let square = Shape::from(&shape[shape.len().saturating_sub(2)..]);
    let on = band(c, &square, relation, k)?;
    let on = c.cx.g.broadcast_to(on, &Shape::from(shape))?;
    let zero = c.like(x, 0.0)?;
    Ok(c.cx.g.select(on, x, zero)?)
}

/// The items of a list argument, where it is one.
pub(super) fn listed(item: &Item) -> Vec<Item> {
    match item {
        Item::List(items) => items.clone(),
        Item::Const(Json::Array(items)) => items.iter().cloned().map(Item::Const).collect(),
        other => vec![other.clone()],
    }
}
