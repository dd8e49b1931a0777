//! Data augmentation in training: images are flipped, moved, turned, enlarged, cut out, and made lighter and of more
//! contrast, each by numbers of its own.
//!
//! Moves of images are affine: the pixel (x, y) of the result is what the image has at (a₀x + a₁y + a₂, b₀x + b₁y + b₂),
//! between pixels interpolated, and outside of the image as the fill mode says (`ImageProjectiveTransformV3` of TensorFlow).
//! Coordinates are computed in f32.

use intwain_ir::ops::{Iota, Reverse, TakeEach};
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, Rows, Shape, Value};

use super::activations::clip;
use super::augment::{cast, images, random_crop, same, value_range};
use super::build::Builder;
use super::cx::{Cx, Out, misfit, unsupported};
use super::inputs::Inputs;
use super::noise::{Draw, own_seed};
use super::norm::mean;
use super::windows::Format;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::file::Generation;

/// Keys that say nothing about images alone.
const BESIDE: [&str; 2] = ["bounding_box_format", "rng_type"];

/// Images to be altered, channels last.
struct Images {
    x: Value,
    format: Format,
    seed: Option<i64>,
    /// Rows, height, width, channels.
    dims: [usize; 4],
}

impl Images {
    fn read(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out<Images> {
        fields.irrelevant(&BESIDE);
        let (format, seed) = (Format::read(fields)?, own_seed(fields)?);
        let x = images(inputs)?;
        let cx = &mut b.cx;
        if !cx.g.ty(x).dtype.is_float() {
            return Err(unsupported("augmentation of integers in training"));
        }
        let x = cx.floating(x)?;
        let x = format.to_last(cx, x)?;
        match cx.dims(x).as_slice() {
            &[n, height, width, channels] => Ok(Images { x, format, seed, dims: [n, height, width, channels] }),
            dims => Err(misfit(format!("takes a tensor of rank 4 in training, its input has the shape {dims:?}"))),
        }
    }

    fn give(&self, cx: &mut Cx, y: Value) -> Out {
        Ok(vec![self.format.of_last(cx, y)?.into()])
    }

    fn draw(&self) -> Draw {
        Draw { shape: Shape::from([self.dims[0]]), rows: Rows::Batched, seed: self.seed }
    }

    /// Uniform numbers, one for each image, in f32.
    fn numbers(&self, cx: &mut Cx, (low, high): (f64, f64)) -> Out<Value> {
        let unit = cx.uniform(DType::F32, &self.draw())?;
        line(cx, unit, high - low, low)
    }

    /// A number of each image at all its places, in the type of the images.
    fn everywhere(&self, cx: &mut Cx, numbers: Value) -> Out<Value> {
        let ty = cx.g.ty(self.x).clone();
        let numbers = cx.g.cast(ty.dtype, numbers)?;
        Ok(cx.g.broadcast(numbers, &ty.shape, &[0])?)
    }
}

/// x·scale + offset.
fn line(cx: &mut Cx, x: Value, scale: f64, offset: f64) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let (scale, offset) = (cx.g.full(ty.dtype, scale, &ty.shape)?, cx.g.full(ty.dtype, offset, &ty.shape)?);
    let scaled = cx.g.mul(x, scale)?;
    Ok(cx.g.add(scaled, offset)?)
}

/// Bounds of a factor: two numbers, or one for both directions.
fn bounds(at: &At<'_>) -> Out<(f64, f64)> {
    if at.json.as_array().is_none() {
        let most = at.f64()?.abs();
        return Ok((-most, most));
    }
    match at.array()?.as_slice() {
        [a, b] => {
            let (a, b) = (a.f64()?, b.f64()?);
            Ok((a.min(b), a.max(b)))
        }
        _ => Err(at.expected("a number or two").into()),
    }
}

