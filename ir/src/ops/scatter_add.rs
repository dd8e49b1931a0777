//! `scatter_add`: rows added up in a table.

use super::prelude::*;

/// A table of zeros to which rows are added at integer positions, in the order of the rows:
/// `at: int[ids..], rows: T[ids.., rest..] → T[rows, rest..]`. Positions outside `base .. base + rows` are dropped.
/// Sums of f16 and bf16 are accumulated in f32.
#[derive(Clone, Debug, PartialEq)]
pub struct ScatterAdd {
    /// Rows of the table.
    pub rows: usize,
    /// Position of the table's first row.
    pub base: i64,
}

impl OpDef for ScatterAdd {
    const NAME: &'static str = "scatter_add";
    attributes!(rows, base);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [at, x] = exactly(args)?;
        let fits = at.dtype.is_int() && x.rank() >= at.rank() && x.shape[..at.rank()] == at.shape[..];
        ensure(fits && x.dtype != DType::Bool, || format!("rows {x} at {at}"))?;
        let dims = std::iter::once(self.rows).chain(x.shape[at.rank()..].iter().copied());
        Ok(smallvec![x.with_shape(Shape::new(dims))])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Leaf
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (at, d) = (cx.args[0], cx.dy());
        Ok(vec![None, Some(cx.g.push(super::Take { base: self.base }, &[d, at])?)])
    }

    /// Columns pass; a table's rows are local to the device that holds them, since other positions are dropped; rows
    /// added on several devices give partial sums.
    fn rule(&self, args: &[&Type], results: &[&Type]) -> ShardingRule {
        let (ids, out) = (args[0].rank(), results[0]);
        let dim = |dim: usize| Some(FactorDim::new(dim, 1));
        let columns = (1..out.rank()).map(|d| Factor {
            extent: out.shape[d],
            kind: FactorKind::Pass,
            operands: vec![None, dim(ids + d - 1)],
            results: vec![dim(d)],
        });
        let table =
            Factor { extent: self.rows, kind: FactorKind::Pass, operands: vec![None, None], results: vec![dim(0)] };
        let added = (0..ids).map(|d| Factor {
            extent: args[0].shape[d],
            kind: FactorKind::Reduce(scalar::Reduce::Sum),
            operands: vec![dim(d), dim(d)],
            results: vec![None],
        });
        ShardingRule { factors: columns.chain([table]).chain(added).collect(), linear: vec![0b10] }
    }

    fn localize(&self, cx: &LocalCx<'_>) -> ScatterAdd {
        let start = cx.result_layouts[0].region(&cx.global_results[0].shape, 0, cx.device).start;
        ScatterAdd { rows: cx.results[0].shape[0], base: self.base + start as i64 }
    }

    fn eval(&self, args: &[&Tensor], results: &[Type], _: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let (at, x, ty) = (args[0], args[1], &results[0]);
        let acc = ty.dtype.accumulator();
        let mut table = Tensor::zeros(ty.with_dtype(acc));
        let width: usize = ty.shape[1..].iter().product();
        for i in 0..at.elements() {
            let row = at.get(i).to_i64() - self.base;
            if row < 0 || row >= self.rows as i64 {
                continue;
            }
            for j in 0..width {
                let (to, from) = (row as usize * width + j, scalar::cast(acc, x.get(i * width + j)));
                table.set(to, scalar::binary(scalar::Binary::Add, table.get(to), from));
            }
        }
        Ok(vec![table.cast(ty.dtype)])
    }

    fn leaf_flops(&self, args: &[&Type], _: &[&Type]) -> u64 {
        args[1].shape.elements() as u64
    }
}
