//! Lamb: Adam whose steps are scaled to the norm of the variable.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Compare;

use super::Initial;
use super::adam::Moments;
use super::classes::Rule;
use super::clip::total;
use super::formula::{Formula, number, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Lamb {
    moments: Moments,
    epsilon: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    let moments = Moments { beta_1: fields.f64_or("beta_1", 0.9)?, beta_2: fields.f64_or("beta_2", 0.999)? };
    Ok(Arc::new(Lamb { moments, epsilon: epsilon(fields, 1e-7)? }))
}

impl Rule for Lamb {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Filled(0.0)), ("velocity", Initial::Filled(0.0))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let dtype = v.ty.dtype;
        let (m, s) = self.moments.update(cx, v)?;
        let m = m / (1.0 - cx.power(dtype, self.moments.beta_1)?);
        let s = s / (1.0 - cx.power(dtype, self.moments.beta_2)?);
        let step = (m / (s.sqrt() + self.epsilon)).build(cx.g)?;
        let mut norm = |x| {
            let squares = of(x).square().build(cx.g)?;
            total(cx.g, squares).map(|sum| of(sum).sqrt())
        };
        let (of_variable, of_step) = (norm(v.value)?, norm(step)?);
        let ratio = of_variable.clone() / of_step.clone();
        let ratio = of_step.is(Compare::Gt, 0.0).choose(ratio, 1.0);
        let ratio = of_variable.is(Compare::Gt, 0.0).choose(ratio, number(1.0));
        Ok(of(v.value) - ratio * cx.rate(dtype) * of(step))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("beta_1", Json::Float(self.moments.beta_1)),
            ("beta_2", Json::Float(self.moments.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
        ]
    }
}
