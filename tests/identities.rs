//! Identities of Keras's semantics that a division between devices breaks silently, with values that follow from arithmetic and, in the
//! comments, what the usual mistake gives. The mean over the whole batch, penalties, clipping and tied weights are in `training.rs`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::frontend::{At, Json};
use intwain::train::metric::Metric;
use intwain::train::pieces::Sums;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{Session, SessionOptions, Strategy, Tensor};
use intwain_ir::Layout;
use serde_json::json;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use support::training::{batch, layer, model, optimizer, plans, recipe, runs, sgd, state};

/// Whether a plan is for models of one channel in batches of other than five rows.
fn divides(options: &SessionOptions) -> bool {
    options.parts.is_none() && options.split != Some(Strategy::Tensor)
}

fn near(got: f64, want: f64) -> bool {
    (got - want).abs() <= 2e-6 * want.abs().max(1.0)
}

/// Batch normalisation takes the whole batch's statistics: 0, 0 | 10, 10 become ∓5/√25.001. Those of each device's rows are 0. Micro-batches
/// would take them apart.
#[test]
fn statistics_are_those_of_the_whole_batch() {
    let norm = layer("BatchNormalization", json!({"name": "n"}));
    let after = layer("Activation", json!({"name": "a", "activation": "linear"}));
    let m = model(&[None, Some(1)], &[norm, after], &[]);
    for (run, recipe, options) in runs(&["mse"], &sgd(0.0)) {
        if !divides(&options) {
            continue;
        }
        let takes_apart = recipe.micro_batches.is_some_and(|n| n.get() > 1);
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[4, 1], &[0.0, 0.0, 10.0, 10.0]), (&[4, 1], &[0.0; 4])));
        if takes_apart {
            let said = outcome.unwrap_err().to_string();
            assert!(said.contains("n/moving_mean") && said.contains("--bn micro-batch"), "{run}: {said}");
            continue;
        }
        let outcome = outcome.unwrap();
        assert!(near(outcome.loss, 25.0 / 25.001), "{run}: {}", outcome.loss);
        let (mean, variance) = (state(&mut trainer, "n/moving_mean")[0], state(&mut trainer, "n/moving_variance")[0]);
        assert!(near(mean, 0.05) && near(variance, 0.99 + 0.25), "{run}: {mean}, {variance}");
    }
}

/// A bias is added once, however the sum before it is divided: 1 + 1 + 10, not 1 + 10 + 1 + 10.
#[test]
fn a_bias_is_added_once() {
    let weights: &[(&str, &[usize], &[f32])] =
        &[("a/kernel", &[1, 2], &[1.0, 1.0]), ("b/kernel", &[2, 1], &[1.0, 1.0]), ("b/bias", &[1], &[10.0])];
    let a = layer("Dense", json!({"name": "a", "units": 2, "use_bias": false, "activation": "relu"}));
    let b = layer("Dense", json!({"name": "b", "units": 1}));
    let m = model(&[None, Some(1)], &[a, b], weights);
    for (run, recipe, options) in runs(&["mae"], &sgd(1.0)) {
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[5, 1], &[1.0; 5]), (&[5, 1], &[0.0; 5]))).unwrap();
        assert_eq!(outcome.loss, 12.0, "{run}");
        assert_eq!(state(&mut trainer, "b/bias"), [9.0], "{run}");
    }
}

/// A cross-entropy over divided classes: log Σ e^(1, 2, 3) − 3.
#[test]
fn a_cross_entropy_is_over_all_classes() {
    let weights: &[(&str, &[usize], &[f32])] =
        &[("h/kernel", &[1, 1], &[1.0]), ("d/kernel", &[1, 3], &[1.0, 2.0, 3.0]), ("d/bias", &[3], &[0.0; 3])];
    let hidden = layer("Dense", json!({"name": "h", "units": 1, "use_bias": false}));
    let dense = layer("Dense", json!({"name": "d", "units": 3, "activation": "softmax"}));
    let m = model(&[None, Some(1)], &[hidden, dense], weights);
    let want = (1f64.exp() + 2f64.exp() + 3f64.exp()).ln() - 3.0;
    for (run, recipe, options) in runs(&["sparse_categorical_crossentropy"], &sgd(1.0)) {
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[5, 1], &[1.0; 5]), (&[5, 1], &[2.0; 5]))).unwrap();
        assert!(near(outcome.loss, want), "{run}: {} instead of {want}", outcome.loss);
        let bias = state(&mut trainer, "d/bias");
        let p = |x: f64| x.exp() / (1f64.exp() + 2f64.exp() + 3f64.exp());
        let moved = [-p(1.0), -p(2.0), 1.0 - p(3.0)];
        assert!(bias.iter().zip(moved).all(|(b, w)| near(*b, w)), "{run}: {bias:?} instead of {moved:?}");
    }
}

