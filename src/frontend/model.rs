//! The architecture of a model file as a tree of layers and calls, every reference resolved.
//!
//! A [`KerasModel`] is what the file says and no more: what a layer class means is not known here. Sequential models get
//! the calls they imply, so that users of the tree see one form. Layer configurations stay JSON until the layer's import
//! function reads them.

use indexmap::IndexMap;

use super::cursor::At;
use super::error::{ImportError, ImportErrorKind, ImportErrors, JsonPath};
use super::file::{Generation, ModelFile};
use super::json::Json;
use super::keras1;
use super::names::snake_case;
use super::objects::Objects;
use super::wiring;

/// Sequential or Functional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// One layer after the other.
    Sequential,
    /// Any graph.
    Functional,
}

/// A model: layers, and calls of them.
#[derive(Clone, Debug)]
pub struct KerasModel {
    /// The model's own name.
    pub name: String,
    /// Names of the models around it and its own, joined by `/`; empty for the outermost.
    pub path: String,
    /// Sequential or Functional.
    pub kind: ModelKind,
    /// Who wrote the file.
    pub generation: Generation,
    /// Whether its weights train at all.
    pub trainable: bool,
    /// Layers in the order of the file.
    pub layers: Vec<Layer>,
    /// Calls, each after those it takes tensors from. Input layers are not called.
    pub calls: Vec<Call>,
    /// Inputs as Keras flattens them: lists in order, dictionaries by sorted key.
    pub inputs: Vec<Source>,
    /// Outputs as Keras flattens them.
    pub outputs: Vec<Source>,
    /// How the model arranges its outputs.
    pub nest: Nest,
    /// Where the model's configuration stands.
    pub at: JsonPath,
}

/// How tensors are arranged in lists and dictionaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nest {
    /// A tensor.
    One,
    /// A list.
    List(Vec<Nest>),
    /// A dictionary, by sorted key.
    Named(Vec<(String, Nest)>),
}

/// A layer of a model.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name, unique in its model.
    pub name: String,
    /// Names of the models around it and its own, joined by `/`.
    pub path: String,
    /// The class.
    pub class: String,
    /// The Python module of the class, where the file says it. Bare operations are in `keras.src.ops…`.
    pub module: Option<String>,
    /// The registered name of a class that is not Keras's own: code of the model's author.
    pub custom: Option<String>,
    /// The path of an earlier layer that is the same object: one set of variables in two models.
    pub same_as: Option<String>,
    /// What it is.
    pub body: LayerBody,
    /// Where its configuration stands.
    pub at: JsonPath,
}

/// What a layer is.
#[derive(Clone, Debug)]
pub enum LayerBody {
    /// A place for an input.
    Input(InputSpec),
    /// A model used as a layer.
    Model(Box<KerasModel>),
    /// Any other layer, by its configuration.
    Leaf(Json),
}

/// What is known of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputSpec {
    /// Extents with the batch first, `None` for those the file leaves open; `None` where the file tells no shape at all.
    pub shape: Option<Vec<Option<usize>>>,
    /// The element type's Keras name, where the file tells it.
    pub dtype: Option<String>,
    /// Whether the model can be called without it.
    pub optional: bool,
}

/// One tensor: the `tensor`-th result of the `call`-th call of a layer. Input layers have call 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    /// Index into [`KerasModel::layers`].
    pub layer: usize,
    /// Which call of the layer.
    pub call: usize,
    /// Which result of the call.
    pub tensor: usize,
}

/// One call of a layer.
#[derive(Clone, Debug)]
pub struct Call {
    /// Index into [`KerasModel::layers`].
    pub layer: usize,
    /// Which call of the layer this is.
    pub call: usize,
    /// Positional arguments.
    pub args: Vec<Arg>,
    /// Named arguments.
    pub kwargs: IndexMap<String, Arg>,
    /// Where the call stands.
    pub at: JsonPath,
}

