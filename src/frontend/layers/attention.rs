//! Attention with projections: multi-head and grouped-query.

use intwain_ir::ops::Iota;
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::activations::{initializer, softmax_over};
use super::build::Builder;
use super::conv::add_bias;
use super::core::contract_letters;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::dropout::Lost;
use super::inputs::{Inputs, Item};
use super::masks::written;
use super::penalties::{Said, of_outputs};
use super::softmax::{Masked, masked_softmax};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::file::Generation;
use crate::frontend::init::Initializer;
use crate::frontend::weights::Slot;

/// Keys that matter for training only, or say how and not what is computed.
const NEUTRAL: [&str; 5] =
    ["kernel_regularizer", "bias_regularizer", "kernel_constraint", "bias_constraint", "flash_attention"];

/// What both multi-head layers are called with.
struct Call {
    query: T,
    value: T,
    key: T,
    /// Masks of query, value and key that Keras carries along.
    masks: [Option<Value>; 3],
    user_mask: Option<Value>,
    causal: bool,
    scores: bool,
}

impl Call {
    fn read(cx: &mut Cx, inputs: &Inputs) -> Out<Call> {
        let missing = |name: &str| misfit(format!("is called without `{name}`"));
        let query = inputs.tensor(0, "query")?.ok_or_else(|| missing("query"))?;
        let value = inputs.tensor(1, "value")?.ok_or_else(|| missing("value"))?;
        let given = inputs.tensor(2, "key")?;
        // Keras 2 has no arguments for the three masks, and no file of it can have them.
        let three = cx.generation == Generation::Three;
        let place = |position: usize| if three { position } else { usize::MAX };
        let masks = [
            argument(cx, inputs, place(3), "query_mask")?.or(query.mask),
            argument(cx, inputs, place(4), "value_mask")?.or(value.mask),
            argument(cx, inputs, place(5), "key_mask")?.or(given.and_then(|k| k.mask)),
        ];
        let user_mask = argument(cx, inputs, if three { 6 } else { 3 }, "attention_mask")?;
        Ok(Call {
            query,
            value,
            key: given.unwrap_or(value),
            masks,
            user_mask,
            causal: inputs.flag("use_causal_mask")?,
            scores: inputs.flag("return_attention_scores")?,
        })
    }

    /// How weights are made of masked scores. Keras 3 has a fused way, which it takes where nobody asks for the weights or
    /// drops some of them, and another one; where a mask leaves nothing to a query they differ.
    fn masked(&self, cx: &Cx, fields: &Fields<'_>, rank: usize) -> Out<Masked> {
        let dropout = Lost::read(fields)?.rate;
        let robust = fields.bool_or("softmax_robust_masking", false)?;
        Ok(match cx.generation {
            Generation::One | Generation::Two if robust => Masked::Lowest,
            Generation::One | Generation::Two => Masked::Lowered,
            Generation::Three if dropout > 0.0 || self.scores || rank != 3 => Masked::Zero,
            Generation::Three => Masked::Lowest,
        })
    }

    /// The rank that query, key and value have in common.
    fn rank(&self, cx: &Cx) -> Out<usize> {
        let ranks = [self.query, self.key, self.value].map(|t| cx.rank(t.value));
        match ranks {
            [q, k, v] if q == k && k == v && q >= 3 => Ok(q),
            _ => Err(misfit(format!("takes tensors of one rank of at least 3, given are ranks {ranks:?}"))),
        }
    }
}

/// A tensor argument by position and name.
fn argument(cx: &mut Cx, inputs: &Inputs, position: usize, name: &str) -> Out<Option<Value>> {
    let item = if position == usize::MAX { inputs.named(name) } else { inputs.get(position, name) };
    match item {
        None => Ok(None),
        Some(Item::Tensor(t)) => Ok(Some(t.value)),
        Some(item) => match written(cx, item)? {
            None => Err(unsupported(format!("an argument `{name}` that is no tensor"))),
            mask => Ok(mask),
        },
    }
}

/// The projections of a multi-head layer: initializers and whether they have biases.
struct Projections {
    kernel: Initializer,
    bias: Initializer,
    use_bias: bool,
    /// What is said of their results.
    activity: Option<Said>,
}

