//! GPU schedules against the interpreter of computes, on the emulator.

use super::launch::Arrays;
use super::rows::{self, Rows};
use super::{Gpu, GpuKernel, harness, shape};
use crate::schedule::nest::Nest;
use crate::schedule::tests::tensor;
use intwain_ir::compute::Compute;
use intwain_ir::kernel::{Entry, Inst, Stmt};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Tensor, Type, interp};

/// Which of a GPU's schedules is under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Naive,
    Fast,
}

fn types(list: &[Type]) -> Vec<&Type> {
    list.iter().collect()
}

/// The compute of an op, and its result types.
fn compute_of(op: impl Into<Op>, args: &[Type]) -> (Compute, Vec<Type>) {
    let op = op.into();
    let results: Vec<Type> = op.infer(&types(args)).unwrap_or_else(|e| panic!("{op:?}: {e}")).into_iter().collect();
    let Body::Compute(c) = op.body(&types(args), &types(&results)) else { panic!("{op:?} is no compute") };
    (c, results)
}

fn schedule(which: Which, name: &str, compute: &Compute, operands: &[Type], results: &[Type]) -> GpuKernel {
    match which {
        Which::Naive => Gpu::default().schedule_naive(name, compute, &types(operands), &types(results)),
        Which::Fast => Gpu::default().schedule(name, compute, &types(operands), &types(results)),
    }
}

#[test]
fn names_are_legal_and_empty_results_launch_nothing() {
    let ty = Type::new(DType::F32, [3, 5]);
    let (c, results) = compute_of(ops::Unary { function: Unary::Tanh }, std::slice::from_ref(&ty));
    let k = schedule(Which::Naive, "1st block/act.relu", &c, &[ty], &results);
    assert_eq!(k.launches[0].kernel.name, "k_1st_block_act_relu");
    let empty = Type::new(DType::F32, [0, 5]);
    let (c, results) = compute_of(ops::Unary { function: Unary::Tanh }, std::slice::from_ref(&empty));
    assert!(schedule(Which::Naive, "k", &c, &[empty], &results).launches.is_empty());
}

/// What a schedule did.
struct Done {
    read: u64,
    written: u64,
    schedule: &'static str,
    launches: usize,
}

/// Runs a schedule and compares it with the interpreter: bit for bit, or within `bound` of the scale of the results.
fn check(which: Which, compute: &Compute, args: &[Tensor], results: &[Type], bound: f64, what: &str) -> Done {
    let operand_types: Vec<Type> = args.iter().map(|t| t.ty.clone()).collect();
    let k = schedule(which, "k", compute, &operand_types, results);
    compare(&k, compute, args, results, bound, what)
}

/// Runs a kernel and compares it with the interpreter.
fn compare(k: &GpuKernel, compute: &Compute, args: &[Tensor], results: &[Type], bound: f64, what: &str) -> Done {
    let want = interp::evaluate(compute, &args.iter().collect::<Vec<_>>(), &types(results));
    let names: std::collections::BTreeSet<&str> = k.launches.iter().map(|l| l.kernel.name.as_str()).collect();
    assert_eq!(names.len(), k.launches.len(), "{what}: kernels of one schedule have different names");
    let out = harness::run(k, &args.iter().collect::<Vec<_>>(), &types(results));
    for (w, g) in want.iter().zip(&out.results) {
        let scale = (0..w.elements()).map(|i| w.get(i).to_f64().abs()).filter(|x| x.is_finite()).fold(1.0, f64::max);
        for i in 0..w.elements() {
            let (x, y) = (w.get(i), g.get(i));
            let (a, b) = (x.to_f64(), y.to_f64());
            let equal =
                x == y || (a.is_nan() && b.is_nan()) || (w.ty.dtype.is_float() && (a - b).abs() <= bound * scale);
            let kernels = || k.launches.iter().map(|l| l.kernel.to_string()).collect::<String>();
            assert!(
                equal,
                "{what}, {}: element {i} of {}: {x} expected, {y} found\n{compute}{}",
                k.schedule,
                w.ty,
                kernels()
            );
        }
    }
    Done {
        read: out.stats.iter().map(|s| s.global_read).sum(),
        written: out.stats.iter().map(|s| s.global_written).sum(),
        schedule: k.schedule,
        launches: k.launches.len(),
    }
}

