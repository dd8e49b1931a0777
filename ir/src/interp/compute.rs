//! Evaluation of a [`Compute`], one row of the results after another.
//!
//! Along a row, nodes outside reductions are evaluated one after another, each for all elements. Below, a node's value
//! is kept until one of its free axes moves, so row statistics are computed once a row. Reductions over
//! loads, and over products of loads, run in [`chain`](super::chain), which gives the same bits faster.

use super::chain::Chain;
use super::tree::Tree;
use crate::compute::{Atom, Axis, Compute, Expr, ExprId, Index, LANES, Order, Term};
use crate::scalar::{self, Binary, Reduce, Unary};
use crate::{DType, Scalar, Tensor, Type};

/// The results of a compute for operands of the types it was made for.
pub fn evaluate(compute: &Compute, operands: &[&Tensor], results: &[&Type]) -> Vec<Tensor> {
    let mut out: Vec<Tensor> = results.iter().map(|t| Tensor::zeros((*t).clone())).collect();
    let mut e = Evaluator::new(compute, operands);
    let (width, outer) = match compute.shape().split_last() {
        Some((width, outer)) => (*width, outer.iter().product()),
        None => (1, 1),
    };
    if width == 0 {
        return out;
    }
    let plan = Plan::new(compute, &e.strides);
    let mut rows: Vec<Row> = (0..compute.exprs().count()).map(|_| Row::Same(Scalar::zero(DType::Bool))).collect();
    for row in 0..outer {
        if row > 0 {
            e.advance();
        }
        for step in &plan.steps {
            let buffer = std::mem::replace(&mut rows[step.id.0 as usize], Row::Same(Scalar::zero(DType::Bool)));
            rows[step.id.0 as usize] = e.row(step, width, &rows, buffer);
        }
        for (t, r) in out.iter_mut().zip(compute.results()) {
            match &rows[r.0 as usize] {
                Row::Same(x) => (0..width).for_each(|i| t.set(row * width + i, *x)),
                Row::Each(xs) => xs.iter().enumerate().for_each(|(i, x)| t.set(row * width + i, *x)),
            }
        }
    }
    out
}

/// A node's values along the innermost result axis.
enum Row {
    Same(Scalar),
    Each(Vec<Scalar>),
}

impl Row {
    #[inline]
    fn at(&self, i: usize) -> Scalar {
        match self {
            Row::Same(x) => *x,
            Row::Each(xs) => xs[i],
        }
    }
}

/// How a node's row is made.
enum How {
    /// The node does not depend on the innermost axis.
    Same,
    /// A load whose address grows by so much from one element to the next, and whose guards do not change.
    Stride(i64),
    /// From the rows of its operands.
    Rows,
    /// Element by element.
    Each,
}

/// Functions that are about bits, or do not give the operand's type.
fn bitwise(f: Unary) -> bool {
    matches!(f, Unary::Neg | Unary::Abs | Unary::Not | Unary::IsNan | Unary::IsFinite)
}

struct Step {
    id: ExprId,
    how: How,
}

/// The nodes outside reductions, operands before users. Both sides of a selection are evaluated: nothing can fail.
struct Plan {
    steps: Vec<Step>,
}

