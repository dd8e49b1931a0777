//! Every gradient equals central differences in f64.

use crate::cases::{Case, Fill, Random, cases, cases_of};
use intwain_ir::ops::{self, Op};
use intwain_ir::{DType, Graph, Tensor, Value, grad, interp};

const STEP: f64 = 1e-5;

/// Σ ⟨output, weight⟩ over the floating outputs, without what was padded with infinity.
fn objective(g: &Graph, args: &[Tensor], weights: &[Option<Tensor>]) -> f64 {
    let outputs = interp::run(g, args.to_vec()).unwrap();
    let pairs = outputs.iter().zip(weights).filter_map(|(y, w)| Some((y, w.as_ref()?)));
    pairs
        .flat_map(|(y, w)| y.to_f64().into_iter().zip(w.to_f64()))
        .filter(|(a, _)| a.is_finite())
        .map(|(a, b)| a * b)
        .sum()
}

/// The graph's gradient with respect to its f64 arguments, as tensors, with random weights for its outputs.
struct Differentiated {
    graph: Graph,
    wrt: Vec<usize>,
    weights: Vec<Option<Tensor>>,
}

fn differentiate(g: &Graph, random: &mut Random) -> Differentiated {
    let mut graph = g.clone();
    let mut weights = Vec::new();
    let mut seeds: Vec<(Value, Value)> = Vec::new();
    for o in &g.outputs {
        let ty = g.ty(o.value).clone();
        weights.push(ty.dtype.is_float().then(|| Fill::Real(ty.dtype, 0.2, 1.2).tensor(&ty.shape, random)));
        if ty.dtype.is_float() {
            let seed = graph.input(&format!("d{}", o.name), ty, intwain_ir::Rows::Whole);
            seeds.push((o.value, seed));
        }
    }
    let wrt: Vec<usize> = (0..g.params.len()).filter(|&i| g.ty(g.params[i].value).dtype == DType::F64).collect();
    let values: Vec<Value> = wrt.iter().map(|&i| g.params[i].value).collect();
    let grads = grad::backward(&mut graph, &seeds, &values).unwrap_or_else(|e| panic!("{}: {e}", g.name));
    graph.outputs.clear();
    for (&i, d) in wrt.iter().zip(grads) {
        let ty = g.ty(g.params[i].value).clone();
        let d = match d {
            Some(d) => d,
            None => graph.full(ty.dtype, 0.0, &ty.shape).unwrap(),
        };
        assert_eq!(*graph.ty(d), ty, "{}: gradient of operand {i}", g.name);
        graph.output(&format!("g{i}"), d);
    }
    intwain_ir::verify(&graph).unwrap_or_else(|p| panic!("{}: {p:?}", g.name));
    Differentiated { graph, wrt, weights }
}

