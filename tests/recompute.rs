//! Steps of training that do not fit into memory compute activations again: the same bits, in less memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain::frontend::{At, Json};
use intwain::train::assemble::{Assembler, BatchTypes};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::pieces::Sums;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{DeviceKind, Devices, Model, ModelOptions, SessionOptions, Sharding, Strategy, Tensor};
use intwain_passes::Timings;
use intwain_passes::hardware::{Catalogue, Hardware};
use intwain_passes::place::Survey;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;

const ROWS: usize = 32;

fn model(layers: &[Value]) -> Model {
    let input = json!({"batch_shape": [null, 8, 8, 4], "name": "x"});
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

fn conv(name: &str, filters: usize) -> Value {
    let config = json!({"name": name, "filters": filters, "kernel_size": [3, 3], "padding": "same",
        "activation": "tanh"});
    layer("Conv2D", &config)
}

fn dropout(name: &str) -> Value {
    layer("Dropout", &json!({"name": name, "rate": 0.3}))
}

fn head() -> [Value; 3] {
    [layer("GlobalAveragePooling2D", &json!({"name": "pool"})), dense("wide", 16, "tanh"), dense("head", 3, "softmax")]
}

/// Images through many convolutions with something random between them.
fn deep() -> Model {
    let body: Vec<Value> = (0..6).flat_map(|k| [conv(&format!("conv{k}"), 8), dropout(&format!("drop{k}"))]).collect();
    model(&[&body[..], &head()[..]].concat())
}

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn batch(seed: u64) -> Batch {
    let one_hot = |row: usize| (0..3).map(move |l| f32::from(u8::from(l == (row * 7 + 1) % 3)));
    let labels: Vec<f32> = (0..ROWS).flat_map(one_hot).collect();
    Batch {
        inputs: vec![Tensor::from_f32([ROWS, 8, 8, 4], &noise(ROWS * 256, seed))],
        labels: vec![Some(Tensor::from_f32([ROWS, 3], &labels))],
        weights: vec![None],
    }
}

fn recipe(micro_batches: Option<usize>) -> Recipe {
    let adam = json!({"class_name": "Adam", "config": {"learning_rate": 0.01}});
    let json = Json::parse(&adam.to_string()).unwrap();
    let objective = Objective {
        loss: Some(Loss::named("categorical_crossentropy").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    let micro_batches = micro_batches.map(|m| NonZeroUsize::new(m).unwrap());
    let optimizer = Some(Optimizer::read(&At::root(&json)).unwrap());
    Recipe { seed: 5, sums: Sums::Exact, micro_batches, ..Recipe::new(vec![objective], optimizer) }
}

/// CPUs with so much memory each.
fn machine(memory: &[f64]) -> Hardware {
    let mut machine = Catalogue::built_in().get("cpu").unwrap();
    machine.alone.memory.value = memory[0];
    for (device, memory) in machine.devices.iter_mut().zip(memory) {
        device.memory.value = *memory;
    }
    machine
}

fn options(split: Strategy, sharding: Sharding, hardware: Hardware) -> SessionOptions {
    let devices = match split {
        Strategy::One => Devices::new(DeviceKind::Cpu, 0..1).unwrap(),
        Strategy::Data | Strategy::Tensor | Strategy::Mixed | Strategy::Pipeline => {
            Devices::new(DeviceKind::Cpu, 0..2).unwrap()
        }
    };
    let split = Some(split);
    SessionOptions { devices, threads: Some(1), split, sharding, hardware: Some(hardware), ..SessionOptions::default() }
}

/// Losses, states, and for each device bytes of states and of the arena, predicted peak, and nodes that run again.
struct Trained {
    losses: Vec<f64>,
    states: BTreeMap<String, Tensor>,
    programs: Vec<(usize, usize)>,
    peaks: Vec<f64>,
    weights: Vec<f64>,
    again: usize,
}

fn trained(model: &Model, recipe: Recipe, options: SessionOptions) -> Trained {
    let mut trainer = Trainer::new(model, recipe, options).unwrap();
    let losses = (0..3).map(|step| trainer.step(&batch(40 + step)).unwrap().loss).collect();
    let states = trainer.states().unwrap().iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    let (_, compiled) = trainer.programs().next().unwrap();
    let usage = &compiled.plan.usage;
    Trained {
        losses,
        states,
        programs: compiled.programs.iter().map(|p| (p.persistent_bytes, p.arena_bytes)).collect(),
        peaks: usage.peak_bytes.clone(),
        weights: usage.weight_bytes.clone(),
        again: compiled.graph.nodes.values().filter(|n| n.origin.is_again()).count(),
    }
}

/// Splits and micro-batches.
fn ways() -> [(Strategy, Sharding, Option<usize>); 4] {
    let parts = Sharding { whole_below: 0, ..intwain::StateSharding::Variables.into() };
    [
        (Strategy::One, Sharding::default(), None),
        (Strategy::Data, Sharding::default(), None),
        (Strategy::Data, parts, None),
        (Strategy::Pipeline, Sharding::default(), Some(4)),
    ]
}

#[test]
fn what_does_not_fit_trains_to_the_same_bits_in_the_memory_there_is() {
    let model = deep();
    for (split, sharding, micro_batches) in ways() {
        let large = machine(&[1e9, 1e9]);
        let want = trained(&model, recipe(micro_batches), options(split, sharding, large));
        assert_eq!(want.again, 0, "{split}: nothing runs again where all fits");
        let share = |k: usize| want.weights[k] + 0.6 * (want.peaks[k] - want.weights[k]);
        let memory: Vec<f64> = match split {
            // Where a pipeline is cut depends on the memory of its devices.
            Strategy::Pipeline => vec![0.85 * want.peaks[0].max(want.peaks[1]); 2],
            Strategy::One | Strategy::Data | Strategy::Tensor | Strategy::Mixed => {
                (0..want.peaks.len()).map(share).collect()
            }
        };
        let small = options(split, sharding, machine(&memory));
        let got = trained(&model, recipe(micro_batches), small);
        assert!(got.again > 0, "{split}");
        assert_eq!(got.losses, want.losses, "{split}");
        for (name, value) in &want.states {
            assert_eq!(got.states[name], *value, "{name} with {split}");
        }
        for (k, &memory) in memory.iter().enumerate() {
            let ((_, before), (persistent, after)) = (want.programs[k], got.programs[k]);
            let (claimed, saved) = (want.peaks[k] - got.peaks[k], before as f64 - after as f64);
            // Peaks are predicted without all that fusion saves, so claims are larger than what programs save.
            assert!(
                split == Strategy::Pipeline || saved >= 0.4 * claimed,
                "{split}: device {k} saves {saved}, {claimed} was claimed"
            );
            assert!((persistent + after) as f64 <= memory, "{split}: device {k} takes {}", persistent + after);
            assert!(got.peaks[k] <= memory, "{split}: device {k}");
        }
    }
}

#[test]
fn where_nothing_fits_the_layers_that_hold_most_are_named() {
    let model = model(&[&[conv("small", 2), conv("small2", 2), conv("largest", 64)][..], &head()[..]].concat());
    let options = options(Strategy::One, Sharding::default(), machine(&[6e5, 6e5]));
    let recipe = recipe(None);
    let batch = BatchTypes::usual(&model, &recipe, ROWS).unwrap();
    let assembler = Assembler { model: &model, recipe: &recipe, options: &options };
    let error = assembler.plan(&batch, Survey::Asked, &mut Timings::default()).unwrap_err().to_string();
    // 32 rows of 8·8 places with 64 numbers of 4 bytes.
    assert!(error.contains("`one` does not fit: device 0 needs"), "{error}");
    let (_, held) = error.split_once("most of device 0 is held by ").unwrap();
    assert!(held.starts_with("`largest` "), "{error}");
    assert!(error.contains("% of the rows would fit"), "{error}");
}

#[test]
fn the_graph_that_computes_again_is_text_that_reads_back() {
    let (model, recipe) = (deep(), recipe(None));
    let batch = BatchTypes::usual(&model, &recipe, ROWS).unwrap();
    let assemble = |memory: f64| {
        let options = options(Strategy::One, Sharding::default(), machine(&[memory, memory]));
        let assembler = Assembler { model: &model, recipe: &recipe, options: &options };
        let planned = assembler.plan(&batch, Survey::Asked, &mut Timings::default()).unwrap();
        let peak = planned.plan.usage.peak_bytes[0];
        let mut seen = Vec::new();
        assembler
            .lower_seen(planned, &batch, &mut Timings::default(), &mut |pass, graph| {
                let text = graph.to_string();
                assert_eq!(intwain_ir::text::parse(&text).unwrap().to_string(), text, "after {pass}");
                seen.push(pass);
            })
            .unwrap();
        (peak, seen)
    };
    let (peak, seen) = assemble(1e9);
    assert!(!seen.contains(&"recompute"));
    assert!(assemble(0.8 * peak).1.contains(&"recompute"));
}

/// What a plan says a step of training needs is what its program takes, but for the few values that fusion saves or keeps.
#[test]
fn the_peak_that_is_predicted_is_the_program_s() {
    let norm = |k: usize| layer("BatchNormalization", &json!({"name": format!("norm{k}")}));
    let relu = |k: usize| layer("Activation", &json!({"name": format!("relu{k}"), "activation": "relu"}));
    let body: Vec<Value> = (0..6).flat_map(|k| [conv(&format!("conv{k}"), 16), norm(k), relu(k)]).collect();
    let (model, recipe) = (model(&[&body[..], &head()[..]].concat()), recipe(None));
    let recipe = Recipe { sums: Sums::Free, ..recipe };
    let rows = 256;
    let batch = BatchTypes::usual(&model, &recipe, rows).unwrap();
    for (split, devices) in [(Strategy::One, 1), (Strategy::Data, 2)] {
        let hardware = Some(Catalogue::built_in().get("2xa100-nvlink").unwrap());
        let devices = Devices::new(DeviceKind::Ptx, 0..devices).unwrap();
        let options = SessionOptions { devices, split: Some(split), hardware, ..SessionOptions::default() };
        let assembler = Assembler { model: &model, recipe: &recipe, options: &options };
        let planned = assembler.plan(&batch, Survey::Asked, &mut Timings::default()).unwrap();
        let predicted = planned.plan.usage.peak_bytes.clone();
        let (_, compiled) = assembler.lower(planned, &mut Timings::default()).unwrap();
        for (program, predicted) in compiled.programs.iter().zip(predicted) {
            let takes = (program.persistent_bytes + program.arena_bytes) as f64;
            assert!((takes / predicted - 1.0).abs() < 0.1, "{split}: {takes} bytes, {predicted} were predicted");
        }
    }
}
