//! What follows without looking at the whole graph: slices, joins, paddings and sums of meanings, and repeated elements.

use super::local::Meanings;
use super::meaning::{Basis, Meaning, untiled};
use super::whole::{Whole, splat};
use intwain_ir::ops::Op;
use intwain_ir::scalar::Reduce;
use intwain_ir::{Graph, NodeId, Scalar, Value};
use std::ops::Range;

/// Meanings of nodes that only rearrange: slices of a value, parts joined or padded, addends added up, zeros made from
/// zeros.
pub(super) fn rearranged(whole: &Whole<'_>, local: &Graph, id: NodeId, known: &Meanings) -> Vec<Meaning> {
    let node = &local.nodes[id];
    match &node.op {
        Op::Slice(op) if op.stride.iter().all(|&s| s == 1) => {
            let shape = local.shape(node.args[0]);
            let cut: Vec<usize> = (0..shape.len()).filter(|&d| op.start[d] != 0 || op.limit[d] != shape[d]).collect();
            known[node.args[0]]
                .iter()
                .filter_map(|m| sliced(m, &cut, op.start.as_slice(), op.limit.as_slice()))
                .collect()
        }
        Op::Concat(op) => joined(whole, local, node.args.as_slice(), op.dim, known).into_iter().collect(),
        Op::Pad(op) if op.interior.iter().all(|&i| i == 0) => {
            let padded: Vec<usize> = (0..op.low.len()).filter(|&d| op.low[d] != 0 || op.high[d] != 0).collect();
            let reduce = [Reduce::Sum, Reduce::Prod, Reduce::Max, Reduce::Min]
                .into_iter()
                .find(|r| op.value[0] == r.identity(op.value[0].dtype()));
            let Some(reduce) = reduce else { return Vec::new() };
            let result = local.shape(node.results[0]);
            known[node.args[0]].iter().filter_map(|m| embedded(m, &padded, op.low.as_slice(), result, reduce)).collect()
        }
        Op::Binary(op) => added(&known[node.args[0]], &known[node.args[1]], op.function).into_iter().collect(),
        _ => Vec::new(),
    }
}

/// Zero, if the operation is linear in operands that are all zero.
pub(super) fn vanishes(local: &Graph, id: NodeId, known: &Meanings) -> Option<Meaning> {
    let node = &local.nodes[id];
    let is_zero = |at: usize| {
        let zero = |m: &Meaning| matches!(m, Meaning::Splat(x) if *x == Reduce::Sum.identity(x.dtype()));
        known[node.args[at]].iter().any(zero)
    };
    let zeros = (0..node.args.len()).filter(|&at| is_zero(at)).fold(0u64, |set, at| set | 1 << at);
    let vanishes = zeros != 0 && local.rule(id).linear.iter().any(|set| set & !zeros == 0);
    vanishes.then(|| Meaning::Splat(Reduce::Sum.identity(local.ty(node.results[0]).dtype)))
}

/// The one element that a node's result repeats, if it does.
pub(super) fn repeated(local: &Graph, id: NodeId, known: &Meanings) -> Option<Scalar> {
    let node = &local.nodes[id];
    match &node.op {
        Op::Broadcast(_) | Op::Reshape(_) | Op::Transpose(_) => match known[node.args[0]].as_slice() {
            [Meaning::Splat(x)] => Some(*x),
            _ => None,
        },
        op => splat(op),
    }
}

fn sliced(meaning: &Meaning, cut: &[usize], start: &[usize], limit: &[usize]) -> Option<Meaning> {
    let [dim] = *cut else { return cut.is_empty().then(|| meaning.clone()) };
    match meaning {
        Meaning::Full(value) => Some(Meaning::Piece { value: *value, dim, range: start[dim]..limit[dim] }),
        Meaning::Piece { value, dim: d, range } if *d == dim => {
            let range = range.start + start[dim]..range.start + limit[dim];
            Some(Meaning::Piece { value: *value, dim, range })
        }
        Meaning::Uniform { value, dim: d, .. } if *d == dim => {
            Some(Meaning::Uniform { value: *value, dim, length: limit[dim] - start[dim] })
        }
        Meaning::Splat(x) => Some(Meaning::Splat(*x)),
        Meaning::Piece { .. } | Meaning::Uniform { .. } | Meaning::Term { .. } => None,
    }
}

/// Neighbouring pieces of one value, one after another.
fn joined(whole: &Whole<'_>, local: &Graph, args: &[Value], dim: usize, known: &Meanings) -> Option<Meaning> {
    let mut all: Option<(Value, Range<usize>)> = None;
    for arg in args {
        let piece = known[*arg].iter().find_map(|m| match m {
            Meaning::Piece { value, dim: d, range } if *d == dim => Some((*value, range.clone())),
            Meaning::Full(value) => Some((*value, 0..local.shape(*arg)[dim])),
            Meaning::Piece { .. } | Meaning::Uniform { .. } | Meaning::Term { .. } | Meaning::Splat(_) => None,
        })?;
        all = Some(match all {
            None => piece,
            Some((value, range)) if value == piece.0 && range.end == piece.1.start => (value, range.start..piece.1.end),
            Some(_) => return None,
        });
    }
    let (value, range) = all?;
    let full = range == (0..whole.graph.shape(value)[dim]);
    Some(if full { Meaning::Full(value) } else { Meaning::Piece { value, dim, range } })
}

/// A piece with what changes nothing around it is an addend.
fn embedded(
    meaning: &Meaning,
    padded: &[usize],
    low: &[i64],
    result: &intwain_ir::Shape,
    op: Reduce,
) -> Option<Meaning> {
    let (value, dim, range) = match meaning {
        Meaning::Piece { value, dim, range } => (value, dim, range.clone()),
        Meaning::Uniform { value, dim, length } => {
            let start = usize::try_from(low[*dim]).ok()?;
            (value, dim, start..start + length)
        }
        Meaning::Full(_) | Meaning::Term { .. } | Meaning::Splat(_) => return None,
    };
    let right_place = padded.iter().all(|d| d == dim) && low[*dim] == range.start as i64;
    right_place.then(|| Meaning::Term {
        value: *value,
        op,
        shares: [(Basis::Part(*value, *dim), (range.clone(), result[*dim]))].into(),
    })
}

/// Addends of one value, combined on one device: the value itself if they tile.
fn added(x: &[Meaning], y: &[Meaning], function: intwain_ir::scalar::Binary) -> Option<Meaning> {
    for a in x {
        for b in y {
            let (Meaning::Term { value, op, shares: s }, Meaning::Term { value: v, op: o, shares: t }) = (a, b) else {
                continue;
            };
            if value == v && op == o && op.combine() == function && untiled(&[s.clone(), t.clone()]).is_none() {
                return Some(Meaning::Full(*value));
            }
        }
    }
    None
}
