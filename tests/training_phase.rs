//! Models in training mode: against Keras (`tests/goldens/training.jsonl`, made by `tools/make_training_goldens.py`), and
//! what random layers promise.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{
    Generation, ImportErrors, ImportOptions, Imported, KerasModel, Phase, STEP, Statistics, TrainingPhase, import,
    open_model_bytes,
};
use intwain::{Devices, Model, ModelOptions, Session, SessionOptions, Strategy};
use intwain_ir::ops::Op;
use intwain_ir::{DType, Graph, ParamKind, Rows, Scalar, Tensor, Type, grad, interp, verify};
use serde_json::{Value as Json, json};
use support::repository;

fn read(model: &Json) -> KerasModel {
    let file = open_model_bytes(Path::new("model.json"), FileBytes::from(model.to_string().into_bytes())).unwrap();
    KerasModel::read(&file).unwrap()
}

fn build(model: &Json, rows: usize, phase: Phase) -> Result<Imported, ImportErrors> {
    import(&read(model), Path::new("model.json"), &ImportOptions { batch: rows, phase, ..ImportOptions::default() })
}

fn in_training(model: &Json, rows: usize, phase: &TrainingPhase) -> Imported {
    let imported = build(model, rows, Phase::Training(phase.clone())).unwrap_or_else(|e| panic!("{e}\n{model:#}"));
    verify(&imported.graph).unwrap();
    imported
}

/// A Sequential model of Keras 3 for float32 inputs of this shape.
fn sequential(shape: &[usize], layers: &[(&str, Json)]) -> Json {
    let shape: Vec<Json> = std::iter::once(Json::Null).chain(shape.iter().map(|&d| json!(d))).collect();
    let mut list = vec![
        json!({"class_name": "InputLayer", "module": "keras.layers", "config": {"name": "x", "dtype": "float32", "batch_shape": shape}}),
    ];
    for (i, (class, config)) in layers.iter().enumerate() {
        let mut config = config.clone();
        config["name"] = json!(format!("l{i}"));
        list.push(json!({"class_name": class, "module": "keras.layers", "config": config}));
    }
    json!({"module": "keras", "class_name": "Sequential", "config": {"name": "m", "layers": list}})
}

/// The same as tf-keras writes it.
fn of_keras_2(mut model: Json) -> Json {
    for layer in model["config"]["layers"].as_array_mut().unwrap() {
        layer.as_object_mut().unwrap().remove("module");
        if let Some(shape) = layer["config"].as_object_mut().unwrap().remove("batch_shape") {
            layer["config"]["batch_input_shape"] = shape;
        }
    }
    model.as_object_mut().unwrap().remove("module");
    model["keras_version"] = json!("2.15.0");
    model
}

fn inner(class: &str, config: Json) -> Json {
    json!({"class_name": class, "module": "keras.layers", "config": config})
}

/// Runs a training graph: its outputs, and the next values of its states by name.
fn run(
    graph: &Graph,
    inputs: &[Tensor],
    known: &dyn Fn(&str, &Type) -> Tensor,
) -> (Vec<Tensor>, BTreeMap<String, Tensor>) {
    let mut graph = graph.clone();
    let mut states = Vec::new();
    for p in graph.params.clone() {
        if let ParamKind::State { next: Some(next) } = p.kind {
            graph.output(&format!("next {}", p.name), next);
            states.push(p.name.to_string());
        }
    }
    let mut given = inputs.iter();
    let argument = |p: &intwain_ir::Param| match p.kind {
        ParamKind::Input { .. } => given.next().unwrap().clone(),
        ParamKind::Weight { .. } | ParamKind::State { .. } => known(&p.name, graph.ty(p.value)),
    };
    let args = graph.params.iter().map(argument).collect();
    let mut outputs = interp::run(&graph, args).unwrap();
    let next = outputs.split_off(outputs.len() - states.len());
    (outputs, states.into_iter().zip(next).collect())
}

fn step(at: u32) -> Tensor {
    Tensor::from_scalars(Type::new(DType::U32, []), &[Scalar::from_i64(DType::U32, at.into())])
}

/// Some value for every variable, and a step.
fn some(at: u32) -> impl Fn(&str, &Type) -> Tensor {
    move |name, ty| match name {
        STEP => step(at),
        _ => {
            let number = |i: usize| 0.3 + ((i * 7919 + name.len()) % 101) as f64 / 90.0;
            let numbers: Vec<f64> = (0..ty.shape.elements()).map(number).collect();
            Tensor::from_f64(ty.dtype, ty.shape.clone(), &numbers)
        }
    }
}

