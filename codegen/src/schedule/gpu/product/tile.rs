//! Extents of the tiles that thread blocks compute, and which threads compute what of one.

use intwain_ir::kernel::{Builder, Id, Reg};
use intwain_ir::scalar::Binary;

/// Neighbouring rows, and columns, of a thread.
pub(super) const GROUP: usize = 4;

/// A tile of the result, and how much of the inner axis is in shared memory at a time.
///
/// A thread has `thread_rows` × `thread_columns` elements in groups of 4 rows and 4 columns; the groups of all threads
/// lie side by side before a thread's next begins, so that threads of a warp read neighbouring groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) depth: usize,
    pub(super) thread_rows: usize,
    pub(super) thread_columns: usize,
    /// Multiply-adds per time, relative to the best tile, as a percentage.
    pub(super) rate: usize,
}

const fn tile(rows: usize, columns: usize, thread_rows: usize, thread_columns: usize, rate: usize) -> Tile {
    Tile { rows, columns, depth: 16, thread_rows, thread_columns, rate }
}

/// Tiles for elements of 4 bytes, larger ones first. The rates follow from the loads from shared memory that a
/// multiply-add needs and from the number of warps.
pub(super) const TILES: [Tile; 11] = [
    tile(128, 128, 8, 8, 100),
    tile(128, 64, 8, 8, 92),
    tile(64, 128, 8, 8, 92),
    tile(64, 64, 8, 4, 80),
    tile(128, 32, 8, 4, 70),
    tile(32, 64, 4, 4, 60),
    tile(128, 16, 4, 4, 50),
    tile(256, 8, 8, 4, 45),
    tile(16, 128, 4, 4, 50),
    tile(16, 32, 4, 4, 25),
    tile(4, 128, 4, 4, 25),
];

/// Tiles for elements of 8 bytes. What a thread has on its way must fit into registers beside its sums.
pub(super) const WIDE_TILES: [Tile; 4] = [
    tile(64, 64, 4, 4, 100),
    tile(32, 64, 4, 4, 90),
    tile(128, 16, 4, 4, 70),
    Tile { depth: 8, ..tile(4, 128, 4, 4, 40) },
];

impl Tile {
    /// Number of tiles of one product.
    pub(super) fn count(&self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }

    /// Threads of a block.
    pub(super) fn threads(&self) -> usize {
        (self.rows / self.thread_rows) * (self.columns / self.thread_columns)
    }

    /// Distance between a thread's groups of rows.
    pub(super) fn row_step(&self) -> usize {
        self.rows / (self.thread_rows / GROUP)
    }

    /// Distance between a thread's groups of columns.
    pub(super) fn column_step(&self) -> usize {
        self.columns / (self.thread_columns / GROUP)
    }

    /// The thread's first row and column in the tile. Eight threads (fewer in a narrow tile) beside each other share
    /// rows, so that a warp reads few different elements from shared memory.
    pub(super) fn thread(&self, b: &mut Builder) -> (Reg, Reg) {
        let (down, across) = (self.rows / self.thread_rows, self.columns / self.thread_columns);
        let mut wide = across.min(8);
        if 32 / wide > down {
            wide = 32 / down;
        }
        let high = 32 / wide;
        let thread = b.id(Id::Thread(0));
        let (warp, lane) = (divide(b, thread, 32), modulo(b, thread, 32));
        let (warps_across, mut row, mut column) = (across / wide, divide(b, lane, wide), modulo(b, lane, wide));
        let (down, across) = (divide(b, warp, warps_across), modulo(b, warp, warps_across));
        let (down, across) = (times(b, down, high), times(b, across, wide));
        row = b.binary(Binary::Add, down, row);
        column = b.binary(Binary::Add, across, column);
        (times(b, row, GROUP), times(b, column, GROUP))
    }
}

/// ⌊x / n⌋.
pub(super) fn divide(b: &mut Builder, x: Reg, n: usize) -> Reg {
    let n = b.index(n as i64);
    b.binary(Binary::FloorDiv, x, n)
}

/// x mod n.
pub(super) fn modulo(b: &mut Builder, x: Reg, n: usize) -> Reg {
    if n == 1 {
        return b.index(0);
    }
    let n = b.index(n as i64);
    b.binary(Binary::Mod, x, n)
}

/// x · n.
pub(super) fn times(b: &mut Builder, x: Reg, n: usize) -> Reg {
    let n = b.index(n as i64);
    b.binary(Binary::Mul, x, n)
}

/// x + n.
pub(super) fn plus(b: &mut Builder, x: Reg, n: i64) -> Reg {
    let n = b.index(n);
    b.binary(Binary::Add, x, n)
}
