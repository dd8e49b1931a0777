//! Elements by position: slices, rows, scattered updates.

use intwain_ir::ops::{Iota, Pad, Reverse, ScatterAdd, Slice, Take};
use intwain_ir::scalar::{Compare, Reduce};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::args::{Call, Operand, constant, integers, operations};
use super::known::known;
use super::shaping::{extents, listed};
use super::types::Kind;
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, misfit, unsupported};
use crate::frontend::layers::inputs::Item;

operations! {
    get_item = |c| {
        let x = c.tensor(0, "x")?;
        let key = c.inputs.get(1, "key").cloned().ok_or_else(|| misfit("is called without `key`"))?;
        indexed(c, x, &listed(&key))
    };
    take = |c| {
        let (x, at) = (c.tensor(0, "x")?, positions(c, 1, "indices")?);
        c.irrelevant(&["validate_indices"]);
        let batch = c.count("batch_dims")?.unwrap_or(0);
        let rank = c.cx.rank(x);
        if batch > 0 {
            let axis = c.int("axis")?.unwrap_or(batch as i64);
            return match (batch, c.cx.axis(axis, rank)?) {
                (1, 1) => gathered_in_batch(c, x, at),
                _ => Err(unsupported(format!("gathering with {batch} batch dimensions along axis {axis}"))),
            };
        }
        match c.dims("axis", rank)? {
            Some(dims) if dims.len() == 1 => taken(c, x, at, dims[0]),
            Some(_) => Err(misfit("takes along one axis")),
            None => {
                let n = c.cx.g.shape(x).elements();
                let flat = c.cx.g.reshape(x, &Shape::from([n]))?;
                taken(c, flat, at, 0)
            }
        }
    };
    take_along_axis = |c| {
        let (x, at) = (c.tensor(0, "x")?, positions(c, 1, "indices")?);
        let rank = c.cx.rank(x);
        match c.dims("axis", rank)? {
            Some(dims) if dims.len() == 1 => along(c, x, at, dims[0]),
            Some(_) => Err(misfit("takes along one axis")),
            None => {
                let flat = |c: &mut Call<'_>, v| { let n = c.cx.g.shape(v).elements(); c.cx.g.reshape(v, &Shape::from([n])) };
                let (x, at) = (flat(c, x)?, flat(c, at)?);
                along(c, x, at, 0)
            }
        }
    };
    slice = |c| {
        let x = c.tensor(0, "inputs")?;
        let start = c.constant_at(1, "start_indices")?.ok_or_else(|| misfit("has no start"))?;
        let start = extents(&integers(&start)?, |_| None)?;
        let shape = c.ints("shape")?.ok_or_else(|| misfit("has no shape"))?;
        let dims = c.cx.dims(x);
        let shape = extents(&shape, |d| dims.get(d)?.checked_sub(*start.get(d)?))?;
        let limit = start.iter().zip(&shape).map(|(a, n)| a + n).collect();
        Ok(c.cx.g.push(Slice { start, limit, stride: vec![1; dims.len()] }, &[x])?)
    };
    slice_update = |c| {
        let (x, updates) = (c.tensor(0, "inputs")?, c.tensor(2, "updates")?);
        let start = c.constant_at(1, "start_indices")?.ok_or_else(|| misfit("has no start"))?;
        let start = extents(&integers(&start)?, |_| None)?;
        let (dims, part) = (c.cx.dims(x), c.cx.dims(updates));
        if start.len() != dims.len() || part.len() != dims.len() {
            return Err(misfit("starts, updates and inputs of several ranks"));
        }
        let dtype = c.cx.g.ty(x).dtype;
        let updates = c.cx.g.cast(dtype, updates)?;
        let low: Vec<i64> = start.iter().map(|&s| s as i64).collect();
        let high: Vec<i64> = (0..dims.len()).map(|d| dims[d] as i64 - low[d] - part[d] as i64).collect();
        if high.iter().any(|&h| h < 0) {
            return Err(misfit("updates that reach beyond the inputs"));
        }
        let pad = |value| Pad { low: low.clone(), high: high.clone(), interior: vec![0; dims.len()], value: vec![value] };
        let here = c.cx.g.full(DType::Bool, 1.0, &Shape::from(part))?;
        let here = c.cx.g.push(pad(Scalar::zero(DType::Bool)), &[here])?;
        let wide = c.cx.g.push(pad(Scalar::zero(dtype)), &[updates])?;
        Ok(c.cx.g.select(here, wide, x)?)
    };
    scatter = |c| {
        let shape = c.ints("shape")?.ok_or_else(|| misfit("has no shape"))?;
        let shape = extents(&shape, |_| None)?;
        let (at, values) = (positions(c, 0, "indices")?, c.tensor(1, "values")?);
        scattered(c, at, values, &shape)
    };
    scatter_update = |c| {
        let (x, at, updates) = (c.tensor(0, "inputs")?, positions(c, 1, "indices")?, c.tensor(2, "updates")?);
        let dtype = c.cx.g.ty(x).dtype;
        let updates = c.cx.g.cast(dtype, updates)?;
        let shape = c.cx.dims(x);
        let unique = known(c.cx, at).is_some_and(|at| match at {
            Json::Array(items) => items.iter().enumerate().all(|(i, item)| !items[..i].contains(item)),
            _ => true,
        });
        let sum = scattered(c, at, updates, &shape)?;
        match c.text("reduction")?.as_deref() {
            Some("add") => Ok(c.cx.g.add(x, sum)?),
            None if unique => {
                let ty = c.cx.g.ty(updates).with_dtype(DType::I32);
                let ones = c.cx.g.full(DType::I32, 1.0, &ty.shape)?;
                let here = scattered(c, at, ones, &shape)?;
                let here = c.cx.g.cast(DType::Bool, here)?;
                Ok(c.cx.g.select(here, sum, x)?)
            }
            None => Err(unsupported("scattering to positions that may come twice")),
            Some(other) => Err(unsupported(format!("scattering with the reduction `{other}`"))),
        }
    };
    one_hot = |c| {
        let x = c.tensor(0, "x")?;
        let n = c.count("num_classes")?.ok_or_else(|| misfit("has no number of classes"))?;
        let dtype = c.dtype("dtype")?.unwrap_or(c.float());
        c.neutral("sparse", &[Json::Bool(false)])?;
        let axis = c.int("axis")?.unwrap_or(-1);
        let on = hot(c, x, n, axis)?;
        match (c.number("on_value")?, c.number("off_value")?) {
            (None | Some(1.0), None | Some(0.0)) => Ok(c.cx.g.cast(dtype, on)?),
            (yes, no) => {
                let shape = c.cx.g.shape(on).clone();
                let yes = c.cx.g.full(dtype, yes.unwrap_or(1.0), &shape)?;
                let no = c.cx.g.full(dtype, no.unwrap_or(0.0), &shape)?;
                Ok(c.cx.g.select(on, yes, no)?)
            }
        }
    };
    multi_hot = |c| {
        let x = c.tensor(0, "inputs")?;
        let n = match c.count("num_classes")? {
            Some(n) => n,
            None => c.count("num_tokens")?.ok_or_else(|| misfit("has no number of classes"))?,
        };
        let dtype = c.dtype("dtype")?.unwrap_or(c.float());
        c.neutral("sparse", &[Json::Bool(false)])?;
        c.neutral("axis", &[Json::Int(-1)])?;
        let on = hot(c, x, n, -1)?;
        let on = c.cx.g.cast(DType::U8, on)?;
        let rank = c.cx.rank(x);
        // Which classes occur behind the first dimension; a vector has one batch.
        let on = c.cx.g.reduce(Reduce::Max, on, &[usize::from(rank > 1)])?;
        Ok(c.cx.g.cast(dtype, on)?)
    };
    searchsorted = |c| {
        let side = c.text("side")?.unwrap_or_else(|| "left".to_string());
        let relation = if side == "left" { Compare::Lt } else { Compare::Le };
        let (sorted, values) = c.pair_of("sorted_sequence", "values")?;
        below(c, sorted, values, relation)
    };
    digitize = |c| {
        let (x, bins) = c.pair_of("x", "bins")?;
        below(c, bins, x, Compare::Le)
    };
    is_in = |c| {
        c.irrelevant(&["assume_unique"]);
        let invert = c.flag("invert")?;
        let (x, y) = c.pair()?;
        let n = c.cx.g.shape(y).elements();
        let y = c.cx.g.reshape(y, &Shape::from([n]))?;
        let found = below_mask(c, y, x, Compare::Eq)?;
        let last = c.cx.rank(found) - 1;
        let found = c.cx.g.cast(DType::U8, found)?;
        let found = c.cx.g.reduce(Reduce::Max, found, &[last])?;
        let zero = c.like(found, 0.0)?;
        Ok(c.cx.g.compare(if invert { Compare::Eq } else { Compare::Ne }, found, zero)?)
    };
}

