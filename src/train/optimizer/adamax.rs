//! Adamax: Adam with the greatest gradient in place of the second moment.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Unary;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Adamax {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(Adamax {
        beta_1: fields.f64_or("beta_1", 0.9)?,
        beta_2: fields.f64_or("beta_2", 0.999)?,
        epsilon: epsilon(fields, 1e-7)?,
    }))
}

impl Rule for Adamax {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Filled(0.0)), ("norm", Initial::Filled(0.0))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let m = cx.slot("momentum", Some(v.index))?;
        let m = cx.set("momentum", Some(v.index), m.clone() + (of(v.gradient) - m) * (1.0 - self.beta_1))?;
        let norm = self.beta_2 * cx.slot("norm", Some(v.index))?;
        let norm = cx.set("norm", Some(v.index), norm.max(of(v.gradient).map(Unary::Abs)))?;
        let correction = 1.0 - cx.power(v.ty.dtype, self.beta_1)?;
        Ok(of(v.value) - cx.rate(v.ty.dtype) * m / (correction * (norm + self.epsilon)))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("beta_1", Json::Float(self.beta_1)),
            ("beta_2", Json::Float(self.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
        ]
    }
}
