//! The main loop: a ring of stages filled ahead, one barrier a step, fragments to accumulators.

use super::fill::Filler;
use super::layout::{Fragment, LANES, Plane, Reading, Ring, Role, Tile, Unit, halved, low_bits, times};
use super::problem::{Along, Problem};
use crate::schedule::loops::Loops;
use intwain_ir::DType;
use intwain_ir::kernel::{Block, Id, Inst, MatrixForm, Place, Reg, RegType, Stmt};
use intwain_ir::scalar::{Binary, Compare, Scalar};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// The sums of a warp: `[row tile][column tile][register]`.
pub(super) type Accumulators = Vec<Vec<[Reg; 4]>>;

/// What a thread is in its block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    /// Position in the warp.
    pub(super) lane: Reg,
    /// First row and column of the warp in the block's tile.
    pub(super) warp: [Reg; 2],
}

impl Lane {
    pub(super) fn new(l: &mut Loops<'_>, tile: &Tile) -> Lane {
        let thread = l.b.id(Id::Thread(0));
        let lane = low_bits(&mut l.b, thread, LANES);
        let warp = halved(&mut l.b, thread, LANES.trailing_zeros());
        let [down, across] = tile.warps;
        let column = low_bits(&mut l.b, warp, across);
        let row = if down == 1 { l.b.index(0) } else { halved(&mut l.b, warp, across.trailing_zeros()) };
        let [rows, columns] = tile.warp();
        let warp = [times(&mut l.b, row, rows), times(&mut l.b, column, columns)];
        Lane { lane, warp }
    }
}

/// Shared memory of a kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) place: Place,
    pub(super) ring: Ring,
    /// Planes of the left and the right factor, and their first words in a stage.
    pub(super) planes: [Plane; 2],
    pub(super) starts: [usize; 2],
}

impl Memory {
    /// Planes and ring of a tile, without a place yet.
    pub(super) fn sizes(problem: &Problem, tile: &Tile) -> ([Plane; 2], Ring) {
        let planes = [0, 1].map(|i| problem.factors[i].plane(problem.unit, tile));
        (planes, Ring { stages: tile.stages, words: planes[0].words() + planes[1].words() })
    }
}

/// Writes prologue and loop; gives the sums.
pub(super) fn emit(
    l: &mut Loops<'_>,
    problem: &Problem,
    tile: &Tile,
    memory: &Memory,
    lane: &Lane,
    fillers: &[Filler<'_>; 2],
) -> Accumulators {
    let ring = memory.ring;
    let extent = problem.extents()[2];
    let trips = extent.div_ceil(tile.inner);
    for step in 0..ring.ahead() {
        if step < trips {
            let (stage, first) = (l.b.index(ring.stage(step) as i64), l.b.index((step * tile.inner) as i64));
            fillers.iter().for_each(|f| f.emit(l, memory.place, stage, first));
        }
        l.b.push(Stmt::AsyncCommit);
    }
    let readers = [0, 1].map(|i| Reader::new(l, problem, tile, memory, lane, i));
    let [rows, columns] = [tile.warp()[0] / 16, tile.warp()[1] / 8];
    let zero = l.b.constant(Scalar::zero(DType::F32));
    let last = l.b.index(ring.stage(ring.ahead()) as i64);
    let first = l.b.index(0);
    let mut carried = vec![zero; rows * columns * 4];
    carried.extend([first, last]);
    let (begin, end) = (ring.ahead() * tile.inner, (ring.ahead() + trips) * tile.inner);
    let (begin, end) = (l.b.index(begin as i64), l.b.index(end as i64));
    let steps = l.b.open_loop(begin, end, tile.inner as i64, &carried);
    l.push_scope(Vec::new());
    let args: Vec<Reg> = steps.args().collect();
    let (sums, stages) = args.split_at(args.len() - 2);
    let (now, before) = (stages[0], stages[1]);
    l.b.push(Stmt::AsyncWait(ring.in_flight()));
    l.b.push(Stmt::Barrier);
    if trips > ring.ahead() {
        // The stage that everybody has left: the barrier says so.
        ahead(l, fillers, memory, before, steps.var(), extent);
    }
    l.b.push(Stmt::AsyncCommit);
    let mut sums = grouped(sums, columns);
    step(l, problem, tile, &readers, memory.place, now, &mut sums);
    let (size, whole) = (l.b.index(ring.words as i64), l.b.index((ring.words * ring.stages) as i64));
    let next = l.b.binary(Binary::Add, now, size);
    let wraps = l.b.compare(Compare::Eq, next, whole);
    let next = l.b.select(wraps, first, next);
    l.pop_scope();
    let mut out: Vec<Reg> = sums.iter().flatten().flatten().copied().collect();
    out.extend([next, now]);
    let results = l.b.close_loop(steps, &out);
    grouped(&results[..results.len() - 2], columns)
}

fn grouped(sums: &[Reg], columns: usize) -> Accumulators {
    sums.chunks(4 * columns).map(|row| row.chunks(4).map(|c| [c[0], c[1], c[2], c[3]]).collect()).collect()
}

/// Fills the stage of a later step, if there is one.
fn ahead(l: &mut Loops<'_>, fillers: &[Filler<'_>; 2], memory: &Memory, stage: Reg, first: Reg, extent: usize) {
    let extent = l.b.index(extent as i64);
    let more = l.b.compare(Compare::Lt, first, extent);
    l.b.open_block();
    l.push_scope(Vec::new());
    fillers.iter().for_each(|f| f.emit(l, memory.place, stage, first));
    l.pop_scope();
    let then = l.b.take_block();
    l.b.conditional(more, (then, &[]), (Block::default(), &[]));
}

