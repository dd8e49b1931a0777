//! Every sharding rule is true: each cut it allows, made on parts, gives the whole; and the cuts that must be allowed
//! are.

use crate::cases::{Case, Fill, Random, cases};
use intwain_ir::ops::{self, LocalCx, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::shard::FactorKind;
use intwain_ir::{DType, Graph, Layout, Rows, Shape, ShardingRule, Tensor, Type, interp};

/// A result as the devices hold it, put together.
fn combine(layout: &Layout, parts: &[Tensor]) -> Tensor {
    match layout {
        Layout::Split { dim, .. } => Tensor::join(parts, *dim),
        Layout::Partial(op) => {
            let mut total = parts[0].clone();
            for p in &parts[1..] {
                for i in 0..total.elements() {
                    total.set(i, intwain_ir::scalar::binary(op.combine(), total.get(i), p.get(i)));
                }
            }
            total
        }
        Layout::Replicated | Layout::On(_) => {
            assert!(parts.iter().all(|p| *p == parts[0]), "copies differ");
            parts[0].clone()
        }
    }
}

/// Runs the operation on every device's parts and puts the results together.
pub(crate) fn run_cut(case: &Case, args: &[Layout], results: &[Layout], parts: &[Vec<Tensor>]) -> Vec<Tensor> {
    let whole = case.graph();
    let outputs: Vec<&Type> = whole.outputs.iter().map(|o| whole.ty(o.value)).collect();
    let devices = parts.len();
    let mut held: Vec<Vec<Tensor>> = vec![Vec::new(); outputs.len()];
    for (device, parts) in parts.iter().enumerate() {
        let local: Vec<Type> =
            outputs.iter().zip(results).map(|(t, l)| l.local_type(t, device).expect("parts everywhere")).collect();
        let cx = LocalCx {
            device,
            args: &case.types(),
            arg_layouts: args,
            results: &local,
            global_results: &outputs,
            result_layouts: results,
        };
        let mut g = Graph::new(&format!("{} on device {device} of {devices}", case.name));
        let inputs: Vec<_> =
            parts.iter().enumerate().map(|(i, t)| g.input(&format!("x{i}"), t.ty.clone(), Rows::Whole)).collect();
        let made = g.push_local(&case.op, &inputs, &cx).unwrap_or_else(|e| panic!("{}, {args:?}: {e}", g.name));
        made.iter().enumerate().for_each(|(i, r)| g.output(&format!("y{i}"), *r));
        intwain_ir::verify(&g).unwrap_or_else(|p| panic!("{}: {p:?}", g.name));
        let outputs = interp::run(&g, parts.clone()).unwrap();
        for ((h, y), ty) in held.iter_mut().zip(outputs).zip(&local) {
            assert_eq!(y.ty, *ty, "{}", case.name);
            h.push(y);
        }
    }
    results.iter().zip(&held).map(|(l, parts)| combine(l, parts)).collect()
}

fn assert_close(case: &Case, what: &str, got: &[Tensor], want: &[Tensor], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (g, w) in got.iter().zip(want) {
        assert_eq!(g.ty, w.ty, "{} {what}", case.name);
        for (i, (a, b)) in g.to_f64().into_iter().zip(w.to_f64()).enumerate() {
            let close = a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs());
            assert!(close, "{} {what}: element {i} is {a}, whole {b}", case.name);
        }
    }
}

/// Divisions of `n` units over devices: even, uneven, all on one, over three.
fn divisions(n: usize) -> Vec<Vec<usize>> {
    let mut all = vec![vec![n.div_ceil(2), n / 2], vec![0, n], vec![n, 0], vec![n / 3, n - n / 3 - n / 4, n / 4]];
    if n > 2 {
        all.push(vec![1, n - 1]);
        all.push(vec![n - 1, 1]);
        all.push(vec![1, 0, n - 1]);
    }
    all.sort();
    all.dedup();
    all
}

fn rule(case: &Case) -> ShardingRule {
    let g = case.graph();
    g.rule(g.nodes.keys().next().unwrap())
}

