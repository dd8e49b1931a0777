//! Operations that masks are made of in functional files of Keras 3, which write down how each mask comes about.

use intwain_ir::DType;
use intwain_ir::scalar::Reduce;

use super::build::{Builder, element};
use super::cx::{Out, T, unsupported};
use super::inputs::Inputs;
use crate::frontend::cursor::{At, Fields};

pub(super) fn any(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    // The sum of booleans is any, the product all.
    over(b, fields, inputs, Reduce::Sum)
}

pub(super) fn all(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    over(b, fields, inputs, Reduce::Prod)
}

fn over(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, function: Reduce) -> Out {
    let axes = fields.opt("axis").map(|at| at.one_or_many().iter().map(At::int).collect::<Result<Vec<_>, _>>());
    let keep = fields.bool_or("keepdims", false)?;
    let cx = &mut b.cx;
    let x = inputs.one()?.value;
    let rank = cx.rank(x);
    let dims = match axes.transpose()? {
        None => (0..rank).collect(),
        Some(axes) => axes.iter().map(|&axis| cx.axis(axis, rank)).collect::<Out<Vec<usize>>>()?,
    };
    let x = cx.g.cast(DType::Bool, x)?;
    let y = if keep { cx.g.reduce_keep(function, x, &dims)? } else { cx.g.reduce(function, x, &dims)? };
    Ok(vec![y.into()])
}

pub(super) fn zeros_like(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    like(b, fields, inputs, 0.0)
}

pub(super) fn ones_like(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    like(b, fields, inputs, 1.0)
}

fn like(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs, number: f64) -> Out {
    let given = typed(fields)?;
    let ty = b.cx.g.ty(inputs.one()?.value).clone();
    Ok(vec![b.cx.g.full(given.unwrap_or(ty.dtype), number, &ty.shape)?.into()])
}

/// A tensor as it is, or in another type.
pub(super) fn convert_to_tensor(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    for key in ["sparse", "ragged"] {
        if let Some(at) = fields.opt(key)
            && at.bool()?
        {
            return Err(at.unsupported(format!("a {key} tensor")).into());
        }
    }
    let t = inputs.one()?;
    let value = match typed(fields)? {
        Some(dtype) => b.cx.g.cast(dtype, t.value)?,
        None => t.value,
    };
    // What is not converted is the same tensor.
    Ok(vec![T { value, mask: t.mask.filter(|_| value == t.value) }])
}

fn typed(fields: &Fields<'_>) -> Out<Option<DType>> {
    let read = |at: At<'_>| {
        let name = at.str()?;
        element(name).ok_or_else(|| unsupported(format!("the type `{name}`")))
    };
    fields.opt("dtype").map(read).transpose()
}
