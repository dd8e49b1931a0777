//! Whole models on emulated GPUs: the PTX that GPUs would get, executed and checked instruction by instruction, on one
//! device and divided over two under every split, communication included.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::verify::{self, VerifyOptions};
use intwain::{DeviceKind, Devices, Model, ModelOptions, Precision, RunError, Session, SessionOptions};
use intwain::{Strategy, Tensor, Timings, Type};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{DType, Graph, Rows, Trainable};
use std::collections::BTreeMap;
use support::{Array, Elements, read_npz, repository};

/// A model with inputs, cotangents, and what Keras computed from them.
struct Golden {
    model: Model,
    arrays: BTreeMap<String, Array>,
}

impl Golden {
    fn load(name: &str) -> Golden {
        let path = |end: &str| repository(&format!("tests/goldens/models/{name}.{end}"));
        let arrays = read_npz(&path("npz")).into_iter().map(|a| (a.name.clone(), a)).collect();
        Golden { model: Model::open(&path("keras"), ModelOptions::default()).unwrap(), arrays }
    }

    fn inputs(&self, rows: usize) -> BTreeMap<String, Tensor> {
        let graph = self.model.graph(1).unwrap();
        let named = graph.inputs().enumerate().map(|(i, p)| (p.name.to_string(), &self.arrays[&format!("in{i}")]));
        named.map(|(name, array)| (name, tensor(&array.rows(rows)))).collect()
    }

    /// The rows of a golden file.
    fn all_rows(&self) -> usize {
        self.arrays["in0"].shape[0]
    }

    /// Runs all splits over two devices, and one device, and compares with Keras.
    fn outputs_equal_keras(&self, rows: usize) {
        let inputs = self.inputs(rows);
        for (devices, split) in everywhere() {
            let what = format!("{devices} {split:?}");
            let got = Session::new(&self.model, on(&devices, split)).unwrap().run(&inputs).unwrap();
            for (i, (name, got)) in got.iter().enumerate() {
                let want = &self.arrays[&format!("out{i}")];
                assert_close(&format!("{what}: {name}"), got, &want.rows(rows), largest(want.floats()));
            }
        }
    }

    fn gradients_equal_keras(&self, splits: &[Strategy]) {
        let rows = self.all_rows();
        let cotangents = self.arrays.iter().filter(|(n, _)| n.starts_with("cot"));
        let cotangents = cotangents.map(|(n, a)| (n.clone(), tensor(a))).collect();
        for &split in splits {
            let options = on(&Devices::two(DeviceKind::Ptx), Some(split));
            let got = Session::new(&self.model, options).unwrap().gradients(&self.inputs(rows), &cotangents).unwrap();
            assert!(!got.is_empty());
            for (name, got) in &got {
                // Of a gradient that is 0 but for rounding only the size can be compared.
                let want = &self.arrays[name];
                assert_close(&format!("{split:?}: {name}"), got, want, largest(want.floats()).max(1e-2));
            }
        }
    }
}

fn tensor(array: &Array) -> Tensor {
    match &array.elements {
        Elements::F32(v) => Tensor::from_f32(array.shape.clone(), v),
        Elements::I32(v) => {
            let bytes = v.iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::from_bytes(Type::new(DType::I32, array.shape.clone()), bytes).unwrap()
        }
    }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(1e-30, |m, x| x.abs().max(m))
}

fn assert_close(what: &str, got: &Tensor, want: &Array, scale: f32) {
    assert_eq!(got.ty.shape[..], want.shape[..], "{what}");
    for (i, (g, w)) in got.to_f64().iter().zip(want.floats()).enumerate() {
        let error = (g - f64::from(*w)).abs() / f64::from(scale);
        assert!(error <= 1e-5, "{what}: element {i} is {g}, Keras has {w}");
    }
}

fn on(devices: &Devices, split: Option<Strategy>) -> SessionOptions {
    SessionOptions { devices: devices.clone(), threads: Some(1), split, ..SessionOptions::default() }
}

/// One device, and two under every split.
fn everywhere() -> Vec<(Devices, Option<Strategy>)> {
    let two = [Strategy::One, Strategy::Data, Strategy::Tensor, Strategy::Pipeline].map(Some).into_iter().chain([None]);
    let two = two.map(|split| (Devices::two(DeviceKind::Ptx), split));
    std::iter::once((Devices::one(DeviceKind::Ptx), None)).chain(two).collect()
}

#[test]
fn dense_layers() {
    Golden::load("dense").outputs_equal_keras(5);
}

#[test]
fn convolutions_pooling_and_batch_normalisation() {
    Golden::load("residual").outputs_equal_keras(3);
}

#[test]
fn depthwise_convolutions_and_upsampling() {
    Golden::load("mobile").outputs_equal_keras(1);
    Golden::load("upward").outputs_equal_keras(3);
}

#[test]
fn recurrent_layers_with_masks() {
    Golden::load("masked").outputs_equal_keras(3);
}