/// An argument of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// A tensor of the model.
    Tensor(Source),
    /// A value without tensors in it.
    Const(Json),
    /// An array written into the file.
    Array {
        /// Nested lists of numbers.
        value: Json,
        /// The element type's Keras name.
        dtype: String,
    },
    /// A list with tensors in it.
    List(Vec<Arg>),
    /// A dictionary with tensors in it.
    Dict(IndexMap<String, Arg>),
    /// `start:stop:step`.
    Slice(Box<[Arg; 3]>),
    /// `...`
    Ellipsis,
}

impl Arg {
    /// All tensors in the argument as Keras flattens them.
    pub fn tensors(&self) -> Vec<Source> {
        match self {
            Arg::Tensor(source) => vec![*source],
            Arg::List(items) => items.iter().flat_map(Arg::tensors).collect(),
            Arg::Dict(map) => {
                let mut sorted: Vec<_> = map.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                sorted.into_iter().flat_map(|(_, arg)| arg.tensors()).collect()
            }
            Arg::Slice(parts) => parts.iter().flat_map(Arg::tensors).collect(),
            Arg::Const(_) | Arg::Array { .. } | Arg::Ellipsis => Vec::new(),
        }
    }
}

impl KerasModel {
    /// Reads the architecture of a model file. Collects every problem of its structure.
    pub fn read(file: &ModelFile) -> Result<KerasModel, ImportErrors> {
        match KerasModel::read_leniently(file)? {
            (model, problems) if problems.is_empty() => Ok(model),
            (_, problems) => Err(ImportErrors { file: file.path.clone(), problems }),
        }
    }

    /// Reads an architecture whose layers and calls can be made out, with the problems it has all the same: an import
    /// then finds those of its layers.
    pub fn read_leniently(file: &ModelFile) -> Result<(KerasModel, Vec<ImportError>), ImportErrors> {
        let translated = match file.generation {
            Generation::One => keras1::translate(&file.architecture).map(Some),
            Generation::Two | Generation::Three => Ok(None),
        };
        let translated = translated.map_err(|problems| ImportErrors { file: file.path.clone(), problems })?;
        let architecture = translated.as_ref().unwrap_or(&file.architecture);
        let mut reader = Reader { generation: file.generation, problems: Vec::new(), objects: Objects::default() };
        match reader.outermost(&At::root(architecture)) {
            Ok(model) => Ok((model, reader.problems)),
            Err(error) => {
                let problems = reader.problems.into_iter().chain([error]).collect();
                Err(ImportErrors { file: file.path.clone(), problems })
            }
        }
    }

    /// Reads a layer that stands in the configuration of another one (a wrapper, a cell): `{"class_name": …, "config": …}`.
    pub fn read_inner_layer(at: &At<'_>, generation: Generation, outer: &str) -> Result<Layer, Vec<ImportError>> {
        if generation == Generation::Three && at.get("shared_object_id").is_some() {
            return Err(vec![at.unsupported("a wrapped layer that is also elsewhere in the file")]);
        }
        let mut reader = Reader { generation, problems: Vec::new(), objects: Objects::default() };
        match reader.layer(at, outer, 0) {
            Ok(layer) if reader.problems.is_empty() => Ok(layer),
            Ok(_) => Err(reader.problems),
            Err(error) => Err(reader.problems.into_iter().chain([error]).collect()),
        }
    }

    /// The layer a tensor comes from.
    pub fn layer(&self, source: Source) -> &Layer {
        &self.layers[source.layer]
    }

    /// What is known of the model's inputs, in order.
    pub fn input_specs(&self) -> Vec<(&str, &InputSpec)> {
        let spec = |source: &Source| match &self.layer(*source).body {
            LayerBody::Input(spec) => Some((self.layer(*source).name.as_str(), spec)),
            LayerBody::Model(_) | LayerBody::Leaf(_) => None,
        };
        self.inputs.iter().filter_map(spec).collect()
    }
}

pub(super) struct Reader {
    pub(super) generation: Generation,
    pub(super) problems: Vec<ImportError>,
    objects: Objects,
}

/// Keys that stand beside `class_name` and `config` and are read elsewhere or say nothing about the computation.
const AROUND: [&str; 11] = [
    "class_name",
    "config",
    "keras_version",
    "backend",
    "module",
    "registered_name",
    "build_config",
    "compile_config",
    "name",
    "inbound_nodes",
    "shared_object_id",
];

