//! Kernels for CPU devices.

use crate::runtime::{Interpreted, Kernel};
use intwain_ir::compute::Compute;
use intwain_ir::{Target, Type};
use intwain_passes::program::DeviceProgram;
use std::sync::Arc;

struct Any;

impl Target for Any {
    fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
        true
    }
}

/// What passes ask about CPU devices.
pub(crate) fn target() -> impl Target {
    Any
}

/// The kernels of a program.
pub(crate) fn make(program: &DeviceProgram) -> Vec<Arc<dyn Kernel>> {
    program.kernels.iter().map(|k| Arc::new(Interpreted::new(k.clone())) as Arc<dyn Kernel>).collect()
}