pub(super) fn random_flip(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return cast(b, fields, inputs);
    }
    let mode = fields.choice("mode", &["horizontal_and_vertical", "horizontal", "vertical"])?;
    let images = Images::read(b, fields, inputs)?;
    let cx = &mut b.cx;
    let (mut y, mut flips) = (images.x, None);
    let directions: &[usize] = [&[2, 1][..], &[2], &[1]][mode];
    for &dim in directions {
        // Keras 3 flips both ways or neither, Keras 2 chooses twice.
        let chosen = match flips.filter(|_| cx.generation == Generation::Three) {
            Some(flips) => flips,
            None => cx.kept_of(0.5, &images.draw())?,
        };
        flips = Some(chosen);
        let flipped = cx.g.push(Reverse { dims: vec![dim] }, &[y])?;
        let chosen = cx.g.broadcast(chosen, &cx.g.shape(y).clone(), &[0])?;
        y = cx.g.select(chosen, flipped, y)?;
    }
    images.give(cx, y)
}

/// Adds a part of the range of values to all of an image.
pub(super) fn random_brightness(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return same(b, fields, inputs);
    }
    let factor = bounds(&fields.require("factor")?)?;
    let (low, high) = value_range(fields)?;
    let images = Images::read(b, fields, inputs)?;
    let cx = &mut b.cx;
    let delta = images.numbers(cx, factor)?;
    let delta = line(cx, delta, high - low, 0.0)?;
    let delta = images.everywhere(cx, delta)?;
    let y = cx.g.add(images.x, delta)?;
    let y = clip(cx, y, low, high)?;
    images.give(cx, y)
}

/// Moves the values of each channel of an image away from their mean.
pub(super) fn random_contrast(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return same(b, fields, inputs);
    }
    let at = fields.require("factor")?;
    let three = b.cx.generation == Generation::Three;
    let (lower, upper) = match (at.json.as_array(), bounds(&at)?) {
        (Some(_), bounds) => bounds,
        // Keras 3 takes one number for more contrast only.
        (None, (_, most)) if three => (0.0, most),
        (None, (_, most)) => (most, most),
    };
    let (low, high) = value_range(fields)?;
    let images = Images::read(b, fields, inputs)?;
    let cx = &mut b.cx;
    let factor = match three {
        true => images.numbers(cx, (1.0 - lower, 1.0 + upper))?,
        false => {
            // Keras 2 draws once for all images.
            let draw = Draw { shape: Shape::from([1]), rows: Rows::Whole, seed: images.seed };
            let unit = cx.uniform(DType::F32, &draw)?;
            let one = line(cx, unit, upper + lower, 1.0 - lower)?;
            cx.g.broadcast(one, &Shape::from([images.dims[0]]), &[0])?
        }
    };
    let factor = images.everywhere(cx, factor)?;
    let shape = cx.g.shape(images.x).clone();
    let middle = mean(cx, images.x, &[1, 2])?;
    let middle = cx.g.broadcast_to(middle, &shape)?;
    let distance = cx.g.sub(images.x, middle)?;
    let scaled = cx.g.mul(distance, factor)?;
    let y = cx.g.add(scaled, middle)?;
    let y = clip(cx, y, low, high)?;
    images.give(cx, y)
}

/// Cuts the same part out of all images.
pub(super) fn random_cutout(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return random_crop(b, fields, inputs);
    }
    if b.cx.generation != Generation::Three {
        return Err(unsupported("what RandomCrop of Keras 2 does in training"));
    }
    let size = [fields.require("height")?.positive()?, fields.require("width")?.positive()?];
    let images = Images::read(b, fields, inputs)?;
    let [n, height, width, channels] = images.dims;
    let cx = &mut b.cx;
    if [height, width] == size {
        return images.give(cx, images.x);
    }
    if height <= size[0] || width <= size[1] {
        return Err(unsupported(format!("cutting {size:?} out of images of {height} by {width} in training")));
    }
    let rows = starts(cx, &images, height - size[0] + 1, size[0])?;
    let columns = starts(cx, &images, width - size[1] + 1, size[1])?;
    let lines = cx.g.reshape(images.x, &Shape::from([n, height, width * channels]))?;
    let lines = cx.g.push(TakeEach {}, &[lines, rows])?;
    let cut = cx.g.reshape(lines, &Shape::from([n, size[0], width, channels]))?;
    let turned = cx.g.transpose(cut, &[0, 2, 1, 3])?;
    let turned = cx.g.reshape(turned, &Shape::from([n, width, size[0] * channels]))?;
    let turned = cx.g.push(TakeEach {}, &[turned, columns])?;
    let turned = cx.g.reshape(turned, &Shape::from([n, size[1], size[0], channels]))?;
    let y = cx.g.transpose(turned, &[0, 2, 1, 3])?;
    images.give(cx, y)
}

