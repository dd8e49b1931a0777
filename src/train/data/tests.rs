use super::*;
use crate::arrays::{Array, write_npz};
use std::num::NonZeroUsize;
use std::path::Path;

fn port(name: &str, number: usize, dtype: DType, row: &[usize]) -> Port {
    Port { name: name.into(), number, row: Type::new(dtype, Shape::from(row)) }
}

fn ints(dtype: DType, shape: &[usize], values: &[i64]) -> Array {
    Array::from_bytes(DType::I64, shape, bytemuck::cast_slice(values)).expect("a shape of these values").cast(dtype)
}

fn batch(n: usize) -> NonZeroUsize {
    NonZeroUsize::new(n).expect("a batch has rows")
}

/// A folder with an npz of these arrays.
fn npz(arrays: &[(&str, Array)]) -> (tempfile::TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("d.npz");
    write_npz(&path, arrays.iter().map(|(name, array)| (*name, array))).expect("a file is written");
    (dir, vec![path])
}

fn refused(arrays: &[(&str, Array)], inputs: &[Port], outputs: &[Port]) -> String {
    let (_dir, paths) = npz(arrays);
    Data::open(&paths, inputs, outputs).expect_err("these data do not fit").to_string()
}

/// Philox4x32-10 and Fisher–Yates as the module describes them, written down again in Python: `tools/epoch_order.py`.
#[test]
fn orders_are_those_of_another_program() {
    let order =
        |rows, seed, epoch| Epoch::new(rows, batch(rows), seed, epoch, Shuffle::Rows).flatten().collect::<Vec<_>>();
    assert_eq!(order(10, 0, 0), ORDER_0_0);
    assert_eq!(order(10, 0, 1), ORDER_0_1);
    assert_eq!(order(7, 12345, 1 << 40), ORDER_FAR);
}

const ORDER_0_0: [usize; 10] = [6, 9, 2, 0, 8, 5, 3, 7, 4, 1];
const ORDER_0_1: [usize; 10] = [9, 8, 7, 5, 2, 3, 1, 6, 4, 0];
const ORDER_FAR: [usize; 7] = [6, 1, 3, 0, 2, 5, 4];

