//! Images: enlargement, resizing and cropping.

use intwain_ir::ops::{Contract, Iota, Pad};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Value};

use super::activations::clip;
use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::pool::scale_sizes;
use super::windows::Format;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::json::Json;

pub(super) fn up_sampling_1d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let size = scale_sizes(fields, "size", 1)?;
    let x = inputs.one()?.value;
    Ok(vec![repeated(&mut b.cx, x, &size)?.into()])
}

pub(super) fn up_sampling_2d(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let size = scale_sizes(fields, "size", 2)?;
    let kernel = kernel(fields, "interpolation", Kernel::Nearest)?;
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
pub(super) enum Kernel {
    Nearest,
    /// A triangle of radius 1.
    Linear,
    /// Keys's cubic with a = −½, of radius 2.
    Cubic,
    /// A windowed sinc of this radius.
    Lanczos(u8),
    /// A bell with σ = ½, of radius 3⁄2.
    Gaussian,
    /// Mitchell's and Netravali's cubic with B = C = ⅓, of radius 2.
    Mitchell,
    /// The mean of what an output pixel covers.
    Area,
}

/// Whether shrinking averages over what an output pixel covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Antialias {
    Yes,
    No,
}

pub(super) const KERNELS: [(&str, Kernel); 8] = [
    ("nearest", Kernel::Nearest),
    ("bilinear", Kernel::Linear),
    ("bicubic", Kernel::Cubic),
    ("lanczos3", Kernel::Lanczos(3)),
    ("lanczos5", Kernel::Lanczos(5)),
    ("gaussian", Kernel::Gaussian),
    ("mitchellcubic", Kernel::Mitchell),
    ("area", Kernel::Area),
];

fn kernel(fields: &Fields<'_>, key: &str, default: Kernel) -> Out<Kernel> {
    if fields.opt(key).is_none() {
        return Ok(default);
    }
    Ok(KERNELS[fields.choice(key, &KERNELS.map(|(name, _)| name))?].1)
}

/// Brings one dimension to another extent: a product with a matrix of weights, which depends on no input and is computed
/// once.
pub(super) fn resized(
    cx: &mut Cx,
    x: Value,
    dim: usize,
    to: usize,
    kernel: Kernel,
    antialias: Antialias,
) -> Out<Value> {
    let x = if cx.g.ty(x).dtype.is_float() { x } else { cx.g.cast(DType::F32, x)? };
    let from = cx.dims(x)[dim];
    let weights = weights(cx, from, to, kernel, antialias)?;
    let dtype = cx.g.ty(x).dtype;
    let weights = cx.g.cast(dtype, weights)?;
    // [.., from, ..] × [to, from] puts the new dimension last; it goes back to its place.
    let y = cx.g.push(Contract { batch: vec![], contract: vec![(dim, 1)] }, &[x, weights])?;
    let rank = cx.rank(y);
    let mut perm: Vec<usize> = (0..rank - 1).collect();
    perm.insert(dim, rank - 1);
    Ok(cx.g.transpose(y, &perm)?)
}

/// The share of every input element in every output element, `[to, from]`.
fn weights(cx: &mut Cx, from: usize, to: usize, kernel: Kernel, antialias: Antialias) -> Out<Value> {
    let shape = Shape::from([to, from]);
    // Half precision could not tell positions in large images apart.
    let dtype = DType::F32;
    let num = |cx: &mut Cx, v: f64| cx.g.full(dtype, v, &shape);
    let ratio = from as f64 / to as f64;
    let output = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
    let input = cx.g.push(Iota { dtype, shape: shape.clone(), dim: 1, start: 0 }, &[])?;
    let (half, scale, one, zero) = (num(cx, 0.5)?, num(cx, ratio)?, num(cx, 1.0)?, num(cx, 0.0)?);
    if kernel == Kernel::Area {
        return overlap(cx, output, input, [scale, one, zero]);
    }
    let centre = cx.g.add(output, half)?;
    let centre = cx.g.mul(centre, scale)?;
    if kernel == Kernel::Nearest {
        let nearest = cx.g.unary(Unary::Floor, centre)?;
        let last = num(cx, from.saturating_sub(1) as f64)?;
        let nearest = cx.g.binary(Binary::Min, nearest, last)?;
        let here = cx.g.compare(Compare::Eq, nearest, input)?;
        return Ok(cx.g.select(here, one, zero)?);
    }
    let mut source = cx.g.sub(centre, half)?;
    if kernel == Kernel::Cubic && antialias == Antialias::No {
        // TensorFlow looks the polynomials up in a table of 1024 steps between pixels.
        let steps = num(cx, 1024.0)?;
        source = cx.g.mul(source, steps)?;
        source = cx.g.unary(Unary::Round, source)?;
        source = cx.g.div(source, steps)?;
    }
    let distance = cx.g.sub(source, input)?;
    let mut distance = cx.g.unary(Unary::Abs, distance)?;
    if antialias == Antialias::Yes && ratio > 1.0 {
        let wider = num(cx, 1.0 / ratio)?;
        distance = cx.g.mul(distance, wider)?;
    }
    let weight = match kernel {
        Kernel::Nearest | Kernel::Area | Kernel::Linear => {
            let rest = cx.g.sub(one, distance)?;
            cx.g.binary(Binary::Max, rest, zero)?
        }
        Kernel::Cubic => pieces(cx, distance, [1.5, -2.5, 0.0, 1.0], [-0.5, 2.5, -4.0, 2.0])?,
        Kernel::Mitchell => {
            pieces(cx, distance, [7.0 / 6.0, -2.0, 0.0, 8.0 / 9.0], [-7.0 / 18.0, 2.0, -10.0 / 3.0, 16.0 / 9.0])?
        }
        Kernel::Gaussian => {
            let (minus_two, radius) = (num(cx, -2.0)?, num(cx, 1.5)?);
            let square = cx.g.mul(distance, distance)?;
            let exponent = cx.g.mul(square, minus_two)?;
            let bell = cx.g.unary(Unary::Exp, exponent)?;
            let near = cx.g.compare(Compare::Lt, distance, radius)?;
            cx.g.select(near, bell, zero)?
        }
        Kernel::Lanczos(radius) => lanczos(cx, distance, f64::from(radius), one, zero)?,
    };
    let sum = cx.g.reduce_keep(Reduce::Sum, weight, &[1])?;
    Ok(cx.g.binary_broadcast(Binary::Div, weight, sum)?)
}

