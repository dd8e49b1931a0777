//! Calls of Keras 2 that say `training=True`, which holds whatever the model is run for. Keras 3 writes the argument too and
//! lets the model's own overrule it.

use super::inputs::{Inputs, Item};
use crate::frontend::file::Generation;
use crate::frontend::json::Json;

/// Whether layers behave as in training whatever the model is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Training {
    /// As the model is run.
    AsRun,
    /// Always.
    Always,
}

impl Training {
    /// In a call with these arguments; they count before what is around it.
    pub(super) fn inside(self, generation: Generation, inputs: &Inputs) -> Training {
        match inputs.kwargs.get("training") {
            _ if generation == Generation::Three => self,
            Some(Item::Const(Json::Bool(true) | Json::Int(1))) => Training::Always,
            Some(Item::Const(Json::Bool(false) | Json::Int(0))) => Training::AsRun,
            Some(_) | None => self,
        }
    }
}

/// Whether a layer with this configuration behaves otherwise in training.
pub(super) fn tells(class: &str, config: &Json) -> bool {
    let positive = |keys: &[&str]| {
        let number = |key: &&str| match config.get(key) {
            Some(Json::Float(x)) => *x > 0.0,
            Some(Json::Int(i)) => *i > 0,
            _ => false,
        };
        keys.iter().any(number)
    };
    match class {
        "BatchNormalization" | "BatchNormalizationV1" | "SyncBatchNormalization" => {
            config.get("trainable") != Some(&Json::Bool(false))
        }
        "SpectralNormalization" => true,
        _ if class.starts_with("Random") => true,
        _ => positive(&["rate", "p", "stddev", "sigma", "dropout", "recurrent_dropout", "dropout_W", "dropout_U"]),
    }
}
