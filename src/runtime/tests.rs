//! Whole graphs on one and two devices against the interpreter.

use super::{Call, DeviceKind, Devices, Engines, LoadError, Variant, run};
use crate::driver;
use crate::runtime::{DeviceError, HostOptions};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{DType, Graph, ParamKind, Rows, Tensor, Trainable, Type, interp, ops};
use intwain_passes::hardware::Catalogue;
use intwain_passes::place::{self, Strategy};
use intwain_passes::{Numerics, Timings};

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Two dense layers with a skip, a softmax and a sum over rows' features.
fn model(rows: usize) -> Graph {
    let mut g = Graph::new("m");
    let x = g.input("x", Type::new(DType::F32, [rows, 6]), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [6, 10]), Trainable::Yes);
    let b = g.weight("b", Type::new(DType::F32, [10]), Trainable::Yes);
    let v = g.weight("v", Type::new(DType::F32, [10, 6]), Trainable::Yes);
    let h = g.matmul(x, w).unwrap();
    let h = g.binary_broadcast(Binary::Add, h, b).unwrap();
    let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
    let h = g.binary(Binary::Max, h, zero).unwrap();
    let y = g.matmul(h, v).unwrap();
    let y = g.add(y, x).unwrap();
    let p = g.push(ops::Softmax { dim: 1 }, &[y]).unwrap();
    let s = g.reduce(Reduce::Sum, y, &[1]).unwrap();
    g.output("p", p);
    g.output("s", s);
    g
}

fn engines(devices: usize, threads: usize) -> Engines {
    let devices = Devices::new(DeviceKind::Cpu, 0..devices as u32).unwrap();
    Engines::open(&devices, Precision::F32, HostOptions { threads: Some(threads), ..HostOptions::default() }).unwrap()
}

fn numbers(ty: &Type, seed: usize) -> Tensor {
    let n = ty.shape.elements();
    let v: Vec<f32> = (0..n).map(|i| (((i + seed) * 7919 % 127) as f32 - 63.0) / 64.0).collect();
    Tensor::from_f32(ty.shape.clone(), &v)
}

#[test]
fn every_strategy_gives_the_interpreter_s_values() {
    let hardware = Catalogue::built_in().get("cpu").unwrap();
    for rows in [1, 4, 5] {
        let whole = model(rows);
        let args: Vec<Tensor> = whole.params.iter().enumerate().map(|(i, p)| numbers(whole.ty(p.value), i)).collect();
        let want = interp::run(&whole, args.clone()).unwrap();
        for strategy in Strategy::ALL {
            let mut timings = Timings::default();
            let graph = driver::prepare(whole.clone(), Numerics::Free, &mut timings, &mut |_, _| {}).unwrap();
            let ask = place::Options { strategy: Some(strategy), ..place::Options::default() };
            let plan = match driver::plan(&graph, &hardware, ask, &mut timings) {
                Ok(plan) => plan,
                // One row cannot be divided by rows.
                Err(_) if rows == 1 => continue,
                Err(e) => panic!("{strategy}: {e}"),
            };
            let target = crate::kernels::target();
            let compiled = driver::lower(graph, plan, &target, &mut timings, &mut |_, _| {}).unwrap();
            let engines = engines(compiled.programs.len(), 2);
            let by_name = |i: usize| {
                let at = whole.params.iter().position(|p| p.name == compiled.params[i].name).unwrap();
                args[at].clone()
            };
            let mut variant = Variant::new::<Failed>(compiled.loadable(), &engines, |i: usize| Ok(by_name(i))).unwrap();
            let mut out: Vec<Tensor> = want.iter().map(|t| Tensor::zeros(t.ty.clone())).collect();
            let calls = vec![Call { variant: 0, rows: Some(0..rows) }; 3];
            run(&mut [&mut variant], &calls, &[&args[0]], &mut out).unwrap();
            for (got, want) in out.iter().zip(&want) {
                match strategy {
                    Strategy::One | Strategy::Data | Strategy::Pipeline => {
                        assert_eq!(got, want, "{strategy}, {rows} rows");
                    }
                    // Sums over devices are rounded differently.
                    Strategy::Tensor | Strategy::Mixed => {
                        let close = got.to_f64().iter().zip(want.to_f64()).all(|(a, b)| (a - b).abs() < 1e-5);
                        assert!(close, "{strategy}, {rows} rows: {got:?} {want:?}");
                    }
                }
            }
        }
    }
}

