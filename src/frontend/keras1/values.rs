//! Initializers, regularisers, constraints and sizes as Keras 1 writes them.

use super::super::cursor::At;
use super::super::error::{ImportError, ImportErrorKind};
use super::super::json::Json;
use super::{Config, Translator, data_format};

/// An object `{"class_name": …, "config": …}`.
pub(super) fn object<const N: usize>(class: &str, config: [(&str, Json); N]) -> Json {
    let config = Json::Object(config.into_iter().map(|(key, value)| (key.to_string(), value)).collect());
    let class = ("class_name".to_string(), Json::String(class.to_string()));
    Json::Object([class, ("config".to_string(), config)].into_iter().collect())
}

pub(super) fn text(value: &str) -> Json {
    Json::String(value.to_string())
}

/// The normal distributions of Keras 1 are not truncated, and its orthogonal matrices are 1.1 times as long.
fn initializer(at: &At<'_>) -> Result<Json, ImportError> {
    if at.is_null() {
        return Ok(Json::Null);
    }
    let normal = |scale: f64, mode: &str| {
        let distribution = ("distribution", text("untruncated_normal"));
        object("VarianceScaling", [("scale", Json::Float(scale)), ("mode", text(mode)), distribution])
    };
    Ok(match at.str()? {
        "glorot_normal" => normal(1.0, "fan_avg"),
        "he_normal" => normal(2.0, "fan_in"),
        "orthogonal" => object("Orthogonal", [("gain", Json::Float(1.1))]),
        name @ ("uniform" | "normal" | "lecun_uniform" | "glorot_uniform" | "he_uniform" | "identity" | "zero"
        | "one") => text(name),
        "<lambda>" => {
            return Err(at.error(ImportErrorKind::Unsupported {
                what: "an initializer that is the model's own code".to_string(),
                remedy: Some("write the name of one of Keras in its place; where weights are given it alters nothing"),
            }));
        }
        _ => {
            return Err(at.accepted(&[
                "uniform",
                "normal",
                "lecun_uniform",
                "glorot_uniform",
                "glorot_normal",
                "he_uniform",
                "he_normal",
                "orthogonal",
                "identity",
                "zero",
                "one",
            ]));
        }
    })
}

/// A class of Keras 2 and its arguments in both languages.
type Named = (&'static str, &'static [(&'static str, &'static str)]);

/// A regulariser or constraint: `{"name": its class, its arguments}`.
fn named(at: &At<'_>, arguments: fn(&str) -> Option<Named>) -> Result<Json, ImportError> {
    if at.is_null() {
        return Ok(Json::Null);
    }
    let fields = at.fields()?;
    let class = fields.require("name")?;
    let Some((new, pairs)) = arguments(class.str()?) else {
        return Err(class.unsupported(format!("`{}` of Keras 1", class.json)));
    };
    let mut config = indexmap::IndexMap::new();
    for (old, new) in pairs {
        if let Some(value) = fields.opt(old) {
            config.insert(new.to_string(), value.json.clone());
        }
    }
    if let Some(unknown) = fields.finish().into_iter().next() {
        return Err(unknown);
    }
    let class = ("class_name".to_string(), text(new));
    Ok(Json::Object([class, ("config".to_string(), Json::Object(config))].into_iter().collect()))
}

/// A regulariser as Keras 2 writes it.
pub(in crate::frontend) fn regularizer(at: &At<'_>) -> Result<Json, ImportError> {
    named(at, |name| match name {
        "WeightRegularizer" | "L1L2Regularizer" | "ActivityRegularizer" | "L1L2" => {
            Some(("L1L2", &[("l1", "l1"), ("l2", "l2")]))
        }
        _ => None,
    })
}

