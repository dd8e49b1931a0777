//! The tensors a call takes, in place of references to the calls that give them.

use std::collections::{BTreeMap, BTreeSet};

use crate::frontend::layers::cx::{Out, T};
use crate::frontend::layers::inputs::{Inputs, Item};
use crate::frontend::layers::masks;
use crate::frontend::model::{Arg, KerasModel, Source};

/// What the calls of a model have given so far.
#[derive(Default)]
pub(super) struct Results {
    pub(super) tensors: BTreeMap<(usize, usize), Vec<T>>,
    /// Calls that stand for something that could not be imported.
    pub(super) guessed: BTreeSet<(usize, usize)>,
}

impl Results {
    /// The tensor of a source; `None` where the call is missing, `Some(None)` where it has fewer results.
    pub(super) fn find(&self, s: &Source) -> Option<Option<T>> {
        let of_call = self.tensors.get(&(s.layer, s.call))?;
        // A guess has one tensor, whichever is asked for.
        let guess = of_call.first().filter(|_| self.guessed.contains(&(s.layer, s.call)));
        Some(of_call.get(s.tensor).or(guess).copied())
    }
}

/// A reference that has no tensor.
pub(super) enum Missing {
    /// The call it names could not be imported.
    Call,
    /// The call has fewer results.
    Result(Source),
}

pub(super) fn resolve_all(args: &[Arg], find: &impl Fn(&Source) -> Option<Option<T>>) -> Result<Vec<Item>, Missing> {
    args.iter().map(|a| resolve(a, find)).collect()
}

pub(super) fn resolve(arg: &Arg, find: &impl Fn(&Source) -> Option<Option<T>>) -> Result<Item, Missing> {
    Ok(match arg {
        Arg::Tensor(source) => match find(source) {
            Some(Some(t)) => Item::Tensor(t),
            Some(None) => return Err(Missing::Result(*source)),
            None => return Err(Missing::Call),
        },
        Arg::Const(json) => Item::Const(json.clone()),
        Arg::Array { value, dtype } => Item::Array { value: value.clone(), dtype: dtype.clone() },
        Arg::List(items) => Item::List(resolve_all(items, find)?),
        Arg::Dict(map) => {
            Item::Dict(map.iter().map(|(k, a)| Ok((k.clone(), resolve(a, find)?))).collect::<Result<_, Missing>>()?)
        }
        Arg::Slice(parts) => {
            let [a, b, c] = &**parts;
            Item::Slice(Box::new([resolve(a, find)?, resolve(b, find)?, resolve(c, find)?]))
        }
        Arg::Ellipsis => Item::Ellipsis,
    })
}

/// The tensors a nested model is called with, in its own order: by name where a dictionary names its inputs.
pub(super) fn arguments(model: &KerasModel, inputs: &Inputs) -> Out {
    if let Some(Item::Dict(map)) = inputs.get(0, "inputs") {
        let specs = model.input_specs();
        let named = specs.iter().map(|(name, _)| match map.get(*name).map(Item::tensors).as_deref() {
            Some([t]) => Some(*t),
            Some(_) | None => None,
        });
        if let Some(tensors) = named.collect::<Option<Vec<T>>>() {
            return Ok(tensors);
        }
    }
    inputs.many()
}

/// The same tensors with the masks of an argument `mask`, where there is one.
pub(super) fn masked(mut tensors: Vec<T>, inputs: &Inputs) -> Vec<T> {
    if let Some(item) = inputs.named("mask") {
        for (t, mask) in tensors.iter_mut().zip(masks::values(item)) {
            t.mask = mask.or(t.mask);
        }
    }
    tensors
}
