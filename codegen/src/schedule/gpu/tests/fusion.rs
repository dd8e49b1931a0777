//! What fusion makes one kernel.

use super::{Gpu, compute_of, f32s, types};
use intwain_ir::compute::{Compute, Index, Order};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{Target, Type, ops};

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
        at[usize::from(rows)] = Index::axis(k);
        let (x, y) = (c.load(0, &ty, at.clone()), c.load(1, &ty, at));
        let there = c.binary(Binary::Add, x, y);
        let all = c.reduce(Reduce::Sum, vec![k], Order::Sequential, there);
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
