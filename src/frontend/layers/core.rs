//! Dense layers, embeddings, masking, and layers that do nothing outside of training.

use intwain_ir::ops::{Constant, Contract, Take};
use intwain_ir::scalar::{Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Trainable, Value};

use super::activations::{Activation, initializer};
use super::build::{Builder, element};
use super::conv::add_bias;
use super::cx::{Cx, Out, T, misfit};
use super::inputs::Inputs;
use super::merge::common;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportError;
use crate::frontend::init::{Distribution, Initializer};
use crate::frontend::json::Json;

/// Constraints and regularisers matter for training only: training reads them from the model file.
const TRAINING: [&str; 5] =
    ["kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint", "embeddings_regularizer"];

pub(super) fn dense(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let units = fields.require("units")?.positive()?;
    let activation = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    let use_bias = fields.bool_or("use_bias", true)?;
    let kernel_init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["input_dim"]);
    fields.neutral("quantization_config", &[])?;
    let cx = &mut b.cx;
    let value = cx.floating(x.value)?;
    if cx.rank(value) < 2 {
        return Err(misfit(format!("takes a tensor of rank 2 or more, its input has the shape {:?}", cx.dims(value))));
    }
    let features = *cx.dims(value).last().expect("the rank is checked above");
    cx.low_rank(fields, &[features, units])?;
    let kernel = cx.var("kernel", &[features, units], kernel_init, Trainable::Yes)?;
    let mut y = cx.g.matmul(value, kernel)?;
    if use_bias {
        let bias = cx.var("bias", &[units], bias_init, Trainable::Yes)?;
        y = add_bias(cx, y, bias)?;
    }
    Ok(vec![activation.apply(cx, y)?.into()])
}

/// Random Fourier features: cos(x·K/s + b), in f32 under every policy.
pub(super) fn random_fourier_features(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let width = fields.require("output_dim")?.positive()?;
    let stored = fields.opt("kernel_initializer");
    let named = stored.as_ref().and_then(|at| at.str().ok().map(|name| (at, name.to_ascii_lowercase())));
    let gaussian = Initializer::Random { distribution: Distribution::Normal, a: 0.0, b: 1.0 };
    let (init, default_scale) = match (named, &stored) {
        (None, Some(at)) => (Initializer::read(at)?, None),
        (None, None) => (gaussian, Some(0.5)),
        (Some((_, name)), _) if name == "gaussian" => (gaussian, Some(0.5)),
        (Some((at, name)), _) if name == "laplacian" => {
            return Err(at.unsupported("a kernel of Cauchy's distribution").into());
        }
        (Some((at, _)), _) => return Err(at.accepted(&["gaussian"]).into()),
    };
    let scale = fields.opt("scale").map(|at| at.f64()).transpose()?;
    let cx = &mut b.cx;
    let value = cx.for_statistics(x.value)?;
    let &[_, features] = cx.dims(value).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 2, its input has the shape {:?}", cx.dims(value))));
    };
    let scale = scale.unwrap_or_else(|| default_scale.map_or(1.0, |half| (features as f64 * half).sqrt()));
    let dtype = cx.g.ty(value).dtype;
    // Files list it first, since Keras lists what it would train before all else, of frozen layers too.
    let divisor = cx.var_as(dtype, "kernel_scale", &[1], Initializer::Constant(scale), Trainable::Yes)?;
    let kernel = cx.var_as(dtype, "unscaled_kernel", &[features, width], init, Trainable::Frozen)?;
    let turn = Initializer::Random { distribution: Distribution::Uniform, a: 0.0, b: std::f64::consts::TAU };
    let bias = cx.var_as(dtype, "bias", &[width], turn, Trainable::Frozen)?;
    let divisor = cx.g.broadcast_to(divisor, &Shape::from([features, width]))?;
    let kernel = cx.g.div(kernel, divisor)?;
    let y = cx.g.matmul(value, kernel)?;
    let y = add_bias(cx, y, bias)?;
    Ok(vec![cx.g.unary(Unary::Cos, y)?.into()])
}

