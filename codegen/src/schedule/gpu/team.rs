//! Combining values across the threads of a team: butterflies inside a warp, shared memory across warps.
//!
//! The order is fixed by the team's size, so results are the same in every run; every thread of the team gets them.

use super::launch::Draft;
use intwain_ir::DType;
use intwain_ir::kernel::{Builder, Inst, Reg, RegType, Shuffle, Stmt};
use intwain_ir::scalar::{Binary, Compare, Reduce, Scalar, Unary};

/// Lanes of a warp.
pub(super) const WARP: usize = 32;

/// How two partial results become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Merge {
    /// A reduction of values of a type.
    Values(Reduce, DType),
    /// A value and the position of its first occurrence, i32; a NaN is greatest.
    Greatest(DType),
}

impl Merge {
    /// The partial result of nothing.
    pub(super) fn identity(self) -> Vec<Scalar> {
        match self {
            Merge::Values(op, dtype) => vec![op.identity(dtype)],
            Merge::Greatest(dtype) => vec![Scalar::lowest(dtype), Scalar::highest(DType::I32)],
        }
    }

    /// Two partial results combined.
    pub(super) fn combine(self, b: &mut Builder, x: &[Reg], y: &[Reg]) -> Vec<Reg> {
        match self {
            Merge::Values(op, _) => vec![b.binary(op.combine(), x[0], y[0])],
            Merge::Greatest(dtype) => {
                let (above, same) = (b.compare(Compare::Gt, y[0], x[0]), b.compare(Compare::Eq, y[0], x[0]));
                let earlier = b.compare(Compare::Lt, y[1], x[1]);
                let (mut better, mut equal) = (above, same);
                if dtype.is_float() {
                    let (new, old) = (b.unary(Unary::IsNan, y[0]), b.unary(Unary::IsNan, x[0]));
                    let number = b.unary(Unary::Not, old);
                    let first = b.binary(Binary::And, new, number);
                    let both = b.binary(Binary::And, new, old);
                    better = b.binary(Binary::Or, above, first);
                    equal = b.binary(Binary::Or, same, both);
                }
                let tie = b.binary(Binary::And, equal, earlier);
                let take = b.binary(Binary::Or, better, tie);
                x.iter().zip(y).map(|(&x, &y)| b.select(take, y, x)).collect()
            }
        }
    }

    /// The value of a reduction from its combined partial results.
    pub(super) fn outcome(self, b: &mut Builder, regs: &[Reg]) -> Reg {
        match self {
            Merge::Values(..) => regs[0],
            // Where every element is the least there is, none came to be the greatest.
            Merge::Greatest(_) => {
                let (none, first) = (Scalar::highest(DType::I32), Scalar::zero(DType::I32));
                let (none, first) = (b.constant(none), b.constant(first));
                let never = b.compare(Compare::Eq, regs[1], none);
                b.select(never, first, regs[1])
            }
        }
    }

    fn types(self) -> Vec<DType> {
        match self {
            Merge::Values(_, dtype) => vec![dtype],
            Merge::Greatest(dtype) => vec![dtype, DType::I32],
        }
    }
}

/// A number of threads, a power of two, that work on one thing: part of a warp, or all threads of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Team {
    pub(super) size: usize,
}

impl Team {
    /// The combination of all threads' partial results, in all threads.
    pub(super) fn combine(self, d: &mut Draft<'_>, merge: Merge, regs: &[Reg]) -> Vec<Reg> {
        let regs = butterfly(&mut d.l.b, merge, regs.to_vec(), self.size.min(WARP));
        if self.size > WARP { self.across_warps(d, merge, &regs) } else { regs }
    }

    fn across_warps(self, d: &mut Draft<'_>, merge: Merge, regs: &[Reg]) -> Vec<Reg> {
        let warps = self.size / WARP;
        let buffers: Vec<_> = merge.types().iter().map(|t| d.l.b.buffer(*t, warps)).collect();
        let thread = d.thread();
        let b = &mut d.l.b;
        let size = b.index(WARP as i64);
        let (warp, lane) = (b.binary(Binary::FloorDiv, thread, size), b.binary(Binary::Mod, thread, size));
        let zero = b.index(0);
        let leads = b.compare(Compare::Eq, lane, zero);
        d.when(Some(leads), |d| {
            buffers.iter().zip(regs).for_each(|(&place, &r)| d.l.b.store(place, warp, 0, r));
        });
        let b = &mut d.l.b;
        b.push(Stmt::Barrier);
        let count = b.index(warps as i64);
        let which = b.binary(Binary::Mod, lane, count);
        let regs = buffers.iter().map(|&place| b.load(place, which, 0, 1)).collect();
        butterfly(b, merge, regs, warps)
    }
}

/// Combines the partial results of neighbouring lanes, groups of `size`.
fn butterfly(b: &mut Builder, merge: Merge, mut regs: Vec<Reg>, size: usize) -> Vec<Reg> {
    let mut distance = 1;
    while distance < size {
        let others: Vec<Reg> = regs
            .iter()
            .map(|&r| {
                let ty: RegType = b.ty(r);
                b.inst(ty, Inst::Shuffle(Shuffle::Butterfly(distance as u8), r))
            })
            .collect();
        regs = merge.combine(b, &regs, &others);
        distance *= 2;
    }
    regs
}
