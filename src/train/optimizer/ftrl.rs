//! Ftrl: follow the regularised leader. Variables are computed anew from what was accumulated.

use std::sync::Arc;

use intwain_ir::ops::TypeError;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::step::{Of, Update, by_f32};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Ftrl {
    power: f64,
    initial: f64,
    l1: f64,
    l2: f64,
    shrinkage: f64,
    beta: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    let at_least_0 = |key: &str, default: f64| {
        let x = fields.f64_or(key, default)?;
        if x >= 0.0 { Ok(x) } else { Err(fields.require(key)?.accepted(&["a number of at least 0"])) }
    };
    let power = fields.f64_or("learning_rate_power", -0.5)?;
    if power > 0.0 {
        return Err(fields.require("learning_rate_power")?.accepted(&["a number of at most 0"]));
    }
    Ok(Arc::new(Ftrl {
        power,
        initial: at_least_0("initial_accumulator_value", 0.1)?,
        l1: at_least_0("l1_regularization_strength", 0.0)?,
        l2: at_least_0("l2_regularization_strength", 0.0)?,
        shrinkage: at_least_0("l2_shrinkage_regularization_strength", 0.0)?,
        beta: fields.f64_or("beta", 0.0)?,
    }))
}

impl Rule for Ftrl {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("accumulator", Initial::Filled(by_f32(self.initial))), ("linear", Initial::Filled(0.0))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let (w, rate) = (of(v.value), cx.rate(v.ty.dtype));
        let l2 = self.l2 + self.beta / (2.0 * rate.clone());
        let before = cx.slot("accumulator", Some(v.index))?;
        let sum = cx.set("accumulator", Some(v.index), before.clone() + v.square())?;
        let grown = of(sum.pow(-self.power).build(cx.g)?);
        let gradient = of(v.gradient) + 2.0 * self.shrinkage * w.clone();
        let moved = (grown.clone() - before.pow(-self.power)) / rate.clone() * w;
        let linear = cx.slot("linear", Some(v.index))? + (gradient - moved);
        let linear = cx.set("linear", Some(v.index), linear)?;
        let quadratic = grown / rate + 2.0 * l2;
        let clipped = linear.clone().min(self.l1).max(-self.l1);
        Ok((clipped - linear) / quadratic)
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("learning_rate_power", Json::Float(self.power)),
            ("initial_accumulator_value", Json::Float(self.initial)),
            ("l1_regularization_strength", Json::Float(self.l1)),
            ("l2_regularization_strength", Json::Float(self.l2)),
            ("l2_shrinkage_regularization_strength", Json::Float(self.shrinkage)),
            ("beta", Json::Float(self.beta)),
        ]
    }
}
