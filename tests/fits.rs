//! Small models trained with every loss and many metrics: `tests/goldens/fits.jsonl`, what Keras 3.15.1 reports after each of two
//! epochs and the weights then. Batches of 4 rows, the last one of 2.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::frontend::{At, Json};
use intwain::train::config::Naming;
use intwain::train::fit::{Names, Tally};
use intwain::train::loss::Loss;
use intwain::train::metric::Metric;
use intwain::train::optimizer::Optimizer;
use intwain::train::step::{Objective, StepError};
use intwain::train::trainer::{Batch, Recipe, TrainError, Trainer};
use std::num::NonZeroUsize;

use intwain::{DType, DeviceKind, Devices, Model, ModelOptions, SessionOptions, Strategy, Tensor};
use serde_json::{Value, json};
use support::{Array, write_npz};

const BATCH: usize = 4;

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

fn tensor(value: &Value) -> Tensor {
    let dtype = match value["dtype"].as_str().unwrap() {
        "int32" => DType::I32,
        "float32" => DType::F32,
        other => panic!("{other}"),
    };
    let shape: Vec<usize> = value["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap() as usize).collect();
    Tensor::from_f64(dtype, shape, &numbers(&value["data"]))
}

/// Path and value of each weight.
fn weights(value: &Value) -> Vec<(String, Tensor)> {
    let pair = |w: &Value| (w[0].as_str().unwrap().to_string(), tensor(&w[1]));
    value.as_array().unwrap().iter().map(pair).collect()
}

fn model(case: &Value) -> Model {
    let config = json!({"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": {"name": "m", "layers": case["layers"]}});
    let folder = tempfile::tempdir().unwrap();
    let (file, stored) = (folder.path().join("m.json"), folder.path().join("m.npz"));
    std::fs::write(&file, config.to_string()).unwrap();
    let f32s = |t: &Tensor| t.to_f64().iter().map(|x| *x as f32).collect();
    let array = |(path, t): &(String, Tensor)| Array::f32(path, &t.ty.shape, f32s(t));
    write_npz(&stored, &weights(&case["weights"]).iter().map(array).collect::<Vec<_>>());
    Model::open(&file, ModelOptions { weights: Some(stored), ..ModelOptions::default() }).unwrap()
}

fn recipe(case: &Value) -> Recipe {
    // A document that is a string is taken for one that was written twice.
    let json = |value: &Value| match value.as_str() {
        Some(name) => Json::String(name.to_string()),
        None => Json::parse(&value.to_string()).unwrap(),
    };
    let metrics = |key: &str| -> Vec<Metric> {
        case[key].as_array().unwrap().iter().map(|m| Metric::read(&At::root(&json(m))).unwrap()).collect()
    };
    let objective = Objective {
        loss: Some(Loss::read(&At::root(&json(&case["loss"]))).unwrap()),
        weight: 1.0,
        metrics: metrics("metrics"),
        weighted_metrics: metrics("weighted_metrics"),
    };
    let sgd = json(&json!({"class_name": "SGD", "config": {"learning_rate": case["rate"]}}));
    Recipe::new(vec![objective], Some(Optimizer::read(&At::root(&sgd)).unwrap()))
}

fn near(got: &[f64], want: &[f64], scale: f64) -> bool {
    let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 2e-5 * b.abs().max(scale) || (!a.is_finite() && !b.is_finite());
    got.len() == want.len() && got.iter().zip(want).all(close)
}

/// What differs from Keras.
fn trained(case: &Value, micro_batches: usize, options: SessionOptions) -> Vec<String> {
    let micro_batches = NonZeroUsize::new(micro_batches);
    let (model, recipe) = (model(case), Recipe { micro_batches, ..recipe(case) });
    let names = Names::new(vec!["y".to_string()], &recipe.objectives, Naming::default());
    let mut trainer = Trainer::new(&model, recipe, options).unwrap();
    let [x, y] = ["x", "y"].map(|key| tensor(&case[key]));
    let weight = case.get("weight").map(tensor);
    let rows = x.ty.shape[0];
    let mut problems = Vec::new();
    for epoch in 0..2 {
        let mut tally = Tally::default();
        for start in (0..rows).step_by(BATCH) {
            let part = |t: &Tensor| t.slice(0, start..(start + BATCH).min(rows));
            let batch = Batch {
                inputs: vec![part(&x)],
                labels: vec![Some(part(&y))],
                weights: vec![weight.as_ref().map(part)],
            };
            match trainer.step(&batch) {
                Ok(outcome) => tally.add(&outcome),
                Err(TrainError::Step(StepError::Coupled { .. })) => {
                    return if COUPLED.contains(&case["name"].as_str().unwrap()) {
                        Vec::new()
                    } else {
                        vec!["coupled".into()]
                    };
                }
                Err(problem) => return vec![problem.to_string()],
            }
        }
        let values = tally.values(&names);
        let history = case["history"].as_object().unwrap();
        let mut reported: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
        let mut wanted: Vec<&str> = history.keys().map(String::as_str).collect();
        reported.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(reported, wanted);
        for (name, value) in values {
            let want = numbers(&history[&name][epoch]);
            if !near(value.numbers(), &want, 1.0) {
                problems.push(format!("{name} after epoch {epoch}: {:?}, not {want:?}", value.numbers()));
            }
        }
    }
    let states = trainer.states().unwrap();
    for (path, want) in weights(&case["after"]) {
        let got = states[path.as_str()].to_f64();
        if !near(&got, &want.to_f64(), 0.3) {
            problems.push(format!("{path}: {got:?}, not {:?}", want.to_f64()));
        }
    }
    problems
}

/// Losses that look at all rows of a batch at once.
const COUPLED: [&str; 4] = ["hinge", "squared_hinge", "dice", "circle"];

/// Every case on these devices.
fn all(micro_batches: usize, options: &SessionOptions) {
    let mut failed = Vec::new();
    for line in include_str!("goldens/fits.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let name = case["name"].as_str().unwrap().to_string();
        failed.extend(
            trained(&case, micro_batches, options.clone()).into_iter().map(|problem| format!("{name}: {problem}")),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn on(devices: u32, split: Option<Strategy>, parts: Option<[usize; 2]>) -> SessionOptions {
    SessionOptions {
        devices: Devices::new(DeviceKind::Cpu, 0..devices).unwrap(),
        threads: Some(1),
        split,
        parts,
        ..SessionOptions::default()
    }
}

#[test]
fn one_device_trains_as_keras_does() {
    all(1, &on(1, None, None));
}

#[test]
fn two_devices_with_unequal_parts_train_as_keras_does() {
    all(1, &on(2, Some(Strategy::Data), Some([3, 1])));
}

#[test]
fn a_pipeline_of_two_devices_trains_as_keras_does() {
    all(2, &on(2, Some(Strategy::Pipeline), None));
}

#[test]
fn gpu_code_of_two_devices_trains_as_keras_does() {
    let devices = Devices::new(DeviceKind::Ptx, 0..2).unwrap();
    all(1, &SessionOptions { devices, ..on(2, Some(Strategy::Data), Some([1, 3])) });
}
