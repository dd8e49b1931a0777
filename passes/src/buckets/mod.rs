//! Sums that devices exchange, as early as they can be and several in one message.
//!
//! `reshard` combines a partial value where it is first read, which for gradients is the optimizer's update. This pass moves
//! the exchange to where the value is there, so that it goes on beside the rest of the backward pass, and puts whatever
//! reads combined values behind everything that does not: nothing waits for an exchange before the last one is on its
//! way. Small ones are joined into *buckets* of [`size::Rates::best`] bytes, in the order in which they become ready.
//!
//! Which exchanges these are follows from the graph. The *level* of a sum is the number of sums on the longest way from it
//! to the end of the graph, itself included: sums of one level never wait for each other. Gradients are the level with
//! the most sums; statistics of a batch have greater levels, and the norm of divided gradients has a smaller one.
//!
//! Adds no communication and changes no layout: an exchange is the same `reshard`, elsewhere or with others.

pub mod size;
pub mod timeline;

#[cfg(test)]
mod tests;

use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{Op, Reshard, TypeError};
use intwain_ir::scalar::Reduce;
use intwain_ir::{Graph, Layout, NodeId, Rewriter, Value};
use std::collections::BTreeMap;

/// How exchanges of gradients are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Buckets {
    /// On GPUs by what the link and the backward pass take; not at all on CPU devices, whose messages have no latency to
    /// speak of.
    #[default]
    Auto,
    /// Every gradient is a message of its own.
    Apart,
    /// Up to so many bytes in a message.
    Bytes(usize),
}

/// Most values of a bucket: a kernel has two parameters of 8 bytes for each, and may have 4 KiB of them (PTX ISA, 5.2.4).
pub const MOST: usize = 128;

/// The exchanges of gradients in a graph at stage Explicit, in the order in which they can begin.
#[derive(Clone, Debug)]
pub struct Exchanges {
    /// The `reshard` nodes.
    pub nodes: Vec<NodeId>,
    /// What follows from one of them.
    late: SecondaryMap<NodeId, bool>,
}

/// How the operands of a node are combined, if it is a `reshard` that combines partial values on all devices.
fn combines(graph: &Graph, id: NodeId) -> Option<Reduce> {
    let node = &graph.nodes[id];
    if !matches!(node.op, Op::Reshard(_)) {
        return None;
    }
    let kept = |v: &Value| matches!(graph.layout(*v), Layout::Replicated | Layout::Split { .. });
    match graph.layout(*node.args.first()?) {
        Layout::Partial(function) if node.results.iter().all(kept) => Some(function),
        Layout::Partial(_) | Layout::Replicated | Layout::Split { .. } | Layout::On(_) => None,
    }
}

impl Exchanges {
    /// Finds them; `None` where there are fewer than two values.
    pub fn find(graph: &Graph) -> Option<Exchanges> {
        let levels = levels(graph);
        let mut members: BTreeMap<usize, usize> = BTreeMap::new();
        for (id, level) in &levels {
            *members.entry(*level).or_default() += graph.nodes[*id].args.len();
        }
        // Of equally many the last in the step.
        let (level, _) = members.into_iter().rev().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1)?;
        let mut nodes: Vec<NodeId> = levels.into_iter().filter(|(_, l)| *l == level).map(|(id, _)| id).collect();
        nodes.sort_by_key(|id| (ready(graph, *id), *id));
        let mut late = SecondaryMap::new();
        for (id, node) in &graph.nodes {
            let reads_late = node.args.iter().filter_map(|a| graph.def_node(*a)).any(|d| late[d]);
            late[id] = reads_late || nodes.contains(&id);
        }
        Some(Exchanges { nodes, late })
    }
}

/// The sums and their levels.
fn levels(graph: &Graph) -> Vec<(NodeId, usize)> {
    let mut below: SecondaryMap<Value, usize> = SecondaryMap::new();
    let mut sums = Vec::new();
    for (id, node) in graph.nodes.iter().rev() {
        let mut level = node.results.iter().map(|r| below[*r]).max().unwrap_or(0);
        if combines(graph, id).is_some() {
            level += 1;
            sums.push((id, level));
        }
        for a in &node.args {
            below[*a] = below[*a].max(level);
        }
    }
    sums
}