/// Integers that say where.
fn positions(c: &mut Call<'_>, position: usize, name: &str) -> Out<Value> {
    match c.operand(position, name)? {
        Operand::Tensor(v) if c.cx.g.ty(v).dtype.is_int() => Ok(v),
        Operand::Tensor(v) => Ok(c.cx.g.cast(DType::I32, v)?),
        Operand::Number(json) => constant(c.cx, &json, DType::I32),
    }
}

/// Negative positions count from the end.
fn wrapped(c: &mut Call<'_>, at: Value, n: usize) -> Out<Value> {
    let (zero, extent) = (c.like(at, 0.0)?, c.like(at, n as f64)?);
    let negative = c.cx.g.compare(Compare::Lt, at, zero)?;
    let from_end = c.cx.g.add(at, extent)?;
    Ok(c.cx.g.select(negative, from_end, at)?)
}

/// Elements along a dimension, whose place the positions' dimensions take.
fn taken(c: &mut Call<'_>, x: Value, at: Value, dim: usize) -> Out<Value> {
    let (rank, ids) = (c.cx.rank(x), c.cx.rank(at));
    let n = c.cx.dims(x)[dim];
    let at = wrapped(c, at, n)?;
    let front: Vec<usize> = [dim].into_iter().chain((0..rank).filter(|d| *d != dim)).collect();
    let table = c.cx.g.transpose(x, &front)?;
    let y = c.cx.g.push(Take { base: 0 }, &[table, at])?;
    // ids.., then what was before and behind the dimension.
    let back: Vec<usize> = (ids..ids + dim).chain(0..ids).chain(ids + dim..ids + rank - 1).collect();
    Ok(c.cx.g.transpose(y, &back)?)
}

