//! Kernels for GPUs: what a schedule made, and how it is launched.
//!
//! [`Gpu::schedule`] turns a Compute into a [`GpuKernel`]: one launch, or several one after another. Kernels are in the
//! kernel IR with [`Entry::Grid`](intwain_ir::kernel::Entry::Grid); [`crate::ptx`] writes them as text. Operands and
//! results are aligned to [`ALIGNMENT`] bytes.

mod accumulate;
mod choose;
mod columns;
mod exchange;
mod launch;
mod naive;
mod pointwise;
mod product;
mod rows;
mod scatter;
mod shape;
mod team;
mod tensor;
mod transpose;

#[cfg(test)]
pub(crate) mod harness;
#[cfg(test)]
mod tests;

pub use exchange::{Exchange, ExchangeArgument, FLAG_BYTES, PEER_FLAG_BYTES};
pub use tensor::Tile;

use crate::schedule::nest::Nest;
use intwain_ir::compute::Compute;
use intwain_ir::kernel::Kernel;
use intwain_ir::{Target, Type};

/// Alignment in bytes that every tensor in a device's memory has.
pub const ALIGNMENT: u32 = 64;

/// How factors of products are rounded. Sums are f32 in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Precision {
    /// Not at all: products of f32 on the ordinary units.
    #[default]
    F32,
    /// To tf32 (10 bits of mantissa), on tensor cores.
    Tf32,
    /// To bf16, on tensor cores.
    Bf16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Tf32, Precision::Bf16];

    /// How people name it.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }
}

/// The GPU that kernels are made for: anything from sm_80 on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gpu {
    /// How factors of products are rounded.
    pub precision: Precision,
}

/// What a kernel parameter is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Argument {
    /// An operand, by position.
    Operand(usize),
    /// A result, by position.
    Result(usize),
    /// The kernel's workspace, from this byte on.
    Workspace(usize),
}

/// One kernel and what its parameters are bound to.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel; how often it runs is its entry.
    pub kernel: Kernel,
    /// One per parameter.
    pub args: Vec<Argument>,
}

/// A scheduled Compute.
#[derive(Clone, Debug)]
pub struct GpuKernel {
    /// In order; none if the results are empty.
    pub launches: Vec<Launch>,
    /// Bytes that the launches share and that nobody else uses meanwhile.
    pub workspace: usize,
    /// Which schedule it is.
    pub schedule: &'static str,
}

impl Gpu {
    /// Chooses how to compute something. `name` says in listings what the kernel is for.
    pub fn schedule(&self, name: &str, compute: &Compute, operands: &[&Type], results: &[&Type]) -> GpuKernel {
        choose::schedule(name, Nest::new(compute, operands), &launch::Arrays::new(operands, results), self.precision)
    }

    /// A contraction on tensor cores with a tile of one's choice; `None` where this precision or this tile doesn't allow
    /// it.
    pub fn schedule_tile(
        &self,
        name: &str,
        compute: &Compute,
        operands: &[&Type],
        results: &[&Type],
        tile: &Tile,
    ) -> Option<GpuKernel> {
        let arrays = launch::Arrays::new(operands, results);
        tensor::schedule(name, &Nest::new(compute, operands), &arrays, self.precision, Some(tile))
    }

    /// The plain schedule: one thread an element, reductions one element after another. The CPU's bits, slowly: the
    /// oracle of the others.
    pub fn schedule_naive(&self, name: &str, compute: &Compute, operands: &[&Type], results: &[&Type]) -> GpuKernel {
        naive::schedule(name, &Nest::new(compute, operands), &launch::Arrays::new(operands, results))
    }
}

impl Target for Gpu {
    fn can_fuse(&self, compute: &Compute, operands: &[&Type], results: &[&Type]) -> bool {
        choose::fuses(&Nest::new(compute, operands), &launch::Arrays::new(operands, results), self.precision)
    }
}
