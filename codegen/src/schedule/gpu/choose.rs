//! Which schedule computes a nest, and in how many launches.
//!
//! Contractions: [`tensor`] where factors have 16 bits or may be rounded, else [`product`]. Without reductions:
//! [`pointwise`], or [`transpose`] where something is read along another axis. Reductions of few elements run inside a
//! thread of that schedule. Others run along rows where their elements lie next to each other ([`rows`]), else along
//! columns ([`columns`]). Where few results are reduced from
//! many elements, segments of them are reduced in a first launch and combined in a second. What no schedule computes in
//! one launch is divided: reductions first, which a later launch reads.

use super::columns::{self, Columns};
use super::launch::{Array, Arrays, positions};
use super::rows::{self, Rows};
use super::shape::{self, Segments, Split, divide, normalise, reductions};
use super::transpose::Transposed;
use super::{ALIGNMENT, Argument, GpuKernel, Launch, Precision, pointwise, product, tensor, transpose};
use crate::schedule::nest::{Nest, Node, NodeId, Op, coefficient};
use crate::schedule::rows::window_inside;
use intwain_ir::DType;
use intwain_ir::compute::{Axis, Order};

/// Elements that a thread reduces alone, at most, where they don't lie next to each other.
const ALONE: usize = 16;
/// The same for windows with conditions, where results are many.
const WINDOW: usize = 256;
/// Results that make enough threads for that.
const MANY: usize = 1 << 14;
/// Elements that lie next to each other that a thread reduces alone, at most.
const NEIGHBOURS: usize = 4;
/// Teams wanted at least, so that a device is busy.
const TEAMS: usize = 264;
/// Elements of a row worth a team of their own.
const SEGMENT: usize = 4096;
/// Elements of a column worth a block of their own.
const COLUMN: usize = 256;

/// Chooses schedules for a nest.
pub(super) fn schedule(name: &str, mut nest: Nest, arrays: &Arrays, precision: Precision) -> GpuKernel {
    if positions(&nest, &nest.axes) == 0 {
        return GpuKernel { launches: Vec::new(), workspace: 0, schedule: "nothing" };
    }
    if let Some(kernel) = tensor::schedule(name, &nest, arrays, precision, None) {
        return kernel;
    }
    if let Some(kernel) = product::schedule(name, &nest, arrays) {
        return kernel;
    }
    normalise(&mut nest);
    let mut p = Program { name, launches: Vec::new(), workspace: 0 };
    let schedule = p.add(&nest, arrays);
    if p.launches.len() > 1 {
        for (i, l) in p.launches.iter_mut().enumerate() {
            l.kernel.name = format!("{}_{}", l.kernel.name, i + 1);
        }
    }
    GpuKernel { launches: p.launches, workspace: p.workspace, schedule }
}

/// Launches so far.
struct Program<'a> {
    name: &'a str,
    launches: Vec<Launch>,
    workspace: usize,
}

