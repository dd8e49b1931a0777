//! Reductions along rows, softmax, norms.

use super::{GpuKernel, Which, check, check_fast, check_op, check_traffic, compare, compute_of, f32s, tensor, types};
use crate::schedule::gpu::launch::Arrays;
use crate::schedule::gpu::rows::{self, Rows};
use crate::schedule::gpu::shape;
use crate::schedule::nest::Nest;
use intwain_ir::compute::{Compute, Index, Order};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Scalar, Type};

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

/// Σ over n of x·w, the largest |x|, and x − mean + bias, of one tensor at once.
#[test]
fn several_results_and_reductions_share_a_row() {
    for (m, n) in [(5, 96), (3, 33), (2, 3000)] {
        let (x, w) = (f32s(&[m, n]), f32s(&[n]));
        let mut c = Compute::new(&x.shape);
        let k = c.reduce_axis(n);
        let at = c.position();
        let there = c.load(0, &x, vec![at[0].clone(), Index::axis(k)]);
        let weight = c.load(1, &w, vec![Index::axis(k)]);
        let product = c.binary(Binary::Mul, there, weight);
        let dot = c.reduce(Reduce::Sum, vec![k], Order::Fma, product);
        let size = c.unary(Unary::Abs, there);
        let most = c.reduce(Reduce::Max, vec![k], Order::Lanes, size);
        let first = c.arg_max(vec![k], there);
        let first = c.cast(DType::F32, first);
        let (here, bias) = (c.load(0, &x, at.clone()), c.load(1, &w, vec![at[1].clone()]));
        let scaled = c.binary(Binary::Div, here, most);
        let moved = c.binary(Binary::Add, scaled, bias);
        let y = c.binary(Binary::Sub, moved, dot);
        let z = c.binary(Binary::Add, scaled, first);
        let c = c.with_results([y, z]);
        let args = [tensor(&x, 1), tensor(&w, 2)];
        let done = check(Which::Fast, &c, &args, &[x.clone(), x.clone()], 1e-5, "three reductions, two results");
        assert_eq!((done.schedule, done.launches), ("rows", 1));
        assert_eq!(done.written, 2 * 4 * (m * n) as u64);
    }
}

/// Reductions of one row along two different axes.
#[test]
fn rows_of_two_families() {
    let (x, y) = (f32s(&[6, 40]), f32s(&[6, 100]));
    let out = f32s(&[6]);
    let mut c = Compute::new(&out.shape);
    let (j, k) = (c.reduce_axis(40), c.reduce_axis(100));
    let row = c.position()[0].clone();
    let a = c.load(0, &x, vec![row.clone(), Index::axis(j)]);
    let a = c.reduce(Reduce::Max, vec![j], Order::Lanes, a);
    let b = c.load(1, &y, vec![row, Index::axis(k)]);
    let b = c.binary(Binary::Mul, b, a);
    let b = c.reduce(Reduce::Sum, vec![k], Order::Lanes, b);
    let c = c.with_results([b]);
    let done = check(Which::Fast, &c, &[tensor(&x, 1), tensor(&y, 2)], &[out], 1e-5, "two families");
    assert_eq!((done.schedule, done.launches), ("rows", 1));
}
