//! Long sums in parts, where a result has too few tiles to keep a device busy: one launch sums segments of the inner
//! extent, a second adds those up in order and does what follows.

use super::choose::{PROCESSORS, choose};
use super::launch;
use super::problem::Problem;
use crate::schedule::gpu::launch::{Array, Arrays, positions};
use crate::schedule::gpu::shape::{self, Segments};
use crate::schedule::gpu::{ALIGNMENT, Argument, GpuKernel, Precision, pointwise};
use crate::schedule::nest::{Nest, Op};
use intwain_ir::DType;
use intwain_ir::compute::Axis;

/// Segments at most: the second launch adds them up one after another.
const MOST: usize = 16;
/// Steps of a segment at least, so that the ring pays.
const STEPS: usize = 8;

/// The launches of a contraction in segments; `None` where they gain nothing.
pub(super) fn schedule(name: &str, problem: &Problem, arrays: &Arrays, precision: Precision) -> Option<GpuKernel> {
    let (axis, extent) = outermost(&problem.nest)?;
    let count = count(problem, extent)?;
    debug_assert_eq!(problem.inner.first(), Some(&axis));
    let split = shape::split(&problem.nest, extent / count, Segments::Outermost, arrays.operands.len())?;
    let elements = positions(&split.partial, &split.partial.axes);
    let sums = Array { dtype: DType::F32, elements, argument: Argument::Workspace(0) };
    let segments = Problem::new(&split.partial, precision)?;
    let tile = choose(&segments)?;
    let first = Arrays { operands: arrays.operands.clone(), results: vec![sums] };
    let operands = arrays.operands.iter().copied().chain([sums]).collect();
    let second = Arrays { operands, results: arrays.results.clone() };
    let launches = vec![
        launch(&format!("{name}_1"), &segments, &tile, &first),
        pointwise::launch(&format!("{name}_2"), &split.combined, &second),
    ];
    let workspace = (elements * DType::F32.size()).next_multiple_of(ALIGNMENT as usize);
    Some(GpuKernel { launches, workspace, schedule: super::NAME })
}

/// The outermost axis of the sum.
fn outermost(nest: &Nest) -> Option<(Axis, usize)> {
    let axis = nest.nodes.iter().find_map(|n| match &n.op {
        Op::Reduce { axes, .. } => axes.first().copied(),
        _ => None,
    })?;
    Some((axis, nest.extent(axis)))
}

/// How many segments the outermost axis, of this extent, is divided into: as many as there are idle processors for.
fn count(problem: &Problem, extent: usize) -> Option<usize> {
    let tile = choose(problem)?;
    let [m, n, k, batch] = problem.extents();
    let blocks = m.div_ceil(tile.rows) * n.div_ceil(tile.columns) * batch;
    let fits = |count: &usize| {
        extent.is_multiple_of(*count) && k / count >= STEPS * tile.inner && blocks * count <= 2 * PROCESSORS
    };
    (blocks < PROCESSORS / 2).then(|| (2..=MOST).rev().find(fits)).flatten()
}
