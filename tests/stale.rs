//! Gradients that are applied some steps later: values of a recurrence in f64, under every plan.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::train::optimizer::Optimizer;
use intwain::train::pieces::Sums;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{SessionOptions, Strategy, Tensor};
use serde_json::{Value, json};
use support::training::{batch, layer, model, optimizer, plans, recipe, runs, state};

/// Two equal columns w of y = max(w·x, 0), which stay positive, judged by their mean square against 0: dL/dw = w·mean(x²) for each.
fn columns(w: f32) -> intwain::Model {
    let dense = layer("Dense", json!({"name": "d", "units": 2, "use_bias": false}));
    let after = layer("Activation", json!({"name": "e", "activation": "relu"}));
    model(&[None, Some(1)], &[dense, after], &[("d/kernel", &[1, 2], &[w, w])])
}

/// Rows whose mean square is 2.
fn rows() -> Batch {
    batch((&[5, 1], &[1.0, 2.0, 1.0, 2.0, 0.0]), (&[5, 2], &[0.0; 10]))
}

/// Gradient descent with momentum on w ↦ w², whose update takes the gradient of `staleness` steps before: w after every step.
fn delayed(staleness: usize, rate: f64, momentum: f64, steps: usize) -> Vec<f64> {
    let (mut w, mut velocity) = (1.0f64, 0.0);
    let (mut gradients, mut path) = (Vec::new(), Vec::new());
    for step in 0..steps {
        gradients.push(2.0 * w);
        if step >= staleness {
            velocity = momentum * velocity - rate * gradients[step - staleness];
            w += velocity;
        }
        path.push(w);
    }
    path
}

fn momentum() -> Value {
    json!({"class_name": "SGD", "config": {"learning_rate": 0.03125, "momentum": 0.5}})
}

#[test]
fn updates_take_the_gradients_of_so_many_steps_before() {
    let m = columns(1.0);
    for (run, recipe, options) in runs(&["mse"], &optimizer(momentum())) {
        for staleness in [0, 1, 3] {
            let recipe = Recipe { staleness, ..recipe.clone() };
            let mut trainer = Trainer::new(&m, recipe, options.clone()).unwrap();
            for (step, want) in delayed(staleness, 0.03125, 0.5, 7).into_iter().enumerate() {
                trainer.step(&rows()).unwrap();
                let w = state(&mut trainer, "d/kernel");
                assert!(
                    (w[0] - want).abs() < 1e-6 && w[1] == w[0],
                    "{run}, staleness {staleness}, step {step}: {w:?}, {want}"
                );
            }
            let iterations = state(&mut trainer, "sgd/iteration");
            assert_eq!(iterations, [(7 - staleness) as f64], "{run}: a step without an update does not count");
        }
    }
}

#[test]
fn a_scale_that_changes_meanwhile_changes_nothing() {
    // The scale doubles in every step, so that a gradient is applied under another scale than it was made under.
    let scaled = json!({"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": momentum(), "initial_scale": 16.0,
        "dynamic_growth_steps": 1}});
    let m = columns(1.0);
    for (plan, options) in plans() {
        let recipe = Recipe { staleness: 2, ..recipe(&["mse"], optimizer(scaled.clone())) };
        let mut trainer = Trainer::new(&m, recipe, options).unwrap();
        for want in delayed(2, 0.03125, 0.5, 6) {
            trainer.step(&rows()).unwrap();
            let w = state(&mut trainer, "d/kernel");
            assert!((w[0] - want).abs() < 1e-6, "{plan}: {w:?}, {want}");
        }
    }
}

/// Losses and states after some steps of noise, with exact sums.
fn trained(options: SessionOptions, optimizer: Optimizer, steps: usize) -> (Vec<f64>, Vec<Vec<f64>>) {
    let layers = [
        layer("Dense", json!({"name": "a", "units": 6, "activation": "tanh"})),
        layer("Dropout", json!({"name": "b", "rate": 0.25})),
        layer("Dense", json!({"name": "c", "units": 3})),
    ];
    let m = model(&[None, Some(4)], &layers, &[]);
    let recipe = Recipe { staleness: 2, sums: Sums::Exact, ..recipe(&["mse"], optimizer) };
    let mut trainer = Trainer::new(&m, recipe, options).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let x: Vec<f32> = (0..64).map(|i| ((i * 7 + step * 5) % 19) as f32 / 9.0 - 1.0).collect();
        let y: Vec<f32> = (0..48).map(|i| ((i * 5 + step * 3) % 17) as f32 / 8.0 - 1.0).collect();
        losses.push(trainer.step(&batch((&[16, 4], &x), (&[16, 3], &y))).unwrap().loss);
    }
    (losses, trainer.states().unwrap().values().map(Tensor::to_f64).collect())
}

#[test]
fn two_devices_give_the_bits_of_one() {
    let adam = json!({"class_name": "Adam", "config": {"learning_rate": 0.01, "global_clipnorm": 0.5}});
    let whole = trained(plans().remove(0).1, optimizer(adam.clone()), 6);
    assert!(whole.0.windows(2).all(|pair| pair[0] != pair[1]));
    let exact = |split| matches!(split, Some(Strategy::Data | Strategy::Pipeline));
    let splits = plans().into_iter().filter(|(_, options)| exact(options.split) && options.parts.is_none());
    let sharded = splits.clone().filter(|(_, options)| options.split == Some(Strategy::Data)).map(|(_, options)| {
        let sharding = intwain::Sharding { whole_below: 0, ..intwain::StateSharding::Gradients.into() };
        ("data in parts", SessionOptions { sharding, ..options })
    });
    for (plan, options) in splits.clone().chain(sharded) {
        assert_eq!(trained(options, optimizer(adam.clone()), 6), whole, "{plan}");
    }
}

#[test]
fn gradients_that_wait_are_kept_with_the_states() {
    let m = columns(1.0);
    let recipe = Recipe { staleness: 2, ..recipe(&["mse"], optimizer(momentum())) };
    let options = plans().remove(0).1;
    let mut first = Trainer::new(&m, recipe.clone(), options.clone()).unwrap();
    for _ in 0..3 {
        first.step(&rows()).unwrap();
    }
    let states: Vec<(String, Tensor)> =
        first.states().unwrap().iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    assert!(states.iter().any(|(name, _)| name == "@staleness/2/d/kernel"), "{states:?}");
    let mut second = Trainer::new(&m, recipe, options).unwrap();
    second.prepare(&rows()).unwrap();
    second.set_states(states).unwrap();
    for want in &delayed(2, 0.03125, 0.5, 6)[3..] {
        second.step(&rows()).unwrap();
        let w = state(&mut second, "d/kernel");
        assert!((w[0] - want).abs() < 1e-6, "{w:?}, {want}");
    }
}