pub(super) fn embedding(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let rows = fields.require("input_dim")?.positive()?;
    let width = fields.require("output_dim")?.positive()?;
    let mask_zero = fields.bool_or("mask_zero", false)?;
    let init = fields.opt_any(&["embeddings_initializer", "init"]);
    let uniform = Initializer::Random { distribution: Distribution::Uniform, a: -0.05, b: 0.05 };
    let init = init.map_or(Ok(uniform), |at| Initializer::read(&at))?;
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["embeddings_constraint", "input_length", "weights"]);
    fields.neutral("quantization_config", &[])?;
    fields.neutral("sparse", &[Json::Bool(false)])?;
    let cx = &mut b.cx;
    cx.low_rank(fields, &[rows, width])?;
    let table = cx.var_of(cx.variable, "embeddings", &[rows, width], init, Trainable::Yes)?;
    let ids = if cx.g.ty(x).dtype.is_int() { x } else { cx.g.cast(DType::I32, x)? };
    let y = cx.g.push(Take { base: 0 }, &[table, ids])?;
    let y = cx.g.cast(cx.dtype, y)?;
    let mask = if mask_zero {
        // Of the ids as they are given: 0.5 looks row 0 up and is not masked.
        let ty = cx.g.ty(x).clone();
        let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
        Some(cx.g.compare(Compare::Ne, x, zero)?)
    } else {
        None
    };
    Ok(vec![T { value: y, mask }])
}

/// An embedding that also turns features back into scores of all rows.
pub(super) fn reversible_embedding(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let tied = fields.bool_or("tie_weights", true)?;
    let cap = fields.opt("logit_soft_cap").map(|at| at.f64()).transpose()?;
    let reverse_dtype = fields.opt("reverse_dtype").map(|at| match element(at.str()?) {
        Some(dtype) if dtype.is_float() => Ok(dtype),
        _ => Err(at.expected("a floating type")),
    });
    let reverse_dtype = reverse_dtype.transpose()?;
    let rows = fields.require("input_dim")?.positive()?;
    let width = fields.require("output_dim")?.positive()?;
    let reverse = inputs.flag("reverse")?;
    let init = |fields: &Fields<'_>| {
        let uniform = Initializer::Random { distribution: Distribution::Uniform, a: -0.05, b: 0.05 };
        initializer(fields, "embeddings_initializer", uniform)
    };
    if !reverse {
        let embedded = embedding(b, fields, inputs)?;
        if !tied {
            b.cx.var("reverse_embeddings", &[width, rows], init(fields)?, Trainable::Yes)?;
        }
        return Ok(embedded);
    }
    let x = inputs.one()?;
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["embeddings_constraint", "input_length", "weights", "mask_zero"]);
    fields.neutral("quantization_config", &[])?;
    let cx = &mut b.cx;
    cx.low_rank(fields, &[rows, width])?;
    let table = cx.var("embeddings", &[rows, width], init(fields)?, Trainable::Yes)?;
    let last = cx.axis(-1, cx.rank(x.value))?;
    let (kernel, dim) = match tied {
        true => (table, 1),
        false => (cx.var("reverse_embeddings", &[width, rows], init(fields)?, Trainable::Yes)?, 0),
    };
    let dtype = match reverse_dtype {
        Some(dtype) => cx.float.unwrap_or(dtype),
        None => common(cx, [x.value, kernel]),
    };
    let (x, kernel) = (cx.g.cast(dtype, x.value)?, cx.g.cast(dtype, kernel)?);
    let mut y = cx.g.push(Contract { batch: vec![], contract: vec![(last, dim)] }, &[x, kernel])?;
    if let Some(cap) = cap {
        let ty = cx.g.ty(y).clone();
        let cap = cx.g.full(ty.dtype, cap, &ty.shape)?;
        let ratio = cx.g.div(y, cap)?;
        let tanh = cx.g.unary(intwain_ir::scalar::Unary::Tanh, ratio)?;
        y = cx.g.mul(tanh, cap)?;
    }
    Ok(vec![y.into()])
}

/// A step is masked where all its features have the mask value; masked steps become 0.
pub(super) fn masking(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let skipped = fields.opt("mask_value").map_or(Ok(vec![0.0]), |at| mask_value(&at))?;
    let cx = &mut b.cx;
    let ty = cx.g.ty(x).clone();
    let last = cx.axis(-1, ty.rank())?;
    if skipped.len() != 1 && skipped.len() != ty.shape[last] {
        return Err(misfit(format!("{} mask values for {} features", skipped.len(), ty.shape[last])));
    }
    // An integer is never equal to a fraction.
    let whole = skipped.iter().all(|v| v.fract() == 0.0);
    let compared = if ty.dtype.is_float() || whole { x } else { cx.g.cast(DType::F32, x)? };
    let dtype = cx.g.ty(compared).dtype;
    let elements = skipped.iter().map(|v| Scalar::from_f64(dtype, *v)).collect();
    let skipped = cx.g.push(Constant { shape: Shape::from([skipped.len()]), elements }, &[])?;
    let skipped = cx.g.broadcast_to(skipped, &ty.shape)?;
    let differs = cx.g.compare(Compare::Ne, compared, skipped)?;
    // A sum of booleans is `any`.
    let mask = cx.g.reduce(Reduce::Sum, differs, &[last])?;
    let kept: Vec<usize> = (0..last).collect();
    let wide = cx.g.broadcast(mask, &ty.shape, &kept)?;
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    Ok(vec![T { value: cx.g.select(wide, x, zero)?, mask: Some(mask) }])
}

