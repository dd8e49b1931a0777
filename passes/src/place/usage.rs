//! What an assignment of layouts needs: memory, traffic and work of each device.

use super::search::{Assignment, Space};
use crate::cost::transfer;
use crate::hardware::OpClass;
use cranelift_entity::SecondaryMap;
use intwain_ir::shard::Layout;
use intwain_ir::{Def, ParamKind, Value};

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
    usage.peak_bytes = (0..devices).map(|k| usage.weight_bytes[k] + activations(space, &of, k)).collect();
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
    let mut wanted: Vec<(Value, Layout)> = Vec::new();
    let mut whole: SecondaryMap<Value, bool> = SecondaryMap::new();
    for (id, node) in &space.graph.nodes {
        let layouts = assignment.nodes[id].operand_layouts(&space.rules[id], node.args.len());
        for (arg, to) in node.args.iter().zip(layouts) {
            whole[*arg] |= to == Layout::Replicated;
            // A node on one device reads a copy that is there.
            if !matches!((&of(*arg), &to), (Layout::Replicated, Layout::On(_))) {
                wanted.push((*arg, to));
            }
        }
    }
    for output in &space.graph.outputs {
        if matches!(of(output.value), Layout::Partial(_)) {
            wanted.push((output.value, Layout::Replicated));
        }
    }
    let mut done: Vec<(Value, Layout)> = Vec::new();
    for (value, to) in wanted {
        let from = of(value);
        let moved = transfer(space.graph.ty(value), &from, &to);
        let is_copied = whole[value] && to != Layout::Replicated && !matches!(from, Layout::On(_));
        if is_copied || !moved.communicates || done.iter().any(|d| d.0 == value && d.1 == to) {
            continue;
        }
        usage.communications += 1;
        usage.communication_bytes += moved.total_bytes;
        done.push((value, to));
    }
}

/// Most bytes of activations that live at once on a device; views share the memory of what they show, and fused
/// pointwise work replaces its operand.
fn activations(space: &Space<'_>, of: &dyn Fn(Value) -> Layout, device: usize) -> f64 {
    let graph = space.graph;
    let mut last: SecondaryMap<Value, usize> = SecondaryMap::new();
    let count = graph.nodes.len();
    for (at, node) in graph.nodes.values().enumerate() {
        for arg in &node.args {
            last[*arg] = at;
        }
    }
    for output in &graph.outputs {
        last[output.value] = count;
    }
    // A view keeps what it shows alive.
    for (id, node) in graph.nodes.iter().rev() {
        if is_free(space, id)
            && let (Some(&arg), Some(&result)) = (node.args.first(), node.results.first())
        {
            last[arg] = last[arg].max(last[result]);
        }
    }
    let bytes = |v: Value| if space.prepared[v] { 0.0 } else { space.local_bytes(v, &of(v), device) };
    let mut ending: Vec<f64> = vec![0.0; count + 1];
    let mut live = 0.0;
    for param in graph.inputs() {
        live += bytes(param.value);
        ending[last[param.value]] += bytes(param.value);
    }
    let mut peak: f64 = live;
    for (at, (id, node)) in graph.nodes.iter().enumerate() {
        if !is_free(space, id) {
            for result in &node.results {
                debug_assert!(matches!(graph.values[*result].def, Def::Node(..)));
                live += bytes(*result);
                ending[last[*result].max(at)] += bytes(*result);
            }
        }
        peak = peak.max(live);
        live -= ending[at];
    }
    peak
}

/// Whether the result needs no memory of its own: it is a view of the first operand, or made where it is read.
fn is_free(space: &Space<'_>, id: intwain_ir::NodeId) -> bool {
    let work = &space.works[id];
    work.launches == 0.0 && !work.writes
}
