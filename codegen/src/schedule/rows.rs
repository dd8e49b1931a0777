//! The loop schedule: every result element is computed where it is stored, the innermost axis in vectors.
//!
//! The result's outer axes, as many as give enough independent work, are the kernel's tasks; the rest are loops. One
//! result axis, the innermost, is taken several positions at a time. Reductions whose value doesn't depend on it are
//! computed once per row; those whose elements lie along their own innermost axis run in vectors along that. Pointwise
//! work, row and column reductions, softmax, norms, windows, transpositions, look-ups and concatenations are all cases
//! of this one schedule, and so are contractions, as a fallback.
//!
//! Two refinements keep conditions out of inner loops. Where conditions depend on the vector axis alone, as in a
//! concatenation along it, the axis falls into intervals on which they are decided. Where they depend on a window's
//! position, as in padded pooling, one test per position tells whether the whole window lies inside.

use super::loops::{Bound, Loops, Vectors};
use super::nest::{Nest, NodeId, Op, coefficient};
use intwain_ir::Type;
use intwain_ir::compute::{Atom, Axis, Guard, Index, Order};
use intwain_ir::kernel::{Access, Block, Builder, Entry, Id, Kernel, Place, Reg};
use intwain_ir::scalar::{Binary, Compare};

/// Tasks wanted at least, so that threads can share the work evenly.
const TASKS: usize = 64;
/// Scalar operations worth a task of their own.
const TASK_WORK: usize = 1 << 14;
/// Most intervals that the vector axis is cut into.
const INTERVALS: usize = 16;

/// How the axes of a nest are run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Axes whose positions are numbered as tasks, outermost first.
    tasks: Vec<Axis>,
    /// Axes that are loops inside a task.
    loops: Vec<Axis>,
    /// The innermost axis and the number of its positions taken at a time.
    vector: Option<(Axis, usize)>,
    /// Positions of the vector axis in one task, if it is divided.
    block: Option<usize>,
}

impl Plan {
    /// A plan whose outer loops somebody else writes.
    pub(super) fn of_rows(vector: Option<(Axis, usize)>) -> Plan {
        Plan { tasks: Vec::new(), loops: Vec::new(), vector, block: None }
    }
}

/// Vectors or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// As fast as this schedule can.
    Fast,
    /// One element at a time, nothing merged or divided: the oracle of the other.
    Naive,
}

/// A kernel with the number of its tasks.
#[derive(Clone, Debug)]
pub(super) struct TaskKernel {
    pub(super) kernel: Kernel,
    pub(super) tasks: usize,
}

/// Parameters are the operands, then the results.
pub(super) fn schedule(name: &str, mut nest: Nest, operands: &[&Type], results: &[&Type], style: Style) -> TaskKernel {
    if style == Style::Fast {
        nest.merge();
    }
    let plan = plan(&nest, style);
    let bound = intwain_ir::kernel::Bound::Memory;
    let mut b = Builder::new(name, Entry::Tasks, bound);
    // A result may take an operand's place (`Target::updates_in_place`). Then the operand's element must be loaded before any
    // result is stored, which is sure for the one result that it goes into.
    let read = if results.len() > 1 { Access::Read } else { Access::Constant };
    let inputs: Vec<Place> = operands.iter().map(|t| b.param(t.dtype, t.shape.elements(), read)).collect();
    let outputs: Vec<Place> = results.iter().map(|t| b.param(t.dtype, t.shape.elements(), Access::Write)).collect();
    let (begin, end) = (b.id(Id::TaskBegin), b.id(Id::TaskEnd));
    let mut w = Writer { l: Loops::new(b, &nest, inputs, Vectors::Held), outputs, plan: &plan };
    let counts: Vec<usize> = plan.tasks.iter().map(|a| nest.extent(*a)).collect();
    let blocks = match (plan.vector, plan.block) {
        (Some((axis, _)), Some(block)) => nest.extent(axis).div_ceil(block),
        _ => 1,
    };
    let tasks = nest.axes.iter().all(|a| nest.extent(*a) > 0).then(|| counts.iter().product::<usize>() * blocks);
    if tasks.is_some() {
        w.tasks(begin, end, &counts, blocks);
    }
    TaskKernel { kernel: w.l.b.finish(), tasks: tasks.unwrap_or(0) }
}