/// Ones.
fn ones(shape: &[usize]) -> Tensor {
    Tensor::from_f32(shape.to_vec(), &vec![1.0; shape.iter().product()])
}

/// The only output of a model for ones, in the step 5.
fn noise(model: &Json, shape: &[usize], phase: &TrainingPhase) -> Tensor {
    run(&in_training(model, shape[0], phase).graph, &[ones(shape)], &some(5)).0.remove(0)
}

fn dropout(rate: f64) -> (&'static str, Json) {
    ("Dropout", json!({"rate": rate}))
}

// Values of Keras.

fn tensor(json: &Json) -> Tensor {
    let text = json["type"].as_str().unwrap();
    let (dtype, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let shape: Vec<usize> = dims.split(", ").filter(|d| !d.is_empty()).map(|d| d.parse().unwrap()).collect();
    let numbers: Vec<f64> = json["data"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect();
    Tensor::from_f64(DType::from_name(dtype).unwrap(), shape, &numbers)
}

fn tensors(json: &Json) -> Vec<Tensor> {
    json.as_array().unwrap().iter().map(tensor).collect()
}

fn assert_near(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.ty, want.ty, "{what}");
    let scale = want.to_f64().iter().fold(1.0, |m: f64, x| x.abs().max(m));
    for (i, (g, w)) in got.to_f64().iter().zip(want.to_f64()).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}: element {i} is {g}, Keras has {w}");
    }
}

/// A model of the goldens: its graph and its variables by path, as they are and as they shall be.
struct Golden {
    what: String,
    line: Json,
    imported: Imported,
    before: BTreeMap<String, Tensor>,
    after: BTreeMap<String, Tensor>,
}

fn goldens() -> Vec<Golden> {
    let text = std::fs::read_to_string(repository("tests/goldens/training.jsonl")).unwrap();
    let golden = |line: &str| {
        let line: Json = serde_json::from_str(line).unwrap();
        let what = format!("{} of Keras {}", line["name"], line["keras"]);
        let rows = tensor(&line["in"][0]).ty.shape[0];
        let imported = in_training(&line["model"], rows, &TrainingPhase::default());
        let generation = if line["keras"] == 2 { Generation::Two } else { Generation::Three };
        let paths: Vec<String> = imported.vars.listed(generation).iter().map(|spec| spec.path.clone()).collect();
        let by_path = |key: &str| {
            let values = tensors(&line[key]);
            assert_eq!(paths.len(), values.len(), "{what}");
            paths.iter().cloned().zip(values).collect()
        };
        let (before, after) = (by_path("weights"), by_path("after"));
        Golden { what, line, imported, before, after }
    };
    text.lines().map(golden).collect()
}

#[test]
fn outputs_and_what_a_call_changes_are_keras_own() {
    for golden in goldens() {
        let Golden { what, line, imported, before, after } = &golden;
        let (outputs, next) = run(&imported.graph, &tensors(&line["in"]), &|name, ty| match name {
            STEP => Tensor::zeros(ty.clone()),
            _ => before[name].clone(),
        });
        for (got, want) in outputs.iter().zip(tensors(&line["out"])) {
            assert_near(what, got, &want, 3e-5);
        }
        for (path, want) in after {
            let got = next.get(path).unwrap_or(&before[path]);
            assert_near(&format!("{path} in {what}"), got, want, 1e-5);
        }
    }
}

#[test]
fn gradients_in_training_are_keras_own() {
    for golden in goldens().into_iter().filter(|g| g.line.get("gw").is_some()) {
        let Golden { what, line, imported, before, .. } = golden;
        let mut graph = imported.graph;
        let mut wanted: Vec<(String, Json)> = Vec::new();
        wanted.extend(graph.inputs().map(|p| p.name.to_string()).zip(line["gin"].as_array().unwrap().iter().cloned()));
        let generation = if line["keras"] == 2 { Generation::Two } else { Generation::Three };
        let trains: BTreeMap<String, bool> =
            imported.vars.flatten().into_iter().map(|s| s.path.clone()).zip(imported.vars.trainable()).collect();
        let listed = imported.vars.listed(generation).into_iter().map(|s| s.path.clone()).filter(|path| trains[path]);
        wanted.extend(listed.zip(line["gw"].as_array().unwrap().iter().cloned()));
        let cotangents = tensors(&line["cot"]);
        let outputs = std::mem::take(&mut graph.outputs);
        let seeds: Vec<_> = outputs
            .iter()
            .zip(&cotangents)
            .enumerate()
            .map(|(i, (o, c))| (o.value, graph.input(&format!("cot{i}"), c.ty.clone(), Rows::Whole)))
            .collect();
        let by_name = |name: &str| graph.params.iter().find(|p| *p.name == *name).unwrap().value;
        let wrt: Vec<_> = wanted.iter().map(|(name, _)| by_name(name)).collect();
        let found = grad::backward(&mut graph, &seeds, &wrt).unwrap();
        for ((name, _), value) in wanted.iter().zip(&found) {
            graph.output(name, value.unwrap_or_else(|| panic!("{name} of {what}")));
        }
        let inputs: Vec<Tensor> = tensors(&line["in"]).into_iter().chain(cotangents).collect();
        let (got, _) = run(&graph, &inputs, &|name, _| before[name].clone());
        for ((name, want), got) in wanted.iter().zip(got) {
            assert_near(&format!("gradient of {name} in {what}"), &got, &tensor(want), 1e-4);
        }
    }
}

