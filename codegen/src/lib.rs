//! Code generation of Intwain.
//!
//! [`schedule`] turns what a kernel computes into how, [`clif`] turns CPU kernels into machine code.

pub mod clif;
pub mod schedule;
