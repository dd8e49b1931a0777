//! Activation functions, as layers and as the `activation` of other layers.

use intwain_ir::ops::Iota;
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T, misfit};
use super::inputs::Inputs;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportError;
use crate::frontend::init::Initializer;
use crate::frontend::json::Json;

/// A function of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Activation {
    Linear,
    Relu { slope: f64, max: Option<f64>, threshold: f64 },
    LeakyRelu { slope: f64 },
    Elu { alpha: f64 },
    Celu { alpha: f64 },
    Selu,
    Gelu,
    GeluTanh,
    Sigmoid,
    HardSigmoid { keras_2: Keras2 },
    Tanh,
    Softplus,
    Softsign,
    Silu,
    HardSilu,
    Mish,
    Exponential,
    LogSigmoid,
    Softmax,
    LogSoftmax,
    TanhShrink,
    HardTanh,
    HardShrink,
    SoftShrink,
    Squareplus,
    SparsePlus,
    SparseSigmoid,
    Sparsemax,
    Glu,
}

/// Which generation's formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keras2 {
    Yes,
    No,
}

impl Activation {
    /// The names of all functions.
    const NAMES: [&'static str; 34] = [
        "linear",
        "relu",
        "relu6",
        "leaky_relu",
        "elu",
        "celu",
        "selu",
        "gelu",
        "sigmoid",
        "hard_sigmoid",
        "tanh",
        "softplus",
        "softsign",
        "silu",
        "swish",
        "hard_silu",
        "hard_swish",
        "mish",
        "exponential",
        "exp",
        "log_sigmoid",
        "softmax",
        "log_softmax",
        "tanh_shrink",
        "hard_tanh",
        "hard_shrink",
        "soft_shrink",
        "squareplus",
        "sparse_plus",
        "sparse_sigmoid",
        "sparsemax",
        "glu",
        "sigmoid_v2",
        "softmax_v2",
    ];

    /// The function of this name.
    fn named(name: &str, keras_2: Keras2) -> Option<Activation> {
        Some(match name {
            "linear" => Activation::Linear,
            "relu" => Activation::Relu { slope: 0.0, max: None, threshold: 0.0 },
            "relu6" => Activation::Relu { slope: 0.0, max: Some(6.0), threshold: 0.0 },
            "leaky_relu" => Activation::LeakyRelu { slope: 0.2 },
            "elu" => Activation::Elu { alpha: 1.0 },
            "celu" => Activation::Celu { alpha: 1.0 },
            "selu" => Activation::Selu,
            "gelu" => Activation::Gelu,
            "sigmoid" | "sigmoid_v2" => Activation::Sigmoid,
            "hard_sigmoid" => Activation::HardSigmoid { keras_2 },
            "tanh" => Activation::Tanh,
            "softplus" => Activation::Softplus,
            "softsign" => Activation::Softsign,
            "silu" | "swish" => Activation::Silu,
            "hard_silu" | "hard_swish" => Activation::HardSilu,
            "mish" => Activation::Mish,
            "exponential" | "exp" => Activation::Exponential,
            "log_sigmoid" => Activation::LogSigmoid,
            "softmax" | "softmax_v2" => Activation::Softmax,
            "log_softmax" => Activation::LogSoftmax,
            "tanh_shrink" => Activation::TanhShrink,
            "hard_tanh" => Activation::HardTanh,
            "hard_shrink" => Activation::HardShrink,
            "soft_shrink" => Activation::SoftShrink,
            "squareplus" => Activation::Squareplus,
            "sparse_plus" => Activation::SparsePlus,
            "sparse_sigmoid" => Activation::SparseSigmoid,
            "sparsemax" => Activation::Sparsemax,
            "glu" => Activation::Glu,
            _ => return None,
        })
    }

    /// Reads the `activation` of a layer: a name, null, or an object that wraps a name or an activation layer.
    pub(super) fn read(
        cx: &Cx,
        fields: &Fields<'_>,
        key: &str,
        default: Activation,
    ) -> Result<Activation, ImportError> {
        match fields.get(key) {
            None => Ok(default),
            Some(at) if at.is_null() => Ok(Activation::Linear),
            Some(at) => Activation::read_value(cx, &at),
        }
    }

