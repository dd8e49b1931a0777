//! The command line: parses, prints and picks exit codes. Everything it does is a call of the library.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the only place that prints")]

mod args;
mod compile;
mod data;
mod devices;
mod failure;
mod grad;
mod hardware;
mod inspect;
mod output;
mod plan;
mod run;
mod step;
mod train;
mod train_files;
mod verify;

use args::{Cli, Command};
use clap::Parser;
use failure::Failure;
use std::process::ExitCode;

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Help and version are no failures.
            let code = if e.use_stderr() { 2 } else { 0 };
            let _ = e.print();
            return ExitCode::from(code);
        }
    };
    match dispatch(&cli) {
        Ok(()) | Err(Failure::Unread) => ExitCode::SUCCESS,
        Err(failure) => {
            output::error(&failure, cli.common.color);
            ExitCode::from(failure.code())
        }
    }
}

fn dispatch(cli: &Cli) -> Result<(), Failure> {
    let common = &cli.common;
    match &cli.command {
        Command::Plan(a) => plan::plan(a, common),
        Command::Inspect(a) => inspect::inspect(a, common),
        Command::Compile(a) => compile::compile(a, common),
        Command::Run(a) => run::run(a, common),
        Command::Grad(a) => grad::grad(a, common),
        Command::Train(a) => train::train(a, common),
        Command::Evaluate(a) => train::evaluate(a, common),
        Command::Verify(a) => verify::verify(a, common),
        Command::Hardware(a) => hardware::hardware(a, common),
        Command::Devices => devices::devices(common),
    }
}
