//! The passes of Intwain: what turns a model's graph into a program for each device.
//!
//! [`pass`] lists the rewriting passes and runs them; [`place`] decides what each device holds and computes, with the
//! costs of [`cost`] on the machine that [`hardware`] describes; [`reshard`] makes communication explicit and
//! [`partition`] gives each device its graph; [`check`] judges plans and programs without sharing code with what made
//! them; [`fuse`] makes clusters, one kernel each; [`memory`] gives their results addresses. [`simulate`] predicts how
//! long command lists take.

pub mod check;
pub mod cost;
pub mod differentiate;
pub mod fuse;
pub mod hardware;
pub mod listing;
pub mod memory;
pub mod partition;
pub mod pass;
pub mod place;
pub mod program;
pub mod reshard;
#[cfg(test)]
mod samples;
pub mod simplify;
pub mod simulate;
pub mod solve;

pub use pass::{PassError, Timings};
