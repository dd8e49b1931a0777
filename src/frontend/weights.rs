//! Which stored tensor each variable takes.
//!
//! A layer's import function declares its variables as a [`VarTree`]: its own in creation order, then its parts (a cell, a
//! wrapped layer, the projections of an attention layer). Models are trees whose parts are their layers. Three naming
//! schemes are resolved over the same tree: by position ([`Naming::Position`]), by topology and by path.

mod listed;
mod naming;

use std::ops::Range;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType};

use super::constraint::Constraint;
use super::error::{ImportError, ImportErrorKind, JsonPath};
use super::forms::{Form, Recipe};
use super::init::Initializer;
use super::json::Json;
use super::keras1::Writer;
use super::optimizer::{self, Found, OptimizerState};
use super::regularizer::Regularizer;
use super::source::{Naming, WeightSource};
use crate::train::optimizer::Optimizer;
pub use naming::ByName;
pub(crate) use naming::{Positions, topology};
use naming::{by_layer, by_name, by_path, by_position, by_topology};

/// A variable as its layer declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct VarSpec {
    /// Names of models, layer, parts and the variable itself, joined by `/`: `outer/dense/kernel`.
    pub path: String,
    /// The unsharded extents.
    pub shape: Vec<usize>,
    /// The type it is held in.
    pub dtype: DType,
    /// Its value where there are no weights.
    pub initializer: Initializer,
    /// Whether the layer created it as trainable; a frozen layer does not change this.
    pub trainable: bool,
    /// What it adds to the loss.
    pub regularizer: Option<Regularizer>,
    /// What it is projected to after each update.
    pub constraint: Option<Constraint>,
}

/// How a part hangs on its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// Under an attribute of this name: `cell`, `forward_layer`, `query_dense`.
    Attribute(&'static str),
    /// In a list of this name, told apart by class and count: `layers`, `cells`.
    Listed(&'static str),
}

/// Where images have their channels. Keras 1 stored kernels in the same order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channels {
    /// Behind the rows and columns.
    #[default]
    Last,
    /// In front of them.
    First,
}

/// A layer, cell or model with its variables.
#[derive(Clone, Debug, PartialEq)]
pub struct VarTree {
    /// How it hangs on its owner.
    pub slot: Slot,
    /// Its class.
    pub class: String,
    /// Its qualified name.
    pub path: String,
    /// Whether it is not frozen.
    pub trainable: bool,
    /// Its own variables in creation order.
    pub vars: Vec<VarSpec>,
    /// How many variables of its parts Keras stores once more before its own.
    pub repeated: usize,
    /// Where the images that it convolves have their channels.
    pub channels: Channels,
    /// Elements of the low-rank factors that Keras trains in place of the first variable. Files hold the product merged.
    pub factors: usize,
    /// Its parts in creation order. Layers without variables are listed too: they count.
    pub parts: Vec<VarTree>,
}

/// Where a variable's value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// This tensor of the weight file.
    Stored {
        /// Its key.
        key: String,
    },
    /// Made of tensors of the weight file.
    Made {
        /// How.
        recipe: Recipe,
        /// The keys of the tensors that it counts.
        keys: Vec<String>,
    },
    /// The variable's initializer.
    Initial,
}

impl VarTree {
    /// A layer without parts.
    pub fn leaf(class: &str, path: &str, trainable: bool, vars: Vec<VarSpec>) -> VarTree {
        VarTree {
            slot: Slot::Listed("layers"),
            class: class.to_string(),
            path: path.to_string(),
            trainable,
            vars,
            repeated: 0,
            channels: Channels::Last,
            factors: 0,
            parts: Vec::new(),
        }
    }

    /// The same with another place in its owner.
    pub fn at(self, slot: Slot) -> VarTree {
        VarTree { slot, ..self }
    }

    /// All variables, each owner's before its parts': the order of every list of variables here.
    pub fn flatten(&self) -> Vec<&VarSpec> {
        self.visit(true).into_iter().map(|v| v.spec).collect()
    }

    /// Which variables train, in the order of [`VarTree::flatten`].
    pub fn trainable(&self) -> Vec<bool> {
        self.visit(true).into_iter().map(|v| v.trainable).collect()
    }

    fn visit(&self, outer_trains: bool) -> Vec<Visited<'_>> {
        let trains = outer_trains && self.trainable;
        let own = self.vars.iter().map(|spec| Visited { spec, owner: &self.path, trainable: trains && spec.trainable });
        own.chain(self.parts.iter().flat_map(|part| part.visit(trains))).collect()
    }
}

