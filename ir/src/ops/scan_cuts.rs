//! Along what a scan can be cut: a cut of a state or sequence that passes through every operation of the body, by the
//! operations' own rules, and comes back the same at the states.
//!
//! The cut is propagated forwards and backwards until nothing changes; a value that it does not reach is whole on every
//! device. Whole operands are cut too where the body needs only parts of them.

use super::prelude::*;
use super::{LocalCx, Op, scan::Scan};
use crate::{Def, Graph, Node, NodeId};
use cranelift_entity::SecondaryMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which dimension of each of the body's values is cut, in how many positions per unit.
#[derive(Clone, Debug)]
pub(super) struct Cuts {
    /// Number of units.
    extent: usize,
    dims: SecondaryMap<Value, Option<FactorDim>>,
}

impl Cuts {
    /// Whether a value is cut.
    pub(super) fn cuts(&self, value: Value) -> bool {
        self.dims[value].is_some()
    }

    /// Whether a value is cut along its first dimension.
    pub(super) fn cuts_rows(&self, value: Value) -> bool {
        self.dims[value].is_some_and(|d| d.dim == 0)
    }
}

/// Why a cut does not pass.
enum Refusal {
    /// It would need communication.
    Blocked,
    /// Units must be this many times as large.
    Coarser(usize),
}

/// Every cut of a scan.
pub(super) fn cuts(scan: &Scan) -> Vec<Cuts> {
    let body = &scan.body;
    let rules: Vec<ShardingRule> = body.nodes.keys().map(|n| body.rule(n)).collect();
    let mut all: Vec<Cuts> = Vec::new();
    for p in body.params.iter().take(scan.states + scan.sequences) {
        for dim in 0..body.ty(p.value).rank() {
            let reached = |c: &Cuts| c.dims[p.value].is_some_and(|d| d.dim == dim);
            if !all.iter().any(reached) {
                all.extend(cut_from(scan, &rules, p.value, dim));
            }
        }
    }
    all
}

/// The cut that begins at one dimension of a parameter, in the smallest units that pass.
fn cut_from(scan: &Scan, rules: &[ShardingRule], seed: Value, dim: usize) -> Option<Cuts> {
    let extent = scan.body.shape(seed)[dim];
    let mut unit = 1;
    while unit <= extent && extent.is_multiple_of(unit) {
        let mut cuts = Cuts { extent: extent / unit, dims: SecondaryMap::new() };
        cuts.dims[seed] = Some(FactorDim::new(dim, unit));
        match propagate(scan, rules, &mut cuts) {
            Ok(()) => return Some(cuts),
            Err(Refusal::Blocked) => return None,
            Err(Refusal::Coarser(times)) => unit *= times,
        }
    }
    None
}

fn propagate(scan: &Scan, rules: &[ShardingRule], cuts: &mut Cuts) -> Result<(), Refusal> {
    let body = &*scan.body;
    loop {
        let mut changed = false;
        for forwards in [true, false] {
            let ids = body.nodes.keys();
            let ids: Vec<NodeId> = if forwards { ids.collect() } else { ids.rev().collect() };
            for id in ids {
                changed |= pass(&body.nodes[id], &rules[id.as_u32() as usize], cuts)?;
            }
        }
        for i in 0..scan.states {
            let (before, after) = (body.params[i].value, body.outputs[i].value);
            match (cuts.dims[before], cuts.dims[after]) {
                (Some(d), None) => changed |= set(cuts, after, d),
                (None, Some(d)) => changed |= set(cuts, before, d),
                (a, b) if a == b => {}
                _ => return Err(Refusal::Blocked),
            }
        }
        if !changed {
            break;
        }
    }
    // Every operation is performed on parts as one factor says, or whole.
    let exact = |id: NodeId| {
        let node = &body.nodes[id];
        let have = |v: &Value| cuts.dims[*v];
        node.args.iter().chain(&node.results).all(|v| cuts.dims[*v].is_none())
            || rules[id.as_u32() as usize].factors.iter().any(|f| {
                let scale = scale_of(f, node, cuts).unwrap_or(0);
                let want = |d: &Option<FactorDim>| d.map(|d| FactorDim::new(d.dim, d.unit * scale));
                let operands = node.args.iter().zip(&f.operands).all(|(v, d)| have(v) == want(d));
                let results = node.results.iter().zip(&f.results).all(|(v, d)| have(v) == want(d));
                f.kind == FactorKind::Pass && scale > 0 && operands && results
            })
    };
    if body.nodes.keys().all(exact) { Ok(()) } else { Err(Refusal::Blocked) }
}