/// One token with an error of 2 and nine with 10 each have the mean 9.2; the mean of the rows' means is 6.
#[test]
fn a_loss_is_a_mean_over_tokens_that_are_not_masked() {
    let mask = layer("Masking", json!({"name": "k", "mask_value": 0.0}));
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 1], &[1.0])];
    let dense = layer("Dense", json!({"name": "d", "units": 1, "use_bias": false}));
    let m = model(&[None, Some(9), Some(1)], &[mask, dense], weights);
    let (mut x, mut y) = (vec![0.0; 18], vec![7.0; 18]);
    (x[0], y[0]) = (1.0, 3.0);
    x[9..].fill(1.0);
    y[9..].fill(11.0);
    for (run, recipe, options) in runs(&["mae"], &sgd(1.0)) {
        if !divides(&options) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[2, 9, 1], &x), (&[2, 9, 1], &y))).unwrap();
        assert!(near(outcome.loss, 9.2), "{run}: {}", outcome.loss);
        assert!(near(state(&mut trainer, "d/kernel")[0], 2.0), "{run}");
    }
}

/// The mean of 0, …, 11 is 5.5, also where three rows lie 2 and 1 or all on one device.
#[test]
fn rows_that_do_not_divide_count_by_their_number() {
    let eye: Vec<f32> = (0..16).map(|i| if i % 5 == 0 { 1.0 } else { 0.0 }).collect();
    let dense = |name: &str| layer("Dense", json!({"name": name, "units": 4, "use_bias": false}));
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[4, 4], &eye), ("e/kernel", &[4, 4], &eye)];
    let m = model(&[None, Some(4)], &[dense("d"), dense("e")], weights);
    let x: Vec<f32> = (0..12u8).map(f32::from).collect();
    for (run, recipe, options) in runs(&["mae"], &sgd(0.0)) {
        for parts in [options.parts.map(|_| [2, 1]), options.parts.map(|_| [3, 0])] {
            let options = SessionOptions { parts, ..options.clone() };
            let mut trainer = Trainer::new(&m, recipe.clone(), options).unwrap();
            let outcome = trainer.step(&batch((&[3, 4], &x), (&[3, 4], &[0.0; 12]))).unwrap();
            assert_eq!(outcome.loss, 5.5, "{run}, {parts:?}");
            let outcome = trainer.evaluate(&batch((&[3, 4], &x), (&[3, 4], &[0.0; 12]))).unwrap();
            assert_eq!(outcome.loss, 5.5, "{run}, {parts:?}");
        }
    }
}

/// A batch of one row leaves the second device without any.
#[test]
fn a_batch_of_one_row_is_a_batch() {
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 1], &[0.0]), ("e/kernel", &[1, 1], &[1.0])];
    let dense = |name: &str| layer("Dense", json!({"name": name, "units": 1, "use_bias": false}));
    let m = model(&[None, Some(1)], &[dense("d"), dense("e")], weights);
    for (run, recipe, options) in runs(&["mse"], &sgd(1.0)) {
        if !divides(&options) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[1, 1], &[3.0]), (&[1, 1], &[6.0]))).unwrap();
        // d(36)/dw = −2 · 6 · 3.
        assert_eq!((outcome.loss, state(&mut trainer, "d/kernel")), (36.0, vec![36.0]), "{run}");
    }
}

