//! The best cut into two segments, as layouts.

use super::search::{Assignment, Space};
use super::states::NodeStrategy;
use crate::hardware::OpClass;
use crate::solve::Proof;
use crate::solve::cut::{Crossing, Cut, CutOp, CutProblem, CutValue, CutWeight, Segment};
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::Op;
use intwain_ir::shard::Layout;
use intwain_ir::{Graph, NodeId, ParamKind, Value};

/// Every segment should have this share of the operations.
const MIN_SHARE: f64 = 0.25;
/// Most micro-batches that are considered.
const MAX_MICRO_BATCHES: usize = 32;

/// A pipeline: where the cut is and what every value and node becomes.
#[derive(Clone, Debug)]
pub(super) struct Pipeline {
    pub(super) cut: Cut,
    pub(super) assignment: Assignment,
}

/// The best pipeline for a batch of `rows` in which pinned nodes are on their devices; `None` if there is nothing to cut
/// or a pin asks for something else.
pub(super) fn best(space: &Space<'_>, rows: Option<usize>, pins: &[(NodeId, NodeStrategy)]) -> Option<Pipeline> {
    let graph = space.graph;
    let ops: Vec<NodeId> = graph.nodes.keys().filter(|&id| placeable(space, id)).collect();
    let mut position: SecondaryMap<NodeId, Option<usize>> = SecondaryMap::new();
    for (at, &id) in ops.iter().enumerate() {
        position[id] = Some(at);
    }
    let mut problem = problem(space, rows, &ops, &position);
    for (node, strategy) in pins {
        match (position[*node], strategy) {
            (Some(at), NodeStrategy::On(device)) => problem.pins.push((at, *device)),
            (None, _) => {}
            (Some(_), NodeStrategy::Whole | NodeStrategy::Cut { .. } | NodeStrategy::Linear(_)) => return None,
        }
    }
    let cut = problem.solve()?;
    let on = |segment: Segment| match segment {
        Segment::First => cut.devices[0],
        Segment::Second => cut.devices[1],
    };
    let mut nodes: SecondaryMap<NodeId, NodeStrategy> = SecondaryMap::new();
    for id in graph.nodes.keys() {
        nodes[id] = position[id].map_or(NodeStrategy::Whole, |at| NodeStrategy::On(on(cut.segments[at])));
    }
    let params = place_free(space, &mut nodes);
    let assignment = Assignment { params, nodes, seconds: cut.time, proof: Proof::AtLeast(0.0) };
    Some(Pipeline { cut, assignment })
}

/// Whether a node is placed by the cut; the others depend on weights or nothing and go where they are read.
fn placeable(space: &Space<'_>, id: NodeId) -> bool {
    !space.graph.nodes[id].results.iter().all(|r| space.prepared[*r])
        && !matches!(space.graph.nodes[id].op, Op::Constant(_) | Op::Iota(_))
}

/// Parameters and prepared nodes go to the one device that reads them, or to both.
fn place_free(space: &Space<'_>, nodes: &mut SecondaryMap<NodeId, NodeStrategy>) -> Vec<Layout> {
    let graph = space.graph;
    let mut readers: SecondaryMap<Value, [bool; 2]> = SecondaryMap::new();
    for output in &graph.outputs {
        if let Some(id) = graph.def_node(output.value)
            && !placeable(space, id)
        {
            readers[output.value] = [true, true];
        }
    }
    for (id, node) in graph.nodes.iter().rev() {
        if !placeable(space, id) {
            let mut read = [false, false];
            for result in &node.results {
                read = [read[0] | readers[*result][0], read[1] | readers[*result][1]];
            }
            nodes[id] = match read {
                [true, false] => NodeStrategy::On(0),
                [false, true] => NodeStrategy::On(1),
                [true, true] | [false, false] => NodeStrategy::Whole,
            };
        }
        for arg in &node.args {
            match nodes[id] {
                NodeStrategy::On(k) => readers[*arg][k] = true,
                NodeStrategy::Whole | NodeStrategy::Cut { .. } | NodeStrategy::Linear(_) => {
                    readers[*arg] = [true, true];
                }
            }
        }
    }
    let place = |value: Value| match readers[value] {
        [true, false] => Layout::On(0),
        [false, true] => Layout::On(1),
        [true, true] | [false, false] => Layout::Replicated,
    };
    graph.params.iter().map(|p| place(p.value)).collect()
}

