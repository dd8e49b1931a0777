//! Proves that buffers that live at the same time share no byte unless one is declared to work in the other.

use crate::memory::{Buffer, MemoryPlan, Storage};

/// A broken rule of a memory plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryFault {
    /// The plan is for another list of buffers.
    #[error("the plan places {placed} buffers of {buffers}")]
    Count {
        /// Offsets in the plan.
        placed: usize,
        /// Buffers.
        buffers: usize,
    },
    /// Two live buffers share bytes.
    #[error("buffers {first} and {second} are live together and overlap")]
    Overlap {
        /// The earlier.
        first: usize,
        /// The later.
        second: usize,
    },
    /// A buffer starts at an offset that is not aligned.
    #[error("buffer {buffer} starts at {offset}, which is not aligned")]
    Misaligned {
        /// The buffer.
        buffer: usize,
        /// Its offset.
        offset: usize,
    },
    /// A buffer ends behind the arena.
    #[error("buffer {buffer} ends outside the arena")]
    Outside {
        /// The buffer.
        buffer: usize,
    },
    /// A view is not where it should be.
    #[error("buffer {buffer} is a view of {of} and lies elsewhere")]
    Detached {
        /// The view.
        buffer: usize,
        /// What it shows.
        of: usize,
    },
}

/// Every broken rule; none for a valid plan.
pub fn check(buffers: &[Buffer], plan: &MemoryPlan, alignment: usize) -> Vec<MemoryFault> {
    if plan.offsets.len() != buffers.len() {
        return vec![MemoryFault::Count { placed: plan.offsets.len(), buffers: buffers.len() }];
    }
    let mut faults = Vec::new();
    for (at, (buffer, &offset)) in buffers.iter().zip(&plan.offsets).enumerate() {
        match buffer.storage {
            Storage::Within { of, offset: inner } => {
                if offset != plan.offsets[of] + inner {
                    faults.push(MemoryFault::Detached { buffer: at, of });
                }
            }
            Storage::Own | Storage::InPlace { .. } => {
                if offset % alignment != 0 {
                    faults.push(MemoryFault::Misaligned { buffer: at, offset });
                }
            }
        }
        if offset.checked_add(buffer.size).is_none_or(|end| end > plan.size) {
            faults.push(MemoryFault::Outside { buffer: at });
        }
    }
    for second in 0..buffers.len() {
        for first in 0..second {
            if collide(buffers, plan, first, second) && !shares(buffers, first, second) {
                faults.push(MemoryFault::Overlap { first, second });
            }
        }
    }
    faults
}

fn collide(buffers: &[Buffer], plan: &MemoryPlan, a: usize, b: usize) -> bool {
    let together = buffers[a].life.start() <= buffers[b].life.end() && buffers[b].life.start() <= buffers[a].life.end();
    let (from_a, from_b) = (plan.offsets[a], plan.offsets[b]);
    let overlap = from_a < from_b + buffers[b].size && from_b < from_a + buffers[a].size;
    together && overlap
}

/// Whether two buffers may use the same bytes while both live.
fn shares(buffers: &[Buffer], first: usize, second: usize) -> bool {
    let root = |mut at: usize| {
        while let Storage::Within { of, .. } = buffers[at].storage {
            at = of;
        }
        at
    };
    if root(first) == root(second) {
        return true;
    }
    // In place: the first is read for the last time by the command that writes the second.
    match &buffers[second].storage {
        Storage::InPlace { candidates } => {
            candidates.iter().any(|&c| root(c) == root(first))
                && buffers[first].life.end() == buffers[second].life.start()
        }
        Storage::Own | Storage::Within { .. } => false,
    }
}
