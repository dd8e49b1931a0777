//! `libcuda.so` over the PTX emulator: the functions of NVIDIA's driver that Intwain calls, so that tests run whole
//! programs through its CUDA path on machines without a GPU. Two GPUs of compute capability 8.0.
//!
//! Where the driver would queue, this acts at once, which is one of the orders that the driver may choose. Handles are
//! numbers; those that were never given are refused, as is everything that the emulator finds in a kernel. Launch number
//! MOCK_FAILS of the environment fails.
#![allow(clippy::missing_safety_doc, reason = "the interface is NVIDIA's, whose manual says what callers owe")]
#![allow(non_snake_case, reason = "NVIDIA's names")]

mod state;

use state::{Fault, State, state};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUresult`.
type Result = c_int;
const SUCCESS: Result = 0;
const INVALID_VALUE: Result = 1;
const OUT_OF_MEMORY: Result = 2;
const INVALID_PTX: Result = 218;
const NOT_FOUND: Result = 500;
const LAUNCH_FAILED: Result = 719;
const PEER_ALREADY_ENABLED: Result = 704;

fn code(fault: Fault) -> Result {
    match fault {
        Fault::Invalid => INVALID_VALUE,
        Fault::Memory => OUT_OF_MEMORY,
        Fault::NotFound => NOT_FOUND,
        Fault::Launch => LAUNCH_FAILED,
        Fault::PeerEnabled => PEER_ALREADY_ENABLED,
    }
}

/// Writes what `f` gives where `to` points.
///
/// # Safety
/// `to` is valid for a write.
unsafe fn give<T>(to: *mut T, f: impl FnOnce(&State) -> std::result::Result<T, Fault>) -> Result {
    match f(state()) {
        Ok(value) => {
            // SAFETY: by the caller's promise.
            unsafe { to.write(value) };
            SUCCESS
        }
        Err(fault) => code(fault),
    }
}

fn act(f: impl FnOnce(&State) -> std::result::Result<(), Fault>) -> Result {
    f(state()).map_or_else(code, |()| SUCCESS)
}

macro_rules! driver {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) $body:block)+) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> Result {
            // SAFETY: pointers are what NVIDIA's manual asks for.
            #[allow(unused_unsafe, reason = "some functions take no pointers")]
            unsafe { $body }
        })+
    };
}

driver! {
    /// Initialises the driver.
    fn cuInit(_flags: c_uint) { SUCCESS }
    /// Number of GPUs.
    fn cuDeviceGetCount(count: *mut c_int) { give(count, |_| Ok(state::DEVICES as c_int)) }
    /// The GPU with a number.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) { give(device, |s| s.device(ordinal).map(|_| ordinal)) }
    /// Its memory.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        give(bytes, |s| s.device(device).map(|_| state::MEMORY))
    }
    /// A fact: those that are asked for are those of an A100, all else is 0.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) {
        const MAJOR: c_int = 75;
        const MULTIPROCESSORS: c_int = 16;
        const MAX_SHARED: c_int = 97;
        const CLOCK: c_int = 13;
        const MEMORY_CLOCK: c_int = 36;
        const BUS: c_int = 37;
        let fact = match attribute {
            MAJOR => 8,
            MULTIPROCESSORS => 108,
            CLOCK => 1_410_000,
            MEMORY_CLOCK => 1_593_000,
            BUS => 5120,
            MAX_SHARED => 163 << 10,
            _ => 0,
        };
        give(value, |s| s.device(device).map(|_| fact))
    }
    /// Its name.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let text = c"PTX emulator";
        let bytes = text.to_bytes_with_nul();
        if state().device(device).is_err() || (len as usize) < bytes.len() {
            return INVALID_VALUE;
        }
        name.copy_from_nonoverlapping(text.as_ptr(), bytes.len());
        SUCCESS
    }
    /// Whether one GPU sees the other's memory: not where the environment has MOCK_NO_PEERS.
    fn cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) {
        let reached = c_int::from(std::env::var_os("MOCK_NO_PEERS").is_none());
        give(can, |s| s.device(from).and_then(|_| s.device(to)).map(|_| reached))
    }
    /// What two GPUs can do with each other: atomic operations, if they see each other's memory.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, _attribute: c_int, from: c_int, to: c_int) {
        cuDeviceCanAccessPeer(value, from, to)
    }
    /// The context of a GPU.
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) {
        give(context, |s| s.device(device).map(|_| device as usize + 1))
    }
    /// Gives a context back.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) { act(|s| s.device(device).map(|_| ())) }
    /// Makes a context that of this thread.
    fn cuCtxSetCurrent(context: usize) { act(|s| s.set_current(context)) }
    /// Lets the current context use the memory of another.
    fn cuCtxEnablePeerAccess(context: usize, _flags: c_uint) { act(|s| s.enable_peer(context)) }
    /// A stream.
    fn cuStreamCreate(stream: *mut usize, _flags: c_uint) { give(stream, |s| s.current().map(|_| 1)) }
    /// Waits for a stream.
    fn cuStreamSynchronize(_stream: usize) { SUCCESS }
    /// Ends a stream.
    fn cuStreamDestroy_v2(_stream: usize) { SUCCESS }
    /// An event.
    fn cuEventCreate(event: *mut usize, _flags: c_uint) { give(event, |s| s.current().map(|_| 1)) }
    /// What a stream was given so far, which is done.
    fn cuEventRecord(_event: usize, _stream: usize) { SUCCESS }
    /// Forgets an event.
    fn cuEventDestroy_v2(_event: usize) { SUCCESS }
    /// Waits for an event.
    fn cuStreamWaitEvent(_stream: usize, _event: usize, _flags: c_uint) { SUCCESS }
    /// Allocates.
    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) { give(at, |s| s.allocate(bytes)) }
    /// Frees.
    fn cuMemFree_v2(at: u64) { act(|s| s.free(at)) }
    /// Allocates memory of the host that all GPUs reach. Nobody but kernels and copies may use the address.
    fn cuMemHostAlloc(at: *mut usize, bytes: usize, _flags: c_uint) { give(at, |s| s.allocate(bytes).map(|a| a as usize)) }
    /// Frees memory of the host.
    fn cuMemFreeHost(at: usize) { act(|s| s.free(at as u64)) }
    /// Free and total memory.
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        total.write(state::MEMORY);
        give(free, |s| s.current().map(|_| state::MEMORY))
    }
    /// Copies to the GPU.
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, _stream: usize) {
        let bytes = std::slice::from_raw_parts(from.cast::<u8>(), bytes);
        act(|s| s.write(to, bytes))
    }
    /// Copies from the GPU.
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, _stream: usize) {
        let bytes = std::slice::from_raw_parts_mut(to.cast::<u8>(), bytes);
        act(|s| s.read(from, bytes))
    }
    /// Copies between allocations.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, _stream: usize) { act(|s| s.copy(to, from, bytes)) }
    /// Sets bytes.
    fn cuMemsetD8Async(to: u64, value: u8, bytes: usize, _stream: usize) {
        act(|s| s.write(to, &vec![value; bytes]))
    }
    /// Assembles PTX. What is wrong with it goes to the buffer for errors, which is the first option.
    fn cuModuleLoadDataEx(
        module: *mut usize,
        image: *const c_void,
        options: c_uint,
        _names: *mut c_int,
        values: *mut *mut c_void
    ) {
        let text = CStr::from_ptr(image.cast()).to_string_lossy();
        match state().load(&text) {
            Ok(handle) => {
                module.write(handle);
                SUCCESS
            }
            Err(problem) => {
                if options == 2 {
                    let (to, len) = (values.read().cast::<u8>(), values.add(1).read().addr());
                    let bytes = problem.as_bytes();
                    let n = bytes.len().min(len.saturating_sub(1));
                    to.copy_from_nonoverlapping(bytes.as_ptr(), n);
                    to.add(n).write(0);
                }
                INVALID_PTX
            }
        }
    }
    /// A kernel of a module.
    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        let name = CStr::from_ptr(name).to_string_lossy();
        give(function, |s| s.function(module, &name))
    }
    /// Forgets a module.
    fn cuModuleUnload(module: usize) { act(|s| s.unload(module)) }
    /// A fact about a kernel.
    fn cuFuncGetAttribute(value: *mut c_int, _attribute: c_int, function: usize) {
        give(value, |s| s.known(function).map(|()| 32))
    }
    /// Sets the shared memory that a kernel may have.
    fn cuFuncSetAttribute(function: usize, _attribute: c_int, _value: c_int) { act(|s| s.known(function)) }
    /// Runs a kernel whose parameters are pointers.
    fn cuLaunchKernel(
        function: usize,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared: c_uint,
        _stream: usize,
        params: *mut *mut c_void,
        _extra: *mut *mut c_void
    ) {
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z], shared);
        act(|s| {
            let args: Vec<u64> = (0..s.arity(function)?).map(|i| params.add(i).read().cast::<u64>().read()).collect();
            s.launch(function, shape, &args)
        })
    }
    /// The name of an error.
    fn cuGetErrorName(error: Result, name: *mut *const c_char) {
        name.write(c"CUDA_ERROR".as_ptr());
        if error == SUCCESS { INVALID_VALUE } else { SUCCESS }
    }
    /// A sentence about an error: what the emulator found, where it found something.
    fn cuGetErrorString(_error: Result, sentence: *mut *const c_char) {
        sentence.write(state().last_fault().as_ptr());
        SUCCESS
    }
}
