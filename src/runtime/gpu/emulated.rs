//! The driver of `ptx:N` devices: the emulator, which executes the text that a GPU would get and checks every access.

use super::driver::{Address, Driver, DriverError, Event, Module, Reach, Shape};
use crate::runtime::Effects;
use intwain_emulator::{
    self as emulator, AddressSpace, Arg, Check, FaultKind, HostError, Launch, LaunchError, Schedule,
};
use intwain_passes::listing::Stream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An emulated device. Commands are done when the calls return, so streams and events have nothing to order.
struct Emulated {
    name: String,
    device: Arc<emulator::Device>,
}

/// Devices that reach each other's memory; `threads` execute the blocks of each.
pub(super) fn open(ordinals: &[u32], threads: usize, effects: Effects) -> Vec<Arc<dyn Driver>> {
    let space = AddressSpace::new();
    // A device that is named twice has two memories: they must not share the emulator's number.
    let open = |(index, ordinal): (usize, &u32)| -> Arc<dyn Driver> {
        let mut device = emulator::Device::new(&space, index as u32);
        device.workers = threads;
        device.global_races = Check::On;
        device.schedule = match effects {
            Effects::Late => Schedule::Late,
            Effects::Early => Schedule::Early,
        };
        Arc::new(Emulated { name: format!("ptx:{ordinal}"), device: Arc::new(device) })
    };
    ordinals.iter().enumerate().map(open).collect()
}

impl Emulated {
    fn fault(&self) -> impl Fn(HostError) -> DriverError {
        |e| DriverError::Fault { device: self.name.clone(), problem: e.to_string() }
    }
}

impl Driver for Emulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn allocate(&self, bytes: usize, _: Reach) -> Result<Address, DriverError> {
        let full = |_| DriverError::Memory { device: self.name.clone(), bytes };
        self.device.alloc(bytes.max(1) as u64).map(Address).map_err(full)
    }

    fn free(&self, at: Address, _: Reach) {
        let freed = self.device.free(at.0);
        debug_assert!(freed.is_ok(), "{}: {freed:?}", self.name);
    }

    fn write(&self, to: Address, data: &[u8]) -> Result<(), DriverError> {
        self.device.write(to.0, data).map_err(self.fault())
    }

    fn read(&self, from: Address, out: &mut [u8]) -> Result<(), DriverError> {
        self.device.read(from.0, out).map_err(self.fault())
    }

    fn copy(&self, _: Stream, from: Address, to: Address, bytes: usize) -> Result<(), DriverError> {
        self.device.copy(to.0, from.0, bytes as u64).map_err(self.fault())
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<(), DriverError> {
        self.device.fill(at.0, 0, bytes as u64).map_err(self.fault())
    }

    fn load(&self, text: &str, kernels: &[String]) -> Result<Box<dyn Module>, DriverError> {
        let refused = |problem: String| DriverError::Code { device: self.name.clone(), problem };
        let code = emulator::Module::parse(text).map_err(|e| refused(e.to_string()))?;
        if let Some(missing) = kernels.iter().find(|k| !code.kernels().any(|have| have == k.as_str())) {
            return Err(refused(format!("it has no kernel `{missing}`")));
        }
        let (name, device) = (self.name.clone(), self.device.clone());
        Ok(Box::new(EmulatedModule { name, device, code, kernels: kernels.to_vec() }))
    }

    fn record(&self, _: Stream) -> Result<Box<dyn Event>, DriverError> {
        Ok(Box::new(Done))
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        Ok(())
    }

    fn stop(&self) {
        self.device.cancel.store(true, Ordering::Relaxed);
    }

    fn resume(&self) {
        self.device.cancel.store(false, Ordering::Relaxed);
    }
}

/// An event that has happened.
struct Done;

impl Event for Done {
    fn wait(&self, _: Stream) -> Result<(), DriverError> {
        Ok(())
    }
}

/// Parsed text, and where it runs.
struct EmulatedModule {
    name: String,
    device: Arc<emulator::Device>,
    code: emulator::Module,
    kernels: Vec<String>,
}

impl Module for EmulatedModule {
    fn launch(&self, _: Stream, kernel: usize, shape: Shape, args: &[Address]) -> Result<(), DriverError> {
        let Shape { grid, block, shared } = shape;
        let args: Vec<Arg> = args.iter().map(|a| Arg::U64(a.0)).collect();
        let done = self.device.launch(&self.code, &self.kernels[kernel], Launch { grid, block, shared }, &args);
        done.map(drop).map_err(|e| self.error(e))
    }
}

impl EmulatedModule {
    fn error(&self, e: LaunchError) -> DriverError {
        match &e {
            LaunchError::Fault(fault) if fault.kind == FaultKind::Cancelled => DriverError::Stopped,
            _ => DriverError::Fault { device: self.name.clone(), problem: e.to_string() },
        }
    }
}
