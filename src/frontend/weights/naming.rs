//! The schemes by which files name tensors: by path, by position, by topology, by layer names, and TensorFlow.js's.

use std::collections::{BTreeMap, BTreeSet};

use super::{Origin, Slot, VarTree, array_error, at_weight, in_order, whole_file};
use crate::arrays::ArrayError;
use crate::frontend::error::{ImportError, ImportErrorKind};
use crate::frontend::hdf5::H5;
use crate::frontend::keras1::Writer;
use crate::frontend::names::snake_case;
use crate::frontend::source::{Naming, WeightSource};

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

pub(super) fn by_path(tree: &VarTree, source: &WeightSource) -> Result<Vec<String>, Vec<ImportError>> {
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

pub(super) fn by_position(tree: &VarTree, source: &WeightSource) -> Result<Vec<String>, Vec<ImportError>> {
    let all = source.keys().map_err(array_error)?;
    let present: BTreeSet<&str> = all.iter().map(String::as_str).collect();
    let old = present.iter().any(|k| k.starts_with("_layer_checkpoint_dependencies/"));
    let candidates: &[Dialect] = match old && !present.iter().any(|k| k.starts_with("layers/")) {
        true => &[Dialect::DependenciesOnce, Dialect::Dependencies],
        false => &[Dialect::Current],
    };
    let attempts = candidates.iter().map(|dialect| {
        let mut found = Positions::default();
        positions(tree, "", *dialect, &present, &mut found);
        found
    });
    let attempts: Vec<Positions> = attempts.collect();
    let complete = attempts.iter().position(|found| found.keys.iter().all(|k| present.contains(k.as_str())));
    let found = attempts.into_iter().nth(complete.unwrap_or(0)).expect("there is at least one candidate");
    let weights: Vec<&str> = all.iter().map(String::as_str).filter(|k| !is_state(k)).collect();
    settle(&found.keys, &weights, |key| found.repeated.iter().any(|(again, _)| again == key))?;
    Ok(found.keys)
}

/// Where a file of Keras 3 has what a tree holds.
#[derive(Debug, Default)]
pub(crate) struct Positions {
    /// The key of every variable, in the order of [`VarTree::flatten`].
    pub(crate) keys: Vec<String>,
    /// Keys under which variables are stored once more, and which these are.
    pub(crate) repeated: Vec<(String, usize)>,
    /// The group of every layer and model, also of those without variables, and its path in the model.
    pub(crate) groups: Vec<(String, String)>,
}

impl Positions {
    /// Where Keras 3 stores what a tree holds.
    pub(crate) fn of(tree: &VarTree) -> Positions {
        let mut found = Positions::default();
        positions(tree, "", Dialect::Current, &BTreeSet::new(), &mut found);
        found
    }
}

/// The variables of each layer of the outermost model by their places in [`VarTree::flatten`], in the order in which files
/// of topology list them: those that train before the others.
pub(crate) fn topology(tree: &VarTree) -> Vec<(&VarTree, Vec<usize>)> {
    let mut first = tree.vars.len();
    let layer = |layer| {
        let vars = VarTree::visit(layer, tree.trainable);
        let mut order: Vec<usize> = (0..vars.len()).collect();
        order.sort_by_key(|&i| !vars[i].trainable);
        order.iter_mut().for_each(|i| *i += first);
        first += vars.len();
        (layer, order)
    };
    tree.parts.iter().map(layer).collect()
}

/// What a `.weights.h5` holds beside weights: the optimizer, metrics, and the states of random generators.
fn is_state(key: &str) -> bool {
    let in_layers =
        key.starts_with("layers/") || key.starts_with("_layer_checkpoint_dependencies/") || key.starts_with("vars/");
    !in_layers || key.split('/').any(|part| part.ends_with("seed_generator") || part == "random_generator")
}

fn positions(tree: &VarTree, path: &str, dialect: Dialect, present: &BTreeSet<&str>, found: &mut Positions) {
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
    let parts = found.keys.len() + own.len();
    found.repeated.extend((0..tree.repeated).map(|stored| (join(&format!("vars/{stored}")), parts + stored)));
    found.keys.extend(own);
    found.groups.push((join("vars"), tree.path.clone()));
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for part in &tree.parts {
        let group = match part.slot {
            Slot::Attribute(name) => {
                let plain = join(name);
                // tf.keras keeps the projections of attention layers in private attributes.
                let private = join(&format!("_{name}"));
                let below = |group: &str| present.iter().any(|k| k.starts_with(&format!("{group}/")));
                // Keras 3 gives those of multi-head attention public names but for the gate, and those of grouped
                // queries none: what counts where no file says it.
                let unnamed = name == "gate_dense" || tree.class.ends_with("QueryAttention");
                let is_private = if present.is_empty() { unnamed && name.ends_with("_dense") } else { below(&private) };
                if is_private && !below(&plain) { private } else { plain }
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
        positions(part, &group, dialect, present, found);
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
pub(super) fn by_topology(tree: &VarTree, source: &WeightSource, root: &str) -> Result<Vec<Origin>, Vec<ImportError>> {
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
pub(super) fn by_name(tree: &VarTree, source: &WeightSource) -> Result<(Vec<Origin>, ByName), Vec<ImportError>> {
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
pub(super) fn by_layer(tree: &VarTree, source: &WeightSource) -> Result<Vec<Origin>, Vec<ImportError>> {
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
