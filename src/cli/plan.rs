//! `intwain plan`.

use super::args::{Common, PlanArgs, TargetArgs};
use super::output::{self, Progress};
use super::step::{self, Wanted};
use super::{Failure, run};
use crate::build::{self, Request};
use crate::cuda;
use crate::report;
use crate::runtime::{DeviceKind, Devices};
use crate::session::Fallback;
use intwain_codegen::schedule::gpu::Precision;
use intwain_passes::hardware::{Catalogue, Hardware};
use intwain_passes::place::{self, Survey};
use intwain_passes::{Numerics, Timings};
use std::path::Path;

pub(crate) fn plan(a: &PlanArgs, common: &Common) -> Result<(), Failure> {
    if step::is_meant(&a.training)? {
        return plan_step(a, common);
    }
    let request = request(&a.target, a.batch)?;
    let model = run::open_architecture(&a.model, common)?;
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    let report = build::plan(&model, &request, &mut timings)?;
    drop(progress);
    output::times(common, &timings);
    output::report(&report, common)
}

/// Compares strategies for a step of training.
fn plan_step(a: &PlanArgs, common: &Common) -> Result<(), Failure> {
    let model = run::open_architecture(&a.model, common)?;
    let sizes = (a.batch, a.model.seed, Precision::default());
    let wanted = Wanted::new(&model, &a.training, &a.target, sizes, common)?;
    let assembler = wanted.assembler(&model);
    let progress = Progress::start(common, "planning");
    let mut timings = Timings::default();
    let planned = assembler.plan(wanted.batch(), Survey::All, &mut timings)?;
    let asked = a.target.split.strategy();
    let mut report = report::plan(&planned.step.graph, &planned.plan, &assembler.hardware(), asked);
    (report.batch, report.training) = (Some(a.batch), Some(wanted.report(&model, &planned)));
    drop(progress);
    output::times(common, &timings);
    output::report(&report, common)
}

/// What the flags ask for.
pub(crate) fn request(a: &TargetArgs, rows: usize) -> Result<Request, Failure> {
    Ok(Request {
        hardware: machine(a.hardware.as_deref())?,
        options: place::Options {
            strategy: a.split.strategy(),
            parts: a.parts,
            numerics: if a.no_exact { Numerics::Free } else { Numerics::EXACT },
            ..place::Options::default()
        },
        fallback: if a.allow_one { Fallback::One } else { Fallback::Refuse },
        rows,
        precision: Precision::default(),
    })
}

/// A machine of the catalogue or of a TOML file, else the GPUs of this one.
pub(crate) fn machine(name: Option<&str>) -> Result<Hardware, Failure> {
    let catalogue = Catalogue::built_in();
    let Some(name) = name else {
        let gpus = Devices::found(2);
        if gpus.kind() == DeviceKind::Cuda {
            return cuda::machine(gpus.ordinals()).map_err(|e| Failure::Input(e.to_string()));
        }
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
