//! Removes states that cannot be needed before anything is eliminated.
//!
//! A state is dominated if another of the same node costs no more, whatever the neighbours do: the difference of their
//! own costs and the least difference over each edge add up to no gain. Removing it keeps an optimal assignment. Most
//! states of most nodes go this way, and the tables of the elimination get small.

use super::{Edge, NodeIdx, StateSet};
use std::collections::BTreeSet;

/// The states that are left of the allowed ones. A node may be left without any: then no assignment is allowed.
pub(super) fn run(nodes: &[Vec<f64>], edges: &[Edge], mut alive: Vec<StateSet>) -> Vec<StateSet> {
    let mut incident: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, edge) in edges.iter().enumerate() {
        edge.ends.iter().for_each(|&end| incident[end].push(at));
    }
    for (node, costs) in nodes.iter().enumerate() {
        alive[node] = alive[node].filter(|s| s < costs.len() && costs[s].is_finite());
    }
    let mut work: BTreeSet<NodeIdx> = (0..nodes.len()).collect();
    while let Some(node) = work.pop_first() {
        let left = Local { nodes, edges, incident: &incident[node], alive: &alive, node }.undominated();
        if left != alive[node] {
            alive[node] = left;
            work.extend(incident[node].iter().map(|&e| edges[e].other(node)));
        }
    }
    alive
}

struct Local<'a> {
    nodes: &'a [Vec<f64>],
    edges: &'a [Edge],
    incident: &'a [usize],
    alive: &'a [StateSet],
    node: NodeIdx,
}

impl Local<'_> {
    /// The states of the node that no other makes superfluous. Of equal ones the lowest stays.
    fn undominated(&self) -> StateSet {
        let mut left = self.alive[self.node].filter(|s| self.incident.iter().all(|&e| self.has_partner(e, s)));
        for state in (0..self.nodes[self.node].len()).rev().filter(|&s| left.contains(s)).collect::<Vec<_>>() {
            let superfluous = (0..self.nodes[self.node].len()).filter(|&t| t != state && left.contains(t)).any(|t| {
                let gain = self.least_gain(state, t);
                gain > 0.0 || (gain == 0.0 && t < state)
            });
            if superfluous {
                left = left.filter(|s| s != state);
            }
        }
        left
    }

    /// Whether a neighbour has a state that goes with this one.
    fn has_partner(&self, edge: usize, state: usize) -> bool {
        let other = self.edges[edge].other(self.node);
        (0..self.nodes[other].len()).any(|s| self.alive[other].contains(s) && self.cost(edge, state, s).is_finite())
    }

    /// The least that an assignment gets cheaper by changing the node from one state to another.
    fn least_gain(&self, from: usize, to: usize) -> f64 {
        let costs = &self.nodes[self.node];
        let mut gain = costs[from] - costs[to];
        for &edge in self.incident {
            let other = self.edges[edge].other(self.node);
            let mut least = f64::INFINITY;
            for s in (0..self.nodes[other].len()).filter(|&s| self.alive[other].contains(s)) {
                let (before, after) = (self.cost(edge, from, s), self.cost(edge, to, s));
                // Where the present state is forbidden, nothing is lost.
                if before.is_finite() {
                    least = least.min(before - after);
                }
            }
            gain += least;
            if gain == f64::NEG_INFINITY {
                return gain;
            }
        }
        gain
    }

    fn cost(&self, edge: usize, state: usize, other: usize) -> f64 {
        let e = &self.edges[edge];
        let columns = self.nodes[e.ends[1]].len();
        match e.ends[0] == self.node {
            true => e.costs[state * columns + other],
            false => e.costs[other * columns + state],
        }
    }
}