#[test]
fn embeddings() {
    Golden::load("two_tower").outputs_equal_keras(5);
}

#[test]
fn attention() {
    Golden::load("decoder").outputs_equal_keras(3);
}

#[test]
fn gradients_of_dense_layers_and_convolutions() {
    let splits = [Strategy::One, Strategy::Data, Strategy::Tensor, Strategy::Pipeline];
    Golden::load("dense").gradients_equal_keras(&splits);
    Golden::load("residual").gradients_equal_keras(&splits[1..3]);
}

#[test]
fn gradients_of_recurrent_layers_and_tables() {
    Golden::load("masked").gradients_equal_keras(&[Strategy::Data]);
    Golden::load("two_tower").gradients_equal_keras(&[Strategy::Data, Strategy::Tensor]);
}

/// Calls follow each other without waiting for both devices: slots and epochs of the channels are used in turn.
#[test]
fn many_calls() {
    let golden = Golden::load("dense");
    for split in [Strategy::Data, Strategy::Tensor, Strategy::Pipeline] {
        let options = SessionOptions { batch: Some(2), ..on(&Devices::two(DeviceKind::Ptx), Some(split)) };
        let mut session = Session::new(&golden.model, options).unwrap();
        for rows in [5, 4, 5] {
            let got = session.run(&golden.inputs(rows)).unwrap();
            let want = &golden.arrays["out0"];
            assert_close(&format!("{split:?}, {rows} rows"), &got[0].1, &want.rows(rows), largest(want.floats()));
        }
    }
}

#[test]
fn two_logical_devices_on_one() {
    let golden = Golden::load("dense");
    let twice = Devices::new(DeviceKind::Ptx, [0, 0]).unwrap();
    let alone = Session::new(&golden.model, on(&Devices::one(DeviceKind::Ptx), None)).unwrap().run(&golden.inputs(5));
    let both = Session::new(&golden.model, on(&twice, Some(Strategy::Data))).unwrap().run(&golden.inputs(5));
    assert_eq!(both.unwrap(), alone.unwrap());
}

/// Products, a convolution, maxima and sums, of integers: every order of the sums gives the same bits.
#[test]
fn integers_are_equal_bit_for_bit() {
    let mut g = Graph::new("integers");
    let x = g.input("x", Type::new(DType::F32, [5, 12]), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [12, 10]), Trainable::Yes);
    let b = g.weight("b", Type::new(DType::F32, [10]), Trainable::Yes);
    let v = g.weight("v", Type::new(DType::F32, [10, 12]), Trainable::Yes);
    let h = g.matmul(x, w).unwrap();
    let h = g.binary_broadcast(Binary::Add, h, b).unwrap();
    let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
    let h = g.binary(Binary::Max, h, zero).unwrap();
    let y = g.matmul(h, v).unwrap();
    let y = g.add(y, x).unwrap();
    let most = g.reduce(Reduce::Max, y, &[1]).unwrap();
    let sum = g.reduce(Reduce::Sum, y, &[1]).unwrap();
    g.output("y", y);
    g.output("most", most);
    g.output("sum", sum);
    for devices in [Devices::one(DeviceKind::Ptx), Devices::two(DeviceKind::Ptx)] {
        let options = VerifyOptions { devices, ..VerifyOptions::default() };
        let report = verify::verify(&g, &options, &mut Timings::default(), &mut |_| {}).unwrap();
        assert!(report.verified, "{report}");
        for program in report.programs.iter().filter(|p| p.skipped.is_none()) {
            let execution = program.execution.as_ref().unwrap();
            assert_eq!((execution.engine, execution.unequal), ("ptx", 0), "{report}");
        }
    }
}

#[test]
fn cpu_devices_do_not_round_products() {
    let golden = Golden::load("dense");
    let rounded = SessionOptions { precision: Precision::Bf16, ..SessionOptions::default() };
    match Session::new(&golden.model, rounded).err() {
        Some(RunError::Open(e)) => assert!(e.to_string().contains("cpu:0") && e.to_string().contains("f32"), "{e}"),
        other => panic!("{other:?}"),
    }
}

/// Factors rounded to bf16 have 8 bits: the outputs are near, not equal.
#[test]
fn products_are_rounded_when_asked() {
    let golden = Golden::load("dense");
    for precision in [Precision::Tf32, Precision::Bf16] {
        let options = SessionOptions { precision, ..on(&Devices::two(DeviceKind::Ptx), Some(Strategy::Data)) };
        let got = Session::new(&golden.model, options).unwrap().run(&golden.inputs(5)).unwrap();
        let (got, want) = (&got[0].1, golden.arrays["out0"].rows(5));
        let differences = got.to_f64().into_iter().zip(want.floats()).map(|(g, w)| (g - f64::from(*w)).abs());
        let worst = differences.fold(0.0, f64::max) / f64::from(largest(want.floats()));
        assert!((1e-7..2e-2).contains(&worst), "{precision:?}: {worst}");
    }
}