/// Multiplies what a stage holds.
fn step(
    l: &mut Loops<'_>,
    problem: &Problem,
    tile: &Tile,
    readers: &[Reader; 2],
    ring: Place,
    stage: Reg,
    sums: &mut Accumulators,
) {
    let unit = problem.unit;
    let [rows, columns] = tile.warp();
    for k in 0..tile.inner / unit.inner() {
        let left: Vec<[Reg; 4]> = (0..rows / 16).map(|i| readers[0].emit(l, ring, stage, i, k)).collect();
        let right: Vec<[Reg; 4]> = (0..columns / 16).map(|j| readers[1].emit(l, ring, stage, j, k)).collect();
        for (a, row) in left.iter().zip(sums.iter_mut()) {
            for (j, sum) in row.iter_mut().enumerate() {
                let b = &right[j / 2][2 * (j % 2)..][..2];
                *sum = product(l, unit, a, b, sum);
            }
        }
    }
}

fn product(l: &mut Loops<'_>, unit: Unit, a: &[Reg; 4], b: &[Reg], c: &[Reg; 4]) -> [Reg; 4] {
    let d = [(); 4].map(|()| l.b.reg(RegType::scalar(DType::F32)));
    l.b.push(Stmt::Mma {
        shape: unit.shape(),
        d: SmallVec::from_slice(&d),
        a: SmallVec::from_slice(a),
        b: SmallVec::from_slice(b),
        c: SmallVec::from_slice(c),
    });
    d
}

/// How a lane reads the fragments of a factor.
struct Reader {
    fragment: Fragment,
    reading: Reading,
    along: Along,
    /// Whether shared memory holds f32.
    wide: bool,
    dtype: DType,
    plane: Plane,
    start: usize,
    /// The lane's word in the first fragment, for each number that later ones are xor-ed with.
    first: BTreeMap<usize, Reg>,
}

impl Reader {
    fn new(l: &mut Loops<'_>, problem: &Problem, tile: &Tile, memory: &Memory, lane: &Lane, which: usize) -> Reader {
        let (factor, unit) = (&problem.factors[which], problem.unit);
        let mut r = Reader {
            fragment: factor.fragment(unit),
            reading: factor.reading(unit),
            along: factor.along,
            wide: factor.bytes() == 4,
            dtype: factor.dtype,
            plane: memory.planes[which],
            start: memory.starts[which],
            first: BTreeMap::new(),
        };
        let warp = match factor.role {
            Role::Left => lane.warp[0],
            Role::Right => lane.warp[1],
        };
        let (row, word) = r.lane_place(l, lane.lane, warp);
        let first = r.plane.emit(&mut l.b, row, word);
        // All of them before the loop.
        let outer = tile.warp()[which] / 16;
        for (i, k) in (0..outer).flat_map(|i| (0..tile.inner / unit.inner()).map(move |k| (i, k))) {
            for part in r.parts() {
                let (turned, _) = r.moved(i, k, part);
                r.first.entry(turned).or_insert_with(|| {
                    let n = l.b.index(turned as i64);
                    if turned == 0 { first } else { l.b.binary(Binary::Xor, first, n) }
                });
            }
        }
        r
    }

    /// Words of so many elements.
    fn words(&self, elements: usize) -> usize {
        if self.wide { elements } else { elements / 2 }
    }

    /// The lane's row and word in the first fragment of a warp.
    fn lane_place(&self, l: &mut Loops<'_>, lane: Reg, warp: Reg) -> (Reg, Reg) {
        let (g, t) = (halved(&mut l.b, lane, 2), low_bits(&mut l.b, lane, 4));
        let unit = self.fragment.unit;
        let (outer, inner) = match self.reading {
            Reading::Matrix => return self.matrix_place(l, lane, warp),
            Reading::Words => (g, t),
            Reading::Pairs | Reading::Columns => (g, times(&mut l.b, t, unit.packed())),
        };
        let outer = l.b.binary(Binary::Add, warp, outer);
        match self.along {
            Along::Inner => (outer, inner),
            Along::Outer => (inner, outer),
        }
    }

