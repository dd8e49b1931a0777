//! Which schedule computes a nest.

use super::launch::{Arrays, positions};
use super::{GpuKernel, pointwise, product};
use crate::schedule::nest::Nest;

/// Chooses schedules for a nest, and in how many launches it runs.
pub(super) fn schedule(name: &str, mut nest: Nest, arrays: &Arrays) -> GpuKernel {
    if positions(&nest, &nest.axes) == 0 {
        return GpuKernel { launches: Vec::new(), workspace: 0, schedule: "nothing" };
    }
    if let Some(kernel) = product::schedule(name, &nest, arrays) {
        return kernel;
    }
    nest.merge();
    let launches = vec![pointwise::launch(name, &nest, arrays)];
    GpuKernel { launches, workspace: 0, schedule: "pointwise" }
}
