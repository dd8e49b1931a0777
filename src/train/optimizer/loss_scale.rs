//! Losses that are multiplied with a number so that gradients do not vanish in narrow types; it follows from how often
//! they overflow.

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Compare;
use intwain_ir::{DType, Graph, Shape, Tensor, Type, Value};

use super::clip::all_finite;
use super::formula::of;
use super::keep::Keep;
use super::lookups::each;
use super::step::Constrain;
use super::{Given, Initial, Inner, Slot, Updated};
use crate::frontend::{Fields, ImportError, Json};

/// Slots that stand before those of the optimizer inside.
pub(super) const OWN: usize = 4;

/// How the scale changes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LossScale {
    name: String,
    initial: f64,
    /// Steps without overflow after which it is doubled; none where it does not change.
    growth: Option<usize>,
}

impl LossScale {
    pub(super) fn read(fields: &Fields<'_>) -> Result<LossScale, ImportError> {
        let name = fields.opt("name").map(|at| at.str()).transpose()?.unwrap_or("loss_scale_optimizer").to_string();
        let initial = fields.f64_or("initial_scale", 32768.0)?;
        let growth = fields.positive_or("dynamic_growth_steps", 2000)?;
        for key in ["weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "ema_overwrite_frequency"] {
            fields.neutral(key, &[])?;
        }
        for key in ["loss_scale_factor", "gradient_accumulation_steps"] {
            fields.neutral(key, &[])?;
        }
        fields.neutral("use_ema", &[Json::Bool(false)])?;
        fields.neutral("ema_momentum", &[Json::Float(0.99)])?;
        let dynamic = fields.bool_or("dynamic", true)?;
        Ok(LossScale { name, initial, growth: dynamic.then_some(growth) })
    }

    /// The scale where it changes, else the factor.
    pub(super) fn fixed(self) -> (Option<LossScale>, Option<f64>) {
        if self.growth.is_some() { (Some(self), None) } else { (None, Some(self.initial)) }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn keep(&self, keep: &mut Keep<'_>, float: DType) {
        let scalar = |dtype: DType| Type::new(dtype, Shape::default());
        let scope = self.name.as_str();
        let zero = Initial::Filled(0.0);
        // Keras makes a counter and a rate of its own, which it never uses.
        keep.once(scope, "outer_iteration", scalar(DType::I64), zero.clone());
        keep.once(scope, "outer_learning_rate", scalar(float), zero.clone());
        keep.once(scope, "step_counter", scalar(DType::I64), zero);
        let initial = Tensor::from_f64(DType::F32, Shape::default(), &[self.initial]);
        keep.once(scope, "dynamic_scale", scalar(DType::F32), Initial::Value(initial));
    }

    pub(super) fn config(&self, inner: Json) -> Vec<(&'static str, Json)> {
        vec![
            ("name", Json::String(self.name.clone())),
            ("inner_optimizer", inner),
            ("initial_scale", Json::Float(self.initial)),
            ("dynamic_growth_steps", Json::Int(self.growth.unwrap_or(2000) as i64)),
        ]
    }

    /// A step of the optimizer inside where all gradients are finite, else none.
    pub(super) fn step(
        &self,
        inner: &Inner,
        g: &mut Graph,
        given: &Given<'_>,
        listed: &[Slot],
        constrain: Constrain<'_>,
    ) -> Result<Updated, TypeError> {
        let (own, kept) = given.slots.split_at(OWN.min(given.slots.len()));
        let [outer, rate, counter, scale] = *own else {
            return Err(TypeError::new("the scale's slots are missing").of("optimizer"));
        };
        let gradients: Vec<Value> = given.gradients.iter().flatten().copied().collect();
        let finite = all_finite(g, &gradients)?;
        let mut unscaled = Vec::new();
        for gradient in given.gradients {
            let unscale = |g: &mut Graph, x| (of(x) / of(scale).cast(g.ty(x).dtype)).build(g);
            unscaled.push(gradient.map(|x| each(g, x, &unscale)).transpose()?);
        }
        let given = Given { gradients: &unscaled, slots: kept, ..*given };
        let mut updated = inner.step(g, &given, &listed[OWN..], constrain)?;
        let pairs = updated.variables.iter_mut().zip(given.variables).chain(updated.slots.iter_mut().zip(kept));
        for (next, before) in pairs.filter(|(next, before)| next != before) {
            *next = of(finite).choose(*next, *before).build(g)?;
        }
        let last = self.growth.unwrap_or(usize::MAX) as f64 - 1.0;
        let full = of(of(counter).is(Compare::Eq, last).build(g)?);
        let counted = full.clone().choose(0.0, of(counter) + 1.0);
        let counter = of(finite).choose(counted, 0.0).build(g)?;
        let grown = full.choose(of(scale) * 2.0, of(scale));
        let scale = of(finite).choose(grown, of(scale) * 0.5).build(g)?;
        updated.slots.splice(0..0, [outer, rate, counter, scale]);
        Ok(updated)
    }
}
