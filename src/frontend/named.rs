//! Objects of Keras that are a class and its arguments: regularisers, constraints.

use std::sync::LazyLock;

use super::cursor::{At, Fields};
use super::error::{ImportError, ImportErrorKind};
use super::json::Json;

/// A class of Keras and its arguments: written as a name alone, or as an object with `class_name` and `config`.
#[derive(Debug)]
pub(super) struct Named<'j> {
    /// The class.
    pub(super) class: At<'j>,
    /// Its arguments; none where a name stands alone.
    pub(super) config: Fields<'j>,
    /// What stands around them.
    around: Option<Fields<'j>>,
}

impl<'j> Named<'j> {
    /// Reads a name or an object. A class of the model's author is an error: its code is never run.
    pub(super) fn read(at: &At<'j>) -> Result<Named<'j>, ImportError> {
        static NOTHING: LazyLock<Json> = LazyLock::new(|| Json::Object(indexmap::IndexMap::new()));
        if at.json.as_str().is_some() {
            let nothing = At { json: &NOTHING, path: at.path.clone(), layer: at.layer.clone() };
            return Ok(Named { class: at.clone(), config: nothing.fields()?, around: None });
        }
        let around = at.fields()?;
        around.irrelevant(&["module", "shared_object_id", "build_config"]);
        let class = around.require("class_name")?;
        let names = [Some(class.str()?), around.opt("registered_name").map(|name| name.str()).transpose()?];
        let own = |name: &&str| name.split_once('>').is_some_and(|(package, _)| !matches!(package, "keras" | "Keras"));
        if let Some(custom) = names.into_iter().flatten().find(own) {
            return Err(class.error(ImportErrorKind::Custom { class: custom.to_string() }));
        }
        let config = match around.opt("config") {
            Some(config) => config,
            None => At { json: &NOTHING, path: at.path.clone(), layer: at.layer.clone() },
        };
        Ok(Named { class, config: config.fields()?, around: Some(around) })
    }

    /// Whether a name stands alone.
    pub(super) fn is_bare(&self) -> bool {
        self.around.is_none()
    }

    /// The first key that nobody asked for, as an error.
    pub(super) fn finish(&self) -> Result<(), ImportError> {
        let around = self.around.iter().flat_map(Fields::finish);
        around.chain(self.config.finish()).next().map_or(Ok(()), Err)
    }
}
