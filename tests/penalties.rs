//! Regularisers, constraints and penalties of outputs against Keras (`tests/goldens/penalties`, made by
//! `tools/make_penalty_goldens.py`), and what is said of those that cannot be had.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{
    At, Constraint, ImportErrors, ImportOptions, Imported, Json, KerasModel, Penalties, Phase, Regularizer, VarSpec,
    VarTree, import, open_model_bytes,
};
use intwain::train::loss::Loss;
use intwain::train::optimizer::Optimizer;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{DeviceKind, Devices, Model, ModelOptions, SessionOptions, Strategy};
use intwain_ir::{DType, Graph, Tensor, Trainable, Type, interp, verify};
use serde_json::Value;
use support::{Array, repository, write_npz};

fn cases(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(repository(&format!("tests/goldens/penalties/{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn numbers(json: &Value) -> Vec<f64> {
    json.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn shape(json: &Value) -> Vec<usize> {
    json.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as usize).collect()
}

fn tensor(dtype: DType, shape: Vec<usize>, values: &[f64]) -> Tensor {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::from_bytes(Type::new(DType::F64, shape), bytes).unwrap().cast(dtype)
}

#[track_caller]
fn close(got: &[f64], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() <= tolerance * w.abs().max(1.0), "{what}: {g} instead of {w}");
    }
}

#[test]
fn regularisers_and_constraints_give_what_those_of_keras_give() {
    for case in cases("values") {
        let (what, shape) = (case["config"].to_string(), shape(&case["shape"]));
        // A name alone is a document too.
        let json = match case["config"].as_str() {
            Some(name) => Json::String(name.to_string()),
            None => Json::parse(&what).unwrap(),
        };
        let mut g = Graph::new("g");
        let w = g.weight("w", Type::new(DType::F64, shape.clone()), Trainable::Yes);
        let (result, extents) = match case["of"].as_str().unwrap() {
            "regularizer" => {
                let read = Regularizer::read(&At::root(&json)).unwrap().unwrap();
                (read.penalty(&mut g, w).unwrap(), vec![])
            }
            _ => (Constraint::read(&At::root(&json)).unwrap().unwrap().apply(&mut g, w).unwrap(), shape.clone()),
        };
        g.output("y", result);
        verify(&g).unwrap();
        let got = interp::run(&g, vec![tensor(DType::F64, shape, &numbers(&case["w"]))]).unwrap().remove(0);
        assert_eq!((got.ty.dtype, got.ty.shape.to_vec()), (DType::F64, extents), "{what}");
        // Keras computes the orthogonal one in f32; tf_keras, which knows the names, does not round factors.
        let rounded = what.contains("rthogonal") || case["config"].is_string();
        let tolerance = if rounded { 1e-6 } else { 1e-14 };
        close(&got.to_f64(), &numbers(&case["value"]), tolerance, &what);
    }
}

fn read(model: &Value, options: &ImportOptions) -> Result<Imported, ImportErrors> {
    let path = Path::new("model.json");
    let file = open_model_bytes(path, FileBytes::from(model.to_string().into_bytes()))?;
    import(&KerasModel::read(&file)?, path, options)
}

fn trained<'v>(tree: &'v VarTree, trains: bool, out: &mut Vec<(&'v VarSpec, bool)>) {
    let trains = trains && tree.trainable;
    out.extend(tree.vars.iter().map(|spec| (spec, trains && spec.trainable)));
    tree.parts.iter().for_each(|part| trained(part, trains, out));
}

fn name(constraint: &Constraint) -> &'static str {
    match constraint {
        Constraint::MaxNorm { .. } => "MaxNorm",
        Constraint::NonNegative => "NonNeg",
        Constraint::UnitNorm { .. } => "UnitNorm",
        Constraint::MinMaxNorm { .. } => "MinMaxNorm",
        Constraint::Radial => "RadialConstraint",
    }
}

/// The penalty of a weight.
fn penalty(regularizer: &Regularizer, w: &Tensor) -> f64 {
    let mut g = Graph::new("g");
    let value = g.weight("w", w.ty.clone(), Trainable::Yes);
    let penalty = regularizer.penalty(&mut g, value).unwrap();
    g.output("y", penalty);
    interp::run(&g, vec![w.clone()]).unwrap()[0].to_f64()[0]
}