fn check(g: &Graph, args: &[Tensor], random: &mut Random) -> Result<Differentiated, String> {
    let d = differentiate(g, random);
    let with_seeds: Vec<Tensor> = args.iter().cloned().chain(d.weights.iter().flatten().cloned()).collect();
    let grads = interp::run(&d.graph, with_seeds).map_err(|e| format!("{}: {e}", g.name))?;
    for (&i, grad) in d.wrt.iter().zip(&grads) {
        let total = args[i].elements();
        // Few elements say as much as many, and every evaluation runs the whole graph.
        let step = (total / 24).max(1);
        for e in (0..total).step_by(step) {
            let at = |delta: f64| {
                let mut moved = args.to_vec();
                let x = moved[i].get(e).to_f64();
                moved[i].set(e, intwain_ir::Scalar::from_f64(DType::F64, x + delta));
                objective(g, &moved, &d.weights)
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let got = grad.get(e).to_f64();
            let close = (got - expected).abs() <= 2e-6 * (1.0 + expected.abs());
            if !close {
                return Err(format!("{}: operand {i}, element {e}: gradient {got}, differences {expected}", g.name));
            }
        }
    }
    Ok(d)
}

fn differentiable(case: &Case) -> bool {
    // Its gradient is not its derivative.
    if matches!(case.op, Op::StopGradient(_)) {
        return false;
    }
    // Differences in f64 say nothing about narrower types.
    let types = case.graph();
    types.values.values().all(|v| v.ty.dtype == DType::F64 || !v.ty.dtype.is_float())
}

#[test]
fn every_gradient_equals_differences() {
    let mut random = Random::new(7);
    let mut wrong = Vec::new();
    for case in cases().iter().filter(|c| differentiable(c)) {
        if let Err(e) = check(&case.graph(), &case.args, &mut random) {
            wrong.push(e);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The gradient's graph differentiated once more: what a gradient is written in has gradients itself.
#[test]
fn second_gradients_equal_differences() {
    let mut random = Random::new(8);
    let mut wrong = Vec::new();
    let twice =
        ["conv", "pool sum", "pool max", "pick", "unpool", "contract", "softmax", "standardize", "take", "scan"];
    for case in twice.iter().flat_map(|p| cases_of(p)).filter(differentiable) {
        let g = case.graph();
        let d = differentiate(&g, &mut random);
        let args: Vec<Tensor> = case.args.iter().cloned().chain(d.weights.iter().flatten().cloned()).collect();
        if let Err(e) = check(&d.graph, &args, &mut random) {
            wrong.push(format!("second gradient, {e}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What kernels and biases get in a scan is summed over steps and rows at once, after the walk backwards: it carries the
/// gradients of the states, and what a tensor with the rows of the states gets where that is no sum of products.
#[test]
fn kernels_of_a_scan_get_one_sum_after_it() {
    let mut random = Random::new(9);
    for (name, states) in [
        ("scan recurrent", 2),
        ("scan gated", 1),
        ("scan convolving 1", 1),
        ("scan convolving 2", 1),
        ("scan attending", 2),
        ("scan normed", 1),
    ] {
        let case = cases_of(name).remove(0);
        let d = differentiate(&case.graph(), &mut random);
        let mut scans = d.graph.nodes.values().filter_map(|n| if let Op::Scan(s) = &n.op { Some(s) } else { None });
        let back = scans.rfind(|s| s.body.name.ends_with(".grad")).unwrap();
        assert_eq!(back.states, states, "{name}");
    }
}

/// The gradient of a conversion is converted back: through f32 it is rounded once.
#[test]
fn gradients_pass_conversions() {
    let mut g = Graph::new("narrow");
    let x = g.input("x", intwain_ir::Type::new(DType::F64, [3]), intwain_ir::Rows::Whole);
    let d = g.input("d", intwain_ir::Type::new(DType::F64, [3]), intwain_ir::Rows::Whole);
    let narrow = g.cast(DType::F32, x).unwrap();
    let y = g.cast(DType::F64, narrow).unwrap();
    let dx = grad::backward(&mut g, &[(y, d)], &[x]).unwrap()[0].unwrap();
    assert_eq!(g.ty(dx).dtype, DType::F64);
    g.output("dx", dx);
    let given = [0.1, -1.0 / 3.0, 2.0];
    let args = vec![Tensor::from_f64(DType::F64, [3], &[1.0, 2.0, 3.0]), Tensor::from_f64(DType::F64, [3], &given)];
    assert_eq!(interp::run(&g, args).unwrap()[0].to_f64(), given.map(|v| f64::from(v as f32)));
}

/// d/dx (x · stop(x²)) is x², and what only a stopped value leads to has none.
#[test]
fn no_gradient_passes_a_stop() {
    let mut g = Graph::new("stopped");
    let x = g.input("x", intwain_ir::Type::new(DType::F64, [3]), intwain_ir::Rows::Whole);
    let square = g.mul(x, x).unwrap();
    let stopped = g.push(ops::StopGradient {}, &[square]).unwrap();
    let y = g.mul(x, stopped).unwrap();
    let seed = g.full(DType::F64, 1.0, &intwain_ir::Shape::from([3])).unwrap();
    assert_eq!(grad::backward(&mut g.clone(), &[(stopped, seed)], &[x]).unwrap(), [None]);
    let dx = grad::backward(&mut g, &[(y, seed)], &[x]).unwrap()[0].unwrap();
    g.output("y", y);
    g.output("dx", dx);
    let got = interp::run(&g, vec![Tensor::from_f64(DType::F64, [3], &[2.0, -1.0, 0.5])]).unwrap();
    assert_eq!(got[0].to_f64(), [8.0, -1.0, 0.125]);
    assert_eq!(got[1].to_f64(), [4.0, 1.0, 0.25]);
}

/// Values used several times collect all their gradients, and what a result does not depend on has none.
#[test]
fn contributions_add_up() {
    let mut g = Graph::new("shared");
    let ty = intwain_ir::Type::new(DType::F64, [3]);
    let (x, y) = (g.input("x", ty.clone(), intwain_ir::Rows::Whole), g.input("y", ty, intwain_ir::Rows::Whole));
    let x2 = g.mul(x, x).unwrap();
    let x3 = g.mul(x2, x).unwrap();
    let z = g.add(x3, x2).unwrap();
    g.output("z", z);
    let seed = g.full(DType::F64, 1.0, &intwain_ir::Shape::from([3])).unwrap();
    let d = grad::backward(&mut g, &[(z, seed)], &[x, y]).unwrap();
    assert_eq!(d[1], None);
    g.outputs.clear();
    g.output("dx", d[0].unwrap());
    let at = Tensor::from_f64(DType::F64, [3], &[2.0, -1.0, 0.0]);
    let got = interp::run(&g, vec![at, Tensor::from_f64(DType::F64, [3], &[0.0; 3])]).unwrap();
    // 3x² + 2x
    assert_eq!(got[0].to_f64(), [16.0, 1.0, 0.0]);
}
