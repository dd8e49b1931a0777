//! Training gives the same bits on one device, on two that share the rows, and in pipelines.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain::frontend::{At, Json};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{DeviceKind, Devices, Model, ModelOptions, RunError, Session, SessionOptions, Strategy, Tensor};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

/// A Sequential model of Keras 3 with these layers, its weights initialised from a seed.
fn model(input: Value, layers: &[Value]) -> Model {
    let mut all = vec![json!({"class_name": "InputLayer", "config": input})];
    all.extend_from_slice(layers);
    let config = json!({"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": {"name": "m", "layers": all}});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    std::fs::write(&file, config.to_string()).unwrap();
    Model::open(&file, ModelOptions { seed: 3, ..ModelOptions::default() }).unwrap()
}

fn layer(class: &str, config: Value) -> Value {
    json!({"module": "keras.layers", "class_name": class, "config": config})
}

fn dense(name: &str, units: usize, activation: &str) -> Value {
    layer("Dense", json!({"name": name, "units": units, "activation": activation}))
}

/// A model with the shape of its inputs behind the rows, what they hold, and the labels' width.
struct Case {
    name: &'static str,
    model: Model,
    input: Vec<usize>,
    /// Inputs are positions below this.
    ids: Option<usize>,
    labels: usize,
    /// Whether every row is handled by itself, so that micro-batches change nothing.
    apart: bool,
}

fn floats(shape: &[Option<usize>]) -> Value {
    json!({"batch_shape": shape, "name": "x"})
}

fn cases() -> Vec<Case> {
    let conv = |name: &str, filters: usize, more: Value| {
        let mut config =
            json!({"name": name, "filters": filters, "kernel_size": [3, 3], "padding": "same", "activation": "relu"});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        layer("Conv2D", config)
    };
    let image = floats(&[None, Some(6), Some(6), Some(4)]);
    let head = [layer("Flatten", json!({"name": "flat"})), dense("head", 3, "softmax")];
    let normal = layer("BatchNormalization", json!({"name": "bn"}));
    let depthwise =
        layer("DepthwiseConv2D", json!({"name": "dw", "kernel_size": [3, 3], "padding": "same", "strides": [2, 2]}));
    let ids = json!({"batch_shape": [null, 5], "name": "x", "dtype": "int32"});
    let embedding = layer("Embedding", json!({"name": "e", "input_dim": 11, "output_dim": 6, "mask_zero": true}));
    let lstm = layer("LSTM", json!({"name": "lstm", "units": 5, "return_sequences": true}));
    let gru = layer("GRU", json!({"name": "gru", "units": 4}));
    let narrow = |name: &str, units: usize| {
        let policy = json!({"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_bfloat16"}});
        layer("Dense", json!({"name": name, "units": units, "activation": "relu", "dtype": policy}))
    };
    let dropout = layer("Dropout", json!({"name": "drop", "rate": 0.4}));
    let chain = |layers: &[Value]| [layers, &head].concat();
    vec![
        Case {
            name: "mlp",
            model: model(floats(&[None, Some(7)]), &[dense("a", 9, "tanh"), dropout.clone(), dense("b", 3, "softmax")]),
            input: vec![7],
            ids: None,
            labels: 3,
            apart: true,
        },
        Case {
            name: "convnet",
            model: model(
                image.clone(),
                &chain(&[conv("a", 8, json!({})), conv("b", 8, json!({"groups": 2})), depthwise.clone()]),
            ),
            input: vec![6, 6, 4],
            ids: None,
            labels: 3,
            apart: true,
        },
        Case {
            name: "normalised",
            model: model(image, &chain(&[conv("a", 8, json!({"use_bias": false})), normal, depthwise])),
            input: vec![6, 6, 4],
            ids: None,
            labels: 3,
            apart: false,
        },
        Case {
            name: "convolving",
            model: model(
                floats(&[None, Some(3), Some(6), Some(2)]),
                &chain(&[layer(
                    "ConvLSTM1D",
                    json!({"name": "cl", "filters": 3, "kernel_size": [3], "padding": "same"}),
                )]),
            ),
            input: vec![3, 6, 2],
            ids: None,
            labels: 3,
            apart: true,
        },
        Case {
            name: "narrow",
            model: model(floats(&[None, Some(7)]), &[narrow("a", 9), narrow("b", 6), dense("c", 3, "softmax")]),
            input: vec![7],
            ids: None,
            labels: 3,
            apart: true,
        },
        Case {
            name: "recurrent",
            model: model(ids, &[embedding, lstm, gru, dropout, dense("b", 3, "softmax")]),
            input: vec![5],
            ids: Some(11),
            labels: 3,
            apart: true,
        },
    ]
}

/// Numbers in −1 … 1 from a seed.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

