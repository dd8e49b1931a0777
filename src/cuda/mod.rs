//! NVIDIA GPUs through NVIDIA's driver, whose library is loaded when it is first asked for. Nothing of CUDA is needed to
//! build, and a machine without it gets a message.

mod device;
mod machine;
mod module;
mod probe;
mod test;

pub use device::CudaError;
pub(crate) use device::{CudaDevice, CudaEvent, Peers};
pub use machine::machine;
pub(crate) use module::CudaModule;
pub use probe::{GpuInfo, NoCuda, devices, peer_access};
pub use test::{CopyTest, copy_test};

use cudarc::driver::DriverError;

/// What the driver says of an error: its name and a sentence. Only where the driver is there.
fn message(e: DriverError) -> String {
    let text = |s: Result<&std::ffi::CStr, DriverError>| s.map(|s| s.to_string_lossy().into_owned()).ok();
    match (text(e.error_name()), text(e.error_string())) {
        (Some(name), Some(sentence)) => format!("{name}: {sentence}"),
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => format!("error {}", e.0 as u32),
    }
}
