//! Wrappers: a recurrent layer in both directions, a layer applied to every step.

use intwain_ir::ops::{Concat, Reverse};
use intwain_ir::scalar::Reduce;
use intwain_ir::{Shape, Trainable, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::masks::heeded;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::{Distribution, Initializer};
use crate::frontend::json::Json;
use crate::frontend::model::LayerBody;
use crate::frontend::weights::Slot;

/// A recurrent layer and a copy of it that walks the other way.
pub(super) fn bidirectional(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let merge = match fields.get("merge_mode") {
        None => "concat",
        Some(at) if at.is_null() => "",
        Some(at) => match at.str()? {
            mode @ ("concat" | "sum" | "mul" | "ave") => mode,
            _ => return Err(at.accepted(&["concat", "sum", "mul", "ave", "null"]).into()),
        },
    };
    if fields.opt("backward_layer").is_some_and(|at| !same_but_direction(fields, at.json)) {
        return Err(unsupported("a `backward_layer` of its own"));
    }
    fields.irrelevant(&["return_sequences", "return_state", "stateful", "go_backwards", "zero_output_for_mask"]);
    let inner = b.inner_layer(fields, "layer")?;
    let LayerBody::Leaf(config) = &inner.body else { return Err(unsupported("a model inside Bidirectional")) };
    let flag = |key: &str| config.get(key) == Some(&Json::Bool(true));
    let (sequences, state) = (flag("return_sequences"), flag("return_state"));
    let mut halves = Vec::new();
    let first = inputs.many()?;
    let states: Vec<T> = match inputs.named("initial_state") {
        Some(item) => item.tensors(),
        None => first[1..].to_vec(),
    };
    if !states.len().is_multiple_of(2) {
        return Err(misfit(format!("{} initial states for two directions", states.len())));
    }
    let mask = inputs.tensor(1, "mask")?;
    for (slot, prefix, backwards) in [("forward_layer", "forward", false), ("backward_layer", "backward", true)] {
        let mut half = inner.clone();
        half.name = format!("{prefix}_{}", inner.name);
        half.path = b.cx.below(&half.name);
        if let LayerBody::Leaf(Json::Object(map)) = &mut half.body {
            let way = flag("go_backwards") != backwards;
            map.insert("go_backwards".to_string(), Json::Bool(way));
            // Keras 1 repeats the output before a masked step here too.
            if sequences && b.cx.generation != Generation::One {
                map.insert("zero_output_for_mask".to_string(), Json::Bool(true));
            }
        }
        let middle = states.len() / 2;
        let own = if backwards { &states[middle..] } else { &states[..middle] };
        let mut call = Inputs::single(first[0]);
        if !own.is_empty() {
            call.kwargs.insert("initial_state".to_string(), Item::List(own.iter().map(|t| Item::Tensor(*t)).collect()));
        }
        if let Some(mask) = mask {
            call.kwargs.insert("mask".to_string(), Item::Tensor(mask));
        }
        let owner = b.declare_inner(&half, Slot::Attribute(slot));
        halves.push(b.layer(&half, owner, &call)?);
    }
    let (forward, mut backward) = (halves.remove(0), halves.remove(0));
    let cx = &mut b.cx;
    if sequences {
        backward[0].value = cx.g.push(Reverse { dims: vec![1] }, &[backward[0].value])?;
    }
    let (f, r) = (forward[0], backward[0]);
    let dim = cx.rank(f.value) - 1;
    let value = match merge {
        "concat" => cx.g.push(Concat { dim }, &[f.value, r.value])?,
        "sum" => cx.g.add(f.value, r.value)?,
        "mul" => cx.g.mul(f.value, r.value)?,
        "ave" => {
            let sum = cx.g.add(f.value, r.value)?;
            let ty = cx.g.ty(sum).clone();
            let half = cx.g.full(ty.dtype, 0.5, &ty.shape)?;
            cx.g.mul(sum, half)?
        }
        _ => f.value,
    };
    let mut out = vec![T { value, mask: f.mask }];
    if merge.is_empty() {
        out.push(T { value: r.value, mask: f.mask });
    }
    if state {
        out.extend(&forward[1..]);
        out.extend(&backward[1..]);
    }
    Ok(out)
}

/// Whether the written backward layer is the forward one walking the other way: Keras writes it always.
fn same_but_direction(fields: &Fields<'_>, backward: &Json) -> bool {
    let strip = |json: &Json| -> Option<Json> {
        let mut config = json.get("config")?.clone();
        if let Json::Object(map) = &mut config {
            ["name", "go_backwards", "dtype", "seed"].iter().for_each(|key| drop(map.shift_remove(*key)));
            map.values_mut().for_each(|value| {
                if let Json::Object(inner) = value {
                    inner.shift_remove("shared_object_id");
                }
            });
        }
        Some(config)
    };
    let forward = fields.at().json.get("layer").and_then(strip);
    forward.is_some() && forward == strip(backward)
}

/// A layer applied to every step: steps become rows.
pub(super) fn time_distributed(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let mask = heeded(&b.cx, inputs, 1, x);
    let inner = b.inner_layer(fields, "layer")?;
    let dims = b.cx.dims(x.value);
    let &[n, steps, ..] = dims.as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 3 or more, its input has the shape {dims:?}")));
    };
    let folded: Vec<usize> = [n * steps].into_iter().chain(dims[2..].iter().copied()).collect();
    let rows = b.cx.g.reshape(x.value, &Shape::from(folded))?;
    let owner = b.declare_inner(&inner, Slot::Attribute("layer"));
    let inner_mask = mask.map(|mask| folded_mask(&mut b.cx, mask)).transpose()?;
    let outputs = b.layer(&inner, owner, &Inputs::single(T { value: rows, mask: inner_mask }))?;
    let mut out = Vec::new();
    for y in outputs {
        let dims = b.cx.dims(y.value);
        let unfolded: Vec<usize> = [n, steps].into_iter().chain(dims[1..].iter().copied()).collect();
        let value = b.cx.g.reshape(y.value, &Shape::from(unfolded))?;
        out.push(T { value, mask: unfolded_mask(&mut b.cx, [n, steps], mask, y.mask)? });
    }
    Ok(out)
}