fn plan(nest: &Nest, style: Style) -> Plan {
    let mut outer = nest.axes.clone();
    if style == Style::Naive {
        let loops = outer.split_off(outer.len().min(1));
        return Plan { tasks: outer, loops, vector: None, block: None };
    }
    let vector = outer.last().copied().and_then(|axis| Some((axis, width(nest, axis)?)));
    if vector.is_some() {
        outer.pop();
    }
    let mut tasks = Vec::new();
    let mut count = 1usize;
    while count < TASKS && !outer.is_empty() {
        let axis = outer.remove(0);
        count = count.saturating_mul(nest.extent(axis));
        tasks.push(axis);
    }
    let block = vector.and_then(|(axis, w)| {
        let extent = nest.extent(axis);
        let trips = reduce_trips(nest, Some(axis));
        let each = extent.saturating_mul(trips + ops_on(nest, axis)).saturating_mul(loop_trips(nest, &outer));
        let wanted = (TASKS / count.max(1)).min(each / TASK_WORK).max(1);
        let block = extent.div_ceil(wanted).next_multiple_of(w);
        (block < extent).then_some(block)
    });
    Plan { tasks, loops: outer, vector, block }
}

fn loop_trips(nest: &Nest, axes: &[Axis]) -> usize {
    axes.iter().map(|a| nest.extent(*a)).fold(1, usize::saturating_mul)
}

fn ops_on(nest: &Nest, axis: Axis) -> usize {
    nest.depends_on(axis).count()
}

/// Trips of the reductions that depend on `axis`.
fn reduce_trips(nest: &Nest, axis: Option<Axis>) -> usize {
    let of = |n: &super::nest::Node| axis.is_none_or(|a| n.free & (1 << a.0) != 0);
    nest.nodes.iter().filter(|n| of(n)).map(|n| loop_trips(nest, n.op.bound_axes())).filter(|&t| t > 1).sum()
}

/// How many positions of the innermost axis to take at a time; `None` where vectors gain nothing.
fn width(nest: &Nest, axis: Axis) -> Option<usize> {
    let extent = nest.extent(axis);
    if extent < 4 || coefficient(&nest.store, axis) != Some(1) || rows_are_better(nest, axis) {
        return None;
    }
    let reduces = nest.depends_on(axis).any(|n| loop_trips(nest, n.op.bound_axes()) > 1);
    let interleaved = nest.depends_on(axis).any(|n| matches!(n.op, Op::Reduce { order: Order::Lanes, .. }));
    let most = match (Loops::all_vectorize(nest, axis), interleaved, reduces) {
        (false, ..) | (_, true, _) => 4,
        (true, false, true) => 32,
        (true, false, false) => 8,
    };
    Some(most.min(1 << extent.ilog2()).max(4))
}

/// Whether an interleaved reduction of values that lie along its own axis depends on this axis: then vectors run along
/// the reduction.
fn rows_are_better(nest: &Nest, axis: Axis) -> bool {
    nest.depends_on(axis).any(|n| match &n.op {
        Op::Reduce { order: Order::Lanes, axes, body, .. } => {
            axes.last().is_some_and(|&inner| reads_along(nest, *body, inner, axis))
        }
        _ => false,
    })
}

fn reads_along(nest: &Nest, node: NodeId, inner: Axis, axis: Axis) -> bool {
    let n = &nest.nodes[node];
    let here = match &n.op {
        Op::Load { at, .. } => coefficient(at, inner) == Some(1) && !matches!(coefficient(at, axis), Some(0 | 1)),
        _ => false,
    };
    here || n.op.children().any(|c| reads_along(nest, c, inner, axis))
}

/// Writes the loops of a plan.
pub(super) struct Writer<'p, 'n> {
    pub(super) l: Loops<'n>,
    pub(super) outputs: Vec<Place>,
    pub(super) plan: &'p Plan,
}

/// Bounds of the vector axis in this task.
#[derive(Clone, Copy)]
pub(super) enum Span {
    /// All of it.
    Whole,
    /// Between two registers.
    Between(Reg, Reg),
}

