//! What training on two devices must share with one: identities with values that follow from arithmetic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::train::hook::WithGradients;
use intwain::train::pieces::Sums;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use std::num::NonZeroUsize;

use intwain::{DeviceKind, Devices, Model, SessionOptions, Strategy, Tensor};
use intwain_ir::scalar::{Compare, Reduce};
use serde_json::json;
use support::training::{batch, layer, model, opened, optimizer, plans, recipe, runs, sgd, state};

#[test]
fn the_mean_is_over_the_whole_batch_whatever_a_device_s_share() {
    // y = 2x and w = 0: dL/dw = −2/5 Σ x·y = −44. The mean of two devices' means would be −50.333.
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 2], &[0.0, 0.0])];
    let dense = layer("Dense", json!({"name": "d", "units": 2, "use_bias": false}));
    let m = model(&[None, Some(1)], &[dense], weights);
    for (plan, recipe, options) in runs(&["mse"], &sgd(1.0)) {
        // One layer cannot be cut in two.
        if options.split == Some(Strategy::Pipeline) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let x = [1.0, 2.0, 3.0, 4.0, 5.0];
        let y: Vec<f32> = x.iter().flat_map(|x| [2.0 * x, 2.0 * x]).collect();
        let outcome = trainer.step(&batch((&[5, 1], &x), (&[5, 2], &y))).unwrap();
        assert_eq!(outcome.loss, 44.0, "{plan}");
        // Each of the two columns takes part in half of the mean.
        assert_eq!(state(&mut trainer, "d/kernel"), [22.0, 22.0], "{plan}");
    }
}

#[test]
fn a_penalty_on_a_weight_counts_once() {
    // Zero data leave the penalty's gradient 2 · 0.01 · w = 0.02.
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[1, 2], &[1.0, 1.0])];
    let l2 = json!({"class_name": "L2", "config": {"l2": 0.01}});
    let dense = layer("Dense", json!({"name": "d", "units": 2, "use_bias": false, "kernel_regularizer": l2}));
    let after = layer("Activation", json!({"name": "e", "activation": "tanh"}));
    let m = model(&[None, Some(1)], &[dense, after], weights);
    for (run, recipe, options) in runs(&["mse"], &sgd(1.0)) {
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        let outcome = trainer.step(&batch((&[5, 1], &[0.0; 5]), (&[5, 2], &[0.0; 10]))).unwrap();
        assert!((outcome.loss - 0.02).abs() < 1e-9, "{run}: {}", outcome.loss);
        let want = f64::from(1.0f32 - 0.02f32);
        assert_eq!(state(&mut trainer, "d/kernel"), [want, want], "{run}");
    }
}

