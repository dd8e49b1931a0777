//! Weights in the containers that people have, against the values of the Keras that wrote them (`tests/fixtures/weights`, made by
//! `tools/make_weight_fixtures.py`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::arrays::{Array, Npz};
use intwain::frontend::{ImportOptions, KerasModel, ModelFile, Weights, import, open_model, open_weights};
use std::path::{Path, PathBuf};
use support::{intwain, read_npz, repository, said, write_npz};

fn fixture(name: &str) -> PathBuf {
    repository("tests/fixtures/weights").join(name)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What the command makes of `x` in an npz file.
fn run(model: &Path, weights: Option<&Path>, x: &str) -> support::Array {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.npz");
    let inputs = folder.path().join("in.npz");
    let x = read_npz(&fixture(x)).into_iter().find(|a| a.name == "x").unwrap();
    write_npz(&inputs, &[x]);
    let mut words =
        vec!["run", text(model), "--inputs", text(&inputs), "--outputs", text(&out), "--devices", "cpu:0", "-q"];
    if let Some(weights) = weights {
        words.extend(["--weights", text(weights)]);
    }
    let result = intwain(&words);
    assert!(result.status.success(), "{}", said(&result.stderr));
    read_npz(&out).remove(0)
}

fn assert_close(what: &str, got: &support::Array, want: &support::Array) {
    assert_eq!(got.shape, want.shape, "{what}");
    for (g, w) in got.floats().iter().zip(want.floats()) {
        assert!((g - w).abs() < 1e-6, "{what}: {g} instead of {w}");
    }
}

#[test]
fn tensorflow_js_models_compute_what_keras_computes() {
    for (folder, key) in [
        ("tfjs", "whole"),
        ("tfjs_saved", "whole"),
        ("tfjs_uint8", "uint8"),
        ("tfjs_uint16", "uint16"),
        ("tfjs_float16", "float16"),
    ] {
        let want = read_npz(&fixture("everything.npz")).into_iter().find(|a| a.name == key).unwrap();
        assert_close(folder, &run(&fixture(folder).join("model.json"), None, "everything.npz"), &want);
    }
}

/// The variables of an opened model, from weights of its own or from others.
fn variables(mut file: ModelFile, weights: Option<&str>) -> Weights {
    let model = KerasModel::read(&file).unwrap();
    let options = ImportOptions { batch: 1, ..ImportOptions::default() };
    let imported = import(&model, &file.path, &options).unwrap();
    let source = weights.map_or_else(|| file.weights.take(), |name| Some(open_weights(&fixture(name)).unwrap()));
    Weights::new(&imported.vars, source, 0).unwrap()
}

/// Keras 2 does not name the models around a layer.
fn matches(path: &str, keras: &str) -> bool {
    path == keras || path.ends_with(&format!("/{keras}"))
}

fn assert_values(what: &str, weights: &Weights, expected: &Npz, prefix: &str) {
    let names: Vec<&str> = expected.names().filter(|n| n.starts_with(prefix)).collect();
    let keras = |name: &str| name[prefix.len()..].trim_end_matches(":0").to_string();
    for (i, spec) in weights.specs().iter().enumerate() {
        let named: Vec<&&str> = names.iter().filter(|n| matches(&spec.path, &keras(n))).collect();
        let [name] = named[..] else { panic!("{what}: {} is {named:?}", spec.path) };
        let want = expected.read(name).unwrap();
        let got = weights.read(i).unwrap();
        assert_eq!((got.shape(), got.bytes()), (want.shape(), want.bytes()), "{what}: {}", spec.path);
        let rows = spec.shape[0];
        assert_eq!(
            bytes(&weights.read_rows(i, 1, rows).unwrap()),
            bytes(&want.rows(1, rows).unwrap()),
            "{what}: {}",
            spec.path
        );
    }
}

fn bytes(array: &Array) -> &[u8] {
    array.bytes()
}

#[test]
fn weights_that_cudnn_layers_saved_are_converted() {
    let expected = Npz::open(&fixture("cudnn.npz")).unwrap();
    let weights = variables(open_model(&fixture("cudnn.json")).unwrap(), Some("cudnn.h5"));
    assert_values("cudnn.h5", &weights, &expected, "");
    let want = read_npz(&fixture("cudnn.npz")).into_iter().find(|a| a.name == "three").unwrap();
    assert_close("cudnn.h5", &run(&fixture("cudnn.json"), Some(&fixture("cudnn.h5")), "cudnn.npz"), &want);
}

/// A model with a frozen layer in a nested one: the old container and the new one, and the old one as other writers write it.
#[test]
fn every_container_gives_the_same_bytes() {
    let expected = Npz::open(&fixture("nested.npz")).unwrap();
    for (model, weights, prefix) in [
        ("nested2.h5", None, "2/"),
        ("nested2.keras", None, "2/"),
        ("nested2.keras", Some("nested2.h5"), "2/"),
        ("nested2.h5", Some("nested2.keras"), "2/"),
        ("nested2.h5", Some("rewritten.h5"), "2/"),
        ("nested3.h5", None, "3/"),
        ("nested3.keras", None, "3/"),
        ("nested3.keras", Some("nested3.h5"), "3/"),
        ("nested3.h5", Some("nested3.keras"), "3/"),
    ] {
        let what = format!("{model} with {weights:?}");
        assert_values(&what, &variables(open_model(&fixture(model)).unwrap(), weights), &expected, prefix);
    }
}

/// The state of Adam with `amsgrad`, whose tensors were numbered in the order in which the optimizer made them.
#[test]
fn the_state_of_an_optimizer_is_found() {
    let kept = [
        "first/kernel",
        "first/bias",
        "inner/n/gamma",
        "inner/n/beta",
        "inner/b/kernel",
        "inner/b/bias",
        "last/kernel",
        "last/bias",
    ];
    // Keras 3 keeps the rate as a tensor, so that the first slot is its third.
    for (name, first) in [("nested2.h5", 1), ("nested2.keras", 1), ("nested3.h5", 2), ("nested3.keras", 2)] {
        let file = open_model(&fixture(name)).unwrap();
        let config = file.compile_config.clone();
        let weights = variables(file, None);
        let state = weights.optimizer(config.as_ref()).unwrap().unwrap();
        assert_eq!(
            (state.class.as_deref(), state.iterations, state.learning_rate),
            (Some("Adam"), Some(7), Some(0.25)),
            "{name}"
        );
        let interleaved = kept.iter().flat_map(|var| [("momentum", var), ("velocity", var)]);
        let expected: Vec<_> = interleaved.chain(kept.iter().map(|var| ("velocity_hat", var))).collect();
        assert_eq!(state.slots.len(), expected.len(), "{name}");
        for (i, (slot, (what, var))) in state.slots.iter().zip(expected).enumerate() {
            let role = slot.role.as_ref().unwrap();
            assert_eq!((role.slot, role.variable.as_deref()), (what, Some(*var)), "{name}");
            let values = weights.source().unwrap().read(&slot.key).unwrap().to_f64();
            assert!(values.iter().all(|&v| v == (first + i) as f64), "{name}: {slot:?}");
        }
        // Without a configuration the tensors are there and nobody knows what they are.
        let unnamed = weights.optimizer(None).unwrap().unwrap();
        assert_eq!((unnamed.iterations, unnamed.class), (Some(7), None));
        assert!(unnamed.slots.len() >= 24 && unnamed.slots.iter().all(|slot| slot.role.is_none()), "{name}");
    }
    let without = variables(open_model(&fixture("cudnn.json")).unwrap(), Some("cudnn.h5"));
    assert_eq!(without.optimizer(None).unwrap(), None);
}

/// The same layers under other names and sizes: those that the file has are its own, the others are initialised.
#[test]
fn weights_are_taken_by_the_names_of_layers_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("m.json");
    let layer = |name: &str, units: usize| {
        format!(
            r#"{{"class_name": "Dense", "config": {{"name": "{name}", "units": {units}, "batch_input_shape": [null, 4]}}}}"#
        )
    };
    let write = |layers: &[String]| {
        let text = layers.join(", ");
        let text = format!(
            r#"{{"class_name": "Sequential", "keras_version": "2.9.0", "config": {{"name": "m", "layers": [{text}]}}}}"#
        );
        std::fs::write(&model, text).unwrap();
    };
    let (file, inputs, out) = (fixture("nested2.h5"), folder.path().join("in.npz"), folder.path().join("out.npz"));
    write_npz(&inputs, &[support::Array::f32("x0", &[1, 4], vec![1.0, 0.0, 0.0, 0.0])]);
    let call = |more: &[&str]| {
        let words = [
            "run",
            text(&model),
            "--weights",
            text(&file),
            "--inputs",
            text(&inputs),
            "--outputs",
            text(&out),
            "--devices",
            "cpu:0",
        ];
        intwain(words.iter().chain(more))
    };
    write(&[layer("fresh", 4), layer("last", 2)]);
    let result = call(&["--by-name"]);
    let message = said(&result.stderr);
    assert!(result.status.success(), "{message}");
    let expected = "by name last; not in the file, initialised from seed 0: fresh; not in the model: first, inner";
    assert!(message.contains(expected), "{message}");
    write(&[layer("first", 4), layer("last", 2)]);
    let result = call(&["--by-name"]);
    assert!(result.status.success(), "{}", said(&result.stderr));
    let got = read_npz(&out).remove(0);
    let golden = Npz::open(&fixture("nested.npz")).unwrap();
    let values = |name: &str| golden.read(&format!("2/{name}:0")).unwrap().to_f64();
    let (kernel, bias, last, offset) =
        (values("first/kernel"), values("first/bias"), values("last/kernel"), values("last/bias"));
    for column in 0..2 {
        let want: f64 = offset[column] + (0..4).map(|i| (kernel[i] + bias[i]) * last[2 * i + column]).sum::<f64>();
        assert!((f64::from(got.floats()[column]) - want).abs() < 1e-5, "{:?} {want}", got.floats());
    }
    assert_eq!(call(&[]).status.code(), Some(1), "another order is an error where names are not asked for");
    write(&[layer("first", 5), layer("last", 2)]);
    let result = call(&["--by-name"]);
    assert_eq!(result.status.code(), Some(1));
    assert!(said(&result.stderr).contains("`first/kernel` has the shape [4, 5]"), "{}", said(&result.stderr));
}

