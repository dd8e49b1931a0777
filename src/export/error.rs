//! Why a trained model could not be written.

use std::path::{Path, PathBuf};

use crate::model::ModelError;

/// A trained model that cannot be written as asked.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The operating system refused.
    #[error("{}: {problem}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it said.
        problem: std::io::Error,
    },
    /// A name that says no format.
    #[error("{}: the name says no format; models are written as .keras, .weights.h5 or .h5", .file.display())]
    Extension {
        /// The file.
        file: PathBuf,
    },
    /// A model that this format does not hold.
    #[error("{}: {why}; {remedy}", .file.display())]
    Unfit {
        /// The file.
        file: PathBuf,
        /// What stands against it.
        why: String,
        /// What would do.
        remedy: &'static str,
    },
    /// A value of another shape than its variable.
    #[error("the weight `{path}` has the shape {found:?}, its variable {expected:?}")]
    Shape {
        /// The variable.
        path: String,
        /// Its shape.
        expected: Vec<usize>,
        /// The value's.
        found: Vec<usize>,
    },
    /// Values that are no variable's.
    #[error("the model has no weights {}", .paths.join(", "))]
    Unknown {
        /// Their paths.
        paths: Vec<String>,
    },
    /// Two things of one name.
    #[error("{}: two tensors would be called `{path}`", .file.display())]
    Taken {
        /// The file.
        file: PathBuf,
        /// The name.
        path: String,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl ExportError {
    pub(super) fn io(file: &Path) -> impl Fn(std::io::Error) -> ExportError {
        move |problem| ExportError::Io { file: file.to_path_buf(), problem }
    }

    pub(super) fn unfit(file: &Path, why: impl Into<String>, remedy: &'static str) -> ExportError {
        ExportError::Unfit { file: file.to_path_buf(), why: why.into(), remedy }
    }
}