#[test]
fn groups_of_rows_have_statistics_of_their_own() {
    let model = sequential(&[3], &[("BatchNormalization", json!({"momentum": 0.75}))]);
    let x = some(0)("x", &Type::new(DType::F32, [7, 3]));
    let groups = TrainingPhase { statistics: Statistics::Groups(vec![4, 1, 2]), ..TrainingPhase::default() };
    let (whole, next) = run(&in_training(&model, 7, &groups).graph, std::slice::from_ref(&x), &some(0));
    // One call after the other, each beginning with what the one before has left.
    let mut known: BTreeMap<String, Tensor> = BTreeMap::new();
    let mut parts = Vec::new();
    for (from, to) in [(0, 4), (4, 5), (5, 7)] {
        let part = in_training(&model, to - from, &TrainingPhase::default());
        let before = known.clone();
        let value = |name: &str, ty: &Type| before.get(name).cloned().unwrap_or_else(|| some(0)(name, ty));
        let (mut y, next) = run(&part.graph, &[x.slice(0, from..to)], &value);
        parts.push(y.remove(0));
        known.extend(next);
    }
    assert_eq!(whole[0], Tensor::join(&parts, 0));
    assert_eq!(next, known);
    // They must be all rows.
    let short = Phase::Training(TrainingPhase { statistics: Statistics::Groups(vec![4, 2]), ..groups });
    assert!(build(&model, 7, short).unwrap_err().to_string().contains("7 rows"));
}

#[test]
fn values_of_the_rules() {
    // [0, 10] becomes ∓0.99998, and moving statistics 0 and 1 become 0.05 and 1.24.
    let model = sequential(&[1], &[("BatchNormalization", json!({}))]);
    let known = |name: &str, ty: &Type| {
        let number = if name.ends_with("gamma") || name.ends_with("variance") { 1.0 } else { 0.0 };
        Tensor::from_f64(ty.dtype, ty.shape.clone(), &[number])
    };
    let graph = in_training(&model, 2, &TrainingPhase::default()).graph;
    let (y, next) = run(&graph, &[Tensor::from_f32([2, 1], &[0.0, 10.0])], &known);
    assert_near("outputs", &y[0], &Tensor::from_f32([2, 1], &[-0.99998, 0.99998]), 1e-6);
    assert_near("mean", &next["l0/moving_mean"], &Tensor::from_f32([1], &[0.05]), 1e-6);
    assert_near("variance", &next["l0/moving_variance"], &Tensor::from_f32([1], &[1.24]), 1e-6);
}

#[test]
fn statistics_of_16_bit_inputs_are_in_f32() {
    let model = sequential(&[1], &[("BatchNormalization", json!({"dtype": "mixed_float16", "momentum": 0.0}))]);
    let graph = in_training(&model, 2, &TrainingPhase::default()).graph;
    // The square of 300 is beyond float16.
    let (y, next) = run(&graph, &[Tensor::from_f32([2, 1], &[-300.0, 300.0])], &|name, ty| match name {
        "l0/beta" => Tensor::from_f64(ty.dtype, ty.shape.clone(), &[0.0]),
        _ => Tensor::from_f64(ty.dtype, ty.shape.clone(), &[1.0]),
    });
    assert_eq!(y[0].to_f64(), [-1.0, 1.0]);
    assert_eq!(next["l0/moving_variance"], Tensor::from_f32([1], &[90000.0]));
}

// Random layers.

