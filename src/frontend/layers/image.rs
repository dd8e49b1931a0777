//! Images: enlargement and cropping.

use intwain_ir::ops::{Contract, Iota, Pad};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit, unsupported};
use super::inputs::Inputs;
use super::pool::scale_sizes;
use super::windows::Format;
use crate::frontend::cursor::Fields;
use crate::frontend::json::Json;

pub(super) fn up_sampling_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let size = scale_sizes(fields, "size", 1)?;
    let x = inputs.one()?.value;
    Ok(vec![repeated(&mut b.cx, x, &size)?.into()])
}

pub(super) fn up_sampling_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let size = scale_sizes(fields, "size", 2)?;
    let kernel = kernel(fields, "interpolation", 0)?;
    let x = inputs.one()?.value;
    if b.cx.rank(x) != 4 {
        return Err(misfit(format!("takes a tensor of rank 4, its input has the shape {:?}", b.cx.dims(x))));
    }
    let x = format.to_last(&mut b.cx, x)?;
    let mut y = x;
    if kernel == Kernel::Nearest {
        y = repeated(&mut b.cx, x, &size)?;
    } else {
        for (d, times) in size.iter().enumerate() {
            let to = b.cx.dims(y)[d + 1] * times;
            y = resized(&mut b.cx, y, d + 1, to, kernel, Antialias::No)?;
        }
    }
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

/// How values between pixels are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Nearest,
    /// A triangle of radius 1.
    Linear,
    /// Keys's cubic with a = −½, of radius 2.
    Cubic,
}

/// Whether shrinking averages over what an output pixel covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Antialias {
    Yes,
    No,
}

fn kernel(fields: &Fields<'_>, key: &str, default: usize) -> Out<Kernel> {
    let names = ["nearest", "bilinear", "bicubic", "lanczos3", "lanczos5"];
    let chosen = if fields.opt(key).is_some() { fields.choice(key, &names)? } else { default };
    match chosen {
        0 => Ok(Kernel::Nearest),
        1 => Ok(Kernel::Linear),
        2 => Ok(Kernel::Cubic),
        n => Err(unsupported(format!("the interpolation `{}`", names[n]))),
    }
}

/// Brings one dimension to another extent: a product with a matrix of weights, which depends on no input and is computed
/// once.
fn resized(cx: &mut Cx, x: Value, dim: usize, to: usize, kernel: Kernel, antialias: Antialias) -> Out<Value> {
    let x = cx.floating(x)?;
    let from = cx.dims(x)[dim];
    let weights = weights(cx, from, to, kernel, antialias)?;
    // [.., from, ..] × [to, from] puts the new dimension last; it goes back to its place.
    let y = cx.g.push(Contract { batch: vec![], contract: vec![(dim, 1)] }, &[x, weights])?;
    let rank = cx.rank(y);
    let mut perm: Vec<usize> = (0..rank - 1).collect();
    perm.insert(dim, rank - 1);
    Ok(cx.g.transpose(y, &perm)?)
}

/// The weight of input i in output o. Pixels have half-pixel centres; what lies outside has no weight, and every row adds
/// up to 1.
fn weights(cx: &mut Cx, from: usize, to: usize, kernel: Kernel, antialias: Antialias) -> Out<Value> {
    let shape = Shape::from([to, from]);
    let dtype = cx.dtype;
    let num = |cx: &mut Cx, v: f64| cx.g.full(dtype, v, &shape);
    let ratio = from as f64 / to as f64;
    let output = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let input = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
    let (half, scale, one, zero) = (num(cx, 0.5)?, num(cx, ratio)?, num(cx, 1.0)?, num(cx, 0.0)?);
    let centre = cx.g.add(output, half)?;
    let centre = cx.g.mul(centre, scale)?;
    if kernel == Kernel::Nearest {
        let nearest = cx.g.unary(Unary::Floor, centre)?;
        let here = cx.g.compare(Compare::Eq, nearest, input)?;
        return Ok(cx.g.select(here, one, zero)?);
    }
    let source = cx.g.sub(centre, half)?;
    let distance = cx.g.sub(source, input)?;
    let mut distance = cx.g.unary(Unary::Abs, distance)?;
    if antialias == Antialias::Yes && ratio > 1.0 {
        let wider = num(cx, 1.0 / ratio)?;
        distance = cx.g.mul(distance, wider)?;
    }
    let weight = match kernel {
        Kernel::Nearest | Kernel::Linear => {
            let rest = cx.g.sub(one, distance)?;
            cx.g.binary(Binary::Max, rest, zero)?
        }
        Kernel::Cubic => cubic(cx, distance, one, zero)?,
    };
    let sum = cx.g.reduce_keep(Reduce::Sum, weight, &[1])?;
    Ok(cx.g.binary_broadcast(Binary::Div, weight, sum)?)
}

