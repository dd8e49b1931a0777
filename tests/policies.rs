//! Dtype policies: a model of many layers side by side against the values Keras computed for it
//! (`tests/goldens/policies`, made by `tools/make_policy_goldens.py`), and what is said of policies that are not built.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::arrays::{Array, FileBytes};
use intwain::frontend::{ImportOptions, Imported, KerasModel, Weights, import, open_model, open_model_bytes};
use intwain_ir::{DType, Graph, Tensor, Type, interp, verify};
use std::collections::BTreeMap;
use std::path::Path;
use support::{Elements, read_npz, repository};

fn tensor(array: &support::Array) -> Tensor {
    match &array.elements {
        Elements::F32(v) => Tensor::from_f32(array.shape.clone(), v),
        Elements::I32(v) => {
            let bytes = v.iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::from_bytes(Type::new(DType::I32, array.shape.clone()), bytes).unwrap()
        }
    }
}

fn weight(array: &Array) -> Tensor {
    Tensor::from_bytes(Type::new(array.dtype(), array.shape().to_vec()), array.bytes().to_vec()).unwrap()
}

fn load(policy: &str, float: Option<DType>) -> (Graph, Vec<Tensor>, BTreeMap<String, support::Array>) {
    let path = repository(&format!("tests/goldens/policies/{policy}.keras"));
    let golden: BTreeMap<_, _> =
        read_npz(&path.with_extension("npz")).into_iter().map(|a| (a.name.clone(), a)).collect();
    let mut file = open_model(&path).unwrap();
    let model = KerasModel::read(&file).unwrap();
    let options = ImportOptions { batch: 3, float, ..Default::default() };
    let Imported { graph, vars, .. } = import(&model, &path, &options).unwrap();
    verify(&graph).unwrap();
    let stored = Weights::new(&vars, file.weights.take(), 0).unwrap();
    let inputs = (0..3).map(|i| tensor(&golden[&format!("in{i}")]));
    let inputs = inputs.map(|t| float.filter(|_| t.ty.dtype.is_float()).map_or(t.clone(), |d| t.cast(d)));
    let weights = (0..stored.specs().len()).map(|i| weight(&stored.read(i).unwrap()));
    let args = inputs.chain(weights).collect();
    (graph, args, golden)
}

const RECURRENT: usize = 17;

/// Every output is within one unit of rounding at its scale of what Keras has, two behind the steps of a recurrent layer, and
/// most are equal; types are Keras's.
fn computes_what_keras_computes(policy: &str, narrow: DType, held: DType, unit: f64) {
    let (graph, args, golden) = load(policy, None);
    assert!(graph.weights().all(|p| [held, DType::F32].contains(&graph.ty(p.value).dtype)), "{policy}");
    let got = interp::run(&graph, args).unwrap();
    let wanted: Vec<Tensor> = (0..).map_while(|i| golden.get(&format!("out{i}"))).map(tensor).collect();
    assert_eq!(got.len(), wanted.len());
    let mut equal = 0;
    for (i, (got, want)) in got.iter().zip(&wanted).enumerate() {
        let dtype = if i + 1 == wanted.len() { DType::F32 } else { narrow };
        assert_eq!((got.ty.dtype, &got.ty.shape), (dtype, &want.ty.shape), "{policy} out{i}");
        let (got, want) = (got.to_f64(), want.to_f64());
        let scale = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        for (g, w) in got.iter().zip(&want) {
            let units = if i == RECURRENT { 2.0 } else { 1.0 };
            assert!((g - w).abs() <= units * unit * scale, "{policy} out{i}: {g}, Keras has {w} at scale {scale}");
        }
        equal += usize::from(got == want);
    }
    assert!(equal * 2 > wanted.len(), "{policy}: {equal} of {} outputs are Keras's bits", wanted.len());
}

#[test]
fn mixed_float16() {
    computes_what_keras_computes("mixed_float16", DType::F16, DType::F32, 2f64.powi(-10));
}

#[test]
fn mixed_bfloat16() {
    computes_what_keras_computes("mixed_bfloat16", DType::BF16, DType::F32, 2f64.powi(-7));
}

#[test]
fn float16() {
    computes_what_keras_computes("float16", DType::F16, DType::F16, 2f64.powi(-10));
}

/// An override replaces every floating type of a mixed policy, and leaves integers alone.
#[test]
fn an_override_replaces_floating_types() {
    let (graph, args, golden) = load("mixed_float16", Some(DType::F64));
    let types: Vec<DType> = graph.params.iter().map(|p| graph.ty(p.value).dtype).collect();
    assert!(types.iter().all(|d| matches!(d, DType::F64 | DType::I32)), "{types:?}");
    for (i, got) in interp::run(&graph, args).unwrap().iter().enumerate() {
        let want = tensor(&golden[&format!("out{i}")]).to_f64();
        let scale = want.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        let worst = got.to_f64().iter().zip(&want).fold(0.0f64, |m, (g, w)| m.max((g - w).abs()));
        assert!(got.ty.dtype == DType::F64 && worst <= 0.01 * scale, "out{i} is off by {worst}");
    }
}

/// The types that a Dense layer with this `dtype` computes in and holds its kernel in, or what is said of it.
fn dense(version: &str, dtype: &str) -> Result<(DType, DType), String> {
    let json = format!(
        r#"{{"class_name": "Sequential", {version} "config": {{"name": "m", "layers": [
            {{"class_name": "InputLayer", "config": {{"batch_input_shape": [null, 4], "name": "x"}}}},
            {{"class_name": "Dense", "config": {{"name": "d", "units": 3, "dtype": {dtype}}}}}]}}}}"#
    );
    let bytes = FileBytes::from(json.into_bytes());
    let model = open_model_bytes(Path::new("m.json"), bytes).and_then(|file| KerasModel::read(&file)).unwrap();
    let options = ImportOptions { batch: 2, ..ImportOptions::default() };
    let graph = import(&model, Path::new("m.json"), &options).map_err(|e| e.to_string())?.graph;
    let held = graph.weights().next().unwrap().value;
    Ok((graph.ty(graph.outputs[0].value).dtype, graph.ty(held).dtype))
}

