//! What an assignment of layouts needs: memory, traffic and work of each device.

use super::search::{Assignment, Space};
use super::sharding::StateSharding;
use crate::cost::{Transfer, is_pointwise, transfer};
use crate::hardware::{DeviceKind, OpClass};
use crate::remat::{Copied, Lives, Sizes};
use cranelift_entity::{EntityRef, SecondaryMap};
use intwain_ir::ops::Op;
use intwain_ir::shard::Layout;
use intwain_ir::{NodeId, ParamKind, Value};
use std::collections::BTreeMap;

/// What a plan needs of each device and of the link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Most bytes at once on each device: weights and live activations.
    pub peak_bytes: Vec<f64>,
    /// Bytes of weights on each device.
    pub weight_bytes: Vec<f64>,
    /// Scalar operations of each device in one step.
    pub flops: Vec<f64>,
    /// Scalar operations of contractions, convolutions and lookups that are cut, over all of them.
    pub split_flops: f64,
    /// Bytes of weights that are cut, over all of them.
    pub split_weights: f64,
    /// Number of communications in one step.
    pub communications: usize,
    /// Bytes over the link in one step, both directions.
    pub communication_bytes: f64,
}

/// The layouts that an assignment gives every value.
pub(super) fn layouts(space: &Space<'_>, assignment: &Assignment) -> SecondaryMap<Value, Option<Layout>> {
    let mut layouts: SecondaryMap<Value, Option<Layout>> = SecondaryMap::new();
    for (param, layout) in space.graph.params.iter().zip(&assignment.params) {
        layouts[param.value] = Some(layout.clone());
    }
    for (id, node) in &space.graph.nodes {
        let results = assignment.nodes[id].result_layouts(&space.rules[id], node.results.len());
        for (value, layout) in node.results.iter().zip(results) {
            layouts[*value] = Some(layout);
        }
    }
    layouts
}

/// Measures an assignment.
pub(super) fn usage(space: &Space<'_>, assignment: &Assignment, devices: usize) -> Usage {
    let layouts = layouts(space, assignment);
    let of = |v: Value| layouts[v].clone().unwrap_or(Layout::Replicated);
    let mut usage = Usage::default();
    work(space, assignment, devices, &mut usage);
    weights(space, &of, devices, &mut usage);
    communication(space, assignment, &of, &mut usage);
    let activations = lives(space, assignment, &of, devices).peaks();
    usage.peak_bytes = usage.weight_bytes.iter().zip(activations).map(|(w, a)| w + a).collect();
    usage
}

fn work(space: &Space<'_>, assignment: &Assignment, devices: usize, usage: &mut Usage) {
    usage.flops = vec![0.0; devices];
    let (mut heavy, mut cut) = (0.0, 0.0);
    for (id, node) in &space.graph.nodes {
        if node.results.iter().all(|r| space.prepared[*r]) {
            continue;
        }
        let work = &space.works[id];
        let shares: Vec<f64> = (0..devices).map(|k| assignment.nodes[id].share(k)).collect();
        for (total, share) in usage.flops.iter_mut().zip(&shares) {
            *total += work.flops * share;
        }
        if work.class != Some(OpClass::Memory) {
            heavy += work.flops;
            cut += if shares.iter().all(|&s| s < 1.0) { work.flops } else { 0.0 };
        }
    }
    usage.split_flops = if heavy == 0.0 { 0.0 } else { cut / heavy };
}

fn weights(space: &Space<'_>, of: &dyn Fn(Value) -> Layout, devices: usize, usage: &mut Usage) {
    usage.weight_bytes = vec![0.0; devices];
    let (mut all, mut cut) = (0.0, 0.0);
    for param in &space.graph.params {
        let layout = of(param.value);
        match param.kind {
            ParamKind::Weight { .. } | ParamKind::State { .. } => {
                for (k, total) in usage.weight_bytes.iter_mut().enumerate() {
                    *total += space.local_bytes(param.value, &layout, k);
                }
                let bytes = space.graph.ty(param.value).bytes() as f64;
                all += bytes;
                cut += if layout.is_split() { bytes } else { 0.0 };
            }
            ParamKind::Input { .. } => {}
        }
    }
    usage.split_weights = if all == 0.0 { 0.0 } else { cut / all };
}