    fn read_value(cx: &Cx, at: &At<'_>) -> Result<Activation, ImportError> {
        let keras_2 = match cx.generation {
            crate::frontend::file::Generation::One | crate::frontend::file::Generation::Two => Keras2::Yes,
            crate::frontend::file::Generation::Three => Keras2::No,
        };
        if at.json.as_str().is_some() {
            return Activation::named(at.str()?, keras_2).ok_or_else(|| at.accepted(&Activation::NAMES));
        }
        let class = at.require("class_name")?;
        let config = at.get("config");
        match (class.str()?, &config) {
            // A function is written with its name as the configuration.
            ("function", Some(config)) => Activation::read_value(cx, config),
            ("ReLU", Some(config)) => Activation::read_relu(&config.fields()?),
            ("LeakyReLU", Some(config)) => Ok(Activation::LeakyRelu { slope: leaky_slope(&config.fields()?)? }),
            ("ELU", Some(config)) => Ok(Activation::Elu { alpha: config.fields()?.f64_or("alpha", 1.0)? }),
            ("Activation", Some(config)) => Activation::read_value(cx, &config.require("activation")?),
            ("Softmax", _) => Ok(Activation::Softmax),
            (name, _) => Activation::named(name, keras_2).ok_or_else(|| class.accepted(&Activation::NAMES)),
        }
    }

    fn read_relu(fields: &Fields<'_>) -> Result<Activation, ImportError> {
        let max = fields.opt("max_value").map(|at| at.any_f64()).transpose()?;
        Ok(Activation::Relu {
            slope: fields.f64_or("negative_slope", 0.0)?,
            max: max.filter(|m| *m != f64::INFINITY),
            threshold: fields.f64_or("threshold", 0.0)?,
        })
    }

    /// Whether it is made of several operations that round.
    fn is_composed(&self) -> bool {
        match self {
            Activation::Linear
            | Activation::Relu { .. }
            | Activation::LeakyRelu { .. }
            | Activation::Sigmoid
            | Activation::Tanh
            | Activation::Exponential
            | Activation::Softmax
            | Activation::LogSoftmax
            | Activation::HardTanh
            | Activation::HardShrink => false,
            Activation::Elu { .. }
            | Activation::Celu { .. }
            | Activation::Selu
            | Activation::Gelu
            | Activation::GeluTanh
            | Activation::HardSigmoid { .. }
            | Activation::Softplus
            | Activation::Softsign
            | Activation::Silu
            | Activation::HardSilu
            | Activation::Mish
            | Activation::LogSigmoid
            | Activation::TanhShrink
            | Activation::SoftShrink
            | Activation::Squareplus
            | Activation::SparsePlus
            | Activation::SparseSigmoid
            | Activation::Sparsemax
            | Activation::Glu => true,
        }
    }