/// Of each row, the elements at the row's positions.
fn gathered_in_batch(c: &mut Call<'_>, x: Value, at: Value) -> Out<Value> {
    let (dims, ids) = (c.cx.dims(x), c.cx.dims(at));
    let n = dims[1];
    let at = wrapped(c, at, n)?;
    let k: usize = ids[1..].iter().product();
    let wide: Vec<usize> = [dims[0], k, n].into_iter().chain(dims[2..].iter().copied()).collect();
    let wide = Shape::from(wide);
    let at = c.cx.g.reshape(at, &Shape::from([dims[0], k]))?;
    let at = c.cx.g.broadcast(at, &wide, &[0, 1])?;
    let places: Vec<usize> = [0].into_iter().chain(2..dims.len() + 1).collect();
    let x = c.cx.g.broadcast(x, &wide, &places)?;
    let y = matching(c, x, at, 2)?;
    let shape: Vec<usize> = ids.iter().chain(&dims[2..]).copied().collect();
    Ok(c.cx.g.reshape(y, &Shape::from(shape))?)
}

/// The sum along a dimension of the elements whose position there is the one asked for.
fn matching(c: &mut Call<'_>, x: Value, at: Value, dim: usize) -> Out<Value> {
    let shape = c.cx.g.shape(x).clone();
    let dtype = c.cx.g.ty(at).dtype;
    let here = c.cx.g.push(Iota { dtype, shape, dim, start: 0 }, &[])?;
    let here = c.cx.g.compare(Compare::Eq, here, at)?;
    let original = c.cx.g.ty(x).dtype;
    let x = if original == DType::Bool { c.cx.g.cast(DType::U8, x)? } else { x };
    let zero = c.like(x, 0.0)?;
    let y = c.cx.g.select(here, x, zero)?;
    let y = c.cx.g.reduce(Reduce::Sum, y, &[dim])?;
    Ok(c.cx.g.cast(original, y)?)
}