#[test]
fn every_factor_is_true() {
    for case in cases() {
        let g = case.graph();
        let want = interp::run(&g, case.args.clone()).unwrap();
        let rule = rule(&case);
        for f in &rule.factors {
            for units in divisions(f.extent) {
                let (args, results) = (f.operand_layouts(&units), f.result_layouts(&units));
                let what = format!("{args:?} -> {results:?}");
                assert!(rule.allows(&args, &results), "{} {what}", case.name);
                let values = case.args.iter().map(|t| &t.ty).chain(want.iter().map(|t| &t.ty));
                for (ty, l) in values.zip(args.iter().chain(&results)) {
                    assert!(l.fits(ty, units.len()), "{} {what}: {l} does not fit {ty}", case.name);
                }
                let part = |d: usize| case.args.iter().zip(&args).map(|(t, l)| t.part(l, d)).collect();
                let parts: Vec<Vec<Tensor>> = (0..units.len()).map(part).collect();
                let got = run_cut(&case, &args, &results, &parts);
                let tolerance = match f.kind {
                    FactorKind::Pass => 0.0,
                    FactorKind::Reduce(_) | FactorKind::Lookup if want[0].ty.dtype == DType::BF16 => 0.02,
                    FactorKind::Reduce(_) | FactorKind::Lookup => 1e-13,
                };
                assert_close(&case, &what, &got, &want, tolerance);
            }
        }
    }
}

#[test]
fn every_linear_set_is_true() {
    let mut random = Random::new(3);
    for case in cases() {
        let want = interp::run(&case.graph(), case.args.clone()).unwrap();
        let rule = rule(&case);
        for &set in &rule.linear {
            let partial = Layout::Partial(Reduce::Sum);
            let here = |i: usize| set & (1 << i) != 0;
            let layout = |i: usize| if here(i) { partial.clone() } else { Layout::Replicated };
            let args: Vec<Layout> = (0..case.args.len()).map(layout).collect();
            let results = vec![partial.clone(); want.len()];
            assert!(rule.allows(&args, &results), "{} {args:?}", case.name);
            // Device 1 has random numbers, device 0 what is missing; whole operands are equal.
            let random_parts: Vec<Tensor> = (0..case.args.len())
                .map(|i| match (here(i), case.args[i].ty.dtype.is_float()) {
                    (true, true) => {
                        Fill::Real(case.args[i].ty.dtype, -1.0, 1.0).tensor(&case.args[i].ty.shape, &mut random)
                    }
                    (true, false) => Tensor::zeros(case.args[i].ty.clone()),
                    (false, _) => case.args[i].clone(),
                })
                .collect();
            let rest = |i: usize| -> Tensor {
                let (x, p) = (&case.args[i], &random_parts[i]);
                let mut t = x.clone();
                let sub = intwain_ir::scalar::Binary::Sub;
                for e in (0..t.elements()).filter(|_| here(i) && x.ty.dtype != DType::Bool) {
                    t.set(e, intwain_ir::scalar::binary(sub, x.get(e), p.get(e)));
                }
                t
            };
            let parts = vec![(0..case.args.len()).map(rest).collect(), random_parts.clone()];
            let got = run_cut(&case, &args, &results, &parts);
            let narrow = case.args.iter().map(|t| t.ty.dtype).find(|d| d.is_float() && *d != DType::F64);
            let tolerance = match narrow {
                None => 1e-12,
                Some(DType::F32) => 1e-6,
                Some(_) => 0.05,
            };
            assert_close(&case, &format!("partial in {set:b}"), &got, &want, tolerance);
        }
    }
}

/// Whole operands on every device are the operation itself.
#[test]
fn whole_is_whole() {
    for case in cases() {
        let want = interp::run(&case.graph(), case.args.clone()).unwrap();
        let args = vec![Layout::Replicated; case.args.len()];
        let results = vec![Layout::Replicated; want.len()];
        assert!(rule(&case).allows(&args, &results));
        let got = run_cut(&case, &args, &results, &[case.args.clone(), case.args.clone()]);
        assert_eq!(got, want, "{}", case.name);
    }
}

fn f32s(shapes: &[&[usize]]) -> Vec<Type> {
    shapes.iter().map(|s| Type::new(DType::F32, *s)).collect()
}

fn layout(text: &str) -> Layout {
    if text == "R" {
        return Layout::Replicated;
    }
    if text == "P" {
        return Layout::Partial(Reduce::Sum);
    }
    let inner = text.strip_prefix("S(").and_then(|t| t.strip_suffix("])")).expect("R, P or S(dim,[sizes])");
    let (dim, sizes) = inner.split_once(",[").unwrap();
    Layout::split(dim.parse().unwrap(), sizes.split(',').map(|s| s.parse().unwrap()))
}

