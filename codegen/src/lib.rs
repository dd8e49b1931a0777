//! Code generation of Intwain.
//!
//! [`schedule`] turns what a kernel computes into how, [`clif`] turns CPU kernels into machine code,
//! [`ptx`] GPU kernels into text.

pub mod clif;
pub mod ptx;
pub mod schedule;
