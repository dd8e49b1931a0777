//! The plan of a step whose nodes say in which segment they are computed (see [`Turn`](intwain_ir::Turn)).
//!
//! Such a step was cut before its gradients were written. What is left to decide is where variables live, and what
//! belongs to no micro-batch: sums of gradients, updates, the loss. A variable lives where it is read; one that both
//! segments read lives on the first device, which is sent the other's gradients, updates it and sends it on.

use super::relief::{Relieved, Replanned, Tight};
use super::search::{Asked, Assignment, Space};
use super::states::{NodeStrategy, Sums};
use super::usage::{self, Usage};
use super::{Candidate, Groups, Options, PlaceError, Plan, Sharding, StateSharding, Strategy, Verdict};
use crate::cost::CostModel;
use crate::hardware::Hardware;
use crate::solve::Proof;
use crate::ties::Ties;
use cranelift_entity::SecondaryMap;
use intwain_ir::shard::Layout;
use intwain_ir::{Def, Graph, ParamKind, Value};

/// The plan of a graph whose nodes have turns, for `micro_batches` of them.
///
/// # Errors
/// Where a device has too little memory.
pub fn segments(
    graph: &Graph,
    hardware: &Hardware,
    options: &Options,
    micro_batches: usize,
) -> Result<Plan, PlaceError> {
    Segmented::new(graph, hardware, options, micro_batches).plan()
}

/// The same where activations are computed again so that it fits.
///
/// # Errors
/// Where a device has too little memory even so.
pub fn relieved_segments(
    graph: &Graph,
    hardware: &Hardware,
    options: &Options,
    micro_batches: usize,
) -> Result<Relieved, PlaceError> {
    let segmented = Segmented::new(graph, hardware, options, micro_batches);
    let relieved = segmented.tight().relieved(&|graph| {
        let again = Segmented::new(graph, hardware, options, micro_batches);
        let (peak_bytes, seconds) = (again.usage.peak_bytes.clone(), again.assignment.seconds);
        Some(Replanned { peak_bytes, seconds, plan: again.plan().ok() })
    });
    relieved.map_err(|short| {
        let before = segmented.assignment.seconds;
        let short = short.map(|s| format!("`{}` {}", Strategy::Pipeline, s.text(before)));
        segmented.failure(short.into_iter().collect())
    })
}

/// A graph whose nodes have turns, placed.
struct Segmented<'a> {
    space: Space<'a>,
    assignment: Assignment,
    usage: Usage,
    /// Bytes of each device.
    memory: Vec<f64>,
    micro_batches: usize,
}

impl<'a> Segmented<'a> {
    fn new(graph: &'a Graph, hardware: &'a Hardware, options: &Options, micro_batches: usize) -> Segmented<'a> {
        let rules = crate::ties::rules(graph);
        let groups = Groups::new(graph, Ties::new(graph, &rules), [1.0, 1.0], [1.0, 1.0]);
        let model = CostModel::new(hardware, options.f32_arithmetic);
        let asked = Asked { sums: Sums::Divided, parts: None, sharding: Sharding::default() };
        let space = Space::new(graph, model, rules, groups, asked);
        let owners = owners(graph);
        let nodes = places(graph, &owners);
        let params = graph.params.iter().map(|p| owners[p.value].layout()).collect();
        let seconds = seconds(&space, hardware, &nodes, micro_batches);
        let assignment = Assignment { params, nodes, seconds, proof: Proof::AtLeast(0.0) };
        let usage = usage::usage(&space, &assignment, 2);
        let memory = hardware.devices.iter().enumerate().map(|(k, d)| options.memory(k, d)).collect();
        Segmented { space, assignment, usage, memory, micro_batches }
    }

    fn tight(&self) -> Tight<'a, '_> {
        let (assignment, usage, memory) = (&self.assignment, &self.usage, self.memory.clone());
        Tight { space: &self.space, assignment, usage, memory }
    }

    fn verdict(&self) -> Verdict {
        let peaks = self.usage.peak_bytes.iter().zip(&self.memory).enumerate();
        let too_large = peaks.map(|(k, (bytes, memory))| (k, *bytes, *memory)).find_map(|(device, bytes, memory)| {
            (bytes > memory).then_some(Verdict::TooLarge { device, bytes, memory })
        });
        too_large.unwrap_or(Verdict::Chosen)
    }

    /// Why it does not fit; `short` is what was tried.
    fn failure(&self, short: Vec<String>) -> PlaceError {
        let mut reasons = vec![format!("`{}` {}", Strategy::Pipeline, self.verdict())];
        reasons.extend(short);
        reasons.extend(self.tight().told());
        PlaceError::DoesNotFit(reasons)
    }

    fn plan(self) -> Result<Plan, PlaceError> {
        let verdict = self.verdict();
        if verdict != Verdict::Chosen {
            return Err(self.failure(Vec::new()));
        }
        let seconds = self.assignment.seconds;
        let candidate = Candidate {
            strategy: Strategy::Pipeline,
            seconds: Some(seconds),
            usage: Some(self.usage.clone()),
            micro_batches: self.micro_batches,
            verdict,
        };
        let layouts = usage::layouts(&self.space, &self.assignment);
        Ok(Plan {
            bucket_bytes: None,
            strategy: Strategy::Pipeline,
            devices: 2,
            micro_batches: self.micro_batches,
            params: self.assignment.params,
            nodes: self.assignment.nodes,
            layouts,
            seconds,
            usage: self.usage,
            proof: self.assignment.proof,
            sharding: StateSharding::default(),
            candidates: vec![candidate],
        })
    }
}

