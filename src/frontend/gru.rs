//! Which of its two forms a GRU has whose file does not say.
//!
//! Files from before Keras 2.1.3 have no `reset_after`, since there was one form only; tf-keras reads them as if they had
//! the other one, which came later. The weights tell: the bias of the later form has two rows.

use super::file::Generation;
use super::json::Json;

/// The same architecture with `reset_after: true` wherever a GRU of Keras 2 does not say; `None` where all do.
pub(crate) fn with_reset_after(architecture: &Json, generation: Generation) -> Option<Json> {
    match generation {
        Generation::Two => {
            let mut json = architecture.clone();
            let mut silent = false;
            fill(&mut json, &mut silent);
            silent.then_some(json)
        }
        Generation::One | Generation::Three => None,
    }
}

fn fill(json: &mut Json, silent: &mut bool) {
    match json {
        Json::Object(map) => {
            let gru = matches!(map.get("class_name").and_then(Json::as_str), Some("GRU" | "GRUCell"));
            if let Some(Json::Object(config)) = map.get_mut("config").filter(|_| gru)
                && !config.contains_key("reset_after")
            {
                config.insert("reset_after".to_string(), Json::Bool(true));
                *silent = true;
            }
            map.values_mut().for_each(|value| fill(value, silent));
        }
        Json::Array(items) => items.iter_mut().for_each(|item| fill(item, silent)),
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => {}
    }
}
