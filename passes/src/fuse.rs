//! Fusion: nodes become clusters, one kernel each.
//!
//! A cluster is one [`Compute`] over materialised values. Nodes are visited in order; a node takes over the expression
//! of an operand's cluster where that saves a round trip through memory and repeats no work:
//!
//! * constants, broadcasts, transpositions and slices are indices, not work, and go into every reader that can take
//!   them;
//! * pointwise work goes into its only reader, unless that reads elements several times;
//! * a reduction, product or window takes the pointwise work after it as its epilogue, if that is its only reader and
//!   reads every element in place.
//!
//! What depends on weights only stays out of the clusters of the step, so that it is computed once. The target has the
//! last word on every fusion. Substitution changes no operation and no order, so results keep their bits.

use intwain_ir::compute::{Compute, Expr};
use intwain_ir::ops::{Body, Op};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{Graph, NodeId, Origin, ParamKind, Target, Type, Value};
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
            Body::View => Work::View,
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
    f.finish(fixed)
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
            let in_place = loads.len() == 1 && loads[0].1;
            return in_place && !reduces(&cluster.compute) && reads == elements;
        }
        reads <= elements || (reads <= 3 * elements && is_cheap(&producer.compute))
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
        for id in self.graph.nodes.keys().rev() {
            if self.materialised[index(id)]
                && let Some(p) = self.pending.get(&id)
            {
                p.args.clone().into_iter().for_each(|a| self.demand(a));
            }
        }
        let mut clusters = Vec::new();
        let mut pending = self.pending;
        for (id, node) in &self.graph.nodes {
            let region = if self.prepared[index(id)] { Region::Prepare } else { Region::Step };
            let results = node.results.to_vec();
            if let Some(work) = fixed.remove(&id) {
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

/// For each load of an operand: the axes over which it is evaluated, and whether it reads the result's own position.
fn loads_of(c: &Compute, which: usize) -> Vec<(u64, bool)> {
    let live = c.reachable();
    let position = c.position();
    c.exprs()
        .filter(|(id, _)| live[id.0 as usize])
        .filter_map(|(id, e)| match e {
            Expr::Load { operand, index, guards, .. } if *operand == which => {
                Some((c.free_axes(id), guards.is_empty() && *index == position))
            }
            _ => None,
        })
        .collect()
}

fn takes(c: &Compute, which: usize) -> bool {
    c.exprs().any(|(_, e)| matches!(e, Expr::Take { operand, .. } if *operand == which))
}

fn live_exprs(c: &Compute) -> impl Iterator<Item = &Expr> {
    let live = c.reachable();
    c.exprs().filter(move |(id, _)| live[id.0 as usize]).map(|(_, e)| e)
}

/// Whether a compute moves elements or is constant, without work.
fn is_free(c: &Compute) -> bool {
    live_exprs(c).all(|e| match e {
        Expr::Const(_) | Expr::Position(..) | Expr::Load { .. } => true,
        Expr::InRange(_) | Expr::Select(..) => c.results().iter().all(|r| matches!(c.expr(*r), Expr::Load { .. })),
        Expr::Take { .. }
        | Expr::Unary(..)
        | Expr::Binary(..)
        | Expr::Compare(..)
        | Expr::Cast(..)
        | Expr::Reduce { .. }
        | Expr::ArgMax { .. } => false,
    })
}

fn has_guards(c: &Compute) -> bool {
    live_exprs(c).any(|e| matches!(e, Expr::Load { guards, .. } if !guards.is_empty()))
}

fn reduces(c: &Compute) -> bool {
    live_exprs(c).any(|e| matches!(e, Expr::Reduce { .. } | Expr::ArgMax { .. }))
}

/// Whether repeating the work costs less than a round trip through memory.
fn is_cheap(c: &Compute) -> bool {
    let mut work = 0;
    for e in live_exprs(c) {
        work += match e {
            Expr::Unary(Unary::Neg | Unary::Abs, _) | Expr::Compare(..) | Expr::Select(..) | Expr::Cast(..) => 1,
            Expr::Unary(..) => 20,
            Expr::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min, ..) => 1,
            Expr::Binary(..) => 10,
            Expr::Take { .. } | Expr::Reduce { .. } | Expr::ArgMax { .. } => 20,
            Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) | Expr::Load { .. } => 0,
        };
    }
    work <= 6
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::scalar::Reduce;
    use intwain_ir::{DType, Rows, Tensor, Trainable, interp, ops};

    struct Always;
    impl Target for Always {
        fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
            true
        }
    }

    /// Dense + bias + relu, then a row softmax with a scale before it.
    fn model() -> Graph {
        let mut g = Graph::new("m");
        let x = g.input("x", Type::new(DType::F32, [3, 4]), Rows::Batched);
        let w = g.weight("w", Type::new(DType::F32, [4, 5]), Trainable::Yes);
        let b = g.weight("b", Type::new(DType::F32, [5]), Trainable::Yes);
        let h = g.matmul(x, w).unwrap();
        let b2 = g.unary(Unary::Exp, b).unwrap();
        let h = g.binary_broadcast(Binary::Add, h, b2).unwrap();
        let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
        let h = g.binary(Binary::Max, h, zero).unwrap();
        let two = g.full(DType::F32, 2.0, &g.shape(h).clone()).unwrap();
        let s = g.mul(h, two).unwrap();
        let y = g.push(ops::Softmax { dim: 1 }, &[s]).unwrap();
        let z = g.reduce(Reduce::Sum, h, &[1]).unwrap();
        g.output("y", y);
        g.output("z", z);
        g
    }

    fn run(g: &Graph, clusters: &[Cluster], args: &[Tensor]) -> Vec<Tensor> {
        let mut values: BTreeMap<Value, Tensor> = g.params.iter().map(|p| p.value).zip(args.iter().cloned()).collect();
        for c in clusters {
            let Work::Kernel(compute) = &c.work else { panic!("only kernels here") };
            let operands: Vec<&Tensor> = c.args.iter().map(|a| &values[a]).collect();
            let types: Vec<&Type> = c.results.iter().map(|r| g.ty(*r)).collect();
            let results = interp::evaluate(compute, &operands, &types);
            values.extend(c.results.iter().copied().zip(results));
        }
        g.outputs.iter().map(|o| values[&o.value].clone()).collect()
    }

    #[test]
    fn fusion_keeps_the_bits_and_finds_the_kernels() {
        let g = model();
        let clusters = fuse(&g, &Always);
        let regions: Vec<Region> = clusters.iter().map(|c| c.region).collect();
        // exp(b) once; product + bias + relu; scale + softmax; row sums.
        assert_eq!(regions, [Region::Prepare, Region::Step, Region::Step, Region::Step]);
        let numbers = |n: usize| (0..n).map(|i| ((i * 7919 % 23) as f32 - 11.0) / 7.0).collect::<Vec<_>>();
        let args = [([3, 4].as_slice(), 12), ([4, 5].as_slice(), 20), ([5].as_slice(), 5)]
            .map(|(shape, n)| Tensor::from_f32(shape, &numbers(n)));
        assert_eq!(run(&g, &clusters, &args), interp::run(&g, args.to_vec()).unwrap());
    }

    /// relu is written with its operand read twice, so that its gradient at 0 is 0.
    #[test]
    fn a_value_that_two_nodes_of_one_cluster_read_is_taken_over() {
        let mut g = Graph::new("m");
        let x = g.input("x", Type::new(DType::F32, [3, 4]), Rows::Batched);
        let w = g.weight("w", Type::new(DType::F32, [4, 5]), Trainable::Yes);
        let h = g.matmul(x, w).unwrap();
        let zero = g.full(DType::F32, 0.0, &g.shape(h).clone()).unwrap();
        let below = g.compare(intwain_ir::scalar::Compare::Le, h, zero).unwrap();
        let y = g.select(below, zero, h).unwrap();
        g.output("y", y);
        let clusters = fuse(&g, &Always);
        assert_eq!(clusters.len(), 1);
        let args = [Tensor::from_f32([3, 4], &[0.5; 12]), Tensor::from_f32([4, 5], &[-1.0; 20])];
        assert_eq!(run(&g, &clusters, &args), interp::run(&g, args.to_vec()).unwrap());
    }

    #[test]
    fn a_target_that_refuses_gets_one_kernel_per_node() {
        struct Never;
        impl Target for Never {
            fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
                false
            }
        }
        let g = model();
        assert_eq!(fuse(&g, &Never).len(), g.nodes.len());
    }
}