#[test]
fn dropout_loses_its_share_and_keeps_the_mean() {
    for rate in [0.1, 0.5, 0.75] {
        let y = noise(&sequential(&[1000], &[dropout(rate)]), &[64, 1000], &TrainingPhase::default());
        let y = y.to_f64();
        let grown = f64::from((1.0 / (1.0 - rate)) as f32);
        assert!(y.iter().all(|&v| v == 0.0 || v == grown), "{rate}");
        let lost = y.iter().filter(|&&v| v == 0.0).count() as f64 / y.len() as f64;
        // Five deviations of a share of 64,000.
        assert!((lost - rate).abs() < 5.0 * (rate * (1.0 - rate) / 64e3).sqrt(), "{lost} of {rate}");
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        assert!((mean - 1.0).abs() < 5.0 * (rate / (1.0 - rate) / 64e3).sqrt(), "{mean}");
        // As much in every row and column.
        for row in y.chunks(1000) {
            let lost = row.iter().filter(|&&v| v == 0.0).count() as f64 / 1e3;
            assert!((lost - rate).abs() < 6.0 * (rate * (1.0 - rate) / 1e3).sqrt(), "{lost} of {rate}");
        }
    }
    let none = in_training(&sequential(&[3], &[dropout(0.0)]), 2, &TrainingPhase::default());
    assert!(none.graph.nodes.is_empty() && none.graph.params.len() == 1, "{}", none.graph);
    let all = noise(&sequential(&[3], &[dropout(1.0)]), &[2, 3], &TrainingPhase::default());
    assert_eq!(all.to_f64(), [0.0; 6]);
}

#[test]
fn noise_has_its_mean_and_deviation() {
    let draw = |class, config| {
        let y = noise(&sequential(&[1000], &[(class, config)]), &[64, 1000], &TrainingPhase::default()).to_f64();
        let mean = y.iter().sum::<f64>() / 64e3;
        let moment = |p: i32| y.iter().map(|v| (v - mean).powi(p)).sum::<f64>() / 64e3;
        (mean, moment(2).sqrt(), moment(4) / moment(2).powi(2))
    };
    let (mean, deviation, fourth) = draw("GaussianNoise", json!({"stddev": 0.5}));
    assert!((mean - 1.0).abs() < 0.01 && (deviation - 0.5).abs() < 0.01 && (fourth - 3.0).abs() < 0.1);
    let (mean, deviation, fourth) = draw("GaussianDropout", json!({"rate": 0.2}));
    assert!((mean - 1.0).abs() < 0.01 && (deviation - 0.5).abs() < 0.01 && (fourth - 3.0).abs() < 0.1);
    // Two values: what is kept, and SELU's limit, in a line that puts mean and variance of normal inputs right.
    let y =
        noise(&sequential(&[1000], &[("AlphaDropout", json!({"rate": 0.3}))]), &[8, 1000], &TrainingPhase::default());
    let limit = -1.758_099_340_847_376_6_f64;
    let a = (0.7 * (1.0 + 0.3 * limit * limit)).powf(-0.5);
    let (kept, lost) = (a - a * limit * 0.3, a * limit - a * limit * 0.3);
    let near = |x: f64, y: f64| (x - y).abs() < 1e-6;
    assert!(y.to_f64().iter().all(|&v| near(v, kept) || near(v, lost)));
    let share = y.to_f64().iter().filter(|&&v| near(v, lost)).count() as f64 / 8e3;
    assert!((share - 0.3).abs() < 0.03, "{share}");
}

#[test]
fn whole_channels_and_shapes_are_lost_together() {
    let equal = |y: &Tensor, dims: [usize; 3], own: [bool; 3]| {
        let y = y.to_f64();
        let at = |i: [usize; 3]| y[(i[0] * dims[1] + i[1]) * dims[2] + i[2]];
        let mut kinds = std::collections::BTreeSet::new();
        for i in 0..dims[0] * dims[1] * dims[2] {
            let place = [i / dims[2] / dims[1], i / dims[2] % dims[1], i % dims[2]];
            let first = std::array::from_fn(|d| if own[d] { place[d] } else { 0 });
            assert_eq!(at(place), at(first), "{place:?}");
            kinds.insert(at(first).to_bits());
        }
        assert_eq!(kinds.len(), 2);
    };
    let phase = TrainingPhase::default();
    let y = |class, config| noise(&sequential(&[5, 6], &[(class, config)]), &[4, 5, 6], &phase);
    equal(&y("SpatialDropout1D", json!({"rate": 0.5})), [4, 5, 6], [true, false, true]);
    equal(&y("Dropout", json!({"rate": 0.5, "noise_shape": [null, null, 1]})), [4, 5, 6], [true, true, false]);
    equal(&y("Dropout", json!({"rate": 0.5, "noise_shape": [1, null, 6]})), [4, 5, 6], [false, true, true]);
    equal(&y("StochasticDepth", json!({"drop_path_rate": 0.5})), [4, 5, 6], [true, false, false]);
    let y = noise(
        &sequential(&[2, 3, 4], &[("SpatialDropout2D", json!({"rate": 0.5, "data_format": "channels_first"}))]),
        &[6, 2, 3, 4],
        &phase,
    );
    equal(&y, [6, 2, 12], [true, true, false]);
}

