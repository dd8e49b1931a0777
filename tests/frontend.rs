//! Model and weight files: what is read from them, and what is said of those that cannot be read.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use std::path::{Path, PathBuf};

use intwain::arrays::{Array, ArrayErrorKind, DType, FileBytes, Npz, read_npy, write_npz};
use intwain::frontend::{
    Arg, ImportErrorKind, ImportErrors, ImportOptions, Initializer, KerasModel, LayerBody, ModelFile, Slot, Source,
    VarSpec, VarTree, Weights, import, open_model, open_model_bytes, open_weights,
};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/keras").join(name)
}

fn read(name: &str) -> (ModelFile, KerasModel) {
    let file = open_model(&fixture(name)).unwrap();
    let model = KerasModel::read(&file).unwrap();
    (file, model)
}

fn text(json: &str) -> Result<KerasModel, ImportErrors> {
    let bytes = FileBytes::from(json.as_bytes().to_vec());
    open_model_bytes(Path::new("model.json"), bytes).and_then(|file| KerasModel::read(&file))
}

fn names(model: &KerasModel, sources: &[Source]) -> Vec<String> {
    sources.iter().map(|s| format!("{}:{}:{}", model.layer(*s).name, s.call, s.tensor)).collect()
}

/// What each call takes, by name.
fn wires(model: &KerasModel) -> Vec<String> {
    let call = |c: &intwain::frontend::Call| {
        let tensors: Vec<Source> = c.args.iter().chain(c.kwargs.values()).flat_map(Arg::tensors).collect();
        format!("{}:{} <- {}", model.layers[c.layer].name, c.call, names(model, &tensors).join(" "))
    };
    model.calls.iter().map(call).collect()
}

#[test]
fn nested_models_called_twice_resolve_in_every_format() {
    for name in ["nested3.json", "nested3.keras", "nested3.h5"] {
        let (_, model) = read(name);
        // Inputs and outputs are dictionaries: by sorted key, left before right and a before z.
        assert_eq!(names(&model, &model.inputs), ["b_left:0:0", "a_right:0:0"], "{name}");
        assert_eq!(names(&model, &model.outputs), ["inner:1:1", "out_z:0:0"], "{name}");
        let mut wires = wires(&model);
        wires.sort();
        assert_eq!(
            wires,
            [
                "add:0 <- inner:0:0 inner:1:0",
                "concatenate:0 <- seq:0:0 inner:0:1 inner:1:1 seq:1:0",
                "inner:0 <- shared:0:0",
                "inner:1 <- shared:1:0",
                "out_z:0 <- concatenate:0:0",
                "seq:0 <- add:0:0",
                "seq:1 <- inner:0:0",
                "shared:0 <- b_left:0:0",
                "shared:1 <- a_right:0:0",
            ],
            "{name}"
        );
        let inner = model.layers.iter().find_map(|l| match &l.body {
            LayerBody::Model(inner) if l.name == "inner" => Some(inner),
            _ => None,
        });
        let inner = inner.unwrap();
        assert_eq!(inner.path, "inner");
        assert_eq!(inner.layers[1].path, "inner/hidden");
        assert_eq!(names(inner, &inner.outputs), ["norm:0:0", "tail:0:0"]);
    }
}

#[test]
fn keras_2_nodes_have_the_same_form() {
    for name in ["mixed2.json", "mixed2.keras", "mixed2.h5"] {
        let (_, model) = read(name);
        let wires = wires(&model);
        for expected in [
            "inner:0 <- first:0:0",
            "inner:1 <- activation:0:0",
            "add:0 <- inner:0:0 inner:1:0",
            "multi_head_attention:0 <- time_distributed:0:0 time_distributed:0:0",
            "tf.math.multiply:0 <- multi_head_attention:0:0",
        ] {
            assert!(wires.iter().any(|w| w == expected), "{name}: {expected} not in {wires:#?}");
        }
        let multiply = model.calls.iter().find(|c| model.layers[c.layer].name == "tf.math.multiply").unwrap();
        assert!(matches!(&multiply.kwargs["y"], Arg::Const(json) if *json == intwain::frontend::Json::Float(2.0)));
    }
}

