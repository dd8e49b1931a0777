//! `intwain verify`.

use super::args::{Common, VerifyArgs};
use super::output::{self, Progress};
use super::{Failure, run};
use crate::verify::{self, VerifyOptions};
use intwain_codegen::schedule::gpu::Precision;
use intwain_passes::Timings;

/// Rows of a call where nothing says how many: an odd number, so that parts are unequal.
const BATCH: usize = 5;

pub(crate) fn verify(a: &VerifyArgs, common: &Common) -> Result<(), Failure> {
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
    let report = if a.model.model.is_dir() {
        let dir = run::program(&a.model, &a.devices, common)?;
        if a.model.weights.is_some() {
            let problem = "is verified on small integers; leave --weights out";
            return Err(Failure::file(&a.model.model, problem));
        }
        options.devices = a.devices.devices.clone().unwrap_or_else(|| dir.best_devices());
        verify::verify_directory(&dir, &options, &mut timings, &mut |what| progress.say(what))?
    } else {
        let model = run::open_architecture(&a.model, common)?;
        let graph = model.graph(a.devices.batch.unwrap_or(BATCH))?;
        verify::verify(&graph, &options, &mut timings, &mut |what| progress.say(what))?
    };
    drop(progress);
    output::times(common, &timings);
    output::report(&report, common)?;
    if report.verified {
        return Ok(());
    }
    let bad = report.programs.iter().filter(|p| !p.verified).map(|p| p.strategy.clone()).collect::<Vec<_>>().join(", ");
    Err(Failure::Defect(format!("{}: the split program is not equal to the whole one: {bad}", a.model.model.display())))
}
