//! `intwain inspect`.

use super::args::{BATCH, Common, Format, InspectArgs, Split};
use super::output::{self, Progress};
use super::step::{self, Wanted};
use super::{Failure, plan, run};
use crate::program::ProgramDir;
use crate::{build, driver, report};
use intwain_codegen::schedule::gpu::Precision;
use intwain_passes::Timings;
use intwain_passes::place::{self, Strategy, Survey};

pub(crate) fn inspect(a: &InspectArgs, common: &Common) -> Result<(), Failure> {
    let common = &Common { json: common.json || a.format == Format::Json, ..common.clone() };
    if a.model.model.is_dir() {
        return directory(a, common);
    }
    if a.layers {
        let model = run::open_architecture(&a.model, common)?;
        return output::report(&report::layers(&model)?, common);
    }
    if step::is_meant(&a.training)? {
        return inspect_step(a, common);
    }
    let request = plan::request(&a.target, a.batch)?;
    a.after.as_deref().map_or(Ok(()), known_pass)?;
    let model = run::open_architecture(&a.model, common)?;
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    if let Some(layer) = &a.why {
        let why = build::why(&model, &request, layer, &mut timings)?;
        drop(progress);
        output::times(common, &timings);
        return output::report(&why, common);
    }
    let mut graphs: Vec<String> = Vec::new();
    let compiled = build::compile(&model, &request, &mut timings, &mut |pass, graph| {
        if a.after.as_deref() == Some(pass) {
            graphs.push(graph.to_string());
        }
    })?;
    drop(progress);
    output::times(common, &timings);
    match (&a.after, common.json) {
        (Some(_), true) => output::json(&graphs),
        (Some(_), false) => output::print(&graphs.join("\n\n")),
        (None, _) => output::report(&report::placement(&compiled, &request.hardware, request.asked()), common),
    }
}

/// What is where in a step of training.
fn inspect_step(a: &InspectArgs, common: &Common) -> Result<(), Failure> {
    a.after.as_deref().map_or(Ok(()), known_pass)?;
    let model = run::open_architecture(&a.model, common)?;
    let sizes = (a.batch, a.model.seed, Precision::default());
    let wanted = Wanted::new(&model, &a.training, &a.target, sizes, common)?;
    let (assembler, asked) = (wanted.assembler(&model), a.target.split.strategy());
    let hardware = assembler.hardware();
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    let planned = assembler.plan(wanted.batch(), Survey::Asked, &mut timings)?;
    if let Some(layer) = &a.why {
        if planned.plan.strategy == Strategy::Pipeline {
            let why =
                "--why: a pipeline of training is cut where the model's is: leave --train out, or name another --split";
            return Err(Failure::Input(why.to_string()));
        }
        let options = place::Options {
            strategy: Some(planned.plan.strategy),
            parts: a.target.parts,
            numerics: assembler.numerics(a.batch),
            sharding: a.training.step.zero.into(),
            ..place::Options::default()
        };
        let why = report::why(&planned.step.graph, &hardware, &options, layer)?;
        drop(progress);
        output::times(common, &timings);
        return output::report(&why, common);
    }
    let mut training = wanted.report(&model, &planned);
    let mut graphs: Vec<String> = Vec::new();
    let compiled = assembler.lower_seen(planned, wanted.batch(), &mut timings, &mut |pass, graph| {
        if a.after.as_deref() == Some(pass) {
            graphs.push(graph.to_string());
        }
    })?;
    drop(progress);
    output::times(common, &timings);
    training.order = report::order(&compiled);
    match (&a.after, common.json) {
        (Some(_), true) => output::json(&graphs),
        (Some(_), false) => output::print(&graphs.join("\n\n")),
        (None, _) => {
            let mut report = report::placement(&compiled, &hardware, asked);
            (report.batch, report.training) = (Some(a.batch), Some(training));
            output::report(&report, common)
        }
    }
}

/// A program directory's placement, as it was written with the program.
fn directory(a: &InspectArgs, common: &Common) -> Result<(), Failure> {
    step::is_meant(&a.training)?;
    let model = [
        ("--train", a.training.train),
        ("--after", a.after.is_some()),
        ("--why", a.why.is_some()),
        ("--layers", a.layers),
        ("--hardware", a.target.hardware.is_some()),
        ("--split", a.target.split != Split::Auto),
        ("--allow-one", a.target.allow_one),
        ("--parts", a.target.parts.is_some()),
        ("--batch", a.batch != BATCH),
        ("--weights", a.model.weights.is_some()),
        ("--shape", !a.model.shape.is_empty()),
        ("--dtype", a.model.dtype.is_some()),
    ];
    if let Some((flag, _)) = model.iter().find(|(_, given)| *given) {
        let problem = format!("{flag} needs the model; a program has been planned already");
        return Err(Failure::file(&a.model.model, problem));
    }
    let dir = ProgramDir::open(&a.model.model)?;
    dir.warnings().iter().for_each(|w| output::note(common, w));
    let full = dir.manifest().variants.first();
    match full.filter(|_| common.json) {
        Some(variant) => output::json(&variant.placement),
        None => output::print(dir.placement()),
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
