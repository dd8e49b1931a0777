//! The rows of a call where the model's file says how many there are, or something is kept for each from call to call.

use super::Ask;
use crate::frontend::json::Json;
use crate::frontend::model::{KerasModel, Layer, LayerBody};

/// The rows of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallRows {
    /// Each input has what the file says.
    AsWritten,
    /// The file says that all inputs have so many, which is more than one.
    Fixed,
    /// All inputs have these, always: the model keeps something for each of its rows from call to call.
    Kept(usize),
    /// The model does so, but its file leaves the rows open or gives inputs different ones.
    Unknown,
}

pub(super) fn rows(model: &KerasModel, ask: Ask) -> CallRows {
    let specs = model.input_specs();
    let mut rows = specs.iter().map(|(_, spec)| spec.shape.as_ref().and_then(|s| s.first().copied().flatten()));
    if !model.layers.iter().any(keeps_state) {
        return match rows.next().flatten() {
            Some(first) if first > 1 && rows.all(|r| r == Some(first)) => CallRows::Fixed,
            Some(_) | None => CallRows::AsWritten,
        };
    }
    match (rows.next().flatten(), ask) {
        (Some(first), _) if !rows.all(|r| r == Some(first)) => CallRows::Unknown,
        (Some(first), Ask::AsIs) => CallRows::Kept(first),
        (Some(_), Ask::TwoRows) => CallRows::Kept(2),
        (None, _) => CallRows::Unknown,
    }
}

/// Whether a layer, or one inside it, says that it keeps its states.
pub(super) fn keeps_state(layer: &Layer) -> bool {
    fn says(json: &Json) -> bool {
        match json {
            Json::Object(map) => map.iter().any(|(k, v)| (k == "stateful" && *v == Json::Bool(true)) || says(v)),
            Json::Array(items) => items.iter().any(says),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => false,
        }
    }
    match &layer.body {
        LayerBody::Leaf(config) => says(config),
        LayerBody::Model(inner) => inner.layers.iter().any(keeps_state),
        LayerBody::Input(_) => false,
    }
}
