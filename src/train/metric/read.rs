//! A metric as Keras writes it: a name, or a document of class and configuration.

use std::sync::Arc;

use indexmap::IndexMap;

use super::mean::{Mean, RootMeanSquared};
use super::table::{self, Read, Row};
use super::{Measure, Metric, accuracy};
use crate::frontend::{At, Fields, ImportError, ImportErrorKind, Json};
use crate::train::loss::read::{dtype, first, function_name};
use crate::train::loss::table as losses;

type Made = Result<Arc<dyn Measure>, ImportError>;

pub(super) fn metric(at: &At<'_>) -> Result<Metric, ImportError> {
    match at.json {
        Json::String(name) => named(at, name),
        Json::Object(_) => document(at),
        _ => Err(at.expected("a metric: a name, or an object with `class_name` and `config`")),
    }
}

/// A metric called by a name reports under that name.
fn named(at: &At<'_>, name: &str) -> Result<Metric, ImportError> {
    let empty = Json::Object(IndexMap::new());
    let fields = At { json: &empty, ..at.clone() }.fields()?;
    let measure = match name.to_ascii_lowercase().as_str() {
        "accuracy" | "acc" => accuracy::by_shapes(&fields)?,
        // Keras 2's; the shapes say which.
        "crossentropy" | "ce" => mean_of(at, "crossentropy", &fields)?,
        _ => match table::named(name) {
            Some(row) => read(at, row, &fields)?,
            None => of_function(at, name, &fields)?,
        },
    };
    Ok(Metric { name: name.to_string(), measure })
}

fn read(at: &At<'_>, row: &Row, fields: &Fields<'_>) -> Made {
    match &row.read {
        Read::With(read) => read(fields),
        Read::MeanOf(function) => mean_of(at, function, fields),
        Read::RootMeanSquared => Ok(Arc::new(RootMeanSquared)),
        Read::Never(refusal) => Err(at.error(ImportErrorKind::Unsupported {
            what: format!("the metric `{}`, since {},", row.class, refusal.why),
            remedy: Some(refusal.remedy),
        })),
    }
}

/// The mean of what a function of losses or metrics gives.
fn of_function(at: &At<'_>, name: &str, fields: &Fields<'_>) -> Made {
    // The function of this name is the loss, which is negative.
    if losses::function(name).is_some() {
        return mean_of(at, name, fields);
    }
    match table::named(name) {
        Some(row) if row.name == name || row.names.contains(&name) => read(at, row, fields),
        _ => Err(at.accepted(&table::names())),
    }
}

fn mean_of(at: &At<'_>, function: &str, fields: &Fields<'_>) -> Made {
    let row = losses::function(function).ok_or_else(|| at.accepted(&table::names()))?;
    Ok(Arc::new(Mean((row.read)(fields)?)))
}

fn document(at: &At<'_>) -> Result<Metric, ImportError> {
    let fields = at.fields()?;
    fields.irrelevant(&["module", "registered_name", "build_config", "compile_config", "shared_object_id"]);
    let class_at = fields.require("class_name")?;
    let class = class_at.str()?;
    let config = fields.require("config")?;
    first(fields.finish())?;
    match class {
        "function" => {
            let name = function_name(&config)?;
            let empty = Json::Object(IndexMap::new());
            let fields = At { json: &empty, ..config.clone() }.fields()?;
            Ok(Metric { name: name.to_string(), measure: of_function(&config, name, &fields)? })
        }
        "MeanMetricWrapper" => {
            let fields = config.fields()?;
            let function = fields.require("fn")?;
            let name_at = function.get("config").unwrap_or(function);
            let name = function_name(&name_at)?;
            configured(&fields, name, Counts::Floats, |fields| of_function(&name_at, name, fields))
        }
        class => match table::class(class) {
            Some(row) => {
                let fields = config.fields()?;
                wrapped(&fields, row)?;
                // Intersections are counted in integers.
                let counts = if class.ends_with("IoU") { Counts::Integers } else { Counts::Floats };
                configured(&fields, row.name, counts, |fields| read(&class_at, row, fields))
            }
            // A loss as a metric: the mean of its function, whatever its reduction.
            None if losses::class(class).is_some() => of_loss(&config, class),
            None if class.contains('>') => Err(class_at.error(ImportErrorKind::Custom { class: class.to_string() })),
            None => {
                let classes: Vec<&str> = table::ROWS.iter().map(|row| row.class).collect();
                Err(class_at.accepted(&classes))
            }
        },
    }
}

/// Keras 2 writes the function beside the class.
fn wrapped(fields: &Fields<'_>, row: &Row) -> Result<(), ImportError> {
    let Some(function) = fields.opt("fn") else { return Ok(()) };
    let name_at = function.get("config").unwrap_or(function);
    let name = function_name(&name_at)?;
    let is_loss = match row.read {
        Read::MeanOf(of) => losses::function(of).is_some_and(|row| row.functions.contains(&name)),
        Read::With(_) | Read::RootMeanSquared | Read::Never(_) => false,
    };
    if is_loss || row.name == name || row.names.contains(&name) { Ok(()) } else { Err(name_at.accepted(&[row.name])) }
}

fn of_loss(config: &At<'_>, class: &str) -> Result<Metric, ImportError> {
    let row = losses::class(class).ok_or_else(|| config.accepted(&table::names()))?;
    let fields = config.fields()?;
    fields.irrelevant(&["reduction"]);
    configured(&fields, row.name, Counts::Floats, |fields| Ok(Arc::new(Mean((row.read)(fields)?))))
}

/// In what a metric counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Floats,
    Integers,
}

fn configured(
    fields: &Fields<'_>,
    name: &str,
    counts: Counts,
    read: impl FnOnce(&Fields<'_>) -> Made,
) -> Result<Metric, ImportError> {
    let name = fields.opt("name").map_or(Ok(name), |at| at.str())?.to_string();
    if counts == Counts::Floats {
        fields.opt("dtype").map(|at| dtype(&at)).transpose()?;
    }
    let measure = read(fields)?;
    first(fields.finish())?;
    Ok(Metric { name, measure })
}
