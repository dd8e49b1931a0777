//! Adam, and AdamW, which differs in its default decay only.

use std::sync::Arc;

use intwain_ir::DType;
use intwain_ir::ops::TypeError;

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::read::epsilon;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Adam {
    beta_1: f64,
    beta_2: f64,
    epsilon: f64,
    amsgrad: bool,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(Adam {
        beta_1: fields.f64_or("beta_1", 0.9)?,
        beta_2: fields.f64_or("beta_2", 0.999)?,
        epsilon: epsilon(fields, 1e-7)?,
        amsgrad: fields.bool_or("amsgrad", false)?,
    }))
}

/// Moments of a gradient.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) beta_1: f64,
    pub(super) beta_2: f64,
}

impl Moments {
    /// Updates first and second moment.
    pub(super) fn update(self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<(Formula, Formula), TypeError> {
        let m = cx.slot("momentum", Some(v.index))?;
        let m = cx.set("momentum", Some(v.index), m.clone() + (of(v.gradient) - m) * (1.0 - self.beta_1))?;
        let s = cx.slot("velocity", Some(v.index))?;
        let s = cx.set("velocity", Some(v.index), s.clone() + (v.square() - s) * (1.0 - self.beta_2))?;
        Ok((m, s))
    }

    /// This rate, corrected for moments that began at 0.
    pub(super) fn corrected(self, cx: &mut Update<'_>, rate: Formula, dtype: DType) -> Result<Formula, TypeError> {
        let (one, two) = (cx.power(dtype, self.beta_1)?, cx.power(dtype, self.beta_2)?);
        (rate * (1.0 - two).sqrt() / (1.0 - one)).build(cx.g).map(of)
    }
}

impl Rule for Adam {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        keep.each(scope, &[("momentum", Initial::Filled(0.0)), ("velocity", Initial::Filled(0.0))]);
        if self.amsgrad {
            keep.each(scope, &[("velocity_hat", Initial::Filled(0.0))]);
        }
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let moments = Moments { beta_1: self.beta_1, beta_2: self.beta_2 };
        let rate = cx.rate(v.ty.dtype);
        let alpha = moments.corrected(cx, rate, v.ty.dtype)?;
        let (m, mut s) = moments.update(cx, v)?;
        if self.amsgrad {
            let greatest = cx.slot("velocity_hat", Some(v.index))?;
            s = cx.set("velocity_hat", Some(v.index), greatest.max(s))?;
        }
        Ok(of(v.value) - m * alpha / (s.sqrt() + self.epsilon))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("beta_1", Json::Float(self.beta_1)),
            ("beta_2", Json::Float(self.beta_2)),
            ("epsilon", Json::Float(self.epsilon)),
            ("amsgrad", Json::Bool(self.amsgrad)),
        ]
    }
}
