//! From accumulators to results.
//!
//! A thread finishes neighbouring columns, 4 or 8 at a time, and stores pieces of 16 bytes. What it gets is the sum, or
//! its conversion to 16 bits where that is all that is needed. Four lanes have the sums of a row: they exchange words of
//! two 16-bit columns among each other. Anything else goes through shared memory: every warp writes its own part in
//! vectors as they come from its registers, and reads vectors of which each thread composes its columns.

use super::layout::{LANES, Tile, halved, low_bits, times};
use super::place::positions_at;
use super::problem::Problem;
use super::product::{Accumulators, Lane};
use super::staging::{Gather, QUAD, Staging};
use crate::schedule::gpu::launch::Draft;
use crate::schedule::loops::{Bound, Loops, Val};
use crate::schedule::nest::Op;
use intwain_ir::DType;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Inst, MatrixForm, Place, Reg, RegType, Shuffle, Stmt};
use intwain_ir::scalar::{Binary, Compare, Unary};
use smallvec::SmallVec;

/// Registers of a thread that don't change from row to row.
struct Reader {
    /// First row that the thread reads, and how many rows on the next is.
    row: Reg,
    rows_at_once: usize,
    /// First column in the warp's first column tile of the set.
    column: Reg,
    /// First words of the vectors read.
    vectors: Vec<Reg>,
}

/// Gives threads the sums of neighbouring columns, computes what follows and stores it. `first` are the block's first row
/// and column.
pub(super) fn emit(
    d: &mut Draft<'_>,
    problem: &Problem,
    tile: &Tile,
    memory: Place,
    lane: &Lane,
    sums: &Accumulators,
    first: [Reg; 2],
) {
    let staging = Staging::new(problem, tile);
    let origin = [0, 1].map(|i| d.l.b.binary(Binary::Add, first[i], lane.warp[i]));
    if staging.gather() == Gather::Matrices && !is_long(problem) {
        exchanged(d, problem, tile, lane, sums, origin);
        return;
    }
    d.l.b.push(Stmt::Barrier);
    let thread = d.thread();
    let warp = halved(&mut d.l.b, thread, LANES.trailing_zeros());
    let start = times(&mut d.l.b, warp, staging.words());
    write(&mut d.l, problem, &staging, memory, lane, sums, start);
    d.l.b.push(Stmt::Barrier);
    match staging.gather() {
        Gather::Vectors => vectors(d, problem, tile, memory, (lane, start), origin),
        Gather::Matrices => matrices(d, problem, tile, memory, (lane, start), origin),
    }
}

/// Reads vectors and finishes the columns composed of them.
fn vectors(
    d: &mut Draft<'_>,
    problem: &Problem,
    tile: &Tile,
    memory: Place,
    (lane, start): (&Lane, Reg),
    origin: [Reg; 2],
) {
    let staging = Staging::new(problem, tile);
    let reader = Reader::new(&mut d.l, &staging, lane, start);
    let rows = staging.warp[0] / reader.rows_at_once;
    let step = reader.rows_at_once * staging.pitch();
    let row = d.l.b.binary(Binary::Add, origin[0], reader.row);
    let column = d.l.b.binary(Binary::Add, origin[1], reader.column);
    let from = |q: usize| (column, (8 * staging.sets() * q) as i64);
    if is_long(problem) {
        for q in 0..staging.tiles() {
            let read = |d: &mut Draft<'_>, n: Reg| {
                let down = times(&mut d.l.b, n, step);
                let words = reader.vectors.iter().flat_map(|&v| {
                    let index = d.l.b.binary(Binary::Add, v, down);
                    words(&mut d.l, memory, index, (q * staging.pair) as i64, staging.pair)
                });
                let words = words.collect();
                staged(&mut d.l, problem, words)
            };
            looped(d, problem, tile, (row, reader.rows_at_once, rows), from(q), &read);
        }
        return;
    }
    let read: Vec<Vec<Vec<Reg>>> = (0..rows)
        .map(|n| {
            let vectors = reader.vectors.iter();
            vectors.map(|&v| words(&mut d.l, memory, v, (n * step) as i64, staging.vector())).collect()
        })
        .collect();
    for q in 0..staging.tiles() {
        let part = |v: &Vec<Reg>| v[q * staging.pair..][..staging.pair].to_vec();
        let columns: Vec<Vec<Reg>> =
            read.iter().map(|vectors| staged(&mut d.l, problem, vectors.iter().flat_map(part).collect())).collect();
        strip(d, problem, tile, (row, reader.rows_at_once), from(q), &columns);
    }
}

