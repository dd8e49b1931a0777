//! Checks a graph against the rules of its stage and reports every problem.

use crate::ops::Op;
use crate::{Def, Graph, Layout, NodeId, ParamKind, Stage, Value};
use std::collections::BTreeSet;
use std::fmt;

/// A broken rule: where, and what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The node concerned, if it is one.
    pub node: Option<NodeId>,
    /// The layer that the node comes from.
    pub origin: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(n) = self.node {
            write!(f, "{n}")?;
            if !self.origin.is_empty() {
                write!(f, " ({})", self.origin)?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.message)
    }
}

/// Checks the rules of the graph's stage:
///
/// 1. definitions precede uses, and every value is defined once, where its record says;
/// 2. types are within the limits of [`Type::refused`](crate::Type::refused) and what the operations infer;
/// 3. names of parameters are unique, and so are those of outputs;
/// 4. up to Imported no value has a layout; from Sharded to Explicit every value has one that fits it; Local graphs
///    have none;
/// 5. Reshard occurs at Explicit only, the other communication in Local graphs only, each channel once, between this
///    device and others that exist;
/// 6. at Explicit every other node's layouts satisfy its rule, and no output is partial;
/// 7. the graphs that operations repeat are at Imported, have inputs only, and satisfy the rules themselves.
///
/// What cannot be judged because of another problem, such as the type of an undefined value, is passed over.
pub fn verify(graph: &Graph) -> Result<(), Vec<Problem>> {
    let mut v = Verifier { graph, problems: Vec::new(), sound: Vec::new(), broken: BTreeSet::new() };
    v.definitions();
    v.names();
    v.bodies();
    v.types();
    v.layouts();
    v.communication();
    if graph.stage == Stage::Explicit {
        v.rules();
    }
    if v.problems.is_empty() { Ok(()) } else { Err(v.problems) }
}

struct Verifier<'g> {
    graph: &'g Graph,
    problems: Vec<Problem>,
    /// Nodes whose values exist and whose types are right.
    sound: Vec<NodeId>,
    /// Nodes whose own graph has problems.
    broken: BTreeSet<NodeId>,
}

/// Who takes part in a communication.
struct Ends {
    channel: usize,
    /// The device that it says it is on.
    device: Option<usize>,
    devices: Option<usize>,
    peer: Option<usize>,
}

impl Ends {
    fn of(op: &Op) -> Option<Ends> {
        let all = |channel, device, devices| Ends { channel, device: Some(device), devices: Some(devices), peer: None };
        let one = |channel, peer| Ends { channel, device: None, devices: None, peer };
        Some(match op {
            Op::AllGather(op) => all(op.channel, op.device, op.sizes.len()),
            Op::AllReduce(op) => all(op.channel, op.device, op.devices),
            Op::AllToAll(op) => all(op.channel, op.device, op.to_sizes.len()),
            Op::Bucket(op) => all(op.channel, op.device, op.devices),
            Op::ReduceScatter(op) => all(op.channel, op.device, op.sizes.len()),
            Op::Recv(op) => one(op.channel, Some(op.from)),
            Op::Send(op) => one(op.channel, Some(op.to)),
            Op::Reshard(op) => one(op.channel, None),
            _ => return None,
        })
    }
}

