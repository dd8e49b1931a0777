//! Errors as the user sees them, and their exit codes.

use crate::build::BuildError;
use crate::driver::CompileError;
use crate::model::ModelError;
use crate::program::ProgramError;
use crate::report::WhyError;
use crate::session::RunError;
use crate::train::fit::FitError;
use crate::train::recipe::RecipeError;
use crate::train::trainer::TrainError;
use crate::verify::VerifyError;
use intwain_passes::hardware::HardwareError;
use std::fmt;

/// Why a command failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The input cannot be used.
    Input(String),
    /// Flags that do not go together.
    Usage(String),
    /// The compiler is to blame.
    Defect(String),
    /// The user has interrupted it.
    Interrupted,
    /// Whoever reads the output went away.
    Unread,
}

/// Most lines of a message: a screen.
const SCREEN: usize = 24;

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Input(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Interrupted => 130,
            Failure::Defect(_) => 70,
            Failure::Unread => 0,
        }
    }

    /// Input that cannot be used.
    pub(crate) fn input(problem: impl fmt::Display) -> Failure {
        Failure::Input(problem.to_string())
    }

    /// A file that cannot be used.
    pub(crate) fn file(path: &std::path::Path, problem: impl fmt::Display) -> Failure {
        Failure::Input(format!("{}: {problem}", path.display()))
    }

    /// What went wrong running on the arrays of a file.
    pub(crate) fn running(inputs: &std::path::Path, error: RunError) -> Failure {
        match error {
            RunError::Input { .. } => Failure::file(inputs, error),
            error => Failure::from(error),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Input(message) | Failure::Usage(message) => f.write_str(&screen(message)),
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Defect(message) => {
                write!(f, "{}\nThis is a defect of intwain; please report it with the model.", screen(message))
            }
            Failure::Unread => Ok(()),
        }
    }
}

/// The first lines of a message, and how many more there are.
fn screen(message: &str) -> String {
    let lines: Vec<&str> = message.lines().collect();
    if lines.len() <= SCREEN {
        return message.to_string();
    }
    format!("{}\n… and {} more lines", lines[..SCREEN - 1].join("\n"), lines.len() - SCREEN + 1)
}

macro_rules! input_errors {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            fn from(e: $error) -> Failure {
                Failure::Input(e.to_string())
            }
        })+
    };
}

input_errors!(ModelError, HardwareError, crate::arrays::ArrayError);

impl From<WhyError> for Failure {
    fn from(e: WhyError) -> Failure {
        match e {
            WhyError::Pass(_) => Failure::Defect(e.to_string()),
            WhyError::Place(_) | WhyError::NoLayer { .. } | WhyError::Nothing(_) => Failure::Input(e.to_string()),
        }
    }
}

impl From<CompileError> for Failure {
    fn from(e: CompileError) -> Failure {
        if e.is_defect() { Failure::Defect(e.to_string()) } else { Failure::Input(e.to_string()) }
    }
}

impl From<BuildError> for Failure {
    fn from(e: BuildError) -> Failure {
        match e {
            BuildError::Model(e) => e.into(),
            BuildError::Compile(e) => e.into(),
            BuildError::Why(e) => e.into(),
            BuildError::Program(e) => (*e).into(),
            e @ BuildError::Rows(_) => Failure::Input(e.to_string()),
        }
    }
}

impl From<RunError> for Failure {
    fn from(e: RunError) -> Failure {
        match e {
            RunError::Model(e) => e.into(),
            RunError::Compile(e) => e.into(),
            RunError::Device(e) => Failure::Defect(e.to_string()),
            RunError::Load(e) if e.is_defect() => Failure::Defect(e.to_string()),
            e @ (RunError::Load(_) | RunError::Input { .. } | RunError::Open(_) | RunError::Options(_)) => {
                Failure::Input(e.to_string())
            }
        }
    }
}

impl From<RecipeError> for Failure {
    fn from(e: RecipeError) -> Failure {
        match e {
            RecipeError::Model(e) => e.into(),
            e @ (RecipeError::Config(_) | RecipeError::NoOptimizer) => Failure::Input(e.to_string()),
        }
    }
}

impl From<TrainError> for Failure {
    fn from(e: TrainError) -> Failure {
        match e {
            TrainError::Model(e) => e.into(),
            TrainError::Run(e) => e.into(),
            TrainError::Step(e) if e.is_defect() => Failure::Defect(e.to_string()),
            e @ (TrainError::Step(_) | TrainError::State { .. } | TrainError::Restore(_) | TrainError::Watcher(_)) => {
                Failure::Input(e.to_string())
            }
        }
    }
}

impl From<FitError> for Failure {
    fn from(e: FitError) -> Failure {
        match e {
            FitError::Train(e) => (*e).into(),
            e @ (FitError::Data(_) | FitError::Monitor { .. }) => Failure::Input(e.to_string()),
        }
    }
}

impl From<ProgramError> for Failure {
    fn from(e: ProgramError) -> Failure {
        match e {
            ProgramError::Compile(e) => e.into(),
            ProgramError::Run(e) => e.into(),
            ProgramError::Ptx(e) => Failure::Defect(e.to_string()),
            e @ (ProgramError::Io { .. }
            | ProgramError::Unusable { .. }
            | ProgramError::Model(_)
            | ProgramError::Array(_)) => Failure::Input(e.to_string()),
        }
    }
}

impl From<VerifyError> for Failure {
    fn from(e: VerifyError) -> Failure {
        match e {
            VerifyError::Compile(e) => e.into(),
            VerifyError::Run(e) => e.into(),
            VerifyError::Program(e) => (*e).into(),
        }
    }
}
