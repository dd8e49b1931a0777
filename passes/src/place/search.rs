//! The states of all nodes as a cost graph, and its exact minimum.

use super::groups::Groups;
use super::sharding::{Role, Sharding, StateSharding, roles};
use super::states::{Gathered, Interest, NodeStrategy, State, Sums, node_states, param_layouts};
use crate::cost::{CostModel, NodeWork, Transfer};
use crate::hardware::OpClass;
use crate::solve::{CostGraph, Infeasible, Limits, NodeIdx, Proof, StateSet};
use crate::ties::Rules;
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::Op;
use intwain_ir::shard::Layout;
use intwain_ir::{Graph, NodeId, ParamKind, Value};

/// What runs once when weights load counts this much of what runs every step.
const PREPARED: f64 = 1e-3;

/// What is asked of the assignments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) sums: Sums,
    pub(super) parts: Option<[usize; 2]>,
    pub(super) sharding: Sharding,
}

/// Everything that the strategies for two devices share.
#[derive(Debug)]
pub(super) struct Space<'a> {
    pub(super) graph: &'a Graph,
    pub(super) model: CostModel<'a>,
    pub(super) works: SecondaryMap<NodeId, NodeWork>,
    pub(super) rules: Rules,
    pub(super) groups: Groups,
    pub(super) sums: Sums,
    /// The parts that were asked for.
    pub(super) parts: Option<[usize; 2]>,
    /// Which states a data split keeps in parts.
    pub(super) sharding: Sharding,
    /// What each parameter is to the layers.
    pub(super) roles: Vec<Role>,
    pub(super) prepared: SecondaryMap<Value, bool>,
    /// How often each value is read.
    readers: SecondaryMap<Value, usize>,
    /// Values that depend on weights and on states without rows only: in training, weights are states.
    pub(super) held: SecondaryMap<Value, bool>,
    pub(super) nodes: SecondaryMap<NodeId, Vec<State>>,
    pub(super) params: Vec<Vec<(Layout, Option<super::groups::Group>)>>,
}

/// A layout for every parameter and a strategy for every node.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) params: Vec<Layout>,
    pub(super) nodes: SecondaryMap<NodeId, NodeStrategy>,
    pub(super) seconds: f64,
    pub(super) proof: Proof,
}

/// The states that a strategy allows: one set per parameter and per node.
#[derive(Clone, Debug)]
pub(super) struct Allowed {
    pub(super) params: Vec<StateSet>,
    pub(super) nodes: SecondaryMap<NodeId, StateSet>,
}

