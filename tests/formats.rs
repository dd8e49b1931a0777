//! What files of every generation of Keras mean: references, dtypes, axes, shared layers, several outputs; Keras 0.3 and 1 against
//! Keras 3 models translated by hand (`tests/goldens/keras1`, made by `tools/keras1_twins.py --goldens`).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{
    Arg, Generation, ImportErrors, ImportOptions, Imported, Json, KerasModel, LayerBody, Weights, import, open_model,
    open_model_bytes, open_weights,
};
use intwain_ir::{DType, ParamKind, Tensor, Trainable, Type, interp, verify};
use support::{Elements, read_npz, repository};

const BATCH: usize = 2;

fn read(json: &str) -> Result<KerasModel, ImportErrors> {
    open_model_bytes(Path::new("model.json"), FileBytes::from(json.as_bytes().to_vec()))
        .and_then(|file| KerasModel::read(&file))
}

fn generation(json: &str) -> Generation {
    open_model_bytes(Path::new("model.json"), FileBytes::from(json.as_bytes().to_vec())).unwrap().generation
}

fn built(model: &KerasModel) -> Result<Imported, ImportErrors> {
    import(model, Path::new("model.json"), &ImportOptions { batch: BATCH, ..ImportOptions::default() })
}

fn imported(json: &str) -> Imported {
    let imported = read(json).and_then(|model| built(&model)).unwrap_or_else(|e| panic!("{e}\n{json}"));
    verify(&imported.graph).unwrap();
    imported
}

/// All problems of a document, as they are shown.
fn refused(json: &str) -> String {
    match read(json).and_then(|model| built(&model)) {
        Ok(_) => panic!("imports: {json}"),
        Err(errors) => errors.to_string(),
    }
}

fn weight(weights: &Weights, i: usize) -> Tensor {
    let array = weights.read(i).unwrap();
    Tensor::from_bytes(Type::new(array.dtype(), array.shape().to_vec()), array.bytes().to_vec()).unwrap()
}

/// Outputs for inputs of this many elements counted up from 1, weights as they are initialised.
fn outputs(json: &str) -> Vec<Vec<f64>> {
    let Imported { graph, vars, .. } = imported(json);
    let count = |ty: &Type| {
        Tensor::from_f32(ty.shape.clone(), &(1..=ty.shape.elements()).map(|i| i as f32).collect::<Vec<_>>())
    };
    let inputs = graph.inputs().map(|p| count(graph.ty(p.value)));
    let weights = Weights::new(&vars, None, 0).unwrap();
    let args = inputs.chain((0..weights.specs().len()).map(|i| weight(&weights, i))).collect();
    interp::run(&graph, args).unwrap().iter().map(Tensor::to_f64).collect()
}

fn paths(imported: &Imported) -> Vec<&str> {
    imported.vars.flatten().iter().map(|v| v.path.as_str()).collect()
}

/// A dense layer of Keras 3 whose kernel is this number everywhere.
fn dense(name: &str, units: usize, kernel: f64) -> String {
    let kernel = format!(r#"{{"class_name": "Constant", "config": {{"value": {kernel:?}}}}}"#);
    format!(
        r#""module": "keras.layers", "registered_name": null, "class_name": "Dense", "name": "{name}",
        "config": {{"name": "{name}", "units": {units}, "activation": "linear", "use_bias": false, "kernel_initializer": {kernel}}}"#
    )
}

/// A tensor of Keras 3.
fn tensor(layer: &str, node: usize) -> String {
    let history = format!(r#"["{layer}", {node}, 0]"#);
    format!(
        r#"{{"class_name": "__keras_tensor__", "config": {{"shape": [null, 3], "dtype": "float32", "keras_history": {history}}}}}"#
    )
}

fn input_3(name: &str) -> String {
    format!(
        r#"{{"module": "keras.layers", "class_name": "InputLayer", "config": {{"batch_shape": [null, 3], "dtype": "float32", "sparse": false,
        "name": "{name}"}}, "registered_name": null, "name": "{name}", "inbound_nodes": []}}"#
    )
}

/// A functional model of Keras 3.
fn functional_3(layers: &[String], inputs: &str, outputs: &str) -> String {
    format!(
        r#"{{"module": "keras.src.models.functional", "class_name": "Functional", "registered_name": "Functional", "config": {{"name": "f",
            "trainable": true, "layers": [{}], "input_layers": {inputs}, "output_layers": {outputs}}}}}"#,
        layers.join(", ")
    )
}

/// A functional model of Keras 2.
fn functional_2(layers: &[String], inputs: &str, outputs: &str) -> String {
    format!(
        r#"{{"class_name": "Functional", "keras_version": "2.9.0", "backend": "tensorflow", "config": {{"name": "f", "layers": [{}],
            "input_layers": {inputs}, "output_layers": {outputs}}}}}"#,
        layers.join(", ")
    )
}

fn input_2(name: &str) -> String {
    format!(
        r#"{{"class_name": "InputLayer", "config": {{"batch_input_shape": [null, 3], "dtype": "float32", "sparse": false, "ragged": false,
        "name": "{name}"}}, "name": "{name}", "inbound_nodes": []}}"#
    )
}

fn layer_2(class: &str, name: &str, config: &str, nodes: &str) -> String {
    format!(
        r#"{{"class_name": "{class}", "config": {{"name": "{name}"{}{config}}}, "name": "{name}", "inbound_nodes": {nodes}}}"#,
        if config.is_empty() { "" } else { ", " }
    )
}

