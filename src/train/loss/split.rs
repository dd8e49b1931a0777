//! What two devices make of losses and metrics is what one makes of them, however unequal their parts.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Layout, Rows, Tensor, Trainable, Value, grad, interp};
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Catalogue;
use intwain_passes::place::{self, Strategy};
use intwain_passes::{Exact, Numerics, Timings};

use super::tests::total;
use super::{Comparison, Loss};
use crate::train::metric::Metric;
use crate::{driver, kernels, runtime};

/// A graph's outputs computed by two devices, those of one under the same numerics, and the layouts of the parameters.
struct Split {
    two: Vec<f64>,
    one: Vec<f64>,
    layouts: Vec<Layout>,
}

fn on_two(g: &Graph, args: &[Tensor], strategy: Strategy, parts: [usize; 2], numerics: Numerics) -> Split {
    let mut timings = Timings::default();
    let graph = driver::prepare(g.clone(), numerics, &mut timings, &mut |_, _| {}).unwrap();
    let of_name = |p: &intwain_ir::Param| args[g.params.iter().position(|q| q.name == p.name).unwrap()].clone();
    let one = interp::run(&graph, graph.params.iter().map(of_name).collect()).unwrap();
    let options = place::Options {
        strategy: Some(strategy),
        parts: Some(parts),
        survey: place::Survey::Asked,
        ..place::Options::default()
    };
    let hardware = Catalogue::built_in().get("2xh100-nvlink").unwrap();
    let plan = driver::plan(&graph, &hardware, options, &mut timings).unwrap();
    let target = kernels::target_of(runtime::DeviceKind::Cpu, crate::Precision::F32);
    let compiled = driver::lower(graph.clone(), plan, &*target, &mut timings, &mut |_, _| {}).unwrap();
    let interface = Interface::of(&compiled.explicit);
    let of = |local: &Graph| -> Vec<Tensor> {
        let arg = |p: &intwain_ir::Param| {
            let at = graph.params.iter().position(|q| q.name == p.name).unwrap();
            of_name(p).part(&interface.params[at], local.device)
        };
        local.params.iter().map(arg).collect()
    };
    let all = compiled.locals.iter().map(of).collect();
    let results = interp::run_devices(&compiled.locals, all).unwrap();
    let first = |o: &intwain_ir::Output| {
        let found = compiled.locals.iter().zip(&results).find_map(|(local, results)| {
            let at = local.outputs.iter().position(|l| l.name == o.name)?;
            Some(results[at].to_f64())
        });
        found.unwrap()
    };
    let two = graph.outputs.iter().flat_map(first).collect();
    Split { two, one: one.iter().flat_map(Tensor::to_f64).collect(), layouts: interface.params }
}

fn f32s(shape: &[usize], numbers: &[f64]) -> Tensor {
    Tensor::from_f64(DType::F32, shape.to_vec(), numbers)
}

/// A graph under construction, with arguments.
struct Made {
    g: Graph,
    args: Vec<Tensor>,
}

impl Made {
    fn new() -> Made {
        Made { g: Graph::new("split"), args: Vec::new() }
    }

    fn input(&mut self, name: &str, t: Tensor) -> Value {
        let value = self.g.input(name, t.ty.clone(), Rows::Batched);
        self.args.push(t);
        value
    }

    fn weight(&mut self, name: &str, t: Tensor) -> Value {
        let value = self.g.weight(name, t.ty.clone(), Trainable::Yes);
        self.args.push(t);
        value
    }

    fn loss(&mut self, name: &str, y_true: Value, y_pred: Value, mask: Option<Value>) -> Value {
        let of = Comparison { y_true, y_pred, logits: None, mask, weight: None };
        let terms = Loss::named(name).unwrap().terms(&mut self.g, &of).unwrap();
        total(&mut self.g, terms)
    }

    /// One device gives these numbers, and two give them; the layouts of the parameters. Where rows are divided, exact sums are
    /// the same to the bit.
    #[track_caller]
    fn check(&self, strategy: Strategy, parts: [usize; 2], want: &[f64]) -> Vec<Layout> {
        let free = on_two(&self.g, &self.args, strategy, parts, Numerics::Free);
        let exact = (strategy == Strategy::Data)
            .then(|| on_two(&self.g, &self.args, strategy, parts, Numerics::Exact(Exact::default())));
        for split in [Some(&free), exact.as_ref()].into_iter().flatten() {
            for got in [&split.one, &split.two] {
                let near =
                    got.len() == want.len() && got.iter().zip(want).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs());
                assert!(near, "{got:?}, not {want:?}");
            }
        }
        if let Some(exact) = exact {
            assert_eq!(exact.one, exact.two);
        }
        free.layouts
    }
}

