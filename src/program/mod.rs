//! Program directories: a compiled model as files.
//!
//! `program.json` is the [`Manifest`]; `whole.ir` is the whole graph with layouts and communication, `graph0.ir` and
//! `graph1.ir` are the devices' graphs, from which CPU devices compile; `device0.ptx` and `device1.ptx` are what GPUs run;
//! `weights.safetensors` holds the weights by Keras variable path, `model.json` the architecture, for which other weights
//! are read; `plan.txt` is the placement dump. Further numbers of rows have files of their own, such as
//! `graph0.rows5.ir`, and their kernels in the devices' PTX.
//!
//! A directory is trusted as little as a model file: graphs are verified, the split is proved equal to the whole again,
//! and addresses and launches come from the graphs, never from the manifest, which must agree with them.

mod check;
mod manifest;
mod read;
mod run;
mod write;

pub use manifest::{
    BufferManifest, COMPILER, CommandManifest, DeviceManifest, ExchangeManifest, FORMAT, ImportManifest,
    KernelManifest, LaunchManifest, Machine, Manifest, ModuleManifest, PortManifest, SourceManifest, TrainingManifest,
    VariantManifest,
};
pub use read::{ProgramDir, ProgramVariant};
pub use run::ProgramSession;
pub use write::{compiles_for, write, write_training};

use crate::arrays::ArrayError;
use crate::driver::CompileError;
use crate::model::ModelError;
use crate::session::RunError;
use intwain_codegen::ptx::EmitError;
use std::path::{Path, PathBuf};

/// Why a program directory could not be written, read or run.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The operating system refused.
    #[error("{}: {problem}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What it said.
        problem: std::io::Error,
    },
    /// The directory cannot be used.
    #[error("{}: {problem}", .file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Weights cannot be read.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The model cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The program cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// A kernel has no PTX: a defect.
    #[error(transparent)]
    Ptx(#[from] EmitError),
}

impl ProgramError {
    fn unusable(file: &Path, problem: impl Into<String>) -> ProgramError {
        ProgramError::Unusable { file: file.to_path_buf(), problem: problem.into() }
    }

    fn io(file: &Path) -> impl FnOnce(std::io::Error) -> ProgramError {
        let file = file.to_path_buf();
        move |problem| ProgramError::Io { file, problem }
    }
}
