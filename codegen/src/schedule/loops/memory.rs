//! Loads: contiguous ones as vectors, guarded ones behind a branch, uneven ones lane by lane. And stores.

use super::index::gcd;
use super::{Loops, Val, Vectors};
use crate::schedule::nest::NodeId;
use intwain_ir::DType;
use intwain_ir::compute::{Guard, Index};
use intwain_ir::kernel::{Block, Inst, Place, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar};

impl Loops<'_> {
    pub(super) fn load(&mut self, operand: usize, at: &Index, guards: &[Guard], fill: Scalar, width: usize) -> Val {
        let Some(open) = self.open_guards(guards) else { return self.constant(fill, width) };
        let (uneven, even): (Vec<Guard>, Vec<Guard>) =
            open.into_iter().partition(|g| self.lane_axis(g.index.axes()).is_some() && !self.is_even(g));
        let axes = guards.iter().fold(at.axes(), |s, g| s | g.index.axes());
        let cond = self.also_limit(axes, &even);
        let (reg, offset) = self.address(at);
        let dtype = fill.dtype();
        self.guarded(cond, fill, width, |l| {
            if uneven.is_empty() {
                let multiple = l.multiple(at);
                l.load_lanes(operand, at, (reg, offset, multiple), dtype, width)
            } else {
                l.load_edge(operand, at, &uneven, fill, width)
            }
        })
    }

    /// One condition for guards that no lane distinguishes and for the existence of the positions of these axes.
    fn also_limit(&mut self, axes: u64, guards: &[Guard]) -> Option<Reg> {
        let (limit, all) = (self.limit(axes), self.all_hold(guards));
        match (limit, all) {
            (Some(a), Some(b)) => Some(self.b.binary(Binary::And, a, b)),
            (a, b) => a.or(b),
        }
    }

    /// `f` where the condition holds, else `fill`.
    fn guarded(&mut self, cond: Option<Reg>, fill: Scalar, width: usize, f: impl FnOnce(&mut Self) -> Val) -> Val {
        let Some(cond) = cond else { return f(self) };
        let otherwise = self.constant(fill, width);
        self.b.open_block();
        self.push_scope(Vec::new());
        let v = f(self);
        let v =
            if v.is_single() && width > 1 { self.spread(v.regs[0], fill.dtype(), width, self.b.depth()) } else { v };
        self.pop_scope();
        let then = self.b.take_block();
        let merged = self.b.conditional(cond, (then, &v.regs), (Block::default(), &otherwise.regs));
        Val { regs: merged.into(), lanes: v.lanes }
    }

    /// An unguarded load. The address is known to be a multiple of the last of the three.
    fn load_lanes(
        &mut self,
        operand: usize,
        at: &Index,
        (reg, offset, multiple): (Reg, i64, i64),
        dtype: DType,
        width: usize,
    ) -> Val {
        let place = self.operands[operand];
        let (count, lanes) = self.layout(dtype, width);
        match self.lane_step(at) {
            Some(0) => Val::one(self.b.load(place, reg, offset, 1)),
            Some(1) if self.vectors == Vectors::Aligned => {
                let n = access_lanes(dtype, width, multiple);
                let mut regs = smallvec::SmallVec::new();
                for i in (0..width).step_by(n) {
                    let v = self.b.load(place, reg, offset + i as i64, n as u8);
                    match n {
                        1 => regs.push(v),
                        _ => {
                            regs.extend(self.scalars(Val { regs: smallvec::smallvec![v], lanes: n as u8 }, dtype).regs)
                        }
                    }
                }
                Val { regs, lanes: 1 }
            }
            Some(1) => {
                let each = |i: usize| offset + (i * lanes as usize) as i64;
                Val { regs: (0..count).map(|i| self.b.load(place, reg, each(i), lanes)).collect(), lanes }
            }
            Some(step) => {
                let lanes: Vec<Reg> =
                    (0..width).map(|i| self.b.load(place, reg, offset + i as i64 * step, 1)).collect();
                self.gather(lanes, dtype)
            }
            None => {
                let axis = self.lane_axis(at.axes()).expect("an uneven address has a lane axis");
                let lanes = self.per_lane(axis, width, |l| {
                    let (reg, offset) = l.address(at);
                    l.b.load(place, reg, offset, 1)
                });
                self.gather(lanes, dtype)
            }
        }
    }

    /// A load with guards that differ between lanes: one branch a lane.
    fn load_edge(&mut self, operand: usize, at: &Index, guards: &[Guard], fill: Scalar, width: usize) -> Val {
        let axes = guards.iter().fold(at.axes(), |s, g| s | g.index.axes());
        let axis = self.lane_axis(axes).expect("an uneven guard has a lane axis");
        let place = self.operands[operand];
        let lanes = self.per_lane(axis, width, |l| {
            let Some(open) = l.open_guards(guards) else { return l.constant(fill, 1).regs[0] };
            let cond = l.all_hold(&open);
            let (reg, offset) = l.address(at);
            l.guarded(cond, fill, 1, |l| Val::one(l.b.load(place, reg, offset, 1))).regs[0]
        });
        self.gather(lanes, fill.dtype())
    }

    /// A load at a row that is computed.
    pub(super) fn take(
        &mut self,
        operand: usize,
        at: &Index,
        (stride, rows, base): (i64, i64, i64),
        row: NodeId,
        width: usize,
    ) -> Val {
        let place = self.operands[operand];
        let dtype = self.b.place_type(place);
        let fill = Scalar::zero(dtype);
        let which = self.value(row);
        let from = self.nest.nodes[row].dtype;
        if let Some(r) = which.single() {
            let (mut cond, shift) = self.row_shift(r, stride, rows, base);
            if let Some(limit) = self.limit(at.axes()) {
                cond = self.b.binary(Binary::And, cond, limit);
            }
            let (reg, offset) = self.address(at);
            let reg = self.b.binary(Binary::Add, reg, shift);
            if self.lane_step(at).is_some() {
                let multiple = gcd(self.multiple(at), stride);
                return self.guarded(Some(cond), fill, width, |l| {
                    l.load_lanes(operand, at, (reg, offset, multiple), dtype, width)
                });
            }
        }
        let which = self.wide(row, width);
        let which = self.scalars(which, from);
        let axes = self.nest.nodes[row].free | at.axes();
        let axis = self.lane_axis(axes).expect("a wide look-up has a lane axis");
        let limit = self.limit(axes);
        let mut rows_left = which.regs.into_iter();
        let lanes = self.per_lane(axis, width, |l| {
            let r = rows_left.next().expect("one row a lane");
            let (mut cond, shift) = l.row_shift(r, stride, rows, base);
            if let Some(limit) = limit {
                cond = l.b.binary(Binary::And, cond, limit);
            }
            let (reg, offset) = l.address(at);
            let reg = l.b.binary(Binary::Add, reg, shift);
            l.guarded(Some(cond), fill, 1, |l| Val::one(l.b.load(place, reg, offset, 1))).regs[0]
        });
        self.gather(lanes, dtype)
    }

    /// Whether the row exists, and where it begins.
    fn row_shift(&mut self, row: Reg, stride: i64, rows: i64, base: i64) -> (Reg, Reg) {
        let row = self.b.cast(DType::I64, row);
        let base = self.b.index(base);
        let row = self.b.binary(Binary::Sub, row, base);
        let (zero, rows, stride) = (self.b.index(0), self.b.index(rows), self.b.index(stride));
        let low = self.b.compare(Compare::Ge, row, zero);
        let high = self.b.compare(Compare::Lt, row, rows);
        let cond = self.b.binary(Binary::And, low, high);
        (cond, self.b.binary(Binary::Mul, row, stride))
    }
}

