//! One step of training, or of evaluation, as one graph.
//!
//! The model is imported once for every micro-batch and its copies share the variables, which are states. Losses are sums
//! over rows divided by what the whole batch amounts to, so a micro-batch, or a device's part of the rows, contributes its
//! share whatever its size. Sums of micro-batches are added in the order of [`pieces::additions`].

mod gradients;
mod losses;
mod stale;

use super::hook::WithGradients;
use super::loss::{Comparison, Coupling, Loss, Terms, logits_of};
use super::metric::Metric;
use super::optimizer::{Optimizer, Slot};
use super::pieces::{self, Sums};
use crate::frontend::{ImportErrors, Imported, STEP, VarSpec};
use intwain_ir::ops::{GradError, TypeError};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Origin, ParamKind, Rewriter, Rows, Shape, Trainable, Turn, Type, Value, Way};
use std::collections::BTreeMap;
use std::ops::Range;

pub use stale::WAITING;

/// What one output of a model is judged by.
#[derive(Clone, Debug)]
pub struct Objective {
    /// The loss; none where the output does not matter.
    pub loss: Option<Loss>,
    /// What the loss is multiplied by in the sum over outputs.
    pub weight: f64,
    /// Metrics that sample weights do not enter.
    pub metrics: Vec<Metric>,
    /// Metrics that they enter.
    pub weighted_metrics: Vec<Metric>,
}

impl Objective {
    /// Whether labels are needed for it.
    pub fn is_judged(&self) -> bool {
        self.loss.is_some() || !self.metrics.is_empty() || !self.weighted_metrics.is_empty()
    }
}

/// What a step does with the losses.
#[derive(Clone, Copy, Debug)]
pub enum Purpose<'a> {
    /// Differentiates them and updates the variables.
    Train(&'a Optimizer),
    /// Reports them.
    Evaluate,
}

/// What a step is built from.
#[derive(Debug)]
pub struct Parts<'a> {
    /// The model for each micro-batch, with the rows of the batch that it works on.
    pub pieces: Vec<(Range<usize>, Imported)>,
    /// For each output.
    pub objectives: &'a [Objective],
    /// The type of each output's labels for the whole batch; none where it needs none.
    pub labels: &'a [Option<Type>],
    /// The type of each output's sample weights for the whole batch.
    pub weights: &'a [Option<Type>],
    /// What is done.
    pub purpose: Purpose<'a>,
    /// How sums over rows are made.
    pub sums: Sums,
    /// Steps after which gradients are applied; 0: in their own.
    pub staleness: usize,
    /// What becomes of the gradients before the optimizer has them.
    pub with_gradients: Option<&'a WithGradients>,
    /// In a pipeline, the segment of each node of the model's graph, which is the same for all micro-batches.
    pub segments: Option<&'a [Option<usize>]>,
}

/// What the host puts into an input of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feed {
    /// Which tensor.
    pub source: FeedSource,
    /// The rows of the batch.
    pub rows: Range<usize>,
}

/// A tensor of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedSource {
    /// The model's input of this number.
    Input(usize),
    /// The labels of this output.
    Labels(usize),
    /// The sample weights of this output.
    Weights(usize),
}

/// A step as a graph. Its outputs are the loss, the losses of the outputs that have one where those are several, then
/// what each metric adds to what it keeps.
#[derive(Debug)]
pub struct Step {
    /// The graph. States are the variables (frozen ones are weights), what layers keep, and the optimizer's slots.
    pub graph: Graph,
    /// For each input of the graph, in order.
    pub feeds: Vec<Feed>,
    /// The outputs that have losses, where the graph reports them apart.
    pub losses: Vec<usize>,
    /// How many graph outputs each metric has: those that weights do not enter, by output, then those that they enter.
    pub metrics: Vec<usize>,
    /// What the optimizer keeps.
    pub slots: Vec<Slot>,
}

