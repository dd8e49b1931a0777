//! What an operation computes, as data: one scalar expression per result over guarded loads and reductions.
//!
//! A [`Compute`] says, for every position of the result (result axes `a0 … a(rank−1)`), which value stands there:
//!
//! ```text
//! matmul    f32[m, n]  = sum{a2: fma} (x[a0, a2] * w[a2, a1])
//! softmax   f32[m, n]  = exp(x[a0, a1] - t1) * t3   where t1 = max{a2} x[a0, a2], t3 = 1 / sum{a2} exp(x[a0, a2] - t1)
//! ```
//!
//! The expression is a hash-consed directed graph: a node that occurs twice is evaluated once. A node depends on the
//! axes that its loads mention and no reduction below it binds (its *free axes*); a value with few free axes, such as
//! the row maximum above, belongs outside the loops over the others, which is how row statistics are computed once a
//! row. From a Compute follow the sharding rule, the costs, the reference interpreter and the kernels of every target.
//!
//! Every reduction states its order, so that all back ends give the same bits (see [`Order`]). The position along a
//! reduction counts in row-major order of its axes. The type of the reduced expression is the accumulator's.

mod index;
mod inline;
mod linear;

pub use index::{Atom, Axis, Guard, Index, Term};
pub use inline::OperandMap;

use crate::scalar::{Binary, Compare, Reduce, Scalar, Unary};
use crate::{DType, Shape, Type};
use std::collections::HashMap;
use std::fmt;

/// A node of the expression graph of a [`Compute`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

/// Partial sums of [`Order::Lanes`].
pub const LANES: usize = 8;

/// The order in which a reduction combines its elements. It depends on the operation only: never on the number of
/// rows, columns, parts, tiles or threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Order {
    /// One accumulator that starts at the identity and takes the elements in order.
    Sequential,
    /// As `Sequential`, for a sum whose body is a product `a * b`: acc = fma(a, b, acc), rounded once.
    Fma,
    /// [`LANES`] accumulators that start at the identity; element i goes to accumulator i mod 8 in order; at the end
    /// ((p0 ∘ p4) ∘ (p2 ∘ p6)) ∘ ((p1 ∘ p5) ∘ (p3 ∘ p7)).
    Lanes,
    /// A balanced tree: adjacent elements are combined, then adjacent results, until one is left; an odd last one goes
    /// on as it is. The identity takes part only where there is no element. See [`tree_left`].
    Tree,
}

/// How many of `n` elements, at least two, [`Order::Tree`] combines before the rest: the greatest power of two below n. Both
/// parts are such trees.
pub fn tree_left(n: usize) -> usize {
    debug_assert!(n > 1, "one element is no tree");
    1 << (n - 1).ilog2()
}

/// A scalar expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// A constant.
    Const(Scalar),
    /// A position as an element (integers wrap, floats round).
    Position(DType, Index),
    /// Whether all conditions hold; bool.
    InRange(Vec<Guard>),
    /// An operand's element where all guards hold, else `fill`. Where the guards hold the index is in bounds.
    Load {
        /// Which operand.
        operand: usize,
        /// One index per dimension.
        index: Vec<Index>,
        /// Conditions for reading.
        guards: Vec<Guard>,
        /// The value elsewhere.
        fill: Scalar,
    },
    /// An operand's element whose position along `dim` is an integer computed at run time, less `base`; 0 where that
    /// is outside the operand. `index[dim]` is ignored and 0.
    Take {
        /// Which operand.
        operand: usize,
        /// One index per dimension.
        index: Vec<Index>,
        /// The dimension that `at` selects in.
        dim: usize,
        /// The position, an integer expression.
        at: ExprId,
        /// Position of the operand's first row in the whole table (0 unless the table is split).
        base: i64,
    },
    /// A function of one value.
    Unary(Unary, ExprId),
    /// A function of two values of one type.
    Binary(Binary, ExprId, ExprId),
    /// A comparison of two values of one type.
    Compare(Compare, ExprId, ExprId),
    /// The second where the first (bool) is true, else the third.
    Select(ExprId, ExprId, ExprId),
    /// Conversion.
    Cast(DType, ExprId),
    /// Combination over all positions of `axes`, outermost first.
    Reduce {
        /// How elements combine.
        op: Reduce,
        /// The axes bound, outermost first.
        axes: Vec<Axis>,
        /// The order of combination.
        order: Order,
        /// What is combined.
        body: ExprId,
    },
    /// Position (row-major over `axes`, as i32) of the first greatest element, a NaN counting as greatest.
    ArgMax {
        /// The axes bound, outermost first.
        axes: Vec<Axis>,
        /// What is compared.
        body: ExprId,
    },
}