/// An operation under both schedules; what the fast one did.
fn check_op(op: impl Into<Op>, args: &[Type], bound: f64) -> Done {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    let what = format!("{op:?} of {args:?}");
    check(Which::Naive, &c, &tensors, &results, 0.0, &what);
    check(Which::Fast, &c, &tensors, &results, bound, &what)
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

#[test]
fn pointwise() {
    for shape in [&[][..], &[1], &[3], &[8], &[5, 7], &[2, 3, 4, 6], &[0], &[3, 0, 2], &[1, 37], &[131, 130]] {
        for d in [DType::F32, DType::F16, DType::BF16] {
            check_op(ops::Unary { function: Unary::Exp }, &[Type::new(d, shape)], 0.0);
        }
        for d in DType::ALL {
            check_op(ops::Binary { function: Binary::Max }, &[Type::new(d, shape), Type::new(d, shape)], 0.0);
            check_op(ops::Cast { to: DType::F32 }, &[Type::new(d, shape)], 0.0);
            check_op(ops::Cast { to: d }, &[f32s(shape)], 0.0);
        }
    }
}

#[test]
fn movement() {
    check_op(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[9, 13])], 0.0);
    check_op(ops::Transpose { perm: vec![0, 2, 1, 3] }, &[f32s(&[2, 3, 5, 8])], 0.0);
    check_op(ops::Transpose { perm: vec![2, 0, 1] }, &[Type::new(DType::I8, [4, 5, 6])], 0.0);
    check_op(ops::Concat { dim: 1 }, &[f32s(&[3, 5]), f32s(&[3, 16]), f32s(&[3, 1]), f32s(&[3, 9])], 0.0);
    check_op(ops::Concat { dim: 1 }, &[f32s(&[3, 8]), f32s(&[3, 16]), f32s(&[3, 4])], 0.0);
    check_op(ops::Concat { dim: 0 }, &[f32s(&[3, 5]), f32s(&[2, 5])], 0.0);
    check_op(ops::Reverse { dims: vec![0, 1] }, &[f32s(&[4, 9])], 0.0);
    for d in [DType::I32, DType::I64, DType::U8] {
        let (table, at) = (f32s(&[6, 20]), Type::new(d, [2, 5]));
        check_op(ops::Take { base: 0 }, &[table.clone(), at.clone()], 0.0);
        check_op(ops::Take { base: 2 }, &[table, at.clone()], 0.0);
        check_op(ops::Take { base: 0 }, &[f32s(&[9]), at], 0.0);
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        check_op(ops::Iota { dim: 1, start: 3, dtype, shape: [3, 10].into() }, &[], 0.0);
    }
}

#[test]
fn windows() {
    for (shape, size, stride, pad) in [
        ([2usize, 9, 8, 5], [3usize, 3], [2usize, 2], (1, 1)),
        ([1, 7, 7, 64], [2, 2], [2, 2], (0, 0)),
        ([2, 6, 5, 16], [3, 3], [1, 1], (1, 1)),
        ([1, 6, 6, 3], [5, 5], [1, 1], (2, 2)),
    ] {
        for function in [Reduce::Max, Reduce::Sum] {
            let op = ops::Pool {
                function,
                size: size.to_vec(),
                stride: stride.to_vec(),
                pads: vec![pad; 2],
                dilation: vec![1, 1],
                input_dilation: vec![1, 1],
            };
            check_op(op, &[f32s(&shape)], 0.0);
        }
        let channels = shape[3];
        let depthwise = ops::Conv {
            stride: stride.to_vec(),
            pads: vec![pad; 2],
            input_dilation: vec![1, 1],
            kernel_dilation: vec![1, 1],
            groups: channels,
            batch_groups: 1,
        };
        check_op(depthwise, &[f32s(&shape), f32s(&[size[0], size[1], 1, channels])], 1e-6);
    }
}

const REDUCED: [(&[usize], &[usize]); 13] = [
    (&[5, 9], &[1]),
    (&[5, 9], &[0]),
    (&[4, 16], &[1]),
    (&[3, 100], &[1]),
    (&[130, 6], &[0]),
    (&[3, 4, 5], &[1, 2]),
    (&[3, 5, 8], &[1, 2]),
    (&[3, 5, 8], &[0, 2]),
    (&[2, 5, 6, 9], &[1, 2]),
    (&[2, 5, 6, 9], &[0, 3]),
    (&[11, 1], &[1]),
    (&[4, 0], &[1]),
    (&[0, 4], &[1]),
];

#[test]
fn reductions() {
    for (shape, dims) in REDUCED {
        for d in [DType::F32, DType::F16, DType::F64, DType::I32, DType::I8, DType::Bool] {
            for function in [Reduce::Sum, Reduce::Max, Reduce::Min, Reduce::Prod] {
                check_op(ops::Reduce { function, dims: dims.to_vec() }, &[Type::new(d, shape)], 1e-3);
            }
        }
    }
    for (shape, dim) in [(&[5usize, 9][..], 1), (&[9, 5], 0), (&[7, 1], 1), (&[3, 4, 6], 1), (&[3, 700], 1)] {
        for d in [DType::F32, DType::F64, DType::I32, DType::U8] {
            check_op(ops::ArgMax { dim }, &[Type::new(d, shape)], 0.0);
        }
    }
}

