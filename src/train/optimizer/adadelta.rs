//! Adadelta: steps as large as past steps were, over gradients as large as past gradients were.

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
struct Adadelta {
    rho: f64,
    epsilon: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(Adadelta { rho: fields.f64_or("rho", 0.95)?, epsilon: epsilon(fields, 1e-7)? }))
}

impl Rule for Adadelta {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        let zero = || Initial::Filled(0.0);
        keep.each(scope, &[("accumulated_grad", zero()), ("accumulated_delta_var", zero())]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let root = |x: Formula| (x + self.epsilon).sqrt();
        let gradients = cx.slot("accumulated_grad", Some(v.index))?;
        let mean = self.rho * gradients + (1.0 - self.rho) * v.square();
        let gradients = cx.set("accumulated_grad", Some(v.index), mean)?;
        let steps = cx.slot("accumulated_delta_var", Some(v.index))?;
        let step = -(root(steps.clone()) * of(v.gradient) / root(gradients));
        let step = of(step.build(cx.g)?);
        let mean = self.rho * steps + (1.0 - self.rho) * step.clone().square();
        cx.set("accumulated_delta_var", Some(v.index), mean)?;
        Ok(of(v.value) + cx.rate(v.ty.dtype) * step)
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![("rho", Json::Float(self.rho)), ("epsilon", Json::Float(self.epsilon))]
    }
}
