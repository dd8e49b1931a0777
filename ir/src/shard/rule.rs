//! What an operation allows: factors along which it can be cut, and operands that may be partial sums.
//!
//! A *factor* is an axis of the computation that can be divided over devices without communication. Cutting it cuts
//! the dimensions it names of operands and results, and leaves the other operands whole. A factor of kind `Reduce`
//! names no result dimension: the results become partial. `Lookup` is the dimension of a table that is selected in at
//! run time: rows outside the part give 0, so the result is a partial sum.
//!
//! ```text
//! matmul [m,k]×[k,n]→[m,n]      m: (0.0)→0    n: (1.1)→1    k: (0.1, 1.0)→ P(sum)
//! grouped convolution           o: (0.c ×Cg, 1.o ×Fg)→o ×Fg      one unit is a group
//! reshape [n,t,f]→[n·t,f]       n: (0.0)→0 ×t                    one unit is t rows
//! ```
//!
//! A dimension's part is the factor's part times the dimension's `unit`, so cuts fall on whole groups or heads. Where a
//! dimension is no multiple of its unit, the last unit is shorter.

use super::{Layout, Sizes};
use crate::compute::{Atom, Axis, Compute, Expr, ExprId, Index, Order, Term};
use crate::scalar::Reduce;
use crate::{DType, Shape, Type};
use std::ops::Range;

/// A dimension that a factor cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FactorDim {
    /// The dimension.
    pub dim: usize,
    /// Positions of the dimension per unit of the factor.
    pub unit: usize,
    /// The extent of the dimension where that is no multiple of the unit: the last unit has fewer positions.
    pub end: Option<usize>,
}

impl FactorDim {
    /// A dimension of whole units.
    pub const fn new(dim: usize, unit: usize) -> FactorDim {
        FactorDim { dim, unit, end: None }
    }

    /// A dimension of `extent` positions, whose last unit may have fewer.
    pub fn ending(dim: usize, unit: usize, extent: usize) -> FactorDim {
        FactorDim { dim, unit, end: (!extent.is_multiple_of(unit)).then_some(extent) }
    }

    fn position(&self, unit: usize) -> usize {
        let at = unit * self.unit;
        self.end.map_or(at, |end| at.min(end))
    }

    /// The positions of a range of units.
    pub fn positions(&self, units: &Range<usize>) -> Range<usize> {
        self.position(units.start)..self.position(units.end)
    }

    /// The range of units that has these positions, if one has.
    pub fn units(&self, positions: &Range<usize>) -> Option<Range<usize>> {
        let boundary = |at: usize| match at.is_multiple_of(self.unit) {
            true => Some(at / self.unit),
            false => (self.end == Some(at)).then(|| at.div_ceil(self.unit)),
        };
        Some(boundary(positions.start)?..boundary(positions.end)?)
    }
}

/// What a cut does to the results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FactorKind {
    /// Results are cut too.
    Pass,
    /// Results are partial.
    Reduce(Reduce),
    /// Results are partial sums; operand 0's dimension is the one selected in.
    Lookup,
}

/// An axis that can be divided over devices.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// Number of units.
    pub extent: usize,
    /// What a cut does to the results.
    pub kind: FactorKind,
    /// For each operand the dimension that is cut; `None`: the operand is whole on every device.
    pub operands: Vec<Option<FactorDim>>,
    /// For each result the dimension that is cut; `None` where the result is partial.
    pub results: Vec<Option<FactorDim>>,
}

impl Factor {
    /// The layout of each operand when device k takes `units[k]` units.
    pub fn operand_layouts(&self, units: &[usize]) -> Vec<Layout> {
        self.operands.iter().map(|d| split(*d, units).unwrap_or(Layout::Replicated)).collect()
    }

    /// The layout of each result when device k takes `units[k]` units.
    pub fn result_layouts(&self, units: &[usize]) -> Vec<Layout> {
        let partial = match self.kind {
            FactorKind::Pass => Layout::Replicated,
            FactorKind::Reduce(op) => Layout::Partial(op),
            FactorKind::Lookup => Layout::Partial(Reduce::Sum),
        };
        self.results.iter().map(|d| split(*d, units).unwrap_or_else(|| partial.clone())).collect()
    }

    /// The units of each device, where these layouts are a cut of this factor.
    pub fn units(&self, operands: &[Layout], results: &[Layout]) -> Option<Vec<usize>> {
        let dims = self.operands.iter().zip(operands).chain(self.results.iter().zip(results));
        let units: Vec<usize> = dims.into_iter().find_map(|(d, l)| match (d, l) {
            (Some(d), Layout::Split { dim, sizes }) if d.dim == *dim => units_of(d, sizes),
            _ => None,
        })?;
        (self.operand_layouts(&units) == operands && self.result_layouts(&units) == results).then_some(units)
    }
}

fn units_of(dim: &FactorDim, sizes: &[usize]) -> Option<Vec<usize>> {
    let mut at = 0;
    let unit = |size: &usize| {
        let part = at..at + size;
        at = part.end;
        dim.units(&part).map(|units| units.len())
    };
    sizes.iter().map(unit).collect()
}

