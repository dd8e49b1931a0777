//! What fusion wants to know of a compute.

use intwain_ir::compute::{Atom, Compute, Expr, Index, Order, Term};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{Shape, Type};

/// For each load of an operand: the axes over which it is evaluated, and whether it reads the result's own position.
pub(super) fn loads_of(c: &Compute, which: usize) -> Vec<(u64, bool)> {
    let live = c.reachable();
    let position = c.position();
    c.exprs()
        .filter(|(id, _)| live[id.0 as usize])
        .filter_map(|(id, e)| match e {
            Expr::Load { operand, index, guards, .. } if *operand == which => {
                Some((c.free_axes(id), guards.is_empty() && *index == position))
            }
            _ => None,
        })
        .collect()
}

pub(super) fn takes(c: &Compute, which: usize) -> bool {
    c.exprs().any(|(_, e)| matches!(e, Expr::Take { operand, .. } if *operand == which))
}

pub(super) fn live_exprs(c: &Compute) -> impl Iterator<Item = &Expr> {
    let live = c.reachable();
    c.exprs().filter(move |(id, _)| live[id.0 as usize]).map(|(_, e)| e)
}

/// Whether a compute moves elements or is constant, without work.
pub(super) fn is_free(c: &Compute) -> bool {
    live_exprs(c).all(|e| match e {
        Expr::Const(_) | Expr::Position(..) | Expr::Load { .. } => true,
        Expr::InRange(_) | Expr::Select(..) => c.results().iter().all(|r| matches!(c.expr(*r), Expr::Load { .. })),
        Expr::Take { .. }
        | Expr::Unary(..)
        | Expr::Binary(..)
        | Expr::Compare(..)
        | Expr::Cast(..)
        | Expr::Reduce { .. }
        | Expr::ArgMax { .. } => false,
    })
}

pub(super) fn has_guards(c: &Compute) -> bool {
    live_exprs(c).any(|e| matches!(e, Expr::Load { guards, .. } if !guards.is_empty()))
}

/// Elements of `from` in the order of another shape.
pub(super) fn reshaped(from: &Type, to: &Shape) -> Compute {
    let mut c = Compute::new(to);
    let strides = to.strides();
    let flat = c.axes().zip(&strides).fold(Index::constant(0), |sum, (a, s)| sum + Index::axis(a).times(*s as i64));
    let along = from.shape.iter().zip(from.shape.strides()).enumerate().map(|(d, (&extent, stride))| {
        let number = flat.clone().floor_div((stride as i64).max(1), c.extents());
        if d == 0 { number } else { number.modulo((extent as i64).max(1), c.extents()) }
    });
    let index = along.collect();
    let load = c.load(0, from, index);
    c.with_results([load])
}

/// Divisions and remainders in indices.
pub(super) fn divisions(c: &Compute) -> usize {
    fn of(index: &Index) -> usize {
        let inner = |t: &Term| match &t.atom {
            Atom::Axis(_) => 0,
            Atom::FloorDiv(i, _) | Atom::Mod(i, _) => 1 + of(i),
        };
        index.terms().iter().map(inner).sum()
    }
    live_exprs(c)
        .map(|e| match e {
            Expr::Load { index, guards, .. } => index.iter().chain(guards.iter().map(|g| &g.index)).map(of).sum(),
            Expr::Take { index, .. } => index.iter().map(of).sum(),
            Expr::InRange(guards) => guards.iter().map(|g| of(&g.index)).sum(),
            Expr::Position(_, index) => of(index),
            Expr::Const(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Compare(..)
            | Expr::Select(..)
            | Expr::Cast(..)
            | Expr::Reduce { .. }
            | Expr::ArgMax { .. } => 0,
        })
        .sum()
}

/// Whether a sum of products is in it.
pub(super) fn has_chain(c: &Compute) -> bool {
    live_exprs(c).any(|e| matches!(e, Expr::Reduce { order: Order::Fma, .. }))
}

/// Whether a compute is a tree over an operand's elements and nothing before it.
pub(super) fn adds_up(c: &Compute, which: usize) -> bool {
    let mut reductions = live_exprs(c).filter(|e| matches!(e, Expr::Reduce { .. } | Expr::ArgMax { .. }));
    let (Some(Expr::Reduce { order: Order::Tree, body, .. }), None) = (reductions.next(), reductions.next()) else {
        return false;
    };
    let body = match c.expr(*body) {
        Expr::Cast(_, inner) => c.expr(*inner),
        e => e,
    };
    matches!(body, Expr::Load { operand, guards, .. } if *operand == which && guards.is_empty())
}

pub(super) fn reduces(c: &Compute) -> bool {
    live_exprs(c).any(|e| matches!(e, Expr::Reduce { .. } | Expr::ArgMax { .. }))
}

/// Whether repeating the work costs less than a round trip through memory.
pub(super) fn is_cheap(c: &Compute) -> bool {
    let mut work = 0;
    for e in live_exprs(c) {
        work += match e {
            Expr::Unary(Unary::Neg | Unary::Abs, _) | Expr::Compare(..) | Expr::Select(..) | Expr::Cast(..) => 1,
            Expr::Unary(..) => 20,
            Expr::Binary(Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min, ..) => 1,
            Expr::Binary(..) => 10,
            Expr::Take { .. } | Expr::Reduce { .. } | Expr::ArgMax { .. } => 20,
            Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) | Expr::Load { .. } => 0,
        };
    }
    work <= 6
}
