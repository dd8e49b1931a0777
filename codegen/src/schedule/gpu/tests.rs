//! GPU schedules against the interpreter of computes, on the emulator.

use super::{Gpu, GpuKernel, harness};
use crate::schedule::tests::tensor;
use intwain_ir::compute::Compute;
use intwain_ir::kernel::{self, Entry, verify};
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