#[test]
fn images_are_altered_each_by_itself() {
    let x = some(0)("x", &Type::new(DType::F32, [8, 4, 5, 2]));
    let alter = |class: &str, config: Json, model: fn(Json) -> Json| {
        let json = model(sequential(&[4, 5, 2], &[(class, config)]));
        run(&in_training(&json, 8, &TrainingPhase::default()).graph, std::slice::from_ref(&x), &some(3)).0.remove(0)
    };
    let three = |m: Json| m;
    // Which pixel of the image each pixel is.
    let kinds = |y: &Tensor, f: &dyn Fn(usize, usize) -> Vec<(usize, usize)>| {
        let at = |t: &Tensor, n: usize, r: usize, c: usize| t.get(((n * 4 + r) * 5 + c) * 2 + 1);
        let is = |n: usize, way: usize| {
            (0..4).all(|r| {
                (0..5).all(|c| {
                    let (row, column) = f(r, c)[way];
                    at(y, n, r, c) == at(&x, n, row, column)
                })
            })
        };
        (0..8).map(|n| (0..f(0, 0).len()).find(|&way| is(n, way)).expect("no way gives the image")).collect::<Vec<_>>()
    };
    let distinct = |kinds: Vec<usize>| kinds.into_iter().collect::<std::collections::BTreeSet<_>>().len();
    let y = alter("RandomFlip", json!({"mode": "horizontal"}), three);
    assert_eq!(distinct(kinds(&y, &|r, c| vec![(r, c), (r, 4 - c)])), 2);
    let y = alter("RandomFlip", json!({"mode": "horizontal_and_vertical"}), three);
    assert_eq!(distinct(kinds(&y, &|r, c| vec![(r, c), (3 - r, 4 - c)])), 2);
    let y = alter("RandomFlip", json!({"mode": "horizontal_and_vertical"}), of_keras_2);
    assert!(distinct(kinds(&y, &|r, c| vec![(r, c), (r, 4 - c), (3 - r, c), (3 - r, 4 - c)])) > 2);
    let y = alter(
        "RandomTranslation",
        json!({"height_factor": 0.0, "width_factor": 1.0, "interpolation": "nearest", "fill_mode": "wrap"}),
        three,
    );
    assert_ne!(y, x);
    // Contrast: the mean of every channel stays where nothing is cut off.
    let y = alter("RandomContrast", json!({"factor": [0.5, 0.5], "value_range": [-9, 9]}), three).to_f64();
    let mean = |v: &[f64], n: usize| (0..20).map(|i| v[n * 40 + i * 2]).sum::<f64>() / 20.0;
    let spread = |v: &[f64], n: usize| (0..20).map(|i| (v[n * 40 + i * 2] - mean(v, n)).abs()).sum::<f64>();
    let before = x.to_f64();
    let ratios: Vec<f64> = (0..8).map(|n| spread(&y, n) / spread(&before, n)).collect();
    assert!((0..8).all(|n| (mean(&y, n) - mean(&before, n)).abs() < 1e-5));
    assert!(
        ratios.iter().all(|r| (0.5..1.5).contains(r)) && ratios.iter().any(|r| (r - ratios[0]).abs() > 0.1),
        "{ratios:?}"
    );
    // The same part of all images.
    let json = sequential(&[4, 5, 2], &[("RandomCrop", json!({"height": 2, "width": 3}))]);
    let mut found = std::collections::BTreeSet::new();
    for at in 0..40 {
        let y = run(&in_training(&json, 8, &TrainingPhase::default()).graph, std::slice::from_ref(&x), &some(at))
            .0
            .remove(0);

        let cut = (0..9).find(|i| y == x.slice(1, i / 3..i / 3 + 2).slice(2, i % 3..i % 3 + 3));
        found.insert(cut.expect("a part of the images"));
    }
    assert_eq!(found.len(), 9);
    // What is not imported is refused by name, in training only.
    let hue = sequential(&[4, 5, 3], &[("RandomHue", json!({"factor": 0.5}))]);
    let refusal = build(&hue, 2, Phase::Training(TrainingPhase::default())).unwrap_err().to_string();
    assert!(refusal.contains("what RandomHue does in training"), "{refusal}");
    assert!(build(&hue, 2, Phase::Inference).is_ok());
}

