//! The row schedule: reductions of elements that lie next to each other, and what follows from them, in one pass.
//!
//! A row is all that is reduced together: the threads of a team share it, a part of a warp for short rows, a block for
//! long ones. Each thread loads its elements in groups of 16 bytes, all before the first is used, and keeps what is
//! computed from them in registers; a reduction combines a thread's elements, then the team's. Results along the row
//! are computed from the registers. So softmax and normalisations read and write every element once.
//!
//! Rows too long for registers are walked through once for each level of reductions, and once more for results along
//! the row.

use super::Launch;
use super::accumulate::{LanesRun, accumulate, loads_along, merge_of, needed};
use super::launch::{Arrays, Draft, digits, positions};
use super::pointwise::{Ends, lanes};
use super::shape::reductions;
use super::team::{Merge, Team, WARP};
use crate::schedule::loops::{Saved, Val};
use crate::schedule::nest::{Nest, NodeId, Op};
use intwain_ir::DType;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::Reg;
use intwain_ir::scalar::{Binary, Compare, Reduce, Scalar};

/// Elements of a row that a thread keeps at most.
const KEPT: usize = 32;
/// Most threads of a block.
const BLOCK: usize = 1024;
/// Groups that a thread of a long row loads before it uses them.
const AHEAD: usize = 4;

/// How a nest is divided into rows.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    /// Result axes whose positions are rows.
    outer: Vec<Axis>,
    /// What is reduced together, or stored along the row.
    families: Vec<Family>,
    team: Team,
    rows_per_block: usize,
    /// Levels of reductions.
    levels: usize,
    /// Result axes along a row.
    along: Vec<Axis>,
}

/// Axes run through together.
#[derive(Clone, Debug)]
struct Family {
    axes: Vec<Axis>,
    /// Neighbouring positions that a thread takes.
    width: usize,
    /// Groups of so many positions.
    groups: usize,
}

/// Where a thread's elements are while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// In registers.
    Registers,
    /// In memory: rows are too long.
    Memory,
}

impl Rows {
    /// The rows of a nest; `None` if a reduction depends on an axis that another reduces.
    pub(super) fn new(nest: &Nest, stores: &[DType]) -> Option<Rows> {
        let depend = reductions(nest).fold(0u64, |s, r| s | nest.nodes[r].free);
        let (outer, along): (Vec<Axis>, Vec<Axis>) = nest.axes.iter().partition(|a| depend & (1 << a.0) != 0);
        let mut lists: Vec<Vec<Axis>> = Vec::new();
        for r in reductions(nest) {
            let axes = nest.nodes[r].op.bound_axes().to_vec();
            if axes.iter().any(|a| depend & (1 << a.0) != 0) || axes.is_empty() {
                return None;
            }
            if !lists.contains(&axes) {
                lists.push(axes);
            }
        }
        if !along.is_empty() && !lists.contains(&along) {
            lists.push(along.clone());
        }
        let families: Vec<Family> = lists
            .into_iter()
            .map(|axes| {
                let inner = axes[axes.len() - 1];
                let stored = if axes == along { stores } else { &[] };
                let width = lanes(nest, inner, stored, Ends::Whole);
                Family { width, groups: positions(nest, &axes) / width, axes }
            })
            .collect();
        let longest = families.iter().map(|f| f.groups).max()?;
        let widest = families.iter().map(|f| f.groups * f.width).max()?;
        let size = match widest {
            0..=512 => longest.div_ceil(2).next_power_of_two().min(WARP),
            n @ 513..=2048 => (n / 8).next_power_of_two(),
            n => (n / 16).next_power_of_two().clamp(2 * WARP, BLOCK),
        };
        let rows_per_block = if size > WARP { 1 } else { (4 * WARP / size).min(positions(nest, &outer).max(1)) };
        // Shuffles need whole warps.
        let rows_per_block = (rows_per_block * size).next_multiple_of(WARP) / size;
        let levels = levels(nest).iter().copied().max().unwrap_or(0);
        Some(Rows { outer, families, team: Team { size }, rows_per_block, levels, along })
    }

