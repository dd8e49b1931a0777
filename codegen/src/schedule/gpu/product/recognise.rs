//! What a contraction is, for every schedule that makes one on a GPU.
//!
//! Recognised is one chain of fused multiply-adds over all result axes. Axes that only the left factor reads are rows,
//! those that only the right one reads columns, those that both read batch, the reduced ones inner. A factor is any
//! expression without reductions, so that padding, strides, dilations and fused prologues are all the same.
//!
//! A [`Product`] has one nest for three parts with axes of their own: either factor, and the *rest*, which is what
//! follows the sum. Within a part neighbouring axes of one role are merged where that part allows it, so a row is one
//! axis for the weights' side, whatever it is for the image. The parts speak of the same element by its *numbers*: row,
//! column, inner and batch number count the role's axes in row-major order.

use crate::schedule::nest::{Nest, Node, NodeId, Op, coefficient};
use crate::schedule::roles::{divide_groups, orient, the_sum};
use intwain_ir::DType;
use intwain_ir::compute::{Atom, Axis, Index};
use intwain_ir::scalar::{Binary, Scalar, Unary};

/// A contraction. See the module's documentation.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct Product {
    /// The expressions of all parts; its results are those of the rest.
    pub(in crate::schedule) nest: Nest,
    /// The factor that has rows.
    pub(in crate::schedule) left: Factor,
    /// The factor that has columns.
    pub(in crate::schedule) right: Factor,
    /// What follows.
    pub(in crate::schedule) rest: Rest,
    /// Number of products.
    pub(in crate::schedule) batch: usize,
    /// Number of rows.
    pub(in crate::schedule) rows: usize,
    /// Number of columns.
    pub(in crate::schedule) columns: usize,
    /// Number of elements summed.
    pub(in crate::schedule) inner: usize,
    /// Type of factors and sums.
    pub(in crate::schedule) dtype: DType,
}

/// A factor and its axes, outermost first.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct Factor {
    /// The factor's value; it has the sum's type.
    pub(in crate::schedule) node: NodeId,
    /// Batch axes.
    pub(in crate::schedule) batch: Vec<Axis>,
    /// Row axes of the left factor, column axes of the right one.
    pub(in crate::schedule) outer: Vec<Axis>,
    /// Inner axes.
    pub(in crate::schedule) inner: Vec<Axis>,
}

/// What follows the sum, and its axes, outermost first.
#[derive(Clone, Debug)]
pub(in crate::schedule) struct Rest {
    /// The sum. Its node is a load that nobody may emit: give it a value with `Loops::define_lanes`.
    pub(in crate::schedule) sum: NodeId,
    /// Batch axes.
    pub(in crate::schedule) batch: Vec<Axis>,
    /// Row axes.
    pub(in crate::schedule) rows: Vec<Axis>,
    /// Column axes.
    pub(in crate::schedule) columns: Vec<Axis>,
}

impl Product {
    /// Whether tiles are worth while: many small products of few columns and short sums are better computed element by
    /// element, as those of a depthwise convolution with several outputs a channel.
    pub(in crate::schedule) fn has_tiles(&self) -> bool {
        self.batch == 1 || self.columns.min(self.rows) >= 4 || self.inner >= 64
    }
}

/// Whether a node is one load and a few simple operations with constants.
pub(in crate::schedule) fn is_cheap(nest: &Nest, node: NodeId) -> bool {
    let constant = |x: NodeId| matches!(nest.nodes[x].op, Op::Const(_));
    match nest.nodes[node].op {
        Op::Load { .. } => true,
        Op::Cast(x) | Op::Unary(Unary::Neg | Unary::Abs, x) => is_cheap(nest, x),
        Op::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min, x, y) => {
            (constant(x) && is_cheap(nest, y)) || (constant(y) && is_cheap(nest, x))
        }
        _ => false,
    }
}

/// Recognises a contraction whose result has elements; `operands` is their number.
pub(in crate::schedule) fn recognise(nest: &Nest, operands: usize) -> Option<Product> {
    let mut nest = nest.clone();
    let sum = the_sum(&nest)?;
    divide_groups(&mut nest);
    let Op::Reduce { axes: inner, body, .. } = nest.nodes[sum].op.clone() else { return None };
    let Op::Binary(Binary::Mul, x, y) = nest.nodes[body].op else { return None };
    let dtype = nest.nodes[sum].dtype;
    if !matches!(dtype, DType::F32 | DType::F64 | DType::I32 | DType::U32 | DType::I64) {
        return None;
    }
    let all = nest.axes.iter().fold(0u64, |s, a| s | 1 << a.0);
    if nest.nodes[sum].free != all || nest.axes.iter().any(|a| nest.extent(*a) == 0) {
        return None;
    }
    let (left, right) = orient(&nest, x, y)?;
    let (fa, fb) = (nest.nodes[left].free, nest.nodes[right].free);
    let only = |set: u64, not: u64| -> Vec<Axis> {
        nest.axes.iter().copied().filter(|a| set & (1 << a.0) != 0 && not & (1 << a.0) == 0).collect()
    };
    let (batch, rows, columns) = (only(fa & fb, 0), only(fa, fb), only(fb, fa));
    let count = |axes: &[Axis]| axes.iter().map(|a| nest.extent(*a)).product::<usize>();
    let counts = [count(&batch), count(&rows), count(&columns), count(&inner)];
    let parts = [
        Part::new(&nest, vec![left], Index::constant(0), [&batch, &rows, &inner]),
        Part::new(&nest, vec![right], Index::constant(0), [&batch, &columns, &inner]),
        Part::new(&after(&nest, sum, operands), nest.results.clone(), nest.store.clone(), [&batch, &rows, &columns]),
    ];
    let (nest, parts) = beside(parts)?;
    let [l, r, e] = parts;
    let factor = |(results, [batch, outer, inner]): (Vec<NodeId>, [Vec<Axis>; 3])| {
        Some(Factor { node: *results.first()?, batch, outer, inner })
    };
    let sum = nest.nodes.iter().position(|n| matches!(n.op, Op::Load { operand, .. } if operand == operands))?;
    let [batch, rows, columns] = e.1;
    Some(Product {
        left: factor(l)?,
        right: factor(r)?,
        rest: Rest { sum, batch, rows, columns },
        nest,
        batch: counts[0],
        rows: counts[1],
        columns: counts[2],
        inner: counts[3],
        dtype,
    })
}

