//! Sessions on models whose inputs and outputs are out of the ordinary.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::build::{self, Request};
use intwain::{
    Catalogue, DeviceKind, Devices, HostOptions, Model, ModelOptions, ProgramDir, ProgramSession, RunError, Session,
    SessionOptions,
};
use intwain::{Shape, Strategy, Tensor, Timings};
use intwain_ir::{ParamKind, interp};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A reference to what a layer gives.
fn from(layer: &str, shape: &[Value]) -> Value {
    json!({"class_name": "__keras_tensor__", "config": {"shape": shape, "dtype": "float32", "keras_history": [layer, 0, 0]}})
}

fn input(name: &str, shape: &[Value]) -> Value {
    json!({"class_name": "InputLayer", "name": name, "inbound_nodes": [],
        "config": {"batch_shape": shape, "dtype": "float32", "sparse": false, "name": name}})
}

fn dense(name: &str, units: usize, source: &str, shape: &[Value]) -> Value {
    json!({"class_name": "Dense", "name": name,
        "config": {"name": name, "trainable": true, "dtype": "float32", "units": units, "activation": "linear",
            "use_bias": false,
            "kernel_initializer": {"module": "keras.initializers", "class_name": "GlorotUniform", "config": {"seed": null}},
            "bias_initializer": {"module": "keras.initializers", "class_name": "Zeros", "config": {}},
            "kernel_regularizer": null, "bias_regularizer": null, "kernel_constraint": null, "bias_constraint": null},
        "inbound_nodes": [{"args": [from(source, shape)], "kwargs": {}}]})
}

/// A model of such layers, read from a file; inputs and outputs by layer.
fn model(layers: &[Value], inputs: &[&str], outputs: &[&str]) -> Model {
    let ends = |names: &[&str]| names.iter().map(|n| json!([n, 0, 0])).collect::<Vec<_>>();
    let config = json!({"module": "keras", "class_name": "Functional", "registered_name": "Functional",
        "config": {"name": "m", "trainable": true, "layers": layers,
            "input_layers": ends(inputs), "output_layers": ends(outputs)}});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    std::fs::write(&file, config.to_string()).unwrap();
    Model::open(&file, ModelOptions::default()).unwrap()
}

fn numbers(shape: impl Into<Shape>) -> Tensor {
    let shape = shape.into();
    let v: Vec<f32> = (0..shape.elements()).map(|i| (i * 7919 % 127) as f32 / 64.0 - 1.0).collect();
    Tensor::from_f32(shape, &v)
}

fn named(inputs: &[(&str, Tensor)]) -> BTreeMap<String, Tensor> {
    inputs.iter().map(|(n, t)| (n.to_string(), t.clone())).collect()
}

/// What the interpreter says.
fn expected(model: &Model, rows: usize, inputs: &BTreeMap<String, Tensor>) -> Vec<Tensor> {
    let graph = model.graph(rows).unwrap();
    let argument = |p: &intwain_ir::Param| match p.kind {
        ParamKind::Input { .. } => inputs[&*p.name].clone(),
        ParamKind::Weight { .. } | ParamKind::State { .. } => model.weight(&p.name).unwrap(),
    };
    interp::run(&graph, graph.params.iter().map(argument).collect()).unwrap()
}

fn on(devices: u32, split: Option<Strategy>) -> SessionOptions {
    let devices = Devices::new(DeviceKind::Cpu, 0..devices).unwrap();
    SessionOptions { devices, threads: Some(1), split, ..SessionOptions::default() }
}

#[test]
fn outputs_that_repeat_have_names_of_their_own() {
    let open = [Value::Null, json!(6)];
    let layers = [input("x", &open), dense("d", 3, "x", &open), dense("d_1", 4, "x", &open)];
    let m = model(&layers, &["x"], &["d", "d", "d_1", "x", "x"]);
    let x = named(&[("x", numbers([5, 6]))]);
    let want = expected(&m, 5, &x);
    for options in [on(1, None), on(2, Some(Strategy::Data)), on(2, Some(Strategy::Pipeline))] {
        let found = Session::new(&m, options).unwrap().run(&x).unwrap();
        let names: Vec<&str> = found.iter().map(|o| o.0.as_str()).collect();
        assert_eq!(names, ["d", "d_2", "d_1", "x", "x_1"]);
        assert_eq!(found.into_iter().map(|o| o.1).collect::<Vec<_>>(), want);
    }
}

