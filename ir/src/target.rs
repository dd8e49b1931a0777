//! What passes ask the target of code generation.

use crate::Type;
use crate::compute::Compute;

/// A target that kernels are generated for.
pub trait Target {
    /// Whether one kernel computes this as fast as the kernels it would replace; fusion stops where it does not.
    fn can_fuse(&self, compute: &Compute, operands: &[&Type], results: &[&Type]) -> bool;
}