#[derive(Clone, Copy)]
struct Visited<'t> {
    spec: &'t VarSpec,
    owner: &'t str,
    trainable: bool,
}

/// Finds every variable's tensor, in the order of [`VarTree::flatten`]. All that is missing, left over or of another shape
/// is reported together.
pub fn assign(tree: &VarTree, source: &WeightSource) -> Result<Vec<Origin>, Vec<ImportError>> {
    let origins = match source.naming() {
        Naming::Position => one_each(tree, by_position(tree, source)?, source),
        Naming::Topology { root } => by_topology(tree, source, root)?,
        Naming::Path => one_each(tree, by_path(tree, source)?, source),
        Naming::Layer => by_layer(tree, source)?,
    };
    checked(tree, source, origins)
}

/// Compares the shapes of stored tensors with the variables'.
fn checked(tree: &VarTree, source: &WeightSource, origins: Vec<Origin>) -> Result<Vec<Origin>, Vec<ImportError>> {
    let mut problems = Vec::new();
    for (visited, origin) in tree.visit(true).iter().zip(&origins) {
        // What is made fits: it was chosen for that.
        let Origin::Stored { key } = origin else { continue };
        let spec = visited.spec;
        match source.shape(key) {
            Some(found) if found == spec.shape => {}
            Some(found) => problems.push(at_weight(
                visited.owner,
                ImportErrorKind::WeightShape {
                    variable: spec.path.clone(),
                    expected: spec.shape.clone(),
                    found,
                    key: key.clone(),
                },
            )),
            None => problems.push(at_weight(
                visited.owner,
                ImportErrorKind::Unsupported {
                    what: format!("the element type of `{key}`"),
                    remedy: Some("store weights as float16, bfloat16, float32, float64 or integers"),
                },
            )),
        }
    }
    if problems.is_empty() { Ok(origins) } else { Err(problems) }
}

/// Variables whose tensors are stored together: one, or all of a layer that has [`Form`]s.
struct Unit<'t> {
    vars: Vec<Visited<'t>>,
    forms: Vec<Form>,
}

impl Unit<'_> {
    /// How many tensors are stored for it.
    fn tensors(&self) -> usize {
        self.forms.first().map_or(self.vars.len(), |form| form.tensors)
    }

    fn trains(&self) -> bool {
        self.vars.iter().any(|var| var.trainable)
    }

    /// What the variables are, given the keys of the tensors: the first form that fits.
    fn origins(&self, keys: Vec<String>, source: &WeightSource) -> Result<Vec<Origin>, Vec<ImportError>> {
        if let Some(shapes) = keys.iter().map(|key| source.shape(key)).collect::<Option<Vec<_>>>()
            && let wanted = self.vars.iter().map(|var| &var.spec.shape[..]).collect::<Vec<_>>()
            && let Some(form) = self.forms.iter().find(|form| form.fits(&shapes, &wanted))
        {
            let origin = |recipe: &Recipe| match recipe {
                Recipe::Tensor(i) => Origin::Stored { key: keys[*i].clone() },
                recipe => Origin::Made { recipe: recipe.clone(), keys: keys.clone() },
            };
            return Ok(form.recipes.iter().map(origin).collect());
        }
        if keys.len() == self.vars.len() {
            return Ok(keys.into_iter().map(|key| Origin::Stored { key }).collect());
        }
        // Keys of another count than variables: no tensor is any one variable's, so the first pair is named.
        let (var, key) = (&self.vars[0], keys.first().cloned().unwrap_or_default());
        let found = source.shape(&key).unwrap_or_default();
        let (variable, expected) = (var.spec.path.clone(), var.spec.shape.clone());
        Err(vec![at_weight(var.owner, ImportErrorKind::WeightShape { variable, expected, found, key })])
    }
}

impl VarTree {
    /// All variables in the order of [`VarTree::flatten`], by what is stored together.
    fn units(&self, outer_trains: bool, writer: Writer) -> Vec<Unit<'_>> {
        let forms = writer.forms(self);
        if !forms.is_empty() {
            return vec![Unit { vars: self.visit(outer_trains), forms }];
        }
        let trains = outer_trains && self.trainable;
        let own = self.vars.iter().map(|spec| Unit {
            vars: vec![Visited { spec, owner: &self.path, trainable: trains && spec.trainable }],
            forms: Vec::new(),
        });
        own.chain(self.parts.iter().flat_map(|part| part.units(trains, writer))).collect()
    }
}