/// Exchanges words among the lanes of a row and finishes the columns that each lane then has: those of one column tile
/// in four.
fn exchanged(d: &mut Draft<'_>, problem: &Problem, tile: &Tile, lane: &Lane, sums: &Accumulators, origin: [Reg; 2]) {
    let staging = Staging::new(problem, tile);
    let dtype = problem.nest.nodes[problem.cut].dtype;
    let one = d.l.b.index(1);
    let bits = [0, 1].map(|bit| {
        let rest = halved(&mut d.l.b, lane.lane, bit);
        let bit = low_bits(&mut d.l.b, rest, 2);
        d.l.b.compare(Compare::Eq, bit, one)
    });
    let (row, column) = row_and_tile(&mut d.l, lane, origin);
    for set in 0..staging.sets() {
        let mut columns = Vec::new();
        for tiles in sums {
            for half in 0..2 {
                let words = std::array::from_fn(|q| {
                    let sums = &tiles[staging.tile(set, q)];
                    pair(&mut d.l, dtype, [sums[2 * half], sums[2 * half + 1]])[0]
                });
                let words = transposed(&mut d.l, bits, words);
                columns.push(staged(&mut d.l, problem, words.to_vec()));
            }
        }
        strip(d, problem, tile, (row, 8), (column, (8 * staging.tile(set, 0)) as i64), &columns);
    }
}

/// Transposes words of four neighbouring lanes: a lane's word `i` becomes word `lane` of lane `i`. `bits` are those of the
/// lane's number.
fn transposed(l: &mut Loops<'_>, bits: [Reg; 2], mut words: [Reg; QUAD]) -> [Reg; QUAD] {
    let word = RegType::scalar(DType::U32);
    for (distance, set) in [1, 2].into_iter().zip(bits) {
        for i in (0..QUAD).filter(|i| i & distance == 0) {
            let (low, high) = (words[i], words[i | distance]);
            let given = l.b.select(set, low, high);
            let got = l.b.inst(word, Inst::Shuffle(Shuffle::Butterfly(distance as u8), given));
            words[i] = l.b.select(set, got, low);
            words[i | distance] = l.b.select(set, high, got);
        }
    }
    words
}

/// A lane's first row, and its first column in the first of four column tiles, one for each lane of a row.
fn row_and_tile(l: &mut Loops<'_>, lane: &Lane, origin: [Reg; 2]) -> (Reg, Reg) {
    let (row, which) = (halved(&mut l.b, lane.lane, 2), low_bits(&mut l.b, lane.lane, QUAD));
    let column = times(&mut l.b, which, 8);
    (l.b.binary(Binary::Add, origin[0], row), l.b.binary(Binary::Add, origin[1], column))
}

/// Reads 8 × 8 matrices of words and finishes the columns that a lane gets of them, in loops over the rows.
fn matrices(
    d: &mut Draft<'_>,
    problem: &Problem,
    tile: &Tile,
    memory: Place,
    (lane, start): (&Lane, Reg),
    origin: [Reg; 2],
) {
    let staging = Staging::new(problem, tile);
    let (rows, step) = (staging.warp[0] / 8, 8 * staging.pitch());
    let (named, quarter) = (low_bits(&mut d.l.b, lane.lane, 8), halved(&mut d.l.b, lane.lane, 3));
    let (row, column) = row_and_tile(&mut d.l, lane, origin);
    for set in 0..staging.sets() {
        let first = staging.emit_index(&mut d.l, start, named, set, quarter);
        let read = |d: &mut Draft<'_>, n: Reg| {
            let down = times(&mut d.l.b, n, step);
            let index = d.l.b.binary(Binary::Add, first, down);
            matrix(&mut d.l, problem, memory, index)
        };
        looped(d, problem, tile, (row, 8, rows), (column, (8 * staging.tile(set, 0)) as i64), &read);
    }
}

/// The staged values of a lane's columns out of eight rows.
fn matrix(l: &mut Loops<'_>, problem: &Problem, from: Place, index: Reg) -> Vec<Reg> {
    let words = [(); 4].map(|()| l.b.reg(RegType::scalar(DType::U32)));
    let d = SmallVec::from_slice(&words);
    l.b.push(Stmt::LoadMatrix { d, from, index, offset: 0, form: MatrixForm::Rows });
    staged(l, problem, words.to_vec())
}

/// Whether what follows the sums has so many instructions that the rows of a thread are a loop: transcendental
/// functions and divisions.
fn is_long(problem: &Problem) -> bool {
    let nest = &problem.nest;
    let mut follows = vec![false; nest.nodes.len()];
    for (i, n) in nest.nodes.iter().enumerate() {
        follows[i] = i == problem.cut || n.op.children().any(|c| follows[c]);
    }
    let long = |op: &Op| match op {
        Op::Unary(f, _) => !matches!(
            f,
            Unary::Neg | Unary::Abs | Unary::Sign | Unary::Not | Unary::IsNan | Unary::IsFinite | Unary::Floor
        ),
        Op::Binary(f, ..) => matches!(f, Binary::Div | Binary::FloorDiv | Binary::Mod | Binary::Pow | Binary::Atan2),
        _ => false,
    };
    nest.nodes.iter().zip(follows).enumerate().any(|(i, (n, f))| f && i != problem.cut && long(&n.op))
}

