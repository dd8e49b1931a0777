//! Sums of products on the ordinary units: matrix products and convolutions, with what precedes and follows them.
//!
//! `recognise` says what is multiplied and what follows, `rest` writes what follows from the registers that hold the
//! sums: both serve other ways to multiply as well. A thread block computes a [`tile`](tile::Tile) of the result for one
//! batch position; `share` and `fetch` bring tiles of the factors into shared memory, whatever expressions the factors
//! are, so that convolutions need nothing of their own; `multiply` is the main loop. Every sum is one chain of fused
//! multiply-adds in order, so the results have the CPU's bits.

mod fetch;
mod multiply;
mod recognise;
mod rest;
mod share;
mod tile;

#[cfg(test)]
mod tests;

use super::GpuKernel;
use super::launch::{Arrays, Draft};
use crate::schedule::loops::Bound;
use crate::schedule::nest::Nest;
use intwain_ir::compute::Axis;
use intwain_ir::kernel::Reg;
use intwain_ir::scalar::Binary;
use multiply::{Position, Range};
use recognise::{Product, recognise};
use rest::Held;
use tile::{GROUP, Tile, divide, modulo, times};

/// The kernels of a contraction; `None` if the nest is none.
pub(super) fn schedule(name: &str, nest: &Nest, arrays: &Arrays) -> Option<GpuKernel> {
    let product = recognise(nest, arrays.operands.len())?;
    let tile = Tile::choose(product.dtype, product.batch, product.rows, product.columns);
    let blocks = product.batch * tile.count(product.rows, product.columns);
    let mut d = Draft::new(name, &product.nest, arrays, blocks, tile.threads() as u32);
    let (at, batch) = position(&mut d, &product, &tile);
    d.l.push_scope(batch);
    let range = (product.inner > 0).then(|| Range { begin: d.l.b.index(0), end: d.l.b.index(product.inner as i64) });
    let sums = multiply::sums(&mut d.l, &product, &tile, &at, range);
    let held = held(&mut d, &product, &tile, &at, sums);
    rest::finish(&mut d, &product, &held);
    d.l.pop_scope();
    Some(GpuKernel { launches: vec![d.finish()], workspace: 0, schedule: "product" })
}

/// Where the thread is, and the batch positions of all parts. Tiles of one row of tiles are beside each other.
fn position(d: &mut Draft<'_>, product: &Product, tile: &Tile) -> (Position, Vec<(Axis, Bound)>) {
    let (block, thread) = (d.block(), d.thread());
    let b = &mut d.l.b;
    let (across, down) = (product.columns.div_ceil(tile.columns), product.rows.div_ceil(tile.rows));
    let (column, rest) = (modulo(b, block, across), divide(b, block, across));
    let (row, batch) = (modulo(b, rest, down), divide(b, rest, down));
    let (row, column) = (times(b, row, tile.rows), times(b, column, tile.columns));
    let (own_row, own_column) = tile.thread(b);
    let axes = [&product.left.batch, &product.right.batch, &product.rest.batch];
    let bounds = axes.iter().flat_map(|a| fetch::places(&mut d.l, batch, a, 1)).collect();
    (Position { thread, row, column, own_row, own_column }, bounds)
}

fn held(d: &mut Draft<'_>, product: &Product, tile: &Tile, at: &Position, sums: Vec<Reg>) -> Held {
    let groups = |count: usize, step: usize| (0..count / GROUP).map(move |g| g * step);
    let rows = groups(tile.thread_rows, tile.row_step()).flat_map(|g| (0..GROUP).map(move |i| g + i));
    let row = d.l.b.binary(Binary::Add, at.row, at.own_row);
    let column = d.l.b.binary(Binary::Add, at.column, at.own_column);
    Held {
        rows: (row, rows.collect()),
        columns: (column, groups(tile.thread_columns, tile.column_step()).collect()),
        group: GROUP,
        sums,
        whole: (product.rows.is_multiple_of(tile.rows), product.columns.is_multiple_of(tile.columns)),
    }
}
