//! Which call takes which tensor: Keras 2's triplets and Keras 3's arguments in one form.
//!
//! # Node indices
//! A reference names a layer, one of its nodes and one of that node's tensors. For ordinary layers the node index is the
//! index of the call. Models used as layers carry a node from their own construction, which some writers count:
//!
//! | written by | in calls | in `output_layers` |
//! | --- | --- | --- |
//! | Keras 3, Functional | from 0 | from 1 |
//! | Keras 3, Sequential | from 0 | from 0 |
//! | Keras 2, both | from 1 | from 1 |
//!
//! An index 0, or one equal to the number of calls, shows which convention a file follows; it then wins over the table.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;

use super::cursor::At;
use super::error::{ImportError, ImportErrorKind};
use super::json::Json;
use super::model::{Arg, Call, Layer, LayerBody, ModelKind, Nest, Source};
use super::names::nearest;

pub(super) struct Wires {
    pub(super) calls: Vec<Call>,
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<Source>,
    pub(super) nest: Nest,
}

/// A reference as it stands in the file: the node index is not yet a call index.
struct Reference<'j> {
    at: At<'j>,
    layer: usize,
    node: i64,
    tensor: usize,
}

struct Wiring<'l> {
    layers: &'l [Layer],
    index: BTreeMap<&'l str, usize>,
    /// Calls of each layer; input layers count one.
    calls: Vec<usize>,
    /// What to subtract from node indices in calls, and in the model's inputs and outputs.
    in_calls: Vec<i64>,
    in_outputs: Vec<i64>,
}

/// Resolves the calls of a Functional model. `list` holds the JSON of `layers`.
pub(super) fn resolve(
    layers: &[Layer],
    list: &[At<'_>],
    inputs: &At<'_>,
    outputs: &At<'_>,
) -> Result<Wires, ImportError> {
    let index = layers.iter().enumerate().map(|(i, l)| (l.name.as_str(), i)).collect();
    let nodes: Vec<Vec<At<'_>>> =
        list.iter().zip(layers).map(|(at, layer)| inbound(at, layer)).collect::<Result<_, _>>()?;
    let calls = layers.iter().zip(&nodes).map(|(layer, nodes)| match layer.body {
        LayerBody::Input(_) => 1,
        LayerBody::Model(_) | LayerBody::Leaf(_) => nodes.len(),
    });
    let calls = calls.collect();
    let mut wiring =
        Wiring { layers, index, calls, in_calls: vec![0; layers.len()], in_outputs: vec![0; layers.len()] };
    wiring.settle_conventions(&nodes, inputs, outputs)?;

    let mut all = Vec::new();
    for (layer, nodes) in nodes.iter().enumerate() {
        for (call, node) in nodes.iter().enumerate() {
            let (args, kwargs) = wiring.node(node)?;
            all.push(Call { layer, call, args, kwargs, at: node.path.clone() });
        }
    }
    let flatten = |at: &At<'_>| -> Result<Vec<Source>, ImportError> {
        let mut found = Vec::new();
        references_in_outputs(&wiring, at, &mut found)?;
        found.iter().map(|r| wiring.source(r, &wiring.in_outputs)).collect()
    };
    let (inputs, sources) = (flatten(inputs)?, inputs);
    for source in &inputs {
        if !matches!(layers[source.layer].body, LayerBody::Input(_)) {
            let what = format!("an input that is the result of the layer `{}`", layers[source.layer].name);
            return Err(sources.unsupported(what));
        }
    }
    let nest = nest(outputs)?;
    Ok(Wires { inputs, outputs: flatten(outputs)?, nest, calls: in_order(layers, all)? })
}

/// The nodes of a layer that say something: Keras writes `[]` for input layers, and `null` is no node.
fn inbound<'j>(at: &At<'j>, layer: &Layer) -> Result<Vec<At<'j>>, ImportError> {
    let at = at.in_layer(&layer.path);
    let nodes = at.require("inbound_nodes")?.array()?;
    match layer.body {
        LayerBody::Input(_) => Ok(Vec::new()),
        LayerBody::Model(_) | LayerBody::Leaf(_) => Ok(nodes),
    }
}

