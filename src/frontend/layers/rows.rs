//! Whether a graph keeps the rows of a batch apart.
//!
//! Where it does, any number of rows can be run in pieces, and a batch can be divided over devices. The fact follows from
//! the operations' sharding rules: rows enter as dimension 0 of every input, each operation must pass them on along one
//! factor, and they must come out as dimension 0 of every output. What is kept from call to call has rows too.

use std::collections::BTreeMap;

use intwain_ir::ops::Op;
use intwain_ir::shard::{FactorDim, FactorKind};
use intwain_ir::{Graph, Node, Param, ParamKind, Rows, ShardingRule, Value};

/// Where the rows are in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The value does not depend on any row.
    Nowhere,
    /// They are a dimension, each taking so many positions of it.
    Along(FactorDim),
    /// They meet.
    Mixed,
}

const FIRST: Place = Place::Along(FactorDim::new(0, 1));

/// Whether the rows of all inputs come out of all outputs apart from each other. The batch has at least two rows, so that
/// it cannot be taken for another dimension of extent 1.
pub(super) fn stay_apart(graph: &Graph) -> bool {
    let batched = |p: &Param| matches!(p.kind, ParamKind::Input { rows: Rows::Batched });
    let kept = |p: &Param| matches!(p.kind, ParamKind::State { .. });
    let places = graph.params.iter().map(|p| if batched(p) || kept(p) { FIRST } else { Place::Nowhere }).collect();
    graph.inputs().all(batched) && results(graph, places).into_iter().all(|place| place == FIRST)
}

/// Where the rows are in the outputs and in what is kept, for given places in the parameters.
fn results(graph: &Graph, params: Vec<Place>) -> Vec<Place> {
    let mut places: BTreeMap<Value, Place> = graph.params.iter().map(|p| p.value).zip(params).collect();
    for (id, node) in &graph.nodes {
        let args: Vec<Place> = node.args.iter().map(|a| places[a]).collect();
        let results = if args.iter().all(|p| *p == Place::Nowhere) {
            vec![Place::Nowhere; node.results.len()]
        } else if args.contains(&Place::Mixed) {
            vec![Place::Mixed; node.results.len()]
        } else {
            passed(graph, &graph.rule(id), node, &args)
        };
        places.extend(node.results.iter().copied().zip(results));
    }
    let next = graph.params.iter().filter_map(|p| match p.kind {
        ParamKind::State { next } => next,
        ParamKind::Input { .. } | ParamKind::Weight { .. } => None,
    });
    graph.outputs.iter().map(|o| o.value).chain(next).map(|v| places[&v]).collect()
}

/// The rows' places behind an operation that passes them on along one factor.
fn passed(graph: &Graph, rule: &ShardingRule, node: &Node, args: &[Place]) -> Vec<Place> {
    for factor in rule.factors.iter().filter(|f| f.kind == FactorKind::Pass) {
        // How many of the factor's units a row takes, by each operand that has rows.
        let mut per_row = args.iter().zip(&factor.operands).filter_map(|(place, cut)| match (place, cut) {
            (Place::Along(rows), Some(cut)) if rows.dim == cut.dim && rows.unit.is_multiple_of(cut.unit) => {
                Some(Some(rows.unit / cut.unit))
            }
            (Place::Along(_), _) => Some(None),
            (Place::Nowhere | Place::Mixed, _) => None,
        });
        let Some(Some(units)) = per_row.next() else { continue };
        if !per_row.all(|other| other == Some(units)) {
            continue;
        }
        // What does not come from rows must be the same for all of them.
        let same = node.args.iter().zip(args).zip(&factor.operands).all(|((arg, place), cut)| match (place, cut) {
            (Place::Nowhere, Some(cut)) => uniform(graph, *arg, cut.dim, &mut BTreeMap::new()),
            (Place::Nowhere | Place::Along(_) | Place::Mixed, _) => true,
        });
        if !same {
            continue;
        }
        let place = |cut: &Option<FactorDim>| match cut {
            Some(cut) => Place::Along(FactorDim::new(cut.dim, cut.unit * units)),
            None => Place::Mixed,
        };
        return factor.results.iter().map(place).collect();
    }
    vec![Place::Mixed; node.results.len()]
}

