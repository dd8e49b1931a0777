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