/// h ← tanh(h·u + x) over four steps, with x·w made before the loop.
fn recurrent(rows: usize) -> Graph {
    let mut body = Graph::new("step");
    let h = body.input("h", Type::new(DType::F32, [rows, 3]), Rows::Whole);
    let x = body.input("x", Type::new(DType::F32, [rows, 3]), Rows::Whole);
    let u = body.input("u", Type::new(DType::F32, [3, 3]), Rows::Whole);
    let hu = body.matmul(h, u).unwrap();
    let sum = body.add(hu, x).unwrap();
    let next = body.unary(intwain_ir::scalar::Unary::Tanh, sum).unwrap();
    body.output("h", next);
    body.output("y", next);
    let mut g = Graph::new("recurrent");
    let x = g.input("x", Type::new(DType::F32, [rows, 4, 2]), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [2, 3]), Trainable::Yes);
    let u = g.weight("u", Type::new(DType::F32, [3, 3]), Trainable::Yes);
    let xw = g.matmul(x, w).unwrap();
    let steps = g.transpose(xw, &[1, 0, 2]).unwrap();
    let zero = g.full(DType::F32, 0.0, &[rows, 3].into()).unwrap();
    let scan = ops::Scan { count: 4, states: 1, sequences: 1, body: std::sync::Arc::new(body) };
    let results = g.push_all(scan, &[zero, steps, u]).unwrap();
    let y = g.transpose(results[1], &[1, 0, 2]).unwrap();
    g.output("last", results[0]);
    g.output("all", y);
    g
}

#[test]
fn loops_give_the_interpreter_s_bits() {
    let hardware = Catalogue::built_in().get("cpu").unwrap();
    let whole = recurrent(5);
    let args: Vec<Tensor> = whole.params.iter().enumerate().map(|(i, p)| numbers(whole.ty(p.value), i)).collect();
    let want = interp::run(&whole, args.clone()).unwrap();
    for strategy in [Strategy::One, Strategy::Data] {
        let mut timings = Timings::default();
        let graph = driver::prepare(whole.clone(), Numerics::Free, &mut timings, &mut |_, _| {}).unwrap();
        let ask = place::Options { strategy: Some(strategy), ..place::Options::default() };
        let plan = driver::plan(&graph, &hardware, ask, &mut timings).unwrap();
        let compiled = driver::lower(graph, plan, &crate::kernels::target(), &mut timings, &mut |_, _| {}).unwrap();
        let engines = engines(compiled.programs.len(), 1);
        let mut variant =
            Variant::new::<Failed>(compiled.loadable(), &engines, |i: usize| Ok(args[i].clone())).unwrap();
        let mut out: Vec<Tensor> = want.iter().map(|t| Tensor::zeros(t.ty.clone())).collect();
        let calls = vec![Call { variant: 0, rows: Some(0..5) }; 2];
        run(&mut [&mut variant], &calls, &[&args[0]], &mut out).unwrap();
        assert_eq!(out, want, "{strategy}");
    }
}