/// How many elements one access moves: as many as 16 bytes hold, the lanes consist of, and the address allows.
pub(in crate::schedule) fn access_lanes(dtype: DType, width: usize, multiple: i64) -> usize {
    let fits =
        |n: &usize| n * dtype.size() <= 16 && width.is_multiple_of(*n) && (multiple == 0 || multiple % *n as i64 == 0);
    let most = if dtype.size() == 2 { 8 } else { 4 };
    [most, 4, 2].into_iter().find(fits).unwrap_or(1)
}

impl Loops<'_> {
    /// Writes a value of neighbouring elements, the first at `index`.
    pub(in crate::schedule) fn store(&mut self, to: Place, index: &Index, value: &Val) {
        let (reg, offset) = self.address(index);
        let width = value.regs.len() * value.lanes as usize;
        let dtype = self.b.place_type(to);
        let n = match self.vectors {
            Vectors::Held => 1,
            Vectors::Aligned => access_lanes(dtype, width, self.multiple(index)),
        };
        if n == 1 {
            for (i, &r) in value.regs.iter().enumerate() {
                self.b.store(to, reg, offset + (i * value.lanes as usize) as i64, r);
            }
            return;
        }
        let ty = RegType { dtype, lanes: n as u8 };
        for (i, lanes) in value.regs.chunks(n).enumerate() {
            let v = self.b.inst(ty, Inst::Pack(smallvec::SmallVec::from_slice(lanes)));
            self.b.store(to, reg, offset + (i * n) as i64, v);
        }
    }
}
