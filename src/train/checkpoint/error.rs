//! What can be wrong with checkpoints.

use std::path::{Path, PathBuf};

use crate::arrays::ArrayError;
use intwain_ir::Type;

/// A checkpoint that cannot be written, read or used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The operating system refused.
    #[error("{}: {problem}", .file.display())]
    Io {
        /// The file or folder.
        file: PathBuf,
        /// What it said.
        problem: std::io::Error,
    },
    /// The file is no readable container.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The file is not what was written.
    #[error("{}: is a damaged checkpoint: {why}", .file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What the reader found.
        why: String,
    },
    /// A file of another version.
    #[error("{}: has checkpoint format {found}, this version reads {}; resume with the version that wrote it", .file.display(), super::FORMAT)]
    Version {
        /// The file.
        file: PathBuf,
        /// Its version.
        found: i64,
    },
    /// Checkpoints that a new run would mix with its own.
    #[error("{}: has checkpoints of an earlier run ({}); resume it (--resume), or name another folder", .folder.display(), .newest.display())]
    Occupied {
        /// The folder.
        folder: PathBuf,
        /// The newest of them.
        newest: PathBuf,
    },
    /// A checkpoint of another model or run.
    #[error("{}: is of another run: {}", .file.display(), .differences.join("; "))]
    OtherRun {
        /// The file.
        file: PathBuf,
        /// What differs, and how.
        differences: Vec<String>,
    },
    /// States that the step does not have, or has otherwise.
    #[error("{}: does not fit this step: {}", .file.display(), .problems.join("; "))]
    States {
        /// The file.
        file: PathBuf,
        /// Each by its name.
        problems: Vec<String>,
    },
}

impl CheckpointError {
    pub(super) fn io(file: &Path) -> impl Fn(std::io::Error) -> CheckpointError {
        move |problem| CheckpointError::Io { file: file.to_path_buf(), problem }
    }

    pub(super) fn damaged(file: &Path, why: impl Into<String>) -> CheckpointError {
        CheckpointError::Damaged { file: file.to_path_buf(), why: why.into() }
    }
}

/// How a state is not what the step takes.
pub(super) fn of_another_type(name: &str, found: &Type, wanted: &Type) -> String {
    format!("`{name}` is {found}, the step takes {wanted}")
}
