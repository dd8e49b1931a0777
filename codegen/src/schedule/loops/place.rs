//! For schedules that keep positions in several blocks at once, or values of several lanes in registers of their own.

use super::{Bound, Loops, Scope, Val};
use crate::schedule::nest::NodeId;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::Reg;
use smallvec::SmallVec;
use std::collections::HashMap;

impl Loops<'_> {
    /// Opens a limited scope (see [`Loops::push_limited`]) whose values stand in the block at `depth`; no scope may be
    /// open that stands deeper.
    pub(in crate::schedule) fn push_limited_at(&mut self, depth: usize, axes: Vec<(Axis, Bound)>, limit: Option<Reg>) {
        debug_assert!(self.scopes.iter().all(|s| s.depth <= depth), "scopes nest as blocks do");
        self.scopes.push(Scope {
            depth,
            axes,
            values: HashMap::new(),
            guards: HashMap::new(),
            indices: HashMap::new(),
            limit,
        });
    }

    /// Says what the lanes of a node are, for all that lies in the innermost scope.
    pub(in crate::schedule) fn define_lanes(&mut self, node: NodeId, lanes: &[Reg]) {
        let home = self.home(self.nest.nodes[node].free);
        self.scopes[home].values.insert(node, Val { regs: SmallVec::from_slice(lanes), lanes: 1 });
    }
}
