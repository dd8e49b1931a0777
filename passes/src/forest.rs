//! Adds up what a tree sums where it is: a device that holds some leaves of a `tree_sum` makes the nodes of the tree that
//! stand over its leaves alone, and only those are gathered.
//!
//! ```text
//! all_gather x; tree_sum{spans=[1, 1, 1, 1, 1, 1, 1]}       x: leaves 0 … 3 on device 0, 4 … 6 on device 1
//! tree_sum x; all_gather; tree_sum{spans=[4, 2, 1]}         device 0 makes one node, device 1 two
//! ```
//!
//! The bits of the sum stay. All devices are rewritten together, so that what they exchange fits.

use crate::PassError;
use intwain_ir::compute::tree_left;
use intwain_ir::ops::{AllGather, AllToAll, Concat, Op, TreeSum, TypeError};
use intwain_ir::{Graph, NodeId, Rewriter, Shape, Value};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The nodes of the tree over all leaves that each device can make of its own: for each device the leaves of each of its
/// nodes, in order. `None` where nothing can be added up.
pub(crate) fn spans(sizes: &[usize]) -> Option<SmallVec<[Vec<usize>; 2]>> {
    let leaves: usize = sizes.iter().sum();
    let mut at = 0;
    let mut all = SmallVec::new();
    for &size in sizes {
        let mut own = Vec::new();
        nodes(0, leaves, at, at + size, &mut own);
        at += size;
        all.push(own);
    }
    let items: usize = all.iter().map(Vec::len).sum();
    (items < leaves).then_some(all)
}

/// The nodes of the tree over `count` leaves from `start` that lie in `from..to`.
fn nodes(start: usize, count: usize, from: usize, to: usize, spans: &mut Vec<usize>) {
    let end = start + count;
    if count == 0 || end <= from || to <= start {
        return;
    }
    if from <= start && end <= to {
        spans.push(count);
        return;
    }
    let left = tree_left(count);
    nodes(start, left, from, to, spans);
    nodes(start + left, count - left, from, to, spans);
}

/// Rewrites the graphs of all devices. See the module's documentation.
pub fn forest(locals: &[Graph]) -> Result<Vec<Graph>, PassError> {
    let found: Vec<BTreeMap<usize, NodeId>> = locals.iter().map(gathered_leaves).collect();
    let everywhere = |channel: &usize| found.iter().all(|f| f.contains_key(channel));
    let mut all = Vec::with_capacity(locals.len());
    for (graph, found) in locals.iter().zip(&found) {
        let mut rw = Rewriter::new(graph);
        // By the communication: the sum that reads it.
        let sums: BTreeMap<NodeId, NodeId> = found
            .iter()
            .filter(|(channel, _)| everywhere(channel))
            .filter_map(|(_, sum)| Some((graph.def_node(graph.nodes[*sum].args[0])?, *sum)))
            .collect();
        let made = |rw: &Rewriter<'_>, id: NodeId| graph.nodes[id].results.first().is_some_and(|r| rw.has(*r));
        for id in graph.nodes.keys() {
            match sums.get(&id) {
                Some(sum) => gather_nodes(&mut rw, id, *sum)?,
                None if made(&rw, id) => {}
                None => rw.copy(id)?,
            }
        }
        all.push(rw.finish());
    }
    Ok(all)
}

/// The sums of leaves that the devices gather, by channel.
fn gathered_leaves(graph: &Graph) -> BTreeMap<usize, NodeId> {
    let uses = graph.uses();
    let outputs: Vec<Value> = graph.outputs.iter().map(|o| o.value).collect();
    let mut found = BTreeMap::new();
    for (id, node) in &graph.nodes {
        let Op::TreeSum(sum) = &node.op else { continue };
        let value = node.args[0];
        let Some(def) = graph.def_node(value) else { continue };
        let (channel, sizes) = match &graph.nodes[def].op {
            Op::AllGather(op) if op.dim == 0 => (op.channel, &op.sizes),
            Op::AllToAll(op) if op.from == 0 => (op.channel, &op.from_sizes),
            _ => continue,
        };
        let leaves = sum.spans.iter().all(|s| *s == 1);
        if leaves && uses[value].len() == 1 && !outputs.contains(&value) && spans(sizes).is_some() {
            found.insert(channel, id);
        }
    }
    found
}

/// In place of a communication and the sum that reads it: nodes of the device's own leaves, their exchange, their sum.
fn gather_nodes(rw: &mut Rewriter<'_>, id: NodeId, sum: NodeId) -> Result<(), TypeError> {
    let node = &rw.old().nodes[id];
    let part = rw.value(node.args[0]);
    let (sizes, device) = match &node.op {
        Op::AllGather(op) => (op.sizes.clone(), op.device),
        Op::AllToAll(op) => (op.from_sizes.clone(), op.device),
        _ => return rw.copy(id),
    };
    let Some(spans) = spans(&sizes) else { return rw.copy(id) };
    rw.new.origin = rw.old().nodes[sum].origin.clone();
    let own = make_nodes(&mut rw.new, part, &spans[device])?;
    let counts: Vec<usize> = spans.iter().map(Vec::len).collect();
    let op: Op = match &rw.old().nodes[id].op {
        Op::AllToAll(op) => AllToAll { from_sizes: counts, ..op.clone() }.into(),
        Op::AllGather(op) => AllGather { sizes: counts, ..op.clone() }.into(),
        _ => return rw.copy(id),
    };
    let gathered = rw.new.push(op, &[own])?;
    let total = rw.new.push(TreeSum { spans: spans.concat() }, &[gathered])?;
    rw.set(rw.old().nodes[id].results[0], gathered);
    rw.set(rw.old().nodes[sum].results[0], total);
    Ok(())
}

/// The sums of consecutive leaves, one after another.
fn make_nodes(g: &mut Graph, part: Value, spans: &[usize]) -> Result<Value, TypeError> {
    let rest: Vec<usize> = g.shape(part)[1..].to_vec();
    let (mut items, mut at) = (Vec::new(), 0);
    for &span in spans {
        let leaves = g.slice_dim(part, 0, at..at + span)?;
        at += span;
        items.push(match span {
            1 => leaves,
            _ => {
                let node = g.push(TreeSum::of_leaves(span), &[leaves])?;
                g.reshape(node, &Shape::new(std::iter::once(1).chain(rest.iter().copied())))?
            }
        });
    }
    match items.as_slice() {
        [] => Ok(part),
        [only] => Ok(*only),
        _ => g.push(Concat { dim: 0 }, &items),
    }
}

#[cfg(test)]
mod tests {
    use super::spans;

    #[test]
    fn devices_make_the_nodes_over_their_own_leaves() {
        let of = |sizes: [usize; 2]| spans(&sizes).map(|s| s.to_vec());
        assert_eq!(of([4, 4]), Some(vec![vec![4], vec![4]]));
        assert_eq!(of([5, 3]), Some(vec![vec![4, 1], vec![1, 2]]));
        assert_eq!(of([4, 3]), Some(vec![vec![4], vec![3]]));
        assert_eq!(of([3, 4]), Some(vec![vec![2, 1], vec![1, 3]]));
        assert_eq!(of([6, 0]), Some(vec![vec![6], vec![]]));
        assert_eq!(of([1, 1]), None);
        assert_eq!(of([1, 0]), None);
        assert_eq!(of([1, 2]), None);
    }
}
