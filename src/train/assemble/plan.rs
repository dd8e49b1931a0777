//! The plan of a step: splits and pipelines, with activations computed again where nothing fits otherwise.

use super::{Assembler, BatchTypes, Cut, Planned, Task, statistics};
use crate::driver::{self, CompileError, Observer};
use crate::frontend::TrainingPhase;
use crate::session::{self, Fallback, FixedRows, RunError, SessionOptions};
use crate::train::pieces;
use crate::train::trainer::{Normalisation, TrainError};
use intwain_ir::ops::Op;
use intwain_ir::{Graph, ParamKind, Trainable, Value};
use intwain_passes::place::{
    self, Candidate, NodeStrategy, PIPELINE_MARGIN, PlaceError, Plan, Relieved, Strategy, Survey, Verdict,
};
use intwain_passes::remat::Recomputed;
use intwain_passes::{Timings, turns};
use std::collections::BTreeMap;

/// Whether activations may be computed again so that a step fits into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    /// They are kept.
    Kept,
    /// They are where nothing else fits.
    Relieved,
}

/// How often a plan is tightened by what its programs exceed memory.
const RELIEF_TRIES: usize = 4;

/// Plans a step whose devices leave so many bytes free.
type Relieve<'a> = &'a mut dyn FnMut([f64; 2], &mut Timings) -> Result<Relieved, CompileError>;

impl Assembler<'_> {
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
            Err(CompileError::Place(PlaceError::DoesNotFit(why))) if memory == Memory::Relieved => {
                let relieved = self.compiled_within(why, timings, &mut |reserve, timings| {
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
    /// `why` says why nothing fits without.
    fn compiled_within(
        &self,
        why: Vec<String>,
        timings: &mut Timings,
        relieve: Relieve<'_>,
    ) -> Result<Relieved, CompileError> {
        let hardware = self.hardware();
        let mut reserve = [0.0; 2];
        let mut short = Vec::new();
        for _ in 0..RELIEF_TRIES {
            let relieved = match relieve(reserve, timings) {
                // Of less memory than there is.
                Err(e) if is_too_large(&e) && !short.is_empty() => break,
                relieved => relieved?,
            };
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
                    let (takes, has) = (bytes / 1e6, memory / 1e6);
                    short.push(format!("with recomputation the program of device {k} takes {takes:.2} of {has:.2} MB"));
                }
            }
            if short.is_empty() {
                return Ok(relieved);
            }
        }
        Err(PlaceError::DoesNotFit(why.into_iter().chain(short).collect()).into())
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
            Err(PlaceError::DoesNotFit(why)) if memory == Memory::Relieved => {
                let count = cut.micro_batches;
                let early = driver::early(&step.graph, timings)?;
                let relieved = self.compiled_within(why, timings, &mut |reserve, timings| {
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
    pub(super) fn ordered(
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
    matches!(e, TrainError::Run(RunError::Compile(e)) if is_too_large(e))
}

fn is_too_large(e: &CompileError) -> bool {
    matches!(e, CompileError::Place(PlaceError::DoesNotFit(_)))
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
