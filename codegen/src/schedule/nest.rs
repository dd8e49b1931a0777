//! The form that schedules start from: a [`Compute`] with operands seen as flat arrays and axes merged where every
//! access allows it.
//!
//! Axes of extent 1 are gone, and neighbouring axes that all addresses step through evenly are one axis, so that
//! pointwise work on dense tensors has a single axis whatever its shape was.

use intwain_ir::compute::{Atom, Axis, Compute, Expr, ExprId, Guard, Index, Order};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Type};

/// Position of a node in [`Nest::nodes`].
pub(super) type NodeId = usize;

/// An expression; addresses count elements from the start of the operand.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Op {
    Const(Scalar),
    Position(Index),
    InRange(Vec<Guard>),
    Load { operand: usize, at: Index, guards: Vec<Guard>, fill: Scalar },
    Take { operand: usize, at: Index, stride: i64, rows: i64, row: NodeId, base: i64 },
    Unary(Unary, NodeId),
    Binary(Binary, NodeId, NodeId),
    Compare(Compare, NodeId, NodeId),
    Select(NodeId, NodeId, NodeId),
    Cast(NodeId),
    Reduce { op: Reduce, axes: Vec<Axis>, order: Order, body: NodeId },
    ArgMax { axes: Vec<Axis>, body: NodeId },
}

impl Op {
    pub(super) fn children(&self) -> impl Iterator<Item = NodeId> + use<> {
        let c = match *self {
            Op::Const(_) | Op::Position(_) | Op::InRange(_) | Op::Load { .. } => [None; 3],
            Op::Take { row: x, .. }
            | Op::Unary(_, x)
            | Op::Cast(x)
            | Op::Reduce { body: x, .. }
            | Op::ArgMax { body: x, .. } => [Some(x), None, None],
            Op::Binary(_, x, y) | Op::Compare(_, x, y) => [Some(x), Some(y), None],
            Op::Select(x, y, z) => [Some(x), Some(y), Some(z)],
        };
        c.into_iter().flatten()
    }

    /// Replaces the numbers of the nodes below.
    pub(super) fn renumber(&mut self, map: &[NodeId]) {
        match self {
            Op::Const(_) | Op::Position(_) | Op::InRange(_) | Op::Load { .. } => {}
            Op::Take { row: x, .. }
            | Op::Unary(_, x)
            | Op::Cast(x)
            | Op::Reduce { body: x, .. }
            | Op::ArgMax { body: x, .. } => *x = map[*x],
            Op::Binary(_, x, y) | Op::Compare(_, x, y) => (*x, *y) = (map[*x], map[*y]),
            Op::Select(x, y, z) => (*x, *y, *z) = (map[*x], map[*y], map[*z]),
        }
    }

    fn indices_mut(&mut self) -> Vec<&mut Index> {
        match self {
            Op::Position(i) | Op::Take { at: i, .. } => vec![i],
            Op::InRange(guards) => guards.iter_mut().map(|g| &mut g.index).collect(),
            Op::Load { at, guards, .. } => std::iter::once(at).chain(guards.iter_mut().map(|g| &mut g.index)).collect(),
            Op::Const(_)
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Compare(..)
            | Op::Select(..)
            | Op::Cast(_)
            | Op::Reduce { .. }
            | Op::ArgMax { .. } => Vec::new(),
        }
    }

    pub(super) fn indices(&self) -> Vec<&Index> {
        match self {
            Op::Position(i) | Op::Take { at: i, .. } => vec![i],
            Op::InRange(guards) => guards.iter().map(|g| &g.index).collect(),
            Op::Load { at, guards, .. } => std::iter::once(at).chain(guards.iter().map(|g| &g.index)).collect(),
            Op::Const(_)
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Compare(..)
            | Op::Select(..)
            | Op::Cast(_)
            | Op::Reduce { .. }
            | Op::ArgMax { .. } => Vec::new(),
        }
    }

