//! What can be wrong with a model file. Always the user's input: our own defects are not reported through these types.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::arrays::ArrayError;

/// Where in a JSON document a value stands: `$.config.layers[3].config.units`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JsonPath(String);

impl JsonPath {
    /// The document itself.
    pub fn root() -> JsonPath {
        JsonPath("$".to_string())
    }

    /// The value under `key`.
    pub fn key(&self, key: &str) -> JsonPath {
        let plain = !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_');
        JsonPath(if plain { format!("{}.{key}", self.0) } else { format!("{}[{key:?}]", self.0) })
    }

    /// Indices of lists on the way, which order places as the file does but for keys of one object.
    pub(super) fn indices(&self) -> Vec<usize> {
        self.0.split('[').skip(1).filter_map(|part| part.split(']').next()?.parse().ok()).collect()
    }

    /// The key under which this lies in the object at `outer`, where it lies in it and the key is a plain one.
    pub(super) fn child_of(&self, outer: &JsonPath) -> Option<String> {
        let below = self.0.strip_prefix(&outer.0)?.strip_prefix('.')?;
        let end = below.find(['.', '[']).unwrap_or(below.len());
        Some(below[..end].to_string())
    }

    /// The `i`-th element.
    pub fn index(&self, i: usize) -> JsonPath {
        JsonPath(format!("{}[{i}]", self.0))
    }
}

impl fmt::Display for JsonPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One problem of a model file. Shown as `$.config.layers[3].config.units "dense_2": …`.
#[derive(Debug, thiserror::Error)]
#[error("{path}{}: {kind}", .layer.as_ref().map(|l| format!(" \"{l}\"")).unwrap_or_default())]
pub struct ImportError {
    /// Where in the architecture.
    pub path: JsonPath,
    /// The layer, qualified by the models around it.
    pub layer: Option<String>,
    /// What is wrong.
    #[source]
    pub kind: Box<ImportErrorKind>,
}

impl ImportError {
    /// What the user could do, where we know more than the message says.
    pub fn help(&self) -> Option<String> {
        self.kind.help()
    }
}

/// Why a class of Keras is not imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A clause that begins with "it".
    pub why: &'static str,
    /// What a user can do.
    pub remedy: &'static str,
}

