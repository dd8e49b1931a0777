//! Checkpoints: all that a run needs to go on, whatever devices and plan it goes on with.
//!
//! States are whole tensors by name, so that a checkpoint of two devices resumes on one. A checkpoint is a file that is
//! written under another name, put on the disk, and then renamed: at every moment the newest file that bears a checkpoint's
//! name is complete. The two newest are kept.

mod error;
mod file;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use intwain_ir::{Tensor, Type};
use sha2::{Digest, Sha256};

use crate::frontend::Json;
use crate::model::Model;
use crate::train::data::Position;
pub use error::CheckpointError;

/// The version of the format.
const FORMAT: i64 = 1;
/// How many are kept.
const KEPT: usize = 2;

/// What a run is: a checkpoint of another one is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The model's name.
    pub model: String,
    /// A hash of its architecture.
    pub architecture: String,
    /// What else decides what a step computes, and which rows it takes: optimizer, loss, batch, seed, …, by name. Devices
    /// and plan are no part of it.
    pub settings: BTreeMap<String, String>,
}

impl Identity {
    /// A run of a model.
    pub fn new(model: &Model, settings: BTreeMap<String, String>) -> Identity {
        // What a file is compiled with is a setting.
        let architecture = match Json::parse(model.architecture()) {
            Ok(Json::Object(mut map)) => {
                map.shift_remove("compile_config");
                Json::Object(map).to_text()
            }
            Ok(_) | Err(_) => model.architecture().to_string(),
        };
        let architecture = Sha256::digest(architecture.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
        Identity { model: model.name().to_string(), architecture, settings }
    }

    /// How a checkpoint's run differs from this one.
    fn differences(&self, theirs: &Identity) -> Vec<String> {
        let mut differences = Vec::new();
        if self.architecture != theirs.architecture {
            let (model, own) = (&theirs.model, &self.model);
            differences.push(match model == own {
                true => format!("its model `{model}` has another architecture"),
                false => format!("its model is `{model}`, this one is `{own}`"),
            });
        }
        let keys = self.settings.keys().chain(theirs.settings.keys().filter(|key| !self.settings.contains_key(*key)));
        for key in keys {
            let value =
                |of: &Identity| of.settings.get(key).map_or("not set".to_string(), |value| format!("`{value}`"));
            let (checkpoint, run) = (value(theirs), value(self));
            if checkpoint != run {
                differences.push(format!("{key} was {checkpoint}, now it is {run}"));
            }
        }
        differences
    }
}

/// Everything at one moment between two steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// The run.
    pub identity: Identity,
    /// Every state of the step by name, whole: variables, what the optimizer keeps, the generator's step.
    pub states: BTreeMap<String, Tensor>,
    /// Numbers of the host by name, bit for bit: sums of the epoch's metrics, what was reported so far.
    pub series: BTreeMap<String, Vec<f64>>,
    /// Steps taken.
    pub steps: u64,
    /// What the next step takes.
    pub position: Position,
}

/// A checkpoint that was read.
#[derive(Debug)]
pub struct Found {
    /// What it holds.
    pub checkpoint: Checkpoint,
    /// The file.
    pub file: PathBuf,
    /// Newer files that cannot be read.
    pub damaged: Vec<CheckpointError>,
}

impl Found {
    /// The states that a step has, in its order. All that is missing, left over or of another type is reported together.
    pub fn states<'s>(
        &self,
        wanted: impl IntoIterator<Item = (&'s str, &'s Type)>,
    ) -> Result<Vec<&Tensor>, CheckpointError> {
        let (mut states, mut problems) = (Vec::new(), Vec::new());
        let mut left: BTreeMap<&str, &Tensor> =
            self.checkpoint.states.iter().map(|(name, state)| (name.as_str(), state)).collect();
        for (name, ty) in wanted {
            match left.remove(name) {
                Some(state) if state.ty == *ty => states.push(state),
                Some(state) => problems.push(error::of_another_type(name, &state.ty, ty)),
                None => problems.push(format!("`{name}` is missing")),
            }
        }
        problems.extend(left.keys().map(|name| format!("`{name}` is no state of the step")));
        if problems.is_empty() {
            return Ok(states);
        }
        Err(CheckpointError::States { file: self.file.clone(), problems })
    }
}

/// A folder of one run's checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

