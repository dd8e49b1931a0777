//! Gradients of a data split that share messages: the same bits in fewer messages.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain::frontend::{At, Json};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::pieces::Sums;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{
    Buckets, DeviceKind, Devices, Model, ModelOptions, SessionOptions, Sharding, StateSharding, Strategy, Tensor,
};
use intwain_ir::ops::Op;
use intwain_ir::{DType, Shape};
use intwain_passes::Numerics;
use intwain_passes::program::Action;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const ROWS: usize = 16;
const PARTS: [usize; 2] = [10, 6];

fn model(input: &Value, layers: &[Value]) -> Model {
    let mut all = vec![json!({"class_name": "InputLayer", "config": input})];
    all.extend_from_slice(layers);
    let config = json!({"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": {"name": "m", "layers": all}});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    std::fs::write(&file, config.to_string()).unwrap();
    Model::open(&file, ModelOptions { seed: 3, ..ModelOptions::default() }).unwrap()
}

fn layer(class: &str, config: &Value) -> Value {
    json!({"module": "keras.layers", "class_name": class, "config": config})
}

fn dense(name: &str, units: usize, activation: &str, dtype: &str) -> Value {
    let policy = json!({"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}});
    layer("Dense", &json!({"name": name, "units": units, "activation": activation, "dtype": policy}))
}

/// A model with its inputs.
struct Case {
    name: &'static str,
    model: Model,
    input: Tensor,
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Dense layers with a penalty and noise, convolutions with normalisation, an embedding, two precisions.
fn cases() -> Vec<Case> {
    let floats = |shape: &[usize]| {
        let shape: Vec<usize> = std::iter::once(ROWS).chain(shape.iter().copied()).collect();
        Tensor::from_f32(Shape::new(shape.iter().copied()), &noise(shape.iter().product(), 5))
    };
    let penalty = json!({"module": "keras.regularizers", "class_name": "L2", "config": {"l2": 0.01}});
    let penalised =
        layer("Dense", &json!({"name": "p", "units": 9, "activation": "tanh", "kernel_regularizer": penalty}));
    let conv = |name: &str, filters: usize| {
        layer("Conv2D", &json!({"name": name, "filters": filters, "kernel_size": [3, 3], "activation": "relu"}))
    };
    let plain = |name, units, activation| dense(name, units, activation, "float32");
    let ids: Vec<f64> = (0..ROWS * 4).map(|i| (i * 5 % 11) as f64).collect();
    vec![
        Case {
            name: "dense",
            model: model(
                &json!({"batch_shape": [null, 7], "name": "x"}),
                &[
                    plain("a", 8, "relu"),
                    penalised,
                    layer("Dropout", &json!({"name": "drop", "rate": 0.4})),
                    plain("b", 5, "relu"),
                    plain("c", 3, "softmax"),
                ],
            ),
            input: floats(&[7]),
        },
        Case {
            name: "conv",
            model: model(
                &json!({"batch_shape": [null, 6, 6, 2], "name": "x"}),
                &[
                    conv("a", 3),
                    layer("BatchNormalization", &json!({"name": "bn"})),
                    conv("b", 4),
                    layer("Flatten", &json!({"name": "flat"})),
                    plain("c", 3, "softmax"),
                ],
            ),
            input: floats(&[6, 6, 2]),
        },
        Case {
            name: "embedding",
            model: model(
                &json!({"batch_shape": [null, 4], "name": "x", "dtype": "int32"}),
                &[
                    layer("Embedding", &json!({"name": "e", "input_dim": 11, "output_dim": 6})),
                    layer("Flatten", &json!({"name": "flat"})),
                    plain("a", 5, "relu"),
                    plain("c", 3, "softmax"),
                ],
            ),
            input: Tensor::from_f64(DType::I32, Shape::from([ROWS, 4]), &ids),
        },
        Case {
            name: "mixed precision",
            model: model(
                &json!({"batch_shape": [null, 7], "name": "x"}),
                &[dense("a", 9, "relu", "mixed_bfloat16"), dense("b", 6, "relu", "bfloat16"), plain("c", 3, "softmax")],
            ),
            input: floats(&[7]),
        },
    ]
}

fn recipe() -> Recipe {
    let adam = json!({"class_name": "Adam", "config": {"learning_rate": 0.01, "global_clipnorm": 0.5}});
    let json = Json::parse(&adam.to_string()).unwrap();
    let objective = Objective {
        loss: Some(Loss::named("categorical_crossentropy").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    let optimizer = Some(Optimizer::read(&At::root(&json)).unwrap());
    Recipe { seed: 5, sums: Sums::Free, ..Recipe::new(vec![objective], optimizer) }
}

fn options(kind: DeviceKind, states: StateSharding, buckets: Buckets) -> SessionOptions {
    SessionOptions {
        devices: Devices::new(kind, 0..2).unwrap(),
        threads: Some(1),
        split: Some(Strategy::Data),
        parts: Some(PARTS),
        numerics: Some(Numerics::Free),
        sharding: Sharding { states, whole_below: 0 },
        buckets,
        ..SessionOptions::default()
    }
}

fn batch(case: &Case) -> Batch {
    let labels: Vec<f32> =
        (0..ROWS).flat_map(|row| (0..3).map(move |l| f32::from(u8::from(l == (row * 7 + 1) % 3)))).collect();
    Batch {
        inputs: vec![case.input.clone()],
        labels: vec![Some(Tensor::from_f32([ROWS, 3], &labels))],
        weights: vec![None],
    }
}

/// What two steps of training give, and for each device how many messages of sums it sends, with their members.
struct Trained {
    losses: Vec<f64>,
    states: BTreeMap<String, Tensor>,
    messages: usize,
    members: usize,
    bucket_bytes: Option<usize>,
}

fn train(case: &Case, options: SessionOptions) -> Trained {
    let mut trainer = Trainer::new(&case.model, recipe(), options).unwrap();
    let losses = (0..2).map(|_| trainer.step(&batch(case)).unwrap().loss).collect();
    let (_, compiled) = trainer.programs().next().unwrap();
    let (mut messages, mut members) = (0, 0);
    for c in &compiled.programs[0].step {
        if let Action::Communicate(Op::AllReduce(_) | Op::Bucket(_) | Op::ReduceScatter(_)) = &c.action {
            messages += 1;
            members += c.reads.len();
        }
    }
    let bucket_bytes = compiled.plan.bucket_bytes;
    let states = trainer.states().unwrap().iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    Trained { losses, states, messages, members, bucket_bytes }
}

fn same_bits(case: &Case, kind: DeviceKind, states: StateSharding) {
    let what = format!("{} on {kind:?}, {states}", case.name);
    let apart = train(case, options(kind, states, Buckets::Apart));
    assert_eq!((apart.messages, apart.bucket_bytes), (apart.members, None), "{what}");
    for buckets in [Buckets::Bytes(300), Buckets::Bytes(1 << 20), Buckets::Auto] {
        let joined = train(case, options(kind, states, buckets));
        assert_eq!(joined.losses, apart.losses, "{what}, {buckets:?}");
        for (name, value) in &apart.states {
            assert_eq!(joined.states[name], *value, "{name} of {what}, {buckets:?}");
        }
        assert_eq!(joined.members, apart.members, "{what}, {buckets:?}");
        let joins = buckets != Buckets::Auto || kind != DeviceKind::Cpu;
        assert_eq!(joined.messages < apart.messages, joins, "{what}, {buckets:?}: {} messages", joined.messages);
        assert_eq!(joined.bucket_bytes.is_some(), joins, "{what}, {buckets:?}");
    }
}

#[test]
fn cpu_devices_get_the_same_bits() {
    for case in &cases() {
        for states in StateSharding::ALL {
            same_bits(case, DeviceKind::Cpu, states);
        }
    }
}

#[test]
fn emulated_gpus_get_the_same_bits() {
    for case in &cases() {
        same_bits(case, DeviceKind::Ptx, StateSharding::Replicated);
    }
}

#[test]
fn emulated_gpus_get_the_same_bits_with_states_in_parts() {
    let cases = cases();
    for states in [StateSharding::Slots, StateSharding::Gradients, StateSharding::Variables] {
        same_bits(&cases[0], DeviceKind::Ptx, states);
    }
}

#[test]
fn exact_sums_are_not_joined_and_stay_what_one_device_has() {
    let case = &cases()[0];
    let exact = |devices: usize, buckets| {
        let both = options(DeviceKind::Cpu, StateSharding::Replicated, buckets);
        let options = match devices {
            1 => SessionOptions {
                devices: Devices::new(DeviceKind::Cpu, 0..1).unwrap(),
                threads: Some(1),
                ..SessionOptions::default()
            },
            _ => SessionOptions { numerics: None, ..both },
        };
        let mut trainer = Trainer::new(&case.model, Recipe { sums: Sums::Exact, ..recipe() }, options).unwrap();
        let losses: Vec<f64> = (0..2).map(|_| trainer.step(&batch(case)).unwrap().loss).collect();
        let states: BTreeMap<String, Tensor> =
            trainer.states().unwrap().iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        (losses, states)
    };
    let alone = exact(1, Buckets::Auto);
    for buckets in [Buckets::Auto, Buckets::Bytes(1 << 20)] {
        assert_eq!(exact(2, buckets), alone, "{buckets:?}");
    }
}
