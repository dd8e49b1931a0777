//! The `Graph` model of Keras 0.3 and 1.0: layers by name, each fed by one node or by several that are merged.

use indexmap::IndexMap;

use super::super::cursor::{At, Fields};
use super::super::error::{ImportError, ImportErrorKind};
use super::super::json::Json;
use super::super::names::nearest;
use super::models::{Wiring, node_reference, reference, set};
use super::values::{object, text};
use super::{Form, Translator, Written};

/// The tensors that the names of nodes stand for so far. A layer may be called otherwise than its node.
type Nodes = IndexMap<String, Json>;

impl Translator {
    /// A graph as a functional model.
    pub(super) fn graph(&mut self, written: &Written<'_>, path: &str) -> Result<Json, ImportError> {
        let config = &written.config;
        let mut wiring = Wiring::new(written.name.unwrap_or("graph"));
        let mut nodes = Nodes::new();
        for at in config.require("input_config")?.array()? {
            let (name, result) = input(&at, &mut wiring)?;
            nodes.insert(name, result);
        }
        // An output names the layer it shows; the first one to do so decides what the layer is called.
        let outputs = config.require("output_config")?.array()?;
        let mut names: IndexMap<&str, &str> = IndexMap::new();
        for output in &outputs {
            if let Some(shown) = output.get("input").filter(|i| !i.is_null()) {
                names.entry(shown.str()?).or_insert(output.require("name")?.str()?);
            }
        }
        let layers = config.require("nodes")?;
        for at in config.require("node_config")?.array()? {
            self.node(&at, &layers, path, &names, &mut wiring, &mut nodes)?;
        }
        let shown = outputs.iter().map(|at| self.output(at, &mut wiring, &nodes)).collect::<Result<_, _>>()?;
        if written.form == Form::Nested {
            let fields = config.fields()?;
            fields.irrelevant(&["name", "input_config", "node_config", "output_config", "nodes"]);
            self.problems.extend(fields.finish());
        }
        Ok(wiring.finish(shown))
    }

    fn node(
        &mut self,
        at: &At<'_>,
        layers: &At<'_>,
        path: &str,
        names: &IndexMap<&str, &str>,
        wiring: &mut Wiring,
        nodes: &mut Nodes,
    ) -> Result<(), ImportError> {
        let fields = at.fields()?;
        // Outputs are listed by themselves.
        fields.irrelevant(&["create_output"]);
        let name = fields.require("name")?.str()?;
        let stored = layers.require(name)?;
        let shared = stored.get("shared").is_some_and(|s| *s.json == Json::Bool(true));
        let called = names.get(name).copied().unwrap_or(name);
        if shared {
            self.shared_node(&fields, name, called, path, wiring, nodes)?;
        } else {
            fields.irrelevant(&["layer"]);
            let fed = feed(&fields, &format!("merge_inputs_for_{name}"), wiring, nodes)?;
            let layer = self.layer(&stored, path);
            let result = wiring.call(named(layer, called), called, vec![vec![fed]]);
            nodes.insert(name.to_string(), result);
        }
        self.problems.extend(fields.finish());
        Ok(())
    }

    /// One layer called on several nodes, whose results are merged or get names of their own.
    fn shared_node(
        &mut self,
        fields: &Fields<'_>,
        name: &str,
        called: &str,
        path: &str,
        wiring: &mut Wiring,
        nodes: &mut Nodes,
    ) -> Result<(), ImportError> {
        let layer = self.layer(&fields.require("layer")?, path);
        let inputs = fields.require("inputs")?.array()?;
        let calls = inputs.iter().map(|at| Ok(vec![find(at, nodes)?])).collect::<Result<Vec<_>, ImportError>>()?;
        let count = calls.len();
        let merged = fields.opt("merge_mode").is_some();
        let own = if merged { format!("input_for_{name}") } else { name.to_string() };
        wiring.call(named(layer, &own), &own, calls);
        let results = (0..count).map(|i| node_reference(&own, i));
        let outputs = fields.opt("outputs").map(|at| at.array()).transpose()?.unwrap_or_default();
        if merged {
            let result = wiring.call(merge(fields, called)?, called, vec![results.collect()]);
            nodes.insert(name.to_string(), result);
            return Ok(());
        }
        fields.irrelevant(&["concat_axis", "dot_axes"]);
        if outputs.len() != count {
            let kind = format!("{count} calls of a shared layer have {} names", outputs.len());
            return Err(fields.at().error(ImportErrorKind::Shape(kind)));
        }
        for (output, result) in outputs.iter().zip(results) {
            let output = output.str()?;
            let result = wiring.call(identity(output), output, vec![vec![result]]);
            nodes.insert(output.to_string(), result);
        }
        Ok(())
    }