#[test]
fn an_epoch_takes_every_row_once_and_resumes_anywhere() {
    for (rows, size) in [(1, 1), (1, 4), (5, 2), (6, 3), (64, 64), (65, 64), (100, 7)] {
        let epoch = Epoch::new(rows, batch(size), 3, 9, Shuffle::Rows);
        assert_eq!(epoch.batches(), rows.div_ceil(size));
        let batches: Vec<Vec<usize>> = epoch.clone().collect();
        assert_eq!(batches.len(), epoch.len());
        assert!(batches.iter().rev().skip(1).all(|b| b.len() == size), "only the last is smaller");
        let mut all = batches.concat();
        all.sort();
        assert_eq!(all, (0..rows).collect::<Vec<_>>());
        for k in 0..=batches.len() {
            assert_eq!(epoch.clone().from_batch(k as u64).collect::<Vec<_>>(), batches[k..]);
        }
    }
    let plain: Vec<Vec<usize>> = Epoch::new(5, batch(2), 3, 9, Shuffle::Off).collect();
    assert_eq!(plain, [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(Epoch::new(5, batch(2), 3, 9, Shuffle::Off).from_batch(u64::MAX).count(), 0);
}

#[test]
fn batches_are_converted_rows() {
    let arrays = [
        ("pixels", ints(DType::U8, &[4, 2], &[0, 1, 2, 3, 250, 5, 6, 255])),
        ("y0", ints(DType::I32, &[4], &[3, 1, 4, 1])),
        ("y1", Array::from_f64([4, 1], &[0.1, 0.2, 0.3, 0.4])),
        ("sample_weight1", ints(DType::I64, &[4], &[1, 2, 3, 4])),
        ("left", Array::from_f32([1], &[0.0])),
    ];
    let (_dir, paths) = npz(&arrays);
    let inputs = [port("pixels", 0, DType::F32, &[2])];
    let outputs = [port("a", 0, DType::F32, &[5]), port("b", 1, DType::F16, &[1])];
    let data = Data::open(&paths, &inputs, &outputs).expect("data that fit");
    assert_eq!((data.rows(), data.unused()), (4, &["left".to_string()][..]));
    assert_eq!(data.label_rows(), [Type::new(DType::I32, []), Type::new(DType::F32, [1])]);
    assert_eq!(data.weight_rows(), [None, Some(Type::new(DType::F32, []))]);
    let got = data.gather(&[2, 0]).expect("rows that are there");
    assert_eq!(got.inputs, [Tensor::from_f32([2, 2], &[250.0, 5.0, 0.0, 1.0])]);
    assert_eq!(got.labels, [Tensor::from_f64(DType::I32, [2], &[4.0, 3.0]), Tensor::from_f32([2, 1], &[0.3, 0.1])]);
    assert_eq!(got.weights, [None, Some(Tensor::from_f32([2], &[3.0, 1.0]))]);
}

#[test]
fn a_fraction_at_the_end_validates_as_in_keras() {
    let rows = |n: i64| ints(DType::I32, &[n as usize, 1], &(0..n).collect::<Vec<_>>());
    let (_dir, paths) = npz(&[("x", rows(10)), ("y0", rows(10))]);
    let data = Data::open(&paths, &[port("x", 0, DType::F32, &[1])], &[port("o", 0, DType::F32, &[1])]);
    let data = data.expect("data that fit");
    // int(math.floor(10 * (1.0 - f))), computed with Python: 0.9 leaves nothing to train on.
    for (fraction, at) in [(0.1, 9), (0.2, 8), (0.3, 7), (0.25, 7), (0.8, 1), (0.7, 3), (0.15, 8)] {
        let (train, validate) = data.split(fraction).expect("a fraction that leaves rows");
        assert_eq!((train.rows(), validate.rows()), (at, 10 - at), "{fraction}");
        let last = validate.gather(&[0]).expect("a row");
        assert_eq!(last.labels[0].to_f64(), [at as f64]);
        assert_eq!(train.split(0.5).map(|(a, _)| a.rows()).unwrap_or(0), at / 2);
    }
    for fraction in [0.0, 1.0, -0.5, f64::NAN, 0.9, 0.95, 1e-17] {
        assert!(data.split(fraction).is_err(), "{fraction}");
    }
}

#[test]
fn inputs_and_labels_go_by_the_first_rule_that_fits() {
    let one = |v: i64| ints(DType::I32, &[2], &[v, v]);
    let take = |names: &[&str], inputs: &[Port], outputs: &[Port]| -> Vec<f64> {
        let arrays: Vec<(&str, Array)> = names.iter().enumerate().map(|(i, name)| (*name, one(i as i64))).collect();
        let (_dir, paths) = npz(&arrays);
        let got = Data::open(&paths, inputs, outputs).expect("data that fit").gather(&[0]).expect("a row");
        got.inputs.iter().chain(&got.labels).map(|t| t.get(0).to_f64()).collect()
    };
    let two = [port("a", 0, DType::F32, &[]), port("b", 2, DType::F32, &[])];
    let out = [port("a", 1, DType::F32, &[])];
    assert_eq!(take(&["y1", "b", "a", "in0", "in2"], &two, &out), [2.0, 1.0, 0.0]);
    assert_eq!(take(&["in2", "in0", "in1", "a", "x0"], &two, &out), [1.0, 0.0, 3.0]);
    assert_eq!(take(&["x2", "x0", "a"], &two, &out), [1.0, 0.0, 2.0]);
    assert_eq!(take(&["first", "sample_weight", "second", "y1"], &two, &out), [0.0, 2.0, 3.0]);
}

#[test]
fn weights_of_classes_are_weights_of_samples() {
    let inputs = [port("x", 0, DType::F32, &[])];
    let outputs = [port("o", 0, DType::F64, &[3])];
    let x = Array::from_f32([4], &[0.0; 4]);
    // keras.src.trainers.data_adapters.data_adapter_utils.class_weight_to_sample_weights of these labels.
    let cases = [
        (ints(DType::I32, &[4], &[0, 2, 1, 7]), [0.5, 3.0, 1.0, 1.0]),
        (Array::from_f64([4, 1], &[0.5, 1.5, 2.2, -0.4]), [0.5, 3.0, 3.0, 0.5]),
        (Array::from_f32([4, 2], &[0.1, 0.9, 0.9, 0.1, 0.5, 0.5, 0.0, 0.0]), [1.0, 0.5, 0.5, 0.5]),
    ];
    for (labels, want) in cases {
        let (_dir, paths) = npz(&[("x", x.clone()), ("y0", labels)]);
        let data = Data::open(&paths, &inputs, &outputs).expect("data that fit");
        let data = data.weigh_classes(BTreeMap::from([(0, 0.5), (2, 3.0)])).expect("labels of classes");
        assert_eq!(data.weight_rows(), [Some(Type::new(DType::F64, []))]);
        let got = data.gather(&[0, 1, 2, 3]).expect("rows that are there");
        assert_eq!(got.weights, [Some(Tensor::from_f64(DType::F64, [4], &want))]);
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let inputs = [port("x", 0, DType::F32, &[2])];
    let outputs = [port("o", 0, DType::F32, &[1])];
    let x = || Array::from_f32([3, 2], &[0.0; 6]);
    let y = |n: usize| Array::from_f32([n, 1], &vec![0.0; n]);
    let message = refused(&[("x", x()), ("y0", y(4))], &inputs, &outputs);
    assert_eq!(message, "`y0` has 4 rows, `x` has 3; all arrays must have as many");
    let message = refused(&[("x", x()), ("labels", y(3))], &inputs, &outputs);
    assert_eq!(message, "the arrays x, labels do not fit the labels o; name them so, or y0, y1, …");
    let message = refused(&[("x", Array::from_f32([3, 3], &[0.0; 9])), ("y0", y(3))], &inputs, &outputs);
    assert_eq!(message, "a row of `x` has the shape [3]; the input `x` takes [2]");
    let message = refused(&[("x", Array::from_f32([0, 2], &[])), ("y0", y(0))], &inputs, &outputs);
    assert_eq!(message, "`x` has no rows");
    let weights = [("x", x()), ("y0", y(3)), ("sample_weight", y(3)), ("sample_weight0", y(3))];
    assert!(refused(&weights, &inputs, &outputs).contains("give weights of one kind"));

    let (_dir, paths) = npz(&[("x", ints(DType::I32, &[2, 2], &[0, 1, 2, (1 << 24) + 1])), ("y0", y(2))]);
    let data = Data::open(&paths, &inputs, &outputs).expect("shapes fit");
    assert!(data.gather(&[0]).is_ok());
    let message = data.gather(&[0, 1]).expect_err("f32 has no such number").to_string();
    assert_eq!(message, "`x`, row 1: 16777217 is not a f32, which the model takes");
}

#[test]
fn files_of_any_layout_give_the_same_rows() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/data");
    let inputs = [port("x", 0, DType::F32, &[2, 3]), port("ids", 1, DType::I32, &[])];
    let outputs = [port("o", 0, DType::F32, &[])];
    let want = |r: usize| -> Vec<f64> { (0..6).map(|i| (r * 6 + i) as f64 - 7.0).collect() };
    for file in ["stored.npz", "deflated.npz", "columns.npz", "folder"] {
        let data = Data::open(&[data.join(file)], &inputs, &outputs).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(data.rows(), 5);
        let got = data.gather(&[4, 1, 1]).unwrap_or_else(|e| panic!("{file}: {e}"));
        assert_eq!(got.inputs[0].to_f64(), [want(4), want(1), want(1)].concat(), "{file}");
        assert_eq!(got.inputs[1].to_f64(), [65535.0, 1.0, 1.0], "{file}");
        assert_eq!(got.labels[0].ty.dtype, DType::U8);
        assert_eq!(got.labels[0].to_f64(), [8.0, 2.0, 2.0], "{file}");
    }
}