/// 1.5d³ − 2.5d² + 1 below 1, −0.5d³ + 2.5d² − 4d + 2 below 2, else 0.
fn cubic(cx: &mut Cx, d: Value, one: Value, zero: Value) -> Out<Value> {
    let ty = cx.g.ty(d).clone();
    let polynomial = |cx: &mut Cx, coefficients: [f64; 4]| -> Out<Value> {
        let mut y = cx.g.full(ty.dtype, coefficients[0], &ty.shape)?;
        for c in &coefficients[1..] {
            let c = cx.g.full(ty.dtype, *c, &ty.shape)?;
            y = cx.g.mul(y, d)?;
            y = cx.g.add(y, c)?;
        }
        Ok(y)
    };
    let near = polynomial(cx, [1.5, -2.5, 0.0, 1.0])?;
    let far = polynomial(cx, [-0.5, 2.5, -4.0, 2.0])?;
    let two = cx.g.add(one, one)?;
    let (below_two, below_one) = (cx.g.compare(Compare::Lt, d, two)?, cx.g.compare(Compare::Lt, d, one)?);
    let outer = cx.g.select(below_two, far, zero)?;
    Ok(cx.g.select(below_one, near, outer)?)
}

pub(super) fn resizing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let kernel = kernel(fields, "interpolation", 1)?;
    let (height, width) = (fields.require("height")?.positive()?, fields.require("width")?.positive()?);
    let crop = fields.bool_or("crop_to_aspect_ratio", false)?;
    let pad = fields.bool_or("pad_to_aspect_ratio", false)?;
    let antialias = if fields.bool_or("antialias", false)? { Antialias::Yes } else { Antialias::No };
    fields.neutral("fill_mode", &[Json::String("constant".to_string())])?;
    let fill = fields.f64_or("fill_value", 0.0)?;
    let x = inputs.one()?.value;
    let rank = b.cx.rank(x);
    if !(3..=4).contains(&rank) {
        return Err(misfit(format!("takes a tensor of rank 3 or 4, its input has the shape {:?}", b.cx.dims(x))));
    }
    let first = match format {
        Format::Last => rank - 3,
        Format::First => rank - 2,
    };
    let dims = b.cx.dims(x);
    let (h, w) = (dims[first], dims[first + 1]);
    if h == 0 || w == 0 {
        return Err(misfit(format!("an image of {h}x{w} pixels")));
    }
    // The extents with the target's proportions that the image is cut or filled up to.
    let (fit_h, fit_w) = (w * height / width, h * width / height);
    let mut y = x;
    if crop {
        for (dim, from, to) in [(first, h, fit_h.clamp(1, h)), (first + 1, w, fit_w.clamp(1, w))] {
            let start = (from - to) / 2;
            y = b.cx.g.slice_dim(y, dim, start..start + to)?;
        }
    } else if pad {
        let (mut low, mut high) = (vec![0i64; rank], vec![0i64; rank]);
        for (dim, from, to) in [(first, h, fit_h.max(h)), (first + 1, w, fit_w.max(w))] {
            low[dim] = ((to - from) / 2) as i64;
            high[dim] = (to - from) as i64 - low[dim];
        }
        let value = vec![intwain_ir::Scalar::from_f64(b.cx.g.ty(y).dtype, fill)];
        y = b.cx.g.push(Pad { low, high, interior: vec![0; rank], value }, &[y])?;
    }
    y = resized(&mut b.cx, y, first, height, kernel, antialias)?;
    Ok(vec![resized(&mut b.cx, y, first + 1, width, kernel, antialias)?.into()])
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
