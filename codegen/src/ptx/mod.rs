//! Emits kernels as PTX text.

use intwain_ir::kernel::Kernel;

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

/// A module with the kernels, in order.
pub fn module(kernels: &[&Kernel]) -> Result<String, EmitError> {
    match kernels.first() {
        None => Ok(String::new()),
        Some(k) => Err(EmitError::Unsupported { kernel: k.name.clone(), what: "everything".into() }),
    }
}