impl Writer<'_, '_> {
    fn tasks(&mut self, begin: Reg, end: Reg, counts: &[usize], blocks: usize) {
        let l = self.l.b.open_loop(begin, end, 1, &[]);
        let mut rest = l.var();
        let mut span = Span::Whole;
        if let (Some((axis, _)), Some(block)) = (self.plan.vector, self.plan.block) {
            let b = &mut self.l.b;
            let (n, size, extent) =
                (b.index(blocks as i64), b.index(block as i64), b.index(self.l.nest.extent(axis) as i64));
            let which = if counts.is_empty() { rest } else { b.binary(Binary::Mod, rest, n) };
            rest = b.binary(Binary::FloorDiv, rest, n);
            let first = b.binary(Binary::Mul, which, size);
            let last = b.binary(Binary::Add, first, size);
            span = Span::Between(first, b.binary(Binary::Min, last, extent));
        }
        let mut axes = Vec::new();
        for (i, &axis) in self.plan.tasks.iter().enumerate().rev() {
            let b = &mut self.l.b;
            let n = b.index(counts[i] as i64);
            let base = if i == 0 { rest } else { b.binary(Binary::Mod, rest, n) };
            if i > 0 {
                rest = b.binary(Binary::FloorDiv, rest, n);
            }
            axes.push((axis, Bound::one(base, (0, counts[i] as i64 - 1))));
        }
        self.l.push_scope(axes);
        self.loops(0, span);
        self.l.pop_scope();
        self.l.b.close_loop(l, &[]);
    }

    fn loops(&mut self, at: usize, span: Span) {
        let Some(&axis) = self.plan.loops.get(at) else { return self.row(span) };
        let extent = self.l.nest.extent(axis) as i64;
        let (begin, end) = (self.l.b.index(0), self.l.b.index(extent));
        let l = self.l.b.open_loop(begin, end, 1, &[]);
        self.l.push_scope(vec![(axis, Bound::one(l.var(), (0, extent - 1)))]);
        self.loops(at + 1, span);
        self.l.pop_scope();
        self.l.b.close_loop(l, &[]);
    }

    /// The vector axis, or a single element.
    pub(super) fn row(&mut self, span: Span) {
        let Some((axis, width)) = self.plan.vector else { return self.elements(1) };
        match window_inside(self.l.nest, axis) {
            None => self.intervals(axis, width, span),
            Some((tests, taken)) => {
                let cond = self.l.test(&tests);
                self.l.b.open_block();
                self.l.push_scope(Vec::new());
                self.l.assume(taken);
                self.intervals(axis, width, span);
                self.l.forget();
                self.l.pop_scope();
                let inside = self.l.b.take_block();
                self.l.b.open_block();
                self.l.push_scope(Vec::new());
                self.intervals(axis, width, span);
                self.l.pop_scope();
                let edge: Block = self.l.b.take_block();
                self.l.b.conditional(cond, (inside, &[]), (edge, &[]));
            }
        }
    }

    fn intervals(&mut self, axis: Axis, width: usize, span: Span) {
        let extent = self.l.nest.extent(axis) as i64;
        let cuts = cuts(self.l.nest, axis);
        let ends = cuts.iter().copied().skip(1).chain([extent]);
        for (lo, hi) in cuts.iter().copied().zip(ends) {
            let b = &mut self.l.b;
            let (mut begin, mut end) = (b.index(lo), b.index(hi));
            if let Span::Between(first, last) = span {
                begin = b.binary(Binary::Max, begin, first);
                end = b.binary(Binary::Min, end, last);
                end = b.binary(Binary::Max, end, begin);
                if (lo, hi) == (0, extent) {
                    (begin, end) = (first, last);
                }
            }
            self.strips(axis, width, (begin, end), (lo, hi - 1));
        }
    }

    /// Positions `begin..end` in strips of `width`, then of 4, then of 1.
    pub(super) fn strips(&mut self, axis: Axis, width: usize, (begin, end): (Reg, Reg), range: (i64, i64)) {
        let mut at = begin;
        for w in [width, 4, 1] {
            if w > width || (w == 4 && width == 4 && at != begin) {
                continue;
            }
            let b = &mut self.l.b;
            let left = b.binary(Binary::Sub, end, at);
            let known = b.constant_of(left).map(|x| x.to_i64());
            if known.is_some_and(|n| n < w as i64) {
                continue;
            }
            let step = b.index(w as i64);
            let whole = b.binary(Binary::FloorDiv, left, step);
            let whole = b.binary(Binary::Mul, whole, step);
            let stop = if w == 1 { end } else { b.binary(Binary::Add, at, whole) };
            self.strip(axis, w, (at, stop), range, known);
            at = stop;
        }
    }

