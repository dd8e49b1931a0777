//! Recurrent layers: small models by hand with the values Keras computes for them, models saved by Keras
//! (`tests/goldens/recurrent`, cases of `tools/layer_cases.py` of these names), and what stateful layers keep.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::build::{self, Request};
use intwain::{
    Catalogue, DeviceKind, Devices, HostOptions, Model, ModelOptions, ProgramDir, ProgramSession, Session,
    SessionOptions, Strategy, Tensor, Timings,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use support::{Array, intwain, read_npz, repository, said, write_npz};

/// A Sequential model of Keras 3 with these layers on an input of this shape, and weights by path.
fn model(shape: &[Option<usize>], layers: &[Value], weights: &[(&str, &[usize], &[f32])]) -> Model {
    let mut all = vec![json!({"class_name": "InputLayer", "config": {"batch_shape": shape, "name": "x"}})];
    all.extend_from_slice(layers);
    let config = json!({"module": "keras", "class_name": "Sequential", "registered_name": "Sequential",
        "config": {"name": "m", "layers": all}});
    let folder = tempfile::tempdir().unwrap();
    let (file, stored) = (folder.path().join("m.json"), folder.path().join("m.npz"));
    std::fs::write(&file, config.to_string()).unwrap();
    let arrays: Vec<Array> = weights.iter().map(|(name, shape, v)| Array::f32(name, shape, v.to_vec())).collect();
    write_npz(&stored, &arrays);
    Model::open(&file, ModelOptions { weights: Some(stored), ..ModelOptions::default() }).unwrap()
}

fn layer(class: &str, config: Value) -> Value {
    json!({"class_name": class, "config": config})
}

fn on(devices: u32, split: Option<Strategy>) -> SessionOptions {
    let devices = Devices::new(DeviceKind::Cpu, 0..devices).unwrap();
    SessionOptions { devices, threads: Some(1), split, ..SessionOptions::default() }
}

fn input(shape: &[usize], v: &[f32]) -> BTreeMap<String, Tensor> {
    BTreeMap::from([("x".to_string(), Tensor::from_f32(shape, v))])
}

fn outputs(model: &Model, shape: &[usize], x: &[f32]) -> Vec<Vec<f64>> {
    let mut session = Session::new(model, on(1, None)).unwrap();
    session.run(&input(shape, x)).unwrap().iter().map(|(_, t)| t.to_f64()).collect()
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} {want:?}");
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 2e-6), "{got:?} {want:?}");
}

#[test]
fn gates_are_in_keras_s_order() {
    let own = |class: &str, extra: Value| {
        let mut config = json!({"name": "l", "units": 1});
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        layer(class, config)
    };
    let lstm = model(
        &[None, Some(2), Some(1)],
        &[own("LSTM", json!({}))],
        &[
            ("l/lstm_cell/kernel", &[1, 4], &[0.1, 0.2, 0.3, 0.4]),
            ("l/lstm_cell/recurrent_kernel", &[1, 4], &[0.5, 0.6, 0.7, 0.8]),
            ("l/lstm_cell/bias", &[4], &[0.01, 0.02, 0.03, 0.04]),
        ],
    );
    close(&outputs(&lstm, &[1, 2, 1], &[1.0, 2.0])[0], &[0.299_093]);
    for (after, shape, bias, want) in [
        (true, &[2, 3][..], &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6][..], 0.373_932),
        (false, &[3], &[0.1, 0.2, 0.3], 0.434_625),
    ] {
        let gru = model(
            &[None, Some(2), Some(1)],
            &[own("GRU", json!({"reset_after": after}))],
            &[
                ("l/gru_cell/kernel", &[1, 3], &[0.5, 0.6, 0.7]),
                ("l/gru_cell/recurrent_kernel", &[1, 3], &[0.1, 0.2, 0.3]),
                ("l/gru_cell/bias", shape, bias),
            ],
        );
        close(&outputs(&gru, &[1, 2, 1], &[1.0, 2.0])[0], &[want]);
    }
}

/// A cell that gives kernel · x + recurrent · h + bias.
fn plain(name: &str) -> Value {
    json!({"name": name, "units": 1, "activation": "linear", "return_sequences": true})
}

