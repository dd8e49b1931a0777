//! `intwain compile`.

use super::args::{Common, CompileArgs};
use super::output::{self, Progress};
use super::step::{self, Wanted};
use super::{Failure, plan, run};
use crate::build::{self, Request};
use crate::driver::Compiled;
use crate::program::{self, Manifest};
use crate::report::{self, PlacementReport};
use intwain_passes::Timings;
use intwain_passes::place::Survey;

pub(crate) fn compile(a: &CompileArgs, common: &Common) -> Result<(), Failure> {
    if step::is_meant(&a.training)? {
        return compile_step(a, common);
    }
    let request = Request { precision: a.precision, ..plan::request(&a.target, a.batch[0])? };
    program::compiles_for(&a.output, &request.hardware)?;
    let model = run::open(&a.model, common)?;
    let progress = Progress::start(common, "compiling");
    let mut timings = Timings::default();
    let manifest = build::write(&a.output, &model, &request, &a.batch[1..], &mut timings)?;
    drop(progress);
    output::times(common, &timings);
    finish(a, &manifest, common)
}

/// Writes a program of a step of training.
fn compile_step(a: &CompileArgs, common: &Common) -> Result<(), Failure> {
    let machine = plan::machine(a.target.hardware.as_deref())?;
    program::compiles_for(&a.output, &machine)?;
    let model = run::open(&a.model, common)?;
    let progress = Progress::start(common, "compiling");
    let mut timings = Timings::default();
    let mut compiled = Vec::new();
    for (i, &rows) in a.batch.iter().enumerate() {
        if a.batch[..i].contains(&rows) {
            continue;
        }
        let sizes = (rows, a.model.seed, a.precision);
        let wanted = Wanted::new(&model, &a.training, &a.target, sizes, common)?;
        let assembler = wanted.assembler(&model);
        let planned = assembler.plan(wanted.batch(), Survey::Asked, &mut timings)?;
        let mut training = wanted.report(&model, &planned);
        let (_, made) = assembler.lower(planned, &mut timings)?;
        training.order = report::order(&made);
        let mut placement = report::placement(&made, &machine, a.target.split.strategy());
        (placement.batch, placement.training) = (Some(rows), Some(training));
        compiled.push((made, placement));
    }
    let variants: Vec<(&Compiled, PlacementReport)> = compiled.iter().map(|(c, p)| (c, p.clone())).collect();
    let words = step::words(&a.training.step, &a.target);
    let target = (&machine, a.precision);
    let manifest = program::write_training(&a.output, &model, target, &variants, words, &mut timings)?;
    drop(progress);
    output::times(common, &timings);
    finish(a, &manifest, common)
}

/// Says what was written.
fn finish(a: &CompileArgs, manifest: &Manifest, common: &Common) -> Result<(), Failure> {
    if common.json {
        return output::json(manifest);
    }
    let what = if manifest.training.is_some() { "step of training" } else { "call" };
    let rows: Vec<String> = manifest.variants.iter().filter_map(|v| v.rows).map(|r| r.to_string()).collect();
    let rows = if rows.is_empty() { String::new() } else { format!(", {} rows a {what}", rows.join(" or ")) };
    let split = manifest.variants.first().map_or("", |v| v.strategy.as_str());
    let (model, machine) = (&manifest.model, &manifest.hardware.name);
    output::note(common, &format!("{}: {model} on {machine}, {split}{rows}", a.output.display()));
    Ok(())
}
