//! The softmax layer, and what masks do to a softmax.

use intwain_ir::scalar::Compare;
use intwain_ir::{DType, Value};

use super::activations::softmax_over;
use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::masks::{heeded, written};
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;

pub(super) fn softmax(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let rank = b.cx.rank(x.value);
    let axes = match fields.opt("axis") {
        None => vec![-1],
        Some(at) => at.one_or_many().iter().map(|a| a.int()).collect::<Result<Vec<_>, _>>()?,
    };
    let dims = axes.iter().map(|&a| b.cx.axis(a, rank)).collect::<Out<Vec<_>>>()?;
    // Keras 2 writes its key where it is true.
    let manner = match (b.cx.generation, fields.bool_or("robust_masking", false)?) {
        (Generation::Three, _) => Masked::Zero,
        (Generation::One | Generation::Two, true) => Masked::Lowest,
        (Generation::One | Generation::Two, false) => Masked::Lowered,
    };
    let fixed = inputs.get(1, "mask").map(|item| written(&mut b.cx, item)).transpose()?.flatten();
    let mask = fixed.or(heeded(&b.cx, inputs, 1, x));
    // Keras aligns it with the last dimensions and fails unless they happen to fit.
    if let (Some(own), true) = (x.mask, mask == x.mask)
        && b.cx.rank(own) != rank
    {
        let shapes = (b.cx.dims(own), b.cx.dims(x.value));
        return Err(misfit(format!("its input of shape {:?} has a mask of shape {:?}", shapes.1, shapes.0)));
    }
    let value = match mask {
        None => softmax_over(&mut b.cx, x.value, &dims)?,
        Some(mask) => masked_softmax(&mut b.cx, x.value, mask, &dims, manner)?,
    };
    Ok(vec![value.into()])
}

/// What a softmax makes of masked elements. The ways differ where a mask leaves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Masked {
    /// They are 0, all of them where nothing is left.
    Zero,
    /// They have the lowest score: equal weights where nothing is left.
    Lowest,
    /// Their scores are lowered by a large number: nearly equal weights where nothing is left.
    Lowered,
}

/// Softmax of what the mask leaves. The mask broadcasts, aligned from the right.
pub(super) fn masked_softmax(cx: &mut Cx, x: Value, mask: Value, dims: &[usize], manner: Masked) -> Out<Value> {
    let ty = cx.g.ty(x).clone();
    let number = if ty.dtype == DType::F16 { 3e4 } else { 1e9 };
    if manner == Masked::Lowered {
        let number = if ty.dtype == DType::F16 { 65504.0 } else { number };
        let mask = cx.g.cast(ty.dtype, mask)?;
        let mask = cx.g.broadcast_to(mask, &ty.shape)?;
        let (one, number) = (cx.g.full(ty.dtype, 1.0, &ty.shape)?, cx.g.full(ty.dtype, number, &ty.shape)?);
        let masked = cx.g.sub(one, mask)?;
        let lower = cx.g.mul(masked, number)?;
        let x = cx.g.sub(x, lower)?;
        return softmax_over(cx, x, dims);
    }
    let mask = match cx.g.ty(mask).dtype {
        DType::Bool => mask,
        dtype if dtype.is_float() => {
            let half = cx.g.full(dtype, 0.5, &cx.g.shape(mask).clone())?;
            cx.g.compare(Compare::Gt, mask, half)?
        }
        _ => cx.g.cast(DType::Bool, mask)?,
    };
    let mask = cx.g.broadcast_to(mask, &ty.shape)?;
    let low = cx.g.full(ty.dtype, -number, &ty.shape)?;
    let x = cx.g.select(mask, x, low)?;
    let y = softmax_over(cx, x, dims)?;
    if manner == Masked::Lowest {
        return Ok(y);
    }
    let zero = cx.g.full(ty.dtype, 0.0, &ty.shape)?;
    Ok(cx.g.select(mask, y, zero)?)
}
