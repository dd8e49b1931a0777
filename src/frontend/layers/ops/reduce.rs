//! Reductions, running sums, and what needs the order of elements.

use intwain_ir::ops::{ArgMax, Iota, Pad, Standardize, StopGradient};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::args::{Call, operations};
use super::arith::{close, scaled};
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, misfit, unsupported};

operations! {
    sum = |c| { let x = summand(c)?; reduced(c, Reduce::Sum, x) };
    prod = |c| { let x = summand(c)?; reduced(c, Reduce::Prod, x) };
    max = |c| extreme(c, Reduce::Max);
    min = |c| extreme(c, Reduce::Min);
    any = |c| truths(c, Reduce::Max);
    all = |c| truths(c, Reduce::Min);
    mean = |c| {
        let x = c.floating(0, "x")?;
        let r = Over::read(c, x)?;
        r.mean(c, x)
    };
    variance = |c| {
        let x = c.floating(0, "x")?;
        let r = Over::read(c, x)?;
        widely(c, x, |c, x| r.variance(c, x))
    };
    // Keras and TensorFlow round every step of these two.
    stepwise_variance = |c| { let x = c.floating(0, "x")?; let r = Over::read(c, x)?; r.variance(c, x) };
    std = |c| {
        let x = c.floating(0, "x")?;
        let r = Over::read(c, x)?;
        let v = r.variance(c, x)?;
        Ok(c.cx.g.unary(Unary::Sqrt, v)?)
    };
    moments = |c| {
        let x = c.floating(0, "x")?;
        c.neutral("synchronized", &[Json::Bool(false)])?;
        let dtype = c.cx.g.ty(x).dtype;
        let wide = c.cx.g.cast(dtype.accumulator(), x)?;
        let mut results = moments_of(c, wide)?;
        if dtype != dtype.accumulator() {
            // Keras clips to the range of f16, bf16 too.
            for y in &mut results {
                let (low, high) = (c.like(*y, -F16_MAX)?, c.like(*y, F16_MAX)?);
                let at_least = c.cx.g.binary(Binary::Max, *y, low)?;
                let clipped = c.cx.g.binary(Binary::Min, at_least, high)?;
                *y = c.cx.g.cast(dtype, clipped)?;
            }
        }
        Ok(results)
    };
    unclipped_moments = |c| {
        let x = c.floating(0, "x")?;
        c.irrelevant(&["shift"]);
        let dtype = c.cx.g.ty(x).dtype;
        // TensorFlow widens f16 alone.
        let wide = c.cx.g.cast(if dtype == DType::F16 { DType::F32 } else { dtype }, x)?;
        moments_of(c, wide)?.into_iter().map(|y| Ok(c.cx.g.cast(dtype, y)?)).collect::<Out<Vec<_>>>()
    };
    ptp = |c| {
        let x = c.tensor(0, "x")?;
        let r = Over::read(c, x)?;
        let (high, low) = (r.reduce(c, Reduce::Max, x)?, r.reduce(c, Reduce::Min, x)?);
        Ok(c.cx.g.sub(high, low)?)
    };
    count_nonzero = |c| {
        let x = c.tensor(0, "x")?;
        let x = c.cx.g.cast(DType::Bool, x)?;
        let x = c.cx.g.cast(DType::I32, x)?;
        reduced(c, Reduce::Sum, x)
    };
    average = |c| {
        let x = c.floating(0, "x")?;
        let Some(weights) = c.maybe_tensor(1, "weights")? else { let r = Over::read(c, x)?; return r.mean(c, x) };
        let weights = c.floated(weights)?;
        let r = Over::read(c, x)?;
        // A vector of weights belongs to the axis.
        let shape = c.cx.g.shape(x).clone();
        let weights = match r.dims.as_slice() {
            [dim] if c.cx.rank(weights) == 1 => c.cx.g.broadcast(weights, &shape, &[*dim])?,
            _ => c.cx.g.broadcast_to(weights, &shape)?,
        };
        let weighted = c.cx.g.mul(x, weights)?;
        let (sum, weight) = (r.reduce(c, Reduce::Sum, weighted)?, r.reduce(c, Reduce::Sum, weights)?);
        Ok(c.cx.g.div(sum, weight)?)
    };
    log_sum_exp = |c| {
        let x = c.floating(0, "x")?;
        let r = Over::read(c, x)?;
        let top = c.cx.g.reduce_keep(Reduce::Max, x, &r.dims)?;
        // Infinite maxima are not subtracted.
        let (finite, zero) = (c.cx.g.unary(Unary::IsFinite, top)?, c.like(top, 0.0)?);
        let top = c.cx.g.select(finite, top, zero)?;
        let shifted = c.binary(Binary::Sub, x, top)?;
        let e = c.cx.g.unary(Unary::Exp, shifted)?;
        let sum = c.cx.g.reduce_keep(Reduce::Sum, e, &r.dims)?;
        let log = c.cx.g.unary(Unary::Log, sum)?;
        let y = c.cx.g.add(log, top)?;
        r.finish(c, y)
    };
    norm = |c| norm_of(c);
    all_close = |c| { let x = close(c)?; all_of(c, x) };
    argmax = |c| { let x = c.tensor(0, "x")?; arg_extreme(c, x) };
    argmin = |c| { let x = c.tensor(0, "x")?; let x = descending(c, x)?; arg_extreme(c, x) };
    cumsum = |c| running(c, Binary::Add);
    cumprod = |c| running(c, Binary::Mul);
    diff = |c| {
        let n = c.count("n")?.unwrap_or(1);
        let mut x = c.tensor(0, "a")?;
        let dim = c.dim_or("axis", -1, c.cx.rank(x))?.ok_or_else(|| misfit("has no axis"))?;
        for _ in 0..n {
            let extent = c.cx.dims(x)[dim];
            if extent == 0 {
                break;
            }
            let (after, before) = (c.cx.g.slice_dim(x, dim, 1..extent)?, c.cx.g.slice_dim(x, dim, 0..extent - 1)?);
            x = c.cx.g.sub(after, before)?;
        }
        Ok(x)
    };
    sort = |c| {
        let x = c.tensor(0, "x")?;
        let order = Order::read(c, x)?;
        order.picked(c, order.x, order.extent)
    };
    argsort = |c| {
        let x = c.tensor(0, "x")?;
        let order = Order::read(c, x)?;
        order.positions(c, order.extent)
    };
    top_k = |c| {
        let k = c.count("k")?.unwrap_or(1);
        c.irrelevant(&["sorted"]);
        let x = c.tensor(0, "x")?;
        let rank = c.cx.rank(x);
        let order = Order::along(c, x, c.cx.axis(-1, rank)?, Direction::Down)?;
        if k > order.extent {
            return Err(misfit(format!("the {k} greatest of {} elements", order.extent)));
        }
        Ok(vec![order.picked(c, x, k)?, order.positions(c, k)?])
    };
    in_top_k = |c| {
        let k = c.count("k")?.unwrap_or(1);
        let (targets, predictions) = (c.tensor(0, "targets")?, c.floating(1, "predictions")?);
        let shape = c.cx.dims(predictions);
        let &[_, classes] = shape.as_slice() else { return Err(misfit("predictions have two dimensions")) };
        let shape = Shape::from(shape);
        let iota = c.cx.g.push(Iota { dtype: DType::I32, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
        let targets = c.cx.g.cast(DType::I32, targets)?;
        let targets = c.cx.g.broadcast(targets, &shape, &[0])?;
        let here = c.cx.g.compare(Compare::Eq, iota, targets)?;
        let zero = c.like(predictions, 0.0)?;
        let own = c.cx.g.select(here, predictions, zero)?;
        let own = c.cx.g.reduce_keep(Reduce::Sum, own, &[1])?;
        let own = c.cx.g.broadcast_to(own, &shape)?;
        let above = c.cx.g.compare(Compare::Gt, predictions, own)?;
        let above = c.cx.g.cast(DType::I32, above)?;
        let above = c.cx.g.reduce(Reduce::Sum, above, &[1])?;
        let limit = c.like(above, k.min(classes) as f64)?;
        Ok(c.cx.g.compare(Compare::Lt, above, limit)?)
    };
    median = |c| { let x = c.floating(0, "x")?; quantile_of(c, x, &[0.5], true) };
    quantile = |c| { let (q, single) = fractions(c, 1.0)?; let x = c.floating(0, "x")?; quantile_of(c, x, &q, single) };
    percentile = |c| {
        let (q, single) = fractions(c, 100.0)?;
        let x = c.floating(0, "x")?;
        quantile_of(c, x, &q, single)
    };
}

/// The dimensions of a reduction, and whether they stay with extent 1.
struct Over {
    dims: Vec<usize>,
    keep: bool,
}

impl Over {
    fn read(c: &mut Call<'_>, x: Value) -> Out<Over> {
        let rank = c.cx.rank(x);
        let dims = c.dims("axis", rank)?.unwrap_or_else(|| (0..rank).collect());
        let mut unique = dims.clone();
        unique.sort_unstable();
        unique.dedup();
        if unique.len() < dims.len() {
            return Err(misfit("names an axis twice"));
        }
        Ok(Over { dims: unique, keep: c.flag("keepdims")? })
    }

    fn reduce(&self, c: &mut Call<'_>, function: Reduce, x: Value) -> Out<Value> {
        let y = c.cx.g.reduce_keep(function, x, &self.dims)?;
        self.finish(c, y)
    }

    /// Drops the dimensions of extent 1 unless they are kept.
    fn finish(&self, c: &mut Call<'_>, y: Value) -> Out<Value> {
        if self.keep {
            return Ok(y);
        }
        let shape: Vec<usize> =
            c.cx.dims(y).into_iter().enumerate().filter(|(d, _)| !self.dims.contains(d)).map(|(_, n)| n).collect();
        Ok(c.cx.g.reshape(y, &Shape::from(shape))?)
    }

    fn mean(&self, c: &mut Call<'_>, x: Value) -> Out<Value> {
        let dims = c.cx.dims(x);
        let n: usize = self.dims.iter().map(|&d| dims[d]).product();
        widely(c, x, |c, x| {
            let sum = self.reduce(c, Reduce::Sum, x)?;
            let n = c.like(sum, n as f64)?;
            Ok(c.cx.g.div(sum, n)?)
        })
    }

    fn variance(&self, c: &mut Call<'_>, x: Value) -> Out<Value> {
        let all = Over { dims: self.dims.clone(), keep: true };
        let mean = all.mean(c, x)?;
        let d = c.binary(Binary::Sub, x, mean)?;
        let square = c.cx.g.mul(d, d)?;
        self.mean(c, square)
    }
}

/// The greatest number of f16.
const F16_MAX: f64 = 65504.0;

/// A statistic of 16-bit numbers in the type of their sums, rounded once.
fn widely(c: &mut Call<'_>, x: Value, statistic: impl FnOnce(&mut Call<'_>, Value) -> Out<Value>) -> Out<Value> {
    let dtype = c.cx.g.ty(x).dtype;
    let wide = c.cx.g.cast(dtype.accumulator(), x)?;
    let y = statistic(c, wide)?;
    Ok(c.cx.g.cast(dtype, y)?)
}

/// The mean and the variance over `axes`. To the variance the mean is a constant, as in TensorFlow: its gradient would be
/// zero but for rounding.
fn moments_of(c: &mut Call<'_>, x: Value) -> Out<Vec<Value>> {
    let dims = c.dims("axes", c.cx.rank(x))?.ok_or_else(|| misfit("has no axes"))?;
    let all = Over { dims: dims.clone(), keep: true };
    let over = Over { dims, keep: c.flag("keepdims")? };
    let mean = all.mean(c, x)?;
    let fixed = c.cx.g.push(StopGradient {}, &[mean])?;
    let d = c.binary(Binary::Sub, x, fixed)?;
    let square = c.cx.g.mul(d, d)?;
    Ok(vec![over.finish(c, mean)?, over.mean(c, square)?])
}

/// What is summed: small integers as i32.
fn summand(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let dtype = match c.cx.g.ty(x).dtype {
        DType::Bool | DType::I8 | DType::I16 => DType::I32,
        DType::U8 => DType::U32,
        wide => wide,
    };
    let dtype = c.dtype("dtype")?.unwrap_or(dtype);
    Ok(c.cx.g.cast(dtype, x)?)
}

fn reduced(c: &mut Call<'_>, function: Reduce, x: Value) -> Out<Value> {
    let over = Over::read(c, x)?;
    over.reduce(c, function, x)
}

fn extreme(c: &mut Call<'_>, function: Reduce) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let y = reduced(c, function, x)?;
    match c.number("initial")? {
        None => Ok(y),
        Some(initial) => {
            let initial = c.like(y, initial)?;
            Ok(c.cx.g.binary(function.combine(), y, initial)?)
        }
    }
}

fn truths(c: &mut Call<'_>, function: Reduce) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let x = c.cx.g.cast(DType::Bool, x)?;
    let x = c.cx.g.cast(DType::U8, x)?;
    let y = reduced(c, function, x)?;
    Ok(c.cx.g.cast(DType::Bool, y)?)
}

/// Whether all elements hold.
pub(super) fn all_of(c: &mut Call<'_>, x: Value) -> Out<Value> {
    let x = c.cx.g.cast(DType::U8, x)?;
    let dims: Vec<usize> = (0..c.cx.rank(x)).collect();
    let y = c.cx.g.reduce(Reduce::Min, x, &dims)?;
    Ok(c.cx.g.cast(DType::Bool, y)?)
}

/// Norms of vectors, and the Frobenius norm of matrices.
fn norm_of(c: &mut Call<'_>) -> Out<Value> {
    let order = match c.attr("ord")? {
        None => None,
        Some(Json::String(s)) => match s.as_str() {
            "euclidean" | "fro" => None,
            "inf" => Some(f64::INFINITY),
            other => return Err(unsupported(format!("the norm `{other}`"))),
        },
        Some(json) => super::args::number(&json),
    };
    let x = c.floating(0, "x")?;
    let over = Over::read(c, x)?;
    if order.is_some() && over.dims.len() > 1 {
        return Err(unsupported("an order of a norm of matrices"));
    }
    let abs = c.cx.g.unary(Unary::Abs, x)?;
    match order {
        None | Some(2.0) => {
            let square = c.cx.g.mul(x, x)?;
            let sum = over.reduce(c, Reduce::Sum, square)?;
            Ok(c.cx.g.unary(Unary::Sqrt, sum)?)
        }
        Some(1.0) => over.reduce(c, Reduce::Sum, abs),
        Some(f64::INFINITY) => over.reduce(c, Reduce::Max, abs),
        Some(f64::NEG_INFINITY) => over.reduce(c, Reduce::Min, abs),
        Some(0.0) => {
            let zero = c.like(x, 0.0)?;
            let here = c.cx.g.compare(Compare::Ne, x, zero)?;
            let here = c.cx.g.cast(c.cx.g.ty(x).dtype, here)?;
            over.reduce(c, Reduce::Sum, here)
        }
        Some(p) => {
            let power = c.like(abs, p)?;
            let raised = c.cx.g.binary(Binary::Pow, abs, power)?;
            let sum = over.reduce(c, Reduce::Sum, raised)?;
            let root = c.like(sum, 1.0 / p)?;
            Ok(c.cx.g.binary(Binary::Pow, sum, root)?)
        }
    }
}

/// A tensor whose order is the other way round.
fn descending(c: &mut Call<'_>, x: Value) -> Out<Value> {
    let flip = if c.cx.g.ty(x).dtype.is_float() { Unary::Neg } else { Unary::Not };
    Ok(c.cx.g.unary(flip, x)?)
}

fn arg_extreme(c: &mut Call<'_>, x: Value) -> Out<Value> {
    let dims = c.cx.dims(x);
    let x = if c.cx.g.ty(x).dtype == DType::Bool { c.cx.g.cast(DType::U8, x)? } else { x };
    let dim = c.dim_or("axis", 0, dims.len())?;
    let to = c.dtype("output_type")?.unwrap_or(DType::I32);
    let keep = c.flag("keepdims")?;
    let (y, kept) = match dim {
        Some(dim) => (c.cx.g.push(ArgMax { dim }, &[x])?, Shape::from(dims).with(dim, 1)),
        None => {
            let flat = c.cx.g.reshape(x, &Shape::from([dims.iter().product::<usize>()]))?;
            (c.cx.g.push(ArgMax { dim: 0 }, &[flat])?, Shape::from(vec![1; dims.len()]))
        }
    };
    let y = if keep { c.cx.g.reshape(y, &kept)? } else { y };
    Ok(c.cx.g.cast(to, y)?)
}

/// Sums or products of all elements up to each: ones of twice the reach in every step.
fn running(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let x = summand(c)?;
    let exclusive = c.flag("exclusive")?;
    let backwards = c.flag("reverse")?;
    let rank = c.cx.rank(x);
    let (mut y, dim) = match c.dims("axis", rank)? {
        Some(dims) if dims.len() == 1 => (x, dims[0]),
        Some(_) => return Err(misfit("runs along one axis")),
        None => {
            let elements = c.cx.g.shape(x).elements();
            (c.cx.g.reshape(x, &Shape::from([elements]))?, 0)
        }
    };
    let extent = c.cx.dims(y)[dim];
    let shift = |c: &mut Call<'_>, y: Value, by: usize| -> Out<Value> {
        let ty = c.cx.g.ty(y).clone();
        let (mut low, mut high) = (vec![0i64; ty.rank()], vec![0i64; ty.rank()]);
        (low[dim], high[dim]) = if backwards { (-(by as i64), by as i64) } else { (by as i64, -(by as i64)) };
        let neutral = if function == Binary::Mul { Scalar::one(ty.dtype) } else { Scalar::zero(ty.dtype) };
        Ok(c.cx.g.push(Pad { low, high, interior: vec![0; ty.rank()], value: vec![neutral] }, &[y])?)
    };
    if exclusive && extent > 0 {
        y = shift(c, y, 1)?;
    }
    let mut reach = 1;
    while reach < extent {
        let before = shift(c, y, reach)?;
        y = c.cx.g.binary(function, y, before)?;
        reach *= 2;
    }
    Ok(y)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// How the elements of one dimension are ordered. Each element's place is the number of those before it, equal ones in their
/// own order and NaN last: work grows with the square of the extent, and no step waits for another.
struct Order {
    x: Value,
    dim: usize,
    extent: usize,
    /// `i32[.., extent (place), extent (element)]` behind the others.
    place: Value,
}

/// Elements of which every pair is compared.
const MOST_ORDERED: usize = 1 << 14;

impl Order {
    fn read(c: &mut Call<'_>, x: Value) -> Out<Order> {
        let direction = match c.text("direction")?.as_deref() {
            None | Some("ASCENDING") => Direction::Up,
            Some(_) => Direction::Down,
        };
        c.irrelevant(&["stable"]);
        match c.dim_or("axis", -1, c.cx.rank(x))? {
            Some(dim) => Order::along(c, x, dim, direction),
            None => {
                let elements = c.cx.g.shape(x).elements();
                let flat = c.cx.g.reshape(x, &Shape::from([elements]))?;
                Order::along(c, flat, 0, direction)
            }
        }
    }

    fn along(c: &mut Call<'_>, x: Value, dim: usize, direction: Direction) -> Out<Order> {
        let dims = c.cx.dims(x);
        let extent = dims[dim];
        if extent > MOST_ORDERED {
            return Err(unsupported(format!("ordering {extent} elements")));
        }
        let dtype = c.cx.g.ty(x).dtype;
        let key = if dtype == DType::Bool { c.cx.g.cast(DType::U8, x)? } else { x };
        let mut wide = dims.clone();
        wide.insert(dim + 1, extent);
        let wide = Shape::from(wide);
        // One element in the dimension `dim`, each other one behind it.
        let one: Vec<usize> = (0..dims.len()).map(|d| if d <= dim { d } else { d + 1 }).collect();
        let other: Vec<usize> = (0..dims.len()).map(|d| if d < dim { d } else { d + 1 }).collect();
        let (a, b) = (c.cx.g.broadcast(key, &wide, &one)?, c.cx.g.broadcast(key, &wide, &other)?);
        let before = if direction == Direction::Up { Compare::Lt } else { Compare::Gt };
        let mut first = c.cx.g.compare(before, b, a)?;
        let mut same = c.cx.g.compare(Compare::Eq, b, a)?;
        if dtype.is_float() {
            let (nan_a, nan_b) = (c.cx.g.unary(Unary::IsNan, a)?, c.cx.g.unary(Unary::IsNan, b)?);
            let (one, other) = if direction == Direction::Up { (nan_a, nan_b) } else { (nan_b, nan_a) };
            let number = c.cx.g.unary(Unary::Not, other)?;
            let only = c.cx.g.binary(Binary::And, one, number)?;
            first = c.cx.g.binary(Binary::Or, first, only)?;
            let both = c.cx.g.binary(Binary::And, nan_a, nan_b)?;
            same = c.cx.g.binary(Binary::Or, same, both)?;
        }
        let iota =
            |c: &mut Call<'_>, dim| c.cx.g.push(Iota { dtype: DType::I32, shape: wide.clone(), dim, start: 0 }, &[]);
        let (i, j) = (iota(c, dim)?, iota(c, dim + 1)?);
        let earlier = c.cx.g.compare(Compare::Lt, j, i)?;
        let tie = c.cx.g.binary(Binary::And, same, earlier)?;
        let first = c.cx.g.binary(Binary::Or, first, tie)?;
        let first = c.cx.g.cast(DType::I32, first)?;
        let place = c.cx.g.reduce(Reduce::Sum, first, &[dim + 1])?;
        Ok(Order { x, dim, extent, place })
    }

    /// Of a tensor like the one ordered, the elements at the first `k` places.
    fn picked(&self, c: &mut Call<'_>, x: Value, k: usize) -> Out<Value> {
        let dtype = c.cx.g.ty(x).dtype;
        let x = if dtype == DType::Bool { c.cx.g.cast(DType::U8, x)? } else { x };
        let mut wide = c.cx.dims(x);
        wide.insert(self.dim, k);
        let wide = Shape::from(wide);
        let rank = wide.len() - 1;
        let behind: Vec<usize> = (0..rank).map(|d| if d < self.dim { d } else { d + 1 }).collect();
        let (x, place) = (c.cx.g.broadcast(x, &wide, &behind)?, c.cx.g.broadcast(self.place, &wide, &behind)?);
        let wanted = c.cx.g.push(Iota { dtype: DType::I32, shape: wide, dim: self.dim, start: 0 }, &[])?;
        let here = c.cx.g.compare(Compare::Eq, place, wanted)?;
        let zero = c.like(x, 0.0)?;
        let chosen = c.cx.g.select(here, x, zero)?;
        let y = c.cx.g.reduce(Reduce::Sum, chosen, &[self.dim + 1])?;
        Ok(c.cx.g.cast(dtype, y)?)
    }

    /// Where the elements at the first `k` places come from.
    fn positions(&self, c: &mut Call<'_>, k: usize) -> Out<Value> {
        let shape = c.cx.g.shape(self.place).clone();
        let at = c.cx.g.push(Iota { dtype: DType::I32, shape, dim: self.dim, start: 0 }, &[])?;
        self.picked(c, at, k)
    }
}

/// The fractions of a quantile, and whether it is one alone.
fn fractions(c: &mut Call<'_>, whole: f64) -> Out<(Vec<f64>, bool)> {
    let q = c.constant_at(1, "q")?.ok_or_else(|| misfit("is called without `q`"))?;
    let single = !matches!(q, Json::Array(_));
    let items = if let Json::Array(items) = q { items } else { vec![q] };
    let values = items.iter().map(super::args::number).collect::<Option<Vec<f64>>>();
    let values = values.ok_or_else(|| misfit("`q` is one number or several"))?;
    Ok((values.into_iter().map(|q| q / whole).collect(), single))
}

/// Elements between those in order, the dimensions reduced seen as one.
fn quantile_of(c: &mut Call<'_>, x: Value, fractions: &[f64], single: bool) -> Out<Value> {
    let method = c.text("method")?.unwrap_or_else(|| "linear".to_string());
    let over = Over::read(c, x)?;
    let dims = c.cx.dims(x);
    let kept: Vec<usize> = (0..dims.len()).filter(|d| !over.dims.contains(d)).collect();
    let perm: Vec<usize> = kept.iter().chain(&over.dims).copied().collect();
    let n: usize = over.dims.iter().map(|&d| dims[d]).product();
    let last = kept.len();
    let shape: Vec<usize> = kept.iter().map(|&d| dims[d]).chain([n]).collect();
    let y = c.cx.g.transpose(x, &perm)?;
    let y = c.cx.g.reshape(y, &Shape::from(shape))?;
    let order = Order::along(c, y, last, Direction::Up)?;
    let sorted = order.picked(c, y, n)?;
    let whole: Vec<usize> = match over.keep {
        true => dims.iter().enumerate().map(|(d, &e)| if over.dims.contains(&d) { 1 } else { e }).collect(),
        false => kept.iter().map(|&d| dims[d]).collect(),
    };
    let mut results = Vec::new();
    for q in fractions {
        let at = q * (n.max(1) - 1) as f64;
        let (low, high, part) = match method.as_str() {
            "linear" => (at.floor(), at.ceil(), at - at.floor()),
            "lower" => (at.floor(), at.floor(), 0.0),
            "higher" => (at.ceil(), at.ceil(), 0.0),
            "nearest" => (at.round_ties_even(), at.round_ties_even(), 0.0),
            "midpoint" => (at.floor(), at.ceil(), 0.5),
            other => return Err(unsupported(format!("the method `{other}` of quantiles"))),
        };
        let pick = |c: &mut Call<'_>, i: f64| c.cx.g.slice_dim(sorted, last, i as usize..i as usize + 1);
        let (a, b) = (pick(c, low)?, pick(c, high)?);
        let difference = c.cx.g.sub(b, a)?;
        let difference = scaled(c, difference, part)?;
        let y = if part == 0.0 { a } else { c.cx.g.add(a, difference)? };
        results.push(c.cx.g.reshape(y, &Shape::from(whole.clone()))?);
    }
    if single { Ok(results[0]) } else { super::args::stacked(c.cx, &results, 0) }
}

/// (x − mean) / √(variance + ε) over dimensions.
pub(super) fn standardized(c: &mut Call<'_>, x: Value, dims: Vec<usize>, epsilon: f64) -> Out<Value> {
    Ok(c.cx.g.push(Standardize { dims, epsilon }, &[x])?)
}
