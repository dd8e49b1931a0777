//! A model on devices, being trained: compiles a step for every number of rows that occurs, and keeps the variables and
//! the optimizer's slots where the last step has left them.

use super::assemble::{Assembler, BatchTypes, Task};
use super::hook::WithGradients;
use super::optimizer::{Initial, Optimizer, RestoreError, Slot};
use super::pieces::Sums;
use super::step::{Feed, FeedSource, Objective, Step, StepError};
use crate::driver::{CompileError, Compiled, Loadable, Port};
use crate::kernels;
use crate::model::{Model, ModelError};
use crate::program::{ProgramDir, ProgramError, ProgramVariant};
use crate::runtime::{self, Call, DeviceError, DeviceKind, Engines, HostOptions, Pool, Variant, WeightReader};
use crate::session::{RunError, SessionOptions};
use intwain_codegen::schedule::gpu::Gpu;
use intwain_ir::{Graph, ParamKind, Scalar, Tensor, Type};
use intwain_passes::Timings;
pub use intwain_passes::turns::Schedule;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// How a model is trained.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What each output is judged by.
    pub objectives: Vec<Objective>,
    /// What updates the weights; nothing where the model is only judged.
    pub optimizer: Option<Optimizer>,
    /// What random numbers depend on.
    pub seed: u64,
    /// How sums over rows are made.
    pub sums: Sums,
    /// Micro-batches of a step; `None`: as many as the planner finds best in a pipeline, else one.
    pub micro_batches: Option<NonZeroUsize>,
    /// In which order the segments of a pipeline work on them.
    pub schedule: Schedule,
    /// Whose rows batch normalisation takes its statistics from.
    pub normalisation: Normalisation,
    /// Steps after which gradients are applied; 0: in the step that they are made in. The first steps then change nothing
    /// that the optimizer changes.
    pub staleness: usize,
    /// What becomes of the gradients before the optimizer has them.
    pub with_gradients: Option<WithGradients>,
}

impl Recipe {
    /// The outputs that labels are needed for.
    pub fn judged(&self) -> Vec<usize> {
        (0..self.objectives.len()).filter(|&i| self.objectives[i].is_judged()).collect()
    }

    /// Gradient of the whole batch, in one piece, exact sums, applied in its own step, by seed 0.
    pub fn new(objectives: Vec<Objective>, optimizer: Option<Optimizer>) -> Recipe {
        Recipe {
            objectives,
            optimizer,
            seed: 0,
            sums: Sums::default(),
            micro_batches: None,
            schedule: Schedule::default(),
            normalisation: Normalisation::default(),
            staleness: 0,
            with_gradients: None,
        }
    }

    /// How a model is judged.
    pub fn judging(objectives: Vec<Objective>) -> Recipe {
        Recipe::new(objectives, None)
    }
}

/// What rows batch normalisation takes its statistics from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Normalisation {
    /// All rows of the batch.
    #[default]
    Global,
    /// Those that a device has of the batch, or of a micro-batch: the batch is divided into two equal parts.
    Device,
    /// Those of a micro-batch, in its place one after the other.
    MicroBatch,
}

/// Rows of data.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The model's inputs, in its order.
    pub inputs: Vec<Tensor>,
    /// For each output its labels.
    pub labels: Vec<Option<Tensor>>,
    /// For each output its sample weights.
    pub weights: Vec<Option<Tensor>>,
}

impl Batch {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.inputs.first().and_then(|t| t.ty.shape.first().copied()).unwrap_or(0)
    }
}

