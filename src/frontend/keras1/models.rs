//! Models of Keras 1: chains, chains that begin with a `Merge` of other chains, and functional models.

use super::super::cursor::At;
use super::super::error::{ImportError, ImportErrorKind};
use super::super::json::Json;
use super::super::names::snake_case;
use super::values::{object, text};
use super::{Form, Translator, Written};

/// A functional model being put together.
pub(super) struct Wiring {
    name: String,
    layers: Vec<Json>,
    inputs: Vec<Json>,
}

/// `[layer, 0, 0]`
pub(super) fn reference(layer: &str) -> Json {
    node_reference(layer, 0)
}

/// `[layer, node, 0]`
pub(super) fn node_reference(layer: &str, node: usize) -> Json {
    Json::Array(vec![text(layer), Json::Int(node as i64), Json::Int(0)])
}

impl Wiring {
    pub(super) fn new(name: &str) -> Wiring {
        Wiring { name: name.to_string(), layers: Vec::new(), inputs: Vec::new() }
    }

    /// Adds an input of this shape.
    pub(super) fn input(&mut self, name: &str, shape: Json, dtype: Option<Json>) -> Json {
        let mut config = vec![("name".to_string(), text(name)), ("batch_input_shape".to_string(), shape)];
        config.extend(dtype.map(|d| ("dtype".to_string(), d)));
        let mut layer = object("InputLayer", []);
        set(&mut layer, "config", Json::Object(config.into_iter().collect()));
        self.place(layer, name, Vec::new());
        let reference = reference(name);
        self.inputs.push(reference.clone());
        reference
    }

    /// Adds a layer that is called once for each list of tensors.
    pub(super) fn call(&mut self, layer: Json, name: &str, calls: Vec<Vec<Json>>) -> Json {
        self.place(layer, name, calls.into_iter().map(Json::Array).collect());
        reference(name)
    }

    fn place(&mut self, mut layer: Json, name: &str, nodes: Vec<Json>) {
        set(&mut layer, "name", text(name));
        set(&mut layer, "inbound_nodes", Json::Array(nodes));
        self.layers.push(layer);
    }

    /// The configuration of the whole.
    pub(super) fn finish(self, outputs: Vec<Json>) -> Json {
        let entries = [
            ("name", text(&self.name)),
            ("layers", Json::Array(self.layers)),
            ("input_layers", Json::Array(self.inputs)),
            ("output_layers", Json::Array(outputs)),
        ];
        Json::Object(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
    }
}

pub(super) fn set(object: &mut Json, key: &str, value: Json) {
    if let Json::Object(map) = object {
        map.insert(key.to_string(), value);
    }
}

/// The layers that a `Merge` at the head of a chain brings together.
fn branches<'j>(written: &Written<'j>) -> Option<At<'j>> {
    (written.class == "Merge").then(|| written.config.get("layers")).flatten().filter(|layers| !layers.is_null())
}

impl Translator {
    /// A functional model: the same with its layers translated.
    pub(super) fn model(&mut self, config: &At<'_>, path: &str) -> Result<Json, ImportError> {
        let layers = config.require("layers")?.array()?;
        let layers = layers.iter().map(|layer| self.layer(layer, path)).collect();
        let mut out = config.json.clone();
        set(&mut out, "layers", Json::Array(layers));
        Ok(out)
    }

    /// A chain stays one, unless it has several inputs.
    pub(super) fn sequential(
        &mut self,
        written: &Written<'_>,
        path: &str,
    ) -> Result<(&'static str, Json), ImportError> {
        let list = layers_of(written)?;
        let layers = list.array()?;
        let Some(first) = layers.first() else {
            return Err(list.error(ImportErrorKind::NotAModel { what: "it has no layers".to_string() }));
        };
        let head = Written::read(first)?;
        let first = if branches(&head).is_some() { None } else { Some(self.layer(first, path)) };
        let several = |first: &Json| first.get("class_name").and_then(Json::as_str) == Some("Model");
        let first = match first {
            Some(first) if !several(&first) => first,
            first => {
                let mut wiring = Wiring::new(written.name.unwrap_or("sequential"));
                let output = self.chain(&list, first, path, &mut wiring)?;
                return Ok(("Model", wiring.finish(vec![output])));
            }
        };
        let rest = layers[1..].iter().map(|layer| self.layer(layer, path)).collect::<Vec<_>>();
        Ok(("Sequential", Json::Array([first].into_iter().chain(rest).collect())))
    }

    /// Puts the layers of a chain, the first of which may be translated already, into a functional model and gives the last
    /// one's result.
    fn chain(
        &mut self,
        list: &At<'_>,
        mut first: Option<Json>,
        path: &str,
        wiring: &mut Wiring,
    ) -> Result<Json, ImportError> {
        let layers = list.array()?;
        let mut current: Option<Json> = None;
        for (i, at) in layers.iter().enumerate() {
            let written = Written::read(at)?;
            let name = self.name_of(&written, wiring);
            let layer = match branches(&written) {
                None => first.take().unwrap_or_else(|| self.layer(at, path)),
                Some(heads) if i == 0 => {
                    let results = self.branches(&heads, path, wiring)?;
                    current = Some(wiring.call(without_layers(&written), &name, vec![results]));
                    continue;
                }
                Some(heads) => return Err(heads.unsupported("a Merge of models that is not the first layer")),
            };
            current = Some(match current {
                Some(before) => wiring.call(layer, &name, vec![vec![before]]),
                None => self.head(at, layer, &name, wiring)?,
            });
        }
        current.ok_or_else(|| list.error(ImportErrorKind::NotAModel { what: "it has no layers".to_string() }))
    }

