//! Bringing tiles of the factors: from global memory to registers, and from there to shared memory.

use super::recognise::{Factor, Product};
use super::share::{Along, Share, Side};
use super::tile::{Tile, divide, modulo, plus};
use crate::schedule::gpu::launch::digits;
use crate::schedule::loops::{Bound, Loops};
use crate::schedule::nest::Op;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Block, Inst, Place, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar};
use smallvec::SmallVec;

/// One factor's part of the main loop.
pub(super) struct Fetch<'p> {
    product: &'p Product,
    factor: &'p Factor,
    side: Side,
    share: Share,
    depth: usize,
    /// The thread's first position along the inner axis in a tile.
    inner: Reg,
    outer: Vec<Outer>,
    /// Where in a stage of shared memory the thread's first element goes.
    target: Reg,
    /// Whether the thread brings anything, where some don't.
    takes_part: Option<Reg>,
}

/// Outer positions of a thread.
struct Outer {
    /// Distance from the thread's first.
    offset: usize,
    axes: Vec<(Axis, Bound)>,
    /// Whether they exist, where that is not certain.
    limit: Option<Reg>,
}

/// The thread's first inner position in a tile.
enum Inner {
    /// The number of the inner axes.
    Number(Reg),
    /// The positions of all axes but the innermost, which are the tile's, and the position of the innermost.
    Innermost(Vec<(Axis, Bound)>, Reg),
}

/// The elements of a chunk.
pub(super) type Chunk = Vec<Reg>;

