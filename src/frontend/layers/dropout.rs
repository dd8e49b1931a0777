//! Layers that make training noisy. Outside of training they pass their input on.

use intwain_ir::{Rows, Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T, misfit};
use super::inputs::Inputs;
use super::noise::{Draw, own_seed};
use crate::frontend::cursor::Fields;
use crate::frontend::json::Json;

/// SELU's limit on the left, −α·λ, which alpha dropout drops to.
const LOWEST: f64 = -1.673_263_242_354_377_2 * 1.050_700_987_355_480_5;

/// The share that is lost.
fn rate(fields: &Fields<'_>) -> Out<f64> {
    let Some(at) = fields.opt_any(&["rate", "p"]) else { return Ok(0.0) };
    match at.f64()? {
        rate if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err(at.expected("a number from 0 to 1").into()),
    }
}

/// What dropout inside a layer loses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    pub(super) rate: f64,
    seed: Option<i64>,
}

impl Lost {
    /// By the keys `dropout` and `seed`.
    pub(super) fn read(fields: &Fields<'_>) -> Out<Lost> {
        let rate = fields.opt("dropout").map_or(Ok(0.0), |at| at.f64())?;
        Ok(Lost { rate, seed: own_seed(fields)? })
    }

    /// What is left of a tensor whose dimension 0 counts rows; all of it outside of training.
    pub(super) fn from(self, cx: &mut Cx, x: Value) -> Out<Value> {
        let draw = Draw { shape: cx.g.shape(x).clone(), rows: Rows::Batched, seed: self.seed };
        Ok(dropped(cx, x.into(), self.rate, &draw)?.value)
    }
}

/// A draw for every element of a tensor, or for those of `noise_shape`.
fn draw(cx: &Cx, fields: &Fields<'_>, x: T) -> Out<Draw> {
    let (shape, seed) = (cx.dims(x.value), own_seed(fields)?);
    let Some(at) = fields.opt("noise_shape").filter(|_| cx.trains()) else {
        return Ok(Draw { shape: Shape::from(shape), rows: Rows::Batched, seed });
    };
    let items = at.array()?;
    if items.len() > shape.len() {
        return Err(misfit(format!("a noise shape of {} dimensions for the shape {shape:?}", items.len())));
    }
    // Fewer dimensions are the last ones.
    let behind = &shape[shape.len() - items.len()..];
    let mut noise = Vec::new();
    for (item, &extent) in items.iter().zip(behind) {
        let given = if item.is_null() { extent } else { item.positive()? };
        if given != extent && given != 1 {
            return Err(misfit(format!("a noise shape with {given} where the input has {extent}")));
        }
        noise.push(given);
    }
    let own_rows = items.len() == shape.len() && items.first().is_some_and(|item| *item.json != Json::Int(1));
    Ok(Draw { shape: Shape::from(noise), rows: if own_rows { Rows::Batched } else { Rows::Whole }, seed })
}

pub(super) fn dropout(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (x, rate) = (inputs.one()?, rate(fields)?);
    let draw = draw(&b.cx, fields, x)?;
    Ok(vec![dropped(&mut b.cx, x, rate, &draw)?])
}

fn dropped(cx: &mut Cx, x: T, rate: f64, draw: &Draw) -> Out<T> {
    if rate == 0.0 || !cx.trains() {
        return Ok(x);
    }
    Ok(T { value: cx.dropped(x.value, rate, draw)?, mask: x.mask })
}

/// Whole channels are lost.
pub(super) fn spatial_dropout(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (x, rate) = (inputs.one()?, rate(fields)?);
    fields.irrelevant(&["noise_shape"]);
    let first = fields.choice("data_format", &["channels_last", "channels_first"])? == 1;
    let seed = own_seed(fields)?;
    let mut shape = b.cx.dims(x.value);
    let rank = shape.len();
    let space = if first { 2..rank } else { 1..rank.saturating_sub(1) };
    shape.get_mut(space).into_iter().flatten().for_each(|extent| *extent = 1);
    Ok(vec![dropped(&mut b.cx, x, rate, &Draw { shape: Shape::from(shape), rows: Rows::Batched, seed })?])
}

/// Dropout for SELU: what is lost becomes its limit, and mean and variance are put right.
pub(super) fn alpha_dropout(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (x, rate) = (inputs.one()?, rate(fields)?);
    let draw = draw(&b.cx, fields, x)?;
    let cx = &mut b.cx;
    if rate == 0.0 || !cx.trains() {
        return Ok(vec![x]);
    }
    let ty = cx.g.ty(x.value).clone();
    let kept = cx.kept_of(rate, &draw)?;
    let kept = cx.g.broadcast_to(kept, &ty.shape)?;
    let a = ((1.0 - rate) * (1.0 + rate * LOWEST * LOWEST)).powf(-0.5);
    let b = -a * LOWEST * rate;
    let lowest = cx.g.full(ty.dtype, LOWEST, &ty.shape)?;
    let (a, b) = (cx.g.full(ty.dtype, a, &ty.shape)?, cx.g.full(ty.dtype, b, &ty.shape)?);
    let left = cx.g.select(kept, x.value, lowest)?;
    let scaled = cx.g.mul(left, a)?;
    Ok(vec![T { value: cx.g.add(scaled, b)?, mask: x.mask }])
}

/// Multiplication by noise about 1.
pub(super) fn gaussian_dropout(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let (x, rate) = (inputs.one()?, rate(fields)?);
    let draw = draw(&b.cx, fields, x)?;
    let cx = &mut b.cx;
    if rate == 0.0 || !cx.trains() {
        return Ok(vec![x]);
    }
    let noise = cx.normal(cx.g.ty(x.value).dtype, 1.0, (rate / (1.0 - rate)).sqrt(), &draw)?;
    Ok(vec![T { value: cx.g.mul(x.value, noise)?, mask: x.mask }])
}

/// Addition of noise about 0.
pub(super) fn gaussian_noise(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let deviation = fields.opt_any(&["stddev", "sigma"]).map_or(Ok(0.0), |at| at.f64())?;
    let draw = draw(&b.cx, fields, x)?;
    let cx = &mut b.cx;
    if deviation <= 0.0 || !cx.trains() {
        return Ok(vec![x]);
    }
    let noise = cx.normal(cx.g.ty(x.value).dtype, 0.0, deviation, &draw)?;
    Ok(vec![T { value: cx.g.add(x.value, noise)?, mask: x.mask }])
}

/// Whole rows are lost, as in residual branches.
pub(super) fn stochastic_depth(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let x = inputs.one()?;
    let rate = fields.opt("drop_path_rate").map_or(Ok(0.0), |at| at.f64())?;
    let seed = own_seed(fields)?;
    if let Some(survival) = fields.opt("survival_probability")
        && b.cx.trains()
    {
        return Err(survival
            .unsupported("a residual branch that is lost by `survival_probability`, in training")
            .into());
    }
    let mut shape = b.cx.dims(x.value);
    shape.iter_mut().skip(1).for_each(|extent| *extent = 1);
    Ok(vec![dropped(&mut b.cx, x, rate, &Draw { shape: Shape::from(shape), rows: Rows::Batched, seed })?])
}