/// Panics unless the operation allows the layouts, written as in the text form.
#[track_caller]
fn must_allow(op: impl Into<Op>, types: &[Type], args: &[&str], result: &str) {
    let op = op.into();
    let mut g = Graph::new("layouts");
    let inputs: Vec<_> =
        types.iter().enumerate().map(|(i, t)| g.input(&format!("x{i}"), t.clone(), Rows::Whole)).collect();
    g.push_all(op.clone(), &inputs).unwrap();
    let rule = g.rule(g.nodes.keys().next().unwrap());
    let args: Vec<Layout> = args.iter().map(|l| layout(l)).collect();
    assert!(rule.allows(&args, &[layout(result)]), "{op}: {args:?} -> {result}\n{rule:#?}");
}

fn contract(batch: &[(usize, usize)], contract: &[(usize, usize)]) -> ops::Contract {
    ops::Contract { batch: batch.to_vec(), contract: contract.to_vec() }
}

#[test]
fn dense_and_attention_must_be_cut() {
    let dense = contract(&[], &[(1, 0)]);
    let types = f32s(&[&[5, 8], &[8, 6]]);
    must_allow(dense.clone(), &types, &["S(0,[3,2])", "R"], "S(0,[3,2])");
    must_allow(dense.clone(), &types, &["R", "S(1,[2,4])"], "S(1,[2,4])");
    must_allow(dense.clone(), &types, &["S(1,[4,4])", "S(0,[4,4])"], "P");
    must_allow(dense.clone(), &types, &["P", "R"], "P");
    let half: Vec<Type> = types.iter().map(|t| t.with_dtype(DType::BF16)).collect();
    must_allow(dense, &half, &["S(1,[4,4])", "S(0,[4,4])"], "P");
    // Projection of [N, T, C] to [N, T, H, D] by a kernel [C, H, D], scores, values, and back.
    let project = contract(&[], &[(2, 0)]);
    must_allow(project, &f32s(&[&[2, 7, 12], &[12, 4, 3]]), &["R", "S(1,[2,2])"], "S(2,[2,2])");
    let scores = contract(&[(0, 0), (2, 2)], &[(3, 3)]);
    let qk = f32s(&[&[2, 7, 4, 3], &[2, 9, 4, 3]]);
    must_allow(scores.clone(), &qk, &["S(2,[3,1])", "S(2,[3,1])"], "S(1,[3,1])");
    must_allow(scores, &qk, &["S(0,[1,1])", "S(0,[1,1])"], "S(0,[1,1])");
    let values = contract(&[(0, 0), (1, 2)], &[(3, 1)]);
    must_allow(values, &f32s(&[&[2, 4, 7, 9], &[2, 9, 4, 3]]), &["S(1,[2,2])", "S(2,[2,2])"], "S(1,[2,2])");
    let back = contract(&[], &[(2, 0), (3, 1)]);
    must_allow(back, &f32s(&[&[2, 7, 4, 3], &[4, 3, 12]]), &["S(2,[1,3])", "S(0,[1,3])"], "P");
}