/// `[N, T, …]` → `[N·T, …]`
fn folded_mask(cx: &mut Cx, mask: Value) -> Out<Value> {
    match cx.dims(mask).as_slice() {
        [n, steps, rest @ ..] => {
            let dims: Vec<usize> = [n * steps].into_iter().chain(rest.iter().copied()).collect();
            Ok(cx.g.reshape(mask, &Shape::from(dims))?)
        }
        dims => Err(misfit(format!("a mask of shape {dims:?}, which has no steps"))),
    }
}

/// The mask behind the wrapper: in Keras 3 the one before it; in Keras 2 what the layer makes of it, else whether any of a
/// step is left.
fn unfolded_mask(
    cx: &mut Cx,
    [n, steps]: [usize; 2],
    before: Option<Value>,
    inner: Option<Value>,
) -> Out<Option<Value>> {
    if cx.generation == Generation::Three {
        return Ok(before);
    }
    if let Some(inner) = inner {
        let dims: Vec<usize> = [n, steps].into_iter().chain(cx.dims(inner)[1..].iter().copied()).collect();
        return Ok(Some(cx.g.reshape(inner, &Shape::from(dims))?));
    }
    let Some(before) = before else { return Ok(None) };
    let inside: Vec<usize> = (2..cx.rank(before)).collect();
    // The sum of booleans is any.
    Ok(Some(if inside.is_empty() { before } else { cx.g.reduce(Reduce::Sum, before, &inside)? }))
}

/// Outside of training the wrapped layer as it is; the vector that training keeps is a variable all the same.
pub(super) fn spectral_normalization(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&["power_iterations"]);
    let inner = b.inner_layer(fields, "layer")?;
    let part = b.declare_inner(&inner, Slot::Attribute("layer"));
    let call = Inputs::single(inputs.one()?);
    let outputs = b.layer(&inner, part, &call)?;
    let columns = ["kernel", "embeddings"].iter().find_map(|name| b.cx.var_shape(part, name)?.last().copied());
    let columns = columns.ok_or_else(|| unsupported(format!("spectral normalisation of {}", inner.class)))?;
    let normal = Initializer::Random { distribution: Distribution::TruncatedNormal, a: 0.0, b: 0.02 };
    b.cx.var("vector_u", &[1, columns], normal, Trainable::Frozen)?;
    // The wrapper holds the wrapped layer's kernel as its own too.
    b.cx.repeats(1);
    Ok(outputs)
}
