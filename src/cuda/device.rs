//! One GPU: a context, streams, modules and memory.
//!
//! Copies and launches are put into a stream, [`CudaDevice::write`] and [`CudaDevice::read`] wait for theirs. Two devices,
//! also two of one GPU, have streams of their own, so kernels of one may wait for flags that kernels of the other set. For
//! the same reason kernels are loaded completely with their module: loading one later may wait for all that run.

use super::module::CudaModule;
use super::{NoCuda, devices, message};
use cudarc::driver::result::{self, stream::StreamKind};
use cudarc::driver::{DriverError, sys};
use std::ffi::c_void;
use std::os::raw::c_int;
use std::sync::Arc;

/// Why a GPU could not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no CUDA.
    #[error(transparent)]
    Absent(#[from] NoCuda),
    /// There is no such GPU.
    #[error("there is no GPU {ordinal}; found are {found}")]
    NoOrdinal {
        /// What was asked for.
        ordinal: usize,
        /// How many there are.
        found: usize,
    },
    /// The GPU is too old.
    #[error("GPU {ordinal} ({name}) has compute capability {}.{}; 8.0 is needed", .capability.0, .capability.1)]
    TooOld {
        /// The GPU.
        ordinal: usize,
        /// Its name.
        name: String,
        /// Its capability.
        capability: (u32, u32),
    },
    /// The memory is not enough.
    #[error("GPU {ordinal} has {free} bytes free; {wanted} are needed")]
    Memory {
        /// The GPU.
        ordinal: usize,
        /// What was asked for.
        wanted: usize,
        /// What there is.
        free: usize,
    },
    /// The driver refuses the PTX.
    #[error("NVIDIA's driver does not assemble the PTX: {log}")]
    Module {
        /// What its assembler says.
        log: String,
    },
    /// The driver refuses a call.
    #[error("GPU {ordinal}: {action}: {problem}")]
    Call {
        /// The GPU.
        ordinal: usize,
        /// What was tried.
        action: &'static str,
        /// What the driver says.
        problem: String,
    },
}

/// Whether the GPUs of a program reach each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peers {
    /// Each reaches the other's.
    Reached,
    /// They meet in the host's memory.
    Apart,
}

/// Streams of a device that commands are put into.
pub(crate) const STREAMS: usize = 3;

/// The stream after those, for what cannot wait for them.
const URGENT: usize = STREAMS;

/// A GPU with streams of its own.
#[derive(Debug)]
pub(crate) struct CudaDevice {
    ordinal: usize,
    device: sys::CUdevice,
    context: sys::CUcontext,
    streams: [sys::CUstream; STREAMS + 1],
    /// Shared memory that a block may ask for, in bytes.
    pub(super) shared: c_int,
}

// SAFETY: handles of the driver may be used from any thread; every call makes the context current first.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver serialises what needs it.
unsafe impl Sync for CudaDevice {}

/// What a stream was given up to some moment.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    device: Arc<CudaDevice>,
    event: sys::CUevent,
}

// SAFETY: as for the device.
unsafe impl Send for CudaEvent {}

impl CudaDevice {
    /// Opens GPU `ordinal`.
    pub(crate) fn open(ordinal: usize) -> Result<CudaDevice, CudaError> {
        let found = devices()?;
        let info = found.get(ordinal).ok_or(CudaError::NoOrdinal { ordinal, found: found.len() })?;
        if !info.is_usable() {
            return Err(CudaError::TooOld { ordinal, name: info.name.clone(), capability: info.capability });
        }
        let call =
            |action: &'static str| move |e: DriverError| CudaError::Call { ordinal, action, problem: message(e) };
        let device = result::device::get(ordinal as c_int).map_err(call("open it"))?;
        // SAFETY: the device was given by the driver; the context is released when this value is dropped.
        let context = unsafe { result::primary_ctx::retain(device) }.map_err(call("make a context"))?;
        // SAFETY: the context was given by the driver.
        unsafe { result::ctx::set_current(context) }.map_err(call("use the context"))?;
        let mut streams = [std::ptr::null_mut(); STREAMS + 1];
        for stream in &mut streams {
            *stream = result::stream::create(StreamKind::NonBlocking).map_err(call("make a stream"))?;
        }
        let optin = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        // SAFETY: the device was given by the driver.
        let shared = unsafe { result::device::get_attribute(device, optin) }.map_err(call("ask for a fact"))?;
        Ok(CudaDevice { ordinal, device, context, streams, shared })
    }

