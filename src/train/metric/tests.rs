//! Metrics against `tests/goldens/metrics.jsonl`: results of Keras 3.15.1 on TensorFlow after each of several batches.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain_ir::ops::Softmax;
use intwain_ir::scalar::Unary;
use intwain_ir::{Rows, Tensor, interp};

use super::*;
use crate::train::loss::logits_of;
use crate::train::loss::tests::{lines, numbers, tensor};

fn goldens() -> Vec<Json> {
    lines(include_str!("../../../tests/goldens/metrics.jsonl"))
}

/// The tensors of a batch: labels, what the activation is applied to, weights, mask.
type Batch = Vec<(&'static str, Tensor)>;

fn batch(at: &At<'_>) -> Batch {
    ["y_true", "x", "weight", "mask"].into_iter().filter_map(|key| Some((key, tensor(at.get(key)?.json)))).collect()
}

/// What a batch adds, summed over its rows.
fn added(metric: &Metric, activation: Option<&str>, batch: &Batch) -> Vec<Vec<f64>> {
    let mut g = Graph::new("metric");
    let values: Vec<(&str, Value)> =
        batch.iter().map(|(key, t)| (*key, g.input(key, t.ty.clone(), Rows::Batched))).collect();
    let find = |key: &str| values.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
    let x = find("x").unwrap();
    let y_pred = match activation {
        None => x,
        Some("softmax") => g.push(Softmax { dim: g.shape(x).len() - 1 }, &[x]).unwrap(),
        Some("sigmoid") => g.unary(Unary::Logistic, x).unwrap(),
        Some(other) => panic!("{other}"),
    };
    let of = Comparison {
        y_true: find("y_true").unwrap(),
        y_pred,
        logits: logits_of(&g, y_pred),
        mask: find("mask"),
        weight: find("weight"),
    };
    let made = metric.increments(&mut g, &of).unwrap();
    made.iter().enumerate().for_each(|(i, v)| g.output(&format!("increment{i}"), *v));
    let got = interp::run(&g, batch.iter().map(|(_, t)| t.clone()).collect()).unwrap();
    let rows = batch[0].1.ty.shape[0];
    let summed = |t: &Tensor| {
        let all = t.to_f64();
        if t.ty.shape.is_empty() {
            return all;
        }
        assert_eq!(t.ty.shape[0], rows, "dimension 0 counts rows");
        let width = all.len() / rows;
        (0..width).map(|i| (0..rows).map(|row| all[row * width + i]).sum()).collect()
    };
    got.iter().map(summed).collect()
}

fn add(sums: &mut Vec<Vec<f64>>, more: Vec<Vec<f64>>) {
    if sums.is_empty() {
        *sums = more;
    } else {
        sums.iter_mut().zip(&more).for_each(|(a, b)| a.iter_mut().zip(b).for_each(|(a, b)| *a += b));
    }
}

fn near(got: &[f64], want: &[f64]) -> bool {
    let close = |(a, b): (&f64, &f64)| (!b.is_finite() && !a.is_finite()) || (a - b).abs() <= 2e-6 * b.abs().max(1.0);
    got.len() == want.len() && got.iter().zip(want).all(close)
}

#[test]
fn results_are_those_of_keras() {
    let mut failed = Vec::new();
    for line in goldens() {
        let case = At::root(&line);
        let name = case.require("name").unwrap().str().unwrap();
        let metric = Metric::read(&case.require("metric").unwrap()).unwrap();
        let activation = case.get("activation").map(|at| at.str().unwrap());
        let batches = case.require("batches").unwrap().array().unwrap();
        let mut sums = Vec::new();
        for (at, want) in batches.iter().zip(case.require("results").unwrap().array().unwrap()) {
            add(&mut sums, added(&metric, activation, &batch(at)));
            let (got, want) = (metric.result(&sums), numbers(&want));
            if !near(got.numbers(), &want) {
                failed.push(format!("{name}: {:?}, not {want:?}", got.numbers()));
            }
        }
    }
    assert!(failed.is_empty(), "{} fail\n{}", failed.len(), failed.join("\n"));
}

/// Two devices with unequal parts of a batch have what one with the whole has.
#[test]
fn parts_of_a_batch_add_up() {
    for line in goldens() {
        let case = At::root(&line);
        let name = case.require("name").unwrap().str().unwrap();
        let metric = Metric::read(&case.require("metric").unwrap()).unwrap();
        let activation = case.get("activation").map(|at| at.str().unwrap());
        // What hinges do depends on all labels of a batch.
        if name.to_ascii_lowercase().contains("hinge") {
            continue;
        }
        let whole = batch(&case.require("batches").unwrap().array().unwrap()[0]);
        let part = |rows: std::ops::Range<usize>| -> Batch {
            whole.iter().map(|(key, t)| (*key, t.slice(0, rows.clone()))).collect()
        };
        let rows = whole[0].1.ty.shape[0];
        let mut sums = added(&metric, activation, &part(0..3));
        add(&mut sums, added(&metric, activation, &part(3..rows)));
        for (got, want) in sums.iter().zip(added(&metric, activation, &whole)) {
            assert!(near(got, &want), "{name}: {got:?}, not {want:?}");
        }
    }
}

#[test]
fn names_are_told_apart_as_keras_does() {
    let plain = |name| Listed { output: None, name };
    assert_eq!(
        reported(
            &[plain("mae"), plain("auc"), plain("mae"), plain("mae")],
            &[plain("mae"), plain("acc"), plain("mae")]
        ),
        ["mae", "auc", "mae_1", "mae_2", "weighted_mae", "acc", "weighted_mae_1"]
    );
    let of = |output, name| Listed { output: Some(output), name };
    assert_eq!(reported(&[of("a", "mae"), of("b", "mae")], &[of("a", "mae")]), ["a_mae", "b_mae", "a_weighted_mae"]);
}

#[test]
fn what_is_no_metric_is_refused() {
    let problem = |name: &str| Metric::named(name).unwrap_err().to_string();
    assert!(problem("mean").contains("it takes values"), "{}", problem("mean"));
    assert!(problem("accurcy").contains("accepted"), "{}", problem("accurcy"));
    let json = Json::parse(r#"{"class_name": "AUC", "config": {"num_thresholds": 10, "curv": "ROC"}}"#).unwrap();
    let error = Metric::read(&At::root(&json)).unwrap_err();
    assert!(error.to_string().contains("`curv`"), "{error}");
}

#[test]
fn what_keras_writes_is_read() {
    let name = |text: &str| Metric::read(&At::root(&Json::parse(text).unwrap())).unwrap().name().to_string();
    let auc = r#"{"module": "keras.metrics", "class_name": "AUC", "config": {"name": "auc_1", "dtype": "float32",
        "num_thresholds": 200, "curve": "ROC", "summation_method": "interpolation", "multi_label": false, "num_labels": null,
        "label_weights": null, "from_logits": false}, "registered_name": null}"#;
    assert_eq!(name(auc), "auc_1");
    let wrapped = r#"{"class_name": "MeanMetricWrapper", "config": {"name": "accuracy", "dtype": "float32",
        "fn": "sparse_categorical_accuracy"}}"#;
    assert_eq!(name(wrapped), "accuracy");
    let function =
        r#"{"module": "builtins", "class_name": "function", "config": "log_cosh", "registered_name": "function"}"#;
    assert_eq!(name(function), "log_cosh");
    let loss = r#"{"class_name": "Huber", "config": {"name": "huber_loss", "reduction": "sum_over_batch_size"}}"#;
    assert_eq!(name(loss), "huber_loss");
    let iou = r#"{"class_name": "MeanIoU", "config": {"num_classes": 2, "name": "iou", "dtype": "int32", "ignore_class": null,
        "sparse_y_true": true, "sparse_y_pred": true, "axis": -1}}"#;
    assert_eq!(name(iou), "iou");
    let mut names: Vec<&str> =
        table::ROWS.iter().flat_map(|row| row.names.iter().copied().chain([row.class, row.name])).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "a name is that of one metric: {names:?}");
}
