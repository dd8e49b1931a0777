//! Values that are known without running the model, such as those made from extents: `reshape(x, (shape(x)[0], -1))`.

use std::collections::{BTreeMap, BTreeSet};

use intwain_ir::interp::run;
use intwain_ir::{DType, Graph, NodeId, Tensor, Value};

use crate::frontend::json::Json;
use crate::frontend::layers::cx::Cx;

/// What an argument is worth being computed for.
const MOST_NODES: usize = 4096;
const MOST_ELEMENTS: usize = 1 << 16;

/// The value of a tensor that no parameter of the graph goes into, as nested lists.
pub(super) fn known(cx: &Cx, value: Value) -> Option<Json> {
    let tensor = evaluated(&cx.g, value)?;
    let mut scalars = (0..tensor.elements()).map(|i| tensor.get(i));
    let dtype = tensor.ty.dtype;
    let mut next = || {
        let x = scalars.next()?;
        Some(match dtype {
            DType::Bool => Json::Bool(x.to_f64() != 0.0),
            d if d.is_float() => Json::Float(x.to_f64()),
            _ => Json::Int(x.to_i64()),
        })
    };
    nested(&tensor.ty.shape, &mut next)
}

fn nested(shape: &[usize], next: &mut impl FnMut() -> Option<Json>) -> Option<Json> {
    match shape {
        [] => next(),
        [n, inner @ ..] => Some(Json::Array((0..*n).map(|_| nested(inner, next)).collect::<Option<_>>()?)),
    }
}

/// Computes a tensor from constants.
fn evaluated(graph: &Graph, value: Value) -> Option<Tensor> {
    let mut needed: BTreeSet<NodeId> = BTreeSet::new();
    let mut open = vec![value];
    while let Some(v) = open.pop() {
        let small = graph.shape(v).elements() <= MOST_ELEMENTS;
        let node = graph.def_node(v).filter(|_| small && needed.len() < MOST_NODES)?;
        if needed.insert(node) {
            open.extend(graph.nodes[node].args.iter().copied());
        }
    }
    let mut part = Graph::new("known");
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for id in needed {
        let node = &graph.nodes[id];
        let args: Vec<Value> = node.args.iter().map(|a| map[a]).collect();
        let results = part.push_all(node.op.clone(), &args).ok()?;
        map.extend(node.results.iter().copied().zip(results));
    }
    part.output("known", map[&value]);
    run(&part, Vec::new()).ok()?.into_iter().next()
}
