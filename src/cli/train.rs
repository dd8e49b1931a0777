//! `intwain train` and `intwain evaluate`.

use super::args::{Common, DeviceArgs, EvaluateArgs, ModelArgs, TrainArgs};
use super::output::{self, StepBar};
use super::run;
use super::step::{self, Asked};
use super::{Failure, train_files};
use crate::model::Model;
use crate::program::ProgramDir;
use crate::session::{Fallback, SessionOptions};
use crate::train::assemble::Assembler;
use crate::train::config::Said;
use crate::train::data::{Data, Port, Shuffle};
use crate::train::fit::{self, Better, EarlyStop, EpochReport, FitOptions, Flow, History, Names, StepReport, Watcher};
use crate::train::metric::Measured;
use crate::train::recipe;
use crate::train::trainer::{Batch, TrainError, Trainer};
use crate::train::weights::class_weights;
use intwain_ir::{Shape, Type};
use intwain_passes::Numerics;
use intwain_passes::hardware::Catalogue;
use serde_json::{Map, Value, json};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Rows of a step where nobody says.
const BATCH: usize = 32;

pub(crate) fn train(a: &TrainArgs, common: &Common) -> Result<(), Failure> {
    if a.output.is_none() && a.checkpoint.is_none() && a.repeat.is_none() && a.emit_ptx.is_none() {
        return Err(Failure::Usage("nothing would be kept: give -o OUT.keras, or --checkpoint DIR".to_string()));
    }
    if a.model.model.is_dir() {
        return directory(a, common);
    }
    let model = run::open(&a.model, common)?;
    let session = SessionOptions { sharding: a.step.zero.into(), ..run::session_options(&a.devices)? };
    let asked = step::asked(&model, &a.step, a.model.seed, session.numerics())?;
    let rows = batch(a.devices.batch);
    step::refuse_unequal(Assembler { model: &model, recipe: &asked.recipe, options: &session }, rows.get())?;
    let trainer = Trainer::new(&model, asked.recipe, session)?;
    let run = Run { said: asked.said, names: asked.names, batch: rows, seed: a.model.seed };
    train_with(a, &run, trainer, common)
}

/// Trains with the programs of a directory.
fn directory(a: &TrainArgs, common: &Common) -> Result<(), Failure> {
    step::refuse_decided(&a.model.model, &a.step, &a.devices)?;
    let dir = run::program(&a.model, &a.devices, common)?;
    let Opened { model, asked, session, seed } = Opened::new(&dir, &a.model, &a.devices)?;
    let trainer = Trainer::new(&model, asked.recipe, session)?.with_programs(&dir)?;
    let rows = dir.manifest().variants.first().and_then(|v| v.rows);
    let run = Run { said: asked.said, names: asked.names, batch: batch(rows), seed };
    train_with(a, &run, trainer, common)
}

/// What a program of training was compiled from.
pub(crate) struct Opened {
    pub(crate) model: Model,
    pub(crate) asked: Asked,
    pub(crate) session: SessionOptions,
    seed: u64,
}

impl Opened {
    /// Reads the directory's model and flags.
    pub(crate) fn new(dir: &ProgramDir, model: &ModelArgs, devices: &DeviceArgs) -> Result<Opened, Failure> {
        let model = dir.trained_model(model.weights.as_deref())?;
        let (step, target) = step::read(dir)?;
        let manifest = dir.manifest();
        // Sums are made as they were when it was compiled, whatever runs it.
        let free = target.no_exact || !manifest.modules.is_empty();
        let mut session = SessionOptions {
            devices: devices.devices.clone().unwrap_or_else(|| dir.best_devices()),
            precision: dir.precision()?,
            hardware: Catalogue::built_in().get(&manifest.hardware.name).ok(),
            split: target.split.strategy(),
            fallback: if target.allow_one { Fallback::One } else { Fallback::Refuse },
            parts: target.parts,
            numerics: Some(if free { Numerics::Free } else { Numerics::EXACT }),
            sharding: step.zero.into(),
            ..run::session_options(devices)?
        };
        // A program that the planner put on one device takes one, whatever was asked for.
        if session.devices.count() == 1 {
            session.split = None;
        }
        let seed = manifest.training.as_ref().map_or(0, |t| t.seed);
        let asked = step::asked(&model, &step, seed, session.numerics())?;
        Ok(Opened { model, asked, session, seed })
    }
}