/// The same file under the classes that wrote it.
#[test]
fn cudnn_layers_compute_what_layers_without_cudnn_do() {
    let mut model: serde_json::Value = serde_json::from_slice(&std::fs::read(fixture("cudnn.json")).unwrap()).unwrap();
    fn rename(layer: &mut serde_json::Value) {
        let class = layer["class_name"].as_str().unwrap().to_string();
        let config = layer["config"].as_object_mut().unwrap();
        match &*class {
            "LSTM" | "GRU" => {
                for key in [
                    "activation",
                    "recurrent_activation",
                    "use_bias",
                    "dropout",
                    "recurrent_dropout",
                    "implementation",
                    "unroll",
                    "reset_after",
                ] {
                    config.remove(key);
                }
                layer["class_name"] = format!("CuDNN{class}").into();
            }
            "Bidirectional" => rename(&mut config["layer"]),
            _ => {}
        }
    }
    model["config"]["layers"].as_array_mut().unwrap().iter_mut().for_each(rename);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.json");
    std::fs::write(&path, model.to_string()).unwrap();
    assert!(model.to_string().matches("CuDNN").count() >= 3);
    let want = read_npz(&fixture("cudnn.npz")).into_iter().find(|a| a.name == "three").unwrap();
    assert_close("cudnn.h5", &run(&path, Some(&fixture("cudnn.h5")), "cudnn.npz"), &want);
}

