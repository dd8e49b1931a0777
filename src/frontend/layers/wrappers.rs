//! Wrappers: a recurrent layer in both directions, a layer applied to every step, spectral normalisation.

use intwain_ir::ops::{Concat, Reverse};
use intwain_ir::scalar::Reduce;
use intwain_ir::{Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, OwnerId, T, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::steps::halves;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::json::Json;
use crate::frontend::model::{Layer, LayerBody};
use crate::frontend::weights::Slot;

/// How the outputs of two directions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    Concat,
    Sum,
    Product,
    Average,
    /// Both come out.
    Neither,
}

impl Merge {
    fn read(fields: &Fields<'_>) -> Out<Merge> {
        let Some(at) = fields.get("merge_mode") else { return Ok(Merge::Concat) };
        if at.is_null() {
            return Ok(Merge::Neither);
        }
        match at.str()? {
            "concat" => Ok(Merge::Concat),
            "sum" => Ok(Merge::Sum),
            "mul" => Ok(Merge::Product),
            "ave" => Ok(Merge::Average),
            _ => Err(at.accepted(&["concat", "sum", "mul", "ave", "null"]).into()),
        }
    }

    fn apply(self, cx: &mut Cx, x: Value, y: Value) -> Out<Value> {
        Ok(match self {
            Merge::Concat => {
                let dim = cx.rank(x) - 1;
                cx.g.push(Concat { dim }, &[x, y])?
            }
            Merge::Sum => cx.g.add(x, y)?,
            Merge::Product => cx.g.mul(x, y)?,
            Merge::Average => {
                let sum = cx.g.add(x, y)?;
                let ty = cx.g.ty(sum).clone();
                let half = cx.g.full(ty.dtype, 0.5, &ty.shape)?;
                cx.g.mul(sum, half)?
            }
            Merge::Neither => x,
        })
    }
}

/// A flag of a recurrent layer's configuration.
fn flag(layer: &Layer, key: &str) -> bool {
    match &layer.body {
        LayerBody::Leaf(config) => matches!(config.get(key), Some(Json::Bool(true) | Json::Int(1))),
        LayerBody::Model(_) | LayerBody::Input(_) => false,
    }
}

/// Sets flags of a recurrent layer's configuration.
fn set(layer: &mut Layer, flags: &[(&str, bool)]) {
    if let LayerBody::Leaf(Json::Object(map)) = &mut layer.body {
        map.extend(flags.iter().map(|(key, flag)| (key.to_string(), Json::Bool(*flag))));
    }
}

/// The layers that walk forwards and backwards.
fn directions(b: &mut Builder, fields: &Fields<'_>) -> Out<[Layer; 2]> {
    let forward = b.inner_layer(fields, "layer")?;
    let own = fields.opt("backward_layer").is_some();
    let backward = if own { b.inner_layer(fields, "backward_layer")? } else { forward.clone() };
    let mut both = [forward, backward];
    if !own {
        let way = !flag(&both[0], "go_backwards");
        set(&mut both[1], &[("go_backwards", way)]);
    }
    for (layer, prefix) in both.iter_mut().zip(["forward_", "backward_"]) {
        if matches!(layer.body, LayerBody::Model(_)) {
            return Err(unsupported("a model inside Bidirectional"));
        }
        // Keras 3 has the prefix in the name already.
        let bare = layer.name.strip_prefix(prefix).unwrap_or(&layer.name);
        layer.name = format!("{prefix}{bare}");
        layer.path = b.cx.below(&layer.name);
        // Keras 1 repeats the output before a masked step here too.
        let zeros = flag(layer, "return_sequences") && b.cx.generation != Generation::One;
        set(layer, &[("zero_output_for_mask", zeros)]);
    }
    let [forward, backward] = &both;
    if flag(forward, "go_backwards") == flag(backward, "go_backwards") {
        return Err(misfit("both of its layers walk in the same direction"));
    }
    for key in ["return_sequences", "return_state", "stateful"] {
        if flag(forward, key) != flag(backward, key) {
            return Err(misfit(format!("its layers differ in `{key}`")));
        }
    }
    Ok(both)
}

/// A recurrent layer and another one that walks the other way.
pub(super) fn bidirectional(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let merge = Merge::read(fields)?;
    fields.irrelevant(&["return_sequences", "return_state", "stateful", "go_backwards", "zero_output_for_mask"]);
    fields.neutral("num_constants", &[Json::Int(0)])?;
    let layers = directions(b, fields)?;
    let calls = halves(b, inputs)?;
    let mut results = Vec::new();
    for ((layer, slot), call) in layers.iter().zip(["forward_layer", "backward_layer"]).zip(&calls) {
        let owner = b.declare_inner(layer, Slot::Attribute(slot));
        results.push(b.layer(layer, owner, call)?);
    }
    let (forward, mut backward) = (results.remove(0), results.remove(0));
    let cx = &mut b.cx;
    if flag(&layers[0], "return_sequences") {
        backward[0].value = cx.g.push(Reverse { dims: vec![1] }, &[backward[0].value])?;
    }
    let (f, r) = (forward[0], backward[0]);
    let mut out = vec![T { value: merge.apply(cx, f.value, r.value)?, mask: f.mask }];
    if merge == Merge::Neither {
        out.push(T { value: r.value, mask: f.mask });
    }
    out.extend(&forward[1..]);
    out.extend(&backward[1..]);
    Ok(out)
}

