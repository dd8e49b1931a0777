//! Layers that are parts of several models.
//!
//! Archives of Keras 3 hold the configuration of such a layer at every place, from the second on with a number and at the
//! first not always, and its weights once, where it comes first. (tf.keras numbers every object of a document, which says
//! nothing.) Other files of Keras 3 have no numbers: the layer is several there, with weights of their own.

use super::cursor::At;
use super::error::ImportError;
use super::json::Json;
use super::model::join;

/// The layers of a document that were read so far.
#[derive(Debug, Default)]
pub(super) struct Objects {
    met: Vec<Met>,
}

/// A layer, by what tells whether another one is the same object.
#[derive(Debug)]
struct Met {
    name: String,
    /// Its class and configuration without the numbers of objects.
    is: Json,
    path: String,
    /// The path of the layer that it is, its own where it is the first.
    first: String,
    id: Option<i64>,
}

impl Objects {
    /// The path of the earlier layer that this one of the model at `outer` is; `None` where it is the first.
    pub(super) fn same_as(
        &mut self,
        at: &At<'_>,
        class: &str,
        name: &str,
        outer: &str,
    ) -> Result<Option<String>, ImportError> {
        let id = at.get("shared_object_id").and_then(|id| id.json.as_int());
        let is = at.get("config").map(|config| unnumbered(config.json)).unwrap_or(Json::Null);
        let is = Json::Array(vec![Json::String(class.to_string()), is]);
        let path = join(outer, name);
        let first = match id {
            Some(id) => self.first_of(id, name, &is, outer, at)?,
            None => None,
        };
        self.met.push(Met {
            name: name.to_string(),
            is,
            first: first.clone().unwrap_or_else(|| path.clone()),
            path,
            id,
        });
        Ok(first)
    }

    /// Where the object of this number stands first; `None` where it does so here.
    fn first_of(
        &self,
        id: i64,
        name: &str,
        is: &Json,
        outer: &str,
        at: &At<'_>,
    ) -> Result<Option<String>, ImportError> {
        if let Some(met) = self.met.iter().find(|met| met.id == Some(id)) {
            return Ok(Some(met.first.clone()));
        }
        let alike: Vec<&Met> = self.met.iter().filter(|m| m.id.is_none() && m.name == name && m.is == *is).collect();
        // A part of a model that stands here again is that model's.
        let model = self.met.iter().find(|met| met.path == outer).map(|met| join(&met.first, name));
        match (alike.as_slice(), model) {
            (_, Some(path)) if alike.iter().any(|met| met.path == path) => Ok(Some(path)),
            ([], _) => Ok(None),
            ([only], _) => Ok(Some(only.first.clone())),
            _ => Err(at.unsupported("a layer in two models of which several are called and configured alike")),
        }
    }
}

/// The same without the numbers of objects.
fn unnumbered(json: &Json) -> Json {
    match json {
        Json::Object(map) => {
            let kept = map.iter().filter(|(key, _)| *key != "shared_object_id");
            Json::Object(kept.map(|(key, value)| (key.clone(), unnumbered(value))).collect())
        }
        Json::Array(items) => Json::Array(items.iter().map(unnumbered).collect()),
        Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) => json.clone(),
    }
}