/// Positions `[N, count]` from one of `choices` on, the same for all images.
fn starts(cx: &mut Cx, images: &Images, choices: usize, count: usize) -> Out<Value> {
    let draw = Draw { shape: Shape::from([1, 1]), rows: Rows::Whole, seed: images.seed };
    let unit = cx.uniform(DType::F32, &draw)?;
    let start = line(cx, unit, choices as f64, 0.0)?;
    let start = cx.g.cast(DType::I32, start)?;
    let shape = Shape::from([images.dims[0], count]);
    let start = cx.g.broadcast(start, &shape, &[0, 1])?;
    let steps = cx.g.push(Iota { dtype: DType::I32, shape, dim: 1, start: 0 }, &[])?;
    Ok(cx.g.add(start, steps)?)
}

pub(super) fn random_translation(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return cast(b, fields, inputs);
    }
    let factors = [bounds(&fields.require("height_factor")?)?, bounds(&fields.require("width_factor")?)?];
    let sampling = Sampling::read(fields)?;
    let images = Images::read(b, fields, inputs)?;
    let [_, height, width, _] = images.dims;
    let cx = &mut b.cx;
    let down = images.numbers(cx, factors[0])?;
    let down = line(cx, down, -(height as f64), 0.0)?;
    let right = images.numbers(cx, factors[1])?;
    let right = line(cx, right, -(width as f64), 0.0)?;
    let (one, zero) = (line(cx, right, 0.0, 1.0)?, line(cx, right, 0.0, 0.0)?);
    let y = sampling.sampled(cx, &images, [one, zero, right], [zero, one, down])?;
    images.give(cx, y)
}

pub(super) fn random_zoom(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return cast(b, fields, inputs);
    }
    let by = |(low, high): (f64, f64)| (1.0 + low, 1.0 + high);
    let of_height = by(bounds(&fields.require("height_factor")?)?);
    let of_width = fields.opt("width_factor").map(|at| bounds(&at)).transpose()?.map(by);
    let sampling = Sampling::read(fields)?;
    let images = Images::read(b, fields, inputs)?;
    let [_, height, width, _] = images.dims;
    let cx = &mut b.cx;
    let vertical = images.numbers(cx, of_height)?;
    let horizontal = match of_width {
        Some(factor) => images.numbers(cx, factor)?,
        None => vertical,
    };
    // The middle stays where it is.
    let offset = |cx: &mut Cx, zoom: Value, extent: usize| {
        let half = (extent as f64 - 1.0) / 2.0;
        line(cx, zoom, -half, half)
    };
    let (right, down) = (offset(cx, horizontal, width)?, offset(cx, vertical, height)?);
    let zero = line(cx, right, 0.0, 0.0)?;
    let y = sampling.sampled(cx, &images, [horizontal, zero, right], [zero, vertical, down])?;
    images.give(cx, y)
}

