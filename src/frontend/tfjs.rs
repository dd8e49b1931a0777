//! TensorFlow.js layers models: `model.json` around an architecture of Keras, weights in binary files beside it.
//!
//! Weights lie one after the other in the concatenation of a group's files. Files are mapped; a tensor's bytes are copied
//! when it is read. A path in the manifest reaches no file outside of the folder that the manifest is in.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use indexmap::IndexMap;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType, FileBytes, byte_len};

use super::error::ImportErrorKind;
use super::json::Json;

/// What `model.json` holds.
pub(super) struct Document {
    /// An object with `class_name` and `config`.
    pub(super) architecture: Json,
    /// The version that wrote the architecture: Keras's or `tfjs-layers 1.2.3`.
    pub(super) version: Option<String>,
    /// Loss, optimizer and metrics.
    pub(super) training: Option<Json>,
    /// `weightsManifest`.
    pub(super) manifest: Option<Json>,
}

/// Whether a document is of this kind.
pub(super) fn is_document(json: &Json) -> bool {
    ["modelTopology", "model_config", "weightsManifest"].iter().any(|key| json.get(key).is_some())
        && json.get("class_name").is_none()
}

/// Takes `model.json` apart.
pub(super) fn document(mut json: Json) -> Result<Document, ImportErrorKind> {
    let manifest = take(&mut json, "weightsManifest");
    let graph = json.get("format").and_then(Json::as_str) == Some("graph-model");
    let mut training = take(&mut json, "trainingConfig");
    let mut topology = match take(&mut json, "modelTopology") {
        Some(topology) => decoded(topology)?,
        None if json.get("model_config").is_some() => json,
        None => {
            let what = "it lists weights of TensorFlow.js and has no `modelTopology`".to_string();
            return Err(ImportErrorKind::NotAModel { what });
        }
    };
    if graph || topology.get("node").is_some() {
        let what = "it is a TensorFlow.js graph model, whose operations are TensorFlow's and not Keras layers";
        return Err(ImportErrorKind::NotAModel { what: what.to_string() });
    }
    let mut version = topology.get("keras_version").and_then(Json::as_str).map(str::to_string);
    training = training.or_else(|| take(&mut topology, "training_config"));
    let architecture = match take(&mut topology, "model_config") {
        Some(config) => decoded(config)?,
        None => topology,
    };
    if architecture.get("class_name").is_none() {
        let what = "its `modelTopology` has neither `class_name` nor `model_config`".to_string();
        return Err(ImportErrorKind::NotAModel { what });
    }
    version = version.or_else(|| architecture.get("keras_version").and_then(Json::as_str).map(str::to_string));
    Ok(Document { architecture, version, training: training.filter(|t| *t != Json::Null), manifest })
}

fn take(json: &mut Json, key: &str) -> Option<Json> {
    match json {
        Json::Object(map) => map.shift_remove(key).filter(|value| *value != Json::Null),
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) | Json::Array(_) => None,
    }
}

/// The attributes of HDF5 files that converters copy are JSON as text.
fn decoded(json: Json) -> Result<Json, ImportErrorKind> {
    match json {
        Json::String(text) => Json::parse(&text),
        json => Ok(json),
    }
}

/// Whether a version is TensorFlow.js's own.
pub(super) fn is_own_version(version: &str) -> bool {
    version.starts_with("tfjs")
}

/// An architecture that TensorFlow.js wrote itself, as Keras would have: early versions lost how an initializer scales, and
/// then take the mean of both fans and a uniform distribution.
pub(super) fn as_keras(architecture: &mut Json) {
    match architecture {
        Json::Array(items) => items.iter_mut().for_each(as_keras),
        Json::Object(map) => {
            if map.get("class_name").and_then(Json::as_str) == Some("VarianceScaling")
                && let Some(Json::Object(config)) = map.get_mut("config")
            {
                for (key, usual) in [("mode", "fan_avg"), ("distribution", "uniform")] {
                    if let Some(value) = config.get_mut(key).filter(|value| **value == Json::Null) {
                        *value = Json::String(usual.to_string());
                    }
                }
            }
            map.values_mut().for_each(as_keras);
        }
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {}
    }
}

/// How the numbers of a tensor are stored.
#[derive(Clone, Copy, Debug)]
enum Coding {
    /// As they are.
    Plain,
    /// `stored · scale + min`.
    Linear { stored: Integer, scale: f64, min: f64 },
    /// As float16.
    Half,
}

/// What quantised numbers are stored as.
#[derive(Clone, Copy, Debug)]
enum Integer {
    U8,
    U16,
}

#[derive(Debug)]
struct Entry {
    dtype: DType,
    shape: Vec<usize>,
    coding: Coding,
    group: usize,
    bytes: Range<usize>,
}

