//! Device memory: one flat 64-bit address space shared by all devices, safe to use from many threads.
//!
//! An allocation is an array of 64-KiB pages made on first write, so huge sparse allocations cost nothing. Words are
//! atomics: kernels of two devices may run in two threads over each other's memory, synchronised by nothing but the
//! flags that they exchange. Beside each word lie four bits that tell which bytes were ever written.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::error::{FaultKind, HostError};

const PAGE: u64 = 1 << 16;
/// Unmapped bytes kept between allocations, so that an access slightly past the end meets nobody else's bytes.
const RED_ZONE: u64 = 512;
/// More than any device has; the page table of a larger allocation would be a burden in itself.
const MAX_ALLOCATION: u64 = 256 << 30;

struct Page {
    words: Box<[AtomicU32]>,
    set: Box<[AtomicU8]>,
}

/// One allocation.
pub(crate) struct Allocation {
    base: u64,
    bytes: u64,
    pub(crate) device: u32,
    pages: Box<[OnceLock<Page>]>,
    freed: AtomicBool,
}

impl Allocation {
    fn page(&self, offset: u64) -> &Page {
        let index = offset / PAGE;
        self.pages[index as usize].get_or_init(|| {
            let words = ((self.bytes - index * PAGE).min(PAGE)).div_ceil(4);
            Page {
                words: (0..words).map(|_| AtomicU32::new(0)).collect(),
                set: (0..words).map(|_| AtomicU8::new(0)).collect(),
            }
        })
    }

    /// Loads 1, 2, 4 or 8 aligned bytes; `None` if some were never written.
    #[inline]
    fn load(&self, offset: u64, bytes: u32, order: Ordering) -> Option<u64> {
        let page = self.pages[(offset / PAGE) as usize].get()?;
        let word = (offset % PAGE / 4) as usize;
        if bytes == 8 {
            let low = u64::from(page.words[word].load(order));
            let high = u64::from(page.words[word + 1].load(order));
            let set = page.set[word].load(Ordering::Relaxed) & page.set[word + 1].load(Ordering::Relaxed);
            return (set == 0xf).then_some(low | high << 32);
        }
        let v = page.words[word].load(order);
        let (at, needed) = ((offset % 4) as u32, (1u8 << bytes) - 1);
        let set = page.set[word].load(Ordering::Relaxed) >> at;
        (set & needed == needed).then(|| crate::scalar::keep(u64::from(v >> (8 * at)), 8 * bytes))
    }

    #[inline]
    fn store(&self, offset: u64, bytes: u32, v: u64, order: Ordering) {
        let page = self.page(offset);
        let word = (offset % PAGE / 4) as usize;
        let put = |word: usize, v: u32, mask: u8| {
            // The marks come first: whoever sees the value also sees them.
            if page.set[word].load(Ordering::Relaxed) & mask != mask {
                page.set[word].fetch_or(mask, Ordering::Release);
            }
            page.words[word].store(v, order);
        };
        match bytes {
            8 => {
                put(word, v as u32, 0xf);
                put(word + 1, (v >> 32) as u32, 0xf);
            }
            4 => put(word, v as u32, 0xf),
            _ => {
                let at = (offset % 4) as u32;
                let field = ((1u32 << (8 * bytes)) - 1) << (8 * at);
                page.set[word].fetch_or(((1u8 << bytes) - 1) << at, Ordering::Release);
                let new = |old: u32| Some(old & !field | (v as u32) << (8 * at) & field);
                let _ = page.words[word].fetch_update(order, Ordering::Relaxed, new);
            }
        }
    }
}

#[derive(Default)]
struct Inner {
    table: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    next: Mutex<BTreeMap<u32, u64>>,
    version: AtomicU64,
    /// Serialises read-modify-writes and 64-bit synchronising accesses.
    atomics: Mutex<()>,
}

/// The address space that devices share: a pointer to one device's memory is valid in the others' kernels.
#[derive(Clone, Default)]
pub struct AddressSpace(Arc<Inner>);

impl AddressSpace {
    /// An empty space.
    pub fn new() -> AddressSpace {
        AddressSpace::default()
    }

    pub(crate) fn allocate(&self, device: u32, bytes: u64) -> Result<u64, HostError> {
        if bytes > MAX_ALLOCATION {
            return Err(HostError { address: 0, bytes, kind: FaultKind::OutOfBounds("allocation") });
        }
        let mut next = self.0.next.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next.entry(device).or_insert((u64::from(device) + 1) << 44);
        let base = *next;
        *next += bytes.next_multiple_of(256) + RED_ZONE;
        let pages = (0..bytes.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        let allocation = Allocation { base, bytes, device, pages, freed: AtomicBool::new(false) };
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
        let mut view = View { space: self.clone(), version: 0, table: Vec::new(), last: 0 };
        view.refresh();
        view
    }
}

/// A thread's view of the space: the allocation table, cached.
pub(crate) struct View {
    space: AddressSpace,
    version: u64,
    table: Vec<Arc<Allocation>>,
    last: usize,
}

impl View {
    fn refresh(&mut self) {
        self.version = self.space.0.version.load(Ordering::Acquire);
        self.table = self.space.0.table.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        self.last = 0;
    }

