//! Reductions of f32 and f64 loads, and of products of two such loads, with the address of every step known beforehand.
//!
//! An index is a part that depends on the axes outside the reduction, evaluated once per result, plus a part that
//! depends on the reduced axes only, tabulated once for all results. Where a division or remainder mixes the two, both
//! parts of its operand are kept and the division is done at every step. The order of the steps, and the bits, are
//! those of the expression.

use super::tree::Tree;
use crate::compute::{Atom, Axis, Compute, Expr, ExprId, Guard, Index, LANES, Order};
use crate::scalar::{self, Binary, Reduce};
use crate::{DType, Scalar, Tensor};

/// Tables beyond this many steps cost more memory than they save time.
const MAX_STEPS: usize = 1 << 22;

/// A reduction ready to run.
pub(super) enum Chain {
    /// Over f32.
    Single(Steps<f32>),
    /// Over f64.
    Double(Steps<f64>),
}

impl Chain {
    /// The chain of a reduction; `None` if its body is something else.
    pub(super) fn new(
        compute: &Compute,
        operands: &[&Tensor],
        op: Reduce,
        axes: &[Axis],
        order: Order,
        body: ExprId,
    ) -> Option<Chain> {
        match compute.dtype(body) {
            DType::F32 => Steps::new(compute, operands, op, axes, order, body).map(Chain::Single),
            DType::F64 => Steps::new(compute, operands, op, axes, order, body).map(Chain::Double),
            DType::Bool
            | DType::I8
            | DType::I16
            | DType::I32
            | DType::I64
            | DType::U8
            | DType::U32
            | DType::F16
            | DType::BF16 => None,
        }
    }

    /// The reduction's value at a position of the axes outside it.
    pub(super) fn run(&mut self, at: &[i64]) -> Scalar {
        match self {
            Chain::Single(steps) => steps.run(at).to_scalar(),
            Chain::Double(steps) => steps.run(at).to_scalar(),
        }
    }
}

/// f32 or f64.
pub(super) trait Real: Copy {
    fn from_scalar(x: Scalar) -> Self;
    fn from_bytes(bytes: &[u8]) -> Vec<Self>;
    fn to_scalar(self) -> Scalar;
    fn fma(self, y: Self, z: Self) -> Self;
    fn add(self, y: Self) -> Self;
}

impl Real for f32 {
    fn from_bytes(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
    fn from_scalar(x: Scalar) -> f32 {
        f32::from_bits(x.bits() as u32)
    }
    fn to_scalar(self) -> Scalar {
        Scalar::from_bits(DType::F32, u64::from(self.to_bits()))
    }
    fn fma(self, y: f32, z: f32) -> f32 {
        self.mul_add(y, z)
    }
    fn add(self, y: f32) -> f32 {
        self + y
    }
}

impl Real for f64 {
    fn from_bytes(bytes: &[u8]) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect()
    }
    fn from_scalar(x: Scalar) -> f64 {
        f64::from_bits(x.bits())
    }
    fn to_scalar(self) -> Scalar {
        Scalar::from_bits(DType::F64, self.to_bits())
    }
    fn fma(self, y: f64, z: f64) -> f64 {
        self.mul_add(y, z)
    }
    fn add(self, y: f64) -> f64 {
        self + y
    }
}

/// The steps of a reduction.
pub(super) struct Steps<T> {
    count: usize,
    op: Reduce,
    identity: T,
    order: Order,
    first: Walk<T>,
    /// The other factor of a product.
    second: Option<Walk<T>>,
}

impl<T: Real> Steps<T> {
    fn new(
        compute: &Compute,
        operands: &[&Tensor],
        op: Reduce,
        axes: &[Axis],
        order: Order,
        body: ExprId,
    ) -> Option<Steps<T>> {
        let space = Space::new(compute, axes)?;
        let walk = |id| Walk::new(compute, operands, &space, id);
        let (first, second) = match order {
            Order::Fma => {
                let Expr::Binary(Binary::Mul, x, y) = *compute.expr(body) else { return None };
                (walk(x)?, Some(walk(y)?))
            }
            Order::Sequential | Order::Lanes | Order::Tree => (walk(body)?, None),
        };
        let identity = T::from_scalar(op.identity(compute.dtype(body)));
        Some(Steps { count: space.count, op, identity, order, first, second })
    }

