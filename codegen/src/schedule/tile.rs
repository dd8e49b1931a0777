//! Epilogues: what follows a contraction, on the rectangle of results that the micro-kernels have just finished.

use super::loops::{Bound, Loops, Vectors};
use super::nest::Nest;
use super::rows::{Plan, Writer};
use intwain_ir::compute::Axis;
use intwain_ir::kernel::{Access, Bound as Limit, Builder, Entry, Id, Kernel, Place, Reg};
use intwain_ir::scalar::Binary;
use intwain_ir::{DType, Type};

/// Positions of the columns taken at a time.
const WIDTH: usize = 16;

/// Result axes by role, and where the sums are. They are the operand after the last.
pub(super) struct Roles<'a> {
    pub(super) batch: &'a [Axis],
    pub(super) rows: &'a [Axis],
    pub(super) columns: &'a [Axis],
    pub(super) sums: Sums,
}

/// Where an epilogue finds the sums.
#[derive(Clone, Copy)]
pub(super) enum Sums {
    /// In a result, in whose place what follows from them is written.
    Result(usize),
    /// In memory of so many elements, the parameter after the results.
    Scratch(usize),
}

/// The kernel of an epilogue. Parameters are the operands, then the results, then the sums if they are not in a result.
pub(super) fn schedule(name: &str, mut nest: Nest, roles: &Roles<'_>, operands: &[&Type], results: &[&Type]) -> Kernel {
    nest.merge_within(&[roles.batch.to_vec(), roles.rows.to_vec(), roles.columns.to_vec()]);
    let mut b = Builder::new(name, Entry::Tile, Limit::Memory);
    let mut inputs: Vec<Place> =
        operands.iter().map(|t| b.param(t.dtype, t.shape.elements(), Access::Constant)).collect();
    let outputs: Vec<Place> = results
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let access = if matches!(roles.sums, Sums::Result(c) if c == i) { Access::Update } else { Access::Write };
            b.param(t.dtype, t.shape.elements(), access)
        })
        .collect();
    inputs.push(match roles.sums {
        Sums::Result(c) => outputs[c],
        Sums::Scratch(elements) => b.param(DType::F32, elements, Access::Read),
    });
    let left = |axes: &[Axis]| -> Vec<Axis> { nest.axes.iter().copied().filter(|a| axes.contains(a)).collect() };
    let (batch, rows, columns) = (left(roles.batch), left(roles.rows), left(roles.columns));
    let vector = match columns[..] {
        [axis] => Some((axis, WIDTH)),
        _ => None,
    };
    let plan = Plan::of_rows(vector);
    let id = b.id(Id::Batch);
    let mut w = Writer { l: Loops::new(b, &nest, inputs, Vectors::Held), outputs, plan: &plan };
    let bound = digits(&mut w.l.b, &nest, id, &batch);
    w.l.push_scope(bound);
    over(&mut w, Id::RowBegin, Id::RowEnd, &rows, |w| {
        if let Some((axis, width)) = vector {
            let (begin, end) = (w.l.b.id(Id::ColumnBegin), w.l.b.id(Id::ColumnEnd));
            let extent = nest.extent(axis) as i64;
            w.strips(axis, width, (begin, end), (0, extent - 1));
        } else {
            over(w, Id::ColumnBegin, Id::ColumnEnd, &columns, |w| w.elements(1));
        }
    });
    w.l.pop_scope();
    w.l.b.finish()
}

/// A loop over positions that number several axes.
fn over<'p, 'n>(w: &mut Writer<'p, 'n>, first: Id, last: Id, axes: &[Axis], f: impl FnOnce(&mut Writer<'p, 'n>)) {
    let (begin, end) = (w.l.b.id(first), w.l.b.id(last));
    let l = w.l.b.open_loop(begin, end, 1, &[]);
    let nest = w.l.nest;
    let bound = digits(&mut w.l.b, nest, l.var(), axes);
    w.l.push_scope(bound);
    f(w);
    w.l.pop_scope();
    w.l.b.close_loop(l, &[]);
}

/// The positions of axes from their row-major number.
fn digits(b: &mut Builder, nest: &Nest, number: Reg, axes: &[Axis]) -> Vec<(Axis, Bound)> {
    let mut rest = number;
    let mut bound = Vec::new();
    for (i, &axis) in axes.iter().enumerate().rev() {
        let extent = nest.extent(axis) as i64;
        let n = b.index(extent);
        let base = if i == 0 { rest } else { b.binary(Binary::Mod, rest, n) };
        rest = if i == 0 { rest } else { b.binary(Binary::FloorDiv, rest, n) };
        bound.push((axis, Bound::one(base, (0, extent - 1))));
    }
    bound
}