impl Projections {
    fn read(fields: &Fields<'_>) -> Out<Projections> {
        Ok(Projections {
            kernel: initializer(fields, "kernel_initializer", Initializer::glorot_uniform())?,
            bias: initializer(fields, "bias_initializer", Initializer::ZEROS)?,
            use_bias: fields.bool_or("use_bias", true)?,
            activity: of_outputs(fields),
        })
    }

    /// Contracts the last `inner` dimensions with a kernel of the remaining shape.
    fn apply(
        &self,
        b: &mut Builder,
        slot: &'static str,
        name: &str,
        x: Value,
        inner: usize,
        out: &[usize],
    ) -> Out<Value> {
        let part = b.cx.part(Slot::Attribute(slot), "EinsumDense", name, true);
        let outer = b.cx.enter(part);
        let mut result = self.project(&mut b.cx, x, inner, out);
        // The projections of Keras 2 take no notice of it.
        if let (Ok(y), Some(said), Generation::Three) = (&result, &self.activity, b.cx.generation) {
            result = b.cx.penalise(said, *y).map(|()| *y);
        }
        b.cx.enter(outer);
        result
    }

    fn project(&self, cx: &mut Cx, x: Value, inner: usize, out: &[usize]) -> Out<Value> {
        let x = cx.floating(x)?;
        let dims = cx.dims(x);
        let kept = dims.len() - inner;
        let shape: Vec<usize> = dims[kept..].iter().chain(out).copied().collect();
        let kernel = cx.var("kernel", &shape, self.kernel.clone(), Trainable::Yes)?;
        let contract = (0..inner).map(|i| (kept + i, i)).collect();
        let y = cx.g.push(intwain_ir::ops::Contract { batch: vec![], contract }, &[x, kernel])?;
        if !self.use_bias {
            return Ok(y);
        }
        let bias = cx.var("bias", out, self.bias.clone(), Trainable::Yes)?;
        add_bias(cx, y, bias)
    }
}

pub(super) fn multi_head(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&NEUTRAL);
    // Keras 2 writes the shapes it was built with.
    fields.irrelevant(&["query_shape", "key_shape", "value_shape"]);
    let heads = fields.require("num_heads")?.positive()?;
    let key_dim = fields.require("key_dim")?.positive()?;
    let value_dim = fields.positive_or("value_dim", key_dim)?;
    let gated = fields.bool_or("use_gate", false)?;
    let window = fields.opt("sliding_window").map(|at| at.usize()).transpose()?;
    let projections = Projections::read(fields)?;
    let output =
        fields.opt("output_shape").map(|at| at.one_or_many().iter().map(At::positive).collect::<Result<Vec<_>, _>>());
    let output = output.transpose()?;
    let axes =
        fields.opt("attention_axes").map(|at| at.one_or_many().iter().map(At::int).collect::<Result<Vec<_>, _>>());
    let axes = axes.transpose()?;
    let mut call = Call::read(&mut b.cx, inputs)?;
    let rank = call.rank(&b.cx)?;
    let masked = call.masked(&b.cx, fields, rank)?;
    if b.cx.generation == Generation::Three {
        // It heeds the query's own mask whatever is said, and takes all three off.
        call.masks[0] = call.query.mask;
        [call.query, call.value, call.key].into_iter().for_each(|t| b.cx.take_mask_off(t));
    }
    let axes = match axes {
        None => (1..rank - 1).collect(),
        Some(axes) => axes.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<usize>>>()?,
    };
    let q = projections.apply(b, "query_dense", "query", call.query.value, 1, &[heads, key_dim])?;
    let k = projections.apply(b, "key_dense", "key", call.key.value, 1, &[heads, key_dim])?;
    let gate = match gated {
        true => Some(projections.apply(b, "gate_dense", "gate", call.query.value, 1, &[heads, value_dim])?),
        false => None,
    };
    let v = projections.apply(b, "value_dense", "value", call.value.value, 1, &[heads, value_dim])?;
    let mask = mask(&mut b.cx, &call, window)?;
    let (scale, lost) = (scale(key_dim), Lost::read(fields)?);
    let (mut y, scores) = attend(&mut b.cx, [q, k, v], (mask, masked), &axes, scale, lost)?;
    if let Some(gate) = gate {
        let gate = b.cx.g.unary(Unary::Logistic, gate)?;
        y = b.cx.g.mul(y, gate)?;
    }
    let out = output.unwrap_or_else(|| vec![*b.cx.dims(call.query.value).last().expect("a query has features")]);
    let value = projections.apply(b, "output_dense", "attention_output", y, 2, &out)?;
    Ok(if call.scores { vec![value.into(), scores.into()] } else { vec![value.into()] })
}