    /// Number of rows.
    pub(super) fn count(&self, nest: &Nest) -> usize {
        positions(nest, &self.outer)
    }

    /// Whether registers hold what a thread has of a row.
    pub(super) fn keeping(&self) -> Keeping {
        let fits = |f: &Family| f.groups.div_ceil(self.team.size) * f.width <= KEPT;
        if self.families.iter().all(fits) { Keeping::Registers } else { Keeping::Memory }
    }

    /// Whether every element is read once.
    pub(super) fn one_pass(&self) -> bool {
        let once = self.levels == 1 && self.families.len() == 1 && self.along.is_empty();
        once || self.keeping() == Keeping::Registers
    }

    /// Whether results stand along the rows.
    pub(super) fn has_elements(&self) -> bool {
        !self.along.is_empty()
    }
}

/// For each node, the reductions on the longest way down from it, itself included.
fn levels(nest: &Nest) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::new();
    for n in &nest.nodes {
        let below = n.op.children().map(|c| levels[c]).max().unwrap_or(0);
        levels.push(below + usize::from(matches!(n.op, Op::Reduce { .. } | Op::ArgMax { .. })));
    }
    levels
}

/// Part of a family that a thread holds.
struct Chunk {
    /// Whether it exists, if that is not certain.
    inside: Option<Reg>,
    scope: Option<Saved>,
}

/// A kernel with a team for each row.
pub(super) fn launch(name: &str, nest: &Nest, arrays: &Arrays, rows: &Rows) -> Launch {
    let count = rows.count(nest);
    let (size, per_block) = (rows.team.size, rows.rows_per_block);
    let blocks = count.div_ceil(per_block);
    let mut d = Draft::new(name, nest, arrays, blocks, (size * per_block) as u32);
    let (block, thread) = (d.block(), d.thread());
    let b = &mut d.l.b;
    let (team, each) = (b.index(size as i64), b.index(per_block as i64));
    let (member, lane) = match per_block {
        1 => (b.index(0), thread),
        _ => (b.binary(Binary::FloorDiv, thread, team), b.binary(Binary::Mod, thread, team)),
    };
    let first = b.binary(Binary::Mul, block, each);
    let row = b.binary(Binary::Add, first, member);
    let exists = d.below(row, count, blocks * per_block);
    let axes = digits(&mut d.l.b, nest, row, &rows.outer, 1);
    d.l.push_limited(axes, exists);
    let mut w = Writer { d, rows, lane, exists, chunks: Vec::new() };
    match rows.keeping() {
        Keeping::Registers => w.kept(),
        Keeping::Memory => w.walked(),
    }
    w.d.l.pop_scope();
    w.d.finish()
}

struct Writer<'n, 'r> {
    d: Draft<'n>,
    rows: &'r Rows,
    /// Position of the thread in its team.
    lane: Reg,
    /// Whether the row exists, if that is not certain.
    exists: Option<Reg>,
    /// Those of each family.
    chunks: Vec<Vec<Chunk>>,
}

impl Writer<'_, '_> {
    /// All elements in registers.
    fn kept(&mut self) {
        let (nest, rows) = (self.d.l.nest, self.rows);
        for f in &rows.families {
            let trips = f.groups.div_ceil(rows.team.size);
            let chunks = (0..trips).map(|i| self.open(f, None, i, trips)).collect();
            self.chunks.push(chunks);
        }
        let bodies: Vec<NodeId> = reductions(nest).flat_map(|r| nest.nodes[r].op.children()).collect();
        let needed = needed(nest, &bodies);
        for (f, family) in rows.families.iter().enumerate() {
            let ahead = loads_along(nest, &family.axes, &needed);
            self.each_chunk(f, |w, _| ahead.iter().for_each(|&n| drop(w.d.l.value(n))));
        }
        for r in reductions(nest) {
            let f = self.family_of(nest.nodes[r].op.bound_axes());
            let mut accs = self.start(r, f);
            self.each_chunk(f, |w, inside| accs = w.take(r, &accs, inside));
            self.finish(r, accs);
        }
        self.results(|w, f| w.each_chunk(f, |w, inside| w.store(f, inside)));
    }

