//! What all GPU schedules share: parameters, names, grids, and positions from numbers.

use super::{ALIGNMENT, Argument, Launch};
use crate::schedule::loops::{Bound, Loops, Vectors};
use crate::schedule::nest::{Nest, Op};
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Access, Block, Bound as Limit, Builder, Entry, Id, Place, Reg};
use intwain_ir::scalar::{Binary, Compare};
use intwain_ir::{DType, Type};

/// An array that kernels read or write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Array {
    pub(super) dtype: DType,
    pub(super) elements: usize,
    pub(super) argument: Argument,
}

/// The arrays of a nest: operands and results by their numbers.
#[derive(Clone, Debug)]
pub(super) struct Arrays {
    pub(super) operands: Vec<Array>,
    pub(super) results: Vec<Array>,
}

impl Arrays {
    /// Those of a Compute.
    pub(super) fn new(operands: &[&Type], results: &[&Type]) -> Arrays {
        let list = |types: &[&Type], argument: fn(usize) -> Argument| {
            let array =
                |(i, t): (usize, &&Type)| Array { dtype: t.dtype, elements: t.shape.elements(), argument: argument(i) };
            types.iter().enumerate().map(array).collect()
        };
        Arrays { operands: list(operands, Argument::Operand), results: list(results, Argument::Result) }
    }
}

/// A kernel being written, with the places of a nest's results.
pub(super) struct Draft<'n> {
    pub(super) l: Loops<'n>,
    pub(super) outputs: Vec<Place>,
    args: Vec<Argument>,
}

impl<'n> Draft<'n> {
    /// A kernel of so many blocks. Its parameters are the operands that the nest reads, then the results.
    pub(super) fn new(name: &str, nest: &'n Nest, arrays: &Arrays, blocks: usize, threads: u32) -> Draft<'n> {
        let blocks = u32::try_from(blocks).ok().filter(|n| *n <= i32::MAX as u32);
        let blocks = blocks.expect("results that fit a device's memory need fewer than 2^31 blocks");
        let entry = Entry::Grid { blocks: [blocks, 1, 1], threads: [threads, 1, 1] };
        let mut b = Builder::new(identifier(name), entry, Limit::Memory);
        let mut args = Vec::new();
        let mut add = |b: &mut Builder, a: &Array, access: Access| {
            args.push(a.argument);
            b.aligned_param(a.dtype, a.elements, access, ALIGNMENT)
        };
        let unused = Place::Param(u32::MAX);
        let inputs = arrays.operands.iter().enumerate().map(|(i, a)| match reads(nest, i) {
            true => add(&mut b, a, Access::Constant),
            false => unused,
        });
        let inputs = inputs.collect();
        let outputs = arrays.results.iter().map(|a| add(&mut b, a, Access::Write)).collect();
        Draft { l: Loops::new(b, nest, inputs, Vectors::Aligned), outputs, args }
    }

    pub(super) fn finish(self) -> Launch {
        Launch { kernel: self.l.b.finish(), args: self.args }
    }

    /// Position of the block along x.
    pub(super) fn block(&mut self) -> Reg {
        self.l.b.id(Id::Block(0))
    }

    /// Position of the thread along x.
    pub(super) fn thread(&mut self) -> Reg {
        self.l.b.id(Id::Thread(0))
    }

    /// block · size + thread.
    pub(super) fn number(&mut self, size: usize) -> Reg {
        let (block, thread) = (self.block(), self.thread());
        let size = self.l.b.index(size as i64);
        let first = self.l.b.binary(Binary::Mul, block, size);
        self.l.b.binary(Binary::Add, first, thread)
    }

    /// Writes `f` behind a condition, if there is one.
    pub(super) fn when(&mut self, cond: Option<Reg>, f: impl FnOnce(&mut Self)) {
        let Some(cond) = cond else { return f(self) };
        let then = self.aside(f);
        self.l.b.conditional(cond, (then, &[]), (Block::default(), &[]));
    }

    /// Writes one thing where a condition holds and another elsewhere; the first if there is no condition.
    pub(super) fn either(&mut self, cond: Option<Reg>, f: impl FnOnce(&mut Self), g: impl FnOnce(&mut Self)) {
        let Some(cond) = cond else { return f(self) };
        let (then, otherwise) = (self.aside(f), self.aside(g));
        self.l.b.conditional(cond, (then, &[]), (otherwise, &[]));
    }

    fn aside(&mut self, f: impl FnOnce(&mut Self)) -> Block {
        self.l.b.open_block();
        self.l.push_scope(Vec::new());
        f(self);
        self.l.pop_scope();
        self.l.b.take_block()
    }

    /// Whether x < n, unless it always is because x stays below `most`.
    pub(super) fn below(&mut self, x: Reg, n: usize, most: usize) -> Option<Reg> {
        (most > n).then(|| {
            let n = self.l.b.index(n as i64);
            self.l.b.compare(Compare::Lt, x, n)
        })
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

fn reads(nest: &Nest, which: usize) -> bool {
    nest.nodes.iter().any(|n| match n.op {
        Op::Load { operand, .. } | Op::Take { operand, .. } => operand == which,
        Op::Const(_)
        | Op::Position(_)
        | Op::InRange(_)
        | Op::Unary(..)
        | Op::Binary(..)
        | Op::Compare(..)
        | Op::Select(..)
        | Op::Cast(_)
        | Op::Reduce { .. }
        | Op::ArgMax { .. } => false,
    })
}

/// Product of the extents.
pub(super) fn positions(nest: &Nest, axes: &[Axis]) -> usize {
    axes.iter().map(|a| nest.extent(*a)).product()
}

/// The positions of axes, outermost first, from their row-major number; the innermost is counted in groups of `width`,
/// which divides its extent unless it is the only axis.
pub(super) fn digits(b: &mut Builder, nest: &Nest, number: Reg, axes: &[Axis], width: usize) -> Vec<(Axis, Bound)> {
    let mut rest = number;
    let mut bounds = Vec::new();
    for (i, &axis) in axes.iter().enumerate().rev() {
        let extent = nest.extent(axis) as i64;
        let width = if i + 1 == axes.len() { width } else { 1 };
        let groups = extent / width as i64;
        debug_assert!(i == 0 || groups * width as i64 == extent, "groups divide the extent");
        let n = b.index(groups);
        let mut at = if i == 0 { rest } else { b.binary(Binary::Mod, rest, n) };
        if i > 0 {
            rest = b.binary(Binary::FloorDiv, rest, n);
        }
        if width > 1 {
            let w = b.index(width as i64);
            at = b.binary(Binary::Mul, at, w);
        }
        bounds.push((axis, Bound::lanes(at, width, (0, groups * width as i64 - 1)).multiple_of(width as i64)));
    }
    bounds
}

/// The name as a legal identifier of the kernel language.
pub(super) fn identifier(name: &str) -> String {
    let legal: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if legal.starts_with(|c: char| c.is_ascii_alphabetic()) { legal } else { format!("k_{legal}") }
}