/// The last node that an exchange waits for; `None` if it waits for parameters only.
fn ready(graph: &Graph, exchange: NodeId) -> Option<NodeId> {
    graph.nodes[exchange].args.iter().filter_map(|a| graph.def_node(*a)).max()
}

/// The graph with its exchanges of gradients where they can begin, joined into messages of up to `bytes`; without `bytes`
/// each is a message of its own.
///
/// # Errors
/// Only if the graph is not at stage Explicit: a defect.
pub fn buckets(graph: &Graph, bytes: Option<usize>) -> Result<Graph, TypeError> {
    let Some(found) = Exchanges::find(graph) else { return Ok(graph.clone()) };
    let joined = join(graph, &found.nodes, bytes);
    let mut after: BTreeMap<Option<NodeId>, Vec<&Vec<NodeId>>> = BTreeMap::new();
    for bucket in &joined {
        let last = bucket.iter().map(|id| ready(graph, *id)).max().flatten();
        after.entry(last).or_default().push(bucket);
    }
    let mut rw = Rewriter::new(graph);
    let mut emit = |rw: &mut Rewriter<'_>, at: Option<NodeId>| -> Result<(), TypeError> {
        after.remove(&at).unwrap_or_default().into_iter().try_for_each(|bucket| exchange(rw, bucket))
    };
    emit(&mut rw, None)?;
    for id in graph.nodes.keys().filter(|id| !found.late[*id]) {
        rw.copy(id)?;
        emit(&mut rw, Some(id))?;
    }
    for id in graph.nodes.keys().filter(|id| found.late[*id] && !found.nodes.contains(id)) {
        rw.copy(id)?;
    }
    Ok(rw.finish())
}

/// Which exchanges are one message.
fn join(graph: &Graph, nodes: &[NodeId], bytes: Option<usize>) -> Vec<Vec<NodeId>> {
    let mut functions: Vec<Reduce> = Vec::new();
    for f in nodes.iter().filter_map(|id| combines(graph, *id)) {
        if !functions.contains(&f) {
            functions.push(f);
        }
    }
    let mut joined = Vec::new();
    for function in functions {
        let alike: Vec<NodeId> = nodes.iter().copied().filter(|id| combines(graph, *id) == Some(function)).collect();
        let sizes: Vec<usize> = alike.iter().map(|id| message_bytes(graph, *id)).collect();
        let groups = size::groups(&sizes, bytes);
        joined.extend(groups.into_iter().map(|group| group.into_iter().map(|at| alike[at]).collect()));
    }
    joined
}

/// Bytes of an exchange in the busier direction.
pub fn message_bytes(graph: &Graph, exchange: NodeId) -> usize {
    let node = &graph.nodes[exchange];
    let moved = node.args.iter().zip(&node.results).map(|(a, r)| {
        let moved = crate::cost::transfer(graph.ty(*a), &graph.layout(*a), &graph.layout(*r));
        moved.bytes as usize
    });
    moved.sum()
}

/// One message for several exchanges.
fn exchange(rw: &mut Rewriter<'_>, bucket: &[NodeId]) -> Result<(), TypeError> {
    if let [only] = bucket {
        return rw.copy(*only);
    }
    let graph = rw.old();
    let first = &graph.nodes[bucket[0]];
    let args: Vec<Value> = bucket.iter().flat_map(|id| rw.args(*id)).collect();
    let Op::Reshard(Reshard { channel }) = first.op else { return Err(TypeError::new("joins exchanges only")) };
    rw.new.origin = first.origin.clone();
    let made = rw.new.push_all(Reshard { channel }, &args)?;
    let results = bucket.iter().flat_map(|id| graph.nodes[*id].results.iter().copied());
    for (old, new) in results.zip(made) {
        rw.new.values[new].layout = graph.values[old].layout.clone();
        rw.set(old, new);
    }
    Ok(())
}
