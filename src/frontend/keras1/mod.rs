//! Keras 0.3 and 1: a document of theirs as the document of Keras 2 that means the same.
//!
//! What is translated is the architecture before anything reads it, so that layers are known under one set of names. Every
//! key is copied, renamed, or known not to alter what is computed; any other is a problem, at its place in the document as
//! it was written. Classes that Keras never had are left as they stand, for the reader to refuse by name.
//!
//! What Keras 1 means where its successors mean something else:
//!
//! * Padding, upsampling and cropping of images do not write `dim_ordering`: they follow the setting of the machine that
//!   reads the file. It is taken from the layers that do write it; a file without any such layer does not tell.
//! * `same` padding is TensorFlow's, also in files of `th` ordering, as it is when Keras 2 reads them. Theano pads strided
//!   windows and even kernels elsewhere.
//! * Masked steps of a bidirectional layer repeat the output before them in both directions.
//! * `GRU` applies the reset gate before the product, `inner_activation` is a hard sigmoid 0.2·x + 0.5.
//! * `Merge`, `Highway`, `MaxoutDense`, `ParametricSoftplus` and `SReLU` were dropped later and are layers of their own here.

mod graph;
mod layers;
mod models;
mod values;
mod weights;

pub(super) use values::{constraint, regularizer};
pub(super) use weights::Writer;

use super::cursor::{At, Fields};
use super::error::{ImportError, ImportErrorKind};
use super::json::Json;
use indexmap::IndexMap;

/// Whether a document is one of Keras 0.3: layers and models are objects whose `name` is their class.
pub(super) fn is_keras_0(document: &Json) -> bool {
    let class = document.get("name").and_then(Json::as_str);
    document.get("class_name").is_none()
        && match class {
            Some("Sequential") => document.get("layers").and_then(Json::as_array).is_some_and(|layers| {
                layers.iter().all(|l| l.get("class_name").is_none() && l.get("name").and_then(Json::as_str).is_some())
            }),
            Some("Graph") => document.get("node_config").is_some(),
            _ => false,
        }
}

/// Translates a whole document. All its problems are found together.
pub(super) fn translate(document: &Json) -> Result<Json, Vec<ImportError>> {
    let mut translator = Translator { ordering: ordering(document), problems: Vec::new() };
    let at = At::root(document);
    let translated = translator.layer_at(&at, "");
    match translated {
        Ok(json) if translator.problems.is_empty() => Ok(json),
        Ok(_) => Err(translator.problems),
        Err(error) => Err(translator.problems.into_iter().chain([error]).collect()),
    }
}

/// What a document says of where images have their channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ordering {
    /// All that say it say the same.
    Known(&'static str),
    /// Nobody says it.
    Unsaid,
    /// Some say `th`, others `tf`.
    Mixed,
}

/// The value of `dim_ordering` in Keras 2's words.
fn data_format(ordering: &str) -> Option<&'static str> {
    match ordering {
        "th" => Some("channels_first"),
        "tf" => Some("channels_last"),
        _ => None,
    }
}

fn ordering(document: &Json) -> Ordering {
    let mut found = Ordering::Unsaid;
    let mut pending = vec![document];
    while let Some(json) = pending.pop() {
        match json {
            Json::Array(items) => pending.extend(items),
            Json::Object(map) => {
                if let Some(format) = map.get("dim_ordering").and_then(Json::as_str).and_then(data_format) {
                    found = match found {
                        Ordering::Unsaid => Ordering::Known(format),
                        Ordering::Known(other) if other == format => found,
                        Ordering::Known(_) | Ordering::Mixed => Ordering::Mixed,
                    };
                }
                pending.extend(map.values());
            }
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {}
        }
    }
    found
}

/// What `compile` left in a document: training reads it from there.
const TRAINING: [&str; 9] = [
    "optimizer",
    "loss",
    "loss_weights",
    "metrics",
    "class_mode",
    "theano_mode",
    "sample_weight_mode",
    "sample_weight_modes",
    "objective",
];

struct Translator {
    ordering: Ordering,
    problems: Vec<ImportError>,
}

/// How a layer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Keras 0.3: one object, its class under `name` and its name under `custom_name`.
    Flat,
    /// `{"class_name": …, "config": …}`
    Nested,
}

/// A layer with its class and configuration told apart.
#[derive(Clone, Debug)]
struct Written<'j> {
    form: Form,
    class: &'j str,
    config: At<'j>,
    /// Its name in its model, where the file gives one.
    name: Option<&'j str>,
}

impl<'j> Written<'j> {
    fn read(at: &At<'j>) -> Result<Written<'j>, ImportError> {
        let text = |at: Option<At<'j>>| at.and_then(|a| a.json.as_str());
        if at.get("class_name").is_some() {
            let config = at.require("config")?;
            let name = text(at.get("name")).or_else(|| text(config.get("name")));
            return Ok(Written { form: Form::Nested, class: at.require("class_name")?.str()?, config, name });
        }
        let class = at.require("name")?.str()?;
        Ok(Written { form: Form::Flat, class, config: at.clone(), name: text(at.get("custom_name")) })
    }
}

impl Translator {
    /// A layer or model of a list; where it cannot be translated, that is a problem of its own.
    fn layer(&mut self, at: &At<'_>, outer: &str) -> Json {
        self.layer_at(at, outer).unwrap_or_else(|error| {
            self.problems.push(error);
            at.json.clone()
        })
    }

