//! `take`: rows of a table.

use super::prelude::*;

/// The table's rows at integer positions: `table: T[V, rest..], at: int[ids..] → T[ids.., rest..]`. Positions outside
/// `base .. base + V` give 0; a whole table has base 0 and is never asked for rows it lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    /// Position of the table's first row; not 0 for a device's part of a table.
    pub base: i64,
}

impl OpDef for Take {
    const NAME: &'static str = "take";
    attributes!(base);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [table, at] = exactly(args)?;
        ensure(table.rank() > 0 && at.dtype.is_int(), || format!("rows {at} of table {table}"))?;
        let dims = at.shape.iter().chain(&table.shape[1..]).copied();
        Ok(smallvec![table.with_shape(Shape::new(dims))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let (table, at) = (args[0], args[1]);
        let mut c = Compute::new(&results[0].shape);
        let position = c.position();
        let which = c.load(1, at, position[..at.rank()].to_vec());
        let index = std::iter::once(Index::constant(0)).chain(position[at.rank()..].iter().cloned());
        let index = index.collect();
        let row = c.take(0, table, index, 0, which, self.base);
        Body::Compute(c.with_results([row]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, at, dy) = (cx.ty(0), cx.args[1], cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None, None]);
        }
        let op = super::ScatterAdd { rows: ty.shape[0], base: self.base };
        Ok(vec![Some(cx.g.push(op, &[at, dy])?), None])
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Take {
        Take { base: self.base + cx.arg_layouts[0].region(&cx.args[0].shape, 0, cx.device).start as i64 }
    }
}
