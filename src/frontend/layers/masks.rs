//! What becomes of masks at a layer.
//!
//! A mask is an ordinary tensor `bool[N, T]` of the graph that a tensor of the model has beside it, false where a step is to
//! be skipped. Layers that heed it take it as an operand of ordinary operations, so that nothing of it is left in the graph
//! but those. Keras 3 and Keras 2 have the same rule for most layers and not for all.

use intwain_ir::ops::{Concat, Constant};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::build::element;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::json::Json;

/// The rule by which the results of a layer get their masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masks {
    /// What the import function gives: mostly nothing, else a mask it makes or that of a tensor it returns as it is.
    Own,
    /// The masks of the first argument go on to the results, the first to the first.
    Pass,
    /// As [`Masks::Pass`] in Keras 3; Keras 2 drops them.
    PassInThree,
    /// In Keras 3 a step is left if any input has it, and there is a mask if every input has one. In Keras 2 a step is left
    /// if every input that has a mask has it.
    Merge,
    /// The inputs' masks, spread over the features, concatenated as the inputs are: in Keras 3 any feature leaves a step,
    /// in Keras 2 all have to. Inputs without a mask count as left.
    Concatenate,
    /// The first result has the query's, which is the first tensor.
    Query,
    /// The first result has that of the sequence if the layer returns sequences.
    Sequence,
}

impl Masks {
    /// Gives results their masks.
    pub(super) fn follow(self, cx: &mut Cx, fields: &Fields<'_>, inputs: &Inputs, results: &mut [T]) -> Out<()> {
        let masks = match self {
            Masks::Own => return Ok(()),
            Masks::PassInThree if cx.generation != Generation::Three => Vec::new(),
            Masks::Pass | Masks::PassInThree => before(inputs),
            Masks::Merge => vec![merged(cx, &before(inputs))?],
            Masks::Concatenate => vec![concatenated(cx, inputs, fields.int_or("axis", -1)?)?],
            Masks::Query => before(inputs).into_iter().take(1).collect(),
            Masks::Sequence if fields.bool_or("return_sequences", false)? => {
                before(inputs).into_iter().take(1).collect()
            }
            Masks::Sequence => Vec::new(),
        };
        for (i, result) in results.iter_mut().enumerate() {
            result.mask = masks.get(i).copied().flatten();
        }
        Ok(())
    }
}

/// The masks a layer is called with: the argument `mask`, else those of the tensors of the first argument.
fn before(inputs: &Inputs) -> Vec<Option<Value>> {
    match inputs.named("mask") {
        Some(item) => values(item),
        None => {
            let first = inputs.args.first().or_else(|| inputs.kwargs.values().next());
            first.map(Item::tensors).unwrap_or_default().iter().map(|t| t.mask).collect()
        }
    }
}

/// The tensors of an argument `mask`, `None` where it says `null`.
pub(super) fn values(item: &Item) -> Vec<Option<Value>> {
    match item {
        Item::Tensor(t) => vec![Some(t.value)],
        Item::List(items) => items.iter().flat_map(values).collect(),
        Item::Dict(map) => map.values().flat_map(values).collect(),
        Item::Const(Json::Array(items)) => vec![None; items.len()],
        Item::Const(_) | Item::Array { .. } | Item::Slice(_) | Item::Ellipsis => vec![None],
    }
}

/// A mask that is written into the file: Keras 3 says its type, Keras 2 writes lists.
pub(super) fn written(cx: &mut Cx, item: &Item) -> Out<Option<Value>> {
    let (json, dtype) = match item {
        Item::Array { value, dtype } => {
            (value, element(dtype).ok_or_else(|| unsupported(format!("an array of type `{dtype}`")))?)
        }
        Item::Const(json @ Json::Array(_)) => (json, DType::F32),
        Item::Tensor(_) | Item::Const(_) | Item::List(_) | Item::Dict(_) | Item::Slice(_) | Item::Ellipsis => {
            return Ok(None);
        }
    };
    let (mut extents, mut elements) = (Vec::new(), Vec::new());
    leaves(json, 0, &mut extents, &mut elements)?;
    if elements.len() != extents.iter().product::<usize>() {
        return Err(misfit("a mask of lists of several lengths"));
    }
    let elements = elements.iter().map(|x| Scalar::from_f64(dtype, *x)).collect();
    Ok(Some(cx.g.push(Constant { shape: Shape::from(extents), elements }, &[])?))
}