#[test]
fn a_masked_step_holds_the_state() {
    let masking = layer("Masking", json!({"name": "masking", "mask_value": 0.0}));
    let open = [None, Some(3), Some(1)];
    let cell = |at: &str| {
        [("kernel", vec![1, 1], 1.0), ("recurrent_kernel", vec![1, 1], 1.0), ("bias", vec![1], 10.0)]
            .map(|(name, shape, v)| (format!("{at}/simple_rnn_cell/{name}"), shape, [v]))
    };
    let named = cell("r");
    let weights: Vec<_> = named.iter().map(|(n, s, v)| (n.as_str(), &s[..], &v[..])).collect();
    let one = model(&open, &[masking.clone(), layer("SimpleRNN", plain("r"))], &weights);
    close(&outputs(&one, &[1, 3, 1], &[1.0, 0.0, 2.0])[0], &[11.0, 11.0, 23.0]);

    let named: Vec<_> = ["b/forward_r", "b/backward_r"].iter().flat_map(|at| cell(at)).collect();
    let weights: Vec<_> = named.iter().map(|(n, s, v)| (n.as_str(), &s[..], &v[..])).collect();
    let wrapped = json!({"name": "b", "layer": layer("SimpleRNN", plain("r"))});
    let both = model(&open, &[masking, layer("Bidirectional", wrapped)], &weights);
    close(&outputs(&both, &[1, 3, 1], &[1.0, 0.0, 2.0])[0], &[11.0, 23.0, 0.0, 0.0, 23.0, 12.0]);
}

/// x + recurrent · h, over three steps of any batch or one step of a fixed one.
fn summing(batch: Option<usize>, recurrent: f32, extra: Value) -> Model {
    let mut config = plain("r");
    config.as_object_mut().unwrap().extend(json!({"use_bias": false}).as_object().unwrap().clone());
    config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    model(
        &[batch, Some(if batch.is_some() { 1 } else { 3 }), Some(1)],
        &[layer("SimpleRNN", config)],
        &[("r/simple_rnn_cell/kernel", &[1, 1], &[1.0]), ("r/simple_rnn_cell/recurrent_kernel", &[1, 1], &[recurrent])],
    )
}

#[test]
fn outputs_of_a_walk_backwards_come_in_the_order_of_the_walk() {
    let m = summing(None, 0.0, json!({"go_backwards": true}));
    close(&outputs(&m, &[1, 3, 1], &[1.0, 2.0, 3.0])[0], &[3.0, 2.0, 1.0]);
}

#[test]
fn a_stateful_layer_goes_on_where_it_was() {
    let m = summing(Some(2), 1.0, json!({"stateful": true}));
    for options in [on(1, None), on(2, Some(Strategy::Data)), on(2, Some(Strategy::Pipeline)), on(2, None)] {
        let options = SessionOptions { fallback: intwain::Fallback::One, ..options };
        let mut session = Session::new(&m, options).unwrap();
        let mut run =
            |rows: usize, x: &[f32]| -> Vec<f64> { session.run(&input(&[rows, 1, 1], x)).unwrap()[0].1.to_f64() };
        // The i-th row of a batch continues the i-th row of the batch before.
        close(&run(2, &[1.0, 10.0]), &[1.0, 10.0]);
        close(&run(2, &[1.0, 10.0]), &[2.0, 20.0]);
        // Batches of one run come in order.
        close(&run(4, &[1.0, 10.0, 2.0, 20.0]), &[3.0, 30.0, 5.0, 50.0]);
        session.reset_states().unwrap();
        let again = session.run(&input(&[2, 1, 1], &[1.0, 10.0])).unwrap();
        close(&again[0].1.to_f64(), &[1.0, 10.0]);
    }
}