fn split(dim: Option<FactorDim>, units: &[usize]) -> Option<Layout> {
    let dim = dim?;
    let mut at = 0;
    let size = |count: &usize| {
        let part = at..at + count;
        at = part.end;
        dim.positions(&part).len()
    };
    Some(Layout::Split { dim: dim.dim, sizes: units.iter().map(size).collect::<Sizes>() })
}

/// What an operation allows. Replicated operands giving replicated results are always allowed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ShardingRule {
    /// The axes along which it can be cut.
    pub factors: Vec<Factor>,
    /// Sets of operands (bits) that may together be partial sums, the others replicated; results are partial sums.
    pub linear: Vec<u64>,
}

impl ShardingRule {
    /// The rule that follows from what the operation computes.
    pub fn of(compute: &Compute, operands: &[&Type]) -> ShardingRule {
        let factors = (0..compute.extents().len() as u8).filter_map(|a| factor(compute, operands, Axis(a)));
        let factors = factors.chain(lookup(compute, operands)).collect();
        ShardingRule { factors, linear: linear_sets(compute, operands) }
    }

    /// Whether these operand layouts give these result layouts without communication.
    pub fn allows(&self, operands: &[Layout], results: &[Layout]) -> bool {
        let whole = |l: &Layout| *l == Layout::Replicated;
        if operands.iter().all(whole) && results.iter().all(whole) {
            return true;
        }
        if let Some(Layout::On(k)) = operands.iter().chain(results).find(|l| matches!(l, Layout::On(_))) {
            let here = |l: &Layout| whole(l) || *l == Layout::On(*k);
            return operands.iter().all(here) && results.iter().all(|l| *l == Layout::On(*k));
        }
        let partial = Layout::Partial(Reduce::Sum);
        let partials = operands.iter().enumerate().filter(|(_, l)| **l == partial);
        let set = partials.fold(0, |s, (i, _)| s | 1u64.checked_shl(i as u32).unwrap_or(0));
        if set != 0 {
            let others = operands.iter().all(|l| *l == partial || whole(l));
            return others && self.linear.contains(&set) && results.iter().all(|l| *l == partial);
        }
        self.factors.iter().any(|f| f.units(operands, results).is_some())
    }
}

