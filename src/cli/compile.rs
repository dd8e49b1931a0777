//! `intwain compile`.

use super::args::{Common, CompileArgs};
use super::inspect::Dump;
use super::output::{self, Progress};
use super::{Failure, inspect, plan, run};
use crate::driver::Compiled;
use crate::program;
use intwain_ir::{ParamKind, Rows};
use intwain_passes::Timings;

pub(crate) fn compile(a: &CompileArgs, common: &Common) -> Result<(), Failure> {
    let hardware = plan::hardware(&a.target)?;
    program::compiles_for(&a.output, &hardware)?;
    let model = run::open(&a.model, common)?;
    let progress = Progress::start(common, "compiling");
    let mut timings = Timings::default();
    let mut batches: Vec<usize> = Vec::new();
    for &batch in &a.batch {
        if !batches.contains(&batch) {
            batches.push(batch);
        }
    }
    let mut variants: Vec<Compiled> = Vec::new();
    for batch in batches {
        progress.say(&format!("compiling for {batch} rows"));
        let graph = timings.time("read", || model.graph(batch))?;
        let is_whole = |k: &ParamKind| matches!(k, ParamKind::Input { rows: Rows::Whole });
        let rowless = graph.inputs().all(|p| is_whole(&p.kind));
        let mut dump = Dump { pass: None, graphs: Vec::new() };
        variants.push(inspect::compile(graph, &hardware, &a.target, &mut timings, &mut dump)?);
        // Without a row axis every number of rows gives the same program.
        if rowless {
            break;
        }
    }
    progress.say("writing");
    let asked = a.target.split.strategy();
    let manifest = timings.time("write", || program::write(&a.output, &model, &hardware, &variants, asked))?;
    drop(progress);
    output::times(common, &timings);
    if common.json {
        return output::json(&manifest);
    }
    let rows: Vec<String> = variants.iter().filter_map(|v| v.rows()).map(|r| r.to_string()).collect();
    let rows = if rows.is_empty() { String::new() } else { format!(", {} rows a call", rows.join(" or ")) };
    let first = &variants[0];
    let split = first.plan.strategy;
    output::note(common, &format!("{}: {} on {}: {split}{rows}", a.output.display(), manifest.model, hardware.name));
    Ok(())
}
