//! Reductions in the order that they state.

use super::{Bound, Loops, Val, vectorizes};
use crate::schedule::nest::{NodeId, Op, coefficient};
use intwain_ir::DType;
use intwain_ir::compute::{Axis, LANES, Order, tree_left};
use intwain_ir::kernel::{Inst, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Reduce, Scalar, Unary};

/// Reductions with at most this many trips are written out.
const UNROLL: usize = 16;

/// What a trip does to the accumulators.
#[derive(Clone, Copy)]
enum Step {
    /// acc = acc ∘ body.
    Combine(Binary, NodeId),
    /// acc = fma(x, y, acc).
    Fma(NodeId, NodeId),
    /// Accumulator 0 combines, then all move one place on: the state after t elements is turned by t.
    Rotate(Binary, NodeId),
    /// Accumulators: subtrees by the logarithm of their size, then the number of elements so far, whose bits say which
    /// of them there are.
    Grow { f: Binary, body: NodeId, levels: usize },
    /// Accumulators: greatest value, its position; the last is the counter.
    ArgMax(NodeId),
}

impl Loops<'_> {
    pub(super) fn reduce(&mut self, op: Reduce, axes: &[Axis], order: Order, body: NodeId, width: usize) -> Val {
        let dtype = self.nest.nodes[body].dtype;
        let identity = op.identity(dtype);
        let f = op.combine();
        let trips: usize = axes.iter().map(|a| self.nest.extent(*a)).product();
        if trips == 0 {
            return self.constant(identity, width);
        }
        match order {
            Order::Sequential => {
                let acc = self.constant(identity, width);
                self.chain(axes, Step::Combine(f, body), acc)
            }
            Order::Fma => {
                let Op::Binary(Binary::Mul, x, y) = self.nest.nodes[body].op else {
                    unreachable!("a fused chain is over products");
                };
                let acc = self.constant(identity, width);
                self.chain(axes, Step::Fma(x, y), acc)
            }
            Order::Lanes if width == 1 && self.runs_along(axes, body) => self.along(f, axes, body, identity),
            Order::Lanes => self.rotating(f, axes, body, identity, width),
            Order::Tree if trips <= UNROLL => self.subtree(f, axes, body, (0, trips), width),
            Order::Tree => self.growing(f, axes, body, identity, width),
        }
    }

    /// Elements `range` of a balanced tree, written out.
    fn subtree(&mut self, f: Binary, axes: &[Axis], body: NodeId, range: (usize, usize), width: usize) -> Val {
        let (begin, end) = range;
        if end - begin > 1 {
            let middle = begin + tree_left(end - begin);
            let left = self.subtree(f, axes, body, (begin, middle), width);
            let right = self.subtree(f, axes, body, (middle, end), width);
            return left.zip(&right, |a, b| self.b.binary(f, a, b));
        }
        let mut rest = begin;
        let mut bounds = Vec::with_capacity(axes.len());
        for &axis in axes.iter().rev() {
            let at = (rest % self.nest.extent(axis)) as i64;
            rest /= self.nest.extent(axis);
            bounds.push((axis, Bound::one(self.b.index(at), (at, at))));
        }
        self.push_scope(bounds);
        let leaf = self.wide(body, width);
        self.pop_scope();
        leaf
    }

    /// A balanced tree of any size: subtrees grow as the digits of a counter do.
    fn growing(&mut self, f: Binary, axes: &[Axis], body: NodeId, identity: Scalar, width: usize) -> Val {
        let trips: usize = axes.iter().map(|a| self.nest.extent(*a)).product();
        let one = self.constant(identity, width);
        let (each, levels) = (one.regs.len(), trips.ilog2() as usize + 1);
        let counter = self.b.index(0);
        let parts = (0..levels).flat_map(|_| one.regs.iter().copied());
        let parts = self.nested(axes, Step::Grow { f, body, levels }, parts.chain([counter]).collect());
        let part = |level: usize| Val { regs: parts[level * each..(level + 1) * each].into(), lanes: one.lanes };
        // Smaller subtrees stand to the right.
        let mut there = (0..levels).filter(|level| trips >> level & 1 == 1);
        let smallest = part(there.next().expect("there are elements"));
        there.fold(smallest, |sum, level| part(level).zip(&sum, |a, b| self.b.binary(f, a, b)))
    }

    /// Adds an element. The subtree of a level is complete where all digits of the counter below it are 1: it takes the
    /// place of what stood there, which the sum of the next level contains.
    fn grow(&mut self, f: Binary, body: NodeId, levels: usize, mut parts: Vec<Reg>) -> Vec<Reg> {
        let dtype = self.nest.nodes[body].dtype;
        let counter = parts.pop().expect("the counter comes last");
        let each = parts.len() / levels;
        let width = each * self.b.ty(parts[0]).lanes as usize;
        let mut sum = self.lanes_of(body, &parts[..each]);
        for level in 0..levels {
            let old = &mut parts[level * each..(level + 1) * each];
            let next = sum.regs.iter().zip(&*old).map(|(&x, &left)| self.b.binary(f, left, x)).collect();
            if level == 0 {
                old.copy_from_slice(&sum.regs);
            } else {
                let (size, last) = (self.b.index(1 << level), self.b.index((1 << level) - 1));
                let digits = self.b.binary(Binary::Mod, counter, size);
                let complete = self.b.compare(Compare::Eq, digits, last);
                let complete = self.spread(complete, DType::Bool, width, self.b.depth());
                let complete = if vectorizes(dtype) { complete } else { self.scalars(complete, DType::Bool) };
                for (i, part) in old.iter_mut().enumerate() {
                    *part = self.b.select(complete.regs[i], sum.regs[i], *part);
                }
            }
            sum = Val { regs: next, lanes: sum.lanes };
        }
        let one = self.b.index(1);
        parts.push(self.b.binary(Binary::Add, counter, one));
        parts
    }

    /// A reduction with one accumulator.
    fn chain(&mut self, axes: &[Axis], step: Step, acc: Val) -> Val {
        let lanes = acc.lanes;
        let regs = self.nested(axes, step, acc.regs.to_vec());
        Val { regs: regs.into(), lanes }
    }

    /// Runs a step over all positions of the axes, outermost first.
    fn nested(&mut self, axes: &[Axis], step: Step, accs: Vec<Reg>) -> Vec<Reg> {
        let trips: usize = axes.iter().map(|a| self.nest.extent(*a)).product();
        match axes {
            [] => self.step(step, accs),
            [axis, rest @ ..] if trips <= UNROLL => {
                let mut accs = accs;
                for i in 0..self.nest.extent(*axis) as i64 {
                    let base = self.b.index(i);
                    self.push_scope(vec![(*axis, Bound::one(base, (i, i)))]);
                    accs = self.nested(rest, step, accs);
                    self.pop_scope();
                }
                accs
            }
            [axis, rest @ ..] => {
                let extent = self.nest.extent(*axis) as i64;
                let (begin, end) = (self.b.index(0), self.b.index(extent));
                let l = self.b.open_loop(begin, end, 1, &accs);
                let args = l.args().collect();
                self.push_scope(vec![(*axis, Bound::one(l.var(), (0, extent - 1)))]);
                let next = self.nested(rest, step, args);
                self.pop_scope();
                self.b.close_loop(l, &next)
            }
        }
    }

    fn step(&mut self, step: Step, mut accs: Vec<Reg>) -> Vec<Reg> {
        match step {
            Step::Combine(f, body) => {
                let v = self.lanes_of(body, &accs);
                accs.iter().zip(&v.regs).map(|(&a, &x)| self.b.binary(f, a, x)).collect()
            }
            Step::Fma(x, y) => {
                let (v, w) = (self.lanes_of(x, &accs), self.lanes_of(y, &accs));
                (0..accs.len()).map(|i| self.b.fma(v.regs[i], w.regs[i], accs[i])).collect()
            }
            Step::Rotate(f, body) => {
                let each = accs.len() / LANES;
                let v = self.lanes_of(body, &accs[..each]);
                let first: Vec<Reg> = accs.drain(..each).collect();
                accs.extend(first.iter().zip(&v.regs).map(|(&a, &x)| self.b.binary(f, a, x)));
                accs
            }
            Step::Grow { f, body, levels } => self.grow(f, body, levels, accs),
            Step::ArgMax(body) => self.arg_max_step(body, &accs),
        }
    }

    /// The value of a node in as many lanes as the accumulators have.
    fn lanes_of(&mut self, node: NodeId, accs: &[Reg]) -> Val {
        let width = accs.len() * self.b.ty(accs[0]).lanes as usize;
        self.wide(node, width)
    }

    /// Whether the innermost axis is long and everything below steps along it evenly enough for vectors.
    fn runs_along(&self, axes: &[Axis], body: NodeId) -> bool {
        let Some(&inner) = axes.last() else { return false };
        let extent = self.nest.extent(inner);
        let whole = axes.len() == 1 || extent.is_multiple_of(LANES);
        extent >= LANES && whole && self.even_loads(body, inner)
    }

    fn even_loads(&self, node: NodeId, axis: Axis) -> bool {
        let n = &self.nest.nodes[node];
        if n.free & (1 << axis.0) == 0 {
            return true;
        }
        let here = match &n.op {
            Op::Load { at, .. } => matches!(coefficient(at, axis), Some(0 | 1)),
            _ => true,
        };
        here && n.op.children().all(|c| self.even_loads(c, axis))
    }

    /// Interleaved sums of one value, vectors along the innermost axis.
    fn along(&mut self, f: Binary, axes: &[Axis], body: NodeId, identity: Scalar) -> Val {
        let dtype = identity.dtype();
        let (outer, inner) = axes.split_at(axes.len() - 1);
        let acc = self.constant(identity, LANES);
        let lanes = acc.lanes;
        let regs = self.along_loops(f, outer, inner[0], body, acc.regs.to_vec());
        let extent = self.nest.extent(inner[0]);
        let rest = extent % LANES;
        if lanes == 4 && rest == 0 {
            let pairs = self.b.binary(f, regs[0], regs[1]);
            let p: Vec<Reg> = (0..4).map(|i| self.b.inst(RegType::scalar(dtype), Inst::Extract(pairs, i))).collect();
            let (a, b) = (self.b.binary(f, p[0], p[2]), self.b.binary(f, p[1], p[3]));
            return Val::one(self.b.binary(f, a, b));
        }
        let mut p = self.scalars(Val { regs: regs.into(), lanes }, dtype).regs.to_vec();
        for (i, acc) in p.iter_mut().enumerate().take(rest) {
            let at = (extent - rest + i) as i64;
            let base = self.b.index(at);
            self.push_scope(vec![(inner[0], Bound::one(base, (at, at)))]);
            let x = self.wide(body, 1).regs[0];
            *acc = self.b.binary(f, *acc, x);
            self.pop_scope();
        }
        Val::one(self.tree(f, &p))
    }

    fn along_loops(&mut self, f: Binary, outer: &[Axis], inner: Axis, body: NodeId, accs: Vec<Reg>) -> Vec<Reg> {
        let (axis, extent, step) = match outer {
            [] => {
                let extent = self.nest.extent(inner);
                (inner, (extent - extent % LANES) as i64, LANES as i64)
            }
            [axis, ..] => (*axis, self.nest.extent(*axis) as i64, 1),
        };
        let (begin, end) = (self.b.index(0), self.b.index(extent));
        let l = self.b.open_loop(begin, end, step, &accs);
        let args: Vec<Reg> = l.args().collect();
        let bound = Bound::lanes(l.var(), step as usize, (0, extent - 1));
        self.push_scope(vec![(axis, bound)]);
        let next = match outer {
            [] => self.step(Step::Combine(f, body), args),
            [_, rest @ ..] => self.along_loops(f, rest, inner, body, args),
        };
        self.pop_scope();
        self.b.close_loop(l, &next)
    }

    /// ((p0 ∘ p4) ∘ (p2 ∘ p6)) ∘ ((p1 ∘ p5) ∘ (p3 ∘ p7)).
    fn tree(&mut self, f: Binary, p: &[Reg]) -> Reg {
        let pairs: Vec<Reg> = (0..4).map(|i| self.b.binary(f, p[i], p[i + 4])).collect();
        let (a, b) = (self.b.binary(f, pairs[0], pairs[2]), self.b.binary(f, pairs[1], pairs[3]));
        self.b.binary(f, a, b)
    }

    /// Interleaved sums of any shape: eight accumulators that take turns.
    fn rotating(&mut self, f: Binary, axes: &[Axis], body: NodeId, identity: Scalar, width: usize) -> Val {
        let one = self.constant(identity, width);
        let accs: Vec<Reg> = (0..LANES).flat_map(|_| one.regs.iter().copied()).collect();
        let accs = self.nested(axes, Step::Rotate(f, body), accs);
        let trips: usize = axes.iter().map(|a| self.nest.extent(*a)).product();
        let each = one.regs.len();
        // After t elements accumulator i stands at place (i − t) mod 8.
        let place = |i: usize| (i + LANES - trips % LANES) % LANES;
        let regs = (0..each)
            .map(|r| {
                let p: Vec<Reg> = (0..LANES).map(|i| accs[place(i) * each + r]).collect();
                self.tree(f, &p)
            })
            .collect();
        Val { regs, lanes: one.lanes }
    }

    pub(super) fn arg_max(&mut self, axes: &[Axis], body: NodeId, width: usize) -> Val {
        let dtype = self.nest.nodes[body].dtype;
        let best = self.constant(Scalar::lowest(dtype), width);
        let position = self.constant(Scalar::zero(DType::I32), width);
        let counter = self.b.constant(Scalar::zero(DType::I32));
        let accs = best.regs.iter().chain(&position.regs).copied().chain([counter]).collect();
        let n = best.regs.len();
        let found = self.nested(axes, Step::ArgMax(body), accs);
        Val { regs: found[n..found.len() - 1].into(), lanes: position.lanes }
    }

    fn arg_max_step(&mut self, body: NodeId, accs: &[Reg]) -> Vec<Reg> {
        let dtype = self.nest.nodes[body].dtype;
        let counter = accs[accs.len() - 1];
        // Values and positions have the same number of lanes, in vectors or not.
        let lanes = |l: &Self, r: Reg| l.b.ty(r).lanes as usize;
        let first = lanes(self, accs[0]);
        let count = (1..accs.len())
            .find(|&n| {
                let rest = accs.len() - 1 - n;
                rest > 0 && n * first == rest * lanes(self, accs[n]) && self.b.ty(accs[n]).dtype == DType::I32
            })
            .expect("values are followed by positions");
        let (best, position) = accs[..accs.len() - 1].split_at(count);
        let width = count * first;
        let x = self.wide(body, width);
        let better: Vec<Reg> = best
            .iter()
            .zip(&x.regs)
            .map(|(&b, &x)| {
                let above = self.b.compare(Compare::Gt, x, b);
                if !dtype.is_float() {
                    return above;
                }
                let (nan, was) = (self.b.unary(Unary::IsNan, x), self.b.unary(Unary::IsNan, b));
                let not = self.b.unary(Unary::Not, was);
                let first = self.b.binary(Binary::And, nan, not);
                self.b.binary(Binary::Or, above, first)
            })
            .collect();
        let mut next: Vec<Reg> = (0..count).map(|i| self.b.select(better[i], x.regs[i], best[i])).collect();
        let better = Val { regs: better.into(), lanes: x.lanes };
        let better = self.reshape(better, DType::Bool, width);
        let here = self.spread(counter, DType::I32, width, self.b.depth());
        next.extend(position.iter().enumerate().map(|(i, &p)| self.b.select(better.regs[i], here.regs[i], p)));
        let one = self.b.constant(Scalar::one(DType::I32));
        next.push(self.b.binary(Binary::Add, counter, one));
        next
    }
}

impl Loops<'_> {
    /// Whether vectors hold all values that depend on the axis.
    pub(in crate::schedule) fn all_vectorize(nest: &crate::schedule::nest::Nest, axis: Axis) -> bool {
        nest.depends_on(axis).all(|n| vectorizes(n.dtype))
    }
}
