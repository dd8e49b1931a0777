//! Contraction on tensor cores.
//!
//! Factors of 16 bits are multiplied as they are; factors of f32 are rounded to tf32 or bf16 where the precision says so.
//! Sums are f32, in the order of the hardware.
//!
//! A block computes a tile of the result in steps along the inner extent. Asynchronous copies fill a ring of stages in
//! shared memory ahead of the products ([`fill`]); one barrier a step separates the last readers of a stage from its
//! next writers and publishes what has arrived. Warps read fragments, multiply, and keep the sums in registers
//! ([`product`]); those then go to whatever follows the contraction ([`epilogue`]), from lane to lane or through the same
//! shared memory ([`staging`]). Where a result has few tiles, its sums are made in segments ([`split`]).
//!
//! Factors may be addressed in any way: padded, strided and dilated windows are copies with conditions, and what can't be
//! copied asynchronously is computed and stored ([`problem`]). Layouts are values ([`layout`]), tiles are chosen by an
//! estimate of time ([`choose`](mod@choose)).

mod choose;
mod epilogue;
mod fill;
mod layout;
mod place;
mod problem;
mod product;
mod split;
mod staging;

#[cfg(test)]
mod mutants;
#[cfg(test)]
mod tests;

pub use layout::Tile;

use super::launch::{Arrays, Draft};
use super::{GpuKernel, Launch, Precision};
use crate::schedule::loops::Bound;
use crate::schedule::nest::Nest;
use choose::{choose, fits, words};
use fill::Filler;
use intwain_ir::DType;
use place::{Grid, positions_at};
use problem::Problem;
use product::{Lane, Memory};

/// Name of the schedule.
const NAME: &str = "tensor";

/// A contraction on tensor cores, with a tile of one's choice or in the way that seems fastest; `None` if it isn't one,
/// or no such tile fits it.
pub(super) fn schedule(
    name: &str,
    nest: &Nest,
    arrays: &Arrays,
    precision: Precision,
    chosen: Option<&Tile>,
) -> Option<GpuKernel> {
    let problem = Problem::new(nest, precision)?;
    let tile = match chosen {
        Some(tile) => fits(&problem, tile).then_some(*tile)?,
        None => choose(&problem)?,
    };
    let [m, n, _, batch] = problem.extents();
    if m * n * batch > 0
        && chosen.is_none()
        && let Some(kernel) = split::schedule(name, &problem, arrays, precision)
    {
        return Some(kernel);
    }
    let launches = if m * n * batch == 0 { Vec::new() } else { vec![launch(name, &problem, &tile, arrays)] };
    Some(GpuKernel { launches, workspace: 0, schedule: NAME })
}

/// Whether a nest is a contraction that tensor cores take.
pub(super) fn takes(nest: &Nest, precision: Precision) -> bool {
    Problem::new(nest, precision).is_some_and(|p| choose(&p).is_some())
}

fn launch(name: &str, problem: &Problem, tile: &Tile, arrays: &Arrays) -> Launch {
    let grid = Grid::new(problem, tile);
    let mut d = Draft::new(name, &problem.nest, arrays, grid.blocks(), tile.threads() as u32);
    let (planes, ring) = Memory::sizes(problem, tile);
    let place = d.l.b.buffer(DType::U32, words(problem, tile));
    let memory = Memory { place, ring, planes, starts: [0, planes[0].words()] };
    let block = d.block();
    let [row, column, batch] = grid.emit(&mut d.l.b, block);
    let first = [layout::times(&mut d.l.b, row, tile.rows), layout::times(&mut d.l.b, column, tile.columns)];
    let batch: Vec<(_, Bound)> = positions_at(&mut d.l.b, &problem.nest, &problem.batch, (batch, 0));
    d.l.push_scope(batch);
    let lane = Lane::new(&mut d.l, tile);
    let fillers = [0, 1].map(|i| Filler::new(&mut d.l, problem, &problem.factors[i], tile, memory.starts[i], first[i]));
    let sums = product::emit(&mut d.l, problem, tile, &memory, &lane, &fillers);
    epilogue::emit(&mut d, problem, tile, memory.place, &lane, &sums, first);
    d.l.pop_scope();
    d.finish()
}
