//! Device memory: one flat 64-bit address space shared by all devices, safe to use from many threads.
//!
//! An allocation is an array of 64-KiB pages made on first write, so huge sparse allocations cost little. Words are
//! atomics: kernels of two devices may run in two threads over each other's memory, synchronised by nothing but the
//! flags that they exchange. Beside the words lies one bit for every byte that tells whether it was ever written.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use crate::error::{FaultKind, HostError};
use crate::known::{Known, Message};
use crate::page::Allocation;
use crate::race::DEVICES;
use crate::view::View;

/// Unmapped bytes kept between allocations, so that an access slightly past the end meets nobody else's bytes.
const RED_ZONE: u64 = 512;
/// More than any device has; the page table of a larger allocation would be a burden in itself.
const MAX_ALLOCATION: u64 = 256 << 30;

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) table: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    next: Mutex<BTreeMap<u32, u64>>,
    pub(crate) version: AtomicU64,
    /// Serialises read-modify-writes and synchronising accesses.
    pub(crate) atomics: Mutex<()>,
    /// Warps of each device that have been checked for races so far.
    warps: [AtomicU64; DEVICES],
    /// What all devices know of each other because the host waited for all.
    common: Mutex<Known>,
    /// What was released where, by address.
    pub(crate) messages: Mutex<HashMap<u64, Message>>,
    /// Counts what devices do besides waiting.
    beats: AtomicU64,
}

/// The address space that devices share: a pointer to one device's memory is valid in the others' kernels.
#[derive(Clone, Default)]
pub struct AddressSpace(pub(crate) Arc<Inner>);

impl AddressSpace {
    /// An empty space.
    pub fn new() -> AddressSpace {
        AddressSpace::default()
    }

    /// Counts turns of blocks that do not only wait, on all devices: while it grows, whoever waits has reason to.
    pub(crate) fn beats(&self) -> &AtomicU64 {
        &self.0.beats
    }

    /// Tells the race check that the host has waited for all devices: whatever they did so far is ordered before
    /// whatever they do next. Without it, launches of different devices are ordered only by the flags they exchange.
    pub fn synchronise(&self) {
        let mut common = self.0.common.lock().unwrap_or_else(PoisonError::into_inner);
        for (device, warps) in self.0.warps.iter().enumerate() {
            common.raise(device as u32, warps.load(Ordering::Acquire));
        }
    }

    /// What a launch of a device knows at its start, and its first warp's number.
    pub(crate) fn begin(&self, device: u32, known: &mut Known) -> u64 {
        known.join(&self.0.common.lock().unwrap_or_else(PoisonError::into_inner));
        let first = self.number(device, 0);
        known.raise(device, first);
        first
    }

    /// Numbers the warps of a block; gives that of the first.
    pub(crate) fn number(&self, device: u32, warps: u64) -> u64 {
        self.0.warps.get(device as usize).map_or(0, |w| w.fetch_add(warps, Ordering::AcqRel))
    }

    pub(crate) fn allocate(&self, device: u32, bytes: u64) -> Result<u64, HostError> {
        if bytes > MAX_ALLOCATION {
            return Err(HostError { address: 0, bytes, kind: FaultKind::OutOfBounds("allocation") });
        }
        let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next.entry(device).or_insert((u64::from(device) + 1) << 44);
        let base = *next;
        *next += bytes.next_multiple_of(256) + RED_ZONE;
        let allocation = Allocation::new(base, bytes, device);
        self.0.table.write().unwrap_or_else(PoisonError::into_inner).insert(base, Arc::new(allocation));
        self.0.version.fetch_add(1, Ordering::Release);
        Ok(base)
    }

    pub(crate) fn free(&self, address: u64) -> Result<(), HostError> {
        let found = self.0.table.write().unwrap_or_else(PoisonError::into_inner).remove(&address);
        self.0.version.fetch_add(1, Ordering::Release);
        match found {
            Some(allocation) => {
                allocation.freed.store(true, Ordering::Release);
                Ok(())
            }
            None => Err(HostError { address, bytes: 0, kind: FaultKind::OutOfBounds("free") }),
        }
    }

    pub(crate) fn view(&self) -> View {
        View::new(self.clone())
    }
}
