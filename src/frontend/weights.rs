//! Which stored tensor each variable takes.
//!
//! A layer's import function declares its variables as a [`VarTree`]: its own in creation order, then its parts (a cell, a
//! wrapped layer, the projections of an attention layer). Models are trees whose parts are their layers. Three naming
//! schemes are resolved over the same tree: by position ([`Naming::Position`]), by topology and by path.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType};

use super::error::{ImportError, ImportErrorKind, JsonPath};
use super::forms::{Form, Recipe};
use super::hdf5::H5;
use super::init::Initializer;
use super::json::Json;
use super::keras1::Writer;
use super::names::snake_case;
use super::optimizer::{self, OptimizerState};
use super::source::{Naming, WeightSource};

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
    /// What Keras stored for all its variables and its parts', where that is not one tensor each. All have one count of tensors.
    pub forms: Vec<Form>,
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
            forms: Vec::new(),
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

/// Reports what is missing and what is left over.
fn settle(wanted: &[String], present: &[&str], ignored: impl Fn(&str) -> bool) -> Result<(), Vec<ImportError>> {
    let there: BTreeSet<&str> = present.iter().copied().collect();
    let asked: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let missing: Vec<String> = wanted.iter().filter(|k| !there.contains(k.as_str())).cloned().collect();
    let left: Vec<String> =
        present.iter().filter(|k| !asked.contains(*k) && !ignored(k)).map(|k| k.to_string()).collect();
    let mut problems = Vec::new();
    if !missing.is_empty() {
        problems.push(at_weight("", ImportErrorKind::MissingWeights { keys: missing }));
    }
    if !left.is_empty() {
        problems.push(at_weight("", ImportErrorKind::UnknownWeights { keys: left }));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn by_path(tree: &VarTree, source: &WeightSource) -> Result<Vec<String>, Vec<ImportError>> {
    let wanted: Vec<String> = tree.flatten().iter().map(|v| v.path.clone()).collect();
    let present = source.keys().map_err(array_error)?;
    let present: Vec<&str> = present.iter().map(String::as_str).collect();
    settle(&wanted, &present, |_| false)?;
    Ok(wanted)
}

/// How the lists of layers are called, and how their members are counted.
#[derive(Clone, Copy)]
enum Dialect {
    /// `layers/dense_1`.
    Current,
    /// Keras 2.12 and 2.13: `_layer_checkpoint_dependencies/dense_2`, where every layer with weights is listed twice and
    /// counted twice.
    Dependencies,
    /// The same list with each layer counted once.
    DependenciesOnce,
}

fn by_position(tree: &VarTree, source: &WeightSource) -> Result<Vec<String>, Vec<ImportError>> {
    let all = source.keys().map_err(array_error)?;
    let present: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let old = present.iter().any(|k| k.starts_with("_layer_checkpoint_dependencies/"));
    let candidates: &[Dialect] = match old && !present.iter().any(|k| k.starts_with("layers/")) {
        true => &[Dialect::DependenciesOnce, Dialect::Dependencies],
        false => &[Dialect::Current],
    };
    let attempts = candidates.iter().map(|dialect| {
        let (mut keys, mut repeated) = (Vec::new(), BTreeSet::new());
        positions(tree, "", *dialect, &present, &mut keys, &mut repeated);
        (keys, repeated)
    });
    let attempts: Vec<(Vec<String>, BTreeSet<String>)> = attempts.collect();
    let complete = attempts.iter().position(|(keys, _)| keys.iter().all(|k| present.contains(k.as_str())));
    let (keys, repeated) = attempts.into_iter().nth(complete.unwrap_or(0)).expect("there is at least one candidate");
    let weights: Vec<&str> = all.iter().map(String::as_str).filter(|k| !is_state(k)).collect();
    settle(&keys, &weights, |key| repeated.contains(key))?;
    Ok(keys)
}

/// What a `.weights.h5` holds beside weights: the optimizer, metrics, and the states of random generators.
fn is_state(key: &str) -> bool {
    let in_layers =
        key.starts_with("layers/") || key.starts_with("_layer_checkpoint_dependencies/") || key.starts_with("vars/");
    !in_layers || key.split('/').any(|part| part.ends_with("seed_generator") || part == "random_generator")
}

fn positions(
    tree: &VarTree,
    path: &str,
    dialect: Dialect,
    present: &BTreeSet<&str>,
    keys: &mut Vec<String>,
    repeated: &mut BTreeSet<String>,
) {
    let join = |name: &str| if path.is_empty() { name.to_string() } else { format!("{path}/{name}") };
    // Keras stores trainable variables before the others; the tree keeps creation order.
    let mut order: Vec<usize> = (0..tree.vars.len()).collect();
    order.sort_by_key(|&i| !tree.vars[i].trainable);
    let mut own = vec![String::new(); tree.vars.len()];
    for (stored, var) in order.into_iter().enumerate() {
        // The weights of a vocabulary are the one variable that Keras stores by name.
        own[var] = match tree.vars[var].path.rsplit('/').next() {
            Some("idf_weights") => join("vars/idf_weights"),
            _ => join(&format!("vars/{}", tree.repeated + stored)),
        };
    }
    repeated.extend((0..tree.repeated).map(|stored| join(&format!("vars/{stored}"))));
    keys.extend(own);
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for part in &tree.parts {
        let group = match part.slot {
            Slot::Attribute(name) => {
                let plain = join(name);
                // tf.keras keeps the projections of attention layers in private attributes.
                let private = join(&format!("_{name}"));
                let below = |group: &str| present.iter().any(|k| k.starts_with(&format!("{group}/")));
                if !below(&plain) && below(&private) { private } else { plain }
            }
            Slot::Listed(list) => {
                let list = match (list, dialect) {
                    ("layers", Dialect::Dependencies | Dialect::DependenciesOnce) => "_layer_checkpoint_dependencies",
                    (list, _) => list,
                };
                let class = snake_case(&part.class);
                let count = counts.entry(format!("{list}/{class}")).or_insert(0);
                let name = if *count == 0 { class.clone() } else { format!("{class}_{count}") };
                let twice =
                    matches!(dialect, Dialect::Dependencies) && list.starts_with('_') && !part.flatten().is_empty();
                *count += if twice { 2 } else { 1 };
                join(&format!("{list}/{name}"))
            }
        };
        positions(part, &group, dialect, present, keys, repeated);
    }
}

/// A layer of a file of Keras 2.
struct StoredLayer {
    name: String,
    group: String,
    /// Keys of its tensors.
    keys: Vec<String>,
}

fn stored_layers(h5: &H5, root: &str) -> Result<Vec<StoredLayer>, ArrayError> {
    let join = |a: &str, b: &str| if a.is_empty() { b.to_string() } else { format!("{a}/{b}") };
    // Keras 0.3 has numbers in place of names.
    let numbered = |prefix: &str, there: &dyn Fn(&str) -> bool| -> Vec<String> {
        (0..).map(|i| format!("{prefix}_{i}")).take_while(|name| there(name)).collect()
    };
    let names = h5.strings(root, "layer_names")?;
    let names = names.unwrap_or_else(|| numbered("layer", &|name| h5.has_group(&join(root, name))));
    let layer = |name: String| {
        let group = join(root, &name);
        let weights = h5.strings(&group, "weight_names")?;
        let weights = weights.unwrap_or_else(|| numbered("param", &|name| h5.info(&join(&group, name)).is_some()));
        Ok(StoredLayer { keys: weights.iter().map(|name| join(&group, name)).collect(), name, group })
    };
    names.into_iter().map(layer).collect()
}

/// Keras 2's order: per layer of the outermost model, its trainable weights and then the others.
fn by_topology(tree: &VarTree, source: &WeightSource, root: &str) -> Result<Vec<Origin>, Vec<ImportError>> {
    let h5 = source.as_hdf5().expect("only HDF5 files are named by topology");
    let mut stored = stored_layers(h5, root).map_err(array_error)?;
    stored.retain(|layer| !layer.keys.is_empty());
    let with_weights: Vec<&VarTree> = tree.parts.iter().filter(|p| !p.flatten().is_empty()).collect();
    if with_weights.len() != stored.len() {
        return Err(whole_file(ImportErrorKind::LayerCount { expected: with_weights.len(), found: stored.len() }));
    }
    let writers = Writer::of(h5, root);
    let (mut origins, mut problems) = (Vec::new(), Vec::new());
    for (layer, stored) in with_weights.iter().zip(&stored) {
        match in_order(layer, tree.trainable, &stored.keys, source, (&stored.group, &writers)) {
            Ok(own) => origins.extend(own),
            Err(errors) => problems.extend(errors),
        }
    }
    if problems.is_empty() { Ok(origins) } else { Err(problems) }
}

/// What loading by the names of layers came to. All are layers that have weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ByName {
    /// Layers that the model and the file have.
    pub loaded: Vec<String>,
    /// Layers that only the model has: they are initialised.
    pub initial: Vec<String>,
    /// Layers that only the file has.
    pub unused: Vec<String>,
}

/// Keras 2's `by_name`: layers of the outermost model by their names, each with all of its weights.
fn by_name(tree: &VarTree, source: &WeightSource) -> Result<(Vec<Origin>, ByName), Vec<ImportError>> {
    let (Naming::Topology { root }, Some(h5)) = (source.naming(), source.as_hdf5()) else {
        let what = "loading by the names of layers from other files than the .h5 of Keras 2".to_string();
        let remedy = Some("leave --by-name out: other files are read by names or positions that are their own");
        return Err(whole_file(ImportErrorKind::Unsupported { what, remedy }));
    };
    let stored = stored_layers(h5, root).map_err(array_error)?;
    let mut named: BTreeMap<&str, &StoredLayer> = stored.iter().map(|layer| (&*layer.name, layer)).collect();
    let writers = Writer::of(h5, root);
    let (mut origins, mut problems, mut report) = (Vec::new(), Vec::new(), ByName::default());
    for layer in &tree.parts {
        let variables = layer.flatten().len();
        match named.remove(&*layer.path) {
            None if variables == 0 => {}
            Some(stored) if variables == 0 && stored.keys.is_empty() => {}
            None => {
                report.initial.push(layer.path.clone());
                origins.extend(vec![Origin::Initial; variables]);
            }
            Some(stored) => match in_order(layer, tree.trainable, &stored.keys, source, (&stored.group, &writers)) {
                Ok(own) => {
                    report.loaded.push(layer.path.clone());
                    origins.extend(own);
                }
                Err(errors) => problems.extend(errors),
            },
        }
    }
    let unused = stored.iter().filter(|layer| named.contains_key(&*layer.name) && !layer.keys.is_empty());
    report.unused = unused.map(|layer| layer.name.clone()).collect();
    if problems.is_empty() { Ok((origins, report)) } else { Err(problems) }
}

/// A layer that is no model, with whether everything around it trains.
struct Leaf<'t> {
    layer: &'t VarTree,
    name: &'t str,
    trains: bool,
}