/// Every conversion that readers need, once per value and layout. Where some reader needs a value whole, the others take
/// their parts from the copy, as `reshard` does.
fn communication(space: &Space<'_>, assignment: &Assignment, of: &dyn Fn(Value) -> Layout, usage: &mut Usage) {
    let mut wanted: Vec<(Value, Layout, Transfer)> = Vec::new();
    let mut whole: SecondaryMap<Value, bool> = SecondaryMap::new();
    for (id, node) in &space.graph.nodes {
        let layouts = assignment.nodes[id].operand_layouts(&space.rules[id], node.args.len());
        for (arg, to) in node.args.iter().zip(layouts) {
            whole[*arg] |= to == Layout::Replicated;
            // A node on one device reads a copy that is there.
            if !matches!((&of(*arg), &to), (Layout::Replicated, Layout::On(_))) {
                let from = of(*arg);
                let moved = space.added_up(id, *arg, &from, &to);
                let moved = moved.unwrap_or_else(|| transfer(space.graph.ty(*arg), &from, &to));
                wanted.push((*arg, to, moved));
            }
        }
    }
    for output in &space.graph.outputs {
        if matches!(of(output.value), Layout::Partial(_)) {
            let moved = transfer(space.graph.ty(output.value), &of(output.value), &Layout::Replicated);
            wanted.push((output.value, Layout::Replicated, moved));
        }
    }
    for param in &space.graph.params {
        if let ParamKind::State { next: Some(next) } = param.kind {
            let to = of(param.value);
            let moved = transfer(space.graph.ty(next), &of(next), &to);
            wanted.push((next, to, moved));
        }
    }
    let mut done = Known::new(space);
    for (value, to, moved) in wanted {
        let from = of(value);
        let is_copied = whole[value] && to != Layout::Replicated && !matches!(from, Layout::On(_));
        if is_copied || !moved.communicates || done.find(value, &from, &to).is_some() {
            continue;
        }
        usage.communications += 1;
        usage.communication_bytes += moved.total_bytes;
        done.add(value, from, to);
    }
}

/// The memory of activations on each device; views share the memory of what they show, and fused pointwise work replaces
/// its operand. Copies in other layouts live from their first reader to their last.
pub(super) fn lives<'g>(
    space: &Space<'g>,
    assignment: &Assignment,
    of: &dyn Fn(Value) -> Layout,
    devices: usize,
) -> Lives<'g> {
    let replaced = replaced(space, of);
    let each = |value: Value, layout: &Layout| (0..devices).map(|k| space.local_bytes(value, layout, k)).collect();
    let sizes = Sizes {
        bytes: &|v| if space.prepared[v] || replaced[v] { Vec::new() } else { each(v, &of(v)) },
        shares: &|id| shared_operand(space, id),
        is_free: &|id| is_free(space, id) && shared_operand(space, id).is_some(),
    };
    let copies = copies(space, assignment, of);
    let copied = |c: Copy| Copied { bytes: each(c.value, &c.layout), first: c.first, last: c.last };
    Lives::new(space.graph, devices, &sizes, copies.into_iter().map(copied).collect())
}

/// The operand in whose memory the result of a node is that writes nothing: what a view shows, what fused pointwise work
/// replaces. What is made where it is read takes no more than its operand; work on such values alone takes memory of its
/// own unless it is made where it is read as well.
fn shared_operand(space: &Space<'_>, id: NodeId) -> Option<usize> {
    let node = &space.graph.nodes[id];
    if !is_pointwise(&node.op) || matches!(node.op, Op::Broadcast(_)) || node.args.iter().all(|a| space.prepared[*a]) {
        return Some(0);
    }
    let is_repeated =
        |v: Value| space.graph.def_node(v).is_some_and(|d| matches!(space.graph.nodes[d].op, Op::Broadcast(_)));
    let mut operands = node.args.iter().zip(&space.works[id].reads);
    operands.position(|(arg, read)| !read && !is_repeated(*arg))
}

