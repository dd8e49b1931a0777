//! The states that a node or parameter can be in.

use super::groups::{Group, Groups};
use crate::ties::Rules;
use intwain_ir::scalar::Reduce;
use intwain_ir::shard::{FactorKind, Layout, ShardingRule, Sizes};
use intwain_ir::{Graph, NodeId, Value};
use std::fmt;

/// How the devices share the work of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeStrategy {
    /// Every device computes all of it.
    #[default]
    Whole,
    /// It is cut along a factor of its rule; device k takes `units[k]` units.
    Cut {
        /// Index into the rule's factors.
        factor: usize,
        /// Units per device.
        units: Sizes,
    },
    /// Every device applies it to its partial sums; the operands of the set (bits) are partial.
    Linear(u64),
    /// One device computes it.
    On(usize),
}

impl NodeStrategy {
    /// The layouts that the node reads its operands in.
    pub fn operand_layouts(&self, rule: &ShardingRule, operands: usize) -> Vec<Layout> {
        match self {
            NodeStrategy::Whole => vec![Layout::Replicated; operands],
            NodeStrategy::Cut { factor, units } => rule.factors[*factor].operand_layouts(units),
            NodeStrategy::Linear(set) => (0..operands)
                .map(|i| match set & (1 << i) {
                    0 => Layout::Replicated,
                    _ => Layout::Partial(Reduce::Sum),
                })
                .collect(),
            NodeStrategy::On(k) => vec![Layout::On(*k); operands],
        }
    }

    /// The layouts of its results.
    pub fn result_layouts(&self, rule: &ShardingRule, results: usize) -> Vec<Layout> {
        match self {
            NodeStrategy::Whole => vec![Layout::Replicated; results],
            NodeStrategy::Cut { factor, units } => rule.factors[*factor].result_layouts(units),
            NodeStrategy::Linear(_) => vec![Layout::Partial(Reduce::Sum); results],
            NodeStrategy::On(k) => vec![Layout::On(*k); results],
        }
    }

    /// The share of the work that a device does.
    pub fn share(&self, device: usize) -> f64 {
        match self {
            NodeStrategy::Whole | NodeStrategy::Linear(_) => 1.0,
            NodeStrategy::Cut { units, .. } => units[device] as f64 / units.iter().sum::<usize>().max(1) as f64,
            NodeStrategy::On(k) => f64::from(u8::from(*k == device)),
        }
    }
}

/// `whole`, `cut factor 2 [32,32]`, `linear 1`, `on 0`.
impl fmt::Display for NodeStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeStrategy::Whole => f.write_str("whole"),
            NodeStrategy::Cut { factor, units } => write!(f, "cut factor {factor} {:?}", units.as_slice()),
            NodeStrategy::Linear(set) => write!(f, "linear {set:b}"),
            NodeStrategy::On(k) => write!(f, "on {k}"),
        }
    }
}

/// A state of a node in the cost graph.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) strategy: NodeStrategy,
    /// The group that a cut follows.
    pub(super) group: Option<Group>,
    pub(super) operands: Vec<Layout>,
    pub(super) results: Vec<Layout>,
    /// Whether results are brought to every device right away, for several readers.
    pub(super) gathered: Gathered,
}

/// What happens to a node's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    /// Every reader converts what it needs.
    No,
    /// They are replicated once; readers find copies.
    Yes,
}

/// What a node's weights and class say about which states matter; see [`node_states`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Interest {
    /// Whether operands may be partial sums: not worth it for heavy nodes, which would all run whole.
    pub(super) linear: bool,
    /// Whether some result has several readers.
    pub(super) shared: bool,
}

/// Which sums of floating numbers may be divided over the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sums {
    /// All.
    Divided,
    /// None over rows: results are to be what one device computes.
    RowsWhole,
}

impl State {
    /// Whether the results, or operands, are parts of a sum of floating numbers, which depends on the division.
    pub(super) fn divides_sums(&self, graph: &Graph, id: NodeId) -> bool {
        let node = &graph.nodes[id];
        let values = node.args.iter().zip(&self.operands).chain(node.results.iter().zip(&self.results));
        values.into_iter().any(|(v, layout)| match layout {
            Layout::Partial(Reduce::Sum | Reduce::Prod) => graph.ty(*v).dtype.is_float(),
            Layout::Partial(Reduce::Max | Reduce::Min) | Layout::Replicated | Layout::Split { .. } | Layout::On(_) => {
                false
            }
        })
    }
}

/// Every state of a node that two devices can share, at most [`crate::solve::MAX_STATES`].
pub(super) fn node_states(
    graph: &Graph,
    id: NodeId,
    rules: &Rules,
    groups: &Groups,
    sums: Sums,
    interest: Interest,
) -> Vec<State> {
    let node = &graph.nodes[id];
    let rule = &rules[id];
    let state = |strategy: NodeStrategy, group| State {
        operands: strategy.operand_layouts(rule, node.args.len()),
        results: strategy.result_layouts(rule, node.results.len()),
        strategy,
        group,
        gathered: Gathered::No,
    };
    let mut states = vec![state(NodeStrategy::Whole, None)];
    if node.args.is_empty() {
        return states;
    }
    for (factor, f) in rule.factors.iter().enumerate() {
        let Some(group) = groups.of_factor(&node.args, &node.results, f) else { continue };
        let Some(units) = groups.cut(group, f.extent) else { continue };
        let new = state(NodeStrategy::Cut { factor, units }, Some(group));
        let partial_fits = matches!(f.kind, FactorKind::Pass)
            || node.results.iter().zip(&new.results).all(|(v, l)| l.fits(graph.ty(*v), 2));
        let whole = sums == Sums::RowsWhole && groups.is_rows(group) && new.divides_sums(graph, id);
        let same = |s: &State| s.operands == new.operands && s.results == new.results;
        if partial_fits && !whole && !states.iter().any(same) {
            states.push(new);
        }
    }
    if interest.linear {
        states.extend(rule.linear.iter().map(|&set| state(NodeStrategy::Linear(set), None)));
    }
    states.truncate(crate::solve::MAX_STATES);
    if interest.shared {
        let gathered: Vec<State> = states[1..]
            .iter()
            .map(|s| State { gathered: Gathered::Yes, ..s.clone() })
            .take(crate::solve::MAX_STATES - states.len())
            .collect();
        states.extend(gathered);
    }
    states
}

/// Every layout of a parameter that two devices can share: replicated, or cut along one dimension.
pub(super) fn param_layouts(graph: &Graph, value: Value, groups: &Groups) -> Vec<(Layout, Option<Group>)> {
    let shape = graph.shape(value);
    let mut layouts = vec![(Layout::Replicated, None)];
    for dim in 0..shape.len() {
        let group = groups.of(value, dim);
        if let Some(sizes) = groups.cut(group, shape[dim]) {
            layouts.push((Layout::Split { dim, sizes }, Some(group)));
        }
    }
    layouts.truncate(crate::solve::MAX_STATES);
    layouts
}
