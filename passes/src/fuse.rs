//! Fusion: nodes become clusters, one kernel each.
//!
//! A cluster is one [`Compute`] over materialised values. Nodes are visited in order; a node takes over the expression
//! of an operand's cluster where that saves a round trip through memory and repeats no work:
//!
//! * constants, broadcasts, transpositions and slices are indices, not work, and go into every reader that can take
//!   them;
//! * pointwise work goes into its only reader, unless that reads elements several times;
//! * a reduction, product or window takes the pointwise work after it as its epilogue, if that is its only reader and
//!   reads every element in place;
//! * pointwise work whose value is kept anyway is done with its reader (`together`), so that both come from one pass over
//!   memory;
//! * a tree over the results of reductions takes them over, and a permutation of a product's results writes them where they go;
//! * a reshape of what moves elements, or of a product, is part of the indices too, where a product or no division remains.
//!
//! What depends on weights only stays out of the clusters of the step, so that it is computed once. The target has the
//! last word on every fusion. Substitution changes no operation and no order, so results keep their bits.

mod look;
mod together;

use intwain_ir::compute::{Compute, Expr};
use intwain_ir::ops::{Body, Op};
use intwain_ir::{Graph, NodeId, Origin, ParamKind, Target, Type, Value};
use look::{adds_up, divisions, has_chain, has_guards, is_cheap, is_free, loads_of, reduces, reshaped, takes};
use std::collections::{BTreeMap, BTreeSet};

/// Most operands of a cluster.
const MAX_OPERANDS: usize = 24;
/// Most expressions of a cluster.
const MAX_EXPRS: usize = 400;

/// When a cluster runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Once, when weights load.
    Prepare,
    /// With every call.
    Step,
}

/// What a cluster does.
#[derive(Clone, Debug)]
pub enum Work {
    /// One kernel.
    Kernel(Compute),
    /// The operand's bytes under another shape.
    View,
    /// A leaf operation.
    Leaf(Op),
    /// Communication.
    Communication(Op),
}

/// Nodes that run as one.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// What it does.
    pub work: Work,
    /// When it runs.
    pub region: Region,
    /// The values read: operands of the Compute or of the operation.
    pub args: Vec<Value>,
    /// The values written.
    pub results: Vec<Value>,
    /// The nodes it stands for, in order.
    pub nodes: Vec<NodeId>,
    /// The layer of its heaviest node.
    pub origin: Origin,
}

/// Fuses a Local graph. Clusters are in executable order; every output and every operand of a cluster is a parameter or
/// the result of an earlier cluster.
pub fn fuse(graph: &Graph, target: &dyn Target) -> Vec<Cluster> {
    let mut f = Fuser {
        graph,
        target,
        readers: readers(graph),
        prepared: prepared(graph),
        pending: BTreeMap::new(),
        materialised: vec![false; graph.nodes.len()],
    };
    let mut fixed: BTreeMap<NodeId, Work> = BTreeMap::new();
    for (id, node) in &graph.nodes {
        let body = node.op.body(&graph.arg_types(id), &graph.result_types(id));
        let work = match body {
            Body::Compute(c) => {
                f.visit(id, c);
                continue;
            }
            Body::View => {
                f.visit_view(id);
                fixed.insert(id, Work::View);
                continue;
            }
            Body::Leaf => Work::Leaf(node.op.clone()),
            Body::Communication => Work::Communication(node.op.clone()),
        };
        node.args.iter().for_each(|a| f.demand(*a));
        fixed.insert(id, work);
    }
    graph.outputs.iter().for_each(|o| f.demand(o.value));
    for p in &graph.params {
        if let ParamKind::State { next: Some(v) } = p.kind {
            f.demand(v);
        }
    }
    together::together(graph, target, f.finish(fixed))
}

/// The nodes that read each value, and whether the graph itself does.
fn readers(graph: &Graph) -> BTreeMap<Value, (Vec<NodeId>, bool)> {
    let mut readers: BTreeMap<Value, (Vec<NodeId>, bool)> = BTreeMap::new();
    for (id, node) in &graph.nodes {
        for a in &node.args {
            let list = &mut readers.entry(*a).or_default().0;
            if list.last() != Some(&id) {
                list.push(id);
            }
        }
    }
    for o in &graph.outputs {
        readers.entry(o.value).or_default().1 = true;
    }
    for p in &graph.params {
        if let ParamKind::State { next: Some(v) } = p.kind {
            readers.entry(v).or_default().1 = true;
        }
    }
    readers
}

/// For each node, whether it runs once, when weights load.
fn prepared(graph: &Graph) -> Vec<bool> {
    let values = graph.prepared();
    graph.nodes.values().map(|node| node.results.first().is_some_and(|r| values[*r])).collect()
}

