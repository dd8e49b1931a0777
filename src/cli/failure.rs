//! Errors as the user sees them, and their exit codes.

use crate::driver::CompileError;
use crate::model::ModelError;
use crate::session::RunError;
use std::fmt;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input cannot be used.
    Input(String),
    /// The compiler is to blame.
    Defect(String),
}

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Input(_) => 1,
            Failure::Defect(_) => 70,
        }
    }

    /// A file that cannot be used.
    pub(crate) fn file(path: &std::path::Path, problem: impl fmt::Display) -> Failure {
        Failure::Input(format!("{}: {problem}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(message) => write!(f, "error: {message}"),
            Failure::Defect(message) => {
                write!(f, "error: {message}\nThis is a defect of intwain; please report it with the model.")
            }
        }
    }
}

impl From<ModelError> for Failure {
    fn from(e: ModelError) -> Failure {
        Failure::Input(e.to_string())
    }
}

impl From<CompileError> for Failure {
    fn from(e: CompileError) -> Failure {
        if e.is_defect() { Failure::Defect(e.to_string()) } else { Failure::Input(e.to_string()) }
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        match e {
            RunError::Model(e) => e.into(),
            RunError::Compile(e) => e.into(),
            RunError::Device(e) => Failure::Defect(e.to_string()),
            RunError::Code(e) => Failure::Defect(e.to_string()),
            e @ (RunError::Memory(_) | RunError::Input { .. } | RunError::Threads(_) | RunError::Options(_)) => {
                Failure::Input(e.to_string())
            }
        }
    }
}

impl From<crate::arrays::ArrayError> for Failure {
    fn from(e: crate::arrays::ArrayError) -> Failure {
        Failure::Input(e.to_string())
    }
}
