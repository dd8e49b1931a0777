//! Small models that are trained under every plan.

use super::{Array, write_npz};
use intwain::frontend::{At, Json};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::pieces::Sums;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Schedule, Trainer};
use intwain::{DeviceKind, Devices, Model, ModelOptions, SessionOptions, Strategy, Tensor};
use serde_json::{Value, json};
use std::num::NonZeroUsize;

/// A Sequential model of Keras 3 with these layers on an input of this shape, and weights by path.
pub(crate) fn model(shape: &[Option<usize>], layers: &[Value], weights: &[(&str, &[usize], &[f32])]) -> Model {
    let mut all = vec![json!({"class_name": "InputLayer", "config": {"batch_shape": shape, "name": "x"}})];
    all.extend_from_slice(layers);
    let config = json!({"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": {"name": "m", "layers": all}});
    opened(&config, weights)
}

/// A model of this architecture, and weights by path.
pub(crate) fn opened(config: &Value, weights: &[(&str, &[usize], &[f32])]) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let (file, stored) = (folder.path().join("m.json"), folder.path().join("m.npz"));
    std::fs::write(&file, config.to_string()).unwrap();
    if weights.is_empty() {
        std::fs::write(&file, config.to_string()).unwrap();
        return Model::open(&file, ModelOptions::default()).unwrap();
    }
    let arrays: Vec<Array> = weights.iter().map(|(name, shape, v)| Array::f32(name, shape, v.to_vec())).collect();
    write_npz(&stored, &arrays);
    Model::open(&file, ModelOptions { weights: Some(stored), ..ModelOptions::default() }).unwrap()
}

pub(crate) fn layer(class: &str, config: Value) -> Value {
    json!({"module": "keras.layers", "class_name": class, "config": config, "registered_name": null})
}

/// Gradient descent with this rate.
pub(crate) fn sgd(rate: f64) -> Optimizer {
    optimizer(json!({"class_name": "SGD", "config": {"learning_rate": rate}}))
}

pub(crate) fn optimizer(config: Value) -> Optimizer {
    let json = Json::parse(&config.to_string()).unwrap();
    Optimizer::read(&At::root(&json)).unwrap()
}

pub(crate) fn recipe(losses: &[&str], optimizer: Optimizer) -> Recipe {
    let objective = |name: &&str| Objective {
        loss: Some(Loss::named(name).unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    Recipe { sums: Sums::Free, ..Recipe::new(losses.iter().map(objective).collect(), Some(optimizer)) }
}

/// How devices share the work: one device, or two under a strategy.
pub(crate) fn plans() -> Vec<(&'static str, SessionOptions)> {
    let on = |devices: u32, split: Option<Strategy>, parts: Option<[usize; 2]>| SessionOptions {
        devices: Devices::new(DeviceKind::Cpu, 0..devices).unwrap(),
        threads: Some(1),
        split,
        parts,
        ..SessionOptions::default()
    };
    vec![
        ("one", on(1, None, None)),
        ("data", on(2, Some(Strategy::Data), None)),
        ("data 3:2", on(2, Some(Strategy::Data), Some([3, 2]))),
        ("tensor", on(2, Some(Strategy::Tensor), None)),
        ("pipeline", on(2, Some(Strategy::Pipeline), None)),
    ]
}

pub(crate) fn batch(x: (&[usize], &[f32]), y: (&[usize], &[f32])) -> Batch {
    Batch {
        inputs: vec![Tensor::from_f32(x.0, x.1)],
        labels: vec![Some(Tensor::from_f32(y.0, y.1))],
        weights: vec![None],
    }
}

/// A state after training.
pub(crate) fn state(trainer: &mut Trainer<'_>, name: &str) -> Vec<f64> {
    trainer.states().unwrap()[name].to_f64()
}

/// Every plan with every number of micro-batches that makes sense.
pub(crate) fn runs(losses: &[&str], optimizer: &Optimizer) -> Vec<(String, Recipe, SessionOptions)> {
    let mut runs = Vec::new();
    for (plan, options) in plans() {
        for micro_batches in [1, 2, 3] {
            for schedule in Schedule::ALL {
                let pipelined = options.split == Some(Strategy::Pipeline);
                if (!pipelined && schedule != Schedule::default())
                    || (options.split == Some(Strategy::Data) && micro_batches > 1)
                {
                    continue;
                }
                let micro = NonZeroUsize::new(micro_batches);
                let recipe = Recipe { micro_batches: micro, schedule, ..recipe(losses, optimizer.clone()) };
                runs.push((format!("{plan}, {micro_batches} micro-batches, {schedule}"), recipe, options.clone()));
            }
        }
    }
    runs
}