/// Writes a warp's sums.
fn write(
    l: &mut Loops<'_>,
    problem: &Problem,
    staging: &Staging,
    memory: Place,
    lane: &Lane,
    sums: &Accumulators,
    start: Reg,
) {
    let (row, quarter) = (halved(&mut l.b, lane.lane, 2), low_bits(&mut l.b, lane.lane, 4));
    let dtype = problem.nest.nodes[problem.cut].dtype;
    let pitch = staging.pitch();
    for set in 0..staging.sets() {
        let index = staging.emit_index(l, start, row, set, quarter);
        for (i, tiles) in sums.iter().enumerate() {
            for half in 0..2 {
                let columns = (0..staging.tiles()).map(|q| &tiles[staging.tile(set, q)]);
                let words: SmallVec<[Reg; 4]> =
                    columns.flat_map(|c| pair(l, dtype, [c[2 * half], c[2 * half + 1]])).collect();
                let value = vector(l, words);
                // The turn of a row is that of the eighth after it.
                l.b.store(memory, index, ((16 * i + 8 * half) * pitch) as i64, value);
            }
        }
    }
}

/// The words of two neighbouring sums as they are staged.
fn pair(l: &mut Loops<'_>, dtype: DType, sums: [Reg; 2]) -> SmallVec<[Reg; 2]> {
    let word = RegType::scalar(DType::U32);
    match dtype {
        DType::F32 => sums.iter().map(|&x| l.b.inst(word, Inst::Bits(x))).collect(),
        _ => {
            let ty = RegType { dtype: DType::F32, lanes: 2 };
            let both = l.b.inst(ty, Inst::Pack(SmallVec::from_slice(&sums)));
            let both = l.b.cast(dtype, both);
            SmallVec::from_iter([l.b.inst(word, Inst::Bits(both))])
        }
    }
}

fn vector(l: &mut Loops<'_>, words: SmallVec<[Reg; 4]>) -> Reg {
    match words.len() {
        1 => words[0],
        n => l.b.inst(RegType { dtype: DType::U32, lanes: n as u8 }, Inst::Pack(words)),
    }
}

/// The words of a vector in shared memory.
fn words(l: &mut Loops<'_>, memory: Place, index: Reg, offset: i64, n: usize) -> Vec<Reg> {
    let v = l.b.load(memory, index, offset, n as u8);
    if n == 1 {
        return vec![v];
    }
    (0..n as u8).map(|lane| l.b.inst(RegType::scalar(DType::U32), Inst::Extract(v, lane))).collect()
}

impl Reader {
    fn new(l: &mut Loops<'_>, staging: &Staging, lane: &Lane, start: Reg) -> Reader {
        let parts = 8 / staging.width;
        let at_once = LANES / (staging.sets() * parts);
        let part = low_bits(&mut l.b, lane.lane, parts);
        let rest = halved(&mut l.b, lane.lane, parts.trailing_zeros());
        let set = low_bits(&mut l.b, rest, staging.sets());
        let row = halved(&mut l.b, rest, staging.sets().trailing_zeros());
        let (tile, within) = (times(&mut l.b, set, 8), times(&mut l.b, part, staging.width));
        let column = l.b.binary(Binary::Add, tile, within);
        let turn = staging.emit_turn(l, row, set);
        let line = times(&mut l.b, row, staging.pitch());
        let line = l.b.binary(Binary::Add, start, line);
        let (first, quarters) = (times(&mut l.b, set, 4), staging.width / 2);
        let before = times(&mut l.b, part, quarters);
        let first = l.b.binary(Binary::Add, first, before);
        let vectors = (0..quarters as i64).map(|quarter| {
            let quarter = l.b.index(quarter);
            let at = l.b.binary(Binary::Add, first, quarter);
            let at = l.b.binary(Binary::Xor, at, turn);
            let at = times(&mut l.b, at, staging.vector());
            l.b.binary(Binary::Add, line, at)
        });
        let vectors = vectors.collect();
        Reader { row, rows_at_once: at_once, column, vectors }
    }
}

/// The staged values that words have.
fn staged(l: &mut Loops<'_>, problem: &Problem, words: Vec<Reg>) -> Vec<Reg> {
    let dtype = problem.nest.nodes[problem.cut].dtype;
    match dtype {
        DType::F32 => words.iter().map(|&w| l.b.inst(RegType::scalar(DType::F32), Inst::Bits(w))).collect(),
        _ => words
            .iter()
            .flat_map(|&w| {
                let both = l.b.inst(RegType { dtype, lanes: 2 }, Inst::Bits(w));
                [0, 1].map(|lane| l.b.inst(RegType::scalar(dtype), Inst::Extract(both, lane)))
            })
            .collect(),
    }
}

