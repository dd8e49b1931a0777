//! The same of a step of training: its programs are checked as those of a call are, then take two steps on small integers
//! from equal weights. In exact mode one device, rows that are shared, mixtures that divide no sum, and pipelines agree bit for bit, in the loss, the
//! metrics and every state; so a pipeline, whose graph of micro-batches is not that of the whole step, is compared with it.
//! Where a split adds up parts of sums, the steps are plain gradient descent: other optimizers magnify rounding.

use super::{
    Execution, ProgramVerdict, Progress, VerifyOptions, VerifyReport, compare, empty, integers, refused, skipped,
};
use crate::driver::{self, CompileError, Compiled};
use crate::frontend::{At, Json};
use crate::model::Model;
use crate::program::ProgramDir;
use crate::report::REPORT_VERSION;
use crate::runtime::{DeviceKind, Devices};
use crate::session::{RunError, SessionOptions};
use crate::train::assemble::{Assembler, BatchTypes};
use crate::train::optimizer::Optimizer;
use crate::train::trainer::{Batch, Normalisation, Recipe, TrainError, Trainer};
use intwain_ir::{DType, Graph, Tensor, Type};
use intwain_passes::check;
use intwain_passes::check::placement::Interface;
use intwain_passes::place::{PlaceError, Strategy};
use intwain_passes::program::Action;
use intwain_passes::{Numerics, Timings};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// Steps that are taken behind those in which gradients wait: the first fills what optimizers keep.
const STEPS: usize = 2;

/// A step of training to be verified.
#[derive(Clone, Copy, Debug)]
pub struct TrainingStep<'a> {
    /// The model.
    pub model: &'a Model,
    /// How it is trained.
    pub recipe: &'a Recipe,
    /// Of which batches.
    pub batch: &'a BatchTypes,
    /// What is kept in parts, and how sums are made; devices and strategies are those of the [`VerifyOptions`].
    pub session: &'a SessionOptions,
}

/// Verifies the splits of a step of training over the devices.
///
/// # Errors
/// Where no step can be built, or a device fails.
pub fn verify_training(
    step: TrainingStep<'_>,
    options: &VerifyOptions,
    timings: &mut Timings,
    progress: Progress<'_>,
) -> Result<VerifyReport, TrainError> {
    let divides = step.session.sharding.divides() || step.recipe.normalisation == Normalisation::Device;
    let strategies: Vec<Strategy> = match (&options.strategies[..], options.devices.count()) {
        ([], 1) => vec![Strategy::One],
        ([], _) if divides => vec![Strategy::Data],
        ([], _) => Strategy::ALL[1..].to_vec(),
        (asked, _) => asked.to_vec(),
    };
    let batch = arguments(step.model, step.batch)?;
    let mut judge = Judge::new(step, options, batch)?;
    let mut programs = Vec::new();
    for strategy in strategies {
        progress(&format!("verifying {strategy}"));
        programs.push(judge.strategy(strategy, timings)?);
    }
    Ok(VerifyReport {
        version: REPORT_VERSION,
        model: step.model.name().to_string(),
        batch: Some(step.batch.rows),
        verified: programs.iter().all(|p| p.verified),
        programs,
    })
}

/// Verifies every program of a directory of training, with the model that it starts from. The batch of `step` does not
/// matter. Where sums are not exact, another optimizer would be another program: then the checkers alone decide.
///
/// # Errors
/// Where the directory has no program for the devices, or a device fails.
pub fn verify_training_directory(
    dir: &ProgramDir,
    step: TrainingStep<'_>,
    options: &VerifyOptions,
    timings: &mut Timings,
    progress: Progress<'_>,
) -> Result<VerifyReport, TrainError> {
    let kind = options.devices.kind();
    let mut programs = Vec::new();
    for (manifest, variant) in dir.manifest().variants.iter().zip(dir.variants()) {
        let rows = manifest.rows.unwrap_or(1);
        progress(&format!("verifying {rows} rows"));
        let outputs = step.recipe.objectives.len();
        let [labels, weights] = ["labels", "weights"].map(|what| fed(&variant.whole, what, outputs, rows));
        let types = BatchTypes { rows, labels, weights };
        let batch = arguments(step.model, &types)?;
        let session = SessionOptions { devices: options.devices.clone(), ..step.session.clone() };
        let splits_sums = Strategy::Tensor.name() == manifest.strategy;
        let promised = kind == DeviceKind::Cpu && session.numerics().is_exact() && !splits_sums;
        let commands = || variant.programs.iter().flat_map(|p| &p.step);
        let verdict = ProgramVerdict {
            strategy: format!("{rows} rows"),
            devices: variant.programs.len(),
            communications: commands().filter(|c| is_communication(&c.action)).count(),
            commands: commands().count(),
            // What follows from its graphs was checked when it was opened; a fault is no program at all.
            ..empty(Strategy::One)
        };
        if !promised {
            programs.push(verdict);
            continue;
        }
        let mut trainer = Trainer::new(step.model, step.recipe.clone(), session)?
            .with_programs(dir)
            .map_err(|e| RunError::Options(e.to_string()))?;
        let got = timings.time("execute", || run(&mut trainer, &batch))?;
        let pieces = NonZeroUsize::new(manifest.micro_batches).filter(|n| n.get() > 1);
        let mut judge = Judge::new(step, options, batch)?;
        let execution = compare(kind.engine(), true, judge.expected(true, pieces, timings)?, &got);
        programs.push(ProgramVerdict { verified: execution.is_right(), execution: Some(execution), ..verdict });
    }
    Ok(VerifyReport {
        version: REPORT_VERSION,
        model: step.model.name().to_string(),
        batch: dir.manifest().variants.first().and_then(|v| v.rows),
        verified: programs.iter().all(|p| p.verified),
        programs,
    })
}

