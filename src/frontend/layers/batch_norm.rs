//! Batch normalisation.
//!
//! Outside of training a channel is x·scale + shift by its moving statistics. In training the statistics are those of the
//! batch, taken over all dimensions but the channels', and the moving ones follow them; rows that are masked do not count.
//! A frozen layer is never in training.
//!
//! tf-keras has a fused kernel for images and volumes, which does three things of its own: it ignores masks, moving
//! variances follow N/(N−1)·σ², and epsilon is at least 1.001·10⁻⁵.

mod groups;

use intwain_ir::ops::StopGradient;
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{Shape, Trainable, Value};

use super::activations::initializer;
use super::build::Builder;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::Inputs;
use super::masks::heeded;
use super::norm::{TRAINING, along, axes, mean};
use super::phase::Statistics;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;

/// What Keras adds to the number of rows that a mask leaves.
const FUZZ: f64 = 1e-7;

/// What the configuration says.
struct Config {
    momentum: f64,
    epsilon: f64,
    /// The channels' dimension.
    dim: usize,
    kernel: Kernel,
    renorm: Option<Renorm>,
}

/// Which of Keras's ways computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Composed,
    Fused,
}

/// Batch renormalisation: training corrects by statistics that it keeps, within limits.
struct Renorm {
    momentum: f64,
    least: Option<f64>,
    most: Option<f64>,
    shift: Option<f64>,
}

impl Renorm {
    fn read(fields: &Fields<'_>) -> Out<Option<Renorm>> {
        let on = fields.bool_or("renorm", false)?;
        let momentum = fields.f64_or("renorm_momentum", 0.99)?;
        let [mut least, mut most, mut shift] = [None, None, None];
        if let Some(at) = fields.opt("renorm_clipping") {
            let limits = at.fields()?;
            let limit = |key: &str| limits.opt(key).map(|at| at.f64()).transpose();
            (least, most, shift) = (limit("rmin")?, limit("rmax")?, limit("dmax")?);
            if let Some(problem) = limits.finish().into_iter().next() {
                return Err(problem.into());
            }
        }
        Ok(on.then_some(Renorm { momentum, least, most, shift }))
    }
}

/// The variables, in the type that statistics have.
struct Variables {
    gamma: Option<Value>,
    beta: Option<Value>,
    mean: Value,
    variance: Value,
    /// Moving deviation, mean and deviation of renormalisation.
    renorm: Option<[Value; 3]>,
}

pub(super) fn batch(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    fields.irrelevant(&TRAINING);
    // Statistics are those of the whole batch anyway.
    fields.irrelevant(&["synchronized"]);
    fields.neutral("virtual_batch_size", &[])?;
    fields.neutral("adjustment", &[])?;
    let mask = heeded(&b.cx, inputs, 1, x);
    let &[axis] = axes(fields, -1)?.as_slice() else { return Err(unsupported("normalisation over several axes")) };
    let rank = b.cx.rank(x.value);
    let dim = b.cx.axis(axis, rank)?;
    let renorm = Renorm::read(fields)?;
    let asked = fields.opt("fused").map(|at| at.bool()).transpose()?;
    let fuses = b.cx.generation == Generation::Two
        && asked != Some(false)
        && renorm.is_none()
        && matches!((rank, dim), (4 | 5, 1) | (4, 3) | (5, 4));
    let (kernel, least) = if fuses { (Kernel::Fused, 1.001e-5) } else { (Kernel::Composed, 0.0) };
    let momentum = fields.f64_or("momentum", 0.99)?;
    let config = Config { momentum, epsilon: fields.f64_or("epsilon", 1e-3)?.max(least), dim, kernel, renorm };
    let value = b.cx.for_statistics(x.value)?;
    let vars = variables(&mut b.cx, fields, value, &config)?;
    let cx = &mut b.cx;
    let y = if cx.trains() && cx.unfrozen() {
        let mask = mask.filter(|_| kernel == Kernel::Composed);
        trained(cx, value, mask, &config, &vars)?
    } else {
        let (scale, shift) = transform(cx, &config, &vars, [vars.mean, vars.variance])?;
        let (scale, shift) = (along(cx, scale, value, dim)?, along(cx, shift, value, dim)?);
        let scaled = cx.g.mul(value, scale)?;
        cx.g.add(scaled, shift)?
    };
    Ok(vec![T { value: cx.g.cast(cx.dtype, y)?, mask: x.mask }])
}

