//! A step of training on its way to programs: the graph is built, planned and lowered, without devices.
//!
//! Splits over rows and channels are decided on the graph of the whole step. A pipeline is cut before gradients are
//! written: the model's own graph says where, and the step is then built of micro-batches that know their segment. So it
//! is planned apart, with the number of micro-batches that takes least time, and compared with the others.

use super::pieces;
use super::step::{self, Parts, Purpose, Step, StepError};
use super::trainer::{Normalisation, Recipe, TrainError};
use crate::driver::{self, CompileError, Compiled, Observer};
use crate::frontend::{Imported, Phase, STEP, Statistics, TrainingPhase};
use crate::kernels;
use crate::model::{Model, ModelError};
use crate::report;
use crate::session::{self, Fallback, FixedRows, RunError, SessionOptions};
use intwain_ir::ops::Op;
use intwain_ir::{Graph, ParamKind, Trainable, Type, Value};
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{
    self, Candidate, NodeStrategy, PIPELINE_MARGIN, PlaceError, Plan, Relieved, Strategy, Survey, Verdict,
};
use intwain_passes::remat::Recomputed;
use intwain_passes::{Exact, Numerics, Timings, turns};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;

/// What a step is made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchTypes {
    /// Rows of the batch.
    pub rows: usize,
    /// For each output the type of its labels for all rows.
    pub labels: Vec<Option<Type>>,
    /// For each output the type of its sample weights for all rows.
    pub weights: Vec<Option<Type>>,
}

impl BatchTypes {
    /// The types that the labels of a model's outputs have where no data say it: integers that count classes, without the
    /// classes' own dimension, for losses and metrics whose names begin with `sparse_`, else what the output is.
    pub fn usual(model: &Model, recipe: &Recipe, rows: usize) -> Result<BatchTypes, ModelError> {
        let graph = model.graph(rows)?;
        let label = |(at, o): (usize, &super::step::Objective)| {
            if !o.is_judged() {
                return None;
            }
            let ty = graph.ty(graph.outputs[at].value);
            let mut names = o.loss.iter().map(|l| l.name()).chain(o.metrics.iter().map(|m| m.name()));
            let sparse = names.any(|n| n.starts_with("sparse_"));
            Some(match (sparse, ty.rank()) {
                (true, rank) if rank > 1 => {
                    let shape = ty.shape.iter().take(rank - 1).copied();
                    Type::new(intwain_ir::DType::I64, intwain_ir::Shape::new(shape))
                }
                (true | false, _) => ty.clone(),
            })
        };
        let labels: Vec<Option<Type>> = recipe.objectives.iter().enumerate().map(label).collect();
        Ok(BatchTypes { rows, weights: vec![None; labels.len()], labels })
    }
}

/// A step with its plan.
#[derive(Debug)]
pub struct Planned {
    /// The step, its graph as it was planned.
    pub step: Step,
    /// Who holds and computes what.
    pub plan: Plan,
    /// What of the graph is computed again, where nothing fits otherwise.
    pub recomputed: Option<Recomputed>,
    /// In a pipeline, where the model is cut.
    cut: Option<Cut>,
}

/// Whether activations may be computed again so that a step fits into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// They are kept.
    Kept,
    /// They are where nothing else fits.
    Relieved,
}

/// Where a model is cut into the segments of a pipeline.
#[derive(Clone, Debug)]
struct Cut {
    /// The segment of each node of the model's graph.
    segments: Vec<Option<usize>>,
    micro_batches: usize,
}

/// How often a plan is tightened by what its programs exceed memory.
const RELIEF_TRIES: usize = 4;

/// Builds and plans the steps of a model.
#[derive(Clone, Copy, Debug)]
pub struct Assembler<'a> {
    /// The model.
    pub model: &'a Model,
    /// How it is trained.
    pub recipe: &'a Recipe,
    /// For which devices, and how they share it.
    pub options: &'a SessionOptions,
}

