//! How a model is trained, from what its file and the user say.

use super::config::{ConfigError, Outputs, Place, Said, TrainConfig};
use super::fit::Names;
use super::loss::Loss;
use super::metric::Metric;
use super::optimizer::Optimizer;
use super::step::Objective;
use super::trainer::Recipe;
use crate::frontend::{At, ImportError, Json};
use crate::model::{Model, ModelError};
use intwain_ir::{DType, Value};

/// What is wrong with how a model is to be trained.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// Losses, metrics or the optimizer cannot be used.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Config(Vec<ConfigError>),
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Nobody names an optimizer.
    #[error("the model file names no optimizer; give one with --optimizer, such as adam")]
    NoOptimizer,
}

/// What a model's outputs are judged by: its losses and metrics, and the names under which they are reported.
#[derive(Clone, Debug)]
pub struct Judging {
    /// For each output.
    pub objectives: Vec<Objective>,
    /// What is reported.
    pub names: Names,
}

/// Losses and metrics that the file or the user says.
pub fn judging(model: &Model, said: &Said) -> Result<Judging, RecipeError> {
    let outputs = Outputs::of(model.keras());
    let config = read(model, said, &outputs)?;
    objectives(&config, said)
}

/// How a model is trained that the file and the user say so; sums, micro-batches and statistics are the usual ones.
pub fn recipe(model: &Model, said: &Said, seed: u64) -> Result<(Recipe, Names), RecipeError> {
    let outputs = Outputs::of(model.keras());
    let config = read(model, said, &outputs)?;
    let at = config.optimizer.as_ref().ok_or(RecipeError::NoOptimizer)?;
    let place = if said.optimizer.is_some() { Place::Argument("--optimizer") } else { Place::File };
    let found = Optimizer::read(at).map_err(|problem| RecipeError::Config(vec![ConfigError { place, problem }]))?;
    let optimizer = if config.scales_loss && computes_in_half(model)? { scaled(&found)? } else { found };
    let Judging { objectives, names } = objectives(&config, said)?;
    let recipe = Recipe { seed, ..Recipe::new(objectives, Some(optimizer)) };
    Ok((recipe, names))
}

/// Whether some layer computes in f16 with weights in f32: Keras then scales the loss.
fn computes_in_half(model: &Model) -> Result<bool, RecipeError> {
    let graph = model.graph(1)?;
    let is_half = |v: Value| graph.ty(v).dtype == DType::F16;
    let weights = graph.weights().any(|p| is_half(p.value));
    Ok(!weights && graph.values.keys().any(is_half))
}

/// The optimizer with a changing loss scale around it, unless it has one.
fn scaled(optimizer: &Optimizer) -> Result<Optimizer, RecipeError> {
    if optimizer.inner_from().is_some() {
        return Ok(optimizer.clone());
    }
    let config = Json::Object([("inner_optimizer".to_string(), optimizer.config())].into_iter().collect());
    let class = Json::String("LossScaleOptimizer".to_string());
    let json = Json::Object([("class_name".to_string(), class), ("config".to_string(), config)].into_iter().collect());
    let place = Place::Argument("--optimizer");
    Optimizer::read(&At::root(&json)).map_err(|problem| RecipeError::Config(vec![ConfigError { place, problem }]))
}

fn read<'j>(model: &'j Model, said: &'j Said, outputs: &Outputs) -> Result<TrainConfig<'j>, RecipeError> {
    TrainConfig::read(model.compile_config(), model.keras().generation, said, outputs).map_err(RecipeError::Config)
}

fn objectives(config: &TrainConfig<'_>, said: &Said) -> Result<Judging, RecipeError> {
    let mut problems = Vec::new();
    let mut keep = |place: Place, problem: ImportError| problems.push(ConfigError { place, problem });
    let of = |given: bool, name: &'static str| if given { Place::Argument(name) } else { Place::File };
    let mut objectives = Vec::new();
    for output in &config.outputs {
        let loss = output.loss.as_ref().map(Loss::read).transpose();
        let loss = loss.unwrap_or_else(|e| {
            keep(of(said.loss.is_some(), "--loss"), e);
            None
        });
        let mut metrics = |all: &[At<'_>], place: Place| -> Vec<Metric> {
            let read = |at: &At<'_>| Metric::read(at).map_err(|e| keep(place, e)).ok();
            all.iter().filter_map(read).collect()
        };
        let plain = metrics(&output.metrics, of(said.metrics.is_some(), "--metrics"));
        let weighted = metrics(&output.weighted_metrics, of(said.weighted_metrics.is_some(), "--weighted-metrics"));
        objectives.push(Objective { loss, weight: output.weight, metrics: plain, weighted_metrics: weighted });
    }
    if !problems.is_empty() {
        return Err(RecipeError::Config(problems));
    }
    let names = Names::new(config.outputs.iter().map(|o| o.name.clone()).collect(), &objectives, config.naming);
    Ok(Judging { objectives, names })
}