impl<'a> Space<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        model: CostModel<'a>,
        rules: Rules,
        groups: Groups,
        Asked { sums, parts, sharding }: Asked,
    ) -> Space<'a> {
        let works = crate::cost::works(graph);
        let uses = graph.uses();
        let mut nodes = SecondaryMap::new();
        let mut readers: SecondaryMap<Value, usize> = SecondaryMap::new();
        for value in graph.values.keys() {
            readers[value] = uses[value].len();
        }
        for (id, node) in &graph.nodes {
            let interest = Interest {
                linear: works[id].class == Some(OpClass::Memory),
                shared: node.results.iter().any(|r| uses[*r].len() > 1),
            };
            nodes[id] = node_states(graph, id, &rules, &groups, sums, interest);
        }
        let params = graph.params.iter().map(|p| param_layouts(graph, p.value, &groups)).collect();
        let (prepared, held, roles) = (graph.prepared(), held(graph, &groups), roles(graph, &groups));
        Space {
            graph,
            model,
            works,
            rules,
            groups,
            sums,
            parts,
            sharding,
            roles,
            prepared,
            readers,
            held,
            nodes,
            params,
        }
    }

    /// Every state.
    pub(super) fn all(&self) -> Allowed {
        let params = self.params.iter().map(|layouts| StateSet::first(layouts.len())).collect();
        let mut nodes = SecondaryMap::new();
        for id in self.graph.nodes.keys() {
            nodes[id] = StateSet::first(self.nodes[id].len());
        }
        Allowed { params, nodes }
    }

    /// The cheapest assignment of allowed states.
    pub(super) fn solve(&self, costs: &CostGraph, allowed: &Allowed) -> Result<Assignment, Infeasible> {
        let sets: Vec<(NodeIdx, StateSet)> = allowed
            .params
            .iter()
            .copied()
            .chain(self.graph.nodes.keys().map(|id| allowed.nodes[id]))
            .enumerate()
            .collect();
        let solution = costs.solve_within(&sets, Limits::default())?;
        let first = self.params.len();
        let params = self.params.iter().zip(&solution.states).map(|(layouts, &s)| layouts[s].0.clone()).collect();
        let mut nodes = SecondaryMap::new();
        for (at, id) in self.graph.nodes.keys().enumerate() {
            nodes[id] = self.nodes[id][solution.states[first + at]].strategy.clone();
        }
        Ok(Assignment { params, nodes, seconds: solution.cost, proof: solution.proof })
    }

    /// The cost graph: parameters first, then nodes, both in order.
    pub(super) fn costs(&self) -> CostGraph {
        let mut costs = CostGraph::new();
        for (param, layouts) in self.graph.params.iter().zip(&self.params) {
            costs
                .node(layouts.iter().map(|(l, _)| self.param_seconds(param.value, &param.kind, l)).collect::<Vec<_>>());
        }
        for id in self.graph.nodes.keys() {
            costs.node(self.nodes[id].iter().map(|s| self.state_seconds(id, s)).collect::<Vec<_>>());
        }
        for (id, node) in &self.graph.nodes {
            for (at, &arg) in node.args.iter().enumerate() {
                self.connect(&mut costs, id, at, arg);
            }
        }
        self.close_states(&mut costs);
        costs
    }

    fn index(&self, id: NodeId) -> NodeIdx {
        self.params.len() + cranelift_entity::EntityRef::index(id)
    }

    /// The layouts in which a value is found by its readers, one per state of what defines it.
    fn offered(&self, value: Value) -> (NodeIdx, Vec<Layout>) {
        match self.graph.values[value].def {
            intwain_ir::Def::Param(p) => (p, self.params[p].iter().map(|(l, _)| l.clone()).collect()),
            intwain_ir::Def::Node(id, result) => {
                let found = |s: &State| match s.gathered {
                    Gathered::No => s.results[result].clone(),
                    Gathered::Yes => Layout::Replicated,
                };
                (self.index(id), self.nodes[id].iter().map(found).collect())
            }
        }
    }

    fn connect(&self, costs: &mut CostGraph, id: NodeId, at: usize, arg: Value) {
        let args = &self.graph.nodes[id].args;
        if self.is_source(arg) {
            return;
        }
        let (from, offered) = self.offered(arg);
        let wanted: Vec<&Layout> = self.nodes[id].iter().map(|s| &s.operands[at]).collect();
        // A value read twice in the same layout is converted once.
        let again: Vec<bool> = self.nodes[id]
            .iter()
            .map(|s| (0..at).any(|other| args[other] == arg && s.operands[other] == s.operands[at]))
            .collect();
        costs.edge(from, self.index(id), |p, c| match again[c] {
            true => 0.0,
            false => self.reading_seconds(id, arg, &offered[p], wanted[c]),
        });
    }

    /// Whether a value is made from nothing: every reader makes the part that it needs.
    fn is_source(&self, value: Value) -> bool {
        self.graph.def_node(value).is_some_and(|id| self.graph.nodes[id].args.is_empty())
    }

    /// Seconds per step to convert a value. Parts of weights are taken once, but what devices exchange they exchange in
    /// every step.
    fn conversion_seconds(&self, value: Value, from: &Layout, to: &Layout) -> f64 {
        let ty = self.graph.ty(value);
        let once = self.prepared[value] && !crate::cost::transfer(ty, from, to).communicates;
        self.model.reshard(ty, from, to) * if once { PREPARED } else { 1.0 }
    }

    /// Seconds to convert what a node reads. Of what a tree adds up only the nodes go over the link that the devices can
    /// make of their parts.
    fn reading_seconds(&self, id: NodeId, value: Value, from: &Layout, to: &Layout) -> f64 {
        match self.added_up(id, value, from, to) {
            Some(moved) => self.model.moving(moved),
            None if self.is_added_whole(from, to) => {
                let whole = &Layout::Replicated;
                self.conversion_seconds(value, from, whole) + self.conversion_seconds(value, whole, to)
            }
            None => self.conversion_seconds(value, from, to),
        }
    }

    /// Whether sums are made whole before parts of them are read.
    pub(super) fn is_added_whole(&self, from: &Layout, to: &Layout) -> bool {
        self.sharding.states == StateSharding::Slots && matches!(from, Layout::Partial(_)) && to.is_split()
    }

    /// What a conversion moves that becomes an exchange of nodes of a tree.
    pub(super) fn added_up(&self, id: NodeId, value: Value, from: &Layout, to: &Layout) -> Option<Transfer> {
        let (Op::TreeSum(_), Layout::Split { dim: 0, sizes }) = (&self.graph.nodes[id].op, from) else { return None };
        let is_gathered = match to {
            Layout::Replicated => true,
            Layout::Split { dim, .. } => *dim != 0,
            Layout::Partial(_) | Layout::On(_) => false,
        };
        if !is_gathered || self.readers[value] != 1 {
            return None;
        }
        let counts = crate::forest::spans(sizes)?.iter().map(Vec::len).collect::<Vec<usize>>();
        let ty = self.graph.ty(value);
        let items = ty.with_shape(ty.shape.with(0, counts.iter().sum()));
        let moved = crate::cost::transfer(&items, &Layout::split(0, counts), to);
        Some(Transfer { local_bytes: moved.local_bytes + ty.bytes() as f64, ..moved })
    }

    /// A state's next value must get the layout of the state itself.
    fn close_states(&self, costs: &mut CostGraph) {
        for (at, param) in self.graph.params.iter().enumerate() {
            let ParamKind::State { next: Some(next) } = param.kind else { continue };
            let (from, offered) = self.offered(next);
            if from != at {
                let ty = self.graph.ty(next);
                costs.edge(from, at, |p, c| self.model.reshard(ty, &offered[p], &self.params[at][c].0));
            }
        }
    }

    fn param_seconds(&self, value: Value, kind: &ParamKind, layout: &Layout) -> f64 {
        let slowest = self.model.hardware().devices.iter().map(|d| d.stream_bandwidth()).fold(f64::INFINITY, f64::min);
        match kind {
            ParamKind::Weight { .. } => {
                let bytes = (0..2).map(|k| self.local_bytes(value, layout, k)).fold(0.0, f64::max);
                PREPARED * bytes / slowest
            }
            ParamKind::Input { .. } | ParamKind::State { .. } => 0.0,
        }
    }

    /// Bytes of a value on a device.
    pub(super) fn local_bytes(&self, value: Value, layout: &Layout, device: usize) -> f64 {
        layout.local_type(self.graph.ty(value), device).map_or(0.0, |ty| ty.bytes() as f64)
    }

    fn state_seconds(&self, id: NodeId, state: &State) -> f64 {
        let node = &self.graph.nodes[id];
        let compute = (0..2).map(|k| self.node_seconds(id, state, k)).fold(0.0, f64::max);
        let prepared = node.results.iter().all(|r| self.prepared[*r]);
        let mut exchange = 0.0;
        for (result, layout) in node.results.iter().zip(&state.results) {
            let is_output = self.graph.outputs.iter().any(|o| o.value == *result);
            let must = is_output && matches!(layout, Layout::Partial(_));
            if state.gathered == Gathered::Yes || must {
                exchange += self.conversion_seconds(*result, layout, &Layout::Replicated);
            }
        }
        compute * if prepared { PREPARED } else { 1.0 } + exchange
    }

    /// Seconds of a whole node on the device that works alone.
    pub(super) fn alone_seconds(&self, id: NodeId, device: &crate::hardware::DeviceSpec) -> f64 {
        let (node, work) = (&self.graph.nodes[id], &self.works[id]);
        let read = node.args.iter().zip(&work.reads).filter(|(_, read)| **read).map(|(arg, _)| arg);
        let written = node.results.iter().filter(|_| work.writes);
        let bytes: f64 = read.chain(written).map(|v| self.graph.ty(*v).bytes() as f64).sum();
        work.seconds(&self.model, device, self.graph, id, 1.0, bytes)
    }

    /// Seconds that a device spends on its part of a node.
    pub(super) fn node_seconds(&self, id: NodeId, state: &State, device: usize) -> f64 {
        let share = state.strategy.share(device);
        if share == 0.0 {
            return 0.0;
        }
        let (node, work) = (&self.graph.nodes[id], &self.works[id]);
        let mut bytes = 0.0;
        for ((arg, layout), read) in node.args.iter().zip(&state.operands).zip(&work.reads) {
            bytes += if *read { self.local_bytes(*arg, layout, device) } else { 0.0 };
        }
        for (result, layout) in node.results.iter().zip(&state.results) {
            bytes += if work.writes { self.local_bytes(*result, layout, device) } else { 0.0 };
        }
        let spec = &self.model.hardware().devices[device];
        work.seconds(&self.model, spec, self.graph, id, share, bytes)
    }
}

/// Values that depend on weights and on states without rows only.
fn held(graph: &Graph, groups: &Groups) -> SecondaryMap<Value, bool> {
    let mut held = SecondaryMap::new();
    for p in &graph.params {
        held[p.value] = match p.kind {
            ParamKind::Weight { .. } => true,
            ParamKind::State { .. } => groups.row_dim(graph, p.value).is_none(),
            ParamKind::Input { .. } => false,
        };
    }
    for node in graph.nodes.values() {
        let all = node.args.iter().all(|a| held[*a]) && !node.op.is_communication();
        for r in &node.results {
            held[*r] = all;
        }
    }
    held
}