/// The part of each output element's stretch of the input that lies in each input element.
fn overlap(cx: &mut Cx, output: Value, input: Value, [scale, one, zero]: [Value; 3]) -> Out<Value> {
    let begin = cx.g.mul(output, scale)?;
    let next = cx.g.add(output, one)?;
    let end = cx.g.mul(next, scale)?;
    let after = cx.g.add(input, one)?;
    let (low, high) = (cx.g.binary(Binary::Max, begin, input)?, cx.g.binary(Binary::Min, end, after)?);
    let length = cx.g.sub(high, low)?;
    let length = cx.g.binary(Binary::Max, length, zero)?;
    Ok(cx.g.div(length, scale)?)
}

/// sin(πd)·sin(πd/r)·r / (πd)², 1 at 0 and 0 beyond the radius.
fn lanczos(cx: &mut Cx, d: Value, radius: f64, one: Value, zero: Value) -> Out<Value> {
    let ty = cx.g.ty(d).clone();
    let mut num = |v: f64| cx.g.full(ty.dtype, v, &ty.shape);
    let pi = std::f64::consts::PI;
    let (r, turn, slow, small) = (num(radius)?, num(pi)?, num(pi / radius)?, num(1e-3)?);
    let (angle, slow) = (cx.g.mul(d, turn)?, cx.g.mul(d, slow)?);
    let (fast, slow) = (cx.g.unary(Unary::Sin, angle)?, cx.g.unary(Unary::Sin, slow)?);
    let product = cx.g.mul(fast, slow)?;
    let product = cx.g.mul(product, r)?;
    let square = cx.g.mul(angle, angle)?;
    let here = cx.g.compare(Compare::Le, d, small)?;
    let square = cx.g.select(here, one, square)?;
    let value = cx.g.div(product, square)?;
    let value = cx.g.select(here, one, value)?;
    let beyond = cx.g.compare(Compare::Gt, d, r)?;
    Ok(cx.g.select(beyond, zero, value)?)
}

/// One cubic polynomial of the distance below 1, another one below 2, else 0.
fn pieces(cx: &mut Cx, d: Value, near: [f64; 4], far: [f64; 4]) -> Out<Value> {
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
    let (near, far) = (polynomial(cx, near)?, polynomial(cx, far)?);
    let mut num = |v: f64| cx.g.full(ty.dtype, v, &ty.shape);
    let (zero, one, two) = (num(0.0)?, num(1.0)?, num(2.0)?);
    let (below_two, below_one) = (cx.g.compare(Compare::Lt, d, two)?, cx.g.compare(Compare::Lt, d, one)?);
    let outer = cx.g.select(below_two, far, zero)?;
    Ok(cx.g.select(below_one, near, outer)?)
}

/// Where the rows of an image or of a batch of images are, and their extents.
fn plane(cx: &Cx, x: Value, format: Format) -> Out<(usize, usize, usize)> {
    let dims = cx.dims(x);
    let rank = dims.len();
    if !(3..=4).contains(&rank) {
        return Err(misfit(format!("takes a tensor of rank 3 or 4, its input has the shape {dims:?}")));
    }
    let first = match format {
        Format::Last => rank - 3,
        Format::First => rank - 2,
    };
    let (h, w) = (dims[first], dims[first + 1]);
    if h == 0 || w == 0 {
        return Err(misfit(format!("an image of {h}x{w} pixels")));
    }
    Ok((first, h, w))
}