impl Checkpoints {
    /// The folder of a run that begins: it must have no checkpoint.
    pub fn begin(folder: &Path) -> Result<Checkpoints, CheckpointError> {
        std::fs::create_dir_all(folder).map_err(CheckpointError::io(folder))?;
        match list(folder)?.pop() {
            None => Ok(Checkpoints { folder: folder.to_path_buf() }),
            Some((_, newest)) => Err(CheckpointError::Occupied { folder: folder.to_path_buf(), newest }),
        }
    }

    /// The folder of a run that goes on, and its newest readable checkpoint. `None` where there is no file of one, as after a
    /// run that ended before its first; where none of those there can be read, the newest one's problem.
    pub fn resume(folder: &Path, identity: &Identity) -> Result<(Checkpoints, Option<Found>), CheckpointError> {
        std::fs::create_dir_all(folder).map_err(CheckpointError::io(folder))?;
        let found = latest(folder)?;
        if let Some(found) = &found {
            let differences = identity.differences(&found.checkpoint.identity);
            if !differences.is_empty() {
                return Err(CheckpointError::OtherRun { file: found.file.clone(), differences });
            }
        }
        Ok((Checkpoints { folder: folder.to_path_buf() }, found))
    }

    /// Writes a checkpoint, then removes all but it and the newest before it.
    pub fn save(&self, checkpoint: &Checkpoint) -> Result<PathBuf, CheckpointError> {
        let name = format!("{PREFIX}{:012}{ENDING}", checkpoint.steps);
        let path = self.folder.join(&name);
        let partial = self.folder.join(format!(".{name}.{}{PARTIAL}", std::process::id()));
        let written = file::write(&partial, checkpoint)
            .and_then(|()| std::fs::rename(&partial, &path).map_err(CheckpointError::io(&path)))
            // The name is on the disk once the folder is.
            .and_then(|()| sync(&self.folder));
        if let Err(error) = written {
            // The error of the write itself is the one to report.
            let _ = std::fs::remove_file(&partial);
            return Err(error);
        }
        self.prune(checkpoint.steps)?;
        Ok(path)
    }

    /// Files of later steps than the newest checkpoint are those that could not be read when the run was resumed.
    fn prune(&self, newest: u64) -> Result<(), CheckpointError> {
        let files = list(&self.folder)?;
        let earlier = files.iter().filter(|(steps, _)| *steps < newest).count();
        let kept = earlier.saturating_sub(KEPT - 1)..earlier + 1;
        let removed = files.into_iter().enumerate().filter(|(i, _)| !kept.contains(i)).map(|(_, (_, path))| path);
        for path in removed.chain(partials(&self.folder)?) {
            std::fs::remove_file(&path).map_err(CheckpointError::io(&path))?;
        }
        Ok(())
    }
}

/// The newest checkpoint in a folder that can be read.
pub fn latest(folder: &Path) -> Result<Option<Found>, CheckpointError> {
    let mut damaged = Vec::new();
    for (_, path) in list(folder)?.into_iter().rev() {
        match file::read(&path) {
            Ok(checkpoint) => return Ok(Some(Found { checkpoint, file: path, damaged })),
            Err(error @ CheckpointError::Version { .. }) => return Err(error),
            Err(error) => damaged.push(error),
        }
    }
    match damaged.into_iter().next() {
        Some(newest) => Err(newest),
        None => Ok(None),
    }
}

const PREFIX: &str = "checkpoint-";
const ENDING: &str = ".safetensors";
const PARTIAL: &str = ".partial";

/// The files that bear a checkpoint's name, by their steps.
fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>, CheckpointError> {
    let steps = |name: &str| name.strip_prefix(PREFIX)?.strip_suffix(ENDING)?.parse::<u64>().ok();
    let mut files: Vec<(u64, PathBuf)> =
        names(folder)?.into_iter().filter_map(|name| Some((steps(&name)?, folder.join(&name)))).collect();
    files.sort();
    Ok(files)
}

/// What interrupted writes left.
fn partials(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let is = |name: &String| name.starts_with(&format!(".{PREFIX}")) && name.ends_with(PARTIAL);
    Ok(names(folder)?.into_iter().filter(is).map(|name| folder.join(name)).collect())
}

fn names(folder: &Path) -> Result<Vec<String>, CheckpointError> {
    let failed = CheckpointError::io(folder);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(&failed)? {
        names.push(entry.map_err(&failed)?.file_name().to_string_lossy().into_owned());
    }
    Ok(names)
}

fn sync(folder: &Path) -> Result<(), CheckpointError> {
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(CheckpointError::io(folder))
}
