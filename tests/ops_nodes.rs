//! Bare operations of Keras 3, and TensorFlow's in models of tf.keras, against values of NumPy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{ImportOptions, KerasModel, import, open_model_bytes};
use intwain_ir::{ParamKind, Rows, Tensor, Type};

/// Reads a model, runs it on `x` of two rows and gives the output with its shape, and whether rows are kept apart.
fn run(json: &str, x: &[f64], shape: &[usize]) -> (Vec<usize>, Vec<f64>, bool) {
    let path = Path::new("model.json");
    let file = open_model_bytes(path, FileBytes::from(json.as_bytes().to_vec())).unwrap();
    let model = KerasModel::read(&file).unwrap();
    let options = ImportOptions { batch: shape[0], ..ImportOptions::default() };
    let imported = import(&model, path, &options).unwrap();
    intwain_ir::verify(&imported.graph).unwrap();
    let input = imported.graph.inputs().next().unwrap().value;
    let ty = Type::new(imported.graph.ty(input).dtype, shape);
    let x = Tensor::from_f64(ty.dtype, ty.shape, x);
    let apart = imported.graph.inputs().all(|p| matches!(p.kind, ParamKind::Input { rows: Rows::Batched }));
    let outputs = intwain_ir::interp::run(&imported.graph, vec![x]).unwrap();
    (outputs[0].ty.shape.to_vec(), outputs[0].to_f64(), apart)
}

fn input(shape: &str, dtype: &str) -> String {
    format!(
        r#"{{"module": "keras.layers", "class_name": "InputLayer", "name": "x", "inbound_nodes": [],
            "config": {{"batch_shape": {shape}, "batch_input_shape": {shape}, "dtype": "{dtype}", "name": "x"}}}}"#
    )
}

/// One operation of Keras 3 on `x: [2, 3]`.
fn operation(class: &str, config: &str, more: &str) -> (Vec<usize>, Vec<f64>, bool) {
    let json = model_of(class, config, more, "float32");
    run(&json, &[3.0, -1.0, 2.0, 0.5, 4.0, 4.0], &[2, 3])
}

/// A model of one operation on `x: [2, 3]`.
fn model_of(class: &str, config: &str, more: &str, dtype: &str) -> String {
    let tensor = format!(
        r#"{{"class_name": "__keras_tensor__", "config": {{"shape": [null, 3], "dtype": "{dtype}",
            "keras_history": ["x", 0, 0]}}}}"#
    );
    let input = input("[null, 3]", dtype);
    format!(
        r#"{{"module": "keras", "class_name": "Functional", "registered_name": null, "config": {{"name": "m",
            "layers": [{input}, {{"module": "keras.src.ops.numpy", "class_name": "{class}", "name": "op",
                "registered_name": "{class}", "config": {{"name": "op"{config}}},
                "inbound_nodes": [{{"args": [{tensor}{more}], "kwargs": {{}}}}]}}],
            "input_layers": [["x", 0, 0]], "output_layers": [["op", 0, 0]]}}}}"#
    )
}