impl Wiring<'_> {
    fn find(&self, at: &At<'_>, name: &str) -> Result<usize, ImportError> {
        let missing = || {
            let near = nearest(name, self.index.keys().copied()).map(str::to_string);
            at.error(ImportErrorKind::Dangling { name: name.to_string(), nearest: near })
        };
        self.index.get(name).copied().ok_or_else(missing)
    }

    /// `[layer, node, tensor]`, which `at` is known to be.
    fn reference<'j>(&self, at: &At<'j>) -> Result<Reference<'j>, ImportError> {
        let parts = at.array()?;
        let [name, node, tensor, ..] = parts.as_slice() else {
            return Err(at.expected("a reference [layer, node, tensor]"));
        };
        Ok(Reference { at: at.clone(), layer: self.find(at, name.str()?)?, node: node.int()?, tensor: tensor.usize()? })
    }

    fn source(&self, reference: &Reference<'_>, offsets: &[i64]) -> Result<Source, ImportError> {
        let Reference { at, layer, node, tensor } = reference;
        let calls = self.calls[*layer];
        let call = node.checked_sub(offsets[*layer]).and_then(|call| usize::try_from(call).ok()).filter(|&c| c < calls);
        let missing = || {
            let name = self.layers[*layer].name.clone();
            at.error(ImportErrorKind::NoSuchCall { name, index: *node, calls })
        };
        Ok(Source { layer: *layer, call: call.ok_or_else(missing)?, tensor: *tensor })
    }

    fn settle_conventions(
        &mut self,
        nodes: &[Vec<At<'_>>],
        inputs: &At<'_>,
        outputs: &At<'_>,
    ) -> Result<(), ImportError> {
        let mut in_calls = Vec::new();
        for node in nodes.iter().flatten() {
            self.references_in_node(node, &mut in_calls)?;
        }
        let mut in_outputs = Vec::new();
        references_in_outputs(self, inputs, &mut in_outputs)?;
        references_in_outputs(self, outputs, &mut in_outputs)?;
        let keras_2 =
            !nodes.iter().flatten().any(|node| matches!(node.json, Json::Object(_)) && node.get("args").is_some());
        for (i, layer) in self.layers.iter().enumerate() {
            let LayerBody::Model(model) = &layer.body else { continue };
            let functional = model.kind == ModelKind::Functional;
            let decide = |references: &[Reference<'_>], usual: i64| {
                let mut nodes = references.iter().filter(|r| r.layer == i).map(|r| r.node);
                if nodes.clone().any(|n| n == 0) {
                    0
                } else if nodes.any(|n| n == self.calls[i] as i64) {
                    1
                } else {
                    usual
                }
            };
            self.in_calls[i] = decide(&in_calls, i64::from(keras_2));
            self.in_outputs[i] = decide(&in_outputs, i64::from(keras_2 || functional));
        }
        Ok(())
    }

    fn references_in_node<'j>(&self, node: &At<'j>, out: &mut Vec<Reference<'j>>) -> Result<(), ImportError> {
        if let Some(history) = keras_tensor(node) {
            out.push(self.reference(&history)?);
            return Ok(());
        }
        match node.json {
            Json::Array(items) if self.is_reference(items) => {
                out.push(self.reference(node)?);
                for item in node.array()?.iter().skip(3) {
                    self.references_in_node(item, out)?;
                }
                Ok(())
            }
            Json::Array(_) => node.array()?.iter().try_for_each(|item| self.references_in_node(item, out)),
            Json::Object(_) => node.entries()?.iter().try_for_each(|(_, item)| self.references_in_node(item, out)),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => Ok(()),
        }
    }

    /// Whether a list is `[layer, node, tensor]` or `[layer, node, tensor, {…}]` of a layer we know.
    fn is_reference(&self, items: &[Json]) -> bool {
        looks_like_reference(items) && items[0].as_str().is_some_and(|name| self.index.contains_key(name))
    }

    fn node(&self, at: &At<'_>) -> Result<(Vec<Arg>, IndexMap<String, Arg>), ImportError> {
        if matches!(at.json, Json::Object(_)) && at.get("args").is_some() {
            let fields = at.fields()?;
            let args = fields.require("args")?.array()?.iter().map(|a| self.argument(a)).collect::<Result<_, _>>()?;
            let kwargs = fields.require("kwargs")?.entries()?;
            let kwargs = kwargs
                .iter()
                .map(|(k, a)| Ok((k.to_string(), self.argument(a)?)))
                .collect::<Result<_, ImportError>>()?;
            return match fields.finish().into_iter().next() {
                Some(unknown) => Err(unknown),
                None => Ok((args, kwargs)),
            };
        }
        let mut kwargs = IndexMap::new();
        let mut arg = self.keras_2_input(at, &mut kwargs)?;
        if let Arg::List(items) = &mut arg
            && items.len() == 1
        {
            arg = items.remove(0);
        }
        Ok((vec![arg], kwargs))
    }

    /// The inputs of a Keras 2 node: entries `[layer, node, tensor, kwargs]`, in lists or dictionaries.
    fn keras_2_input(&self, at: &At<'_>, kwargs: &mut IndexMap<String, Arg>) -> Result<Arg, ImportError> {
        match at.json {
            Json::Array(items) if looks_like_reference(items) => {
                let parts = at.array()?;
                if let Some(named) = parts.get(3) {
                    for (key, value) in named.entries()? {
                        kwargs.insert(key.to_string(), self.argument(&value)?);
                    }
                }
                if items[0].as_str() == Some(CONSTANT) {
                    return Ok(Arg::Const(items[2].clone()));
                }
                Ok(Arg::Tensor(self.source(&self.reference(at)?, &self.in_calls)?))
            }
            Json::Array(_) => {
                Ok(Arg::List(at.array()?.iter().map(|a| self.keras_2_input(a, kwargs)).collect::<Result<_, _>>()?))
            }
            Json::Object(_) => {
                let each = at.entries()?;
                let each = each.iter().map(|(k, a)| Ok((k.to_string(), self.keras_2_input(a, kwargs)?)));
                Ok(Arg::Dict(each.collect::<Result<_, ImportError>>()?))
            }
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {
                Err(at.expected("references [layer, node, tensor, kwargs]"))
            }
        }
    }

    fn argument(&self, at: &At<'_>) -> Result<Arg, ImportError> {
        if let Some(history) = keras_tensor(at) {
            return Ok(Arg::Tensor(self.source(&self.reference(&history)?, &self.in_calls)?));
        }
        match at.json {
            Json::Array(items) if items.first().and_then(Json::as_str) == Some(CONSTANT) && items.len() >= 3 => {
                Ok(Arg::Const(items[2].clone()))
            }
            Json::Array(items) if self.is_reference(items) => {
                Ok(Arg::Tensor(self.source(&self.reference(at)?, &self.in_calls)?))
            }
            Json::Array(_) => self.list(at),
            Json::Object(map) => match map.get("class_name").and_then(Json::as_str) {
                Some(class) => self.special(at, class),
                None => {
                    let each = at.entries()?;
                    let each = each.iter().map(|(k, a)| Ok((k.to_string(), self.argument(a)?)));
                    let map: IndexMap<String, Arg> = each.collect::<Result<_, ImportError>>()?;
                    let plain = map.values().all(|a| matches!(a, Arg::Const(_)));
                    Ok(if plain { Arg::Const(at.json.clone()) } else { Arg::Dict(map) })
                }
            },
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {
                Ok(Arg::Const(at.json.clone()))
            }
        }
    }

    fn list(&self, at: &At<'_>) -> Result<Arg, ImportError> {
        let items: Vec<Arg> = at.array()?.iter().map(|a| self.argument(a)).collect::<Result<_, _>>()?;
        let plain = items.iter().map(|a| if let Arg::Const(json) = a { Some(json.clone()) } else { None });
        Ok(match plain.collect::<Option<Vec<Json>>>() {
            Some(values) => Arg::Const(Json::Array(values)),
            None => Arg::List(items),
        })
    }

    /// What Keras 3 writes for Python values that JSON has no form for.
    fn special(&self, at: &At<'_>, class: &str) -> Result<Arg, ImportError> {
        match class {
            "__tuple__" => self.list(&at.require("config")?.require("value")?),
            "__slice__" => {
                let config = at.require("config")?;
                let part = |key| config.get(key).map_or(Ok(Arg::Const(Json::Null)), |a| self.argument(&a));
                Ok(Arg::Slice(Box::new([part("start")?, part("stop")?, part("step")?])))
            }
            "__ellipsis__" => Ok(Arg::Ellipsis),
            "__tensor__" | "__numpy__" => {
                let config = at.require("config")?;
                let dtype = config.require("dtype")?.str()?.to_string();
                Ok(Arg::Array { value: config.require("value")?.json.clone(), dtype })
            }
            "__lambda__" => Err(at.error(ImportErrorKind::Custom { class: class.to_string() })),
            _ => Ok(Arg::Const(at.json.clone())),
        }
    }
}

