//! A model on devices: compiles what the number of rows asks for, and runs.

mod training;

pub use training::TrainingCall;

use crate::cuda;
use crate::driver::{self, CompileError, Compiled};
use crate::kernels;
use crate::lookups::{self, Lookup};
use crate::model::{Model, ModelError};
use crate::report;
use crate::runtime::{
    self, Call, DeviceError, DeviceKind, Devices, Effects, Engines, HostOptions, LoadError, OpenError, Pool, Variant,
    WeightReader,
};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::{Graph, Param, ParamKind, Rows, Shape, Tensor, Type};
use intwain_passes::buckets::Buckets;
use intwain_passes::differentiate::gradients;
use intwain_passes::hardware::{Catalogue, Hardware};
use intwain_passes::place::{self, Sharding, Strategy};
use intwain_passes::{Numerics, Timings};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Programs that a session keeps between runs. One run needs four at most: full and last batch, each in at most two
/// pieces of a pipeline.
const MOST_VARIANTS: usize = 8;

/// How to run a model.
#[derive(Clone, Debug, Default)]
pub struct SessionOptions {
    /// Where it runs.
    pub devices: Devices,
    /// Threads per CPU device; `None`: the machine's cores divided by the devices.
    pub threads: Option<usize>,
    /// When asynchronous copies of `ptx` devices happen.
    pub effects: Effects,
    /// How GPUs round the factors of products.
    pub precision: Precision,
    /// What programs are planned for; `None`: what the devices are, or stand for.
    pub hardware: Option<Hardware>,
    /// A named strategy; `None`: the fastest.
    pub split: Option<Strategy>,
    /// What happens when the named strategy cannot split the model.
    pub fallback: Fallback,
    /// Rows per device of a data split; elsewhere their ratio.
    pub parts: Option<[usize; 2]>,
    /// Rows of a call.
    pub batch: Option<usize>,
    /// Whether results may depend on the number of devices; `None`: on CPU devices they do not. It matters where sums
    /// are over rows: in training, and for gradients of weights.
    pub numerics: Option<Numerics>,
    /// What two devices that share the rows of training keep in parts.
    pub sharding: Sharding,
    /// How two devices that share the rows of training join the gradients that they exchange.
    pub buckets: Buckets,
}

impl SessionOptions {
    /// Whether results may depend on the number of devices.
    pub fn numerics(&self) -> Numerics {
        let usual = if self.devices.kind() == DeviceKind::Cpu { Numerics::EXACT } else { Numerics::Free };
        self.numerics.unwrap_or(usual)
    }
}

/// What happens when a named strategy cannot split a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fallback {
    /// It is an error.
    #[default]
    Refuse,
    /// One device does everything.
    One,
}

/// Why a model could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device could not be set up.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The inputs do not fit the model.
    #[error("input `{name}`: {problem}")]
    Input {
        /// The input.
        name: String,
        /// What is wrong and what would be accepted.
        problem: String,
    },
    /// The devices cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The options contradict each other.
    #[error("{0}")]
    Options(String),
}

/// A program with the memory to run it.
#[derive(Debug)]
struct Loaded {
    /// Rows of a call.
    rows: usize,
    /// The strategy that was asked for.
    asked: Option<Strategy>,
    variant: Variant,
    compiled: Arc<Compiled>,
}

/// A model with the programs, memory and threads to run it.
#[derive(Debug)]
pub struct Session<'m> {
    model: &'m Model,
    options: SessionOptions,
    engines: Engines,
    variants: Vec<Loaded>,
    /// The weights that programs have in memory.
    pool: Pool,
    /// The graph of one row: names and types of inputs and outputs.
    signature: Graph,
    /// Inputs that are positions in tables.
    lookups: Vec<Lookup>,
    /// The rows that every call has.
    fixed: Option<FixedRows>,
    /// Pieces that a pipeline works on at a time, by rows of the batch.
    pieces: BTreeMap<usize, usize>,
    /// Time spent in each pass.
    pub timings: Timings,
}

