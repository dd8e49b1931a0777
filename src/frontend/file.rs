//! Opening model and weight files. Formats are told apart by content, never by name.

use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

use zip::{CompressionMethod, ZipArchive};

use crate::arrays::{FileBytes, Npz, SafetensorsFile};

use super::error::{ImportErrorKind, ImportErrors};
use super::hdf5::H5;
use super::json::Json;
use super::keras1::is_keras_0;
use super::source::{Naming, WeightSource};
use super::tfjs::{self, Document, Manifest};

/// Architecture text above this is no architecture.
const MAX_TEXT: u64 = 1 << 30;

/// What an architecture was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `model.to_json()`.
    Json,
    /// A `.keras` archive.
    Archive,
    /// A whole-model HDF5 file.
    WholeH5,
    /// `model.json` of TensorFlow.js.
    TensorFlowJs,
}

/// The generation of Keras that wrote a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// Keras 0.3 and 1.
    One,
    /// Keras 2 and tf.keras.
    Two,
    /// Keras 3.
    Three,
}

/// An opened model file.
#[derive(Debug)]
pub struct ModelFile {
    /// The file.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
    /// Who wrote it.
    pub generation: Generation,
    /// The version that wrote it, where the file says so.
    pub keras_version: Option<String>,
    /// The model: an object with `class_name` and `config`.
    pub architecture: Json,
    /// Optimizer, loss and metrics as the file has them: `compile_config` of Keras 3, `training_config` of Keras 2.
    pub compile_config: Option<Json>,
    /// The weights inside the file.
    pub weights: Option<WeightSource>,
}

/// What the first bytes of a file say.
enum Content {
    Zip,
    Hdf5,
    Npy,
    Safetensors,
    Text,
}

fn content(bytes: &[u8]) -> Content {
    let declared = bytes.get(..8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")));
    let brace = bytes.get(8) == Some(&b'{');
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        Content::Zip
    } else if bytes.starts_with(b"\x89HDF\r\n\x1a\n") {
        Content::Hdf5
    } else if bytes.starts_with(b"\x93NUMPY") {
        Content::Npy
    } else if brace && declared.is_some_and(|n| n < bytes.len() as u64) {
        Content::Safetensors
    } else {
        Content::Text
    }
}

/// Opens a model file of any supported format.
pub fn open_model(path: &Path) -> Result<ModelFile, ImportErrors> {
    let bytes = FileBytes::open(path).map_err(|e| ImportErrors::one(path, e.into()))?;
    open_with(path, bytes, Neighbours::Read)
}

/// Opens a model file that lies in memory; `path` is for messages. Weights in other files are not looked for.
pub fn open_model_bytes(path: &Path, bytes: FileBytes) -> Result<ModelFile, ImportErrors> {
    open_with(path, bytes, Neighbours::None)
}

/// Whether there are files beside the model's.
#[derive(Clone, Copy)]
enum Neighbours {
    Read,
    None,
}

fn open_with(path: &Path, bytes: FileBytes, neighbours: Neighbours) -> Result<ModelFile, ImportErrors> {
    let opened = match content(&bytes) {
        Content::Zip => from_archive(path, bytes),
        Content::Hdf5 => from_hdf5(path, bytes),
        Content::Text => from_text(path, &bytes, neighbours),
        Content::Npy => Err(weights_only("an npy array")),
        Content::Safetensors => Err(weights_only("a safetensors file")),
    };
    opened.map_err(|kind| ImportErrors::one(path, kind))
}

fn weights_only(what: &str) -> ImportErrorKind {
    ImportErrorKind::NotAModel { what: format!("it is {what} and holds arrays only; weights are given with --weights") }
}

/// Opens a weight file of any supported format.
pub fn open_weights(path: &Path) -> Result<WeightSource, ImportErrors> {
    let bytes = FileBytes::open(path).map_err(|e| ImportErrors::one(path, e.into()))?;
    open_weights_bytes(path, bytes).map_err(|kind| ImportErrors::one(path, kind))
}

fn open_weights_bytes(path: &Path, bytes: FileBytes) -> Result<WeightSource, ImportErrorKind> {
    match content(&bytes) {
        Content::Zip => {
            let mut archive = archive(&bytes)?;
            match archive_weights(path, &mut archive, &bytes)? {
                Some(weights) => Ok(weights),
                None => Ok(WeightSource::npz(Npz::from_bytes(path, bytes)?)),
            }
        }
        Content::Hdf5 => hdf5_weights(H5::open(path, bytes)?),
        Content::Safetensors => Ok(WeightSource::safetensors(SafetensorsFile::from_bytes(path, bytes)?)),
        Content::Text if text(&bytes).is_ok_and(|t| t.contains("\"weight_map\"")) => shards(path, &text(&bytes)?),
        Content::Text if text(&bytes).is_ok_and(|t| t.contains("\"weightsManifest\"")) => {
            let json = Json::parse(&text(&bytes)?)?;
            let manifest = json.get("weightsManifest").unwrap_or(&Json::Null);
            let missing = || ImportErrorKind::Damaged {
                format: "TensorFlow.js weights",
                why: "none of the files that its `weightsManifest` lists is there".to_string(),
            };
            Ok(WeightSource::manifest(Manifest::open(path, manifest)?.ok_or_else(missing)?))
        }
        Content::Npy | Content::Text => Err(ImportErrorKind::Format {
            what: "neither HDF5, npz, safetensors nor a .keras archive".to_string(),
            remedy: "give weights as .weights.h5, .h5, .npz, .safetensors or the model.json of TensorFlow.js",
        }),
    }
}