/// A constraint as Keras 2 writes it.
pub(in crate::frontend) fn constraint(at: &At<'_>) -> Result<Json, ImportError> {
    named(at, |name| match name {
        "MaxNorm" => Some(("MaxNorm", &[("m", "max_value"), ("axis", "axis")])),
        "NonNeg" => Some(("NonNeg", &[])),
        "UnitNorm" => Some(("UnitNorm", &[("axis", "axis")])),
        "MinMaxNorm" => {
            Some(("MinMaxNorm", &[("low", "min_value"), ("high", "max_value"), ("rate", "rate"), ("axis", "axis")]))
        }
        _ => None,
    })
}

impl Config<'_> {
    fn with(
        &mut self,
        (old, new): (&str, &str),
        translate: fn(&At<'_>) -> Result<Json, ImportError>,
    ) -> Result<(), ImportError> {
        if let Some(at) = self.fields.get(old) {
            let value = translate(&at)?;
            self.put(new, value);
        }
        Ok(())
    }

    pub(super) fn initializer(&mut self, old: &str, new: &str) -> Result<(), ImportError> {
        self.with((old, new), initializer)
    }

    /// The regularisers and constraints of a layer, by their first words in both languages.
    pub(super) fn training(&mut self, names: &[(&str, &str)]) -> Result<(), ImportError> {
        for (old, new) in names {
            self.with((&format!("{old}_regularizer"), &format!("{new}_regularizer")), regularizer)?;
            self.with((&format!("{old}_constraint"), &format!("{new}_constraint")), constraint)?;
        }
        self.with(("activity_regularizer", "activity_regularizer"), regularizer)
    }

    /// `border_mode`.
    pub(super) fn padding(&mut self) -> Result<(), ImportError> {
        let Some(at) = self.fields.opt("border_mode") else { return Ok(()) };
        match at.str()? {
            "valid" | "same" => self.put("padding", at.json.clone()),
            // Only Theano has it, and no later Keras.
            "full" => return Err(at.unsupported("`border_mode` \"full\"")),
            _ => return Err(at.accepted(&["valid", "same"])),
        }
        Ok(())
    }

    /// `dim_ordering` of a layer that writes it.
    pub(super) fn format(&mut self, translator: &Translator) -> Result<(), ImportError> {
        let format = match self.fields.opt("dim_ordering") {
            Some(at) => match data_format(at.str()?) {
                Some(format) => text(format),
                None => return Err(at.accepted(&["th", "tf"])),
            },
            None => translator.unsaid_format(self.fields.at())?,
        };
        self.put("data_format", format);
        Ok(())
    }

    /// Several keys with one number each as one list.
    pub(super) fn list(&mut self, old: &[&str], new: &str) -> Result<(), ImportError> {
        let each = old.iter().map(|key| Ok(self.fields.require(key)?.json.clone()));
        let list = each.collect::<Result<Vec<_>, ImportError>>()?;
        self.put(new, Json::Array(list));
        Ok(())
    }

    /// What is added to or cut from the edges of `n` dimensions: numbers, or an object with a key for each edge.
    pub(super) fn edges(&mut self, key: &str, names: &[&str]) -> Result<(), ImportError> {
        let Some(at) = self.fields.opt(key) else { return Ok(()) };
        let edges: Vec<Json> = match at.json {
            Json::Object(_) => {
                let fields = at.fields()?;
                let each = names.iter().map(|name| Ok(Json::Int(fields.int_or(name, 0)?)));
                let each = each.collect::<Result<_, ImportError>>()?;
                match fields.finish().into_iter().next() {
                    Some(unknown) => return Err(unknown),
                    None => each,
                }
            }
            Json::Array(items) if items.len() == names.len() => items.clone(),
            _ => {
                self.put(key, at.json.clone());
                return Ok(());
            }
        };
        let pairs: Vec<Json> = edges.chunks(2).map(|pair| Json::Array(pair.to_vec())).collect();
        self.put(key, if names.len() == 2 { Json::Array(edges) } else { Json::Array(pairs) });
        Ok(())
    }
}