#[test]
fn inputs_whose_rows_are_fixed_take_no_others() {
    let (four, three) = ([json!(4), json!(6)], [json!(3), json!(2)]);
    let layers = [input("x", &four), input("y", &three), dense("d", 3, "x", &four), dense("e", 2, "y", &three)];
    let m = model(&layers, &["x", "y"], &["d", "e"]);
    let mut session = Session::new(&m, on(1, None)).unwrap();
    let inputs = named(&[("x", numbers([4, 6])), ("y", numbers([3, 2]))]);
    let found: Vec<Tensor> = session.run(&inputs).unwrap().into_iter().map(|o| o.1).collect();
    assert_eq!(found, expected(&m, 1, &inputs));
    for rows in [0, 2, 3, 7] {
        let inputs = named(&[("x", numbers([rows, 6])), ("y", numbers([3, 2]))]);
        match session.run(&inputs) {
            Err(RunError::Input { name, problem }) => {
                assert_eq!(name, "x");
                assert!(problem.contains(&format!("[{rows}, 6]")) && problem.contains("[4, 6]"), "{problem}");
            }
            other => panic!("{rows} rows: {other:?}"),
        }
    }
}

#[test]
fn a_session_takes_batches_of_any_size_one_after_another() {
    let open = [Value::Null, json!(6)];
    let wide = [Value::Null, json!(8)];
    let layers = [input("x", &open), dense("d", 8, "x", &open), dense("e", 8, "d", &wide), dense("f", 2, "e", &wide)];
    let m = model(&layers, &["x"], &["f"]);
    for split in [None, Some(Strategy::Data), Some(Strategy::Tensor), Some(Strategy::Pipeline)] {
        let mut session = Session::new(&m, SessionOptions { batch: Some(3), ..on(2, split) }).unwrap();
        for rows in [7, 0, 1, 3, 7, 2] {
            let x = named(&[("x", numbers([rows, 6]))]);
            let found = session.run(&x).unwrap();
            assert_eq!(found[0].1.ty.shape, Shape::from([rows, 2]), "{split:?}");
            for (a, b) in found[0].1.to_f64().iter().zip(expected(&m, rows, &x)[0].to_f64()) {
                assert!((a - b).abs() < 1e-5, "{split:?}, {rows} rows: {a} against {b}");
            }
        }
    }
}

/// The model compiled to a directory for a call of `rows` rows.
fn compiled(m: &Model, rows: usize, folder: &std::path::Path) -> ProgramDir {
    let request = Request::new(Catalogue::built_in().get("cpu").unwrap(), rows).split(Strategy::One);
    let dir = folder.join("program");
    build::write(&dir, m, &request, &[], &mut Timings::default()).unwrap();
    ProgramDir::open(&dir).unwrap()
}

#[test]
fn many_numbers_of_rows_take_a_bounded_number_of_programs() {
    let open = [Value::Null, json!(6)];
    let model = model(&[input("x", &open), dense("d", 2, "x", &open)], &["x"], &["d"]);
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    for rows in (1..=30).chain([1, 30]) {
        let inputs = named(&[("x", numbers([rows, 6]))]);
        let got = session.run(&inputs).unwrap();
        assert_eq!(got[0].1, expected(&model, rows, &inputs)[0], "{rows} rows");
        assert!(session.programs().count() <= 9, "{rows} rows: {} programs", session.programs().count());
    }
}