impl Verifier<'_> {
    fn report(&mut self, node: Option<NodeId>, message: String) {
        let data = node.and_then(|n| self.graph.nodes.get(n));
        let origin = data.map_or(String::new(), |n| n.origin.to_string());
        self.problems.push(Problem { node, origin, message });
    }

    fn definitions(&mut self) {
        let g = self.graph;
        let mut defined = BTreeSet::new();
        for (i, p) in g.params.iter().enumerate() {
            match g.values.get(p.value) {
                Some(d) if d.def == Def::Param(i) => drop(defined.insert(p.value)),
                Some(_) | None => self.report(None, format!("parameter `{}` is not defined by {}", p.name, p.value)),
            }
        }
        for (id, node) in &g.nodes {
            for a in &node.args {
                if !defined.contains(a) {
                    self.report(Some(id), format!("{a} is used before it is defined"));
                }
            }
            for (i, r) in node.results.iter().enumerate() {
                let here = g.values.get(*r).is_some_and(|d| d.def == Def::Node(id, i));
                if !here || !defined.insert(*r) {
                    self.report(Some(id), format!("{r} is not defined here, or twice"));
                }
            }
        }
        for o in &g.outputs {
            if !defined.contains(&o.value) {
                self.report(None, format!("output `{}` is {}, which is not defined", o.name, o.value));
            }
        }
        for p in &g.params {
            if let ParamKind::State { next: Some(next) } = p.kind
                && (!defined.contains(&next) || g.ty(next) != g.ty(p.value))
            {
                self.report(None, format!("state `{}` does not become a value of its type", p.name));
            }
        }
    }

    fn names(&mut self) {
        let g = self.graph;
        let mut seen = BTreeSet::new();
        for p in &g.params {
            if !seen.insert(p.name.clone()) {
                self.report(None, format!("two parameters are named `{}`", p.name));
            }
        }
        let mut seen = BTreeSet::new();
        for o in &g.outputs {
            if !seen.insert(o.name.clone()) {
                self.report(None, format!("two outputs are named `{}`", o.name));
            }
        }
    }

    fn types(&mut self) {
        let g = self.graph;
        for (v, data) in &g.values {
            if let Some(problem) = data.ty.refused() {
                self.report(g.def_node(v), format!("{v}: {problem}"));
            }
        }
        for (id, node) in &g.nodes {
            let known = |v: &Value| g.values.get(*v).is_some_and(|d| d.ty.refused().is_none());
            if self.broken.contains(&id) || !node.args.iter().chain(&node.results).all(known) {
                continue;
            }
            match node.op.infer(&g.arg_types(id)) {
                Ok(types) => {
                    let have = g.result_types(id);
                    if types.len() != have.len() || types.iter().zip(&have).any(|(a, b)| a != *b) {
                        self.report(Some(id), format!("results are {have:?}, inferred {types:?}"));
                    } else {
                        self.sound.push(id);
                    }
                }
                Err(e) => self.report(Some(id), e.of(node.op.name()).to_string()),
            }
        }
    }

    fn layouts(&mut self) {
        let g = self.graph;
        for (v, data) in &g.values {
            let node = g.def_node(v);
            match (&data.layout, g.stage) {
                (None, Stage::Imported | Stage::Local) => {}
                (Some(_), Stage::Imported | Stage::Local) => {
                    self.report(node, format!("{v} has a layout at stage {}", g.stage));
                }
                (None, Stage::Sharded | Stage::Explicit) => self.report(node, format!("{v} has no layout")),
                (Some(l), Stage::Sharded | Stage::Explicit) => {
                    if !l.fits(&data.ty, g.devices) {
                        self.report(node, format!("layout {l} does not fit {v}: {}", data.ty));
                    }
                }
            }
        }
    }

    fn communication(&mut self) {
        let g = self.graph;
        let mut channels = BTreeSet::new();
        for (id, node) in &g.nodes {
            let Some(ends) = Ends::of(&node.op) else { continue };
            let wanted = if matches!(node.op, Op::Reshard(_)) { Stage::Explicit } else { Stage::Local };
            if g.stage != wanted {
                self.report(Some(id), format!("{} at stage {}", node.op.name(), g.stage));
            }
            if !channels.insert(ends.channel) {
                self.report(Some(id), format!("channel {} is used twice", ends.channel));
            }
            let here = ends.device.is_none_or(|d| d == g.device) && ends.devices.is_none_or(|n| n == g.devices);
            let there = ends.peer.is_none_or(|p| p < g.devices && p != g.device);
            if g.stage == Stage::Local && !(here && there) {
                let (device, devices) = (g.device, g.devices);
                self.report(Some(id), format!("{} does not fit device {device} of {devices}", node.op));
            }
        }
    }

    fn rules(&mut self) {
        let g = self.graph;
        let of = |values: &[Value]| values.iter().map(|v| g.layout(*v)).collect::<Vec<_>>();
        for id in std::mem::take(&mut self.sound) {
            let node = &g.nodes[id];
            if node.op.is_communication() {
                continue;
            }
            let (args, results) = (of(&node.args), of(&node.results));
            if !g.rule(id).allows(&args, &results) {
                let list = |l: &[Layout]| l.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
                let (from, to) = (list(&args), list(&results));
                self.report(Some(id), format!("{} cannot take {from} to {to}", node.op.name()));
            }
        }
        for o in &g.outputs {
            if let Some(Layout::Partial(_)) = g.values.get(o.value).and_then(|d| d.layout.as_ref()) {
                self.report(g.def_node(o.value), format!("output `{}` is a partial value", o.name));
            }
        }
    }

    fn bodies(&mut self) {
        let g = self.graph;
        for (id, node) in &g.nodes {
            let Some(body) = node.op.body_graph() else { continue };
            let name = node.op.name();
            if body.stage != Stage::Imported {
                self.report(Some(id), format!("the body of {name} is at stage {}", body.stage));
            }
            if !body.params.iter().all(|p| matches!(p.kind, ParamKind::Input { .. })) {
                self.report(Some(id), format!("the body of {name} has parameters that are not inputs"));
            }
            for p in verify(body).err().unwrap_or_default() {
                self.broken.insert(id);
                self.report(Some(id), format!("in the body of {name}: {p}"));
            }
        }
    }
}
