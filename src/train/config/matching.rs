//! Which of the things said belongs to which output.
//!
//! Keras 3: one loss holds for all outputs, a list follows their order, a dictionary names all of them (of those in a
//! dictionary, some). Metrics come as a list with an entry for each output, or by name. Keras 2 takes a flat list of metrics
//! for every output, and dictionaries need not name all.

use super::Outputs;
use super::tree::Tree;
use crate::frontend::{At, ImportError, ImportErrorKind, Nest};

/// Whose rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rules {
    Keras3,
    Keras2,
}

/// The loss of each output.
pub(super) fn losses<'j>(tree: &Tree<'j>, outputs: &Outputs, rules: Rules) -> Result<Vec<Option<At<'j>>>, ImportError> {
    let n = outputs.names.len();
    let places = match tree {
        Tree::Everywhere(things) if things.len() == 1 => vec![Tree::One(things[0].clone()); n],
        tree => spread(tree, outputs)?,
    };
    if let (Rules::Keras3, Tree::Named(at, entries), Nest::One | Nest::List(_)) = (rules, tree, &outputs.nest)
        && let Some(missing) = (0..n).find(|&i| entry(entries, outputs, i).is_none())
    {
        return Err(at.error(ImportErrorKind::MissingKey { key: outputs.names[missing].clone() }));
    }
    places.iter().map(|place| one(place, "loss")).collect()
}

/// What the loss of each output is multiplied by.
pub(super) fn weights(
    tree: &Tree<'_>,
    losses: &Tree<'_>,
    outputs: &Outputs,
    rules: Rules,
) -> Result<Vec<f64>, ImportError> {
    let n = outputs.names.len();
    match (tree, rules) {
        (Tree::One(at), Rules::Keras3) if losses.is_nested() && n > 1 => {
            return Err(fit(at, format!("one weight for the losses of {n} outputs")));
        }
        // In this order Keras 3 takes the numbers out of a dictionary.
        (Tree::Named(at, _), Rules::Keras3) if matches!(losses, Tree::List(..)) && !outputs.names.is_sorted() => {
            return Err(at.unsupported("weights by name for a list of losses"));
        }
        (Tree::List(at, items), _) if items.len() != n && !items.iter().any(Tree::is_nested) => {
            return Err(fit(at, format!("{} weights for the losses of {n} outputs", items.len())));
        }
        _ => {}
    }
    let places = match tree {
        Tree::Everywhere(things) if things.len() == n => things.iter().cloned().map(Tree::One).collect(),
        Tree::Everywhere(things) if things.len() == 1 => vec![Tree::One(things[0].clone()); n],
        tree => spread(tree, outputs)?,
    };
    places.iter().map(|place| one(place, "weight")?.map_or(Ok(1.0), |at| at.f64())).collect()
}

/// The metrics of each output.
pub(super) fn metrics<'j>(tree: &Tree<'j>, outputs: &Outputs, rules: Rules) -> Result<Vec<Vec<At<'j>>>, ImportError> {
    let n = outputs.names.len();
    let everywhere = match (tree, rules) {
        (Tree::Everywhere(_) | Tree::One(_), _) => true,
        (Tree::List(_, items), Rules::Keras2) => !items.iter().any(Tree::is_nested),
        (Tree::Nothing | Tree::List(..) | Tree::Named(..), _) => false,
    };
    match tree {
        tree if everywhere => Ok(vec![tree.things(); n]),
        Tree::List(_, items) if items.is_empty() => Ok(vec![Vec::new(); n]),
        Tree::List(..) if n == 1 => Ok(vec![tree.things()]),
        Tree::List(at, items) if matches!(&outputs.nest, Nest::List(nests) if nests.len() != items.len()) => {
            Err(fit(at, format!("{} entries of metrics for {n} outputs", items.len())))
        }
        tree => Ok(spread(tree, outputs)?.iter().map(Tree::things).collect()),
    }
}

fn fit(at: &At<'_>, what: String) -> ImportError {
    at.error(ImportErrorKind::Shape(what))
}

