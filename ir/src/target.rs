//! What passes ask the target of code generation.

use crate::Type;
use crate::compute::Compute;

/// A target that kernels are generated for.
pub trait Target {
    /// Whether one kernel computes this as fast as the kernels it would replace; fusion stops where it does not.
    fn can_fuse(&self, compute: &Compute, operands: &[&Type], results: &[&Type]) -> bool;

    /// Whether a kernel may write an element over an operand that it reads at the same position alone.
    fn updates_in_place(&self) -> bool {
        false
    }
}