/// The variables of `nested3`, as the layers' import functions would declare them.
fn nested_tree(outer_of_seq_trains: bool) -> VarTree {
    let var = |path: &str, shape: &[usize], trainable| VarSpec {
        path: path.to_string(),
        shape: shape.to_vec(),
        dtype: DType::F32,
        initializer: Initializer::ZEROS,
        trainable,
        regularizer: None,
        constraint: None,
    };
    let dense = |path: &str, i, o| {
        let vars = vec![var(&format!("{path}/kernel"), &[i, o], true), var(&format!("{path}/bias"), &[o], true)];
        VarTree::leaf("Dense", path, true, vars)
    };
    let norm = |path: &str, n: usize| {
        let parts = [("gamma", true), ("beta", true), ("moving_mean", false), ("moving_variance", false)];
        let vars = parts.map(|(name, trains)| var(&format!("{path}/{name}"), &[n], trains)).to_vec();
        VarTree::leaf("BatchNormalization", path, true, vars)
    };
    let none = |class: &str, path: &str| VarTree::leaf(class, path, true, vec![]);
    let model = |class: &str, path: &str, trainable, parts| VarTree {
        slot: Slot::Listed("layers"),
        class: class.to_string(),
        path: path.to_string(),
        trainable,
        vars: vec![],
        repeated: 0,
        channels: Default::default(),
        factors: 0,
        parts,
    };
    let inner = vec![
        none("InputLayer", "inner/i"),
        dense("inner/hidden", 5, 6),
        norm("inner/norm", 6),
        dense("inner/tail", 6, 2),
    ];
    let seq = vec![
        dense("seq/first", 6, 3),
        none("Dropout", "seq/dropout"),
        norm("seq/batch_normalization", 3),
        dense("seq/second", 3, 3),
    ];
    let parts = vec![
        none("InputLayer", "b_left"),
        none("InputLayer", "a_right"),
        dense("shared", 4, 5),
        model("Functional", "inner", true, inner),
        none("Add", "add"),
        model("Sequential", "seq", outer_of_seq_trains, seq),
        none("Concatenate", "concatenate"),
        dense("out_z", 10, 2),
    ];
    model("Functional", "", true, parts)
}

#[test]
fn every_naming_of_weights_gives_keras_values() {
    let expected = Npz::open(&fixture("nested3_paths.npz")).unwrap();
    for name in ["nested3.keras", "nested3.h5", "nested3.weights.h5", "nested3_paths.npz", "shards/m.weights.json"] {
        let weights = Weights::new(&nested_tree(true), Some(open_weights(&fixture(name)).unwrap()), 0).unwrap();
        assert_eq!(weights.specs().len(), expected.names().count());
        for (i, spec) in weights.specs().iter().enumerate() {
            let want = expected.read(&spec.path).unwrap();
            assert_eq!(weights.read(i).unwrap().bytes(), want.bytes(), "{name}: {}", spec.path);
            let part = weights.read_rows(i, 1, spec.shape[0]).unwrap();
            assert_eq!(part.bytes(), want.rows(1, spec.shape[0]).unwrap().bytes(), "{name}: {}", spec.path);
        }
    }
}

#[test]
fn missing_and_left_over_weights_are_all_named() {
    let mut tree = nested_tree(true);
    tree.parts[2].vars[0].shape = vec![4, 6];
    tree.parts[7].vars[1].path = "out_z/offset".to_string();
    let source = || Some(open_weights(&fixture("nested3_paths.npz")).unwrap());
    let problems = Weights::new(&tree, source(), 0).unwrap_err();
    let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        messages,
        [
            "$: the weights do not hold `out_z/offset`",
            "$: the weights hold `out_z/bias`, which the model does not have",
        ]
    );
    tree.parts[7].vars[1].path = "out_z/bias".to_string();
    let problems = Weights::new(&tree, source(), 0).unwrap_err();
    assert_eq!(
        problems[0].to_string(),
        "$ \"shared\": the weight `shared/kernel` has the shape [4, 6], the file holds [4, 5] under `shared/kernel`"
    );
    tree.parts[7].vars.pop();
    for (name, expected) in [
        ("nested3.weights.h5", "the weights hold `layers/dense_1/vars/1`, which the model does not have"),
        ("nested3.h5", "has 1 weight(s), the file holds 2 under `model_weights/out_z`"),
    ] {
        let problems = Weights::new(&tree, Some(open_weights(&fixture(name)).unwrap()), 0).unwrap_err();
        assert!(problems[0].to_string().ends_with(expected), "{name}: {}", problems[0]);
    }
}

