//! Models of many layers are imported in time that grows as they do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain::frontend::{ImportOptions, KerasModel, import, open_model_bytes};
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

const WIDTH: usize = 16;

/// A layer of Keras 2 that takes what these layers give.
fn layer(class: &str, name: &str, mut config: Value, from: &[&str]) -> Value {
    config["name"] = json!(name);
    let call: Vec<Value> = from.iter().map(|f| json!([f, u8::from(f.starts_with('m')), 0, {}])).collect();
    json!({"class_name": class, "name": name, "config": config, "inbound_nodes": [call]})
}

fn functional(name: &str, layers: Vec<Value>, output: &str) -> Value {
    let nested = u8::from(output.starts_with('m'));
    json!({"class_name": "Functional", "keras_version": "2.9.0", "config": {"name": name, "layers": layers,
        "input_layers": [["x", 0, 0]], "output_layers": [[output, nested, 0]]}})
}

fn input() -> Value {
    json!({"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
        "config": {"name": "x", "batch_input_shape": [null, WIDTH], "dtype": "float32"}})
}

/// Residual blocks of three layers after each other.
fn chain(name: &str, layers: usize) -> Value {
    let (mut all, mut last) = (vec![input()], "x".to_string());
    for i in 0..layers / 3 {
        let names = ["d", "n", "a"].map(|kind| format!("{kind}{i}"));
        all.push(layer("Dense", &names[0], json!({"units": WIDTH, "activation": "relu"}), &[&last]));
        all.push(layer("BatchNormalization", &names[1], json!({}), &[&names[0]]));
        all.push(layer("Add", &names[2], json!({}), &[&last, &names[1]]));
        last.clone_from(&names[2]);
    }
    functional(name, all, &last)
}

/// Every layer takes the sum of all before it, and models of ten such layers follow each other.
fn nested(layers: usize) -> Value {
    let (mut all, mut last) = (vec![input()], "x".to_string());
    for m in 0..layers / 20 {
        let (mut inner, mut results) = (vec![input()], vec!["x".to_string()]);
        for i in 0..10 {
            let names = ["s", "d"].map(|kind| format!("{kind}{i}"));
            let before: Vec<&str> = results.iter().map(String::as_str).collect();
            let sum = if i == 0 {
                layer("Activation", &names[0], json!({"activation": "tanh"}), &before)
            } else {
                layer("Add", &names[0], json!({}), &before)
            };
            inner.extend([sum, layer("Dense", &names[1], json!({"units": WIDTH}), &[&names[0]])]);
            results.push(names[1].clone());
        }
        let name = format!("m{m}");
        let mut model = functional(&name, inner, results.last().unwrap());
        model["name"] = json!(name);
        model["inbound_nodes"] = json!([[[last, u8::from(m > 0), 0, {}]]]);
        all.push(model);
        last = name;
    }
    functional("nested", all, &last)
}

/// The least time of some that reading and importing took.
fn time(model: &Value) -> Duration {
    let text = model.to_string();
    let path = Path::new("m.json");
    let once = || {
        let start = Instant::now();
        let file = open_model_bytes(path, text.clone().into_bytes().into()).unwrap();
        let model = KerasModel::read(&file).unwrap();
        let options = ImportOptions { batch: 1, ..ImportOptions::default() };
        let imported = import(&model, path, &options).unwrap();
        let taken = start.elapsed();
        assert!(imported.vars.flatten().len() > 100);
        taken
    };
    (0..3).map(|_| once()).min().unwrap()
}

#[test]
fn import_takes_time_that_grows_as_the_model() {
    for (kind, make) in [("chain", (|n| chain("chain", n)) as fn(usize) -> Value), ("nested", nested)] {
        let (some, many) = (time(&make(250)), time(&make(1000)));
        // Four times as many layers: well below sixteen times the time.
        assert!(many < some * 10, "{kind}: 250 layers take {some:?}, 1000 layers {many:?}");
        #[cfg(not(debug_assertions))]
        {
            let taken = time(&make(500));
            assert!(taken < Duration::from_millis(100), "{kind}: 500 layers take {taken:?}");
        }
    }
}
