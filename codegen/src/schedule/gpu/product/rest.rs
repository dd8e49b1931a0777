//! What follows the sums, computed from the registers that hold them.

use super::fetch::{below, places};
use super::recognise::{Product, even, takes};
use super::tile::plus;
use crate::schedule::gpu::launch::Draft;
use crate::schedule::nest::coefficient;
use intwain_ir::kernel::Reg;

/// The sums that a thread has at rows and columns beside each other: groups of columns.
pub(in crate::schedule::gpu) struct Held {
    /// The thread's rows: its first group's first, and the distance of each from it.
    pub(in crate::schedule::gpu) rows: (Reg, Vec<usize>),
    /// The thread's groups of columns, in the same way.
    pub(in crate::schedule::gpu) columns: (Reg, Vec<usize>),
    /// Columns of a group.
    pub(in crate::schedule::gpu) group: usize,
    /// The sums, row by row.
    pub(in crate::schedule::gpu) sums: Vec<Reg>,
    /// Whether all rows, and all columns, exist.
    pub(in crate::schedule::gpu) whole: (bool, bool),
}

/// Computes and stores the results at the positions of the sums. Batch axes are bound.
///
/// Columns come first: what depends on them alone, as a bias does, is loaded once for all rows.
pub(in crate::schedule::gpu) fn finish(d: &mut Draft<'_>, product: &Product, held: &Held) {
    let columns = held.columns.1.len() * held.group;
    let width = if wide(product, held.group) { held.group } else { 1 };
    let starts = held
        .columns
        .1
        .iter()
        .enumerate()
        .flat_map(|(g, &offset)| (0..held.group).step_by(width).map(move |i| (offset + i, g * held.group + i)));
    // Beyond for every thread. Where there is one row or column, values are not told apart by it.
    let nowhere = |offset: usize, extent: usize| offset >= extent;
    for (offset, column) in starts.filter(|s| !nowhere(s.0, product.columns)) {
        let at = plus(&mut d.l.b, held.columns.0, offset as i64);
        let exists = (!held.whole.1).then(|| below(&mut d.l, at, product.columns));
        d.when(exists, |d| {
            let axes = places(&mut d.l, at, &product.rest.columns, width);
            d.l.push_scope(axes);
            for (r, &offset) in held.rows.1.iter().enumerate().filter(|r| !nowhere(*r.1, product.rows)) {
                let first = r * columns + column;
                row(d, product, (held, offset), &held.sums[first..first + width]);
            }
            d.l.pop_scope();
        });
    }
}

fn row(d: &mut Draft<'_>, product: &Product, (held, offset): (&Held, usize), sums: &[Reg]) {
    let at = plus(&mut d.l.b, held.rows.0, offset as i64);
    let exists = (!held.whole.0).then(|| below(&mut d.l, at, product.rows));
    d.when(exists, |d| {
        let axes = places(&mut d.l, at, &product.rest.rows, 1);
        d.l.push_scope(axes);
        d.l.define_lanes(product.rest.sum, sums);
        d.elements(sums.len());
        d.l.pop_scope();
    });
}

/// Whether `width` columns can be taken at once.
fn wide(product: &Product, width: usize) -> bool {
    let nest = &product.nest;
    let Some(&axis) = product.rest.columns.last() else { return width == 1 };
    let stores = coefficient(&nest.store, axis).is_some() && even(&nest.store, axis, width);
    nest.extent(axis).is_multiple_of(width) && stores && nest.results.iter().all(|&r| takes(nest, r, axis, width))
}