const CONSTANT: &str = "_CONSTANT_VALUE";

fn looks_like_reference(items: &[Json]) -> bool {
    let kwargs = |json: &Json| matches!(json, Json::Object(_));
    match items {
        [Json::String(name), Json::Int(-1), _, rest @ ..] if name == CONSTANT => rest.iter().all(kwargs),
        [Json::String(_), Json::Int(_), Json::Int(_)] => true,
        [Json::String(_), Json::Int(_), Json::Int(_), named] => kwargs(named),
        _ => false,
    }
}

/// The history of a Keras 3 tensor, where this is one.
fn keras_tensor<'j>(at: &At<'j>) -> Option<At<'j>> {
    (at.json.get("class_name")?.as_str()? == "__keras_tensor__").then(|| at.get("config")?.get("keras_history"))?
}

/// References of `input_layers` or `output_layers`, dictionaries by sorted key.
fn references_in_outputs<'j>(
    wiring: &Wiring<'_>,
    at: &At<'j>,
    out: &mut Vec<Reference<'j>>,
) -> Result<(), ImportError> {
    match at.json {
        Json::Array(items) if looks_like_reference(items) => {
            out.push(wiring.reference(at)?);
            Ok(())
        }
        Json::Array(_) => at.array()?.iter().try_for_each(|item| references_in_outputs(wiring, item, out)),
        Json::Object(map) if map.get("class_name").and_then(Json::as_str) == Some("__tuple__") => {
            references_in_outputs(wiring, &at.require("config")?.require("value")?, out)
        }
        Json::Object(_) => {
            let mut entries = at.entries()?;
            entries.sort_by_key(|(key, _)| *key);
            entries.iter().try_for_each(|(_, item)| references_in_outputs(wiring, item, out))
        }
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {
            Err(at.expected("references [layer, node, tensor]"))
        }
    }
}