#[test]
fn a_program_without_a_row_axis_takes_its_own_extents_only() {
    let (four, open) = ([json!(4), json!(6)], [Value::Null, json!(2)]);
    let layers = [input("x", &four), input("y", &open), dense("d", 3, "x", &four), dense("e", 2, "y", &open)];
    let m = model(&layers, &["x", "y"], &["d", "e"]);
    let folder = tempfile::tempdir().unwrap();
    let dir = compiled(&m, 3, folder.path());
    let mut session =
        ProgramSession::new(&dir, &dir.cpus(), HostOptions { threads: Some(1), ..HostOptions::default() }).unwrap();
    let inputs = named(&[("x", numbers([4, 6])), ("y", numbers([3, 2]))]);
    let found: Vec<Tensor> = session.run(&inputs).unwrap().into_iter().map(|o| o.1).collect();
    assert_eq!(found, expected(&m, 3, &inputs));
    let inputs = named(&[("x", numbers([4, 6])), ("y", numbers([5, 2]))]);
    let said = session.run(&inputs).unwrap_err().to_string();
    assert!(said.contains("`y`") && said.contains("--batch 5"), "{said}");
}

#[test]
fn positions_that_a_table_lacks_are_refused_by_programs_too() {
    let open = [Value::Null, json!(2)];
    let table = json!({"class_name": "Embedding", "name": "t",
        "config": {"name": "t", "trainable": true, "dtype": "float32", "input_dim": 5, "output_dim": 3,
            "embeddings_initializer": {"module": "keras.initializers", "class_name": "RandomUniform",
                "config": {"minval": -1.0, "maxval": 1.0, "seed": null}},
            "embeddings_regularizer": null, "activity_regularizer": null, "embeddings_constraint": null, "mask_zero": false},
        "inbound_nodes": [{"args": [from("x", &open)], "kwargs": {}}]});
    let m = model(&[input("x", &open), table], &["x"], &["t"]);
    let folder = tempfile::tempdir().unwrap();
    let dir = compiled(&m, 2, folder.path());
    let at = |v: &[f32]| named(&[("x", Tensor::from_f32([2, 2], v))]);
    let mut programs =
        ProgramSession::new(&dir, &dir.cpus(), HostOptions { threads: Some(1), ..HostOptions::default() }).unwrap();
    let mut models = Session::new(&m, on(1, None)).unwrap();
    assert_eq!(programs.run(&at(&[0.0, 4.0, 1.0, 2.0])).unwrap(), models.run(&at(&[0.0, 4.0, 1.0, 2.0])).unwrap());
    for bad in [5.0, -1.0] {
        let said = programs.run(&at(&[0.0, bad, 1.0, 2.0])).unwrap_err().to_string();
        assert_eq!(said, models.run(&at(&[0.0, bad, 1.0, 2.0])).unwrap_err().to_string());
        assert!(said.contains("`x`") && said.contains("rows 0 to 4"), "{said}");
    }
}

#[test]
fn a_divided_weight_is_drawn_with_the_fans_of_the_whole() {
    let open = [Value::Null, json!(64)];
    let wide = [Value::Null, json!(96)];
    let layers = [input("x", &open), dense("d", 96, "x", &open), dense("e", 5, "d", &wide)];
    let m = model(&layers, &["x"], &["e"]);
    // Keras: ±√(6 / (fan_in + fan_out)), of which 6144 draws come close.
    for (path, fans) in [("d/kernel", 160.0), ("e/kernel", 101.0)] {
        let largest = m.weight(path).unwrap().to_f64().into_iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        assert!((0.97..=1.0).contains(&(largest / (6.0f64 / fans).sqrt())), "{path}");
    }
    let x = named(&[("x", numbers([4, 64]))]);
    let want = expected(&m, 4, &x).remove(0).to_f64();
    let mut session = Session::new(&m, on(2, Some(Strategy::Tensor))).unwrap();
    let found = session.run(&x).unwrap().remove(0).1.to_f64();
    for (a, b) in found.iter().zip(&want) {
        assert!((a - b).abs() < 1e-4, "{a} instead of {b}");
    }
}