const INPUT: &str = r#"{"class_name": "InputLayer", "name": "x", "config": {"batch_shape": [null, 4], "dtype": "float32", "name": "x"}, "inbound_nodes": []}"#;

/// A Functional model of Keras 2 with these layers behind the input `x`.
fn functional(layers: &[(&str, &str)], output: &str) -> String {
    let layer = |(name, inbound): &(&str, &str)| {
        format!(
            r#"{{"class_name": "Dense", "name": "{name}", "config": {{"units": 4}}, "inbound_nodes": [{inbound}]}}"#
        )
    };
    let layers: Vec<String> = std::iter::once(INPUT.to_string()).chain(layers.iter().map(layer)).collect();
    format!(
        r#"{{"class_name": "Functional", "keras_version": "2.9.0", "config": {{"name": "m", "layers": [{}],
            "input_layers": [["x", 0, 0]], "output_layers": [["{output}", 0, 0]]}}}}"#,
        layers.join(", ")
    )
}

#[test]
fn wrong_wiring_is_an_error_that_names_it() {
    assert!(text(&functional(&[("a", r#"[["x", 0, 0, {}]]"#)], "a")).is_ok());
    let cases = [
        (
            functional(&[("a", r#"[["b", 0, 0, {}]]"#), ("b", r#"[["a", 0, 0, {}]]"#)], "b"),
            r#"$.config.layers[1].inbound_nodes[0] "a": the layers b → a → b feed each other in a cycle"#,
        ),
        (
            functional(&[("dense", r#"[["x", 0, 0, {}]]"#), ("b", r#"[["dence", 0, 0, {}]]"#)], "b"),
            r#"$.config.layers[2].inbound_nodes[0][0] "b": refers to a layer `dence` that the model does not have"#,
        ),
        (
            functional(&[("a", r#"[["x", 0, 0, {}]]"#), ("b", r#"[["a", 3, 0, {}]]"#)], "b"),
            r#"$.config.layers[2].inbound_nodes[0][0] "b": refers to call 3 of layer `a`, which is called 1 time(s)"#,
        ),
        (
            functional(&[("a", r#"[["x", 0, 0, {}]]"#), ("a", r#"[["a", 0, 0, {}]]"#)], "a"),
            r#"$.config.layers[2]: two layers of the model are called `a`"#,
        ),
    ];
    for (json, expected) in cases {
        assert_eq!(text(&json).unwrap_err().problems[0].to_string(), expected);
    }
    let dangling = text(&functional(&[("a", r#"[["x", 0, 0, {}]]"#)], "aa")).unwrap_err();
    assert_eq!(dangling.problems[0].help().as_deref(), Some("did you mean `a`?"));
}

#[test]
fn files_that_are_no_models_say_what_they_are() {
    let deep = format!(r#"{{"class_name": "Sequential", "config": {}{}}}"#, "[".repeat(10_000), "]".repeat(10_000));
    let cases = [
        (deep.as_str(), "$: is nested more than 200 levels deep"),
        ("<!DOCTYPE html><html></html>", "$: is not a Keras model: it is an HTML or XML page"),
        (r#"{"class_name": "Sequential", "config": [}"#, "$: is not valid JSON: expected value at line 1 column 41"),
        (
            r#"{"class_name": "Sequential", "class_name": "Model"}"#,
            "$: is not valid JSON: the key `class_name` stands twice in one object at line 1 column 42",
        ),
        (
            r#"{"modelTopology": {}}"#,
            "$: is not a Keras model: its `modelTopology` has neither `class_name` nor `model_config`",
        ),
        (
            r#"{"format": "graph-model", "modelTopology": {"node": []}}"#,
            "$: is not a Keras model: it is a TensorFlow.js graph model, whose operations are TensorFlow's and not Keras layers",
        ),
        (
            r#"{"class_name": "Sequential", "keras_version": "1.2.2", "config": []}"#,
            "$.config: is not a Keras model: it has no layers",
        ),
        (r#"{"class_name": "Sequential", "config": []}"#, "$.config: is not a Keras model: it has no layers"),
        (r#"{"class_name": "Sequential", "config": NaN}"#, "$.config: is NaN; expected an object"),
        (
            r#"{"class_name": "MyNet", "config": {}}"#,
            "$.class_name: `MyNet` is the model's own code, which is never run",
        ),
        (
            r#"{"class_name": "Sequential", "config": {"layers": [{"class_name": "InputLayer", "config": {"batch_shape": [null, 1048576, 1048576]}}]}}"#,
            "$.config.layers[0].config.batch_shape \"input_layer_1\": the shape [null, 1048576, 1048576] has more than 17179869184 elements",
        ),
        (
            r#"{"class_name": "Sequential", "config": {"layers": [{"class_name": "InputLayer", "config": {"batch_shape": [null, 3], "sparze": true}}]}}"#,
            "$.config.layers[0].config.sparze \"input_layer_1\": the key `sparze` is not known here",
        ),
    ];
    for (json, expected) in cases {
        let error = text(json).unwrap_err();
        let first = error.problems[0].to_string();
        assert_eq!(first.split(" at line").next(), expected.split(" at line").next());
    }
}

/// Every prefix of a file, and the file with bytes changed, is read or refused; it never panics.
#[test]
fn damaged_files_are_errors() {
    for name in ["nested3.keras", "nested3.h5", "nested3.json", "orders.npz"] {
        let bytes = std::fs::read(fixture(name)).unwrap();
        let try_all = |bytes: Vec<u8>| {
            let path = Path::new("damaged");
            if let Ok(npz) = Npz::from_bytes(path, bytes.clone().into()) {
                npz.names().for_each(|name| drop(npz.read(name)));
            }
            if let Ok(file) = open_model_bytes(path, bytes.into()) {
                let _ = KerasModel::read(&file);
                if let Some(source) = file.weights {
                    let _ = Weights::new(&nested_tree(true), Some(source), 0)
                        .map(|w| (0..w.specs().len()).for_each(|i| drop(w.read(i))));
                }
            }
        };
        for cut in [0, 1, 7, 8, 9, 100, 511, 1000, 4096, bytes.len() / 2, bytes.len() - 100, bytes.len() - 1] {
            try_all(bytes[..cut.min(bytes.len())].to_vec());
        }
        let step = (bytes.len() / 60).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            try_all(changed);
        }
    }
    let truncated = std::fs::read(fixture("nested3.h5")).unwrap()[..2000].to_vec();
    let error = open_model_bytes(Path::new("m.h5"), truncated.into()).unwrap_err();
    assert!(
        matches!(*error.problems[0].kind, ImportErrorKind::Array(_) | ImportErrorKind::NotAModel { .. }),
        "{error}"
    );
    let truncated = std::fs::read(fixture("nested3.keras")).unwrap()[..2000].to_vec();
    let error = open_model_bytes(Path::new("m.keras"), truncated.into()).unwrap_err();
    assert!(matches!(*error.problems[0].kind, ImportErrorKind::Damaged { .. }), "{error}");
}

#[test]
fn numpy_arrays_are_read_as_numpy_reads_them() {
    let npz = Npz::open(&fixture("orders.npz")).unwrap();
    let ramp: Vec<f64> = (0..24).map(f64::from).collect();
    for (name, dtype, shape, values) in [
        ("c", DType::F32, vec![2, 3, 4], ramp.clone()),
        ("f", DType::F64, vec![2, 3, 4], ramp),
        ("big", DType::I32, vec![2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
        ("u16", DType::I32, vec![2], vec![1.0, 65535.0]),
        ("u64", DType::I64, vec![2], vec![1.0, 1_099_511_627_776.0]),
        ("half", DType::F16, vec![2], vec![1.5, -2.0]),
        ("flag", DType::Bool, vec![3], vec![1.0, 0.0, 1.0]),
        ("scalar", DType::F32, vec![], vec![3.5]),
        ("empty", DType::F32, vec![0, 3], vec![]),
    ] {
        let array = npz.read(name).unwrap();
        assert_eq!((array.dtype(), array.shape(), array.to_f64()), (dtype, shape.as_slice(), values), "{name}");
    }
    assert_eq!(npz.skipped().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["names"]);
    let deflated = Npz::open(&fixture("deflated.npz")).unwrap();
    assert_eq!(deflated.read("ramp").unwrap().to_f64()[999], 999.0);
    assert_eq!(deflated.skipped().len(), 1);
    assert!(matches!(deflated.read("objects").unwrap_err().kind, ArrayErrorKind::Missing));
}

#[test]
fn what_is_written_is_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.npz");
    let a = Array::from_f32([2, 3], &[0.0, -0.0, f32::NAN, f32::INFINITY, 1e-45, 3.5]);
    let b = Array::from_f64([], &[2.5]);
    let c = Array::from_f32([2], &[1.0, 2.0]).cast(DType::BF16);
    write_npz(&path, [("a", &a), ("b", &b), ("c", &c)]).unwrap();
    let back = Npz::open(&path).unwrap();
    assert_eq!(back.names().collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(back.read("a").unwrap().bytes(), a.bytes());
    assert_eq!(back.read("b").unwrap().shape(), [0usize; 0]);
    assert_eq!((back.read("c").unwrap().dtype(), back.read("c").unwrap().to_f64()), (DType::F32, vec![1.0, 2.0]));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no partial file is left");
    let missing = write_npz(&dir.path().join("no/such/dir.npz"), [("a", &a)]).unwrap_err();
    assert!(matches!(missing.kind, ArrayErrorKind::Io(_)));
}

#[test]
fn a_shape_that_promises_too_much_takes_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("huge.npy");
    let mut header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 1024), }".to_string();
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend([0; 64]);
    std::fs::write(&path, bytes).unwrap();
    let error = read_npy(&path).unwrap_err();
    assert!(matches!(error.kind, ArrayErrorKind::Short { present: 64, .. }), "{error}");
    let mut tree = nested_tree(true);
    tree.parts[2].vars[0].shape = vec![1 << 40, 5];
    let weights = Weights::new(&tree, None, 0).unwrap();
    let error = weights.read(0).unwrap_err().to_string();
    assert!(error.contains("do not fit in memory"), "{error}");
}

fn tensor(array: &Array) -> intwain_ir::Tensor {
    let ty = intwain_ir::Type::new(array.dtype(), array.shape());
    intwain_ir::Tensor::from_bytes(ty, array.bytes().to_vec()).unwrap()
}

/// Whole-model files of tf-keras 2.21 with the outputs it computed: recurrent layers under masks, nested and frozen models,
/// convolutions of every kind, bare TensorFlow operations.
#[test]
fn keras_2_models_compute_what_keras_computes() {
    for name in ["rnn", "nest", "conv", "ops"] {
        let path = fixture(&format!("{name}.h5"));
        let file = open_model(&path).unwrap();
        let model = KerasModel::read(&file).unwrap();
        let options = ImportOptions { batch: 3, ..ImportOptions::default() };
        let imported = import(&model, &path, &options).unwrap();
        intwain_ir::verify(&imported.graph).unwrap();
        let inputs = Npz::open(&fixture(&format!("{name}_in.npz"))).unwrap();
        let weights = Weights::new(&imported.vars, file.weights, 0).unwrap();
        let inputs = imported.graph.inputs().map(|p| tensor(&inputs.read(&p.name).unwrap()));
        let args = inputs.chain((0..weights.specs().len()).map(|i| tensor(&weights.read(i).unwrap()))).collect();
        let outputs = intwain_ir::interp::run(&imported.graph, args).unwrap();
        let expected = Npz::open(&fixture(&format!("{name}_out.npz"))).unwrap();
        assert_eq!(outputs.len(), expected.names().count());
        for (i, output) in outputs.iter().enumerate() {
            let want = expected.read(&format!("out{i}")).unwrap();
            assert_eq!(want.shape(), &output.ty.shape[..], "{name} {i}");
            let scale = want.to_f64().iter().fold(0.0f64, |m, x| m.max(x.abs()));
            for (a, b) in output.to_f64().iter().zip(want.to_f64()) {
                assert!((a - b).abs() <= 2e-6 * scale, "{name} {i}: {a} and {b} at scale {scale}");
            }
        }
    }
}

/// All that is wrong with the layers of a model comes together.
#[test]
fn layers_that_cannot_be_imported_are_all_listed() {
    let layer = |class: &str, config: &str| format!(r#"{{"class_name": "{class}", "config": {{{config}}}}}"#);
    let report = |layers: &[String]| {
        let json = format!(
            r#"{{"class_name": "Sequential", "keras_version": "2.9.0", "config": {{"name": "m", "layers": [
                {{"class_name": "InputLayer", "config": {{"batch_input_shape": [null, 4], "name": "x"}}}}, {}]}}}}"#,
            layers.join(", ")
        );
        let model = text(&json).unwrap();
        let error = import(&model, Path::new("m.json"), &ImportOptions { batch: 2, ..Default::default() }).unwrap_err();
        error.to_string()
    };
    let unknown = report(&[
        layer("Dens", r#""name": "a", "units": 3"#),
        layer("Dense", r#""name": "b", "units": 3"#),
        layer("MyOwnThing", r#""name": "c""#),
    ]);
    assert_eq!(
        unknown,
        "m.json: $.config.layers[1].config \"a\": `Dens` is no layer of Keras; a model's own code is never run\n  \
         help: did you mean `Dense`?\n\
         m.json: $.config.layers[3].config \"c\": `MyOwnThing` is no layer of Keras; a model's own code is never run\n  \
         help: replace it by built-in layers, or save the model with it expanded\n\
         m.json: classes that are not imported: `Dens`, `MyOwnThing`"
    );
    let keys = report(&[layer("Dense", r#""name": "a", "units": 3, "activaton": "relu""#)]);
    assert_eq!(
        keys,
        "m.json: $.config.layers[1].config.activaton \"a\": the key `activaton` is not known here\n  \
         help: did you mean `activation`?"
    );
    let values = report(&[layer("Dense", r#""name": "a", "units": NaN"#)]);
    assert_eq!(values, "m.json: $.config.layers[1].config.units \"a\": is NaN; expected an integer from 1 to 2^29");
    let shapes = report(&[layer("Conv2D", r#""name": "a", "filters": 3, "kernel_size": 3"#)]);
    assert_eq!(
        shapes,
        "m.json: $.config.layers[1].config \"a\": takes a tensor of rank 4, its input has the shape [2, 4]"
    );
    let large = report(&[
        layer("RepeatVector", r#""name": "a", "n": 536870912"#),
        layer("UpSampling1D", r#""name": "b", "size": 536870912"#),
    ]);
    assert_eq!(
        large,
        "m.json: $.config.layers[2].config \"b\": broadcast: f32[2, 536870912, 536870912, 4] has too many elements"
    );
    let larger = report(&[layer("Dense", r#""name": "a", "units": 1099511627776"#)]);
    assert_eq!(
        larger,
        "m.json: $.config.layers[1].config.units \"a\": is 1099511627776; expected an integer from 1 to 2^29"
    );
    let policy = report(&[layer("Dense", r#""name": "a", "units": 3, "dtype": "int8_from_float32""#)]);
    assert_eq!(
        policy,
        "m.json: $.config.layers[1].config.dtype \"a\": the quantised dtype policy `int8_from_float32` is not supported\n  \
         help: save the model as it was before `quantize`, with its floating-point weights"
    );
}

/// A file written by h5py with every element type Keras may store, in both byte orders, contiguous and compressed.
#[test]
fn hdf5_tensors_of_every_type_are_read() {
    let source = open_weights(&fixture("kinds.h5")).unwrap();
    let wide = vec![1.5, -2.0, 0.15625, 3.0, 1e10, -0.0];
    let ramp = |step: f64| (0..6).map(|i| f64::from(i) * step).collect::<Vec<_>>();
    let bfloat = vec![1.5, -2.0, 0.15625, 3.0, 9_999_220_736.0, -0.0];
    for (name, dtype, values) in [
        ("f32", DType::F32, wide.clone()),
        ("f64", DType::F64, wide.clone()),
        ("big", DType::F32, wide),
        ("f16", DType::F16, vec![1.5, -2.0, 0.15625, 3.0, 6e4, -0.0]),
        ("bf16", DType::BF16, bfloat),
        ("i32", DType::I32, ramp(1.0)),
        ("i64", DType::I64, ramp(2f64.powi(40))),
        ("u8", DType::U8, ramp(1.0)),
        ("bool", DType::Bool, vec![1.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
    ] {
        let key = format!("layers/a/vars/{name}");
        assert_eq!((source.dtype(&key), source.shape(&key)), (Some(dtype), Some(vec![2, 3])), "{name}");
        assert_eq!(source.read(&key).unwrap().to_f64(), values, "{name}");
        assert_eq!(source.read_rows(&key, 1, 2).unwrap().to_f64(), values[3..], "{name}");
    }
    let packed = source.read("layers/a/vars/packed").unwrap();
    assert_eq!(packed.to_f64(), (0..6000).map(f64::from).collect::<Vec<_>>());
    let rows = source.read_rows("layers/a/vars/packed", 13, 29).unwrap();
    assert_eq!((rows.shape(), rows.bytes()), ([16usize, 100].as_slice(), packed.rows(13, 29).unwrap().bytes()));
    assert_eq!(source.read("layers/a/vars/scalar").unwrap().to_f64(), [2.5]);
    assert_eq!(source.shape("layers/a/vars/text"), None);
    assert!(matches!(source.read("layers/a/vars/text").unwrap_err().kind, ArrayErrorKind::Element { .. }));
    assert!(matches!(
        source.read_rows("layers/a/vars/f32", 1, 3).unwrap_err().kind,
        ArrayErrorKind::Rows { rows: 2, .. }
    ));
}

#[test]
fn safetensors_are_read_by_path() {
    let expected = Npz::open(&fixture("nested3_paths.npz")).unwrap();
    let arrays: Vec<(String, Array)> =
        expected.names().map(|name| (name.to_string(), expected.read(name).unwrap())).collect();
    let views = arrays.iter().map(|(name, array)| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, array.shape().to_vec(), array.bytes());
        (name.as_str(), view.unwrap())
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("w.safetensors");
    std::fs::write(&path, &bytes).unwrap();
    let weights = Weights::new(&nested_tree(true), Some(open_weights(&path).unwrap()), 0).unwrap();
    for (i, spec) in weights.specs().iter().enumerate() {
        assert_eq!(weights.read(i).unwrap().bytes(), expected.read(&spec.path).unwrap().bytes(), "{}", spec.path);
    }
    std::fs::write(&path, &bytes[..bytes.len() - 8]).unwrap();
    assert!(open_weights(&path).is_err());
}

/// Architectures with values exchanged at random are imported or refused; nothing panics, and no memory is taken for sizes
/// that a file only names.
#[test]
fn damaged_architectures_are_errors() {
    use serde_json::Value as J;
    fn places(v: &mut J, path: Vec<String>, out: &mut Vec<Vec<String>>) {
        match v {
            J::Array(items) => items.iter_mut().enumerate().for_each(|(i, x)| {
                places(x, path.iter().cloned().chain([i.to_string()]).collect(), out);
            }),
            J::Object(map) => map.iter_mut().for_each(|(k, x)| {
                let key = k.replace('~', "~0").replace('/', "~1");
                places(x, path.iter().cloned().chain([key]).collect(), out);
            }),
            _ => {}
        }
        out.push(path);
    }
    let values = [
        "null",
        "true",
        "0",
        "1",
        "-1",
        "3",
        "536870912",
        "1099511627776",
        "-9223372036854775808",
        "1e300",
        "\"x\"",
        "[]",
        "[0, 0]",
        "[2, 3]",
        "[536870912, 536870912]",
        "{}",
        "\"channels_first\"",
        "[[1, 2], [3, 4]]",
        "\"same\"",
        "[null, 4]",
    ];
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    let old = [
        "Graph_shared",
        "Merge_nested",
        "Sequential_0.3",
        "ConvLSTM2D_th",
        "Deconvolution2D_th",
        "Padding_th",
        "Steps",
    ];
    let old = old.map(|name| format!("../../goldens/keras1/{name}.json"));
    let newer = ["nested3.json", "mixed2.json", "rnn.h5", "conv.h5", "nest.h5", "ops.h5"].map(str::to_string);
    for name in newer.iter().chain(&old) {
        let json = match name.ends_with(".h5") {
            false => std::fs::read_to_string(fixture(name)).unwrap(),
            true => {
                let bytes = std::fs::read(fixture(name)).unwrap();
                let start = bytes.windows(15).position(|w| w == b"{\"class_name\": ").unwrap();
                let text = String::from_utf8_lossy(&bytes[start..]).into_owned();
                let mut stream = serde_json::Deserializer::from_str(&text).into_iter::<J>();
                stream.next().unwrap().unwrap().to_string()
            }
        };
        let original: J = serde_json::from_str(&json).unwrap();
        let mut all = Vec::new();
        places(&mut original.clone(), Vec::new(), &mut all);
        for _ in 0..150 {
            let mut changed = original.clone();
            for _ in 0..1 + random(2) {
                let pointer: String = all[random(all.len())].iter().map(|p| format!("/{p}")).collect();
                if let Some(place) = changed.pointer_mut(&pointer) {
                    *place = serde_json::from_str(values[random(values.len())]).unwrap();
                }
            }
            if let Ok(model) = text(&changed.to_string()) {
                let _ = import(&model, Path::new("m.json"), &ImportOptions { batch: 3, ..Default::default() });
            }
        }
    }
}

/// Two layers that do not exist, wrong and unknown keys before and behind them, a layer of the model's own: one report.
#[test]
fn all_problems_of_a_file_are_reported_together() {
    let layer = |class: &str, name: &str, config: &str, from: &str| {
        format!(
            r#"{{"class_name": "{class}", "name": "{name}", "config": {{"name": "{name}"{config}}},
                "inbound_nodes": [[["{from}", 0, 0, {{}}]]]}}"#
        )
    };
    let layers = [
        r#"{"class_name": "InputLayer", "name": "x", "config": {"batch_input_shape": [null, 8], "name": "x"}, "inbound_nodes": []}"#.to_string(),
        layer("Dense", "a", r#", "units": "many", "activation": "rellu", "use_bais": true"#, "x"),
        layer("Dens", "b", "", "a"),
        layer("BinaryDense", "c", "", "b"),
        layer("Dense", "d", r#", "units": 3, "activation": "sofmax""#, "c"),
        layer("StringLookup", "e", "", "d"),
    ];
    let json = format!(
        r#"{{"class_name": "Functional", "keras_version": "2.15.0", "config": {{"name": "m", "layers": [{}],
            "input_layers": [["x", 0, 0]], "output_layers": [["e", 0, 0]]}}}}"#,
        layers.join(",")
    );
    let model = text(&json).unwrap();
    let errors = import(&model, Path::new("m.json"), &ImportOptions { batch: 2, ..Default::default() }).unwrap_err();
    let all: Vec<String> = errors.problems.iter().map(ToString::to_string).collect();
    for said in [
        r#"$.config.layers[1].config.units "a": is "many"; expected"#,
        r#"$.config.layers[2].config "b": `Dens` is no layer of Keras"#,
        r#"$.config.layers[3].config "c": `BinaryDense` is no layer of Keras"#,
        r#"$.config.layers[4].config.activation "d": is "sofmax""#,
        r#"$.config.layers[5].config "e": layer class `StringLookup` is not supported: it works on strings"#,
    ] {
        assert_eq!(all.iter().filter(|p| p.starts_with(said)).count(), 1, "{said} in {all:#?}");
    }
    assert_eq!(errors.classes(), ["Dens", "BinaryDense", "StringLookup"]);
    assert_eq!(
        errors.problems[1].help().as_deref().filter(|h| h.contains("Dense")),
        errors.problems[1].help().as_deref()
    );
}

/// Every wrong key of one layer is found, not the first alone.
#[test]
fn all_problems_of_one_layer_are_reported_together() {
    let json = r#"{"class_name": "Sequential", "keras_version": "2.15.0", "config": {"name": "m", "layers": [
        {"class_name": "Conv1D", "config": {"name": "c", "batch_input_shape": [null, 9, 3], "filters": 4, "kernel_size": [2],
            "padding": "smae", "activation": "rellu", "data_format": "channels_lost", "strid": 1}}]}}"#;
    let model = text(json).unwrap();
    let errors = import(&model, Path::new("m.json"), &ImportOptions { batch: 2, ..Default::default() }).unwrap_err();
    let all: Vec<String> = errors.problems.iter().map(|p| p.path.to_string()).collect();
    for key in ["padding", "activation", "data_format", "strid"] {
        let path = format!("$.config.layers[0].config.{key}");
        assert_eq!(all.iter().filter(|p| **p == path).count(), 1, "{path} in {all:?}");
    }
}