impl Entry {
    /// Bytes it takes in the file, `None` where no file is that large.
    fn stored(&self) -> Option<usize> {
        match self.coding {
            Coding::Plain => byte_len(self.dtype, &self.shape),
            Coding::Linear { stored: Integer::U8, .. } => byte_len(DType::U8, &self.shape),
            Coding::Linear { stored: Integer::U16, .. } | Coding::Half => byte_len(DType::F16, &self.shape),
        }
    }

    /// The numbers that bytes of it stand for, under a shape that has as many.
    fn decode(&self, bytes: &[u8], shape: Vec<usize>) -> Array {
        let fits = "sizes are compared when the files are opened";
        let (stored, scale, min): (Vec<f64>, f64, f64) = match self.coding {
            Coding::Plain => {
                let mut array = Array::from_bytes(self.dtype, shape, bytes).expect(fits);
                if self.dtype == DType::Bool {
                    array.bytes_mut().iter_mut().for_each(|b| *b = u8::from(*b != 0));
                }
                return array;
            }
            Coding::Half => return Array::from_bytes(DType::F16, shape, bytes).expect(fits).cast(self.dtype),
            Coding::Linear { stored: Integer::U8, scale, min } => {
                (bytes.iter().map(|&q| q.into()).collect(), scale, min)
            }
            Coding::Linear { stored: Integer::U16, scale, min } => {
                let pair = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]).into();
                (bytes.chunks_exact(2).map(pair).collect(), scale, min)
            }
        };
        // Integers are rounded as JavaScript rounds: halves up.
        let rounded = |x: f64| if self.dtype.is_float() { x } else { (x + 0.5).floor() };
        let values: Vec<f64> = stored.into_iter().map(|q| rounded(q * scale + min)).collect();
        Array::from_f64(shape, &values).cast(self.dtype)
    }
}

/// The weights of a manifest.
#[derive(Debug)]
pub(super) struct Manifest {
    /// The file that lists them.
    path: PathBuf,
    groups: Vec<Vec<FileBytes>>,
    entries: IndexMap<String, Entry>,
}

fn damaged(why: impl Into<String>) -> ArrayErrorKind {
    ArrayErrorKind::Damaged { format: "TensorFlow.js weights", why: why.into() }
}

impl Manifest {
    /// Opens the files that a manifest lists. `None` where none of them is there.
    pub(super) fn open(path: &Path, manifest: &Json) -> Result<Option<Manifest>, ArrayError> {
        let wrong = |why: &str| damaged(why).at(path);
        let groups = manifest.as_array().ok_or_else(|| wrong("its `weightsManifest` is no list"))?;
        let mut files = Vec::new();
        for group in groups {
            let paths = group.get("paths").and_then(Json::as_array);
            let paths = paths.ok_or_else(|| wrong("a group of its `weightsManifest` has no list of `paths`"))?;
            files.push(paths.iter().map(|p| beside(path, p)).collect::<Result<Vec<_>, _>>()?);
        }
        let all = || files.iter().flatten();
        if !all().any(|file| file.exists()) {
            return Ok(None);
        }
        let mut mapped: BTreeMap<&Path, FileBytes> = BTreeMap::new();
        for file in all() {
            if !mapped.contains_key(&**file) {
                let bytes = FileBytes::open(file).map_err(|e| ArrayErrorKind::Io(e).at(file))?;
                mapped.insert(file, bytes);
            }
        }
        let mut opened = Manifest { path: path.to_path_buf(), groups: Vec::new(), entries: IndexMap::new() };
        for (group, files) in groups.iter().zip(&files) {
            opened.groups.push(files.iter().map(|file| mapped[&**file].clone()).collect());
            opened.list(group)?;
        }
        Ok(Some(opened))
    }

    /// Lists the tensors of the last group and compares them with the bytes of its files.
    fn list(&mut self, group: &Json) -> Result<(), ArrayError> {
        let wrong = |why: &str| damaged(why).at(&self.path);
        let weights = group.get("weights").and_then(Json::as_array);
        let weights = weights.ok_or_else(|| wrong("a group of its `weightsManifest` has no list of `weights`"))?;
        let last = self.groups.len() - 1;
        let present: usize = self.groups[last].iter().map(|file| file.len()).sum();
        let mut at = 0usize;
        for weight in weights {
            let name =
                weight.get("name").and_then(Json::as_str).ok_or_else(|| wrong("one of its weights has no name"))?;
            let own = |kind: ArrayErrorKind| kind.in_member(&self.path, name);
            let (dtype, shape, coding) = described(weight).map_err(own)?;
            let mut entry = Entry { dtype, shape, coding, group: last, bytes: 0..0 };
            let end = entry.stored().and_then(|len| at.checked_add(len));
            let Some(end) = end.filter(|end| *end <= present) else {
                let declared = end.map_or(u128::MAX, |end| end as u128);
                return Err(own(ArrayErrorKind::Short { declared, present: present as u64 }));
            };
            entry.bytes = at..end;
            at = end;
            // What an optimizer keeps beside the weights is listed behind them.
            if weight.get("group").and_then(Json::as_str) == Some("optimizer") {
                continue;
            }
            if self.entries.insert(name.to_string(), entry).is_some() {
                return Err(damaged("two of its weights have this name").in_member(&self.path, name));
            }
        }
        if at != present {
            return Err(wrong(&format!("its files have {present} bytes, its weights {at}")));
        }
        Ok(())
    }