    pub(super) fn bound_axes(&self) -> &[Axis] {
        match self {
            Op::Reduce { axes, .. } | Op::ArgMax { axes, .. } => axes,
            Op::Const(_)
            | Op::Position(_)
            | Op::InRange(_)
            | Op::Load { .. }
            | Op::Take { .. }
            | Op::Unary(..)
            | Op::Binary(..)
            | Op::Compare(..)
            | Op::Select(..)
            | Op::Cast(_) => &[],
        }
    }
}

/// An expression with its type and the axes it depends on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) dtype: DType,
    pub(super) free: u64,
}

/// A computation over flat arrays.
#[derive(Clone, Debug)]
pub(super) struct Nest {
    /// Extents of all axes; those merged away have 1.
    pub(super) extents: Vec<usize>,
    /// The result's axes that are left, outermost first.
    pub(super) axes: Vec<Axis>,
    /// Operands before users.
    pub(super) nodes: Vec<Node>,
    /// The node of each result.
    pub(super) results: Vec<NodeId>,
    /// Where in the results the value at a position stands.
    pub(super) store: Index,
}

impl Nest {
    /// The flat form of a compute, axes not yet merged.
    pub(super) fn new(compute: &Compute, operands: &[&Type]) -> Nest {
        let live = compute.reachable();
        let mut map = vec![usize::MAX; live.len()];
        let mut nodes = Vec::new();
        for (id, expr) in compute.exprs().filter(|(id, _)| live[id.0 as usize]) {
            let op = convert(expr, operands, &|c: ExprId| map[c.0 as usize]);
            map[id.0 as usize] = nodes.len();
            nodes.push(Node { op, dtype: compute.dtype(id), free: 0 });
        }
        let shape = compute.shape();
        let strides = intwain_ir::Shape::from(shape).strides();
        let store =
            compute.axes().zip(&strides).fold(Index::constant(0), |sum, (a, &s)| sum + Index::axis(a).times(s as i64));
        let mut nest = Nest {
            extents: compute.extents().to_vec(),
            axes: compute.axes().collect(),
            nodes,
            results: compute.results().iter().map(|r| map[r.0 as usize]).collect(),
            store,
        };
        nest.drop_lone_axes();
        nest
    }

    /// The node's indices of all nodes, and the store.
    fn all_indices(&self) -> impl Iterator<Item = &Index> {
        self.nodes.iter().flat_map(|n| n.op.indices()).chain([&self.store])
    }

    /// Replaces axes in every index, with the extents that hold afterwards.
    pub(super) fn substitute(&mut self, by: &dyn Fn(Axis) -> Index, extents: Vec<usize>) {
        self.extents = extents;
        let extents = &self.extents;
        let old = |a: Axis| by(a);
        for node in &mut self.nodes {
            for i in node.op.indices_mut() {
                *i = i.substitute(&old, extents);
            }
        }
        self.store = self.store.substitute(&old, extents);
        self.refresh();
    }

    /// Recomputes free axes and drops guards that always hold.
    fn refresh(&mut self) {
        for i in 0..self.nodes.len() {
            let extents = &self.extents;
            match &mut self.nodes[i].op {
                Op::Load { guards, .. } | Op::InRange(guards) => guards.retain(|g| !g.always(extents)),
                _ => {}
            }
            if matches!(&self.nodes[i].op, Op::InRange(g) if g.is_empty()) {
                self.nodes[i].op = Op::Const(Scalar::one(DType::Bool));
            }
            let node = &self.nodes[i];
            let own = node.op.indices().iter().fold(0, |set, i| set | i.axes());
            let below = node.op.children().fold(own, |set, c| set | self.nodes[c].free);
            let free = node.op.bound_axes().iter().fold(below, |set, a| set & !(1 << a.0));
            self.nodes[i].free = free;
        }
    }