impl<'m> Session<'m> {
    /// Opens the devices. Programs are compiled when inputs come.
    pub fn new(model: &'m Model, options: SessionOptions) -> Result<Session<'m>, RunError> {
        let host = HostOptions { threads: options.threads, effects: options.effects };
        let engines = Engines::open(&options.devices, options.precision, host)?;
        let signature = model.graph(1)?;
        let (lookups, fixed) = (lookups::find(&signature), FixedRows::of(&signature, 1));
        let (variants, pool, pieces, timings) = (Vec::new(), Pool::default(), BTreeMap::new(), Timings::default());
        Ok(Session { model, options, engines, variants, pool, signature, lookups, fixed, pieces, timings })
    }

    /// The program for calls of `rows` rows.
    pub fn compiled(&mut self, rows: usize) -> Result<Arc<Compiled>, RunError> {
        let index = self.variant(rows, self.options.split)?;
        Ok(self.variants[index].compiled.clone())
    }

    fn known(&self, rows: usize, asked: Option<Strategy>) -> Option<usize> {
        self.variants.iter().position(|v| v.rows == rows && v.asked == asked)
    }

    fn variant(&mut self, rows: usize, asked: Option<Strategy>) -> Result<usize, RunError> {
        let rows = self.fixed.as_ref().map_or(rows, |k| k.rows);
        if let Some(i) = self.known(rows, asked) {
            return Ok(i);
        }
        let graph = self.model.graph(rows)?;
        let options = SessionOptions { split: asked, ..self.options.clone() };
        let compiled = compile(graph, &options, &mut self.timings)?;
        self.add(rows, asked, compiled)
    }

    fn add(&mut self, rows: usize, asked: Option<Strategy>, compiled: Compiled) -> Result<usize, RunError> {
        let variant = self.load_timed(&compiled)?;
        self.variants.push(Loaded { rows, asked, variant, compiled: Arc::new(compiled) });
        Ok(self.variants.len() - 1)
    }

    /// Drops the oldest programs when many numbers of rows have occurred: each has memory of its own.
    fn forget(&mut self) {
        if self.variants.len() > MOST_VARIANTS {
            self.variants.drain(..self.variants.len() - MOST_VARIANTS / 2);
        }
    }

    /// Runs the model on all rows of the inputs, in order. Inputs are by name; outputs come in model order.
    pub fn run(&mut self, inputs: &BTreeMap<String, Tensor>) -> Result<Vec<(String, Tensor)>, RunError> {
        self.forget();
        let batched = keeps_rows_apart(&self.signature);
        let ordered = order(&self.signature, inputs)?;
        check_lookups(&self.signature, &self.lookups, &ordered)?;
        let total = count_rows(&self.signature, &ordered)?;
        let batch = match &self.fixed {
            Some(fixed) => fixed.batch(batched.then_some(total), self.options.batch)?,
            None => self.options.batch.unwrap_or(total.min(32)).max(1),
        };
        let plan = if batched {
            self.calls(total, batch)?
        } else {
            let variant = self.variant(total, self.options.split)?;
            check_types(&self.variants[variant].compiled.graph, &ordered)?;
            vec![Call { variant, rows: None }]
        };
        let Some(first) = plan.first() else { return Ok(self.empty()) };
        let compiled = self.variants[first.variant].compiled.clone();
        let mut outputs: Vec<Tensor> = compiled
            .outputs
            .iter()
            .map(|o| Tensor::zeros(if batched { with_rows(&o.ty, total) } else { o.ty.clone() }))
            .collect();
        let mut variants: Vec<&mut Variant> = self.variants.iter_mut().map(|v| &mut v.variant).collect();
        let ordered: Vec<&Tensor> = ordered.iter().map(AsRef::as_ref).collect();
        runtime::run(&mut variants, &plan, &ordered, &mut outputs)?;
        Ok(compiled.outputs.iter().map(|o| o.name.to_string()).zip(outputs).collect())
    }

    /// Makes the states zero that stateful layers keep from call to call, and from one [`Session::run`] to the next. A run
    /// that failed has done the same.
    pub fn reset_states(&mut self) -> Result<(), RunError> {
        Ok(self.variants.iter_mut().try_for_each(|v| v.variant.forget())?)
    }

    /// Gradients of Σ ⟨output, cotangent⟩ in inference mode, of all rows in one call: `gin{i}` of floating inputs and
    /// `gw{j}` of trainable weights. States are zero, and kept ones stay. `cotangents` holds `cot{i}` for every floating output.
    pub fn gradients(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
        cotangents: &BTreeMap<String, Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RunError> {
        let known = order(&self.signature, inputs)?;
        check_lookups(&self.signature, &self.lookups, &known)?;
        let rows = count_rows(&self.signature, &known)?;
        let graph = gradients(&self.model.graph(rows)?).map_err(CompileError::from)?;
        let mut all = inputs.clone();
        all.extend(cotangents.iter().map(|(n, t)| (n.clone(), t.clone())));
        let ordered = order(&graph, &all)?;
        check_types(&graph, &ordered)?;
        let compiled = compile(graph, &self.options, &mut self.timings)?;
        let mut variant = self.load_timed(&compiled)?;
        let mut outputs: Vec<Tensor> = compiled.outputs.iter().map(|o| Tensor::zeros(o.ty.clone())).collect();
        let call = [Call { variant: 0, rows: None }];
        let ordered: Vec<&Tensor> = ordered.iter().map(AsRef::as_ref).collect();
        runtime::run(&mut [&mut variant], &call, &ordered, &mut outputs)
            .inspect_err(|_| self.variants.iter_mut().for_each(|v| v.variant.distrust()))?;
        Ok(compiled.outputs.iter().map(|o| o.name.to_string()).zip(outputs).collect())
    }

    /// Makes kernels and memory for a program, and takes the time.
    fn load_timed(&mut self, compiled: &Compiled) -> Result<Variant, RunError> {
        let mut timings = std::mem::take(&mut self.timings);
        let variant = timings.time("load", || self.load(compiled));
        self.timings = timings;
        variant
    }

    /// Memory for a program, with the model's weights in it.
    fn load(&self, compiled: &Compiled) -> Result<Variant, RunError> {
        let weights = Stored { model: self.model, compiled };
        Variant::sharing(compiled.loadable(), &self.engines, &self.pool, weights)
    }

    /// The calls that work on all rows.
    fn calls(&mut self, total: usize, batch: usize) -> Result<Vec<Call>, RunError> {
        let mut calls = Vec::new();
        let mut at = 0;
        while at < total {
            let rows = batch.min(total - at);
            let pieces = self.micro_batches(rows)?;
            // Pieces are pieces of a pipeline, also where the planner chose it.
            let asked = if pieces > 1 { Some(Strategy::Pipeline) } else { self.options.split };
            for piece in 0..pieces {
                // Near-equal pieces, so that there are at most two sizes.
                let (from, to) = (at + piece * rows / pieces, at + (piece + 1) * rows / pieces);
                calls.push(Call { variant: self.variant(to - from, asked)?, rows: Some(from..to) });
            }
            at += rows;
        }
        Ok(calls)
    }

    /// How many pieces a pipeline works on at a time.
    fn micro_batches(&mut self, rows: usize) -> Result<usize, RunError> {
        // Rows whose number is fixed stay in one program.
        if self.fixed.is_some()
            || self.options.devices.count() == 1
            || self.options.split.is_some_and(|s| s != Strategy::Pipeline)
        {
            return Ok(1);
        }
        if let Some(pieces) = self.pieces.get(&rows) {
            return Ok(*pieces);
        }
        let graph =
            driver::prepare(self.model.graph(rows)?, self.options.numerics(), &mut self.timings, &mut |_, _| {})?;
        let plan = plan(&graph, &self.options, &mut self.timings)?;
        let pieces = plan.micro_batches.min(rows);
        if pieces <= 1 && self.known(rows, self.options.split).is_none() {
            let compiled = lower(graph, plan, &self.options, &mut self.timings)?;
            self.add(rows, self.options.split, compiled)?;
        }
        self.pieces.insert(rows, pieces);
        Ok(pieces)
    }

    /// The outputs of no rows.
    fn empty(&self) -> Vec<(String, Tensor)> {
        let zeros = |value| Tensor::zeros(with_rows(self.signature.ty(value), 0));
        self.signature.outputs.iter().map(|o| (o.name.to_string(), zeros(o.value))).collect()
    }

    /// The programs compiled so far, by rows of a call.
    pub fn programs(&self) -> impl Iterator<Item = (usize, &Compiled)> {
        self.variants.iter().map(|v| (v.rows, &*v.compiled))
    }

    /// Memory held by the devices.
    pub fn memory(&self) -> Memory {
        let mut memory = Memory { devices: vec![0; self.engines.count()], shared: 0 };
        // By place: its size, and the devices that hold it.
        let mut pieces: BTreeMap<usize, (usize, BTreeSet<usize>)> = BTreeMap::new();
        for v in &self.variants {
            v.variant.bytes().iter().zip(&mut memory.devices).for_each(|(b, total)| *total += b);
            for (device, held) in v.variant.shared().into_iter().enumerate() {
                for (place, bytes) in held {
                    pieces.entry(place).or_insert((bytes, BTreeSet::new())).1.insert(device);
                }
            }
        }
        for (bytes, holders) in pieces.into_values() {
            match holders.first() {
                Some(&device) if holders.len() == 1 => memory.devices[device] += bytes,
                Some(_) | None => memory.shared += bytes,
            }
        }
        memory
    }
}

/// Memory that a session holds, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Of each device alone.
    pub devices: Vec<usize>,
    /// Weights that several devices read.
    pub shared: usize,
}

/// The weights of a model, for the parameters of a program.
struct Stored<'m> {
    model: &'m Model,
    compiled: &'m Compiled,
}

