//! Pieces of messages and results, computed by all threads of a grid together, a few neighbouring elements at a time.
//!
//! A piece that only moves elements is moved as words of 32 bits, whatever the elements are. As many elements are taken
//! at a time as fit 16 bytes and as all addresses are proved multiples of.

use super::THREADS;
use crate::schedule::gpu::launch::{digits, positions};
use crate::schedule::loops::{Bound, Loops, Vectors};
use crate::schedule::nest::{Nest, Op, coefficient};
use intwain_ir::compute::{Atom, Axis, Index};
use intwain_ir::kernel::{Builder, Id, Place, Reg};
use intwain_ir::messages::{Messages, Piece};
use intwain_ir::scalar::{Binary, Scalar};
use intwain_ir::{DType, Type};

/// Bytes of the widest access.
const WIDEST: usize = 16;

/// Where a part of a message is in the slots of a mailbox, in elements.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// First element in slot 0.
    pub(super) first: usize,
    /// From slot to slot.
    pub(super) step: usize,
}

impl Slot {
    /// Memory without slots.
    pub(super) const NONE: Slot = Slot { first: 0, step: 0 };
}

/// A piece as loops.
pub(super) struct Share {
    /// As what elements are read and written.
    pub(super) dtype: DType,
    nest: Nest,
    /// Neighbouring elements that a thread takes at a time.
    width: usize,
    /// The axis that stands for the slot of the message.
    slot: Axis,
}

impl Share {
    /// A piece of `whole`. `slots` say where the message is that is read, and the memory that is written.
    pub(super) fn new(piece: &Piece, operands: &[&Type], whole: &Type, slots: [Slot; 2]) -> Share {
        let mut nest = Nest::new(&piece.compute, operands);
        let strides = whole.shape.strides();
        let first: i64 = piece.start.iter().zip(&strides).map(|(&at, &s)| (at * s) as i64).sum();
        let axes = nest.axes.iter();
        nest.store =
            axes.fold(Index::constant(first), |sum, a| sum + Index::axis(*a).times(strides[a.0 as usize] as i64));
        nest.merge();
        let slot = Axis(nest.extents.len() as u8);
        nest.extents.push(2);
        let shift = |of: Slot| Index::axis(slot).times(of.step as i64).plus(of.first as i64);
        for node in &mut nest.nodes {
            if let Op::Load { operand: Messages::MESSAGE, at, .. } = &mut node.op {
                *at = at.clone() + shift(slots[0]);
            }
        }
        nest.store = nest.store.clone() + shift(slots[1]);
        let dtype = as_words(&mut nest, piece.ty.dtype);
        // Free axes are those of the indices as they are now.
        nest.substitute(&Index::axis, nest.extents.clone());
        let widths = std::iter::successors(Some(WIDEST / dtype.size()), |w| Some(w / 2));
        let width = widths.take_while(|w| *w > 1).find(|w| is_even(&nest, *w)).unwrap_or(1);
        Share { dtype, nest, width, slot }
    }

    pub(super) fn reads(&self, operand: usize) -> bool {
        self.nest.nodes.iter().any(|n| matches!(&n.op, Op::Load { operand: o, .. } if *o == operand))
    }

    /// Writes the loops: `grid` threads take turns.
    pub(super) fn write(&self, b: Builder, operands: Vec<Place>, to: Place, slot: Reg, grid: i64) -> Builder {
        let (nest, width) = (&self.nest, self.width);
        let mut l = Loops::new(b, nest, operands, Vectors::Aligned);
        l.push_scope(vec![(self.slot, Bound::one(slot, (0, 1)))]);
        let (block, thread) = (l.b.id(Id::Block(0)), l.b.id(Id::Thread(0)));
        let threads = l.b.index(i64::from(THREADS));
        let before = l.b.binary(Binary::Mul, block, threads);
        let first = l.b.binary(Binary::Add, before, thread);
        let end = l.b.index((positions(nest, &nest.axes) / width) as i64);
        let turns = l.b.open_loop(first, end, grid, &[]);
        let axes = digits(&mut l.b, nest, turns.var(), &nest.axes, width);
        l.push_scope(axes);
        let x = l.wide(nest.results[0], width);
        l.store(to, &nest.store, &x);
        l.pop_scope();
        l.b.close_loop(turns, &[]);
        l.pop_scope();
        l.b
    }
}

/// Sees a plain copy as a copy of words, if all addresses are multiples of a word; the type of the elements then.
fn as_words(nest: &mut Nest, dtype: DType) -> DType {
    let (size, word) = (dtype.size(), DType::U32.size());
    let (Some(&inner), [node]) = (nest.axes.last(), &mut nest.nodes[..]) else { return dtype };
    let copies = matches!(&node.op, Op::Load { guards, .. } if guards.is_empty());
    if !copies || !is_even(nest, word.div_ceil(size)) {
        return dtype;
    }
    let words = |elements: i64| elements * size as i64 / word as i64;
    let seen = |index: &Index| {
        index.terms().iter().fold(Index::constant(words(index.offset())), |sum, t| match &t.atom {
            Atom::Axis(a) if *a == inner => sum + Index::axis(*a),
            Atom::Axis(a) => sum + Index::axis(*a).times(words(t.coeff)),
            Atom::FloorDiv(..) | Atom::Mod(..) => unreachable!("even indices have no divisions"),
        })
    };
    nest.store = seen(&nest.store);
    nest.extents[inner.0 as usize] = words(nest.extent(inner) as i64) as usize;
    for node in &mut nest.nodes {
        node.dtype = DType::U32;
        if let Op::Load { at, fill, .. } = &mut node.op {
            (*at, *fill) = (seen(at), Scalar::zero(DType::U32));
        }
    }
    DType::U32
}

/// Whether all addresses step by 1 along the innermost axis and are multiples of `n` wherever its position is one.
fn is_even(nest: &Nest, n: usize) -> bool {
    let Some(&inner) = nest.axes.last() else { return false };
    let loads = nest.nodes.iter().filter_map(|node| match &node.op {
        Op::Load { at, .. } => Some(at),
        _ => None,
    });
    nest.extent(inner).is_multiple_of(n)
        && loads.chain([&nest.store]).all(|index| {
            let others = index.terms().iter().all(|t| match &t.atom {
                Atom::Axis(a) => *a == inner || t.coeff % n as i64 == 0,
                Atom::FloorDiv(..) | Atom::Mod(..) => false,
            });
            others && coefficient(index, inner) == Some(1) && index.offset() % n as i64 == 0
        })
}