    fn branches(&mut self, heads: &At<'_>, path: &str, wiring: &mut Wiring) -> Result<Vec<Json>, ImportError> {
        let mut results = Vec::new();
        for at in heads.array()? {
            let written = Written::read(&at)?;
            results.push(match written.class {
                // Layers of chains and models become the model's own, as they are in its weight files.
                "Sequential" => self.chain(&layers_of(&written)?, None, path, wiring)?,
                "Model" | "Graph" => {
                    let model = self.layer(&at, path);
                    inlined(&at, &model, wiring)?
                }
                _ => {
                    let name = self.name_of(&written, wiring);
                    let layer = self.layer(&at, path);
                    self.head(&at, layer, &name, wiring)?
                }
            });
        }
        Ok(results)
    }

    /// The first layer of a chain, with inputs of its own.
    fn head(&mut self, at: &At<'_>, layer: Json, name: &str, wiring: &mut Wiring) -> Result<Json, ImportError> {
        let class = layer.get("class_name").and_then(Json::as_str);
        if class == Some("InputLayer") {
            let config = layer.get("config");
            let shape = config.and_then(|c| c.get("batch_input_shape")).cloned().unwrap_or(Json::Null);
            return Ok(wiring.input(name, shape, config.and_then(|c| c.get("dtype")).cloned()));
        }
        let declared = declared_inputs(&layer, name);
        if declared.is_empty() {
            return Err(at.error(ImportErrorKind::NoInputShape));
        }
        let inputs = declared.into_iter().map(|(name, shape)| wiring.input(&name, shape, None)).collect();
        Ok(wiring.call(layer, name, vec![inputs]))
    }

    /// A layer's name, or one that no other layer has so far.
    fn name_of(&self, written: &Written<'_>, wiring: &Wiring) -> String {
        let class = snake_case(written.class);
        written.name.map_or_else(|| format!("{class}_{}", wiring.layers.len() + 1), str::to_string)
    }
}

/// Puts the layers of a translated model into another one and gives its only result.
fn inlined(at: &At<'_>, model: &Json, wiring: &mut Wiring) -> Result<Json, ImportError> {
    let list = |key| model.get("config").and_then(|c| c.get(key)).and_then(Json::as_array).unwrap_or(&[]);
    wiring.layers.extend_from_slice(list("layers"));
    wiring.inputs.extend_from_slice(list("input_layers"));
    match list("output_layers") {
        [only] => Ok(only.clone()),
        outputs => {
            let what = format!("a branch of a merge has one output, this model has {}", outputs.len());
            Err(at.error(ImportErrorKind::Shape(what)))
        }
    }
}

/// The list of a chain's layers.
fn layers_of<'j>(written: &Written<'j>) -> Result<At<'j>, ImportError> {
    match written.form {
        Form::Nested if written.config.json.as_array().is_some() => Ok(written.config.clone()),
        Form::Nested | Form::Flat => written.config.require("layers"),
    }
}

/// A `Merge` alone.
fn without_layers(written: &Written<'_>) -> Json {
    let mut config = written.config.json.clone();
    if let Json::Object(map) = &mut config {
        map.shift_remove("layers");
        if written.form == Form::Flat {
            map.shift_remove("name");
            map.shift_remove("custom_name");
        }
    }
    let mut layer = object("Merge", []);
    set(&mut layer, "config", config);
    layer
}

/// Names and shapes of the inputs that a translated layer declares as the first of a model.
fn declared_inputs(layer: &Json, name: &str) -> Vec<(String, Json)> {
    let config = layer.get("config");
    let shape = |config: &Json| config.get("batch_input_shape").filter(|s| **s != Json::Null).cloned();
    match (layer.get("class_name").and_then(Json::as_str), config) {
        (Some("Sequential"), Some(config)) => match config.as_array().and_then(<[Json]>::first) {
            Some(first) => {
                let declared = declared_inputs(first, "");
                declared.into_iter().map(|(_, shape)| (format!("{name}_input"), shape)).collect()
            }
            None => Vec::new(),
        },
        (Some("Model"), Some(config)) => {
            let layers = config.get("layers").and_then(Json::as_array).unwrap_or(&[]);
            let inputs = config.get("input_layers").and_then(Json::as_array).unwrap_or(&[]);
            let find = |input: &Json| {
                let wanted = input.as_array()?.first()?.as_str()?;
                let of = |l: &&Json| l.get("name").and_then(Json::as_str) == Some(wanted);
                Some((wanted.to_string(), shape(layers.iter().find(of)?.get("config")?)?))
            };
            inputs.iter().filter_map(find).collect()
        }
        (_, Some(config)) => shape(config).map(|s| (format!("{name}_input"), s)).into_iter().collect(),
        (_, None) => Vec::new(),
    }
}