    fn drop_lone_axes(&mut self) {
        let lone: Vec<bool> = self.extents.iter().map(|&e| e == 1).collect();
        let keep = |a: &Axis| !lone[a.0 as usize];
        self.axes.retain(keep);
        for n in &mut self.nodes {
            if let Op::Reduce { axes, .. } | Op::ArgMax { axes, .. } = &mut n.op {
                axes.retain(keep);
            }
        }
        let by = |a: Axis| if lone[a.0 as usize] { Index::constant(0) } else { Index::axis(a) };
        self.substitute(&by, self.extents.clone());
    }

    /// Merges neighbouring axes as far as all accesses allow.
    pub(super) fn merge(&mut self) {
        let whole = self.axes.clone();
        self.merge_lists(&mut |n| vec![n.axes.clone()], &whole);
        let bound = |n: &Nest| -> Vec<Vec<Axis>> {
            n.nodes.iter().map(|n| n.op.bound_axes().to_vec()).filter(|l| !l.is_empty()).collect()
        };
        let all: Vec<Axis> = bound(self).into_iter().flatten().collect();
        self.merge_lists(&mut |n| bound(n), &all);
    }

    /// Merges axes of the result and of reductions together, where reductions bind result axes.
    pub(super) fn merge_jointly(&mut self) {
        let lists = |n: &Nest| -> Vec<Vec<Axis>> {
            let bound = n.nodes.iter().map(|n| n.op.bound_axes().to_vec()).filter(|l| !l.is_empty());
            std::iter::once(n.axes.clone()).chain(bound).collect()
        };
        let all: Vec<Axis> = lists(self).into_iter().flatten().collect();
        self.merge_lists(&mut |n| lists(n), &all);
    }

    /// Merges result axes within each group of neighbours only.
    pub(super) fn merge_within(&mut self, groups: &[Vec<Axis>]) {
        for g in groups {
            self.merge_lists(&mut |n| vec![n.axes.clone()], g);
        }
    }

    fn merge_lists(&mut self, lists: &mut dyn FnMut(&Nest) -> Vec<Vec<Axis>>, allowed: &[Axis]) {
        loop {
            let now = lists(self);
            let pair = now.iter().flat_map(|l| l.windows(2)).map(|w| (w[0], w[1])).find(|&(p, q)| {
                let together = now.iter().all(|l| {
                    let at = |a: Axis| l.iter().position(|x| *x == a);
                    match (at(p), at(q)) {
                        (None, None) => true,
                        (Some(i), Some(j)) => j == i + 1,
                        _ => false,
                    }
                });
                allowed.contains(&p) && allowed.contains(&q) && together && self.even(p, q)
            });
            let Some((p, q)) = pair else { return };
            self.merge_pair(p, q);
        }
    }

    fn merge_pair(&mut self, p: Axis, q: Axis) {
        let mut extents = self.extents.clone();
        extents[q.0 as usize] *= extents[p.0 as usize];
        extents[p.0 as usize] = 1;
        self.axes.retain(|a| *a != p);
        for n in &mut self.nodes {
            if let Op::Reduce { axes, .. } | Op::ArgMax { axes, .. } = &mut n.op {
                axes.retain(|a| *a != p);
            }
        }
        let by = |a: Axis| if a == p { Index::constant(0) } else { Index::axis(a) };
        self.substitute(&by, extents);
    }

    /// Whether all indices step through p and q as through one axis.
    pub(super) fn even(&self, p: Axis, q: Axis) -> bool {
        let inner = self.extents[q.0 as usize] as i64;
        self.all_indices().all(|i| {
            if !i.uses(p) && !i.uses(q) {
                return true;
            }
            match (coefficient(i, p), coefficient(i, q)) {
                (Some(cp), Some(cq)) => cp == cq * inner,
                _ => false,
            }
        })
    }