/// Whether a value that no row goes into is the same at every position of a dimension. States belong to their rows.
fn uniform(graph: &Graph, value: Value, dim: usize, known: &mut BTreeMap<(Value, usize), bool>) -> bool {
    if let Some(same) = known.get(&(value, dim)) {
        return *same;
    }
    let same = uniform_here(graph, value, dim, known);
    known.insert((value, dim), same);
    same
}

fn uniform_here(graph: &Graph, value: Value, dim: usize, known: &mut BTreeMap<(Value, usize), bool>) -> bool {
    if graph.shape(value).get(dim) == Some(&1) {
        return true;
    }
    let Some(id) = graph.def_node(value) else {
        return !graph.weights().any(|p| p.value == value);
    };
    let node = &graph.nodes[id];
    let mut same = |arg: Value, dim: usize| uniform(graph, arg, dim, known);
    match &node.op {
        Op::Constant(op) => op.elements.len() == 1,
        Op::Iota(op) => op.dim != dim,
        Op::Broadcast(op) => match op.dims.iter().position(|d| *d == dim) {
            None => true,
            Some(own) => same(node.args[0], own),
        },
        Op::Unary(_) | Op::Binary(_) | Op::Compare(_) | Op::Select(_) | Op::Cast(_) => {
            node.args.iter().all(|a| same(*a, dim))
        }
        Op::Transpose(op) => same(node.args[0], op.perm[dim]),
        Op::Concat(op) if op.dim != dim => node.args.iter().all(|a| same(*a, dim)),
        Op::Slice(_) | Op::Reverse(_) | Op::StopGradient(_) => same(node.args[0], dim),
        Op::Reshape(_) if dim == 0 && graph.shape(node.args[0]).first() == graph.shape(value).first() => {
            same(node.args[0], 0)
        }
        _ => node.args.iter().all(|a| (0..graph.shape(*a).len()).all(|d| same(*a, d))),
    }
}

#[cfg(test)]
mod tests {
    use intwain_ir::scalar::Reduce;
    use intwain_ir::{DType, Type};

    use super::*;

    #[test]
    fn rows_that_meet_are_noticed() {
        let build = |f: fn(&mut Graph, Value) -> Value| {
            let mut g = Graph::new("g");
            let x = g.input("x", Type::new(DType::F32, [4, 6]), Rows::Batched);
            let y = f(&mut g, x);
            g.output("y", y);
            stay_apart(&g)
        };
        assert!(build(|g, x| g.reduce(Reduce::Sum, x, &[1]).unwrap()));
        assert!(!build(|g, x| g.reduce_keep(Reduce::Sum, x, &[0]).unwrap()));
        assert!(!build(|g, x| g.transpose(x, &[1, 0]).unwrap()));
        // Each row becomes two and is put together again.
        assert!(build(|g, x| {
            let pairs = g.reshape(x, &[8, 3].into()).unwrap();
            g.reshape(pairs, &[4, 6].into()).unwrap()
        }));
        assert!(!build(|g, x| g.reshape(x, &[8, 3].into()).unwrap()));
        assert!(!build(|g, x| g.reshape(x, &[3, 8].into()).unwrap()));
        // Rows that are numbered differ.
        assert!(!build(|g, x| {
            let op = intwain_ir::ops::Iota { dtype: DType::F32, shape: [4, 6].into(), dim: 0, start: 0 };
            let numbers = g.push(op, &[]).unwrap();
            g.add(x, numbers).unwrap()
        }));
        assert!(build(|g, x| {
            let op = intwain_ir::ops::Iota { dtype: DType::F32, shape: [4, 6].into(), dim: 1, start: 0 };
            let numbers = g.push(op, &[]).unwrap();
            g.add(x, numbers).unwrap()
        }));
        assert!(!build(|g, _| g.full(DType::F32, 1.0, &[4, 6].into()).unwrap()));
    }
}
