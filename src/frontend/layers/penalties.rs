//! What layers say about the loss and about updates: regularisers of variables and outputs, constraints of variables.
//!
//! Layers need not know of it. A layer's keys `X_regularizer` and `X_constraint` hold for the variable that Keras calls `X`
//! or `X_kernel`, wherever below the layer it is declared; its `activity_regularizer` holds for what it gives. None of it
//! alters what a model computes, so a key that cannot be read is a problem only where penalties are wanted.

use intwain_ir::{Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, T};
use super::phase::Phase;
use crate::frontend::constraint::Constraint;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::{ImportError, JsonPath};
use crate::frontend::file::Generation;
use crate::frontend::json::Json;
use crate::frontend::keras1;
use crate::frontend::regularizer::Regularizer;

/// When penalties of outputs are part of a graph, and regularisers and constraints that cannot be read are problems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Penalties {
    /// Where the model is imported for training.
    #[default]
    InTraining,
    /// Always: the loss is wanted without training.
    Always,
}

/// What a layer adds to the loss for one of its results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Penalty {
    /// The layer's qualified name.
    pub path: String,
    /// Elements of at least f32, dimension 0 counting the rows of the call. Their sum over the whole batch, divided by the
    /// rows of the whole batch, is what is added.
    pub values: Value,
}

/// The penalties of an import.
#[derive(Debug)]
pub(crate) struct Account {
    wanted: bool,
    /// What the current layer says of its variables.
    said: OfVariables,
    found: Vec<Penalty>,
    refused: Vec<ImportError>,
    calls: Calls,
}

/// How Keras calls the layers that are imported now.
#[derive(Clone, Debug)]
struct Calls {
    /// Rows here that are calls of their own there.
    apart: usize,
    /// The path of a layer that it calls without what penalises outputs.
    bare: Option<String>,
}

/// A value of a layer's configuration that is read when it is clear what it holds for.
#[derive(Clone, Debug)]
pub(super) struct Said {
    key: String,
    json: Json,
    path: JsonPath,
    layer: Option<String>,
}

impl Said {
    fn at(&self) -> At<'_> {
        At { json: &self.json, path: self.path.clone(), layer: self.layer.clone() }
    }

    /// The value as Keras 2 writes it: layers that only Keras 1 has are written in its way.
    fn in_keras_2(&self, translate: fn(&At<'_>) -> Result<Json, ImportError>) -> Result<Said, ImportError> {
        let old = self.json.get("name").is_some() && self.json.get("class_name").is_none();
        Ok(Said { json: if old { translate(&self.at())? } else { self.json.clone() }, ..self.clone() })
    }

    fn regularizer(&self) -> Result<Option<Regularizer>, ImportError> {
        Regularizer::read(&self.in_keras_2(keras1::regularizer)?.at())
    }

    fn constraint(&self) -> Result<Option<Constraint>, ImportError> {
        Constraint::read(&self.in_keras_2(keras1::constraint)?.at())
    }
}

/// What a configuration says of the variables below its layer.
#[derive(Clone, Debug, Default)]
pub(super) struct OfVariables(Vec<Said>);

impl OfVariables {
    /// Takes note of the keys that end so. Which of them a layer knows is its own business.
    pub(super) fn read(fields: &Fields<'_>) -> Out<OfVariables> {
        let ends = |key: &str| key.ends_with("_regularizer") || key.ends_with("_constraint");
        let entries = fields.at().entries()?.into_iter();
        let said = entries.filter(|(key, at)| ends(key) && *key != ACTIVITY && !at.is_null());
        Ok(OfVariables(said.map(|(key, at)| said_at(key, &at)).collect()))
    }

    fn of(&self, variable: &str, what: &str) -> Option<&Said> {
        let stem = match variable {
            // What Keras 3 calls the kernel of a depthwise convolution.
            "kernel" => Some("depthwise"),
            _ => variable.strip_suffix("_kernel"),
        };
        let keys = [Some(variable), stem].into_iter().flatten().map(|stem| format!("{stem}_{what}"));
        keys.into_iter().find_map(|key| self.0.iter().find(|said| said.key == key))
    }
}

const ACTIVITY: &str = "activity_regularizer";

fn said_at(key: &str, at: &At<'_>) -> Said {
    Said { key: key.to_string(), json: at.json.clone(), path: at.path.clone(), layer: at.layer.clone() }
}

/// What a configuration says of its layer's outputs.
pub(super) fn of_outputs(fields: &Fields<'_>) -> Option<Said> {
    fields.opt(ACTIVITY).map(|at| said_at(ACTIVITY, &at))
}

impl Account {
    pub(super) fn new(penalties: Penalties, phase: &Phase) -> Account {
        let wanted = penalties == Penalties::Always || *phase != Phase::Inference;
        let calls = Calls { apart: 1, bare: None };
        Account { wanted, said: OfVariables::default(), found: Vec::new(), refused: Vec::new(), calls }
    }