    /// Appends the function.
    pub(super) fn apply(&self, cx: &mut Cx, x: Value) -> Out<Value> {
        let x = if cx.g.ty(x).dtype.is_float() { x } else { cx.floating(x)? };
        let dtype = cx.g.ty(x).dtype;
        if dtype != dtype.accumulator() && self.is_composed() {
            // Several operations are rounded once.
            let wide = cx.for_statistics(x)?;
            let y = self.apply(cx, wide)?;
            return Ok(cx.g.cast(dtype, y)?);
        }
        let ty = cx.g.ty(x).clone();
        let g = &mut cx.g;
        let mut num = |v: f64| g.full(ty.dtype, v, &ty.shape);
        Ok(match self {
            Activation::Linear => x,
            Activation::Relu { slope, max, threshold } => return relu_of(cx, x, *slope, *max, *threshold),
            Activation::LeakyRelu { slope } => return relu_of(cx, x, *slope, None, 0.0),
            Activation::Elu { alpha } => {
                let alpha = num(*alpha)?;
                return exponential_below_zero(cx, x, alpha, 1.0);
            }
            Activation::Celu { alpha } => {
                let scale = num(*alpha)?;
                return exponential_below_zero(cx, x, scale, 1.0 / alpha);
            }
            Activation::Selu => {
                const ALPHA: f64 = 1.673_263_242_354_377_2;
                const SCALE: f64 = 1.050_700_987_355_480_5;
                let (alpha, scale) = (num(ALPHA)?, num(SCALE)?);
                let y = exponential_below_zero(cx, x, alpha, 1.0)?;
                cx.g.mul(y, scale)?
            }
            Activation::Gelu => {
                let root = through_f32(std::f64::consts::FRAC_1_SQRT_2);
                let (half, one, root) = (num(0.5)?, num(1.0)?, num(root)?);
                let inner = cx.g.mul(x, root)?;
                let erf = cx.g.unary(Unary::Erf, inner)?;
                let sum = cx.g.add(erf, one)?;
                let scaled = cx.g.mul(x, half)?;
                cx.g.mul(scaled, sum)?
            }
            Activation::GeluTanh => {
                let root = (2.0 / std::f64::consts::PI).sqrt();
                let (half, one, root, cubic) = (num(0.5)?, num(1.0)?, num(root)?, num(through_f32(0.044_715))?);
                let square = cx.g.mul(x, x)?;
                let cube = cx.g.mul(square, x)?;
                let cube = cx.g.mul(cubic, cube)?;
                let sum = cx.g.add(x, cube)?;
                let inner = cx.g.mul(root, sum)?;
                let tanh = cx.g.unary(Unary::Tanh, inner)?;
                let sum = cx.g.add(tanh, one)?;
                let scaled = cx.g.mul(x, half)?;
                cx.g.mul(scaled, sum)?
            }
            Activation::Sigmoid => cx.g.unary(Unary::Logistic, x)?,
            Activation::HardSigmoid { keras_2 } => {
                let slope = if *keras_2 == Keras2::Yes { 0.2 } else { 1.0 / 6.0 };
                return ramp(cx, x, slope);
            }
            Activation::Tanh => cx.g.unary(Unary::Tanh, x)?,
            Activation::Softplus => return softplus(cx, x),
            Activation::Softsign => {
                let one = num(1.0)?;
                let abs = cx.g.unary(Unary::Abs, x)?;
                let below = cx.g.add(abs, one)?;
                cx.g.div(x, below)?
            }
            Activation::Silu => {
                let s = cx.g.unary(Unary::Logistic, x)?;
                cx.g.mul(x, s)?
            }
            Activation::HardSilu => {
                let s = ramp(cx, x, 1.0 / 6.0)?;
                cx.g.mul(x, s)?
            }
            Activation::Mish => {
                let s = softplus(cx, x)?;
                let t = cx.g.unary(Unary::Tanh, s)?;
                cx.g.mul(x, t)?
            }
            Activation::Exponential => cx.g.unary(Unary::Exp, x)?,
            Activation::LogSigmoid => {
                let minus = cx.g.unary(Unary::Neg, x)?;
                let s = softplus(cx, minus)?;
                cx.g.unary(Unary::Neg, s)?
            }
            Activation::Softmax => return softmax_over(cx, x, &[last(cx, x)?]),
            Activation::LogSoftmax => {
                let dim = last(cx, x)?;
                cx.g.push(intwain_ir::ops::LogSoftmax { dim }, &[x])?
            }
            Activation::TanhShrink => {
                let t = cx.g.unary(Unary::Tanh, x)?;
                cx.g.sub(x, t)?
            }
            Activation::HardTanh => return clip(cx, x, -1.0, 1.0),
            Activation::HardShrink => {
                let (zero, half) = (num(0.0)?, num(0.5)?);
                let abs = cx.g.unary(Unary::Abs, x)?;
                let inside = cx.g.compare(Compare::Le, abs, half)?;
                cx.g.select(inside, zero, x)?
            }
            Activation::SoftShrink => {
                let (zero, half, minus) = (num(0.0)?, num(0.5)?, num(-0.5)?);
                let (up, down) = (cx.g.sub(x, half)?, cx.g.add(x, half)?);
                let (above, below) = (cx.g.compare(Compare::Gt, x, half)?, cx.g.compare(Compare::Lt, x, minus)?);
                let low = cx.g.select(below, down, zero)?;
                cx.g.select(above, up, low)?
            }
            Activation::Squareplus => {
                let (four, half) = (num(4.0)?, num(0.5)?);
                let square = cx.g.mul(x, x)?;
                let sum = cx.g.add(square, four)?;
                let root = cx.g.unary(Unary::Sqrt, sum)?;
                let sum = cx.g.add(x, root)?;
                cx.g.mul(sum, half)?
            }
            Activation::SparsePlus => {
                let (zero, one, minus, quarter) = (num(0.0)?, num(1.0)?, num(-1.0)?, num(0.25)?);
                let sum = cx.g.add(x, one)?;
                let square = cx.g.mul(sum, sum)?;
                let middle = cx.g.mul(square, quarter)?;
                let (low, high) = (cx.g.compare(Compare::Le, x, minus)?, cx.g.compare(Compare::Ge, x, one)?);
                let inner = cx.g.select(high, x, middle)?;
                cx.g.select(low, zero, inner)?
            }
            Activation::SparseSigmoid => return ramp(cx, x, 0.5),
            Activation::Sparsemax => return sparsemax(cx, x),
            Activation::Glu => {
                let dim = last(cx, x)?;
                let n = ty.shape[dim];
                if !n.is_multiple_of(2) {
                    return Err(misfit(format!("glu halves {n} channels")));
                }
                let (a, b) = (cx.g.slice_dim(x, dim, 0..n / 2)?, cx.g.slice_dim(x, dim, n / 2..n)?);
                let gate = cx.g.unary(Unary::Logistic, b)?;
                cx.g.mul(a, gate)?
            }
        })
    }
}