#[test]
fn a_stateful_layer_takes_its_batch_only() {
    let m = summing(Some(2), 1.0, json!({"stateful": true}));
    let mut session = Session::new(&m, on(1, None)).unwrap();
    let refused = session.run(&input(&[3, 1, 1], &[1.0; 3])).unwrap_err().to_string();
    assert_eq!(refused, "layer `r` keeps a state for each of 2 rows: 3 rows are no multiple of it");
    let mut session = Session::new(&m, SessionOptions { batch: Some(4), ..on(1, None) }).unwrap();
    let refused = session.run(&input(&[4, 1, 1], &[1.0; 4])).unwrap_err().to_string();
    assert_eq!(refused, "layer `r` keeps a state for each of 2 rows: a batch of 4 rows cannot be run");
}

#[test]
fn a_program_keeps_states_too() {
    let m = summing(Some(2), 1.0, json!({"stateful": true, "return_state": true}));
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("p");
    let hardware = Catalogue::built_in().get("cpu").unwrap();
    let request = Request::new(hardware, 2).split(Strategy::Data);
    build::write(&dir, &m, &request, &[], &mut Timings::default()).unwrap();
    let dir = ProgramDir::open(&dir).unwrap();
    let devices = Devices::new(DeviceKind::Cpu, 0..2).unwrap();
    let mut session = ProgramSession::new(&dir, &devices, HostOptions::default()).unwrap();
    for want in [[1.0, 10.0], [2.0, 20.0]] {
        close(&session.run(&input(&[2, 1, 1], &[1.0, 10.0])).unwrap()[0].1.to_f64(), &want);
    }
    let run = session.run(&input(&[4, 1, 1], &[1.0, 10.0, 1.0, 10.0])).unwrap();
    close(&run[0].1.to_f64(), &[3.0, 30.0, 4.0, 40.0]);
    session.reset_states().unwrap();
    close(&session.run(&input(&[2, 1, 1], &[1.0, 10.0])).unwrap()[0].1.to_f64(), &[1.0, 10.0]);
    assert!(session.run(&input(&[3, 1, 1], &[1.0; 3])).is_err());
}

/// Whether a model gives Keras's values, whole and cut over two devices.
fn holds(name: &str, model: &str, more: &[&str]) {
    let path = |file: &str| repository(&format!("tests/goldens/recurrent/{file}")).display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.npz").display().to_string();
    let (npz, model) = (path(&format!("{name}.npz")), path(model));
    let more: Vec<String> = more.iter().map(|w| if w.starts_with("--") { w.to_string() } else { path(w) }).collect();
    let mut wanted = read_npz(npz.as_ref());
    wanted.retain(|a| a.name.starts_with("out"));
    for split in ["one", "data", "tensor"] {
        let mut words = vec!["run", &model, "--inputs", &npz, "--outputs", &out, "-q"];
        words.extend(more.iter().map(String::as_str));
        match split {
            "one" => words.extend(["--devices", "cpu:0"]),
            split => words.extend(["--devices", "cpu:0,cpu:1", "--split", split, "--allow-one"]),
        }
        let result = intwain(&words);
        assert!(result.status.success(), "{name} {split}: {}", said(&result.stderr));
        let got = read_npz(out.as_ref());
        assert_eq!(got.len(), wanted.len(), "{name}");
        for (got, want) in got.iter().zip(&wanted) {
            assert_eq!(got.shape, want.shape, "{name} {split} {}", want.name);
            let far = got.floats().iter().zip(want.floats()).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
            assert!(far < 2e-5, "{name} {split} {}: off by {far}", want.name);
        }
    }
}

#[test]
fn models_saved_by_keras_give_its_values() {
    for name in [
        "Bidirectional_own_backward",
        "Bidirectional_state",
        "ConvLSTM2D_masked",
        "GRU_reset_before_masked",
        "LSTM_begun_masked",
        "StackedRNNCells_mixed",
        "TimeDistributed_model",
    ] {
        holds(name, &format!("{name}.keras"), &[]);
    }
}

/// Three batches one after the other. Keras's values are those of direct calls: jitted prediction loses the states.
#[test]
fn a_stateful_model_gives_keras_s_values() {
    holds("stateful", "stateful.keras", &[]);
}

/// Keras's values are those of ordinary layers that have loaded the same file.
#[test]
fn cudnn_s_layers_are_ordinary_ones() {
    holds("cudnn", "cudnn.json", &["--weights", "cudnn.h5"]);
}