    /// A layer or model: the object around it is kept with the class and the configuration replaced.
    fn layer_at(&mut self, at: &At<'_>, outer: &str) -> Result<Json, ImportError> {
        let written = Written::read(at)?;
        let root = at.path == super::error::JsonPath::root();
        let path = match (written.name, root) {
            (_, true) => String::new(),
            (Some(name), false) => join(outer, name),
            (None, false) => join(outer, written.class),
        };
        let config = if root { written.config.clone() } else { written.config.in_layer(&path) };
        let written = Written { config, ..written };
        let (class, config) = match written.class {
            "Sequential" => self.sequential(&written, &path)?,
            "Model" => ("Model", self.model(&written.config, &path)?),
            "Graph" => ("Model", self.graph(&written, &path)?),
            _ => match self.leaf(&written, outer)? {
                Some((class, map)) => (class, Json::Object(map)),
                None => return Ok(at.json.clone()),
            },
        };
        if root {
            self.around(at)?;
        }
        let mut whole = match (written.form, at.json) {
            (Form::Nested, Json::Object(map)) => {
                let mut map = map.clone();
                TRAINING.iter().filter(|_| root).for_each(|key| drop(map.shift_remove(*key)));
                map
            }
            _ => IndexMap::new(),
        };
        whole.insert("class_name".to_string(), Json::String(class.to_string()));
        whole.insert("config".to_string(), config);
        Ok(Json::Object(whole))
    }

    /// What stands around a whole document.
    fn around(&mut self, at: &At<'_>) -> Result<(), ImportError> {
        let fields = at.fields()?;
        fields.irrelevant(&TRAINING);
        fields.irrelevant(&["class_name", "config", "name", "keras_version", "backend"]);
        // Models of Keras 0.3 are their own configuration.
        fields.irrelevant(&["layers", "input_config", "node_config", "output_config", "nodes"]);
        fields.irrelevant(&["input_order", "output_order"]);
        self.problems.extend(fields.finish());
        Ok(())
    }

    /// Where images have their channels, for a layer that does not write it.
    fn unsaid_format(&self, at: &At<'_>) -> Result<Json, ImportError> {
        let why = match self.ordering {
            Ordering::Known(format) => return Ok(Json::String(format.to_string())),
            Ordering::Unsaid => "no layer of the file says",
            Ordering::Mixed => "layers of the file disagree on",
        };
        Err(at.error(ImportErrorKind::Unsupported {
            what: format!(
                "a layer of Keras 1 that leaves its `dim_ordering` to a setting of the machine, where {why} it"
            ),
            remedy: Some("write \"dim_ordering\": \"th\" or \"tf\" into the layer's configuration"),
        }))
    }
}

fn join(outer: &str, name: &str) -> String {
    if outer.is_empty() { name.to_string() } else { format!("{outer}/{name}") }
}

/// A configuration being translated.
struct Config<'j> {
    fields: Fields<'j>,
    out: IndexMap<String, Json>,
}

impl<'j> Config<'j> {
    /// Takes over what every layer has.
    fn of(written: &Written<'j>) -> Result<Config<'j>, ImportError> {
        let mut config = Config { fields: written.config.fields()?, out: IndexMap::new() };
        match written.form {
            Form::Nested => config.same(&["name"]),
            Form::Flat => config.renamed(&[("custom_name", "name")]),
        }
        config.same(&["trainable", "batch_input_shape"]);
        // Token ids are floats to what reads them; caching is Theano's. Neither alters a result.
        config.fields.irrelevant(&["name", "input_dtype", "cache_enabled"]);
        if !config.out.contains_key("batch_input_shape")
            && let Some(shape) = config.fields.opt("input_shape")
        {
            let dims = shape.array()?;
            let with_batch = [Json::Null].into_iter().chain(dims.iter().map(|d| d.json.clone()));
            config.put("batch_input_shape", Json::Array(with_batch.collect()));
        }
        // A widespread fork of Keras 1 wrote these for every layer.
        config.fields.neutral("W_learning_rate_multiplier", &[])?;
        config.fields.neutral("b_learning_rate_multiplier", &[])?;
        Ok(config)
    }

    fn put(&mut self, key: &str, value: Json) {
        self.out.insert(key.to_string(), value);
    }

    /// Keys that mean the same in Keras 2.
    fn same(&mut self, keys: &[&str]) {
        keys.iter().for_each(|key| self.renamed(&[(key, key)]));
    }

    /// Keys that have another name in Keras 2.
    fn renamed(&mut self, pairs: &[(&str, &str)]) {
        for (old, new) in pairs {
            if let Some(at) = self.fields.get(old) {
                self.put(new, at.json.clone());
            }
        }
    }

    /// The translated configuration and the keys that nobody knows.
    fn finish(self) -> (IndexMap<String, Json>, Vec<ImportError>) {
        let unknown = self.fields.finish();
        (self.out, unknown)
    }
}
