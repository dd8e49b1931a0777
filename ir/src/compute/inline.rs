//! Fusion by substitution: an operand's loads are replaced by the expression that computes the operand.

use super::{Axis, Compute, Expr, ExprId, Guard, Index};
use crate::Scalar;
use std::collections::HashMap;

/// How a producer's operands are numbered in the fused compute.
pub type OperandMap<'a> = &'a dyn Fn(usize) -> usize;

impl Compute {
    /// This compute with its operands renumbered.
    pub fn renumber(&self, map: OperandMap<'_>) -> Compute {
        let mut out = Compute { extents: self.extents.clone(), rank: self.rank, ..Compute::default() };
        let position = |a: Axis| Index::axis(a);
        let mut copy = Copier { from: self, position: &position, guards: &[], operands: map, done: HashMap::new() };
        let results: Vec<ExprId> = self.results.iter().map(|r| copy.copy(&mut out, *r)).collect();
        out.with_results(results)
    }

    /// This compute with every load of operand `which` replaced by result `result` of `producer`, whose operands are
    /// renumbered by `map`. The other operands of this compute keep their numbers. `Take` of the operand is not
    /// replaced: the caller must not fuse a table into its look-up.
    ///
    /// A guarded load becomes a selection, and its guards also protect the producer's own loads; where the producer only
    /// moves elements it stays a guarded load.
    pub fn inline(&self, which: usize, producer: &Compute, result: usize, map: OperandMap<'_>) -> Compute {
        let mut out = Compute { extents: self.extents.clone(), rank: self.rank, ..Compute::default() };
        // Fresh axes for the producer's reductions, shared by all copies: a reduction binds them anew each time.
        let fresh: Vec<Axis> = producer.extents[producer.rank..].iter().map(|&e| out.reduce_axis(e)).collect();
        let mut done: Vec<Option<ExprId>> = vec![None; self.nodes.len()];
        let live = self.reachable();
        for (id, expr) in self.exprs() {
            if !live[id.0 as usize] {
                continue;
            }
            let new = match expr {
                Expr::Load { operand, index, guards, fill } if *operand == which => {
                    let position = |a: Axis| match (a.0 as usize).checked_sub(producer.rank) {
                        None => index[a.0 as usize].clone(),
                        Some(r) => Index::axis(fresh[r]),
                    };
                    let mut copy =
                        Copier { from: producer, position: &position, guards, operands: map, done: HashMap::new() };
                    let value = copy.copy(&mut out, producer.results[result]);
                    if guards.is_empty() {
                        value
                    } else if let Some(load) = filled(producer.expr(producer.results[result]), out.expr(value), *fill) {
                        out.add(load, self.dtype(id))
                    } else {
                        let inside = out.add(Expr::InRange(guards.clone()), crate::DType::Bool);
                        let fill = out.constant(*fill);
                        out.select(inside, value, fill)
                    }
                }
                other => {
                    let e = other.map_children(|c| done[c.0 as usize].expect("children precede users"));
                    out.add(e, self.dtype(id))
                }
            };
            done[id.0 as usize] = Some(new);
        }
        let results: Vec<ExprId> =
            self.results.iter().map(|r| done[r.0 as usize].expect("results are reachable")).collect();
        out.with_results(results)
    }
}

/// The load that a guarded load of a producer becomes which loads itself: `made` has the guards of both.
fn filled(producer: &Expr, made: &Expr, fill: Scalar) -> Option<Expr> {
    let (Expr::Load { guards: own, fill: inner, .. }, Expr::Load { operand, index, guards, .. }) = (producer, made)
    else {
        return None;
    };
    // Beside its own guards the producer has its own fill.
    let same = own.is_empty() || inner.bits() == fill.bits();
    let fill = if guards.is_empty() { Scalar::zero(fill.dtype()) } else { fill };
    same.then(|| Expr::Load { operand: *operand, index: index.clone(), guards: guards.clone(), fill })
}

struct Copier<'a> {
    from: &'a Compute,
    position: &'a dyn Fn(Axis) -> Index,
    guards: &'a [Guard],
    operands: OperandMap<'a>,
    done: HashMap<ExprId, ExprId>,
}

impl Copier<'_> {
    fn copy(&mut self, out: &mut Compute, id: ExprId) -> ExprId {
        if let Some(&new) = self.done.get(&id) {
            return new;
        }
        let subst = |out: &Compute, i: &Index| i.substitute(self.position, &out.extents);
        let guard = |out: &Compute, g: &Guard| Guard { index: subst(out, &g.index), ..*g };
        let axis = |a: &Axis| (self.position)(*a).bare().expect("bound axes map to axes");
        let dtype = self.from.dtype(id);
        let new = match self.from.expr(id).clone() {
            Expr::Position(d, index) => {
                let index = subst(out, &index);
                out.index_value(d, index)
            }
            Expr::InRange(guards) => {
                let guards = guards.iter().map(|g| guard(out, g)).collect::<Vec<_>>();
                let guards = out.needed(guards);
                if guards.is_empty() {
                    out.constant(Scalar::one(crate::DType::Bool))
                } else {
                    out.add(Expr::InRange(guards), dtype)
                }
            }
            Expr::Load { operand, index, guards, fill } => {
                let index = index.iter().map(|i| subst(out, i)).collect();
                let all = guards.iter().map(|g| guard(out, g)).chain(self.guards.iter().cloned()).collect();
                let all = out.needed(all);
                let fill = if all.is_empty() { Scalar::zero(dtype) } else { fill };
                out.add(Expr::Load { operand: (self.operands)(operand), index, guards: all, fill }, dtype)
            }
            Expr::Take { operand, index, dim, at, base } => {
                let index = index.iter().map(|i| subst(out, i)).collect();
                let at = self.copy(out, at);
                out.add(Expr::Take { operand: (self.operands)(operand), index, dim, at, base }, dtype)
            }
            Expr::Reduce { op, axes, order, body } => {
                let axes = axes.iter().map(axis).collect();
                let body = self.copy(out, body);
                out.add(Expr::Reduce { op, axes, order, body }, dtype)
            }
            Expr::ArgMax { axes, body } => {
                let axes = axes.iter().map(axis).collect();
                let body = self.copy(out, body);
                out.add(Expr::ArgMax { axes, body }, dtype)
            }
            e @ (Expr::Const(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Compare(..)
            | Expr::Select(..)
            | Expr::Cast(..)) => {
                let e = e.map_children(|c| self.copy(out, c));
                out.add(e, dtype)
            }
        };
        self.done.insert(id, new);
        new
    }
}
