//! GPU schedules against the interpreter of computes, on the emulator.

use super::launch::Arrays;
use super::rows::{self, Rows};
use super::{Gpu, GpuKernel, harness, shape};
use crate::schedule::nest::Nest;
use crate::schedule::tests::tensor;
use intwain_emulator::{AddressSpace, Arg, Device, Module};
use intwain_ir::compute::Compute;
use intwain_ir::kernel::{Block, Entry, Inst, Kernel, Place, Stmt};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Scalar, Target, Tensor, Type, interp};

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

/// The instructions and statements of a kernel.
fn accesses(k: &Kernel) -> Vec<(Place, usize)> {
    fn walk(k: &Kernel, b: &Block, found: &mut Vec<(Place, usize)>) {
        for s in &b.0 {
            match s {
                Stmt::Let(r, Inst::Load { from, .. }) => found.push((*from, k.regs[*r].lanes as usize)),
                Stmt::Store { to, value, .. } => found.push((*to, k.regs[*value].lanes as usize)),
                Stmt::If { then, otherwise, .. } => {
                    walk(k, then, found);
                    walk(k, otherwise, found);
                }
                Stmt::For(l) => walk(k, &l.body, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(k, &k.body, &mut found);
    found
}

/// Whether all accesses to parameters are of 16 bytes.
fn is_wide(op: impl Into<Op>, args: &[Type]) {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let k = schedule(Which::Fast, "k", &c, args, &results);
    for l in &k.launches {
        for (place, lanes) in accesses(&l.kernel) {
            let Place::Param(i) = place else { continue };
            let p = &l.kernel.params[i as usize];
            let bytes = lanes * p.dtype.size();
            assert_eq!(bytes, 16, "{op:?} of {args:?}, {}: {bytes} bytes at {place}\n{}", k.schedule, l.kernel);
        }
    }
}

#[test]
fn accesses_are_16_bytes_wide_where_they_can_be() {
    for d in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::F64] {
        let ty = |shape: &[usize]| Type::new(d, shape);
        is_wide(ops::Binary { function: Binary::Add }, &[ty(&[12, 16]), ty(&[12, 16])]);
        is_wide(ops::Binary { function: Binary::Add }, &[ty(&[3000, 1024]), ty(&[3000, 1024])]);
        is_wide(ops::Concat { dim: 1 }, &[ty(&[5, 8]), ty(&[5, 24]), ty(&[5, 16])]);
        is_wide(ops::Concat { dim: 0 }, &[ty(&[5, 8]), ty(&[7, 8])]);
        is_wide(ops::Transpose { perm: vec![0, 2, 1, 3] }, &[ty(&[2, 3, 5, 64])]);
        is_wide(ops::Transpose { perm: vec![1, 0] }, &[ty(&[64, 128])]);
        if d.is_float() {
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 64])]);
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 1000])]);
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 4096])]);
            is_wide(ops::Standardize { dims: vec![1], epsilon: 1e-3 }, &[ty(&[5, 768])]);
        }
    }
    let pool = ops::Pool {
        function: Reduce::Max,
        size: vec![3, 3],
        stride: vec![2, 2],
        pads: vec![(1, 1), (1, 1)],
        dilation: vec![1, 1],
        input_dilation: vec![1, 1],
    };
    is_wide(pool, &[f32s(&[2, 9, 9, 64])]);
    // The table's rows and the result; positions are single elements.
    let args = [f32s(&[50, 64]), Type::new(DType::I32, [7])];
    let (c, results) = compute_of(ops::Take { base: 0 }, &args);
    let k = schedule(Which::Fast, "k", &c, &args, &results);
    let lanes: Vec<usize> = accesses(&k.launches[0].kernel).into_iter().map(|a| a.1).collect();
    assert_eq!(lanes, [1, 4, 4]);
}

