//! Costs over the states of a few nodes.

use super::NodeIdx;

/// A cost for every combination of states of the nodes in `scope`, row-major, last node fastest.
#[derive(Clone, Debug)]
pub(super) struct Table {
    /// Ascending.
    pub(super) scope: Vec<NodeIdx>,
    pub(super) costs: Vec<f64>,
}

impl Table {
    pub(super) fn new(scope: Vec<NodeIdx>, costs: Vec<f64>) -> Table {
        debug_assert!(scope.is_sorted());
        Table { scope, costs }
    }

    pub(super) fn minimum(&self) -> f64 {
        self.costs.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The entry under a full assignment.
    pub(super) fn at(&self, sizes: &[usize], states: &[usize]) -> f64 {
        self.costs[self.scope.iter().fold(0, |index, &node| index * sizes[node] + states[node])]
    }

    /// For every node of `over`, by how much the index into this table grows when the node's state grows by one.
    pub(super) fn strides_over(&self, over: &[NodeIdx], sizes: &[usize]) -> Vec<usize> {
        over.iter()
            .map(|node| match self.scope.binary_search(node) {
                Ok(at) => self.scope[at + 1..].iter().map(|&n| sizes[n]).product(),
                Err(_) => 0,
            })
            .collect()
    }
}
