//! Loads: contiguous ones as vectors, guarded ones behind a branch, uneven ones lane by lane.

use super::{Loops, Val, value};
use crate::schedule::nest::NodeId;
use intwain_ir::DType;
use intwain_ir::compute::{Guard, Index};
use intwain_ir::kernel::{Block, Reg};
use intwain_ir::scalar::{Binary, Compare, Scalar};

impl Loops<'_> {
    pub(super) fn load(&mut self, operand: usize, at: &Index, guards: &[Guard], fill: Scalar, width: usize) -> Val {
        let Some(open) = self.open_guards(guards) else { return self.constant(fill, width) };
        let (uneven, even): (Vec<Guard>, Vec<Guard>) =
            open.into_iter().partition(|g| self.lane_axis(g.index.axes()).is_some());
        let cond = self.all_hold(&even);
        let (reg, offset) = self.address(at);
        let dtype = fill.dtype();
        self.guarded(cond, fill, width, |l| {
            if uneven.is_empty() {
                l.load_lanes(operand, at, (reg, offset), dtype, width)
            } else {
                l.load_edge(operand, at, &uneven, fill, width)
            }
        })
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

    /// An unguarded load.
    fn load_lanes(&mut self, operand: usize, at: &Index, (reg, offset): (Reg, i64), dtype: DType, width: usize) -> Val {
        let place = self.operands[operand];
        let (count, lanes) = value::layout(dtype, width);
        match self.lane_step(at) {
            Some(0) => Val::one(self.b.load(place, reg, offset, 1)),
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
            let (cond, shift) = self.row_shift(r, stride, rows, base);
            let (reg, offset) = self.address(at);
            let reg = self.b.binary(Binary::Add, reg, shift);
            if self.lane_step(at).is_some() {
                return self
                    .guarded(Some(cond), fill, width, |l| l.load_lanes(operand, at, (reg, offset), dtype, width));
            }
        }
        let which = self.wide(row, width);
        let which = self.scalars(which, from);
        let axis = self.lane_axis(self.nest.nodes[row].free | at.axes()).expect("a wide look-up has a lane axis");
        let mut rows_left = which.regs.into_iter();
        let lanes = self.per_lane(axis, width, |l| {
            let r = rows_left.next().expect("one row a lane");
            let (cond, shift) = l.row_shift(r, stride, rows, base);
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
