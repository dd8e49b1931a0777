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
/// Multiply-adds that a multiprocessor makes while a tile of the factors is on its way, for one inner position of it.
const LATENCY: usize = 4800;
/// With less tiles than this, sums may be in parts.
const FEW: usize = MULTIPROCESSORS / 8;
/// Sums of this length may be in parts.
const LONG: usize = 1 << 13;
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
    /// One part, in tiles of the least time, unless they are far too few and sums are long: if more parts take half the
    /// time at most, and there are less than [`FEW`] tiles or [`LONG`] inner positions.
    ///
    /// Time is counted in multiply-adds of a multiprocessor: those of the busiest one, at the tile's rate, or the tiles'
    /// way to it, if that is longer; and for several parts their way through memory and the start of the second kernel.
    /// Among equals the plan with the fewest multiply-adds in all; more parts have to take a tenth less.
    pub(super) fn choose(product: &Product) -> Plan {
        let tiles: &[Tile] = if product.dtype.size() > 4 { &WIDE_TILES } else { &TILES };
        let best = |count: usize| {
            let plans = tiles.iter().filter_map(|t| Plan::new(product, t, count));
            plans.min_by_key(|p| (p.time(product), p.work(product)))
        };
        let one = best(1).expect("one part is always possible");
        if one.blocks(product) >= FEW && product.inner < LONG {
            return one;
        }
        let several = (1..=PARTS.ilog2()).filter_map(|n| best(1 << n));
        // Each doubling has to be worth the memory.
        let several = several.reduce(|p, q| if 10 * q.time(product) < 9 * p.time(product) { q } else { p });
        several.filter(|p| 2 * p.time(product) <= one.time(product)).unwrap_or(one)
    }

    /// `None` if the parts would be too short.
    pub(super) fn new(product: &Product, tile: &Tile, count: usize) -> Option<Plan> {
        let length = product.inner.div_ceil(count).next_multiple_of(tile.depth);
        let parts = product.inner.div_ceil(length.max(1)).max(1);
        (count == 1 || length >= LENGTH).then_some(Plan { tile: *tile, parts, length })
    }

    fn blocks(&self, product: &Product) -> usize {
        self.parts * product.batch * self.tile.count(product.rows, product.columns)
    }

    /// Multiply-adds of a number of blocks for one inner position.
    fn work_of(&self, blocks: usize) -> usize {
        blocks * self.tile.rows * self.tile.columns * 100 / self.tile.rate
    }

    fn work(&self, product: &Product) -> usize {
        self.work_of(self.blocks(product)) * self.length
    }

    fn time(&self, product: &Product) -> usize {
        let busiest = self.blocks(product).div_ceil(MULTIPROCESSORS);
        let work = self.work_of(busiest).max(LATENCY) * self.length.max(self.tile.depth);
        let elements = product.batch * product.rows * product.columns;
        match self.parts {
            1 => work,
            n => work + n * elements * PART / MULTIPROCESSORS + START,
        }
    }
}