fn leaves(json: &Json, depth: usize, extents: &mut Vec<usize>, elements: &mut Vec<f64>) -> Out<()> {
    match json {
        Json::Bool(b) => elements.push(f64::from(u8::from(*b))),
        Json::Int(i) => elements.push(*i as f64),
        Json::Float(x) => elements.push(*x),
        Json::Array(items) => {
            if depth == extents.len() {
                extents.push(items.len());
            }
            if extents[depth] != items.len() {
                return Err(misfit("a mask of lists of several lengths"));
            }
            items.iter().try_for_each(|item| leaves(item, depth + 1, extents, elements))?;
        }
        Json::Null | Json::String(_) | Json::Object(_) => return Err(unsupported("a mask that holds no numbers")),
    }
    Ok(())
}

/// The mask that a layer with an argument `mask` heeds. Keras 3 hands on the mask of the first argument only where no other
/// argument is a tensor: a recurrent layer that is given its initial state sees no mask but an explicit one.
pub(super) fn heeded(cx: &Cx, inputs: &Inputs, position: usize, x: T) -> Option<Value> {
    if let Some(item) = inputs.get(position, "mask") {
        return values(item).first().copied().flatten();
    }
    let with_tensors = inputs.args.iter().chain(inputs.kwargs.values()).filter(|item| !item.tensors().is_empty());
    match cx.generation {
        Generation::Three if with_tensors.count() > 1 => None,
        Generation::Three | Generation::Two | Generation::One => x.mask,
    }
}

fn merged(cx: &mut Cx, masks: &[Option<Value>]) -> Out<Option<Value>> {
    let (masks, joint) = match cx.generation {
        Generation::Three => (masks.iter().copied().collect::<Option<Vec<_>>>().unwrap_or_default(), Binary::Or),
        Generation::One | Generation::Two => (masks.iter().copied().flatten().collect(), Binary::And),
    };
    let mut joined: Option<Value> = None;
    for mask in masks {
        let mask = cx.g.cast(DType::Bool, mask)?;
        joined = Some(match joined {
            None => mask,
            Some(before) => cx.g.binary_broadcast(joint, before, mask)?,
        });
    }
    Ok(joined)
}

fn concatenated(cx: &mut Cx, inputs: &Inputs, axis: i64) -> Out<Option<Value>> {
    let tensors = inputs.many()?;
    if tensors.iter().all(|t| t.mask.is_none()) {
        return Ok(None);
    }
    let rank = cx.rank(tensors[0].value);
    let dim = cx.axis(axis, rank)?;
    let mut parts = Vec::new();
    for t in &tensors {
        let shape = cx.g.shape(t.value).clone();
        parts.push(match t.mask {
            None => cx.g.full(DType::Bool, 1.0, &shape)?,
            Some(mask) => spread(cx, mask, &shape)?,
        });
    }
    let all = cx.g.push(Concat { dim }, &parts)?;
    // The sum of booleans is any, the product all.
    let function = match cx.generation {
        Generation::Three => Reduce::Sum,
        Generation::One | Generation::Two => Reduce::Prod,
    };
    Ok(Some(cx.g.reduce(function, all, &[rank - 1])?))
}

/// A mask at every feature of a tensor that has one dimension more than it.
pub(super) fn spread(cx: &mut Cx, mask: Value, shape: &Shape) -> Out<Value> {
    let dims = cx.dims(mask);
    if dims.as_slice() == &shape[..] {
        return Ok(mask);
    }
    if dims.len() + 1 != shape.len() || dims[..] != shape[..dims.len()] {
        return Err(misfit(format!("a mask of shape {dims:?} beside a tensor of shape {shape}")));
    }
    let dims: Vec<usize> = (0..dims.len()).collect();
    Ok(cx.g.broadcast(mask, shape, &dims)?)
}