/// A constant as TensorFlow's `gelu` has it in float64, too: it is cast from a float32.
fn through_f32(x: f64) -> f64 {
    f64::from(x as f32)
}

/// Sparsemax as every back end of Keras computes it: max(x − τ, 0), where τ·k + 1 is the sum of the running sums of the k greatest
/// elements that are in the support, not their sum. An element is in the support where 1 + k·x is above the sum of the k elements
/// from the greatest to it.
fn sparsemax(cx: &mut Cx, x: Value) -> Out<Value> {
    let dim = last(cx, x)?;
    let ty = cx.g.ty(x).clone();
    let wide = Shape::from(ty.shape.iter().copied().chain([ty.shape[dim]]).collect::<Vec<_>>());
    let own: Vec<usize> = (0..=dim).collect();
    let others: Vec<usize> = (0..dim).chain([dim + 1]).collect();
    let (each, other) = (cx.g.broadcast(x, &wide, &own)?, cx.g.broadcast(x, &wide, &others)?);
    let place = |cx: &mut Cx, dim| cx.g.push(Iota { dtype: DType::I32, shape: wide.clone(), dim, start: 0 }, &[]);
    let (here, there) = (place(cx, dim)?, place(cx, dim + 1)?);
    // Of equal elements the first counts as the greater one.
    let (above, equal) = (cx.g.compare(Compare::Gt, other, each)?, cx.g.compare(Compare::Eq, other, each)?);
    let before = cx.g.compare(Compare::Le, there, here)?;
    let tied = cx.g.binary(Binary::And, equal, before)?;
    let counted = cx.g.binary(Binary::Or, above, tied)?;
    let (zero, one) = (cx.g.full(ty.dtype, 0.0, &wide)?, cx.g.full(ty.dtype, 1.0, &wide)?);
    let (kept, ones) = (cx.g.select(counted, other, zero)?, cx.g.select(counted, one, zero)?);
    let (sum, count) = (cx.g.reduce(Reduce::Sum, kept, &[dim + 1])?, cx.g.reduce(Reduce::Sum, ones, &[dim + 1])?);
    let (zero, one) = (cx.g.full(ty.dtype, 0.0, &ty.shape)?, cx.g.full(ty.dtype, 1.0, &ty.shape)?);
    let reach = cx.g.mul(count, x)?;
    let reach = cx.g.add(reach, one)?;
    let support = cx.g.compare(Compare::Gt, reach, sum)?;
    let (kept, ones) = (cx.g.select(support, sum, zero)?, cx.g.select(support, one, zero)?);
    let (sum, count) = (cx.g.reduce_keep(Reduce::Sum, kept, &[dim])?, cx.g.reduce_keep(Reduce::Sum, ones, &[dim])?);
    let single = cx.g.full(ty.dtype, 1.0, &cx.g.shape(sum).clone())?;
    let rest = cx.g.sub(sum, single)?;
    let tau = cx.g.div(rest, count)?;
    let above = cx.g.binary_broadcast(Binary::Sub, x, tau)?;
    Ok(cx.g.binary(Binary::Max, above, zero)?)
}