fn leaves<'t>(model: &'t VarTree, outer_trains: bool, found: &mut Vec<Leaf<'t>>) {
    let trains = outer_trains && model.trainable;
    for layer in &model.parts {
        if matches!(&*layer.class, "Functional" | "Sequential" | "Model") {
            leaves(layer, trains, found);
        } else if !layer.flatten().is_empty() {
            let name = layer.path.strip_prefix(&*model.path).unwrap_or(&layer.path).trim_start_matches('/');
            found.push(Leaf { layer, name, trains });
        }
    }
}

/// No name that Keras makes has more parts.
const MAX_PARTS: usize = 64;

/// TensorFlow.js names a tensor by its layer, with scopes before and cells behind it. Files it wrote itself have Keras's
/// order of weights, converted ones are ordered by layer; each layer's own tensors are in Keras's order in both.
fn by_layer(tree: &VarTree, source: &WeightSource) -> Result<Vec<Origin>, Vec<ImportError>> {
    let mut layers = Vec::new();
    leaves(tree, true, &mut layers);
    // `None` where several layers have the name.
    let mut named: BTreeMap<&str, Option<usize>> = BTreeMap::new();
    for (i, leaf) in layers.iter().enumerate() {
        named.entry(leaf.name).and_modify(|known| *known = None).or_insert(Some(i));
    }
    // Whole paths tell apart what names do not.
    named.extend(layers.iter().enumerate().map(|(i, leaf)| (&*leaf.layer.path, Some(i))));
    let mut keys: Vec<Vec<String>> = vec![Vec::new(); layers.len()];
    let (mut unknown, mut problems) = (Vec::new(), Vec::new());
    for key in source.keys().map_err(array_error)? {
        match layer_of(&key, &named) {
            Some(Some(i)) => keys[i].push(key),
            Some(None) => problems.push(at_weight(
                "",
                ImportErrorKind::Shape(format!("several layers are called as the weight `{key}` says")),
            )),
            None => unknown.push(key),
        }
    }
    if !unknown.is_empty() {
        problems.push(at_weight("", ImportErrorKind::UnknownWeights { keys: unknown }));
    }
    let empty = layers.iter().zip(&keys).filter(|(_, keys)| keys.is_empty());
    let missing: Vec<String> = empty.flat_map(|(leaf, _)| leaf.layer.flatten()).map(|var| var.path.clone()).collect();
    if !missing.is_empty() {
        problems.push(at_weight("", ImportErrorKind::MissingWeights { keys: missing }));
    }
    let mut origins = Vec::new();
    for (leaf, keys) in layers.iter().zip(keys).filter(|(_, keys)| !keys.is_empty()) {
        let keys = ordered(leaf, keys);
        match in_order(leaf.layer, leaf.trains, &keys, source, (leaf.name, &[Writer::CURRENT])) {
            Ok(own) => origins.extend(own),
            Err(errors) => problems.extend(errors),
        }
    }
    if problems.is_empty() { Ok(origins) } else { Err(problems) }
}