pub(super) fn random_rotation(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    if !b.cx.trains() {
        return cast(b, fields, inputs);
    }
    let (low, high) = bounds(&fields.require("factor")?)?;
    let sampling = Sampling::read(fields)?;
    let images = Images::read(b, fields, inputs)?;
    let [_, height, width, _] = images.dims;
    let cx = &mut b.cx;
    let turn = std::f64::consts::TAU;
    let angle = images.numbers(cx, (low * turn, high * turn))?;
    let (cos, sin) = (cx.g.unary(Unary::Cos, angle)?, cx.g.unary(Unary::Sin, angle)?);
    let minus = cx.g.unary(Unary::Neg, sin)?;
    let (x, y) = ((width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0);
    // m − mₓ·p − m_y·q, so that the middle (mₓ, m_y) stays where it is.
    let offset = |cx: &mut Cx, middle: f64, p: Value, q: Value| -> Out<Value> {
        let of_x = line(cx, p, -x, middle)?;
        let of_y = line(cx, q, -y, 0.0)?;
        Ok(cx.g.add(of_x, of_y)?)
    };
    let (right, down) = (offset(cx, x, cos, minus)?, offset(cx, y, sin, cos)?);
    let y = sampling.sampled(cx, &images, [cos, minus, right], [sin, cos, down])?;
    images.give(cx, y)
}

/// What stands outside of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// The image mirrored at its edges.
    Reflect,
    /// The image again.
    Wrap,
    /// A number.
    Constant(f64),
    /// The nearest pixel.
    Nearest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interpolation {
    Bilinear,
    Nearest,
}

/// How images are looked up at coordinates.
struct Sampling {
    fill: Fill,
    interpolation: Interpolation,
}

impl Sampling {
    fn read(fields: &Fields<'_>) -> Out<Sampling> {
        let value = fields.f64_or("fill_value", 0.0)?;
        let modes = ["reflect", "wrap", "constant", "nearest"];
        let fill =
            [Fill::Reflect, Fill::Wrap, Fill::Constant(value), Fill::Nearest][fields.choice("fill_mode", &modes)?];
        let ways = [Interpolation::Bilinear, Interpolation::Nearest];
        Ok(Sampling { fill, interpolation: ways[fields.choice("interpolation", &["bilinear", "nearest"])?] })
    }

    /// The images at a₀x + a₁y + a₂ and b₀x + b₁y + b₂.
    fn sampled(&self, cx: &mut Cx, images: &Images, a: [Value; 3], b: [Value; 3]) -> Out<Value> {
        let [n, height, width, _] = images.dims;
        let shape = Shape::from([n, height, width]);
        let place = |cx: &mut Cx, dim| cx.g.push(Iota { dtype: DType::F32, shape: shape.clone(), dim, start: 0 }, &[]);
        let (x, y) = (place(cx, 2)?, place(cx, 1)?);
        let affine = |cx: &mut Cx, [p, q, r]: [Value; 3]| -> Out<Value> {
            let [p, q, r] =
                [cx.g.broadcast(p, &shape, &[0])?, cx.g.broadcast(q, &shape, &[0])?, cx.g.broadcast(r, &shape, &[0])?];
            let (of_x, of_y) = (cx.g.mul(p, x)?, cx.g.mul(q, y)?);
            let sum = cx.g.add(of_x, of_y)?;
            Ok(cx.g.add(sum, r)?)
        };
        let (x, y) = (affine(cx, a)?, affine(cx, b)?);
        let (x, y) = (self.inside(cx, x, width)?, self.inside(cx, y, height)?);
        if self.interpolation == Interpolation::Nearest {
            let (x, y) = (rounded(cx, x)?, rounded(cx, y)?);
            return self.pixels(cx, images, x, y);
        }
        let (left, top) = (cx.g.unary(Unary::Floor, x)?, cx.g.unary(Unary::Floor, y)?);
        let (right, bottom) = (line(cx, left, 1.0, 1.0)?, line(cx, top, 1.0, 1.0)?);
        let upper = self.mixed(cx, images, [left, right, x], top)?;
        let lower = self.mixed(cx, images, [left, right, x], bottom)?;
        blend(cx, upper, lower, [top, bottom, y])
    }

    /// Two pixels of a row, weighted by how near they are.
    fn mixed(&self, cx: &mut Cx, images: &Images, [left, right, x]: [Value; 3], row: Value) -> Out<Value> {
        let (a, b) = (self.pixels(cx, images, left, row)?, self.pixels(cx, images, right, row)?);
        blend(cx, a, b, [left, right, x])
    }

    /// Coordinates where the image has what the fill mode says.
    fn inside(&self, cx: &mut Cx, x: Value, extent: usize) -> Out<Value> {
        let n = extent as f64;
        let shape = cx.g.shape(x).clone();
        let full = |cx: &mut Cx, v: f64| cx.g.full(DType::F32, v, &shape);
        let mapped = match self.fill {
            Fill::Constant(_) => return Ok(x),
            Fill::Nearest => x,
            _ if extent == 1 => full(cx, 0.0)?,
            Fill::Reflect => {
                // Edges are half a pixel outside of the outermost ones.
                let from_edge = line(cx, x, 1.0, 0.5)?;
                let period = full(cx, 2.0 * n)?;
                let once = cx.g.binary(Binary::Mod, from_edge, period)?;
                let back = cx.g.sub(period, once)?;
                let near = cx.g.binary(Binary::Min, once, back)?;
                line(cx, near, 1.0, -0.5)?
            }
            Fill::Wrap => {
                let (steps, extent, zero) = (full(cx, n - 1.0)?, full(cx, n)?, full(cx, 0.0)?);
                let turns = cx.g.div(x, steps)?;
                let turns = cx.g.unary(Unary::Trunc, turns)?;
                let below = cx.g.compare(Compare::Lt, x, zero)?;
                let more = line(cx, turns, 1.0, -1.0)?;
                let turns = cx.g.select(below, more, turns)?;
                let away = cx.g.mul(turns, extent)?;
                let moved = cx.g.sub(x, away)?;
                let above = cx.g.compare(Compare::Gt, x, steps)?;
                let outside = cx.g.binary(Binary::Or, below, above)?;
                cx.g.select(outside, moved, x)?
            }
        };
        clip(cx, mapped, 0.0, n - 1.0)
    }

    /// Pixels at whole coordinates.
    fn pixels(&self, cx: &mut Cx, images: &Images, x: Value, y: Value) -> Out<Value> {
        let [n, height, width, channels] = images.dims;
        let shape = cx.g.shape(x).clone();
        let within = |cx: &mut Cx, at: Value, extent: usize| -> Out<Value> {
            let (zero, end) = (cx.g.full(DType::F32, 0.0, &shape)?, cx.g.full(DType::F32, extent as f64, &shape)?);
            let (low, high) = (cx.g.compare(Compare::Ge, at, zero)?, cx.g.compare(Compare::Lt, at, end)?);
            Ok(cx.g.binary(Binary::And, low, high)?)
        };
        let (of_x, of_y) = (within(cx, x, width)?, within(cx, y, height)?);
        let inside = cx.g.binary(Binary::And, of_x, of_y)?;
        let (column, row) = (cx.g.cast(DType::I32, x)?, cx.g.cast(DType::I32, y)?);
        let width = cx.g.full(DType::I32, width as f64, &shape)?;
        let row = cx.g.mul(row, width)?;
        let flat = cx.g.add(row, column)?;
        let nowhere = cx.g.full(DType::I32, -1.0, &shape)?;
        let flat = cx.g.select(inside, flat, nowhere)?;
        let table = cx.g.reshape(images.x, &Shape::from([n, images.dims[1] * images.dims[2], channels]))?;
        let pixels = cx.g.push(TakeEach {}, &[table, flat])?;
        match self.fill {
            Fill::Constant(value) if value != 0.0 => {
                let ty = cx.g.ty(pixels).clone();
                let inside = cx.g.broadcast(inside, &ty.shape, &[0, 1, 2])?;
                let value = cx.g.full(ty.dtype, value, &ty.shape)?;
                Ok(cx.g.select(inside, pixels, value)?)
            }
            Fill::Constant(_) | Fill::Reflect | Fill::Wrap | Fill::Nearest => Ok(pixels),
        }
    }
}

/// a·(end − at) + b·(at − start) for the place `at` between `start` and `end`.
fn blend(cx: &mut Cx, a: Value, b: Value, [start, end, at]: [Value; 3]) -> Out<Value> {
    let ty = cx.g.ty(a).clone();
    let weight = |cx: &mut Cx, p: Value, q: Value| -> Out<Value> {
        let distance = cx.g.sub(p, q)?;
        let distance = cx.g.cast(ty.dtype, distance)?;
        Ok(cx.g.broadcast(distance, &ty.shape, &[0, 1, 2])?)
    };
    let (of_a, of_b) = (weight(cx, end, at)?, weight(cx, at, start)?);
    let (a, b) = (cx.g.mul(a, of_a)?, cx.g.mul(b, of_b)?);
    Ok(cx.g.add(a, b)?)
}

/// The nearest whole number, halves away from 0.
fn rounded(cx: &mut Cx, x: Value) -> Out<Value> {
    let size = cx.g.unary(Unary::Abs, x)?;
    let size = line(cx, size, 1.0, 0.5)?;
    let size = cx.g.unary(Unary::Floor, size)?;
    let sign = cx.g.unary(Unary::Sign, x)?;
    Ok(cx.g.mul(size, sign)?)
}
