//! `intwain run`.

use super::args::{Common, DeviceArgs, ModelArgs, RunArgs, Split};
use super::output::{self, Progress};
use super::{Failure, data, plan};
use crate::frontend::{ByName, TrainingPhase};
use crate::model::{Matching, Model, ModelOptions, WeightOrigin};
use crate::program::{ProgramDir, ProgramSession};
use crate::runtime::{DeviceKind, Devices, HostOptions};
use crate::session::{Fallback, Session, SessionOptions};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::Tensor;
use intwain_passes::buckets::Buckets;
use intwain_passes::hardware::Hardware;
use intwain_passes::place::Sharding;
use intwain_passes::{Numerics, Timings};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Reads the model that the flags name.
pub(crate) fn open(a: &ModelArgs, common: &Common) -> Result<Model, Failure> {
    if a.model.is_dir() {
        return Err(Failure::file(&a.model, "is a directory; this takes the file of a model"));
    }
    let options = ModelOptions {
        weights: a.weights.clone(),
        matching: if a.by_name { Matching::LayerNames } else { Matching::File },
        seed: a.seed,
        shapes: a.shape.iter().cloned().collect(),
        float: a.dtype,
    };
    let model = Model::open(&a.model, options)?;
    if model.weight_origin() == WeightOrigin::Initialised && !common.quiet {
        output::note(common, &format!("{}: no weights; initialised from seed {}", a.model.display(), a.seed));
    }
    if let (Some(report), Some(file)) = (model.by_name(), &a.weights) {
        output::note(common, &format!("{}: {}", file.display(), by_name(report, a.seed)));
    }
    Ok(model)
}