/// What scores are multiplied by. Keras rounds it to f32 also where it computes in f64.
fn scale(features: usize) -> f64 {
    f64::from((1.0 / (features as f64).sqrt()) as f32)
}

/// Fewer key and value heads than query heads: each serves several queries.
pub(super) fn grouped_query(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&NEUTRAL);
    let head_dim = fields.require("head_dim")?.positive()?;
    let heads = fields.require("num_query_heads")?.positive()?;
    let shared = fields.require("num_key_value_heads")?.positive()?;
    let gated = fields.bool_or("use_gate", false)?;
    let window = fields.opt("sliding_window").map(|at| at.usize()).transpose()?;
    let projections = Projections::read(fields)?;
    if !heads.is_multiple_of(shared) {
        return Err(misfit(format!("{shared} key heads do not divide {heads} query heads")));
    }
    let call = Call::read(&mut b.cx, inputs)?;
    if call.rank(&b.cx)? != 3 {
        return Err(misfit("takes tensors of rank 3"));
    }
    let masked = call.masked(&b.cx, fields, 3)?;
    let q = projections.apply(b, "query_dense", "query", call.query.value, 1, &[heads, head_dim])?;
    let k = projections.apply(b, "key_dense", "key", call.key.value, 1, &[shared, head_dim])?;
    let gate = match gated {
        true => Some(projections.apply(b, "gate_dense", "gate", call.query.value, 1, &[heads, head_dim])?),
        false => None,
    };
    let v = projections.apply(b, "value_dense", "value", call.value.value, 1, &[shared, head_dim])?;
    let (k, v) = (repeat_heads(&mut b.cx, k, heads / shared)?, repeat_heads(&mut b.cx, v, heads / shared)?);
    let mask = mask(&mut b.cx, &call, window)?;
    let (scale, lost) = (scale(head_dim), Lost::read(fields)?);
    let (mut y, scores) = attend(&mut b.cx, [q, k, v], (mask, masked), &[1], scale, lost)?;
    if let Some(gate) = gate {
        let gate = b.cx.g.unary(Unary::Logistic, gate)?;
        y = b.cx.g.mul(y, gate)?;
    }
    let features = *b.cx.dims(call.query.value).last().expect("a query has features");
    let y = projections.apply(b, "output_dense", "attention_output", y, 2, &[features])?;
    Ok(if call.scores { vec![y.into(), scores.into()] } else { vec![y.into()] })
}

/// `[N, S, v, h]` → `[N, S, v·times, h]`, each head repeated.
fn repeat_heads(cx: &mut Cx, x: Value, times: usize) -> Out<Value> {
    let &[n, s, v, h] = cx.dims(x).as_slice() else { return Err(misfit("takes tensors of rank 3")) };
    let wide = cx.g.broadcast(x, &Shape::from([n, s, v, times, h]), &[0, 1, 2, 4])?;
    Ok(cx.g.reshape(wide, &Shape::from([n, s, v * times, h]))?)
}

/// All masks joined by and, `[N or 1, T, S]`.
fn mask(cx: &mut Cx, call: &Call, window: Option<usize>) -> Out<Option<Value>> {
    let mut joined: Option<Value> = None;
    let mut join = |cx: &mut Cx, mask: Value| -> Out<()> {
        let mask = cx.g.cast(DType::Bool, mask)?;
        joined = Some(match joined {
            None => mask,
            Some(before) => cx.g.binary_broadcast(Binary::And, before, mask)?,
        });
        Ok(())
    };
    let [query, value, key] = call.masks;
    if call.masks.iter().flatten().any(|m| cx.rank(*m) < 2) {
        return Err(misfit("a mask without a batch and steps"));
    }
    if let Some(query) = query {
        let mut dims = cx.dims(query);
        dims.push(1);
        let column = cx.g.reshape(query, &Shape::from(dims))?;
        join(cx, column)?;
    }
    for row in [value, key].into_iter().flatten() {
        let mut dims = cx.dims(row);
        dims.insert(dims.len() - 1, 1);
        let row = cx.g.reshape(row, &Shape::from(dims))?;
        join(cx, row)?;
    }
    let (t, s) = (cx.dims(call.query.value)[1], cx.dims(call.value.value)[1]);
    if call.causal {
        let causal = positions(cx, t, s, |cx, row, column| Ok(cx.g.compare(Compare::Ge, row, column)?))?;
        join(cx, causal)?;
    }
    if let Some(window) = window {
        let near = positions(cx, t, s, |cx, row, column| {
            let distance = cx.g.sub(row, column)?;
            let distance = cx.g.unary(Unary::Abs, distance)?;
            let limit = cx.g.full(DType::I32, window as f64, &cx.g.shape(distance).clone())?;
            Ok(cx.g.compare(Compare::Lt, distance, limit)?)
        })?;
        join(cx, near)?;
    }
    if let Some(user) = call.user_mask {
        join(cx, user)?;
    }
    Ok(joined)
}

