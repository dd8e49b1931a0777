//! What devices that share rows keep from step to step: all of it, or parts ("ZeRO").
//!
//! A step of training is one graph, so this is a restriction on layouts: states are cut along some dimension instead of
//! replicated, and the nodes that give them their next values may be cut along it too. What the graph then needs of
//! gathering and scattering follows as for any other plan.

use super::groups::Groups;
use cranelift_entity::SecondaryMap;
use intwain_ir::{Graph, ParamKind, Value};
use std::fmt;

/// Which states the devices of a data split keep in parts. Every choice includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum StateSharding {
    /// None: every device keeps all states.
    #[default]
    Replicated,
    /// What no layer reads, such as the optimizer's slots. Gradients are added up whole, and parts of them read.
    Slots,
    /// The same; of gradients, too, a device gets its part only.
    Gradients,
    /// Variables as well. They are gathered where layers read them, forwards and again backwards.
    Variables,
}

impl StateSharding {
    /// Every choice, by its number as a stage of ZeRO.
    pub const ALL: [StateSharding; 4] =
        [StateSharding::Replicated, StateSharding::Slots, StateSharding::Gradients, StateSharding::Variables];

    /// The number of the stage.
    pub fn stage(self) -> usize {
        Self::ALL.iter().position(|s| *s == self).unwrap_or(0)
    }
}

/// `replicated`, `slots`, `gradients`, `variables`.
impl fmt::Display for StateSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StateSharding::Replicated => "replicated",
            StateSharding::Slots => "slots",
            StateSharding::Gradients => "gradients",
            StateSharding::Variables => "variables",
        })
    }
}

/// States smaller than this stay whole. A part of one saves less than 8 KiB, and costs a message in every step: starting
/// one takes longer than 8 KiB on the way, over every link of the catalogue. A thousand such states are 16 MB.
pub const WHOLE_BELOW: usize = 16 << 10;

/// Which states are kept in parts, and how large they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharding {
    /// Which.
    pub states: StateSharding,
    /// Bytes below which a state stays whole.
    pub whole_below: usize,
}

impl Default for Sharding {
    fn default() -> Sharding {
        StateSharding::default().into()
    }
}

impl From<StateSharding> for Sharding {
    fn from(states: StateSharding) -> Sharding {
        Sharding { states, whole_below: WHOLE_BELOW }
    }
}

impl Sharding {
    /// Whether anything is kept in parts.
    pub fn divides(self) -> bool {
        self.states > StateSharding::Replicated
    }

    /// Whether a state that stays of this role is kept in parts.
    pub(super) fn covers(self, role: Role) -> bool {
        match role {
            Role::Slot => self.states >= StateSharding::Slots,
            Role::Variable => self.states >= StateSharding::Variables,
            Role::Other => false,
        }
    }
}

/// What a parameter is to the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A state that something with rows is computed from.
    Variable,
    /// Any other state without rows.
    Slot,
    /// No state, or one that has rows.
    Other,
}

/// The role of every parameter.
pub(super) fn roles(graph: &Graph, groups: &Groups) -> Vec<Role> {
    let has_rows = |v: &Value| groups.row_dim(graph, *v).is_some();
    let mut read: SecondaryMap<Value, bool> = SecondaryMap::new();
    for node in graph.nodes.values().rev() {
        let all = || node.args.iter().chain(&node.results);
        if all().any(has_rows) || node.results.iter().any(|r| read[*r]) {
            node.args.iter().for_each(|a| read[*a] = true);
        }
    }
    let role = |p: &intwain_ir::Param| match p.kind {
        ParamKind::State { .. } if has_rows(&p.value) => Role::Other,
        ParamKind::State { .. } if read[p.value] => Role::Variable,
        ParamKind::State { .. } => Role::Slot,
        ParamKind::Input { .. } | ParamKind::Weight { .. } => Role::Other,
    };
    graph.params.iter().map(role).collect()
}
