//! Makes communication explicit: wherever a reader needs a value in another layout than its definition leaves it in, a
//! `reshard` node is put between them, one per value and layout.
//!
//! After this every node satisfies its sharding rule exactly, no output is partial, and no later pass adds
//! communication. What is made from nothing, such as constants, is made again in every layout that is read instead of
//! being converted. Chooses no layouts; see `place`.

use crate::place::{NodeStrategy, Plan, StateSharding};
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{Reshard, TypeError};
use intwain_ir::{Graph, Layout, Node, NodeId, Origin, Param, ParamKind, Rewriter, Stage, Value};
use std::collections::BTreeMap;

/// The graph with the plan's layouts written on its values (stage Sharded).
pub fn apply(graph: &Graph, plan: &Plan) -> Graph {
    let mut sharded = graph.clone();
    (sharded.stage, sharded.devices) = (Stage::Sharded, plan.devices);
    for (value, data) in sharded.values.iter_mut() {
        data.layout = Some(plan.layouts[value].clone().unwrap_or(Layout::Replicated));
    }
    sharded
}

/// The graph at stage Explicit. `strategies` says how each node is shared; `graph` is at stage Sharded and its layouts
/// are those that the strategies leave.
///
/// # Errors
/// Only if the strategies are not those of the graph: a defect of the planner.
pub fn reshard(graph: &Graph, strategies: &SecondaryMap<intwain_ir::NodeId, NodeStrategy>) -> Result<Graph, TypeError> {
    reshard_states(graph, strategies, StateSharding::Replicated)
}

/// The same for a plan under which devices keep states in parts.
///
/// # Errors
/// As for [`reshard`].
pub fn reshard_states(
    graph: &Graph,
    strategies: &SecondaryMap<intwain_ir::NodeId, NodeStrategy>,
    sharding: StateSharding,
) -> Result<Graph, TypeError> {
    let wanted = wanted(graph, strategies);
    let mut resharder = Resharder {
        whole: wanted_whole(graph, &wanted),
        sharding,
        kept: kept(graph),
        rewriter: Rewriter::new(graph),
        converted: BTreeMap::new(),
        channels: 0,
        gathered: 0,
    };
    // What states become is brought to where they are as soon as it is there.
    let states: Vec<(Value, Layout)> =
        graph.params.iter().filter_map(|p| Some((next(p)?, graph.layout(p.value)))).collect();
    for (id, node) in graph.nodes.iter().filter(|(_, node)| !is_source(node)) {
        let mut args = Vec::with_capacity(node.args.len());
        for (&arg, layout) in node.args.iter().zip(&wanted[id]) {
            args.push(resharder.in_layout(arg, layout, &node.origin)?);
        }
        resharder.rewriter.copy_with(id, node.op.clone(), &args)?;
        for (next, layout) in states.iter().filter(|(next, _)| node.results.contains(next)) {
            resharder.in_layout(*next, layout, &node.origin)?;
        }
    }
    resharder.close_outputs(graph)?;
    let mut explicit = resharder.rewriter.finish();
    explicit.stage = Stage::Explicit;
    Ok(explicit)
}

/// What a state becomes.
fn next(param: &Param) -> Option<Value> {
    match param.kind {
        ParamKind::State { next } => next,
        ParamKind::Input { .. } | ParamKind::Weight { .. } => None,
    }
}

type Wanted = SecondaryMap<intwain_ir::NodeId, Vec<Layout>>;

/// The layouts in which every node reads its operands.
fn wanted(graph: &Graph, strategies: &SecondaryMap<intwain_ir::NodeId, NodeStrategy>) -> Wanted {
    let mut wanted = Wanted::new();
    for (id, node) in &graph.nodes {
        wanted[id] = strategies[id].operand_layouts(&graph.rule(id), node.args.len());
    }
    wanted
}

/// Values that some reader needs on every device: other readers then cut their parts from the copy.
fn wanted_whole(graph: &Graph, wanted: &Wanted) -> SecondaryMap<Value, bool> {
    let mut whole = SecondaryMap::new();
    for (id, node) in &graph.nodes {
        for (&arg, layout) in node.args.iter().zip(&wanted[id]) {
            whole[arg] |= *layout == Layout::Replicated;
        }
    }
    whole
}

/// Values that follow from weights and states alone.
fn kept(graph: &Graph) -> SecondaryMap<Value, bool> {
    let mut kept = SecondaryMap::new();
    for p in &graph.params {
        kept[p.value] = !matches!(p.kind, ParamKind::Input { .. });
    }
    for node in graph.nodes.values().filter(|n| !n.args.is_empty()) {
        let all = node.args.iter().all(|a| kept[*a]);
        node.results.iter().for_each(|r| kept[*r] = all);
    }
    kept
}

