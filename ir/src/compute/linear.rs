//! In which operands a compute is linear: f(Σ xᵢ) = Σ f(xᵢ). Those may be partial sums.

use super::{Compute, Expr, Order};
use crate::DType;
use crate::scalar::{Binary, Reduce, Unary};

/// How a value depends on the operands of interest.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Dependence {
    /// The value 0.
    Zero,
    /// Not at all.
    Independent,
    /// Linearly, without a constant part.
    Linear,
    /// Otherwise.
    Other,
}

impl Compute {
    /// Whether every result is linear in the operands of the set (bits) taken together, the others held fixed.
    pub fn linear_in(&self, operands: u64) -> bool {
        let mut deps: Vec<Dependence> = Vec::with_capacity(self.nodes.len());
        for (_, expr) in self.exprs() {
            let of = |id: &super::ExprId| deps[id.0 as usize];
            deps.push(dependence(expr, operands, &of, &|id| self.dtype(*id)));
        }
        !self.results.is_empty()
            && self.results.iter().all(|r| deps[r.0 as usize] == Dependence::Linear && self.dtype(*r).is_float())
    }
}

fn dependence(
    expr: &Expr,
    operands: u64,
    of: &dyn Fn(&super::ExprId) -> Dependence,
    dtype: &dyn Fn(&super::ExprId) -> DType,
) -> Dependence {
    use Dependence::{Independent, Linear, Other, Zero};
    let sum = |x: Dependence, y: Dependence| match (x, y) {
        (Zero, z) | (z, Zero) => z,
        (Linear, Linear) => Linear,
        (Independent, Independent) => Independent,
        _ => Other,
    };
    match expr {
        Expr::Const(x) if x.bits() == 0 => Zero,
        Expr::Const(_) | Expr::Position(..) | Expr::InRange(_) => Independent,
        Expr::Load { operand, fill, .. } => match operands & (1 << operand) != 0 {
            true if fill.bits() == 0 => Linear,
            true => Other,
            false => Independent,
        },
        Expr::Take { operand, at, .. } => match (operands & (1 << operand) != 0, of(at)) {
            (_, Linear | Other) => Other,
            (true, Zero | Independent) => Linear,
            (false, Zero | Independent) => Independent,
        },
        Expr::Unary(Unary::Neg, x) => of(x),
        Expr::Unary(_, x) | Expr::Cast(DType::Bool, x) => match of(x) {
            Zero | Independent => Independent,
            Linear | Other => Other,
        },
        Expr::Cast(to, x) => match of(x) {
            // Integers wrap, so the sum of the parts converted is not the sum converted.
            Linear if to.size() >= dtype(x).size() && dtype(x).is_float() && to.is_float() => Linear,
            Linear | Other => Other,
            Zero | Independent => Independent,
        },
        Expr::Binary(Binary::Add | Binary::Sub, x, y) => sum(of(x), of(y)),
        Expr::Binary(Binary::Mul, x, y) => match (of(x), of(y)) {
            (Zero, _) | (_, Zero) => Zero,
            (Linear, Independent) | (Independent, Linear) => Linear,
            (Independent, Independent) => Independent,
            _ => Other,
        },
        Expr::Binary(Binary::Div, x, y) => match (of(x), of(y)) {
            (Linear, Independent) => Linear,
            (Zero | Independent, Zero | Independent) => Independent,
            _ => Other,
        },
        Expr::Binary(_, x, y) | Expr::Compare(_, x, y) => match (of(x), of(y)) {
            (Zero | Independent, Zero | Independent) => Independent,
            _ => Other,
        },
        Expr::Select(c, x, y) => match of(c) {
            Zero | Independent => sum(of(x), of(y)),
            Linear | Other => Other,
        },
        Expr::Reduce { op: Reduce::Sum, order, body, .. } => match order {
            Order::Sequential | Order::Fma | Order::Lanes | Order::Tree => of(body),
        },
        Expr::Reduce { body, .. } | Expr::ArgMax { body, .. } => match of(body) {
            Zero | Independent => Independent,
            Linear | Other => Other,
        },
    }
}