/// A node's expression so far, over materialised values.
struct Pending {
    compute: Compute,
    args: Vec<Value>,
    nodes: Vec<NodeId>,
}

struct Fuser<'g> {
    graph: &'g Graph,
    target: &'g dyn Target,
    readers: BTreeMap<Value, (Vec<NodeId>, bool)>,
    prepared: Vec<bool>,
    pending: BTreeMap<NodeId, Pending>,
    materialised: Vec<bool>,
}

impl Fuser<'_> {
    fn demand(&mut self, value: Value) {
        if let Some(n) = self.graph.def_node(value) {
            self.materialised[n.as_u32() as usize] = true;
        }
    }

    fn visit(&mut self, id: NodeId, compute: Compute) {
        let node = &self.graph.nodes[id];
        let mut cluster = Pending { compute, args: node.args.to_vec(), nodes: vec![id] };
        // Operands are taken over from last to first, so that the numbers of those before stay valid; then again, for
        // what has become an operand, or whose readers are now all inside.
        let mut changed = true;
        while changed {
            changed = false;
            for which in (0..cluster.args.len()).rev() {
                if let Some(fused) = self.take_over(id, &cluster, which) {
                    cluster = fused;
                    changed = true;
                }
            }
        }
        drop_unused(&mut cluster);
        self.pending.insert(id, cluster);
    }

    /// A reshape stays a view, unless its readers take over what it is a view of: then it's part of their indices.
    fn visit_view(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id];
        let operand = node.args[0];
        let Some(producer) = self.graph.def_node(operand).and_then(|def| self.pending.get(&def)) else { return };
        let alone = matches!(self.readers.get(&operand), Some((nodes, false)) if nodes[..] == [id]);
        let moved = is_free(&producer.compute) || (alone && has_chain(&producer.compute));
        if producer.compute.results().len() != 1 || !moved {
            return;
        }
        let (from, to) = (self.graph.ty(operand), self.graph.shape(node.results[0]));
        let compute = reshaped(from, to).inline(0, &producer.compute, 0, &|o| o);
        let nodes = producer.nodes.iter().copied().chain([id]).collect();
        let args = producer.args.clone();
        self.pending.insert(id, Pending { compute, args, nodes });
    }

    /// The cluster with operand `which` replaced by the expression that computes it, if that pays.
    fn take_over(&self, id: NodeId, cluster: &Pending, which: usize) -> Option<Pending> {
        let value = cluster.args[which];
        let def = self.graph.def_node(value)?;
        let producer = self.pending.get(&def)?;
        let result = self.graph.nodes[def].results.iter().position(|r| *r == value)?;
        if producer.compute.results().len() != 1 || !self.worthwhile(id, cluster, which, def, producer) {
            return None;
        }
        let mut args = cluster.args.clone();
        let map: Vec<usize> = producer
            .args
            .iter()
            .map(|a| {
                args.iter().enumerate().position(|(i, b)| i != which && a == b).unwrap_or_else(|| {
                    args.push(*a);
                    args.len() - 1
                })
            })
            .collect();
        let compute = cluster.compute.inline(which, &producer.compute, result, &|o| map[o]);
        let mut nodes = producer.nodes.clone();
        nodes.extend(cluster.nodes.iter().copied().filter(|n| !producer.nodes.contains(n)));
        nodes.sort_unstable();
        let fused = Pending { compute, args, nodes };
        let operands = fused.args.iter().filter(|a| **a != value).count();
        if operands > MAX_OPERANDS || fused.compute.exprs().count() > MAX_EXPRS {
            return None;
        }
        let is_view = matches!(self.graph.nodes[def].op, Op::Reshape(_));
        if is_view && divisions(&fused.compute) > divisions(&cluster.compute) && !has_chain(&fused.compute) {
            return None;
        }
        let types: Vec<&Type> = fused.args.iter().map(|a| self.graph.ty(*a)).collect();
        self.target.can_fuse(&fused.compute, &types, &self.graph.result_types(id)).then_some(fused)
    }

    fn worthwhile(&self, id: NodeId, cluster: &Pending, which: usize, def: NodeId, producer: &Pending) -> bool {
        let value = cluster.args[which];
        let loads: Vec<(u64, bool)> = loads_of(&cluster.compute, which);
        if loads.is_empty() || takes(&cluster.compute, which) {
            return false;
        }
        if is_free(&cluster.compute) && self.repeats(id, value) {
            // What repeats elements stays free, so that it goes into its readers and the work before it is done once.
            return is_free(&producer.compute);
        }
        if is_free(&producer.compute) {
            // A guarded index is evaluated per element: not worth repeating for several readers.
            return !has_guards(&producer.compute) || self.only_reader(value, cluster);
        }
        if self.prepared[index(def)] && !self.prepared[index(id)] {
            return false;
        }
        if !self.only_reader(value, cluster) {
            return false;
        }
        let elements = self.graph.shape(value).elements() as u64;
        let reads: u64 = loads.iter().map(|(axes, _)| cluster.compute.positions(*axes)).sum();
        if reduces(&producer.compute) {
            let [(_, in_place)] = loads[..] else { return false };
            if has_chain(&producer.compute) && self.is_next(id) {
                // A product collects its sums where its result goes, which then cannot be the state's own place.
                return false;
            }
            let epilogue = in_place && !reduces(&cluster.compute);
            let permuted = has_chain(&producer.compute) && is_free(&cluster.compute) && !has_guards(&cluster.compute);
            return reads == elements && (epilogue || permuted || adds_up(&cluster.compute, which));
        }
        reads <= elements || (reads <= 3 * elements && is_cheap(&producer.compute))
    }

    /// Whether a state takes over a result of the node.
    fn is_next(&self, id: NodeId) -> bool {
        let results = &self.graph.nodes[id].results;
        let next = self.graph.params.iter().filter_map(|p| match p.kind {
            ParamKind::State { next } => next,
            ParamKind::Input { .. } | ParamKind::Weight { .. } => None,
        });
        next.into_iter().any(|v| results.contains(&v))
    }

    /// Whether the node has more elements than the operand.
    fn repeats(&self, id: NodeId, value: Value) -> bool {
        let elements = |v: Value| self.graph.shape(v).elements();
        self.graph.nodes[id].results.iter().any(|r| elements(*r) > elements(value))
    }

    /// Whether a value and all that is computed from it on the way to the cluster's result are read inside only.
    fn only_reader(&self, value: Value, cluster: &Pending) -> bool {
        let Some((&root, _)) = cluster.nodes.split_last() else { return false };
        // Each value is looked at once: there are exponentially many ways through a graph of shared values.
        let (mut seen, mut left) = (BTreeSet::from([value]), vec![value]);
        while let Some(value) = left.pop() {
            let Some((nodes, false)) = self.readers.get(&value) else { return false };
            for n in nodes.iter().filter(|n| **n != root) {
                if !cluster.nodes.contains(n) {
                    return false;
                }
                left.extend(self.graph.nodes[*n].results.iter().copied().filter(|r| seen.insert(*r)));
            }
        }
        true
    }

    fn finish(mut self, mut fixed: BTreeMap<NodeId, Work>) -> Vec<Cluster> {
        for (id, node) in self.graph.nodes.iter().rev() {
            if !self.materialised[index(id)] {
                continue;
            }
            if matches!(fixed.get(&id), Some(Work::View)) {
                node.args.iter().for_each(|a| self.demand(*a));
            } else if let Some(p) = self.pending.get(&id) {
                p.args.clone().into_iter().for_each(|a| self.demand(a));
            }
        }
        let mut clusters = Vec::new();
        let mut pending = self.pending;
        for (id, node) in &self.graph.nodes {
            let region = if self.prepared[index(id)] { Region::Prepare } else { Region::Step };
            let results = node.results.to_vec();
            let inside = |work: &Work| matches!(work, Work::View) && !self.materialised[index(id)];
            if let Some(work) = fixed.remove(&id).filter(|work| !inside(work)) {
                let (args, origin) = (node.args.to_vec(), node.origin.clone());
                clusters.push(Cluster { work, region, args, results, nodes: vec![id], origin });
            } else if self.materialised[index(id)]
                && let Some(p) = pending.remove(&id)
            {
                let heaviest = p.nodes.iter().copied().max_by_key(|n| (self.graph.flops(*n), std::cmp::Reverse(*n)));
                let origin = heaviest.map_or(Origin::default(), |n| self.graph.nodes[n].origin.clone());
                clusters.push(Cluster {
                    work: Work::Kernel(p.compute),
                    region,
                    args: p.args,
                    results,
                    nodes: p.nodes,
                    origin,
                });
            }
        }
        clusters
    }
}

fn index(id: NodeId) -> usize {
    id.as_u32() as usize
}

/// Renumbers operands so that only those that are read remain.
fn drop_unused(p: &mut Pending) {
    let mut used = vec![false; p.args.len()];
    let live = p.compute.reachable();
    for (_, e) in p.compute.exprs().filter(|(id, _)| live[id.0 as usize]) {
        if let Expr::Load { operand, .. } | Expr::Take { operand, .. } = e {
            used[*operand] = true;
        }
    }
    if used.iter().all(|u| *u) {
        return;
    }
    let map: Vec<usize> = used
        .iter()
        .scan(0, |n, &u| {
            let at = *n;
            *n += usize::from(u);
            Some(at)
        })
        .collect();
    p.compute = p.compute.renumber(&|o| map[o]);
    let mut keep = used.iter();
    p.args.retain(|_| *keep.next().unwrap_or(&false));
}

#[cfg(test)]
mod tests;
