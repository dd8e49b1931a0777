//! Adagrad: gradients over the root of the sum of all squares so far.

use std::sync::Arc;

use intwain_ir::ops::TypeError;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update, by_f32};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Adagrad {
    initial: f64,
    epsilon: f64,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    let initial = fields.f64_or("initial_accumulator_value", 0.1)?;
    Ok(Arc::new(Adagrad { initial, epsilon: epsilon(fields, 1e-7)? }))
}

impl Rule for Adagrad {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("accumulator", Initial::Filled(by_f32(self.initial)))]);
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let sum = cx.slot("accumulator", Some(v.index))? + v.square();
        let sum = cx.set("accumulator", Some(v.index), sum)?;
        Ok(of(v.value) - cx.rate(v.ty.dtype) * of(v.gradient) / (sum + self.epsilon).sqrt())
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![("initial_accumulator_value", Json::Float(self.initial)), ("epsilon", Json::Float(self.epsilon))]
    }
}
