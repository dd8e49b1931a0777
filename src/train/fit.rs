//! Training over epochs: batches in order, the losses and metrics of an epoch, validation, early stopping.

use super::config::Naming;
use super::data::{self, Data, DataError, Epoch, Position, Shuffle};
use super::metric::{Listed, Measured, Metric, reported};
use super::step::Objective;
use super::trainer::{Batch, Outcome, TrainError, Trainer};
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// How long and on what a model is trained.
#[derive(Clone, Debug)]
pub struct FitOptions {
    /// Passes over the data.
    pub epochs: u64,
    /// Rows of a step; the last one of an epoch has what is left.
    pub batch: NonZeroUsize,
    /// Whether each epoch has an order of its own.
    pub shuffle: Shuffle,
    /// What that order depends on.
    pub seed: u64,
    /// When training ends before its last epoch.
    pub early_stop: Option<EarlyStop>,
}

/// Training ends when a quantity has not become better for some epochs.
#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStop {
    /// The quantity: `loss`, `val_loss` or a metric's name; `None`: `val_loss` where there is validation, else `loss`.
    pub monitor: Option<String>,
    /// Epochs without improvement after which training ends.
    pub patience: u64,
    /// Changes below this are no improvement.
    pub min_delta: f64,
    /// Which way is better.
    pub better: Better,
}

/// Which way a quantity becomes better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Better {
    /// By its name: accuracies, AUC, precision and the like upwards, everything else downwards.
    #[default]
    ByName,
    /// Less is better.
    Less,
    /// More is better.
    More,
}

/// Whether training goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Flow {
    /// It does.
    #[default]
    Continue,
    /// It ends behind this step or epoch.
    Stop,
}

/// What a step came to.
#[derive(Clone, Debug)]
pub struct StepReport<'a> {
    /// What the next step takes.
    pub next: Position,
    /// Steps of this epoch.
    pub steps: usize,
    /// Epochs in all.
    pub epochs: u64,
    /// The loss of the step.
    pub loss: f64,
    /// Loss and metrics of the epoch so far, by name.
    pub so_far: &'a [(String, Measured)],
    /// Rows of the step.
    pub rows: usize,
    /// What the epoch has taken so far.
    pub elapsed: Duration,
    /// Rows that were trained on in that time.
    pub rows_done: usize,
}

/// What an epoch came to.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochReport {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Loss and metrics by name, then those of validation with `val_` before them.
    pub values: Vec<(String, Measured)>,
    /// What it took.
    pub elapsed: Duration,
}

/// Sees what happens.
pub trait Watcher {
    /// After each step. The trainer can be asked for its states.
    fn on_step(
        &mut self,
        _trainer: &mut Trainer<'_>,
        _history: &History,
        _step: &StepReport<'_>,
    ) -> Result<Flow, TrainError> {
        Ok(Flow::Continue)
    }

    /// After each epoch.
    fn on_epoch(
        &mut self,
        _trainer: &mut Trainer<'_>,
        _history: &History,
        _epoch: &EpochReport,
    ) -> Result<Flow, TrainError> {
        Ok(Flow::Continue)
    }
}

/// Nobody looks.
impl Watcher for () {}

/// What has become of training so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The loss of every step.
    pub losses: Vec<f64>,
    /// Every epoch.
    pub epochs: Vec<EpochReport>,
    /// What the next step takes.
    pub next: Position,
    /// What the epoch under way has added up.
    pub tally: Tally,
    /// The best value of what early stopping looks at, and the epochs since.
    pub best: Option<(f64, u64)>,
}

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    /// The data cannot be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A step failed.
    #[error(transparent)]
    Train(Box<TrainError>),
    /// Early stopping looks at something that there is not.
    #[error("--early-stop: there is no `{monitor}`; there are {}", .known.join(", "))]
    Monitor {
        /// What was asked for.
        monitor: String,
        /// What there is.
        known: Vec<String>,
    },
}

impl From<TrainError> for FitError {
    fn from(e: TrainError) -> FitError {
        FitError::Train(Box::new(e))
    }
}