/// Origins where there is a key for every variable.
fn one_each(tree: &VarTree, keys: Vec<String>, source: &WeightSource) -> Vec<Origin> {
    let mut keys = keys.into_iter();
    let mut origins = Vec::new();
    for unit in tree.units(true, Writer::CURRENT) {
        let own: Vec<String> = keys.by_ref().take(unit.vars.len()).collect();
        let plain = || own.iter().map(|key| Origin::Stored { key: key.clone() }).collect();
        let formed = unit.tensors() == own.len();
        origins.extend(formed.then(|| unit.origins(own.clone(), source).ok()).flatten().unwrap_or_else(plain));
    }
    origins
}

/// Origins of a layer's variables, given the keys of its tensors in Keras's order: those that train before the others.
fn in_order(
    layer: &VarTree,
    outer: bool,
    keys: &[String],
    source: &WeightSource,
    (group, writers): (&str, &[Writer]),
) -> Result<Vec<Origin>, Vec<ImportError>> {
    let mut ways = writers.iter().map(|writer| layer.units(outer, *writer));
    let count = |units: &Vec<Unit<'_>>| units.iter().map(Unit::tensors).sum::<usize>();
    let units = ways.clone().find(|units| count(units) == keys.len()).or_else(|| ways.next()).unwrap_or_default();
    let expected = count(&units);
    if expected != keys.len() {
        let kind = match layer.factors {
            0 => ImportErrorKind::WeightCount { expected, found: keys.len(), key: group.to_string() },
            _ => ImportErrorKind::Unsupported {
                what: format!("`lora_rank` with its factors apart from the kernel under `{group}`"),
                remedy: Some("save the model as .keras, which holds the merged kernel"),
            },
        };
        return Err(vec![at_weight(&layer.path, kind)]);
    }
    let mut order: Vec<usize> = (0..units.len()).collect();
    order.sort_by_key(|&i| !units[i].trains());
    let mut rest = keys.iter().cloned();
    let mut own = vec![Vec::new(); units.len()];
    for i in order {
        own[i] = rest.by_ref().take(units[i].tensors()).collect();
    }
    let (mut origins, mut problems) = (Vec::new(), Vec::new());
    for (unit, keys) in units.iter().zip(own) {
        match unit.origins(keys, source) {
            Ok(made) => origins.extend(made),
            Err(errors) => problems.extend(errors),
        }
    }
    if problems.is_empty() { Ok(origins) } else { Err(problems) }
}

fn at_weight(layer: &str, kind: ImportErrorKind) -> ImportError {
    let layer = (!layer.is_empty()).then(|| layer.to_string());
    ImportError { path: JsonPath::root(), layer, kind: Box::new(kind) }
}

fn whole_file(kind: ImportErrorKind) -> Vec<ImportError> {
    vec![at_weight("", kind)]
}

fn array_error(error: ArrayError) -> Vec<ImportError> {
    whole_file(error.into())
}

/// Every variable's value, read or made when it is asked for.
#[derive(Debug)]
pub struct Weights {
    specs: Vec<VarSpec>,
    trainable: Vec<bool>,
    origins: Vec<Origin>,
    source: Option<WeightSource>,
    seed: u64,
}

impl Weights {
    /// The variables of a model, from a weight file or, without one, from their initializers.
    pub fn new(tree: &VarTree, source: Option<WeightSource>, seed: u64) -> Result<Weights, Vec<ImportError>> {
        let specs: Vec<VarSpec> = tree.flatten().into_iter().cloned().collect();
        let origins = match &source {
            Some(source) => assign(tree, source)?,
            None => vec![Origin::Initial; specs.len()],
        };
        Ok(Weights { specs, trainable: tree.trainable(), origins, source, seed })
    }

    /// The variables of a model, from the layers of a file of Keras 2 that are called as the model's: the others from their
    /// initializers.
    pub fn by_name(tree: &VarTree, source: WeightSource, seed: u64) -> Result<(Weights, ByName), Vec<ImportError>> {
        let specs: Vec<VarSpec> = tree.flatten().into_iter().cloned().collect();
        let (origins, report) = by_name(tree, &source)?;
        let origins = checked(tree, &source, origins)?;
        Ok((Weights { specs, trainable: tree.trainable(), origins, source: Some(source), seed }, report))
    }

    /// The variables, in the order of [`VarTree::flatten`].
    pub fn specs(&self) -> &[VarSpec] {
        &self.specs
    }

    /// Whether the `i`-th variable trains.
    pub fn trainable(&self, i: usize) -> bool {
        self.trainable[i]
    }

    /// Where the `i`-th variable's value comes from.
    pub fn origin(&self, i: usize) -> &Origin {
        &self.origins[i]
    }

