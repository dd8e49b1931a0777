//! Which tile computes a problem.

use super::layout::Tile;
use super::problem::Problem;
use super::product::Memory;
use super::staging::Staging;

/// Bytes of shared memory that a block may have on every GPU from sm_80 on.
const SHARED: usize = 99 << 10;

/// Multiprocessors that work side by side on the GPU that choices are made for.
pub(super) const PROCESSORS: usize = 108;

const fn tile(rows: usize, columns: usize, inner: usize, warps: [usize; 2], stages: usize) -> Tile {
    Tile { rows, columns, inner, warps, stages }
}

/// Tiles for factors of 16 bits. Warps have 64 columns where that is possible: fragments of the right factor then serve
/// most products.
const NARROW: [Tile; 10] = [
    tile(128, 256, 32, [2, 4], 3),
    tile(128, 128, 64, [4, 2], 3),
    tile(128, 128, 32, [2, 2], 4),
    tile(128, 64, 32, [4, 1], 4),
    tile(64, 128, 32, [2, 2], 4),
    tile(64, 64, 32, [2, 2], 4),
    tile(128, 32, 32, [4, 1], 4),
    tile(32, 128, 32, [1, 4], 4),
    tile(16, 64, 64, [1, 4], 4),
    tile(64, 16, 64, [4, 1], 4),
];

/// Tiles for factors of which one has 32 bits in shared memory. Warps have 32 columns: fragments of a right factor whose
/// rows are columns are read word by word.
const WIDE: [Tile; 8] = [
    tile(128, 128, 32, [2, 4], 3),
    tile(128, 64, 32, [2, 2], 3),
    tile(64, 128, 32, [1, 4], 3),
    tile(64, 64, 32, [2, 2], 4),
    tile(128, 32, 32, [4, 1], 4),
    tile(32, 128, 32, [1, 4], 4),
    tile(16, 64, 32, [1, 4], 4),
    tile(64, 16, 32, [4, 1], 4),
];

/// The tile that is estimated to be fastest; `None` where none fits.
pub(super) fn choose(problem: &Problem) -> Option<Tile> {
    let wide = problem.factors.iter().any(|f| f.bytes() == 4);
    let tiles: &[Tile] = if wide { &WIDE } else { &NARROW };
    let fitting = tiles.iter().filter(|t| fits(problem, t) && words(problem, t) * 4 <= SHARED);
    // Of equals the first.
    fitting.min_by_key(|t| cost(problem, t)).copied()
}

/// Whether a tile can compute a problem.
pub(super) fn fits(problem: &Problem, tile: &Tile) -> bool {
    let warp = tile.warp();
    let whole = warp.iter().all(|n| n.is_multiple_of(16) && *n <= 64) && tile.stages >= 2;
    whole && problem.factors.iter().all(|f| f.fits(problem.unit, tile))
}

/// Words of shared memory.
pub(super) fn words(problem: &Problem, tile: &Tile) -> usize {
    let (_, ring) = Memory::sizes(problem, tile);
    let staged = Staging::new(problem, tile).words() * tile.warps[0] * tile.warps[1];
    (ring.words * ring.stages).max(staged)
}

/// Time in arbitrary units: rounds over the processors, each as long as a tile is large, and the longer the less a
/// tile's operands are used.
fn cost(problem: &Problem, tile: &Tile) -> usize {
    let [m, n, _, batch] = problem.extents();
    let blocks = m.div_ceil(tile.rows) * n.div_ceil(tile.columns) * batch;
    let area = tile.rows * tile.columns;
    // Uses of an operand's element, and as many as make a tile half as fast as the largest could be.
    let (uses, half) = (area / (tile.rows + tile.columns), 24);
    blocks.div_ceil(PROCESSORS) * area * (uses + half) / uses
}
