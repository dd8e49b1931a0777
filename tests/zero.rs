//! Devices that share rows may keep states in parts: training gives the same bits, in less memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain::frontend::{At, Json};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::pieces::Sums;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{DeviceKind, Devices, Model, ModelOptions, SessionOptions, Sharding, StateSharding, Strategy, Tensor};
use intwain_ir::{Layout, ParamKind};
use serde_json::{Value, json};
use std::collections::BTreeMap;

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

fn dense(name: &str, units: usize, activation: &str) -> Value {
    layer("Dense", &json!({"name": name, "units": units, "activation": activation}))
}

/// Odd sizes, a convolution, normalisation, a penalty, and something random.
fn small() -> Model {
    let input = json!({"batch_shape": [null, 6, 6, 4], "name": "x"});
    let penalty = json!({"module": "keras.regularizers", "class_name": "L2", "config": {"l2": 0.01}});
    let conv = json!({"name": "conv", "filters": 7, "kernel_size": [3, 3], "padding": "same", "activation": "relu",
        "kernel_regularizer": penalty});
    model(
        &input,
        &[
            layer("Conv2D", &conv),
            layer("BatchNormalization", &json!({"name": "bn"})),
            layer("Flatten", &json!({"name": "flat"})),
            dense("a", 9, "tanh"),
            layer("Dropout", &json!({"name": "drop", "rate": 0.4})),
            dense("b", 3, "softmax"),
        ],
    )
}

