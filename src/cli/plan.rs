//! `intwain plan`.

use super::args::{Common, PlanArgs, TargetArgs};
use super::output::{self, Progress};
use super::{Failure, run};
use crate::driver;
use crate::model::Model;
use crate::report;
use intwain_ir::Graph;
use intwain_passes::Timings;
use intwain_passes::hardware::{Catalogue, Hardware};
use intwain_passes::place;
use std::path::Path;

pub(crate) fn plan(a: &PlanArgs, common: &Common) -> Result<(), Failure> {
    let hardware = hardware(&a.target)?;
    let model = run::open_architecture(&a.model, common)?;
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    let graph = prepared(&model, a.batch, &mut timings)?;
    let asked = a.target.split.strategy();
    let plan = driver::plan(&graph, &hardware, options(&a.target), &mut timings)?;
    drop(progress);
    output::times(common, &timings);
    output::report(&report::plan(&graph, &plan, &hardware, asked), common)
}

/// The model's graph after the passes before placement.
pub(crate) fn prepared(model: &Model, batch: usize, timings: &mut Timings) -> Result<Graph, Failure> {
    let graph = timings.time("read", || model.graph(batch))?;
    Ok(driver::prepare(graph, timings, &mut |_, _| {})?)
}

/// What the flags ask of the planner.
pub(crate) fn options(a: &TargetArgs) -> place::Options {
    place::Options { strategy: a.split.strategy(), parts: a.parts, ..place::Options::default() }
}

/// The machine that the flags name.
pub(crate) fn hardware(a: &TargetArgs) -> Result<Hardware, Failure> {
    machine(a.hardware.as_deref())
}

/// A machine of the catalogue, or of a TOML file.
pub(crate) fn machine(name: Option<&str>) -> Result<Hardware, Failure> {
    let catalogue = Catalogue::built_in();
    let Some(name) = name else {
        let names: Vec<&str> = catalogue.names().collect();
        return Err(Failure::Input(format!(
            "no GPU was found to plan for; name a machine with --hardware: {}, or a TOML file",
            names.join(", ")
        )));
    };
    let path = Path::new(name);
    let is_file = name.contains(std::path::MAIN_SEPARATOR) || path.extension().is_some_and(|e| e == "toml");
    if !is_file && !path.is_file() {
        return Ok(catalogue.get(name)?);
    }
    let text = std::fs::read_to_string(path).map_err(|e| Failure::file(path, format!("cannot be read: {e}")))?;
    Ok(catalogue.read(name, &text)?)
}