fn models_are_penalised_as_by_keras(file: &str) {
    for case in cases(file) {
        let what = format!("{file} {}", case["name"]);
        let options = ImportOptions {
            batch: 3,
            float: Some(DType::F64),
            penalties: Penalties::Always,
            ..ImportOptions::default()
        };
        let Imported { mut graph, vars, penalties, .. } =
            read(&case["model"], &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut specs = Vec::new();
        trained(&vars, true, &mut specs);
        let stored = case["weights"].as_array().unwrap();
        assert_eq!(specs.len(), stored.len(), "{what}");
        let weights: Vec<Tensor> =
            specs.iter().zip(stored).map(|((s, _), w)| tensor(DType::F64, s.shape.clone(), &numbers(w))).collect();

        let trains = || specs.iter().zip(&weights).filter(|((_, trains), _)| *trains);
        let said: Vec<Option<&str>> = trains().map(|((s, _), _)| s.constraint.as_ref().map(name)).collect();
        let wanted: Vec<Option<&str>> = case["constraints"].as_array().unwrap().iter().map(Value::as_str).collect();
        assert_eq!(said, wanted, "{what}");
        let of = |((spec, _), w): (&(&VarSpec, bool), &Tensor)| spec.regularizer.as_ref().map(|r| penalty(r, w));
        let got: Vec<Option<f64>> = trains().map(of).collect();
        let wanted: Vec<Option<f64>> = case["regularization"].as_array().unwrap().iter().map(Value::as_f64).collect();
        for (got, want) in got.iter().zip(&wanted) {
            close(got.as_slice(), want.as_slice(), 1e-7, &what);
        }

        graph.outputs.clear();
        for (i, penalty) in penalties.iter().enumerate() {
            graph.output(&format!("p{i}"), penalty.values);
        }
        verify(&graph).unwrap();
        let dtype = if case["ids"] == Value::Bool(true) { DType::I32 } else { DType::F64 };
        let x = tensor(dtype, shape(&case["shape"]), &numbers(&case["x"]));
        let values = interp::run(&graph, [x].into_iter().chain(weights).collect()).unwrap();
        assert!(values.iter().all(|v| v.ty.shape[0] == 3), "{what}: rows");
        let total: f64 = values.iter().flat_map(Tensor::to_f64).sum::<f64>() / 3.0;
        close(&[total], &[case["activity"].as_f64().unwrap()], 1e-7, &what);
    }
}

#[test]
fn models_of_keras_3() {
    models_are_penalised_as_by_keras("models3");
}

/// A model with the weights of a case, which computes in f64.
fn with_weights(case: &Value) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let (file, stored) = (folder.path().join("m.json"), folder.path().join("m.npz"));
    std::fs::write(&file, case["model"].to_string()).unwrap();
    let vars = read(&case["model"], &ImportOptions { batch: 3, ..ImportOptions::default() }).unwrap().vars;
    let f32s = |w: &Value| numbers(w).into_iter().map(|x| x as f32).collect();
    let arrays = vars.flatten().into_iter().zip(case["weights"].as_array().unwrap());
    let arrays: Vec<Array> = arrays.map(|(spec, w)| Array::f32(&spec.path, &spec.shape, f32s(w))).collect();
    write_npz(&stored, &arrays);
    let options = ModelOptions { weights: Some(stored), float: Some(DType::F64), ..ModelOptions::default() };
    Model::open(&file, options).unwrap_or_else(|e| panic!("{}: {e}", case["name"]))
}

