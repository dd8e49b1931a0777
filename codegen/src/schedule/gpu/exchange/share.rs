//! Pieces of messages and results, computed by all threads of a grid together, each unit by one thread.
//!
//! A piece that only moves elements is moved as words of 32 bits, up to four at a time, whatever the elements are; others
//! are computed four elements at a time. Both where all addresses are proved to be multiples of the unit.

use super::THREADS;
use crate::schedule::loops::{Bound, Loops};
use crate::schedule::nest::{Nest, Op, coefficient};
use intwain_ir::compute::{Atom, Axis, Index};
use intwain_ir::kernel::{Builder, Id, Place, Reg};
use intwain_ir::messages::{Messages, Piece};
use intwain_ir::scalar::Binary;
use intwain_ir::{DType, Type};

/// How the elements of a piece are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// So many elements are computed.
    Computed(usize),
    /// So many elements are moved.
    Moved(u8),
}

/// A piece as loops over units.
pub(super) struct Share {
    /// As what elements are read and written.
    pub(super) dtype: DType,
    nest: Nest,
    unit: Unit,
    /// The axis that stands for the slot of the message.
    slot: Axis,
}

impl Share {
    /// A piece of `whole`. `slots` are the elements from slot to slot of the message read, and of the memory written.
    pub(super) fn new(piece: &Piece, operands: &[&Type], whole: &Type, slots: [usize; 2]) -> Share {
        let mut nest = Nest::new(&piece.compute, operands);
        let strides = whole.shape.strides();
        let first: i64 = piece.start.iter().zip(&strides).map(|(&at, &s)| (at * s) as i64).sum();
        let axes = nest.axes.iter();
        nest.store =
            axes.fold(Index::constant(first), |sum, a| sum + Index::axis(*a).times(strides[a.0 as usize] as i64));
        nest.merge();
        let slot = Axis(nest.extents.len() as u8);
        nest.extents.push(2);
        let shift = |elements: usize| Index::axis(slot).times(elements as i64);
        for node in &mut nest.nodes {
            if let Op::Load { operand: Messages::MESSAGE, at, .. } = &mut node.op {
                *at = at.clone() + shift(slots[0]);
            }
        }
        nest.store = nest.store.clone() + shift(slots[1]);
        nest.substitute(&Index::axis, nest.extents.clone());
        let dtype = piece.ty.dtype;
        Share::moved(&nest, dtype, slot).unwrap_or_else(|| {
            let wide = matches!(dtype, DType::F32 | DType::I32 | DType::U32) && is_even(&nest, 4);
            Share { dtype, unit: Unit::Computed(if wide { 4 } else { 1 }), nest, slot }
        })
    }

    pub(super) fn reads(&self, operand: usize) -> bool {
        self.nest.nodes.iter().any(|n| matches!(&n.op, Op::Load { operand: o, .. } if *o == operand))
    }

    /// The piece as moved words, if it is a plain copy and addresses allow it.
    fn moved(nest: &Nest, dtype: DType, slot: Axis) -> Option<Share> {
        let [Op::Load { guards, .. }] = &nest.nodes.iter().map(|n| n.op.clone()).collect::<Vec<_>>()[..] else {
            return None;
        };
        if !guards.is_empty() {
            return None;
        }
        let size = dtype.size();
        let bytes = [16, 8, 4].into_iter().find(|b| b % size == 0 && is_even(nest, (b / size) as i64))?;
        let inner = *nest.axes.last()?;
        let words = |elements: usize| elements * size / 4;
        let mut nest = nest.clone();
        let scaled = |index: &Index| {
            let terms = index.terms().iter();
            terms.fold(Index::constant(words_of(index.offset(), size)), |sum, t| match &t.atom {
                Atom::Axis(a) if *a == inner => sum + Index::axis(*a),
                Atom::Axis(a) => sum + Index::axis(*a).times(words_of(t.coeff, size)),
                Atom::FloorDiv(..) | Atom::Mod(..) => unreachable!("even indices have no divisions"),
            })
        };
        nest.store = scaled(&nest.store);
        for node in &mut nest.nodes {
            if let Op::Load { at, .. } = &mut node.op {
                *at = scaled(at);
            }
        }
        nest.extents[inner.0 as usize] = words(nest.extent(inner));
        Some(Share { dtype: DType::U32, unit: Unit::Moved((bytes / 4) as u8), nest, slot })
    }

