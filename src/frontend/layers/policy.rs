//! Dtype policies: the type a layer computes in and the type its variables are held in.
//!
//! A policy is a name (`float32`, `mixed_float16`) or an object that wraps one; a map gives the sublayers of a layer policies of
//! their own, by their paths.

use intwain_ir::DType;

use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::{ImportError, ImportErrorKind};
use crate::frontend::json::Json;

use super::build::element;

/// The types of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// What it computes in; floating inputs and variables are cast to it.
    pub(crate) compute: DType,
    /// What its variables are held in.
    pub(crate) variable: DType,
}

impl Policy {
    /// Computes in and holds one type.
    pub(crate) fn plain(dtype: DType) -> Policy {
        Policy { compute: dtype, variable: dtype }
    }

    /// The policy with floating types replaced.
    pub(super) fn in_float(self, float: Option<DType>) -> Policy {
        let of = |dtype: DType| float.filter(|_| dtype.is_float()).unwrap_or(dtype);
        Policy { compute: of(self.compute), variable: of(self.variable) }
    }

    fn named(name: &str) -> Option<Policy> {
        match name {
            "mixed_float16" => Some(Policy { compute: DType::F16, variable: DType::F32 }),
            "mixed_bfloat16" => Some(Policy { compute: DType::BF16, variable: DType::F32 }),
            // What TensorFlow 1 wrote where the type was that of the first input.
            "_infer" => Some(Policy::plain(DType::F32)),
            name => element(name).map(Policy::plain),
        }
    }
}

/// A layer's policy, and those of its sublayers where they differ.
#[derive(Clone, Debug)]
pub(crate) struct Policies {
    own: Policy,
    by_path: Vec<(String, Policy)>,
}

impl Policies {
    /// The policy under a layer's `dtype`; without one it is float32.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Policies, ImportError> {
        match fields.opt("dtype") {
            None => Ok(Policies { own: Policy::plain(DType::F32), by_path: Vec::new() }),
            Some(at) => Policies::at(&at),
        }
    }

    fn at(at: &At<'_>) -> Result<Policies, ImportError> {
        let class = at.json.get("class_name").and_then(Json::as_str);
        if class != Some("DTypePolicyMap") {
            return Ok(Policies { own: one(at)?, by_path: Vec::new() });
        }
        let config = at.require("config")?;
        let own = match config.get("default_policy").filter(|d| !d.is_null()) {
            Some(default) => one(&default)?,
            None => Policy::plain(DType::F32),
        };
        let mut by_path = Vec::new();
        if let Some(Json::Object(map)) = config.get("policy_map").map(|m| m.json) {
            let entries = config.require("policy_map")?;
            for path in map.keys() {
                let policy = entries.require(path)?;
                // Keras takes what is no exact path for a pattern.
                if !path.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '/' | '-' | ' ')) {
                    let what = format!("the pattern `{path}` in a map of dtype policies");
                    let remedy = Some("write the paths of the sublayers out");
                    return Err(policy.error(ImportErrorKind::Unsupported { what, remedy }));
                }
                by_path.push((path.clone(), one(&policy)?));
            }
        }
        Ok(Policies { own, by_path })
    }

    /// The layer's own policy.
    pub(crate) fn own(&self) -> Policy {
        self.own
    }

    /// Whether sublayers may have other policies.
    pub(super) fn is_map(&self) -> bool {
        !self.by_path.is_empty()
    }

    /// The policy of a layer by its qualified name. Keras counts paths from the innermost functional model, so a key may be
    /// the end of a qualified name.
    pub(super) fn of(&self, path: &str) -> Policy {
        let ends = |key: &str| path.strip_suffix(key).is_some_and(|before| before.is_empty() || before.ends_with('/'));
        self.by_path.iter().find(|(key, _)| ends(key)).map_or(self.own, |(_, policy)| *policy)
    }
}

/// One policy: its name, or an object with the name in its configuration.
fn one(at: &At<'_>) -> Result<Policy, ImportError> {
    let quantised = |at: &At<'_>, what: String| {
        at.error(ImportErrorKind::Unsupported {
            what,
            remedy: Some("save the model as it was before `quantize`, with its floating-point weights"),
        })
    };
    let name = match at.json {
        Json::Object(_) => {
            let class = at.require("class_name")?;
            let config = at.require("config")?;
            match class.str()? {
                // Keras 2.3 and older wrote the scale of losses beside the name; it is for training with an optimizer.
                "DTypePolicy" | "FloatDTypePolicy" | "Policy" | "PolicyV1" => match config.get("name") {
                    // Without a name it is the global policy.
                    Some(name) if name.is_null() => return Ok(Policy::plain(DType::F32)),
                    _ => config.require("name")?,
                },
                name @ ("QuantizedDTypePolicy"
                | "QuantizedFloat8DTypePolicy"
                | "Int4DTypePolicy"
                | "GPTQDTypePolicy"
                | "AWQDTypePolicy") => {
                    let mode = config.get("mode").and_then(|m| m.json.as_str()).unwrap_or("unnamed");
                    return Err(quantised(at, format!("the quantised dtype policy {name} of mode `{mode}`")));
                }
                _ => return Err(class.accepted(&["DTypePolicy", "Policy", "DTypePolicyMap"])),
            }
        }
        _ => at.clone(),
    };
    let text = name.str()?;
    if let Some(policy) = Policy::named(text) {
        return Ok(policy);
    }
    if ["int8", "int4", "float8", "gptq", "awq"].iter().any(|mode| text.starts_with(mode)) {
        return Err(quantised(&name, format!("the quantised dtype policy `{text}`")));
    }
    Err(name.unsupported(format!("the dtype policy {}", name.json)))
}