/// Three rows in micro-batches of two and one, the one on one device: −2/3 Σ x·y with y = 2x and w = 0 is −56/3.
#[test]
fn a_micro_batch_of_one_row_lies_on_one_device() {
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 1], &[0.0])];
    let dense = layer("Dense", json!({"name": "d", "units": 1, "use_bias": false}));
    let m = model(&[None, Some(1)], &[dense], weights);
    for (plan, options) in plans() {
        for sums in [Sums::Free, Sums::Exact] {
            if !divides(&options) || options.split == Some(Strategy::Pipeline) {
                continue;
            }
            let micro_batches = NonZeroUsize::new(2);
            let recipe = Recipe { sums, micro_batches, ..recipe(&["mse"], sgd(1.0)) };
            let mut trainer = Trainer::new(&m, recipe, options.clone()).unwrap();
            let outcome = trainer.step(&batch((&[3, 1], &[1.0, 2.0, 3.0]), (&[3, 1], &[2.0, 4.0, 6.0]))).unwrap();
            assert!(near(outcome.loss, 56.0 / 3.0), "{plan}, {sums:?}: {}", outcome.loss);
            assert!(near(state(&mut trainer, "d/kernel")[0], 56.0 / 3.0), "{plan}, {sums:?}");
        }
    }
}

/// Counts are added up over devices and then divided: 2 of 11, not the mean of 1 of 1 and 1 of 10.
#[test]
fn a_metric_divides_what_all_devices_have_counted() {
    let dense = layer("Dense", json!({"name": "d", "units": 1, "use_bias": false}));
    let after = layer("Activation", json!({"name": "a", "activation": "linear"}));
    let m = model(&[None, Some(1)], &[dense, after], &[("d/kernel", &[1, 1], &[1.0])]);
    let json = Json::String("Precision".to_string());
    let metric = Metric::read(&At::root(&json)).unwrap();
    // Device 0: one of ten rows is said to be positive, rightly; device 1: all ten, one rightly.
    let (mut x, mut y) = ([1.0; 20], [0.0; 20]);
    x[1..10].fill(0.0);
    (y[0], y[10]) = (1.0, 1.0);
    for (plan, options) in plans() {
        if !divides(&options) {
            continue;
        }
        let mut recipe = recipe(&["mse"], sgd(0.0));
        recipe.objectives[0].metrics = vec![metric.clone()];
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.evaluate(&batch((&[20, 1], &x), (&[20, 1], &y))).unwrap();
        let counts: Vec<Vec<f64>> = outcome.metrics[0].iter().map(Tensor::to_f64).collect();
        let precision = metric.result(&counts);
        assert!(near(precision.numbers()[0], 2.0 / 11.0), "{plan}: {precision:?}");
    }
}

/// Rows of a table that several rows of the batch look up get the sum of their gradients.
#[test]
fn lookups_of_one_row_are_added_up() {
    let table: &[(&str, &[usize], &[f32])] = &[("e/embeddings", &[3, 1], &[0.0; 3])];
    let config = json!({"name": "e", "input_dim": 3, "output_dim": 1});
    let after = layer("Flatten", json!({"name": "f"}));
    let m = model(&[None, Some(1)], &[layer("Embedding", config), after], table);
    for (run, recipe, options) in runs(&["mae"], &sgd(1.0)) {
        if !divides(&options) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let data = Batch {
            inputs: vec![Tensor::from_f32([4, 1], &[1.0, 1.0, 2.0, 1.0])],
            labels: vec![Some(Tensor::from_f32([4, 1], &[5.0; 4]))],
            weights: vec![None],
        };
        trainer.step(&data).unwrap();
        assert_eq!(state(&mut trainer, "e/embeddings"), [0.0, 0.75, 0.25], "{run}");
    }
}