/// Models with something random of every kind.
fn random_models() -> Vec<(Json, Vec<usize>)> {
    let attention = |class: &str, config: Json| {
        let x = |name: &str| json!({"class_name": "__keras_tensor__", "config": {"keras_history": [name, 0, 0]}});
        let args = if class == "MultiHeadAttention" { json!([x("x"), x("x")]) } else { json!([[x("x"), x("x")]]) };
        json!({"module": "keras", "class_name": "Functional", "config": {"name": "m", "input_layers": [["x", 0, 0]],
            "output_layers": [["a", 0, 0]], "layers": [
            {"class_name": "InputLayer", "name": "x", "config": {"name": "x", "dtype": "float32", "batch_shape": [null, 5, 6]}, "inbound_nodes": []},
            {"class_name": class, "module": "keras.layers", "name": "a", "config": config, "inbound_nodes": [{"args": args, "kwargs": {}}]}]}})
    };
    let recurrent = json!({"units": 3, "dropout": 0.4, "recurrent_dropout": 0.3, "return_sequences": true});
    let gru = json!({"units": 3, "dropout": 0.4, "recurrent_dropout": 0.3, "reset_after": false});
    let cells = json!([
        inner("LSTMCell", json!({"units": 3, "dropout": 0.4})),
        inner("GRUCell", json!({"units": 2, "dropout": 0.3, "recurrent_dropout": 0.5}))
    ]);
    let stack = json!({"cell": inner("StackedRNNCells", json!({"cells": cells}))});
    let conv = json!({"filters": 2, "kernel_size": 2, "dropout": 0.4, "recurrent_dropout": 0.3});
    let norm = json!({"rate": 0.4});
    vec![
        (sequential(&[5, 6], &[dropout(0.4), ("GaussianNoise", json!({"stddev": 1.0}))]), vec![5, 6]),
        (sequential(&[5, 6], &[("AlphaDropout", norm.clone()), ("GaussianDropout", norm.clone())]), vec![5, 6]),
        (
            sequential(
                &[5, 6],
                &[("SpatialDropout1D", norm.clone()), ("StochasticDepth", json!({"drop_path_rate": 0.3}))],
            ),
            vec![5, 6],
        ),
        (sequential(&[5, 6], &[("TimeDistributed", json!({"layer": inner("Dropout", norm.clone())}))]), vec![5, 6]),
        (sequential(&[5, 6], &[("LSTM", recurrent.clone()), ("GRU", gru)]), vec![5, 6]),
        (sequential(&[5, 6], &[("SimpleRNN", recurrent.clone())]), vec![5, 6]),
        (sequential(&[5, 6], &[("Bidirectional", json!({"layer": inner("LSTM", recurrent)}))]), vec![5, 6]),
        (sequential(&[5, 6], &[("RNN", stack)]), vec![5, 6]),
        (sequential(&[3, 4, 2], &[("ConvLSTM1D", conv)]), vec![3, 4, 2]),
        (attention("MultiHeadAttention", json!({"num_heads": 2, "key_dim": 3, "dropout": 0.4})), vec![5, 6]),
        (
            sequential(&[4, 6, 2], &[("RandomFlip", json!({})), ("RandomRotation", json!({"factor": 0.2}))]),
            vec![4, 6, 2],
        ),
        (
            sequential(
                &[4, 6, 2],
                &[("RandomZoom", json!({"height_factor": 0.2})), ("RandomCrop", json!({"height": 2, "width": 4}))],
            ),
            vec![4, 6, 2],
        ),
        (attention("Attention", json!({"dropout": 0.4})), vec![5, 6]),
        (attention("AdditiveAttention", json!({"dropout": 0.4})), vec![5, 6]),
    ]
}

#[test]
fn a_part_of_a_batch_draws_what_the_batch_draws_there() {
    for (model, shape) in random_models() {
        let all: Vec<usize> = [8].into_iter().chain(shape.iter().copied()).collect();
        let x = some(0)("x", &Type::new(DType::F32, all));
        let whole = in_training(&model, 8, &TrainingPhase { seed: 3, ..TrainingPhase::default() });
        let (whole, next) = run(&whole.graph, std::slice::from_ref(&x), &some(2));
        assert_eq!(next[STEP], step(3));
        let still = build(&model, 8, Phase::Inference).unwrap().graph;
        let (still, _) = run(&still, std::slice::from_ref(&x), &some(2));
        assert_ne!(whole, still, "nothing is random in {model:#}");
        for (from, to) in [(0, 3), (3, 4), (4, 8)] {
            let phase = TrainingPhase { seed: 3, first_row: from, ..TrainingPhase::default() };
            let part = in_training(&model, to - from, &phase);
            let (part, _) = run(&part.graph, &[x.slice(0, from..to)], &some(2));
            assert_eq!(part[0], whole[0].slice(0, from..to), "rows {from}..{to} of {model:#}");
        }
    }
}