/// A mask `[1, T, S]` made of query and key positions.
pub(super) fn positions(
    cx: &mut Cx,
    t: usize,
    s: usize,
    test: impl FnOnce(&mut Cx, Value, Value) -> Out<Value>,
) -> Out<Value> {
    let shape = Shape::from([1, t, s]);
    let row = cx.g.push(Iota { dtype: DType::I32, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
    let column = cx.g.push(Iota { dtype: DType::I32, shape, dim: 2, start: 0 }, &[])?;
    test(cx, row, column)
}

/// softmax(scale·q·kᵀ)·v over the attention axes of `[N, axes.., heads, features]`; the weights come along, before any is
/// lost.
fn attend(
    cx: &mut Cx,
    [q, k, v]: [Value; 3],
    (mask, masked): (Option<Value>, Masked),
    axes: &[usize],
    scale: f64,
    lost: Lost,
) -> Out<(Value, Value)> {
    let rank = cx.rank(q);
    let letter = |i: usize| char::from_u32('a' as u32 + i as u32).expect("ranks are small");
    let target: Vec<char> = (0..rank).map(letter).collect();
    // Keys have letters of their own along the attention axes.
    let source: Vec<char> = (0..rank).map(|d| if axes.contains(&d) { letter(rank + d) } else { letter(d) }).collect();
    let batch = (0..rank - 1).filter(|d| !axes.contains(d));
    let product: Vec<char> =
        batch.map(letter).chain(axes.iter().map(|&d| target[d])).chain(axes.iter().map(|&d| source[d])).collect();
    let dtype = cx.g.ty(q).dtype;
    let times = |cx: &mut Cx, x: Value| -> Out<Value> {
        let ty = cx.g.ty(x).clone();
        let scale = cx.g.full(ty.dtype, scale, &ty.shape)?;
        Ok(cx.g.mul(x, scale)?)
    };
    // Keras 3's fused way scales the scores in f32, as it computes their softmax; f32 has no use for the difference.
    let fused = masked == Masked::Lowest && cx.generation == Generation::Three;
    let scores = if fused && dtype != dtype.accumulator() {
        let scores = contract_letters(cx, q, &target, k, &source, &product)?;
        let scores = cx.for_statistics(scores)?;
        times(cx, scores)?
    } else {
        let q = times(cx, q)?;
        contract_letters(cx, q, &target, k, &source, &product)?
    };
    let over: Vec<usize> = (product.len() - axes.len()..product.len()).collect();
    let weights = match mask {
        None => softmax_over(cx, scores, &over)?,
        Some(mask) => {
            let mut dims = cx.dims(mask);
            let missing = product
                .len()
                .checked_sub(dims.len())
                .ok_or_else(|| misfit("a mask of more dimensions than the scores"))?;
            let at = dims.len().checked_sub(2 * axes.len()).ok_or_else(|| misfit("a mask of too few dimensions"))?;
            dims.splice(at..at, std::iter::repeat_n(1, missing));
            let mask = cx.g.reshape(mask, &Shape::from(dims))?;
            masked_softmax(cx, scores, mask, &over, masked)?
        }
    };
    let weights = cx.g.cast(dtype, weights)?;
    // Values have the letters of keys; their features are a letter of their own.
    let mut values = source.clone();
    let mut result = target;
    let features = letter(2 * rank);
    (values[rank - 1], result[rank - 1]) = (features, features);
    let left = lost.from(cx, weights)?;
    let y = contract_letters(cx, left, &product, v, &values, &result)?;
    Ok((y, weights))
}
