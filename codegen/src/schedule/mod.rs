//! Schedules: from what is computed to how.
//!
//! [`Cpu::schedule`] recognises a contraction (micro-kernels with a generated epilogue, `contract` and `tile`) and else
//! writes loops (`rows`) with the generator in `loops`. All schedules keep the order of every reduction, so they give
//! the bits that the interpreter gives.

mod contract;
mod cpu;
pub mod gpu;
mod loops;
mod nest;
mod roles;
mod rows;
mod tile;

#[cfg(test)]
mod tests;

pub use cpu::{Cpu, CpuCode, CpuKernel, Operand, Packed, SCRATCH_ALIGN, Timing};