/// The types of labels or weights that a step's graph takes, for all rows.
fn fed(graph: &Graph, what: &str, outputs: usize, rows: usize) -> Vec<Option<Type>> {
    let of = |i: usize| {
        let (name, piece) = (format!("@{what}/{i}"), format!("@{what}/{i}@"));
        let param = graph.inputs().find(|p| *p.name == *name || p.name.starts_with(&piece))?;
        let ty = graph.ty(param.value);
        Some(ty.with_shape(ty.shape.with(0, rows)))
    };
    (0..outputs).map(of).collect()
}

fn is_communication(action: &Action) -> bool {
    matches!(action, Action::Communicate(_))
}

struct Judge<'a> {
    step: TrainingStep<'a>,
    options: &'a VerifyOptions,
    batch: Batch,
    /// What one device gives: with the optimizer as it is or plain gradient descent, and for models whose layers keep
    /// statistics by the number of micro-batches.
    expected: BTreeMap<(bool, Option<NonZeroUsize>), Vec<Tensor>>,
    keeps_statistics: bool,
}

impl<'a> Judge<'a> {
    fn new(step: TrainingStep<'a>, options: &'a VerifyOptions, batch: Batch) -> Result<Judge<'a>, TrainError> {
        let assembler = Assembler { model: step.model, recipe: step.recipe, options: step.session };
        let keeps_statistics = assembler.keeps_statistics()?;
        Ok(Judge { step, options, batch, expected: BTreeMap::new(), keeps_statistics })
    }

    fn strategy(&mut self, strategy: Strategy, timings: &mut Timings) -> Result<ProgramVerdict, TrainError> {
        let options = SessionOptions {
            devices: self.options.devices.clone(),
            threads: self.options.host.threads,
            effects: self.options.host.effects,
            hardware: self.options.hardware.clone(),
            split: Some(strategy),
            parts: self.options.parts,
            ..self.step.session.clone()
        };
        let exact = options.numerics().is_exact();
        let promised = match strategy {
            Strategy::One => options.devices.kind() == DeviceKind::Cpu,
            Strategy::Data | Strategy::Mixed | Strategy::Pipeline => exact && options.devices.kind() == DeviceKind::Cpu,
            Strategy::Tensor => false,
        };
        let recipe = if promised { self.step.recipe.clone() } else { plain(self.step.recipe) };
        let mut trainer = Trainer::new(self.step.model, recipe, options)?;
        let compiled = match trainer.compile(&self.batch) {
            Ok(compiled) => compiled,
            Err(TrainError::Run(RunError::Compile(CompileError::Place(PlaceError::CannotSplit {
                reason, ..
            }))))
                if self.options.strategies.is_empty() =>
            {
                return Ok(skipped(strategy, reason));
            }
            Err(TrainError::Run(RunError::Compile(CompileError::Refused(faults)))) => {
                return Ok(refused(strategy, faults));
            }
            Err(e) => return Err(e),
        };
        let faults = timings.time("check", || faults(compiled))?;
        let pieces = NonZeroUsize::new(compiled.plan.micro_batches).filter(|_| strategy == Strategy::Pipeline);
        let commands = || compiled.programs.iter().flat_map(|p| &p.step);
        let verdict = ProgramVerdict {
            devices: compiled.programs.len(),
            communications: commands().filter(|c| is_communication(&c.action)).count(),
            commands: commands().count(),
            ..empty(strategy)
        };
        // A program that may lock up is not run.
        if !faults.is_empty() {
            return Ok(ProgramVerdict { verified: false, faults, ..verdict });
        }
        let got = timings.time("execute", || run(&mut trainer, &self.batch))?;
        let engine = self.options.devices.kind().engine();
        let expected = self.expected(promised, pieces, timings)?;
        let execution: Execution = compare(engine, promised, expected, &got);
        Ok(ProgramVerdict { verified: execution.is_right(), execution: Some(execution), ..verdict })
    }

    /// What one device of this machine gives. `pieces` are the micro-batches of a pipeline.
    fn expected(
        &mut self,
        promised: bool,
        pieces: Option<NonZeroUsize>,
        timings: &mut Timings,
    ) -> Result<&[Tensor], TrainError> {
        let micro_batches = pieces.or(self.step.recipe.micro_batches).filter(|_| self.keeps_statistics);
        let key = (promised, micro_batches);
        if !self.expected.contains_key(&key) {
            let recipe = if promised { self.step.recipe.clone() } else { plain(self.step.recipe) };
            let (by_device, count) = (recipe.normalisation == Normalisation::Device, self.options.devices.count());
            let options = SessionOptions {
                // One device computes what each of two has statistics of.
                devices: if by_device && count > 1 {
                    Devices::two(DeviceKind::Cpu)
                } else {
                    Devices::one(DeviceKind::Cpu)
                },
                split: Some(Strategy::One),
                threads: self.options.host.threads,
                numerics: Some(if promised { self.step.session.numerics() } else { Numerics::Free }),
                ..SessionOptions::default()
            };
            let mut trainer = Trainer::new(self.step.model, Recipe { micro_batches, ..recipe }, options)?;
            self.expected.insert(key, timings.time("execute whole", || run(&mut trainer, &self.batch))?);
        }
        Ok(&self.expected[&key])
    }
}