/// Runs a graph of inputs named `x…` and weights on one device of each kind, twice, and compares with the interpreter:
/// the bits of a CPU, which takes sums in the same order.
fn check_alone(whole: &Graph, inputs: usize) {
    let hardware = Catalogue::built_in().get("cpu").unwrap();
    let args: Vec<Tensor> = whole.params.iter().enumerate().map(|(i, p)| numbers(whole.ty(p.value), i)).collect();
    let want = interp::run(whole, args.clone()).unwrap();
    let mut timings = Timings::default();
    for kind in [DeviceKind::Cpu, DeviceKind::Ptx] {
        let graph = driver::prepare(whole.clone(), Numerics::Free, &mut timings, &mut |_, _| {}).unwrap();
        let ask = place::Options { strategy: Some(Strategy::One), ..place::Options::default() };
        let plan = driver::plan(&graph, &hardware, ask, &mut timings).unwrap();
        let target = crate::kernels::target_of(kind, Precision::F32);
        let compiled = driver::lower(graph, plan, &*target, &mut timings, &mut |_, _| {}).unwrap();
        let engines = Engines::open(
            &Devices::one(kind),
            Precision::F32,
            HostOptions { threads: Some(2), ..HostOptions::default() },
        )
        .unwrap();
        let mut variant =
            Variant::new::<Failed>(compiled.loadable(), &engines, |i: usize| Ok(args[i].clone())).unwrap();
        let mut out: Vec<Tensor> = want.iter().map(|t| Tensor::zeros(t.ty.clone())).collect();
        let calls = vec![Call { variant: 0, rows: None }; 2];
        run(&mut [&mut variant], &calls, &args[..inputs].iter().collect::<Vec<_>>(), &mut out).unwrap();
        if kind == DeviceKind::Cpu {
            assert_eq!(out, want);
        }
        for (got, want) in out.iter().zip(&want) {
            let close = got.to_f64().iter().zip(want.to_f64()).all(|(a, b)| (a - b).abs() < 1e-5 * b.abs().max(1.0));
            assert!(close, "{kind:?}: {got:?} {want:?}");
        }
    }
}

#[test]
fn products_of_weights_are_made_when_weights_load() {
    let mut g = Graph::new("m");
    let x = g.input("x", Type::new(DType::F32, [3, 40]), Rows::Batched);
    let u = g.weight("u", Type::new(DType::F32, [40, 24]), Trainable::Yes);
    let v = g.weight("v", Type::new(DType::F32, [24, 32]), Trainable::Yes);
    let w = g.weight("w", Type::new(DType::F32, [32, 16]), Trainable::Yes);
    let uv = g.matmul(u, v).unwrap();
    let uvw = g.matmul(uv, w).unwrap();
    let y = g.matmul(x, uvw).unwrap();
    g.output("y", y);
    check_alone(&g, 1);
}

#[test]
fn every_step_of_a_loop_sees_what_does_not_change() {
    let ty = || Type::new(DType::F32, [5, 3]);
    let mut body = Graph::new("step");
    let h = body.input("h", ty(), Rows::Whole);
    let x = body.input("x", ty(), Rows::Whole);
    let u = body.input("u", Type::new(DType::F32, [3, 3]), Rows::Whole);
    // Read by the first command only; later values, three of which live at once, could take its memory.
    let c = body.input("c", Type::new(DType::F32, [3, 3]), Rows::Whole);
    let a = body.matmul(h, c).unwrap();
    let p = body.matmul(a, u).unwrap();
    let q = body.matmul(p, u).unwrap();
    let r = body.matmul(q, u).unwrap();
    let sum = body.add(p, q).unwrap();
    let sum = body.add(sum, r).unwrap();
    let next = body.add(sum, x).unwrap();
    body.output("h", next);
    body.output("y", next);
    let mut g = Graph::new("m");
    let x = g.input("x", Type::new(DType::F32, [4, 5, 3]), Rows::Whole);
    let c = g.input("xc", Type::new(DType::F32, [3, 3]), Rows::Whole);
    let u = g.weight("u", Type::new(DType::F32, [3, 3]), Trainable::Yes);
    let zero = g.full(DType::F32, 1.0, &[5, 3].into()).unwrap();
    let scan = ops::Scan { count: 4, states: 1, sequences: 1, body: std::sync::Arc::new(body) };
    let results = g.push_all(scan, &[zero, x, u, c]).unwrap();
    g.output("last", results[0]);
    g.output("all", results[1]);
    check_alone(&g, 2);
}

