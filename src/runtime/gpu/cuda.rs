//! The driver of `cuda:N` devices.

use super::driver::{Address, Driver, DriverError, Event, Module, Reach, Shape};
use crate::cuda::{CudaDevice, CudaError, CudaEvent, CudaModule, Peers};
use intwain_codegen::schedule::gpu::PEER_FLAG_BYTES;
use intwain_passes::listing::Stream;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU under the name of a device.
struct Cuda {
    name: String,
    device: Arc<CudaDevice>,
    peers: Peers,
    /// The memories into which the other device sends: their flags.
    flags: Mutex<BTreeSet<u64>>,
    /// Whether launches are refused because another device failed.
    stopped: Arc<AtomicBool>,
}

/// GPUs of one program. One that is named twice is two devices, each with streams of its own. Where they do not reach
/// each other's memory, as most cards behind PCIe, memory for both is the host's.
pub(super) fn open(ordinals: &[u32]) -> Result<Vec<Arc<dyn Driver>>, CudaError> {
    let devices: Vec<Arc<CudaDevice>> =
        ordinals.iter().map(|&o| CudaDevice::open(o as usize).map(Arc::new)).collect::<Result<_, _>>()?;
    let peers = CudaDevice::connect(&devices)?;
    let named = |(o, device): (&u32, Arc<CudaDevice>)| -> Arc<dyn Driver> {
        Arc::new(Cuda { name: format!("cuda:{o}"), device, peers, flags: Mutex::default(), stopped: Arc::default() })
    };
    Ok(ordinals.iter().zip(devices).map(named).collect())
}

/// A failure under the name of its device.
fn failed(device: &str) -> impl Fn(CudaError) -> DriverError {
    move |e| {
        let device = device.to_string();
        match e {
            CudaError::Memory { wanted, .. } => DriverError::Memory { device, bytes: wanted },
            CudaError::Module { log } => DriverError::Code { device, problem: log },
            e @ (CudaError::Absent(_)
            | CudaError::NoOrdinal { .. }
            | CudaError::TooOld { .. }
            | CudaError::Call { .. }) => DriverError::Fault { device, problem: e.to_string() },
        }
    }
}

impl Driver for Cuda {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate(&self, bytes: usize, reach: Reach) -> Result<Address, DriverError> {
        let at = match (reach, self.peers) {
            (Reach::Both, Peers::Apart) => self.device.allocate_host(bytes),
            (Reach::Own, _) | (Reach::Both, Peers::Reached) => self.device.allocate(bytes),
        };
        let at = at.map_err(failed(&self.name))?;
        if reach == Reach::Both {
            self.flags.lock().unwrap_or_else(PoisonError::into_inner).insert(at);
        }
        Ok(Address(at))
    }

    fn free(&self, at: Address, reach: Reach) {
        self.flags.lock().unwrap_or_else(PoisonError::into_inner).remove(&at.0);
        // SAFETY: the caller frees what it has allocated with this reach, once no command uses it.
        // A GPU that has failed refuses every call, this one too: whoever used it was told.
        let _ = unsafe {
            match (reach, self.peers) {
                (Reach::Both, Peers::Apart) => self.device.free_host(at.0),
                (Reach::Own, _) | (Reach::Both, Peers::Reached) => self.device.free(at.0),
            }
        };
    }

    fn write(&self, to: Address, data: &[u8]) -> Result<(), DriverError> {
        // SAFETY: the program's buffers lie in its allocations, which live as long as it runs.
        unsafe { self.device.write(to.0, data) }.map_err(failed(&self.name))
    }

    fn read(&self, from: Address, out: &mut [u8]) -> Result<(), DriverError> {
        // SAFETY: as for `write`.
        unsafe { self.device.read(from.0, out) }.map_err(failed(&self.name))
    }

    fn copy(&self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: as for `write`.
        unsafe { self.device.copy(number(stream), to.0, from.0, bytes) }.map_err(failed(&self.name))
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<(), DriverError> {
        // SAFETY: as for `write`.
        unsafe { self.device.fill(at.0, 0, bytes) }.map_err(failed(&self.name))
    }

    fn load(&self, text: &str, kernels: &[String]) -> Result<Box<dyn Module>, DriverError> {
        let module = CudaModule::load(self.device.clone(), text, kernels).map_err(failed(&self.name))?;
        let (name, device, stopped) = (self.name.clone(), self.device.clone(), self.stopped.clone());
        Ok(Box::new(Loaded { name, device, stopped, module }))
    }

    fn record(&self, stream: Stream) -> Result<Box<dyn Event>, DriverError> {
        let event = self.device.record(number(stream)).map_err(failed(&self.name))?;
        Ok(Box::new(Recorded { name: self.name.clone(), event }))
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        self.device.synchronize().map_err(failed(&self.name))
    }

    /// Says in the place of the other device that everything was sent and taken.
    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        for at in self.flags.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            // SAFETY: allocated as memory that both reach, of which the first bytes are flags, and not freed.
            let _ = unsafe { self.device.fill_now(*at, 0x7f, PEER_FLAG_BYTES) };
        }
    }

    fn resume(&self) {
        self.stopped.store(false, Ordering::Relaxed);
    }
}

/// The GPU's stream for a kind of work. Copies of the host go through the first, that of kernels.
fn number(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::CopyIn => 1,
        Stream::CopyOut => 2,
    }
}

/// What a stream of a GPU was given.
struct Recorded {
    name: String,
    event: CudaEvent,
}

impl Event for Recorded {
    fn wait(&self, stream: Stream) -> Result<(), DriverError> {
        self.event.wait(number(stream)).map_err(failed(&self.name))
    }
}

/// Code on a GPU.
struct Loaded {
    name: String,
    device: Arc<CudaDevice>,
    stopped: Arc<AtomicBool>,
    module: CudaModule,
}

impl Module for Loaded {
    fn launch(&self, stream: Stream, kernel: usize, shape: Shape, args: &[Address]) -> Result<(), DriverError> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(DriverError::Stopped);
        }
        let Shape { grid, block, shared } = shape;
        let args: Vec<u64> = args.iter().map(|a| a.0).collect();
        // SAFETY: the kernel was made for as many pointers, which lead to buffers of the sizes it was made for; the
        // program lives until the device has done what it was told.
        unsafe { self.device.launch(number(stream), (&self.module, kernel), grid, block, shared, &args) }
            .map_err(failed(&self.name))
    }
}
