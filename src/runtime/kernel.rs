//! What the runtime runs: kernels, whoever made them.

use intwain_ir::{Tensor, Type, interp};
use intwain_passes::program::KernelSpec;
use std::ops::Range;

/// A compiled kernel. Its work is divided into tasks that do not depend on each other.
pub(crate) trait Kernel: Send + Sync {
    /// Number of tasks.
    fn tasks(&self) -> usize;

    /// Memory that each thread running tasks needs.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// The operand that is rearranged once, when weights load, and the size of the rearranged copy.
    fn packed(&self) -> Option<(usize, usize)> {
        None
    }

    /// Rearranges the operand that `packed` names.
    ///
    /// # Safety
    /// `from` is the operand, `to` has the room that `packed` asks for.
    unsafe fn pack(&self, from: *const u8, to: *mut u8) {
        let _ = (from, to);
    }

    /// Runs a range of tasks.
    ///
    /// # Safety
    /// `args` are the operands (rearranged where `packed` says so) and then the results, each of its type and aligned
    /// to 64 bytes; results overlap nothing; `scratch` is this thread's.
    unsafe fn run(&self, args: &[*mut u8], tasks: Range<usize>, scratch: *mut u8);
}

/// A kernel run by the reference interpreter, for element types and shapes that have no compiled kernel.
#[derive(Debug)]
pub(crate) struct Interpreted {
    spec: KernelSpec,
}

impl Interpreted {
    pub(crate) fn new(spec: KernelSpec) -> Interpreted {
        Interpreted { spec }
    }
}

impl Kernel for Interpreted {
    fn tasks(&self) -> usize {
        1
    }

    unsafe fn run(&self, args: &[*mut u8], _: Range<usize>, _: *mut u8) {
        let operands: Vec<Tensor> = self
            .spec
            .operands
            .iter()
            .zip(args)
            // SAFETY: the caller promises operands of these types.
            .map(|((ty, _), at)| unsafe { tensor(ty, *at) })
            .collect();
        let operands: Vec<&Tensor> = operands.iter().collect();
        let types: Vec<&Type> = self.spec.results.iter().collect();
        let results = interp::evaluate(&self.spec.compute, &operands, &types);
        for (t, at) in results.iter().zip(&args[operands.len()..]) {
            // SAFETY: the caller promises results of these types.
            unsafe { at.copy_from_nonoverlapping(t.data.as_ptr(), t.data.len()) };
        }
    }
}

/// A copy of a tensor in memory.
///
/// # Safety
/// `at` points to a tensor of type `ty`.
pub(crate) unsafe fn tensor(ty: &Type, at: *const u8) -> Tensor {
    // SAFETY: by the caller's promise.
    let data = unsafe { std::slice::from_raw_parts(at, ty.bytes()) }.to_vec();
    Tensor { ty: ty.clone(), data }
}
