//! Layers that move elements: reshaping, permutation, padding, cropping.

use intwain_ir::ops::{Pad, Slice};
use intwain_ir::{Scalar, Shape};

use super::build::Builder;
use super::cx::{Out, misfit};
use super::inputs::Inputs;
use super::windows::Format;
use crate::frontend::cursor::{At, Fields};

pub(super) fn flatten(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let format = Format::read(fields)?;
    let x = inputs.one()?.value;
    let x = format.to_last(&mut b.cx, x)?;
    let dims = b.cx.dims(x);
    let rows = *dims.first().ok_or_else(|| misfit("takes a tensor with a batch dimension"))?;
    let flat = [rows, dims[1..].iter().product()];
    Ok(vec![b.cx.g.reshape(x, &Shape::from(flat))?.into()])
}

/// `target` without the batch; one −1 stands for what is left.
pub(super) fn reshape(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let dims = b.cx.dims(x);
    let target = fields.opt_any(&["target_shape", "dims"]);
    let target = target.ok_or_else(|| misfit("has no `target_shape`"))?;
    let wanted = target.one_or_many().iter().map(At::int).collect::<Result<Vec<_>, _>>()?;
    let rows = *dims.first().ok_or_else(|| misfit("takes a tensor with a batch dimension"))?;
    let shape = resolve(&wanted, dims[1..].iter().product())
        .ok_or_else(|| misfit(format!("{:?} does not reshape to {}", &dims[1..], target.json)))?;
    let shape: Vec<usize> = [rows].into_iter().chain(shape).collect();
    Ok(vec![b.cx.g.reshape(x, &Shape::from(shape))?.into()])
}

/// Extents for `elements` elements, at most one of them −1.
pub(super) fn resolve(wanted: &[i64], elements: usize) -> Option<Vec<usize>> {
    let open = wanted.iter().filter(|&&d| d == -1).count();
    let known = wanted.iter().filter(|&&d| d != -1).map(|&d| usize::try_from(d).ok()).collect::<Option<Vec<_>>>()?;
    let known = known.into_iter().try_fold(1usize, usize::checked_mul)?;
    let rest = match open {
        0 if known == elements => 1,
        1 if known > 0 && elements.is_multiple_of(known) => elements / known,
        _ => return None,
    };
    Some(wanted.iter().map(|&d| usize::try_from(d).unwrap_or(rest)).collect())
}

/// Dimensions from 1, without the batch.
pub(super) fn permute(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let dims = fields.require("dims")?;
    let perm: Vec<usize> =
        std::iter::once(Ok(0)).chain(dims.one_or_many().iter().map(At::positive)).collect::<Result<_, _>>()?;
    Ok(vec![b.cx.g.transpose(x, &perm)?.into()])
}

pub(super) fn repeat_vector(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?.value;
    let n = fields.require("n")?.positive()?;
    let &[rows, features] = b.cx.dims(x).as_slice() else {
        return Err(misfit(format!("takes a tensor of rank 2, its input has the shape {:?}", b.cx.dims(x))));
    };
    Ok(vec![b.cx.g.broadcast(x, &Shape::from([rows, n, features]), &[0, 2])?.into()])
}

macro_rules! edges {
    ($($name:ident = $what:ident, $n:literal;)+) => {
        $(pub(super) fn $name(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
            $what(b, fields, inputs, $n)
        })+
    };
}

edges! {
    pad_1d = pad, 1;
    pad_2d = pad, 2;
    pad_3d = pad, 3;
    crop_1d = crop, 1;
    crop_2d = crop, 2;
    crop_3d = crop, 3;
}

/// One number for all edges, a number for both edges of each dimension, or a pair for each.
fn edges(at: &At<'_>, n: usize) -> Out<Vec<(usize, usize)>> {
    if at.json.as_array().is_none() {
        let p = at.usize()?;
        return Ok(vec![(p, p); n]);
    }
    let items = at.array()?;
    if n == 1 {
        return match items.as_slice() {
            [only] if only.json.as_array().is_some() => edges(only, 1),
            [only] => edges(only, 1),
            [low, high] => Ok(vec![(low.usize()?, high.usize()?)]),
            _ => Err(at.expected("one or two sizes").into()),
        };
    }
    if items.len() != n {
        return Err(at.expected("as many sizes as there are spatial dimensions").into());
    }
    items.iter().map(|item| edges(item, 1).map(|pair| pair[0])).collect()
}

fn spatial_start(format: Format) -> usize {
    match format {
        Format::Last => 1,
        Format::First => 2,
    }
}

fn pad(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let x = inputs.one()?.value;
    let start = spatial_start(Format::read(fields)?);
    let edges = edges(&fields.require("padding")?, n)?;
    let ty = b.cx.g.ty(x).clone();
    if ty.rank() != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {}", n + 2, ty.shape)));
    }
    let (mut low, mut high) = (vec![0i64; n + 2], vec![0i64; n + 2]);
    for (d, (before, after)) in edges.into_iter().enumerate() {
        (low[start + d], high[start + d]) = (before as i64, after as i64);
    }
    let op = Pad { low, high, interior: vec![0; n + 2], value: vec![Scalar::zero(ty.dtype)] };
    Ok(vec![b.cx.g.push(op, &[x])?.into()])
}

fn crop(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, n: usize) -> Out {
    let x = inputs.one()?.value;
    let start = spatial_start(Format::read(fields)?);
    let edges = edges(&fields.require("cropping")?, n)?;
    let dims = b.cx.dims(x);
    if dims.len() != n + 2 {
        return Err(misfit(format!("takes a tensor of rank {}, its input has the shape {dims:?}", n + 2)));
    }
    let (mut from, mut to) = (vec![0; n + 2], dims.clone());
    for (d, (before, after)) in edges.into_iter().enumerate() {
        let extent = dims[start + d];
        if before.saturating_add(after) >= extent {
            return Err(misfit(format!("crops {before} and {after} of {extent} elements")));
        }
        (from[start + d], to[start + d]) = (before, extent - after);
    }
    Ok(vec![b.cx.g.push(Slice { start: from, limit: to, stride: vec![1; n + 2] }, &[x])?.into()])
}