impl Program<'_> {
    /// Adds the launches that compute a nest; gives the name of what they do.
    fn add(&mut self, nest: &Nest, arrays: &Arrays) -> &'static str {
        if positions(nest, &nest.axes) == 0 {
            return "nothing";
        }
        if let Some(t) = Transposed::find(nest) {
            self.launches.push(transpose::launch(self.name, nest, arrays, &t));
            return "transpose";
        }
        if reductions(nest).next().is_none() {
            self.launches.push(pointwise::launch(self.name, nest, arrays));
            return "pointwise";
        }
        // A tree keeps its order: a thread computes it whole.
        if has_tree(nest) && self.add_divided(nest, arrays) {
            return "stages";
        }
        if in_threads(nest) || has_tree(nest) {
            self.launches.push(pointwise::launch(self.name, nest, arrays));
            return "windows";
        }
        let types: Vec<DType> = arrays.results.iter().map(|a| a.dtype).collect();
        if let Some(r) = Rows::new(nest, &types).filter(|_| direction(nest) == Direction::Rows) {
            let few = r.count(nest) < TEAMS;
            if few
                && let Some(length) = segments(nest, r.count(nest), TEAMS, SEGMENT)
                && let Some(split) = shape::split(nest, length, Segments::Innermost, arrays.operands.len())
            {
                self.add_split(&split, arrays);
                return "rows in segments";
            }
            if r.one_pass() || !few {
                self.launches.push(rows::launch(self.name, nest, arrays, &r));
                return if r.one_pass() { "rows" } else { "rows, read again" };
            }
        }
        if is_flat(nest) {
            let c = Columns::new(nest, &types);
            if let Some(length) = segments(nest, c.blocks(), TEAMS, COLUMN)
                && let Some(split) = shape::split(nest, length, Segments::Outermost, arrays.operands.len())
            {
                self.add_split(&split, arrays);
                return "columns in segments";
            }
            self.launches.push(columns::launch(self.name, nest, arrays, c));
            return "columns";
        }
        if self.add_divided(nest, arrays) {
            return "stages";
        }
        self.launches.push(pointwise::launch(self.name, nest, arrays));
        "windows"
    }

    /// Partial results of segments, then what follows from them.
    fn add_split(&mut self, split: &Split, arrays: &Arrays) {
        let made = self.temporary(&split.partial);
        self.add(&split.partial, &Arrays { operands: arrays.operands.clone(), results: made.clone() });
        self.add(&split.combined, &with(arrays, made));
    }

    /// The innermost reductions, then what follows from them; nothing if that is the nest itself.
    fn add_divided(&mut self, nest: &Nest, arrays: &Arrays) -> bool {
        let inner: Vec<NodeId> = reductions(nest).filter(|&r| is_innermost(nest, r)).collect();
        let Some(&first) = inner.first() else { return false };
        let group: Vec<NodeId> = inner.into_iter().filter(|&r| nest.nodes[r].free == nest.nodes[first].free).collect();
        if nest.results == group {
            return false;
        }
        let (before, after) = divide(nest, &group, arrays.operands.len());
        let made = self.temporary(&before);
        self.add(&before, &Arrays { operands: arrays.operands.clone(), results: made.clone() });
        self.add(&after, &with(arrays, made));
        true
    }

    /// Memory for the results of a nest that later launches read.
    fn temporary(&mut self, nest: &Nest) -> Vec<Array> {
        let elements = positions(nest, &nest.axes);
        let mut array = |r: &NodeId| {
            let dtype = nest.nodes[*r].dtype;
            let at = self.workspace;
            self.workspace = (at + elements * dtype.size()).next_multiple_of(ALIGNMENT as usize);
            Array { dtype, elements, argument: Argument::Workspace(at) }
        };
        nest.results.iter().map(&mut array).collect()
    }
}

/// Arrays with more operands.
fn with(arrays: &Arrays, more: Vec<Array>) -> Arrays {
    let operands = arrays.operands.iter().copied().chain(more).collect();
    Arrays { operands, results: arrays.results.clone() }
}

/// Whether no other reduction lies below.
fn is_innermost(nest: &Nest, r: NodeId) -> bool {
    fn none(nest: &Nest, n: NodeId) -> bool {
        nest.nodes[n].op.bound_axes().is_empty() && nest.nodes[n].op.children().all(|c| none(nest, c))
    }
    nest.nodes[r].op.children().all(|c| none(nest, c))
}

/// Whether no reduction depends on another, and all on every result axis.
fn is_flat(nest: &Nest) -> bool {
    let all = nest.axes.iter().fold(0u64, |s, a| s | 1 << a.0);
    reductions(nest).all(|r| nest.nodes[r].free == all && is_innermost(nest, r))
}

/// Whether the order of a reduction is a tree.
fn has_tree(nest: &Nest) -> bool {
    reductions(nest).any(|r| matches!(nest.nodes[r].op, Op::Reduce { order: Order::Tree, .. }))
}

/// Whether threads reduce alone: few elements, all of which differ from result to result.
fn in_threads(nest: &Nest) -> bool {
    let many = positions(nest, &nest.axes) >= MANY;
    let most = match direction(nest) {
        Direction::Rows => NEIGHBOURS,
        Direction::Columns if many && nest.axes.last().is_some_and(|&a| window_inside(nest, a).is_some()) => WINDOW,
        Direction::Columns => ALONE,
    };
    is_flat(nest) && reductions(nest).all(|r| positions(nest, nest.nodes[r].op.bound_axes()) <= most)
}

/// Along what neighbouring elements in memory are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// The innermost axis of reductions.
    Rows,
    /// The innermost axis of results.
    Columns,
}

