//! The arguments of one call, with tensors in place of references.

use std::cell::RefCell;
use std::collections::BTreeSet;

use indexmap::IndexMap;

use super::cx::{Fail, Out, T, unsupported};
use crate::frontend::error::ImportErrorKind;
use crate::frontend::json::Json;

/// An argument.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// A tensor.
    Tensor(T),
    /// A value without tensors.
    Const(Json),
    /// An array from the file.
    Array { value: Json, dtype: String },
    /// A list with tensors in it.
    List(Vec<Item>),
    /// A dictionary with tensors in it.
    Dict(IndexMap<String, Item>),
    /// `start:stop:step`
    Slice(Box<[Item; 3]>),
    /// `...`
    Ellipsis,
}

impl Item {
    /// All tensors as Keras flattens them.
    pub(crate) fn tensors(&self) -> Vec<T> {
        match self {
            Item::Tensor(t) => vec![*t],
            Item::List(items) => items.iter().flat_map(Item::tensors).collect(),
            Item::Dict(map) => {
                let mut sorted: Vec<_> = map.iter().collect();
                sorted.sort_by_key(|(key, _)| *key);
                sorted.into_iter().flat_map(|(_, item)| item.tensors()).collect()
            }
            Item::Slice(parts) => parts.iter().flat_map(Item::tensors).collect(),
            Item::Const(_) | Item::Array { .. } | Item::Ellipsis => Vec::new(),
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Item::Const(Json::Null))
    }

    /// Changes every tensor.
    pub(crate) fn map(&mut self, f: &mut impl FnMut(T) -> Out<T>) -> Out<()> {
        match self {
            Item::Tensor(t) => *t = f(*t)?,
            Item::List(items) => items.iter_mut().try_for_each(|item| item.map(f))?,
            Item::Dict(map) => map.values_mut().try_for_each(|item| item.map(f))?,
            Item::Slice(parts) => parts.iter_mut().try_for_each(|item| item.map(f))?,
            Item::Const(_) | Item::Array { .. } | Item::Ellipsis => {}
        }
        Ok(())
    }
}

/// The arguments of a call, which remember which of them were asked for.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    /// Positional arguments.
    pub(crate) args: Vec<Item>,
    /// Named arguments.
    pub(crate) kwargs: IndexMap<String, Item>,
    asked: RefCell<(usize, BTreeSet<String>)>,
}

impl Inputs {
    /// Arguments of a call.
    pub(crate) fn new(args: Vec<Item>, kwargs: IndexMap<String, Item>) -> Inputs {
        Inputs { args, kwargs, asked: RefCell::default() }
    }

    /// The same arguments, none of them asked for yet.
    pub(crate) fn clone_items(&self) -> Inputs {
        Inputs::new(self.args.clone(), self.kwargs.clone())
    }

    /// A call with one tensor.
    pub(crate) fn single(t: T) -> Inputs {
        Inputs::new(vec![Item::Tensor(t)], IndexMap::new())
    }

    /// The argument with this position and name, `None` where it is absent or `null`.
    pub(crate) fn get(&self, position: usize, name: &str) -> Option<&Item> {
        let mut asked = self.asked.borrow_mut();
        asked.0 = asked.0.max(position + 1);
        asked.1.insert(name.to_string());
        self.args.get(position).or_else(|| self.kwargs.get(name)).filter(|item| !item.is_null())
    }

    /// A named argument, `None` where it is absent or `null`.
    pub(crate) fn named(&self, name: &str) -> Option<&Item> {
        self.asked.borrow_mut().1.insert(name.to_string());
        self.kwargs.get(name).filter(|item| !item.is_null())
    }

    /// The only tensor of the first argument.
    pub(crate) fn one(&self) -> Out<T> {
        match self.many()?.as_slice() {
            [t] => Ok(*t),
            tensors => {
                Err(Fail::Here(ImportErrorKind::Shape(format!("takes one tensor, {} are given", tensors.len()))))
            }
        }
    }

    /// The tensors of the first argument; at least one.
    pub(crate) fn many(&self) -> Out {
        let tensors = self.get(0, "inputs").map(Item::tensors).unwrap_or_default();
        match tensors.is_empty() {
            true => Err(Fail::Here(ImportErrorKind::Shape("is called without a tensor".to_string()))),
            false => Ok(tensors),
        }
    }

    /// A tensor argument, if given.
    pub(crate) fn tensor(&self, position: usize, name: &str) -> Out<Option<T>> {
        match self.get(position, name) {
            None => Ok(None),
            Some(Item::Tensor(t)) => Ok(Some(*t)),
            Some(_) => Err(unsupported(format!("an argument `{name}` that is no tensor"))),
        }
    }

    /// A boolean argument.
    pub(crate) fn flag(&self, name: &str) -> Out<bool> {
        match self.named(name) {
            None => Ok(false),
            Some(Item::Const(Json::Bool(b))) => Ok(*b),
            Some(_) => Err(unsupported(format!("an argument `{name}` that is no boolean"))),
        }
    }

    /// Refuses what nobody asked for.
    pub(crate) fn finish(&self) -> Out<()> {
        let asked = self.asked.borrow();
        if self.args.iter().skip(asked.0).any(|item| !item.is_null()) {
            return Err(unsupported(format!("a call with {} positional arguments", self.args.len())));
        }
        // Keras 3 writes both on every call; the command decides whether a model trains.
        let known = |name: &str| asked.1.contains(name) || matches!(name, "training" | "name");
        // Early Keras 2 wrote a mask for each tensor of a list, which mostly are all null.
        let says_nothing = |name: &str, item: &Item| match item {
            Item::Const(Json::Array(masks)) => name == "mask" && masks.iter().all(|mask| *mask == Json::Null),
            item => item.is_null(),
        };
        match self.kwargs.iter().find(|(name, item)| !known(name) && !says_nothing(name, item)) {
            Some((name, _)) => Err(unsupported(format!("the call argument `{name}`"))),
            None => Ok(()),
        }
    }
}
