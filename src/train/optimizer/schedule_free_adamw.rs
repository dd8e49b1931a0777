//! Schedule-free AdamW: gradients are taken between a fast sequence and its average, so that no schedule is needed.

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
struct ScheduleFreeAdamW {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    warmup_steps: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(ScheduleFreeAdamW {
        beta_1: fields.f64_or("beta_1", 0.9)?,
        beta_2: fields.f64_or("beta_2", 0.999)?,
        epsilon: epsilon(fields, 1e-8)?,
        warmup_steps: fields.f64_or("warmup_steps", 0.0)?,
    }))
}

impl Rule for ScheduleFreeAdamW {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Variable), ("velocity", Initial::Filled(0.0))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let dtype = v.ty.dtype;
        let (beta_1, beta_2) = (cx.constant(dtype, self.beta_1)?, cx.constant(dtype, self.beta_2)?);
        let number = of(cx.number(dtype).build(cx.g)?);
        let epsilon = cx.constant(dtype, self.epsilon)?;
        let mut rate = cx.rate(dtype);
        if self.warmup_steps > 0.0 {
            rate = rate * (number.clone() / cx.constant(dtype, self.warmup_steps)?).min(1.0);
        }
        let s = cx.slot("velocity", Some(v.index))?;
        let s = s.clone() + (v.square() - s) * (1.0 - beta_2.clone());
        let s = cx.set("velocity", Some(v.index), s)?;
        let denominator = (s / (1.0 - beta_2.pow(number.clone()))).sqrt() + epsilon;
        let fast = cx.slot("momentum", Some(v.index))? - rate * of(v.gradient) / denominator;
        let fast = cx.set("momentum", Some(v.index), fast)?;
        let weight = of((1.0 / number).build(cx.g)?);
        // On TensorFlow, Keras's name for the fast sequence before the step is the variable itself, which has moved by then.
        let average = (of(v.value) - (1.0 - beta_1.clone()) * fast.clone()) / beta_1.clone();
        let average = (1.0 - weight.clone()) * average + weight * fast.clone();
        Ok((1.0 - beta_1.clone()) * fast + beta_1 * average)
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        let steps = self.warmup_steps;
        let steps = if steps.fract() == 0.0 { Json::Int(steps as i64) } else { Json::Float(steps) };
        vec![
            ("beta_1", Json::Float(self.beta_1)),
            ("beta_2", Json::Float(self.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
            ("warmup_steps", steps),
        ]
    }
}