/// What a training needs beside its trainer.
struct Run {
    said: Said,
    names: Names,
    batch: NonZeroUsize,
    seed: u64,
}

fn train_with(a: &TrainArgs, run: &Run, mut trainer: Trainer<'_>, common: &Common) -> Result<(), Failure> {
    let model = trainer.model();
    let Run { said, names, batch, seed } = run;
    let ports = Ports::of(model, names)?;
    let data = weighed(ports.open(&a.data, &trainer.judged(), common)?, a.class_weight.as_deref())?;
    let (data, validation) = match (a.validation_split, a.validation_data.is_empty()) {
        (Some(share), _) => data.split(share).map(|(data, rest)| (data, Some(rest))).map_err(Failure::input)?,
        (None, false) => (data, Some(ports.open(&a.validation_data, &trainer.judged(), common)?)),
        (None, true) => (data, None),
    };
    let options = FitOptions {
        epochs: a.epochs,
        batch: *batch,
        shuffle: if a.no_shuffle { Shuffle::Off } else { Shuffle::Rows },
        seed: *seed,
        early_stop: a.early_stop.map(|patience| EarlyStop {
            monitor: a.monitor.clone(),
            patience,
            min_delta: 0.0,
            better: Better::ByName,
        }),
    };
    if let Some(dir) = &a.emit_ptx {
        let first = first_batch(&trainer, &data, names, &options)?;
        return emit_ptx(&mut trainer, &first, dir);
    }
    if let Some(steps) = a.repeat {
        return repeat(&mut trainer, &data, names, &options, steps, common);
    }
    let mut history = History::default();
    let mut files = train_files::Files::new(a, model, said, &trainer, &options, data.rows())?;
    let first = first_batch(&trainer, &data, names, &options)?;
    if said.optimizer.is_none() {
        trainer.take_up(&first)?;
    }
    files.begin(&mut trainer, &first, &mut history, common)?;
    drop(first);
    let mut show = Show { bar: StepBar::new(common), common, files: &files };
    fit::fit(&mut trainer, &data, validation.as_ref(), names, &options, &mut history, &mut show)?;
    let stopped = show.files.interrupted();
    drop(show);
    output::times(common, &trainer.timings);
    files.finish(&mut trainer, &history)?;
    if stopped { Err(Failure::Interrupted) } else { Ok(()) }
}

pub(crate) fn evaluate(a: &EvaluateArgs, common: &Common) -> Result<(), Failure> {
    let model = run::open(&a.model, common)?;
    let judging = recipe::judging(&model, &step::said(&a.said, None))?;
    let mut trainer = Trainer::judging(&model, judging.objectives, run::session_options(&a.devices)?)?;
    let ports = Ports::of(&model, &judging.names)?;
    let data = ports.open(&a.data, &trainer.judged(), common)?;
    let progress = output::Progress::start(common, "evaluating");
    let values = fit::evaluate(&mut trainer, &data, &judging.names, batch(a.devices.batch))?;
    drop(progress);
    output::times(common, &trainer.timings);
    if common.json { output::json(&document(&values)) } else { output::print(&line(&values)) }
}

fn batch(asked: Option<usize>) -> NonZeroUsize {
    NonZeroUsize::new(asked.unwrap_or(BATCH)).unwrap_or(NonZeroUsize::MIN)
}

/// The inputs and outputs of a model, for data to be found by.
pub(crate) struct Ports {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

impl Ports {
    pub(crate) fn of(model: &Model, names: &Names) -> Result<Ports, Failure> {
        let graph = model.graph(1)?;
        let row = |ty: &Type| ty.with_shape(Shape::new(ty.shape.iter().skip(1).copied()));
        let port = |(number, (name, ty)): (usize, (&str, &Type))| Port { name: name.to_string(), number, row: row(ty) };
        let inputs = graph.inputs().map(|p| (&*p.name, graph.ty(p.value)));
        let outputs = names.outputs().iter().zip(&graph.outputs).map(|(name, o)| (name.as_str(), graph.ty(o.value)));
        Ok(Ports { inputs: inputs.enumerate().map(port).collect(), outputs: outputs.enumerate().map(port).collect() })
    }

