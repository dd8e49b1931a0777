//! Reductions along columns.

use super::{Which, check, check_fast, check_traffic, f32s, tensor};
use intwain_ir::compute::{Compute, Guard, Index, Order};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{DType, Scalar, Tensor, Type, ops};

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

/// dw[i, j, c] = Σ x[n, h + i − 1, w + j − 1, c] · dy[n, h, w, c].
#[test]
fn gradients_of_depthwise_convolutions() {
    for (n, h, w, channels) in [(2usize, 19usize, 30usize, 20usize), (1, 5, 7, 7), (3, 23, 23, 32)] {
        let (x, out) = (f32s(&[n, h, w, channels]), f32s(&[3, 3, channels]));
        let mut c = Compute::new(&out.shape);
        let at = c.position();
        let axes = [n, h, w].map(|e| c.reduce_axis(e));
        let [b, y, z] = axes.map(Index::axis);
        let window = [y.clone() + at[0].clone().plus(-1), z.clone() + at[1].clone().plus(-1)];
        let guards = window.iter().zip([h, w]).map(|(i, e)| Guard { index: i.clone(), lo: 0, hi: e as i64 }).collect();
        let [i, j] = window;
        let zero = Scalar::zero(DType::F32);
        let there = c.load_guarded(0, &x, vec![b.clone(), i, j, at[2].clone()], guards, zero);
        let here = c.load(1, &x, vec![b, y, z, at[2].clone()]);
        let product = c.binary(Binary::Mul, there, here);
        let sum = c.reduce(Reduce::Sum, axes.to_vec(), Order::Fma, product);
        let c = c.with_results([sum]);
        let done = check(Which::Fast, &c, &[tensor(&x, 1), tensor(&x, 2)], &[out], 1e-5, "depthwise gradient");
        assert!(done.schedule.starts_with("columns"), "{}", done.schedule);
    }
}

/// Rows of a table, looked up and added: no element of it is out of bounds in any segment.
#[test]
fn rows_looked_up_are_added() {
    for many in [40, 4000] {
        let (table, at, out) = (f32s(&[50, 16]), Type::new(DType::I32, [3, many]), f32s(&[3, 16]));
        let mut c = Compute::new(&out.shape);
        let position = c.position();
        let k = c.reduce_axis(many);
        let which = c.load(1, &at, vec![position[0].clone(), Index::axis(k)]);
        let row = c.take(0, &table, vec![Index::constant(0), position[1].clone()], 0, which, 0);
        let sum = c.reduce(Reduce::Sum, vec![k], Order::Sequential, row);
        let c = c.with_results([sum]);
        let mut rows = Tensor::zeros(at.clone());
        (0..3 * many).for_each(|i| rows.set(i, Scalar::from_i64(DType::I32, (i * 37 % 53) as i64 - 1)));
        check(Which::Fast, &c, &[tensor(&table, 1), rows], &[out], 1e-5, "added rows");
    }
}