/// Whether a layer, or one inside it, takes statistics of what it is given in training: it matters what is given together.
fn takes_statistics(layer: &Layer) -> bool {
    fn says(json: &Json) -> bool {
        let of_statistics = |json: &Json| match json.get("class_name") {
            Some(Json::String(class)) => STATISTICS.contains(&class.as_str()),
            Some(_) | None => false,
        };
        match json {
            Json::Object(map) => of_statistics(json) || map.values().any(says),
            Json::Array(items) => items.iter().any(says),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => false,
        }
    }
    match &layer.body {
        LayerBody::Leaf(config) => STATISTICS.contains(&layer.class.as_str()) || says(config),
        LayerBody::Model(inner) => inner.layers.iter().any(takes_statistics),
        LayerBody::Input(_) => false,
    }
}

const STATISTICS: [&str; 3] = ["BatchNormalization", "SyncBatchNormalization", "SpectralNormalization"];

/// The wrapped layer called for one step after the other, as Keras 3 does. `None` where all steps at once give the same.
fn step_by_step(b: &mut Builder, inner: &Layer, owner: OwnerId, x: T, explicit: Option<Value>) -> Out<Option<T>> {
    if b.cx.generation != Generation::Three || !b.cx.trains() || !takes_statistics(inner) {
        return Ok(None);
    }
    let mut steps = Vec::new();
    for at in 0..b.cx.dims(x.value)[1] {
        let value = step(&mut b.cx, x.value, at)?;
        let mask = explicit.or(x.mask).map(|mask| step(&mut b.cx, mask, at)).transpose()?;
        let outputs = b.layer(inner, owner, &Inputs::single(T { value, mask }))?;
        let &[y] = outputs.as_slice() else {
            return Err(unsupported("a layer of several results inside TimeDistributed, in training"));
        };
        let mut dims = b.cx.dims(y.value);
        dims.insert(1, 1);
        steps.push(b.cx.g.reshape(y.value, &Shape::from(dims))?);
    }
    let value = match steps.as_slice() {
        [one] => *one,
        steps => b.cx.g.push(Concat { dim: 1 }, steps)?,
    };
    Ok(Some(T { value, mask: explicit.or(x.mask) }))
}

/// `[N, T, ..]` at one step.
fn step(cx: &mut Cx, x: Value, at: usize) -> Out<Value> {
    let mut dims = cx.dims(x);
    let x = cx.g.slice_dim(x, 1, at..at + 1)?;
    dims.remove(1);
    Ok(cx.g.reshape(x, &Shape::from(dims))?)
}

/// A layer applied to every step: steps become rows, unless the layer in training tells steps apart.
pub(super) fn time_distributed(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let given = inputs.many()?;
    let explicit = inputs.tensor(2, "mask")?.map(|m| m.value);
    let inner = b.inner_layer(fields, "layer")?;
    let owner = b.declare_inner(&inner, Slot::Attribute("layer"));
    let cx = &mut b.cx;
    let dims = cx.dims(given[0].value);
    let &[n, steps, ..] = dims.as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 2 or more, its input has the shape {dims:?}")));
    };
    if let [x] = given.as_slice()
        && let Some(y) = step_by_step(b, &inner, owner, *x, explicit)?
    {
        return Ok(vec![y]);
    }
    let cx = &mut b.cx;
    let outer_mask = explicit.or(given[0].mask);
    let mut rows = Vec::new();
    for x in &given {
        let dims = cx.dims(x.value);
        if dims.get(..2) != Some(&[n, steps]) {
            return Err(misfit(format!("takes tensors of {n} rows and {steps} steps, one has the shape {dims:?}")));
        }
        let mask = explicit.or(x.mask);
        let mask = mask.map(|m| fold(cx, m)).transpose()?;
        rows.push(T { value: fold(cx, x.value)?, mask });
    }
    let call = match rows.as_slice() {
        [one] => Inputs::single(*one),
        many => Inputs::new(vec![Item::List(many.iter().map(|t| Item::Tensor(*t)).collect())], Default::default()),
    };
    let outputs = b.step_by_step(steps, &inner.path, |b| b.layer(&inner, owner, &call))?;
    let cx = &mut b.cx;
    let mut out = Vec::new();
    for y in outputs {
        let mask = match (cx.generation, y.mask) {
            // Keras 3 calls the layer without what surrounds a call: its own masks are lost.
            (Generation::Three, _) => outer_mask,
            (Generation::One | Generation::Two, Some(own)) => Some(unfold(cx, own, n, steps)?),
            (Generation::One | Generation::Two, None) => outer_mask.map(|m| per_step(cx, m)).transpose()?,
        };
        out.push(T { value: unfold(cx, y.value, n, steps)?, mask });
    }
    Ok(out)
}

/// `[N, T, ..]` as `[N·T, ..]`.
fn fold(cx: &mut Cx, x: Value) -> Out<Value> {
    let dims = cx.dims(x);
    if dims.len() < 2 {
        return Err(misfit(format!("takes a mask with rows and steps, one has the shape {dims:?}")));
    }
    let folded: Vec<usize> = [dims[0] * dims[1]].into_iter().chain(dims[2..].iter().copied()).collect();
    Ok(cx.g.reshape(x, &Shape::from(folded))?)
}

fn unfold(cx: &mut Cx, x: Value, n: usize, steps: usize) -> Out<Value> {
    let dims = cx.dims(x);
    let unfolded: Vec<usize> = [n, steps].into_iter().chain(dims[1..].iter().copied()).collect();
    Ok(cx.g.reshape(x, &Shape::from(unfolded))?)
}

/// Whether anything of a step is there.
fn per_step(cx: &mut Cx, mask: Value) -> Out<Value> {
    let further: Vec<usize> = (2..cx.rank(mask)).collect();
    if further.is_empty() {
        return Ok(mask);
    }
    // A sum of booleans is `any`.
    Ok(cx.g.reduce(Reduce::Sum, mask, &further)?)
}