/// `*.weights.json`: the HDF5 files beside it that share a model's weights.
fn shards(path: &Path, index: &str) -> Result<WeightSource, ImportErrorKind> {
    let json = Json::parse(index)?;
    let damaged = |why: String| ImportErrorKind::Damaged { format: "weight index", why };
    let Some(Json::Object(map)) = json.get("weight_map") else {
        return Err(damaged("its `weight_map` is no object".to_string()));
    };
    let mut names = std::collections::BTreeSet::new();
    for files in map.values() {
        let files = files.as_array().unwrap_or(std::slice::from_ref(files));
        for file in files {
            // A name and nothing else: an index does not reach into other folders.
            let plain = file.as_str().filter(|n| Path::new(n).file_name().is_some_and(|f| f == *n));
            names.insert(plain.ok_or_else(|| damaged(format!("{file} is no file beside it")))?);
        }
    }
    let mut opened = Vec::new();
    for name in names {
        let shard = path.with_file_name(name);
        let bytes = FileBytes::open(&shard).map_err(|e| crate::arrays::ArrayErrorKind::Io(e).at(&shard))?;
        opened.push(H5::open(&shard, bytes)?);
    }
    Ok(WeightSource::shards(path, opened)?)
}

fn from_text(path: &Path, bytes: &[u8], neighbours: Neighbours) -> Result<ModelFile, ImportErrorKind> {
    let text = text(bytes)?;
    let json = Json::parse(&text).map_err(|error| no_json(&text, error))?;
    let (mut document, format) = match tfjs::is_document(&json) {
        true => (tfjs::document(json)?, Format::TensorFlowJs),
        false => (plain(json), Format::Json),
    };
    document.architecture = whole(document.architecture);
    let version = document.version;
    if version.as_deref().is_some_and(tfjs::is_own_version) {
        tfjs::as_keras(&mut document.architecture);
    }
    let generation = generation(&document.architecture, version.as_deref())?;
    let weights = match (&document.manifest, neighbours) {
        (Some(manifest), Neighbours::Read) => Manifest::open(path, manifest)?.map(WeightSource::manifest),
        (Some(_), Neighbours::None) | (None, _) => None,
    };
    Ok(ModelFile {
        path: path.to_path_buf(),
        format,
        generation,
        keras_version: version,
        architecture: document.architecture,
        compile_config: document.training,
        weights,
    })
}

/// A document that is the architecture.
fn plain(json: Json) -> Document {
    Document {
        version: json.get("keras_version").and_then(Json::as_str).map(str::to_string),
        training: json.get("compile_config").filter(|c| **c != Json::Null).cloned(),
        architecture: json,
        manifest: None,
    }
}

/// The architecture as a file of its own, that reads as the same model.
pub fn architecture_text(file: &ModelFile) -> String {
    let mut architecture = file.architecture.clone();
    if let Json::Object(map) = &mut architecture {
        let version = file.keras_version.clone().unwrap_or_else(|| match file.generation {
            Generation::One => "1".to_string(),
            Generation::Two => "2".to_string(),
            Generation::Three => "3.0.0".to_string(),
        });
        map.entry("keras_version".to_string()).or_insert(Json::String(version));
    }
    architecture.to_text() + "\n"
}

/// What text that is no JSON looks like.
fn no_json(text: &str, error: ImportErrorKind) -> ImportErrorKind {
    let start = text.trim_start();
    let what = if start.starts_with("<<<<<<<") {
        "it begins with a merge conflict"
    } else if start.starts_with('<') {
        "it is an HTML or XML page"
    } else {
        return error;
    };
    ImportErrorKind::NotAModel { what: what.to_string() }
}

/// `get_config()` of a model, and the list of layers that Keras before 2.2.3 had for Sequential, made whole.
fn whole(json: Json) -> Json {
    if is_keras_0(&json) {
        return json;
    }
    let has = |key| json.get(key).is_some();
    let class = if has("class_name") || !(has("layers") || json.as_array().is_some_and(|l| l.iter().all(is_layer))) {
        return json;
    } else if has("input_layers") && has("output_layers") {
        "Functional"
    } else {
        "Sequential"
    };
    let class = ("class_name".to_string(), Json::String(class.to_string()));
    Json::Object([class, ("config".to_string(), json)].into_iter().collect())
}

