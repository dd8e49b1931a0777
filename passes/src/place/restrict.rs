//! Which states the named strategies allow.
//!
//! * `data`: every node that touches rows is cut along them; weights are whole everywhere.
//! * `tensor`: nothing is cut along rows; whatever multiplies with a weight, and every contraction of activations, is
//!   cut along something else where it can be.

use super::groups::Group;
use super::search::{Allowed, Space};
use super::states::{NodeStrategy, State};
use crate::hardware::OpClass;
use intwain_ir::{Def, NodeId};

/// Why a strategy is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotOffered(pub(super) String);

impl Space<'_> {
    /// The states of a data split.
    pub(super) fn data(&self) -> Result<Allowed, NotOffered> {
        if !self.groups.has_rows() {
            return Err(NotOffered("no input has a row axis that flows to every output".to_owned()));
        }
        let mut allowed = self.all();
        for (set, layouts) in allowed.params.iter_mut().zip(&self.params) {
            let by_rows = |s: usize| layouts[s].1.is_some_and(|g| self.groups.is_rows(g));
            let cut = set.filter(by_rows);
            *set = if cut.is_empty() { set.filter(|s| layouts[s].1.is_none()) } else { cut };
        }
        for (id, node) in &self.graph.nodes {
            let states = &self.nodes[id];
            let rows = |s: usize| states[s].group.is_some_and(|g| self.groups.is_rows(g));
            let whole = |s: usize| matches!(states[s].strategy, NodeStrategy::Whole | NodeStrategy::Linear(_));
            let set = allowed.nodes[id];
            let reads_rows = node.args.iter().any(|a| self.groups.row_dim(self.graph, *a).is_some());
            let by_rows = set.filter(rows);
            allowed.nodes[id] =
                if reads_rows && !by_rows.is_empty() { by_rows } else { set.filter(|s| rows(s) || whole(s)) };
        }
        Ok(allowed)
    }

    /// The states of a tensor split.
    pub(super) fn tensor(&self) -> Result<Allowed, NotOffered> {
        let mut allowed = self.all();
        let rows = |g: Option<Group>| g.is_some_and(|g| self.groups.is_rows(g));
        for (set, layouts) in allowed.params.iter_mut().zip(&self.params) {
            *set = set.filter(|s| !rows(layouts[s].1));
        }
        let mut split = 0;
        for id in self.graph.nodes.keys() {
            let states = &self.nodes[id];
            let set = allowed.nodes[id].filter(|s| !rows(states[s].group));
            let cut = set.filter(|s| self.must_cut(id, &states[s]));
            allowed.nodes[id] = if cut.is_empty() { set } else { cut };
            if !cut.is_empty() {
                split += 1;
                self.forbid_whole_weights(id, &mut allowed);
            }
        }
        if split == 0 {
            return Err(NotOffered("no layer has channels, heads or a vocabulary that can be cut".to_owned()));
        }
        Ok(allowed)
    }

    /// The weights of a node that is cut are not kept whole, even if it is cut along something else than other readers.
    fn forbid_whole_weights(&self, id: NodeId, allowed: &mut Allowed) {
        for arg in &self.graph.nodes[id].args {
            if let Def::Param(p) = self.graph.values[*arg].def
                && self.prepared[*arg]
            {
                let cut = allowed.params[p].filter(|s| self.params[p][s].0.is_split());
                allowed.params[p] = if cut.is_empty() { allowed.params[p] } else { cut };
            }
        }
    }

    /// Whether a state is one of those that a tensor split insists on.
    fn must_cut(&self, id: NodeId, state: &State) -> bool {
        let node = &self.graph.nodes[id];
        let heavy = match self.works[id].class {
            Some(OpClass::Contraction | OpClass::Convolution | OpClass::Gather | OpClass::Sequential) => true,
            Some(OpClass::Attention | OpClass::Memory) | None => false,
        };
        if !heavy || node.results.iter().all(|r| self.prepared[*r]) {
            return false;
        }
        let is_cut = matches!(state.strategy, NodeStrategy::Cut { .. });
        let weight = |arg: usize| self.prepared[node.args[arg]] && self.graph.ty(node.args[arg]).dtype.is_float();
        let has_weights = (0..node.args.len()).any(weight);
        if !has_weights {
            return is_cut && self.works[id].class == Some(OpClass::Contraction);
        }
        is_cut && (0..node.args.len()).any(|a| weight(a) && state.operands[a].is_split())
    }
}