#[test]
fn gradients_are_clipped_after_they_are_summed() {
    // Gradients of the rows' parts point in different directions; of the mean, [2, 3] has the norm √13.
    let weights: &[(&str, &[usize], &[f32])] = &[("d/kernel", &[2, 1], &[0.0, 0.0])];
    let dense = layer("Dense", json!({"name": "d", "units": 1, "use_bias": false}));
    let m = model(&[None, Some(2)], &[dense], weights);
    let clipped = json!({"class_name": "SGD", "config": {"learning_rate": 1.0, "clipnorm": 1.0}});
    for (run, recipe, options) in runs(&["mse"], &optimizer(clipped)) {
        if options.split == Some(Strategy::Pipeline) || options.split == Some(Strategy::Tensor) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        // dL/dw = −2/5 Σ y·x = [−2, −3] with y = 1 and Σ x = [5, 7.5].
        let x = [5.0, 0.0, 0.0, 7.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        trainer.step(&batch((&[5, 2], &x), (&[5, 1], &[1.0; 5]))).unwrap();
        let w = state(&mut trainer, "d/kernel");
        assert!((w[0] - 0.5547).abs() < 1e-4 && (w[1] - 0.83205).abs() < 1e-4, "{run}: {w:?}");
    }
}

#[test]
fn a_weight_of_both_segments_gets_both_gradients() {
    // y = w·w·x with a shared layer: dy/dw = 2·w·x = 12 for w = 2, x = 3.
    let dense = json!({"class_name": "Dense", "name": "d", "config": {"name": "d", "units": 1, "use_bias": false},
        "inbound_nodes": [[["x", 0, 0, {}]], [["a", 0, 0, {}]]]});
    let middle = json!({"class_name": "Activation", "name": "a", "config": {"name": "a", "activation": "linear"},
        "inbound_nodes": [[["d", 0, 0, {}]]]});
    let input = json!({"class_name": "InputLayer", "name": "x", "inbound_nodes": [],
        "config": {"batch_input_shape": [null, 1], "name": "x", "dtype": "float32"}});
    let config = json!({"class_name": "Functional", "keras_version": "2.15.0", "backend": "tensorflow",
        "config": {"name": "m", "layers": [input, dense, middle], "input_layers": [["x", 0, 0]], "output_layers": [["d", 1, 0]]}});
    let m = opened(&config, &[("d/kernel", &[1, 1], &[2.0])]);
    for (run, recipe, options) in runs(&["mae"], &sgd(1.0)) {
        if options.split == Some(Strategy::Tensor) {
            continue;
        }
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        // Labels far above: the gradient of the mean absolute error is −1 for each row.
        trainer.step(&batch((&[5, 1], &[3.0; 5]), (&[5, 1], &[1e6; 5]))).unwrap();
        assert_eq!(state(&mut trainer, "d/kernel"), [14.0], "{run}");
    }
}

/// Rows of numbers that follow no pattern.
fn noise(shape: &[usize], seed: u64) -> Tensor {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| next()).collect();
    Tensor::from_f32(shape, &values)
}

/// Losses and weights after some steps.
fn trained(
    m: &Model,
    recipe: Recipe,
    options: SessionOptions,
    batch: usize,
    classes: usize,
) -> (Vec<u64>, Vec<Vec<u8>>) {
    let mut trainer = Trainer::new(m, recipe, options).unwrap();
    let shape: Vec<usize> =
        m.graph(1).unwrap().inputs().next().map(|p| m.graph(1).unwrap().shape(p.value).to_vec()).unwrap();
    let mut losses = Vec::new();
    for step in 0..4 {
        let mut rows = shape.clone();
        rows[0] = batch;
        let data = Batch {
            inputs: vec![noise(&rows, step)],
            labels: vec![Some(noise(&[batch, classes], step + 100))],
            weights: vec![None],
        };
        losses.push(trainer.step(&data).unwrap().loss.to_bits());
    }
    (losses, trainer.states().unwrap().values().map(|t| t.data.clone()).collect())
}

#[test]
fn one_device_two_devices_and_pipelines_give_the_same_bits() {
    let conv = layer("Conv2D", json!({"name": "c", "filters": 5, "kernel_size": [3, 3], "activation": "relu"}));
    let pool = layer("MaxPooling2D", json!({"name": "p", "pool_size": [2, 2]}));
    let flat = layer("Flatten", json!({"name": "f"}));
    let drop = layer("Dropout", json!({"name": "o", "rate": 0.5}));
    let dense = layer("Dense", json!({"name": "d", "units": 3, "activation": "softmax"}));
    let m = model(&[None, Some(8), Some(7), Some(2)], &[conv, pool, flat, drop, dense], &[]);
    let adam = optimizer(json!({"class_name": "Adam", "config": {"learning_rate": 0.01, "global_clipnorm": 1.0}}));
    let exact = |micro_batches| Recipe { sums: Sums::Exact, micro_batches, ..recipe(&["mse"], adam.clone()) };
    let on = |devices: u32, split: Option<Strategy>, parts: Option<[usize; 2]>| SessionOptions {
        devices: Devices::new(DeviceKind::Cpu, 0..devices).unwrap(),
        threads: Some(1),
        split,
        parts,
        ..SessionOptions::default()
    };
    for (batch, parts) in [(16, vec![[8, 8], [10, 6]]), (5, vec![[3, 2]])] {
        let want = trained(&m, exact(None), on(1, None, None), batch, 3);
        for parts in parts {
            let got = trained(&m, exact(None), on(2, Some(Strategy::Data), Some(parts)), batch, 3);
            assert!(got == want, "batch {batch} divided {parts:?}: {:?} {:?}", got.0, want.0);
        }
        for pieces in [2, 4, 8] {
            let got = trained(&m, exact(NonZeroUsize::new(pieces)), on(2, Some(Strategy::Pipeline), None), batch, 3);
            assert!(got == want, "batch {batch} in {pieces} micro-batches: {:?} {:?}", got.0, want.0);
        }
    }
}

