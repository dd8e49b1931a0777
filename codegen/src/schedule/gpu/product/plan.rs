//! The choice of a tile, and of the number of parts that long sums fall into.

use super::recognise::Product;
use super::tile::{TILES, Tile, WIDE_TILES};

/// Multiprocessors assumed.
const MULTIPROCESSORS: usize = 108;
/// Multiply-adds that a multiprocessor makes in the time that the device takes to write an element to memory and to read
/// it again.
const PART: usize = 52;
/// Multiply-adds that a multiprocessor makes while a kernel starts.
const START: usize = 1 << 18;
/// Least length of a part.
const LENGTH: usize = 128;
/// Most parts.
const PARTS: usize = 64;

/// How a product is divided among blocks. It depends on the product's extents and type only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) tile: Tile,
    /// Number of parts of the inner axis.
    pub(super) parts: usize,
    /// Inner positions of a part, whole tiles; the last may have fewer.
    pub(super) length: usize,
}

impl Plan {
    /// That with the least time in multiply-adds of a multiprocessor: those of the busiest one, at the tile's rate; and
    /// if there are several parts, their way through memory and the start of the second kernel. Among equals the first:
    /// fewer parts, larger tiles.
    pub(super) fn choose(product: &Product) -> Plan {
        let tiles: &[Tile] = if product.dtype.size() > 4 { &WIDE_TILES } else { &TILES };
        let counts = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n <= PARTS);
        let plans = counts.flat_map(|n| tiles.iter().map(move |t| (t, n))).filter_map(|(tile, count)| {
            let length = product.inner.div_ceil(count).next_multiple_of(tile.depth);
            let parts = product.inner.div_ceil(length.max(1)).max(1);
            (count == 1 || length >= LENGTH).then_some(Plan { tile: *tile, parts, length })
        });
        plans.min_by_key(|p| p.time(product)).expect("one part is always possible")
    }

    fn time(&self, product: &Product) -> usize {
        let t = &self.tile;
        let blocks = self.parts * product.batch * t.count(product.rows, product.columns);
        let busiest = blocks.div_ceil(MULTIPROCESSORS);
        let work = busiest * t.rows * t.columns * self.length.max(t.depth) * 100 / t.rate;
        let elements = product.batch * product.rows * product.columns;
        match self.parts {
            1 => work,
            n => work + n * elements * PART / MULTIPROCESSORS + START,
        }
    }
}
