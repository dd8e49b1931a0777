//! Statistics of groups of rows: one group after the other, or each by itself.

use super::{
    Config, Variables, along, follow, group, inverse_deviation, misfit, moments, of_sample, scaled, unsupported,
};
use crate::frontend::layers::cx::{Cx, Out};
use intwain_ir::ops::Concat;
use intwain_ir::scalar::Reduce;
use intwain_ir::{Shape, Value};
use std::ops::Range;

/// The positions of the first dimension that each group of rows has; groups without rows have none.
pub(super) fn parts(cx: &Cx, x: Value, config: &Config, groups: Vec<usize>) -> Out<Vec<Range<usize>>> {
    if config.dim == 0 {
        return Err(misfit("statistics of groups of rows, of a tensor whose channels are its rows"));
    }
    let rows = cx.dims(x)[0];
    let unit = cx.positions_per_row(rows);
    if groups.iter().sum::<usize>() * unit != rows {
        return Err(misfit(format!("{rows} rows are not divided by groups of {groups:?}")));
    }
    let mut at = 0;
    let ranges = groups.into_iter().filter(|rows| *rows > 0).map(|rows| {
        let range = at..at + rows * unit;
        at = range.end;
        range
    });
    Ok(ranges.collect())
}

/// Each group updates what the one before has left.
pub(super) fn one_after_another(
    cx: &mut Cx,
    x: Value,
    mask: Option<Value>,
    parts: Vec<Range<usize>>,
    config: &Config,
    vars: &Variables,
) -> Out<Value> {
    let mut normalised = Vec::new();
    let mut vars = Variables { ..*vars };
    for range in parts {
        let part = cx.g.slice_dim(x, 0, range.clone())?;
        let mask = mask.map(|mask| cx.g.slice_dim(mask, 0, range)).transpose()?;
        normalised.push(group(cx, part, mask, config, &vars)?);
        vars.read_again(cx)?;
    }
    joined(cx, x, &normalised)
}

fn joined(cx: &mut Cx, x: Value, parts: &[Value]) -> Out<Value> {
    match parts {
        [] => Ok(x),
        [one] => Ok(*one),
        parts => Ok(cx.g.push(Concat { dim: 0 }, parts)?),
    }
}

/// Each group is normalised by its own statistics, and moving statistics follow their mean. Groups of one size become a
/// dimension, so that devices that hold a group each have all that its statistics need.
pub(super) fn apart(
    cx: &mut Cx,
    x: Value,
    mask: Option<Value>,
    parts: &[Range<usize>],
    config: &Config,
    vars: &Variables,
) -> Out<Value> {
    if config.renorm.is_some() && parts.len() > 1 {
        return Err(unsupported("batch renormalisation by the statistics of each device; use --bn global"));
    }
    let [first, _, ..] = parts else { return group(cx, x, mask, config, vars) };
    let (y, mean, variance) = if parts.iter().all(|part| part.len() == first.len()) {
        stacked(cx, x, mask, parts.len(), config)?
    } else {
        sliced(cx, x, mask, parts, config)?
    };
    follow(cx, "moving_mean", vars.mean, mean, config.momentum)?;
    follow(cx, "moving_variance", vars.variance, variance, config.momentum)?;
    let mut y = y;
    if let Some(gamma) = vars.gamma {
        let gamma = along(cx, gamma, y, config.dim)?;
        y = cx.g.mul(y, gamma)?;
    }
    match vars.beta {
        Some(beta) => {
            let beta = along(cx, beta, y, config.dim)?;
            Ok(cx.g.add(y, beta)?)
        }
        None => Ok(y),
    }
}

/// Groups of equal sizes as a dimension of their own: all rows normalised, and the means over groups of mean and variance.
fn stacked(cx: &mut Cx, x: Value, mask: Option<Value>, count: usize, config: &Config) -> Out<(Value, Value, Value)> {
    let whole = cx.g.shape(x).clone();
    let stack = |cx: &mut Cx, x: Value| -> Out<Value> {
        let shape = cx.g.shape(x).clone();
        let stacked = [count, shape[0] / count].into_iter().chain(shape.iter().skip(1).copied());
        Ok(cx.g.reshape(x, &Shape::new(stacked))?)
    };
    let stacked = stack(cx, x)?;
    let mask = mask.map(|mask| stack(cx, mask)).transpose()?;
    let (mean, centred, variance) = moments(cx, stacked, mask, &[0, config.dim + 1])?;
    let y = divided(cx, centred, variance, &[0, config.dim + 1], config)?;
    let y = cx.g.reshape(y, &whole)?;
    let sample = of_sample(cx, config, variance, whole.elements() / count)?;
    let mut average = |x: Value| -> Out<Value> {
        let sum = cx.g.reduce(Reduce::Sum, x, &[0])?;
        scaled(cx, sum, 1.0 / count as f64)
    };
    Ok((y, average(mean)?, average(sample)?))
}

/// The same of groups of any sizes, each cut out.
fn sliced(
    cx: &mut Cx,
    x: Value,
    mask: Option<Value>,
    parts: &[Range<usize>],
    config: &Config,
) -> Out<(Value, Value, Value)> {
    let (mut normalised, mut sums) = (Vec::new(), None);
    for range in parts {
        let part = cx.g.slice_dim(x, 0, range.clone())?;
        let mask = mask.map(|mask| cx.g.slice_dim(mask, 0, range.clone())).transpose()?;
        let (mean, centred, variance) = moments(cx, part, mask, &[config.dim])?;
        normalised.push(divided(cx, centred, variance, &[config.dim], config)?);
        let sample = of_sample(cx, config, variance, cx.g.shape(part).elements())?;
        sums = Some(match sums {
            None => (mean, sample),
            Some((means, samples)) => (cx.g.add(means, mean)?, cx.g.add(samples, sample)?),
        });
    }
    let (means, samples) = sums.expect("there are two groups at least");
    let share = 1.0 / parts.len() as f64;
    Ok((joined(cx, x, &normalised)?, scaled(cx, means, share)?, scaled(cx, samples, share)?))
}

/// Divided by the deviation; statistics have the dimensions `kept` of what they are of.
fn divided(cx: &mut Cx, centred: Value, variance: Value, kept: &[usize], config: &Config) -> Out<Value> {
    let scale = inverse_deviation(cx, config, variance)?;
    let shape = cx.g.shape(centred).clone();
    let scale = cx.g.broadcast(scale, &shape, kept)?;
    Ok(cx.g.mul(centred, scale)?)
}
