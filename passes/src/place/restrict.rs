//! Which states the named strategies allow.
//!
//! * `data`: every node that touches rows is cut along them; weights are whole everywhere, but for what `sharding` says.
//! * `tensor`: nothing is cut along rows; whatever multiplies with a weight, and every contraction of activations, is
//!   cut along something else where it can be.

use super::groups::Group;
use super::search::{Allowed, Space};
use super::sharding::StateSharding;
use super::states::{NodeStrategy, State, Sums};
use crate::hardware::OpClass;
use intwain_ir::{Def, NodeId, Value};

/// Why a strategy is not offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotOffered(pub(super) String);

impl Space<'_> {
    /// The states of a data split.
    pub(super) fn data(&self) -> Result<Allowed, NotOffered> {
        if !self.groups.has_rows() {
            return Err(NotOffered("no input has a row axis that flows to every output".to_owned()));
        }
        self.between_blocks()?;
        let mut allowed = self.all();
        for (at, (set, layouts)) in allowed.params.iter_mut().zip(&self.params).enumerate() {
            let by_rows = |s: usize| layouts[s].1.is_some_and(|g| self.groups.is_rows(g));
            let (cut, parts) = (set.filter(by_rows), set.filter(|s| layouts[s].1.is_some()));
            *set = match (cut.is_empty(), self.is_divided(at) && !parts.is_empty()) {
                (false, _) => cut,
                (true, true) => parts,
                (true, false) => set.filter(|s| layouts[s].1.is_none()),
            };
        }
        for (id, node) in &self.graph.nodes {
            let states = &self.nodes[id];
            let rows = |s: usize| states[s].group.is_some_and(|g| self.groups.is_rows(g));
            let whole = |s: usize| match states[s].strategy {
                NodeStrategy::Whole => true,
                NodeStrategy::Linear(_) => self.sums == Sums::Divided,
                NodeStrategy::Cut { .. } | NodeStrategy::On(_) => false,
            };
            let set = allowed.nodes[id];
            let has_rows = |v: &Value| self.groups.row_dim(self.graph, *v).is_some();
            let reads_rows = node.args.iter().any(has_rows);
            let by_rows = set.filter(rows);
            // What states become may be computed in their parts, and what they become it from.
            let parts = match self.sharding.states {
                StateSharding::Replicated => false,
                StateSharding::Slots => !reads_rows,
                StateSharding::Gradients | StateSharding::Variables => true,
            } && !node.results.iter().any(has_rows);
            let divided = |s: usize| {
                let is_exact = self.sums == Sums::Divided || !states[s].divides_sums(self.graph, id);
                parts && is_exact && matches!(states[s].strategy, NodeStrategy::Cut { .. })
            };
            allowed.nodes[id] = if reads_rows && !by_rows.is_empty() {
                by_rows
            } else {
                set.filter(|s| rows(s) || whole(s) || divided(s))
            };
        }
        Ok(allowed)
    }

    /// Whether a parameter is one that is to be kept in parts.
    pub(super) fn is_divided(&self, param: usize) -> bool {
        let bytes = self.graph.ty(self.graph.params[param].value).bytes();
        self.sharding.covers(self.roles[param]) && bytes >= self.sharding.whole_below
    }

    /// Refuses parts of the rows that end within a block.
    fn between_blocks(&self) -> Result<(), NotOffered> {
        let (Sums::RowsWhole, Some(parts)) = (self.sums, self.parts) else { return Ok(()) };
        let rows = self.graph.inputs().find_map(|p| {
            let shape = self.graph.shape(p.value);
            let group = shape.first().map(|_| self.groups.of(p.value, 0)).filter(|g| self.groups.is_rows(*g))?;
            Some((shape[0], group))
        });
        let Some((rows, group)) = rows.filter(|(rows, _)| parts[0] + parts[1] == *rows) else { return Ok(()) };
        let given = self.groups.cut(group, rows).is_none_or(|cut| cut[..] == parts);
        if given {
            return Ok(());
        }
        let nearest = |first: usize| format!("{first},{}", rows - first);
        let ends = self.groups.ends(group, rows);
        let below = ends.iter().copied().filter(|e| *e < parts[0]).max();
        let above = ends.iter().copied().filter(|e| *e > parts[0]).min();
        let near: Vec<String> = below.into_iter().chain(above).map(nearest).collect();
        Err(NotOffered(format!(
            "sums over rows are exact where rows are cut between blocks: the nearest parts are {}",
            near.join(" and ")
        )))
    }

    /// Every state, but none whose results depend on the division where they must not.
    pub(super) fn mixed(&self) -> Allowed {
        let mut allowed = self.all();
        if self.sums == Sums::RowsWhole {
            for id in self.graph.nodes.keys() {
                let states = &self.nodes[id];
                allowed.nodes[id] = allowed.nodes[id].filter(|s| !states[s].divides_sums(self.graph, id));
            }
        }
        allowed
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
                && self.held[*arg]
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
        let weight = |arg: usize| self.held[node.args[arg]] && self.graph.ty(node.args[arg]).dtype.is_float();
        let has_weights = (0..node.args.len()).any(weight);
        if !has_weights {
            return is_cut && self.works[id].class == Some(OpClass::Contraction);
        }
        is_cut && (0..node.args.len()).any(|a| weight(a) && state.operands[a].is_split())
    }
}
