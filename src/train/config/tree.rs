//! What was said, arranged as it was: one thing, lists and dictionaries of things.

use crate::frontend::{At, ImportError, Json};

/// Things in lists and dictionaries.
#[derive(Clone, Debug)]
pub(super) enum Tree<'j> {
    /// Nothing is said.
    Nothing,
    /// Things that hold for every output.
    Everywhere(Vec<At<'j>>),
    /// One thing: a name, a number, an object of Keras.
    One(At<'j>),
    /// A list, and where it stands.
    List(At<'j>, Vec<Tree<'j>>),
    /// A dictionary in the order of the file, and where it stands.
    Named(At<'j>, Vec<(&'j str, Tree<'j>)>),
}

impl<'j> Tree<'j> {
    /// Reads the arrangement. Objects with a class are things.
    pub(super) fn of(at: &At<'j>) -> Result<Tree<'j>, ImportError> {
        match at.json {
            Json::Null => Ok(Tree::Nothing),
            Json::Array(_) => {
                let items = at.array()?;
                Ok(Tree::List(at.clone(), items.iter().map(Tree::of).collect::<Result<_, _>>()?))
            }
            Json::Object(map) => match map.get("class_name").and_then(Json::as_str) {
                Some("__tuple__") => Tree::of(&at.require("config")?.require("value")?),
                Some(_) => Ok(Tree::One(at.clone())),
                None => {
                    let entries = at.entries()?.into_iter();
                    let entries = entries.map(|(key, item)| Ok((key, Tree::of(&item)?)));
                    Ok(Tree::Named(at.clone(), entries.collect::<Result<_, ImportError>>()?))
                }
            },
            Json::Bool(_) => Err(at.expected("a name, an object of Keras, or lists and dictionaries of them")),
            Json::Int(_) | Json::Float(_) | Json::String(_) => Ok(Tree::One(at.clone())),
        }
    }

    /// Whether this is a list or a dictionary.
    pub(super) fn is_nested(&self) -> bool {
        match self {
            Tree::List(..) | Tree::Named(..) => true,
            Tree::Nothing | Tree::Everywhere(_) | Tree::One(_) => false,
        }
    }

    /// Where it stands, of all but nothing.
    pub(super) fn at(&self) -> Option<&At<'j>> {
        match self {
            Tree::Nothing => None,
            Tree::Everywhere(things) => things.first(),
            Tree::One(at) | Tree::List(at, _) | Tree::Named(at, _) => Some(at),
        }
    }

    /// All things in it, dictionaries by sorted key as Keras flattens them.
    pub(super) fn things(&self) -> Vec<At<'j>> {
        match self {
            Tree::Nothing => Vec::new(),
            Tree::Everywhere(things) => things.clone(),
            Tree::One(at) => vec![at.clone()],
            Tree::List(_, items) => items.iter().flat_map(Tree::things).collect(),
            Tree::Named(_, entries) => {
                let mut entries: Vec<_> = entries.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                entries.into_iter().flat_map(|(_, item)| item.things()).collect()
            }
        }
    }
}