impl Case {
    fn inputs(&self, rows: usize, seed: u64) -> Tensor {
        let shape: Vec<usize> = std::iter::once(rows).chain(self.input.iter().copied()).collect();
        let numbers = noise(shape.iter().product(), seed);
        match self.ids {
            None => Tensor::from_f32(shape.as_slice(), &numbers),
            Some(n) => {
                let ids: Vec<f64> = numbers.iter().map(|x| ((f64::from(*x) + 1.0) / 2.0 * n as f64).floor()).collect();
                Tensor::from_f64(intwain::DType::I32, shape.as_slice(), &ids)
            }
        }
    }

    fn batch(&self, rows: usize, seed: u64) -> Batch {
        let one_hot = |row: usize| (0..self.labels).map(move |l| f32::from(u8::from(l == (row * 7 + 1) % 3)));
        let labels: Vec<f32> = (0..rows).flat_map(one_hot).collect();
        Batch {
            inputs: vec![self.inputs(rows, seed)],
            labels: vec![Some(Tensor::from_f32([rows, self.labels], &labels))],
            weights: vec![None],
        }
    }
}

fn recipe(micro_batches: Option<usize>) -> Recipe {
    let adam = json!({"class_name": "Adam", "config": {"learning_rate": 0.01}}).to_string();
    let json = Json::parse(&adam).unwrap();
    let objective = Objective {
        loss: Some(Loss::named("categorical_crossentropy").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    Recipe {
        seed: 5,
        micro_batches: micro_batches.and_then(NonZeroUsize::new),
        ..Recipe::new(vec![objective], Some(Optimizer::read(&At::root(&json)).unwrap()))
    }
}

fn on(devices: u32, split: Option<Strategy>, parts: Option<[usize; 2]>) -> SessionOptions {
    let devices = Devices::new(DeviceKind::Cpu, 0..devices).unwrap();
    SessionOptions { devices, threads: Some(1), split, parts, ..SessionOptions::default() }
}

/// Losses and all states after a few steps, as bits.
fn trained(
    case: &Case,
    rows: usize,
    options: SessionOptions,
    micro_batches: Option<usize>,
) -> (Vec<u64>, BTreeMap<String, Tensor>) {
    let mut trainer = Trainer::new(&case.model, recipe(micro_batches), options).unwrap();
    let losses = (0..3).map(|step| trainer.step(&case.batch(rows, 40 + step)).unwrap().loss.to_bits()).collect();
    let states = trainer.states().unwrap().iter();
    (losses, states.map(|(name, value)| (name.to_string(), value.clone())).collect())
}

#[test]
fn devices_that_share_rows_train_as_one() {
    for case in cases() {
        for (rows, parts) in
            [(16, vec![[8, 8], [10, 6]]), (5, vec![[3, 2], [1, 4]]), (20, vec![[12, 8]]), (1, vec![[1, 0]])]
        {
            let (losses, states) = trained(&case, rows, on(1, None, None), None);
            for parts in parts {
                let (l, s) = trained(&case, rows, on(2, Some(Strategy::Data), Some(parts)), None);
                assert_eq!(l, losses, "losses of {} {rows} {parts:?}", case.name);
                for (name, value) in &states {
                    assert_eq!(s[name], *value, "{name} of {} {rows} {parts:?}", case.name);
                }
            }
        }
    }
}

#[test]
fn pipelines_train_as_one_device() {
    for case in cases().iter().filter(|c| c.apart) {
        for (rows, pieces) in [(16, vec![2, 4, 8]), (5, vec![2])] {
            let (losses, states) = trained(case, rows, on(1, None, None), None);
            for pieces in pieces {
                let (l, s) = trained(case, rows, on(2, Some(Strategy::Pipeline), None), Some(pieces));
                assert_eq!(l, losses, "losses of {} {rows} in {pieces}", case.name);
                for (name, value) in &states {
                    assert_eq!(s[name], *value, "{name} of {} {rows} in {pieces}", case.name);
                }
            }
        }
    }
}

#[test]
fn gradients_are_those_of_one_device_and_parts_within_blocks_are_refused() {
    for case in cases() {
        let (rows, inputs) = (16, BTreeMap::from([("x".to_string(), case.inputs(16, 9))]));
        let shape = [rows, case.labels];
        let cotangents =
            BTreeMap::from([("cot0".to_string(), Tensor::from_f32(shape, &noise(rows * case.labels, 11)))]);
        let of = |options: SessionOptions| -> Result<_, RunError> {
            Session::new(&case.model, options)?.gradients(&inputs, &cotangents)
        };
        let one = of(on(1, None, None)).unwrap();
        assert_eq!(of(on(2, Some(Strategy::Data), Some([6, 10]))).unwrap(), one, "{}", case.name);
        let refused = of(on(2, Some(Strategy::Data), Some([7, 9]))).unwrap_err().to_string();
        assert!(refused.contains("6,10 and 8,8"), "{refused}");
    }
}