/// What came of a step.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The rows of the batch.
    pub rows: usize,
    /// The loss: mean over the batch, penalties included.
    pub loss: f64,
    /// The outputs that have losses where several outputs are, with these losses.
    pub losses: Vec<(usize, f64)>,
    /// For each metric, what it adds to what it keeps.
    pub metrics: Vec<Vec<Tensor>>,
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// No step can be built.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A step cannot be compiled or run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The optimizer's state in the model's file cannot be used.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Whoever watches cannot go on.
    #[error("{0}")]
    Watcher(String),
    /// States that do not belong to this training.
    #[error("state `{name}`: {problem}")]
    State {
        /// The state.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

impl From<CompileError> for TrainError {
    fn from(e: CompileError) -> TrainError {
        TrainError::Run(e.into())
    }
}

impl From<DeviceError> for TrainError {
    fn from(e: DeviceError) -> TrainError {
        TrainError::Run(e.into())
    }
}

/// The types of a batch beyond the inputs, which a program is made for.
type Given = Vec<Option<Type>>;

struct Program {
    task: Task,
    rows: usize,
    labels: Given,
    weights: Given,
    feeds: Vec<Feed>,
    losses: Vec<usize>,
    metrics: Vec<usize>,
    variant: Variant,
    outputs: Vec<Type>,
    /// Nothing where the program was compiled before.
    compiled: Option<Arc<Compiled>>,
    /// Whether its devices have the newest states.
    fresh: bool,
}

/// A model that is being trained.
pub struct Trainer<'m> {
    model: &'m Model,
    recipe: Recipe,
    options: SessionOptions,
    engines: Engines,
    pool: Pool,
    /// Programs that were compiled before.
    given: Option<&'m ProgramDir>,
    programs: Vec<Program>,
    /// All states by name; newest where no program is fresher.
    states: BTreeMap<Arc<str>, Tensor>,
    /// Which of them the optimizer keeps.
    slots: Vec<Slot>,
    /// Whether `states` are the newest.
    fresh: bool,
    /// Time spent in each pass.
    pub timings: Timings,
}

impl std::fmt::Debug for Trainer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trainer")
            .field("model", &self.model.name())
            .field("recipe", &self.recipe)
            .finish_non_exhaustive()
    }
}

