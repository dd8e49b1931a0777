//! What op files use.

pub(crate) use super::{Body, GradCx, GradError, Grads, LocalCx, OpDef, TypeError, Types};
pub(crate) use crate::attributes;
pub(crate) use crate::compute::{Axis, Compute, Expr, Guard, Index, Order};
pub(crate) use crate::interp::{EvalError, Exchange};
pub(crate) use crate::messages::{Messages, Piece};
pub(crate) use crate::shard::{Factor, FactorDim, FactorKind, Layout, ShardingRule, total};
pub(crate) use crate::{DType, Scalar, Shape, Tensor, Type, Value, scalar};
pub(crate) use smallvec::smallvec;

/// Checks the number of operands.
pub(crate) fn exactly<'a, const N: usize>(args: &[&'a Type]) -> Result<[&'a Type; N], TypeError> {
    <[&Type; N]>::try_from(args).map_err(|_| TypeError::new(format!("takes {N} operands, not {}", args.len())))
}

/// Fails with a description unless the condition holds.
pub(crate) fn ensure(holds: bool, problem: impl FnOnce() -> String) -> Result<(), TypeError> {
    if holds { Ok(()) } else { Err(TypeError::new(problem())) }
}

/// Greatest stride, dilation, pad and window size: sums of their products with extents fit an i64.
pub(crate) const MAX_STEP: usize = 1 << 30;

/// Checks that strides, dilations and sizes are at least 1, and that none of them nor a pad is absurdly great.
pub(crate) fn steps<'a>(
    steps: impl IntoIterator<Item = &'a usize>,
    pads: impl IntoIterator<Item = &'a (i64, i64)>,
) -> Result<(), TypeError> {
    let fits = steps.into_iter().all(|s| (1..=MAX_STEP).contains(s));
    ensure(fits, || format!("sizes, strides and dilations are from 1 to {MAX_STEP}"))?;
    let fits = pads.into_iter().all(|p| p.0.unsigned_abs().max(p.1.unsigned_abs()) <= MAX_STEP as u64);
    ensure(fits, || format!("pads are at most {MAX_STEP}"))
}

/// Checks that dimensions are in range and distinct.
pub(crate) fn distinct_dims(dims: &[usize], rank: usize) -> Result<(), TypeError> {
    for (i, d) in dims.iter().enumerate() {
        ensure(*d < rank, || format!("dimension {d} of a rank-{rank} operand"))?;
        ensure(!dims[..i].contains(d), || format!("dimension {d} twice"))?;
    }
    Ok(())
}

/// The order of a reduction of `dims`: interleaved where the innermost dimension is reduced, else one after another.
pub(crate) fn reduction_order(dims: &[usize], rank: usize) -> Order {
    if rank > 0 && dims.contains(&(rank - 1)) { Order::Lanes } else { Order::Sequential }
}