impl WeightReader<RunError> for Stored<'_> {
    fn read(&mut self, param: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), RunError> {
        Ok(self.model.weight_rows(&self.compiled.params[param].name, rows, to)?)
    }
}

/// The rows of every call of a model that cannot be called with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FixedRows {
    /// How many.
    pub(crate) rows: usize,
    why: Fixed,
}

/// Why a model has so many rows.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fixed {
    /// A layer keeps something from call to call: the i-th row of a call continues the i-th row of the call before.
    Kept(String),
    /// Its inputs are so in its file.
    Written,
}

impl FixedRows {
    /// The rows of a model whose graph this is where `asked` rows were asked for; `None` if it may have others.
    pub(crate) fn of(graph: &Graph, asked: usize) -> Option<FixedRows> {
        if let Some(state) = graph.params.iter().find(|p| matches!(p.kind, ParamKind::State { .. })) {
            let layer = state.name.rsplit_once('/').map_or(&*state.name, |(layer, _)| layer);
            return Some(FixedRows {
                rows: graph.shape(state.value).first().copied()?,
                why: Fixed::Kept(layer.to_string()),
            });
        }
        let rows = report::batch(graph).filter(|rows| *rows != asked)?;
        Some(FixedRows { rows, why: Fixed::Written })
    }