    /// Elements loaded again for each level of reductions.
    fn walked(&mut self) {
        let (nest, rows) = (self.d.l.nest, self.rows);
        let levels = levels(nest);
        self.chunks.extend(rows.families.iter().map(|_| Vec::new()));
        for level in 1..=rows.levels {
            for f in 0..rows.families.len() {
                let here: Vec<NodeId> = reductions(nest)
                    .filter(|&r| levels[r] == level && self.family_of(nest.nodes[r].op.bound_axes()) == f)
                    .collect();
                if here.is_empty() {
                    continue;
                }
                let mut accs: Vec<Vec<Vec<Reg>>> = here.iter().map(|&r| self.start(r, f)).collect();
                let bodies: Vec<NodeId> = here.iter().flat_map(|&r| nest.nodes[r].op.children()).collect();
                let carried: Vec<Reg> = accs.iter().flatten().flatten().copied().collect();
                let after = self.walk(f, &bodies, &carried, |w, inside, now| {
                    let mut now = now.into_iter();
                    let mut next = Vec::new();
                    for (&r, acc) in here.iter().zip(&mut accs) {
                        acc.iter_mut().flatten().for_each(|reg| *reg = now.next().expect("one a carried value"));
                        *acc = w.take(r, acc, inside);
                        next.extend(acc.iter().flatten().copied());
                    }
                    next
                });
                let mut after = after.into_iter();
                for (&r, mut acc) in here.iter().zip(accs) {
                    acc.iter_mut().flatten().for_each(|reg| *reg = after.next().expect("one a carried value"));
                    self.finish(r, acc);
                }
            }
        }
        self.results(|w, f| {
            w.walk(f, &nest.results, &[], |w, inside, _| {
                w.store(f, inside);
                Vec::new()
            });
        });
    }

    /// A loop over the chunks of a family, several a trip.
    fn walk(
        &mut self,
        f: usize,
        roots: &[NodeId],
        carried: &[Reg],
        mut body: impl FnMut(&mut Self, Option<Reg>, Vec<Reg>) -> Vec<Reg>,
    ) -> Vec<Reg> {
        let family = self.rows.families[f].clone();
        let step = self.rows.team.size * AHEAD;
        let (nest, b) = (self.d.l.nest, &mut self.d.l.b);
        let (begin, end) = (b.index(0), b.index(family.groups as i64));
        let l = b.open_loop(begin, end, step as i64, carried);
        let mut now: Vec<Reg> = l.args().collect();
        let trips = family.groups.div_ceil(step) * AHEAD;
        self.chunks[f] = (0..AHEAD).map(|i| self.open(&family, Some(l.var()), i, trips)).collect();
        let ahead = loads_along(nest, &family.axes, &needed(nest, roots));
        self.each_chunk(f, |w, _| ahead.iter().for_each(|&n| drop(w.d.l.value(n))));
        self.each_chunk(f, |w, inside| now = body(w, inside, std::mem::take(&mut now)));
        self.chunks[f].clear();
        self.d.l.b.close_loop(l, &now)
    }

    /// Binds a family's axes to a thread's groups number `i`, counted from a group on.
    fn open(&mut self, f: &Family, from: Option<Reg>, i: usize, trips: usize) -> Chunk {
        let (nest, size) = (self.d.l.nest, self.rows.team.size);
        let b = &mut self.d.l.b;
        let offset = b.index((i * size) as i64);
        let mut group = b.binary(Binary::Add, self.lane, offset);
        if let Some(from) = from {
            group = b.binary(Binary::Add, group, from);
        }
        let most = if from.is_some() { trips * size } else { (i + 1) * size };
        let inside = self.d.below(group, f.groups, most);
        let axes = digits(&mut self.d.l.b, nest, group, &f.axes, f.width);
        self.d.l.push_limited(axes, inside);
        Chunk { inside, scope: Some(self.d.l.take_scope()) }
    }

