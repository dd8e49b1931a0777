//! Pointwise work, movement, windows and transposition.

use super::{Which, check, check_op, check_traffic, f32s, tensor};
use intwain_ir::compute::Compute;
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Type, ops};

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
    check_op(ops::StopGradient {}, &[f32s(&[4, 9])], 0.0);
    for d in [DType::I32, DType::I64, DType::U8] {
        let (table, at) = (f32s(&[6, 20]), Type::new(d, [2, 5]));
        check_op(ops::Take { base: 0 }, &[table.clone(), at.clone()], 0.0);
        check_op(ops::Take { base: 2 }, &[table, at.clone()], 0.0);
        check_op(ops::TakeEach {}, &[f32s(&[2, 6, 5, 3]), at.clone()], 0.0);
        check_op(ops::Take { base: 0 }, &[f32s(&[9]), at], 0.0);
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        check_op(ops::Iota { dim: 1, start: 3, dtype, shape: [3, 10].into() }, &[], 0.0);
    }
    for start in [0, (1 << 29) - 2] {
        let random = ops::Random { start: vec![start, 0], ..ops::Random::whole(1 << 40, &[4, 8].into()) };
        check_op(random, &[Type::new(DType::U32, [])], 0.0);
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
            check_op(op, &[f32s(&shape)], 1e-6);
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