/// How `output_layers` arranges its references, in the order of [`references_in_outputs`].
fn nest(at: &At<'_>) -> Result<Nest, ImportError> {
    match at.json {
        Json::Array(items) if looks_like_reference(items) => Ok(Nest::One),
        Json::Array(_) => Ok(Nest::List(at.array()?.iter().map(nest).collect::<Result<_, _>>()?)),
        Json::Object(map) if map.get("class_name").and_then(Json::as_str) == Some("__tuple__") => {
            nest(&at.require("config")?.require("value")?)
        }
        _ => {
            let mut entries = at.entries()?;
            entries.sort_by_key(|(key, _)| *key);
            let each = entries.iter().map(|(key, item)| Ok((key.to_string(), nest(item)?)));
            Ok(Nest::Named(each.collect::<Result<_, ImportError>>()?))
        }
    }
}

/// The calls, each after those it takes tensors from, otherwise in the order of the file.
fn in_order(layers: &[Layer], calls: Vec<Call>) -> Result<Vec<Call>, ImportError> {
    let position: BTreeMap<(usize, usize), usize> =
        calls.iter().enumerate().map(|(i, c)| ((c.layer, c.call), i)).collect();
    let needs = |call: &Call| -> BTreeSet<usize> {
        let tensors = call.args.iter().chain(call.kwargs.values()).flat_map(Arg::tensors);
        tensors.filter_map(|s| position.get(&(s.layer, s.call)).copied()).collect()
    };
    let needs: Vec<BTreeSet<usize>> = calls.iter().map(needs).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); calls.len()];
    for (call, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|&n| users[n].push(call));
    }
    let mut waiting: Vec<usize> = needs.iter().map(BTreeSet::len).collect();
    let mut ready: BTreeSet<usize> = (0..calls.len()).filter(|&c| waiting[c] == 0).collect();
    let mut order = Vec::with_capacity(calls.len());
    while let Some(next) = ready.pop_first() {
        order.push(next);
        for &user in &users[next] {
            waiting[user] -= 1;
            if waiting[user] == 0 {
                ready.insert(user);
            }
        }
    }
    if order.len() < calls.len() {
        return Err(cycle(layers, &calls, &needs, &waiting));
    }
    let mut slots: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|i| slots[i].take()).collect())
}

/// Follows unmet needs until a call comes up again.
fn cycle(layers: &[Layer], calls: &[Call], needs: &[BTreeSet<usize>], waiting: &[usize]) -> ImportError {
    let mut at = waiting.iter().position(|&w| w > 0).expect("a call is left over");
    let mut trail = Vec::new();
    while !trail.contains(&at) {
        trail.push(at);
        at = *needs[at].iter().find(|&&n| waiting[n] > 0).expect("a call that waits needs one that waits");
    }
    let start = trail.iter().position(|&c| c == at).expect("the walk came back to it");
    let mut names: Vec<String> = trail[start..].iter().rev().map(|&c| layers[calls[c].layer].name.clone()).collect();
    names.push(names[0].clone());
    ImportErrorKind::Cycle { layers: names }.of(&calls[at].at, &layers[calls[at].layer].path)
}