#[test]
fn adversarial_shapes() {
    for n in [1, 2, 3, 7, 31, 32, 33, 127, 128, 129, 255, 257, 1021, 1024] {
        check_fast(ops::Unary { function: Unary::Neg }, &[f32s(&[n])], 0.0);
        check_fast(ops::Unary { function: Unary::Neg }, &[Type::new(DType::I8, [n])], 0.0);
        check_fast(ops::Binary { function: Binary::Add }, &[f32s(&[3, n]), f32s(&[3, n])], 0.0);
        check_fast(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[n, 19])], 0.0);
        check_fast(ops::Transpose { perm: vec![1, 0] }, &[Type::new(DType::F16, [24, n])], 0.0);
        check_fast(ops::Concat { dim: 1 }, &[f32s(&[3, n]), f32s(&[3, 5]), f32s(&[3, 8])], 0.0);
        for d in [DType::I32, DType::U8, DType::I64, DType::Bool] {
            for function in [Reduce::Sum, Reduce::Max, Reduce::Prod] {
                let reduce = |dim: usize| ops::Reduce { function, dims: vec![dim] };
                check_fast(reduce(1), &[Type::new(d, [5, n])], 0.0);
                check_fast(reduce(0), &[Type::new(d, [n, 6])], 0.0);
            }
        }
        for shape in [&[5, n][..], &[n, 6]] {
            check_fast(ops::Softmax { dim: 1 }, &[f32s(shape)], 1e-6);
            check_fast(ops::Softmax { dim: 0 }, &[f32s(shape)], 1e-6);
            check_fast(ops::ArgMax { dim: 0 }, &[f32s(shape)], 0.0);
            check_fast(ops::ArgMax { dim: 1 }, &[f32s(shape)], 0.0);
        }
    }
}

#[test]
fn more_rows_than_a_launch_has_along_y() {
    let tall = f32s(&[66_001, 5]);
    for op in [Op::from(ops::Softmax { dim: 1 }), ops::Reduce { function: Reduce::Max, dims: vec![1] }.into()] {
        check_fast(op, std::slice::from_ref(&tall), 1e-6);
    }
    check_fast(ops::Reduce { function: Reduce::Max, dims: vec![1] }, &[f32s(&[66_001, 33])], 0.0);
    check_fast(ops::Reduce { function: Reduce::Max, dims: vec![0] }, &[f32s(&[66_001, 5])], 0.0);
    check_fast(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[66_001, 17])], 0.0);
}

#[test]
fn nan_and_infinities_go_through_teams() {
    let ty = f32s(&[4, 300]);
    let mut x = tensor(&ty, 1);
    let f = |x: f32| Scalar::from_f64(DType::F32, f64::from(x));
    x.set(17, f(f32::NAN));
    x.set(299, f(f32::NAN));
    (300..600).for_each(|i| x.set(i, f(f32::NEG_INFINITY)));
    x.set(650, f(f32::INFINITY));
    x.set(850, f(f32::INFINITY));
    (900..1200).for_each(|i| x.set(i, f(if i % 2 == 0 { 0.0 } else { -0.0 })));
    for op in [
        Op::from(ops::ArgMax { dim: 1 }),
        ops::Reduce { function: Reduce::Max, dims: vec![1] }.into(),
        ops::Reduce { function: Reduce::Min, dims: vec![1] }.into(),
        ops::Softmax { dim: 1 }.into(),
    ] {
        let (c, results) = compute_of(op.clone(), std::slice::from_ref(&ty));
        check(Which::Fast, &c, std::slice::from_ref(&x), &results, 1e-6, &format!("{op:?}"));
    }
}

#[test]
fn fusion_stops_where_elements_would_be_read_again() {
    let gpu = Gpu::default();
    let ty = f32s(&[64, 128]);
    let fuses = |c: &Compute, operands: &[Type], result: &Type| gpu.can_fuse(c, &types(operands), &[result]);
    // softmax(x + y) along rows: one pass.
    let sum = |c: &mut Compute, rows: bool| {
        let k = c.reduce_axis(if rows { 128 } else { 64 });
        let mut at = c.position();
        let here = {
            let (x, y) = (c.load(0, &ty, at.clone()), c.load(1, &ty, at.clone()));
            c.binary(Binary::Add, x, y)
        };
        at[usize::from(rows)] = intwain_ir::compute::Index::axis(k);
        let (x, y) = (c.load(0, &ty, at.clone()), c.load(1, &ty, at));
        let there = c.binary(Binary::Add, x, y);
        let all = c.reduce(Reduce::Sum, vec![k], intwain_ir::compute::Order::Sequential, there);
        c.binary(Binary::Div, here, all)
    };
    for (rows, expected) in [(true, true), (false, false)] {
        let mut c = Compute::new(&ty.shape);
        let y = sum(&mut c, rows);
        let c = c.with_results([y]);
        assert_eq!(fuses(&c, &[ty.clone(), ty.clone()], &ty), expected, "rows: {rows}");
    }
    let (product, results) =
        compute_of(ops::Contract { batch: vec![], contract: vec![(1, 0)] }, &[f32s(&[64, 32]), f32s(&[32, 128])]);
    assert!(fuses(&product, &[f32s(&[64, 32]), f32s(&[32, 128])], &results[0]));
}