fn problem(
    space: &Space<'_>,
    rows: Option<usize>,
    ops: &[NodeId],
    position: &SecondaryMap<NodeId, Option<usize>>,
) -> CutProblem {
    let graph = space.graph;
    let hardware = space.model.hardware();
    let readers = placeable_readers(space, position);
    let values = ops.iter().flat_map(|&id| {
        let producer = position[id].expect("`ops` are the placed nodes");
        graph.nodes[id].results.iter().map(move |r| (producer, *r))
    });
    let values = values
        .map(|(producer, r)| CutValue { producer, consumers: readers[r].clone(), bytes: graph.ty(r).bytes() as f64 })
        .filter(|v| !v.consumers.is_empty())
        .collect();
    let weights = graph
        .params
        .iter()
        .filter(|p| !matches!(p.kind, ParamKind::Input { .. }))
        .map(|p| CutWeight { bytes: graph.ty(p.value).bytes() as f64, users: readers[p.value].clone() })
        .collect();
    let crossing_seconds = hardware.link.transfer(1e9) - hardware.link.transfer(0.0);
    CutProblem {
        ops: ops.iter().map(|&id| op(space, id)).collect(),
        values,
        weights,
        memory: [hardware.devices[0].memory.value, hardware.devices[1].memory.value],
        latency: hardware.link.transfer(0.0),
        seconds_per_byte: crossing_seconds / 1e9,
        micro_batches: micro_batches(rows),
        crossing: Crossing::Forward,
        min_share: MIN_SHARE,
        pins: Vec::new(),
    }
}

/// Powers of two up to the number of rows.
fn micro_batches(rows: Option<usize>) -> Vec<usize> {
    let most = rows.unwrap_or(1).clamp(1, MAX_MICRO_BATCHES);
    std::iter::successors(Some(1), |m| Some(m * 2)).take_while(|&m| m <= most).collect()
}

/// The placed nodes that read each value, directly or through nodes that go where they are read.
fn placeable_readers(
    space: &Space<'_>,
    position: &SecondaryMap<NodeId, Option<usize>>,
) -> SecondaryMap<Value, Vec<usize>> {
    let graph = space.graph;
    let mut readers: SecondaryMap<Value, Vec<usize>> = SecondaryMap::new();
    for (id, node) in graph.nodes.iter().rev() {
        let through: Vec<usize> = match position[id] {
            Some(at) => vec![at],
            None => node.results.iter().flat_map(|r| readers[*r].iter().copied()).collect(),
        };
        for arg in &node.args {
            let list: &mut Vec<usize> = &mut readers[*arg];
            list.extend(&through);
            list.sort_unstable();
            list.dedup();
        }
    }
    readers
}

fn op(space: &Space<'_>, id: NodeId) -> CutOp {
    let (node, work) = (&space.graph.nodes[id], &space.works[id]);
    let reads = node.args.iter().zip(&work.reads).filter(|(_, read)| **read);
    let bytes = |graph: &Graph, v: Value| graph.ty(v).bytes() as f64;
    let read: f64 = reads.map(|(a, _)| bytes(space.graph, *a)).sum();
    let written: f64 = if work.writes { node.results.iter().map(|r| bytes(space.graph, *r)).sum() } else { 0.0 };
    // Weights are read by every micro-batch anew.
    let weights: f64 =
        node.args.iter().filter(|a| space.prepared[**a]).map(|a| bytes(space.graph, *a)).sum::<f64>().min(read);
    let devices = &space.model.hardware().devices;
    let seconds = [0, 1].map(|k: usize| work.seconds(&space.model, &devices[k], space.graph, id, 1.0, read + written));
    let overhead = [0, 1].map(|k: usize| {
        let launch = work.launches * devices[k].launch.value;
        launch + (weights / devices[k].stream_bandwidth()).min(seconds[k] - launch)
    });
    CutOp {
        overhead,
        work: [seconds[0] - overhead[0], seconds[1] - overhead[1]],
        share: if work.class == Some(OpClass::Memory) { work.flops * 1e-3 } else { work.flops },
        live: node
            .args
            .iter()
            .chain(&node.results)
            .filter(|v| !space.prepared[**v])
            .map(|v| bytes(space.graph, *v))
            .sum(),
    }
}