/// The kinds of [`ImportError`].
#[derive(Debug, thiserror::Error)]
pub enum ImportErrorKind {
    /// The operating system refused.
    #[error("cannot be read: {0}")]
    Io(#[from] std::io::Error),
    /// Malformed JSON.
    #[error("is not valid JSON: {why}")]
    Json {
        /// The parser's words, with line and column.
        why: String,
    },
    /// More nesting than any model has.
    #[error("is nested more than {limit} levels deep")]
    TooDeep {
        /// The bound.
        limit: usize,
    },
    /// A damaged container.
    #[error("is not a readable {format} file: {why}")]
    Damaged {
        /// What the file was taken for.
        format: &'static str,
        /// What the reader found.
        why: String,
    },
    /// Something that is no model.
    #[error("is not a Keras model: {what}")]
    NotAModel {
        /// What it is.
        what: String,
    },
    /// A format we know and do not read.
    #[error("is {what}, which is not supported")]
    Format {
        /// Name and version of the format.
        what: String,
        /// What would do.
        remedy: &'static str,
    },
    /// A key that must be there.
    #[error("has no `{key}`")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A value of another JSON type.
    #[error("is {found}; expected {expected}")]
    WrongType {
        /// What is there.
        found: String,
        /// What would do.
        expected: &'static str,
    },
    /// A value outside of what is accepted.
    #[error("is {found}; accepted: {accepted}")]
    Value {
        /// What is there.
        found: String,
        /// What would do.
        accepted: String,
        /// The accepted value closest to it.
        nearest: Option<String>,
    },
    /// A configuration key nobody knows.
    #[error("the key `{key}` is not known here")]
    UnknownKey {
        /// The key.
        key: String,
        /// The known key closest to it.
        nearest: Option<String>,
    },
    /// A layer class nobody knows.
    #[error("`{class}` is no layer of Keras; a model's own code is never run")]
    UnknownLayer {
        /// The class.
        class: String,
        /// The supported class closest to it.
        nearest: Option<String>,
    },
    /// A class of Keras that is known and not imported.
    #[error("layer class `{class}` is not supported: {}", .refusal.why)]
    RefusedLayer {
        /// The class.
        class: String,
        /// Why, and what would do.
        refusal: Refusal,
    },
    /// Code that would have to be run.
    #[error("`{class}` is the model's own code, which is never run")]
    Custom {
        /// Class or registered name.
        class: String,
    },
    /// A Keras feature that is not there yet.
    #[error("{what} is not supported")]
    Unsupported {
        /// The feature.
        what: String,
        /// What would do.
        remedy: Option<&'static str>,
    },
    /// Wiring that names a layer which is not there.
    #[error("refers to a layer `{name}` that the model does not have")]
    Dangling {
        /// The name.
        name: String,
        /// The layer closest to it.
        nearest: Option<String>,
    },
    /// Wiring that names a call which is not there.
    #[error("refers to call {index} of layer `{name}`, which is called {calls} time(s)")]
    NoSuchCall {
        /// The layer.
        name: String,
        /// The call index in the file.
        index: i64,
        /// Calls there are.
        calls: usize,
    },
    /// Wiring that never ends.
    #[error("the layers {} feed each other in a cycle", .layers.join(" → "))]
    Cycle {
        /// Layers of the cycle in order.
        layers: Vec<String>,
    },
    /// Two layers of one model with one name.
    #[error("two layers of the model are called `{name}`")]
    DuplicateLayer {
        /// The name.
        name: String,
    },
    /// An input whose shape the file does not tell.
    #[error("the input shape is not known")]
    NoInputShape,
    /// Shapes that do not fit each other.
    #[error("{0}")]
    Shape(String),
    /// Variables that the weight file does not hold.
    #[error("the weights do not hold {}", list(.keys))]
    MissingWeights {
        /// The variables.
        keys: Vec<String>,
    },
    /// Tensors of the weight file that no variable takes.
    #[error("the weights hold {}, which the model does not have", list(.keys))]
    UnknownWeights {
        /// The keys in the weight file.
        keys: Vec<String>,
    },
    /// A stored tensor of another shape.
    #[error("the weight `{variable}` has the shape {expected:?}, the file holds {found:?} under `{key}`")]
    WeightShape {
        /// The variable's path.
        variable: String,
        /// Its shape.
        expected: Vec<usize>,
        /// The stored shape.
        found: Vec<usize>,
        /// The key in the weight file.
        key: String,
    },
    /// A layer with another number of weights.
    #[error("has {expected} weight(s), the file holds {found} under `{key}`")]
    WeightCount {
        /// Weights the layer has.
        expected: usize,
        /// Weights in the file.
        found: usize,
        /// The group in the weight file.
        key: String,
    },
    /// A file made for a model with another number of layers.
    #[error("the model has {expected} layers with weights, the file holds {found}")]
    LayerCount {
        /// Layers with weights in the model.
        expected: usize,
        /// Layers with weights in the file.
        found: usize,
    },
    /// An array file.
    #[error(transparent)]
    Array(#[from] ArrayError),
}

impl ImportErrorKind {
    /// What the user could do, where we know more than the message says.
    pub fn help(&self) -> Option<String> {
        match self {
            ImportErrorKind::UnknownKey { nearest, .. }
            | ImportErrorKind::Dangling { nearest, .. }
            | ImportErrorKind::Value { nearest, .. } => nearest.as_ref().map(|n| format!("did you mean `{n}`?")),
            ImportErrorKind::Format { remedy, .. } => Some((*remedy).to_string()),
            ImportErrorKind::Unsupported { remedy, .. } => remedy.map(str::to_string),
            ImportErrorKind::RefusedLayer { refusal, .. } => Some(refusal.remedy.to_string()),
            ImportErrorKind::UnknownLayer { nearest: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            ImportErrorKind::UnknownLayer { nearest: None, .. } | ImportErrorKind::Custom { .. } => {
                Some("replace it by built-in layers, or save the model with it expanded".to_string())
            }
            ImportErrorKind::NoInputShape => {
                Some("build the model before saving it, or begin it with an InputLayer".to_string())
            }
            ImportErrorKind::Io(_)
            | ImportErrorKind::Json { .. }
            | ImportErrorKind::TooDeep { .. }
            | ImportErrorKind::Damaged { .. }
            | ImportErrorKind::NotAModel { .. }
            | ImportErrorKind::MissingKey { .. }
            | ImportErrorKind::WrongType { .. }
            | ImportErrorKind::NoSuchCall { .. }
            | ImportErrorKind::Cycle { .. }
            | ImportErrorKind::DuplicateLayer { .. }
            | ImportErrorKind::Shape(_)
            | ImportErrorKind::MissingWeights { .. }
            | ImportErrorKind::UnknownWeights { .. }
            | ImportErrorKind::WeightShape { .. }
            | ImportErrorKind::WeightCount { .. }
            | ImportErrorKind::LayerCount { .. }
            | ImportErrorKind::Array(_) => None,
        }
    }

    /// This problem at a place.
    pub fn at(self, path: &JsonPath) -> ImportError {
        ImportError { path: path.clone(), layer: None, kind: Box::new(self) }
    }

    /// This problem of a layer.
    pub fn of(self, path: &JsonPath, layer: &str) -> ImportError {
        ImportError { path: path.clone(), layer: Some(layer.to_string()), kind: Box::new(self) }
    }
}

/// At most a screen of names.
fn list(keys: &[String]) -> String {
    const SHOWN: usize = 20;
    let mut text = keys.iter().take(SHOWN).map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ");
    if keys.len() > SHOWN {
        text.push_str(&format!(" and {} more", keys.len() - SHOWN));
    }
    text
}

/// Every problem of one file.
#[derive(Debug)]
pub struct ImportErrors {
    /// The file.
    pub file: PathBuf,
    /// The problems, in the order of the file; never empty.
    pub problems: Vec<ImportError>,
}

impl ImportErrors {
    /// The classes that stand in the way, each once.
    pub fn classes(&self) -> Vec<&str> {
        let mut classes: Vec<&str> = Vec::new();
        for problem in &self.problems {
            if let ImportErrorKind::Custom { class }
            | ImportErrorKind::UnknownLayer { class, .. }
            | ImportErrorKind::RefusedLayer { class, .. } = &*problem.kind
                && !classes.contains(&class.as_str())
            {
                classes.push(class);
            }
        }
        classes
    }

    /// One problem of the file as a whole.
    pub fn one(file: &Path, kind: ImportErrorKind) -> ImportErrors {
        ImportErrors { file: file.to_path_buf(), problems: vec![kind.at(&JsonPath::root())] }
    }
}

impl fmt::Display for ImportErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 30;
        for (i, problem) in self.problems.iter().take(SHOWN).enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{}: {problem}", self.file.display())?;
            if let Some(help) = problem.help() {
                write!(f, "\n  help: {help}")?;
            }
        }
        if self.problems.len() > SHOWN {
            write!(f, "\n{}: and {} more problems", self.file.display(), self.problems.len() - SHOWN)?;
        }
        let classes = self.classes();
        if classes.len() > 1 {
            let names: Vec<String> = classes.iter().map(|c| format!("`{c}`")).collect();
            write!(f, "\n{}: classes that are not imported: {}", self.file.display(), names.join(", "))?;
        }
        Ok(())
    }
}

impl std::error::Error for ImportErrors {}