/// A number, or one for every feature; Keras 3 writes arrays as objects.
fn mask_value(at: &At<'_>) -> Result<Vec<f64>, ImportError> {
    let at = match at.json {
        Json::Object(_) => at.require("config")?.require("value")?,
        _ => at.clone(),
    };
    at.one_or_many().iter().map(At::any_f64).collect()
}

pub(super) fn identity(_: &mut Builder, _: &Fields<'_>, inputs: &Inputs) -> Out {
    inputs.many()
}

pub(super) fn activity_regularization(_: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&["l1", "l2"]);
    Ok(vec![inputs.one()?])
}

/// A contraction written as an equation `ab..,bc->..`, with a kernel and a bias of its letters.
pub(super) fn einsum_dense(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let equation = fields.require("equation")?;
    let activation = Activation::read(&b.cx, fields, "activation", Activation::Linear)?;
    let bias_axes = fields.opt("bias_axes").map(|at| at.str()).transpose()?;
    let given = fields.require("output_shape")?;
    let given: Vec<Option<usize>> = given
        .one_or_many()
        .iter()
        .map(|a| if a.is_null() { Ok(None) } else { a.usize().map(Some) })
        .collect::<Result<_, _>>()?;
    let kernel_init = initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?;
    let bias_init = initializer(fields, "bias_initializer", Initializer::ZEROS)?;
    fields.irrelevant(&TRAINING);
    fields.irrelevant(&["gptq_unpacked_column_size"]);
    fields.neutral("quantization_config", &[])?;
    let cx = &mut b.cx;
    let x = cx.floating(x)?;
    let parsed = Equation::parse(equation.str()?, cx.rank(x));
    let Some(parsed) = parsed else {
        return Err(equation.expected("an equation such as `abc,cd->abd` that fits its input").into());
    };
    let sizes = parsed.sizes(&cx.dims(x), &given).ok_or_else(|| {
        misfit(format!(
            "the output shape {} does not fit the equation",
            fields.at().json.get("output_shape").unwrap_or(&Json::Null)
        ))
    })?;
    let extent = |c: char| sizes.iter().find(|(l, _)| *l == c).map_or(1, |(_, n)| *n);
    let kernel_shape: Vec<usize> = parsed.kernel.iter().map(|&c| extent(c)).collect();
    cx.low_rank(fields, &kernel_shape)?;
    let kernel = cx.var("kernel", &kernel_shape, kernel_init, Trainable::Yes)?;
    let mut y = contract_letters(cx, x, &parsed.input, kernel, &parsed.kernel, &parsed.output)?;
    if let Some(axes) = bias_axes.filter(|a| !a.is_empty()) {
        let letters: Vec<char> = axes.chars().collect();
        let first = letters.iter().filter_map(|c| parsed.output.iter().position(|o| o == c)).min();
        let Some(first) = first else { return Err(misfit(format!("bias axes `{axes}` are not in the output"))) };
        // The bias covers the output from its first letter on, with 1 where a letter is not named.
        let shape: Vec<usize> =
            parsed.output[first..].iter().map(|c| if letters.contains(c) { extent(*c) } else { 1 }).collect();
        let bias = cx.var("bias", &shape, bias_init, Trainable::Yes)?;
        y = add_bias(cx, y, bias)?;
    }
    Ok(vec![activation.apply(cx, y)?.into()])
}

/// An equation with a letter for every dimension: those of an ellipsis are letters of their own.
struct Equation {
    input: Vec<char>,
    kernel: Vec<char>,
    output: Vec<char>,
    /// Letters that stand for the ellipsis.
    elided: usize,
}