impl Reader {
    fn outermost(&mut self, at: &At<'_>) -> Result<KerasModel, ImportError> {
        let class = at.require("class_name")?;
        match class.str()? {
            "Sequential" | "Functional" | "Model" => {}
            // A model that is one layer, or a model of a class of its own.
            other => return Err(class.error(ImportErrorKind::Custom { class: other.to_string() })),
        }
        let layer = self.layer(at, "", 0)?;
        match layer.body {
            LayerBody::Model(model) => Ok(KerasModel { path: String::new(), ..*model }),
            LayerBody::Input(_) | LayerBody::Leaf(_) => {
                Err(class.error(ImportErrorKind::NotAModel { what: format!("it is a {} layer", layer.class) }))
            }
        }
    }

    /// Reads `{"class_name": …, "config": …}`, the `position`-th layer of the model at `outer`.
    fn layer(&mut self, at: &At<'_>, outer: &str, position: usize) -> Result<Layer, ImportError> {
        let class = at.require("class_name")?.str()?;
        let config = at.require("config")?;
        let name = at.get("name").filter(|n| !n.is_null()).or_else(|| config.get("name").filter(|n| !n.is_null()));
        let name = match name {
            Some(name) => name.str()?.to_string(),
            None => format!("{}_{}", snake_case(class), position + 1),
        };
        // The outermost model has no prefix: its layers are named as they are.
        let root = at.path == JsonPath::root();
        let path = if root { String::new() } else { join(outer, &name) };
        let at = if root { at.clone() } else { at.in_layer(&path) };
        let config = if root { config } else { config.in_layer(&path) };
        let fields = at.fields()?;
        fields.irrelevant(&AROUND);
        self.problems.extend(fields.finish());
        let module = at.get("module").and_then(|m| m.json.as_str()).map(str::to_string);
        // Whole-model files of Keras 3 leave the module out. An operation's configuration is its name, a layer's never is.
        let nameless = module.is_none() && self.generation == Generation::Three;
        let bare = nameless && matches!(config.json, Json::Object(map) if map.len() == 1 && map.contains_key("name"));
        let module = if bare { Some("keras.src.ops".to_string()) } else { module };
        let custom = custom(&at, class);
        let nested = self.generation == Generation::Three && class != "InputLayer" && !root;
        let same_as = if nested { self.objects.same_as(&at, class, &name, outer)? } else { None };
        let body = match class {
            "InputLayer" => LayerBody::Input(input_layer(&config)?),
            "Sequential" => LayerBody::Model(Box::new(self.sequential(&at, &config, &name, &path)?)),
            "Functional" | "Model" => LayerBody::Model(Box::new(self.functional(&config, &name, &path)?)),
            _ => LayerBody::Leaf(config.json.clone()),
        };
        Ok(Layer { name, path, class: class.to_string(), module, custom, same_as, body, at: config.path })
    }

    fn sequential(&mut self, at: &At<'_>, config: &At<'_>, name: &str, path: &str) -> Result<KerasModel, ImportError> {
        // Keras before 2.2.3 wrote the layers as they are.
        let (list, trainable, build_shape) = if config.json.as_array().is_some() {
            (config.clone(), true, None)
        } else {
            let fields = config.fields()?;
            fields.irrelevant(&["name", "dtype"]);
            let list = fields.require("layers")?;
            let trainable = fields.bool_or("trainable", true)?;
            let shape = fields.opt("build_input_shape");
            self.problems.extend(fields.finish());
            (list, trainable, shape)
        };
        let mut layers = self.layers(&list, path)?;
        if !matches!(layers.first(), Some(Layer { body: LayerBody::Input(_), .. })) {
            let built = at.get("build_config").and_then(|b| b.get("input_shape"));
            let spec = self.implied_input(&layers, build_shape.or(built).filter(|s| !s.is_null()))?;
            let first = layers.first().map_or(String::new(), |l| l.name.clone());
            let input = match self.generation {
                Generation::One | Generation::Two => format!("{first}_input"),
                Generation::Three => "input_layer".to_string(),
            };
            layers.insert(
                0,
                Layer {
                    path: join(path, &input),
                    name: input,
                    class: "InputLayer".to_string(),
                    module: None,
                    custom: None,
                    same_as: None,
                    body: LayerBody::Input(spec),
                    at: config.path.clone(),
                },
            );
        }
        let tensor = |layer| Source { layer, call: 0, tensor: 0 };
        let call = |layer: usize| Call {
            layer,
            call: 0,
            args: vec![Arg::Tensor(tensor(layer - 1))],
            kwargs: IndexMap::new(),
            at: layers[layer].at.clone(),
        };
        let calls = (1..layers.len()).map(call).collect();
        let last = layers.len() - 1;
        Ok(KerasModel {
            name: name.to_string(),
            path: path.to_string(),
            kind: ModelKind::Sequential,
            generation: self.generation,
            trainable,
            calls,
            inputs: vec![tensor(0)],
            outputs: vec![tensor(last)],
            nest: Nest::One,
            layers,
            at: config.path.clone(),
        })
    }