#[test]
fn draws_differ_by_seed_step_layer_and_use() {
    let model = sequential(&[40], &[dropout(0.5)]);
    let y = |seed: u64, at: u32| {
        let phase = TrainingPhase { seed, ..TrainingPhase::default() };
        run(&in_training(&model, 4, &phase).graph, &[ones(&[4, 40])], &some(at)).0.remove(0)
    };
    assert_eq!(y(1, 7), y(1, 7));
    let different = [y(1, 7), y(2, 7), y(1, 8), y(2, 8)];
    for (i, a) in different.iter().enumerate() {
        assert!(different[..i].iter().all(|b| a != b), "{i}");
    }
    let keys = |model: &Json| {
        let graph = in_training(model, 4, &TrainingPhase::default()).graph;
        let key = |op: &Op| if let Op::Random(random) = op { Some(random.key) } else { None };
        graph.nodes.values().filter_map(|n| key(&n.op)).collect::<Vec<_>>()
    };
    // Two layers, the two draws of a normal number, and a seed of the layer's own.
    let all = sequential(
        &[40],
        &[
            dropout(0.5),
            dropout(0.5),
            ("GaussianNoise", json!({"stddev": 1.0})),
            ("Dropout", json!({"rate": 0.5, "seed": 9})),
        ],
    );
    let own = sequential(&[40], &[("Dropout", json!({"rate": 0.5, "seed": 9}))]);
    let other = sequential(&[40], &[("Dropout", json!({"rate": 0.5, "seed": 10}))]);
    let found = [keys(&all), keys(&own), keys(&other)].concat();
    let distinct: std::collections::BTreeSet<u64> = found.iter().copied().collect();
    assert_eq!((found.len(), distinct.len()), (7, 7));
    // A generator that was saved is its seed.
    let generator =
        json!({"class_name": "SeedGenerator", "module": "keras.random", "config": {"name": "s", "seed": 9}});
    assert_eq!(keys(&sequential(&[40], &[("Dropout", json!({"rate": 0.5, "seed": generator}))])), keys(&own));
}

#[test]
fn graphs_of_every_type_lose_the_same() {
    let model = sequential(&[50], &[dropout(0.3)]);
    let lost = |float: DType| {
        let phase = Phase::Training(TrainingPhase::default());
        let options = ImportOptions { batch: 4, float: Some(float), phase, ..ImportOptions::default() };
        let graph = import(&read(&model), Path::new("model.json"), &options).unwrap().graph;
        let y = run(&graph, &[ones(&[4, 50]).cast(float)], &some(1)).0.remove(0);
        y.to_f64().iter().map(|&v| v == 0.0).collect::<Vec<_>>()
    };
    assert_eq!(lost(DType::F32), lost(DType::F64));
    assert_eq!(lost(DType::F32), lost(DType::F16));
}

#[test]
fn the_backward_pass_sees_the_same_choice() {
    let model = sequential(&[50], &[dropout(0.3)]);
    let mut graph = in_training(&model, 4, &TrainingPhase::default()).graph;
    let (x, y) = (graph.inputs().next().unwrap().value, graph.outputs[0].value);
    let cotangent = graph.input("cot", graph.ty(y).clone(), Rows::Batched);
    let dx = grad::backward(&mut graph, &[(y, cotangent)], &[x]).unwrap()[0].unwrap();
    graph.output("dx", dx);
    let (found, _) = run(&graph, &[ones(&[4, 50]), ones(&[4, 50])], &some(1));
    assert_eq!(found[0], found[1]);
    assert!(found[0].to_f64().contains(&0.0));
}

#[test]
fn masks_of_recurrent_layers_hold_for_the_whole_sequence() {
    // Steps do not depend on each other, and show the input that is left.
    let config =
        json!({"units": 6, "dropout": 0.5, "activation": "linear", "use_bias": false, "return_sequences": true});
    let model = sequential(&[4, 6], &[("SimpleRNN", config)]);
    let known = |name: &str, ty: &Type| match name {
        STEP => step(0),
        _ => {
            let identity = name.ends_with("/kernel");
            let numbers: Vec<f64> = (0..36).map(|i| f64::from(identity && i / 6 == i % 6)).collect();
            Tensor::from_f64(ty.dtype, ty.shape.clone(), &numbers)
        }
    };
    let (y, _) = run(&in_training(&model, 9, &TrainingPhase::default()).graph, &[ones(&[9, 4, 6])], &known);
    let y = y[0].to_f64();
    let mut kinds = std::collections::BTreeSet::new();
    for (n, row) in y.chunks(24).enumerate() {
        for step in row.chunks(6) {
            assert_eq!(step, &row[..6], "row {n}");
        }
        kinds.insert(row[..6].iter().map(|v| v.to_bits()).collect::<Vec<_>>());
        assert!(row.iter().all(|&v| v == 0.0 || v == 2.0));
    }
    assert!(kinds.len() > 4, "rows differ");
}

