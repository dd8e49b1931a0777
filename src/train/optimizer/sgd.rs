//! Gradient descent, with or without momentum.

use std::sync::Arc;

use intwain_ir::ops::TypeError;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::within;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Sgd {
    momentum: f64,
    nesterov: bool,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    let momentum = within(fields, "momentum", 0.0, 0.0..=1.0)?;
    Ok(Arc::new(Sgd { momentum, nesterov: fields.bool_or("nesterov", false)? }))
}

impl Rule for Sgd {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        if self.momentum != 0.0 {
            keep.each(scope, &[("momentum", Initial::Filled(0.0))]);
        }
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let step = of((of(v.gradient) * cx.rate(v.ty.dtype)).build(cx.g)?);
        if self.momentum == 0.0 {
            return Ok(of(v.value) - step);
        }
        let momentum = cx.constant(v.ty.dtype, self.momentum)?;
        let m = cx.slot("momentum", Some(v.index))?;
        let m = cx.set("momentum", Some(v.index), m * momentum.clone() - step.clone())?;
        Ok(of(v.value) + if self.nesterov { m * momentum - step } else { m })
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![("momentum", Json::Float(self.momentum)), ("nesterov", Json::Bool(self.nesterov))]
    }
}
