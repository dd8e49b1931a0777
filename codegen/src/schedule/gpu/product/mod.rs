//! Sums of products on the ordinary units: matrix products and convolutions, with what precedes and follows them.
//!
//! `recognise` says what is multiplied and what follows, `rest` writes what follows from the registers that hold the
//! sums: both serve other ways to multiply as well. A thread block computes a [`tile`](tile::Tile) of the result for one
//! batch position; `share` and `fetch` bring tiles of the factors into shared memory, whatever expressions the factors
//! are, so that convolutions need nothing of their own; `multiply` is the main loop. Every sum is one chain of fused
//! multiply-adds in order, so the results have the CPU's bits, unless the [`plan`](plan::Plan) has long sums in parts
//! because there are few tiles: then every part is such a chain, and the parts are added in order (`split`).

mod fetch;
mod multiply;
mod plan;
mod recognise;
mod rest;
mod share;
mod split;
mod tile;

#[cfg(test)]
mod tests;

use super::launch::{Arrays, Draft};
use super::{GpuKernel, Launch, pointwise};
use crate::schedule::nest::Nest;
use intwain_ir::kernel::{Bound, Builder, Reg};
use intwain_ir::scalar::Binary;
use multiply::{Position, Range};
use plan::Plan;
use recognise::{Product, recognise};
use rest::Held;
use tile::{GROUP, Tile, divide, modulo, plus, times};

/// The kernels of a contraction; `None` if the nest is none.
pub(super) fn schedule(name: &str, nest: &Nest, arrays: &Arrays) -> Option<GpuKernel> {
    let product = recognise(nest, arrays.operands.len()).filter(Product::has_tiles)?;
    Some(planned(name, &product, arrays, &Plan::choose(&product)))
}

/// Whether a nest is a contraction that these schedules take, and whose factors cost little enough to be computed again
/// for every tile that reads them.
pub(super) fn takes(nest: &Nest, operands: usize) -> bool {
    let cheap = |p: Product| [&p.left, &p.right].iter().all(|f| recognise::is_cheap(&p.nest, f.node));
    recognise(nest, operands).is_some_and(cheap)
}

/// The kernels that a plan asks for.
fn planned(name: &str, product: &Product, arrays: &Arrays, plan: &Plan) -> GpuKernel {
    in_parts(name, product, arrays, plan).unwrap_or_else(|| {
        let plan = Plan { parts: 1, length: product.inner, ..*plan };
        let launches = vec![launch(name, product, arrays, &plan)];
        GpuKernel { launches, workspace: 0, schedule: "product" }
    })
}

/// The kernels, if the plan has several parts.
fn in_parts(name: &str, product: &Product, arrays: &Arrays, plan: &Plan) -> Option<GpuKernel> {
    if plan.parts == 1 {
        return None;
    }
    let parts = split::parts(product, plan.parts);
    let partial = split::partial(product, plan.parts)?;
    let (rest, rest_arrays) = split::finish(product, plan.parts, arrays)?;
    let to_parts = Arrays { results: vec![parts], ..arrays.clone() };
    let first = launch(&format!("{name}_parts"), &partial, &to_parts, plan);
    let launches = vec![first, pointwise::launch(name, &rest, &rest_arrays)];
    let workspace = parts.elements * parts.dtype.size();
    Some(GpuKernel { launches, workspace, schedule: "product in parts" })
}

fn launch(name: &str, product: &Product, arrays: &Arrays, plan: &Plan) -> Launch {
    let tile = &plan.tile;
    let blocks = plan.parts * product.batch * tile.count(product.rows, product.columns);
    let mut d = Draft::new(name, &product.nest, arrays, blocks, tile.threads() as u32);
    let (at, part) = position(&mut d, product, plan);
    let range = (product.inner > 0).then(|| range(&mut d.l.b, product, plan, part));
    let sums = multiply::sums(&mut d.l, product, tile, &at, range);
    let held = held(&mut d, product, tile, &at, sums);
    rest::finish(&mut d, product, &held);
    d.l.pop_scope();
    let mut launch = d.finish();
    launch.kernel.bound = Bound::Arithmetic;
    launch
}

/// The inner positions of a part.
fn range(b: &mut Builder, product: &Product, plan: &Plan, part: Reg) -> Range {
    let begin = times(b, part, plan.length);
    let all = b.index(product.inner as i64);
    if plan.parts == 1 {
        return Range { begin, end: all };
    }
    let end = plus(b, begin, plan.length as i64);
    Range { begin, end: b.binary(Binary::Min, end, all) }
}

/// Where the thread is, and the part; binds the batch positions of the product's parts. Tiles of one row of tiles are
/// beside each other.
fn position(d: &mut Draft<'_>, product: &Product, plan: &Plan) -> (Position, Reg) {
    let (block, thread) = (d.block(), d.thread());
    let (b, tile) = (&mut d.l.b, &plan.tile);
    let (across, down) = (product.columns.div_ceil(tile.columns), product.rows.div_ceil(tile.rows));
    let (column, rest) = (modulo(b, block, across), divide(b, block, across));
    let (row, outer) = (modulo(b, rest, down), divide(b, rest, down));
    let (row, column) = (times(b, row, tile.rows), times(b, column, tile.columns));
    let (own_row, own_column) = tile.thread(b);
    let (batch, part) = match plan.parts {
        1 => (outer, b.index(0)),
        _ => (modulo(b, outer, product.batch), divide(b, outer, product.batch)),
    };
    let mut bounds = Vec::new();
    for (axes, number) in [(&product.left.batch, batch), (&product.right.batch, batch), (&product.rest.batch, outer)] {
        bounds.extend(fetch::places(&mut d.l, number, axes, 1));
    }
    d.l.push_scope(bounds);
    (Position { thread, row, column, own_row, own_column }, part)
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