/// Runs the last block of a kernel whose tensors have more than 2^31 elements, of which memory holds those given, and
/// gives the elements of the result asked for.
fn last_block(op: impl Into<Op>, ty: &Type, filled: &[(usize, Vec<f32>)], wanted: &[(usize, usize)]) -> Vec<Vec<f32>> {
    let (c, results) = compute_of(op, std::slice::from_ref(ty));
    let k = schedule(Which::Fast, "k", &c, std::slice::from_ref(ty), &results);
    let [launch] = &k.launches[..] else { panic!("{} has several launches", k.schedule) };
    let Entry::Grid { blocks, threads } = launch.kernel.entry else { panic!("not a GPU kernel") };
    let text = crate::ptx::module(&[&launch.kernel]).unwrap();
    assert!(text.contains("%ctaid.x"), "{text}");
    let text = text.replace("%ctaid.x", &(blocks[0] - 1).to_string());
    let device = Device::new(&AddressSpace::default(), 0);
    let [x, y] = [ty, &results[0]].map(|t| device.alloc(t.bytes() as u64).unwrap());
    for (at, values) in filled {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        device.write(x + 4 * *at as u64, &data).unwrap();
    }
    let module = Module::parse(&text).unwrap();
    let shape =
        intwain_emulator::Launch { grid: [1, 1, 1], block: threads, shared: launch.kernel.buffer_offsets().1 as u32 };
    device.launch(&module, "k", shape, &[Arg::U64(x), Arg::U64(y)]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let read = |&(at, n): &(usize, usize)| {
        let mut data = vec![0; 4 * n];
        device.read(y + 4 * at as u64, &mut data).unwrap();
        data.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    wanted.iter().map(read).collect()
}

#[test]
fn offsets_past_two_to_the_31() {
    let value = |i: usize| (i % 1013) as f32;
    let values = |at: usize, n: usize| (at, (at..at + n).map(value).collect::<Vec<f32>>());
    let n = (1 << 31) + 776;
    let got =
        last_block(ops::Unary { function: Unary::Neg }, &f32s(&[n]), &[values(n - 8192, 8192)], &[(n - 700, 700)]);
    assert!(got[0].iter().zip(n - 700..).all(|(&y, i)| y == -value(i)));

    let rows = (1 << 21) + 3;
    let start = (rows - 1) * 1024;
    let sum = ops::Reduce { function: Reduce::Max, dims: vec![1] };
    let got = last_block(sum, &f32s(&[rows, 1024]), &[values(start - 4096, 5120)], &[(rows - 1, 1)]);
    assert_eq!(got[0], [1012.0]);
    let norm = ops::Standardize { dims: vec![1], epsilon: 1e-3 };
    let got = last_block(norm, &f32s(&[rows, 1024]), &[values(start - 4096, 5120)], &[(start, 1024)]);
    assert!(got[0].iter().sum::<f32>().abs() < 1e-3);

    let (high, wide) = ((1 << 16) + 40, (1 << 15) + 24);
    let filled: Vec<_> = (high - 104..high).map(|r| values(r * wide + wide - 56, 56)).collect();
    let wanted: Vec<_> = (wide - 24..wide).map(|c| (c * high + high - 40, 40)).collect();
    let got = last_block(ops::Transpose { perm: vec![1, 0] }, &f32s(&[high, wide]), &filled, &wanted);
    for (line, c) in got.iter().zip(wide - 24..) {
        assert!(line.iter().zip(high - 40..).all(|(&y, r)| y == value(r * wide + c)));
    }
}