/// Layers whose weights outweigh everything else.
fn wide() -> Model {
    let input = json!({"batch_shape": [null, 6, 6, 4], "name": "x"});
    let layers: Vec<Value> = (0..4).map(|k| dense(&format!("d{k}"), 256, "relu")).collect();
    let head = [dense("head", 3, "softmax")];
    model(&input, &[&[layer("Flatten", &json!({"name": "flat"}))], &layers[..], &head].concat())
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn batch(rows: usize, seed: u64) -> Batch {
    let one_hot = |row: usize| (0..3).map(move |l| f32::from(u8::from(l == (row * 7 + 1) % 3)));
    let labels: Vec<f32> = (0..rows).flat_map(one_hot).collect();
    Batch {
        inputs: vec![Tensor::from_f32([rows, 6, 6, 4], &noise(rows * 144, seed))],
        labels: vec![Some(Tensor::from_f32([rows, 3], &labels))],
        weights: vec![None],
    }
}

fn recipe(optimizer: &Value, sums: Sums) -> Recipe {
    let json = Json::parse(&optimizer.to_string()).unwrap();
    let objective = Objective {
        loss: Some(Loss::named("categorical_crossentropy").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    Recipe { seed: 5, sums, ..Recipe::new(vec![objective], Some(Optimizer::read(&At::root(&json)).unwrap())) }
}

fn adam() -> Value {
    json!({"class_name": "Adam", "config": {"learning_rate": 0.01}})
}

fn one() -> SessionOptions {
    let devices = Devices::new(DeviceKind::Cpu, 0..1).unwrap();
    SessionOptions { devices, threads: Some(1), ..SessionOptions::default() }
}

fn two(kind: DeviceKind, parts: Option<[usize; 2]>, sharding: Sharding) -> SessionOptions {
    let devices = Devices::new(kind, 0..2).unwrap();
    let split = Some(Strategy::Data);
    SessionOptions { devices, threads: Some(1), split, parts, sharding, ..SessionOptions::default() }
}

/// Everything that can be cut is.
fn all(states: StateSharding) -> Sharding {
    Sharding { states, whole_below: 0 }
}

const STAGES: [StateSharding; 3] = [StateSharding::Slots, StateSharding::Gradients, StateSharding::Variables];

type States = BTreeMap<String, Tensor>;

fn states(trainer: &mut Trainer<'_>) -> States {
    trainer.states().unwrap().iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
}

/// Losses and states after three steps.
fn trained(trainer: &mut Trainer<'_>, rows: usize) -> (Vec<f64>, States) {
    let losses = (0..3).map(|step| trainer.step(&batch(rows, 40 + step)).unwrap().loss).collect();
    (losses, states(trainer))
}

fn optimizers() -> Vec<Value> {
    let of = |class: &str, config: Value| json!({"class_name": class, "config": config});
    vec![
        of("SGD", json!({"learning_rate": 0.05, "momentum": 0.9, "nesterov": true, "weight_decay": 0.01})),
        of("Adam", json!({"learning_rate": 0.01, "amsgrad": true, "use_ema": true, "global_clipnorm": 0.5})),
        of("AdamW", json!({"learning_rate": 0.01, "clipnorm": 0.3, "gradient_accumulation_steps": 2})),
        of("Lamb", json!({"learning_rate": 0.01})),
        of("Adafactor", json!({"learning_rate": 0.01})),
        of("Muon", json!({"learning_rate": 0.01})),
        of("Ftrl", json!({"learning_rate": 0.01})),
        of("ScheduleFreeAdamW", json!({"learning_rate": 0.01})),
        of(
            "LossScaleOptimizer",
            json!({"inner_optimizer": {"module": "keras.optimizers", "class_name": "Adam",
                "config": {"learning_rate": 0.01}}, "initial_scale": 1024.0, "dynamic_growth_steps": 2}),
        ),
    ]
}

#[test]
fn states_in_parts_train_as_one_device() {
    let model = small();
    for optimizer in optimizers() {
        let class = &optimizer["class_name"];
        for (rows, parts) in [(16, [10, 6]), (5, [3, 2])] {
            let mut alone = Trainer::new(&model, recipe(&optimizer, Sums::Exact), one()).unwrap();
            let (losses, want) = trained(&mut alone, rows);
            for stage in STAGES {
                let options = two(DeviceKind::Cpu, Some(parts), all(stage));
                let mut trainer = Trainer::new(&model, recipe(&optimizer, Sums::Exact), options).unwrap();
                let (l, got) = trained(&mut trainer, rows);
                assert_eq!(l, losses, "losses with {class}, {stage}, {rows} rows");
                for (name, value) in &want {
                    assert_eq!(got[name], *value, "{name} with {class}, {stage}, {rows} rows");
                }
            }
        }
    }
}

/// For each device: bytes of states, and of all memory that a step works in.
fn memory(trainer: &Trainer<'_>) -> Vec<(usize, usize)> {
    let (_, compiled) = trainer.programs().next().unwrap();
    compiled.programs.iter().map(|p| (p.persistent_bytes, p.arena_bytes)).collect()
}

#[test]
fn states_are_in_parts_and_take_less_memory() {
    let model = wide();
    let rows = 8;
    let of = |sharding: Sharding| {
        let options = two(DeviceKind::Cpu, None, sharding);
        let mut trainer = Trainer::new(&model, recipe(&adam(), Sums::Exact), options).unwrap();
        trainer.compile(&batch(rows, 1)).unwrap();
        trainer
    };
    let whole = of(Sharding::default());
    let (_, before) = whole.programs().next().unwrap();
    let state_bytes = |slots: bool| -> usize {
        let is_slot = |name: &str| name.contains("momentum") || name.contains("velocity");
        let states = before.params.iter().filter(|p| is_slot(&p.name) == slots && p.ty.bytes() >= 16 << 10);
        states.map(|p| p.ty.bytes()).sum()
    };
    let (slots, variables) = (state_bytes(true), state_bytes(false));
    assert_eq!(slots, 2 * variables);
    for stage in STAGES {
        let trainer = of(stage.into());
        let (_, compiled) = trainer.programs().next().unwrap();
        for p in compiled.graph.params.iter().zip(&compiled.plan.params) {
            let (param, layout) = p;
            if !matches!(param.kind, ParamKind::State { .. }) {
                continue;
            }
            let is_slot = param.name.contains("momentum") || param.name.contains("velocity");
            let large = compiled.graph.ty(param.value).bytes() >= 16 << 10;
            let divided = large && (is_slot || stage == StateSharding::Variables);
            assert_eq!(matches!(layout, Layout::Split { .. }), divided, "{} is {layout}", param.name);
        }
        let saved = if stage == StateSharding::Variables { (slots + variables) / 2 } else { slots / 2 };
        for (device, (now, then)) in memory(&trainer).iter().zip(memory(&whole)).enumerate() {
            assert_eq!(then.0 - now.0, saved, "device {device}, {stage}");
            let (now, then) = (now.0 + now.1, then.0 + then.1);
            assert!(now < then, "device {device}, {stage}: {now} {then}");
        }
    }
}
#[test]
fn what_parts_have_trained_goes_on_elsewhere() {
    let model = small();
    let options = |stage| two(DeviceKind::Cpu, Some([10, 6]), all(stage));
    let start = |options| Trainer::new(&model, recipe(&adam(), Sums::Exact), options).unwrap();
    let step = |trainer: &mut Trainer<'_>, k: u64| trainer.step(&batch(16, 60 + k)).unwrap().loss;
    let mut alone = start(one());
    let losses: Vec<f64> = (0..6).map(|k| step(&mut alone, k)).collect();
    let want = states(&mut alone);
    for stage in STAGES {
        let (mut first, mut second, mut third) = (start(options(stage)), start(one()), start(options(stage)));
        let mut l: Vec<f64> = (0..2).map(|k| step(&mut first, k)).collect();
        second.compile(&batch(16, 0)).unwrap();
        second.set_states(states(&mut first)).unwrap();
        l.extend((2..4).map(|k| step(&mut second, k)));
        third.compile(&batch(16, 0)).unwrap();
        third.set_states(states(&mut second)).unwrap();
        // What is judged meanwhile, on other rows, changes nothing.
        let judged = third.evaluate(&batch(5, 9)).unwrap().loss;
        second.set_states(states(&mut third)).unwrap();
        assert_eq!(second.evaluate(&batch(5, 9)).unwrap().loss, judged, "{stage}");
        l.extend((4..6).map(|k| step(&mut third, k)));
        assert_eq!(l, losses, "{stage}");
        assert_eq!(states(&mut third), want, "{stage}");
    }
}

#[test]
fn emulated_gpus_train_with_states_in_parts() {
    let model = small();
    let adam = json!({"class_name": "Adam", "config": {"learning_rate": 0.01, "global_clipnorm": 0.5}});
    let mut alone = Trainer::new(&model, recipe(&adam, Sums::Exact), one()).unwrap();
    let (losses, want) = trained(&mut alone, 5);
    for stage in STAGES {
        let options = two(DeviceKind::Ptx, Some([3, 2]), all(stage));
        let mut trainer = Trainer::new(&model, recipe(&adam, Sums::Free), options).unwrap();
        let (l, got) = trained(&mut trainer, 5);
        for (a, b) in losses.iter().zip(&l) {
            assert!((a - b).abs() < 1e-4, "{stage}: {losses:?} {l:?}");
        }
        for (name, value) in &want {
            let differs = value.to_f64().iter().zip(got[name].to_f64()).any(|(a, b)| (a - b).abs() > 2e-3);
            assert!(!differs, "{name}, {stage}");
        }
    }
}

#[test]
fn states_in_parts_take_two_devices_that_share_rows() {
    let model = small();
    let refused = |options: SessionOptions| {
        let options = SessionOptions { sharding: StateSharding::Slots.into(), ..options };
        Trainer::new(&model, recipe(&adam(), Sums::Exact), options).unwrap_err().to_string()
    };
    assert!(refused(one()).contains("one device keeps all states"));
    for split in [None, Some(Strategy::Tensor), Some(Strategy::Pipeline)] {
        let options = SessionOptions { split, ..two(DeviceKind::Cpu, None, Sharding::default()) };
        assert!(refused(options).contains("use --split data"), "{split:?}");
    }
}
