//! Batch normalisation by the statistics of each device's rows: values that follow from arithmetic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::train::pieces::Sums;
use intwain::train::trainer::{Batch, Normalisation, Recipe, TrainError, Trainer};
use intwain::{DeviceKind, Devices, Model, SessionOptions, Strategy};
use serde_json::json;
use std::num::NonZeroUsize;
use support::training::{batch, layer, model, recipe, sgd, state};

const EPSILON: f64 = 1e-3;

/// A Dense layer that passes its one feature on, and a normalisation.
fn normalised() -> Model {
    let layers = [
        layer("Dense", json!({"name": "d", "units": 1, "use_bias": false})),
        layer("BatchNormalization", json!({"name": "n", "momentum": 0.9, "epsilon": EPSILON})),
    ];
    model(
        &[None, Some(1)],
        &layers,
        &[
            ("d/kernel", &[1, 1], &[1.0]),
            ("n/gamma", &[1], &[3.0]),
            ("n/beta", &[1], &[0.5]),
            ("n/moving_mean", &[1], &[1.0]),
            ("n/moving_variance", &[1], &[2.0]),
        ],
    )
}

fn two(split: Strategy, parts: Option<[usize; 2]>) -> SessionOptions {
    let devices = Devices::new(DeviceKind::Cpu, 0..2).unwrap();
    SessionOptions { devices, threads: Some(1), split: Some(split), parts, ..SessionOptions::default() }
}

/// Rows judged against 0.
fn rows(x: &[f32]) -> Batch {
    batch((&[x.len(), 1], x), (&[x.len(), 1], &vec![0.0; x.len()]))
}

/// What groups of rows give: the mean square of 3·(x − μ)/√(σ² + ε) + 0.5, and the mean of the groups' means and variances.
fn expected(groups: &[&[f64]]) -> (f64, f64, f64) {
    let (mut squares, mut means, mut variances, mut count) = (0.0, 0.0, 0.0, 0.0);
    for group in groups {
        let n = group.len() as f64;
        let mean = group.iter().sum::<f64>() / n;
        let variance = group.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        squares += group.iter().map(|x| (3.0 * (x - mean) / (variance + EPSILON).sqrt() + 0.5).powi(2)).sum::<f64>();
        (means, variances, count) = (means + mean, variances + variance, count + n);
    }
    let share = 1.0 / groups.len() as f64;
    (squares / count, means * share, variances * share)
}

/// The loss and the moving statistics after a step that changes no weight.
fn stepped(recipe: Recipe, options: SessionOptions, x: &[f32]) -> Result<[f64; 3], Box<TrainError>> {
    let m = normalised();
    let mut trainer = Trainer::new(&m, recipe, options)?;
    let loss = trainer.step(&rows(x))?.loss;
    Ok([loss, state(&mut trainer, "n/moving_mean")[0], state(&mut trainer, "n/moving_variance")[0]])
}

fn check(what: &str, got: [f64; 3], (loss, mean, variance): (f64, f64, f64)) {
    let want = [loss, 0.9 + 0.1 * mean, 1.8 + 0.1 * variance];
    for (got, want) in got.iter().zip(want) {
        assert!((got - want).abs() < 1e-5 * want.abs().max(1.0), "{what}: {got} in the place of {want}");
    }
}

fn by_device(sums: Sums) -> Recipe {
    Recipe { normalisation: Normalisation::Device, sums, ..recipe(&["mse"], sgd(0.0)) }
}

#[test]
fn each_device_normalises_its_rows() {
    let x = [0.0, 2.0, 1.0, 5.0, 10.0, 14.0, 11.0, 30.0];
    let wide = x.map(f64::from);
    for sums in [Sums::Free, Sums::Exact] {
        let want = expected(&[&wide[..4], &wide[4..]]);
        for parts in [None, Some([4, 4])] {
            check("two devices", stepped(by_device(sums), two(Strategy::Data, parts), &x).unwrap(), want);
        }
        check("one device for both", stepped(by_device(sums), two(Strategy::One, None), &x).unwrap(), want);
        let one = SessionOptions { devices: Devices::one(DeviceKind::Cpu), split: None, ..two(Strategy::One, None) };
        check("one device", stepped(by_device(sums), one, &x).unwrap(), expected(&[&wide]));
    }
}

#[test]
fn rows_that_are_left_are_divided_too() {
    // 2 and 1 rows, and a single one: the second device has none.
    let x = [0.0, 2.0, 7.0];
    for sums in [Sums::Free, Sums::Exact] {
        let data = two(Strategy::Data, None);
        check("three rows", stepped(by_device(sums), data.clone(), &x).unwrap(), expected(&[&[0.0, 2.0], &[7.0]]));
        check("one row", stepped(by_device(sums), data, &x[2..]).unwrap(), expected(&[&[7.0]]));
    }
}

#[test]
fn micro_batches_are_divided_one_by_one() {
    // The second micro-batch updates what the first has left.
    let x = [0.0, 2.0, 1.0, 5.0, 10.0, 14.0, 11.0, 30.0];
    let wide = x.map(f64::from);
    let recipe = Recipe { micro_batches: NonZeroUsize::new(2), ..by_device(Sums::Free) };
    let [first, second] = [expected(&[&wide[..2], &wide[2..4]]), expected(&[&wide[4..6], &wide[6..]])];
    let [loss, mean, variance] = stepped(recipe, two(Strategy::Data, None), &x).unwrap();
    assert!((loss - (first.0 + second.0) / 2.0).abs() < 1e-5, "{loss}");
    assert!((mean - (0.81 + 0.09 * first.1 + 0.1 * second.1)).abs() < 1e-5, "{mean}");
    assert!((variance - (1.62 + 0.09 * first.2 + 0.1 * second.2)).abs() < 1e-4, "{variance}");
}

#[test]
fn statistics_of_a_device_are_not_exchanged() {
    let x = [0.0, 2.0, 1.0, 5.0, 10.0, 14.0, 11.0, 30.0];
    let exchanges = |normalisation| {
        let m = normalised();
        let recipe = Recipe { normalisation, ..recipe(&["mse"], sgd(0.1)) };
        let mut trainer = Trainer::new(&m, recipe, two(Strategy::Data, None)).unwrap();
        let compiled = trainer.compile(&rows(&x)).unwrap();
        assert_eq!(compiled.plan.strategy, Strategy::Data);
        compiled.locals[0].nodes.values().filter(|node| node.op.is_communication()).count()
    };
    // The loss, gradients of kernel, gamma and beta, and for the moving statistics a mean and a variance of each device, which
    // nothing waits for.
    assert_eq!(exchanges(Normalisation::Device), 6);
    // The gradient passes through the statistics of the batch.
    assert!(exchanges(Normalisation::Global) > 6);
}

#[test]
fn unequal_parts_and_other_splits_are_refused() {
    let x = [0.0; 8];
    for (options, what) in [
        (two(Strategy::Data, Some([5, 3])), "5 and 3 rows are unequal parts"),
        (two(Strategy::Tensor, None), "the split is `tensor`"),
        (two(Strategy::Pipeline, None), "use --split data"),
        (SessionOptions { split: None, ..two(Strategy::Data, None) }, "no split is named"),
    ] {
        let problem = stepped(by_device(Sums::Free), options, &x).unwrap_err().to_string();
        assert!(problem.contains("--bn device") && problem.contains(what), "{problem}");
    }
}
