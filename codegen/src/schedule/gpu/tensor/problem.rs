//! What a contraction on tensor cores is about: its axes by role, and how each factor gets into shared memory.

use super::super::Precision;
use super::layout::{CHUNK, Fragment, LANES, Plane, Reading, Role, Swizzle, Tile, Unit};
use crate::schedule::gpu::launch::positions;
use crate::schedule::nest::{Nest, NodeId, Op, coefficient};
use crate::schedule::roles::{divide_groups, orient, the_sum};
use intwain_ir::DType;
use intwain_ir::compute::{Axis, Guard, Index};
use intwain_ir::scalar::Binary;

/// A recognised contraction: Σ left·right over the inner axes, then the rest of the nest.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    /// The whole computation, axes merged.
    pub(super) nest: Nest,
    /// What is multiplied.
    pub(super) unit: Unit,
    /// Axes that both factors read.
    pub(super) batch: Vec<Axis>,
    /// Axes that the left factor alone reads.
    pub(super) rows: Vec<Axis>,
    /// Axes that the right factor alone reads, the result's innermost among them.
    pub(super) columns: Vec<Axis>,
    /// Axes summed over.
    pub(super) inner: Vec<Axis>,
    /// Left, then right.
    pub(super) factors: [Factor; 2],
    /// The node that goes from accumulators to the epilogue: the sum, or its conversion to 16 bits where nothing else
    /// reads the sum.
    pub(super) cut: NodeId,
}

/// Which way the rows of a factor run in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Along {
    /// A row has neighbouring inner positions.
    Inner,
    /// A row has neighbouring outer positions.
    Outer,
}

/// One factor.
#[derive(Clone, Debug)]
pub(super) struct Factor {
    pub(super) role: Role,
    /// Its own axes.
    pub(super) outer: Vec<Axis>,
    /// The element as it lies in shared memory: 16 bits, or f32.
    pub(super) node: NodeId,
    pub(super) dtype: DType,
    pub(super) along: Along,
    pub(super) filling: Filling,
}

/// How a factor gets into shared memory.
#[derive(Clone, Debug)]
pub(super) enum Filling {
    /// By asynchronous copies of so many neighbouring elements, zeros where a guard fails.
    Copied { operand: usize, at: Index, guards: Vec<Guard>, elements: usize },
    /// Computed element by element and stored.
    Computed,
}

impl Problem {
    /// Recognises a contraction for tensor cores; `None` leaves it to other schedules.
    pub(super) fn new(nest: &Nest, precision: Precision) -> Option<Problem> {
        let mut nest = nest.clone();
        the_sum(&nest)?;
        divide_groups(&mut nest);
        nest.merge();
        let sum = the_sum(&nest)?;
        let Op::Reduce { axes: inner, body, .. } = nest.nodes[sum].op.clone() else { return None };
        let Op::Binary(Binary::Mul, x, y) = nest.nodes[body].op else { return None };
        let all = nest.axes.iter().fold(0u64, |s, a| s | 1 << a.0);
        if nest.nodes[sum].dtype != DType::F32 || nest.nodes[sum].free != all || all == 0 {
            return None;
        }
        let (left, right) = orient(&nest, x, y)?;
        let only = |set: u64, not: u64| -> Vec<Axis> {
            nest.axes.iter().copied().filter(|a| set & (1 << a.0) != 0 && not & (1 << a.0) == 0).collect()
        };
        let (fl, fr) = (nest.nodes[left].free, nest.nodes[right].free);
        let (rows, columns, batch) = (only(fl, fr), only(fr, fl), only(fl & fr, 0));
        let (unit, [left, right]) = elements(&nest, [left, right], precision)?;
        let factor = |role, node, outer: &[Axis]| Factor::new(&nest, role, node, outer, &inner);
        let factors = [factor(Role::Left, left, &rows), factor(Role::Right, right, &columns)];
        let cut = cut(&nest, sum);
        Some(Problem { unit, batch, rows, columns, inner, factors, cut, nest })
    }

    /// Rows, columns and inner positions of one product, and how many products there are.
    pub(super) fn extents(&self) -> [usize; 4] {
        [&self.rows, &self.columns, &self.inner, &self.batch].map(|axes| positions(&self.nest, axes))
    }

    /// Words that a staged element takes up half of or more: 1 for two 16-bit elements, 2 for two f32.
    pub(super) fn words_of_pair(&self) -> usize {
        self.nest.nodes[self.cut].dtype.size() / 2
    }

    /// Columns that a thread finishes at a time.
    pub(super) fn width(&self) -> usize {
        let node = |id: NodeId| self.nest.nodes[id].dtype.size();
        let narrow = self.nest.results.iter().chain([&self.cut]).any(|&n| node(n) < 4);
        if narrow { 8 } else { 4 }
    }

    /// Neighbouring columns that surely lie in one row of the result, all of it or none.
    pub(super) fn together(&self) -> usize {
        let last = self.columns.last().map_or(1, |a| self.nest.extent(*a));
        power_of_two(last, self.width())
    }
}

/// The greatest power of two that divides n, `most` at most.
fn power_of_two(n: usize, most: usize) -> usize {
    if n == 0 { most } else { most.min(1 << n.trailing_zeros()) }
}

