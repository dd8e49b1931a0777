//! How the threads of a block share the work of bringing a tile of a factor into shared memory.
//!
//! A tile lies there as rows of the inner axis: element (outer, inner) is at `inner · pitch` + the place of `outer`, so
//! a thread reads its neighbouring rows or columns of the product as vectors. A row is in as many [`Parts`] as a group
//! has vectors, so that threads beside each other read vectors beside each other. In global memory the neighbours may be along either
//! axis. A *chunk* is what a thread brings at a time: neighbours along one of them, with one instruction where that is
//! proven to be aligned.

use super::recognise::{Factor, Product, runs_along, takes};
use super::tile::{GROUP, Tile, divide, modulo, times};
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Builder, Reg};
use intwain_ir::scalar::Binary;

/// The axis that the elements of a chunk are neighbours along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// Rows of the left factor, columns of the right one.
    Outer,
    /// The inner axis.
    Inner,
}

/// Which of the product's factors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// Where the vectors of groups are in a row of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parts {
    /// A group is a vector.
    One,
    /// A group is two vectors: the first is in the first half of a row, the second is so far behind it.
    Two(usize),
}

impl Parts {
    /// Elements of a vector.
    pub(super) fn lanes(self) -> usize {
        match self {
            Parts::One => GROUP,
            Parts::Two(_) => GROUP / 2,
        }
    }

    /// The place of an element of the outer axis. The places of two add up if one is a multiple of a group.
    pub(super) fn place(self, outer: usize) -> usize {
        match self {
            Parts::One => outer,
            Parts::Two(behind) => {
                let (group, i) = (outer / GROUP, outer % GROUP);
                group * GROUP / 2 + i % 2 + i / 2 * behind
            }
        }
    }

    /// The place of a multiple of a group.
    pub(super) fn of_groups(self, b: &mut Builder, outer: Reg) -> Reg {
        match self {
            Parts::One => outer,
            Parts::Two(_) => divide(b, outer, 2),
        }
    }

    /// The place of any element.
    fn emit(self, b: &mut Builder, outer: Reg) -> Reg {
        let Parts::Two(behind) = self else { return outer };
        let (group, i) = (divide(b, outer, GROUP), modulo(b, outer, GROUP));
        let (half, low) = (divide(b, i, 2), modulo(b, i, 2));
        let (group, half) = (times(b, group, GROUP / 2), times(b, half, behind));
        let place = b.binary(Binary::Add, group, half);
        b.binary(Binary::Add, place, low)
    }
}

/// The least number from `least` on that is `rest` modulo `of`.
fn congruent(least: usize, rest: usize, of: usize) -> usize {
    least + (rest + of - least % of) % of
}

/// How a tile of a factor is brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) along: Along,
    /// Elements of a chunk.
    pub(super) chunk: usize,
    /// Elements of a chunk that are taken at once: all or one.
    pub(super) width: usize,
    /// Elements of the outer axis in a tile.
    pub(super) outer: usize,
    /// Distance in shared memory of neighbours along the inner axis.
    pub(super) pitch: usize,
    /// How a row of the tile is divided.
    pub(super) parts: Parts,
    /// Threads that bring something.
    pub(super) threads: usize,
    /// A thread's chunks, from its first on: distance along the outer and the inner axis. Chunks of one outer position
    /// are beside each other.
    pub(super) chunks: Vec<(usize, usize)>,
    depth: usize,
}

impl Side {
    pub(super) fn factor(self, product: &Product) -> &Factor {
        match self {
            Side::Left => &product.left,
            Side::Right => &product.right,
        }
    }

    /// Number of rows of the left factor or columns of the right one.
    pub(super) fn extent(self, product: &Product) -> usize {
        match self {
            Side::Left => product.rows,
            Side::Right => product.columns,
        }
    }
}

impl Share {
    pub(super) fn new(product: &Product, side: Side, tile: &Tile) -> Share {
        let factor = side.factor(product);
        let nest = &product.nest;
        let runs = |axes: &[Axis]| axes.last().is_some_and(|a| runs_along(nest, factor.node, *a));
        let wide = |axes: &[Axis]| {
            let fits = |a: &Axis| nest.extent(*a).is_multiple_of(GROUP) && takes(nest, factor.node, *a, GROUP);
            runs(axes) && axes.last().is_some_and(fits)
        };
        let (along, width) = match (wide(&factor.outer), wide(&factor.inner)) {
            (true, _) => (Along::Outer, GROUP),
            (false, true) => (Along::Inner, GROUP),
            (false, false) if !runs(&factor.outer) && runs(&factor.inner) => (Along::Inner, 1),
            (false, false) => (Along::Outer, 1),
        };
        let outer = match side {
            Side::Left => tile.rows,
            Side::Right => tile.columns,
        };
        let share = Share::of(along, width, outer, tile.depth, tile.threads());
        if product.dtype.size() > 4 { share.in_halves() } else { share }
    }