    /// Removes the nodes that the results don't need.
    pub(super) fn prune(&mut self) {
        let mut live = vec![false; self.nodes.len()];
        self.results.iter().for_each(|&r| live[r] = true);
        for i in (0..self.nodes.len()).rev() {
            if live[i] {
                self.nodes[i].op.children().for_each(|c| live[c] = true);
            }
        }
        let mut next = 0;
        let map: Vec<NodeId> = live
            .iter()
            .map(|&l| {
                let at = next;
                next += usize::from(l);
                at
            })
            .collect();
        let mut keep = live.iter();
        self.nodes.retain(|_| *keep.next().unwrap_or(&false));
        self.nodes.iter_mut().for_each(|n| n.op.renumber(&map));
        self.results.iter_mut().for_each(|r| *r = map[*r]);
        self.refresh();
    }

    /// The nodes that depend on an axis.
    pub(super) fn depends_on(&self, axis: Axis) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(move |n| n.free & (1 << axis.0) != 0)
    }

    pub(super) fn extent(&self, axis: Axis) -> usize {
        self.extents[axis.0 as usize]
    }
}

/// The coefficient of an axis that stands in no division or remainder; `None` if it does.
pub(super) fn coefficient(index: &Index, axis: Axis) -> Option<i64> {
    let mut found = 0;
    for t in index.terms() {
        match &t.atom {
            Atom::Axis(a) if *a == axis => found = t.coeff,
            Atom::Axis(_) => {}
            Atom::FloorDiv(inner, _) | Atom::Mod(inner, _) if inner.uses(axis) => return None,
            Atom::FloorDiv(..) | Atom::Mod(..) => {}
        }
    }
    Some(found)
}

/// Smallest and greatest value of an index for axes in the ranges given.
pub(super) fn range(index: &Index, of: &dyn Fn(Axis) -> (i64, i64)) -> (i64, i64) {
    let (mut lo, mut hi) = (index.offset(), index.offset());
    for t in index.terms() {
        let (a, b) = match &t.atom {
            Atom::Axis(axis) => of(*axis),
            Atom::FloorDiv(inner, n) => {
                let (a, b) = range(inner, of);
                (a.div_euclid(*n), b.div_euclid(*n))
            }
            Atom::Mod(inner, n) => {
                let (a, b) = range(inner, of);
                if a.div_euclid(*n) == b.div_euclid(*n) { (a.rem_euclid(*n), b.rem_euclid(*n)) } else { (0, n - 1) }
            }
        };
        let (a, b) = (a * t.coeff, b * t.coeff);
        lo += a.min(b);
        hi += a.max(b);
    }
    (lo, hi)
}

fn convert(expr: &Expr, operands: &[&Type], node: &dyn Fn(ExprId) -> NodeId) -> Op {
    let flat = |operand: usize, index: &[Index]| {
        let strides = operands[operand].shape.strides();
        index.iter().zip(&strides).fold(Index::constant(0), |sum, (i, &s)| sum + i.clone().times(s as i64))
    };
    match expr {
        Expr::Const(x) => Op::Const(*x),
        Expr::Position(_, i) => Op::Position(i.clone()),
        Expr::InRange(g) => Op::InRange(g.clone()),
        Expr::Load { operand, index, guards, fill } => {
            Op::Load { operand: *operand, at: flat(*operand, index), guards: guards.clone(), fill: *fill }
        }
        Expr::Take { operand, index, dim, at, base } => Op::Take {
            operand: *operand,
            at: flat(*operand, index),
            stride: operands[*operand].shape.strides()[*dim] as i64,
            rows: operands[*operand].shape[*dim] as i64,
            row: node(*at),
            base: *base,
        },
        Expr::Unary(f, x) => Op::Unary(*f, node(*x)),
        Expr::Binary(f, x, y) => Op::Binary(*f, node(*x), node(*y)),
        Expr::Compare(f, x, y) => Op::Compare(*f, node(*x), node(*y)),
        Expr::Select(c, x, y) => Op::Select(node(*c), node(*x), node(*y)),
        Expr::Cast(_, x) => Op::Cast(node(*x)),
        Expr::Reduce { op, axes, order, body } => {
            Op::Reduce { op: *op, axes: axes.clone(), order: *order, body: node(*body) }
        }
        Expr::ArgMax { axes, body } => Op::ArgMax { axes: axes.clone(), body: node(*body) },
    }
}
