//! Search of a residue whose tables are too large to eliminate: node by node, the cheapest partial assignments are kept.
//!
//! Partial assignments that agree in all nodes that later tables mention go on alike, so only the cheapest of them is kept.
//! While no other is dropped, what is found is the cheapest of all.

use super::NodeIdx;
use super::table::Table;
use std::collections::HashSet;

/// What a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    /// No assignment is cheaper.
    Cheapest,
    /// Some were dropped that might have become cheaper.
    Cheap,
}

/// A partial assignment: one of those of the node before, and the state of this node.
struct Step {
    before: usize,
    state: u8,
}

/// Partial assignments up to a node, cheapest first.
struct Beam {
    costs: Vec<f64>,
    /// The nodes so far that later tables mention, ascending.
    mentioned: Vec<NodeIdx>,
    /// Their states, for one partial assignment after the other.
    states: Vec<u8>,
}

/// Writes good states for the nodes of `residue` into `states`; `None` if every kept assignment became forbidden.
pub(super) fn run(
    sizes: &[usize],
    residue: &[NodeIdx],
    tables: &[Table],
    width: usize,
    states: &mut [usize],
) -> Option<Found> {
    // A table is charged when the last of its nodes is assigned.
    let position = |node: NodeIdx| residue.binary_search(&node).expect("tables are over the residue");
    let mut charged: Vec<Vec<&Table>> = vec![Vec::new(); residue.len()];
    let mut needed = vec![0; residue.len()];
    for table in tables {
        let last = table.scope.iter().map(|&n| position(n)).max().expect("a table mentions a node");
        charged[last].push(table);
        table.scope.iter().for_each(|&n| needed[position(n)] = needed[position(n)].max(last));
    }
    let mut found = Found::Cheapest;
    let mut beam = Beam { costs: vec![0.0], mentioned: Vec::new(), states: Vec::new() };
    let mut steps: Vec<Vec<Step>> = Vec::new();
    let mut scratch = vec![0; sizes.len()];
    for (at, &node) in residue.iter().enumerate() {
        let all = beam.extended(node, sizes, &charged[at], &mut scratch);
        let together = beam.mentioned.iter().copied().chain([node]);
        let mentioned = together.filter(|&n| needed[position(n)] > at).collect();
        let (next, kept, all) = beam.cheapest(node, all, mentioned, width);
        found = found.max(all);
        beam = next;
        steps.push(kept);
    }
    (!beam.costs.is_empty()).then_some(())?;
    let mut entry = 0;
    for (&node, kept) in residue.iter().zip(&steps).rev() {
        let step = &kept[entry];
        states[node] = usize::from(step.state);
        entry = step.before;
    }
    Some(found)
}

impl Beam {
    fn states_of(&self, entry: usize) -> &[u8] {
        &self.states[entry * self.mentioned.len()..][..self.mentioned.len()]
    }

    /// All that cost something finite with the next node in each of its states, cheapest first.
    fn extended(&self, node: NodeIdx, sizes: &[usize], charged: &[&Table], scratch: &mut [usize]) -> Vec<(f64, Step)> {
        let mut all = Vec::with_capacity(self.costs.len() * sizes[node]);
        for (before, cost) in self.costs.iter().enumerate() {
            for (&n, &state) in self.mentioned.iter().zip(self.states_of(before)) {
                scratch[n] = usize::from(state);
            }
            for state in 0..sizes[node] {
                scratch[node] = state;
                let cost = cost + charged.iter().map(|t| t.at(sizes, scratch)).sum::<f64>();
                if cost.is_finite() {
                    all.push((cost, Step { before, state: state as u8 }));
                }
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        all
    }

    /// The cheapest `width` of those that differ in a node that is mentioned later, and whether these are all.
    fn cheapest(
        &self,
        node: NodeIdx,
        all: Vec<(f64, Step)>,
        mentioned: Vec<NodeIdx>,
        width: usize,
    ) -> (Beam, Vec<Step>, Found) {
        let mut next = Beam { costs: Vec::new(), mentioned, states: Vec::new() };
        // Where each mentioned node stands among the old ones; the new node is none of them.
        let places: Vec<Option<usize>> = next.mentioned.iter().map(|n| self.mentioned.binary_search(n).ok()).collect();
        debug_assert!(next.mentioned.iter().zip(&places).all(|(n, place)| place.is_some() || *n == node));
        let (mut seen, mut kept) = (HashSet::new(), Vec::new());
        for (cost, step) in all {
            let before = self.states_of(step.before);
            let states: Vec<u8> = places.iter().map(|place| place.map_or(step.state, |p| before[p])).collect();
            if seen.contains(&states) {
                continue;
            }
            if kept.len() == width {
                return (next, kept, Found::Cheap);
            }
            next.costs.push(cost);
            next.states.extend_from_slice(&states);
            kept.push(step);
            seen.insert(states);
        }
        (next, kept, Found::Cheapest)
    }
}