impl Plan {
    fn new(compute: &Compute, strides: &[Vec<i64>]) -> Plan {
        let inner = compute.rank().checked_sub(1).map_or(0, |a| 1u64 << a);
        let mut needed = vec![false; compute.exprs().count()];
        compute.results().iter().for_each(|r| needed[r.0 as usize] = true);
        let mut steps = Vec::new();
        for (id, e) in compute.exprs().rev() {
            if !needed[id.0 as usize] {
                continue;
            }
            let how = match e {
                _ if compute.free_axes(id) & inner == 0 => How::Same,
                Expr::Load { operand, index, guards, .. } if guards.iter().all(|g| g.index.axes() & inner == 0) => {
                    let affine = index.iter().flat_map(Index::terms).all(|t| match &t.atom {
                        Atom::Axis(_) => true,
                        Atom::FloorDiv(i, _) | Atom::Mod(i, _) => i.axes() & inner == 0,
                    });
                    let along = |i: &Index| {
                        let of = |t: &Term| if Index::term(t.clone()).axes() & inner != 0 { t.coeff } else { 0 };
                        i.terms().iter().map(of).sum::<i64>()
                    };
                    let stride = index.iter().zip(&strides[*operand]).map(|(i, s)| along(i) * s).sum();
                    if affine { How::Stride(stride) } else { How::Each }
                }
                Expr::Unary(..) | Expr::Binary(..) | Expr::Compare(..) | Expr::Select(..) | Expr::Cast(..) => {
                    e.children().for_each(|c| needed[c.0 as usize] = true);
                    How::Rows
                }
                Expr::Const(_)
                | Expr::Position(..)
                | Expr::InRange(_)
                | Expr::Load { .. }
                | Expr::Take { .. }
                | Expr::Reduce { .. }
                | Expr::ArgMax { .. } => How::Each,
            };
            steps.push(Step { id, how });
        }
        steps.reverse();
        Plan { steps }
    }
}

/// What is known of how to evaluate a reduction.
enum Fast {
    Untried,
    No,
    Yes(Box<Chain>),
}

struct Evaluator<'a> {
    compute: &'a Compute,
    operands: &'a [&'a Tensor],
    strides: Vec<Vec<i64>>,
    at: Vec<i64>,
    /// When each axis last moved.
    moved: Vec<u64>,
    clock: u64,
    /// When each node was evaluated, and its value.
    known: Vec<Option<(u64, Scalar)>>,
    fast: Vec<Fast>,
}

