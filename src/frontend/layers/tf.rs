//! TensorFlow operations in models of tf.keras: `x * 2` and `tf.nn.relu(x)` became layers there.

use indexmap::IndexMap;

use super::build::Builder;
use super::cx::{Out, misfit, unsupported};
use super::inputs::{Inputs, Item};
use super::ops::{index, tensorflow};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::json::Json;

/// Calls an operation with arguments under its own names. Nothing of the layer's configuration is an argument.
fn operate(b: &mut Builder, fields: &Fields<'_>, operation: &tensorflow::Operation, given: &Inputs) -> Out {
    let mut kwargs = IndexMap::new();
    for (position, (theirs, ours)) in operation.names.iter().enumerate() {
        // A null among the arguments says more than its absence.
        let null = given.kwargs.get(*theirs).filter(|item| matches!(item, Item::Const(Json::Null)));
        if let Some(item) = given.get(position, theirs).or(null) {
            match kwargs.get(*ours) {
                // One argument may have two names, of which one is null.
                Some(known) if !matches!(known, Item::Const(Json::Null)) => {}
                Some(_) | None => drop(kwargs.insert((*ours).to_string(), item.clone())),
            }
        }
    }
    given.named("use_cudnn_on_gpu");
    for (key, value) in operation.fixed {
        kwargs.entry((*key).to_string()).or_insert(Item::Const(value.json()));
    }
    // TensorFlow writes out arguments that have their defaults, such as `conjugate: false`.
    let off = |item: &Item| matches!(item, Item::Const(Json::Bool(false)));
    for (name, _) in given.kwargs.iter().filter(|(_, item)| off(item)) {
        given.named(name);
    }
    let renamed = Inputs::new(Vec::new(), kwargs);
    let nothing = Json::Object(IndexMap::new());
    let place = fields.at();
    let empty = At { json: &nothing, path: place.path.clone(), layer: place.layer.clone() };
    let outputs = (operation.import)(b, &empty.fields()?, &renamed)?;
    renamed.finish()?;
    Ok(outputs)
}

/// `{"function": "math.multiply"}`: the first argument is positional, the others have TensorFlow's names.
pub(super) fn call(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let symbol = fields.require("function")?;
    let name = symbol.str()?;
    match tensorflow::named(name) {
        Some(operation) => operate(b, fields, &operation, inputs),
        None => Err(symbol.unsupported(format!("the TensorFlow operation {}", symbol.json)).into()),
    }
}

/// A node of a TensorFlow graph in a layer: `node_def` says what it does, `constants` which operands are not tensors.
pub(super) fn node(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let definition = fields.require("node_def")?;
    let constants = fields.opt("constants");
    let parsed;
    let json = match definition.json {
        Json::String(text) => {
            parsed = Json::parse(text).map_err(|_| definition.unsupported("a node that is not written as JSON"))?;
            &parsed
        }
        other => other,
    };
    let name = json.get("op").and_then(Json::as_str).ok_or_else(|| definition.expected("a node of a graph"))?;
    let operands = json.get("input").and_then(Json::as_array).map_or(0, <[Json]>::len);
    let mut tensors = inputs.get(0, "inputs").map(Item::tensors).unwrap_or_default().into_iter();
    let mut args = Vec::new();
    for i in 0..operands {
        let constant = constants.as_ref().and_then(|at| at.json.get(&i.to_string()));
        args.push(match constant {
            Some(json) => Item::Const(json.clone()),
            None => Item::Tensor(tensors.next().ok_or_else(|| misfit(format!("the node takes {operands} operands")))?),
        });
    }
    let Some(operation) = tensorflow::node(name) else {
        return Err(definition.unsupported(format!("the TensorFlow operation \"{name}\"")).into());
    };
    let no_attributes = IndexMap::new();
    let attributes = match json.get("attr") {
        Some(Json::Object(map)) => map,
        _ => &no_attributes,
    };
    let (args, kwargs) = tensorflow::arguments(name, args, attributes)?;
    operate(b, fields, &operation, &Inputs::new(args, kwargs))
}

/// `x[..]`, whose index is a list of numbers and `{"start": …, "stop": …, "step": …}`.
pub(super) fn slicing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&["function"]);
    let x = inputs.get(0, "tensor").cloned().ok_or_else(|| misfit("is called without a tensor"))?;
    let spec = match inputs.get(1, "slice_spec") {
        Some(Item::Const(Json::Array(items))) => items.iter().map(|json| part(&Item::Const(json.clone()))).collect(),
        Some(Item::List(items)) => items.iter().map(part).collect(),
        Some(one) => vec![part(one)],
        None => return Err(unsupported("indexing by nothing")),
    };
    index::get_item(b, fields, &Inputs::new(vec![x, Item::List(spec)], IndexMap::new()))
}

/// One part of an index.
fn part(item: &Item) -> Item {
    match item {
        Item::Const(Json::Object(map)) if map.get("class_name").and_then(Json::as_str) == Some("__ellipsis__") => {
            Item::Ellipsis
        }
        Item::Const(Json::Object(map)) => {
            let bound = |key: &str| Item::Const(map.get(key).cloned().unwrap_or(Json::Null));
            Item::Slice(Box::new([bound("start"), bound("stop"), bound("step")]))
        }
        Item::Dict(map) => {
            let bound = |key: &str| map.get(key).cloned().unwrap_or(Item::Const(Json::Null));
            Item::Slice(Box::new([bound("start"), bound("stop"), bound("step")]))
        }
        other => other.clone(),
    }
}
