//! The whole graph, with equal computations numbered equally.

use cranelift_entity::SecondaryMap;
use intwain_ir::ops::Op;
use intwain_ir::shard::ShardingRule;
use intwain_ir::{Graph, NodeId, Scalar, Value};
use std::collections::BTreeMap;

pub(super) struct Whole<'g> {
    pub(super) graph: &'g Graph,
    canonical: SecondaryMap<Value, Option<Value>>,
    /// Nodes that read each value, one per class of equal nodes.
    readers: SecondaryMap<Value, Vec<NodeId>>,
    /// Nodes by the name of their operation, one per class of equal nodes.
    by_name: BTreeMap<&'static str, Vec<NodeId>>,
    rules: SecondaryMap<NodeId, ShardingRule>,
}

impl<'g> Whole<'g> {
    pub(super) fn new(graph: &'g Graph) -> Whole<'g> {
        let mut whole = Whole {
            graph,
            canonical: SecondaryMap::new(),
            readers: SecondaryMap::new(),
            by_name: BTreeMap::new(),
            rules: SecondaryMap::new(),
        };
        let mut known: BTreeMap<(String, Vec<Value>), NodeId> = BTreeMap::new();
        for (id, node) in &graph.nodes {
            let args: Vec<Value> = node.args.iter().map(|a| whole.canonical(*a)).collect();
            // The text says of which type constants are.
            let key = (node.op.to_string(), args.clone());
            if let Some(&equal) = known.get(&key) {
                for (mine, theirs) in node.results.iter().zip(&graph.nodes[equal].results) {
                    whole.canonical[*mine] = Some(*theirs);
                }
                continue;
            }
            known.insert(key, id);
            whole.rules[id] = graph.rule(id);
            whole.by_name.entry(node.op.name()).or_default().push(id);
            for arg in args {
                let list: &mut Vec<NodeId> = &mut whole.readers[arg];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        whole
    }

    /// The value that stands for all that are computed equally.
    pub(super) fn canonical(&self, value: Value) -> Value {
        self.canonical[value].unwrap_or(value)
    }

    pub(super) fn readers(&self, value: Value) -> &[NodeId] {
        &self.readers[value]
    }

    pub(super) fn named(&self, name: &str) -> &[NodeId] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    pub(super) fn rule(&self, node: NodeId) -> &ShardingRule {
        &self.rules[node]
    }

    /// The element that a constant repeats.
    pub(super) fn splat(&self, value: Value) -> Option<Scalar> {
        let node = &self.graph.nodes[self.graph.def_node(value)?];
        match &node.op {
            Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_) => self.splat(node.args[0]),
            op => splat(op),
        }
    }
}

/// The element that an operation repeats, if it is such a constant.
pub(super) fn splat(op: &Op) -> Option<Scalar> {
    match op {
        Op::Constant(c) => match c.elements.as_slice() {
            [first, rest @ ..] if rest.iter().all(|x| x == first) => Some(*first),
            _ => None,
        },
        _ => None,
    }
}