fn last(cx: &Cx, x: Value) -> Out<usize> {
    cx.axis(-1, cx.rank(x))
}

/// Below the threshold slope·(x − threshold), above it x up to max. A comparison with NaN is false, which keeps NaN; the
/// derivative at the kinks is that of the part below.
fn relu_of(cx: &mut Cx, x: Value, slope: f64, max: Option<f64>, threshold: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let limit = cx.g.full(ty.dtype, threshold, &ty.shape)?;
    let below = cx.g.compare(Compare::Le, x, limit)?;
    let low = if slope == 0.0 {
        cx.g.full(ty.dtype, 0.0, &ty.shape)?
    } else {
        let slope = cx.g.full(ty.dtype, slope, &ty.shape)?;
        let shifted = if threshold == 0.0 { x } else { cx.g.sub(x, limit)? };
        cx.g.mul(slope, shifted)?
    };
    let Some(max) = max else { return Ok(cx.g.select(below, low, x)?) };
    // With a maximum, Keras clips what is kept to [0, max], which matters for a negative threshold.
    let kept = if threshold < 0.0 { clip(cx, x, 0.0, max)? } else { clip_above(cx, x, max)? };
    Ok(cx.g.select(below, low, kept)?)
}

fn clip_above(cx: &mut Cx, x: Value, max: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let max = cx.g.full(ty.dtype, max, &ty.shape)?;
    let above = cx.g.compare(Compare::Ge, x, max)?;
    Ok(cx.g.select(above, max, x)?)
}

/// x limited to [low, high]; NaN stays NaN.
pub(super) fn clip(cx: &mut Cx, x: Value, low: f64, high: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let upper = clip_above(cx, x, high)?;
    let low = cx.g.full(ty.dtype, low, &ty.shape)?;
    let below = cx.g.compare(Compare::Le, upper, low)?;
    Ok(cx.g.select(below, low, upper)?)
}

/// slope·x + ½ limited to [0, 1].
fn ramp(cx: &mut Cx, x: Value, slope: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let (slope, half) = (cx.g.full(ty.dtype, slope, &ty.shape)?, cx.g.full(ty.dtype, 0.5, &ty.shape)?);
    let scaled = cx.g.mul(x, slope)?;
    let shifted = cx.g.add(scaled, half)?;
    clip(cx, shifted, 0.0, 1.0)
}

/// x above 0, scale·(e^(rate·x) − 1) elsewhere. The exponential sees no positive argument, so that its derivative stays finite.
fn exponential_below_zero(cx: &mut Cx, x: Value, scale: Value, rate: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    let positive = cx.g.compare(Compare::Gt, x, zero)?;
    let low = cx.g.select(positive, zero, x)?;
    let low = if rate == 1.0 {
        low
    } else {
        let rate = cx.g.full(ty.dtype, rate, &ty.shape)?;
        cx.g.mul(low, rate)?
    };
    let e = cx.g.unary(Unary::Expm1, low)?;
    let e = cx.g.mul(scale, e)?;
    Ok(cx.g.select(positive, x, e)?)
}

/// max(x, 0) + log(1 + e^−|x|).
fn softplus(cx: &mut Cx, x: Value) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    let abs = cx.g.unary(Unary::Abs, x)?;
    let minus = cx.g.unary(Unary::Neg, abs)?;
    let e = cx.g.unary(Unary::Exp, minus)?;
    let log = cx.g.unary(Unary::Log1p, e)?;
    let max = cx.g.binary(Binary::Max, x, zero)?;
    Ok(cx.g.add(max, log)?)
}