#[test]
fn a_function_of_the_user_s_sees_the_gradient_of_the_whole_batch() {
    // y = 2x and w = 0: the gradients are −22 for each of two columns. What the function gives instead is applied, and with a loss
    // scale it sees them unscaled.
    let weights: &[(&str, &[usize], &[f32])] =
        &[("d/kernel", &[1, 2], &[0.0, 0.0]), ("e/kernel", &[2, 2], &[1.0, 0.0, 0.0, 1.0])];
    let dense = layer("Dense", json!({"name": "d", "units": 2, "use_bias": false}));
    let after = layer("Dense", json!({"name": "e", "units": 2, "use_bias": false, "trainable": false}));
    let m = model(&[None, Some(1)], &[dense, after], weights);
    let halved = WithGradients::new(|g, gradients| {
        assert_eq!(gradients.iter().map(|of| of.path).collect::<Vec<_>>(), ["d/kernel"]);
        let of = gradients[0];
        // A step function of the whole gradient: −22 is below −20, while neither device's part is.
        let ty = g.ty(of.value).clone();
        let (bound, half, none) =
            (g.full(ty.dtype, -20.0, &ty.shape)?, g.full(ty.dtype, 0.5, &ty.shape)?, g.full(ty.dtype, 0.0, &ty.shape)?);
        let below = g.compare(Compare::Lt, of.value, bound)?;
        let scaled = g.mul(of.value, half)?;
        Ok(vec![g.select(below, scaled, none)?])
    });
    let scaled = json!({"class_name": "LossScaleOptimizer", "config": {"initial_scale": 1024.0,
        "inner_optimizer": {"class_name": "SGD", "config": {"learning_rate": 1.0}}}});
    for optimizer in [sgd(1.0), optimizer(scaled)] {
        for (run, recipe, options) in runs(&["mse"], &optimizer) {
            let recipe = Recipe { with_gradients: Some(halved.clone()), ..recipe };
            let mut trainer = Trainer::new(&m, recipe, options).unwrap();
            let x = [1.0, 2.0, 3.0, 4.0, 5.0];
            let y: Vec<f32> = x.iter().flat_map(|x| [2.0 * x, 2.0 * x]).collect();
            trainer.step(&batch((&[5, 1], &x), (&[5, 2], &y))).unwrap();
            assert_eq!(state(&mut trainer, "d/kernel"), [11.0, 11.0], "{run}");
        }
    }
    let wrong = WithGradients::new(|g, gradients| Ok(vec![g.reduce(Reduce::Sum, gradients[0].value, &[0])?]));
    let recipe = Recipe { with_gradients: Some(wrong), ..recipe(&["mse"], sgd(1.0)) };
    let mut trainer = Trainer::new(&m, recipe, plans().remove(0).1).unwrap();
    let said = trainer.step(&batch((&[5, 1], &[1.0; 5]), (&[5, 2], &[1.0; 10]))).unwrap_err().to_string();
    assert!(said.contains("d/kernel") && said.contains("f32[2]") && said.contains("f32[1, 2]"), "{said}");
}
