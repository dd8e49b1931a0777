//! Calls of Keras 2 that say `training=True` or `training=False`, which holds whatever the model is run for. Keras 3 writes
//! the argument too and lets the model's own overrule it.

use super::cx::{Cx, Fail};
use super::inputs::{Inputs, Item};
use crate::frontend::error::ImportErrorKind;
use crate::frontend::file::Generation;
use crate::frontend::json::Json;

/// Whether layers behave as in training whatever the model is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Training {
    /// As the model is run.
    AsRun,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Training {
    /// In a call with these arguments; they count before what is around it.
    pub(super) fn inside(self, generation: Generation, inputs: &Inputs) -> Training {
        match inputs.kwargs.get("training") {
            _ if generation == Generation::Three => self,
            Some(Item::Const(Json::Bool(true) | Json::Int(1))) => Training::Always,
            Some(Item::Const(Json::Bool(false) | Json::Int(0))) => Training::Never,
            Some(_) | None => self,
        }
    }
}

/// Layers called random whose training is imported, or no other than inference.
const BUILT: [&str; 8] = [
    "RandomBrightness",
    "RandomContrast",
    "RandomCrop",
    "RandomFlip",
    "RandomFourierFeatures",
    "RandomRotation",
    "RandomTranslation",
    "RandomZoom",
];

/// Whether a layer with this configuration does something in training that is not imported.
pub(super) fn differs(class: &str, config: &Json) -> bool {
    let positive = |keys: &[&str]| {
        let number = |key: &&str| match config.get(key) {
            Some(Json::Float(x)) => *x > 0.0,
            Some(Json::Int(i)) => *i > 0,
            _ => false,
        };
        keys.iter().any(number)
    };
    match class {
        "AugMix" | "CutMix" | "Equalization" | "MixUp" | "RandAugment" | "Solarization" => true,
        _ if class.starts_with("Random") => !BUILT.contains(&class),
        _ => positive(&["dropout_W", "dropout_U"]),
    }
}

/// Why such a layer cannot be imported.
pub(super) fn refused(cx: &Cx, class: &str) -> Fail {
    let (what, remedy) = match cx.training {
        Training::Always => (
            format!("a call of {class} with `training=True`, which holds whatever the model is run for"),
            "call the layer without it, and save the model again",
        ),
        Training::AsRun | Training::Never => {
            (format!("what {class} does in training"), "apply it to the data, and train the model without it")
        }
    };
    Fail::Here(ImportErrorKind::Unsupported { what, remedy: Some(remedy) })
}