    /// The same with rows in halves, for elements of 8 bytes. Banks repeat after 16 of them, and that many are written or
    /// read at a time: eight vectors of one half of a row, or of several rows if they are short; or single elements,
    /// neighbours and so eight in either half; or, of a thread's neighbours along the inner axis, elements of eight outer
    /// positions in each of two rows that are 4 apart.
    fn in_halves(self) -> Share {
        let half = self.outer / 2;
        let (behind, pitch) = match self.along {
            Along::Outer => {
                let behind = congruent(half, 8, 16);
                (behind, congruent(behind + half, if self.outer < 16 { 10 } else { 8 }, 16))
            }
            Along::Inner => {
                let behind = congruent(half, 4, 16);
                (behind, congruent(behind + half, 2, 4))
            }
        };
        Share { parts: Parts::Two(behind), pitch, ..self }
    }

    fn of(along: Along, width: usize, outer: usize, depth: usize, threads: usize) -> Share {
        let parts = Parts::One;
        match along {
            Along::Outer => {
                let across = outer / width;
                let (columns, down) = if threads >= across { (1, threads / across) } else { (across / threads, 1) };
                let steps = depth.div_ceil(down);
                let chunks = (0..columns).flat_map(|c| (0..steps).map(move |s| (c * threads * width, s * down)));
                let threads = threads.min(across * depth);
                Share {
                    along,
                    chunk: width,
                    width,
                    outer,
                    pitch: outer,
                    parts,
                    threads,
                    chunks: chunks.collect(),
                    depth,
                }
            }
            Along::Inner => {
                // Two chunks of each outer position side by side: whole sectors of memory are read, and with the pitch
                // chosen, 4 modulo 8, the writes of 32 threads fall into different banks. A warp does not go on to the
                // next pair.
                let pairs = depth / (2 * GROUP);
                let (rows, down) = match threads / (2 * outer) {
                    0 => (2 * outer / threads, 1),
                    _ if outer < 16 => (1, 1),
                    n => (1, n.min(pairs)),
                };
                let steps = pairs.div_ceil(down);
                let chunks = (0..rows).flat_map(|r| (0..steps).map(move |s| (r * threads / 2, s * down * 2 * GROUP)));
                let threads = threads.min(2 * outer * down);
                let pitch = outer + if outer.is_multiple_of(8) { 4 } else { 8 };
                Share { along, chunk: GROUP, width, outer, pitch, parts, threads, chunks: chunks.collect(), depth }
            }
        }
    }

    /// The thread's first position in the tile: along the outer and the inner axis.
    pub(super) fn place(&self, b: &mut Builder, thread: Reg) -> (Reg, Reg) {
        match self.along {
            Along::Outer => {
                let across = self.outer / self.chunk;
                let (o, i) = if self.threads >= across {
                    (modulo(b, thread, across), divide(b, thread, across))
                } else {
                    (thread, b.index(0))
                };
                (times(b, o, self.chunk), i)
            }
            Along::Inner => {
                let (low, row) = (modulo(b, thread, 2), divide(b, thread, 2));
                let (row, high) = if self.threads >= 2 * self.outer {
                    (modulo(b, row, self.outer), divide(b, row, self.outer))
                } else {
                    (row, b.index(0))
                };
                let (low, high) = (times(b, low, GROUP), times(b, high, 2 * GROUP));
                (row, b.binary(Binary::Add, low, high))
            }
        }
    }

    /// Where the thread's first element goes in the tile.
    pub(super) fn target(&self, b: &mut Builder, (outer, inner): (Reg, Reg)) -> Reg {
        let inner = times(b, inner, self.pitch);
        let outer = self.parts.emit(b, outer);
        b.binary(Binary::Add, inner, outer)
    }

    /// Distance of a chunk's element in shared memory from the thread's first.
    pub(super) fn offset(&self, (outer, inner): (usize, usize), element: usize) -> i64 {
        let at = match self.along {
            Along::Outer => inner * self.pitch + self.parts.place(outer + element),
            Along::Inner => (inner + element) * self.pitch + self.parts.place(outer),
        };
        at as i64
    }

    /// Elements of a tile in shared memory.
    pub(super) fn elements(&self) -> usize {
        self.depth * self.pitch
    }
}