fn split_at(dim: usize) -> impl Fn(&Layout) -> bool {
    move |layout| matches!(layout, Layout::Split { dim: d, .. } if *d == dim)
}

#[test]
fn a_gradient_is_divided_by_the_rows_of_both() {
    let mut made = Made::new();
    let x = made.input("x", f32s(&[5, 1], &[1.0, 2.0, 3.0, 4.0, 5.0]));
    let y = made.input("y", f32s(&[5, 1], &[2.0, 4.0, 6.0, 8.0, 10.0]));
    let w = made.weight("w", f32s(&[1, 1], &[0.0]));
    let p = made.g.matmul(x, w).unwrap();
    let loss = made.loss("mse", y, p, None);
    let one = made.g.full(DType::F32, 1.0, &Default::default()).unwrap();
    let d = grad::backward(&mut made.g, &[(loss, one)], &[w]).unwrap()[0].unwrap();
    made.g.output("loss", loss);
    made.g.output("gradient", d);
    let layouts = made.check(Strategy::Data, [3, 2], &[44.0, -44.0]);
    assert!(layouts[..2].iter().all(split_at(0)), "{layouts:?}");
}

#[test]
fn an_entropy_of_a_divided_vocabulary_is_that_of_the_whole() {
    let mut made = Made::new();
    let x = made.input("x", f32s(&[1, 2], &[1.0, 1.0]));
    let y = made.input("y", Tensor::from_f64(DType::I32, [1], &[2.0]));
    let w = made.weight("w", f32s(&[2, 3], &[0.5, 1.0, 1.0, 0.5, 1.0, 2.0]));
    let p = made.g.matmul(x, w).unwrap();
    let json = crate::frontend::Json::parse(
        r#"{"class_name": "SparseCategoricalCrossentropy", "config": {"from_logits": true}}"#,
    );
    let loss = Loss::read(&crate::frontend::At::root(&json.unwrap())).unwrap();
    let of = Comparison { y_true: y, y_pred: p, logits: None, mask: None, weight: None };
    let terms = loss.terms(&mut made.g, &of).unwrap();
    let loss = total(&mut made.g, terms);
    made.g.output("loss", loss);
    let layouts = made.check(Strategy::Tensor, [2, 1], &[0.407606]);
    assert!(split_at(1)(&layouts[2]), "{layouts:?}");
}

#[test]
fn a_mean_over_tokens_is_over_those_of_both() {
    let mut made = Made::new();
    let numbers: Vec<f64> = (0..18).map(|i| if i < 9 { 2.0 } else { 10.0 }).collect();
    let p = made.input("p", f32s(&[2, 9, 1], &numbers));
    let y = made.input("y", f32s(&[2, 9, 1], &[0.0; 18]));
    let ones: Vec<f64> = (0..18).map(|i| if i == 0 || i >= 9 { 1.0 } else { 0.0 }).collect();
    let mask = made.input("mask", Tensor::from_f64(DType::Bool, [2, 9], &ones));
    let loss = made.loss("mae", y, p, Some(mask));
    made.g.output("loss", loss);
    made.check(Strategy::Data, [1, 1], &[9.2]);
}

#[test]
fn a_mean_of_unequal_parts_is_that_of_the_whole() {
    let mut made = Made::new();
    let numbers: Vec<f64> = (0..12).map(f64::from).collect();
    let p = made.input("p", f32s(&[3, 4], &numbers));
    let y = made.input("y", f32s(&[3, 4], &[0.0; 12]));
    let loss = made.loss("mae", y, p, None);
    made.g.output("loss", loss);
    made.check(Strategy::Data, [2, 1], &[5.5]);
}

#[test]
fn counts_of_both_make_a_metric() {
    let mut made = Made::new();
    let p = made.input("p", f32s(&[11, 1], &[1.0; 11]));
    let bits: Vec<f64> = (0..11).map(|i| if i % 10 == 0 { 1.0 } else { 0.0 }).collect();
    let y = made.input("y", f32s(&[11, 1], &bits));
    let precision = Metric::named("precision").unwrap();
    let of = Comparison { y_true: y, y_pred: p, logits: None, mask: None, weight: None };
    let increments = precision.increments(&mut made.g, &of).unwrap();
    for (i, each) in increments.into_iter().enumerate() {
        let sum = made.g.reduce(Reduce::Sum, each, &[0]).unwrap();
        made.g.output(&format!("increment{i}"), sum);
    }
    made.check(Strategy::Data, [1, 10], &[2.0, 9.0]);
    assert_eq!(precision.result(&[vec![2.0], vec![9.0]]).numbers(), [2.0 / 11.0]);
}
