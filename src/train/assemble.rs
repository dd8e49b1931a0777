//! A step of training on its way to programs: the graph is built, planned and lowered, without devices.
//!
//! Splits over rows and channels are decided on the graph of the whole step. A pipeline is cut before gradients are
//! written: the model's own graph says where, and the step is then built of micro-batches that know their segment. So it
//! is planned apart, with the number of micro-batches that takes least time, and compared with the others.

mod plan;

use super::pieces;
use super::step::{self, Parts, Purpose, Step, StepError};
use super::trainer::{Normalisation, Recipe, TrainError};
use crate::driver::{self, CompileError, Compiled, Observer};
use crate::frontend::{Imported, Phase, STEP, Statistics, TrainingPhase};
use crate::kernels;
use crate::model::{Model, ModelError};
use crate::report;
use crate::session::{self, Fallback, RunError, SessionOptions};
use intwain_ir::{Graph, ParamKind, Type};
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{PlaceError, Plan, Strategy, Survey};
use intwain_passes::remat::Recomputed;
use intwain_passes::{Exact, Numerics, Timings};
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

/// Where a model is cut into the segments of a pipeline.
#[derive(Clone, Debug)]
struct Cut {
    /// The segment of each node of the model's graph.
    segments: Vec<Option<usize>>,
    micro_batches: usize,
}

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

/// A state that a call in training changes by itself, beside the step of random numbers.
fn statistics(graph: &Graph) -> Option<&str> {
    let changes = |p: &&intwain_ir::Param| matches!(p.kind, ParamKind::State { next: Some(_) }) && *p.name != *STEP;
    graph.params.iter().find(changes).map(|p| &*p.name)
}