/// Sums over the steps of an epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Rows.
    pub rows: f64,
    /// Loss times rows.
    pub loss: f64,
    /// The same of each output that has a loss of its own.
    pub losses: Vec<(usize, f64)>,
    /// For each metric what it keeps, flattened.
    pub metrics: Vec<Vec<Vec<f64>>>,
}

impl Tally {
    /// Adds a step.
    pub fn add(&mut self, outcome: &Outcome) {
        let rows = outcome.rows as f64;
        self.rows += rows;
        self.loss += outcome.loss * rows;
        if self.losses.is_empty() {
            self.losses = outcome.losses.iter().map(|(i, _)| (*i, 0.0)).collect();
        }
        for ((_, sum), (_, loss)) in self.losses.iter_mut().zip(&outcome.losses) {
            *sum += loss * rows;
        }
        self.metrics.resize(outcome.metrics.len(), Vec::new());
        for (kept, added) in self.metrics.iter_mut().zip(&outcome.metrics) {
            kept.resize(added.len(), Vec::new());
            for (sums, tensor) in kept.iter_mut().zip(added) {
                let numbers = tensor.to_f64();
                sums.resize(numbers.len(), 0.0);
                sums.iter_mut().zip(numbers).for_each(|(sum, x)| *sum += x);
            }
        }
    }

    /// Loss and metrics by name.
    pub fn values(&self, names: &Names) -> Vec<(String, Measured)> {
        let mean = |sum: f64| Measured::One(if self.rows == 0.0 { 0.0 } else { sum / self.rows });
        let mut values = vec![("loss".to_string(), mean(self.loss))];
        values.extend(self.losses.iter().map(|(i, sum)| (format!("{}_loss", names.outputs[*i]), mean(*sum))));
        let metrics = names.metrics.iter().zip(&self.metrics);
        values.extend(metrics.map(|((name, metric), sums)| (name.clone(), metric.result(sums))));
        values
    }
}

/// The names under which losses and metrics are reported.
#[derive(Clone, Debug)]
pub struct Names {
    outputs: Vec<String>,
    metrics: Vec<(String, Metric)>,
}

impl Names {
    /// Those of a model's outputs and objectives, as Keras has them.
    pub fn new(outputs: Vec<String>, objectives: &[Objective], naming: Naming) -> Names {
        let several = outputs.len() > 1;
        let before = |i: usize, m: &Metric| if several { naming.before(&outputs[i], m.name()) } else { None };
        let listed = |i: usize, m: &Metric| (before(i, m).map(str::to_string), m.clone());
        let all = |of: fn(&Objective) -> &[Metric]| -> Vec<(Option<String>, Metric)> {
            objectives.iter().enumerate().flat_map(|(i, o)| of(o).iter().map(move |m| listed(i, m))).collect()
        };
        let (plain, weighted) = (all(|o| &o.metrics), all(|o| &o.weighted_metrics));
        fn list(metrics: &[(Option<String>, Metric)]) -> Vec<Listed<'_>> {
            metrics.iter().map(|(output, m)| Listed { output: output.as_deref(), name: m.name() }).collect()
        }
        let names = reported(&list(&plain), &list(&weighted));
        let metrics =
            names.into_iter().zip(plain.into_iter().chain(weighted)).map(|(name, (_, m))| (name, m)).collect();
        Names { outputs, metrics }
    }

    /// The names of losses and metrics, in the order in which they are reported.
    pub fn outputs(&self) -> &[String] {
        &self.outputs
    }
}

/// A batch of data for a model's outputs; `judged` are those that the data have labels for.
pub fn batch_of(batch: data::Batch, judged: &[usize], outputs: usize) -> Batch {
    let (mut labels, mut weights) = (vec![None; outputs], vec![None; outputs]);
    for ((&i, label), weight) in judged.iter().zip(batch.labels).zip(batch.weights) {
        (labels[i], weights[i]) = (Some(label), weight);
    }
    Batch { inputs: batch.inputs, labels, weights }
}

