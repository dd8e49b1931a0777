//! The `intwain` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    // A panic is a defect of ours; its message is on stderr already.
    std::panic::catch_unwind(intwain::cli::main).unwrap_or(ExitCode::from(70))
}
