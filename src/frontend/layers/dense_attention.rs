//! Attention without projections: dot-product and additive.

use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Shape, Trainable, Value};

use super::activations::softmax_over;
use super::attention::positions;
use super::build::Builder;
use super::cx::{Cx, Fail, Out, T, misfit, unsupported};
use super::dropout::Lost;
use super::inputs::{Inputs, Item};
use super::masks::{spread, values};
use crate::frontend::cursor::Fields;
use crate::frontend::init::Initializer;

/// `[query, value]` or `[query, value, key]`, with masks and flags.
struct Simple {
    q: T,
    v: T,
    k: T,
    causal: bool,
    scores: bool,
    lost: Lost,
}

impl Simple {
    fn read(fields: &Fields<'_>, inputs: &Inputs) -> Out<Simple> {
        let tensors = inputs.many()?;
        let (q, v, k) = match tensors.as_slice() {
            [q, v] => (*q, *v, *v),
            [q, v, k] => (*q, *v, *k),
            _ => return Err(misfit(format!("takes two or three tensors, {} are given", tensors.len()))),
        };
        let (mut q, mut v) = (q, v);
        if let Some(mask) = inputs.get(1, "mask") {
            let Item::List(_) = mask else { return Err(unsupported("an argument `mask` that is no list")) };
            let given = values(mask);
            (q.mask, v.mask) = (given.first().copied().flatten(), given.get(1).copied().flatten());
        }
        // Keras 2 has the flag in the configuration.
        let causal = fields.bool_or("causal", false)? || inputs.flag("use_causal_mask")?;
        Ok(Simple { q, v, k, causal, scores: inputs.flag("return_attention_scores")?, lost: Lost::read(fields)? })
    }

    fn finish(&self, cx: &mut Cx, scores: Value) -> Out {
        let ty = cx.g.ty(scores).clone();
        let rank = ty.rank();
        let mut mask = None;
        if let Some(values) = self.v.mask {
            let values = cx.g.cast(DType::Bool, values)?;
            let mut dims = cx.dims(values);
            if dims.len() + 1 != rank {
                return Err(misfit(format!("a mask of shape {dims:?} on values of rank {rank}")));
            }
            dims.insert(dims.len() - 1, 1);
            mask = Some(cx.g.reshape(values, &Shape::from(dims))?);
        }
        if self.causal {
            let causal = positions(cx, ty.shape[rank - 2], ty.shape[rank - 1], |cx, r, c| {
                Ok(cx.g.compare(Compare::Ge, r, c)?)
            })?;
            mask = Some(match mask {
                None => causal,
                Some(mask) => cx.g.binary_broadcast(Binary::And, mask, causal)?,
            });
        }
        let mut scores = scores;
        if let Some(mask) = mask {
            let mask = cx.g.broadcast_to(mask, &ty.shape)?;
            let low = cx.g.full(ty.dtype, if ty.dtype == DType::F16 { 65504.0 } else { 1e9 }, &ty.shape)?;
            let lowered = cx.g.sub(scores, low)?;
            scores = cx.g.select(mask, scores, lowered)?;
        }
        let weights = softmax_over(cx, scores, &[rank - 1])?;
        // Unlike the layers with projections these give the weights that are left.
        let weights = self.lost.from(cx, weights)?;
        let batch = (0..rank - 2).map(|d| (d, d)).collect();
        let op = intwain_ir::ops::Contract { batch, contract: vec![(rank - 1, rank - 2)] };
        let mut y = cx.g.push(op, &[weights, self.v.value])?;
        if let Some(mask) = self.q.mask {
            let ty = cx.g.ty(y).clone();
            let mask = cx.g.cast(DType::Bool, mask)?;
            let mask = spread(cx, mask, &ty.shape)?;
            let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
            y = cx.g.select(mask, y, zero)?;
        }
        Ok(if self.scores { vec![y.into(), weights.into()] } else { vec![y.into()] })
    }

    /// tanh-free sums of every query with every key: `[.., T, S, d]`.
    fn pairs(&self, cx: &mut Cx) -> Out<(Value, Value)> {
        let (mut q, mut k) = (cx.dims(self.q.value), cx.dims(self.k.value));
        let rank = q.len();
        if rank < 2 || k.len() != rank {
            return Err(misfit(format!("a query of shape {q:?} and a key of shape {k:?}")));
        }
        q.insert(rank - 1, 1);
        k.insert(rank - 2, 1);
        let q = cx.g.reshape(self.q.value, &Shape::from(q))?;
        let k = cx.g.reshape(self.k.value, &Shape::from(k))?;
        Ok(cx.g.broadcast_pair(q, k)?)
    }
}

pub(super) fn dot_product(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let call = Simple::read(fields, inputs)?;
    let use_scale = fields.bool_or("use_scale", false)?;
    let concat = fields.choice("score_mode", &["dot", "concat"])? == 1;
    let cx = &mut b.cx;
    let scale = if use_scale { Some(cx.var("scale", &[], Initializer::ONES, Trainable::Yes)?) } else { None };
    let scaled = |cx: &mut Cx, x: Value| -> Result<Value, Fail> {
        match scale {
            None => Ok(x),
            Some(scale) => Ok(cx.g.binary_broadcast(Binary::Mul, x, scale)?),
        }
    };
    let scores = if concat {
        let weight = cx.var("concat_score_weight", &[], Initializer::ONES, Trainable::Yes)?;
        let (q, k) = call.pairs(cx)?;
        let sum = cx.g.add(q, k)?;
        let sum = scaled(cx, sum)?;
        let tanh = cx.g.unary(Unary::Tanh, sum)?;
        let last = cx.rank(tanh) - 1;
        let sum = cx.g.reduce(Reduce::Sum, tanh, &[last])?;
        cx.g.binary_broadcast(Binary::Mul, sum, weight)?
    } else {
        let rank = cx.rank(call.q.value);
        if rank < 2 || cx.rank(call.k.value) != rank {
            return Err(misfit("takes tensors of one rank"));
        }
        let batch = (0..rank - 2).map(|d| (d, d)).collect();
        let op = intwain_ir::ops::Contract { batch, contract: vec![(rank - 1, rank - 1)] };
        let scores = cx.g.push(op, &[call.q.value, call.k.value])?;
        scaled(cx, scores)?
    };
    call.finish(cx, scores)
}

/// Scores Σ scale·tanh(q + k).
pub(super) fn additive(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let call = Simple::read(fields, inputs)?;
    fields.irrelevant(&["score_mode"]);
    let use_scale = fields.bool_or("use_scale", true)?;
    let cx = &mut b.cx;
    let width = *cx.dims(call.q.value).last().ok_or_else(|| misfit("takes tensors with features"))?;
    let scale = match use_scale {
        true => Some(cx.var("scale", &[width], Initializer::glorot_uniform(), Trainable::Yes)?),
        false => None,
    };
    let (q, k) = call.pairs(cx)?;
    let sum = cx.g.add(q, k)?;
    let mut tanh = cx.g.unary(Unary::Tanh, sum)?;
    if let Some(scale) = scale {
        tanh = cx.g.binary_broadcast(Binary::Mul, tanh, scale)?;
    }
    let last = cx.rank(tanh) - 1;
    let scores = cx.g.reduce(Reduce::Sum, tanh, &[last])?;
    call.finish(cx, scores)
}