/// The only thing at a place.
fn one<'j>(place: &Tree<'j>, what: &str) -> Result<Option<At<'j>>, ImportError> {
    match place {
        Tree::Nothing => Ok(None),
        Tree::One(at) => Ok(Some(at.clone())),
        Tree::List(_, items) if items.len() == 1 => one(&items[0], what),
        place => {
            let n = place.things().len();
            let at = place.at().expect("what is not nothing stands somewhere");
            Err(fit(at, format!("{n} of them where an output has one {what}")))
        }
    }
}

/// What a dictionary says of an output.
fn entry<'t, 'j>(entries: &'t [(&'j str, Tree<'j>)], outputs: &Outputs, output: usize) -> Option<&'t Tree<'j>> {
    let named = |name: &str| entries.iter().find(|(key, _)| *key == name).map(|(_, tree)| tree);
    named(&outputs.names[output]).or_else(|| named(&outputs.layers[output]))
}

/// What is said for each output.
fn spread<'j>(tree: &Tree<'j>, outputs: &Outputs) -> Result<Vec<Tree<'j>>, ImportError> {
    let is_by_name = |nest: &Nest| matches!(nest, Nest::One | Nest::List(_));
    let Tree::Named(at, entries) = tree else { return arranged(tree, &outputs.nest) };
    if !is_by_name(&outputs.nest) {
        return arranged(tree, &outputs.nest);
    }
    for (key, item) in entries {
        if !outputs.names.iter().chain(&outputs.layers).any(|name| name == key) {
            return Err(unknown(at, key, item, outputs.names.iter().map(String::as_str).collect()));
        }
    }
    let of = |output| entry(entries, outputs, output).cloned().unwrap_or(Tree::Nothing);
    Ok((0..outputs.names.len()).map(of).collect())
}

fn unknown(at: &At<'_>, key: &str, item: &Tree<'_>, names: Vec<&str>) -> ImportError {
    let found = crate::frontend::Json::String(key.to_string());
    let place = item.at().unwrap_or(at);
    At { json: &found, path: place.path.clone(), layer: None }.accepted(&names)
}

/// What is said for each tensor of a nest, by structure.
fn arranged<'j>(tree: &Tree<'j>, nest: &Nest) -> Result<Vec<Tree<'j>>, ImportError> {
    let n = tensors(nest);
    match (nest, tree) {
        (Nest::One, tree) => Ok(vec![tree.clone()]),
        (Nest::List(_) | Nest::Named(_), Tree::Nothing | Tree::Everywhere(_) | Tree::One(_)) => {
            Ok(vec![tree.clone(); n])
        }
        (_, Tree::List(_, items)) if items.len() == n && !items.iter().any(Tree::is_nested) => Ok(items.clone()),
        (Nest::List(nests), Tree::List(at, items)) => {
            if items.len() > nests.len() {
                return Err(fit(at, format!("{} entries for {} outputs", items.len(), nests.len())));
            }
            let of = |(i, nest)| arranged(items.get(i).unwrap_or(&Tree::Nothing), nest);
            Ok(nests.iter().enumerate().map(of).collect::<Result<Vec<_>, _>>()?.concat())
        }
        (Nest::Named(nests), Tree::Named(at, entries)) => {
            if let Some((key, item)) = entries.iter().find(|(key, _)| !nests.iter().any(|(name, _)| name == key)) {
                return Err(unknown(at, key, item, nests.iter().map(|(name, _)| name.as_str()).collect()));
            }
            let of = |(name, nest): &(String, Nest)| {
                let item = entries.iter().find(|(key, _)| key == name).map(|(_, item)| item);
                arranged(item.unwrap_or(&Tree::Nothing), nest)
            };
            Ok(nests.iter().map(of).collect::<Result<Vec<_>, _>>()?.concat())
        }
        (Nest::Named(_), Tree::List(at, _)) => Err(at.expected("an object with the keys of the model's outputs")),
        (Nest::List(_), Tree::Named(at, _)) => Err(at.expected("a list with an entry for each output")),
    }
}

fn tensors(nest: &Nest) -> usize {
    match nest {
        Nest::One => 1,
        Nest::List(nests) => nests.iter().map(tensors).sum(),
        Nest::Named(nests) => nests.iter().map(|(_, nest)| tensors(nest)).sum(),
    }
}