fn along(c: &mut Call<'_>, x: Value, at: Value, dim: usize) -> Out<Value> {
    let (dims, ids) = (c.cx.dims(x), c.cx.dims(at));
    if dims.len() != ids.len() {
        return Err(misfit(format!("positions of rank {} in a tensor of rank {}", ids.len(), dims.len())));
    }
    let at = wrapped(c, at, dims[dim])?;
    // [.., positions, elements, ..]
    let mut wide: Vec<usize> = (0..dims.len()).map(|d| if dims[d] == 1 { ids[d] } else { dims[d] }).collect();
    wide[dim] = ids[dim];
    let mut x_shape = dims.clone();
    x_shape.insert(dim, 1);
    let mut at_shape = ids.clone();
    at_shape.insert(dim + 1, 1);
    wide.insert(dim + 1, dims[dim]);
    let wide = Shape::from(wide);
    let (x, at) = (c.cx.g.reshape(x, &Shape::from(x_shape))?, c.cx.g.reshape(at, &Shape::from(at_shape))?);
    let (x, at) = (c.cx.g.broadcast_to(x, &wide)?, c.cx.g.broadcast_to(at, &wide)?);
    matching(c, x, at, dim + 1)
}

/// Where the class of a new dimension is the element's.
fn hot(c: &mut Call<'_>, x: Value, classes: usize, axis: i64) -> Out<Value> {
    let x = if c.cx.g.ty(x).dtype.is_int() { x } else { c.cx.g.cast(DType::I32, x)? };
    let mut shape = c.cx.dims(x);
    let dim = c.cx.axis(axis, shape.len() + 1)?;
    let places: Vec<usize> = (0..shape.len()).map(|d| if d < dim { d } else { d + 1 }).collect();
    shape.insert(dim, classes);
    let shape = Shape::from(shape);
    let wide = c.cx.g.broadcast(x, &shape, &places)?;
    let dtype = c.cx.g.ty(x).dtype;
    let class = c.cx.g.push(Iota { dtype, shape, dim, start: 0 }, &[])?;
    Ok(c.cx.g.compare(Compare::Eq, wide, class)?)
}

/// Each value beside each element of a vector, which is a new last dimension.
fn below_mask(c: &mut Call<'_>, vector: Value, values: Value, relation: Compare) -> Out<Value> {
    let &[n] = c.cx.dims(vector).as_slice() else { return Err(misfit("a sorted sequence is a vector")) };
    let mut shape = c.cx.dims(values);
    let places: Vec<usize> = (0..shape.len()).collect();
    let last = shape.len();
    shape.push(n);
    let shape = Shape::from(shape);
    let (values, vector) = (c.cx.g.broadcast(values, &shape, &places)?, c.cx.g.broadcast(vector, &shape, &[last])?);
    Ok(c.cx.g.compare(relation, vector, values)?)
}

fn below(c: &mut Call<'_>, vector: Value, values: Value, relation: Compare) -> Out<Value> {
    let mask = below_mask(c, vector, values, relation)?;
    let last = c.cx.rank(mask) - 1;
    let mask = c.cx.g.cast(DType::I32, mask)?;
    Ok(c.cx.g.reduce(Reduce::Sum, mask, &[last])?)
}

/// `at: [n.., d]` positions in the first `d` dimensions; values of one position add up.
fn scattered(c: &mut Call<'_>, at: Value, values: Value, shape: &[usize]) -> Out<Value> {
    let ids = c.cx.dims(at);
    let Some((&d, outer)) = ids.split_last() else { return Err(misfit("positions are vectors")) };
    if d > shape.len() {
        return Err(misfit(format!("positions of {d} numbers in {} dimensions", shape.len())));
    }
    let n: usize = outer.iter().product();
    let at = c.cx.g.reshape(at, &Shape::from([n, d]))?;
    let mut row = c.cx.g.full(c.cx.g.ty(at).dtype, 0.0, &Shape::from([n]))?;
    for (i, &size) in shape[..d].iter().enumerate() {
        let part = c.cx.g.slice_dim(at, 1, i..i + 1)?;
        let part = c.cx.g.reshape(part, &Shape::from([n]))?;
        let part = wrapped(c, part, size)?;
        let extent = c.like(row, size as f64)?;
        row = c.cx.g.mul(row, extent)?;
        row = c.cx.g.add(row, part)?;
    }
    let inner = &shape[d..];
    let rows: Vec<usize> = [n].into_iter().chain(inner.iter().copied()).collect();
    let values = c.cx.g.reshape(values, &Shape::from(rows))?;
    let op = ScatterAdd { rows: shape[..d].iter().product(), base: 0 };
    let y = c.cx.g.push(op, &[row, values])?;
    Ok(c.cx.g.reshape(y, &Shape::from(shape))?)
}