/// Each lookup of a row is a gradient of its own when it is clipped, as in TensorFlow: those of four rows that look up 1, 1, 2 and 1 are −¼
/// each, of norm ½. Of their sums the norm is √(10/16), and the largest ¾.
#[test]
fn lookups_are_clipped_one_by_one() {
    let table: &[(&str, &[usize], &[f32])] = &[("e/embeddings", &[3, 1], &[0.0; 3])];
    let config = json!({"name": "e", "input_dim": 3, "output_dim": 1});
    let after = layer("Flatten", json!({"name": "f"}));
    let m = model(&[None, Some(1)], &[layer("Embedding", config), after], table);
    for (key, limit, want) in [
        ("clipnorm", 0.25, [0.375, 0.125]),
        ("global_clipnorm", 0.25, [0.375, 0.125]),
        ("clipvalue", 0.125, [0.375, 0.125]),
    ] {
        let clipped = optimizer(json!({"class_name": "SGD", "config": {"learning_rate": 1.0, key: limit}}));
        for (run, recipe, options) in runs(&["mae"], &clipped) {
            if !divides(&options) {
                continue;
            }
            let mut trainer = Trainer::new(&m, recipe, options).unwrap();
            let data = Batch {
                inputs: vec![Tensor::from_f32([4, 1], &[1.0, 1.0, 2.0, 1.0])],
                labels: vec![Some(Tensor::from_f32([4, 1], &[5.0; 4]))],
                weights: vec![None],
            };
            trainer.step(&data).unwrap();
            let got = state(&mut trainer, "e/embeddings");
            assert!(near(got[1], want[0]) && near(got[2], want[1]) && got[0] == 0.0, "{key}, {run}: {got:?}");
        }
    }
}

/// What two devices have trained, one goes on with and has the same.
#[test]
fn states_are_the_same_wherever_they_are_kept() {
    let dense = |name: &str| layer("Dense", json!({"name": name, "units": 4, "activation": "tanh"}));
    let m = model(&[None, Some(4)], &[dense("d"), dense("e")], &[]);
    let adam = optimizer(json!({"class_name": "Adam", "config": {"learning_rate": 0.1}}));
    let x: Vec<f32> = (0..20u8).map(|i| f32::from(i) / 7.0).collect();
    let data = batch((&[5, 4], &x), (&[5, 4], &[0.5; 20]));
    for (plan, options) in plans() {
        let mut trainer = Trainer::new(&m, recipe(&["mse"], adam.clone()), options).unwrap();
        trainer.step(&data).unwrap();
        let kept: Vec<(String, Tensor)> =
            trainer.states().unwrap().iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
        for (other, options) in plans() {
            let mut next = Trainer::new(&m, recipe(&["mse"], adam.clone()), options).unwrap();
            next.compile(&data).unwrap();
            next.set_states(kept.iter().cloned()).unwrap();
            next.evaluate(&data).unwrap();
            let again: Vec<(String, Tensor)> =
                next.states().unwrap().iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
            assert!(again == kept, "{plan}, then {other}");
        }
    }
}

/// Gradients are scaled back before they are clipped, and one device's overflow makes no device take the step.
#[test]
fn one_device_s_overflow_stops_both() {
    let policy = json!({"module": "keras", "class_name": "DTypePolicy", "config": {"name": "mixed_float16"}});
    let dense = |name: &str| layer("Dense", json!({"name": name, "units": 1, "use_bias": false, "dtype": policy}));
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 1], &[1.0]), ("e/kernel", &[1, 1], &[1.0])];
    let m = model(&[None, Some(1)], &[dense("d"), dense("e")], weights);
    let scaled = optimizer(json!({"class_name": "LossScaleOptimizer", "config": {
        "initial_scale": 1024.0, "dynamic_growth_steps": 2,
        "inner_optimizer": {"class_name": "SGD", "config": {"learning_rate": 1.0, "clipnorm": 2.0}}}}));
    for (run, recipe, options) in runs(&["mae"], &scaled) {
        if !divides(&options) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        // 1024 · 300 / 4 is more than float16 holds; it comes from the last row, the second device's.
        let large = batch((&[4, 1], &[1.0, 1.0, 1.0, 3000.0]), (&[4, 1], &[-1e4; 4]));
        trainer.step(&large).unwrap();
        let scale = |t: &mut Trainer<'_>| state(t, "loss_scale_optimizer/dynamic_scale")[0];
        assert_eq!((scale(&mut trainer), state(&mut trainer, "d/kernel")), (512.0, vec![1.0]), "{run}");
        // A gradient of 1 is not clipped, what the scale makes of it would be.
        let small = batch((&[4, 1], &[1.0; 4]), (&[4, 1], &[-1e4; 4]));
        trainer.step(&small).unwrap();
        assert_eq!((scale(&mut trainer), state(&mut trainer, "d/kernel")), (512.0, vec![0.0]), "{run}");
        trainer.step(&small).unwrap();
        assert_eq!(scale(&mut trainer), 1024.0, "{run}");
    }
}

