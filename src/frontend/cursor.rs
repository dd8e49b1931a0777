//! Reading a configuration without losing a key.
//!
//! [`At`] is a value that knows its path. [`Fields`] is an object that remembers which of its keys were asked for: what
//! nobody asked for is an error when the reading is [finished](Fields::finish), with the closest accepted key beside it.

use std::cell::RefCell;
use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::error::{ImportError, ImportErrorKind, JsonPath};
use super::json::Json;
use super::names::nearest;

/// No extent, unit count or padding of a model is larger.
const MAX_SIZE: usize = 1 << 29;

/// A value, its path and the layer it belongs to.
#[derive(Clone, Debug)]
pub struct At<'j> {
    /// The value.
    pub json: &'j Json,
    /// Where it stands.
    pub path: JsonPath,
    /// The layer's qualified name, for messages.
    pub layer: Option<String>,
}

impl<'j> At<'j> {
    /// The root of a document.
    pub fn root(json: &'j Json) -> At<'j> {
        At { json, path: JsonPath::root(), layer: None }
    }

    /// The same value as part of a layer.
    pub fn in_layer(&self, layer: &str) -> At<'j> {
        At { layer: Some(layer.to_string()), ..self.clone() }
    }

    /// A problem of this value.
    pub fn error(&self, kind: ImportErrorKind) -> ImportError {
        ImportError { path: self.path.clone(), layer: self.layer.clone(), kind: Box::new(kind) }
    }

    /// The value has another type than wanted.
    pub fn expected(&self, expected: &'static str) -> ImportError {
        self.error(ImportErrorKind::WrongType { found: self.json.to_string(), expected })
    }

    /// The value is none of those accepted.
    pub fn accepted(&self, accepted: &[&str]) -> ImportError {
        let near = self.json.as_str().and_then(|s| nearest(s, accepted.iter().copied())).map(str::to_string);
        self.error(ImportErrorKind::Value {
            found: self.json.to_string(),
            accepted: accepted.join(", "),
            nearest: near,
        })
    }

    /// The value stands for something that is not there yet.
    pub fn unsupported(&self, what: impl Into<String>) -> ImportError {
        self.error(ImportErrorKind::Unsupported { what: what.into(), remedy: None })
    }

    /// Whether this is `null`.
    pub fn is_null(&self) -> bool {
        *self.json == Json::Null
    }

    /// A boolean; Keras 1 and some exporters write 0 and 1.
    pub fn bool(&self) -> Result<bool, ImportError> {
        match self.json {
            Json::Bool(b) => Ok(*b),
            Json::Int(0) => Ok(false),
            Json::Int(1) => Ok(true),
            _ => Err(self.expected("true or false")),
        }
    }

    /// An integer.
    pub fn int(&self) -> Result<i64, ImportError> {
        self.json.as_int().ok_or_else(|| self.expected("an integer"))
    }

    /// An integer that is not negative. Bounded, so that sizes can be multiplied without care.
    pub fn usize(&self) -> Result<usize, ImportError> {
        let found = self.json.as_int().and_then(|i| usize::try_from(i).ok()).filter(|&n| n <= MAX_SIZE);
        found.ok_or_else(|| self.expected("an integer from 0 to 2^29"))
    }

    /// An integer of at least 1, bounded too.
    pub fn positive(&self) -> Result<usize, ImportError> {
        self.usize().ok().filter(|&n| n > 0).ok_or_else(|| self.expected("an integer from 1 to 2^29"))
    }

    /// A finite number.
    pub fn f64(&self) -> Result<f64, ImportError> {
        self.any_f64().ok().filter(|x| x.is_finite()).ok_or_else(|| self.expected("a finite number"))
    }

    /// A number that may be NaN or infinite.
    pub fn any_f64(&self) -> Result<f64, ImportError> {
        match self.json {
            Json::Int(i) => Ok(*i as f64),
            Json::Float(x) => Ok(*x),
            _ => Err(self.expected("a number")),
        }
    }

    /// A string.
    pub fn str(&self) -> Result<&'j str, ImportError> {
        self.json.as_str().ok_or_else(|| self.expected("a string"))
    }

    /// The elements of an array.
    pub fn array(&self) -> Result<Vec<At<'j>>, ImportError> {
        let items = self.json.as_array().ok_or_else(|| self.expected("a list"))?;
        let each = items.iter().enumerate();
        Ok(each.map(|(i, json)| At { json, path: self.path.index(i), layer: self.layer.clone() }).collect())
    }

    /// The elements of an array, or the value itself as the only one: `3` and `[3]` mean the same in many places.
    pub fn one_or_many(&self) -> Vec<At<'j>> {
        self.array().unwrap_or_else(|_| vec![self.clone()])
    }

    /// The value under `key`, where this is an object that has it.
    pub fn get(&self, key: &str) -> Option<At<'j>> {
        let json = self.json.get(key)?;
        Some(At { json, path: self.path.key(key), layer: self.layer.clone() })
    }

    /// The value under `key`.
    pub fn require(&self, key: &str) -> Result<At<'j>, ImportError> {
        self.get(key).ok_or_else(|| self.error(ImportErrorKind::MissingKey { key: key.to_string() }))
    }

    /// The entries of an object.
    pub fn entries(&self) -> Result<Vec<(&'j str, At<'j>)>, ImportError> {
        let map = self.object()?;
        let each = map.iter();
        let at = |key: &str, json| At { json, path: self.path.key(key), layer: self.layer.clone() };
        Ok(each.map(|(key, json)| (key.as_str(), at(key, json))).collect())
    }

    fn object(&self) -> Result<&'j IndexMap<String, Json>, ImportError> {
        match self.json {
            Json::Object(map) => Ok(map),
            _ => Err(self.expected("an object")),
        }
    }

    /// An object to be read key by key.
    pub fn fields(&self) -> Result<Fields<'j>, ImportError> {
        Ok(Fields { map: self.object()?, at: self.clone(), asked: RefCell::default() })
    }
}

