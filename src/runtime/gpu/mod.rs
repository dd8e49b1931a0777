//! GPUs: a driver each, and programs on them.

mod cuda;
mod device;
mod driver;
mod emulated;
mod order;
mod routine;
#[cfg(test)]
mod tests;

pub use driver::DriverError;

pub(crate) use driver::Driver;

use super::Effects;
use super::device::{Device, LoadError};
use crate::cuda::CudaError;
use crate::kernels::{self, gpu::GpuCode};
use device::{GpuDevice, Mailboxes};
use driver::Address;
use intwain_codegen::schedule::gpu::Gpu;
use intwain_passes::program::DeviceProgram;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Emulated devices, `ptx:N`, each executed by so many threads.
pub(super) fn emulated(ordinals: &[u32], threads: usize, effects: Effects) -> Vec<Arc<dyn Driver>> {
    emulated::open(ordinals, threads, effects)
}

/// GPUs, `cuda:N`.
pub(super) fn cuda(ordinals: &[u32]) -> Result<Vec<Arc<dyn Driver>>, CudaError> {
    cuda::open(ordinals)
}

/// Loads one program per device, compiled now unless its code is there.
pub(super) fn load(
    programs: &[DeviceProgram],
    code: Option<&[GpuCode]>,
    drivers: &[Arc<dyn Driver>],
    target: &Gpu,
) -> Result<Vec<Box<dyn Device>>, LoadError> {
    let code: Vec<GpuCode> = match code {
        Some(code) => code.to_vec(),
        None => kernels::gpu::compile(target, programs)?,
    };
    let mailboxes = code.iter().zip(drivers).map(|(c, driver)| Mailboxes::new(driver, c));
    let mailboxes: Vec<Mailboxes> = mailboxes.collect::<Result<_, _>>()?;
    let addresses: Vec<BTreeMap<usize, Address>> = mailboxes.iter().map(Mailboxes::addresses).collect();
    let (alone, mut devices) = (BTreeMap::new(), Vec::new());
    for (d, ((program, code), mailboxes)) in programs.iter().zip(&code).zip(mailboxes).enumerate() {
        // An exchange is between two devices.
        let peer = addresses.iter().enumerate().find(|(k, _)| *k != d).map_or(&alone, |(_, a)| a);
        let device = GpuDevice::new(program.clone(), drivers[d].clone(), code, mailboxes, peer)?;
        devices.push(Box::new(device) as Box<dyn Device>);
    }
    Ok(devices)
}
