//! Filling a stage of shared memory with a step's operands.
//!
//! A thread fills the same granules of the plane in every step. What depends on outer positions alone is computed once;
//! a step adds what depends on its inner positions.

use super::layout::{CHUNK_WORDS, Role, Tile, halved, low_bits, times};
use super::place::positions_at;
use super::problem::{Along, Factor, Filling, Problem, active};
use crate::schedule::loops::{Bound, Loops};
use crate::schedule::nest::range;
use intwain_ir::DType;
use intwain_ir::compute::{Atom, Axis, Guard, Index};
use intwain_ir::kernel::{Block, Id, Inst, Place, Reg, RegType, Stmt};
use intwain_ir::scalar::{Binary, Compare, Scalar};
use smallvec::SmallVec;

/// What threads do to fill a plane.
pub(super) struct Filler<'p> {
    problem: &'p Problem,
    factor: &'p Factor,
    /// Whether this thread takes part; `None` if all do.
    takes_part: Option<Reg>,
    pieces: Vec<Piece>,
    /// Inner positions of a step.
    step: usize,
    form: Form,
}

/// A granule.
struct Piece {
    /// Word in the stage, register and constant.
    word: (Reg, i64),
    /// First outer position.
    outer: (Reg, i64),
    /// First inner position less that of the step.
    inner: (Reg, i64),
    /// What of address and guards depends on outer positions alone.
    outside: Outside,
}

#[derive(Default)]
struct Outside {
    bounds: Vec<(Axis, Bound)>,
    address: Option<(Reg, i64)>,
    /// Whether the outer positions exist and their guards hold.
    holds: Option<Reg>,
    /// Parts of guards.
    parts: Vec<Reg>,
}

/// An index or guard index as a sum.
struct Parts {
    outer: Index,
    inner: Index,
}

/// How addresses are formed.
enum Form {
    /// Sums of what depends on outer and on inner positions.
    Sums { operand: usize, at: Parts, outer_guards: Vec<Guard>, guards: Vec<(Parts, Guard)>, elements: usize },
    /// In one go.
    Mixed { operand: usize, at: Index, guards: Vec<Guard>, elements: usize },
    /// Elements are computed.
    Computed,
}

