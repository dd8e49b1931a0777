//! What training leaves: checkpoints, the trained model, the history.

use super::args::TrainArgs;
use super::{Failure, output};
use crate::cli::args::Common;
use crate::export::{self, Compile, Kept, Trained};
use crate::frontend::Json;
use crate::model::Model;
use crate::train::checkpoint::{Checkpoint, Checkpoints, Identity};
use crate::train::config::{Argument, Said};
use crate::train::data::Position;
use crate::train::fit::{EpochReport, FitOptions, Flow, History, StepReport};
use crate::train::history;
use crate::train::trainer::{Batch, TrainError, Trainer};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// The files of a training.
pub(crate) struct Files<'a> {
    a: &'a TrainArgs,
    model: &'a Model,
    said: &'a Said,
    identity: Identity,
    checkpoints: Option<Checkpoints>,
}

/// Whether the user has asked to stop.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

impl<'a> Files<'a> {
    /// Says what the run is; `rows` are those that an epoch trains on.
    pub(crate) fn new(
        a: &'a TrainArgs,
        model: &'a Model,
        said: &'a Said,
        trainer: &Trainer<'_>,
        options: &FitOptions,
        rows: usize,
    ) -> Result<Files<'a>, Failure> {
        if let Some(path) = &a.output {
            export::check(path, model).map_err(Failure::input)?;
        }
        let recipe = trainer.recipe();
        let optimizer = recipe.optimizer.as_ref().map(|o| o.config().to_text()).unwrap_or_default();
        let losses: Vec<String> = recipe.objectives.iter().map(|o| format!("{:?} {}", o.loss, o.weight)).collect();
        let settings = [
            ("optimizer", optimizer),
            ("loss", losses.join("; ")),
            ("batch", options.batch.to_string()),
            ("seed", options.seed.to_string()),
            ("shuffle", format!("{:?}", options.shuffle)),
            ("rows of data", rows.to_string()),
            ("statistics", format!("{:?}", recipe.normalisation)),
            ("staleness", recipe.staleness.to_string()),
        ];
        let settings = settings.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        Ok(Files { a, model, said, identity: Identity::new(model, settings), checkpoints: None })
    }

    /// Opens the folder of checkpoints, and goes on from the newest where that is asked for. `first` is a batch of the run.
    pub(crate) fn begin(
        &mut self,
        trainer: &mut Trainer<'_>,
        first: &Batch,
        history: &mut History,
        common: &Common,
    ) -> Result<(), Failure> {
        // An interrupted run without checkpoints ends as any other command does.
        let Some(folder) = &self.a.checkpoint else { return Ok(()) };
        if !self.a.resume {
            self.checkpoints = Some(Checkpoints::begin(folder).map_err(Failure::input)?);
            return watch_for_interrupts();
        }
        let (checkpoints, found) = Checkpoints::resume(folder, &self.identity).map_err(Failure::input)?;
        self.checkpoints = Some(checkpoints);
        if let Some(found) = found {
            found.damaged.iter().for_each(|e| output::note(common, &format!("{e}; an older one is used")));
            trainer.prepare(first)?;
            let wanted: Vec<(String, _)> =
                trainer.states()?.iter().map(|(n, t)| (n.to_string(), t.ty.clone())).collect();
            found.states(wanted.iter().map(|(n, ty)| (n.as_str(), ty))).map_err(Failure::input)?;
            let position = found.checkpoint.position;
            let (epoch, batch) = (position.epoch + 1, position.batch);
            output::note(common, &format!("{}: goes on in epoch {epoch} behind {batch} steps", found.file.display()));
            let Checkpoint { states, series, .. } = found.checkpoint;
            trainer.set_states(states)?;
            let damaged = || Failure::file(&found.file, "the checkpoint holds no history of a training");
            *history = history::from_series(&series, position).ok_or_else(damaged)?;
        }
        watch_for_interrupts()
    }

    /// Whether the user has asked to stop.
    pub(crate) fn interrupted(&self) -> bool {
        INTERRUPTED.load(Ordering::Relaxed)
    }

    /// After each step.
    pub(crate) fn on_step(
        &self,
        trainer: &mut Trainer<'_>,
        history: &History,
        step: &StepReport<'_>,
    ) -> Result<Flow, TrainError> {
        let due = self.a.checkpoint_every.is_some_and(|every| history.losses.len().is_multiple_of(every));
        let interrupted = self.interrupted();
        if due || interrupted {
            self.save(trainer, history, step.next)?;
        }
        Ok(if interrupted { Flow::Stop } else { Flow::Continue })
    }

    /// After each epoch.
    pub(crate) fn on_epoch(
        &self,
        trainer: &mut Trainer<'_>,
        history: &History,
        epoch: &EpochReport,
    ) -> Result<Flow, TrainError> {
        self.save(trainer, history, Position { epoch: epoch.epoch + 1, batch: 0 })?;
        Ok(if self.interrupted() { Flow::Stop } else { Flow::Continue })
    }

    fn save(&self, trainer: &mut Trainer<'_>, history: &History, position: Position) -> Result<(), TrainError> {
        let Some(checkpoints) = &self.checkpoints else { return Ok(()) };
        let states = trainer.states()?.iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        let steps = history.losses.len() as u64;
        let checkpoint =
            Checkpoint { identity: self.identity.clone(), states, series: history::series(history), steps, position };
        checkpoints.save(&checkpoint).map_err(|e| TrainError::Watcher(e.to_string()))?;
        Ok(())
    }

    /// Writes the trained model and the history.
    pub(crate) fn finish(&self, trainer: &mut Trainer<'_>, history: &History) -> Result<(), Failure> {
        if let Some(path) = &self.a.history {
            history::write(path, history)?;
        }
        let Some(path) = &self.a.output else { return Ok(()) };
        let (named, optimizer) = (trainer.trained(), trainer.recipe().optimizer.clone());
        let slots: Vec<String> = trainer.slots().iter().map(|s| s.path.clone()).collect();
        let states = trainer.states()?;
        let mut weights: BTreeMap<&str, _> = BTreeMap::new();
        for (name, tensor) in states.iter().filter(|(name, _)| self.model.weight_shape(name).is_some()) {
            weights.insert(&**name, tensor);
        }
        let last = optimizer.as_ref().map(|o| o.finalize(&named)).unwrap_or_default();
        for ((name, _), slot) in named.iter().zip(last) {
            if let Some(slot) = slot {
                weights.insert(name, &states[&*slots[slot]]);
            }
        }
        let kept = optimizer.as_ref().map(|o| Kept {
            slots: slots.iter().map(|slot| (slot.as_str(), &states[&**slot])).collect(),
            inner_from: o.inner_from(),
        });
        let compile = optimizer.as_ref().map(|o| self.compile(o.config()));
        let trained = Trained { weights, optimizer: kept, compile };
        export::write(path, self.model, &trained).map_err(Failure::input)
    }

    /// What the trained model is compiled with: what the file says, with what the user says in its place.
    fn compile(&self, optimizer: Json) -> Compile {
        let file = self.model.compile_config().and_then(Compile::of);
        let mut compile = file.unwrap_or(Compile {
            optimizer: Json::Null,
            loss: Json::Null,
            loss_weights: Json::Null,
            metrics: Json::Null,
            weighted_metrics: Json::Null,
        });
        compile.optimizer = optimizer;
        let replace = |place: &mut Json, said: &Option<Argument>| match said {
            Some(Argument::Names(names)) => {
                *place = if let [one] = &names[..] { one.clone() } else { Json::Array(names.clone()) };
            }
            Some(Argument::Document(json)) => *place = json.clone(),
            None => {}
        };
        if self.said.loss.is_some() {
            compile.loss_weights = Json::Null;
        }
        replace(&mut compile.loss, &self.said.loss);
        replace(&mut compile.loss_weights, &self.said.loss_weights);
        replace(&mut compile.metrics, &self.said.metrics);
        replace(&mut compile.weighted_metrics, &self.said.weighted_metrics);
        if let name @ Json::String(_) = &compile.metrics {
            compile.metrics = Json::Array(vec![name.clone()]);
        }
        if let name @ Json::String(_) = &compile.weighted_metrics {
            compile.weighted_metrics = Json::Array(vec![name.clone()]);
        }
        compile
    }
}

/// The first interrupt ends training behind the step under way; the second ends the process.
fn watch_for_interrupts() -> Result<(), Failure> {
    let stop = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    };
    ctrlc::set_handler(stop).map_err(|e| Failure::Defect(format!("interrupts cannot be watched for: {e}")))
}
