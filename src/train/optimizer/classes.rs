//! The optimizers: a row each.

use std::fmt;
use std::sync::Arc;

use intwain_ir::Type;
use intwain_ir::ops::TypeError;

use super::formula::Formula;
use super::keep::Keep;
use super::read::Common;
use super::step::{Of, Update};
use super::{
    adadelta, adafactor, adagrad, adam, adamax, ftrl, lamb, lion, muon, nadam, rmsprop, schedule_free_adamw, sgd,
};
use crate::frontend::{Fields, ImportError, Json};

/// What distinguishes one optimizer from the others.
pub(super) trait Rule: fmt::Debug + Send + Sync {
    /// Lists what it keeps, behind what all optimizers keep. Roles and order are Keras's.
    fn keep(&self, scope: &str, keep: &mut Keep<'_>);

    /// What is done once in an update, before the variables.
    fn begin(&self, cx: &mut Update<'_>) -> Result<(), TypeError> {
        let _ = cx;
        Ok(())
    }

    /// A variable after an update.
    fn update(&self, cx: &mut Update<'_>, of: &Of<'_>) -> Result<Formula, TypeError>;

    /// The part of a variable, times the rate, by which it decays.
    fn decay(&self, common: &Common, path: &str, ty: &Type) -> Option<f64> {
        let _ = (path, ty);
        common.weight_decay
    }

    /// Its keys of a configuration.
    fn config(&self) -> Vec<(&'static str, Json)>;
}

/// A class of optimizers.
#[derive(Debug)]
pub(super) struct Class {
    /// Keras's class.
    pub(super) name: &'static str,
    /// The name of an optimizer that was given none.
    pub(super) default_name: &'static str,
    /// The rate of one that was given none.
    pub(super) rate: f64,
    /// The decay of one that was given none.
    pub(super) weight_decay: WeightDecay,
    /// Reads the keys that are its own.
    pub(super) read: fn(&Fields<'_>) -> Result<Arc<dyn Rule>, ImportError>,
}

/// Whether weights decay where a configuration does not say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WeightDecay {
    /// They do not.
    No,
    /// By this part; a configuration may turn it off.
    By(f64),
    /// By this part; a configuration may not turn it off.
    Always(f64),
}

const fn class(
    name: &'static str,
    default_name: &'static str,
    rate: f64,
    weight_decay: WeightDecay,
    read: fn(&Fields<'_>) -> Result<Arc<dyn Rule>, ImportError>,
) -> Class {
    Class { name, default_name, rate, weight_decay, read }
}

/// All of them.
pub(super) const CLASSES: &[Class] = &[
    class("Adadelta", "adadelta", 0.001, WeightDecay::No, adadelta::read),
    class("Adafactor", "adafactor", 0.001, WeightDecay::No, adafactor::read),
    class("Adagrad", "adagrad", 0.001, WeightDecay::No, adagrad::read),
    class("Adam", "adam", 0.001, WeightDecay::No, adam::read),
    class("Adamax", "adamax", 0.001, WeightDecay::No, adamax::read),
    class("AdamW", "adam_w", 0.001, WeightDecay::Always(0.004), adam::read),
    class("Ftrl", "ftrl", 0.001, WeightDecay::No, ftrl::read),
    class("Lamb", "lamb", 0.001, WeightDecay::No, lamb::read),
    class("Lion", "lion", 0.001, WeightDecay::No, lion::read),
    class("Muon", "muon", 0.001, WeightDecay::By(0.004), muon::read),
    class("Nadam", "nadam", 0.001, WeightDecay::No, nadam::read),
    class("RMSprop", "rm_sprop", 0.001, WeightDecay::No, rmsprop::read),
    class("ScheduleFreeAdamW", "schedule_free_adam_w", 0.0025, WeightDecay::No, schedule_free_adamw::read),
    class("SGD", "sgd", 0.01, WeightDecay::No, sgd::read),
];
