//! Places buffers of known size and life in one arena.
//!
//! Best fit, largest first: a buffer goes into the smallest gap between the buffers that live at the same time, else
//! behind them. If the arena ends up larger than the most bytes ever live by more than 2 %, other orders are tried and
//! the smallest arena is kept. `check::memory` proves a plan without using any of this.

use std::ops::RangeInclusive;

/// Bytes to which buffers of a CPU device are aligned.
pub const CPU_ALIGNMENT: usize = 64;
/// Bytes to which buffers of a GPU are aligned.
pub const GPU_ALIGNMENT: usize = 256;

/// A buffer to be placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Size in bytes.
    pub size: usize,
    /// From the command that first writes it to the last that touches it.
    pub life: RangeInclusive<usize>,
    /// Whose memory it uses.
    pub storage: Storage,
}

/// Whose memory a buffer uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Its own.
    Own,
    /// A part of an earlier buffer's: a view.
    Within {
        /// The index of the other buffer.
        of: usize,
        /// Where in it, in bytes.
        offset: usize,
    },
    /// Its own, or that of one of these earlier buffers, if it is read for the last time by the command that first
    /// writes this one: the command works in place.
    InPlace {
        /// Indices of the operands that the command can overwrite.
        candidates: Vec<usize>,
    },
}

/// Where every buffer lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Offset of each buffer in the arena.
    pub offsets: Vec<usize>,
    /// Size of the arena.
    pub size: usize,
    /// The most bytes live at one command; no plan is smaller.
    pub lower_bound: usize,
}

impl MemoryPlan {
    /// Size of the arena over the lower bound; 1 is best.
    pub fn ratio(&self) -> f64 {
        if self.lower_bound == 0 { 1.0 } else { self.size as f64 / self.lower_bound as f64 }
    }
}

/// Buffers that share memory, placed as one.
#[derive(Clone, Debug)]
struct Block {
    size: usize,
    first: usize,
    last: usize,
}

/// Places the buffers with offsets that are multiples of `alignment`.
///
/// # Panics
/// If a buffer shares the memory of one that does not come before it.
pub fn plan(buffers: &[Buffer], alignment: usize) -> MemoryPlan {
    let (blocks, places) = merge(buffers, alignment);
    let lower_bound = most_live(&blocks);
    let mut best: Option<(usize, Vec<usize>)> = None;
    for attempt in 0.. {
        let Some(order) = order(&blocks, attempt) else { break };
        let candidate = best_fit(&blocks, &order);
        if best.as_ref().is_none_or(|b| candidate.0 < b.0) {
            best = Some(candidate);
        }
        let reached = best.as_ref().map_or(0, |b| b.0);
        if reached <= lower_bound + lower_bound / 50 {
            break;
        }
    }
    let (size, starts) = best.unwrap_or_default();
    let offsets = places.iter().map(|&(block, offset)| starts[block] + offset).collect();
    MemoryPlan { offsets, size, lower_bound }
}

/// Joins buffers that share memory; gives for each buffer its block and the offset in it.
fn merge(buffers: &[Buffer], alignment: usize) -> (Vec<Block>, Vec<(usize, usize)>) {
    let mut blocks: Vec<Block> = Vec::new();
    let mut places: Vec<(usize, usize)> = Vec::new();
    for (at, buffer) in buffers.iter().enumerate() {
        let (first, last) = (*buffer.life.start(), *buffer.life.end());
        let shared = match &buffer.storage {
            Storage::Own => None,
            Storage::Within { of, offset } => {
                assert!(*of < at, "a view comes after what it shows");
                let (block, start) = places[*of];
                Some((block, start + offset))
            }
            Storage::InPlace { candidates } => candidates.iter().map(|&of| places[of]).find(|&(block, offset)| {
                blocks[block].last == first
                    && offset == 0
                    && buffer.size.next_multiple_of(alignment) <= blocks[block].size
            }),
        };
        let place = shared.unwrap_or_else(|| {
            blocks.push(Block { size: 0, first, last });
            (blocks.len() - 1, 0)
        });
        let block = &mut blocks[place.0];
        block.size = block.size.max((place.1 + buffer.size).next_multiple_of(alignment));
        block.first = block.first.min(first);
        block.last = block.last.max(last);
        places.push(place);
    }
    (blocks, places)
}

fn most_live(blocks: &[Block]) -> usize {
    let mut changes: Vec<(usize, bool, usize)> = Vec::new();
    for block in blocks {
        changes.push((block.first, true, block.size));
        changes.push((block.last + 1, false, block.size));
    }
    changes.sort_unstable();
    let (mut live, mut most) = (0, 0);
    for (_, starts, size) in changes {
        if starts {
            live += size;
            most = most.max(live);
        } else {
            live -= size;
        }
    }
    most
}

/// Shuffled orders tried when the ordered ones leave the arena too large.
const SHUFFLES: usize = 64;

/// The `attempt`-th order in which to place the blocks.
fn order(blocks: &[Block], attempt: usize) -> Option<Vec<usize>> {
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    let life = |b: usize| blocks[b].last - blocks[b].first;
    let largest = |&b: &usize| (std::cmp::Reverse(blocks[b].size), std::cmp::Reverse(life(b)), b);
    match attempt {
        0 => order.sort_by_key(largest),
        1 => order.sort_by_key(|&b| (std::cmp::Reverse(life(b)), std::cmp::Reverse(blocks[b].size), b)),
        2 => order.sort_by_key(|&b| (std::cmp::Reverse(blocks[b].size.saturating_mul(life(b) + 1)), b)),
        3 => order.sort_by_key(|&b| (blocks[b].first, std::cmp::Reverse(blocks[b].size), b)),
        _ if attempt < 4 + SHUFFLES => {
            order.sort_by_key(largest);
            perturb(&mut order, attempt as u64);
        }
        _ => return None,
    }
    Some(order)
}

/// Exchanges a few neighbours, the same ones every time.
fn perturb(order: &mut [usize], seed: u64) {
    let mut state = seed;
    for at in 1..order.len() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if state >> 62 == 0 {
            order.swap(at - 1, at);
        }
    }
}

fn best_fit(blocks: &[Block], order: &[usize]) -> (usize, Vec<usize>) {
    let mut starts = vec![0; blocks.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut size = 0;
    for &at in order {
        let block = &blocks[at];
        let mut end_of_last = 0;
        let mut best: Option<(usize, usize)> = None;
        // `placed` is kept by offset, so gaps are met in order.
        for &other in placed.iter().filter(|&&o| blocks[o].first <= block.last && block.first <= blocks[o].last) {
            if starts[other] >= end_of_last + block.size {
                let gap = starts[other] - end_of_last;
                if best.is_none_or(|(least, _)| gap < least) {
                    best = Some((gap, end_of_last));
                }
            }
            end_of_last = end_of_last.max(starts[other] + blocks[other].size);
        }
        starts[at] = best.map_or(end_of_last, |(_, offset)| offset);
        size = size.max(starts[at] + block.size);
        let position = placed.partition_point(|&o| starts[o] <= starts[at]);
        placed.insert(position, at);
    }
    (size, starts)
}

#[cfg(test)]
mod tests;