fn is_layer(json: &Json) -> bool {
    json.get("class_name").is_some() && json.get("config").is_some()
}

fn text(bytes: &[u8]) -> Result<String, ImportErrorKind> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_string()),
        // UTF-16 with a byte order mark is what some editors on Windows save.
        Err(_) if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) => {
            let big = bytes[0] == 0xfe;
            let unit = |b: &[u8]| if big { u16::from_be_bytes([b[0], b[1]]) } else { u16::from_le_bytes([b[0], b[1]]) };
            let units: Vec<u16> = bytes[2..].chunks_exact(2).map(unit).collect();
            String::from_utf16(&units)
                .map_err(|_| ImportErrorKind::NotAModel { what: "its text is not valid UTF-16".to_string() })
        }
        // A node of a graph in protocol buffers names its operation and says its attributes' types.
        Err(_)
            if [&b"Const"[..], b"dtype"]
                .iter()
                .all(|word| bytes.windows(word.len()).take(1 << 16).any(|w| w == *word)) =>
        {
            let what = "it is a TensorFlow graph in protocol buffers, which holds operations and no Keras layers";
            Err(ImportErrorKind::NotAModel { what: what.to_string() })
        }
        Err(e) => Err(ImportErrorKind::NotAModel {
            what: format!("it is neither an archive, an HDF5 file nor UTF-8 text (byte {} is not)", e.valid_up_to()),
        }),
    }
}

fn archive(bytes: &FileBytes) -> Result<ZipArchive<Cursor<FileBytes>>, ImportErrorKind> {
    ZipArchive::new(Cursor::new(bytes.clone()))
        .map_err(|e| ImportErrorKind::Damaged { format: "zip", why: e.to_string() })
}

fn member(archive: &mut ZipArchive<Cursor<FileBytes>>, name: &str) -> Result<Option<Vec<u8>>, ImportErrorKind> {
    let Some(index) = archive.index_for_name(name) else { return Ok(None) };
    let damaged = |why: String| ImportErrorKind::Damaged { format: "zip", why: format!("member {name}: {why}") };
    let entry = archive.by_index(index).map_err(|e| damaged(e.to_string()))?;
    let mut bytes = Vec::new();
    // Memory grows with the bytes that come out, not with the size the archive declares.
    entry.take(MAX_TEXT + 1).read_to_end(&mut bytes).map_err(|e| damaged(e.to_string()))?;
    if bytes.len() as u64 > MAX_TEXT {
        return Err(damaged("is larger than 1 GiB".to_string()));
    }
    Ok(Some(bytes))
}

fn from_archive(path: &Path, bytes: FileBytes) -> Result<ModelFile, ImportErrorKind> {
    let mut archive = archive(&bytes)?;
    let Some(config) = member(&mut archive, "config.json")? else {
        let arrays = archive.file_names().any(|n| n.is_ok_and(|n| n.ends_with(".npy")));
        return Err(match arrays {
            true => weights_only("an npz archive"),
            false => ImportErrorKind::NotAModel { what: "it is a zip archive without a config.json".to_string() },
        });
    };
    let architecture = Json::parse(&text(&config)?)?;
    let metadata = member(&mut archive, "metadata.json")?.map(|m| Json::parse(&text(&m)?)).transpose()?;
    let version = metadata.as_ref().and_then(|m| m.get("keras_version")).and_then(Json::as_str).map(str::to_string);
    let generation = generation(&architecture, version.as_deref())?;
    let weights = archive_weights(path, &mut archive, &bytes)?;
    Ok(ModelFile {
        path: path.to_path_buf(),
        format: Format::Archive,
        generation,
        keras_version: version,
        compile_config: architecture.get("compile_config").filter(|c| **c != Json::Null).cloned(),
        architecture,
        weights,
    })
}

