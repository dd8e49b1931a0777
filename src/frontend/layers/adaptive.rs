//! Pooling to a given size: window i of `to` covers the elements from ⌊i·from/to⌋ to ⌈(i + 1)·from/to⌉ of `from`.

use intwain_ir::ops::{Concat, Contract, Iota, Pool};
use intwain_ir::scalar::{Binary, Compare, Reduce};
use intwain_ir::{DType, Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::windows::{Format, sizes};
use crate::frontend::cursor::Fields;

macro_rules! pools {
    ($($name:ident = $function:expr, $n:literal;)+) => {
        $(pub(super) fn $name(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
            pool(b, fields, inputs, $n, $function)
        })+
    };
}

pools! {
    average_1d = Reduce::Sum, 1;
    average_2d = Reduce::Sum, 2;
    average_3d = Reduce::Sum, 3;
    max_1d = Reduce::Max, 1;
    max_2d = Reduce::Max, 2;
    max_3d = Reduce::Max, 3;
}

fn pool(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize, function: Reduce) -> Out {
    let format = Format::read(fields)?;
    let to = sizes(&fields.require("output_size")?, n)?;
    let x = inputs.one()?.value;
    let x = b.cx.floating(x)?;
    if b.cx.rank(x) != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {:?}", n + 2, b.cx.dims(x))));
    }
    let cx = &mut b.cx;
    let mut y = format.to_last(cx, x)?;
    // An average is rounded once, at the end.
    if function == Reduce::Sum {
        y = cx.for_statistics(y)?;
    }
    let from = cx.dims(y)[1..=n].to_vec();
    if from.contains(&0) {
        return Err(misfit(format!("pools {from:?} elements to {to:?}")));
    }
    if from.iter().zip(&to).all(|(from, to)| from.is_multiple_of(*to)) {
        y = even(cx, y, function, &from, &to)?;
    } else {
        for (d, &to) in to.iter().enumerate() {
            y = match function {
                Reduce::Max => maxima(cx, y, d + 1, to)?,
                _ => averages(cx, y, d + 1, to)?,
            };
        }
    }
    let y = cx.g.cast(cx.dtype, y)?;
    Ok(vec![format.of_last(cx, y)?.into()])
}

/// Windows that are equal and do not overlap.
fn even(cx: &mut Cx, x: Value, function: Reduce, from: &[usize], to: &[usize]) -> Out<Value> {
    let size: Vec<usize> = from.iter().zip(to).map(|(from, to)| from / to).collect();
    let n = size.len();
    let count: usize = size.iter().product();
    let op = Pool {
        function,
        stride: size.clone(),
        size,
        pads: vec![(0, 0); n],
        dilation: vec![1; n],
        input_dilation: vec![1; n],
    };
    let y = cx.g.push(op, &[x])?;
    if function == Reduce::Max {
        return Ok(y);
    }
    let ty = cx.g.ty(y).clone();
    let count = cx.g.full(ty.dtype, count as f64, &ty.shape)?;
    Ok(cx.g.div(y, count)?)
}

/// The greatest element of each window along a dimension.
fn maxima(cx: &mut Cx, x: Value, dim: usize, to: usize) -> Out<Value> {
    let from = cx.dims(x)[dim];
    let mut parts = Vec::new();
    for i in 0..to {
        let window = cx.g.slice_dim(x, dim, i * from / to..((i + 1) * from).div_ceil(to))?;
        parts.push(cx.g.reduce_keep(Reduce::Max, window, &[dim])?);
    }
    Ok(cx.g.push(Concat { dim }, &parts)?)
}

/// The mean of each window along a dimension: a product with a matrix that depends on no input.
fn averages(cx: &mut Cx, x: Value, dim: usize, to: usize) -> Out<Value> {
    let from = cx.dims(x)[dim];
    let shape = Shape::from([to, from]);
    let whole = |cx: &mut Cx, n: usize| cx.g.full(DType::I64, n as f64, &shape);
    let window = cx.g.push(Iota { dtype: DType::I64, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let element = cx.g.push(Iota { dtype: DType::I64, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
    let (many, few) = (whole(cx, from)?, whole(cx, to)?);
    let reach = cx.g.mul(window, many)?;
    let begin = cx.g.binary(Binary::FloorDiv, reach, few)?;
    // ⌈(i + 1)·from / to⌉
    let rest = whole(cx, from + to - 1)?;
    let reach = cx.g.add(reach, rest)?;
    let end = cx.g.binary(Binary::FloorDiv, reach, few)?;
    let (after, before) = (cx.g.compare(Compare::Ge, element, begin)?, cx.g.compare(Compare::Lt, element, end)?);
    let inside = cx.g.binary(Binary::And, after, before)?;
    let dtype = cx.g.ty(x).dtype;
    let size = cx.g.sub(end, begin)?;
    let size = cx.g.cast(dtype, size)?;
    let (one, zero) = (cx.g.full(dtype, 1.0, &shape)?, cx.g.full(dtype, 0.0, &shape)?);
    let share = cx.g.div(one, size)?;
    let share = cx.g.select(inside, share, zero)?;
    let y = cx.g.push(Contract { batch: vec![], contract: vec![(dim, 1)] }, &[x, share])?;
    let rank = cx.rank(y);
    let mut perm: Vec<usize> = (0..rank - 1).collect();
    perm.insert(dim, rank - 1);
    Ok(cx.g.transpose(y, &perm)?)
}