/// A GRU from before `reset_after` there was, which tf-keras reads as one that has it: the stored bias tells which it is.
/// Values of both forms are Keras's.
#[test]
fn the_weights_tell_the_form_of_a_gru_whose_file_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let json = r#"{"class_name": "Sequential", "keras_version": "2.0.8", "config": [{"class_name": "GRU", "config": {"name": "g", "units": 1,
        "activation": "tanh", "recurrent_activation": "sigmoid", "batch_input_shape": [null, 2, 1]}}]}"#;
    std::fs::write(at("m.json"), json).unwrap();
    write_npz(&at("in.npz"), &[support::Array::f32("x", &[1, 2, 1], vec![1.0, 2.0])]);
    let kernels = [
        support::Array::f32("g/gru_cell/kernel", &[1, 3], vec![0.5, 0.6, 0.7]),
        support::Array::f32("g/gru_cell/recurrent_kernel", &[1, 3], vec![0.1, 0.2, 0.3]),
    ];
    let one = support::Array::f32("g/gru_cell/bias", &[3], vec![0.1, 0.2, 0.3]);
    let two = support::Array::f32("g/gru_cell/bias", &[2, 3], vec![0.1, 0.2, 0.3, 0.4, 0.5, 0.6]);
    for (bias, want) in [(one, 0.434_625), (two, 0.373_932)] {
        let [kernel, recurrent] = kernels.clone();
        write_npz(&at("w.npz"), &[kernel, recurrent, bias]);
        let (model, inputs, weights, out) = (at("m.json"), at("in.npz"), at("w.npz"), at("out.npz"));
        let words = ["run", text(&model), "--inputs", text(&inputs), "--weights", text(&weights)];
        let result = intwain([&words[..], &["--outputs", text(&out), "--devices", "cpu:0", "-q"]].concat());
        assert!(result.status.success(), "{}", said(&result.stderr));
        let got = read_npz(&out).remove(0).floats()[0];
        assert!((got - want).abs() < 1e-6, "{got} instead of {want}");
    }
}