    fn each_chunk(&mut self, f: usize, mut body: impl FnMut(&mut Self, Option<Reg>)) {
        for i in 0..self.chunks[f].len() {
            let inside = self.chunks[f][i].inside;
            let scope = self.chunks[f][i].scope.take().expect("a chunk is open once at a time");
            self.d.l.put_scope(scope);
            body(self, inside);
            self.chunks[f][i].scope = Some(self.d.l.take_scope());
        }
    }

    fn family_of(&self, axes: &[Axis]) -> usize {
        self.rows.families.iter().position(|f| f.axes == axes).expect("every reduction has a family")
    }

    fn merge(&self, r: NodeId) -> Merge {
        let nest = self.d.l.nest;
        merge_of(nest, r)
    }

    /// Accumulators before the first element: one for each lane of a group.
    fn start(&mut self, r: NodeId, f: usize) -> Vec<Vec<Reg>> {
        let merge = self.merge(r);
        let one: Vec<Reg> = merge.identity().iter().map(|x| self.d.l.b.constant(*x)).collect();
        let mut all = vec![one; self.rows.families[f].width];
        // −0 changes nothing at all; that the first lane begins with +0 is enough for a sum of −0 to be +0.
        if let Merge::Values(Reduce::Sum, dtype) = merge
            && dtype.is_float()
        {
            let nothing = self.d.l.b.constant(Scalar::from_f64(dtype, -0.0));
            all.iter_mut().skip(1).for_each(|lane| *lane = vec![nothing]);
        }
        all
    }

    /// Accumulators after the elements at the current positions.
    fn take(&mut self, r: NodeId, accs: &[Vec<Reg>], inside: Option<Reg>) -> Vec<Vec<Reg>> {
        let next = accumulate(&mut self.d, r, accs, LanesRun::Along);
        let Some(inside) = inside else { return next };
        let keep = |d: &mut Draft<'_>, new: &[Reg], old: &[Reg]| -> Vec<Reg> {
            new.iter().zip(old).map(|(&n, &o)| d.l.b.select(inside, n, o)).collect()
        };
        next.iter().zip(accs).map(|(n, o)| keep(&mut self.d, n, o)).collect()
    }

    /// Combines lanes and threads, and says what the reduction's value is.
    fn finish(&mut self, r: NodeId, mut accs: Vec<Vec<Reg>>) {
        let merge = self.merge(r);
        while accs.len() > 1 {
            let half = accs.split_off(accs.len() / 2);
            accs = accs.iter().zip(&half).map(|(x, y)| merge.combine(&mut self.d.l.b, x, y)).collect();
        }
        let all = self.rows.team.combine(&mut self.d, merge, &accs[0]);
        let value = merge.outcome(&mut self.d.l.b, &all);
        self.d.l.define(r, Val::one(value));
    }

    /// Stores the results: along the row, or by one thread.
    fn results(&mut self, along: impl FnOnce(&mut Self, usize)) {
        if self.rows.has_elements() {
            let f = self.family_of(&self.rows.along);
            return along(self, f);
        }
        let b = &mut self.d.l.b;
        let zero = b.index(0);
        let mut leads = b.compare(Compare::Eq, self.lane, zero);
        if let Some(exists) = self.exists {
            leads = b.binary(Binary::And, leads, exists);
        }
        let only = self.rows.team.size == 1 && self.exists.is_none();
        self.d.when((!only).then_some(leads), |d| d.elements(1));
    }

    /// Stores the results at the current positions.
    fn store(&mut self, f: usize, inside: Option<Reg>) {
        let cond = match (inside, self.exists) {
            (Some(a), Some(b)) => Some(self.d.l.b.binary(Binary::And, a, b)),
            (a, b) => a.or(b),
        };
        let width = self.rows.families[f].width;
        self.d.when(cond, |d| d.elements(width));
    }
}