/// An object that remembers what was asked of it.
#[derive(Debug)]
pub struct Fields<'j> {
    map: &'j IndexMap<String, Json>,
    at: At<'j>,
    asked: RefCell<BTreeSet<String>>,
}

impl<'j> Fields<'j> {
    /// The object itself.
    pub fn at(&self) -> &At<'j> {
        &self.at
    }

    /// The value under `key`, if any.
    pub fn get(&self, key: &str) -> Option<At<'j>> {
        self.asked.borrow_mut().insert(key.to_string());
        let json = self.map.get(key)?;
        Some(At { json, path: self.at.path.key(key), layer: self.at.layer.clone() })
    }

    /// The value under `key`, where it is there and not `null`.
    pub fn opt(&self, key: &str) -> Option<At<'j>> {
        self.get(key).filter(|at| !at.is_null())
    }

    /// The first of several spellings that is there and not `null`. All count as asked for.
    pub fn opt_any(&self, keys: &[&str]) -> Option<At<'j>> {
        keys.iter().map(|key| self.opt(key)).fold(None, |first, this| first.or(this))
    }

    /// The value under `key`.
    pub fn require(&self, key: &str) -> Result<At<'j>, ImportError> {
        self.get(key).ok_or_else(|| self.at.error(ImportErrorKind::MissingKey { key: key.to_string() }))
    }

    /// A boolean with a default.
    pub fn bool_or(&self, key: &str, default: bool) -> Result<bool, ImportError> {
        self.opt(key).map_or(Ok(default), |at| at.bool())
    }

    /// A count with a default.
    pub fn positive_or(&self, key: &str, default: usize) -> Result<usize, ImportError> {
        self.opt(key).map_or(Ok(default), |at| at.positive())
    }

    /// A size with a default.
    pub fn usize_or(&self, key: &str, default: usize) -> Result<usize, ImportError> {
        self.opt(key).map_or(Ok(default), |at| at.usize())
    }

    /// An integer with a default.
    pub fn int_or(&self, key: &str, default: i64) -> Result<i64, ImportError> {
        self.opt(key).map_or(Ok(default), |at| at.int())
    }

    /// A finite number with a default.
    pub fn f64_or(&self, key: &str, default: f64) -> Result<f64, ImportError> {
        self.opt(key).map_or(Ok(default), |at| at.f64())
    }

    /// One of a few strings, by its index; the first is the default.
    pub fn choice(&self, key: &str, accepted: &[&str]) -> Result<usize, ImportError> {
        let Some(at) = self.opt(key) else { return Ok(0) };
        let found = at.str()?;
        accepted.iter().position(|a| *a == found).ok_or_else(|| at.accepted(accepted))
    }

    /// Keys that do not alter what the layer computes.
    pub fn irrelevant(&self, keys: &[&str]) {
        self.asked.borrow_mut().extend(keys.iter().map(|k| k.to_string()));
    }

    /// A key that may only have one of these values, since the rest of what it can say is not there yet.
    pub fn neutral(&self, key: &str, values: &[Json]) -> Result<(), ImportError> {
        match self.get(key) {
            Some(at) if !values.contains(at.json) && !at.is_null() => {
                Err(at.unsupported(format!("`{key}`: {}", at.json)))
            }
            _ => Ok(()),
        }
    }

    /// The keys nobody asked for, each as a problem.
    pub fn finish(&self) -> Vec<ImportError> {
        let asked = self.asked.borrow();
        let unknown = self.map.keys().filter(|key| !asked.contains(*key));
        let problem = |key: &String| {
            let near = nearest(key, asked.iter().map(String::as_str)).map(str::to_string);
            ImportError {
                path: self.at.path.key(key),
                layer: self.at.layer.clone(),
                kind: Box::new(ImportErrorKind::UnknownKey { key: key.clone(), nearest: near }),
            }
        };
        unknown.map(problem).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_nobody_asked_for_are_named_with_the_closest() {
        let json = Json::parse(r#"{"units": 3, "activaton": "relu", "use_bias": NaN}"#).unwrap();
        let fields = At::root(&json).in_layer("dense").fields().unwrap();
        assert_eq!(fields.require("units").unwrap().positive().unwrap(), 3);
        assert!(fields.opt("activation").is_none());
        let error = fields.get("use_bias").unwrap().f64().unwrap_err().to_string();
        assert_eq!(error, "$.use_bias \"dense\": is NaN; expected a finite number");
        let problems = fields.finish();
        assert_eq!(problems.len(), 1);
        assert_eq!(problems[0].to_string(), "$.activaton \"dense\": the key `activaton` is not known here");
        assert_eq!(problems[0].help().as_deref(), Some("did you mean `activation`?"));
    }
}