/// What is multiplied, and the factors' elements as they will lie in shared memory.
fn elements(nest: &Nest, factors: [NodeId; 2], precision: Precision) -> Option<(Unit, [NodeId; 2])> {
    let half = |node: NodeId| match nest.nodes[node].op {
        Op::Cast(x) if matches!(nest.nodes[x].dtype, DType::F16 | DType::BF16) => Some((x, nest.nodes[x].dtype)),
        _ => None,
    };
    let halves = factors.map(half);
    if let [Some((x, s)), Some((y, t))] = halves
        && s == t
    {
        return Some((Unit::Half(s), [x, y]));
    }
    match precision {
        Precision::F32 => None,
        Precision::Tf32 => Some((Unit::Tf32, factors)),
        Precision::Bf16 => {
            let element = |i: usize| halves[i].filter(|h| h.1 == DType::BF16).map_or(factors[i], |h| h.0);
            Some((Unit::Half(DType::BF16), [element(0), element(1)]))
        }
    }
}

fn cut(nest: &Nest, sum: NodeId) -> NodeId {
    let users: Vec<NodeId> = (0..nest.nodes.len()).filter(|&n| nest.nodes[n].op.children().any(|c| c == sum)).collect();
    match users[..] {
        [user] if !nest.results.contains(&sum) && matches!(nest.nodes[user].op, Op::Cast(_)) => {
            if matches!(nest.nodes[user].dtype, DType::F16 | DType::BF16) { user } else { sum }
        }
        _ => sum,
    }
}

impl Factor {
    fn new(nest: &Nest, role: Role, node: NodeId, outer: &[Axis], inner: &[Axis]) -> Factor {
        let dtype = nest.nodes[node].dtype;
        let (along, filling) = filling(nest, node, outer, inner);
        Factor { role, outer: outer.to_vec(), node, dtype, along, filling }
    }

    /// Bytes of an element in shared memory.
    pub(super) fn bytes(&self) -> usize {
        self.dtype.size()
    }

    /// How lanes read fragments.
    pub(super) fn reading(&self, unit: Unit) -> Reading {
        match (self.bytes(), unit, self.along) {
            (2, ..) | (_, Unit::Tf32, Along::Inner) => Reading::Matrix,
            (_, Unit::Tf32, Along::Outer) => Reading::Words,
            (_, Unit::Half(_), Along::Inner) => Reading::Pairs,
            (_, Unit::Half(_), Along::Outer) => Reading::Columns,
        }
    }

    /// Its part of a stage.
    pub(super) fn plane(&self, unit: Unit, tile: &Tile) -> Plane {
        let outer = match self.role {
            Role::Left => tile.rows,
            Role::Right => tile.columns,
        };
        let (rows, elements) = match self.along {
            Along::Inner => (outer, tile.inner),
            Along::Outer => (tile.inner, outer),
        };
        let bytes = elements * self.bytes();
        Plane { rows, pitch: bytes / 4, swizzle: Swizzle::of(self.reading(unit), bytes) }
    }

    pub(super) fn fragment(&self, unit: Unit) -> Fragment {
        Fragment { unit, role: self.role }
    }

    /// Words that a thread writes at a time.
    pub(super) fn granule(&self) -> usize {
        match self.filling {
            Filling::Copied { elements, .. } => elements * self.bytes() / 4,
            Filling::Computed => 1,
        }
    }

    /// Whether the threads of a tile can fill the plane: all of them the same number of granules, or some one granule.
    pub(super) fn fits(&self, unit: Unit, tile: &Tile) -> bool {
        let plane = self.plane(unit, tile);
        let granules = plane.words() / self.granule();
        let chunked = plane.pitch * 4 >= CHUNK && plane.pitch >= self.granule();
        chunked
            && plane.pitch.is_power_of_two()
            && (granules.is_multiple_of(tile.threads()) || granules < tile.threads())
    }
}

/// How a factor's element gets into shared memory, in as large pieces as alignment allows.
fn filling(nest: &Nest, node: NodeId, outer: &[Axis], inner: &[Axis]) -> (Along, Filling) {
    let directions = [(Along::Inner, inner.last().copied()), (Along::Outer, outer.last().copied())];
    let steps = |at: &Index, axis: Option<Axis>| axis.is_some_and(|a| coefficient(at, a) == Some(1));
    if let Op::Load { operand, at, guards, fill } = &nest.nodes[node].op
        && fill.bits() == 0
    {
        let size = nest.nodes[node].dtype.size();
        let best = directions.iter().map(|&(along, axis)| {
            let elements = axis.map_or(1, |a| neighbours(nest, at, guards, a, CHUNK / size));
            (elements, steps(at, axis), along)
        });
        // Of equals the first.
        let best = best.reduce(|a, b| if (b.0, b.1) > (a.0, a.1) { b } else { a });
        if let Some((elements, _, along)) = best
            && elements * size >= 4
        {
            let (at, guards) = (at.clone(), guards.clone());
            return (along, Filling::Copied { operand: *operand, at, guards, elements });
        }
        let along = if steps(at, directions[1].1) { Along::Outer } else { Along::Inner };
        return (along, Filling::Computed);
    }
    (Along::Inner, Filling::Computed)
}

/// How many elements, a power of two, are neighbours along an axis at every multiple of that number, in one aligned
/// piece that guards take or leave.
fn neighbours(nest: &Nest, at: &Index, guards: &[Guard], axis: Axis, most: usize) -> usize {
    if coefficient(at, axis) != Some(1) || guards.iter().any(|g| g.index.uses(axis)) {
        return 1;
    }
    let others = at.terms().iter().filter(|t| t.atom != intwain_ir::compute::Atom::Axis(axis));
    others
        .map(|t| t.coeff)
        .chain([at.offset()])
        .fold(power_of_two(nest.extent(axis), most), |n, c| power_of_two(c.unsigned_abs() as usize, n))
}

/// Threads that copy, where a plane has fewer granules than a block has threads.
pub(super) fn active(granules: usize, tile: &Tile) -> Option<usize> {
    (granules < tile.warps[0] * tile.warps[1] * LANES).then_some(granules)
}
