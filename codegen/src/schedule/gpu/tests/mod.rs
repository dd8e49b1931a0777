//! GPU schedules against the interpreter of computes, on the emulator.

mod access;
mod columns;
mod fusion;
mod movement;
mod random;
mod rows;

use super::{Gpu, GpuKernel, harness};
use crate::schedule::tests::{several, tensor};
use intwain_ir::compute::{Compute, Expr};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::Unary;
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

/// What a schedule did.
struct Done {
    read: u64,
    written: u64,
    /// Passes over shared memory that only bank conflicts cause.
    conflicts: u64,
    schedule: &'static str,
    launches: usize,
}

/// What elementary functions in an expression may differ by, relative to the scale of results of a type.
fn elementary(compute: &Compute, dtype: DType) -> f64 {
    let approximated = |e: &Expr| matches!(e, Expr::Unary(Unary::Exp | Unary::Sqrt | Unary::Rsqrt, _));
    match dtype {
        _ if !compute.exprs().any(|(_, e)| approximated(e)) => 0.0,
        DType::F16 => 1e-3,
        DType::BF16 => 1e-2,
        _ => 1e-6,
    }
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
        let bound = bound.max(elementary(compute, w.ty.dtype));
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
        conflicts: out.stats.iter().map(|s| s.shared_conflicts).sum(),
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

/// Bytes of operands and results.
fn bytes(op: impl Into<Op>, args: &[Type]) -> u64 {
    let (_, results) = compute_of(op, args);
    args.iter().chain(&results).map(|t| t.bytes() as u64).sum()
}

/// An operation whose fast schedule has this name and number of launches and moves few bytes more than it must, without
/// bank conflicts.
fn check_traffic(op: impl Into<Op>, args: &[Type], bound: f64, schedule: &str, launches: usize) {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    let what = format!("{op:?} of {args:?}");
    let done = check(Which::Fast, &c, &tensors, &results, bound, &what);
    assert_eq!((done.schedule, done.launches), (schedule, launches), "{what}");
    assert_eq!(done.conflicts, 0, "{what}: bank conflicts");
    let (moved, needed) = (done.read + done.written, bytes(op, args));
    assert!(moved * 10 <= needed * 11, "{what}: {moved} bytes moved, {needed} needed");
}

/// An operation under the fast schedule alone.
fn check_fast(op: impl Into<Op>, args: &[Type], bound: f64) -> Done {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    check(Which::Fast, &c, &tensors, &results, bound, &format!("{op:?} of {args:?}"))
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

#[test]
fn several_results() {
    for extents in [[1, 1], [5, 7], [64, 48], [131, 130]] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let (c, operands, results) = several(extents, dtype);
            let tensors: Vec<Tensor> = operands.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
            for which in [Which::Naive, Which::Fast] {
                check(which, &c, &tensors, &results, 0.0, &format!("several of {extents:?} {dtype}"));
            }
        }
    }
}