fn direction(nest: &Nest) -> Direction {
    let inner: Vec<Axis> = reductions(nest).filter_map(|r| nest.nodes[r].op.bound_axes().last().copied()).collect();
    let own = nest.axes.last().filter(|a| !inner.contains(a));
    let (mut rows, mut columns) = (0usize, 0usize);
    for n in &nest.nodes {
        let (Op::Load { at, .. } | Op::Take { at, .. }) = &n.op else { continue };
        let axes: Vec<Axis> = (0..nest.extents.len() as u8).map(Axis).filter(|a| n.free & (1 << a.0) != 0).collect();
        let weight = positions(nest, &axes);
        if inner.iter().any(|a| coefficient(at, *a) == Some(1)) {
            rows = rows.saturating_add(weight);
        } else if own.is_some_and(|a| coefficient(at, *a) == Some(1)) {
            columns = columns.saturating_add(weight);
        }
    }
    if rows >= columns { Direction::Rows } else { Direction::Columns }
}

/// How long segments of the outermost reduced axis should be, so that `results` come in at least `wanted` pieces of at
/// least `least` elements; `None` where they are not to be divided: reductions of reductions, along results, or along
/// different axes.
fn segments(nest: &Nest, results: usize, wanted: usize, least: usize) -> Option<usize> {
    let lists: Vec<&[Axis]> = reductions(nest).map(|r| nest.nodes[r].op.bound_axes()).collect();
    let outermost = *lists.first()?.first()?;
    if !is_flat(nest) || lists.iter().any(|l| l.first() != Some(&outermost)) || nest.axes.contains(&outermost) {
        return None;
    }
    let (extent, elements) = (nest.extent(outermost), positions(nest, lists[0]));
    let pieces = (wanted / results.max(1)).min(elements / least).min(extent);
    if pieces < 2 {
        return None;
    }
    let length = extent.div_ceil(pieces);
    // Groups stay whole where the axis itself is made of them.
    let unit = if lists[0].len() == 1 { 8 } else { 1 };
    Some(length.next_multiple_of(unit)).filter(|l| *l < extent)
}

/// Whether one kernel computes a nest as fast as several would: a contraction must stay one, elements must not be read
/// more often than several kernels would read them, and what is reduced must lie in memory as its loop runs.
pub(super) fn fuses(nest: &Nest, arrays: &Arrays, precision: Precision) -> bool {
    if tensor::takes(nest, precision) || product::takes(nest, arrays.operands.len()) {
        return true;
    }
    if reductions(nest).any(|r| is_contraction(nest, r)) {
        return false;
    }
    let mut nest = nest.clone();
    normalise(&mut nest);
    if reductions(&nest).next().is_none() || in_threads(&nest) {
        return true;
    }
    if has_tree(&nest) {
        return is_flat(&nest);
    }
    let types: Vec<DType> = arrays.results.iter().map(|a| a.dtype).collect();
    let rows = direction(&nest) == Direction::Rows && Rows::new(&nest, &types).is_some_and(|r| r.one_pass());
    let sizes = large_loads(&nest);
    let strays = sizes.iter().any(|&n| strays(&nest, &nest.nodes[n].op));
    !strays && (rows || is_flat(&nest) || sizes.len() <= 1)
}

/// Whether a reduction is a sum of products whose factors don't both run along the results.
fn is_contraction(nest: &Nest, r: NodeId) -> bool {
    let Op::Reduce { order: Order::Fma, body, .. } = nest.nodes[r].op else { return false };
    let inner = nest.axes.last().map_or(0, |a| 1u64 << a.0);
    nest.nodes[r].dtype.is_float() && nest.nodes[body].op.children().any(|c| nest.nodes[c].free & inner == 0)
}

/// The loads of at least half as many elements as the largest.
fn large_loads(nest: &Nest) -> Vec<NodeId> {
    let size = |n: &Node| {
        let axes: Vec<Axis> = (0..nest.extents.len() as u8).map(Axis).filter(|a| n.free & (1 << a.0) != 0).collect();
        positions(nest, &axes)
    };
    let loads = || nest.nodes.iter().enumerate().filter(|(_, n)| matches!(n.op, Op::Load { .. } | Op::Take { .. }));
    let most = loads().map(|(_, n)| size(n)).max().unwrap_or(0);
    loads().filter(|(_, n)| 2 * size(n) > most).map(|(i, _)| i).collect()
}

/// Whether neighbouring elements read lie neither along the innermost reduced axis nor along the results.
fn strays(nest: &Nest, op: &Op) -> bool {
    let (Op::Load { at, .. } | Op::Take { at, .. }) = op else { return false };
    let inner = reductions(nest).filter_map(|r| nest.nodes[r].op.bound_axes().last());
    !inner.chain(nest.axes.last()).any(|a| coefficient(at, *a) == Some(1))
}