fn variables(cx: &mut Cx, fields: &Fields<'_>, value: Value, config: &Config) -> Out<Variables> {
    let channels = cx.dims(value)[config.dim];
    let read = |key, default| initializer(fields, key, default);
    let (gamma_init, beta_init) =
        (read("gamma_initializer", Initializer::ONES)?, read("beta_initializer", Initializer::ZEROS)?);
    let mean_init = read("moving_mean_initializer", Initializer::ZEROS)?;
    let variance_init = read("moving_variance_initializer", Initializer::ONES)?;
    let (center, scale) = (fields.bool_or("center", true)?, fields.bool_or("scale", true)?);
    // Keras 2 holds them in at least f32.
    if cx.generation == Generation::Two {
        cx.variable = cx.variable.accumulator();
    }
    let dtype = cx.g.ty(value).dtype;
    let mut var = |name, init, trainable| cx.var_as(dtype, name, &[channels], init, trainable);
    let gamma = if scale { Some(var("gamma", gamma_init, Trainable::Yes)?) } else { None };
    let beta = if center { Some(var("beta", beta_init, Trainable::Yes)?) } else { None };
    let mean = var("moving_mean", mean_init.clone(), Trainable::Frozen)?;
    let variance = var("moving_variance", variance_init.clone(), Trainable::Frozen)?;
    let renorm = match config.renorm {
        None => None,
        Some(_) => Some([
            var("moving_stddev", variance_init.clone(), Trainable::Frozen)?,
            var("renorm_mean", mean_init, Trainable::Frozen)?,
            var("renorm_stddev", variance_init, Trainable::Frozen)?,
        ]),
    };
    Ok(Variables { gamma, beta, mean, variance, renorm })
}

/// Scale and shift of each channel by statistics: γ/√(σ² + ε) and β − μ·scale, as Keras folds them.
fn transform(cx: &mut Cx, config: &Config, vars: &Variables, [mean, variance]: [Value; 2]) -> Out<(Value, Value)> {
    let mut scale = inverse_deviation(cx, config, variance)?;
    if let Some(gamma) = vars.gamma {
        scale = cx.g.mul(scale, gamma)?;
    }
    let offset = cx.g.mul(mean, scale)?;
    let shift = match vars.beta {
        Some(beta) => cx.g.sub(beta, offset)?,
        None => cx.g.unary(Unary::Neg, offset)?,
    };
    Ok((scale, shift))
}

fn inverse_deviation(cx: &mut Cx, config: &Config, variance: Value) -> Out<Value> {
    let ty = cx.g.ty(variance).clone();
    let epsilon = cx.g.full(ty.dtype, config.epsilon, &ty.shape)?;
    let sum = cx.g.add(variance, epsilon)?;
    Ok(cx.g.unary(Unary::Rsqrt, sum)?)
}

/// Normalises by the statistics of the batch, and updates the moving ones: for all rows, or for groups of rows.
fn trained(cx: &mut Cx, x: Value, mask: Option<Value>, config: &Config, vars: &Variables) -> Out<Value> {
    match cx.training_phase().statistics {
        Statistics::Global => group(cx, x, mask, config, vars),
        Statistics::Groups(groups) => {
            let parts = groups::parts(cx, x, config, groups)?;
            groups::one_after_another(cx, x, mask, parts, config, vars)
        }
        Statistics::Devices(groups) => {
            let parts = groups::parts(cx, x, config, groups)?;
            groups::apart(cx, x, mask, &parts, config, vars)
        }
    }
}

/// What moving variances follow, of the variance of `elements` over all channels.
fn of_sample(cx: &mut Cx, config: &Config, variance: Value, elements: usize) -> Out<Value> {
    let channels = cx.g.shape(variance).last().copied().unwrap_or(1).max(1);
    let n = (elements / channels) as f64;
    match config.kernel {
        // What one value says of the spread of others is nothing.
        Kernel::Fused => scaled(cx, variance, n / (n - 1.0).max(1.0)),
        Kernel::Composed => Ok(variance),
    }
}