const KERAS_2: &str = r#""keras_version": "2.9.0","#;

#[test]
fn policies_as_files_write_them() {
    let mixed = (DType::F16, DType::F32);
    let named = |class: &str, name: &str| format!(r#"{{"class_name": "{class}", "config": {{"name": "{name}"}}}}"#);
    assert_eq!(dense(KERAS_2, r#""float32""#), Ok((DType::F32, DType::F32)));
    assert_eq!(dense(KERAS_2, r#""float64""#), Ok((DType::F64, DType::F64)));
    assert_eq!(dense(KERAS_2, r#""bfloat16""#), Ok((DType::BF16, DType::BF16)));
    assert_eq!(dense(KERAS_2, r#""mixed_float16""#), Ok(mixed));
    assert_eq!(dense(KERAS_2, &named("Policy", "mixed_float16")), Ok(mixed));
    assert_eq!(dense(KERAS_2, &named("Policy", "mixed_bfloat16")), Ok((DType::BF16, DType::F32)));
    let scaled = r#"{"class_name": "PolicyV1", "config": {"name": "mixed_float16", "loss_scale":
        {"class_name": "DynamicLossScale", "config": {"initial_loss_scale": 32768.0, "increment_period": 2000, "multiplier": 2.0}}}}"#;
    assert_eq!(dense(KERAS_2, scaled), Ok(mixed));
    assert_eq!(dense("", &named("DTypePolicy", "mixed_float16")), Ok(mixed));
    assert_eq!(dense("", &named("FloatDTypePolicy", "float16")), Ok((DType::F16, DType::F16)));
    assert_eq!(dense("", "null"), Ok((DType::F32, DType::F32)));
    let map = r#"{"class_name": "DTypePolicyMap", "config": {"default_policy": {"class_name": "DTypePolicy", "config":
        {"name": "float32"}}, "policy_map": {"d": {"class_name": "DTypePolicy", "config": {"name": "mixed_float16"}}}}}"#;
    assert_eq!(dense("", map), Ok(mixed));
}

#[test]
fn policies_that_are_refused_are_named() {
    let said = |dtype: &str| dense("", dtype).unwrap_err();
    for name in [
        "int8_from_float32",
        "int4/128_from_mixed_bfloat16",
        "float8_from_float32",
        "gptq/4/128_from_float32",
        "awq/4/128_from_float32",
    ] {
        let text = said(&format!("{name:?}"));
        assert!(
            text.contains(&format!(".dtype \"d\": the quantised dtype policy `{name}` is not supported")),
            "{text}"
        );
    }
    let text = said(r#"{"class_name": "QuantizedDTypePolicy", "config": {"mode": "int8", "source_name": "float32"}}"#);
    assert!(text.contains("the quantised dtype policy QuantizedDTypePolicy of mode `int8` is not supported"), "{text}");
    assert!(text.contains("as it was before `quantize`"), "{text}");
    let text = said(r#""complex64""#);
    assert!(
        text.contains("$.config.layers[1].config.dtype \"d\": the dtype policy \"complex64\" is not supported"),
        "{text}"
    );
    let text = said(r#"{"class_name": "MyPolicy", "config": {"name": "float32"}}"#);
    assert!(text.contains("is \"MyPolicy\"; accepted: DTypePolicy, Policy, DTypePolicyMap"), "{text}");
    let pattern = r#"{"class_name": "DTypePolicyMap", "config": {"default_policy": null, "policy_map":
        {"d/.*": {"class_name": "DTypePolicy", "config": {"name": "float16"}}}}}"#;
    let text = said(pattern);
    assert!(text.contains("the pattern `d/.*` in a map of dtype policies is not supported"), "{text}");
}

/// Keras counts low-rank factors and freezes the kernel; files hold the kernel merged. Counts by Keras 3.15.1.
#[test]
fn low_rank_factors_are_counted() {
    let json = r#"{"class_name": "Sequential", "keras_version": "2.9.0", "config": {"name": "m", "layers": [
        {"class_name": "InputLayer", "config": {"batch_input_shape": [null, 5, 8], "name": "x"}},
        {"class_name": "EinsumDense", "config": {"name": "e", "equation": "abc,cd->abd", "output_shape": [5, 6], "bias_axes": "d",
            "lora_rank": 3, "lora_alpha": 5}},
        {"class_name": "Conv1D", "config": {"name": "c", "filters": 4, "kernel_size": 3, "lora_rank": 2, "lora_alpha": 3}},
        {"class_name": "Flatten", "config": {"name": "f"}},
        {"class_name": "Dense", "config": {"name": "d", "units": 3, "lora_rank": 2}}]}}"#;
    let file = open_model_bytes(Path::new("m.json"), FileBytes::from(json.as_bytes().to_vec())).unwrap();
    let model = KerasModel::read(&file).unwrap();
    let options = ImportOptions { batch: 2, ..ImportOptions::default() };
    let vars = import(&model, Path::new("m.json"), &options).unwrap().vars;
    let factors: Vec<usize> = vars.parts.iter().map(|p| p.factors).collect();
    assert_eq!(factors, [96 - 54, 120 - 76, 0, 69 - 39]);
}