/// Lets the cut pass an operation that it has reached.
fn pass(node: &Node, rule: &ShardingRule, cuts: &mut Cuts) -> Result<bool, Refusal> {
    if node.args.iter().chain(&node.results).all(|v| cuts.dims[*v].is_none()) {
        return Ok(false);
    }
    let fits = |f: &&Factor| {
        let values = node.args.iter().zip(&f.operands).chain(node.results.iter().zip(&f.results));
        f.kind == FactorKind::Pass
            && values.into_iter().all(|(v, d)| match (cuts.dims[*v], d) {
                (Some(have), Some(d)) => have.dim == d.dim,
                (Some(_), None) => false,
                (None, _) => true,
            })
    };
    let f = rule.factors.iter().find(fits).ok_or(Refusal::Blocked)?;
    let scale = scale_of(f, node, cuts)?;
    let mut changed = false;
    for (v, d) in node.args.iter().zip(&f.operands).chain(node.results.iter().zip(&f.results)) {
        if let Some(d) = d {
            changed |= set(cuts, *v, FactorDim::new(d.dim, d.unit * scale));
        }
    }
    Ok(changed)
}

/// Units of the factor in one unit of the cut.
fn scale_of(f: &Factor, node: &Node, cuts: &Cuts) -> Result<usize, Refusal> {
    let values = node.args.iter().zip(&f.operands).chain(node.results.iter().zip(&f.results));
    let reached = values.into_iter().find_map(|(v, d)| Some((cuts.dims[*v]?.unit, (*d)?.unit)));
    let (have, unit) = reached.ok_or(Refusal::Blocked)?;
    if have.is_multiple_of(unit) { Ok(have / unit) } else { Err(Refusal::Coarser(unit / gcd(have, unit))) }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Cuts a value that was whole; one that is cut already is judged at the end.
fn set(cuts: &mut Cuts, value: Value, dim: FactorDim) -> bool {
    let fresh = cuts.dims[value].is_none();
    if fresh {
        cuts.dims[value] = Some(dim);
    }
    fresh
}

/// The cut as a factor of the scan: dimension d of a sequence's step is dimension d + 1 of the sequence.
pub(super) fn factor(scan: &Scan, cuts: &Cuts) -> Factor {
    let stacked = |d: FactorDim| FactorDim { dim: d.dim + 1, ..d };
    let first_whole = scan.states + scan.sequences;
    let operands = scan.body.params.iter().enumerate().map(|(i, p)| {
        let d = cuts.dims[p.value];
        if (scan.states..first_whole).contains(&i) { d.map(stacked) } else { d }
    });
    let results = scan.body.outputs.iter().enumerate().map(|(i, o)| {
        let d = cuts.dims[o.value];
        if i < scan.states { d } else { d.map(stacked) }
    });
    Factor { extent: cuts.extent, kind: FactorKind::Pass, operands: operands.collect(), results: results.collect() }
}

/// The body that a device repeats on its parts.
pub(super) fn local_body(scan: &Scan, cuts: &Cuts, units: &[usize], device: usize) -> Result<Arc<Graph>, TypeError> {
    let body = &*scan.body;
    let layout = |v: Value| match cuts.dims[v] {
        Some(d) => Layout::split(d.dim, units.iter().map(|u| u * d.unit)),
        None => Layout::Replicated,
    };
    let local = |v: Value| layout(v).local_type(body.ty(v), device).expect("every device has a part of what is cut");
    let mut g = Graph::new(&body.name);
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    for p in &body.params {
        debug_assert!(matches!(body.values[p.value].def, Def::Param(_)));
        map.insert(p.value, g.param(&p.name, local(p.value), p.kind.clone()));
    }
    for (id, node) in &body.nodes {
        let op: &Op = &node.op;
        let results: Vec<Type> = node.results.iter().map(|r| local(*r)).collect();
        let cx = LocalCx {
            device,
            args: &body.arg_types(id),
            arg_layouts: &node.args.iter().map(|a| layout(*a)).collect::<Vec<_>>(),
            results: &results,
            global_results: &body.result_types(id),
            result_layouts: &node.results.iter().map(|r| layout(*r)).collect::<Vec<_>>(),
        };
        let args: Vec<Value> = node.args.iter().map(|a| map[a]).collect();
        g.origin = node.origin.clone();
        let new = g.push_local(op, &args, &cx)?;
        map.extend(node.results.iter().copied().zip(new));
    }
    for o in &body.outputs {
        g.output(&o.name, map[&o.value]);
    }
    g.origin = body.origin.clone();
    Ok(Arc::new(g))
}
