//! Machine code for CPU kernels, by Cranelift.
//!
//! [`Jit::compile`] checks kernels, emits and compiles them on several threads, and gives [`JitCode`], which owns the
//! executable memory. Values and operations have the meaning of the scalar table, so generated code and
//! [`intwain_ir::kernel::run`] agree bit for bit (NaNs excepted, whose payload has no meaning).
//!
//! Vectors have four lanes of 32 bits. f16 and bf16 live in f32 registers and are rounded after every operation. Calls
//! to library functions go to their address directly, so there are no symbols to resolve.

mod emit;
mod inst;
mod jit;
mod lanes;
mod scalar;

#[cfg(test)]
mod tests;

pub use jit::{CompileError, Function, Jit, JitCode, TasksFn, TileFn};