#[test]
fn rows_with_statistics() {
    for shape in [&[3usize, 5][..], &[4, 64], &[2, 3, 33], &[7, 1], &[1, 8], &[6, 1000]] {
        let dim = shape.len() - 1;
        for (d, bound) in [(DType::F32, 1e-6), (DType::BF16, 1e-2), (DType::F16, 1e-3)] {
            check_op(ops::Softmax { dim }, &[Type::new(d, shape)], bound);
            check_op(ops::LogSoftmax { dim }, &[Type::new(d, shape)], bound);
            check_op(ops::Softmax { dim: 0 }, &[Type::new(d, shape)], bound);
            check_op(ops::Standardize { dims: vec![dim], epsilon: 1e-3 }, &[Type::new(d, shape)], bound);
        }
    }
    check_op(ops::Standardize { dims: vec![1, 2, 3], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 5])], 1e-6);
    check_op(ops::Standardize { dims: vec![0, 1, 2], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 40])], 1e-6);
    check_op(ops::Standardize { dims: vec![1, 2, 4], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 2, 5])], 1e-6);
}

#[test]
fn products_fall_back_on_loops() {
    let matmul = ops::Contract { batch: vec![], contract: vec![(1, 0)] };
    for (m, k, n) in [(1, 1, 1), (3, 5, 7), (17, 16, 33), (2, 0, 4), (5, 64, 1)] {
        for d in [DType::F32, DType::F64, DType::F16, DType::I32] {
            let bound = if d == DType::F16 { 1e-3 } else { 1e-6 };
            check_op(matmul.clone(), &[Type::new(d, [m, k]), Type::new(d, [k, n])], bound);
        }
    }
}

/// Bytes of operands and results.
fn bytes(op: impl Into<Op>, args: &[Type]) -> u64 {
    let (_, results) = compute_of(op, args);
    args.iter().chain(&results).map(|t| t.bytes() as u64).sum()
}

/// An operation whose fast schedule has this name and number of launches and moves few bytes more than it must.
fn check_traffic(op: impl Into<Op>, args: &[Type], bound: f64, schedule: &str, launches: usize) {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    let what = format!("{op:?} of {args:?}");
    let done = check(Which::Fast, &c, &tensors, &results, bound, &what);
    assert_eq!((done.schedule, done.launches), (schedule, launches), "{what}");
    let (moved, needed) = (done.read + done.written, bytes(op, args));
    assert!(moved * 10 <= needed * 11, "{what}: {moved} bytes moved, {needed} needed");
}

#[test]
fn rows_are_read_once() {
    for shape in [
        &[64usize, 10][..],
        &[33, 100],
        &[5, 1000],
        &[5, 1023],
        &[5, 1024],
        &[5, 1025],
        &[3, 4096],
        &[2, 8191],
        &[2, 16384],
        &[1, 32768],
        &[70000, 4],
    ] {
        let dim = shape.len() - 1;
        for (d, bound) in [(DType::F32, 1e-5), (DType::F16, 1e-2)] {
            let ty = [Type::new(d, shape)];
            check_traffic(ops::Softmax { dim }, &ty, bound, "rows", 1);
            check_traffic(ops::Standardize { dims: vec![dim], epsilon: 1e-3 }, &ty, bound, "rows", 1);
        }
        let sum = ops::Reduce { function: Reduce::Sum, dims: vec![dim] };
        let name = if shape[1] <= 4 { "windows" } else { "rows" };
        let (name, launches) = if shape[1] > 8192 { ("rows in segments", 2) } else { (name, 1) };
        check_traffic(sum, &[f32s(shape)], 1e-4, name, launches);
        check_traffic(ops::ArgMax { dim }, &[f32s(shape)], 0.0, name, launches);
    }
    check_traffic(
        ops::Reduce { function: Reduce::Sum, dims: vec![0, 1] },
        &[f32s(&[300, 1001])],
        1e-5,
        "rows in segments",
        2,
    );
    check_traffic(
        ops::Reduce { function: Reduce::Max, dims: vec![0, 2] },
        &[f32s(&[30, 5, 1001])],
        0.0,
        "rows in segments",
        2,
    );
    check_traffic(
        ops::Reduce { function: Reduce::Sum, dims: vec![0] },
        &[Type::new(DType::I32, [300007])],
        0.0,
        "rows in segments",
        2,
    );
    check_traffic(ops::Standardize { dims: vec![1, 2, 3], epsilon: 1e-3 }, &[f32s(&[3, 9, 8, 5])], 1e-5, "rows", 1);
    check_traffic(ops::Standardize { dims: vec![1, 2, 4], epsilon: 1e-3 }, &[f32s(&[3, 9, 8, 5, 4])], 1e-5, "rows", 1);
}

