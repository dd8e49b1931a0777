//! What the driver remembers.

use intwain_emulator::{AddressSpace, Arg, Device, Launch, Module};
use std::cell::Cell;
use std::ffi::CStr;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Number of GPUs.
pub(crate) const DEVICES: usize = 2;
/// Memory of each in bytes.
pub(crate) const MEMORY: usize = 8 << 30;

/// Why a call fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Invalid,
    Memory,
    NotFound,
    Launch,
    PeerEnabled,
}

/// Grid, block, shared memory.
pub(crate) type Shape = ([u32; 3], [u32; 3], u32);

/// A kernel: its module and its name.
#[derive(Clone)]
struct Function {
    module: Arc<Module>,
    name: String,
}

/// The driver.
pub(crate) struct State {
    devices: Vec<Device>,
    modules: Mutex<Vec<Option<Arc<Module>>>>,
    functions: Mutex<Vec<Function>>,
    peers: Mutex<Vec<(usize, usize)>>,
    /// Launches so far.
    launches: AtomicUsize,
    fault: Mutex<&'static CStr>,
}

thread_local! {
    /// The context of this thread; 0 is none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The driver of this process.
pub(crate) fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| {
        let space = AddressSpace::default();
        State {
            devices: (0..DEVICES).map(|i| Device::new(&space, i as u32)).collect(),
            modules: Mutex::default(),
            functions: Mutex::default(),
            peers: Mutex::default(),
            launches: AtomicUsize::new(0),
            fault: Mutex::new(c"no fault"),
        }
    })
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn device(&self, ordinal: c_int) -> Result<&Device, Fault> {
        usize::try_from(ordinal).ok().and_then(|i| self.devices.get(i)).ok_or(Fault::Invalid)
    }

    pub(crate) fn set_current(&self, context: usize) -> Result<(), Fault> {
        if context > DEVICES {
            return Err(Fault::Invalid);
        }
        CURRENT.set(context);
        Ok(())
    }

    /// The GPU of this thread's context.
    pub(crate) fn current(&self) -> Result<&Device, Fault> {
        CURRENT.get().checked_sub(1).and_then(|i| self.devices.get(i)).ok_or(Fault::Invalid)
    }

    pub(crate) fn enable_peer(&self, context: usize) -> Result<(), Fault> {
        let pair = (CURRENT.get(), context);
        if pair.0 == 0 || context == 0 || context > DEVICES || pair.0 == context {
            return Err(Fault::Invalid);
        }
        let mut peers = lock(&self.peers);
        if peers.contains(&pair) {
            return Err(Fault::PeerEnabled);
        }
        peers.push(pair);
        Ok(())
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64, Fault> {
        if bytes == 0 {
            return Err(Fault::Invalid);
        }
        self.current()?.alloc(bytes as u64).map_err(|_| Fault::Memory)
    }

    pub(crate) fn free(&self, at: u64) -> Result<(), Fault> {
        self.current()?.free(at).map_err(|_| Fault::Invalid)
    }

    pub(crate) fn write(&self, to: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.current()?.write(to, bytes).map_err(|_| Fault::Invalid)
    }

    pub(crate) fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        self.current()?.read(from, bytes).map_err(|_| Fault::Invalid)
    }

    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) -> Result<(), Fault> {
        self.current()?.copy(to, from, bytes as u64).map_err(|_| Fault::Invalid)
    }

    pub(crate) fn load(&self, text: &str) -> Result<usize, String> {
        let module = Module::parse(text).map_err(|e| e.to_string())?;
        let mut modules = lock(&self.modules);
        modules.push(Some(Arc::new(module)));
        Ok(modules.len())
    }

    pub(crate) fn unload(&self, module: usize) -> Result<(), Fault> {
        let mut modules = lock(&self.modules);
        let slot = module.checked_sub(1).and_then(|i| modules.get_mut(i)).ok_or(Fault::Invalid)?;
        slot.take().map(|_| ()).ok_or(Fault::Invalid)
    }

    pub(crate) fn function(&self, module: usize, name: &str) -> Result<usize, Fault> {
        let modules = lock(&self.modules);
        let module = module.checked_sub(1).and_then(|i| modules.get(i)).and_then(Option::as_ref);
        let module = module.ok_or(Fault::Invalid)?.clone();
        if !module.kernels().any(|k| k == name) {
            return Err(Fault::NotFound);
        }
        let mut functions = lock(&self.functions);
        functions.push(Function { module, name: name.to_string() });
        Ok(functions.len())
    }

    fn find(&self, function: usize) -> Result<Function, Fault> {
        function.checked_sub(1).and_then(|i| lock(&self.functions).get(i).cloned()).ok_or(Fault::Invalid)
    }

    pub(crate) fn known(&self, function: usize) -> Result<(), Fault> {
        self.find(function).map(|_| ())
    }

    /// Number of a kernel's parameters.
    pub(crate) fn arity(&self, function: usize) -> Result<usize, Fault> {
        let f = self.find(function)?;
        f.module.parameters(&f.name).map(|p| p.len()).ok_or(Fault::Invalid)
    }

    pub(crate) fn launch(&self, function: usize, (grid, block, shared): Shape, args: &[u64]) -> Result<(), Fault> {
        let f = self.find(function)?;
        let number = self.launches.fetch_add(1, Ordering::Relaxed);
        if std::env::var("MOCK_FAILS").is_ok_and(|n| n.parse() == Ok(number)) {
            *lock(&self.fault) = c"on purpose";
            return Err(Fault::Launch);
        }
        let args: Vec<Arg> = args.iter().map(|a| Arg::U64(*a)).collect();
        let done = self.current()?.launch(&f.module, &f.name, Launch { grid, block, shared }, &args);
        done.map(|_| ()).map_err(|e| {
            let text = std::ffi::CString::new(e.to_string()).unwrap_or_default();
            // Callers keep the sentence for as long as they like, and there are few.
            *lock(&self.fault) = Box::leak(text.into_boxed_c_str());
            Fault::Launch
        })
    }

    /// What the emulator found last.
    pub(crate) fn last_fault(&self) -> &'static CStr {
        *lock(&self.fault)
    }
}