impl Assembler<'_> {
    /// Whether states can be kept in parts as asked, and statistics be those of devices.
    ///
    /// # Errors
    /// Where there are no two devices that share the rows as they must.
    pub fn check(&self) -> Result<(), TrainError> {
        let options = self.options;
        let (states, asked) = (options.sharding.states, options.split);
        if options.sharding.divides() && options.devices.count() == 1 {
            let why =
                format!("--zero {}: one device keeps all states; it takes two that share the rows", states.stage());
            return Err(RunError::Options(why).into());
        }
        if options.sharding.divides() && asked != Some(Strategy::Data) {
            return Err(CompileError::Place(PlaceError::Sharding { states, asked }).into());
        }
        if self.has_statistics_of_devices() {
            let problem = match (asked, options.parts) {
                (Some(Strategy::Data), None) | (Some(Strategy::One), _) => return Ok(()),
                (Some(Strategy::Data), Some([a, b])) if a == b => return Ok(()),
                (Some(Strategy::Data), Some([a, b])) => format!("{a} and {b} rows are unequal parts; take equal ones"),
                (Some(split), _) => format!("the split is `{split}`; use --split data"),
                (None, _) => "no split is named; use --split data".to_string(),
            };
            let why =
                format!("--bn device: statistics of each device's rows are those of equal parts of them: {problem}");
            return Err(RunError::Options(why).into());
        }
        Ok(())
    }

    /// Whether two devices are to take statistics of their own rows each.
    fn has_statistics_of_devices(&self) -> bool {
        self.recipe.normalisation == Normalisation::Device && self.options.devices.count() > 1
    }

    /// Why a batch cannot be divided into the equal parts that `--bn device` takes statistics of: such a batch is computed by
    /// one device, which is for the rows that are left at the end of an epoch.
    pub fn unequal(&self, rows: usize) -> Option<String> {
        let block = match self.recipe.sums {
            pieces::Sums::Exact => pieces::block_rows(rows).max(1),
            pieces::Sums::Free => 1,
        };
        let fits = rows.is_multiple_of(2) && (rows / 2).is_multiple_of(block);
        (self.has_statistics_of_devices() && !fits).then(|| {
            let blocks = if block > 1 { format!(" of blocks of {block} rows") } else { String::new() };
            format!("--bn device: {rows} rows are no two equal parts{blocks}; a multiple of 16 always is")
        })
    }

    /// What is planned for.
    pub fn hardware(&self) -> Hardware {
        self.options.hardware.clone().unwrap_or_else(|| session::hardware_of(&self.options.devices))
    }

    /// Plans a step of training. With [`Survey::All`] the plan says what every strategy would cost. Where nothing that is
    /// asked for fits into memory, activations are computed again.
    pub fn plan(&self, batch: &BatchTypes, survey: Survey, timings: &mut Timings) -> Result<Planned, TrainError> {
        self.check()?;
        match self.plan_within(batch, survey, Memory::Kept, timings) {
            Err(e) if does_not_fit(&e) => self.plan_within(batch, survey, Memory::Relieved, timings),
            planned => planned,
        }
    }

    fn plan_within(
        &self,
        batch: &BatchTypes,
        survey: Survey,
        memory: Memory,
        timings: &mut Timings,
    ) -> Result<Planned, TrainError> {
        let asked = if self.options.devices.count() == 1 { Some(Strategy::One) } else { self.options.split };
        let priced = match asked {
            None | Some(Strategy::Pipeline) => true,
            Some(Strategy::One | Strategy::Data | Strategy::Tensor | Strategy::Mixed) => survey == Survey::All,
        };
        let divides = self.options.sharding.divides() || self.options.devices.count() == 1;
        let pipeline = (priced && !divides).then(|| self.pipeline(batch, asked, memory, timings));
        if asked == Some(Strategy::Pipeline) {
            let found = pipeline.unwrap_or_else(|| Err(cannot("it takes two devices")));
            return match found {
                Err(e) if is_impossible(&e) && self.options.fallback == Fallback::One => {
                    self.whole(batch, Some(Strategy::One), Survey::Asked, memory, timings)
                }
                Ok(planned) if survey == Survey::All => {
                    match self.whole(batch, Some(Strategy::One), Survey::Splits, Memory::Kept, timings) {
                        Ok(others) => Ok(joined(planned, Some(others.plan.candidates))),
                        Err(e) if does_not_fit(&e) => Ok(planned),
                        Err(e) => Err(e),
                    }
                }
                found => found,
            };
        }
        let splits = if pipeline.is_some() || survey == Survey::All { Survey::Splits } else { Survey::Asked };
        let whole = self.whole(batch, asked, splits, memory, timings);
        match (whole, pipeline) {
            (whole, None) => whole,
            (Ok(whole), Some(Ok(pipe))) => {
                let faster = pipe.plan.seconds < whole.plan.seconds * (1.0 - PIPELINE_MARGIN);
                if asked.is_none() && faster {
                    Ok(joined(pipe, Some(whole.plan.candidates)))
                } else {
                    let lost = pipe.plan.candidates.into_iter().map(|c| Candidate { verdict: Verdict::Rejected, ..c });
                    Ok(with_candidates(whole, lost))
                }
            }
            (Ok(whole), Some(Err(e))) => {
                let candidate = Candidate {
                    strategy: Strategy::Pipeline,
                    seconds: None,
                    usage: None,
                    micro_batches: 1,
                    verdict: Verdict::NotOffered(reason(&e)),
                };
                Ok(with_candidates(whole, std::iter::once(candidate)))
            }
            // Only the pipeline fits.
            (Err(e), Some(Ok(pipe))) if asked.is_none() && does_not_fit(&e) => Ok(joined(pipe, None)),
            (Err(e), Some(_)) => Err(e),
        }
    }

    /// The plan of a step that is one piece, or micro-batches one after the other.
    fn whole(
        &self,
        batch: &BatchTypes,
        strategy: Option<Strategy>,
        survey: Survey,
        memory: Memory,
        timings: &mut Timings,
    ) -> Result<Planned, TrainError> {
        let mut step = self.build(Task::Train, batch, None)?;
        let numerics = self.numerics(batch.rows);
        step.graph = driver::prepare(step.graph, numerics, timings, &mut |_, _| {})?;
        let SessionOptions { mut parts, sharding, buckets, fallback, .. } = *self.options;
        let mut strategy = strategy;
        if self.has_statistics_of_devices() && strategy == Some(Strategy::Data) {
            match self.unequal(batch.rows) {
                Some(_) => strategy = Some(Strategy::One),
                None => parts = Some([batch.rows / 2; 2]),
            }
        }
        let ask = place::Options { strategy, parts, survey, numerics, sharding, buckets, ..place::Options::default() };
        match self.placed(&mut step.graph, ask.clone(), memory, timings) {
            Err(e) if fallback == Fallback::One && is_impossible_to_place(&e) => {
                let one = place::Options { strategy: Some(Strategy::One), ..ask };
                let (plan, recomputed) = self.placed(&mut step.graph, one, memory, timings)?;
                Ok(Planned { step, plan, recomputed, cut: None })
            }
            placed => {
                let (plan, recomputed) = placed?;
                Ok(Planned { step, plan, recomputed, cut: None })
            }
        }
    }

    /// The plan of a prepared graph, which becomes one that computes activations again where that is needed and allowed.
    fn placed(
        &self,
        graph: &mut Graph,
        ask: place::Options,
        memory: Memory,
        timings: &mut Timings,
    ) -> Result<(Plan, Option<Recomputed>), CompileError> {
        let hardware = self.hardware();
        match driver::plan(graph, &hardware, ask.clone(), timings) {
            Err(CompileError::Place(PlaceError::DoesNotFit(_))) if memory == Memory::Relieved => {
                let relieved = self.compiled_within(timings, &mut |reserve, timings| {
                    driver::relieve(graph, &hardware, place::Options { reserve, ..ask.clone() }, timings)
                })?;
                *graph = relieved.graph;
                Ok((relieved.plan, Some(relieved.recomputed)))
            }
            plan => Ok((plan?, None)),
        }
    }

    /// What `relieve` gives for bytes of each device to be left free, with programs that fit too: the plan foresees neither
    /// what messages take nor which operands live longer because their readers are fused into later ones.
    fn compiled_within(
        &self,
        timings: &mut Timings,
        relieve: &mut dyn FnMut([f64; 2], &mut Timings) -> Result<Relieved, CompileError>,
    ) -> Result<Relieved, CompileError> {
        let hardware = self.hardware();
        let mut reserve = [0.0; 2];
        let mut short = Vec::new();
        for _ in 0..RELIEF_TRIES {
            let relieved = relieve(reserve, timings)?;
            let devices = relieved.plan.devices;
            let specs = if devices == 1 { std::slice::from_ref(&hardware.alone) } else { &hardware.devices };
            let (graph, plan) = (relieved.graph.clone(), relieved.plan.clone());
            let compiled = driver::lower(graph, plan, &*self.target(), timings, &mut |_, _| {})?;
            short.clear();
            for ((k, program), spec) in compiled.programs.iter().enumerate().zip(specs) {
                let bytes = (program.persistent_bytes + program.arena_bytes) as f64;
                let memory = spec.memory.value;
                if bytes > memory {
                    reserve[k] += bytes - memory;
                    short.push(format!("with recomputation the program of device {k} takes {bytes} of {memory} bytes"));
                }
            }
            if short.is_empty() {
                return Ok(relieved);
            }
        }
        Err(PlaceError::DoesNotFit(short).into())
    }

    /// The fastest pipeline.
    fn pipeline(
        &self,
        batch: &BatchTypes,
        asked: Option<Strategy>,
        memory: Memory,
        timings: &mut Timings,
    ) -> Result<Planned, TrainError> {
        let cut = self.cut(batch.rows, asked, timings)?;
        let whole = self.recipe.normalisation != Normalisation::MicroBatch && self.keeps_statistics()?;
        let mut price = |micro_batches: usize| {
            let cut = Cut { micro_batches, ..cut.clone() };
            self.priced_pipeline(batch, cut, memory, timings)
        };
        if let Some(count) = self.recipe.micro_batches {
            return price(count.get());
        }
        if whole {
            return price(1);
        }
        if let Some(fixed) = FixedRows::of(&self.model.graph(1)?, 1) {
            return price((batch.rows / fixed.rows).max(1));
        }
        // The cut's own number is best for the way forward; what a step adds is found from there.
        let most = pieces::micro_batches(batch.rows, batch.rows, self.recipe.sums).len();
        let start = cut.micro_batches.clamp(1, most);
        let mut best = price(start)?;
        let climbs: [&dyn Fn(usize) -> usize; 2] = [&|m| m * 2, &|m| m / 2];
        for next in climbs {
            let mut at = start;
            loop {
                at = next(at).min(most);
                let worth = at >= 1 && at != best.plan.micro_batches;
                let Some(found) = worth.then(|| price(at)).transpose()? else { break };
                if found.plan.seconds >= best.plan.seconds {
                    break;
                }
                best = found;
            }
            if best.plan.micro_batches != start {
                break;
            }
        }
        Ok(best)
    }

    fn priced_pipeline(
        &self,
        batch: &BatchTypes,
        cut: Cut,
        memory: Memory,
        timings: &mut Timings,
    ) -> Result<Planned, TrainError> {
        let mut step = self.build(Task::Train, batch, Some(&cut))?;
        step.graph = self.ordered(step.graph, batch.rows, timings, &mut |_, _| {})?;
        let options = place::Options::default();
        let hardware = self.hardware();
        let plan = timings.time("place", || place::segments(&step.graph, &hardware, &options, cut.micro_batches));
        let (mut plan, recomputed) = match plan {
            Err(PlaceError::DoesNotFit(_)) if memory == Memory::Relieved => {
                let count = cut.micro_batches;
                let early = driver::early(&step.graph, timings)?;
                let relieved = self.compiled_within(timings, &mut |reserve, timings| {
                    let options = place::Options { reserve, ..options.clone() };
                    let relieve = || place::relieved_segments(&early, &hardware, &options, count);
                    Ok(timings.time(driver::RECOMPUTE.0, relieve)?)
                })?;
                step.graph = relieved.graph;
                (relieved.plan, Some(relieved.recomputed))
            }
            plan => (plan.map_err(CompileError::from)?, None),
        };
        // The first micro-batch crosses the link before the second segment begins, its gradients before the first ends.
        let crossing = plan.usage.communication_bytes / (2 * cut.micro_batches) as f64;
        plan.seconds += 2.0 * hardware.link.transfer(crossing);
        plan.candidates.iter_mut().for_each(|c| c.seconds = Some(plan.seconds));
        Ok(Planned { step, plan, recomputed, cut: Some(cut) })
    }

    /// A pipeline's graph after the passes before placement.
    fn ordered(
        &self,
        graph: Graph,
        rows: usize,
        timings: &mut Timings,
        after: Observer<'_>,
    ) -> Result<Graph, TrainError> {
        let graph = driver::prepare(graph, self.numerics(rows), timings, after)?;
        Ok(turns::order(&graph, self.recipe.schedule).map_err(|e| CompileError::Pass(e.into()))?)
    }

    /// Where the model is cut for a pipeline.
    fn cut(&self, rows: usize, asked: Option<Strategy>, timings: &mut Timings) -> Result<Cut, TrainError> {
        let phase = TrainingPhase { seed: self.recipe.seed, ..TrainingPhase::default() };
        let graph = self.model.training_graph(rows, &phase)?.graph;
        if asked != Some(Strategy::Pipeline)
            && self.recipe.normalisation != Normalisation::MicroBatch
            && let Some(state) = statistics(&graph)
        {
            let why = format!("`{}` follows from all rows of a batch at once, which micro-batches take apart", state);
            return Err(cannot(&why));
        }
        if asked != Some(Strategy::Pipeline)
            && self.recipe.sums == pieces::Sums::Exact
            && let Some(why) = inexact(&graph)
        {
            return Err(cannot(&why));
        }
        let options =
            SessionOptions { split: Some(Strategy::Pipeline), fallback: Fallback::Refuse, ..self.options.clone() };
        let plan = session::plan(&graph, &options, timings)?;
        let segment = |id| match plan.nodes[id] {
            NodeStrategy::On(k) => Some(k),
            NodeStrategy::Whole | NodeStrategy::Cut { .. } | NodeStrategy::Linear(_) => None,
        };
        Ok(Cut { segments: graph.nodes.keys().map(segment).collect(), micro_batches: plan.micro_batches })
    }

    /// Whether some layer keeps what follows from all rows of a batch, so that micro-batches are not the whole batch.
    pub fn keeps_statistics(&self) -> Result<bool, TrainError> {
        let phase = TrainingPhase { seed: self.recipe.seed, ..TrainingPhase::default() };
        Ok(statistics(&self.model.training_graph(1, &phase)?.graph).is_some())
    }

    /// Programs for a plan.
    pub fn lower(&self, planned: Planned, timings: &mut Timings) -> Result<(Step, Compiled), TrainError> {
        let Planned { mut step, plan, .. } = planned;
        let graph = std::mem::replace(&mut step.graph, Graph::new(""));
        let compiled = driver::lower(graph, plan, &*self.target(), timings, &mut |_, _| {})?;
        Ok((step, compiled))
    }

    /// Programs for a plan, with `after` seeing the graph after each pass. The passes before placement run once more.
    pub fn lower_seen(
        &self,
        planned: Planned,
        batch: &BatchTypes,
        timings: &mut Timings,
        after: Observer<'_>,
    ) -> Result<Compiled, TrainError> {
        let Planned { step: chosen, plan, recomputed, cut } = planned;
        let step = self.build(Task::Train, batch, cut.as_ref())?;
        let graph = match cut {
            Some(_) => self.ordered(step.graph, batch.rows, timings, after)?,
            None => driver::prepare(step.graph, self.numerics(batch.rows), timings, after)?,
        };
        let graph = match recomputed {
            Some(_) => {
                after(driver::RECOMPUTE.0, &chosen.graph);
                chosen.graph
            }
            None => graph,
        };
        Ok(driver::lower(graph, plan, &*self.target(), timings, after)?)
    }

    fn target(&self) -> Box<dyn intwain_ir::Target> {
        kernels::target_of(self.options.devices.kind(), self.options.precision)
    }

    /// Programs of a step of training.
    pub fn train(&self, batch: &BatchTypes, timings: &mut Timings) -> Result<(Step, Compiled), TrainError> {
        let planned = self.plan(batch, Survey::Asked, timings)?;
        self.lower(planned, timings)
    }

    /// Programs that judge a batch. A pipelined model is judged in one piece.
    pub fn evaluate(&self, batch: &BatchTypes, timings: &mut Timings) -> Result<(Step, Compiled), TrainError> {
        let mut step = self.build(Task::Evaluate, batch, None)?;
        let numerics = Some(self.numerics(batch.rows));
        let options = SessionOptions { fallback: Fallback::One, numerics, ..self.options.clone() };
        let graph = std::mem::replace(&mut step.graph, Graph::new(""));
        let compiled = session::compile(graph, &options, timings)?;
        Ok((step, compiled))
    }

    /// A step of training that is one piece, or micro-batches one after the other, not yet planned.
    pub fn step(&self, batch: &BatchTypes) -> Result<Step, TrainError> {
        self.build(Task::Train, batch, None)
    }

    fn build(&self, task: Task, batch: &BatchTypes, cut: Option<&Cut>) -> Result<Step, TrainError> {
        let Recipe { seed, sums, micro_batches, normalisation, staleness, .. } = *self.recipe;
        let count = cut.map_or(micro_batches.map_or(1, NonZeroUsize::get), |c| c.micro_batches);
        let all = 0..batch.rows;
        let ranges: Vec<Range<usize>> = match task {
            Task::Train => pieces::micro_batches(batch.rows, count, sums),
            Task::Evaluate => vec![all],
        };
        let import = |range: &Range<usize>| {
            let statistics = match normalisation {
                Normalisation::Global => Statistics::Global,
                Normalisation::Device if self.options.devices.count() == 1 => Statistics::Global,
                Normalisation::Device => Statistics::Devices(vec![range.len() - range.len() / 2, range.len() / 2]),
                Normalisation::MicroBatch => Statistics::Groups(vec![range.len()]),
            };
            let phase = match task {
                Task::Train => Phase::Training(TrainingPhase { seed, first_row: range.start, statistics }),
                Task::Evaluate => Phase::Inference,
            };
            self.model.imported(range.len(), phase)
        };
        let pieces = ranges.into_iter().map(|r| Ok((r.clone(), import(&r)?)));
        let pieces = pieces.collect::<Result<Vec<(Range<usize>, Imported)>, ModelError>>()?;
        for (range, piece) in &pieces {
            if let Some(fixed) = report::batch(&piece.graph).filter(|rows| *rows != range.len()) {
                return Err(StepError::Rows { fixed, rows: range.len() }.into());
            }
        }
        if let [(_, first), _, ..] = &pieces[..]
            && normalisation == Normalisation::Global
            && let Some(state) = statistics(&first.graph)
        {
            return Err(StepError::Statistics { state: state.to_string(), micro_batches: pieces.len() }.into());
        }
        let purpose = match task {
            Task::Train => Purpose::Train(self.recipe.optimizer.as_ref().ok_or(StepError::NoOptimizer)?),
            Task::Evaluate => Purpose::Evaluate,
        };
        let objectives = &self.recipe.objectives;
        let with_gradients = self.recipe.with_gradients.as_ref();
        let segments = cut.map(|c| &c.segments[..]);
        let BatchTypes { labels, weights, .. } = batch;
        Ok(step::build(&Parts {
            pieces,
            objectives,
            labels,
            weights,
            purpose,
            sums,
            staleness,
            with_gradients,
            segments,
        })?)
    }

    /// How sums over a batch of so many rows are made.
    pub fn numerics(&self, rows: usize) -> Numerics {
        match self.recipe.sums {
            pieces::Sums::Exact => Numerics::Exact(Exact { batch: Some(rows) }),
            pieces::Sums::Free => Numerics::Free,
        }
    }
}

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Train,
    Evaluate,
}

