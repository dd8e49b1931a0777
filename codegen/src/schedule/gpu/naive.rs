//! The plain schedule: one thread an element.

use super::launch::{Arrays, Draft, digits, positions};
use super::{GpuKernel, Launch};
use crate::schedule::nest::Nest;

/// Threads of a block.
const THREADS: usize = 256;

/// Every element in a thread of its own, nothing merged, reductions one element after another in their stated order.
pub(super) fn schedule(name: &str, nest: &Nest, arrays: &Arrays) -> GpuKernel {
    let launches: Vec<Launch> = launch(name, nest, arrays).into_iter().collect();
    GpuKernel { launches, workspace: 0, schedule: "naive" }
}

fn launch(name: &str, nest: &Nest, arrays: &Arrays) -> Option<Launch> {
    let total = positions(nest, &nest.axes);
    if total == 0 {
        return None;
    }
    let blocks = total.div_ceil(THREADS);
    let mut d = Draft::new(name, nest, arrays, blocks, THREADS as u32);
    let i = d.number(THREADS);
    let inside = d.below(i, total, blocks * THREADS);
    d.when(inside, |d| {
        let axes = digits(&mut d.l.b, nest, i, &nest.axes, 1);
        d.l.push_scope(axes);
        d.elements(1);
        d.l.pop_scope();
    });
    Some(d.finish())
}