/// Finishes neighbouring columns of all rows of a thread.
fn strip(
    d: &mut Draft<'_>,
    problem: &Problem,
    tile: &Tile,
    (row, step): (Reg, usize),
    (column, shift): (Reg, i64),
    values: &[Vec<Reg>],
) {
    let [m, n, ..] = problem.extents();
    let together = problem.together();
    for part in 0..problem.width() / together {
        let from = (column, shift + (part * together) as i64);
        let inside = (!n.is_multiple_of(tile.columns)).then(|| below(d, from, n));
        // What loads depend on must stand behind the conditions.
        d.when(inside, |d| {
            let mut bounds = positions_at(&mut d.l.b, &problem.nest, &problem.columns, from);
            widen(&mut bounds, problem, together);
            d.l.push_scope(bounds.clone());
            share_address(d, problem, row);
            for (i, lanes) in values.iter().enumerate() {
                let at = (row, (i * step) as i64);
                let inside = (!m.is_multiple_of(tile.rows)).then(|| below(d, at, m));
                let lanes = &lanes[part * together..][..together];
                d.when(inside, |d| finish(d, problem, at, &bounds, lanes));
            }
            d.l.pop_scope();
        });
    }
}

/// [`strip`] as a loop over the rows, whose values are read in it. All lanes take part in reading.
fn looped<'n>(
    d: &mut Draft<'n>,
    problem: &Problem,
    tile: &Tile,
    (row, step, count): (Reg, usize, usize),
    (column, shift): (Reg, i64),
    read: &dyn Fn(&mut Draft<'n>, Reg) -> Vec<Reg>,
) {
    let [m, n, ..] = problem.extents();
    let together = problem.together();
    for part in 0..problem.width() / together {
        let from = (column, shift + (part * together) as i64);
        let inside = (!n.is_multiple_of(tile.columns)).then(|| below(d, from, n));
        let mut bounds = positions_at(&mut d.l.b, &problem.nest, &problem.columns, from);
        widen(&mut bounds, problem, together);
        d.l.push_limited(bounds.clone(), inside);
        let (begin, end) = (d.l.b.index(0), d.l.b.index(count as i64));
        let rows = d.l.b.open_loop(begin, end, 1, &[]);
        d.l.push_scope(Vec::new());
        let lanes = read(d, rows.var());
        let down = times(&mut d.l.b, rows.var(), step);
        let at = (d.l.b.binary(Binary::Add, row, down), 0);
        let exists = (!m.is_multiple_of(tile.rows)).then(|| below(d, at, m));
        let inside = match (inside, exists) {
            (Some(x), Some(y)) => Some(d.l.b.binary(Binary::And, x, y)),
            (x, y) => x.or(y),
        };
        d.when(inside, |d| finish(d, problem, at, &bounds, &lanes[part * together..][..together]));
        d.l.pop_scope();
        d.l.b.close_loop(rows, &[]);
        d.l.pop_scope();
    }
}

/// Forms the address in a result of the first row, so that those of other rows, behind conditions, differ by constants.
fn share_address(d: &mut Draft<'_>, problem: &Problem, row: Reg) {
    let at = positions_at(&mut d.l.b, &problem.nest, &problem.rows, (row, 0));
    d.l.push_scope(at);
    let _ = d.l.address(&problem.nest.store);
    d.l.pop_scope();
}

/// Finishes neighbouring columns of a row.
fn finish(d: &mut Draft<'_>, problem: &Problem, at: (Reg, i64), columns: &[(Axis, Bound)], lanes: &[Reg]) {
    let mut at = positions_at(&mut d.l.b, &problem.nest, &problem.rows, at);
    if at.is_empty() {
        // The sums need a scope of their own.
        at.extend_from_slice(columns);
    }
    d.l.push_scope(at);
    d.l.define(problem.cut, Val { regs: lanes.into(), lanes: 1 });
    d.elements(lanes.len());
    d.l.pop_scope();
}

fn below(d: &mut Draft<'_>, (at, shift): (Reg, i64), extent: usize) -> Reg {
    let bound = d.l.b.index(extent as i64 - shift);
    d.l.b.compare(Compare::Lt, at, bound)
}

/// Makes the last column axis several neighbouring positions.
fn widen(bounds: &mut [(Axis, Bound)], problem: &Problem, together: usize) {
    let last = problem.columns.last();
    for (axis, bound) in bounds.iter_mut().filter(|(a, _)| Some(a) == last) {
        debug_assert!(problem.nest.extent(*axis).is_multiple_of(together));
        *bound = Bound { width: together, ..*bound }.multiple_of(together as i64);
    }
}