/// The middle of an image: the largest part that has the proportions of `height` to `width`.
fn cropped_to_aspect(cx: &mut Cx, x: Value, format: Format, height: usize, width: usize) -> Out<Value> {
    let (first, h, w) = plane(cx, x, format)?;
    let (fit_h, fit_w) = ((w * height / width).clamp(1, h), (h * width / height).clamp(1, w));
    let mut y = x;
    for (dim, from, to) in [(first, h, fit_h), (first + 1, w, fit_w)] {
        let start = (from - to) / 2;
        y = cx.g.slice_dim(y, dim, start..start + to)?;
    }
    Ok(y)
}

/// The middle of an image with the wanted proportions, resized: `smart_resize` of Keras.
pub(super) fn smart_resized(cx: &mut Cx, x: Value, format: Format, height: usize, width: usize) -> Out<Value> {
    let y = cropped_to_aspect(cx, x, format, height, width)?;
    let (first, _, _) = plane(cx, y, format)?;
    let y = resized(cx, y, first, height, Kernel::Linear, Antialias::No)?;
    resized(cx, y, first + 1, width, Kernel::Linear, Antialias::No)
}

pub(super) fn resizing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let kernel = kernel(fields, "interpolation", Kernel::Linear)?;
    let (height, width) = (fields.require("height")?.positive()?, fields.require("width")?.positive()?);
    let crop = fields.bool_or("crop_to_aspect_ratio", false)?;
    let pad = fields.bool_or("pad_to_aspect_ratio", false)?;
    let antialias = if fields.bool_or("antialias", false)? { Antialias::Yes } else { Antialias::No };
    // Keras refuses any other.
    fields.neutral("fill_mode", &[Json::String("constant".to_string())])?;
    fields.irrelevant(&["bounding_box_format"]);
    let fill = fields.f64_or("fill_value", 0.0)?;
    let x = inputs.one()?.value;
    let x = if b.cx.generation != Generation::Three { b.cx.floating(x)? } else { x };
    let dtype = b.cx.g.ty(x).dtype;
    let mut y = x;
    let (first, h, w) = plane(&b.cx, x, format)?;
    if crop && pad {
        return Err(misfit("crops and pads to the proportions of the result, of which it can do one only"));
    } else if crop {
        y = cropped_to_aspect(&mut b.cx, y, format, height, width)?;
    } else if pad {
        let rank = b.cx.rank(x);
        let (mut low, mut high) = (vec![0i64; rank], vec![0i64; rank]);
        for (dim, from, to) in [(first, h, w * height / width), (first + 1, w, h * width / height)] {
            // As much before as behind: what is left over of an odd difference is not filled.
            low[dim] = (to.saturating_sub(from) / 2) as i64;
            high[dim] = low[dim];
        }
        let value = vec![Scalar::from_f64(dtype, fill)];
        y = b.cx.g.push(Pad { low, high, interior: vec![0; rank], value }, &[y])?;
    }
    y = resized(&mut b.cx, y, first, height, kernel, antialias)?;
    y = resized(&mut b.cx, y, first + 1, width, kernel, antialias)?;
    Ok(vec![rounded_to(&mut b.cx, y, dtype)?.into()])
}

/// Brings pixels back to the type of the image: integers are rounded and limited to what the type holds.
fn rounded_to(cx: &mut Cx, x: Value, dtype: DType) -> Out<Value> {
    if dtype.is_float() {
        return Ok(cx.g.cast(dtype, x)?);
    }
    let round = cx.g.unary(Unary::Round, x)?;
    let limits = match dtype {
        DType::U8 => (0.0, 255.0),
        DType::I8 => (-128.0, 127.0),
        DType::I16 => (-32768.0, 32767.0),
        DType::U32 => (0.0, 4_294_967_040.0),
        DType::I32 => (-2_147_483_648.0, 2_147_483_520.0),
        DType::Bool | DType::I64 | DType::F16 | DType::BF16 | DType::F32 | DType::F64 => {
            return Ok(cx.g.cast(dtype, round)?);
        }
    };
    let limited = clip(cx, round, limits.0, limits.1)?;
    Ok(cx.g.cast(dtype, limited)?)
}

/// The middle of an image. One that is smaller than the crop is enlarged: the largest part with the proportions asked for.
pub(super) fn center_crop(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let (height, width) = (fields.require("height")?.positive()?, fields.require("width")?.positive()?);
    fields.irrelevant(&["bounding_box_format"]);
    let x = inputs.one()?.value;
    let mut y = b.cx.floating(x)?;
    let (first, h, w) = plane(&b.cx, y, format)?;
    if h < height || w < width {
        return Ok(vec![smart_resized(&mut b.cx, y, format, height, width)?.into()]);
    }
    for (dim, extent, wanted) in [(first, h, height), (first + 1, w, width)] {
        let start = (extent - wanted) / 2;
        y = b.cx.g.slice_dim(y, dim, start..start + wanted)?;
    }
    Ok(vec![y.into()])
}