/// Why a step could not be built.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The model cannot be imported for training.
    #[error(transparent)]
    Import(#[from] ImportErrors),
    /// Labels, weights or predictions do not fit a loss or metric.
    #[error("{what} of output `{output}`: {problem}")]
    Fit {
        /// The loss or metric.
        what: String,
        /// The output.
        output: String,
        /// What does not fit.
        problem: TypeError,
    },
    /// Rows of a batch that only make sense together.
    #[error(
        "the loss of output `{output}` looks at all rows of a batch at once, which micro-batches take apart; train with --micro-batches 1"
    )]
    Coupled {
        /// The output.
        output: String,
    },
    /// What a layer keeps of all rows of a batch, in several micro-batches.
    #[error(
        "`{state}` follows from all rows of a batch at once, which {micro_batches} micro-batches take apart: give \
         --micro-batches 1, or --bn micro-batch for statistics of each micro-batch"
    )]
    Statistics {
        /// The state that holds it.
        state: String,
        /// Into how many the batch is to be divided.
        micro_batches: usize,
    },
    /// Another number of rows than the model's file fixes.
    #[error(
        "the model's inputs have {fixed} rows by its file, a step would have {rows}: give --batch {fixed}, a multiple of it with \
         --micro-batches, and data whose rows fill whole batches"
    )]
    Rows {
        /// Rows of the file.
        fixed: usize,
        /// Rows of the batch, or of a micro-batch of it.
        rows: usize,
    },
    /// No output has a loss.
    #[error("no output has a loss: give one with --loss, or a model file that was compiled with one")]
    NoLoss,
    /// Nothing says how weights are updated.
    #[error("no optimizer is given")]
    NoOptimizer,
    /// Nothing can be trained.
    #[error("the model has no trainable weights: every layer is frozen or has none")]
    NothingTrainable,
    /// An operation of the model has no gradient.
    #[error(transparent)]
    Grad(#[from] GradError),
    /// What a function of the library's user makes of gradients does not fit them.
    #[error("what `with_gradients` makes of the gradient of `{variable}`: {problem}")]
    Hook {
        /// The variable.
        variable: String,
        /// What does not fit.
        problem: TypeError,
    },
    /// A part of the step does not fit: a defect.
    #[error(transparent)]
    Type(#[from] TypeError),
}

impl StepError {
    /// Whether the compiler is to blame rather than the input.
    pub fn is_defect(&self) -> bool {
        match self {
            StepError::Import(_) | StepError::Fit { .. } | StepError::Coupled { .. } | StepError::Statistics { .. } => {
                false
            }
            StepError::Rows { .. }
            | StepError::NoLoss
            | StepError::NoOptimizer
            | StepError::NothingTrainable
            | StepError::Hook { .. } => false,
            StepError::Grad(GradError::None(_)) => false,
            StepError::Grad(GradError::Type(_)) | StepError::Type(_) => true,
        }
    }
}

/// Builds the graph of a step.
///
/// # Errors
/// Where labels or weights do not fit a loss, no output has a loss, or something has no gradient.
pub fn build(parts: &Parts<'_>) -> Result<Step, StepError> {
    let first = &parts.pieces[0].1;
    let mut b = Builder::new(&first.graph.name, parts);
    b.declare(first);
    for (k, (_, imported)) in parts.pieces.iter().enumerate() {
        b.run_piece(k, imported)?;
    }
    let totals = b.totals()?;
    let losses = b.report_losses(&totals)?;
    let metrics = b.report_metrics()?;
    let slots = match parts.purpose {
        Purpose::Train(optimizer) => b.train(optimizer, &totals)?,
        Purpose::Evaluate => Vec::new(),
    };
    let Builder { graph, feeds, .. } = b.finish();
    Ok(Step { graph: in_order(&graph)?, feeds, losses, metrics, slots })
}

/// The graph with its values numbered as its text has them: parameters, then results. Slots were declared behind nodes.
fn in_order(graph: &Graph) -> Result<Graph, TypeError> {
    let mut rw = Rewriter::new(graph);
    for id in graph.nodes.keys() {
        rw.copy(id)?;
    }
    Ok(rw.finish())
}

/// A variable or another tensor that is kept from step to step.
struct Variable {
    /// Its position among the graph's parameters.
    param: usize,
    /// What it is before the step.
    before: Value,
    /// What the layers so far have made of it.
    now: Value,
    /// What the layers of each micro-batch read: what it is before, unless a call itself changes what trains.
    read: Vec<Value>,
    spec: Option<VarSpec>,
    trains: bool,
}

/// A micro-batch that was run.
struct Ran {
    /// Values to be summed and divided, by output.
    terms: Vec<Option<Terms>>,
    /// What metrics add, by metric.
    increments: Vec<Vec<Value>>,
    /// Elements of penalties on activities.
    penalties: Vec<Value>,
}

/// What the losses amount to for the whole batch.
struct Totals {
    /// For each output with a loss: its value, and what a value's cotangent is before weights and scale.
    losses: Vec<Option<(Value, Value)>>,
    /// Penalties on weights.
    penalties: Vec<Value>,
    /// Penalties on activities.
    activities: Vec<Value>,
}

struct Builder<'a> {
    graph: Graph,
    parts: &'a Parts<'a>,
    feeds: Vec<Feed>,
    rows: usize,
    /// In the order of the model, then what layers keep.
    variables: Vec<Variable>,
    /// By the name of the parameter.
    by_name: BTreeMap<String, usize>,
    ran: Vec<Ran>,
    /// The type that losses are computed in.
    float: DType,
}