/// The nest with the sum read, where the result will stand, from an operand of its own.
fn after(nest: &Nest, sum: NodeId, operand: usize) -> Nest {
    let mut rest = nest.clone();
    let fill = Scalar::zero(rest.nodes[sum].dtype);
    let op = Op::Load { operand, at: nest.store.clone(), guards: Vec::new(), fill };
    rest.nodes[sum] = Node { op, ..rest.nodes[sum].clone() };
    rest
}

/// Some of a nest's expressions, with the axes by role.
struct Part {
    nest: Nest,
    roles: [Vec<Axis>; 3],
}

impl Part {
    fn new(nest: &Nest, results: Vec<NodeId>, store: Index, roles: [&[Axis]; 3]) -> Part {
        let axes = roles.concat();
        let mut nest = Nest { results, store, axes, ..nest.clone() };
        nest.prune();
        nest.merge_within(&roles.map(<[Axis]>::to_vec));
        let left = roles.map(|r| r.iter().copied().filter(|a| nest.axes.contains(a)).collect());
        Part { nest, roles: left }
    }
}

/// Results and axes of a part in the common nest.
type Renamed = (Vec<NodeId>, [Vec<Axis>; 3]);

/// One nest of the expressions of all parts, with different axes for each. The store and the results are the last's.
fn beside(parts: [Part; 3]) -> Option<(Nest, [Renamed; 3])> {
    let extents: Vec<usize> = parts.iter().flat_map(|p| p.nest.axes.iter().map(|a| p.nest.extent(*a))).collect();
    if extents.len() > 64 {
        return None;
    }
    let mut all = Nest {
        extents: extents.clone(),
        axes: (0..extents.len() as u8).map(Axis).collect(),
        nodes: Vec::new(),
        results: Vec::new(),
        store: Index::constant(0),
    };
    let mut first = 0u8;
    let renamed = parts.map(|Part { mut nest, roles }| {
        let axes = nest.axes.clone();
        let begin = first;
        first += axes.len() as u8;
        let to = |a: Axis| axes.iter().position(|x| *x == a).map(|i| Axis(begin + i as u8));
        nest.substitute(&|a| to(a).map_or(Index::constant(0), Index::axis), extents.clone());
        let map: Vec<NodeId> = (0..nest.nodes.len()).map(|i| all.nodes.len() + i).collect();
        nest.nodes.iter_mut().for_each(|n| n.op.renumber(&map));
        all.nodes.extend(nest.nodes);
        all.results = nest.results.iter().map(|r| map[*r]).collect();
        all.store = nest.store;
        (all.results.clone(), roles.map(|r| r.into_iter().filter_map(to).collect()))
    });
    Some((all, renamed))
}

/// Whether `width` neighbouring positions of an axis can be taken at once in everything that a node needs: no condition
/// tells them apart, and loads that run along the axis are aligned if the axis stands at a multiple of `width`.
pub(in crate::schedule) fn takes(nest: &Nest, node: NodeId, axis: Axis, width: usize) -> bool {
    let n = &nest.nodes[node];
    if n.free & (1 << axis.0) == 0 {
        return true;
    }
    let here = match &n.op {
        Op::Load { at, guards, .. } => guards.iter().all(|g| !g.index.uses(axis)) && even(at, axis, width),
        Op::Take { at, stride, .. } => even(at, axis, width) && stride % width as i64 == 0,
        Op::InRange(guards) => guards.iter().all(|g| !g.index.uses(axis)),
        Op::Reduce { .. } | Op::ArgMax { .. } => false,
        Op::Const(_)
        | Op::Position(_)
        | Op::Unary(..)
        | Op::Binary(..)
        | Op::Compare(..)
        | Op::Select(..)
        | Op::Cast(_) => true,
    };
    here && n.op.children().all(|c| takes(nest, c, axis, width))
}

/// Whether an address steps evenly along an axis, and is aligned where it steps by one.
pub(in crate::schedule) fn even(at: &Index, axis: Axis, width: usize) -> bool {
    let width = width as i64;
    let others = at.terms().iter().all(|t| t.atom == Atom::Axis(axis) || t.coeff % width == 0);
    match coefficient(at, axis) {
        Some(1) => others && at.offset() % width == 0,
        Some(_) => true,
        None => false,
    }
}

/// Whether a load below a node runs along an axis.
pub(in crate::schedule) fn runs_along(nest: &Nest, node: NodeId, axis: Axis) -> bool {
    let n = &nest.nodes[node];
    let here = match &n.op {
        Op::Load { at, .. } | Op::Take { at, .. } => coefficient(at, axis) == Some(1),
        _ => false,
    };
    here || n.op.children().any(|c| runs_along(nest, c, axis))
}