    /// What a Sequential model without an input layer tells about its input.
    fn implied_input(&self, layers: &[Layer], built: Option<At<'_>>) -> Result<InputSpec, ImportError> {
        match layers.first().map(|l| (l, &l.body)) {
            Some((_, LayerBody::Model(inner)))
                if inner.input_specs().len() == 1 && inner.input_specs()[0].1.shape.is_some() =>
            {
                return Ok(inner.input_specs()[0].1.clone());
            }
            Some((layer, LayerBody::Leaf(config))) => {
                let config = At { json: config, path: layer.at.clone(), layer: Some(layer.path.clone()) };
                let spec = first_layer(&config)?;
                if spec.shape.is_some() {
                    return Ok(spec);
                }
            }
            _ => {}
        }
        let shape = built.map(|b| shape(&b)).transpose()?;
        Ok(InputSpec { shape, dtype: None, optional: false })
    }

    fn functional(&mut self, config: &At<'_>, name: &str, path: &str) -> Result<KerasModel, ImportError> {
        let fields = config.fields()?;
        fields.irrelevant(&["name", "dtype"]);
        let list = fields.require("layers")?;
        let trainable = fields.bool_or("trainable", true)?;
        let (inputs, outputs) = (fields.require("input_layers")?, fields.require("output_layers")?);
        self.problems.extend(fields.finish());
        let layers = self.layers(&list, path)?;
        let wires = wiring::resolve(&layers, &list.array()?, &inputs, &outputs)?;
        Ok(KerasModel {
            name: name.to_string(),
            path: path.to_string(),
            kind: ModelKind::Functional,
            generation: self.generation,
            trainable,
            layers,
            calls: wires.calls,
            inputs: wires.inputs,
            outputs: wires.outputs,
            nest: wires.nest,
            at: config.path.clone(),
        })
    }

    /// Reads a list of layers. A layer that cannot be read is a problem of its own and does not hide the next one's.
    fn layers(&mut self, list: &At<'_>, path: &str) -> Result<Vec<Layer>, ImportError> {
        let mut layers: Vec<Layer> = Vec::new();
        let mut names = std::collections::BTreeSet::new();
        let mut failure = None;
        for (i, at) in list.array()?.iter().enumerate() {
            match self.layer(at, path, i) {
                Ok(layer) if !names.insert(layer.name.clone()) => {
                    failure = Some(at.error(ImportErrorKind::DuplicateLayer { name: layer.name }));
                }
                Ok(layer) => layers.push(layer),
                Err(error) => self.problems.extend(failure.replace(error)),
            }
        }
        match failure {
            Some(error) => Err(error),
            None if layers.is_empty() => {
                Err(list.error(ImportErrorKind::NotAModel { what: "it has no layers".to_string() }))
            }
            None => Ok(layers),
        }
    }
}

/// A registered name that is not Keras's own.
fn custom(at: &At<'_>, class: &str) -> Option<String> {
    let registered = at.get("registered_name")?.json.as_str()?;
    let own = registered.split_once('>').is_some_and(|(package, _)| !matches!(package, "keras" | "Keras"));
    (own || class == "__lambda__").then(|| registered.to_string())
}