/// What the longest part of a tensor's name that is a layer's names.
fn layer_of(key: &str, named: &BTreeMap<&str, Option<usize>>) -> Option<Option<usize>> {
    let starts = std::iter::once(0).chain(key.match_indices('/').map(|(at, _)| at + 1)).take(MAX_PARTS);
    let ends: Vec<usize> = key.match_indices('/').map(|(at, _)| at).take(MAX_PARTS).collect();
    let parts = starts.flat_map(|start| ends.iter().filter(move |&&end| end > start).map(move |&end| &key[start..end]));
    let found = parts.filter_map(|part| Some((part.len(), *named.get(part)?)));
    found.reduce(|best, next| if next.0 > best.0 { next } else { best }).map(|(_, layer)| layer)
}

/// A layer's tensors in Keras's order: by their own names where those tell them apart, else as they are.
fn ordered(leaf: &Leaf<'_>, keys: Vec<String>) -> Vec<String> {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_string();
    let mut vars = leaf.layer.visit(leaf.trains);
    vars.sort_by_key(|var| !var.trainable);
    let places: BTreeMap<String, usize> = vars.iter().enumerate().map(|(i, var)| (last(&var.spec.path), i)).collect();
    let found: BTreeMap<usize, &String> = keys.iter().filter_map(|key| Some((*places.get(&last(key))?, key))).collect();
    if found.len() == keys.len() && keys.len() == vars.len() { found.into_values().cloned().collect() } else { keys }
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