impl<'p> Fetch<'p> {
    /// Prepares the thread for the tile that begins at `first` along the outer axis. Its elements go to `start` of a
    /// stage of shared memory.
    pub(super) fn new(
        l: &mut Loops<'_>,
        product: &'p Product,
        (side, tile, share): (Side, &Tile, Share),
        (thread, first, start): (Reg, Reg, usize),
    ) -> Fetch<'p> {
        let place = share.place(&mut l.b, thread);
        let target = share.target(&mut l.b, place);
        let target = plus(&mut l.b, target, start as i64);
        let takes_part = (share.threads < tile.threads()).then(|| below(l, thread, share.threads));
        let outer = l.b.binary(Binary::Add, first, place.0);
        let (factor, depth) = (side.factor(product), tile.depth);
        let mut f =
            Fetch { product, factor, side, share, depth, inner: place.1, outer: Vec::new(), target, takes_part };
        let mut offsets: Vec<usize> = f.share.chunks.iter().map(|c| c.0).collect();
        offsets.dedup();
        f.outer = offsets.into_iter().map(|o| f.outer(l, outer, o)).collect();
        f
    }

    fn outer(&self, l: &mut Loops<'_>, first: Reg, offset: usize) -> Outer {
        let extent = self.side.extent(self.product);
        let at = plus(&mut l.b, first, offset as i64);
        let exist = (!extent.is_multiple_of(self.share.outer)).then(|| below(l, at, extent));
        let limit = both(l, self.takes_part, exist);
        let width = if self.share.along == Along::Outer { self.share.width } else { 1 };
        let axes = places(l, at, &self.factor.outer, width);
        Outer { offset, axes, limit }
    }

    /// Elements of a chunk that have an inner position of their own to be counted from the chunk's.
    fn singles(&self) -> usize {
        if self.share.along == Along::Inner { self.share.chunk / self.share.width } else { 1 }
    }

    /// The thread's chunks of the tile that begins at `k` of the inner axis, of which there is `end`; `None` if the tile
    /// surely lies inside.
    pub(super) fn load(&self, l: &mut Loops<'_>, k: Reg, end: Option<Reg>) -> Vec<Chunk> {
        let depth = l.b.depth();
        let tile = end.filter(|_| self.whole()).map(|end| l.b.compare(Compare::Lt, k, end));
        let inner = self.inner(l, k);
        // Constants are added last, so that they become displacements.
        let first = l.b.binary(Binary::Add, k, self.inner);
        let mut chunks = Vec::new();
        for outer in &self.outer {
            l.push_limited_at(0, outer.axes.clone(), outer.limit);
            if let Inner::Innermost(around, _) = &inner {
                l.push_limited_at(depth, around.clone(), tile);
            }
            for &(_, i) in self.share.chunks.iter().filter(|c| c.0 == outer.offset) {
                let mut chunk = Chunk::new();
                for element in 0..self.singles() {
                    let at = (i + element) as i64;
                    let ragged = end.filter(|_| !self.whole()).map(|end| {
                        let k = plus(&mut l.b, first, at);
                        l.b.compare(Compare::Lt, k, end)
                    });
                    // A limit says something of what depends on its scope's axes only.
                    let alone = outer.limit.filter(|_| outer.axes.is_empty());
                    let limit = both(l, alone, tile.or(ragged));
                    chunk.extend(self.elements(l, (&inner, at), limit, ragged));
                }
                chunks.push(chunk);
            }
            if matches!(inner, Inner::Innermost(..)) {
                l.pop_scope();
            }
            l.pop_scope();
        }
        chunks
    }

    /// Whether the inner axis is a whole number of tiles.
    fn whole(&self) -> bool {
        self.product.inner.is_multiple_of(self.depth)
    }

    /// How the inner positions of the tile at `k` are found. If no tile crosses the positions of the axes around the
    /// innermost, those are found once for all.
    fn inner(&self, l: &mut Loops<'_>, k: Reg) -> Inner {
        let nest = &self.product.nest;
        let whole = self
            .factor
            .inner
            .split_last()
            .filter(|(last, around)| !around.is_empty() && nest.extent(**last).is_multiple_of(self.depth));
        let Some((&last, around)) = whole else { return Inner::Number(l.b.binary(Binary::Add, k, self.inner)) };
        let extent = nest.extent(last);
        let number = divide(&mut l.b, k, extent);
        let around = digits(&mut l.b, nest, number, around, 1);
        let start = modulo(&mut l.b, k, extent);
        Inner::Innermost(around, l.b.binary(Binary::Add, start, self.inner))
    }

    /// Elements of the outer positions bound, at an inner position. Where `ragged` fails they are zeros
    /// that change no sum.
    fn elements(
        &self,
        l: &mut Loops<'_>,
        (inner, at): (&Inner, i64),
        limit: Option<Reg>,
        ragged: Option<Reg>,
    ) -> SmallVec<[Reg; 8]> {
        let axes = &self.factor.inner;
        let (first, axes) = match inner {
            Inner::Number(first) => (*first, &axes[..]),
            Inner::Innermost(_, first) => (*first, &axes[axes.len() - 1..]),
        };
        let width = if self.share.along == Along::Inner { self.share.width } else { 1 };
        let number = plus(&mut l.b, first, at);
        let bounds = places(l, number, axes, width);
        l.push_limited(bounds, limit);
        let mut v = l.wide(self.factor.node, self.share.width).regs;
        l.pop_scope();
        if let (Some(inside), Some(zero)) = (ragged, self.ragged_fill()) {
            let zero = l.b.constant(zero);
            v.iter_mut().for_each(|x| *x = l.b.select(inside, *x, zero));
        }
        v
    }

    /// What stands for elements beyond the inner axis, if a load doesn't give it anyway. The product of both factors'
    /// is −0, which changes no sum, not even one that is −0.
    fn ragged_fill(&self) -> Option<Scalar> {
        let dtype = self.product.dtype;
        match self.side {
            Side::Left if dtype.is_float() => Some(Scalar::from_f64(dtype, -0.0)),
            Side::Left | Side::Right => {
                let node = &self.product.nest.nodes[self.factor.node];
                let limited = self.factor.inner.iter().any(|a| node.free & (1 << a.0) != 0);
                let plain = match &node.op {
                    Op::Load { fill, .. } => limited && fill.bits() == 0,
                    _ => false,
                };
                (!plain).then(|| Scalar::zero(dtype))
            }
        }
    }

    /// Writes chunks to the stage that begins at `stage`.
    pub(super) fn store(&self, l: &mut Loops<'_>, shared: Place, stage: Reg, chunks: &[Chunk]) {
        let index = l.b.binary(Binary::Add, self.target, stage);
        if self.takes_part.is_some() {
            l.b.open_block();
        }
        let dtype = self.product.dtype;
        let lanes = match self.share.along {
            Along::Outer => self.share.chunk.min(16 / dtype.size()),
            Along::Inner => 1,
        };
        for (&chunk, regs) in self.share.chunks.iter().zip(chunks) {
            for (i, regs) in regs.chunks(lanes).enumerate() {
                let ty = RegType { dtype, lanes: lanes as u8 };
                let x = match regs {
                    [x] => *x,
                    _ => l.b.inst(ty, Inst::Pack(SmallVec::from_slice(regs))),
                };
                l.b.store(shared, index, self.share.offset(chunk, i * lanes), x);
            }
        }
        if let Some(takes_part) = self.takes_part {
            let then = l.b.take_block();
            l.b.conditional(takes_part, (then, &[]), (Block::default(), &[]));
        }
    }
}

/// The positions of axes from their number, which counts single positions. The innermost has `width` of them, the first
/// a multiple of `width`.
pub(super) fn places(l: &mut Loops<'_>, number: Reg, axes: &[Axis], width: usize) -> Vec<(Axis, Bound)> {
    let mut bounds = digits(&mut l.b, l.nest, number, axes, 1);
    if let Some((axis, bound)) = bounds.first_mut() {
        let last = l.nest.extent(*axis) as i64 - 1;
        *bound = Bound::lanes(bound.base, width, (0, last)).multiple_of(width as i64);
    }
    bounds
}

pub(super) fn below(l: &mut Loops<'_>, x: Reg, n: usize) -> Reg {
    let n = l.b.index(n as i64);
    l.b.compare(Compare::Lt, x, n)
}

fn both(l: &mut Loops<'_>, x: Option<Reg>, y: Option<Reg>) -> Option<Reg> {
    match (x, y) {
        (Some(x), Some(y)) => Some(l.b.binary(Binary::And, x, y)),
        (x, y) => x.or(y),
    }
}
