//! The order in which Keras 3 runs the calls of a model.
//!
//! Any order gives the same values but where multi-head attention takes the masks off its arguments: who runs before it
//! still sees them, who runs behind it does not.

use std::collections::BTreeMap;

use indexmap::IndexMap;

use crate::frontend::file::Generation;
use crate::frontend::model::{Arg, KerasModel, LayerBody, Source};

/// Whether the order of calls can tell in a model.
pub(super) fn matters(model: &KerasModel) -> bool {
    model.generation == Generation::Three && takes_masks_off(model)
}

fn takes_masks_off(model: &KerasModel) -> bool {
    model.layers.iter().any(|layer| match &layer.body {
        LayerBody::Model(inner) => takes_masks_off(inner),
        LayerBody::Leaf(_) => layer.class == "MultiHeadAttention",
        LayerBody::Input(_) => false,
    })
}

/// Positions in [`KerasModel::calls`] in Keras's order: by distance from the outputs, the farthest first. Calls that no
/// output depends on come last.
pub(super) fn as_run(model: &KerasModel) -> Vec<usize> {
    let position: BTreeMap<(usize, usize), usize> =
        model.calls.iter().enumerate().map(|(i, c)| ((c.layer, c.call), i)).collect();
    let at = |s: &Source| position.get(&(s.layer, s.call)).copied();
    let parents: Vec<Vec<usize>> = model
        .calls
        .iter()
        .map(|c| {
            // Keras flattens named arguments by sorted name.
            let mut named: Vec<_> = c.kwargs.iter().collect();
            named.sort_by_key(|(name, _)| *name);
            let tensors = c.args.iter().chain(named.into_iter().map(|(_, arg)| arg)).flat_map(Arg::tensors);
            tensors.filter_map(|s| at(&s)).collect()
        })
        .collect();
    let finished = depth_first(&parents, model.outputs.iter().filter_map(at));
    let mut depths: IndexMap<usize, usize> = IndexMap::new();
    let mut of_layer: BTreeMap<usize, usize> = BTreeMap::new();
    for &call in finished.iter().rev() {
        let layer = of_layer.entry(model.calls[call].layer).or_default();
        let depth = depths.entry(call).or_default();
        // All calls of a shared layer are as far away as the farthest seen so far.
        *depth = (*depth).max(*layer);
        *layer = *depth;
        let next = *depth + 1;
        for &parent in &parents[call] {
            let depth = depths.entry(parent).or_default();
            *depth = (*depth).max(next);
        }
    }
    let mut order: Vec<usize> = depths.keys().copied().collect();
    order.sort_by_key(|call| std::cmp::Reverse(depths[call]));
    order.extend((0..model.calls.len()).filter(|call| !depths.contains_key(call)));
    order
}

/// What the outputs depend on, each behind what it depends on itself.
fn depth_first(parents: &[Vec<usize>], outputs: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut entered = vec![false; parents.len()];
    let mut finished = Vec::new();
    for output in outputs {
        let mut path = if entered[output] { Vec::new() } else { vec![(output, 0)] };
        entered[output] = true;
        while let Some((call, next)) = path.last_mut() {
            match parents[*call].get(*next) {
                Some(&parent) => {
                    *next += 1;
                    if !entered[parent] {
                        entered[parent] = true;
                        path.push((parent, 0));
                    }
                }
                None => {
                    finished.push(*call);
                    path.pop();
                }
            }
        }
    }
    finished
}
