//! The order in which a graph's nodes run where some values are computed again.

use super::lives::Lives;
use cranelift_entity::{EntityRef, SecondaryMap};
use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, NodeId, Rewriter, Value};
use smallvec::SmallVec;

/// A node that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) node: NodeId,
    /// Whether it ran before.
    pub(super) again: bool,
    /// Which of each operand's values it reads.
    pub(super) sources: SmallVec<[Source; 3]>,
}

/// Which value of an operand is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// What was computed first, or a parameter.
    First,
    /// What was computed again.
    Again,
}

/// For each piece of memory that is given up the last node that reads what was there first, by place in the graph.
pub(super) type GivenUp = Vec<Option<usize>>;

/// What must not run again.
#[derive(Debug)]
pub(super) struct Fixed {
    /// For each node whether it stays where it is: devices exchange what it reads.
    pub(super) nodes: SecondaryMap<NodeId, bool>,
    /// For each piece whether it is so small that it is kept rather than computed again for what is.
    pub(super) small: Vec<bool>,
}

/// The graph as it stands.
pub(super) fn plain(graph: &Graph) -> Vec<Step> {
    let step = |(id, node): (NodeId, &intwain_ir::Node)| Step {
        node: id,
        again: false,
        sources: node.args.iter().map(|_| Source::First).collect(),
    };
    graph.nodes.iter().map(step).collect()
}

/// The graph with what is given up computed again right before it is read, with all that it takes and is not there any
/// more. Every node runs again once at most.
pub(super) fn sequence(lives: &Lives<'_>, given_up: &GivenUp, fixed: &Fixed) -> Vec<Step> {
    let graph = lives.graph;
    let mut s = Sequencer { lives, given_up, fixed, again: SecondaryMap::new(), steps: Vec::new() };
    for (at, (id, node)) in graph.nodes.iter().enumerate() {
        let sources: SmallVec<[Source; 3]> = node.args.iter().map(|a| s.source(*a, at)).collect();
        for (arg, source) in node.args.iter().zip(&sources) {
            if let (Source::Again, Some(def)) = (source, graph.def_node(*arg)) {
                s.repeat(def, at);
            }
        }
        s.steps.push(Step { node: id, again: false, sources });
    }
    s.steps
}

struct Sequencer<'a> {
    lives: &'a Lives<'a>,
    given_up: &'a GivenUp,
    fixed: &'a Fixed,
    again: SecondaryMap<NodeId, bool>,
    steps: Vec<Step>,
}

impl Sequencer<'_> {
    /// Which value a node of the graph reads at its place.
    fn source(&self, arg: Value, at: usize) -> Source {
        let last = self.lives.piece[arg].and_then(|piece| self.given_up[piece]);
        match last {
            // What is made after the first value was given up is made of the second.
            Some(last) if at > last && self.lives.place_of(arg) <= last => Source::Again,
            Some(_) | None => Source::First,
        }
    }

    /// Which value a node reads that runs again before the node at `at`.
    fn source_again(&self, arg: Value, at: usize) -> Source {
        let Some(piece) = self.lives.piece[arg] else { return Source::First };
        let (Some(def), Some(root)) =
            (self.lives.graph.def_node(arg), self.lives.graph.def_node(self.lives.pieces[piece].root))
        else {
            return Source::First;
        };
        let stays = self.fixed.nodes[def] || self.fixed.nodes[root] || self.fixed.small[piece];
        let there =
            self.lives.pieces[piece].kept || self.lives.pieces[piece].reads.last().is_some_and(|last| *last >= at);
        match self.given_up[piece] {
            Some(_) => self.source(arg, at),
            None if there || stays => Source::First,
            None => Source::Again,
        }
    }

    /// Runs a node again, and before it what it needs, before the node at `at`.
    fn repeat(&mut self, id: NodeId, at: usize) {
        let graph = self.lives.graph;
        let mut open = vec![id];
        while let Some(&id) = open.last() {
            if self.again[id] {
                open.pop();
                continue;
            }
            let node = &graph.nodes[id];
            let sources: SmallVec<[Source; 3]> = node.args.iter().map(|a| self.source_again(*a, at)).collect();
            let first = open.len();
            for (arg, source) in node.args.iter().zip(&sources) {
                if let (Source::Again, Some(def)) = (source, graph.def_node(*arg))
                    && !self.again[def]
                {
                    open.push(def);
                }
            }
            if open.len() == first {
                self.again[id] = true;
                self.steps.push(Step { node: id, again: true, sources });
                open.pop();
            } else {
                open[first..].reverse();
            }
        }
    }
}

/// The graph that runs in this order.
pub(super) fn apply(graph: &Graph, steps: &[Step]) -> Result<Graph, TypeError> {
    let mut rewriter = Rewriter::new(graph);
    let mut again: SecondaryMap<Value, Option<Value>> = SecondaryMap::new();
    for step in steps {
        let node = &graph.nodes[step.node];
        let read = |(arg, source): (&Value, &Source)| match source {
            Source::First => rewriter.value(*arg),
            Source::Again => again[*arg].expect("what is computed again comes before its readers"),
        };
        let args: SmallVec<[Value; 3]> = node.args.iter().zip(&step.sources).map(read).collect();
        if step.again {
            rewriter.new.origin = node.origin.backward().again();
            let results = rewriter.new.push_all(node.op.clone(), &args)?;
            for (old, new) in node.results.iter().zip(results) {
                again[*old] = Some(new);
            }
        } else {
            rewriter.copy_with(step.node, node.op.clone(), &args)?;
        }
    }
    Ok(rewriter.finish())
}

/// The nodes that run again, in order.
pub(super) fn repeated(steps: &[Step]) -> impl Iterator<Item = NodeId> {
    steps.iter().filter(|s| s.again).map(|s| s.node)
}

/// Nodes by place in the graph.
pub(super) fn node_at(place: usize) -> NodeId {
    NodeId::new(place)
}
