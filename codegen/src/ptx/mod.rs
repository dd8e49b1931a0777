//! Emits kernels as PTX text.
//!
//! The text is for a person too: registers are numbered by class in the order of their definitions (`%p` predicates,
//! `%h` 16 bits, `%r` 32-bit integers, `%rd` 64-bit integers, `%f` f32, `%fd` f64), parameters keep their positions, and
//! a comment says what each of them is.
//!
//! How elements are held: bool as a predicate; i8, u8 and i16 widened to 32 bits; f16 and bf16 as their bits, computed
//! in f32; everything else as itself. In memory a bool is a byte. A vector is a group of registers. Constants are
//! immediates. Every rounding is spelled out, nothing is contracted, so a kernel gives the bits of
//! [`intwain_ir::scalar`], but for the functions of `elementary`, which state their errors.
//!
//! Indices, i64 in the IR, live in 32 bits where interval arithmetic shows that they fit. Short conditionals become
//! guarded instructions; results that nothing reads are dropped.
//!
//! Shared memory is dynamic: the launch gives [`Kernel::buffer_offsets`]`().1` bytes.

mod address;
mod bits;
mod cast;
mod control;
mod elementary;
mod emit;
mod float;
mod index;
mod int;
mod memory;
mod range;
mod stream;
mod text;
mod uniform;
mod warp;

#[cfg(test)]
mod tests;

use intwain_ir::kernel::{Access, Bound, Entry, Kernel};
use std::fmt::Write;

/// Why a kernel has no PTX.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmitError {
    /// The instruction set has no such operation.
    #[error("kernel {kernel}: {what} is not available on GPUs")]
    Unsupported {
        /// The kernel.
        kernel: String,
        /// What is missing.
        what: String,
    },
}

/// The name of shared memory.
const SHARED: &str = "shared_memory";

/// A module with the kernels, in order. They have been verified.
pub fn module(kernels: &[&Kernel]) -> Result<String, EmitError> {
    let mut out = String::from(".version 7.4\n.target sm_80\n.address_size 64\n");
    if kernels.iter().any(|k| !k.buffers.is_empty()) {
        out += &format!("\n.extern .shared .align 128 .b8 {SHARED}[];\n");
    }
    for kernel in kernels {
        out.push('\n');
        out += &entry(kernel)?;
    }
    #[cfg(test)]
    tests::keep(&out);
    Ok(out)
}

/// One kernel.
fn entry(kernel: &Kernel) -> Result<String, EmitError> {
    let Entry::Grid { blocks, threads } = kernel.entry else {
        return Err(EmitError::Unsupported { kernel: kernel.name.clone(), what: "an entry for CPUs".into() });
    };
    let body = emit::body(kernel)?;
    let mut out = String::new();
    let [x, y, z] = blocks;
    let [tx, ty, tz] = threads;
    let mut line = |s: String| {
        out += &s;
        out.push('\n');
    };
    line(format!("// {}: {x} x {y} x {z} blocks of {tx} x {ty} x {tz} threads", kernel.name));
    for (i, p) in kernel.params.iter().enumerate() {
        let what = match p.access {
            Access::Constant => "constant",
            Access::Read => "read",
            Access::Write => "written",
            Access::Update => "read and written",
        };
        line(format!("//   p{i}: {}[{}], {what}", p.dtype, p.elements));
    }
    let (offsets, total) = kernel.buffer_offsets();
    for (i, (b, at)) in kernel.buffers.iter().zip(&offsets).enumerate() {
        line(format!("//   b{i}: {}[{}], shared, from byte {at} of {total}", b.dtype, b.elements));
    }
    line(format!(".visible .entry {}(", kernel.name));
    for (i, p) in kernel.params.iter().enumerate() {
        let comma = if i + 1 < kernel.params.len() { "," } else { "" };
        line(format!("\t.param .u64 .ptr .global .align {} p{i}{comma}", p.align));
    }
    line(format!(")\n.maxntid {tx}, {ty}, {tz}"));
    if kernel.bound == Bound::Arithmetic {
        // Else ptxas would rather spill registers than have one block less on a multiprocessor.
        line(".minnctapersm 1".into());
    }
    line("{".into());
    out += &body;
    let _ = writeln!(out, "}}");
    Ok(out)
}
