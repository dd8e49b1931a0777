//! Which results are written in the place of a state.
//!
//! The next value of a state may overwrite it if no command reads the old value later, no output and no other state is the
//! old value, and the kernel that computes it reads the state only at the position that it writes. Kernels that collect
//! sums of products where their result goes are not among them. What devices gather from parts that lie elsewhere is.

use crate::fuse::{Cluster, Region, Work};
use intwain_ir::compute::{Compute, Expr, Order};
use intwain_ir::ops::Op;
use intwain_ir::{Graph, ParamKind, Value};
use std::collections::BTreeMap;

/// Results that take the place of states.
#[derive(Default)]
pub(super) struct Replaced {
    /// For each such result the cluster that computes it and the state.
    results: BTreeMap<Value, (usize, Value)>,
}

impl Replaced {
    pub(super) fn new(graph: &Graph, clusters: &[Cluster]) -> Replaced {
        let mut roots: BTreeMap<Value, Value> = graph.params.iter().map(|p| (p.value, p.value)).collect();
        let mut last: BTreeMap<Value, usize> = BTreeMap::new();
        let mut made: BTreeMap<Value, usize> = BTreeMap::new();
        for (at, c) in clusters.iter().enumerate() {
            made.extend(c.results.iter().map(|r| (*r, at)));
            if let (Work::View, Some(&root)) = (&c.work, c.args.first().and_then(|a| roots.get(a))) {
                roots.insert(c.results[0], root);
                continue;
            }
            last.extend(c.args.iter().filter_map(|a| roots.get(a)).map(|root| (*root, at)));
        }
        let next = |p: &intwain_ir::Param| if let ParamKind::State { next } = p.kind { next } else { None };
        let shown = graph.outputs.iter().map(|o| o.value).chain(graph.params.iter().filter_map(next));
        let shown: Vec<Value> = shown.filter_map(|v| roots.get(&v).copied()).collect();
        let mut results = BTreeMap::new();
        for p in &graph.params {
            let Some((value, &at)) = next(p).and_then(|v| Some((v, made.get(&v)?))) else { continue };
            let c = &clusters[at];
            let is_last = last.get(&p.value).is_none_or(|last| *last <= at) && !shown.contains(&p.value);
            let own = |operand: usize| roots.get(&c.args[operand]) == Some(&p.value);
            let fits = match &c.work {
                Work::Kernel(compute) => reads_in_place(compute, &own),
                Work::Communication(Op::AllGather(_)) => !own(0),
                Work::Communication(_) | Work::Leaf(_) | Work::View => false,
            };
            if c.region == Region::Step && is_last && fits {
                results.entry(value).or_insert((at, p.value));
            }
        }
        Replaced { results }
    }

    /// The state in whose place a cluster's result is written.
    pub(super) fn by(&self, cluster: usize, result: Value) -> Option<Value> {
        self.results.get(&result).filter(|(at, _)| *at == cluster).map(|(_, state)| *state)
    }

    /// Whether a result is written in the place of this state.
    pub(super) fn replaces(&self, result: Value, state: Value) -> bool {
        self.results.get(&result).is_some_and(|(_, s)| *s == state)
    }
}

/// Whether the operands of a set are read at the position of the result only.
fn reads_in_place(c: &Compute, own: &dyn Fn(usize) -> bool) -> bool {
    let (live, position) = (c.reachable(), c.position());
    c.exprs().filter(|(id, _)| live[id.0 as usize]).all(|(_, e)| match e {
        Expr::Load { operand, index, .. } => !own(*operand) || *index == position,
        Expr::Take { operand, .. } => !own(*operand),
        Expr::Reduce { order, .. } => *order != Order::Fma,
        Expr::Const(_)
        | Expr::Position(..)
        | Expr::InRange(_)
        | Expr::Unary(..)
        | Expr::Binary(..)
        | Expr::Compare(..)
        | Expr::Select(..)
        | Expr::Cast(..)
        | Expr::ArgMax { .. } => true,
    })
}