/// What loading by name came to, in a line.
fn by_name(report: &ByName, seed: u64) -> String {
    const SHOWN: usize = 8;
    let list = |names: &[String]| {
        let more = names.len().saturating_sub(SHOWN);
        let shown = names[..names.len() - more].join(", ");
        if more > 0 { format!("{shown} and {more} more") } else { shown }
    };
    let part = |what: &str, names: &[String]| (!names.is_empty()).then(|| format!("{what} {}", list(names)));
    let parts = [
        part("by name", &report.loaded).or_else(|| Some("no layer by name".to_string())),
        part(&format!("not in the file, initialised from seed {seed}:"), &report.initial),
        part("not in the model:", &report.unused),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Reads the model that the flags name, for commands that do not look at its weights.
pub(crate) fn open_architecture(a: &ModelArgs, common: &Common) -> Result<Model, Failure> {
    open(a, &Common { quiet: true, ..common.clone() })
}

/// The devices that the flags name, else GPUs where there are any, else two CPU devices.
pub(crate) fn devices(a: &DeviceArgs) -> Devices {
    a.devices.clone().unwrap_or_else(|| Devices::found(2))
}

/// The machine to plan for that the flags name.
pub(crate) fn planned_for(a: &DeviceArgs) -> Result<Option<Hardware>, Failure> {
    a.hardware.as_deref().map(|name| plan::machine(Some(name))).transpose()
}

/// How the flags say that this machine executes programs.
pub(crate) fn host(a: &DeviceArgs) -> HostOptions {
    HostOptions { threads: a.threads, effects: a.effects }
}

/// The devices, split and batch that the flags name.
pub(crate) fn session_options(a: &DeviceArgs) -> Result<SessionOptions, Failure> {
    Ok(SessionOptions {
        devices: devices(a),
        threads: a.threads,
        effects: a.effects,
        precision: a.precision,
        hardware: planned_for(a)?,
        split: a.split.strategy(),
        fallback: if a.allow_one { Fallback::One } else { Fallback::Refuse },
        parts: a.parts,
        batch: a.batch,
        numerics: numerics(a)?,
        sharding: Sharding::default(),
        buckets: Buckets::default(),
    })
}

/// What the flags say of sums over rows.
fn numerics(a: &DeviceArgs) -> Result<Option<Numerics>, Failure> {
    let devices = devices(a);
    match (a.exact, a.no_exact) {
        (true, _) if devices.kind() != DeviceKind::Cpu => Err(Failure::Input(format!(
            "--exact: {devices} may sum in an order that depends on the number of rows; cpu devices do not"
        ))),
        (true, _) => Ok(Some(Numerics::EXACT)),
        (false, true) => Ok(Some(Numerics::Free)),
        (false, false) => Ok(None),
    }
}

pub(crate) fn run(a: &RunArgs, common: &Common) -> Result<(), Failure> {
    if a.model.model.is_dir() {
        return directory(a, common);
    }
    let mut model = open(&a.model, common)?;
    data::close(&a.inputs, &mut model)?;
    let inputs = data::read_inputs(&a.inputs, &model.graph(1)?, common)?;
    let mut session = Session::new(&model, session_options(&a.devices)?)?;
    let progress = Progress::start(common, "running");
    if a.training {
        let phase = TrainingPhase { seed: a.model.seed, ..TrainingPhase::default() };
        let (outputs, seconds) = repeat(a, || {
            let call = session.training_call(&inputs, &phase).map_err(|e| Failure::running(&a.inputs, e))?;
            let weights = call.weights.into_iter().enumerate().map(|(j, (_, value))| (format!("tw{j}"), value));
            Ok(call.outputs.into_iter().chain(weights).collect())
        })?;
        drop(progress);
        output::times(common, &session.timings);
        return finish(a, common, &outputs, seconds);
    }
    let (outputs, seconds) = repeat(a, || {
        // Every repetition begins as the first one did.
        session.reset_states()?;
        session.run(&inputs).map_err(|e| Failure::running(&a.inputs, e))
    })?;
    drop(progress);
    describe(&session, common);
    output::times(common, &session.timings);
    finish(a, common, &outputs, seconds)
}

/// With `-v`, says on stderr what was chosen and what it takes.
fn describe(session: &Session<'_>, common: &Common) {
    if !common.verbose {
        return;
    }
    for (rows, c) in session.programs() {
        let commands: Vec<String> = c.programs.iter().map(|p| p.step.len().to_string()).collect();
        let devices = c.programs.len();
        let (strategy, commands) = (c.plan.strategy, commands.join(" and "));
        output::note(common, &format!("{rows} rows a call: {strategy} on {devices} device(s), {commands} commands"));
    }
    let megabytes = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
    let memory = session.memory();
    let mut held: Vec<String> = memory.devices.iter().map(|b| megabytes(*b)).collect();
    if memory.shared > 0 {
        held.push(format!("{} of weights that they share", megabytes(memory.shared)));
    }
    output::note(common, &format!("memory of the devices: {}", held.join(", ")));
}

/// Opens the program directory that the flags name, unless they ask for what it has decided already.
pub(crate) fn program(model: &ModelArgs, devices: &DeviceArgs, common: &Common) -> Result<ProgramDir, Failure> {
    let planned = [
        ("--by-name", model.by_name),
        ("--seed", model.seed != 0),
        ("--shape", !model.shape.is_empty()),
        ("--dtype", model.dtype.is_some()),
        ("--split", devices.split != Split::Auto),
        ("--allow-one", devices.allow_one),
        ("--parts", devices.parts.is_some()),
        ("--batch", devices.batch.is_some()),
        ("--hardware", devices.hardware.is_some()),
        ("--precision", devices.precision != Precision::F32),
    ];
    let path = &model.model;
    if let Some((flag, _)) = planned.iter().find(|(_, given)| *given) {
        return Err(Failure::file(path, format!("is a program, for which {flag} was decided when it was compiled")));
    }
    let dir = ProgramDir::open(path)?;
    dir.warnings().iter().for_each(|w| output::note(common, w));
    Ok(dir)
}

/// Runs a program directory.
fn directory(a: &RunArgs, common: &Common) -> Result<(), Failure> {
    if a.training {
        let why = "is a program, which was compiled for inference; --training takes the file of a model";
        return Err(Failure::file(&a.model.model, why));
    }
    let mut timings = Timings::default();
    let mut dir = timings.time("open", || program(&a.model, &a.devices, common))?;
    if let Some(weights) = &a.model.weights {
        dir = dir.with_weights(weights)?;
    }
    let devices = a.devices.devices.clone().unwrap_or_else(|| dir.best_devices());
    let mut session = ProgramSession::new(&dir, &devices, host(&a.devices))?;
    let inputs = data::read_inputs(&a.inputs, session.signature(), common)?;
    let progress = Progress::start(common, "running");
    let (outputs, seconds) = repeat(a, || {
        session.reset_states()?;
        Ok(session.run(&inputs)?)
    })?;
    drop(progress);
    output::times(common, &timings);
    finish(a, common, &outputs, seconds)
}

type Outputs = Vec<(String, Tensor)>;

/// Runs once, and as often again as the flags ask, taking the time.
fn repeat(a: &RunArgs, mut run: impl FnMut() -> Result<Outputs, Failure>) -> Result<(Outputs, Vec<f64>), Failure> {
    let mut outputs = run()?;
    let mut seconds = Vec::new();
    for _ in 0..a.repeat.unwrap_or(0) {
        let start = Instant::now();
        outputs = run()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok((outputs, seconds))
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    repeat: Option<Times>,
    outputs: Vec<Summary>,
}

/// Steady-state time of a run.
#[derive(Debug, Serialize)]
pub(crate) struct Times {
    median_ms: f64,
    p10_ms: f64,
    p90_ms: f64,
    runs: usize,
    /// Every run, in order.
    seconds: Vec<f64>,
}

/// An output at a glance.
#[derive(Debug, Serialize)]
struct Summary {
    name: String,
    #[serde(rename = "type")]
    ty: String,
    min: f64,
    mean: f64,
    max: f64,
    first: Vec<f64>,
}

fn finish(a: &RunArgs, common: &Common, outputs: &Outputs, seconds: Vec<f64>) -> Result<(), Failure> {
    if let Some(path) = &a.outputs {
        data::write_outputs(path, outputs)?;
    }
    let repeat = times(seconds);
    let summaries: Vec<Summary> = outputs.iter().map(|(name, t)| summary(name, t)).collect();
    if common.json {
        return output::json(&Document { repeat, outputs: summaries });
    }
    let mut lines: Vec<String> = repeat.iter().map(ToString::to_string).collect();
    if a.outputs.is_none() {
        lines.extend(summaries.iter().map(ToString::to_string));
    }
    if lines.is_empty() { Ok(()) } else { output::print(&lines.join("\n")) }
}

pub(crate) fn times(seconds: Vec<f64>) -> Option<Times> {
    let mut sorted = seconds.clone();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |q: f64| sorted[(last as f64 * q).round() as usize] * 1e3;
    Some(Times { median_ms: at(0.5), p10_ms: at(0.1), p90_ms: at(0.9), runs: seconds.len(), seconds })
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { median_ms, p10_ms, p90_ms, runs, .. } = self;
        write!(f, "median {median_ms:.3} ms, 10 % below {p10_ms:.3} ms, 90 % below {p90_ms:.3} ms, {runs} runs")
    }
}

/// Shape, type, range and first values of an output.
fn summary(name: &str, t: &Tensor) -> Summary {
    let values = t.to_f64();
    let sum: f64 = values.iter().sum();
    Summary {
        name: name.to_string(),
        ty: t.ty.to_string(),
        min: values.iter().copied().fold(f64::INFINITY, f64::min),
        mean: sum / values.len().max(1) as f64,
        max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        first: values.iter().take(5).copied().collect(),
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { name, ty, min, mean, max, first } = self;
        let first: Vec<String> = first.iter().map(|v| format!("{v:.6}")).collect();
        write!(f, "{name}: {ty} min {min:.6} mean {mean:.6} max {max:.6} first {}", first.join(" "))
    }
}