/// Whether a node makes its results from nothing.
fn is_source(node: &Node) -> bool {
    node.args.is_empty() && !node.op.is_communication()
}

struct Resharder<'g> {
    rewriter: Rewriter<'g>,
    whole: SecondaryMap<Value, bool>,
    sharding: StateSharding,
    kept: SecondaryMap<Value, bool>,
    /// The value in a layout, and how much was gathered of what is kept when it was last read.
    converted: BTreeMap<(Value, Layout), (Value, usize)>,
    channels: usize,
    /// Gathers of what is kept.
    gathered: usize,
}

impl Resharder<'_> {
    /// The new value that stands for `old` in a layout.
    fn in_layout(&mut self, old: Value, layout: &Layout, origin: &Origin) -> Result<Value, TypeError> {
        let from = self.rewriter.old().layout(old);
        if let Some(id) = self.rewriter.old().def_node(old)
            && is_source(&self.rewriter.old().nodes[id])
        {
            return self.made_in_layout(old, id, layout, origin);
        }
        let copy_is_there = matches!((&from, layout), (Layout::Replicated, Layout::On(_)));
        if from == *layout || copy_is_there {
            return Ok(self.rewriter.value(old));
        }
        // Variables are gathered again where others were gathered since: a copy is not kept from the way forwards to the
        // way back.
        let again = self.sharding == StateSharding::Variables
            && self.kept[old]
            && from.is_split()
            && *layout == Layout::Replicated;
        let gathered = self.gathered;
        if let Some((value, read)) = self.converted.get(&(old, layout.clone()))
            && (!again || *read == gathered)
        {
            return Ok(*value);
        }
        // Under `Slots` sums are made whole before parts of them are read.
        let is_sum = self.sharding == StateSharding::Slots && matches!(from, Layout::Partial(_));
        let by_copy = (self.whole[old] && !matches!(from, Layout::On(_))) || (is_sum && layout.is_split());
        let source = if by_copy && *layout != Layout::Replicated {
            self.in_layout(old, &Layout::Replicated, origin)?
        } else {
            self.rewriter.value(old)
        };
        let value = self.convert(source, layout, origin)?;
        self.gathered += usize::from(again);
        self.converted.insert((old, layout.clone()), (value, self.gathered));
        Ok(value)
    }

    fn convert(&mut self, source: Value, layout: &Layout, origin: &Origin) -> Result<Value, TypeError> {
        let new = &mut self.rewriter.new;
        new.origin = origin.clone();
        let value = new.push(Reshard { channel: self.channels }, &[source])?;
        new.values[value].layout = Some(layout.clone());
        self.channels += 1;
        Ok(value)
    }

    /// The result of a node without operands, made in a layout.
    fn made_in_layout(&mut self, old: Value, id: NodeId, layout: &Layout, origin: &Origin) -> Result<Value, TypeError> {
        if let Some(&(value, _)) = self.converted.get(&(old, layout.clone())) {
            return Ok(value);
        }
        let graph = self.rewriter.old();
        let node = &graph.nodes[id];
        let direct = node.results.len() == 1 && graph.rule(id).allows(&[], std::slice::from_ref(layout));
        let value = if direct || *layout == Layout::Replicated {
            self.rewriter.new.origin = node.origin.clone();
            let results = self.rewriter.new.push_all(node.op.clone(), &[])?;
            for (&o, &n) in node.results.iter().zip(&results) {
                self.rewriter.new.values[n].layout = Some(layout.clone());
                self.converted.insert((o, layout.clone()), (n, 0));
            }
            self.converted[&(old, layout.clone())].0
        } else {
            let whole = self.made_in_layout(old, id, &Layout::Replicated, origin)?;
            self.convert(whole, layout, origin)?
        };
        self.converted.insert((old, layout.clone()), (value, 0));
        Ok(value)
    }

    /// Partial outputs are combined, and states become values of their own layout.
    fn close_outputs(&mut self, graph: &Graph) -> Result<(), TypeError> {
        for output in &graph.outputs {
            let made_late = graph.def_node(output.value).is_some_and(|id| is_source(&graph.nodes[id]));
            if made_late || matches!(graph.layout(output.value), Layout::Partial(_)) {
                let whole = self.in_layout(output.value, &Layout::Replicated, &Origin::default())?;
                self.rewriter.set(output.value, whole);
            }
        }
        for param in &graph.params {
            if let Some(next) = next(param) {
                let value = self.in_layout(next, &graph.layout(param.value), &Origin::default())?;
                self.rewriter.set(next, value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