    fn output(&mut self, at: &At<'_>, wiring: &mut Wiring, nodes: &Nodes) -> Result<Json, ImportError> {
        let fields = at.fields()?;
        let name = fields.require("name")?.str()?;
        let shown = fields.opt("input");
        let result = match &shown {
            Some(shown) => {
                fields.irrelevant(&["inputs", "merge_mode", "concat_axis", "dot_axes"]);
                let result = find(shown, nodes)?;
                if result == reference(name) { result } else { wiring.call(identity(name), name, vec![vec![result]]) }
            }
            None => feed(&fields, name, wiring, nodes)?,
        };
        self.problems.extend(fields.finish());
        Ok(result)
    }
}

fn input(at: &At<'_>, wiring: &mut Wiring) -> Result<(String, Json), ImportError> {
    let fields = at.fields()?;
    let name = fields.require("name")?.str()?;
    let shape = match (fields.opt("batch_input_shape"), fields.opt("input_shape")) {
        (Some(whole), _) => whole.json.clone(),
        (None, Some(rest)) => {
            Json::Array([Json::Null].into_iter().chain(rest.array()?.iter().map(|d| d.json.clone())).collect())
        }
        (None, None) => return Err(at.error(ImportErrorKind::NoInputShape)),
    };
    let dtype = match fields.opt("dtype").map(|d| d.str()).transpose()? {
        Some(name) if name.starts_with("int") => Some(text("int32")),
        Some(_) | None => None,
    };
    match fields.finish().into_iter().next() {
        Some(unknown) => Err(unknown),
        None => Ok((name.to_string(), wiring.input(name, shape, dtype))),
    }
}

fn find(at: &At<'_>, nodes: &Nodes) -> Result<Json, ImportError> {
    let name = at.str()?;
    let missing = || {
        let near = nearest(name, nodes.keys().map(String::as_str)).map(str::to_string);
        at.error(ImportErrorKind::Dangling { name: name.to_string(), nearest: near })
    };
    nodes.get(name).cloned().ok_or_else(missing)
}

/// What a node is fed: one node, or a merge of several under this name.
fn feed(fields: &Fields<'_>, name: &str, wiring: &mut Wiring, nodes: &Nodes) -> Result<Json, ImportError> {
    if let Some(one) = fields.opt("input") {
        fields.irrelevant(&["inputs", "merge_mode", "concat_axis", "dot_axes"]);
        return find(&one, nodes);
    }
    let inputs = fields.require("inputs")?.array()?;
    let results = inputs.iter().map(|at| find(at, nodes)).collect::<Result<Vec<_>, _>>()?;
    Ok(wiring.call(merge(fields, name)?, name, vec![results]))
}

/// The `Merge` that a node's `merge_mode` implies.
fn merge(fields: &Fields<'_>, name: &str) -> Result<Json, ImportError> {
    let mode = fields.opt("merge_mode").map_or_else(|| text("concat"), |at| at.json.clone());
    let mut layer = object("Merge", [("name", text(name)), ("mode", mode), ("mode_type", text("raw"))]);
    if let Json::Object(map) = &mut layer
        && let Some(config) = map.get_mut("config")
    {
        for key in ["concat_axis", "dot_axes"] {
            if let Some(at) = fields.opt(key) {
                set(config, key, at.json.clone());
            }
        }
    }
    Ok(layer)
}

/// Gives a name to a tensor.
fn identity(name: &str) -> Json {
    object("Activation", [("name", text(name)), ("activation", text("linear"))])
}

/// The layer under the name it has in the graph.
fn named(mut layer: Json, name: &str) -> Json {
    if let Json::Object(map) = &mut layer
        && let Some(config) = map.get_mut("config")
    {
        set(config, "name", text(name));
        map.shift_remove("shared");
    }
    layer
}