    /// Writes the loops: `grid` threads take units in turn.
    pub(super) fn write(&self, b: Builder, operands: Vec<Place>, to: Place, slot: Reg, grid: i64) -> Builder {
        let nest = &self.nest;
        let width = match self.unit {
            Unit::Computed(n) => n,
            Unit::Moved(n) => n as usize,
        };
        let mut l = Loops::new(b, nest, operands);
        l.push_scope(vec![(self.slot, Bound { base: slot, width: 1, range: (0, 1) })]);
        let counts: Vec<i64> = nest.axes.iter().map(|a| nest.extent(*a) as i64).collect();
        let units: i64 = counts.iter().product::<i64>() / width as i64;
        let (block, thread) = (l.b.id(Id::Block(0)), l.b.id(Id::Thread(0)));
        let threads = l.b.index(i64::from(THREADS));
        let before = l.b.binary(Binary::Mul, block, threads);
        let (begin, end) = (l.b.binary(Binary::Add, before, thread), l.b.index(units));
        let turns = l.b.open_loop(begin, end, grid, &[]);
        let axes = self.positions(&mut l, turns.var(), &counts, width as i64);
        l.push_scope(axes);
        self.unit(&mut l, to);
        l.pop_scope();
        l.b.close_loop(turns, &[]);
        l.pop_scope();
        l.b
    }

    /// The position of a unit along each axis.
    fn positions(&self, l: &mut Loops<'_>, unit: Reg, counts: &[i64], width: i64) -> Vec<(Axis, Bound)> {
        let mut rest = unit;
        let mut axes = Vec::new();
        for (i, &axis) in self.nest.axes.iter().enumerate().rev() {
            let innermost = i + 1 == counts.len();
            let step = if innermost { width } else { 1 };
            let n = l.b.index(counts[i] / step);
            let at = if i == 0 { rest } else { l.b.binary(Binary::Mod, rest, n) };
            if i > 0 {
                rest = l.b.binary(Binary::FloorDiv, rest, n);
            }
            let step = l.b.index(step);
            let base = l.b.binary(Binary::Mul, at, step);
            let lanes = match self.unit {
                Unit::Computed(lanes) if innermost => lanes,
                Unit::Computed(_) | Unit::Moved(_) => 1,
            };
            axes.push((axis, Bound { base, width: lanes, range: (0, counts[i] - 1) }));
        }
        axes
    }

    fn unit(&self, l: &mut Loops<'_>, to: Place) {
        let nest = &self.nest;
        match (self.unit, &nest.nodes[nest.results[0]].op) {
            (Unit::Moved(words), Op::Load { operand, at, .. }) => {
                let (reg, offset) = l.address(at);
                let x = l.b.load(l.operands[*operand], reg, offset, words);
                let (reg, offset) = l.address(&nest.store);
                l.b.store(to, reg, offset, x);
            }
            (Unit::Moved(_), _) => unreachable!("only loads are moved"),
            (Unit::Computed(width), _) => {
                let v = l.wide(nest.results[0], width);
                let (reg, offset) = l.address(&nest.store);
                for (i, &r) in v.regs.iter().enumerate() {
                    l.b.store(to, reg, offset + (i * v.lanes as usize) as i64, r);
                }
            }
        }
    }
}

/// Words of a number of elements.
fn words_of(elements: i64, size: usize) -> i64 {
    elements * size as i64 / 4
}

/// Whether all addresses step by 1 along the innermost axis and are multiples of `n` wherever it is a multiple of `n`.
fn is_even(nest: &Nest, n: i64) -> bool {
    let Some(&inner) = nest.axes.last() else { return false };
    let loads = nest.nodes.iter().filter_map(|node| match &node.op {
        Op::Load { at, .. } => Some(at),
        _ => None,
    });
    nest.extent(inner) as i64 % n == 0
        && loads.chain([&nest.store]).all(|index| {
            let others = index.terms().iter().all(|t| match &t.atom {
                Atom::Axis(a) => *a == inner || t.coeff % n == 0,
                Atom::FloorDiv(..) | Atom::Mod(..) => false,
            });
            others && coefficient(index, inner) == Some(1) && index.offset() % n == 0
        })
}
