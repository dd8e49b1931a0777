//! What goes to stdout and stderr. A reader that went away is no error.

use super::Failure;
use super::args::{Color, Common};
use crate::train::fit::StepReport;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// Writes text and a line end to stdout.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.trim_end_matches('\n').as_bytes()).and_then(|()| out.write_all(b"\n"));
    match written.and_then(|()| out.flush()) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Err(Failure::Unread),
        Err(e) => Err(Failure::Input(format!("cannot write to stdout: {e}"))),
    }
}

/// Writes a report: as text, or as JSON where that was asked for.
pub(crate) fn report<R: Serialize + ToString>(report: &R, common: &Common) -> Result<(), Failure> {
    if common.json { json(report) } else { print(&report.to_string()) }
}

/// Writes a JSON document.
pub(crate) fn json(document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document)
        .map_err(|e| Failure::Defect(format!("a report cannot be written as JSON: {e}")))?;
    print(&text)
}

/// Writes a line to stderr, unless the user wants errors only.
pub(crate) fn note(common: &Common, text: &str) {
    if !common.quiet {
        // Nobody is told that nobody reads.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Writes the time of each pass to stderr, where that was asked for.
pub(crate) fn times(common: &Common, timings: &intwain_passes::Timings) {
    if common.time {
        let _ = write!(std::io::stderr(), "{}", timings.table());
    }
}

/// Writes an error to stderr.
pub(crate) fn error(failure: &Failure, color: Color) {
    let colored = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let title = if colored { "\u{1b}[1;31merror:\u{1b}[0m" } else { "error:" };
    let _ = writeln!(std::io::stderr(), "{title} {failure}");
}

/// Shows what is being done for as long as it lives, if stderr is a terminal.
#[derive(Debug)]
pub(crate) struct Progress(Option<ProgressBar>);

impl Progress {
    /// Starts.
    pub(crate) fn start(common: &Common, message: &str) -> Progress {
        if common.quiet || !std::io::stderr().is_terminal() {
            return Progress(None);
        }
        let bar = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {msg} {elapsed}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.set_message(message.to_string());
        bar.enable_steady_tick(Duration::from_millis(120));
        Progress(Some(bar))
    }

    /// Says what is done now.
    pub(crate) fn say(&self, message: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(message.to_string());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Shows how far training is: step, loss, metrics, samples a second and the time that is left, if stderr is a terminal.
#[derive(Debug)]
pub(crate) struct StepBar(Option<ProgressBar>);

impl StepBar {
    /// Nothing is shown before the first step.
    pub(crate) fn new(common: &Common) -> StepBar {
        let shows = !common.quiet && std::io::stderr().is_terminal();
        StepBar(shows.then(|| {
            let style = ProgressStyle::with_template("{prefix} {bar:24} {pos}/{len} {msg} eta {eta}");
            ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    /// Shows a step.
    pub(crate) fn step(&self, step: &StepReport<'_>) {
        let Some(bar) = &self.0 else { return };
        bar.set_length(step.steps as u64);
        bar.set_prefix(format!("epoch {}/{}", step.next.epoch + 1, step.epochs));
        let speed = step.rows_done as f64 / step.elapsed.as_secs_f64().max(1e-9);
        bar.set_message(format!("{}, {speed:.0} samples/s", super::train::line(step.so_far)));
        bar.set_position(step.next.batch);
    }

    /// Makes room for what is printed meanwhile.
    pub(crate) fn aside<T>(&self, work: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(work),
            None => work(),
        }
    }
}

impl Drop for StepBar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