    /// The row of an 8 × 8 matrix that a lane names: lane i row i mod 8 of matrix i / 8.
    fn matrix_place(&self, l: &mut Loops<'_>, lane: Reg, warp: Reg) -> (Reg, Reg) {
        let row = low_bits(&mut l.b, lane, 8);
        let matrix = halved(&mut l.b, lane, 3);
        let (low, high) = (low_bits(&mut l.b, matrix, 2), halved(&mut l.b, matrix, 1));
        let (outer, inner) = match self.fragment.role {
            Role::Left => (low, high),
            Role::Right => (high, low),
        };
        // Elements of half a fragment, and words of a row of a matrix.
        let half = self.fragment.unit.inner() / 2;
        let chunk = super::layout::CHUNK_WORDS;
        match self.along {
            Along::Inner => {
                let before = times(&mut l.b, outer, 8);
                let row = l.b.binary(Binary::Add, before, row);
                (l.b.binary(Binary::Add, warp, row), times(&mut l.b, inner, chunk))
            }
            Along::Outer => {
                let before = times(&mut l.b, inner, half);
                let row = l.b.binary(Binary::Add, before, row);
                let word = times(&mut l.b, outer, chunk);
                let first = halved(&mut l.b, warp, 1);
                (row, l.b.binary(Binary::Add, first, word))
            }
        }
    }

    /// What is read separately: one access of all four registers, or one a register.
    fn parts(&self) -> std::ops::Range<usize> {
        match self.reading {
            Reading::Matrix => 0..1,
            Reading::Words | Reading::Pairs | Reading::Columns => 0..4,
        }
    }

    /// How the word of a part of fragment (i, k) differs from that of the first.
    fn moved(&self, i: usize, k: usize, part: usize) -> (usize, usize) {
        let (outer_half, inner_half) = self.fragment.halves(part);
        let size = self.fragment.unit.inner();
        let (outer, inner) = (16 * i + 8 * outer_half, size * k + size / 2 * inner_half);
        let (rows, words) = match self.along {
            Along::Inner => (outer, self.words(inner)),
            Along::Outer => (inner, self.words(outer)),
        };
        self.plane.moved(rows, words)
    }

    /// Reads fragment i along the warp's outer positions and k along the step's inner ones.
    fn emit(&self, l: &mut Loops<'_>, ring: Place, stage: Reg, i: usize, k: usize) -> [Reg; 4] {
        if self.reading == Reading::Matrix {
            return self.matrix(l, ring, stage, i, k);
        }
        [0, 1, 2, 3].map(|part| {
            let (index, offset) = self.address(l, stage, i, k, part);
            match self.reading {
                Reading::Words => {
                    let x = l.b.load(ring, index, offset, 1);
                    rounded(l, x)
                }
                Reading::Pairs => {
                    let x = l.b.load(ring, index, offset, 2);
                    self.packed(l, x)
                }
                Reading::Matrix | Reading::Columns => {
                    let word = RegType::scalar(DType::U32);
                    let x = l.b.load(ring, index, offset, 1);
                    let y = l.b.load(ring, index, offset + self.plane.pitch as i64, 1);
                    debug_assert_eq!(l.b.ty(x), word);
                    let pair = l.b.inst(RegType { lanes: 2, ..word }, Inst::Pack(SmallVec::from_slice(&[x, y])));
                    self.packed(l, pair)
                }
            }
        })
    }

    fn address(&self, l: &mut Loops<'_>, stage: Reg, i: usize, k: usize, part: usize) -> (Reg, i64) {
        let (turned, offset) = self.moved(i, k, part);
        let index = l.b.binary(Binary::Add, stage, self.first[&turned]);
        (index, (self.start + offset) as i64)
    }

    fn matrix(&self, l: &mut Loops<'_>, ring: Place, stage: Reg, i: usize, k: usize) -> [Reg; 4] {
        let (index, offset) = self.address(l, stage, i, k, 0);
        let d = [(); 4].map(|()| l.b.reg(RegType::scalar(DType::U32)));
        let form = match self.along {
            Along::Inner => MatrixForm::Rows,
            Along::Outer => MatrixForm::Columns,
        };
        l.b.push(Stmt::LoadMatrix { d: SmallVec::from_slice(&d), from: ring, index, offset, form });
        if self.wide { d.map(|x| rounded(l, x)) } else { d }
    }

    /// Two f32, as words, rounded to a register of a fragment.
    fn packed(&self, l: &mut Loops<'_>, words: Reg) -> Reg {
        let Unit::Half(dtype) = self.fragment.unit else { unreachable!("pairs are packed to halves") };
        debug_assert_eq!(self.dtype, DType::F32);
        let x = l.b.inst(RegType { dtype: DType::F32, lanes: 2 }, Inst::Bits(words));
        let x = l.b.cast(dtype, x);
        l.b.inst(RegType::scalar(DType::U32), Inst::Bits(x))
    }
}

/// The word of an f32 rounded to tf32.
fn rounded(l: &mut Loops<'_>, word: Reg) -> Reg {
    let x = l.b.inst(RegType::scalar(DType::F32), Inst::Bits(word));
    let x = l.b.inst(RegType::scalar(DType::F32), Inst::Tf32(x));
    l.b.inst(RegType::scalar(DType::U32), Inst::Bits(x))
}