impl Variables {
    /// Takes the moving statistics as an update has left them.
    fn read_again(&mut self, cx: &mut Cx) -> Out<()> {
        let dtype = cx.g.ty(self.mean).dtype;
        self.mean = cx.updated_var(dtype, "moving_mean")?;
        self.variance = cx.updated_var(dtype, "moving_variance")?;
        if let Some(renorm) = &mut self.renorm {
            for (value, name) in renorm.iter_mut().zip(["moving_stddev", "renorm_mean", "renorm_stddev"]) {
                *value = cx.updated_var(dtype, name)?;
            }
        }
        Ok(())
    }
}

/// Rows that share their statistics.
fn group(cx: &mut Cx, x: Value, mask: Option<Value>, config: &Config, vars: &Variables) -> Out<Value> {
    let (mean, centred, variance) = moments(cx, x, mask, &[config.dim])?;
    let mut scale = inverse_deviation(cx, config, variance)?;
    let mut shift = None;
    if let Some(renorm) = &config.renorm {
        let (r, d) = corrected(cx, config, renorm, vars, [mean, variance])?;
        (scale, shift) = (cx.g.mul(scale, r)?, Some(d));
    } else {
        let of_sample = of_sample(cx, config, variance, cx.g.shape(x).elements())?;
        follow(cx, "moving_mean", vars.mean, mean, config.momentum)?;
        follow(cx, "moving_variance", vars.variance, of_sample, config.momentum)?;
    }
    if let Some(gamma) = vars.gamma {
        scale = cx.g.mul(scale, gamma)?;
        shift = shift.map(|d| cx.g.mul(d, gamma)).transpose()?;
    }
    if let Some(beta) = vars.beta {
        shift = Some(match shift {
            Some(d) => cx.g.add(d, beta)?,
            None => beta,
        });
    }
    let scale = along(cx, scale, x, config.dim)?;
    let y = cx.g.mul(centred, scale)?;
    match shift {
        Some(shift) => {
            let shift = along(cx, shift, x, config.dim)?;
            Ok(cx.g.add(y, shift)?)
        }
        None => Ok(y),
    }
}

/// The mean over all dimensions but those kept, how far each element is from it, and the variance; of what a mask leaves
/// where there is one.
fn moments(cx: &mut Cx, x: Value, mask: Option<Value>, kept: &[usize]) -> Out<(Value, Value, Value)> {
    let others: Vec<usize> = (0..cx.rank(x)).filter(|d| !kept.contains(d)).collect();
    match mask {
        None => all_moments(cx, x, kept, &others),
        Some(mask) => masked_moments(cx, x, mask, kept, &others),
    }
}

fn all_moments(cx: &mut Cx, x: Value, kept: &[usize], others: &[usize]) -> Out<(Value, Value, Value)> {
    let whole = cx.g.shape(x).clone();
    let shape = Shape::new(kept.iter().map(|&d| whole[d]));
    let average = mean(cx, x, others)?;
    let average = cx.g.reshape(average, &shape)?;
    let wide = cx.g.broadcast(average, &whole, kept)?;
    let centred = cx.g.sub(x, wide)?;
    let square = cx.g.mul(centred, centred)?;
    let variance = mean(cx, square, others)?;
    Ok((average, centred, cx.g.reshape(variance, &shape)?))
}