/// An operation under the fast schedule alone.
fn check_fast(op: impl Into<Op>, args: &[Type], bound: f64) -> Done {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    check(Which::Fast, &c, &tensors, &results, bound, &format!("{op:?} of {args:?}"))
}

#[test]
fn rows_too_long_for_registers() {
    let done = check_fast(ops::Softmax { dim: 1 }, &[f32s(&[2, 40001])], 1e-5);
    assert_eq!(done.schedule, "stages");
    let op = ops::Standardize { dims: vec![1], epsilon: 1e-3 };
    let (c, results) = compute_of(op, &[f32s(&[3, 33001])]);
    let args = [tensor(&f32s(&[3, 33001]), 1)];
    let (mut nest, arrays) = (Nest::new(&c, &[&args[0].ty]), Arrays::new(&[&args[0].ty], &types(&results)));
    shape::normalise(&mut nest);
    let rows = Rows::new(&nest, &[DType::F32]).unwrap();
    assert!(!rows.one_pass());
    let launches = vec![rows::launch("k", &nest, &arrays, &rows)];
    let k = GpuKernel { launches, workspace: 0, schedule: "rows, read again" };
    let done = compare(&k, &c, &args, &results, 1e-5, "long rows");
    assert_eq!((done.read, done.written), (3 * 3 * 33001 * 4, 3 * 33001 * 4));
}

#[test]
fn columns_are_read_once() {
    let sum = |dims: &[usize]| ops::Reduce { function: Reduce::Sum, dims: dims.to_vec() };
    for (shape, dims, schedule, launches) in [
        (&[100usize, 64][..], &[0usize][..], "columns", 1),
        (&[1000, 10], &[0], "columns in segments", 2),
        (&[1031, 67], &[0], "columns in segments", 2),
        (&[20000, 4], &[0], "columns in segments", 2),
        (&[2, 49, 256], &[1], "columns", 1),
        (&[3, 7, 7, 130], &[1, 2], "columns", 1),
        (&[17, 66000], &[0], "columns", 1),
    ] {
        for d in [DType::F32, DType::F16, DType::I32] {
            check_traffic(sum(dims), &[Type::new(d, shape)], 1e-4, schedule, launches);
        }
        let [dim] = dims[..] else { continue };
        check_fast(ops::ArgMax { dim }, &[f32s(shape)], 0.0);
    }
    let norm = ops::Standardize { dims: vec![0, 1, 2], epsilon: 1e-3 };
    let done = check_fast(norm, &[f32s(&[4, 9, 8, 64])], 1e-5);
    assert_eq!(done.schedule, "stages");
}

#[test]
fn transposition_moves_groups_both_ways() {
    let transpose = |perm: &[usize]| ops::Transpose { perm: perm.to_vec() };
    for (shape, perm, schedule) in [
        (&[64usize, 32][..], &[1usize, 0][..], "transpose"),
        (&[63, 33], &[1, 0], "transpose"),
        (&[65, 128], &[1, 0], "transpose"),
        (&[100, 36], &[1, 0], "transpose"),
        (&[3, 49, 64], &[0, 2, 1], "transpose"),
        (&[2, 17, 3, 40], &[0, 2, 3, 1], "transpose"),
        (&[2, 12, 3, 8], &[0, 2, 1, 3], "pointwise"),
        (&[66000, 3], &[1, 0], "pointwise"),
    ] {
        for d in [DType::F32, DType::BF16, DType::I8, DType::F64] {
            check_traffic(transpose(perm), &[Type::new(d, shape)], 0.0, schedule, 1);
        }
    }
    // y = x^T · z + x^T, read along both.
    let (x, z) = (f32s(&[40, 72]), f32s(&[72, 40]));
    let mut c = Compute::new(&z.shape);
    let at = c.position();
    let turned = c.load(0, &x, vec![at[1].clone(), at[0].clone()]);
    let straight = c.load(1, &z, at);
    let y = c.binary(Binary::Mul, turned, straight);
    let y = c.binary(Binary::Add, y, turned);
    let c = c.with_results([y]);
    let args = [tensor(&x, 1), tensor(&z, 2)];
    let done = check(Which::Fast, &c, &args, &[z], 0.0, "a product with a transposed factor");
    assert_eq!((done.schedule, done.read, done.written), ("transpose", 2 * 40 * 72 * 4, 40 * 72 * 4));
}
