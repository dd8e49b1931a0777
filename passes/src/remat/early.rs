//! Sums as soon as what they add up is there.
//!
//! What is done with a sum where it is needed, at the end of a step for gradients of weights, is often part of the sum's
//! kernel: a tree over blocks of rows, a permutation, a factor. The kernel then runs there, and what it adds up lives until
//! then. So such work follows the sum at once, where memory is short.

use crate::cost::is_pointwise;
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{Op, TypeError};
use intwain_ir::{Graph, NodeId, ParamKind, Rewriter, Value};

/// The graph in an order in which work that only a sum's reader does follows the sum.
pub fn early_sums(graph: &Graph) -> Result<Graph, TypeError> {
    let next = |p: &intwain_ir::Param| if let ParamKind::State { next } = p.kind { next } else { None };
    let mut kept: SecondaryMap<Value, bool> = SecondaryMap::new();
    for value in graph.outputs.iter().map(|o| o.value).chain(graph.params.iter().filter_map(next)) {
        kept[value] = true;
    }
    let mut order = Order { graph, uses: graph.uses(), kept, done: SecondaryMap::new(), nodes: Vec::new() };
    for id in graph.nodes.keys() {
        order.add(id);
    }
    let mut rewriter = Rewriter::new(graph);
    for id in order.nodes {
        rewriter.copy(id)?;
    }
    Ok(rewriter.finish())
}

struct Order<'g> {
    graph: &'g Graph,
    uses: SecondaryMap<Value, Vec<NodeId>>,
    /// Outputs and next values of states.
    kept: SecondaryMap<Value, bool>,
    done: SecondaryMap<NodeId, bool>,
    nodes: Vec<NodeId>,
}

impl Order<'_> {
    /// Adds a node and what follows it at once.
    fn add(&mut self, id: NodeId) {
        if std::mem::replace(&mut self.done[id], true) {
            return;
        }
        self.nodes.push(id);
        if !is_sum(&self.graph.nodes[id].op) {
            return;
        }
        let sum = Sum::of(&self.graph.nodes[id].op);
        let mut last = id;
        while let Some(follower) = self.follower(last, sum) {
            let sources = self.graph.nodes[follower].args.iter().filter_map(|a| self.graph.def_node(*a));
            for source in sources.collect::<Vec<NodeId>>() {
                if !std::mem::replace(&mut self.done[source], true) {
                    self.nodes.push(source);
                }
            }
            self.done[follower] = true;
            self.nodes.push(follower);
            last = follower;
        }
    }

    /// The only reader of a node, if it makes nothing larger and all else that it reads is there.
    fn follower(&self, id: NodeId, sum: Sum) -> Option<NodeId> {
        let node = &self.graph.nodes[id];
        let [result] = node.results[..] else { return None };
        let [reader] = self.uses[result][..] else { return None };
        let follower = &self.graph.nodes[reader];
        let op = &follower.op;
        let moves = matches!(op, Op::Transpose(_) | Op::Reshape(_) | Op::TreeSum(_));
        let works = moves || (is_pointwise(op) && !matches!(op, Op::Broadcast(_)));
        let smaller = |v: &Value| self.graph.shape(*v).elements() <= self.graph.shape(result).elements();
        let there = |v: &Value| self.graph.def_node(*v).is_none_or(|def| self.done[def] || self.is_cheap(def));
        let fits = works
            && !self.done[reader]
            && !self.kept[result]
            && follower.results.iter().all(|r| smaller(r) && (!self.kept[*r] || sum == Sum::Plain))
            && follower.origin.turn() == node.origin.turn()
            && follower.args.iter().all(there);
        fits.then_some(reader)
    }

    /// Whether a node makes a constant, or repeats something that is there.
    fn is_cheap(&self, id: NodeId) -> bool {
        let node = &self.graph.nodes[id];
        let there = |v: &Value| self.graph.def_node(*v).is_none_or(|def| self.done[def]);
        matches!(node.op, Op::Constant(_) | Op::Broadcast(_)) && node.args.iter().all(there)
    }
}

/// How a sum is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sum {
    /// Of products: its kernel does not write the next value of a state, which so stays where it is.
    Products,
    /// Of elements.
    Plain,
}

impl Sum {
    fn of(op: &Op) -> Sum {
        if matches!(op, Op::Contract(_) | Op::Conv(_)) { Sum::Products } else { Sum::Plain }
    }
}

/// Whether an operation adds up many elements.
fn is_sum(op: &Op) -> bool {
    matches!(op, Op::Contract(_) | Op::Conv(_) | Op::Reduce(_) | Op::TreeSum(_))
}