    /// The weight file, where there is one.
    pub fn source(&self) -> Option<&WeightSource> {
        self.source.as_ref()
    }

    /// The optimizer's state in the weight file, where there is one; `compile_config` is [that of the model
    /// file](super::ModelFile::compile_config).
    pub fn optimizer(&self, compile_config: Option<&Json>) -> Result<Option<OptimizerState>, ArrayError> {
        let Some(source) = &self.source else { return Ok(None) };
        let trained = self.specs.iter().zip(&self.trainable).filter(|(_, trains)| **trains).map(|(spec, _)| spec);
        optimizer::state(source, compile_config, &trained.collect::<Vec<_>>())
    }

    /// The tensors that this optimizer keeps in the weight file, where there are such and each is known.
    pub(crate) fn optimizer_tensors(&self, optimizer: &Optimizer) -> Result<Option<Vec<Found>>, ArrayError> {
        let Some(source) = &self.source else { return Ok(None) };
        let trained = self.specs.iter().zip(&self.trainable).filter(|(_, trains)| **trains).map(|(spec, _)| spec);
        optimizer::find(source, optimizer, &trained.collect::<Vec<_>>())
    }

    /// Reads or makes the `i`-th variable, in its own dtype.
    pub fn read(&self, i: usize) -> Result<Array, ArrayError> {
        let spec = &self.specs[i];
        match (&self.origins[i], &self.source) {
            (Origin::Stored { key }, Some(source)) => Ok(in_dtype(source.read(key)?, spec.dtype)),
            (Origin::Made { recipe, keys }, Some(source)) => made(recipe, keys, source, spec),
            (Origin::Stored { .. } | Origin::Made { .. } | Origin::Initial, _) => {
                let rows = spec.shape.first().copied().unwrap_or(1);
                spec.initializer.fill_rows(&spec.shape, 0..rows, spec.dtype, self.seed, &spec.path)
            }
        }
    }

    /// Reads or makes the rows `start..end` of the `i`-th variable along its first dimension.
    pub fn read_rows(&self, i: usize, start: usize, end: usize) -> Result<Array, ArrayError> {
        let spec = &self.specs[i];
        match (&self.origins[i], &self.source) {
            (Origin::Stored { key }, Some(source)) => Ok(in_dtype(source.read_rows(key, start, end)?, spec.dtype)),
            (Origin::Made { recipe, keys }, Some(source)) => {
                let whole = made(recipe, keys, source, spec)?;
                let rows = spec.shape.first().copied().unwrap_or(0);
                let missing = || ArrayErrorKind::Rows { rows, start, end }.in_member(source.path(), &spec.path);
                whole.rows(start, end).ok_or_else(missing)
            }
            (Origin::Stored { .. } | Origin::Made { .. } | Origin::Initial, _) => {
                spec.initializer.fill_rows(&spec.shape, start..end, spec.dtype, self.seed, &spec.path)
            }
        }
    }

    /// Reads or makes rows of the `i`-th variable into memory of their size; a scalar has one row. What is stored in the
    /// variable's type is copied once.
    pub fn read_into(&self, i: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), ArrayError> {
        let spec = &self.specs[i];
        let whole = rows == (0..spec.shape.first().copied().unwrap_or(1));
        if let (Origin::Stored { key }, Some(source)) = (&self.origins[i], &self.source)
            && source.dtype(key) == Some(spec.dtype)
        {
            return source.read_into(key, (!whole).then_some(rows), to);
        }
        let array = if whole { self.read(i)? } else { self.read_rows(i, rows.start, rows.end)? };
        to.copy_from_slice(array.bytes());
        Ok(())
    }
}

fn made(recipe: &Recipe, keys: &[String], source: &WeightSource, spec: &VarSpec) -> Result<Array, ArrayError> {
    // In the variable's type first, so that tensors of several types meet in one.
    let read = |(i, key): (usize, &String)| match recipe.takes(i) {
        true => Ok(in_dtype(source.read(key)?, spec.dtype)),
        false => Ok(Array::from_f32([0], &[])),
    };
    let stored = keys.iter().enumerate().map(read).collect::<Result<Vec<_>, ArrayError>>()?;
    let changed = || ArrayErrorKind::Missing.in_member(source.path(), &spec.path);
    recipe.make(&stored).ok_or_else(changed)
}

/// Converts without copying what has the type already.
fn in_dtype(array: Array, dtype: DType) -> Array {
    if array.dtype() == dtype { array } else { array.cast(dtype) }
}