impl<'a> Builder<'a> {
    fn new(name: &str, parts: &'a Parts<'a>) -> Builder<'a> {
        let rows = parts.pieces.iter().map(|(r, _)| r.end).max().unwrap_or(0);
        Builder {
            graph: Graph::new(name),
            parts,
            feeds: Vec::new(),
            rows,
            variables: Vec::new(),
            by_name: BTreeMap::new(),
            ran: Vec::new(),
            float: DType::F32,
        }
    }

    /// Declares inputs, then variables and what is kept.
    fn declare(&mut self, first: &Imported) {
        let parts = self.parts;
        for (k, (rows, imported)) in parts.pieces.iter().enumerate() {
            for (i, p) in imported.graph.inputs().enumerate() {
                let ParamKind::Input { rows: kind } = p.kind else { continue };
                let ty = imported.graph.ty(p.value).clone();
                self.feed(FeedSource::Input(i), &p.name, k, rows, ty, kind);
            }
            for (what, types) in [("labels", parts.labels), ("weights", parts.weights)] {
                for (i, ty) in types.iter().enumerate() {
                    let Some(ty) = ty else { continue };
                    let source = if what == "labels" { FeedSource::Labels(i) } else { FeedSource::Weights(i) };
                    let ty = ty.with_shape(ty.shape.with(0, rows.len()));
                    self.feed(source, &format!("@{what}/{i}"), k, rows, ty, Rows::Batched);
                }
            }
        }
        let specs = first.vars.flatten();
        let mut specs = specs.into_iter().zip(first.vars.trainable());
        let trains = matches!(parts.purpose, Purpose::Train(_));
        for p in &first.graph.params {
            let (kind, spec) = match &p.kind {
                ParamKind::Input { .. } => continue,
                ParamKind::Weight { trainable: Trainable::Frozen } if trains => (p.kind.clone(), specs.next()),
                ParamKind::Weight { .. } => (ParamKind::State { next: None }, specs.next()),
                // What a call in training changes comes among the variables, what is kept otherwise behind them.
                ParamKind::State { .. } => (ParamKind::State { next: None }, specs.next()),
            };
            let ty = first.graph.ty(p.value).clone();
            if ty.dtype == DType::F64 {
                self.float = DType::F64;
            }
            let param = self.graph.params.len();
            let before = self.graph.param(&p.name, ty, kind);
            let trains = match p.kind {
                ParamKind::Weight { trainable } => trainable == Trainable::Yes,
                ParamKind::State { .. } => spec.is_some_and(|(_, trains)| trains),
                ParamKind::Input { .. } => false,
            };
            let spec = spec.map(|(spec, _)| spec.clone());
            self.by_name.insert(p.name.to_string(), self.variables.len());
            self.variables.push(Variable { param, before, now: before, read: Vec::new(), spec, trains });
        }
        if let [first, ..] = &first.graph.outputs[..]
            && self.parts.pieces[0].1.graph.ty(first.value).dtype == DType::F64
        {
            self.float = DType::F64;
        }
    }

    fn feed(&mut self, source: FeedSource, name: &str, piece: usize, rows: &Range<usize>, ty: Type, kind: Rows) {
        let name = if self.parts.pieces.len() > 1 { format!("{name}@{piece}") } else { name.to_string() };
        self.graph.input(&name, ty, kind);
        self.feeds.push(Feed { source, rows: rows.clone() });
    }

    /// The input of a micro-batch.
    fn fed(&self, source: FeedSource, piece: usize) -> Option<Value> {
        let rows = &self.parts.pieces[piece].0;
        let at = self.feeds.iter().position(|f| f.source == source && f.rows == *rows)?;
        self.graph.inputs().nth(at).map(|p| p.value)
    }

    /// Copies the model's graph for a micro-batch, and compares what it gives with the labels.
    fn run_piece(&mut self, k: usize, imported: &Imported) -> Result<(), StepError> {
        let map = self.copy(k, imported)?;
        let mut ran = Ran { terms: Vec::new(), increments: Vec::new(), penalties: Vec::new() };
        let mut compared = Vec::new();
        for (i, output) in imported.graph.outputs.iter().enumerate() {
            let (prediction, mask) = (map[&output.value], imported.masks[i].map(|m| map[&m]));
            compared.push(self.fed(FeedSource::Labels(i), k).map(|labels| Comparison {
                y_true: labels,
                y_pred: prediction,
                logits: logits_of(&self.graph, prediction),
                mask,
                weight: self.fed(FeedSource::Weights(i), k),
            }));
        }
        for (i, of) in compared.iter().enumerate() {
            ran.terms.push(self.terms(i, &imported.graph.outputs[i].name, of.as_ref())?);
        }
        let objectives = self.parts.objectives;
        let plain = objectives.iter().enumerate().flat_map(|(i, o)| o.metrics.iter().map(move |m| (i, m, false)));
        let weighted =
            objectives.iter().enumerate().flat_map(|(i, o)| o.weighted_metrics.iter().map(move |m| (i, m, true)));
        for (i, metric, is_weighted) in plain.chain(weighted) {
            let Some(of) = compared[i] else { continue };
            let of = Comparison { weight: of.weight.filter(|_| is_weighted), ..of };
            self.go_to(of.y_pred);
            let added = metric.increments(&mut self.graph, &of);
            ran.increments.push(added.map_err(fit(metric.name(), &imported.graph.outputs[i].name))?);
        }
        ran.penalties = imported.penalties.iter().map(|p| map[&p.values]).collect();
        self.ran.push(ran);
        Ok(())
    }

    /// What judges an output belongs where it is made.
    fn go_to(&mut self, output: Value) {
        let made = self.graph.def_node(output).and_then(|id| self.graph.nodes[id].origin.turn());
        self.graph.origin = Origin::default().in_turn(made);
    }

    /// The loss of an output for a micro-batch.
    fn terms(&mut self, i: usize, output: &str, of: Option<&Comparison>) -> Result<Option<Terms>, StepError> {
        let (Some(loss), Some(of)) = (&self.parts.objectives[i].loss, of) else { return Ok(None) };
        self.go_to(of.y_pred);
        let terms = loss.terms(&mut self.graph, of).map_err(fit("the loss", output))?;
        match terms.coupling {
            Coupling::Together if self.parts.pieces.len() > 1 => Err(StepError::Coupled { output: output.to_string() }),
            Coupling::Together | Coupling::Apart => Ok(Some(terms)),
        }
    }

    /// Copies a piece's nodes. Variables are as the pieces before have left them.
    fn copy(&mut self, k: usize, imported: &Imported) -> Result<BTreeMap<Value, Value>, StepError> {
        let from = &imported.graph;
        let mut map: BTreeMap<Value, Value> = BTreeMap::new();
        let mut inputs = 0;
        for p in &from.params {
            let value = match p.kind {
                ParamKind::Input { .. } => {
                    inputs += 1;
                    self.fed(FeedSource::Input(inputs - 1), k).expect("every input was declared")
                }
                ParamKind::Weight { .. } | ParamKind::State { .. } => self.variables[self.by_name[&*p.name]].now,
            };
            map.insert(p.value, value);
        }
        for (at, node) in from.nodes.values().enumerate() {
            let args: Vec<Value> = node.args.iter().map(|a| map[a]).collect();
            let segment = self.parts.segments.and_then(|s| s[at]);
            let turn = segment.map(|segment| Turn { segment, micro_batch: k, way: Way::Forward });
            self.graph.origin = node.origin.in_turn(turn);
            let results = self.graph.push_all(node.op.clone(), &args)?;
            map.extend(node.results.iter().copied().zip(results));
        }
        let last = k + 1 == self.parts.pieces.len();
        for p in from.params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. })) {
            let variable = &mut self.variables[self.by_name[&*p.name]];
            if let ParamKind::State { next: Some(next) } = p.kind {
                // All micro-batches of a batch are drawn for the same step.
                if &*p.name != STEP || last {
                    variable.now = map[&next];
                }
            }
            variable.read.push(variable.now);
        }
        Ok(map)
    }

    fn scalar(&mut self, x: f64) -> Result<Value, TypeError> {
        self.graph.full(self.float, x, &Shape::from([]))
    }

    /// The sum of all elements.
    fn sum_all(&mut self, x: Value) -> Result<Value, TypeError> {
        let dims: Vec<usize> = (0..self.graph.ty(x).rank()).collect();
        let sum = if dims.is_empty() { x } else { self.graph.reduce(Reduce::Sum, x, &dims)? };
        self.graph.cast(self.float, sum)
    }

    /// The sum over micro-batches of what each has. Values are changed in place; the first is the sum.
    fn join(&mut self, mut values: Vec<Value>) -> Result<Value, TypeError> {
        let each = pieces::block_rows(self.rows);
        let spans: Vec<usize> = match self.parts.sums {
            Sums::Exact => self.parts.pieces.iter().map(|(r, _)| r.len().div_ceil(each)).collect(),
            Sums::Free => vec![1; self.parts.pieces.len()],
        };
        for (left, right) in pieces::additions(&spans) {
            values[left] = self.graph.add(values[left], values[right])?;
        }
        Ok(values[0])
    }

    /// Gives the variables their next values.
    fn finish(mut self) -> Builder<'a> {
        let trains = matches!(self.parts.purpose, Purpose::Train(_));
        for v in self.variables.iter().filter(|v| trains || v.spec.is_none()) {
            let param = &mut self.graph.params[v.param];
            if matches!(param.kind, ParamKind::State { .. }) {
                param.kind = ParamKind::State { next: Some(v.now) };
            }
        }
        self.graph.origin = Origin::default();
        self
    }
}

/// What does not fit an output.
fn fit<'n>(what: &'n str, output: &'n str) -> impl FnOnce(TypeError) -> StepError + use<'n> {
    move |problem| StepError::Fit { what: what.to_string(), output: output.to_string(), problem }
}
