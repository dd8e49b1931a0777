//! How many bytes live when on each device, in the order of a graph and where some of its values are computed again.
//!
//! Values share memory with what they are views of, and fused pointwise work with the operand that it replaces. Weights,
//! states and what follows from weights alone are not counted: they are always there.

use super::sequence::{Source, Step};
use cranelift_entity::{EntityRef, SecondaryMap};
use intwain_ir::{Def, Graph, NodeId, ParamKind, Value};

/// What memory the values of a graph take on devices.
#[derive(Debug)]
pub(crate) struct Lives<'g> {
    pub(super) graph: &'g Graph,
    /// For results that need no memory of their own, the operand in whose memory they are.
    shares: SecondaryMap<NodeId, Option<usize>>,
    /// The piece of memory of each value; `None` where it needs none.
    pub(super) piece: SecondaryMap<Value, Option<usize>>,
    pub(super) pieces: Vec<Piece>,
    copies: Vec<Copied>,
    devices: usize,
}

/// Memory of a value and its views.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The value that is written there first.
    pub(super) root: Value,
    /// Bytes on each device.
    pub(super) bytes: Vec<f64>,
    /// The nodes that read it, by place in the graph, in order.
    pub(super) reads: Vec<usize>,
    /// Whether it is needed when the step is over.
    pub(super) kept: bool,
}

/// A value in another layout than its definition leaves it in.
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    /// Bytes on each device.
    pub(crate) bytes: Vec<f64>,
    /// The first node that reads it, by place in the graph.
    pub(crate) first: usize,
    /// The last one; the number of nodes if it is needed when the step is over.
    pub(crate) last: usize,
}

/// What decides which memory a graph takes.
pub(crate) struct Sizes<'a> {
    /// Bytes of a value on each device, all 0 where it takes none.
    pub(crate) bytes: &'a dyn Fn(Value) -> Vec<f64>,
    /// The operand in whose memory a node's result is, if it has none of its own.
    pub(crate) shares: &'a dyn Fn(NodeId) -> Option<usize>,
    /// Whether a node's results are made where they are read.
    pub(crate) is_free: &'a dyn Fn(NodeId) -> bool,
}

/// Bytes that live at each step of a sequence, for each device.
pub(crate) type Profile = Vec<Vec<f64>>;

