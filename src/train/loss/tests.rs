//! Losses against `tests/goldens/losses.jsonl`: values and gradients of Keras 3.15.1 on TensorFlow.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain_ir::ops::Softmax;
use intwain_ir::scalar::{Compare, Reduce};
use intwain_ir::{DType, Rows, Shape, Tensor, grad, interp};

use super::*;

/// A tensor as the goldens write it; null is NaN.
pub(crate) fn tensor(json: &Json) -> Tensor {
    let at = At::root(json);
    let dtype = match at.require("dtype").unwrap().str().unwrap() {
        "bool" => DType::Bool,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float32" => DType::F32,
        "float64" => DType::F64,
        other => panic!("{other}"),
    };
    let shape: Vec<usize> = at.require("shape").unwrap().array().unwrap().iter().map(|d| d.usize().unwrap()).collect();
    Tensor::from_f64(dtype, shape, &numbers(&at.require("data").unwrap()))
}

pub(crate) fn numbers(at: &At<'_>) -> Vec<f64> {
    at.array().unwrap().iter().map(|x| x.any_f64().unwrap_or(f64::NAN)).collect()
}

/// The lines of a file of goldens.
pub(crate) fn lines(text: &str) -> Vec<Json> {
    text.lines().map(|line| Json::parse(line).unwrap()).collect()
}

fn goldens() -> Vec<Json> {
    lines(include_str!("../../../tests/goldens/losses.jsonl"))
}

/// The scalar that a step of training makes of terms.
pub(crate) fn total(g: &mut Graph, terms: Terms) -> Value {
    let all = |g: &mut Graph, x| {
        let dims: Vec<usize> = (0..g.shape(x).len()).collect();
        g.reduce(Reduce::Sum, x, &dims).unwrap()
    };
    let sum = all(g, terms.values);
    let (dtype, scalar) = (g.ty(sum).dtype, Shape::default());
    match terms.divisor {
        Divisor::One => sum,
        Divisor::Count => {
            let n = g.full(dtype, g.shape(terms.values).elements() as f64, &scalar).unwrap();
            g.div(sum, n).unwrap()
        }
        Divisor::Sum(by) => {
            let by = all(g, by);
            let (zero, one) = (g.full(dtype, 0.0, &scalar).unwrap(), g.full(dtype, 1.0, &scalar).unwrap());
            let none = g.compare(Compare::Eq, by, zero).unwrap();
            let safe = g.select(none, one, by).unwrap();
            let q = g.div(sum, safe).unwrap();
            g.select(none, zero, q).unwrap()
        }
    }
}

/// A golden case as a graph: the loss and its gradient, and the arguments.
fn graph(case: &At<'_>) -> (Graph, Vec<Tensor>) {
    let loss = Loss::read(&case.require("loss").unwrap()).unwrap();
    let mut g = Graph::new("loss");
    let mut args = Vec::new();
    let mut input = |g: &mut Graph, key: &str| -> Option<Value> {
        let t = tensor(case.get(key)?.json);
        let value = g.input(key, t.ty.clone(), Rows::Batched);
        args.push(t);
        Some(value)
    };
    let (y_true, x) = (input(&mut g, "y_true").unwrap(), input(&mut g, "x").unwrap());
    let (weight, mask) = (input(&mut g, "weight"), input(&mut g, "mask"));
    let y_pred = match case.get("activation").map(|at| at.str().unwrap()) {
        None => x,
        Some("softmax") => g.push(Softmax { dim: g.shape(x).len() - 1 }, &[x]).unwrap(),
        Some("sigmoid") => g.unary(Function1::Logistic, x).unwrap(),
        Some(other) => panic!("{other}"),
    };
    let of = Comparison { y_true, y_pred, logits: logits_of(&g, y_pred), mask, weight };
    let terms = loss.terms(&mut g, &of).unwrap();
    let loss = total(&mut g, terms);
    let one = g.full(g.ty(loss).dtype, 1.0, &Shape::default()).unwrap();
    let d = grad::backward(&mut g, &[(loss, one)], &[x]).unwrap()[0];
    let d = d.unwrap_or_else(|| g.full(g.ty(x).dtype, 0.0, &g.shape(x).clone()).unwrap());
    g.output("loss", loss);
    g.output("gradient", d);
    (g, args)
}

/// Whether a number is one of Keras's but for rounding, relative to the greatest of its kind.
fn near(got: f64, want: f64, scale: f64, within: f64) -> bool {
    !want.is_finite() || (got - want).abs() <= within * scale.max(want.abs())
}