/// `numpy.sort`, `cumsum`, `argmin` and others on `[[3, -1, 2], [.5, 4, 4]]`.
#[test]
fn operations_are_numpys() {
    let sorted = operation("Sort", r#", "axis": -1"#, "");
    assert_eq!(sorted, (vec![2, 3], vec![-1.0, 2.0, 3.0, 0.5, 4.0, 4.0], true));
    assert_eq!(operation("Argsort", r#", "axis": -1"#, "").1, [1.0, 2.0, 0.0, 0.0, 1.0, 2.0]);
    assert_eq!(operation("Cumsum", r#", "axis": 1, "dtype": null"#, "").1, [3.0, 2.0, 4.0, 0.5, 4.5, 8.5]);
    assert_eq!(operation("Cumprod", r#", "axis": 1, "dtype": null"#, "").1, [3.0, -3.0, -6.0, 0.5, 2.0, 8.0]);
    assert_eq!(operation("Argmin", r#", "axis": 1, "keepdims": false"#, "").1, [1.0, 0.0]);
    assert_eq!(operation("Median", r#", "axis": 1, "keepdims": false"#, "").1, [2.0, 4.0]);
    assert_eq!(operation("Take", r#", "axis": 1"#, ", [2, -3]").1, [2.0, 3.0, 4.0, 0.5]);
    assert_eq!(operation("Roll", r#", "shift": 1, "axis": 1"#, "").1, [2.0, 3.0, -1.0, 4.0, 0.5, 4.0]);
    assert_eq!(
        operation("Pad", r#", "pad_width": [[0, 0], [1, 0]], "mode": "reflect""#, "").1[..4],
        [-1.0, 3.0, -1.0, 2.0]
    );
    assert_eq!(operation("FloorDivide", "", ", 2").1, [1.0, -1.0, 1.0, 0.0, 2.0, 2.0]);
    assert_eq!(operation("Mod", "", ", 2").1, [1.0, 1.0, 0.0, 0.5, 0.0, 0.0]);
}

/// Statistics of 16-bit numbers whose sums are none, as Keras gives them: the mean and the variance are rounded once, a
/// deviation at every step, and moments are clipped.
#[test]
fn statistics_of_halves_are_kerass() {
    let x = [40000.0, 50000.0, 60000.0, 0.1, 0.2, 0.7];
    let axis = r#", "axis": 1, "keepdims": false"#;
    let axes = r#", "axes": [1], "keepdims": false, "synchronized": false"#;
    let got = |class: &str, config: &str, dtype: &str| run(&model_of(class, config, "", dtype), &x, &[2, 3]).1;
    assert_eq!(got("Mean", axis, "float16"), [49984.0, 0.33349609375]);
    assert_eq!(got("Var", axis, "float16"), [f64::INFINITY, 0.0689697265625]);
    // TensorFlow adds f16 in f16: one unit apart.
    let std = got("Std", axis, "float16");
    assert!(std[0] == f64::INFINITY && (std[1] - 0.262451171875).abs() <= 1.0 / 4096.0, "{std:?}");
    assert_eq!(got("Moments", axes, "float16"), [49984.0, 0.33349609375]);
    let second = |dtype: &str| {
        let json = model_of("Moments", axes, "", dtype).replace(r#"[["op", 0, 0]]"#, r#"[["op", 0, 1]]"#);
        run(&json, &x, &[2, 3]).1
    };
    assert_eq!(second("float16"), [65504.0, 0.0689697265625]);
    assert_eq!(second("bfloat16"), [65536.0, 0.06884765625]);
    assert_eq!(got("Mean", axis, "bfloat16"), [49920.0, 0.333984375]);
    assert_eq!(got("Var", axis, "bfloat16"), [66584576.0, 0.06884765625]);
    assert_eq!(got("Std", axis, "bfloat16"), [8128.0, 0.26171875]);
}

/// Sums over all rows do not keep them apart.
#[test]
fn rows_that_meet_are_whole() {
    assert!(!operation("Sum", r#", "axis": 0, "keepdims": false"#, "").2);
    assert!(operation("Sum", r#", "axis": 1, "keepdims": false"#, "").2);
}

/// TensorFlow's layers on `x: [2, 2, 3]`, the last of which is the output.
fn lambdas(layers: &[(&str, &str, &str)]) -> (Vec<usize>, Vec<f64>, bool) {
    let layer = |(name, function, inbound): &(&str, &str, &str)| {
        let class = if *function == "__operators__.getitem" { "SlicingOpLambda" } else { "TFOpLambda" };
        format!(
            r#"{{"class_name": "{class}", "name": "{name}", "inbound_nodes": [{inbound}],
                "config": {{"name": "{name}", "trainable": true, "dtype": "float32", "function": "{function}"}}}}"#
        )
    };
    let all: Vec<String> = std::iter::once(input("[null, 2, 3]", "float32")).chain(layers.iter().map(layer)).collect();
    let json = format!(
        r#"{{"class_name": "Functional", "keras_version": "2.9.0", "config": {{"name": "m", "layers": [{}],
            "input_layers": [["x", 0, 0]], "output_layers": [["{}", 0, 0]]}}}}"#,
        all.join(", "),
        layers.last().unwrap().0
    );
    let x: Vec<f64> = (0..12).map(f64::from).collect();
    run(&json, &x, &[2, 2, 3])
}

/// `tf.reshape(x, [tf.shape(x)[0], -1])`: extents are numbers at import, and the rows stay apart.
#[test]
fn extents_become_numbers() {
    let (shape, values, apart) = lambdas(&[
        ("s", "compat.v1.shape", r#"["x", 0, 0, {"name": null, "out_type": "int32"}]"#),
        ("n", "__operators__.getitem", r#"["s", 0, 0, {"slice_spec": 0}]"#),
        ("y", "reshape", r#"["x", 0, 0, {"shape": [["n", 0, 0], -1]}]"#),
    ]);
    assert_eq!(shape, [2, 6]);
    assert_eq!(values, (0..12).map(f64::from).collect::<Vec<_>>());
    assert!(apart);
}

/// Where the number of rows is a value, a call is never run in pieces.
#[test]
fn counted_rows_are_whole() {
    let (_, values, apart) = lambdas(&[
        ("s", "compat.v1.shape", r#"["x", 0, 0, {"name": null, "out_type": "int32"}]"#),
        ("n", "__operators__.getitem", r#"["s", 0, 0, {"slice_spec": 0}]"#),
        ("f", "cast", r#"["n", 0, 0, {"dtype": "float32"}]"#),
        ("y", "math.multiply", r#"["x", 0, 0, {"y": ["f", 0, 0], "name": null}]"#),
    ]);
    assert_eq!(values, (0..12).map(|i| f64::from(2 * i)).collect::<Vec<_>>());
    assert!(!apart);
}
