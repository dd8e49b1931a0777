//! Numbers that a configuration holds, as tensors.

use intwain_ir::ops::{Concat, Constant};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::cx::{Cx, Out, misfit, unsupported};

/// Bytes of one constant; longer tables are joined from several.
const PIECE: usize = 4096;

/// What a configuration may hold as numbers; more belongs into a weight file.
const MOST: usize = 1 << 18;

/// Numbers in row-major order.
pub(super) fn floats(cx: &mut Cx, dtype: DType, shape: &[usize], values: &[f64]) -> Out<Value> {
    table(cx, shape, values.iter().map(|&v| Scalar::from_f64(dtype, v)).collect())
}

/// A vector of integers.
pub(super) fn integers(cx: &mut Cx, dtype: DType, values: &[i64]) -> Out<Value> {
    table(cx, &[values.len()], values.iter().map(|&v| Scalar::from_i64(dtype, v)).collect())
}

fn table(cx: &mut Cx, shape: &[usize], elements: Vec<Scalar>) -> Out<Value> {
    let Some(first) = elements.first() else { return Err(misfit("a table without a number")) };
    if elements.len() > MOST {
        return Err(unsupported(format!("a configuration with a table of {} numbers", elements.len())));
    }
    let shape = Shape::from(shape);
    let most = PIECE / first.dtype().size();
    if elements.len() <= most {
        return Ok(cx.g.push(Constant { shape, elements }, &[])?);
    }
    let mut pieces = Vec::new();
    for piece in elements.chunks(most) {
        let op = Constant { shape: Shape::from([piece.len()]), elements: piece.to_vec() };
        pieces.push(cx.g.push(op, &[])?);
    }
    let flat = cx.g.push(Concat { dim: 0 }, &pieces)?;
    Ok(cx.g.reshape(flat, &shape)?)
}