#[test]
fn values_and_gradients_are_those_of_keras() {
    let mut failed = Vec::new();
    for line in goldens() {
        let case = At::root(&line);
        let name = case.require("name").unwrap().str().unwrap();
        let (g, args) = graph(&case);
        let got = interp::run(&g, args).unwrap();
        let rounding = if got[0].ty.dtype == DType::F64 { 1e-13 } else { 1e-5 };
        let within = case.get("within").map_or(rounding, |at| at.f64().unwrap());
        let value = case.require("value").unwrap();
        let (value, gradient) = (value.any_f64().unwrap_or(f64::NAN), numbers(&case.require("grad").unwrap()));
        let scale = |all: &[f64]| all.iter().filter(|x| x.is_finite()).fold(1e-3, |m: f64, x| m.max(x.abs()));
        if !near(got[0].to_f64()[0], value, 1e-3, within) {
            failed.push(format!("{name}: {}, not {value}", got[0].to_f64()[0]));
        }
        let found = got[1].to_f64();
        let close = found.iter().zip(&gradient).all(|(a, b)| near(*a, *b, scale(&gradient), within));
        if !close || found.len() != gradient.len() {
            failed.push(format!("{name}: gradient {found:?}, not {gradient:?}"));
        }
    }
    assert!(failed.is_empty(), "{} fail\n{}", failed.len(), failed.join("\n"));
}

/// What a loss gives for one row of numbers.
fn value_of(loss: &str, y_true: &[f64], y_pred: &[f64]) -> f64 {
    let loss = Loss::read(&At::root(&document(loss))).unwrap();
    let mut g = Graph::new("loss");
    let row = |numbers: &[f64]| Tensor::from_f64(DType::F32, [1, numbers.len()], numbers);
    let args = vec![row(y_true), row(y_pred)];
    let [y_true, y_pred] = [0, 1].map(|i| g.input(&format!("y{i}"), args[i].ty.clone(), Rows::Batched));
    let of = Comparison { y_true, y_pred, logits: None, mask: None, weight: None };
    let terms = loss.terms(&mut g, &of).unwrap();
    let value = total(&mut g, terms);
    g.output("loss", value);
    interp::run(&g, args).unwrap()[0].to_f64()[0]
}

fn document(text: &str) -> Json {
    if text.starts_with('{') { Json::parse(text).unwrap() } else { Json::String(text.to_string()) }
}

#[test]
fn rules_that_are_often_got_wrong() {
    let smoothed = r#"{"class_name": "CategoricalCrossentropy", "config": {"label_smoothing": 0.1}}"#;
    let cases: [(&str, &[f64], &[f64], f64); 8] = [
        ("categorical_crossentropy", &[1.0, 0.0], &[0.2, 0.2], std::f64::consts::LN_2),
        ("categorical_crossentropy", &[1.0, 0.0], &[0.0, 1.0], 16.118095),
        ("sparse_categorical_crossentropy", &[0.0], &[0.0, 0.5], 15.424949),
        ("binary_crossentropy", &[1.0], &[0.0], 16.118095),
        ("binary_crossentropy", &[0.0], &[1.0], 15.942385),
        (smoothed, &[0.0, 1.0, 0.0], &[0.1, 0.8, 0.1], 0.361773),
        ("mape", &[0.0], &[1.0], 1e9),
        ("huber", &[0.0, 0.0], &[0.5, 3.0], 1.3125),
    ];
    for (loss, y_true, y_pred, want) in cases {
        let got = value_of(loss, y_true, y_pred);
        assert!((got - want).abs() <= 2e-6 * want.max(1.0), "{loss} of {y_pred:?} for {y_true:?}: {got}, not {want}");
    }
}

#[test]
fn what_keras_writes_is_read() {
    let name = |text: &str| Loss::read(&At::root(&document(text))).unwrap().name().to_string();
    assert_eq!(name("MSE"), "MSE");
    assert_eq!(name("MeanSquaredError"), "mean_squared_error");
    assert_eq!(name("CrossEntropy"), "CrossEntropy");
    let function =
        r#"{"module": "builtins", "class_name": "function", "config": "huber", "registered_name": "function"}"#;
    assert_eq!(name(function), "huber");
    // tf-keras names the function beside the class.
    let keras_2 = r#"{"class_name": "SparseCategoricalCrossentropy", "config": {"reduction": "auto", "name": "sparse",
        "from_logits": true, "ignore_class": null, "fn": "sparse_categorical_crossentropy"}}"#;
    assert_eq!(name(keras_2), "sparse");
    let wrapper = r#"{"class_name": "LossFunctionWrapper", "config": {"name": "mine", "reduction": "sum",
        "fn": {"class_name": "function", "config": "binary_crossentropy"}, "from_logits": true}}"#;
    let wrapper = Loss::read(&At::root(&document(wrapper))).unwrap();
    assert_eq!((wrapper.name(), wrapper.reduction()), ("mine", Reduction::Sum));
    let policy = r#"{"class_name": "Poisson", "config": {"reduction": null, "dtype": {"module": "keras",
        "class_name": "DTypePolicy", "config": {"name": "float32"}, "registered_name": null}}}"#;
    assert_eq!(Loss::read(&At::root(&document(policy))).unwrap().reduction(), Reduction::None);
}