/// Which devices need a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Needed([bool; 2]);

impl Needed {
    fn on(device: usize) -> Needed {
        Needed([device == 0, device == 1])
    }

    fn add(&mut self, other: Needed) {
        self.0 = [self.0[0] | other.0[0], self.0[1] | other.0[1]];
    }
}

/// Where a value that no micro-batch makes lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Owner {
    /// On both devices.
    #[default]
    Both,
    /// On one.
    One(usize),
}

impl Owner {
    fn layout(self) -> Layout {
        match self {
            Owner::Both => Layout::Replicated,
            Owner::One(k) => Layout::On(k),
        }
    }
}

/// Where parameters live. Only states and inputs are kept on one device alone; a frozen weight that both read is on both.
fn owners(graph: &Graph) -> SecondaryMap<Value, Owner> {
    let mut needed: SecondaryMap<Value, Needed> = SecondaryMap::new();
    for node in graph.nodes.values().rev() {
        let here = match node.origin.turn() {
            Some(turn) => Needed::on(turn.segment),
            None => {
                let mut all = Needed::default();
                node.results.iter().for_each(|r| all.add(needed[*r]));
                all
            }
        };
        for arg in &node.args {
            needed[*arg].add(here);
        }
    }
    let mut owners = SecondaryMap::new();
    for p in &graph.params {
        let changes = matches!(p.kind, ParamKind::State { .. });
        owners[p.value] = match (needed[p.value].0, changes) {
            ([true, false], _) => Owner::One(0),
            ([false, true], _) => Owner::One(1),
            ([true, true], true) => Owner::One(0),
            ([true, true], false) => Owner::Both,
            ([false, false], _) => Owner::Both,
        };
    }
    // What the update alone reads lives with what it updates it from.
    for p in &graph.params {
        if owners[p.value] == Owner::Both
            && let ParamKind::State { next: Some(next) } = p.kind
        {
            owners[p.value] = followed(graph, &owners, next);
        }
    }
    owners
}

/// The device of the first value behind `next` that is on one.
fn followed(graph: &Graph, owners: &SecondaryMap<Value, Owner>, next: Value) -> Owner {
    let mut open = vec![next];
    let mut seen: SecondaryMap<Value, bool> = SecondaryMap::new();
    while let Some(value) = open.pop() {
        if std::mem::replace(&mut seen[value], true) {
            continue;
        }
        match graph.values[value].def {
            Def::Param(_) => {
                if let one @ Owner::One(_) = owners[value] {
                    return one;
                }
            }
            Def::Node(id, _) => {
                let node = &graph.nodes[id];
                if let Some(turn) = node.origin.turn() {
                    return Owner::One(turn.segment);
                }
                open.extend(node.args.iter().rev());
            }
        }
    }
    Owner::Both
}

/// How every node is shared: in its segment; what has none, where the state is that it reads, else where its operands are.
fn places(graph: &Graph, owners: &SecondaryMap<Value, Owner>) -> SecondaryMap<intwain_ir::NodeId, NodeStrategy> {
    let mut at: SecondaryMap<Value, Owner> = owners.clone();
    let mut nodes = SecondaryMap::new();
    for (id, node) in &graph.nodes {
        let placed = |v: &Value| match at[*v] {
            Owner::One(k) => Some((*v, k)),
            Owner::Both => None,
        };
        let mut operands = node.args.iter().filter_map(placed);
        let is_param = |v: Value| matches!(graph.values[v].def, Def::Param(_));
        let owner = match node.origin.turn() {
            Some(turn) => Owner::One(turn.segment),
            None => {
                let all: Vec<(Value, usize)> = operands.by_ref().collect();
                let chosen = all.iter().find(|(v, _)| is_param(*v)).or(all.first());
                chosen.map_or(Owner::Both, |(_, k)| Owner::One(*k))
            }
        };
        nodes[id] = match owner {
            Owner::One(k) => NodeStrategy::On(k),
            Owner::Both => NodeStrategy::Whole,
        };
        for r in &node.results {
            at[*r] = owner;
        }
    }
    nodes
}

/// The time of the slower segment and of filling the pipeline.
fn seconds(
    space: &Space<'_>,
    hardware: &Hardware,
    nodes: &SecondaryMap<intwain_ir::NodeId, NodeStrategy>,
    micro_batches: usize,
) -> f64 {
    let mut busy = [0.0; 2];
    for id in space.graph.nodes.keys() {
        for (k, total) in busy.iter_mut().enumerate() {
            if nodes[id].share(k) > 0.0 {
                *total += space.alone_seconds(id, &hardware.devices[k]);
            }
        }
    }
    let (slower, faster) = (busy[0].max(busy[1]), busy[0].min(busy[1]));
    slower + faster / micro_batches as f64
}