    fn strip(&mut self, axis: Axis, w: usize, (at, stop): (Reg, Reg), range: (i64, i64), known: Option<i64>) {
        let once = known.is_some_and(|n| n / w as i64 == 1);
        if once {
            let first = self.l.b.constant_of(at).map_or(range.0, |x| x.to_i64());
            self.l.push_scope(vec![(axis, Bound::lanes(at, w, (first, first + w as i64 - 1)))]);
            self.elements(w);
            self.l.pop_scope();
            return;
        }
        let l = self.l.b.open_loop(at, stop, w as i64, &[]);
        self.l.push_scope(vec![(axis, Bound::lanes(l.var(), w, range))]);
        self.elements(w);
        self.l.pop_scope();
        self.l.b.close_loop(l, &[]);
    }

    /// Computes and stores the results at the current positions.
    pub(super) fn elements(&mut self, width: usize) {
        let nest = self.l.nest;
        let values: Vec<_> = nest.results.iter().map(|&r| self.l.wide(r, width)).collect();
        for (v, &place) in values.iter().zip(&self.outputs) {
            self.l.store(place, &nest.store, v);
        }
    }
}

/// If windows with conditions are reduced at every position of the vector axis: tests that tell whether a whole
/// window lies inside, and the conditions that then hold.
pub(super) fn window_inside(nest: &Nest, vector: Axis) -> Option<(Vec<Guard>, Vec<Guard>)> {
    let reductions: Vec<_> = nest.nodes.iter().filter(|n| !n.op.bound_axes().is_empty()).collect();
    if reductions.is_empty() || reductions.iter().any(|n| n.free & (1 << vector.0) == 0) {
        return None;
    }
    let bound = reductions.iter().flat_map(|n| n.op.bound_axes()).fold(0u64, |s, a| s | 1 << a.0);
    let (mut tests, mut taken) = (Vec::new(), Vec::new());
    for n in &nest.nodes {
        let Op::Load { guards, .. } = &n.op else { continue };
        for g in guards {
            if g.index.axes() & bound == 0 || g.index.uses(vector) || taken.contains(g) {
                continue;
            }
            let test = swept(g, bound, nest)?;
            if !tests.contains(&test) {
                tests.push(test);
            }
            taken.push(g.clone());
        }
    }
    (!taken.is_empty()).then_some((tests, taken))
}

/// The condition that a guard holds for all positions of the bound axes; `None` if it never does or is no interval.
fn swept(g: &Guard, bound: u64, nest: &Nest) -> Option<Guard> {
    let (mut lo, mut hi) = (0, 0);
    let mut index = Index::constant(g.index.offset());
    for t in g.index.terms() {
        match &t.atom {
            Atom::Axis(a) if bound & (1 << a.0) != 0 => {
                let reach = t.coeff * (nest.extent(*a) as i64 - 1);
                lo += reach.min(0);
                hi += reach.max(0);
            }
            Atom::Axis(a) => index = index + Index::axis(*a).times(t.coeff),
            Atom::FloorDiv(..) | Atom::Mod(..) => return None,
        }
    }
    let swept = Guard { index, lo: g.lo - lo, hi: g.hi - hi };
    (swept.lo < swept.hi).then_some(swept)
}

/// Where conditions on the vector axis alone change: the first positions of the intervals.
fn cuts(nest: &Nest, axis: Axis) -> Vec<i64> {
    let extent = nest.extent(axis) as i64;
    let mut cuts = vec![0];
    for n in &nest.nodes {
        let (Op::Load { guards, .. } | Op::InRange(guards)) = &n.op else { continue };
        for g in guards.iter().filter(|g| g.index.axes() == 1 << axis.0) {
            let Some(c) = coefficient(&g.index, axis).filter(|c| *c > 0) else { continue };
            for bound in [g.lo, g.hi] {
                // The first position at which the index reaches the bound.
                let at = -(g.index.offset() - bound).div_euclid(c);
                if at > 0 && at < extent {
                    cuts.push(at);
                }
            }
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    if cuts.len() > INTERVALS { vec![0] } else { cuts }
}

impl Loops<'_> {
    /// One condition for conditions that no lane distinguishes.
    fn test(&mut self, guards: &[Guard]) -> Reg {
        match self.all_hold(guards) {
            Some(r) => r,
            None => {
                let zero = self.b.index(0);
                self.b.compare(Compare::Eq, zero, zero)
            }
        }
    }
}
