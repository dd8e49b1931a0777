//! A checkpoint as one file: tensors in the safetensors format, everything else as JSON in its remarks.
//!
//! The JSON holds a SHA-256 of itself without it, and of every tensor's name, type, extents and bytes in the order of names. So a file
//! in which a bit has changed is not taken for a checkpoint.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;

use intwain_ir::{DType, Tensor};
use safetensors::tensor::{Dtype, View};
use sha2::{Digest, Sha256};

use super::{Checkpoint, CheckpointError, FORMAT, Identity};
use crate::arrays::{SafetensorsFile, safetensors_dtype};
use crate::frontend::Json;
use crate::model::to_tensor;
use crate::train::data::Position;

/// The remark that holds the JSON.
const REMARK: &str = "intwain-checkpoint";
const STATE: &str = "state/";
const SERIES: &str = "series/";

struct Whole<'c>(Cow<'c, Tensor>);

impl View for Whole<'_> {
    fn dtype(&self) -> Dtype {
        safetensors_dtype(self.0.ty.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.0.ty.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.0.data)
    }

    fn data_len(&self) -> usize {
        self.0.data.len()
    }
}

fn tensors(checkpoint: &Checkpoint) -> BTreeMap<String, Cow<'_, Tensor>> {
    let states = checkpoint.states.iter().map(|(name, state)| (format!("{STATE}{name}"), Cow::Borrowed(state)));
    let series = checkpoint.series.iter().map(|(name, numbers)| {
        (format!("{SERIES}{name}"), Cow::Owned(Tensor::from_f64(DType::F64, [numbers.len()], numbers)))
    });
    states.chain(series).collect()
}

fn digest<'t>(remark: &Json, tensors: impl Iterator<Item = (&'t str, &'t Tensor)>) -> String {
    let mut hash = Sha256::new();
    let mut field = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_le_bytes());
        hash.update(bytes);
    };
    field(remark.to_text().as_bytes());
    for (name, tensor) in tensors {
        field(name.as_bytes());
        field(tensor.ty.to_string().as_bytes());
        field(&tensor.data);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

fn text(of: &str) -> Json {
    Json::String(of.to_string())
}

fn number(of: u64) -> Json {
    Json::Int(i64::try_from(of).unwrap_or(i64::MAX))
}

fn object<'k>(entries: impl IntoIterator<Item = (&'k str, Json)>) -> Json {
    Json::Object(entries.into_iter().map(|(key, value)| (key.to_string(), value)).collect())
}

fn remark(checkpoint: &Checkpoint) -> Json {
    let Identity { model, architecture, settings } = &checkpoint.identity;
    object([
        ("format", Json::Int(FORMAT)),
        ("model", text(model)),
        ("architecture", text(architecture)),
        ("settings", object(settings.iter().map(|(key, value)| (key.as_str(), text(value))))),
        ("steps", number(checkpoint.steps)),
        ("epoch", number(checkpoint.position.epoch)),
        ("batch", number(checkpoint.position.batch)),
    ])
}

/// Writes the file and has the operating system put it on the disk.
pub(super) fn write(path: &Path, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
    let tensors = tensors(checkpoint);
    let mut remark = remark(checkpoint);
    let digest = digest(&remark, tensors.iter().map(|(name, tensor)| (name.as_str(), &**tensor)));
    if let Json::Object(map) = &mut remark {
        map.insert("digest".to_string(), Json::String(digest));
    }
    let remarks = HashMap::from([(REMARK.to_string(), remark.to_text())]);
    let views = tensors.into_iter().map(|(name, tensor)| (name, Whole(tensor)));
    safetensors::serialize_to_file(views, Some(remarks), path).map_err(|e| match e {
        safetensors::SafeTensorError::IoError(problem) => CheckpointError::io(path)(problem),
        other => CheckpointError::io(path)(std::io::Error::other(other.to_string())),
    })?;
    File::open(path).and_then(|file| file.sync_all()).map_err(CheckpointError::io(path))
}

/// Reads a file and proves it to be what was written.
pub(super) fn read(path: &Path) -> Result<Checkpoint, CheckpointError> {
    let damaged = |why: &str| CheckpointError::damaged(path, why);
    let file = SafetensorsFile::open(path)?;
    let remark = file.remark(REMARK).ok_or_else(|| damaged("it has no remark of a checkpoint"))?;
    let mut remark = Json::parse(remark).map_err(|e| damaged(&e.to_string()))?;
    let int = |remark: &Json, key: &str| remark.get(key).and_then(Json::as_int).ok_or_else(|| damaged(key));
    match int(&remark, "format")? {
        FORMAT => {}
        found => return Err(CheckpointError::Version { file: path.to_path_buf(), found }),
    }
    let declared = match &mut remark {
        Json::Object(map) => map.shift_remove("digest"),
        _ => None,
    };
    let mut tensors = BTreeMap::new();
    for name in file.names() {
        tensors.insert(name.to_string(), to_tensor(&file.read(name)?));
    }
    let found = digest(&remark, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)));
    if declared.as_ref().and_then(Json::as_str) != Some(&*found) {
        return Err(damaged("its bytes are not those that were written"));
    }

    let string = |key: &str| -> Result<String, CheckpointError> {
        Ok(remark.get(key).and_then(Json::as_str).ok_or_else(|| damaged(key))?.to_string())
    };
    let natural = |key: &str| u64::try_from(int(&remark, key)?).map_err(|_| damaged(key));
    let mut settings = BTreeMap::new();
    if let Some(Json::Object(map)) = remark.get("settings") {
        for (key, value) in map {
            settings.insert(key.clone(), value.as_str().ok_or_else(|| damaged(key))?.to_string());
        }
    }
    let (mut states, mut series) = (BTreeMap::new(), BTreeMap::new());
    for (name, tensor) in tensors {
        if let Some(name) = name.strip_prefix(STATE) {
            states.insert(name.to_string(), tensor);
        } else if let Some(name) = name.strip_prefix(SERIES) {
            series.insert(name.to_string(), tensor.to_f64());
        } else {
            return Err(damaged(&format!("`{name}` is neither a state nor a series")));
        }
    }
    Ok(Checkpoint {
        identity: Identity { model: string("model")?, architecture: string("architecture")?, settings },
        states,
        series,
        steps: natural("steps")?,
        position: Position { epoch: natural("epoch")?, batch: natural("batch")? },
    })
}
