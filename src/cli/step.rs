//! What a step of training does, from the flags that all commands share that speak of one.

use super::args::{BatchNorm, Common, DeviceArgs, SaidArgs, StepArgs, TargetArgs, TrainingArgs};
use super::train::Ports;
use super::{Failure, plan};
use crate::model::Model;
use crate::program::ProgramDir;
use crate::report::{self, TrainingReport};
use crate::runtime::{DeviceKind, Devices};
use crate::session::{Fallback, SessionOptions};
use crate::train::assemble::{Assembler, BatchTypes, Planned};
use crate::train::config::{Argument, Said};
use crate::train::fit::Names;
use crate::train::pieces::Sums;
use crate::train::recipe;
use crate::train::trainer::{Normalisation, Recipe};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::Type;
use intwain_passes::Numerics;
use intwain_passes::hardware;
use intwain_passes::turns::Schedule;
use std::num::NonZeroUsize;
use std::path::Path;

/// A step as the user wants it.
pub(crate) struct Asked {
    /// What is said in place of the file.
    pub(crate) said: Said,
    /// How the model is trained.
    pub(crate) recipe: Recipe,
    /// What is reported.
    pub(crate) names: Names,
}

/// What the flags and the model's file say.
pub(crate) fn asked(model: &Model, a: &StepArgs, seed: u64, numerics: Numerics) -> Result<Asked, Failure> {
    let said = said(&a.said, a.optimizer.as_ref());
    let (recipe, names) = recipe::recipe(model, &said, seed)?;
    let recipe = Recipe {
        sums: if numerics.is_exact() { Sums::Exact } else { Sums::Free },
        micro_batches: a.micro_batches.and_then(NonZeroUsize::new),
        schedule: a.schedule,
        normalisation: match a.bn {
            BatchNorm::Global => Normalisation::Global,
            BatchNorm::Device => Normalisation::Device,
            BatchNorm::MicroBatch => Normalisation::MicroBatch,
        },
        staleness: a.staleness,
        ..recipe
    };
    Ok(Asked { said, recipe, names })
}

/// Losses, metrics and optimizer in place of the file's.
pub(crate) fn said(a: &SaidArgs, optimizer: Option<&Argument>) -> Said {
    Said {
        optimizer: optimizer.cloned(),
        loss: a.loss.clone(),
        loss_weights: a.loss_weights.clone(),
        metrics: a.metrics.clone(),
        weighted_metrics: a.weighted_metrics.clone(),
    }
}

/// Whether a step of training is meant; flags that only speak of one are refused elsewhere.
pub(crate) fn is_meant(a: &TrainingArgs) -> Result<bool, Failure> {
    match given(&a.step).filter(|_| !a.train) {
        Some(flag) => Err(Failure::Usage(format!("{flag} is about a step of training: give --train too"))),
        None => Ok(a.train),
    }
}

/// A flag that says how a step of training is done.
fn given(a: &StepArgs) -> Option<&'static str> {
    let StepArgs { said, optimizer, bn, micro_batches, schedule, zero, staleness } = a;
    let flags = [
        ("--loss", said.loss.is_some()),
        ("--loss-weights", said.loss_weights.is_some()),
        ("--metrics", said.metrics.is_some()),
        ("--weighted-metrics", said.weighted_metrics.is_some()),
        ("--optimizer", optimizer.is_some()),
        ("--bn", *bn != BatchNorm::Global),
        ("--micro-batches", micro_batches.is_some()),
        ("--schedule", *schedule != Schedule::default()),
        ("--zero", zero.stage() != 0),
        ("--staleness", *staleness != 0),
    ];
    flags.iter().find(|(_, given)| *given).map(|(flag, _)| *flag)
}

/// A step of training that is planned for a machine that need not be there.
pub(crate) struct Wanted {
    asked: Asked,
    options: SessionOptions,
    batch: BatchTypes,
}

impl Wanted {
    /// What the flags ask for, of a batch of so many rows.
    pub(crate) fn new(
        model: &Model,
        a: &TrainingArgs,
        target: &TargetArgs,
        (rows, seed, precision): (usize, u64, Precision),
        common: &Common,
    ) -> Result<Wanted, Failure> {
        let machine = plan::machine(target.hardware.as_deref())?;
        let gpus = machine.devices.iter().any(|d| d.kind == hardware::DeviceKind::Gpu);
        if gpus && target.exact {
            let name = &machine.name;
            let why = format!("--exact: `{name}` may sum in an order that depends on the number of rows; CPUs do not");
            return Err(Failure::Input(why));
        }
        let options = SessionOptions {
            devices: Devices::two(if gpus { DeviceKind::Ptx } else { DeviceKind::Cpu }),
            precision,
            hardware: Some(machine),
            split: target.split.strategy(),
            fallback: if target.allow_one { Fallback::One } else { Fallback::Refuse },
            parts: target.parts,
            batch: Some(rows),
            numerics: target.no_exact.then_some(Numerics::Free),
            sharding: a.step.zero.into(),
            ..SessionOptions::default()
        };
        let asked = asked(model, &a.step, seed, options.numerics())?;
        refuse_unequal(Assembler { model, recipe: &asked.recipe, options: &options }, rows)?;
        let batch = batch(model, &asked, a, rows, common)?;
        Ok(Wanted { asked, options, batch })
    }