    fn run(&mut self, at: &[i64]) -> T {
        let mut all = self.first.start(at);
        if let Some(second) = &mut self.second {
            all &= second.start(at);
        }
        let (first, n) = (&self.first, self.count);
        let op = self.op;
        let combine = |x: T, y: T| match op {
            Reduce::Sum => x.add(y),
            Reduce::Prod | Reduce::Max | Reduce::Min => {
                T::from_scalar(scalar::binary(op.combine(), x.to_scalar(), y.to_scalar()))
            }
        };
        match (self.order, &self.second) {
            (Order::Fma, Some(second)) => {
                let mut acc = self.identity;
                if all {
                    // Every guard holds at every step and no division remains.
                    for (dx, dy) in first.address.table.iter().zip(&second.address.table) {
                        acc = first.read(first.base + dx).fma(second.read(second.base + dy), acc);
                    }
                } else {
                    for i in 0..n {
                        acc = first.get(i).fma(second.get(i), acc);
                    }
                }
                acc
            }
            (Order::Lanes, _) => {
                let mut p = [self.identity; LANES];
                for i in 0..n {
                    p[i % LANES] = combine(p[i % LANES], first.get(i));
                }
                let c = combine;
                c(c(c(p[0], p[4]), c(p[2], p[6])), c(c(p[1], p[5]), c(p[3], p[7])))
            }
            (Order::Tree, _) => {
                let mut tree = Tree::new(combine);
                (0..n).for_each(|i| tree.push(first.get(i)));
                tree.finish().unwrap_or(self.identity)
            }
            (Order::Sequential | Order::Fma, _) => (0..n).fold(self.identity, |acc, i| combine(acc, first.get(i))),
        }
    }
}

/// The positions of the reduced axes, in order.
struct Space<'a> {
    axes: &'a [Axis],
    bits: u64,
    extents: Vec<usize>,
    rank: usize,
    count: usize,
}

impl<'a> Space<'a> {
    fn new(compute: &Compute, axes: &'a [Axis]) -> Option<Space<'a>> {
        let extents: Vec<usize> = axes.iter().map(|a| compute.extents()[a.0 as usize]).collect();
        let count = extents.iter().try_fold(1usize, |n, &e| n.checked_mul(e)).filter(|n| *n <= MAX_STEPS)?;
        let bits = axes.iter().fold(0, |s, a| s | 1u64 << a.0);
        Some(Space { axes, bits, extents, rank: compute.extents().len(), count })
    }

    /// The index at every position.
    fn table(&self, index: &Index) -> Vec<i64> {
        let mut at = vec![0i64; self.rank];
        let mut table = Vec::with_capacity(self.count);
        for _ in 0..self.count {
            table.push(index.eval(&at));
            for (a, &e) in self.axes.iter().zip(&self.extents).rev() {
                let p = &mut at[a.0 as usize];
                *p += 1;
                if *p < e as i64 {
                    break;
                }
                *p = 0;
            }
        }
        table
    }
}

/// An index in two parts.
struct Split {
    /// Depends on axes outside the reduction.
    outside: Index,
    /// For every step, what the reduced axes add.
    table: Vec<i64>,
    least: i64,
    greatest: i64,
    mixed: Vec<Mixed>,
}

/// coeff · ⌊of / n⌋ or coeff · (of mod n), where `of` depends on axes inside and outside.
struct Mixed {
    coeff: i64,
    n: i64,
    part: Part,
    of: Split,
    base: i64,
}

enum Part {
    Quotient,
    Remainder,
}

impl Split {
    fn new(space: &Space<'_>, index: &Index) -> Split {
        let (mut outside, mut inside) = (Index::constant(index.offset()), Index::constant(0));
        let mut mixed = Vec::new();
        for t in index.terms() {
            let one = Index::term(t.clone());
            let axes = one.axes();
            if axes & space.bits == 0 {
                outside = outside + one;
            } else if axes & !space.bits == 0 || matches!(t.atom, Atom::Axis(_)) {
                inside = inside + one;
            } else {
                let (inner, n, part) = match &t.atom {
                    Atom::FloorDiv(inner, n) => (inner, *n, Part::Quotient),
                    Atom::Mod(inner, n) => (inner, *n, Part::Remainder),
                    Atom::Axis(_) => unreachable!("an axis is inside or outside"),
                };
                mixed.push(Mixed { coeff: t.coeff, n, part, of: Split::new(space, inner), base: 0 });
            }
        }
        let table = space.table(&inside);
        let least = table.iter().copied().min().unwrap_or(0);
        let greatest = table.iter().copied().max().unwrap_or(0);
        Split { outside, table, least, greatest, mixed }
    }