impl<'g> Lives<'g> {
    /// The memory of a graph's values on so many devices.
    pub(crate) fn new(graph: &'g Graph, devices: usize, sizes: &Sizes<'_>, copies: Vec<Copied>) -> Lives<'g> {
        let mut lives = Lives {
            graph,
            shares: SecondaryMap::new(),
            piece: SecondaryMap::new(),
            pieces: Vec::new(),
            copies,
            devices,
        };
        for p in graph.inputs() {
            lives.define(p.value, (sizes.bytes)(p.value));
        }
        for (at, (id, node)) in graph.nodes.iter().enumerate() {
            for arg in &node.args {
                if let Some(piece) = lives.piece[*arg] {
                    lives.pieces[piece].reads.push(at);
                }
            }
            if (sizes.is_free)(id) {
                lives.shares[id] = (sizes.shares)(id);
                let operand = lives.shares[id].and_then(|operand| node.args.get(operand));
                let shared = operand.and_then(|arg| lives.piece[*arg]);
                node.results.iter().for_each(|r| lives.piece[*r] = shared);
            } else {
                node.results.iter().for_each(|r| lives.define(*r, (sizes.bytes)(*r)));
            }
        }
        let next = |p: &intwain_ir::Param| if let ParamKind::State { next } = p.kind { next } else { None };
        for value in graph.outputs.iter().map(|o| o.value).chain(graph.params.iter().filter_map(next)) {
            if let Some(piece) = lives.piece[value] {
                lives.pieces[piece].kept = true;
            }
        }
        lives
    }

    fn define(&mut self, root: Value, bytes: Vec<f64>) {
        if bytes.iter().any(|b| *b > 0.0) {
            self.piece[root] = Some(self.pieces.len());
            self.pieces.push(Piece { root, bytes, reads: Vec::new(), kept: false });
        }
    }

    /// Bytes on each device of the memory in which a value is.
    pub(super) fn bytes(&self, value: Value) -> &[f64] {
        self.piece[value].map_or(&[], |piece| &self.pieces[piece].bytes)
    }

    /// Where a piece is written, by place in the graph; 0 for inputs.
    pub(super) fn defined(&self, piece: usize) -> usize {
        self.place_of(self.pieces[piece].root)
    }

    /// The node that makes a value, by place in the graph; 0 for parameters.
    pub(super) fn place_of(&self, value: Value) -> usize {
        match self.graph.values[value].def {
            Def::Param(_) => 0,
            Def::Node(id, _) => id.index(),
        }
    }

    /// Bytes that live at each step.
    pub(super) fn profile(&self, steps: &[Step]) -> Profile {
        self.spans(steps).0
    }

    /// Bytes that live at each step, and the steps between which each piece lives: those of the graph, in order, then
    /// those that are written again, with the piece that they repeat.
    pub(super) fn spans(&self, steps: &[Step]) -> (Profile, Vec<Span>) {
        let mut at: Vec<usize> = vec![0; self.graph.nodes.len() + 1];
        at[self.graph.nodes.len()] = steps.len();
        let mut spans: Vec<Span> = (0..self.pieces.len()).map(|piece| Span { piece, first: 0, last: 0 }).collect();
        // Where each value is, as first computed and as computed again.
        let (mut first, mut again) = (SecondaryMap::new(), SecondaryMap::new());
        for p in self.graph.inputs() {
            first[p.value] = self.piece[p.value];
        }
        for (now, step) in steps.iter().enumerate() {
            let node = &self.graph.nodes[step.node];
            let mut shared = None;
            for (operand, (arg, source)) in node.args.iter().zip(&step.sources).enumerate() {
                let place: Option<usize> = match source {
                    Source::First => first[*arg],
                    Source::Again => again[*arg],
                };
                if let Some(span) = place {
                    spans[span].last = now;
                }
                if self.shares[step.node] == Some(operand) {
                    shared = place;
                }
            }
            for result in &node.results {
                let own = self.piece[*result].filter(|piece| self.pieces[*piece].root == *result);
                let place = match (own, step.again) {
                    (Some(piece), false) => {
                        (spans[piece].first, spans[piece].last) = (now, now);
                        own
                    }
                    (Some(piece), true) => {
                        spans.push(Span { piece, first: now, last: now });
                        Some(spans.len() - 1)
                    }
                    (None, _) => shared,
                };
                if step.again {
                    again[*result] = place;
                } else {
                    first[*result] = place;
                }
            }
            if !step.again {
                at[step.node.index()] = now;
            }
        }
        for (span, piece) in spans.iter_mut().zip(&self.pieces) {
            span.last = if piece.kept { steps.len() } else { span.last };
        }
        (self.summed(steps.len(), &spans, &at), spans)
    }

    fn summed(&self, count: usize, spans: &[Span], at: &[usize]) -> Profile {
        let mut changes = vec![vec![0.0; count + 2]; self.devices];
        let mut add = |bytes: &[f64], first: usize, last: usize| {
            for (change, bytes) in changes.iter_mut().zip(bytes) {
                change[first] += bytes;
                change[last + 1] -= bytes;
            }
        };
        for span in spans {
            add(&self.pieces[span.piece].bytes, span.first, span.last);
        }
        for copy in &self.copies {
            add(&copy.bytes, at[copy.first], at[copy.last]);
        }
        for change in &mut changes {
            let mut live = 0.0;
            for bytes in change.iter_mut() {
                live += *bytes;
                *bytes = live;
            }
            change.pop();
        }
        changes
    }

    /// What lives on a device where most does: the values that were written and their bytes, most first.
    pub(crate) fn at_peak(&self, device: usize) -> Vec<(Value, f64)> {
        let (profile, spans) = self.spans(&super::sequence::plain(self.graph));
        let most = (0..profile[device].len()).max_by(|a, b| profile[device][*a].total_cmp(&profile[device][*b]));
        let Some(most) = most else { return Vec::new() };
        let lives = |span: &&Span| span.first <= most && most <= span.last;
        let bytes = |span: &Span| (self.pieces[span.piece].root, self.pieces[span.piece].bytes[device]);
        let mut held: Vec<(Value, f64)> = spans.iter().filter(lives).map(bytes).collect();
        held.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        held
    }

    /// Most bytes that live at once on each device.
    pub(crate) fn peaks(&self) -> Vec<f64> {
        peaks(&self.profile(&super::sequence::plain(self.graph)))
    }
}

/// Between which steps a piece of memory is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The piece, or the one that it repeats.
    pub(super) piece: usize,
    pub(super) first: usize,
    pub(super) last: usize,
}

/// Most bytes of a profile on each device.
pub(super) fn peaks(profile: &Profile) -> Vec<f64> {
    profile.iter().map(|live| live.iter().copied().fold(0.0, f64::max)).collect()
}
