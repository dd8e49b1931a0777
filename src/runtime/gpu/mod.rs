//! GPUs: a driver each, and programs on them.

mod device;
mod driver;
mod emulated;

pub use driver::DriverError;

pub(crate) use driver::Driver;

use super::device::{Device, LoadError};
use crate::kernels;
use device::GpuDevice;
use intwain_codegen::schedule::gpu::Gpu;
use intwain_passes::program::DeviceProgram;
use std::sync::Arc;

/// Emulated devices, `ptx:N`.
pub(super) fn emulated(ordinals: &[u32]) -> Vec<Arc<dyn Driver>> {
    emulated::open(ordinals)
}

/// Compiles and loads one program per device.
pub(super) fn load(
    programs: &[DeviceProgram],
    drivers: &[Arc<dyn Driver>],
    target: &Gpu,
) -> Result<Vec<Box<dyn Device>>, LoadError> {
    let load = |(program, driver): (&DeviceProgram, &Arc<dyn Driver>)| -> Result<Box<dyn Device>, LoadError> {
        let code = kernels::gpu::compile(target, program)?;
        Ok(Box::new(GpuDevice::new(program.clone(), driver.clone(), code)?))
    };
    programs.iter().zip(drivers).map(load).collect()
}