impl<'m> Trainer<'m> {
    /// Opens the devices. Steps are compiled when batches come.
    ///
    /// # Errors
    /// Devices that cannot be opened, or states to be kept in parts without two devices that share the rows.
    pub fn new(model: &'m Model, recipe: Recipe, options: SessionOptions) -> Result<Trainer<'m>, TrainError> {
        Assembler { model, recipe: &recipe, options: &options }.check()?;
        let host = HostOptions { threads: options.threads, effects: options.effects };
        let engines = Engines::open(&options.devices, options.precision, host).map_err(RunError::from)?;
        Ok(Trainer {
            model,
            recipe,
            options,
            engines,
            pool: Pool::default(),
            given: None,
            programs: Vec::new(),
            states: BTreeMap::new(),
            slots: Vec::new(),
            fresh: true,
            timings: Timings::default(),
        })
    }

    /// Trains with the programs of a directory, for batches that it has programs for.
    ///
    /// # Errors
    /// Where the directory has none for these devices.
    pub fn with_programs(self, dir: &'m ProgramDir) -> Result<Trainer<'m>, ProgramError> {
        dir.fits(&self.options.devices)?;
        Ok(Trainer { given: Some(dir), ..self })
    }

    /// A model that is only judged.
    pub fn judging(
        model: &'m Model,
        objectives: Vec<Objective>,
        options: SessionOptions,
    ) -> Result<Trainer<'m>, TrainError> {
        Trainer::new(model, Recipe::judging(objectives), options)
    }

    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// The outputs that labels are needed for.
    pub fn judged(&self) -> Vec<usize> {
        self.recipe.judged()
    }

    /// How it is trained.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Takes a step.
    pub fn step(&mut self, batch: &Batch) -> Result<Outcome, TrainError> {
        self.run(Task::Train, batch)
    }

    /// Judges the model on a batch without changing it.
    pub fn evaluate(&mut self, batch: &Batch) -> Result<Outcome, TrainError> {
        self.run(Task::Evaluate, batch)
    }

    /// Compiles the steps of batches like this one.
    pub fn compile(&mut self, batch: &Batch) -> Result<&Compiled, TrainError> {
        let at = self.program(Task::Train, batch)?;
        self.programs[at].compiled.as_deref().ok_or_else(compiled_before)
    }

    /// Makes the programs for batches like this one ready.
    pub fn prepare(&mut self, batch: &Batch) -> Result<(), TrainError> {
        self.program(Task::Train, batch).map(|_| ())
    }

    /// The PTX of the step for such a batch, one module for each device.
    ///
    /// # Errors
    /// Where the devices are no GPUs: their programs have other kernels.
    pub fn ptx(&mut self, batch: &Batch) -> Result<Vec<Arc<str>>, TrainError> {
        if self.options.devices.kind() == DeviceKind::Cpu {
            let why = "PTX is for GPUs: give --devices ptx:0,ptx:1 or cuda:0,cuda:1".to_string();
            return Err(RunError::Options(why).into());
        }
        let at = self.program(Task::Train, batch)?;
        let compiled = self.programs[at].compiled.as_deref().ok_or_else(compiled_before)?;
        let gpu = Gpu { precision: self.options.precision };
        let code = kernels::gpu::compile(&gpu, &compiled.programs);
        Ok(code.map_err(|e| RunError::Load(e.into()))?.into_iter().map(|code| code.text).collect())
    }

    /// What was compiled: the rows of a step and its program.
    pub fn programs(&self) -> impl Iterator<Item = (usize, &Compiled)> {
        self.programs.iter().filter_map(|p| Some((p.rows, p.compiled.as_deref()?)))
    }

    /// What the optimizer keeps, once a step was compiled.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// The weights that are trained, with their types, in the order of the model; once a step was compiled.
    pub fn trained(&self) -> Vec<(String, Type)> {
        let of = |name: &str| self.states.get(name).map(|t| (name.to_string(), t.ty.clone()));
        self.model.trainable_paths().filter_map(of).collect()
    }

    /// Goes on with the optimizer's state that is in the file of the weights, if there is one. `first` is a batch of the run.
    pub fn take_up(&mut self, first: &Batch) -> Result<(), TrainError> {
        self.program(Task::Train, first)?;
        let Some(optimizer) = &self.recipe.optimizer else { return Ok(()) };
        let Some(values) = optimizer.restore(&self.trained(), self.model)? else { return Ok(()) };
        let paths: Vec<String> = self.slots.iter().map(|s| s.path.clone()).collect();
        self.set_states(paths.into_iter().zip(values))
    }

    fn run(&mut self, task: Task, batch: &Batch) -> Result<Outcome, TrainError> {
        let at = self.program(task, batch)?;
        self.refresh(at)?;
        let program = &mut self.programs[at];
        let inputs: Vec<Tensor> = program.feeds.iter().map(|feed| fed(feed, batch)).collect();
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let mut outputs: Vec<Tensor> = program.outputs.iter().map(|ty| Tensor::zeros(ty.clone())).collect();
        let calls = [Call { variant: 0, rows: None }];
        runtime::run(&mut [&mut program.variant], &calls, &inputs, &mut outputs)?;
        let mut outputs = outputs.into_iter();
        let mut scalar = || outputs.next().map_or(f64::NAN, |t| t.get(0).to_f64());
        let loss = scalar();
        let losses = program.losses.iter().map(|&i| (i, scalar())).collect();
        let metrics = program.metrics.iter().map(|&parts| outputs.by_ref().take(parts).collect()).collect();
        if task == Task::Train {
            self.fresh = false;
            for (i, p) in self.programs.iter_mut().enumerate() {
                p.fresh = i == at;
            }
        }
        Ok(Outcome { rows: batch.rows(), loss, losses, metrics })
    }

    /// Makes a program's states the newest.
    fn refresh(&mut self, at: usize) -> Result<(), TrainError> {
        if self.programs[at].fresh {
            return Ok(());
        }
        self.collect()?;
        let variant = &mut self.programs[at].variant;
        let states: Vec<&Tensor> = variant.states().map(|(name, _)| &self.states[name]).collect();
        variant.write_states(&states)?;
        self.programs[at].fresh = true;
        Ok(())
    }

    /// Brings the newest states to the host.
    fn collect(&mut self) -> Result<(), TrainError> {
        if self.fresh {
            return Ok(());
        }
        let newest = self.programs.iter_mut().find(|p| p.fresh && p.task == Task::Train);
        let newest = newest.expect("what is not newest on the host is so in the program that ran last");
        let names: Vec<Arc<str>> = newest.variant.states().map(|(name, _)| name.clone()).collect();
        let tensors = newest.variant.read_states()?;
        self.states.extend(names.into_iter().zip(tensors));
        self.fresh = true;
        Ok(())
    }

    /// All states by name: variables by their paths, what layers keep, the optimizer's slots.
    pub fn states(&mut self) -> Result<&BTreeMap<Arc<str>, Tensor>, TrainError> {
        self.collect()?;
        Ok(&self.states)
    }

    /// Replaces states by name.
    ///
    /// # Errors
    /// A state that this training does not have, or of another type.
    pub fn set_states(&mut self, states: impl IntoIterator<Item = (String, Tensor)>) -> Result<(), TrainError> {
        self.collect()?;
        for (name, tensor) in states {
            let problem = match self.states.get(&*name) {
                None => "this training has none of that name".to_string(),
                Some(own) if own.ty != tensor.ty => format!("is {}, this training has {}", tensor.ty, own.ty),
                Some(_) => {
                    self.states.insert(name.into(), tensor);
                    continue;
                }
            };
            return Err(TrainError::State { name, problem });
        }
        self.programs.iter_mut().for_each(|p| p.fresh = false);
        Ok(())
    }

    /// The program for such a batch.
    fn program(&mut self, task: Task, batch: &Batch) -> Result<usize, TrainError> {
        let types =
            |all: &[Option<Tensor>]| -> Given { all.iter().map(|t| t.as_ref().map(|t| t.ty.clone())).collect() };
        let (rows, labels, weights) = (batch.rows(), types(&batch.labels), types(&batch.weights));
        let known = |p: &Program| p.task == task && p.rows == rows && p.labels == labels && p.weights == weights;
        if let Some(at) = self.programs.iter().position(known) {
            return Ok(at);
        }
        let batch = BatchTypes { rows, labels, weights };
        let assembler = Assembler { model: self.model, recipe: &self.recipe, options: &self.options };
        if task == Task::Train
            && let Some((step, variant)) = self.given_program(&assembler, &batch)?
        {
            let kind = self.options.devices.kind();
            let loadable = variant.loadable(kind).map_err(RunError::Options)?;
            return self.load(task, batch, step, loadable, None);
        }
        let (step, compiled) = match task {
            Task::Train => assembler.train(&batch, &mut self.timings)?,
            Task::Evaluate => assembler.evaluate(&batch, &mut self.timings)?,
        };
        let compiled = Arc::new(compiled);
        self.load(task, batch, step, compiled.loadable(), Some(compiled.clone()))
    }

    /// The directory's program for such batches, if it has one.
    fn given_program(
        &self,
        assembler: &Assembler<'_>,
        batch: &BatchTypes,
    ) -> Result<Option<(Step, &'m ProgramVariant)>, TrainError> {
        let Some(dir) = self.given else { return Ok(None) };
        let stored = dir.manifest().variants.iter().zip(dir.variants());
        let Some((manifest, variant)) = stored.into_iter().find(|(m, _)| m.rows == Some(batch.rows)) else {
            return Ok(None);
        };
        let micro_batches = self.recipe.micro_batches.or(NonZeroUsize::new(manifest.micro_batches));
        let recipe = Recipe { micro_batches, ..self.recipe.clone() };
        let step = Assembler { recipe: &recipe, ..*assembler }.step(batch)?;
        let inputs = |g: &Graph| -> Vec<(Arc<str>, Type)> {
            g.inputs().map(|p| (p.name.clone(), g.ty(p.value).clone())).collect()
        };
        let (has, takes) = (inputs(&step.graph), inputs(&variant.whole));
        if has == takes {
            return Ok(Some((step, variant)));
        }
        let differs = takes.iter().find(|port| !has.contains(port)).or(takes.first());
        let (name, ty) =
            differs.map_or_else(|| (String::new(), String::new()), |(n, t)| (n.to_string(), t.to_string()));
        let given = has.iter().find(|(n, _)| **n == *name).map_or("nothing".to_string(), |(_, t)| t.to_string());
        let problem = format!(
            "the program in {} takes {ty}, given is {given}; compile with --data and the data's names",
            dir.path().display()
        );
        Err(RunError::Input { name, problem }.into())
    }

    fn load(
        &mut self,
        task: Task,
        batch: BatchTypes,
        step: Step,
        loadable: Loadable<'_>,
        compiled: Option<Arc<Compiled>>,
    ) -> Result<usize, TrainError> {
        let read = Frozen { model: self.model, params: loadable.params };
        let variant = Variant::sharing(loadable, &self.engines, &self.pool, read)?;
        let outputs = loadable.outputs.iter().map(|o| o.ty.clone()).collect();
        let Step { feeds, losses, metrics, slots, .. } = step;
        self.initialise(loadable.graph, &slots)?;
        if task == Task::Train && self.slots.is_empty() {
            self.slots = slots;
        }
        let BatchTypes { rows, labels, weights } = batch;
        self.programs.push(Program {
            task,
            rows,
            labels,
            weights,
            feeds,
            losses,
            metrics,
            variant,
            outputs,
            compiled,
            fresh: false,
        });
        Ok(self.programs.len() - 1)
    }

    /// Gives states that no program had before their first values.
    fn initialise(&mut self, graph: &Graph, slots: &[Slot]) -> Result<(), TrainError> {
        self.collect()?;
        let mut of_slots: BTreeMap<&str, &Slot> = slots.iter().map(|s| (s.path.as_str(), s)).collect();
        let trainable: Vec<Arc<str>> = self.model.trainable_paths().map(Arc::from).collect();
        for p in graph.params.iter().filter(|p| matches!(p.kind, ParamKind::State { .. })) {
            if self.states.contains_key(&p.name) {
                continue;
            }
            let ty = graph.ty(p.value).clone();
            let value = match of_slots.remove(&*p.name) {
                Some(Slot { initial: Initial::Value(t), .. }) => t.clone(),
                Some(Slot { initial: Initial::Filled(x), .. }) => filled(&ty, *x),
                Some(Slot { initial: Initial::Variable, variable, .. }) => {
                    let variable = variable.and_then(|v| trainable.get(v)).expect("such a slot has a variable");
                    self.states[variable].clone()
                }
                None if self.model.weight_shape(&p.name).is_some() => self.model.weight(&p.name)?,
                None => Tensor::zeros(ty.clone()),
            };
            self.states.insert(p.name.clone(), value);
        }
        Ok(())
    }
}

fn compiled_before() -> TrainError {
    RunError::Options("the program was compiled before; its directory holds what this asks for".to_string()).into()
}

/// A tensor of one number.
fn filled(ty: &Type, x: f64) -> Tensor {
    Tensor::from_scalars(ty.clone(), &vec![Scalar::from_f64(ty.dtype, x); ty.shape.elements()])
}

/// The rows of a batch that an input takes.
fn fed(feed: &Feed, batch: &Batch) -> Tensor {
    let whole = match feed.source {
        FeedSource::Input(i) => &batch.inputs[i],
        FeedSource::Labels(i) => batch.labels[i].as_ref().expect("the program is for batches with these labels"),
        FeedSource::Weights(i) => batch.weights[i].as_ref().expect("the program is for batches with these weights"),
    };
    let rows = whole.ty.shape.first().copied().unwrap_or(1).max(1);
    let row = whole.data.len() / rows;
    let ty = whole.ty.with_shape(whole.ty.shape.with(0, feed.rows.len()));
    Tensor { ty, data: whole.data[feed.rows.start * row..feed.rows.end * row].to_vec() }
}

/// The frozen weights of a model, for the parameters of a program.
struct Frozen<'m> {
    model: &'m Model,
    params: &'m [Port],
}

impl WeightReader<RunError> for Frozen<'_> {
    fn read(&mut self, param: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), RunError> {
        Ok(self.model.weight_rows(&self.params[param].name, rows, to)?)
    }
}