    /// The file that lists them.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names in the order of the file.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// Dtype and shape, `None` where there is no such tensor.
    pub(super) fn info(&self, name: &str) -> Option<(DType, &[usize])> {
        self.entries.get(name).map(|entry| (entry.dtype, &entry.shape[..]))
    }

    /// Reads one tensor.
    pub(super) fn read(&self, name: &str) -> Result<Array, ArrayError> {
        let rows = self.info(name).and_then(|(_, shape)| shape.first().copied());
        self.part(name, 0..rows.unwrap_or(1))
    }

    /// Reads the rows `start..end` of one tensor.
    pub(super) fn read_rows(&self, name: &str, start: usize, end: usize) -> Result<Array, ArrayError> {
        let rows = self.info(name).and_then(|(_, shape)| shape.first().copied()).unwrap_or(0);
        if start > end || end > rows {
            return Err(ArrayErrorKind::Rows { rows, start, end }.in_member(&self.path, name));
        }
        self.part(name, start..end)
    }

    /// Rows that are there; of a scalar, the one.
    fn part(&self, name: &str, rows: Range<usize>) -> Result<Array, ArrayError> {
        let entry = self.entries.get(name).ok_or_else(|| ArrayErrorKind::Missing.in_member(&self.path, name))?;
        let mut shape = entry.shape.clone();
        let row = match shape.first_mut() {
            Some(extent) => entry.bytes.len().checked_div(std::mem::replace(extent, rows.len())).unwrap_or(0),
            None => entry.bytes.len(),
        };
        let bytes = entry.bytes.start + rows.start * row..entry.bytes.start + rows.end * row;
        Ok(entry.decode(&self.bytes(entry.group, bytes), shape))
    }

    /// A range of the concatenated files of a group.
    fn bytes(&self, group: usize, range: Range<usize>) -> Vec<u8> {
        let mut out = Vec::with_capacity(range.len());
        let mut start = 0;
        for file in &self.groups[group] {
            let clip = |at: usize| at.clamp(start, start + file.len()) - start;
            out.extend_from_slice(&file[clip(range.start)..clip(range.end)]);
            start += file.len();
        }
        out
    }
}

/// The file that a manifest names: below the folder of the manifest.
fn beside(manifest: &Path, name: &Json) -> Result<PathBuf, ArrayError> {
    let plain = |name: &&str| {
        let mut parts = Path::new(name).components().filter(|part| *part != Component::CurDir).peekable();
        !name.contains('\\') && parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
    };
    match name.as_str().filter(plain) {
        Some(name) => Ok(manifest.with_file_name(name.trim_start_matches("./"))),
        None => Err(damaged(format!("its `weightsManifest` names {name}, which is no file beside it")).at(manifest)),
    }
}

/// Dtype, shape and coding of an entry of the manifest.
fn described(weight: &Json) -> Result<(DType, Vec<usize>, Coding), ArrayErrorKind> {
    let shape = weight.get("shape").and_then(Json::as_array).ok_or_else(|| damaged("has no `shape`"))?;
    let extent = |d: &Json| d.as_int().and_then(|d| usize::try_from(d).ok());
    let extents: Option<Vec<usize>> = shape.iter().map(extent).collect();
    let shape = extents.ok_or_else(|| damaged("has a `shape` that is no list of extents"))?;
    let named = |of: &Json| of.get("dtype").and_then(Json::as_str).unwrap_or_default().to_string();
    let element = |dtype: String| match dtype.as_str() {
        "float32" => Ok(DType::F32),
        "float16" => Ok(DType::F16),
        "int32" => Ok(DType::I32),
        "uint8" => Ok(DType::U8),
        "bool" => Ok(DType::Bool),
        _ => Err(ArrayErrorKind::Element { dtype }),
    };
    let dtype = element(named(weight))?;
    let Some(quantised) = weight.get("quantization").filter(|q| **q != Json::Null) else {
        return Ok((dtype, shape, Coding::Plain));
    };
    let number = |key: &str| match quantised.get(key) {
        Some(Json::Int(i)) => Ok(*i as f64),
        Some(Json::Float(x)) if x.is_finite() => Ok(*x),
        _ => Err(damaged(format!("has a `quantization` without a finite `{key}`"))),
    };
    let stored = match named(quantised).as_str() {
        "uint8" => Integer::U8,
        "uint16" => Integer::U16,
        "float16" if dtype.is_float() => return Ok((dtype, shape, Coding::Half)),
        other => {
            return Err(damaged(format!("has a `quantization` of the type `{other}`, which {dtype:?} cannot have")));
        }
    };
    Ok((dtype, shape, Coding::Linear { stored, scale: number("scale")?, min: number("min")? }))
}