    /// Makes the context that of this thread, and `f` a call in it.
    pub(super) fn call<T>(
        &self,
        action: &'static str,
        f: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, CudaError> {
        // SAFETY: the context lives as long as this value.
        unsafe { result::ctx::set_current(self.context) }.and_then(|()| f()).map_err(|e| CudaError::Call {
            ordinal: self.ordinal,
            action,
            problem: message(e),
        })
    }

    /// Lets the GPUs of a program read and write each other's memory, if all of them can.
    pub(crate) fn connect(devices: &[Arc<CudaDevice>]) -> Result<Peers, CudaError> {
        let pairs = || devices.iter().flat_map(|a| devices.iter().map(move |b| (a, b)));
        for (a, b) in pairs() {
            if !a.can_reach(b)? {
                return Ok(Peers::Apart);
            }
        }
        pairs().try_for_each(|(a, b)| a.enable_peer(b)).map(|()| Peers::Reached)
    }

    fn can_reach(&self, other: &CudaDevice) -> Result<bool, CudaError> {
        if self.ordinal == other.ordinal {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: both devices were given by the driver, which writes one integer.
        self.call("ask for peer access", || unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, self.device, other.device).result()
        })?;
        Ok(can != 0)
    }

    /// Lets this GPU read and write the memory of one that it can reach.
    pub(crate) fn enable_peer(&self, other: &CudaDevice) -> Result<(), CudaError> {
        if self.ordinal == other.ordinal {
            return Ok(());
        }
        self.call("enable peer access", || {
            // SAFETY: the other context lives; it is not this one.
            match unsafe { sys::cuCtxEnablePeerAccess(other.context, 0) } {
                sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
                outcome => outcome.result(),
            }
        })
    }

