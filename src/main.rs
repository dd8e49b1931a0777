//! The `intwain` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    intwain::cli::main()
}