/// Next values of states that are written in the states' place: CPUs do that with pointwise work.
fn replaced(space: &Space<'_>, of: &dyn Fn(Value) -> Layout) -> SecondaryMap<Value, bool> {
    let mut replaced = SecondaryMap::new();
    if !replaces_states(space) {
        return replaced;
    }
    for p in &space.graph.params {
        let ParamKind::State { next: Some(next) } = p.kind else { continue };
        let node = space.graph.def_node(next).map(|id| &space.graph.nodes[id].op);
        replaced[next] = node.is_some_and(is_pointwise) && of(next) == of(p.value);
    }
    replaced
}

/// Whether next values take the place of states.
fn replaces_states(space: &Space<'_>) -> bool {
    space.model.hardware().devices.iter().all(|d| d.kind == DeviceKind::Cpu)
}

/// Conversions that readers find done, as in `reshard`: variables that are kept in parts are gathered again where others
/// were gathered since.
struct Known<'a> {
    space: &'a Space<'a>,
    /// The newest conversion of each value to each layout: its number, and how often was gathered before.
    newest: BTreeMap<(Value, Layout), (usize, usize)>,
    count: usize,
    gathers: usize,
}

impl<'a> Known<'a> {
    fn new(space: &'a Space<'a>) -> Known<'a> {
        Known { space, newest: BTreeMap::new(), count: 0, gathers: 0 }
    }

    fn is_gather(&self, value: Value, from: &Layout, to: &Layout) -> bool {
        let variables = self.space.sharding.states == StateSharding::Variables;
        variables && self.space.held[value] && from.is_split() && *to == Layout::Replicated
    }

    fn find(&self, value: Value, from: &Layout, to: &Layout) -> Option<usize> {
        let (number, gathers) = *self.newest.get(&(value, to.clone()))?;
        (!self.is_gather(value, from, to) || gathers == self.gathers).then_some(number)
    }

    fn add(&mut self, value: Value, from: Layout, to: Layout) {
        self.gathers += usize::from(self.is_gather(value, &from, &to));
        self.newest.insert((value, to), (self.count, self.gathers));
        self.count += 1;
    }
}

/// A value in another layout than its definition leaves it in, and between which nodes it is there.
struct Copy {
    value: Value,
    layout: Layout,
    first: usize,
    last: usize,
}

/// What devices gather or exchange for readers, as `reshard` has them do it.
fn copies(space: &Space<'_>, assignment: &Assignment, of: &dyn Fn(Value) -> Layout) -> Vec<Copy> {
    let mut copies: Vec<Copy> = Vec::new();
    let mut known = Known::new(space);
    for (at, (id, node)) in space.graph.nodes.iter().enumerate() {
        let layouts = assignment.nodes[id].operand_layouts(&space.rules[id], node.args.len());
        for (&arg, layout) in node.args.iter().zip(layouts) {
            if !transfer(space.graph.ty(arg), &of(arg), &layout).communicates {
                continue;
            }
            // Of what a tree adds up few nodes are gathered.
            if space.added_up(id, arg, &of(arg), &layout).is_some() {
                continue;
            }
            match known.find(arg, &of(arg), &layout) {
                Some(number) => copies[number].last = at,
                None => {
                    known.add(arg, of(arg), layout.clone());
                    copies.push(Copy { value: arg, layout, first: at, last: at });
                }
            }
        }
    }
    for p in &space.graph.params {
        let ParamKind::State { next: Some(next) } = p.kind else { continue };
        let layout = of(p.value);
        if !replaces_states(space) && transfer(space.graph.ty(next), &of(next), &layout).communicates {
            let made = space.graph.def_node(next).map_or(0, EntityRef::index);
            copies.push(Copy { value: next, layout, first: made, last: space.graph.nodes.len() });
        }
    }
    copies
}

/// Whether the result needs no memory of its own: it is a view of the first operand, or made where it is read.
fn is_free(space: &Space<'_>, id: NodeId) -> bool {
    let work = &space.works[id];
    work.launches == 0.0 && !work.writes
}