    /// Allocates bytes, aligned to 256.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, CudaError> {
        let wanted = bytes.max(1);
        // SAFETY: the memory is uninitialised; what runs on the device writes it before it is read.
        match self.call("allocate memory", || Ok(unsafe { result::malloc_sync(wanted) }))? {
            Ok(at) => Ok(at),
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                let (free, _) = self.call("ask for free memory", result::mem_get_info)?;
                Err(CudaError::Memory { ordinal: self.ordinal, wanted, free })
            }
            Err(e) => self.call("allocate memory", || Err(e)),
        }
    }

    /// Frees an allocation.
    ///
    /// # Safety
    /// `at` was given by [`CudaDevice::allocate`] of this device, is freed once, and nothing that runs uses it.
    pub(crate) unsafe fn free(&self, at: u64) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise.
        self.call("free memory", || unsafe { result::free_sync(at) })
    }

    /// Allocates pinned memory of the host that every GPU reads and writes at the address given.
    pub(crate) fn allocate_host(&self, bytes: usize) -> Result<u64, CudaError> {
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the memory is uninitialised; what runs on devices writes it before it is read. With unified addressing,
        // which every 64-bit system has, the host's address is that of all devices.
        let at = self.call("allocate pinned memory", || unsafe { result::malloc_host(bytes.max(1), flags) })?;
        Ok(at.expose_provenance() as u64)
    }

    /// Frees pinned memory.
    ///
    /// # Safety
    /// `at` was given by [`CudaDevice::allocate_host`], is freed once, and nothing that runs uses it.
    pub(crate) unsafe fn free_host(&self, at: u64) -> Result<(), CudaError> {
        let at = std::ptr::with_exposed_provenance_mut(at as usize);
        // SAFETY: by the caller's promise.
        self.call("free pinned memory", || unsafe { result::free_host(at) })
    }

    /// Copies from the host, after all that was put into stream 0.
    ///
    /// # Safety
    /// The range lies in an allocation of this device.
    pub(crate) unsafe fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise; the copy has ended when this returns, so `bytes` lives long enough.
        self.call("copy to the GPU", || unsafe {
            result::memcpy_htod_async(to, bytes, self.streams[0])?;
            result::stream::synchronize(self.streams[0])
        })
    }

    /// Copies to the host, after all that was put into stream 0.
    ///
    /// # Safety
    /// The range lies in an allocation of this device.
    pub(crate) unsafe fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise; the copy has ended when this returns, so `bytes` lives long enough.
        self.call("copy from the GPU", || unsafe {
            result::memcpy_dtoh_async(bytes, from, self.streams[0])?;
            result::stream::synchronize(self.streams[0])
        })
    }

    /// Puts a copy into a stream, within this GPU's memory or a peer's that it can access.
    ///
    /// # Safety
    /// Both ranges lie in allocations that live until the copy has ended, and do not overlap.
    pub(crate) unsafe fn copy(&self, stream: usize, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise.
        self.call("copy", || unsafe { result::memcpy_dtod_async(to, from, bytes, self.streams[stream]) })
    }

    /// Puts the setting of bytes into stream 0.
    ///
    /// # Safety
    /// The range lies in an allocation that lives until that has ended.
    pub(crate) unsafe fn fill(&self, to: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise.
        self.call("fill memory", || unsafe { result::memset_d8_async(to, value, bytes, self.streams[0]) })
    }

    /// Sets bytes at once, whatever the streams are at: kernels that run meanwhile see it.
    ///
    /// # Safety
    /// The range lies in an allocation that lives until the streams are waited for.
    pub(crate) unsafe fn fill_now(&self, to: u64, value: u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: by the caller's promise.
        self.call("fill memory", || unsafe { result::memset_d8_async(to, value, bytes, self.streams[URGENT]) })
    }

    /// Waits until all that was put into the streams has ended.
    pub(crate) fn synchronize(&self) -> Result<(), CudaError> {
        for stream in self.streams {
            // SAFETY: streams live as long as this value.
            self.call("wait", || unsafe { result::stream::synchronize(stream) })?;
        }
        Ok(())
    }

    /// What a stream was given so far.
    pub(crate) fn record(self: &Arc<Self>, stream: usize) -> Result<CudaEvent, CudaError> {
        self.call("record an event", || {
            let event = result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            // From here on the event is destroyed whatever happens.
            let this = CudaEvent { device: self.clone(), event };
            // SAFETY: event and stream are of this context and live.
            unsafe { result::event::record(event, self.streams[stream]) }?;
            Ok(this)
        })
    }

    /// Puts a launch into a stream; every argument is a pointer.
    ///
    /// # Safety
    /// The module is of this device, its kernel takes as many pointers, and what it does with them stays inside
    /// allocations that live until it has ended.
    pub(crate) unsafe fn launch(
        &self,
        stream: usize,
        (module, function): (&CudaModule, usize),
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        args: &[u64],
    ) -> Result<(), CudaError> {
        let mut pointers: Vec<*mut c_void> = args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
        let triple = |[x, y, z]: [u32; 3]| (x, y, z);
        let f = module.kernel(function);
        // SAFETY: by the caller's promise; the driver copies the arguments before the call returns.
        self.call("launch a kernel", || unsafe {
            result::launch_kernel(f, triple(grid), triple(block), shared, self.streams[stream], &mut pointers)
        })
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure.
        let _ = self.synchronize();
        for stream in self.streams {
            // SAFETY: nothing uses the stream after this; modules and events hold the device.
            let _ = unsafe { result::stream::destroy(stream) };
        }
        // SAFETY: as above.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl CudaEvent {
    /// Makes a stream of the device go on only when that is done.
    pub(crate) fn wait(&self, stream: usize) -> Result<(), CudaError> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: event and stream are of this context and live.
        self.device.call("wait for an event", || unsafe {
            result::stream::wait_event(self.device.streams[stream], self.event, flags)
        })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // The driver keeps what is waited for until nobody waits.
        // SAFETY: nothing uses the handle after this.
        let _ = self.device.call("forget an event", || unsafe { result::event::destroy(self.event) });
    }
}