    /// Makes what a layer says of its variables what holds, and gives what held before.
    pub(super) fn set_said(&mut self, said: OfVariables) -> OfVariables {
        std::mem::replace(&mut self.said, said)
    }

    /// What holds for a variable that is declared now.
    pub(super) fn of_variable(&mut self, name: &str) -> (Option<Regularizer>, Option<Constraint>) {
        let regularizer = self.said.of(name, "regularizer").map_or(Ok(None), Said::regularizer);
        let constraint = self.said.of(name, "constraint").map_or(Ok(None), Said::constraint);
        (self.read(regularizer), self.read(constraint))
    }

    fn read<X>(&mut self, read: Result<Option<X>, ImportError>) -> Option<X> {
        read.unwrap_or_else(|error| {
            self.refuse(error);
            None
        })
    }

    fn refuse(&mut self, error: ImportError) {
        if self.wanted && !self.refused.iter().any(|known| known.path == error.path) {
            self.refused.push(error);
        }
    }

    pub(super) fn found(&self) -> &[Penalty] {
        &self.found
    }

    /// What could not be read and is wanted.
    pub(super) fn take_refused(&mut self) -> Vec<ImportError> {
        std::mem::take(&mut self.refused)
    }
}

impl Cx {
    /// Adds what an `activity_regularizer` makes of a result of the current owner.
    pub(super) fn penalise(&mut self, said: &Said, y: Value) -> Out<()> {
        if !self.account.wanted || !self.g.ty(y).dtype.is_float() {
            return Ok(());
        }
        let read = said.regularizer();
        match self.account.read(read) {
            Some(regularizer) => self.add_penalty(&regularizer, &said.at(), y),
            None => Ok(()),
        }
    }

    fn add_penalty(&mut self, regularizer: &Regularizer, at: &At<'_>, y: Value) -> Out<()> {
        if !regularizer.is_sum() {
            let what = "a penalty of outputs that is no sum over the rows of a batch";
            self.account.refuse(at.unsupported(what));
            return Ok(());
        }
        let Some(values) = regularizer.activity(&mut self.g, y)? else { return Ok(()) };
        let values = self.per_row(values)?;
        let path = self.path().to_string();
        self.account.found.push(Penalty { path, values });
        Ok(())
    }

    /// Elements of a result as elements of rows. Keras divides by the first extent of the result, whatever it counts, and
    /// nothing that has none.
    fn per_row(&mut self, values: Value) -> Out<Value> {
        let first = self.g.inputs().next().map(|p| p.value);
        let rows = first.and_then(|x| self.g.shape(x).first().copied()).unwrap_or(1);
        let shape = self.g.shape(values).clone();
        let (first, rest) = shape.split_first().map_or((1, &[][..]), |(first, rest)| (*first, rest));
        let divisor = first / self.account.calls.apart;
        let mut values = values;
        if divisor != rows && divisor != 0 {
            let dtype = self.g.ty(values).dtype;
            let factor = self.g.full(dtype, rows as f64 / divisor as f64, &shape)?;
            values = self.g.mul(values, factor)?;
        }
        if first != rows && rows != 0 && first.is_multiple_of(rows) {
            let dims = [rows, first / rows].into_iter().chain(rest.iter().copied());
            values = self.g.reshape(values, &Shape::new(dims))?;
        }
        Ok(values)
    }
}

impl Builder {
    /// Adds what a layer's configuration says of its results.
    pub(super) fn penalise(&mut self, class: &str, fields: &Fields<'_>, path: &str, results: &[T]) -> Out<()> {
        if !self.cx.account.wanted || self.cx.account.calls.bare.as_deref() == Some(path) {
            return Ok(());
        }
        if class == "ActivityRegularization" {
            let read = Regularizer::norms(fields).map(Some);
            if let Some(regularizer) = self.cx.account.read(read) {
                results.iter().try_for_each(|t| self.cx.add_penalty(&regularizer, fields.at(), t.value))?;
            }
        }
        // Keras 3 hands it on to the projections; grouped queries keep it as well.
        if class == "MultiHeadAttention" && self.cx.generation == Generation::Three {
            return Ok(());
        }
        match of_outputs(fields) {
            Some(said) => results.iter().try_for_each(|t| self.cx.penalise(&said, t.value)),
            None => Ok(()),
        }
    }

    /// Imports what Keras 3 calls for each of so many steps, which are rows here, and without what penalises the outputs of
    /// the layer at `path` itself.
    pub(super) fn step_by_step<X>(&mut self, steps: usize, path: &str, import: impl FnOnce(&mut Builder) -> X) -> X {
        let outer = self.cx.account.calls.clone();
        if self.cx.generation == Generation::Three {
            self.cx.account.calls = Calls { apart: outer.apart * steps.max(1), bare: Some(path.to_string()) };
        }
        let result = import(self);
        self.cx.account.calls = outer;
        result
    }
}