/// What a value depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Depends {
    /// Nothing that a step changes or is given.
    #[default]
    Nothing,
    /// Weights that train, not the batch.
    Weights,
    /// The batch.
    Batch,
}

/// Why micro-batches would not give the bits of the whole batch, if so: gradients of weights that are changed between the
/// sum over rows and the sum over micro-batches, or rounded to 16 bits there.
fn inexact(graph: &Graph) -> Option<String> {
    let mut depends: BTreeMap<Value, Depends> = BTreeMap::new();
    for p in &graph.params {
        let of = match p.kind {
            ParamKind::Weight { trainable: Trainable::Yes } => Depends::Weights,
            ParamKind::Weight { trainable: Trainable::Frozen } => Depends::Nothing,
            ParamKind::State { .. } | ParamKind::Input { .. } => Depends::Batch,
        };
        depends.insert(p.value, of);
        if of == Depends::Weights && graph.ty(p.value).dtype.size() == 2 {
            return Some(format!("gradients of `{}` would be rounded to 16 bits in each micro-batch", p.name));
        }
    }
    for node in graph.nodes.values() {
        let most = node.args.iter().map(|a| depends[a]).max().unwrap_or_default();
        let moves =
            matches!(node.op, Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Cast(_));
        if most == Depends::Weights && !moves {
            let (layer, op) = (node.origin.path(), node.op.name());
            return Some(format!("`{layer}` computes {op} of weights alone, so micro-batches would round otherwise"));
        }
        node.results.iter().for_each(|r| {
            depends.insert(*r, most);
        });
    }
    None
}

