//! Which GPUs there are, found without ever panicking: the driver's library may be absent, broken or without a device.

use cudarc::driver::{DriverError, result, sys};
use std::os::raw::c_int;

/// Why no CUDA device can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCuda {
    /// The driver is not installed.
    #[error("NVIDIA's driver is not installed: its library (libcuda.so) was not found")]
    NoLibrary,
    /// The driver does not work.
    #[error("NVIDIA's driver answers: {0}")]
    Driver(String),
    /// There is no GPU.
    #[error("NVIDIA's driver finds no GPU")]
    NoDevice,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// The number of `cuda:N`.
    pub ordinal: usize,
    /// The name that its maker gave it.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (u32, u32),
    /// Bytes of memory.
    pub memory: usize,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Clock of the multiprocessors in kHz.
    pub clock_khz: u32,
    /// Clock of the memory in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus in bits.
    pub bus_bits: u32,
}

impl GpuInfo {
    /// Whether it executes the PTX that is emitted, which needs sm_80.
    pub fn is_usable(&self) -> bool {
        self.capability >= (8, 0)
    }
}

/// The GPUs of this machine.
///
/// # Errors
/// There are none, or the driver cannot be used.
pub fn devices() -> Result<Vec<GpuInfo>, NoCuda> {
    // SAFETY: looks for a library by its names; loading NVIDIA's has no effect before it is initialised.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoCuda::NoLibrary);
    }
    result::init()
        .map_err(|e| if e.0 == sys::CUresult::CUDA_ERROR_NO_DEVICE { NoCuda::NoDevice } else { answer(e) })?;
    let count = result::device::get_count().map_err(answer)?;
    if count == 0 {
        return Err(NoCuda::NoDevice);
    }
    (0..count).map(|i| info(i).map_err(answer)).collect()
}

/// What the driver says. It is there: only its own errors come here.
fn answer(e: DriverError) -> NoCuda {
    NoCuda::Driver(super::message(e))
}

fn info(ordinal: c_int) -> Result<GpuInfo, DriverError> {
    use sys::CUdevice_attribute as A;
    let device = result::device::get(ordinal)?;
    // SAFETY: the device was given by the driver.
    let attribute = |a| unsafe { result::device::get_attribute(device, a) }.map(|v| v.max(0) as u32);
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(GpuInfo {
        ordinal: ordinal as usize,
        name: result::device::get_name(device)?,
        capability: (major, minor),
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }?,
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        bus_bits: attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    })
}

fn handles(a: &GpuInfo, b: &GpuInfo) -> Result<(sys::CUdevice, sys::CUdevice), NoCuda> {
    let device = |g: &GpuInfo| result::device::get(g.ordinal as c_int).map_err(answer);
    Ok((device(a)?, device(b)?))
}

/// Whether GPU `from` can read and write the memory of GPU `to`. A GPU always can its own.
///
/// # Errors
/// The driver does not know the devices.
pub fn peer_access(from: &GpuInfo, to: &GpuInfo) -> Result<bool, NoCuda> {
    if from.ordinal == to.ordinal {
        return Ok(true);
    }
    let (a, b) = handles(from, to)?;
    let mut can = 0;
    // SAFETY: both devices were given by the driver, which writes one integer.
    unsafe { sys::cuDeviceCanAccessPeer(&mut can, a, b) }.result().map_err(answer)?;
    Ok(can != 0)
}

/// Whether GPU `from` does atomic operations in the memory of GPU `to`: over NVLink it does, over PCI Express not.
pub(super) fn native_atomics(from: &GpuInfo, to: &GpuInfo) -> Result<bool, NoCuda> {
    if from.ordinal == to.ordinal {
        return Ok(true);
    }
    let (a, b) = handles(from, to)?;
    let mut can = 0;
    let attribute = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    // SAFETY: both devices were given by the driver, which writes one integer.
    unsafe { sys::cuDeviceGetP2PAttribute(&mut can, attribute, a, b) }.result().map_err(answer)?;
    Ok(can != 0)
}