#[test]
fn convolutions_must_be_cut() {
    let conv = |stride: usize, pad: i64, groups: usize, batch_groups: usize| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups,
        batch_groups,
    };
    let plain = f32s(&[&[5, 8, 8, 4], &[3, 3, 4, 6]]);
    must_allow(conv(1, 1, 1, 1), &plain, &["S(0,[3,2])", "R"], "S(0,[3,2])");
    must_allow(conv(2, 1, 1, 1), &plain, &["R", "S(3,[4,2])"], "S(3,[4,2])");
    must_allow(conv(1, 1, 1, 1), &plain, &["S(3,[3,1])", "S(2,[3,1])"], "P");
    let grouped = f32s(&[&[5, 8, 8, 6], &[3, 3, 2, 12]]);
    must_allow(conv(1, 1, 3, 1), &grouped, &["S(3,[4,2])", "S(3,[8,4])"], "S(3,[8,4])");
    must_allow(conv(1, 1, 3, 1), &grouped, &["S(0,[5,0])", "R"], "S(0,[5,0])");
    must_allow(conv(2, 1, 4, 1), &f32s(&[&[5, 8, 8, 4], &[3, 3, 1, 4]]), &["S(3,[3,1])", "S(3,[3,1])"], "S(3,[3,1])");
    let by_three = f32s(&[&[5, 8, 8, 4], &[3, 3, 1, 12]]);
    must_allow(conv(2, 1, 4, 1), &by_three, &["S(3,[3,1])", "S(3,[9,3])"], "S(3,[9,3])");
    let one_output = f32s(&[&[5, 8, 8, 6], &[3, 3, 2, 3]]);
    must_allow(conv(1, 1, 3, 1), &one_output, &["S(3,[4,2])", "S(3,[2,1])"], "S(3,[2,1])");
    // The kernel gradient of a depthwise convolution.
    let batch = f32s(&[&[4, 8, 8, 5], &[6, 6, 5, 4]]);
    must_allow(conv(1, 0, 1, 4), &batch, &["S(0,[3,1])", "S(3,[3,1])"], "S(3,[3,1])");
    must_allow(conv(1, 0, 1, 4), &batch, &["S(3,[3,2])", "S(2,[3,2])"], "P");
    // Patches of an image: windows that touch.
    let patches = f32s(&[&[5, 8, 8, 3], &[2, 2, 3, 6]]);
    must_allow(conv(2, 0, 1, 1), &patches, &["S(1,[6,2])", "R"], "S(1,[3,1])");
}

#[test]
fn shapes_must_pass() {
    let reshape = |shape: &[usize]| ops::Reshape { shape: Shape::from(shape) };
    must_allow(reshape(&[2, 7, 4, 3]), &f32s(&[&[2, 7, 12]]), &["S(2,[9,3])"], "S(2,[3,1])");
    must_allow(reshape(&[2, 7, 12]), &f32s(&[&[2, 7, 4, 3]]), &["S(2,[3,1])"], "S(2,[9,3])");
    must_allow(reshape(&[35, 6]), &f32s(&[&[5, 7, 6]]), &["S(0,[3,2])"], "S(0,[21,14])");
    must_allow(reshape(&[35, 6]), &f32s(&[&[5, 7, 6]]), &["S(2,[4,2])"], "S(1,[4,2])");
    must_allow(reshape(&[5, 7, 6]), &f32s(&[&[35, 6]]), &["S(0,[21,14])"], "S(0,[3,2])");
    must_allow(reshape(&[5, 1, 1, 6]), &f32s(&[&[5, 6]]), &["S(1,[4,2])"], "S(3,[4,2])");
    must_allow(reshape(&[5, 42]), &f32s(&[&[5, 7, 6]]), &["P"], "P");
    must_allow(ops::Transpose { perm: vec![0, 2, 1, 3] }, &f32s(&[&[2, 7, 4, 3]]), &["S(2,[3,1])"], "S(1,[3,1])");
    must_allow(ops::Transpose { perm: vec![1, 0] }, &f32s(&[&[2, 7]]), &["P"], "P");
    let slice = ops::Slice { start: vec![0, 2], limit: vec![5, 6], stride: vec![1, 1] };
    must_allow(slice.clone(), &f32s(&[&[5, 7]]), &["S(0,[3,2])"], "S(0,[3,2])");
    must_allow(slice, &f32s(&[&[5, 7]]), &["P"], "P");
    let types = f32s(&[&[5, 3], &[5, 4], &[5, 1], &[5, 2], &[5, 2], &[5, 6]]);
    must_allow(ops::Concat { dim: 1 }, &types, &["P"; 6], "P");
    must_allow(ops::Concat { dim: 1 }, &types, &["S(0,[3,2])"; 6], "S(0,[3,2])");
    let zero = vec![intwain_ir::Scalar::zero(DType::F32)];
    let pad = ops::Pad { low: vec![0, 1], high: vec![0, 1], interior: vec![0, 0], value: zero };
    must_allow(pad.clone(), &f32s(&[&[5, 3]]), &["S(0,[3,2])"], "S(0,[3,2])");
    must_allow(pad, &f32s(&[&[5, 3]]), &["P"], "P");
    let broadcast = ops::Broadcast { shape: Shape::from([5, 3]), dims: vec![1] };
    must_allow(broadcast.clone(), &f32s(&[&[3]]), &["R"], "S(0,[3,2])");
    must_allow(broadcast.clone(), &f32s(&[&[3]]), &["S(0,[2,1])"], "S(1,[2,1])");
    must_allow(broadcast, &f32s(&[&[3]]), &["P"], "P");
}

