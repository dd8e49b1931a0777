//! RMSprop: gradients over the root of their mean square, which may be centred, with or without momentum.

use std::sync::Arc;

use intwain_ir::ops::TypeError;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct RmsProp {
    rho: f64,
    momentum: f64,
    epsilon: f64,
    centered: bool,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(RmsProp {
        rho: fields.f64_or("rho", 0.9)?,
        momentum: fields.f64_or("momentum", 0.0)?,
        epsilon: epsilon(fields, 1e-7)?,
        centered: fields.bool_or("centered", false)?,
    }))
}

impl RmsProp {
    /// A moving mean of a slot and something new.
    fn mean(&self, cx: &mut Update<'_>, role: &'static str, v: &Of<'_>, new: Formula) -> Result<Formula, TypeError> {
        let mean = self.rho * cx.slot(role, Some(v.index))? + (1.0 - self.rho) * new;
        cx.set(role, Some(v.index), mean)
    }
}

impl Rule for RmsProp {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("velocity", Initial::Filled(0.0))]);
        if self.momentum > 0.0 {
            keep.each(scope, &[("momentum", Initial::Filled(0.0))]);
        }
        if self.centered {
            keep.each(scope, &[("average_gradient", Initial::Filled(0.0))]);
        }
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let mut square = self.mean(cx, "velocity", v, v.square())?;
        if self.centered {
            let mean = self.mean(cx, "average_gradient", v, of(v.gradient))?;
            square = square - mean.square();
        }
        let step = cx.rate(v.ty.dtype) * of(v.gradient) / (square + self.epsilon).sqrt();
        if self.momentum <= 0.0 {
            return Ok(of(v.value) - step);
        }
        let m = self.momentum * cx.slot("momentum", Some(v.index))? + step;
        Ok(of(v.value) - cx.set("momentum", Some(v.index), m)?)
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("rho", Json::Float(self.rho)),
            ("momentum", Json::Float(self.momentum)),
            ("epsilon", Json::Float(self.epsilon)),
            ("centered", Json::Bool(self.centered)),
        ]
    }
}
