//! How the rows of a batch fall into blocks, and blocks into micro-batches.
//!
//! Sums over rows are made block by block and the blocks' sums added in a balanced tree: adjacent pairs, then adjacent
//! pairs of those, an odd last one going on as it is. Micro-batches that are subtrees of it give the sums of the whole
//! batch bit for bit.

use std::ops::Range;

/// Most blocks of a batch.
pub const BLOCKS: usize = 8;

/// Rows of a block; the last may have fewer.
pub fn block_rows(rows: usize) -> usize {
    rows.div_ceil(BLOCKS).max(1)
}

/// Number of blocks of a batch.
pub fn blocks(rows: usize) -> usize {
    rows.div_ceil(block_rows(rows))
}

/// Blocks of each of `pieces` subtrees that cover a tree of `blocks` leaves, largest first; fewer pieces where there are
/// fewer blocks. Subtrees are halved from the largest on, so that at most two powers of two occur, but for the last.
pub fn subtrees(blocks: usize, pieces: usize) -> Vec<usize> {
    let mut trees = vec![blocks];
    while trees.len() < pieces.min(blocks) {
        let most = trees.iter().copied().max().unwrap_or(1);
        let at = trees.iter().position(|&t| t == most).expect("the greatest is one of them");
        let left = most.next_power_of_two() / 2;
        trees.splice(at..=at, [left, most - left]);
    }
    trees.retain(|&t| t > 0);
    trees
}

/// The rows of each micro-batch. `Exact` micro-batches are subtrees of the batch's tree.
pub fn micro_batches(rows: usize, pieces: usize, sums: Sums) -> Vec<Range<usize>> {
    let pieces = pieces.clamp(1, rows.max(1));
    match sums {
        Sums::Exact => {
            let each = block_rows(rows);
            let mut at = 0;
            let range = |b: usize| {
                let from = at;
                at = (from + b * each).min(rows);
                from..at
            };
            subtrees(blocks(rows), pieces).into_iter().map(range).collect()
        }
        Sums::Free => (0..pieces).map(|p| p * rows / pieces..(p + 1) * rows / pieces).collect(),
    }
}

/// Whether sums over rows have an order that depends on the batch only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Sums {
    /// They do: one device, two devices and pipelines give the same bits.
    #[default]
    Exact,
    /// They are made as is fastest.
    Free,
}

/// The order in which sums of pieces are added: pairs of positions, the sum taking the first one's place. `spans` are the
/// leaves of each piece.
pub fn additions(spans: &[usize]) -> Vec<(usize, usize)> {
    // Position and first leaf of what is there.
    let mut at = 0;
    let mut items: Vec<(usize, usize, usize)> = Vec::new();
    for (i, &span) in spans.iter().enumerate() {
        items.push((i, at, span));
        at += span;
    }
    let mut order = Vec::new();
    let mut width = 1;
    while width < at {
        let mut next: Vec<(usize, usize, usize)> = Vec::new();
        for (i, first, span) in items {
            match next.last_mut() {
                Some((left, start, covered))
                    if *start / (2 * width) == first / (2 * width)
                        && *start % (2 * width) == 0
                        && *covered <= width
                        && first == *start + width =>
                {
                    order.push((*left, i));
                    *covered += span;
                }
                Some(_) | None => next.push((i, first, span)),
            }
        }
        items = next;
        width *= 2;
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_nearly_equal_and_at_most_eight() {
        assert_eq!(
            [1, 5, 8, 9, 16, 20, 32].map(|b| (block_rows(b), blocks(b))),
            [(1, 1), (1, 5), (1, 8), (2, 5), (2, 8), (3, 7), (4, 8)]
        );
    }

    #[test]
    fn subtrees_are_halves_of_subtrees() {
        assert_eq!(subtrees(8, 2), [4, 4]);
        assert_eq!(subtrees(8, 3), [2, 2, 4]);
        assert_eq!(subtrees(8, 5), [1, 1, 2, 2, 2]);
        assert_eq!(subtrees(8, 8), [1; 8]);
        assert_eq!(subtrees(5, 2), [4, 1]);
        assert_eq!(subtrees(7, 3), [2, 2, 3]);
        assert_eq!(subtrees(1, 4), [1]);
    }

    /// The tree over single blocks, as a formula.
    fn formula(blocks: usize) -> String {
        let mut level: Vec<String> = (0..blocks).map(|b| b.to_string()).collect();
        while level.len() > 1 {
            level = level
                .chunks(2)
                .map(|p| if p.len() == 2 { format!("({}+{})", p[0], p[1]) } else { p[0].clone() })
                .collect();
        }
        level.remove(0)
    }

    #[test]
    fn pieces_that_are_subtrees_add_up_to_the_tree() {
        for blocks in 1..=8 {
            for pieces in 1..=blocks {
                let spans = subtrees(blocks, pieces);
                let mut first = 0;
                let mut sums: Vec<String> = Vec::new();
                for &span in &spans {
                    // A subtree's own formula, with the numbers of its blocks.
                    let own: String = formula(span)
                        .chars()
                        .map(|c| c.to_digit(10).map_or(c.to_string(), |d| (d as usize + first).to_string()))
                        .collect();
                    sums.push(own);
                    first += span;
                }
                for (left, right) in additions(&spans) {
                    sums[left] = format!("({}+{})", sums[left], sums[right]);
                }
                assert_eq!(sums[0], formula(blocks), "{blocks} blocks in {spans:?}");
            }
        }
    }

    #[test]
    fn micro_batches_cover_the_rows() {
        assert_eq!(micro_batches(16, 4, Sums::Exact), [0..4, 4..8, 8..12, 12..16]);
        assert_eq!(micro_batches(5, 2, Sums::Exact), [0..4, 4..5]);
        assert_eq!(micro_batches(20, 2, Sums::Exact), [0..12, 12..20]);
        assert_eq!(micro_batches(10, 3, Sums::Free), [0..3, 3..6, 6..10]);
    }
}