#[test]
fn pointwise_and_reductions_must_pass() {
    use intwain_ir::scalar::{Binary, Unary};
    let pair = f32s(&[&[5, 3], &[5, 3]]);
    let binary = |function: Binary| ops::Binary { function };
    must_allow(binary(Binary::Add), &pair, &["P", "P"], "P");
    must_allow(binary(Binary::Mul), &pair, &["P", "R"], "P");
    must_allow(binary(Binary::Mul), &pair, &["R", "P"], "P");
    must_allow(binary(Binary::Div), &pair, &["P", "R"], "P");
    must_allow(binary(Binary::Max), &pair, &["S(1,[2,1])", "S(1,[2,1])"], "S(1,[2,1])");
    must_allow(ops::Unary { function: Unary::Neg }, &pair[..1], &["P"], "P");
    must_allow(ops::Softmax { dim: 1 }, &f32s(&[&[5, 3, 2]]), &["S(0,[3,2])"], "S(0,[3,2])");
    must_allow(ops::Softmax { dim: 1 }, &f32s(&[&[5, 3, 2]]), &["S(2,[1,1])"], "S(2,[1,1])");
    must_allow(ops::LogSoftmax { dim: 2 }, &f32s(&[&[5, 3, 2]]), &["S(1,[2,1])"], "S(1,[2,1])");
    let norm = ops::Standardize { dims: vec![2], epsilon: 1e-5 };
    must_allow(norm, &f32s(&[&[5, 3, 2]]), &["S(1,[2,1])"], "S(1,[2,1])");
    let norm = ops::Standardize { dims: vec![0, 1, 2], epsilon: 1e-5 };
    must_allow(norm, &f32s(&[&[5, 4, 4, 6]]), &["S(3,[4,2])"], "S(3,[4,2])");
    // Statistics of a batch normalisation, channel by channel.
    let statistics = ops::Reduce { function: Reduce::Sum, dims: vec![0, 1, 2] };
    must_allow(statistics.clone(), &f32s(&[&[5, 4, 4, 6]]), &["S(3,[4,2])"], "S(0,[4,2])");
    must_allow(statistics.clone(), &f32s(&[&[5, 4, 4, 6]]), &["S(0,[3,2])"], "P");
    must_allow(statistics, &f32s(&[&[5, 4, 4, 6]]), &["P"], "P");
    let pool = ops::Pool {
        function: Reduce::Max,
        size: vec![3, 3],
        stride: vec![2, 2],
        pads: vec![(1, 1), (1, 1)],
        dilation: vec![1, 1],
        input_dilation: vec![1, 1],
    };
    must_allow(pool.clone(), &f32s(&[&[5, 8, 8, 6]]), &["S(3,[4,2])"], "S(3,[4,2])");
    must_allow(pool, &f32s(&[&[5, 8, 8, 6]]), &["S(0,[3,2])"], "S(0,[3,2])");
}

#[test]
fn tables_must_be_cut() {
    let types = [Type::new(DType::F32, [10, 6]), Type::new(DType::I32, [5, 3])];
    let take = ops::Take { base: 0 };
    must_allow(take.clone(), &types, &["S(0,[7,3])", "R"], "P");
    must_allow(take.clone(), &types, &["S(1,[4,2])", "R"], "S(2,[4,2])");
    must_allow(take.clone(), &types, &["R", "S(0,[3,2])"], "S(0,[3,2])");
    must_allow(take, &types, &["R", "S(1,[2,1])"], "S(1,[2,1])");
    let types = [Type::new(DType::I32, [5, 3]), Type::new(DType::F32, [5, 3, 6])];
    let add = ops::ScatterAdd { rows: 10, base: 0 };
    must_allow(add.clone(), &types, &["R", "R"], "S(0,[7,3])");
    must_allow(add.clone(), &types, &["S(0,[3,2])", "S(0,[3,2])"], "P");
    must_allow(add.clone(), &types, &["R", "S(2,[4,2])"], "S(1,[4,2])");
    must_allow(add, &types, &["R", "P"], "P");
}
