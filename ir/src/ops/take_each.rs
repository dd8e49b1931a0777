//! `take_each`: rows of tables, one table for each row of a batch.

use super::prelude::*;
use crate::scalar::{Binary as B, Compare as C};

/// Each row's table at integer positions: `tables: T[N, V, rest..], at: int[N, ids..] → T[N, ids.., rest..]`. Positions
/// outside `0 .. V` give 0.
#[derive(Clone, Debug, PartialEq)]
pub struct TakeEach {}

impl OpDef for TakeEach {
    const NAME: &'static str = "take_each";
    attributes!();

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [tables, at] = exactly(args)?;
        let fits = tables.rank() > 1 && at.rank() > 0 && at.dtype.is_int() && at.shape[0] == tables.shape[0];
        ensure(fits, || format!("rows {at} of tables {tables}"))?;
        let dims = at.shape.iter().chain(&tables.shape[2..]).copied();
        Ok(smallvec![tables.with_shape(Shape::new(dims))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (tables, at) = (args[0], args[1]);
        let mut c = Compute::new(&results[0].shape);
        let position = c.position();
        let which = c.load(1, at, position[..at.rank()].to_vec());
        let index = [position[0].clone(), Index::constant(0)];
        let index = index.into_iter().chain(position[at.rank()..].iter().cloned()).collect();
        let row = c.take(0, tables, index, 1, which, 0);
        Body::Compute(c.with_results([row]))
    }

    /// The tables become one, in which the positions of each row are further on.
    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, at, dy) = (cx.ty(0), cx.args[1], cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None, None]);
        }
        let (n, v) = (ty.shape[0], ty.shape[1]);
        let g = &mut *cx.g;
        let at = g.cast(DType::I64, at)?;
        let shape = g.shape(at).clone();
        let number = |g: &mut crate::Graph, x: f64| g.full(DType::I64, x, &shape);
        let first = g.push(super::Iota { dtype: DType::I64, shape: shape.clone(), dim: 0, start: 0 }, &[])?;
        let (zero, extent, nowhere) = (number(g, 0.0)?, number(g, v as f64)?, number(g, -1.0)?);
        let first = g.mul(first, extent)?;
        let flat = g.add(at, first)?;
        let (low, high) = (g.compare(C::Ge, at, zero)?, g.compare(C::Lt, at, extent)?);
        let inside = g.binary(B::And, low, high)?;
        let flat = g.select(inside, flat, nowhere)?;
        let sums = g.push(super::ScatterAdd { rows: n * v, base: 0 }, &[flat, dy])?;
        Ok(vec![Some(g.reshape(sums, &ty.shape)?), None])
    }

    /// What the positions select in stays whole.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> ShardingRule {
        let Body::Compute(c) = self.body(args, results) else { return ShardingRule::default() };
        let mut rule = ShardingRule::of(&c, args);
        rule.factors.retain(|factor| factor.kind == FactorKind::Pass);
        rule
    }
}