/// Keras 3 adds a little to the count of what a mask leaves, Keras 2 does not.
fn masked_moments(cx: &mut Cx, x: Value, mask: Value, kept: &[usize], others: &[usize]) -> Out<(Value, Value, Value)> {
    let ty = cx.g.ty(x).clone();
    let dims = cx.dims(mask);
    if dims[..] != ty.shape[..ty.rank() - 1] {
        return Err(misfit(format!("a mask of shape {dims:?} beside a tensor of shape {}", ty.shape)));
    }
    let all: Vec<usize> = (0..dims.len()).collect();
    let mask = cx.g.cast(intwain_ir::DType::Bool, mask)?;
    let mask = cx.g.broadcast(mask, &ty.shape, &all)?;
    let weight = cx.g.cast(ty.dtype, mask)?;
    let mut count = cx.g.reduce(Reduce::Sum, weight, others)?;
    let shape = cx.g.shape(count).clone();
    if cx.generation == Generation::Three {
        let fuzz = cx.g.full(ty.dtype, FUZZ, &shape)?;
        count = cx.g.add(count, fuzz)?;
    }
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    let left = cx.g.select(mask, x, zero)?;
    let sum = cx.g.reduce(Reduce::Sum, left, others)?;
    let average = cx.g.div(sum, count)?;
    let wide = cx.g.broadcast(average, &ty.shape, kept)?;
    let centred = cx.g.sub(x, wide)?;
    let distance = cx.g.select(mask, centred, zero)?;
    let square = cx.g.mul(distance, distance)?;
    let sum = cx.g.reduce(Reduce::Sum, square, others)?;
    Ok((average, centred, cx.g.div(sum, count)?))
}

fn scaled(cx: &mut Cx, x: Value, by: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let by = cx.g.full(ty.dtype, by, &ty.shape)?;
    Ok(cx.g.mul(x, by)?)
}

/// Moves a statistic towards the batch's, and gives what it is then.
fn follow(cx: &mut Cx, name: &str, moving: Value, batch: Value, momentum: f64) -> Out<Value> {
    let old = scaled(cx, moving, momentum)?;
    let new = scaled(cx, batch, 1.0 - momentum)?;
    let next = cx.g.add(old, new)?;
    cx.update(name, next)?;
    Ok(next)
}

/// How renormalisation corrects the deviation and the mean, as constants to gradients; updates what it keeps.
fn corrected(
    cx: &mut Cx,
    config: &Config,
    renorm: &Renorm,
    vars: &Variables,
    [mean, variance]: [Value; 2],
) -> Out<(Value, Value)> {
    let [moving_stddev, renorm_mean, renorm_stddev] = vars.renorm.expect("declared where it is configured");
    let ty = cx.g.ty(mean).clone();
    let epsilon = cx.g.full(ty.dtype, config.epsilon, &ty.shape)?;
    let sum = cx.g.add(variance, epsilon)?;
    let deviation = cx.g.unary(Unary::Sqrt, sum)?;
    let least = cx.g.unary(Unary::Sqrt, epsilon)?;
    let kept = cx.g.binary(Binary::Max, renorm_stddev, least)?;
    let mut r = cx.g.div(deviation, kept)?;
    let distance = cx.g.sub(mean, renorm_mean)?;
    let mut d = cx.g.div(distance, kept)?;
    let limit = |cx: &mut Cx, x: Value, function: Binary, limit: Option<f64>| -> Out<Value> {
        let Some(limit) = limit else { return Ok(x) };
        let limit = cx.g.full(ty.dtype, limit, &ty.shape)?;
        Ok(cx.g.binary(function, x, limit)?)
    };
    r = limit(cx, r, Binary::Max, renorm.least)?;
    r = limit(cx, r, Binary::Min, renorm.most)?;
    d = limit(cx, d, Binary::Max, renorm.shift.map(|most| -most))?;
    d = limit(cx, d, Binary::Min, renorm.shift)?;
    follow(cx, "renorm_mean", renorm_mean, mean, renorm.momentum)?;
    follow(cx, "renorm_stddev", renorm_stddev, deviation, renorm.momentum)?;
    follow(cx, "moving_mean", vars.mean, mean, config.momentum)?;
    let moving = follow(cx, "moving_stddev", moving_stddev, deviation, config.momentum)?;
    let square = cx.g.mul(moving, moving)?;
    let variance = cx.g.sub(square, epsilon)?;
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    let variance = cx.g.binary(Binary::Max, variance, zero)?;
    cx.update("moving_variance", variance)?;
    Ok((cx.g.push(StopGradient {}, &[r])?, cx.g.push(StopGradient {}, &[d])?))
}
