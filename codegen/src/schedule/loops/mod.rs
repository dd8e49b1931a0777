//! From expressions to instructions, inside loops.
//!
//! A *scope* is an open block of the kernel in which some axes have positions. The value of a node belongs to the
//! innermost scope that binds one of its free axes (its *home*): it is emitted there, once, however deep the loop that
//! first asks for it. So row statistics are computed once a row and addresses are hoisted without a pass of their own.
//!
//! One axis at a time may be bound to several neighbouring positions: nodes that depend on it are then
//! [`Val`]s of that width, vectors where the machine has them.

mod index;
mod memory;
mod place;
mod reduce;
mod value;

pub(super) use index::moves_groups;
pub(super) use memory::access_lanes;
pub(super) use value::Val;
use value::vectorizes;

use super::nest::{Nest, NodeId, Op, range};
use intwain_ir::DType;
use intwain_ir::compute::{Axis, Guard, Index};
use intwain_ir::kernel::{Builder, Inst, Place, Reg, RegType, Suspended};
use intwain_ir::scalar::{Binary, Scalar};
use std::collections::HashMap;

/// Where an axis stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// The position, or the first of `width`.
    pub(super) base: Reg,
    /// Number of neighbouring positions.
    pub(super) width: usize,
    /// Least and greatest position, over all lanes and trips.
    pub(super) range: (i64, i64),
    /// What the first position is known to be a multiple of.
    pub(super) multiple: i64,
}

impl Bound {
    /// At one position.
    pub(super) fn one(base: Reg, range: (i64, i64)) -> Bound {
        Bound::lanes(base, 1, range)
    }

    /// At `width` neighbouring positions from `base` on.
    pub(super) fn lanes(base: Reg, width: usize, range: (i64, i64)) -> Bound {
        Bound { base, width, range, multiple: 1 }
    }

    /// The first position is a multiple of `n`.
    pub(super) fn multiple_of(self, n: i64) -> Bound {
        Bound { multiple: n, ..self }
    }
}

/// How values of several lanes are held, and which accesses move several elements at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vectors {
    /// In vectors of four where the machine has them, loaded and stored at any address.
    Held,
    /// One element a register. Accesses are vectors of up to 16 bytes where the address is proven a multiple of the
    /// vector's size, else single elements.
    Aligned,
}

struct Scope {
    /// Depth of the block in the builder.
    depth: usize,
    axes: Vec<(Axis, Bound)>,
    values: HashMap<NodeId, Val>,
    guards: HashMap<Guard, Reg>,
    indices: HashMap<Index, Reg>,
    /// Whether the positions exist: loads that depend on the scope's axes happen under this condition.
    limit: Option<Reg>,
}

/// A scope set aside with the values computed in it; see [`Loops::put_scope`].
pub(super) struct Saved(Scope);

/// A kernel being written from a nest.
pub(super) struct Loops<'n> {
    pub(super) b: Builder,
    pub(super) nest: &'n Nest,
    pub(super) operands: Vec<Place>,
    vectors: Vectors,
    scopes: Vec<Scope>,
    /// Guards that hold here because a condition around this code says so.
    assumed: Vec<Guard>,
}

/// Scopes and blocks set aside while an outer scope is written to.
struct Aside {
    scopes: Vec<Scope>,
    blocks: Suspended,
}