/// A loop over weights only, whose body prepares a product of what another product of weights has made.
#[test]
fn loops_over_weights_run_after_what_they_read_is_made() {
    let ty = || Type::new(DType::F32, [3, 3]);
    let mut body = Graph::new("step");
    let h = body.input("h", ty(), Rows::Whole);
    let x = body.input("x", ty(), Rows::Whole);
    let u = body.input("u", ty(), Rows::Whole);
    let uu = body.matmul(u, u).unwrap();
    let next = body.matmul(h, uu).unwrap();
    let next = body.add(next, x).unwrap();
    body.output("h", next);
    let mut g = Graph::new("m");
    let x = g.input("x", ty(), Rows::Batched);
    let w = g.weight("w", ty(), Trainable::Yes);
    let steps = g.weight("steps", Type::new(DType::F32, [4, 3, 3]), Trainable::Yes);
    let ww = g.matmul(w, w).unwrap();
    let scan = ops::Scan { count: 4, states: 1, sequences: 1, body: std::sync::Arc::new(body) };
    let last = g.push_all(scan, &[w, steps, ww]).unwrap()[0];
    let y = g.matmul(x, last).unwrap();
    g.output("y", y);
    check_alone(&g, 1);
}

/// Two states that change places, and one that adds up what is in the first: next values and outputs that are states as
/// they were.
fn changing_places(rows: usize) -> Graph {
    let ty = Type::new(DType::F32, [rows, 2]);
    let mut g = Graph::new("states");
    let x = g.input("x", ty.clone(), Rows::Batched);
    let mut state = |name: &str| g.param(name, ty.clone(), ParamKind::State { next: None });
    let [a, b, c] = ["a", "b", "c"].map(&mut state);
    let sum = g.add(c, a).unwrap();
    let a_next = g.add(b, x).unwrap();
    for (param, next) in g.params[1..].iter_mut().zip([a_next, a, sum]) {
        param.kind = ParamKind::State { next: Some(next) };
    }
    g.output("a", a);
    g.output("b", b);
    g.output("sum", sum);
    g
}

#[test]
fn states_take_their_next_values_all_at_once() {
    let (rows, hardware) = (3, Catalogue::built_in().get("cpu").unwrap());
    let cpu = |n| Devices::new(DeviceKind::Cpu, 0..n).unwrap();
    let ptx = |n| Devices::new(DeviceKind::Ptx, 0..n).unwrap();
    for (devices, strategy) in
        [(cpu(1), Strategy::One), (cpu(2), Strategy::Data), (ptx(1), Strategy::One), (ptx(2), Strategy::Data)]
    {
        let whole = changing_places(rows);
        let mut timings = Timings::default();
        let graph = driver::prepare(whole.clone(), Numerics::Free, &mut timings, &mut |_, _| {}).unwrap();
        let ask = place::Options { strategy: Some(strategy), ..place::Options::default() };
        let plan = driver::plan(&graph, &hardware, ask, &mut timings).unwrap();
        let target = crate::kernels::target_of(devices.kind(), Precision::F32);
        let compiled = driver::lower(graph, plan, &*target, &mut timings, &mut |_, _| {}).unwrap();
        let engines = Engines::open(&devices, Precision::F32, HostOptions::default()).unwrap();
        let none = |_: usize| -> Result<Tensor, Failed> { unreachable!("there are no weights") };
        let mut variant = Variant::new::<Failed>(compiled.loadable(), &engines, none).unwrap();
        let x = numbers(&Type::new(DType::F32, [4 * rows, 2]), 1);
        let ty = Type::new(DType::F32, [4 * rows, 2]);
        let mut out = vec![Tensor::zeros(ty); 3];
        let calls: Vec<Call> = (0..4).map(|i| Call { variant: 0, rows: Some(i * rows..(i + 1) * rows) }).collect();
        for _ in 0..2 {
            run(&mut [&mut variant], &calls, &[&x], &mut out).unwrap();
            let (x, found) = (x.to_f64(), [out[0].to_f64(), out[1].to_f64(), out[2].to_f64()]);
            for element in 0..2 * rows {
                let (mut a, mut b, mut c) = (0.0, 0.0, 0.0);
                for call in 0..4 {
                    let at = call * 2 * rows + element;
                    assert_eq!([found[0][at], found[1][at]], [a, b], "{strategy} {:?}", devices.kind());
                    c += a;
                    assert_eq!(found[2][at], c);
                    (a, b) = (b + x[at], a);
                }
            }
            variant.forget().unwrap();
        }
    }
}
