//! A driver whose launches fail.

use crate::runtime::gpu::driver::{Address, Driver, DriverError, Event, Module, Reach, Shape};
use intwain_passes::listing::Stream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device whose launches fail while there is a launch to fail.
pub(super) struct Failing {
    pub(super) inner: Arc<dyn Driver>,
    /// Launches until the one that fails.
    pub(super) left: Arc<AtomicUsize>,
}

struct FailingModule {
    inner: Box<dyn Module>,
    left: Arc<AtomicUsize>,
}

impl Module for FailingModule {
    fn launch(&self, stream: Stream, kernel: usize, shape: Shape, args: &[Address]) -> Result<(), DriverError> {
        let count = |left: usize| if left == usize::MAX { None } else { left.checked_sub(1) };
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count) {
            Err(0) => {
                self.left.store(usize::MAX, Ordering::Relaxed);
                Err(DriverError::Fault { device: "test".into(), problem: "on purpose".into() })
            }
            Ok(_) | Err(_) => self.inner.launch(stream, kernel, shape, args),
        }
    }
}

impl Driver for Failing {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn allocate(&self, bytes: usize, reach: Reach) -> Result<Address, DriverError> {
        self.inner.allocate(bytes, reach)
    }

    fn free(&self, at: Address, reach: Reach) {
        self.inner.free(at, reach);
    }

    fn write(&self, to: Address, data: &[u8]) -> Result<(), DriverError> {
        self.inner.write(to, data)
    }

    fn read(&self, from: Address, out: &mut [u8]) -> Result<(), DriverError> {
        self.inner.read(from, out)
    }

    fn copy(&self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<(), DriverError> {
        self.inner.copy(stream, from, to, bytes)
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<(), DriverError> {
        self.inner.clear(at, bytes)
    }

    fn load(&self, text: &str, kernels: &[String]) -> Result<Box<dyn Module>, DriverError> {
        let inner = self.inner.load(text, kernels)?;
        Ok(Box::new(FailingModule { inner, left: self.left.clone() }))
    }

    fn record(&self, stream: Stream) -> Result<Box<dyn Event>, DriverError> {
        self.inner.record(stream)
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        self.inner.synchronise()
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn resume(&self) {
        self.inner.resume();
    }
}