fn sequential_2(layers: &str) -> String {
    format!(r#"{{"class_name": "Sequential", "keras_version": "2.1.6", "config": [{layers}]}}"#)
}

/// The generations are told apart by the keys that they write and not by the names of files.
#[test]
fn generations_are_told_apart_by_their_keys() {
    let layer = r#"{"class_name": "Dense", "config": {"name": "d", "units": 2, "batch_input_shape": [null, 3]}}"#;
    let old = r#"{"class_name": "Dense", "config": {"name": "d", "output_dim": 2, "batch_input_shape": [null, 3]}}"#;
    let with = |keys: &str, layers: &str| format!(r#"{{"class_name": "Sequential", {keys} "config": [{layers}]}}"#);
    for (json, expected) in [
        (with("", layer), Generation::Two),
        (with(r#""keras_version": "2.2.4", "backend": "tensorflow","#, layer), Generation::Two),
        (with(r#""module": "keras", "registered_name": "Sequential","#, layer), Generation::Three),
        (with(r#""build_config": {"input_shape": [null, 3]},"#, layer), Generation::Three),
        (with(r#""keras_version": "3.0.0","#, layer), Generation::Three),
        (with("", old), Generation::One),
        (with(r#""keras_version": "1.0.3","#, layer), Generation::One),
        (r#"{"name": "Sequential", "layers": [{"name": "Dense", "output_dim": 2}]}"#.to_string(), Generation::One),
    ] {
        assert_eq!(generation(&json), expected, "{json}");
    }
}

/// A list of layers and `get_config()` alone are models too, and a functional model has had two class names.
#[test]
fn sequential_models_have_had_three_forms() {
    let layers = r#"{"class_name": "Dense", "config": {"name": "d", "units": 2, "use_bias": false, "batch_input_shape": [null, 3]}}"#;
    let forms = [
        sequential_2(layers),
        format!(r#"[{layers}]"#),
        format!(r#"{{"name": "s", "layers": [{layers}]}}"#),
        format!(
            r#"{{"class_name": "Sequential", "keras_version": "2.9.0", "config": {{"name": "s", "layers": [{layers}]}}}}"#
        ),
    ];
    let expected = outputs(&forms[0]);
    for form in &forms {
        assert_eq!(paths(&imported(form)), ["d/kernel"], "{form}");
        assert_eq!(imported(form).graph.inputs().next().unwrap().name.as_ref(), "d_input");
        assert_eq!(outputs(form), expected);
    }
    for class in ["Model", "Functional"] {
        let nodes = r#"[[["x", 0, 0, {}]]]"#;
        let layers = [input_2("x"), layer_2("Dense", "d", r#""units": 2, "use_bias": false"#, nodes)];
        let json = functional_2(&layers, r#"[["x", 0, 0]]"#, r#"[["d", 0, 0]]"#).replace("Functional", class);
        assert_eq!(outputs(&json), expected);
    }
}

/// Arguments of Keras 3 are positional or named, tensors stand in lists, numbers inline; `mask: null` says nothing.
#[test]
fn nodes_of_keras_3_hold_any_arguments() {
    let (x, y) = (tensor("x", 0), tensor("y", 0));
    let node = |args: &str, kwargs: &str| format!(r#"[{{"args": {args}, "kwargs": {kwargs}}}]"#);
    let model = |layer: &str, nodes: &str| {
        let layers = [input_3("x"), input_3("y"), format!(r#"{{{layer}, "inbound_nodes": {nodes}}}"#)];
        functional_3(&layers, r#"[["x", 0, 0], ["y", 0, 0]]"#, r#"["l", 0, 0]"#)
    };
    let layer = |class: &str| {
        format!(
            r#""module": "keras.layers", "class_name": "{class}", "registered_name": null, "name": "l", "config": {{"name": "l"}}"#
        )
    };
    let op = |class: &str| {
        format!(
            r#""module": "keras.src.ops.numpy", "class_name": "{class}", "registered_name": "{class}", "name": "l", "config": {{"name": "l"}}"#
        )
    };
    let row = |f: fn(f64) -> f64| (1..=6).map(|i| f(f64::from(i))).collect::<Vec<_>>();
    assert_eq!(outputs(&model(&layer("Add"), &node(&format!("[[{x}, {y}]]"), "{}"))), [row(|v| 2.0 * v)]);
    assert_eq!(outputs(&model(&op("Multiply"), &node(&format!("[{x}, {y}]"), "{}"))), [row(|v| v * v)]);
    assert_eq!(outputs(&model(&op("Multiply"), &node(&format!("[{x}, 2.5]"), "{}"))), [row(|v| 2.5 * v)]);
    assert_eq!(
        outputs(&model(&op("Subtract"), &node("[]", &format!(r#"{{"x1": 1, "x2": {x}}}"#)))),
        [row(|v| 1.0 - v)]
    );
    let null = r#"{"mask": null}"#;
    assert_eq!(outputs(&model(&layer("Multiply"), &node(&format!("[[{x}, {y}]]"), null))), [row(|v| v * v)]);
    let slice =
        |v: &str| format!(r#"{{"class_name": "__slice__", "config": {{"start": null, "stop": {v}, "step": null}}}}"#);
    let tuple =
        format!(r#"{{"class_name": "__tuple__", "config": {{"value": [{}, {}]}}}}"#, slice("null"), slice("-1"));
    let get = model(&op("GetItem"), &node(&format!("[{x}, {tuple}]"), "{}"));
    assert_eq!(outputs(&get), [[1.0, 2.0, 4.0, 5.0]]);
}

/// Entries of Keras 2 are `[layer, node, tensor, kwargs]`; numbers stand for tensors as `_CONSTANT_VALUE`, tensors in kwargs as triplets.
#[test]
fn nodes_of_keras_2_hold_constants_and_tensors_in_kwargs() {
    let call = |function: &str, nodes: &str| {
        let layers =
            [input_2("x"), input_2("y"), layer_2("TFOpLambda", "l", &format!(r#""function": "{function}""#), nodes)];
        functional_2(&layers, r#"[["x", 0, 0], ["y", 0, 0]]"#, r#"[["l", 0, 0]]"#)
    };
    let row = |f: fn(f64) -> f64| (1..=6).map(|i| f(f64::from(i))).collect::<Vec<_>>();
    let times = call("math.multiply", r#"[["x", 0, 0, {"y": ["y", 0, 0], "name": null}]]"#);
    assert_eq!(outputs(&times), [row(|v| v * v)]);
    let constant = call("__operators__.add", r#"[["_CONSTANT_VALUE", -1, 2.0, {"y": ["x", 0, 0], "name": null}]]"#);
    assert_eq!(outputs(&constant), [row(|v| v + 2.0)]);
    let plus = call("__operators__.add", r#"[["x", 0, 0, {"y": ["_CONSTANT_VALUE", -1, 0.5], "name": null}]]"#);
    assert_eq!(outputs(&plus), [row(|v| v + 0.5)]);
    // An early Keras 2 wrote the masks of all inputs into the node.
    let nodes = r#"[[["x", 0, 0, {"mask": [null, null]}], ["y", 0, 0, {"mask": [null, null]}]]]"#;
    let layers = [input_2("x"), input_2("y"), layer_2("Add", "l", "", nodes)];
    let sum = functional_2(&layers, r#"[["x", 0, 0], ["y", 0, 0]]"#, r#"[["l", 0, 0]]"#);
    assert_eq!(outputs(&sum), [row(|v| 2.0 * v)]);
}

/// One output is a flat triplet, several are a list of them, named ones a dictionary, which is taken by sorted key.
#[test]
fn outputs_are_a_triplet_a_list_or_a_dictionary() {
    let node = |from: &str| format!(r#"[{{"args": [{}], "kwargs": {{}}}}]"#, tensor(from, 0));
    let layers = [
        input_3("x"),
        format!(r#"{{{}, "inbound_nodes": {}}}"#, dense("one", 1, 1.0), node("x")),
        format!(r#"{{{}, "inbound_nodes": {}}}"#, dense("two", 1, 2.0), node("x")),
    ];
    let model = |outputs: &str| functional_3(&layers, r#"["x", 0, 0]"#, outputs);
    let (one, two) = (vec![6.0, 15.0], vec![12.0, 30.0]);
    assert_eq!(outputs(&model(r#"["two", 0, 0]"#))[0], two);
    assert_eq!(outputs(&model(r#"[["two", 0, 0], ["one", 0, 0]]"#)), [two.clone(), one.clone()]);
    assert_eq!(outputs(&model(r#"{"b": ["one", 0, 0], "a": ["two", 0, 0]}"#)), [two, one]);
    // Their names are the layers', in the order of the list; what does not reach an output still has its variables.
    let both = imported(&model(r#"[["two", 0, 0], ["one", 0, 0]]"#));
    assert_eq!(both.graph.outputs.iter().map(|o| o.name.as_ref()).collect::<Vec<_>>(), ["two", "one"]);
    assert_eq!(paths(&imported(&model(r#"["two", 0, 0]"#))), ["one/kernel", "two/kernel"]);
}

/// An input that no layer takes stays in the signature; the order is that of `input_layers`.
#[test]
fn unused_inputs_stay() {
    let node = format!(r#"[{{"args": [{}], "kwargs": {{}}}}]"#, tensor("b", 0));
    let layers =
        [input_3("a"), input_3("b"), input_3("c"), format!(r#"{{{}, "inbound_nodes": {node}}}"#, dense("d", 1, 1.0))];
    let json = functional_3(&layers, r#"[["c", 0, 0], ["b", 0, 0], ["a", 0, 0]]"#, r#"["d", 0, 0]"#);
    let imported = imported(&json);
    assert_eq!(imported.graph.inputs().map(|p| p.name.as_ref()).collect::<Vec<_>>(), ["c", "b", "a"]);
}

/// Nodes of a model used as a layer: Keras 3 counts calls from 0 and outputs of functional models from 1; Keras 2 both from 1.
#[test]
fn nested_models_are_counted_as_their_writer_counts() {
    let inner = |nodes: &str| {
        let layers = [
            input_3("i"),
            format!(
                r#"{{{}, "inbound_nodes": [{{"args": [{}], "kwargs": {{}}}}]}}"#,
                dense("h", 3, 0.5),
                tensor("i", 0)
            ),
        ];
        let inner = functional_3(&layers, r#"["i", 0, 0]"#, r#"["h", 0, 0]"#);
        format!(
            r#"{}, "name": "inner", "inbound_nodes": {nodes}}}"#,
            inner[..inner.len() - 1].replace(r#""name": "f""#, r#""name": "inner""#)
        )
    };
    let call = |from: &str, node: usize| format!(r#"{{"args": [{}], "kwargs": {{}}}}"#, tensor(from, node));
    let nodes = format!("[{}, {}]", call("x", 0), call("inner", 0));
    let json = functional_3(&[input_3("x"), inner(&nodes)], r#"["x", 0, 0]"#, r#"[["inner", 1, 0], ["inner", 2, 0]]"#);
    // [1, 2, 3] → 3 everywhere → 4.5; [4, 5, 6] → 7.5 → 11.25.
    let expected = [vec![3.0, 3.0, 3.0, 7.5, 7.5, 7.5], vec![4.5, 4.5, 4.5, 11.25, 11.25, 11.25]];
    assert_eq!(outputs(&json), expected);
    assert_eq!(paths(&imported(&json)), ["inner/h/kernel"]);

    let kernel =
        r#""units": 3, "use_bias": false, "kernel_initializer": {"class_name": "Constant", "config": {"value": 0.5}}"#;
    let layers = [input_2("i"), layer_2("Dense", "h", kernel, r#"[[["i", 0, 0, {}]]]"#)];
    let inner =
        functional_2(&layers, r#"[["i", 0, 0]]"#, r#"[["h", 0, 0]]"#).replace(r#""name": "f""#, r#""name": "inner""#);
    let inner = inner.replacen(r#""keras_version": "2.9.0", "backend": "tensorflow", "#, "", 1);
    let inner = format!(
        r#"{}, "name": "inner", "inbound_nodes": [[["x", 0, 0, {{}}]], [["inner", 1, 0, {{}}]]]}}"#,
        &inner[..inner.len() - 1]
    );
    let json = functional_2(&[input_2("x"), inner], r#"[["x", 0, 0]]"#, r#"[["inner", 1, 0], ["inner", 2, 0]]"#);
    assert_eq!(outputs(&json), expected);
}

/// A dtype is a name or a policy in one of three forms; the inputs of a model have their own.
#[test]
fn dtypes_are_names_or_policies() {
    let model = |dtype: &str| {
        sequential_2(&format!(
            r#"{{"class_name": "Dense", "config": {{"name": "d", "units": 2, "batch_input_shape": [null, 3], "dtype": {dtype}}}}}"#
        ))
    };
    for dtype in [
        r#""float64""#,
        r#"{"class_name": "Policy", "config": {"name": "float64"}}"#,
        r#"{"module": "keras", "class_name": "DTypePolicy", "config": {"name": "float64"}, "registered_name": null}"#,
    ] {
        let imported = imported(&model(dtype));
        assert!(imported.vars.flatten().iter().all(|v| v.dtype == DType::F64), "{dtype}");
    }
    let error = refused(&model(r#""float47""#));
    assert!(error.contains(r#"$.config[0].config.dtype "d""#) && error.contains("float47"), "{error}");
}

/// Each generation has its own way to say an input's shape; what is not dense is refused.
#[test]
fn inputs_are_declared_in_many_ways() {
    let flat = r#""name": "d", "units": 2"#;
    for (config, shape) in [
        (format!(r#"{flat}, "batch_input_shape": [null, 3]"#), vec![BATCH, 3]),
        (format!(r#"{flat}, "batch_input_shape": [5, 3]"#), vec![5, 3]),
        (format!(r#"{flat}, "input_shape": [4, 3]"#), vec![BATCH, 4, 3]),
        (format!(r#"{flat}, "input_dim": 3"#), vec![BATCH, 3]),
    ] {
        let imported = imported(&sequential_2(&format!(r#"{{"class_name": "Dense", "config": {{{config}}}}}"#)));
        let input = imported.graph.inputs().next().unwrap();
        assert_eq!(&imported.graph.ty(input.value).shape[..], shape, "{config}");
    }
    let embedding =
        r#"{"class_name": "Embedding", "config": {"name": "e", "input_dim": 9, "output_dim": 4, "input_length": 7}}"#;
    let imported = imported(&sequential_2(embedding));
    assert_eq!(&imported.graph.ty(imported.graph.inputs().next().unwrap().value).shape[..], [BATCH, 7]);
    for (key, said) in [("sparse", "a sparse input"), ("ragged", "a ragged input")] {
        let input = format!(
            r#"{{"class_name": "InputLayer", "config": {{"name": "i", "batch_input_shape": [null, 3], "{key}": true}}}}"#
        );
        let error = refused(&sequential_2(&input));
        assert!(error.contains(said) && error.contains(&format!("config.{key}")), "{error}");
    }
}

/// An input may be left out of a call in Keras 3; here it is an input.
#[test]
fn optional_inputs_are_inputs() {
    let node = format!(r#"[{{"args": [{}], "kwargs": {{}}}}]"#, tensor("x", 0));
    let input = input_3("x").replace(r#""sparse": false"#, r#""sparse": false, "optional": true"#);
    let layers = [input, format!(r#"{{{}, "inbound_nodes": {node}}}"#, dense("d", 1, 1.0))];
    let json = functional_3(&layers, r#"["x", 0, 0]"#, r#"["d", 0, 0]"#);
    assert!(read(&json).unwrap().input_specs()[0].1.optional);
    assert_eq!(outputs(&json), [[6.0, 15.0]]);
}

/// `axis` is a number or a list of one; sizes are numbers or lists; initializers are names or objects.
#[test]
fn numbers_and_lists_of_one_mean_the_same() {
    let image = r#""batch_input_shape": [null, 4, 4, 2]"#;
    let ones = [
        r#""ones""#,
        r#"{"class_name": "Ones", "config": {}}"#,
        r#"{"module": "keras.initializers", "class_name": "Ones", "config": {}, "registered_name": null}"#,
    ];
    let conv = |size: &str, strides: &str, init: &str| {
        let config = format!(
            r#""name": "c", "filters": 2, "kernel_size": {size}, "strides": {strides}, "kernel_initializer": {init}, {image}"#
        );
        format!(r#"{{"class_name": "Conv2D", "config": {{{config}}}}}"#)
    };
    let norm = |axis: &str| {
        format!(
            r#"{{"class_name": "BatchNormalization", "config": {{"name": "b", "axis": {axis}, "epsilon": 0.25, "momentum": 0.9}}}}"#
        )
    };
    let of = |size: &str, strides: &str, init: &str, axis: &str| {
        outputs(&sequential_2(&format!("{}, {}", conv(size, strides, init), norm(axis))))
    };
    let expected = of("[3, 3]", "[1, 1]", ones[0], "3");
    assert_eq!(expected[0].len(), BATCH * 2 * 2 * 2);
    for (size, strides, init, axis) in
        [("3", "1", ones[1], "[3]"), ("[3, 3]", "[1, 1]", ones[2], "-1"), ("[3]", "[1]", ones[0], "[-1]")]
    {
        assert_eq!(of(size, strides, init, axis), expected);
    }
}

/// A layer that is called twice has one set of variables; names are unique per model and not beyond.
#[test]
fn shared_layers_have_their_variables_once() {
    let call = |from: &str| format!(r#"{{"args": [{}], "kwargs": {{}}}}"#, tensor(from, 0));
    let layers = [
        input_3("a"),
        input_3("b"),
        format!(r#"{{{}, "inbound_nodes": [{}, {}]}}"#, dense("d", 1, 2.0), call("a"), call("b")),
    ];
    let json = functional_3(&layers, r#"[["a", 0, 0], ["b", 0, 0]]"#, r#"[["d", 0, 0], ["d", 1, 0]]"#);
    assert_eq!(paths(&imported(&json)), ["d/kernel"]);
    assert_eq!(outputs(&json), [[12.0, 30.0], [12.0, 30.0]]);
    let model = read(&json).unwrap();
    assert_eq!(model.calls.iter().map(|c| c.call).collect::<Vec<_>>(), [0, 1]);

    let inner = format!(
        r#"{{"class_name": "Sequential", "config": [{}]}}"#,
        r#"{"class_name": "Dense", "config": {"name": "d", "units": 3, "batch_input_shape": [null, 3]}}"#
    );
    let json = sequential_2(&format!(r#"{inner}, {{"class_name": "Dense", "config": {{"name": "d", "units": 2}}}}"#));
    assert_eq!(paths(&imported(&json)), ["sequential_1/d/kernel", "sequential_1/d/bias", "d/kernel", "d/bias"]);
}

/// One layer in two models, and a model in another and beside it: one set of variables, stored where it comes first.
#[test]
fn one_layer_in_two_models_has_one_set_of_variables() {
    let path = repository("tests/goldens/shared/two_models.keras");
    let mut file = open_model(&path).unwrap();
    let model = KerasModel::read(&file).unwrap_or_else(|e| panic!("{e}"));
    let imported = import(&model, &path, &ImportOptions { batch: BATCH, ..ImportOptions::default() })
        .unwrap_or_else(|e| panic!("{e}"));
    verify(&imported.graph).unwrap();
    // Keras counts 91 parameters.
    assert_eq!(imported.vars.flatten().iter().map(|v| v.shape.iter().product::<usize>()).sum::<usize>(), 91);
    compare(
        &path,
        &imported,
        &Weights::new(&imported.vars, file.weights.take(), 0).unwrap_or_else(|e| panic!("{e:?}")),
    );
}

/// A wrapped layer that is elsewhere too would need the wrapper's variables to be another layer's.
#[test]
fn wrapped_layers_that_are_elsewhere_too_are_refused() {
    let inner = format!(r#"{{{}, "shared_object_id": 7}}"#, dense("d", 3, 1.0));
    let wrapper = format!(
        r#"{{"module": "keras.layers", "class_name": "TimeDistributed", "registered_name": null, "name": "t",
            "config": {{"name": "t", "layer": {inner}}}, "inbound_nodes": [{{"args": [{}], "kwargs": {{}}}}]}}"#,
        tensor("x", 0)
    );
    let input = input_3("x").replace("[null, 3]", "[null, 4, 3]");
    let error = refused(&functional_3(&[input, wrapper], r#"["x", 0, 0]"#, r#"["t", 0, 0]"#));
    assert!(error.contains("a wrapped layer that is also elsewhere in the file"), "{error}");
}

/// Code in a file is refused by its name and never run, all of it at once.
#[test]
fn code_is_refused_by_name() {
    let error = refused(&sequential_2(
        r#"{"class_name": "Lambda", "config": {"name": "l", "function": ["4wEAAA==", null, null], "function_type": "lambda",
            "batch_input_shape": [null, 3], "arguments": {}}}, {"class_name": "MyLayer", "config": {"name": "m"}}"#,
    ));
    assert!(error.contains(r#""l": layer class `Lambda` is not supported"#) && error.contains("`MyLayer`"), "{error}");
    assert!(error.contains("help: replace it by built-in layers"), "{error}");
    let registered =
        r#"{"module": "my", "class_name": "Attention", "registered_name": "pkg>Attention", "config": {"name": "a"}}"#;
    let error = refused(&format!(
        r#"{{"class_name": "Sequential", "keras_version": "3.3.3", "config": {{"name": "s", "layers": [{registered}]}}}}"#
    ));
    assert!(error.contains("`pkg>Attention` is the model's own code"), "{error}");
    let error = refused(
        r#"{"class_name": "MyModel", "module": "my", "registered_name": "pkg>MyModel", "config": {"units": 3}}"#,
    );
    assert!(error.contains("MyModel"), "{error}");
    let quantised = r#"{"class_name": "Dense", "config": {"name": "d", "units": 2, "batch_input_shape": [null, 3], "quantization_config": {"mode": "int8"}}}"#;
    let error = refused(&format!(
        r#"{{"class_name": "Sequential", "keras_version": "3.3.3", "config": {{"name": "s", "layers": [{quantised}]}}}}"#
    ));
    assert!(error.contains("quantization_config"), "{error}");
}

/// Keras 3 writes `training: false` on every dropout, which does not freeze it; outside of training nothing is dropped.
#[test]
fn training_in_a_node_of_keras_3_says_nothing() {
    let dropout = |training: &str| {
        let node = format!(r#"[{{"args": [{}], "kwargs": {{"training": {training}}}}}]"#, tensor("x", 0));
        let layer = r#""module": "keras.layers", "class_name": "Dropout", "registered_name": null, "name": "l", "config": {"name": "l", "rate": 0.5, "seed": null, "noise_shape": null}"#;
        functional_3(
            &[input_3("x"), format!(r#"{{{layer}, "inbound_nodes": {node}}}"#)],
            r#"["x", 0, 0]"#,
            r#"["l", 0, 0]"#,
        )
    };
    for training in ["false", "null"] {
        assert_eq!(outputs(&dropout(training)), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    }
    // Keras 2 writes what its user wrote, which holds: such a layer would always drop.
    let keras_2 = |training: &str| {
        let nodes = format!(r#"[[["x", 0, 0, {{"training": {training}}}]]]"#);
        let layers = [input_2("x"), layer_2("Dropout", "l", r#""rate": 0.5"#, &nodes)];
        functional_2(&layers, r#"[["x", 0, 0]]"#, r#"[["l", 0, 0]]"#)
    };
    for training in ["false", "null"] {
        assert_eq!(outputs(&keras_2(training)), [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]);
    }
    // Kept elements are doubled, the others are 0: what drops depends on the graph's random bits.
    let graph = imported(&keras_2("true")).graph;
    assert!(graph.nodes.values().any(|n| n.op.name() == "random"), "{graph}");
}

/// Variables in the order of Keras's `weights`: layers as listed, then creation order; frozen layers do not train.
#[test]
fn variables_are_in_the_order_of_keras() {
    let lstm = r#"{"class_name": "LSTM", "config": {"name": "r", "units": 2, "return_sequences": true}}"#;
    let layers = format!(
        r#"{{"class_name": "SeparableConv1D", "config": {{"name": "s", "filters": 4, "kernel_size": 3, "batch_input_shape": [null, 6, 4]}}}},
        {{"class_name": "Bidirectional", "config": {{"name": "b", "layer": {lstm}, "merge_mode": "concat"}}}},
        {{"class_name": "BatchNormalization", "config": {{"name": "n", "axis": [2], "trainable": false}}}},
        {{"class_name": "Dense", "config": {{"name": "d", "units": 2}}}}"#
    );
    let imported = imported(&sequential_2(&layers));
    let cells = ["forward_r/lstm_cell", "backward_r/lstm_cell"];
    let gates = cells.iter().flat_map(|cell| ["kernel", "recurrent_kernel", "bias"].map(|v| format!("b/{cell}/{v}")));
    let mut expected: Vec<String> = ["s/depthwise_kernel", "s/pointwise_kernel", "s/bias"].map(str::to_string).to_vec();
    expected.extend(gates);
    expected
        .extend(["n/gamma", "n/beta", "n/moving_mean", "n/moving_variance", "d/kernel", "d/bias"].map(str::to_string));
    assert_eq!(paths(&imported), expected);
    let trains = |p: &&intwain_ir::Param| p.kind == ParamKind::Weight { trainable: Trainable::Yes };
    let trained: Vec<&str> = imported.graph.weights().filter(trains).map(|p| p.name.as_ref()).collect();
    assert_eq!(trained.len(), expected.len() - 4);
    assert!(trained.iter().all(|name| !name.starts_with("n/")));
}

/// Classes that `keras.applications` register, and bare operations, are known though they are no `keras.layers`.
#[test]
fn classes_beside_the_layers_are_known() {
    let json = functional_3(
        &[
            input_3("x"),
            format!(
                r#"{{"module": "keras.src.applications.convnext", "class_name": "LayerScale", "registered_name": "LayerScale", "name": "l",
                "config": {{"name": "l", "init_values": 0.5, "projection_dim": 3}}, "inbound_nodes": [{{"args": [{}], "kwargs": {{}}}}]}}"#,
                tensor("x", 0)
            ),
            format!(
                r#"{{"module": "keras.src.ops.numpy", "class_name": "Add", "registered_name": "Add", "name": "o", "config": {{"name": "o"}},
                "inbound_nodes": [{{"args": [{}, {}], "kwargs": {{}}}}]}}"#,
                tensor("l", 0),
                tensor("x", 0)
            ),
        ],
        r#"["x", 0, 0]"#,
        r#"["o", 0, 0]"#,
    );
    assert_eq!(outputs(&json), [[1.5, 3.0, 4.5, 6.0, 7.5, 9.0]]);
}

fn golden(array: &support::Array) -> Tensor {
    match &array.elements {
        Elements::F32(v) => Tensor::from_f32(array.shape.clone(), v),
        Elements::I32(_) => panic!("{} holds integers", array.name),
    }
}

/// Holds a model against the values beside its file.
fn compare(path: &Path, imported: &Imported, weights: &Weights) {
    let arrays: BTreeMap<String, support::Array> =
        read_npz(&path.with_extension("npz")).into_iter().map(|a| (a.name.clone(), a)).collect();
    let numbered =
        |prefix: &str| (0..).map_while(|i| arrays.get(&format!("{prefix}{i}"))).map(golden).collect::<Vec<_>>();
    let (inputs, want) = (numbered("in"), numbered("out"));
    let args = inputs.into_iter().chain((0..weights.specs().len()).map(|i| weight(weights, i))).collect();
    let got = interp::run(&imported.graph, args).unwrap();
    assert_eq!(got.len(), want.len(), "{}", path.display());
    for (got, want) in got.iter().zip(&want) {
        assert_eq!(got.ty, want.ty, "{}", path.display());
        let scale = want.to_f64().iter().fold(1e-3, |m: f64, x| x.abs().max(m));
        for (g, w) in got.to_f64().iter().zip(want.to_f64()) {
            assert!((g - w).abs() <= 1e-5 * scale, "{}: {g}, Keras has {w}", path.display());
        }
    }
}

/// Keras 0.3 and 1: documents and weights in their layouts, against Keras 3 models translated by hand.
#[test]
fn keras_1_computes_what_hand_translated_models_do() {
    let (mut seen, mut wholes) = (0, 0);
    let mut files: Vec<_> =
        std::fs::read_dir(repository("tests/goldens/keras1")).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "json")) {
        let file = open_model(path).unwrap();
        assert_eq!(file.generation, Generation::One);
        let model = KerasModel::read(&file).unwrap_or_else(|e| panic!("{e}"));
        let options = ImportOptions { batch: 3, ..ImportOptions::default() };
        let imported = import(&model, path, &options).unwrap_or_else(|e| panic!("{e}"));
        verify(&imported.graph).unwrap();
        let stored = open_weights(&path.with_extension("h5")).unwrap();
        let weights = Weights::new(&imported.vars, Some(stored), 0);
        compare(path, &imported, &weights.unwrap_or_else(|e| panic!("{}: {e:?}", path.display())));
        seen += 1;
        // Some are whole models.
        if let Ok(mut whole) = open_model(&path.with_extension("h5")) {
            assert_eq!(whole.generation, Generation::One);
            let model = KerasModel::read(&whole).unwrap_or_else(|e| panic!("{e}"));
            let imported = import(&model, path, &options).unwrap_or_else(|e| panic!("{e}"));
            compare(path, &imported, &Weights::new(&imported.vars, whole.weights.take(), 0).unwrap());
            wholes += 1;
        }
    }
    assert_eq!((seen, wholes), (20, 1));
}

/// What is wrong with a document of Keras 1 is said in its own words and at its own place.
#[test]
fn problems_of_keras_1_are_at_their_places() {
    let document =
        |layers: &str| format!(r#"{{"class_name": "Sequential", "keras_version": "1.2.2", "config": [{layers}]}}"#);
    let dense = |more: &str| {
        format!(
            r#"{{"class_name": "Dense", "config": {{"name": "d", "output_dim": 2, "batch_input_shape": [null, 3]{more}}}}}"#
        )
    };
    let conv = |more: &str| {
        format!(
            r#"{{"class_name": "Convolution2D", "config": {{"name": "c", "nb_filter": 2, "nb_row": 3, "nb_col": 3,
            "batch_input_shape": [null, 3, 8, 8]{more}}}}}"#
        )
    };
    let pad = r#"{"class_name": "ZeroPadding2D", "config": {"name": "z", "padding": [1, 1], "batch_input_shape": [null, 3, 8, 8]}}"#;
    for (layers, expected) in [
        (dense(r#", "unitz": 2"#), r#"$.config[0].config.unitz "d": the key `unitz` is not known here"#),
        (dense(r#", "init": "glorot""#), r#"$.config[0].config.init "d": is "glorot"; accepted: uniform"#),
        (dense(r#", "init": "<lambda>""#), r#"$.config[0].config.init "d": an initializer that is the model's own code is not supported"#),
        (dense(r#", "W_regularizer": {"name": "EigenvalueRegularizer", "k": 1}"#), r#"$.config[0].config.W_regularizer.name "d": `"EigenvalueRegularizer"` of Keras 1 is not supported"#),
        (conv(r#", "dim_ordering": "xx""#), r#"$.config[0].config.dim_ordering "c": is "xx"; accepted: th, tf"#),
        (conv(r#", "dim_ordering": "th", "border_mode": "full""#), r#"$.config[0].config.border_mode "c": `border_mode` "full" is not supported"#),
        (pad.to_string(), r#""z": a layer of Keras 1 that leaves its `dim_ordering` to a setting of the machine, where no layer of the file says it is not supported"#),
        (
            r#"{"class_name": "BatchNormalization", "config": {"name": "b", "mode": 1, "axis": -1, "batch_input_shape": [null, 3]}}"#.to_string(),
            r#"$.config[0].config.mode "b": `mode` 1 of BatchNormalization"#,
        ),
        (
            format!(r#"{}, {{"class_name": "Merge", "config": {{"name": "m", "mode": "f", "mode_type": "lambda"}}}}"#, dense("")),
            "is the model's own code, which is never run",
        ),
    ] {
        let error = refused(&document(&layers));
        assert!(error.contains(expected), "{error}\n  lacks {expected}");
    }
    // All at once.
    let error = refused(&document(&format!(
        "{}, {}",
        dense(r#", "a": 1, "b": 2"#),
        dense(r#", "p": 1"#).replace(r#""d""#, r#""e""#)
    )));
    assert_eq!(error.matches("is not known here").count(), 3, "{error}");
}

/// Chains that begin with chains are translated once, however many there are.
#[test]
fn chains_that_begin_with_chains_take_no_time() {
    let dense = |name: &str| {
        format!(
            r#"{{"class_name": "Dense", "config": {{"name": "{name}", "output_dim": 2, "batch_input_shape": [null, 3]}}}}"#
        )
    };
    let branch = |name: &str| format!(r#"{{"class_name": "Sequential", "config": [{}]}}"#, dense(name));
    let merge = format!(
        r#"{{"class_name": "Merge", "config": {{"name": "m", "mode": "sum", "layers": [{}, {}]}}}}"#,
        branch("a"),
        branch("b")
    );
    let mut chain = format!(r#"{{"class_name": "Sequential", "config": [{merge}]}}"#);
    for _ in 0..60 {
        chain = format!(r#"{{"class_name": "Sequential", "config": [{chain}]}}"#);
    }
    let json = chain.replacen('{', r#"{"keras_version": "1.2.2", "#, 1);
    assert_eq!(outputs(&json)[0].len(), BATCH * 2);
}

/// Images of a file without a word about their channels at one layer are as its other layers say.
#[test]
fn channels_of_keras_1_are_those_of_the_rest_of_the_file() {
    let layer = |class: &str, config: &str| format!(r#"{{"class_name": "{class}", "config": {{{config}}}}}"#);
    let pad = layer("ZeroPadding2D", r#""name": "z", "padding": [1, 2], "batch_input_shape": [null, 3, 8, 9]"#);
    let pool = |ordering: &str| {
        layer(
            "MaxPooling2D",
            &format!(r#""name": "p", "pool_size": [1, 1], "strides": [1, 1], "dim_ordering": "{ordering}""#),
        )
    };
    for (ordering, shape) in [("th", [BATCH, 3, 10, 13]), ("tf", [BATCH, 5, 12, 9])] {
        let json = format!(
            r#"{{"class_name": "Sequential", "keras_version": "1.1.0", "config": [{pad}, {}]}}"#,
            pool(ordering)
        );
        let imported = imported(&json);
        assert_eq!(&imported.graph.ty(imported.graph.outputs[0].value).shape[..], shape);
    }
    let both = format!("{pad}, {}, {}", pool("th"), pool("tf").replace(r#""p""#, r#""q""#));
    let error = refused(&format!(r#"{{"class_name": "Sequential", "keras_version": "1.1.0", "config": [{both}]}}"#));
    assert!(error.contains("layers of the file disagree on it"), "{error}");
}

/// `Merge` of Keras 2 stands in nodes as any layer, lambdas are named; arguments are only what the file says.
#[test]
fn merge_layers_of_keras_2_are_read() {
    let merge = |mode: &str, more: &str| {
        let config = format!(
            r#""mode": "{mode}", "mode_type": "raw", "concat_axis": 1, "dot_axes": -1, "output_shape": null, "arguments": {{}}{more}"#
        );
        let layers =
            [input_2("x"), input_2("y"), layer_2("Merge", "m", &config, r#"[[["x", 0, 0, {}], ["y", 0, 0, {}]]]"#)];
        functional_2(&layers, r#"[["x", 0, 0], ["y", 0, 0]]"#, r#"[["m", 0, 0]]"#)
    };
    assert_eq!(outputs(&merge("mul", "")), [[1.0, 4.0, 9.0, 16.0, 25.0, 36.0]]);
    assert_eq!(outputs(&merge("concat", "")), [[1.0, 2.0, 3.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 4.0, 5.0, 6.0]]);
    assert_eq!(outputs(&merge("dot", "")), [[14.0, 77.0]]);
    assert!(refused(&merge("cosine", "")).contains("accepted: sum, mul, max, ave, concat, dot, cos"));
    assert!(refused(&merge("mul", r#", "weird": 1"#)).contains("the key `weird` is not known here"));
}

/// The architecture that a program keeps reads as the same model, for Keras 1 in its own words.
#[test]
fn the_kept_architecture_reads_as_the_same_model() {
    let path = repository("tests/goldens/keras1/Graph_shared.json");
    let file = open_model(&path).unwrap();
    let text = intwain::frontend::architecture_text(&file);
    let again = read(&text).unwrap();
    let first = KerasModel::read(&file).unwrap();
    assert_eq!(again.calls.len(), first.calls.len());
    assert!(again.layers.iter().all(|l| !matches!(l.body, LayerBody::Model(_))));
    let args = |model: &KerasModel| model.calls.iter().flat_map(|c| c.args.clone()).collect::<Vec<Arg>>();
    assert_eq!(args(&again), args(&first));
    assert!(Json::parse(&text).unwrap().get("config").unwrap().get("node_config").is_some());
}

/// Numbers that no file needs are errors and not panics.
#[test]
fn extreme_references_and_shapes_are_errors() {
    let nodes = |node: &str| format!(r#"[[["x", {node}, 0, {{}}]]]"#);
    for node in ["-9223372036854775808", "9223372036854775807", "-1", "1"] {
        let layers = [input_2("x"), layer_2("Activation", "a", r#""activation": "relu""#, &nodes(node))];
        let error = refused(&functional_2(&layers, r#"[["x", 0, 0]]"#, r#"[["a", 0, 0]]"#));
        assert!(error.contains(&format!("refers to call {node} of layer `x`")), "{error}");
    }
    for class in ["PReLU", "ParametricSoftplus", "SReLU", "Flatten"] {
        let error = refused(&sequential_2(&format!(
            r#"{{"class_name": "{class}", "config": {{"name": "l", "batch_input_shape": []}}}}"#
        )));
        assert!(error.contains("takes a tensor with a batch dimension"), "{class}: {error}");
    }
}

/// Extents that a file leaves open are those of the data.
#[test]
fn open_extents_are_those_of_the_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let layer =
        r#"{"class_name": "GlobalMaxPooling1D", "config": {"name": "g", "batch_input_shape": [null, null, 2]}}"#;
    std::fs::write(at("model.json"), sequential_2(layer)).unwrap();
    let steps = (0..BATCH * 7 * 2).map(|i| i as f32).collect();
    support::write_npz(&at("in.npz"), &[support::Array::f32("in0", &[BATCH, 7, 2], steps)]);
    let words = ["run", "--devices", "cpu:0", "-q"].map(std::ffi::OsString::from);
    let paths = [("--inputs", "in.npz"), ("--outputs", "out.npz")];
    let files = paths.iter().flat_map(|(flag, name)| [(*flag).into(), at(name).into_os_string()]);
    let out = support::intwain(words.into_iter().chain(files).chain([at("model.json").into_os_string()]));
    assert!(out.status.success(), "{}", support::said(&out.stderr));
    assert_eq!(read_npz(&at("out.npz"))[0].floats(), [12.0, 13.0, 26.0, 27.0]);
}