#[test]
fn steps_are_apart_in_keras_3_and_rows_in_keras_2() {
    let wrapped = json!({"layer": inner("BatchNormalization", json!({"name": "b", "momentum": 0.0}))});
    let model = sequential(&[3, 1], &[("TimeDistributed", wrapped)]);
    let x = Tensor::from_f32([2, 3, 1], &[0.0, 1.0, 2.0, 4.0, 5.0, 8.0]);
    let mean = |model: &Json| {
        let graph = in_training(model, 2, &TrainingPhase::default()).graph;
        let (_, next) = run(&graph, std::slice::from_ref(&x), &some(0));
        next.iter().find(|(name, _)| name.ends_with("moving_mean")).unwrap().1.to_f64()[0]
    };
    // Of the last step, and of everything.
    assert!((mean(&model) - 5.0).abs() < 1e-6);
    assert!((mean(&of_keras_2(model)) - 20.0 / 6.0).abs() < 1e-6);
}

#[test]
fn what_keras_2_writes_into_a_call_holds() {
    let of = |told: Json| {
        json!({"class_name": "Functional", "keras_version": "2.15.0", "config": {"name": "m", "input_layers": [["x", 0, 0]],
            "output_layers": [["d", 0, 0]], "layers": [
            {"class_name": "InputLayer", "name": "x", "config": {"name": "x", "dtype": "float32", "batch_input_shape": [null, 30]}, "inbound_nodes": []},
            {"class_name": "Dropout", "name": "d", "config": {"name": "d", "rate": 0.5}, "inbound_nodes": [[["x", 0, 0, {"training": told}]]]}]}})
    };
    let random =
        |told: Json, phase: Phase| build(&of(told), 2, phase).unwrap().graph.params.iter().any(|p| &*p.name == STEP);
    let training = || Phase::Training(TrainingPhase::default());
    assert!(random(json!(null), training()) && !random(json!(null), Phase::Inference));
    assert!(random(json!(true), training()) && random(json!(true), Phase::Inference));
    assert!(!random(json!(false), training()) && !random(json!(false), Phase::Inference));
}

#[test]
fn masks_of_outputs_come_along() {
    let model = sequential(&[4, 2], &[("Masking", json!({})), dropout(0.5)]);
    let imported = in_training(&model, 3, &TrainingPhase::default());
    let mask = imported.masks[0].unwrap();
    assert_eq!(*imported.graph.ty(mask), Type::new(DType::Bool, [3, 4]));
    let none = in_training(&sequential(&[4], &[dropout(0.5)]), 3, &TrainingPhase::default());
    assert_eq!(none.masks, [None]);
}

// Devices.

fn open(model: &Json) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    std::fs::write(&file, model.to_string()).unwrap();
    Model::open(&file, ModelOptions::default()).unwrap()
}

#[test]
fn devices_draw_what_the_interpreter_draws() {
    for (json, shape) in random_models() {
        let model = open(&json);
        let all: Vec<usize> = [5].into_iter().chain(shape).collect();
        let x = some(0)("x", &Type::new(DType::F32, all));
        let phase = TrainingPhase { seed: 11, ..TrainingPhase::default() };
        let graph = model.training_graph(5, &phase).unwrap().graph;
        let known = |name: &str, _: &Type| if name == STEP { step(0) } else { model.weight(name).unwrap() };
        let (want, _) = run(&graph, std::slice::from_ref(&x), &known);
        let inputs = BTreeMap::from([("x".to_string(), x)]);
        let runs = [("cpu:0", None), ("cpu:0,cpu:1", Some(Strategy::Data)), ("cpu:0,cpu:1", Some(Strategy::Tensor))];
        for (devices, split) in runs {
            let devices: Devices = devices.parse().unwrap();
            let fallback = intwain::Fallback::One;
            let options = SessionOptions { devices, split, fallback, threads: Some(1), ..SessionOptions::default() };
            let call = Session::new(&model, options).unwrap().training_call(&inputs, &phase).unwrap();
            let exact = split != Some(Strategy::Tensor);
            let what = format!("{split:?} of {json:#}");
            match exact {
                true => assert_eq!(call.outputs[0].1, want[0], "{what}"),
                false => assert_near(&what, &call.outputs[0].1, &want[0], 1e-5),
            }
        }
    }
}