    #[inline]
    fn holds(a: &Allocation, address: u64, bytes: u64) -> bool {
        address >= a.base && address - a.base < a.bytes && a.bytes - (address - a.base) >= bytes
    }

    /// The allocation that holds `bytes` bytes at `address`.
    #[inline]
    fn find(&mut self, address: u64, bytes: u64, what: &'static str) -> Result<&Allocation, FaultKind> {
        let hit = self.table.get(self.last).is_some_and(|a| Self::holds(a, address, bytes));
        if !hit {
            self.search(address, bytes, what)?;
        }
        let found = &self.table[self.last];
        if found.freed.load(Ordering::Relaxed) { Err(FaultKind::OutOfBounds(what)) } else { Ok(found) }
    }

    fn search(&mut self, address: u64, bytes: u64, what: &'static str) -> Result<(), FaultKind> {
        if self.version != self.space.0.version.load(Ordering::Acquire) {
            self.refresh();
        }
        let after = self.table.partition_point(|a| a.base <= address);
        match after.checked_sub(1).filter(|&i| Self::holds(&self.table[i], address, bytes)) {
            Some(index) => self.last = index,
            None => return Err(FaultKind::OutOfBounds(what)),
        }
        Ok(())
    }

    /// The device whose memory it is.
    pub(crate) fn owner(&mut self, address: u64) -> Result<u32, FaultKind> {
        self.find(address, 1, "global").map(|a| a.device)
    }

    /// Checks that a whole vector lies in one allocation.
    pub(crate) fn check(&mut self, address: u64, bytes: u64) -> Result<(), FaultKind> {
        self.find(address, bytes, "global").map(|_| ())
    }

    #[inline]
    pub(crate) fn load(&mut self, address: u64, bytes: u32, ordered: bool) -> Result<u64, FaultKind> {
        let lock = (ordered && bytes == 8).then(|| self.space.clone());
        let _guard = lock.as_ref().map(|s| s.0.atomics.lock().unwrap_or_else(PoisonError::into_inner));
        let a = self.find(address, u64::from(bytes), "global")?;
        let order = if ordered { Ordering::Acquire } else { Ordering::Relaxed };
        a.load(address - a.base, bytes, order).ok_or(FaultKind::Uninitialised("global"))
    }

    #[inline]
    pub(crate) fn store(&mut self, address: u64, bytes: u32, v: u64, ordered: bool) -> Result<(), FaultKind> {
        let lock = ordered.then(|| self.space.clone());
        let _guard = lock.as_ref().map(|s| s.0.atomics.lock().unwrap_or_else(PoisonError::into_inner));
        let a = self.find(address, u64::from(bytes), "global")?;
        let order = if ordered { Ordering::Release } else { Ordering::Relaxed };
        a.store(address - a.base, bytes, v, order);
        Ok(())
    }

    /// Reads, changes and writes in one step; gives the old value.
    pub(crate) fn update(&mut self, address: u64, bytes: u32, f: impl Fn(u64) -> u64) -> Result<u64, FaultKind> {
        let space = self.space.clone();
        let _guard = space.0.atomics.lock().unwrap_or_else(PoisonError::into_inner);
        let a = self.find(address, u64::from(bytes), "global")?;
        let old = a.load(address - a.base, bytes, Ordering::Acquire).ok_or(FaultKind::Uninitialised("global"))?;
        a.store(address - a.base, bytes, f(old), Ordering::Release);
        Ok(old)
    }

    pub(crate) fn host_write(&mut self, address: u64, data: &[u8]) -> Result<(), HostError> {
        let bytes = data.len() as u64;
        let wrong = |kind| HostError { address, bytes, kind };
        if data.is_empty() {
            return Ok(());
        }
        let a = self.find(address, bytes, "host write").map_err(wrong)?;
        let mut at = 0;
        while at < data.len() {
            let offset = address - a.base + at as u64;
            let step = if offset.is_multiple_of(4) && data.len() - at >= 4 { 4 } else { 1 };
            let mut word = [0; 8];
            word[..step].copy_from_slice(&data[at..at + step]);
            a.store(offset, step as u32, u64::from_le_bytes(word), Ordering::Relaxed);
            at += step;
        }
        Ok(())
    }

    pub(crate) fn host_read(&mut self, address: u64, out: &mut [u8]) -> Result<(), HostError> {
        let bytes = out.len() as u64;
        let wrong = |kind| HostError { address, bytes, kind };
        if out.is_empty() {
            return Ok(());
        }
        let a = self.find(address, bytes, "host read").map_err(wrong)?;
        let mut at = 0;
        while at < out.len() {
            let offset = address - a.base + at as u64;
            let step = if offset.is_multiple_of(4) && out.len() - at >= 4 { 4 } else { 1 };
            let v = a.load(offset, step as u32, Ordering::Relaxed);
            let v = v.ok_or_else(|| wrong(FaultKind::Uninitialised("device")))?;
            out[at..at + step].copy_from_slice(&v.to_le_bytes()[..step]);
            at += step;
        }
        Ok(())
    }
}