/// The same trained by plain gradient descent.
fn plain(recipe: &Recipe) -> Recipe {
    let sgd = Json::String("sgd".to_string());
    let optimizer = Optimizer::read(&At::root(&sgd)).expect("plain gradient descent has a name");
    Recipe { optimizer: Some(optimizer), ..recipe.clone() }
}

/// What the checkers find. Devices that add up parts of trees of sums do so behind the division that is checked; that this
/// changes nothing is for the steps to show.
fn faults(compiled: &Compiled) -> Result<Vec<String>, TrainError> {
    let interface = Interface::of(&compiled.explicit);
    let (raw, _) = driver::divided(&compiled.explicit, &mut Timings::default())?;
    let placement = check::placement::check(&compiled.graph, &interface, &raw);
    let program = check::program::check(&compiled.programs);
    Ok(placement.iter().map(ToString::to_string).chain(program.iter().map(ToString::to_string)).collect())
}

/// Takes steps from integer weights: loss and metrics of each, then every state by name.
fn run(trainer: &mut Trainer<'_>, batch: &Batch) -> Result<Vec<Tensor>, TrainError> {
    trainer.prepare(batch)?;
    let slots: Vec<String> = trainer.slots().iter().map(|s| s.path.clone()).collect();
    let types: Vec<(String, Type)> = trainer.states()?.iter().map(|(n, t)| (n.to_string(), t.ty.clone())).collect();
    let variables = types.into_iter().filter(|(name, ty)| ty.dtype.is_float() && !slots.contains(name));
    let integers: Vec<(String, Tensor)> =
        variables.map(|(name, ty)| (name.clone(), integers::state(&name, &ty))).collect();
    trainer.set_states(integers)?;
    let mut results = Vec::new();
    for _ in 0..STEPS + trainer.recipe().staleness {
        let outcome = trainer.step(batch)?;
        let losses: Vec<f64> = std::iter::once(outcome.loss).chain(outcome.losses.iter().map(|l| l.1)).collect();
        results.push(Tensor::from_f64(DType::F64, [losses.len()], &losses));
        results.extend(outcome.metrics.into_iter().flatten());
    }
    results.extend(trainer.states()?.values().cloned());
    Ok(results)
}

/// A batch of small integers.
fn arguments(model: &Model, batch: &BatchTypes) -> Result<Batch, TrainError> {
    let graph = model.graph(batch.rows)?;
    let inputs = graph.inputs().map(|p| integers::input_tensor(&p.name, graph.ty(p.value))).collect();
    let label = |(i, ty): (usize, &Option<Type>)| ty.as_ref().map(|ty| integers::label(i, ty));
    let weight = |(i, ty): (usize, &Option<Type>)| ty.as_ref().map(|ty| integers::label(i + 100, ty));
    Ok(Batch {
        inputs,
        labels: batch.labels.iter().enumerate().map(label).collect(),
        weights: batch.weights.iter().enumerate().map(weight).collect(),
    })
}