/// Where an extent of a result comes from.
enum Extent {
    Of(usize),
    One,
}

/// `x[parts]`: integers, slices, `...`, new dimensions, and one tensor or list of positions.
pub(super) fn indexed(c: &mut Call<'_>, x: Value, parts: &[Item]) -> Out<Value> {
    let dims = c.cx.dims(x);
    let takes = |item: &Item| !matches!(item, Item::Ellipsis | Item::Const(Json::Null));
    let rest = dims.len().checked_sub(parts.iter().filter(|p| takes(p)).count());
    let rest = rest.ok_or_else(|| misfit(format!("more indices than the {} dimensions", dims.len())))?;
    let (mut start, mut limit, mut stride) = (vec![0; dims.len()], dims.clone(), vec![1; dims.len()]);
    let (mut reversed, mut shape) = (Vec::new(), Vec::new());
    let mut chosen: Option<(usize, Value)> = None;
    let mut d = 0;
    for part in parts {
        match part {
            Item::Ellipsis => {
                shape.extend((d..d + rest).map(Extent::Of));
                d += rest;
            }
            Item::Const(Json::Null) => shape.push(Extent::One),
            Item::Slice(bounds) => {
                let range = python_range(bound(c, &bounds[0])?, bound(c, &bounds[1])?, bound(c, &bounds[2])?, dims[d]);
                let range = range.ok_or_else(|| misfit("a step of 0"))?;
                (start[d], limit[d], stride[d]) = (range.start, range.limit, range.stride);
                if range.backwards {
                    reversed.push(d);
                }
                shape.push(Extent::Of(d));
                d += 1;
            }
            other => {
                match single(c, other) {
                    Some(i) => {
                        let at = c.cx.axis(i, dims[d]);
                        let i = at.map_err(|_| misfit(format!("index {i} of {} elements", dims[d])))?;
                        (start[d], limit[d]) = (i, i + 1);
                    }
                    None => {
                        let at = several(c, other)?;
                        if chosen.replace((shape.len(), at)).is_some() {
                            return Err(unsupported("indexing by several tensors"));
                        }
                        shape.push(Extent::Of(d));
                    }
                }
                d += 1;
            }
        }
    }
    shape.extend((d..dims.len()).map(Extent::Of));
    let whole = start.iter().all(|&s| s == 0) && limit == dims && stride.iter().all(|&s| s == 1);
    let mut y = if whole { x } else { c.cx.g.push(Slice { start, limit, stride }, &[x])? };
    if !reversed.is_empty() {
        y = c.cx.g.push(Reverse { dims: reversed }, &[y])?;
    }
    let cut = c.cx.dims(y);
    let shape: Vec<usize> = shape.into_iter().map(|e| if let Extent::Of(d) = e { cut[d] } else { 1 }).collect();
    let y = c.cx.g.reshape(y, &Shape::from(shape))?;
    match chosen {
        None => Ok(y),
        Some((dim, at)) => taken(c, y, at, dim),
    }
}

fn bound(c: &mut Call<'_>, item: &Item) -> Out<Option<i64>> {
    match item {
        Item::Const(Json::Null) => Ok(None),
        other => match single(c, other) {
            Some(i) => Ok(Some(i)),
            None => Err(unsupported("a bound that depends on the model's inputs")),
        },
    }
}

/// An integer that is known.
fn single(c: &mut Call<'_>, item: &Item) -> Option<i64> {
    match item {
        Item::Const(json @ (Json::Int(_) | Json::Float(_))) => json.as_int(),
        Item::Array { value, .. } => value.as_int(),
        Item::Tensor(t) if c.cx.rank(t.value) == 0 => known(c.cx, t.value)?.as_int(),
        _ => None,
    }
}

/// Positions as a tensor.
fn several(c: &mut Call<'_>, item: &Item) -> Out<Value> {
    let value = match item {
        Item::Tensor(t) => t.value,
        Item::Const(json) | Item::Array { value: json, .. } if Kind::of(json)? == Kind::Int => {
            constant(c.cx, json, DType::I32)?
        }
        _ => return Err(unsupported("an index of this form")),
    };
    match c.cx.g.ty(value).dtype.is_int() {
        true => Ok(value),
        false => Err(unsupported("indexing by truth values, whose result has as many rows as there are hits,")),
    }
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