    /// Rows of a call, where so many were given or asked for.
    pub(crate) fn batch(&self, given: Option<usize>, asked: Option<usize>) -> Result<usize, RunError> {
        let FixedRows { rows, why } = self;
        let fixed = match why {
            Fixed::Kept(layer) => format!("layer `{layer}` keeps a state for each of {rows} rows"),
            Fixed::Written => format!("the model's inputs have {rows} rows by its file"),
        };
        if let Some(asked) = asked.filter(|a| a != rows) {
            return Err(RunError::Options(format!("{fixed}: a batch of {asked} rows cannot be run")));
        }
        match given.filter(|n| !n.is_multiple_of(*rows)) {
            Some(n) => Err(RunError::Options(format!("{fixed}: {n} rows are no multiple of it"))),
            None => Ok(*rows),
        }
    }
}

/// What programs for devices are planned for where nobody says: CPU devices of this machine, the GPUs, or those that
/// `ptx:N` stands for.
pub(crate) fn hardware_of(devices: &Devices) -> Hardware {
    let named = |name| Catalogue::built_in().get(name).expect("the catalogue has these machines");
    match devices.kind() {
        DeviceKind::Cpu => named("cpu"),
        DeviceKind::Ptx => named("2xa100-nvlink"),
        // Opening GPUs that are not there is an error; what they are planned for then shows nowhere.
        DeviceKind::Cuda => cuda::machine(devices.ordinals()).unwrap_or_else(|_| named("2xa100-nvlink")),
    }
}

/// The plan of a prepared graph for the devices.
pub(crate) fn plan(
    graph: &Graph,
    options: &SessionOptions,
    timings: &mut Timings,
) -> Result<place::Plan, CompileError> {
    let strategy = if options.devices.count() == 1 { Some(Strategy::One) } else { options.split };
    let hardware = options.hardware.clone().unwrap_or_else(|| hardware_of(&options.devices));
    let survey = place::Survey::Asked;
    let numerics = options.numerics();
    let SessionOptions { parts, sharding, buckets, .. } = *options;
    let ask = place::Options { strategy, parts, survey, numerics, sharding, buckets, ..place::Options::default() };
    match driver::plan(graph, &hardware, ask.clone(), timings) {
        Err(CompileError::Place(place::PlaceError::CannotSplit { .. })) if options.fallback == Fallback::One => {
            let one = place::Options { strategy: Some(Strategy::One), ..ask };
            driver::plan(graph, &hardware, one, timings)
        }
        plan => plan,
    }
}