impl Expr {
    /// The expressions directly below.
    pub fn children(&self) -> impl Iterator<Item = ExprId> {
        let (a, b, c) = match self {
            Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) | Expr::Load { .. } => (None, None, None),
            Expr::Take { at, .. } => (Some(*at), None, None),
            Expr::Unary(_, x) | Expr::Cast(_, x) => (Some(*x), None, None),
            Expr::Reduce { body, .. } | Expr::ArgMax { body, .. } => (Some(*body), None, None),
            Expr::Binary(_, x, y) | Expr::Compare(_, x, y) => (Some(*x), Some(*y), None),
            Expr::Select(x, y, z) => (Some(*x), Some(*y), Some(*z)),
        };
        [a, b, c].into_iter().flatten()
    }

    /// The same expression with its children replaced.
    pub fn map_children(&self, mut f: impl FnMut(ExprId) -> ExprId) -> Expr {
        let mut e = self.clone();
        match &mut e {
            Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) | Expr::Load { .. } => {}
            Expr::Take { at: x, .. }
            | Expr::Unary(_, x)
            | Expr::Cast(_, x)
            | Expr::Reduce { body: x, .. }
            | Expr::ArgMax { body: x, .. } => *x = f(*x),
            Expr::Binary(_, x, y) | Expr::Compare(_, x, y) => {
                *x = f(*x);
                *y = f(*y);
            }
            Expr::Select(x, y, z) => {
                *x = f(*x);
                *y = f(*y);
                *z = f(*z);
            }
        }
        e
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    expr: Expr,
    dtype: DType,
    free: u64,
}

/// What an operation computes. See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Compute {
    extents: Vec<usize>,
    rank: usize,
    nodes: Vec<Node>,
    ids: HashMap<Expr, ExprId>,
    results: Vec<ExprId>,
}

impl PartialEq for Compute {
    fn eq(&self, other: &Compute) -> bool {
        self.extents == other.extents
            && self.rank == other.rank
            && self.nodes == other.nodes
            && self.results == other.results
    }
}

impl Compute {
    /// A compute without expressions yet, for results of this shape.
    pub fn new(shape: &Shape) -> Compute {
        Compute { extents: shape.to_vec(), rank: shape.len(), ..Compute::default() }
    }

    /// Number of result axes.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Extents of all axes, result axes first.
    pub fn extents(&self) -> &[usize] {
        &self.extents
    }

    /// Extents of the result axes.
    pub fn shape(&self) -> &[usize] {
        &self.extents[..self.rank]
    }

    /// The result axes.
    pub fn axes(&self) -> impl DoubleEndedIterator<Item = Axis> + use<> {
        (0..self.rank as u8).map(Axis)
    }

    /// The index of every result axis, outermost first.
    pub fn position(&self) -> Vec<Index> {
        self.axes().map(Index::axis).collect()
    }

    /// A new axis for a reduction. An axis is bound by one reduction or by several over the same extent.
    pub fn reduce_axis(&mut self, extent: usize) -> Axis {
        debug_assert!(self.extents.len() < 64, "too many axes");
        self.extents.push(extent);
        Axis(self.extents.len() as u8 - 1)
    }

    /// The expressions of the results, all of the same shape.
    pub fn results(&self) -> &[ExprId] {
        &self.results
    }

    /// Sets the expressions of the results.
    pub fn with_results(mut self, results: impl IntoIterator<Item = ExprId>) -> Compute {
        self.results = results.into_iter().collect();
        self
    }

    /// The expression with this id.
    pub fn expr(&self, id: ExprId) -> &Expr {
        &self.nodes[id.0 as usize].expr
    }

