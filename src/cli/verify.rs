//! `intwain verify`.

use super::args::{Common, VerifyArgs};
use super::output::{self, Progress};
use super::train::Opened;
use super::{Failure, run, step};
use crate::program::ProgramDir;
use crate::session::SessionOptions;
use crate::train::assemble::BatchTypes;
use crate::verify::{self, TrainingStep, VerifyOptions, VerifyReport};
use intwain_codegen::schedule::gpu::Precision;
use intwain_passes::Timings;

/// Rows of a call where nothing says how many: an odd number, so that parts are unequal.
const BATCH: usize = 5;

pub(crate) fn verify(a: &VerifyArgs, common: &Common) -> Result<(), Failure> {
    let training = step::is_meant(&a.training)?;
    if a.devices.precision != Precision::F32 {
        return Err(Failure::Input("what is compared must be exact: verify runs in --precision f32 only".to_string()));
    }
    let mut options = VerifyOptions {
        strategies: a.devices.split.strategy().into_iter().collect(),
        parts: a.devices.parts,
        devices: run::devices(&a.devices),
        hardware: run::planned_for(&a.devices)?,
        host: run::host(&a.devices),
        ..VerifyOptions::default()
    };
    let progress = Progress::start(common, "reading");
    let mut timings = Timings::default();
    let report = if training {
        let model = run::open_architecture(&a.model, common)?;
        let session = SessionOptions { sharding: a.training.step.zero.into(), ..run::session_options(&a.devices)? };
        let asked = step::asked(&model, &a.training.step, a.model.seed, session.numerics())?;
        let batch = step::batch(&model, &asked, &a.training, a.devices.batch.unwrap_or(BATCH), common)?;
        let step = TrainingStep { model: &model, recipe: &asked.recipe, batch: &batch, session: &session };
        verify::verify_training(step, &options, &mut timings, &mut |what| progress.say(what))?
    } else if a.model.model.is_dir() {
        let dir = run::program(&a.model, &a.devices, common)?;
        if a.model.weights.is_some() {
            let problem = "is verified on small integers; leave --weights out";
            return Err(Failure::file(&a.model.model, problem));
        }
        options.devices = a.devices.devices.clone().unwrap_or_else(|| dir.best_devices());
        if dir.manifest().training.is_some() {
            return verify_program(a, &dir, &options, common);
        }
        verify::verify_directory(&dir, &options, &mut timings, &mut |what| progress.say(what))?
    } else {
        let model = run::open_architecture(&a.model, common)?;
        let graph = model.graph(a.devices.batch.unwrap_or(BATCH))?;
        verify::verify(&graph, &options, &mut timings, &mut |what| progress.say(what))?
    };
    drop(progress);
    output::times(common, &timings);
    tell(a, &report, common)
}

/// Verifies a program of training.
fn verify_program(a: &VerifyArgs, dir: &ProgramDir, options: &VerifyOptions, common: &Common) -> Result<(), Failure> {
    dir.fits(&options.devices)?;
    let opened = Opened::new(dir, &a.model, &a.devices)?;
    let (rows, labels, weights) = (1, Vec::new(), Vec::new());
    let batch = BatchTypes { rows, labels, weights };
    let (recipe, session) = (&opened.asked.recipe, &opened.session);
    let step = TrainingStep { model: &opened.model, recipe, batch: &batch, session };
    let progress = Progress::start(common, "reading");
    let mut timings = Timings::default();
    let report = verify::verify_training_directory(dir, step, options, &mut timings, &mut |what| progress.say(what))?;
    drop(progress);
    output::times(common, &timings);
    tell(a, &report, common)
}

/// Prints the report; what is not verified is a defect.
fn tell(a: &VerifyArgs, report: &VerifyReport, common: &Common) -> Result<(), Failure> {
    output::report(report, common)?;
    if report.verified {
        return Ok(());
    }
    let bad = report.programs.iter().filter(|p| !p.verified).map(|p| p.strategy.clone()).collect::<Vec<_>>().join(", ");
    Err(Failure::Defect(format!("{}: the split program is not equal to the whole one: {bad}", a.model.model.display())))
}
