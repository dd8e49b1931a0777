//! Nadam: Adam that looks one step ahead, with a first moment that weighs more from step to step.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::{DType, Shape, Tensor, Type};

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, number, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Nadam {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    if let Some(at) = fields.opt("schedule_decay") {
        return Err(at.unsupported("Keras 1's Nadam, whose momentum follows another schedule,"));
    }
    Ok(Arc::new(Nadam {
        beta_1: fields.f64_or("beta_1", 0.9)?,
        beta_2: fields.f64_or("beta_2", 0.999)?,
        epsilon: epsilon(fields, 1e-7)?,
    }))
}

/// How much half of the momentum is worth after a step.
const DECAY: f64 = 0.96;

impl Rule for Nadam {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Filled(0.0)), ("velocity", Initial::Filled(0.0))]);
        let dtype = keep.variables().first().map_or(DType::F32, |(_, ty)| ty.dtype);
        let one = Initial::Value(Tensor::from_f64(dtype, Shape::default(), &[1.0]));
        keep.once(scope, "u_product", Type::new(dtype, Shape::default()), one);
    }

    fn begin(&self, cx: &mut Update<'_>) -> Result<(), TypeError> {
        let product = cx.slot("u_product", None)?;
        let value = product.build(cx.g)?;
        let dtype = cx.g.ty(value).dtype;
        let weight = 1.0 - 0.5 * number(DECAY).pow(cx.number(dtype));
        cx.set("u_product", None, product * self.beta_1 * weight).map(|_| ())
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let dtype = v.ty.dtype;
        let (beta_1, beta_2) = (cx.constant(dtype, self.beta_1)?, cx.constant(dtype, self.beta_2)?);
        let decay = cx.constant(dtype, DECAY)?;
        let now = of((beta_1.clone() * (1.0 - 0.5 * cx.power(dtype, DECAY)?)).build(cx.g)?);
        let after = decay.pow(cx.number_after(dtype));
        let after = of((beta_1.clone() * (1.0 - 0.5 * after)).build(cx.g)?);
        let product = cx.slot("u_product", None)?.cast(dtype);
        let m = cx.slot("momentum", Some(v.index))?;
        let m = cx.set("momentum", Some(v.index), m.clone() + (of(v.gradient) - m) * (1.0 - beta_1))?;
        let s = cx.slot("velocity", Some(v.index))?;
        let s = cx.set("velocity", Some(v.index), s.clone() + (v.square() - s) * (1.0 - beta_2))?;
        let ahead = after.clone() * m / (1.0 - product.clone() * after);
        let m = ahead + (1.0 - now) * of(v.gradient) / (1.0 - product);
        let s = s / (1.0 - cx.power(dtype, self.beta_2)?);
        Ok(of(v.value) - m * cx.rate(dtype) / (s.sqrt() + self.epsilon))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("beta_1", Json::Float(self.beta_1)),
            ("beta_2", Json::Float(self.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
        ]
    }
}