impl<'a> Evaluator<'a> {
    fn new(compute: &'a Compute, operands: &'a [&'a Tensor]) -> Evaluator<'a> {
        let nodes = compute.exprs().count();
        Evaluator {
            compute,
            operands,
            strides: operands.iter().map(|t| t.ty.shape.strides().iter().map(|&s| s as i64).collect()).collect(),
            at: vec![0; compute.extents().len()],
            moved: vec![0; compute.extents().len()],
            clock: 1,
            known: vec![None; nodes],
            fast: (0..nodes).map(|_| Fast::Untried).collect(),
        }
    }

    /// Moves to the next row.
    fn advance(&mut self) {
        for d in (0..self.compute.rank().saturating_sub(1)).rev() {
            let next = self.at[d] + 1;
            if next < self.compute.extents()[d] as i64 {
                return self.set(Axis(d as u8), next);
            }
            self.set(Axis(d as u8), 0);
        }
    }

    fn row(&mut self, step: &Step, width: usize, rows: &[Row], buffer: Row) -> Row {
        let mut xs = match (&step.how, buffer) {
            (How::Same, _) => return Row::Same(self.value(step.id)),
            (_, Row::Each(xs)) => xs,
            (_, Row::Same(_)) => Vec::new(),
        };
        xs.clear();
        let row = |id: &ExprId| &rows[id.0 as usize];
        match (&step.how, self.compute.expr(step.id)) {
            (How::Stride(step), Expr::Load { operand, index, guards, fill }) => {
                if !guards.iter().all(|g| g.holds(&self.at)) {
                    return Row::Same(*fill);
                }
                let (tensor, first) = (self.operands[*operand], self.flat(*operand, index));
                xs.extend((0..width as i64).map(|i| tensor.get((first + i * step) as usize)));
            }
            (How::Rows, Expr::Unary(f, x)) => match row(x) {
                Row::Each(x) if x[0].dtype() == DType::F32 && !bitwise(*f) => {
                    let x: Vec<f32> = x.iter().map(|x| f32::from_bits(x.bits() as u32)).collect();
                    let mut y = vec![0.0; width];
                    scalar::unary_slice_f32(*f, &x, &mut y);
                    xs.extend(y.iter().map(|y| Scalar::from_bits(DType::F32, u64::from(y.to_bits()))));
                }
                x => xs.extend((0..width).map(|i| scalar::unary(*f, x.at(i)))),
            },
            (How::Rows, Expr::Binary(f, x, y)) => {
                let (x, y) = (row(x), row(y));
                xs.extend((0..width).map(|i| scalar::binary(*f, x.at(i), y.at(i))));
            }
            (How::Rows, Expr::Compare(f, x, y)) => {
                let (x, y) = (row(x), row(y));
                let holds = |i| i64::from(scalar::compare(*f, x.at(i), y.at(i)));
                xs.extend((0..width).map(|i| Scalar::from_i64(DType::Bool, holds(i))));
            }
            (How::Rows, Expr::Select(c, x, y)) => {
                let (c, x, y) = (row(c), row(x), row(y));
                xs.extend((0..width).map(|i| if c.at(i).bits() != 0 { x.at(i) } else { y.at(i) }));
            }
            (How::Rows, Expr::Cast(to, x)) => {
                let x = row(x);
                xs.extend((0..width).map(|i| scalar::cast(*to, x.at(i))));
            }
            (How::Same | How::Stride(_) | How::Rows | How::Each, _) => {
                let inner = Axis(self.compute.rank() as u8 - 1);
                for i in 0..width {
                    self.set(inner, i as i64);
                    xs.push(self.value(step.id));
                }
                self.set(inner, 0);
            }
        }
        Row::Each(xs)
    }

    fn set(&mut self, axis: Axis, position: i64) {
        let a = axis.0 as usize;
        if self.at[a] != position {
            self.at[a] = position;
            self.clock += 1;
            self.moved[a] = self.clock;
        }
    }

    fn value(&mut self, id: ExprId) -> Scalar {
        let slot = id.0 as usize;
        if let Some((when, value)) = self.known[slot] {
            let mut axes = self.compute.free_axes(id);
            let mut fresh = true;
            while axes != 0 {
                fresh &= self.moved[axes.trailing_zeros() as usize] <= when;
                axes &= axes - 1;
            }
            if fresh {
                return value;
            }
        }
        let value = self.compute_value(id);
        self.known[slot] = Some((self.clock, value));
        value
    }

    fn compute_value(&mut self, id: ExprId) -> Scalar {
        match self.compute.expr(id) {
            Expr::Const(x) => *x,
            Expr::Position(dtype, index) => Scalar::from_i64(*dtype, index.eval(&self.at)),
            Expr::InRange(guards) => Scalar::from_i64(DType::Bool, i64::from(guards.iter().all(|g| g.holds(&self.at)))),
            Expr::Load { operand, index, guards, fill } => {
                if !guards.iter().all(|g| g.holds(&self.at)) {
                    return *fill;
                }
                let flat = self.flat(*operand, index);
                self.operands[*operand].get(flat as usize)
            }
            Expr::Take { operand, index, dim, at, base } => {
                let row = self.value(*at).to_i64().wrapping_sub(*base);
                let table = self.operands[*operand];
                if row < 0 || row >= table.ty.shape[*dim] as i64 {
                    return Scalar::zero(table.ty.dtype);
                }
                let flat = self.flat(*operand, index) + row * self.strides[*operand][*dim];
                table.get(flat as usize)
            }
            Expr::Unary(f, x) => scalar::unary(*f, self.value(*x)),
            Expr::Binary(f, x, y) => {
                let x = self.value(*x);
                scalar::binary(*f, x, self.value(*y))
            }
            Expr::Compare(f, x, y) => {
                let x = self.value(*x);
                Scalar::from_i64(DType::Bool, i64::from(scalar::compare(*f, x, self.value(*y))))
            }
            Expr::Select(c, x, y) => {
                if self.value(*c).bits() != 0 {
                    self.value(*x)
                } else {
                    self.value(*y)
                }
            }
            Expr::Cast(dtype, x) => scalar::cast(*dtype, self.value(*x)),
            Expr::Reduce { op, axes, order, body } => self.reduce(id, *op, axes, *order, *body),
            Expr::ArgMax { axes, body } => self.arg_max(axes, *body),
        }
    }

    fn flat(&self, operand: usize, index: &[Index]) -> i64 {
        let flat = index.iter().zip(&self.strides[operand]).map(|(i, s)| i.eval(&self.at) * s).sum();
        debug_assert!(flat >= 0 && flat < self.operands[operand].elements() as i64, "load out of bounds");
        flat
    }

    /// Calls `f` for every position of the axes, in row-major order, and puts the axes back.
    fn each(&mut self, axes: &[Axis], mut f: impl FnMut(&mut Self, usize)) {
        let extents: Vec<usize> = axes.iter().map(|a| self.compute.extents()[a.0 as usize]).collect();
        let before: Vec<i64> = axes.iter().map(|a| self.at[a.0 as usize]).collect();
        for i in 0..extents.iter().product() {
            let mut rest = i;
            for (a, &extent) in axes.iter().zip(&extents).rev() {
                self.set(*a, (rest % extent) as i64);
                rest /= extent;
            }
            f(self, i);
        }
        for (a, &position) in axes.iter().zip(&before) {
            self.set(*a, position);
        }
    }

    fn reduce(&mut self, id: ExprId, op: Reduce, axes: &[Axis], order: Order, body: ExprId) -> Scalar {
        let slot = id.0 as usize;
        if let Fast::Untried = self.fast[slot] {
            let chain = Chain::new(self.compute, self.operands, op, axes, order, body);
            self.fast[slot] = chain.map_or(Fast::No, |c| Fast::Yes(Box::new(c)));
        }
        if let Fast::Yes(chain) = &mut self.fast[slot] {
            return chain.run(&self.at);
        }
        let identity = op.identity(self.compute.dtype(body));
        let f = op.combine();
        match order {
            Order::Sequential => {
                let mut acc = identity;
                self.each(axes, |e, _| acc = scalar::binary(f, acc, e.value(body)));
                acc
            }
            Order::Fma => {
                let Expr::Binary(Binary::Mul, x, y) = *self.compute.expr(body) else {
                    unreachable!("a fused chain is over products");
                };
                let mut acc = identity;
                self.each(axes, |e, _| {
                    let x = e.value(x);
                    acc = scalar::fma(x, e.value(y), acc);
                });
                acc
            }
            Order::Lanes => {
                let mut p = [identity; LANES];
                self.each(axes, |e, i| p[i % LANES] = scalar::binary(f, p[i % LANES], e.value(body)));
                let c = |x, y| scalar::binary(f, x, y);
                c(c(c(p[0], p[4]), c(p[2], p[6])), c(c(p[1], p[5]), c(p[3], p[7])))
            }
            Order::Tree => {
                let mut tree = Tree::new(|x, y| scalar::binary(f, x, y));
                self.each(axes, |e, _| tree.push(e.value(body)));
                tree.finish().unwrap_or(identity)
            }
        }
    }

    fn arg_max(&mut self, axes: &[Axis], body: ExprId) -> Scalar {
        let mut best: Option<(f64, i64, usize)> = None;
        self.each(axes, |e, i| {
            let v = e.value(body);
            let (x, n) = (v.to_f64(), v.to_i64());
            let better = match best {
                None => true,
                Some((bx, bn, _)) => {
                    if v.dtype().is_float() {
                        x > bx || (x.is_nan() && !bx.is_nan())
                    } else {
                        n > bn
                    }
                }
            };
            if better {
                best = Some((x, n, i));
            }
        });
        Scalar::from_i64(DType::I32, best.map_or(0, |b| b.2 as i64))
    }
}