impl<'p> Filler<'p> {
    /// Prepares the filling of a plane that begins at word `start` of a stage, for a block whose first outer position is
    /// `first`.
    pub(super) fn new(
        l: &mut Loops<'_>,
        problem: &'p Problem,
        factor: &'p Factor,
        tile: &Tile,
        start: usize,
        first: Reg,
    ) -> Filler<'p> {
        let plane = factor.plane(problem.unit, tile);
        let granule = factor.granule();
        let (threads, across) = (tile.threads(), plane.pitch / granule);
        let granules = plane.rows * across;
        let thread = l.b.id(Id::Thread(0));
        let takes_part = active(granules, tile).map(|n| {
            let n = l.b.index(n as i64);
            l.b.compare(Compare::Lt, thread, n)
        });
        let per_row = across.div_ceil(threads);
        let column = low_bits(&mut l.b, thread, across.min(threads));
        let row = if per_row > 1 { l.b.index(0) } else { halved(&mut l.b, thread, across.trailing_zeros()) };
        let down = (threads / across).max(1);
        let elements = granule * 4 / factor.bytes();
        let mut filler = Filler {
            problem,
            factor,
            takes_part,
            pieces: Vec::new(),
            step: tile.inner,
            form: Form::new(problem, factor),
        };
        for i in 0..granules.div_ceil(threads) {
            let (rows, columns) = (i / per_row * down, i % per_row * threads);
            let place = (rows, columns * granule);
            let column_word = times(&mut l.b, column, granule);
            let word = if rows.is_multiple_of(plane.swizzle.period()) && columns == 0 {
                (plane.emit(&mut l.b, row, column_word), (rows * plane.pitch + start) as i64)
            } else {
                let (more, words) = (l.b.index(place.0 as i64), l.b.index(place.1 as i64));
                let (row, word) = (l.b.binary(Binary::Add, row, more), l.b.binary(Binary::Add, column_word, words));
                (plane.emit(&mut l.b, row, word), start as i64)
            };
            let element = times(&mut l.b, column, elements);
            let (in_row, of_row) = ((element, (columns * elements) as i64), (row, rows as i64));
            let ((outer, shift), inner) = match factor.along {
                Along::Inner => (of_row, in_row),
                Along::Outer => (in_row, of_row),
            };
            let outer = (l.b.binary(Binary::Add, first, outer), shift);
            // One past the last outer position of the tile that any thread has here.
            let reach = match factor.along {
                Along::Inner => rows + down,
                Along::Outer => columns * elements + across.min(threads) * elements,
            };
            let outside = filler.outside(l, outer, reach, tile);
            filler.pieces.push(Piece { word, outer, inner, outside });
        }
        filler
    }

    /// What can be said of a granule before the first step.
    fn outside(&self, l: &mut Loops<'_>, outer: (Reg, i64), reach: usize, tile: &Tile) -> Outside {
        let (problem, factor) = (self.problem, self.factor);
        let (extent, size) = match factor.role {
            Role::Left => (problem.extents()[0], tile.rows),
            Role::Right => (problem.extents()[1], tile.columns),
        };
        // All tiles but the last are whole.
        let last = extent % size;
        let tail = (last != 0 && reach > last).then(|| below(l, outer, extent));
        let bounds = positions_at(&mut l.b, &problem.nest, &factor.outer, outer);
        let mut outside = Outside { bounds, holds: tail, ..Outside::default() };
        if let Form::Sums { at, outer_guards, guards, .. } = &self.form {
            l.push_scope(outside.bounds.clone());
            outside.address = Some(l.address(&at.outer));
            let held = l.all_hold(outer_guards);
            outside.holds = and(l, outside.holds, held);
            outside.parts = guards
                .iter()
                .map(|(parts, g)| {
                    let part = parts.outer.clone().plus(-g.lo);
                    narrow(l, &part)
                })
                .collect();
            l.pop_scope();
        }
        outside
    }

    /// Whether inner positions of a step that begins at `first` may be past the end.
    fn is_ragged(&self, l: &Loops<'_>, first: Reg) -> bool {
        let extent = self.problem.extents()[2];
        match l.b.constant_of(first) {
            Some(first) => first.to_i64() as usize + self.step > extent,
            None => !extent.is_multiple_of(self.step),
        }
    }

    /// Fills the plane of the stage at word `stage` with the step that begins at inner position `first`.
    pub(super) fn emit(&self, l: &mut Loops<'_>, ring: Place, stage: Reg, first: Reg) {
        let Some(takes_part) = self.takes_part else { return self.all(l, ring, stage, first) };
        l.b.open_block();
        l.push_scope(Vec::new());
        self.all(l, ring, stage, first);
        l.pop_scope();
        let then = l.b.take_block();
        l.b.conditional(takes_part, (then, &[]), (Block::default(), &[]));
    }

    fn all(&self, l: &mut Loops<'_>, ring: Place, stage: Reg, first: Reg) {
        let mut at = 0;
        while at < self.pieces.len() {
            let inner = self.pieces[at].inner;
            let same = self.pieces[at..].iter().take_while(|p| p.inner == inner).count();
            self.group(l, ring, stage, (first, inner), at..at + same);
            at += same;
        }
    }

    /// Granules at one inner position.
    fn group(
        &self,
        l: &mut Loops<'_>,
        ring: Place,
        stage: Reg,
        (first, inner): (Reg, (Reg, i64)),
        which: std::ops::Range<usize>,
    ) {
        let problem = self.problem;
        let inner = (l.b.binary(Binary::Add, first, inner.0), inner.1);
        let ragged = self.is_ragged(l, first);
        let tail = ragged.then(|| below(l, inner, problem.extents()[2]));
        if let Form::Computed = self.form {
            return which.for_each(|i| self.computed(l, ring, stage, i, inner, tail));
        }
        let bounds = positions_at(&mut l.b, &problem.nest, &problem.inner, inner);
        l.push_scope(bounds);
        let (mut address, mut parts) = (None, Vec::new());
        if let Form::Sums { at, guards, .. } = &self.form {
            address = Some(l.address(&at.inner));
            parts = guards.iter().map(|(parts, _)| narrow(l, &parts.inner)).collect();
        }
        for piece in &self.pieces[which] {
            let (from, guard) = match address {
                Some(inside) => self.summed(l, piece, inside, &parts),
                None => self.mixed(l, piece),
            };
            let guard = and(l, guard, tail);
            self.copy(l, ring, (stage, piece.word), from, guard);
        }
        l.pop_scope();
    }

    fn summed(&self, l: &mut Loops<'_>, piece: &Piece, inside: (Reg, i64), parts: &[Reg]) -> ((Reg, i64), Option<Reg>) {
        let Form::Sums { guards, .. } = &self.form else { unreachable!("sums have parts") };
        let outside = piece.outside.address.expect("sums have an outer part");
        let from = (l.b.binary(Binary::Add, outside.0, inside.0), outside.1 + inside.1);
        let mut guard = piece.outside.holds;
        for ((outer, inner), (_, g)) in piece.outside.parts.iter().zip(parts).zip(guards) {
            // As unsigned numbers, one comparison does for both bounds.
            let x = l.b.binary(Binary::Add, *outer, *inner);
            let extent = l.b.constant(Scalar::from_i64(DType::U32, g.hi - g.lo));
            let holds = l.b.compare(Compare::Lt, x, extent);
            guard = and(l, guard, Some(holds));
        }
        (from, guard)
    }

    fn mixed(&self, l: &mut Loops<'_>, piece: &Piece) -> ((Reg, i64), Option<Reg>) {
        let Form::Mixed { at, guards, .. } = &self.form else { unreachable!("addresses are sums or mixed") };
        l.push_scope(piece.outside.bounds.clone());
        let from = l.address(at);
        let guard = l.all_hold(guards);
        l.pop_scope();
        (from, and(l, guard, piece.outside.holds))
    }

    fn copy(&self, l: &mut Loops<'_>, ring: Place, to: (Reg, (Reg, i64)), from: (Reg, i64), guard: Option<Reg>) {
        let (operand, elements) = match &self.form {
            Form::Sums { operand, elements, .. } | Form::Mixed { operand, elements, .. } => (*operand, *elements),
            Form::Computed => unreachable!("computed elements are stored"),
        };
        let (stage, word) = to;
        let to_index = l.b.binary(Binary::Add, stage, word.0);
        l.b.push(Stmt::AsyncCopy {
            to: ring,
            to_index,
            to_offset: word.1,
            from: l.operands[operand],
            from_index: from.0,
            from_offset: from.1,
            bytes: (elements * self.factor.bytes()) as u8,
            guard,
        });
    }

    /// Computes the elements of a word and stores it.
    fn computed(&self, l: &mut Loops<'_>, ring: Place, stage: Reg, i: usize, inner: (Reg, i64), tail: Option<Reg>) {
        let (problem, factor, piece) = (self.problem, self.factor, &self.pieces[i]);
        let count = 4 / factor.bytes();
        let mut lanes: SmallVec<[Reg; 4]> = SmallVec::new();
        for e in 0..count as i64 {
            let (mut outer, mut at) = (piece.outer, inner);
            match factor.along {
                Along::Inner => at.1 += e,
                Along::Outer => outer.1 += e,
            }
            let exists = self.exists(l, outer, at, (piece.outside.holds, tail), e);
            let mut bounds = positions_at(&mut l.b, &problem.nest, &factor.outer, outer);
            bounds.extend(positions_at(&mut l.b, &problem.nest, &problem.inner, at));
            l.push_limited(bounds, exists);
            let x = l.wide(factor.node, 1).regs[0];
            l.pop_scope();
            let zero = l.b.constant(Scalar::zero(factor.dtype));
            lanes.push(exists.map_or(x, |c| l.b.select(c, x, zero)));
        }
        let x = match count {
            1 => lanes[0],
            _ => l.b.inst(RegType { dtype: factor.dtype, lanes: 2 }, Inst::Pack(lanes)),
        };
        let word = l.b.inst(RegType::scalar(DType::U32), Inst::Bits(x));
        let index = l.b.binary(Binary::Add, stage, piece.word.0);
        l.b.store(ring, index, piece.word.1, word);
    }

    /// Whether element e of a word exists; for the first one that is known.
    fn exists(
        &self,
        l: &mut Loops<'_>,
        outer: (Reg, i64),
        inner: (Reg, i64),
        (holds, tail): (Option<Reg>, Option<Reg>),
        e: i64,
    ) -> Option<Reg> {
        let extents = self.problem.extents();
        let (mut holds, mut tail) = (holds, tail);
        if e > 0 {
            match self.factor.along {
                Along::Inner => tail = tail.map(|_| below(l, inner, extents[2])),
                Along::Outer => {
                    let outer_extent = match self.factor.role {
                        Role::Left => extents[0],
                        Role::Right => extents[1],
                    };
                    holds = holds.map(|_| below(l, outer, outer_extent));
                }
            }
        }
        and(l, holds, tail)
    }
}

