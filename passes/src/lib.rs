//! The passes of Intwain: what turns a model's graph into a program for each device.
//!
//! [`pass`] lists the rewriting passes and runs them, [`row_blocks()`] where results must not depend on the number of devices; [`place`] decides what each device holds and computes, with the
//! costs of [`cost`] on the machine that [`hardware`] describes; [`reshard`] makes communication explicit and
//! [`partition`] gives each device its graph, with sums exchanged as [`buckets`] says; [`check`] judges plans and programs without sharing code with what made
//! them; [`fuse`] makes clusters, one kernel each; [`memory`] gives their results addresses. [`simulate`] predicts how
//! long command lists take.

pub mod buckets;
pub mod check;
pub mod cost;
pub mod differentiate;
mod forest;
pub mod fuse;
pub mod hardware;
pub mod listing;
pub mod memory;
pub mod partition;
pub mod pass;
pub mod place;
pub mod program;
pub mod remat;
pub mod reshard;
mod row_blocks;
#[cfg(test)]
mod samples;
pub mod simplify;
pub mod simulate;
pub mod solve;
mod ties;
pub mod turns;

pub use forest::forest;
pub use pass::{Exact, Numerics, PassError, Timings};
pub use row_blocks::{block_rows, row_blocks};