    /// The type of an expression's value.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.nodes[id.0 as usize].dtype
    }

    /// The axes that an expression depends on, as bits.
    pub fn free_axes(&self, id: ExprId) -> u64 {
        self.nodes[id.0 as usize].free
    }

    /// All expressions, operands before users.
    pub fn exprs(&self) -> impl DoubleEndedIterator<Item = (ExprId, &Expr)> {
        self.nodes.iter().enumerate().map(|(i, n)| (ExprId(i as u32), &n.expr))
    }

    /// Which expressions the results need.
    pub fn reachable(&self) -> Vec<bool> {
        let mut live = vec![false; self.nodes.len()];
        for r in &self.results {
            live[r.0 as usize] = true;
        }
        for i in (0..self.nodes.len()).rev() {
            if live[i] {
                for c in self.nodes[i].expr.children() {
                    live[c.0 as usize] = true;
                }
            }
        }
        live
    }

    /// Adds an expression, or finds the equal one that is there. Load needs the operand's type: use [`Compute::load`].
    pub fn add(&mut self, expr: Expr, dtype: DType) -> ExprId {
        if let Some(&id) = self.ids.get(&expr) {
            return id;
        }
        let children = expr.children().fold(0, |set, c| set | self.free_axes(c));
        let free = match &expr {
            Expr::Const(_) => 0,
            Expr::Position(_, index) => index.axes(),
            Expr::InRange(guards) => guards.iter().fold(0, |set, g| set | g.index.axes()),
            Expr::Load { index, guards, .. } => {
                index.iter().chain(guards.iter().map(|g| &g.index)).fold(0, |set, i| set | i.axes())
            }
            Expr::Take { index, .. } => index.iter().fold(children, |set, i| set | i.axes()),
            Expr::Reduce { axes, .. } | Expr::ArgMax { axes, .. } => {
                axes.iter().fold(children, |set, a| set & !(1 << a.0))
            }
            Expr::Unary(..) | Expr::Binary(..) | Expr::Compare(..) | Expr::Select(..) | Expr::Cast(..) => children,
        };
        let id = ExprId(self.nodes.len() as u32);
        self.ids.insert(expr.clone(), id);
        self.nodes.push(Node { expr, dtype, free });
        id
    }

    /// A constant.
    pub fn constant(&mut self, x: Scalar) -> ExprId {
        self.add(Expr::Const(x), x.dtype())
    }

    /// A constant of a type.
    pub fn number(&mut self, dtype: DType, x: f64) -> ExprId {
        self.constant(Scalar::from_f64(dtype, x))
    }

    /// A position as an element.
    pub fn index_value(&mut self, dtype: DType, index: Index) -> ExprId {
        self.add(Expr::Position(dtype, index), dtype)
    }

    /// An unguarded load.
    pub fn load(&mut self, operand: usize, ty: &Type, index: Vec<Index>) -> ExprId {
        self.load_guarded(operand, ty, index, Vec::new(), Scalar::zero(ty.dtype))
    }

    /// A load where all guards hold, else `fill`. Guards that always hold are dropped; the rest are sorted.
    pub fn load_guarded(
        &mut self,
        operand: usize,
        ty: &Type,
        index: Vec<Index>,
        guards: Vec<Guard>,
        fill: Scalar,
    ) -> ExprId {
        debug_assert_eq!(index.len(), ty.rank(), "one index per dimension");
        let guards = self.needed(guards);
        let fill = if guards.is_empty() { Scalar::zero(ty.dtype) } else { fill };
        self.add(Expr::Load { operand, index, guards, fill }, ty.dtype)
    }

    fn needed(&self, mut guards: Vec<Guard>) -> Vec<Guard> {
        guards.retain(|g| !g.always(&self.extents));
        guards.sort();
        guards.dedup();
        guards
    }

    /// A load at a position computed at run time; see [`Expr::Take`].
    pub fn take(
        &mut self,
        operand: usize,
        ty: &Type,
        mut index: Vec<Index>,
        dim: usize,
        at: ExprId,
        base: i64,
    ) -> ExprId {
        index[dim] = Index::constant(0);
        self.add(Expr::Take { operand, index, dim, at, base }, ty.dtype)
    }

    /// A function of one value.
    pub fn unary(&mut self, f: Unary, x: ExprId) -> ExprId {
        let dtype = f.result(self.dtype(x));
        self.add(Expr::Unary(f, x), dtype)
    }

    /// A function of two values of one type.
    pub fn binary(&mut self, f: Binary, x: ExprId, y: ExprId) -> ExprId {
        let dtype = self.dtype(x);
        debug_assert_eq!(dtype, self.dtype(y), "operands of {} differ in type", f.name());
        self.add(Expr::Binary(f, x, y), dtype)
    }

    /// A comparison.
    pub fn compare(&mut self, f: Compare, x: ExprId, y: ExprId) -> ExprId {
        self.add(Expr::Compare(f, x, y), DType::Bool)
    }

    /// The second where the first is true, else the third.
    pub fn select(&mut self, cond: ExprId, yes: ExprId, no: ExprId) -> ExprId {
        let dtype = self.dtype(yes);
        self.add(Expr::Select(cond, yes, no), dtype)
    }

    /// Conversion; nothing is added when the type is the same.
    pub fn cast(&mut self, dtype: DType, x: ExprId) -> ExprId {
        if self.dtype(x) == dtype { x } else { self.add(Expr::Cast(dtype, x), dtype) }
    }

    /// A reduction; see [`Order`].
    pub fn reduce(&mut self, op: Reduce, axes: Vec<Axis>, order: Order, body: ExprId) -> ExprId {
        let dtype = self.dtype(body);
        self.add(Expr::Reduce { op, axes, order, body }, dtype)
    }

    /// The position of the first greatest element.
    pub fn arg_max(&mut self, axes: Vec<Axis>, body: ExprId) -> ExprId {
        self.add(Expr::ArgMax { axes, body }, DType::I32)
    }

    /// Scalar operations executed for one run of this compute: every node times the positions of its free axes, as far
    /// as hoisting can save them.
    pub fn flops(&self) -> u64 {
        let live = self.reachable();
        let mut total = 0u64;
        for (_, node) in self.nodes.iter().enumerate().filter(|(i, _)| live[*i]) {
            let axes = match &node.expr {
                Expr::Unary(..) | Expr::Binary(..) | Expr::Compare(..) | Expr::Select(..) | Expr::Cast(..) => node.free,
                Expr::Reduce { axes, .. } | Expr::ArgMax { axes, .. } => {
                    axes.iter().fold(node.free, |s, a| s | 1 << a.0)
                }
                Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) | Expr::Load { .. } | Expr::Take { .. } => {
                    continue;
                }
            };
            total = total.saturating_add(self.positions(axes));
        }
        total
    }

    /// Product of the extents of a set of axes.
    pub fn positions(&self, axes: u64) -> u64 {
        (0..self.extents.len())
            .filter(|a| axes & (1 << a) != 0)
            .fold(1u64, |n, a| n.saturating_mul(self.extents[a] as u64))
    }
}