impl Form {
    fn new(problem: &Problem, factor: &Factor) -> Form {
        let Filling::Copied { operand, at, guards, elements } = &factor.filling else { return Form::Computed };
        debug_assert!(elements * factor.bytes() <= 4 * CHUNK_WORDS);
        let (operand, elements) = (*operand, *elements);
        let inner = problem.inner.iter().fold(0u64, |s, a| s | 1 << a.0);
        let (mut outer_guards, mut both) = (Vec::new(), Vec::new());
        for g in guards {
            if g.index.axes() & inner == 0 {
                outer_guards.push(g.clone());
                continue;
            }
            match parts(&g.index, inner).filter(|_| is_narrow(problem, &g.index)) {
                Some(p) => both.push((p, g.clone())),
                None => return Form::Mixed { operand, at: at.clone(), guards: guards.clone(), elements },
            }
        }
        match parts(at, inner) {
            Some(at) => Form::Sums { operand, at, outer_guards, guards: both, elements },
            None => Form::Mixed { operand, at: at.clone(), guards: guards.clone(), elements },
        }
    }
}

/// An index as the sum of what depends on inner positions alone and what doesn't; the constant goes with the latter.
fn parts(index: &Index, inner: u64) -> Option<Parts> {
    let mut p = Parts { outer: Index::constant(index.offset()), inner: Index::constant(0) };
    for t in index.terms() {
        let (axes, one) = match &t.atom {
            Atom::Axis(a) => (1 << a.0, Index::axis(*a)),
            Atom::FloorDiv(..) | Atom::Mod(..) => return None,
        };
        let to = if axes & inner != 0 { &mut p.inner } else { &mut p.outer };
        *to = to.clone() + one.times(t.coeff);
    }
    Some(p)
}

/// Whether all values of an index have 31 bits.
fn is_narrow(problem: &Problem, index: &Index) -> bool {
    let (lo, hi) = range(index, &|a| (0, problem.nest.extent(a) as i64 - 1));
    lo > -(1 << 30) && hi < 1 << 30
}

/// An index as u32, which wraps.
fn narrow(l: &mut Loops<'_>, index: &Index) -> Reg {
    let (reg, offset) = l.address(index);
    let reg = l.b.cast(DType::U32, reg);
    let offset = l.b.constant(Scalar::from_i64(DType::U32, offset));
    l.b.binary(Binary::Add, reg, offset)
}

/// Whether a position is below an extent.
fn below(l: &mut Loops<'_>, (at, shift): (Reg, i64), extent: usize) -> Reg {
    let bound = l.b.index(extent as i64 - shift);
    l.b.compare(Compare::Lt, at, bound)
}

fn and(l: &mut Loops<'_>, x: Option<Reg>, y: Option<Reg>) -> Option<Reg> {
    match (x, y) {
        (Some(x), Some(y)) => Some(l.b.binary(Binary::And, x, y)),
        (x, y) => x.or(y),
    }
}