    /// Opens data, and says what nothing takes.
    pub(crate) fn open(&self, paths: &[PathBuf], judged: &[usize], common: &Common) -> Result<Data, Failure> {
        let judged: Vec<Port> = judged.iter().map(|&i| self.outputs[i].clone()).collect();
        let data = Data::open(paths, &self.inputs, &judged).map_err(Failure::input)?;
        let place = paths[0].display();
        if !data.unused().is_empty() {
            output::note(common, &format!("{place}: nothing takes {}", data.unused().join(", ")));
        }
        for (name, what) in data.skipped() {
            output::note(common, &format!("{place}: `{name}` is skipped: it is {what}"));
        }
        Ok(data)
    }
}

fn weighed(data: Data, weights: Option<&str>) -> Result<Data, Failure> {
    let Some(text) = weights else { return Ok(data) };
    let weights = class_weights(text).map_err(|problem| Failure::Usage(format!("--class-weight: {problem}")))?;
    data.weigh_classes(weights).map_err(Failure::input)
}

/// The first rows of the data, as many as a step takes.
fn first_batch(trainer: &Trainer<'_>, data: &Data, names: &Names, options: &FitOptions) -> Result<Batch, Failure> {
    let rows: Vec<usize> = (0..options.batch.get().min(data.rows())).collect();
    let read = data.gather(&rows).map_err(Failure::input)?;
    Ok(fit::batch_of(read, &trainer.judged(), names.outputs().len()))
}

/// Writes the PTX of a step.
fn emit_ptx(trainer: &mut Trainer<'_>, batch: &Batch, dir: &Path) -> Result<(), Failure> {
    let modules = trainer.ptx(batch)?;
    let failed = |path: &Path, e: std::io::Error| Failure::file(path, e);
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    for (device, text) in modules.iter().enumerate() {
        let path = dir.join(format!("device{device}.ptx"));
        std::fs::write(&path, text.as_bytes()).map_err(|e| failed(&path, e))?;
    }
    Ok(())
}

/// Takes steps on the first batch and says how long they take.
fn repeat(
    trainer: &mut Trainer<'_>,
    data: &Data,
    names: &Names,
    options: &FitOptions,
    steps: usize,
    common: &Common,
) -> Result<(), Failure> {
    let batch = first_batch(trainer, data, names, options)?;
    trainer.step(&batch)?;
    let mut seconds = Vec::new();
    for _ in 0..steps {
        let start = Instant::now();
        trainer.step(&batch)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    output::times(common, &trainer.timings);
    run::times(seconds).map_or(Ok(()), |times| output::report(&times, common))
}

/// Shows progress and lets checkpoints be written.
struct Show<'a> {
    bar: StepBar,
    common: &'a Common,
    files: &'a train_files::Files<'a>,
}

impl Watcher for Show<'_> {
    fn on_step(
        &mut self,
        trainer: &mut Trainer<'_>,
        history: &History,
        step: &StepReport<'_>,
    ) -> Result<Flow, TrainError> {
        self.bar.step(step);
        self.files.on_step(trainer, history, step)
    }

    fn on_epoch(
        &mut self,
        trainer: &mut Trainer<'_>,
        history: &History,
        epoch: &EpochReport,
    ) -> Result<Flow, TrainError> {
        self.bar.aside(|| print_epoch(epoch, self.common)).map_err(|e| TrainError::Watcher(e.to_string()))?;
        self.files.on_epoch(trainer, history, epoch)
    }
}

/// A line for an epoch; with `--json` a document on a line.
fn print_epoch(epoch: &EpochReport, common: &Common) -> Result<(), Failure> {
    let seconds = epoch.elapsed.as_secs_f64();
    if common.json {
        let mut document = document(&epoch.values);
        document.insert("epoch".to_string(), json!(epoch.epoch + 1));
        document.insert("seconds".to_string(), json!(seconds));
        return output::print(&Value::Object(document).to_string());
    }
    if common.quiet {
        return Ok(());
    }
    output::print(&format!("epoch {}: {}, {seconds:.1} s", epoch.epoch + 1, line(&epoch.values)))
}

/// `loss 0.1234, accuracy 0.98`.
pub(crate) fn line(values: &[(String, Measured)]) -> String {
    let number = |x: &f64| format!("{x:.6}");
    let text = |(name, value): &(String, Measured)| {
        let numbers: Vec<String> = value.numbers().iter().map(number).collect();
        format!("{name} {}", numbers.join(" "))
    };
    values.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn document(values: &[(String, Measured)]) -> Map<String, Value> {
    let value = |m: &Measured| match m {
        Measured::One(x) => json!(x),
        Measured::Each(all) => json!(all),
    };
    values.iter().map(|(name, m)| (name.clone(), value(m))).collect()
}
