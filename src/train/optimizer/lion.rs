//! Lion: steps of one size, in the direction of an interpolated momentum.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Unary;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Lion {
    beta_1: f64,
    beta_2: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    let beta_1 = fields.f64_or("beta_1", 0.9)?;
    if beta_1 <= 0.0 || beta_1 > 1.0 {
        return Err(fields.require("beta_1")?.accepted(&["a number above 0 and at most 1"]));
    }
    Ok(Arc::new(Lion { beta_1, beta_2: fields.f64_or("beta_2", 0.99)? }))
}

impl Rule for Lion {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Filled(0.0))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let (beta_1, beta_2) = (cx.constant(v.ty.dtype, self.beta_1)?, cx.constant(v.ty.dtype, self.beta_2)?);
        let m = cx.slot("momentum", Some(v.index))?;
        let mix = |beta: Formula| m.clone() * beta.clone() + of(v.gradient) * (1.0 - beta);
        cx.set("momentum", Some(v.index), mix(beta_2))?;
        Ok(of(v.value) - cx.rate(v.ty.dtype) * mix(beta_1).map(Unary::Sign))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![("beta_1", Json::Float(self.beta_1)), ("beta_2", Json::Float(self.beta_2))]
    }
}
