//! `intwain compile`.

use super::args::{Common, CompileArgs};
use super::output::{self, Progress};
use super::{Failure, plan, run};
use crate::build::{self, Request};
use crate::program;
use intwain_passes::Timings;

pub(crate) fn compile(a: &CompileArgs, common: &Common) -> Result<(), Failure> {
    let request = Request { precision: a.precision, ..plan::request(&a.target, a.batch[0])? };
    program::compiles_for(&a.output, &request.hardware)?;
    let model = run::open(&a.model, common)?;
    let progress = Progress::start(common, "compiling");
    let mut timings = Timings::default();
    let manifest = build::write(&a.output, &model, &request, &a.batch[1..], &mut timings)?;
    drop(progress);
    output::times(common, &timings);
    if common.json {
        return output::json(&manifest);
    }
    let rows: Vec<String> = manifest.variants.iter().filter_map(|v| v.rows).map(|r| r.to_string()).collect();
    let rows = if rows.is_empty() { String::new() } else { format!(", {} rows a call", rows.join(" or ")) };
    let split = manifest.variants.first().map_or("", |v| v.strategy.as_str());
    let (model, machine) = (&manifest.model, &manifest.hardware.name);
    output::note(common, &format!("{}: {model} on {machine}, {split}{rows}", a.output.display()));
    Ok(())
}
