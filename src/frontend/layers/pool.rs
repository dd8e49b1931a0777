//! Pooling: local and global, averages and maxima.

use intwain_ir::ops::Pool;
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::masks::heeded;
use super::windows::{Format, Padding, Windows, sizes, sizes_or};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;

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
    let size = fields.opt_any(&["pool_size", "pool_length"]).map_or(Ok(vec![2; n]), |at| sizes(&at, n))?;
    let stride = match fields.opt_any(&["strides", "stride"]) {
        Some(at) => sizes(&at, n)?,
        None => size.clone(),
    };
    let windows = Windows { dilation: vec![1; n], padding: Padding::read(fields)?, size, stride };
    let x = inputs.one()?.value;
    if b.cx.rank(x) != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {:?}", n + 2, b.cx.dims(x))));
    }
    let x = format.to_last(&mut b.cx, x)?;
    let dims = b.cx.dims(x);
    let pads = windows.pads(&dims[1..=n])?;
    let op = Pool {
        function,
        size: windows.size.clone(),
        stride: windows.stride.clone(),
        pads: pads.clone(),
        dilation: windows.dilation.clone(),
        input_dilation: vec![1; n],
    };
    let cx = &mut b.cx;
    let dtype = cx.g.ty(x).dtype;
    // An average is rounded once, behind the division.
    let x = if function == Reduce::Sum { cx.g.cast(dtype.accumulator(), x)? } else { x };
    let mut y = cx.g.push(op.clone(), &[x])?;
    if function == Reduce::Sum {
        let ty = cx.g.ty(y).clone();
        let count = if pads.iter().all(|p| *p == (0, 0)) {
            cx.g.full(ty.dtype, windows.size.iter().product::<usize>() as f64, &ty.shape)?
        } else {
            // How many real elements each window covers: a sum of ones, which depends on no input.
            let ones: Vec<usize> = [1].into_iter().chain(dims[1..=n].iter().copied()).chain([1]).collect();
            let ones = cx.g.full(ty.dtype, 1.0, &Shape::from(ones))?;
            let count = cx.g.push(op, &[ones])?;
            cx.g.broadcast_to(count, &ty.shape)?
        };
        y = cx.g.div(y, count)?;
        y = cx.g.cast(dtype, y)?;
    }
    Ok(vec![format.of_last(cx, y)?.into()])
}

fn spatial(format: Format, rank: usize) -> Vec<usize> {
    match format {
        Format::Last => (1..rank - 1).collect(),
        Format::First => (2..rank).collect(),
    }
}

fn global(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, function: Reduce) -> Out<(Value, Vec<usize>, bool)> {
    let format = Format::read(fields)?;
    let keep = fields.bool_or("keepdims", false)?;
    let x = inputs.one()?.value;
    let rank = b.cx.rank(x);
    if rank < 3 {
        return Err(misfit(format!(
            "takes a tensor with spatial dimensions, its input has the shape {:?}",
            b.cx.dims(x)
        )));
    }
    let dims = spatial(format, rank);
    let x = if function == Reduce::Sum { b.cx.for_statistics(x)? } else { x };
    let y = reduced(&mut b.cx, function, x, &dims, keep)?;
    Ok((y, dims, keep))
}

fn reduced(cx: &mut Cx, function: Reduce, x: Value, dims: &[usize], keep: bool) -> Out<Value> {
    Ok(if keep { cx.g.reduce_keep(function, x, dims)? } else { cx.g.reduce(function, x, dims)? })
}

pub(super) fn global_max(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    Ok(vec![global(b, fields, inputs, Reduce::Max)?.0.into()])
}

pub(super) fn global_average(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let shape = b.cx.dims(inputs.one()?.value);
    let (sum, dims, _) = global(b, fields, inputs, Reduce::Sum)?;
    let count: usize = dims.iter().map(|&d| shape[d]).product();
    let y = divide(&mut b.cx, sum, count as f64)?;
    Ok(vec![b.cx.g.cast(b.cx.dtype, y)?.into()])
}

fn divide(cx: &mut Cx, x: Value, by: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let by = cx.g.full(ty.dtype, by, &ty.shape)?;
    Ok(cx.g.div(x, by)?)
}

/// With a mask, the mean of the steps it leaves.
pub(super) fn global_average_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let Some(mask) = heeded(&b.cx, inputs, 1, x) else { return global_average(b, fields, inputs) };
    let format = Format::read(fields)?;
    let keep = fields.bool_or("keepdims", false)?;
    let cx = &mut b.cx;
    let steps = spatial(format, 3)[0];
    let value = cx.for_statistics(x.value)?;
    let ty = cx.g.ty(value).clone();
    if cx.rank(mask) != 2 {
        return Err(misfit(format!("a mask of shape {:?} on steps", cx.dims(mask))));
    }
    let left = cx.g.cast(DType::Bool, mask)?;
    let left = cx.g.broadcast(left, &ty.shape, &[0, steps])?;
    let wide = cx.g.cast(ty.dtype, left)?;
    // Keras 2 multiplies: what is not finite shows through a mask.
    let masked = match cx.generation {
        Generation::Three => {
            let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
            cx.g.select(left, value, zero)?
        }
        Generation::One | Generation::Two => cx.g.mul(value, wide)?,
    };
    let sum = reduced(cx, Reduce::Sum, masked, &[steps], keep)?;
    let count = reduced(cx, Reduce::Sum, wide, &[steps], keep)?;
    let y = cx.g.div(sum, count)?;
    Ok(vec![cx.g.cast(cx.dtype, y)?.into()])
}

/// Reads sizes for image layers.
pub(super) fn scale_sizes(fields: &Fields<'_>, key: &str, n: usize) -> Out<Vec<usize>> {
    Ok(sizes_or(fields, key, n, 2)?)
}