fn archive_weights(
    path: &Path,
    archive: &mut ZipArchive<Cursor<FileBytes>>,
    bytes: &FileBytes,
) -> Result<Option<WeightSource>, ImportErrorKind> {
    const NAME: &str = "model.weights.h5";
    if archive.index_for_name("model.weights.npz").is_some() {
        return Err(ImportErrorKind::Format {
            what: "a .keras archive whose weights are pickled objects (model.weights.npz)".to_string(),
            remedy: "save it again with a current Keras, which writes model.weights.h5",
        });
    }
    let Some(index) = archive.index_for_name(NAME) else { return Ok(None) };
    let damaged = |why: String| ImportErrorKind::Damaged { format: "zip", why: format!("member {NAME}: {why}") };
    let stored = {
        let entry = archive.by_index(index).map_err(|e| damaged(e.to_string()))?;
        let start = entry.data_start().and_then(|s| usize::try_from(s).ok());
        let size = usize::try_from(entry.size()).ok();
        (entry.compression() == CompressionMethod::Stored)
            .then(|| start.zip(size).and_then(|(start, size)| bytes.slice(start..start.checked_add(size)?)))
            .flatten()
    };
    let h5 = match stored {
        // Keras stores this member uncompressed, so that its tensors are read from the mapping as they lie.
        Some(window) => window,
        None => {
            let entry = archive.by_index(index).map_err(|e| damaged(e.to_string()))?;
            let mut all = Vec::new();
            let limit = (bytes.len() as u64).saturating_mul(1_100);
            entry.take(limit).read_to_end(&mut all).map_err(|e| damaged(e.to_string()))?;
            all.into()
        }
    };
    hdf5_weights(H5::open(path, h5)?).map(Some)
}

fn hdf5_weights(h5: H5) -> Result<WeightSource, ImportErrorKind> {
    let naming = if h5.strings("", "layer_names")?.is_some() || h5.has_group("layer_0") {
        Naming::Topology { root: String::new() }
    } else if h5.has_group("model_weights") {
        Naming::Topology { root: "model_weights".to_string() }
    } else {
        Naming::Position
    };
    Ok(WeightSource::hdf5(h5, naming))
}

fn from_hdf5(path: &Path, bytes: FileBytes) -> Result<ModelFile, ImportErrorKind> {
    let h5 = H5::open(path, bytes)?;
    let Some(config) = h5.string("", "model_config") else {
        return Err(weights_only("an HDF5 file without `model_config`"));
    };
    let architecture = Json::parse(&config)?;
    let version = h5.string("", "keras_version").or_else(|| h5.string("model_weights", "keras_version"));
    let generation = generation(&architecture, version.as_deref())?;
    let compile_config = h5.string("", "training_config").map(|t| Json::parse(&t)).transpose()?;
    Ok(ModelFile {
        path: path.to_path_buf(),
        format: Format::WholeH5,
        generation,
        keras_version: version,
        architecture,
        compile_config,
        weights: Some(hdf5_weights(h5)?),
    })
}

/// Tells the generations of Keras apart, and refuses what is neither.
fn generation(json: &Json, version: Option<&str>) -> Result<Generation, ImportErrorKind> {
    let not = |what: &str| ImportErrorKind::NotAModel { what: what.to_string() };
    if is_keras_0(json) {
        return Ok(Generation::One);
    }
    if !matches!(json, Json::Object(_)) {
        return Err(not("the document is neither an object nor a list of layers"));
    }
    let Some(class) = json.get("class_name").and_then(Json::as_str) else {
        if json.get("confs").is_some() {
            return Err(not("it is a deeplearning4j network"));
        }
        let Json::Object(map) = json else { return Err(not("it has no `class_name`")) };
        let keys: Vec<String> = map.keys().take(4).map(|key| format!("`{}`", key.escape_debug())).collect();
        return Err(match keys.is_empty() {
            true => not("it is an empty object"),
            false => not(&format!("it has no `class_name`; its keys are {}", keys.join(", "))),
        });
    };
    let config = json.get("config").ok_or_else(|| not("it has no `config`"))?;
    match version {
        Some(v) if v == "1" || v.starts_with("1.") || v.starts_with("0.") => return Ok(Generation::One),
        Some(v) if v.starts_with("3.") => return Ok(Generation::Three),
        Some(_) => return Ok(Generation::Two),
        None => {}
    }
    if class == "Graph" || layers(config).iter().any(speaks_keras_1) {
        return Ok(Generation::One);
    }
    let modern =
        json.get("module").is_some() || json.get("registered_name").is_some() || json.get("build_config").is_some();
    Ok(if modern { Generation::Three } else { Generation::Two })
}

fn layers(config: &Json) -> &[Json] {
    config.as_array().or_else(|| config.get("layers").and_then(Json::as_array)).unwrap_or(&[])
}

fn speaks_keras_1(layer: &Json) -> bool {
    const KEYS: [&str; 12] = [
        "nb_filter",
        "nb_row",
        "nb_col",
        "border_mode",
        "subsample",
        "dim_ordering",
        "W_regularizer",
        "b_regularizer",
        "W_constraint",
        "subsample_length",
        "filter_length",
        "inner_activation",
    ];
    let config = layer.get("config");
    let old_dense = layer.get("class_name").and_then(Json::as_str) == Some("Dense")
        && config.is_some_and(|c| c.get("output_dim").is_some() && c.get("units").is_none());
    old_dense || config.is_some_and(|c| KEYS.iter().any(|key| c.get(key).is_some()))
}