/// Trains from where `history` is, and goes on with it.
pub fn fit(
    trainer: &mut Trainer<'_>,
    data: &Data,
    validation: Option<&Data>,
    names: &Names,
    options: &FitOptions,
    history: &mut History,
    watcher: &mut dyn Watcher,
) -> Result<(), FitError> {
    let judged = trainer.judged();
    let outputs = names.outputs.len();
    while history.next.epoch < options.epochs {
        let Position { epoch, batch } = history.next;
        let order = Epoch::new(data.rows(), options.batch, options.seed, epoch, options.shuffle);
        let steps = order.batches();
        let (start, before) = (Instant::now(), history.tally.rows);
        for rows in order.from_batch(batch) {
            let batch = batch_of(data.gather(&rows)?, &judged, outputs);
            let outcome = trainer.step(&batch)?;
            history.losses.push(outcome.loss);
            history.tally.add(&outcome);
            history.next.batch += 1;
            let so_far = history.tally.values(names);
            let report = StepReport {
                next: history.next,
                steps,
                epochs: options.epochs,
                loss: outcome.loss,
                so_far: &so_far,
                rows: outcome.rows,
                elapsed: start.elapsed(),
                rows_done: (history.tally.rows - before) as usize,
            };
            if watcher.on_step(trainer, history, &report)? == Flow::Stop {
                return Ok(());
            }
        }
        let mut values = history.tally.values(names);
        if let Some(validation) = validation {
            let judged = evaluate(trainer, validation, names, options.batch)?;
            values.extend(judged.into_iter().map(|(name, value)| (format!("val_{name}"), value)));
        }
        let report = EpochReport { epoch, values, elapsed: start.elapsed() };
        history.next = Position { epoch: epoch + 1, batch: 0 };
        history.tally = Tally::default();
        let stops = stops_early(options.early_stop.as_ref(), &report, validation.is_some(), history)?;
        history.epochs.push(report.clone());
        if watcher.on_epoch(trainer, history, &report)? == Flow::Stop || stops {
            return Ok(());
        }
    }
    Ok(())
}

/// Loss and metrics of a model on data, by name.
pub fn evaluate(
    trainer: &mut Trainer<'_>,
    data: &Data,
    names: &Names,
    batch: NonZeroUsize,
) -> Result<Vec<(String, Measured)>, FitError> {
    let judged = trainer.judged();
    let mut tally = Tally::default();
    for rows in Epoch::new(data.rows(), batch, 0, 0, Shuffle::Off) {
        let batch = batch_of(data.gather(&rows)?, &judged, names.outputs.len());
        tally.add(&trainer.evaluate(&batch)?);
    }
    Ok(tally.values(names))
}

/// Whether training ends behind an epoch.
fn stops_early(
    rule: Option<&EarlyStop>,
    report: &EpochReport,
    validates: bool,
    history: &mut History,
) -> Result<bool, FitError> {
    let Some(rule) = rule else { return Ok(false) };
    let default = if validates { "val_loss" } else { "loss" };
    let monitor = rule.monitor.as_deref().unwrap_or(default);
    let found = report.values.iter().find(|(name, _)| name == monitor);
    let Some(Measured::One(value)) = found.map(|(_, v)| v) else {
        let known = report.values.iter().map(|(name, _)| name.clone()).collect();
        return Err(FitError::Monitor { monitor: monitor.to_string(), known });
    };
    let more = match rule.better {
        Better::More => true,
        Better::Less => false,
        Better::ByName => {
            ["acc", "auc", "precision", "recall", "f1", "iou", "r2"].iter().any(|up| monitor.contains(up))
        }
    };
    let improved = match history.best {
        None => true,
        Some((best, _)) if more => *value > best + rule.min_delta,
        Some((best, _)) => *value < best - rule.min_delta,
    };
    let since = if improved { 0 } else { history.best.map_or(0, |(_, since)| since) + 1 };
    let best = if improved { *value } else { history.best.map_or(*value, |(best, _)| best) };
    history.best = Some((best, since));
    Ok(since >= rule.patience.max(1))
}
