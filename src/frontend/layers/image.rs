//! Images: enlargement and cropping.

use intwain_ir::ops::{Contract, Iota};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit, unsupported};
use super::inputs::Inputs;
use super::pool::scale_sizes;
use super::windows::Format;
use crate::frontend::cursor::Fields;

pub(super) fn up_sampling_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let size = scale_sizes(fields, "size", 1)?;
    let x = inputs.one()?.value;
    Ok(vec![repeated(&mut b.cx, x, &size)?.into()])
}

pub(super) fn up_sampling_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let size = scale_sizes(fields, "size", 2)?;
    let kind = fields.choice("interpolation", &["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"])?;
    let x = inputs.one()?.value;
    let x = format.to_last(&mut b.cx, x)?;
    let y = match kind {
        0 => repeated(&mut b.cx, x, &size)?,
        1 => bilinear(&mut b.cx, x, &size)?,
        _ => return Err(unsupported("an interpolation other than `nearest` and `bilinear`")),
    };
    Ok(vec![format.of_last(&mut b.cx, y)?.into()])
}

pub(super) fn up_sampling_3d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let size = scale_sizes(fields, "size", 3)?;
    let x = inputs.one()?.value;
    let x = format.to_last(&mut b.cx, x)?;
    let y = repeated(&mut b.cx, x, &size)?;
    Ok(vec![format.of_last(&mut b.cx, y)?.into()])
}

/// Repeats every element along the spatial dimensions of a channels-last tensor.
fn repeated(cx: &mut Cx, x: Value, size: &[usize]) -> Out<Value> {
    let dims = cx.dims(x);
    if dims.len() != size.len() + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {dims:?}", size.len() + 2)));
    }
    // [N, H, W, C] is seen as [N, H, 1, W, 1, C] and repeated along the new dimensions.
    let mut wide = vec![dims[0]];
    let mut places = vec![0];
    let mut out = vec![dims[0]];
    for (d, &times) in size.iter().enumerate() {
        places.push(wide.len());
        wide.extend([dims[d + 1], times]);
        out.push(dims[d + 1] * times);
    }
    places.push(wide.len());
    wide.push(dims[size.len() + 1]);
    out.push(dims[size.len() + 1]);
    let y = cx.g.broadcast(x, &Shape::from(wide), &places)?;
    Ok(cx.g.reshape(y, &Shape::from(out))?)
}

/// Interpolates between half-pixel centres, the edges extended. Each dimension is a product with a matrix whose entry at
/// (o, i) is max(0, 1 − |source(o) − i|); it depends on no input and is computed once.
fn bilinear(cx: &mut Cx, x: Value, size: &[usize]) -> Out<Value> {
    let mut y = cx.floating(x)?;
    for (d, &times) in size.iter().enumerate() {
        let dim = d + 1;
        let n = cx.dims(y)[dim];
        let weights = weights(cx, n, n * times)?;
        // [.., n, ..] × [out, n] puts the new dimension last; it goes back to its place.
        let z = cx.g.push(Contract { batch: vec![], contract: vec![(dim, 1)] }, &[y, weights])?;
        let rank = cx.rank(z);
        let mut perm: Vec<usize> = (0..rank - 1).collect();
        perm.insert(dim, rank - 1);
        y = cx.g.transpose(z, &perm)?;
    }
    Ok(y)
}

fn weights(cx: &mut Cx, from: usize, to: usize) -> Out<Value> {
    let shape = Shape::from([to, from]);
    let dtype = cx.dtype;
    let num = |cx: &mut Cx, v: f64| cx.g.full(dtype, v, &shape);
    let at = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let input = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
    let (half, ratio) = (num(cx, 0.5)?, num(cx, from as f64 / to as f64)?);
    let centre = cx.g.add(at, half)?;
    let source = cx.g.mul(centre, ratio)?;
    let source = cx.g.sub(source, half)?;
    let (zero, last, one) = (num(cx, 0.0)?, num(cx, from as f64 - 1.0)?, num(cx, 1.0)?);
    let source = cx.g.binary(Binary::Max, source, zero)?;
    let source = cx.g.binary(Binary::Min, source, last)?;
    let distance = cx.g.sub(source, input)?;
    let distance = cx.g.unary(Unary::Abs, distance)?;
    let weight = cx.g.sub(one, distance)?;
    Ok(cx.g.binary(Binary::Max, weight, zero)?)
}

/// The middle of an image at least as large.
pub(super) fn center_crop(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let (height, width) = (fields.require("height")?.positive()?, fields.require("width")?.positive()?);
    let x = inputs.one()?.value;
    let rank = b.cx.rank(x);
    if !(3..=4).contains(&rank) {
        return Err(misfit(format!("takes a tensor of rank 3 or 4, its input has the shape {:?}", b.cx.dims(x))));
    }
    let first = match format {
        Format::Last => rank - 3,
        Format::First => rank - 2,
    };
    let mut y = x;
    for (dim, wanted) in [(first, height), (first + 1, width)] {
        let extent = b.cx.dims(y)[dim];
        let Some(rest) = extent.checked_sub(wanted) else {
            return Err(unsupported("cropping an image that is smaller than the crop"));
        };
        y = b.cx.g.slice_dim(y, dim, rest / 2..rest / 2 + wanted)?;
    }
    Ok(vec![y.into()])
}
