//! `intwain inspect`.

use super::args::{Common, Format, InspectArgs};
use super::output::{self, Progress};
use super::{Failure, plan, run};
use crate::driver::{self, CompileError, Compiled};
use crate::program::ProgramDir;
use crate::report;
use intwain_ir::Graph;
use intwain_passes::Timings;
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{self, PlaceError, Strategy};

pub(crate) fn inspect(a: &InspectArgs, common: &Common) -> Result<(), Failure> {
    let common = &Common { json: common.json || a.format == Format::Json, ..common.clone() };
    if a.model.model.is_dir() {
        return directory(a, common);
    }
    let hardware = plan::hardware(&a.target)?;
    if let Some(pass) = &a.after {
        known_pass(pass)?;
    }
    let model = run::open_architecture(&a.model, common)?;
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    if let Some(layer) = &a.why {
        let graph = plan::prepared(&model, a.batch, &mut timings)?;
        let why = timings.time("why", || report::why(&graph, &hardware, &plan::options(&a.target), layer))?;
        drop(progress);
        output::times(common, &timings);
        return output::report(&why, common);
    }
    let graph = timings.time("read", || model.graph(a.batch))?;
    let mut dump = Dump { pass: a.after.as_deref(), graphs: Vec::new() };
    let compiled = compile(graph, &hardware, &a.target, &mut timings, &mut dump)?;
    drop(progress);
    output::times(common, &timings);
    match &a.after {
        Some(_) => dump.print(common),
        None => output::report(&report::placement(&compiled, &hardware, a.target.split.strategy()), common),
    }
}

/// Compiles as the flags ask.
pub(crate) fn compile(
    graph: Graph,
    hardware: &Hardware,
    a: &super::args::TargetArgs,
    timings: &mut Timings,
    dump: &mut Dump<'_>,
) -> Result<Compiled, Failure> {
    let graph = driver::prepare(graph, timings, &mut |name, g| dump.see(name, g))?;
    let options = plan::options(a);
    let plan = match driver::plan(&graph, hardware, options.clone(), timings) {
        Err(CompileError::Place(PlaceError::CannotSplit { .. })) if a.allow_one => {
            let one = place::Options { strategy: Some(Strategy::One), ..options };
            driver::plan(&graph, hardware, one, timings)?
        }
        plan => plan?,
    };
    Ok(driver::lower(graph, plan, &crate::kernels::target(), timings, &mut |name, g| dump.see(name, g))?)
}

/// A program directory's placement, as it was written with the program.
fn directory(a: &InspectArgs, common: &Common) -> Result<(), Failure> {
    if a.after.is_some() || a.why.is_some() {
        let flag = if a.after.is_some() { "--after" } else { "--why" };
        return Err(Failure::file(
            &a.model.model,
            format!("{flag} needs the model; a program has been planned already"),
        ));
    }
    let dir = ProgramDir::open(&a.model.model)?;
    dir.warnings().iter().for_each(|w| output::note(common, w));
    let full = dir.manifest().variants.first();
    match full.filter(|_| common.json) {
        Some(variant) => output::json(&variant.placement),
        None => output::print(dir.placement()),
    }
}

/// Keeps the graphs after a pass.
pub(crate) struct Dump<'a> {
    pub(crate) pass: Option<&'a str>,
    pub(crate) graphs: Vec<String>,
}

impl Dump<'_> {
    fn see(&mut self, name: &str, graph: &Graph) {
        if self.pass == Some(name) {
            self.graphs.push(graph.to_string());
        }
    }

    fn print(&self, common: &Common) -> Result<(), Failure> {
        if common.json { output::json(&self.graphs) } else { output::print(&self.graphs.join("\n\n")) }
    }
}

/// Refuses a pass that does not exist.
fn known_pass(name: &str) -> Result<(), Failure> {
    let passes = driver::passes();
    if passes.iter().any(|(n, _)| *n == name) {
        return Ok(());
    }
    let list: Vec<String> = passes.iter().map(|(n, doc)| format!("  {n:<16} {doc}")).collect();
    Err(Failure::Input(format!("--after {name}: no such pass; there are, in order:\n{}", list.join("\n"))))
}