/// Gradient descent with momentum on the squared error of every output.
fn recipe(outputs: usize) -> Recipe {
    let objective = Objective {
        loss: Some(Loss::named("mse").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    let sgd = r#"{"class_name": "SGD", "config": {"learning_rate": 0.125, "momentum": 0.5}}"#;
    Recipe::new(vec![objective; outputs], Some(Optimizer::read(&At::root(&Json::parse(sgd).unwrap())).unwrap()))
}

/// The losses of three steps on a case's batch, and the states after them.
fn trained_by(case: &Value, model: &Model, options: SessionOptions) -> (Vec<f64>, BTreeMap<String, Tensor>) {
    let labels = case["training"]["labels"].as_array().unwrap();
    let mut trainer = Trainer::new(model, recipe(labels.len()), options).unwrap();
    let dtype = if case["ids"] == Value::Bool(true) { DType::I32 } else { DType::F64 };
    let label = |y: &Value| Some(tensor(DType::F64, shape(&y["shape"]), &numbers(&y["y"])));
    let batch = Batch {
        inputs: vec![tensor(dtype, shape(&case["shape"]), &numbers(&case["x"]))],
        labels: labels.iter().map(label).collect(),
        weights: vec![None; labels.len()],
    };
    let mut step = || trainer.step(&batch).unwrap_or_else(|e| panic!("{}: {e}", case["name"])).loss;
    let losses = vec![step(), step(), step()];
    let states = trainer.states().unwrap().iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
    (losses, states)
}

/// Penalties are differentiated, constraints follow each update; two devices that share the rows do the same to the bit.
#[test]
fn training_follows_that_of_keras() {
    let on = |devices: u32, split: Option<Strategy>| SessionOptions {
        devices: Devices::new(DeviceKind::Cpu, 0..devices).unwrap(),
        threads: Some(1),
        parts: split.map(|_| [2, 1]),
        split,
        ..SessionOptions::default()
    };
    let mut models = 0;
    for case in cases("models3").iter().filter(|case| !case["training"].is_null()) {
        models += 1;
        let (what, training) = (&case["name"], &case["training"]);
        let model = with_weights(case);
        let (losses, states) = trained_by(case, &model, on(1, None));
        close(&losses, &numbers(&training["losses"]), 1e-9, &format!("{what}: losses"));
        for (spec, want) in model.weights().specs().iter().zip(training["weights"].as_array().unwrap()) {
            if let Some(state) = states.get(spec.path.as_str()) {
                close(&state.to_f64(), &numbers(want), 1e-9, &format!("{what}: {}", spec.path));
            }
        }
        assert_eq!(trained_by(case, &model, on(2, Some(Strategy::Data))), (losses, states), "{what}");
    }
    assert_eq!(models, 12);
}

#[test]
fn models_of_keras_2() {
    models_are_penalised_as_by_keras("models2");
}

/// A dense layer of Keras 3 with these keys.
fn dense(keys: Value) -> Value {
    let mut config = serde_json::json!({"name": "d", "units": 2});
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let input = serde_json::json!({"class_name": "InputLayer", "config": {"name": "x", "batch_shape": [null, 2]}});
    let layers = serde_json::json!([input, {"class_name": "Dense", "module": "keras.layers", "config": config}]);
    serde_json::json!({"class_name": "Sequential", "module": "keras", "config": {"name": "m", "layers": layers}})
}

#[test]
fn what_cannot_be_read_is_a_problem_of_training_only() {
    let custom = |class: &str| serde_json::json!({"module": null, "class_name": class, "config": {"a": 1}, "registered_name": format!("mine>{class}")});
    let model = dense(serde_json::json!({
        "kernel_regularizer": custom("Smooth"), "bias_constraint": "NonNegg",
        "activity_regularizer": {"class_name": "OrthogonalRegularizer", "config": {}},
        "bias_regularizer": {"class_name": "L2", "config": {"l2": -1.0}}
    }));
    let run = ImportOptions { batch: 3, ..ImportOptions::default() };
    let imported = read(&model, &run).unwrap();
    assert!(imported.penalties.is_empty());
    let training = ImportOptions { phase: Phase::Training(Default::default()), ..run };
    let errors = read(&model, &training).unwrap_err().to_string();
    for part in [
        "kernel_regularizer.class_name \"d\": `mine>Smooth` is the model's own code, which is never run",
        "bias_constraint \"d\": is \"NonNegg\"; accepted: MaxNorm, NonNeg,",
        "activity_regularizer \"d\": a penalty of outputs that is no sum over the rows of a batch",
        "bias_regularizer.config.l2 \"d\": is -1; expected a number that is not negative",
    ] {
        assert!(errors.contains(part), "{part} in {errors}");
    }
}

#[test]
fn factors_in_place_of_a_kernel_are_not_trained() {
    let model = dense(serde_json::json!({"lora_rank": 1}));
    let run = ImportOptions { batch: 3, ..ImportOptions::default() };
    assert!(read(&model, &run).is_ok());
    let training = ImportOptions { phase: Phase::Training(Default::default()), ..run };
    let errors = read(&model, &training).unwrap_err().to_string();
    assert!(
        errors.contains("$.config.layers[1].config.lora_rank \"d\": training the factors of `lora_rank`"),
        "{errors}"
    );
}

#[test]
fn layers_that_only_keras_1_has_are_regularised_too() {
    let model = serde_json::json!({"class_name": "Sequential", "keras_version": "1.2.2", "config": [
        {"class_name": "Highway", "config": {"name": "h", "trainable": true, "init": "glorot_uniform", "transform_bias": -2,
            "activation": "tanh", "bias": true, "input_dim": 6, "batch_input_shape": [null, 6], "input_dtype": "float32",
            "W_regularizer": {"name": "WeightRegularizer", "l1": 0.0, "l2": 0.25}, "b_regularizer": null,
            "activity_regularizer": {"name": "ActivityRegularizer", "l1": 0.5, "l2": 0.0},
            "W_constraint": {"name": "MaxNorm", "m": 3, "axis": 0}, "b_constraint": null}}]});
    let options = ImportOptions { batch: 3, penalties: Penalties::Always, ..ImportOptions::default() };
    let imported = read(&model, &options).unwrap();
    let mut specs = Vec::new();
    trained(&imported.vars, true, &mut specs);
    let said: Vec<_> =
        specs.iter().map(|(s, _)| (s.path.as_str(), s.regularizer.clone(), s.constraint.is_some())).collect();
    let l2 = Some(Regularizer::Norms { l1: 0.0, l2: 0.25 });
    assert_eq!(said, [("h/W", l2, true), ("h/W_carry", None, false), ("h/b", None, false), ("h/b_carry", None, false)]);
    assert_eq!(imported.penalties.len(), 1);
}