    /// What plans it.
    pub(crate) fn assembler<'a>(&'a self, model: &'a Model) -> Assembler<'a> {
        Assembler { model, recipe: &self.asked.recipe, options: &self.options }
    }

    /// The types of the batch.
    pub(crate) fn batch(&self) -> &BatchTypes {
        &self.batch
    }

    /// What is to be said of the plan.
    pub(crate) fn report(&self, model: &Model, planned: &Planned) -> TrainingReport {
        let trainable = model.trainable_paths().map(str::to_string).collect();
        report::training(planned, &self.asked.recipe, &trainable, self.batch.rows, &self.assembler(model).hardware())
    }
}

/// Refuses batches that two devices cannot share as `--bn device` wants it.
pub(crate) fn refuse_unequal(assembler: Assembler<'_>, rows: usize) -> Result<(), Failure> {
    assembler.unequal(rows).map_or(Ok(()), |why| Err(Failure::Input(why)))
}

/// Refuses flags that were decided when a program was compiled.
pub(crate) fn refuse_decided(path: &Path, a: &StepArgs, devices: &DeviceArgs) -> Result<(), Failure> {
    let sums = if devices.exact { Some("--exact") } else { devices.no_exact.then_some("--no-exact") };
    match given(a).or(sums) {
        Some(flag) => {
            Err(Failure::file(path, format!("is a program, for which {flag} was decided when it was compiled")))
        }
        None => Ok(()),
    }
}

/// The flags of a program of training, as its directory keeps them.
#[derive(Debug, clap::Parser)]
struct Kept {
    #[command(flatten)]
    step: StepArgs,
    #[command(flatten)]
    target: TargetArgs,
}

/// The flags that say what a step does and how it is split, for [`read`] to read again.
pub(crate) fn words(step: &StepArgs, target: &TargetArgs) -> Vec<String> {
    let StepArgs { said, optimizer, bn, micro_batches, schedule, zero, staleness } = step;
    let SaidArgs { loss, loss_weights, metrics, weighted_metrics } = said;
    let TargetArgs { hardware: _, split, allow_one, parts, exact, no_exact } = target;
    let said = [
        ("--loss", loss),
        ("--loss-weights", loss_weights),
        ("--metrics", metrics),
        ("--weighted-metrics", weighted_metrics),
        ("--optimizer", optimizer),
    ];
    let mut words = Vec::new();
    let mut add = |flag: &str, value: Option<String>| words.extend(value.map(|v| format!("{flag}={v}")));
    for (flag, argument) in said {
        add(flag, argument.as_ref().map(Argument::to_text));
    }
    add("--bn", (*bn != BatchNorm::Global).then(|| name(bn)));
    add("--micro-batches", micro_batches.map(|n| n.to_string()));
    add("--schedule", Some(schedule.name().to_string()));
    add("--zero", Some(zero.stage().to_string()));
    add("--staleness", Some(staleness.to_string()));
    add("--split", Some(name(split)));
    add("--parts", parts.map(|[a, b]| format!("{a},{b}")));
    let switches = [("--allow-one", *allow_one), ("--exact", *exact), ("--no-exact", *no_exact)];
    words.extend(switches.into_iter().filter(|(_, on)| *on).map(|(flag, _)| flag.to_string()));
    words
}

fn name(value: &impl clap::ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |v| v.get_name().to_string())
}

/// Reads the flags that a directory keeps.
pub(crate) fn read(dir: &ProgramDir) -> Result<(StepArgs, TargetArgs), Failure> {
    let words = dir.manifest().training.iter().flat_map(|t| t.arguments.iter().map(String::as_str));
    let kept = <Kept as clap::Parser>::try_parse_from(std::iter::once("train").chain(words));
    let kept = kept.map_err(|e| Failure::file(dir.path(), format!("its arguments cannot be read: {e}")))?;
    Ok((kept.step, kept.target))
}

/// The types of labels and weights: those of the data, else what the losses take.
pub(crate) fn batch(
    model: &Model,
    asked: &Asked,
    a: &TrainingArgs,
    rows: usize,
    common: &Common,
) -> Result<BatchTypes, Failure> {
    if a.data.is_empty() {
        return Ok(BatchTypes::usual(model, &asked.recipe, rows)?);
    }
    let judged = asked.recipe.judged();
    let data = Ports::of(model, &asked.names)?.open(&a.data, &judged, common)?;
    let outputs = asked.recipe.objectives.len();
    let (mut labels, mut weights) = (vec![None; outputs], vec![None; outputs]);
    let whole =
        |row: &Type| row.with_shape(intwain_ir::Shape::new(std::iter::once(rows).chain(row.shape.iter().copied())));
    for ((&i, label), weight) in judged.iter().zip(data.label_rows()).zip(data.weight_rows()) {
        labels[i] = Some(whole(&label));
        weights[i] = weight.as_ref().map(whole);
    }
    Ok(BatchTypes { rows, labels, weights })
}