    /// Σ of indices with factors.
    fn sum(space: &Space<'_>, parts: impl Iterator<Item = (Index, i64)>) -> Split {
        Split::new(space, &parts.fold(Index::constant(0), |sum, (i, factor)| sum + i.times(factor)))
    }

    /// The part that the outside adds; divisions remember theirs.
    fn start(&mut self, at: &[i64]) -> i64 {
        for m in &mut self.mixed {
            m.base = m.of.start(at);
        }
        self.outside.eval(at)
    }

    fn get(&self, base: i64, step: usize) -> i64 {
        self.mixed.iter().fold(base + self.table[step], |sum, m| {
            let v = m.of.get(m.base, step);
            let v = match m.part {
                Part::Quotient => v.div_euclid(m.n),
                Part::Remainder => v.rem_euclid(m.n),
            };
            sum + m.coeff * v
        })
    }
}

struct Condition {
    index: Split,
    lo: i64,
    hi: i64,
    base: i64,
    /// Holds at every step of this result.
    always: bool,
}

/// The loads of one operand, step by step.
struct Walk<T> {
    data: Vec<T>,
    address: Split,
    base: i64,
    guards: Vec<Condition>,
    guarded: bool,
    fill: T,
}

impl<T: Real> Walk<T> {
    /// The walk of a load, cast or not.
    fn new(compute: &Compute, operands: &[&Tensor], space: &Space<'_>, id: ExprId) -> Option<Walk<T>> {
        let dtype = compute.dtype(id);
        let load = match compute.expr(id) {
            Expr::Cast(_, inner) if compute.dtype(*inner).is_float() => compute.expr(*inner),
            e => e,
        };
        let Expr::Load { operand, index, guards, fill } = load else { return None };
        let tensor = operands[*operand];
        let value = |x: Scalar| T::from_scalar(scalar::cast(dtype, x));
        let strides = tensor.ty.shape.strides();
        let terms = index.iter().cloned().zip(strides.iter().map(|&s| s as i64));
        let condition =
            |g: &Guard| Condition { index: Split::new(space, &g.index), lo: g.lo, hi: g.hi, base: 0, always: false };
        Some(Walk {
            data: match tensor.ty.dtype == dtype {
                true => T::from_bytes(&tensor.data),
                false => (0..tensor.elements()).map(|i| value(tensor.get(i))).collect(),
            },
            address: Split::sum(space, terms),
            base: 0,
            guards: guards.iter().map(condition).collect(),
            guarded: true,
            fill: value(*fill),
        })
    }

    /// Begins a result; whether every step reads at its tabulated address.
    fn start(&mut self, at: &[i64]) -> bool {
        self.base = self.address.start(at);
        self.guarded = false;
        for g in &mut self.guards {
            g.base = g.index.start(at);
            let plain = g.index.mixed.is_empty();
            g.always = plain && g.lo <= g.base + g.index.least && g.base + g.index.greatest < g.hi;
            self.guarded |= !g.always;
        }
        !self.guarded && self.address.mixed.is_empty()
    }

    #[inline]
    fn read(&self, flat: i64) -> T {
        self.data[flat as usize]
    }

    #[inline]
    fn get(&self, step: usize) -> T {
        if self.guarded {
            for g in self.guards.iter().filter(|g| !g.always) {
                let v = g.index.get(g.base, step);
                if v < g.lo || v >= g.hi {
                    return self.fill;
                }
            }
        }
        self.read(self.address.get(self.base, step))
    }
}
