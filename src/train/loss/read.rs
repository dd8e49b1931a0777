//! A loss as Keras writes it: a name, or a document of class and configuration.

use std::sync::Arc;

use indexmap::IndexMap;
use intwain_ir::DType;

use super::Loss;
use super::function::Function;
use super::reduction::Reduction;
use super::table::{self, Row};
use crate::frontend::{At, Fields, ImportError, ImportErrorKind, Json};

pub(super) fn loss(at: &At<'_>) -> Result<Loss, ImportError> {
    match at.json {
        Json::String(name) => named(at, name),
        Json::Object(_) => document(at),
        _ => Err(at.expected("a loss: a name, or an object with `class_name` and `config`")),
    }
}

/// Of a class, an object with its defaults; of a function, a mean of what it gives.
fn named(at: &At<'_>, name: &str) -> Result<Loss, ImportError> {
    let lower = name.to_ascii_lowercase();
    let by_shapes = matches!(lower.as_str(), "crossentropy" | "ce").then_some(lower.as_str());
    let (row, shown) = match (table::class(name), table::function(by_shapes.unwrap_or(name))) {
        (Some(row), _) => (row, row.name),
        (None, Some(row)) => (row, name),
        (None, None) => return Err(unknown(at)),
    };
    let function = with_defaults(at, row)?;
    Ok(Loss { name: shown.to_string(), function, reduction: Reduction::Mean, dtype: None })
}

/// What a row gives without any key.
pub(crate) fn with_defaults(at: &At<'_>, row: &Row) -> Result<Arc<dyn Function>, ImportError> {
    let empty = Json::Object(IndexMap::new());
    (row.read)(&At { json: &empty, ..at.clone() }.fields()?)
}

fn unknown(at: &At<'_>) -> ImportError {
    at.accepted(&table::names())
}

/// The name of a serialised function: its `config`, which older files write as an object.
pub(crate) fn function_name<'j>(config: &At<'j>) -> Result<&'j str, ImportError> {
    config.get("name").unwrap_or_else(|| config.clone()).str()
}

fn document(at: &At<'_>) -> Result<Loss, ImportError> {
    let fields = at.fields()?;
    fields.irrelevant(&["module", "registered_name", "build_config", "compile_config", "shared_object_id"]);
    let class_at = fields.require("class_name")?;
    let class = class_at.str()?;
    let config = fields.require("config")?;
    first(fields.finish())?;
    match class {
        "function" => {
            let name = function_name(&config)?;
            let row = table::function(name).ok_or_else(|| unknown(&config))?;
            let function = with_defaults(&config, row)?;
            Ok(Loss { name: name.to_string(), function, reduction: Reduction::Mean, dtype: None })
        }
        "LossFunctionWrapper" => {
            let fields = config.fields()?;
            let function = fields.require("fn")?;
            let name_at = function.get("config").unwrap_or(function);
            let name = function_name(&name_at)?;
            let row = table::function(name).ok_or_else(|| unknown(&name_at))?;
            configured(&fields, row, name)
        }
        class => {
            let custom = at.get("registered_name").is_some_and(|at| at.json.as_str().is_some_and(|n| n.contains('>')));
            let row = table::class(class).ok_or_else(|| match custom || class.contains('>') {
                true => class_at.error(ImportErrorKind::Custom { class: class.to_string() }),
                false => unknown(&class_at),
            })?;
            let fields = config.fields()?;
            // Keras 2 writes the function beside the class.
            if let Some(function) = fields.opt("fn") {
                let name_at = function.get("config").unwrap_or(function);
                let name = function_name(&name_at)?;
                if !row.functions.contains(&name) {
                    return Err(name_at.accepted(row.functions));
                }
            }
            configured(&fields, row, row.name)
        }
    }
}

fn configured(fields: &Fields<'_>, row: &Row, name: &str) -> Result<Loss, ImportError> {
    let name = fields.opt("name").map_or(Ok(name), |at| at.str())?.to_string();
    let reduction = reduction(fields)?;
    let dtype = fields.opt("dtype").map(|at| dtype(&at)).transpose()?;
    let function = (row.read)(fields)?;
    first(fields.finish())?;
    Ok(Loss { name, function, reduction, dtype })
}

fn reduction(fields: &Fields<'_>) -> Result<Reduction, ImportError> {
    let Some(at) = fields.opt("reduction") else {
        // Nothing said is the default; `null` is none.
        let said = fields.get("reduction").is_some();
        return Ok(if said { Reduction::None } else { Reduction::Mean });
    };
    match at.str()? {
        "sum_over_batch_size" | "mean" | "auto" => Ok(Reduction::Mean),
        "sum" => Ok(Reduction::Sum),
        "mean_with_sample_weight" => Ok(Reduction::WeightedMean),
        "none" => Ok(Reduction::None),
        _ => Err(at.accepted(&["sum_over_batch_size", "mean", "sum", "mean_with_sample_weight", "none", "auto"])),
    }
}

/// The type in which to compute: a name or a serialised policy.
pub(crate) fn dtype(at: &At<'_>) -> Result<DType, ImportError> {
    let name = at.get("config").and_then(|config| config.get("name")).unwrap_or_else(|| at.clone());
    match name.str()? {
        "float32" => Ok(DType::F32),
        "float64" => Ok(DType::F64),
        "float16" | "bfloat16" | "mixed_float16" | "mixed_bfloat16" => Err(name.unsupported("computing it in 16 bits")),
        _ => Err(name.accepted(&["float32", "float64"])),
    }
}

/// The first of several problems.
pub(crate) fn first(problems: Vec<ImportError>) -> Result<(), ImportError> {
    problems.into_iter().next().map_or(Ok(()), Err)
}