impl Equation {
    fn parse(text: &str, rank: usize) -> Option<Equation> {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (operands, output) = text.split_once("->")?;
        let (input, kernel) = operands.split_once(',')?;
        let named = input.replace("...", "").chars().count();
        let elided = if input.contains("...") || output.contains("...") { rank.checked_sub(named)? } else { 0 };
        let expand = |part: &str| -> Option<Vec<char>> {
            let (before, after) = part.split_once("...").unwrap_or((part, ""));
            let middle = if part.contains("...") { elided } else { 0 };
            // Private-use characters, which no equation contains.
            let stand_in = (0..middle).map(|i| char::from_u32(0xE000 + i as u32));
            before.chars().map(Some).chain(stand_in).chain(after.chars().map(Some)).collect()
        };
        let parsed = Equation { input: expand(input)?, kernel: expand(kernel)?, output: expand(output)?, elided };
        let unique = |letters: &[char]| letters.iter().enumerate().all(|(i, c)| !letters[..i].contains(c));
        let fits = parsed.input.len() == rank
            && unique(&parsed.input)
            && unique(&parsed.kernel)
            && unique(&parsed.output)
            && parsed.output.iter().all(|c| parsed.input.contains(c) || parsed.kernel.contains(c));
        fits.then_some(parsed)
    }

    /// Extents of all letters, from the input and from the output shape, which leaves out the batch.
    fn sizes(&self, input: &[usize], given: &[Option<usize>]) -> Option<Vec<(char, usize)>> {
        let mut sizes: Vec<(char, usize)> = self.input.iter().copied().zip(input.iter().copied()).collect();
        // The shape leaves out the batch, or, beside an ellipsis, the dimensions it stands for as well.
        let behind = &self.output[1..];
        let stands_in = |c: &&char| **c as u32 >= 0xE000;
        let after: Vec<char> = self.output.iter().filter(|c| !stands_in(c)).copied().collect();
        let leading = self.output.first().is_some_and(|c| !stands_in(&c));
        let written = &after[usize::from(leading)..];
        let named = if given.len() == behind.len() {
            behind
        } else if self.elided > 0 && given.len() == written.len() {
            written
        } else {
            return None;
        };
        for (&letter, &extent) in named.iter().zip(given) {
            match (sizes.iter().find(|(l, _)| *l == letter), extent) {
                (Some((_, known)), Some(extent)) if *known != extent => return None,
                (Some(_), _) => {}
                (None, Some(extent)) => sizes.push((letter, extent)),
                (None, None) => return None,
            }
        }
        self.kernel.iter().all(|c| sizes.iter().any(|(l, _)| l == c)).then_some(sizes)
    }
}

/// A contraction by letters: those of both operands that the output lacks are summed over, those it has are batches.
pub(super) fn contract_letters(cx: &mut Cx, x: Value, xs: &[char], y: Value, ys: &[char], out: &[char]) -> Out<Value> {
    // What one operand has alone and the output lacks is summed first.
    let (x, xs) = sum_out(cx, x, xs, ys, out)?;
    let (y, ys) = sum_out(cx, y, ys, &xs, out)?;
    let both: Vec<char> = xs.iter().copied().filter(|c| ys.contains(c)).collect();
    let place =
        |letters: &[char], c: char| letters.iter().position(|l| *l == c).expect("the letter is in both operands");
    let pairs = |kept: bool| -> Vec<(usize, usize)> {
        let chosen = both.iter().filter(|c| out.contains(c) == kept);
        chosen.map(|&c| (place(&xs, c), place(&ys, c))).collect()
    };
    let (batch, contract) = (pairs(true), pairs(false));
    let mut letters: Vec<char> = batch.iter().map(|p| xs[p.0]).collect();
    letters.extend(xs.iter().filter(|c| !both.contains(c)));
    letters.extend(ys.iter().filter(|c| !both.contains(c)));
    let z = cx.g.push(Contract { batch, contract }, &[x, y])?;
    let perm: Option<Vec<usize>> = out.iter().map(|c| letters.iter().position(|l| l == c)).collect();
    let perm = perm.ok_or_else(|| misfit("the equation's output has a letter that its operands lack"))?;
    Ok(cx.g.transpose(z, &perm)?)
}

fn sum_out(cx: &mut Cx, x: Value, xs: &[char], ys: &[char], out: &[char]) -> Out<(Value, Vec<char>)> {
    let alone = |c: &char| !ys.contains(c) && !out.contains(c);
    let dims: Vec<usize> = xs.iter().enumerate().filter(|(_, c)| alone(c)).map(|(d, _)| d).collect();
    if dims.is_empty() {
        return Ok((x, xs.to_vec()));
    }
    let sum = cx.g.reduce(Reduce::Sum, x, &dims)?;
    Ok((sum, xs.iter().copied().filter(|c| !alone(c)).collect()))
}