impl fmt::Display for Compute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.reachable();
        writeln!(f, "compute rank {} extents {:?}", self.rank, self.extents)?;
        for (id, e) in self.exprs().filter(|(id, _)| live[id.0 as usize]) {
            write!(f, "  t{}: {} = ", id.0, self.dtype(id))?;
            let list = |ix: &[Index]| ix.iter().map(Index::to_string).collect::<Vec<_>>().join(", ");
            let axes = |ax: &[Axis]| ax.iter().map(Axis::to_string).collect::<Vec<_>>().join(", ");
            let guards = |gs: &[Guard]| gs.iter().map(Guard::to_string).collect::<Vec<_>>().join(" and ");
            match e {
                Expr::Const(x) => writeln!(f, "{x}")?,
                Expr::Position(_, i) => writeln!(f, "position {i}")?,
                Expr::InRange(g) => writeln!(f, "in_range {}", guards(g))?,
                Expr::Load { operand, index, guards: g, fill } => {
                    write!(f, "load %{operand}[{}]", list(index))?;
                    if !g.is_empty() {
                        write!(f, " if {} else {fill}", guards(g))?;
                    }
                    writeln!(f)?;
                }
                Expr::Take { operand, index, dim, at, base } => {
                    writeln!(f, "take %{operand}[{}] dim {dim} at t{} base {base}", list(index), at.0)?;
                }
                Expr::Unary(op, x) => writeln!(f, "{} t{}", op.name(), x.0)?,
                Expr::Binary(op, x, y) => writeln!(f, "{} t{}, t{}", op.name(), x.0, y.0)?,
                Expr::Compare(op, x, y) => writeln!(f, "{} t{}, t{}", op.name(), x.0, y.0)?,
                Expr::Select(x, y, z) => writeln!(f, "select t{}, t{}, t{}", x.0, y.0, z.0)?,
                Expr::Cast(d, x) => writeln!(f, "cast {d} t{}", x.0)?,
                Expr::Reduce { op, axes: a, order, body } => {
                    writeln!(f, "{}{{{}: {order:?}}} t{}", op.name(), axes(a), body.0)?;
                }
                Expr::ArgMax { axes: a, body } => writeln!(f, "arg_max{{{}}} t{}", axes(a), body.0)?,
            }
        }
        let results: Vec<String> = self.results.iter().map(|r| format!("t{}", r.0)).collect();
        writeln!(f, "  return {}", results.join(", "))
    }
}