impl<'n> Loops<'n> {
    pub(super) fn new(b: Builder, nest: &'n Nest, operands: Vec<Place>, vectors: Vectors) -> Loops<'n> {
        let mut l = Loops { b, nest, operands, vectors, scopes: Vec::new(), assumed: Vec::new() };
        l.push_scope(Vec::new());
        l
    }

    /// Opens a scope in the innermost block.
    pub(super) fn push_scope(&mut self, axes: Vec<(Axis, Bound)>) {
        self.push_limited(axes, None);
    }

    /// Opens a scope whose positions exist only where the condition holds: elsewhere, what depends on its axes has any
    /// value, and nothing is loaded.
    pub(super) fn push_limited(&mut self, axes: Vec<(Axis, Bound)>, limit: Option<Reg>) {
        self.scopes.push(Scope {
            depth: self.b.depth(),
            axes,
            values: HashMap::new(),
            guards: HashMap::new(),
            indices: HashMap::new(),
            limit,
        });
    }

    pub(super) fn pop_scope(&mut self) {
        self.scopes.pop();
    }

    /// Closes the innermost scope but keeps what was computed in it.
    pub(super) fn take_scope(&mut self) -> Saved {
        Saved(self.scopes.pop().expect("a scope is open"))
    }

    /// Reopens a scope in the block where it was; the scopes around it are those that were.
    pub(super) fn put_scope(&mut self, saved: Saved) {
        debug_assert_eq!(saved.0.depth, self.b.depth(), "a scope is reopened in its block");
        self.scopes.push(saved.0);
    }

    /// Says what the value of a node is, for all that lies in the innermost scope.
    pub(super) fn define(&mut self, node: NodeId, value: Val) {
        let home = self.home(self.nest.nodes[node].free);
        self.scopes[home].values.insert(node, value);
    }

    /// Whether the positions of these axes exist, where that is not certain.
    fn limit(&mut self, axes: u64) -> Option<Reg> {
        let binds = |s: &Scope| s.axes.iter().any(|(a, _)| axes & (1 << a.0) != 0);
        let mut limits: Vec<Reg> = self.scopes.iter().filter(|s| binds(s)).filter_map(|s| s.limit).collect();
        limits.dedup();
        limits.into_iter().reduce(|a, c| self.b.binary(Binary::And, a, c))
    }

    /// Guards that the code up to [`Loops::forget`] may take for granted.
    pub(super) fn assume(&mut self, guards: Vec<Guard>) {
        self.assumed = guards;
    }

    pub(super) fn forget(&mut self) {
        self.assumed.clear();
    }

    fn bound(&self, axis: Axis) -> Option<Bound> {
        self.scopes.iter().rev().find_map(|s| s.axes.iter().find(|(a, _)| *a == axis).map(|(_, b)| *b))
    }

    fn range_of(&self, axis: Axis) -> (i64, i64) {
        match self.bound(axis) {
            Some(b) => b.range,
            None => (0, self.nest.extent(axis) as i64 - 1),
        }
    }

    /// The innermost scope that binds one of the axes.
    fn home(&self, axes: u64) -> usize {
        let binds = |s: &Scope| s.axes.iter().any(|(a, _)| axes & (1 << a.0) != 0);
        self.scopes.iter().rposition(binds).unwrap_or(0)
    }

    /// Number of positions that something depending on these axes has here.
    fn width(&self, axes: u64) -> usize {
        let mut rest = axes;
        let mut width = 1;
        while rest != 0 {
            let axis = Axis(rest.trailing_zeros() as u8);
            width = width.max(self.bound(axis).map_or(1, |b| b.width));
            rest &= rest - 1;
        }
        width
    }

    /// The axis that is bound to several positions, if the set has one.
    fn lane_axis(&self, axes: u64) -> Option<Axis> {
        (0..64).map(Axis).find(|a| axes & (1 << a.0) != 0 && self.bound(*a).is_some_and(|b| b.width > 1))
    }

    fn enter(&mut self, home: usize) -> Aside {
        let depth = self.scopes[home].depth;
        Aside { scopes: self.scopes.split_off(home + 1), blocks: self.b.suspend(depth) }
    }

    fn leave(&mut self, aside: Aside) {
        self.b.resume(aside.blocks);
        self.scopes.extend(aside.scopes);
    }

    /// The value of a node at the current positions.
    pub(super) fn value(&mut self, node: NodeId) -> Val {
        let home = self.home(self.nest.nodes[node].free);
        if let Some(v) = self.scopes[home].values.get(&node) {
            return v.clone();
        }
        let aside = self.enter(home);
        let v = self.emit(node);
        self.leave(aside);
        self.scopes[home].values.insert(node, v.clone());
        v
    }

    /// The value of a node in `width` lanes.
    pub(super) fn wide(&mut self, node: NodeId, width: usize) -> Val {
        let v = self.value(node);
        if width == 1 || !v.is_single() {
            return v;
        }
        let dtype = self.nest.nodes[node].dtype;
        let depth = self.scopes[self.home(self.nest.nodes[node].free)].depth;
        self.spread(v.regs[0], dtype, width, depth)
    }

    /// One element in `width` lanes; the copy stands in the block at `depth`.
    fn spread(&mut self, x: Reg, dtype: DType, width: usize, depth: usize) -> Val {
        let (count, lanes) = self.layout(dtype, width);
        let x = match lanes {
            1 => x,
            _ => self.b.inst_at(depth, RegType { dtype, lanes }, Inst::Splat(x)),
        };
        Val { regs: smallvec::SmallVec::from_elem(x, count), lanes }
    }

    fn constant(&mut self, x: Scalar, width: usize) -> Val {
        let (count, lanes) = self.layout(x.dtype(), width);
        let r = self.b.inst_at(0, RegType { dtype: x.dtype(), lanes }, Inst::Const(x));
        Val { regs: smallvec::SmallVec::from_elem(r, count), lanes }
    }

    fn emit(&mut self, node: NodeId) -> Val {
        let nest = self.nest;
        let n = &nest.nodes[node];
        let width = self.width(n.free);
        let dtype_of = |id: NodeId| nest.nodes[id].dtype;
        match &n.op {
            Op::Const(x) => self.constant(*x, 1),
            Op::Position(i) => self.position(n.dtype, i, width),
            Op::InRange(guards) => self.in_range(guards, width),
            Op::Load { operand, at, guards, fill } => self.load(*operand, at, guards, *fill, width),
            Op::Take { operand, at, stride, rows, row, base } => {
                self.take(*operand, at, (*stride, *rows, *base), *row, width)
            }
            Op::Unary(op, x) => {
                let v = self.wide(*x, width);
                let each = v.map(|r| self.b.unary(*op, r));
                self.reshape(each, n.dtype, width)
            }
            Op::Binary(op, x, y) => {
                let (v, w) = (self.wide(*x, width), self.wide(*y, width));
                v.zip(&w, |a, b| self.b.binary(*op, a, b))
            }
            Op::Compare(op, x, y) => {
                let (v, w) = (self.wide(*x, width), self.wide(*y, width));
                let each = v.zip(&w, |a, b| self.b.compare(*op, a, b));
                self.reshape(each, DType::Bool, width)
            }
            Op::Select(c, x, y) => self.select(*c, *x, *y, n.dtype, width),
            Op::Cast(x) => {
                let v = self.wide(*x, width);
                let (from, to) = (dtype_of(*x), n.dtype);
                // In the narrower of the two forms.
                let v = if vectorizes(to) { v } else { self.scalars(v, from) };
                let each = v.map(|r| self.b.cast(to, r));
                self.reshape(each, to, width)
            }
            Op::Reduce { op, axes, order, body } => self.reduce(*op, axes, *order, *body, width),
            Op::ArgMax { axes, body } => self.arg_max(axes, *body, width),
        }
    }

    fn select(&mut self, c: NodeId, x: NodeId, y: NodeId, dtype: DType, width: usize) -> Val {
        let cond = self.value(c);
        if let Some(known) = cond.single().and_then(|r| self.b.constant_of(r)) {
            return self.wide(if known.bits() != 0 { x } else { y }, width);
        }
        let cond = self.wide(c, width);
        let (v, w) = (self.wide(x, width), self.wide(y, width));
        let cond = if vectorizes(dtype) { cond } else { self.scalars(cond, DType::Bool) };
        Val {
            regs: (0..v.regs.len()).map(|i| self.b.select(cond.regs[i], v.regs[i], w.regs[i])).collect(),
            lanes: v.lanes,
        }
    }

    /// Whether a guard surely holds or surely fails here.
    fn known_guard(&self, g: &Guard) -> Option<bool> {
        if self.assumed.contains(g) {
            return Some(true);
        }
        let (lo, hi) = range(&g.index, &|a| self.range_of(a));
        if g.lo <= lo && hi < g.hi {
            Some(true)
        } else if hi < g.lo || g.hi <= lo {
            Some(false)
        } else {
            None
        }
    }

    /// The guards still to be tested here; `None` if one of them surely fails.
    fn open_guards(&self, guards: &[Guard]) -> Option<Vec<Guard>> {
        let mut open = Vec::new();
        for g in guards {
            match self.known_guard(g) {
                Some(true) => {}
                Some(false) => return None,
                None => open.push(g.clone()),
            }
        }
        Some(open)
    }

    /// One condition for guards that no lane distinguishes.
    pub(super) fn all_hold(&mut self, guards: &[Guard]) -> Option<Reg> {
        let mut all: Option<Reg> = None;
        for g in guards {
            let c = self.guard(g);
            all = Some(match all {
                None => c,
                Some(a) => self.b.binary(Binary::And, a, c),
            });
        }
        all
    }

    fn in_range(&mut self, guards: &[Guard], width: usize) -> Val {
        let bool = |x: bool| Scalar::from_i64(DType::Bool, i64::from(x));
        let Some(open) = self.open_guards(guards) else { return self.constant(bool(false), 1) };
        if open.is_empty() {
            return self.constant(bool(true), 1);
        }
        let uneven = open.iter().filter(|g| !self.is_even(g)).fold(0, |s, g| s | g.index.axes());
        let Some(axis) = self.lane_axis(uneven) else {
            let r = self.all_hold(&open).expect("there are guards");
            return if width == 1 { Val::one(r) } else { self.spread(r, DType::Bool, width, self.b.depth()) };
        };
        let lanes = self.per_lane(axis, width, |l| l.all_hold(&open).expect("there are guards"));
        self.gather(lanes, DType::Bool)
    }

    /// Runs `f` once for each lane, with the lane axis bound to that lane's position.
    fn per_lane<T>(&mut self, axis: Axis, width: usize, mut f: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let b = self.bound(axis).expect("the lane axis is bound");
        (0..width)
            .map(|i| {
                let offset = self.b.index(i as i64);
                let base = self.b.binary(Binary::Add, b.base, offset);
                let last = (width - 1 - i) as i64;
                let range = (b.range.0 + i as i64, b.range.1 - last);
                self.push_scope(vec![(axis, Bound::one(base, range))]);
                let y = f(self);
                self.pop_scope();
                y
            })
            .collect()
    }
}