/// A state that a call in training changes by itself, beside the step of random numbers.
fn statistics(graph: &Graph) -> Option<&str> {
    let changes = |p: &&intwain_ir::Param| matches!(p.kind, ParamKind::State { next: Some(_) }) && *p.name != *STEP;
    graph.params.iter().find(changes).map(|p| &*p.name)
}

fn cannot(reason: &str) -> TrainError {
    CompileError::Place(PlaceError::CannotSplit { strategy: Strategy::Pipeline, reason: reason.to_string() }).into()
}

fn is_impossible_to_place(e: &CompileError) -> bool {
    matches!(e, CompileError::Place(PlaceError::CannotSplit { .. }))
}

fn is_impossible(e: &TrainError) -> bool {
    matches!(e, TrainError::Run(RunError::Compile(e)) if is_impossible_to_place(e))
}

fn does_not_fit(e: &TrainError) -> bool {
    matches!(e, TrainError::Run(RunError::Compile(CompileError::Place(PlaceError::DoesNotFit(_)))))
}

/// Why there is no pipeline, without what the error advises.
fn reason(e: &TrainError) -> String {
    match e {
        TrainError::Run(RunError::Compile(CompileError::Place(PlaceError::CannotSplit { reason, .. }))) => {
            reason.clone()
        }
        TrainError::Run(RunError::Compile(CompileError::Place(PlaceError::DoesNotFit(reasons)))) => reasons.join("; "),
        TrainError::Model(_)
        | TrainError::Step(_)
        | TrainError::Run(_)
        | TrainError::Restore(_)
        | TrainError::Watcher(_)
        | TrainError::State { .. } => e.to_string(),
    }
}

/// A pipeline that was chosen, among the others.
fn joined(mut pipeline: Planned, others: Option<Vec<Candidate>>) -> Planned {
    let lost = |c: Candidate| match c.verdict {
        Verdict::Chosen => Candidate { verdict: Verdict::Rejected, ..c },
        Verdict::Rejected | Verdict::TooLarge { .. } | Verdict::NotOffered(_) => c,
    };
    let own = std::mem::take(&mut pipeline.plan.candidates);
    pipeline.plan.candidates = others.into_iter().flatten().map(lost).chain(own).collect();
    pipeline
}

fn with_candidates(mut whole: Planned, more: impl Iterator<Item = Candidate>) -> Planned {
    whole.plan.candidates.extend(more);
    whole
}