/// The factor of one axis, if it can be cut.
fn factor(c: &Compute, operands: &[&Type], axis: Axis) -> Option<Factor> {
    let extent = c.extents()[axis.0 as usize];
    let (kind, unit, roots) = if (axis.0 as usize) < c.rank() {
        (FactorKind::Pass, granule(c, axis)?, Vec::new())
    } else {
        let (op, roots) = root_reductions(c, axis)?;
        (FactorKind::Reduce(op), 1, roots)
    };
    // Nothing to divide, and devices would disagree about operands that leave out a dimension of extent 1.
    if extent <= 1 && kind != FactorKind::Pass {
        return None;
    }
    let mut dims: Vec<Option<FactorDim>> = vec![None; operands.len()];
    let mut seen = vec![false; operands.len()];
    let live = c.reachable();
    for (id, e) in c.exprs().filter(|(id, _)| live[id.0 as usize]) {
        // What is computed from a partial value is not partial, except its rounding.
        if !c.results().contains(&id) && e.children().any(|c| roots.contains(&c)) {
            return None;
        }
        let (operand, index) = match e {
            Expr::Load { operand, index, guards, .. } if !guards.iter().any(|g| g.index.uses(axis)) => {
                (*operand, index)
            }
            Expr::Take { operand, index, .. } => (*operand, index),
            Expr::Load { .. } => return None,
            Expr::Position(_, i) if i.uses(axis) => return None,
            Expr::InRange(gs) if gs.iter().any(|g| g.index.uses(axis)) => return None,
            // A second reduction over the same axis would see only a part.
            Expr::Reduce { axes, .. } if axes.contains(&axis) && !roots.contains(&id) => return None,
            Expr::ArgMax { axes, .. } if axes.contains(&axis) => return None,
            Expr::Const(_)
            | Expr::Position(..)
            | Expr::InRange(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Compare(..)
            | Expr::Select(..)
            | Expr::Cast(..)
            | Expr::Reduce { .. }
            | Expr::ArgMax { .. } => continue,
        };
        let dim = cut_dim(c, index, &operands[operand].shape, axis, unit, kind)?;
        if seen[operand] && dims[operand] != dim {
            return None;
        }
        seen[operand] = true;
        dims[operand] = dim;
    }
    let used = dims.iter().any(Option::is_some);
    // A reduction whose axis no operand carries cannot be cut; a result axis can, every device broadcasting its part.
    if kind != FactorKind::Pass && !used {
        return None;
    }
    let result = match kind {
        FactorKind::Pass => Some(FactorDim::new(axis.0 as usize, unit)),
        FactorKind::Reduce(_) | FactorKind::Lookup => None,
    };
    Some(Factor { extent: extent / unit, kind, operands: dims, results: vec![result; c.results().len()] })
}

/// Positions of a result axis that must stay together: the divisor by which loads divide it, 1 if none does.
fn granule(c: &Compute, axis: Axis) -> Option<usize> {
    let mut unit = 1;
    let live = c.reachable();
    for (_, e) in c.exprs().filter(|(id, _)| live[id.0 as usize]) {
        if let Expr::Load { index, .. } | Expr::Take { index, .. } = e {
            for t in index.iter().flat_map(Index::terms) {
                if let Atom::FloorDiv(inner, n) = &t.atom
                    && inner.bare() == Some(axis)
                {
                    if unit != 1 && unit != *n as usize {
                        return None;
                    }
                    unit = *n as usize;
                }
            }
        }
    }
    c.extents()[axis.0 as usize].is_multiple_of(unit).then_some(unit)
}

/// The dimension that cutting `axis` in units of `unit` positions cuts; `Some(None)` if the operand does not use it.
fn cut_dim(
    c: &Compute,
    index: &[Index],
    shape: &Shape,
    axis: Axis,
    unit: usize,
    kind: FactorKind,
) -> Option<Option<FactorDim>> {
    let within = |t: &Term, of: &Term| match t.atom {
        Atom::Axis(b) => t.coeff == 1 && c.extents()[b.0 as usize] as i64 == of.coeff,
        Atom::FloorDiv(..) | Atom::Mod(..) => false,
    };
    let mut found = None;
    for (dim, i) in index.iter().enumerate().filter(|(_, i)| i.uses(axis)) {
        let per_unit = match i.terms() {
            _ if i.offset() != 0 => return None,
            [t] if t.coeff == 1 && t.atom == Atom::Axis(axis) => unit,
            [t] if divides(&t.atom, axis, unit) => t.coeff as usize,
            // Cg·(a div Fg) + r with r over the Cg channels of a group
            [r, t] if divides(&t.atom, axis, unit) && within(r, t) => t.coeff as usize,
            // n·a + r with r over n positions: groups of one output, windows that touch
            [t, r] | [r, t] if unit == 1 && kind == FactorKind::Pass && t.atom == Atom::Axis(axis) && within(r, t) => {
                t.coeff as usize
            }
            _ => return None,
        };
        if found.is_some() || shape[dim] != c.extents()[axis.0 as usize] / unit * per_unit {
            return None;
        }
        found = Some(FactorDim::new(dim, per_unit));
    }
    Some(found)
}

fn divides(atom: &Atom, axis: Axis, unit: usize) -> bool {
    matches!(atom, Atom::FloorDiv(inner, n) if inner.bare() == Some(axis) && *n as usize == unit)
}

/// The reductions that bind `axis` and their operation, when every result is such a reduction, rounded or not.
fn root_reductions(c: &Compute, axis: Axis) -> Option<(Reduce, Vec<ExprId>)> {
    let mut found = None;
    let mut roots = Vec::new();
    for r in c.results() {
        // A sum in a wider type is rounded on every device, then combined.
        let root = match c.expr(*r) {
            Expr::Cast(to, inner) if to.is_float() && c.dtype(*inner).is_float() => *inner,
            _ => *r,
        };
        match c.expr(root) {
            // Parts of a tree are subtrees only if they are cut at its nodes, which no rule says.
            Expr::Reduce { order: Order::Tree, .. } => return None,
            Expr::Reduce { op, axes, .. } if axes.contains(&axis) && found.is_none_or(|f| f == *op) => {
                found = Some(*op);
                roots.push(root);
            }
            _ => return None,
        }
        // No layout is a partial bool.
        if c.dtype(*r) == DType::Bool {
            return None;
        }
    }
    found.map(|f| (f, roots))
}

/// The factor of a table's selected dimension: rows outside a part read 0.
fn lookup(c: &Compute, operands: &[&Type]) -> Option<Factor> {
    let [root] = c.results() else { return None };
    let Expr::Take { operand, dim, .. } = c.expr(*root) else { return None };
    if operands[*operand].dtype == DType::Bool || *operand != 0 {
        return None;
    }
    let mut dims = vec![None; operands.len()];
    dims[*operand] = Some(FactorDim::new(*dim, 1));
    Some(Factor {
        extent: operands[*operand].shape[*dim],
        kind: FactorKind::Lookup,
        operands: dims,
        results: vec![None; c.results().len()],
    })
}

fn linear_sets(c: &Compute, operands: &[&Type]) -> Vec<u64> {
    // Every set of few operands; of many, those of one and all together.
    let n = operands.len();
    let sets: Vec<u64> = match n {
        0..=4 => (1..1u64 << n).collect(),
        5..=63 => (0..n).map(|i| 1 << i).chain([(1 << n) - 1]).collect(),
        _ => Vec::new(),
    };
    sets.into_iter().filter(|&set| c.linear_in(set)).collect()
}