pub(super) fn join(outer: &str, name: &str) -> String {
    if outer.is_empty() { name.to_string() } else { format!("{outer}/{name}") }
}

fn input_layer(config: &At<'_>) -> Result<InputSpec, ImportError> {
    let fields = config.fields()?;
    fields.irrelevant(&["name", "trainable"]);
    let spec = spec(&fields)?;
    if let Some(sparse) = fields.opt("sparse").filter(|s| s.bool().is_ok_and(|b| b)) {
        return Err(sparse.unsupported("a sparse input"));
    }
    if let Some(ragged) = fields.opt("ragged").filter(|s| s.bool().is_ok_and(|b| b)) {
        return Err(ragged.unsupported("a ragged input"));
    }
    if let Some(unknown) = fields.finish().into_iter().next() {
        return Err(unknown);
    }
    if spec.shape.is_none() {
        return Err(config.error(ImportErrorKind::NoInputShape));
    }
    Ok(spec)
}

/// The input a first layer declares in its own configuration.
fn first_layer(config: &At<'_>) -> Result<InputSpec, ImportError> {
    match config.json {
        Json::Object(_) => {
            let fields = config.fields()?;
            let mut found = spec(&fields)?;
            // The layer's dtype is a policy for its computation; token ids come as floats to layers of Keras 2.
            found.dtype = None;
            Ok(found)
        }
        _ => Ok(InputSpec { shape: None, dtype: None, optional: false }),
    }
}

fn spec(fields: &super::cursor::Fields<'_>) -> Result<InputSpec, ImportError> {
    let whole = fields.opt_any(&["batch_shape", "batch_input_shape"]).map(|at| shape(&at)).transpose()?;
    let without_batch = fields.opt_any(&["shape", "input_shape"]);
    let shape = match (whole, without_batch) {
        (Some(whole), _) => Some(whole),
        (None, Some(at)) => Some(std::iter::once(None).chain(shape(&at)?).collect()),
        (None, None) => match (fields.opt("input_dim"), fields.opt("input_length")) {
            (Some(dim), Some(length)) if fields.get("output_dim").is_none() => {
                Some(vec![None, Some(length.usize()?), Some(dim.usize()?)])
            }
            // An Embedding's input_dim is its vocabulary.
            (_, length) if fields.get("output_dim").is_some() => {
                Some(vec![None, length.map(|l| l.usize()).transpose()?])
            }
            (Some(dim), None) => Some(vec![None, Some(dim.usize()?)]),
            (Some(_) | None, Some(_) | None) => None,
        },
    };
    let dtype = match fields.opt("dtype") {
        Some(at) if at.json.as_str().is_some() => Some(at.str()?.to_string()),
        Some(at) => at.get("config").and_then(|c| c.get("name")).and_then(|n| n.json.as_str()).map(str::to_string),
        None => None,
    };
    let optional = fields.bool_or("optional", false)?;
    Ok(InputSpec { shape, dtype, optional })
}

/// A shape with the batch in it: a list of sizes and nulls.
fn shape(at: &At<'_>) -> Result<Vec<Option<usize>>, ImportError> {
    let dim = |d: &At<'_>| if d.is_null() { Ok(None) } else { d.usize().map(Some) };
    let dims = at.array()?.iter().map(dim).collect::<Result<Vec<_>, _>>()?;
    if dims.len() > MAX_RANK {
        return Err(at.expected("a shape of at most 16 dimensions"));
    }
    let elements = dims.iter().flatten().try_fold(1usize, |n, &d| n.checked_mul(d));
    match elements {
        Some(n) if n <= MAX_ELEMENTS => Ok(dims),
        _ => {
            Err(at
                .error(ImportErrorKind::Shape(format!("the shape {} has more than {MAX_ELEMENTS} elements", at.json))))
        }
    }
}

const MAX_RANK: usize = 16;
/// 64 GiB of f32 a row: beyond it a shape is a mistake or an attack.
const MAX_ELEMENTS: usize = 1 << 34;