pub(crate) fn compile(graph: Graph, options: &SessionOptions, timings: &mut Timings) -> Result<Compiled, CompileError> {
    let graph = driver::prepare(graph, options.numerics(), timings, &mut |_, _| {})?;
    let plan = plan(&graph, options, timings)?;
    lower(graph, plan, options, timings)
}

pub(crate) fn lower(
    graph: Graph,
    plan: place::Plan,
    options: &SessionOptions,
    timings: &mut Timings,
) -> Result<Compiled, CompileError> {
    let target = kernels::target_of(options.devices.kind(), options.precision);
    driver::lower(graph, plan, &*target, timings, &mut |_, _| {})
}

/// Whether calls can work on pieces of a batch.
pub(crate) fn keeps_rows_apart(graph: &Graph) -> bool {
    graph.inputs().all(|p| matches!(p.kind, ParamKind::Input { rows: Rows::Batched }))
}

/// Refuses positions that a table lacks.
pub(crate) fn check_lookups(graph: &Graph, lookups: &[Lookup], inputs: &[Cow<'_, Tensor>]) -> Result<(), RunError> {
    for lookup in lookups {
        if let Some(problem) = lookup.problem(&inputs[lookup.input]) {
            let name = graph.inputs().nth(lookup.input).map_or(String::new(), |p| p.name.to_string());
            return Err(RunError::Input { name, problem });
        }
    }
    Ok(())
}

/// Refuses tensors that are not exactly what the graph takes.
pub(crate) fn check_types(graph: &Graph, inputs: &[Cow<'_, Tensor>]) -> Result<(), RunError> {
    match graph.inputs().zip(inputs).find(|(p, t)| t.ty != *graph.ty(p.value)) {
        Some((p, t)) => {
            let problem = format!("is {}, needed is {}", t.ty, graph.ty(p.value));
            Err(RunError::Input { name: p.name.to_string(), problem })
        }
        None => Ok(()),
    }
}

pub(crate) fn with_rows(ty: &Type, rows: usize) -> Type {
    if ty.rank() == 0 { ty.clone() } else { ty.with_shape(ty.shape.with(0, rows)) }
}

/// The inputs in the graph's order, in its element types.
pub(crate) fn order<'t>(graph: &Graph, inputs: &'t BTreeMap<String, Tensor>) -> Result<Vec<Cow<'t, Tensor>>, RunError> {
    let missing = |name: &str| RunError::Input {
        name: name.into(),
        problem: format!("is missing; given are {}", inputs.keys().cloned().collect::<Vec<_>>().join(", ")),
    };
    graph
        .inputs()
        .map(|p| {
            let t = inputs.get(&*p.name).ok_or_else(|| missing(&p.name))?;
            let want = graph.ty(p.value);
            let same_rest = |a: &Shape, b: &Shape| a.len() == b.len() && a.iter().skip(1).eq(b.iter().skip(1));
            if !same_rest(&t.ty.shape, &want.shape) {
                let problem = format!("has shape {}, the model takes {}", t.ty.shape, want.shape);
                return Err(RunError::Input { name: p.name.to_string(), problem });
            }
            Ok(if t.ty.dtype == want.dtype { Cow::Borrowed(t) } else { Cow::Owned(t.cast(want.dtype)) })
        })
        .collect()
}

/// Rows of the inputs, which must agree. Inputs of a graph of one row that have another first extent have it always.
pub(crate) fn count_rows(graph: &Graph, inputs: &[Cow<'_, Tensor>]) -> Result<usize, RunError> {
    let apart = keeps_rows_apart(graph);
    let open = |p: &Param| apart || graph.shape(p.value).first() == Some(&1);
    let mut rows: Option<(usize, String)> = None;
    for (p, t) in graph.inputs().zip(inputs).filter(|(p, _)| open(p)) {
        let n = t.ty.shape.first().copied().unwrap_or(1);
        match &rows {
            Some((m, first)) if *m != n => {
                let problem = format!("has {n} rows, `{first}` has {m}");
                return Err(RunError::Input { name: p.name.to_string(), problem });
            }
            Some(_) => {}
            None => rows = Some((n, p.name.to_string())),
        }
    }
    Ok(rows.map_or(1, |r| r.0))
}