/// Rows that two devices have computed come back in their order, 3 of one and 2 of the other.
#[test]
fn rows_come_back_in_their_order() {
    let dense = layer("Dense", json!({"name": "d", "units": 1, "use_bias": false}));
    let after = layer("Activation", json!({"name": "a", "activation": "relu"}));
    let m = model(&[None, Some(1)], &[dense, after], &[("d/kernel", &[1, 1], &[1.0])]);
    let x = [5.0, 1.0, 4.0, 2.0, 3.0];
    for (plan, options) in plans().into_iter().filter(|(_, options)| options.split != Some(Strategy::Tensor)) {
        for rows in [5, 1, 0] {
            let mut session = Session::new(&m, options.clone()).unwrap();
            let inputs = BTreeMap::from([("x".to_string(), Tensor::from_f32([rows, 1], &x[..rows]))]);
            let outputs = session.run(&inputs).unwrap();
            assert_eq!(outputs[0].1.to_f64(), &x.map(f64::from)[..rows], "{plan}, {rows} rows");
        }
    }
}

/// A layer that keeps a state for each row of its batch, 2, in steps of training: each device keeps those of its rows.
#[test]
fn rows_of_a_stateful_layer_stay_on_their_device() {
    let config = json!({"name": "r", "units": 1, "activation": "linear", "use_bias": false, "stateful": true});
    let weights: &[(&str, &[usize], &[f32])] =
        &[("r/simple_rnn_cell/kernel", &[1, 1], &[1.0]), ("r/simple_rnn_cell/recurrent_kernel", &[1, 1], &[1.0])];
    let m = model(&[Some(2), Some(1), Some(1)], &[layer("SimpleRNN", config)], weights);
    for (plan, options) in plans().into_iter().filter(|(_, options)| divides(options)) {
        if options.split == Some(Strategy::Pipeline) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe(&["mae"], sgd(0.0)), options.clone()).unwrap();
        let rows = batch((&[2, 1, 1], &[1.0, 10.0]), (&[2, 1], &[0.0; 2]));
        for step in 1..4 {
            let loss = trainer.step(&rows).unwrap().loss;
            assert_eq!(loss, 5.5 * f64::from(step), "{plan}, step {step}: the state goes on");
        }
        let compiled = trainer.compile(&rows).unwrap();
        let kept = compiled.params.iter().find(|p| p.ty.shape[..] == [2, 1] && p.name.contains("state")).unwrap();
        let parts = matches!(&kept.layout, Layout::Split { dim: 0, sizes } if sizes[..] == [1, 1]);
        assert_eq!(parts, options.split == Some(Strategy::Data), "{plan}: {}", kept.layout);
    }
}

/// A batch that the file fixes is divided like any other, and other numbers of rows are refused by name.
#[test]
fn a_batch_that_the_file_fixes_is_divided() {
    let layers = ["a", "b"].map(|name| layer("Dense", json!({"name": name, "units": 2, "activation": "tanh"})));
    let m = model(&[Some(4), Some(1)], &layers, &[]);
    let rows = |n: usize| batch((&[n, 1], &vec![1.0; n]), (&[n, 2], &vec![0.0; 2 * n]));
    let mut losses = Vec::new();
    for (plan, options) in plans().into_iter().filter(|(_, options)| options.parts.is_none()) {
        let sums = if options.split == Some(Strategy::Tensor) { Sums::Free } else { Sums::Exact };
        let recipe = Recipe { sums, ..recipe(&["mse"], sgd(0.5)) };
        let mut trainer = Trainer::new(&m, recipe.clone(), options.clone()).unwrap();
        losses.push([0; 3].map(|_| trainer.step(&rows(4)).unwrap().loss));
        let worst = losses[0].iter().zip(&losses[losses.len() - 1]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst <= if sums == Sums::Exact { 0.0 } else { 1e-6 }, "{plan}: {losses:?}");
        let said = trainer.step(&rows(3)).unwrap_err().to_string();
        assert!(said.contains("4 rows by its file") && said.contains("--batch 4"), "{said}");
        let recipe = Recipe { micro_batches: NonZeroUsize::new(2), sums: Sums::Free, ..recipe };
        let twice = Trainer::new(&m, recipe, options).unwrap().step(&rows(8)).unwrap();
        assert!(near(twice.loss, losses[0][0]), "{plan}");
    }
}