#[test]
fn what_cannot_be_read_is_named() {
    let problem = |text: &str| {
        let error = Loss::read(&At::root(&document(text))).unwrap_err();
        format!("{error}; {}", error.help().unwrap_or_default())
    };
    let says = |text: &str, part: &str| assert!(problem(text).contains(part), "{}", problem(text));
    says("mean_squared_eror", "did you mean `mean_squared_error`?");
    says(r#"{"class_name": "Huber", "config": {"dlta": 1.0}}"#, "did you mean `delta`?");
    says(r#"{"class_name": "Custom>Mine", "config": {}}"#, "the model's own code");
    says(r#"{"class_name": "Poisson", "config": {"reduction": "average"}}"#, "$.config.reduction");
    says(r#"{"class_name": "Poisson", "config": {"dtype": "float16"}}"#, "computing it in 16 bits");
    says(r#"{"class_name": "CategoricalGeneralizedCrossEntropy", "config": {"q": 1.0}}"#, "between 0 and 1");
    says(r#"{"class_name": "BinaryCrossentropy", "config": {"fn": "poisson"}}"#, "binary_crossentropy");
}

#[test]
fn weights_that_fit_nothing_are_refused() {
    let mut g = Graph::new("loss");
    let mut input =
        |name: &str, shape: &[usize]| g.input(name, intwain_ir::Type::new(DType::F32, shape.to_vec()), Rows::Batched);
    let (y_true, y_pred, weight) = (input("t", &[3, 3, 2]), input("p", &[3, 3, 2]), input("w", &[3]));
    let of = Comparison { y_true, y_pred, logits: None, mask: None, weight: Some(weight) };
    // Not even where the extents agree, which Keras takes for weights of columns.
    let error = Loss::named("mse").unwrap().terms(&mut g, &of).unwrap_err();
    assert!(error.to_string().contains("sample weights or a mask of shape [3] for values of shape [3, 3]"), "{error}");
    let of = Comparison { y_true: weight, weight: None, ..of };
    let error = Loss::named("mse").unwrap().terms(&mut g, &of).unwrap_err();
    assert_eq!(error.to_string(), "mse: labels of shape [3] for predictions of shape [3, 3, 2]");
}

/// A line of `loss_shapes.jsonl` as a graph of the loss; an error where labels, predictions and weights do not fit.
fn of_shapes(loss: &str, shapes: [Option<Vec<usize>>; 3]) -> Result<f64, intwain_ir::ops::TypeError> {
    let element = [|i: usize| (i * 5 % 2) as f64, |i| (i * 7 % 11 + 1) as f64 / 12.0, |i| (i % 3 + 1) as f64 / 2.0];
    let mut g = Graph::new("loss");
    let mut args = Vec::new();
    let mut input = |g: &mut Graph, which: usize| -> Option<Value> {
        let shape = shapes[which].clone()?;
        let numbers: Vec<f64> = (0..shape.iter().product()).map(element[which]).collect();
        let t = Tensor::from_f64(DType::F32, shape, &numbers);
        let value = g.input(&format!("x{which}"), t.ty.clone(), Rows::Batched);
        args.push(t);
        Some(value)
    };
    let (y_true, y_pred, weight) = (input(&mut g, 0).unwrap(), input(&mut g, 1).unwrap(), input(&mut g, 2));
    let of = Comparison { y_true, y_pred, logits: None, mask: None, weight };
    let terms = Loss::named(loss).unwrap().terms(&mut g, &of)?;
    let value = total(&mut g, terms);
    g.output("loss", value);
    Ok(interp::run(&g, args).unwrap()[0].to_f64()[0])
}

#[test]
fn shapes_go_together_as_in_keras() {
    let mut failed = Vec::new();
    for line in lines(include_str!("../../../tests/goldens/loss_shapes.jsonl")) {
        let at = At::root(&line).array().unwrap();
        let loss = at[0].str().unwrap();
        let shape =
            |i: usize| (!at[i].is_null()).then(|| at[i].array().unwrap().iter().map(|d| d.usize().unwrap()).collect());
        let got = of_shapes(loss, [shape(1), shape(2), shape(3)]);
        let want = at[4].any_f64();
        match (&got, &want) {
            (Err(_), Err(_)) => {}
            // A class number that there is no class for.
            (Ok(got), Err(_)) if got.is_nan() => {}
            // Keras lays a vector along the last axis of what has three, beside other rows' elements.
            (Err(_), Ok(_)) if (1..4).any(|i| !at[i].is_null() && at[i].array().unwrap().len() == 3) => {}
            (Ok(got), Ok(want)) if (got - want).abs() <= 1e-5 * want.abs().max(1e-2) => {}
            _ => failed.push(format!("{line}: {got:?}")),
        }
    }
    assert!(failed.is_empty(), "{} fail\n{}", failed.len(), failed.join("\n"));
}
