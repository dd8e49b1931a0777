//! TensorFlow operations in models of tf.keras: `x * 2` and `tf.nn.relu(x)` became layers there.

use indexmap::IndexMap;

use super::build::Builder;
use super::cx::{Out, unsupported};
use super::inputs::{Inputs, Item};
use super::{Import, ops};
use crate::frontend::cursor::Fields;
use crate::frontend::json::Json;

/// The operation behind a TensorFlow symbol, and what its arguments are called here, in TensorFlow's order.
fn operation(symbol: &str) -> Option<(Import, &'static [(&'static str, &'static str)])> {
    const PAIR: &[(&str, &str)] = &[("x", "x1"), ("y", "x2")];
    const ONE: &[(&str, &str)] = &[("x", "x")];
    const FEATURES: &[(&str, &str)] = &[("features", "x")];
    const REDUCED: &[(&str, &str)] = &[("input_tensor", "x"), ("axis", "axis"), ("keepdims", "keepdims")];
    Some(match symbol {
        "__operators__.add" | "math.add" | "add" => (ops::add, PAIR),
        "math.subtract" | "subtract" => (ops::subtract, PAIR),
        "math.multiply" | "multiply" => (ops::multiply, PAIR),
        "math.truediv" | "math.divide" | "divide" | "truediv" => (ops::divide, PAIR),
        "math.maximum" | "maximum" => (ops::maximum, PAIR),
        "math.minimum" | "minimum" => (ops::minimum, PAIR),
        "math.pow" | "pow" => (ops::power, PAIR),
        "math.negative" | "negative" => (ops::negative, ONE),
        "math.abs" | "abs" => (ops::absolute, ONE),
        "math.exp" | "exp" => (ops::exp, ONE),
        "math.log" | "log" => (ops::log, ONE),
        "math.sqrt" | "sqrt" => (ops::sqrt, ONE),
        "math.rsqrt" | "rsqrt" => (ops::rsqrt, ONE),
        "math.square" | "square" => (ops::square, ONE),
        "math.sigmoid" | "nn.sigmoid" | "sigmoid" => (ops::sigmoid, ONE),
        "math.tanh" | "nn.tanh" | "tanh" => (ops::tanh, ONE),
        "nn.relu" => (ops::relu, FEATURES),
        "nn.relu6" => (ops::relu_6, FEATURES),
        "nn.softmax" => (ops::softmax, &[("logits", "x"), ("axis", "axis")]),
        "math.reduce_mean" | "reduce_mean" => (ops::mean, REDUCED),
        "math.reduce_sum" | "reduce_sum" => (ops::sum, REDUCED),
        "math.reduce_max" | "reduce_max" => (ops::max, REDUCED),
        "math.reduce_min" | "reduce_min" => (ops::min, REDUCED),
        "concat" => (ops::concatenate, &[("values", "xs"), ("axis", "axis")]),
        "stack" => (ops::stack, &[("values", "xs"), ("axis", "axis")]),
        "expand_dims" => (ops::expand_dims, &[("input", "x"), ("axis", "axis")]),
        "squeeze" => (ops::squeeze, &[("input", "x"), ("axis", "axis")]),
        "reshape" => (ops::reshape, &[("tensor", "x"), ("shape", "newshape")]),
        "transpose" => (ops::transpose, &[("a", "x"), ("perm", "axes")]),
        "cast" => (ops::cast, &[("x", "x"), ("dtype", "dtype")]),
        "identity" => (super::core::identity, &[("input", "inputs")]),
        _ => return None,
    })
}

/// `{"function": "math.multiply"}`: the first argument is positional, the others have TensorFlow's names.
pub(super) fn call(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let symbol = fields.require("function")?;
    let name = symbol.str()?;
    let Some((import, names)) = operation(name.strip_prefix("compat.v1.").unwrap_or(name)) else {
        return Err(symbol.unsupported(format!("the TensorFlow operation {}", symbol.json)).into());
    };
    let mut kwargs = IndexMap::new();
    for (position, (theirs, ours)) in names.iter().enumerate() {
        if let Some(item) = inputs.get(position, theirs) {
            kwargs.insert((*ours).to_string(), item.clone());
        }
    }
    // TensorFlow writes out arguments that have their defaults, such as `conjugate: false`.
    let off = |item: &Item| matches!(item, Item::Const(Json::Bool(false)));
    for (name, _) in inputs.kwargs.iter().filter(|(_, item)| off(item)) {
        inputs.named(name);
    }
    let renamed = Inputs::new(Vec::new(), kwargs);
    let outputs = import(b, fields, &renamed)?;
    renamed.finish()?;
    Ok(outputs)
}

/// `x[..]`, whose index is a list of numbers and `{"start": …, "stop": …, "step": …}`.
pub(super) fn slicing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    fields.irrelevant(&["function"]);
    let x = inputs.one()?;
    let part = |json: &Json| match json {
        Json::Object(map) => {
            let bound = |key: &str| Item::Const(map.get(key).cloned().unwrap_or(Json::Null));
            Item::Slice(Box::new([bound("start"), bound("stop"), bound("step")]))
        }
        other => Item::Const(other.clone()),
    };
    let spec = match inputs.get(1, "slice_spec") {
        Some(Item::Const(Json::Array(items))) => items.iter().map(part).collect(),
        Some(Item::Const(json)) => vec![part(json)],
        Some(Item::List(items)) => {
            items.iter().map(|item| if let Item::Const(json) = item { part(json) } else { item.clone() }).collect()
        }
        _ => return Err(unsupported("indexing by a tensor")),
    };
    ops::get_item(b, fields, &Inputs::new(vec![Item::Tensor(x), Item::List(spec)], IndexMap::new()))
}