/// Softmax over one or several dimensions together.
pub(super) fn softmax_over(cx: &mut Cx, x: Value, dims: &[usize]) -> Out<Value> {
    if let &[dim] = dims {
        return Ok(cx.g.push(intwain_ir::ops::Softmax { dim }, &[x])?);
    }
    let rank = cx.rank(x);
    let shape = cx.dims(x);
    let perm: Vec<usize> = (0..rank).filter(|d| !dims.contains(d)).chain(dims.iter().copied()).collect();
    let moved = cx.g.transpose(x, &perm)?;
    let kept = rank - dims.len();
    let flat: Vec<usize> =
        perm[..kept].iter().map(|&d| shape[d]).chain([dims.iter().map(|&d| shape[d]).product()]).collect();
    let unflat = cx.g.shape(moved).clone();
    let flat = cx.g.reshape(moved, &flat.into())?;
    let y = cx.g.push(intwain_ir::ops::Softmax { dim: kept }, &[flat])?;
    let y = cx.g.reshape(y, &unflat)?;
    let mut back = vec![0; rank];
    perm.iter().enumerate().for_each(|(i, &d)| back[d] = i);
    Ok(cx.g.transpose(y, &back)?)
}

pub(super) fn activation(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let function = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    one(b, inputs, &function)
}

fn one(b: &mut Builder, inputs: &Inputs, function: &Activation) -> Out {
    let x = inputs.one()?;
    Ok(vec![T { value: function.apply(&mut b.cx, x.value)?, mask: x.mask }])
}

pub(super) fn relu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let function = Activation::read_relu(fields)?;
    one(b, inputs, &function)
}

fn leaky_slope(fields: &Fields<'_>) -> Result<f64, ImportError> {
    fields.opt_any(&["negative_slope", "alpha"]).map_or(Ok(0.3), |at| match at.json {
        // Keras 2 writes an array's value here.
        Json::Object(_) => at.require("config")?.require("value")?.f64(),
        _ => at.f64(),
    })
}

pub(super) fn leaky_relu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let function = Activation::LeakyRelu { slope: leaky_slope(fields)? };
    one(b, inputs, &function)
}

pub(super) fn elu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let function = Activation::Elu { alpha: fields.f64_or("alpha", 1.0)? };
    one(b, inputs, &function)
}

/// x where it is above theta, else 0.
pub(super) fn thresholded_relu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let theta = fields.f64_or("theta", 1.0)?;
    let x = inputs.one()?;
    let ty = b.cx.g.ty(x.value).clone();
    let (theta, zero) = (b.cx.g.full(ty.dtype, theta, &ty.shape)?, b.cx.g.full(ty.dtype, 0.0, &ty.shape)?);
    let below = b.cx.g.compare(Compare::Le, x.value, theta)?;
    Ok(vec![b.cx.g.select(below, zero, x.value)?.into()])
}

pub(super) fn prelu(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let mut shape = b.cx.dims(x.value);
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
    let init = initializer(fields, "alpha_initializer", Initializer::ZEROS)?;
    fields.irrelevant(&["alpha_regularizer", "alpha_constraint"]);
    let alpha = b.cx.var("alpha", &shape, init, Trainable::Yes)?;
    let g = &mut b.cx.g;
    let full = g.shape(x.value).clone();
    let alpha = g.broadcast_to(alpha, &full)?;
    let scaled = g.mul(alpha, x.value)?;
    let zero = g.full(g.ty(x.value).dtype, 0.0, &full)?;
    let below = g.compare(Compare::Le, x.value, zero)?;
    Ok(vec![g.select(below, scaled, x.value)?.into()])
}

/// Reads an initializer key, or gives the default.
pub(super) fn initializer(fields: &Fields<'_>, key: &str, default: Initializer) -> Result<Initializer, ImportError> {
    fields.get(key).map_or(Ok(default), |at| Initializer::read(&at))
}
