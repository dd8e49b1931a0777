//! Device memory: one flat 64-bit address space shared by all devices, safe to use from many threads.
//!
//! An allocation is an array of 64-KiB pages made on first write, so huge sparse allocations cost little. Words are
//! atomics: kernels of two devices may run in two threads over each other's memory, synchronised by nothing but the
//! flags that they exchange. Beside the words lies one bit for every byte that tells whether it was ever written.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use crate::error::{FaultKind, HostError};
use crate::race::{Access, DEVICES, Known, Message, Shadow};

pub(crate) const PAGE: u64 = 1 << 16;
/// Unmapped bytes kept between allocations, so that an access slightly past the end meets nobody else's bytes.
const RED_ZONE: u64 = 512;
/// More than any device has; the page table of a larger allocation would be a burden in itself.
const MAX_ALLOCATION: u64 = 256 << 30;

/// Words of memory and which of their bytes have values.
pub(crate) struct Page {
    pub(crate) words: Box<[AtomicU32]>,
    /// One bit a byte: the bits of word `w` begin at `4 * w`.
    set: Box<[AtomicU64]>,
    /// Past accesses, from the first one that is checked for races.
    shadow: Mutex<Option<Box<Shadow>>>,
}

impl Page {
    fn new(bytes: u64) -> Page {
        let words = bytes.div_ceil(64) * 16;
        Page {
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            set: (0..words / 16).map(|_| AtomicU64::new(0)).collect(),
            shadow: Mutex::new(None),
        }
    }

    /// Whether the bytes of an aligned access at byte `at`, up to 32 of them, all have values.
    #[inline]
    fn is_set(&self, at: usize, bytes: u32) -> bool {
        let mask = ((1u64 << bytes) - 1) << (at % 64);
        self.set[at / 64].load(Ordering::Relaxed) & mask == mask
    }

    /// Notes that the bytes of an aligned access have values. The marks come before the values: whoever sees a value
    /// also sees its marks.
    #[inline]
    fn mark(&self, at: usize, bytes: u32) {
        let mask = ((1u64 << bytes) - 1) << (at % 64);
        let set = &self.set[at / 64];
        if set.load(Ordering::Relaxed) & mask != mask {
            set.fetch_or(mask, Ordering::Release);
        }
    }

    /// The parts of `bytes` bytes from `at`: place in `set` and mask.
    fn marks(at: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = at + bytes;
        (at / 64..end.div_ceil(64)).map(move |place| {
            let (from, to) = (at.max(place * 64) - place * 64, end.min(place * 64 + 64) - place * 64);
            (place, (u64::MAX >> (64 - (to - from))) << from)
        })
    }

    /// Checks and notes an access to a range.
    fn note(&self, at: usize, bytes: usize, access: &Access<'_>) -> Result<(), FaultKind> {
        let mut shadow = self.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        let size = 4 * self.words.len() as u64;
        shadow.get_or_insert_with(|| Box::new(Shadow::new(size))).note(at, bytes, access)
    }

    /// Forgets accesses: what the host does is ordered by the host.
    fn forget(&self, at: usize, bytes: usize) {
        if let Some(shadow) = &mut *self.shadow.lock().unwrap_or_else(PoisonError::into_inner) {
            shadow.forget(at, bytes);
        }
    }

    fn range_is_set(&self, at: usize, bytes: usize) -> bool {
        Self::marks(at, bytes).all(|(place, mask)| self.set[place].load(Ordering::Relaxed) & mask == mask)
    }

    fn mark_range(&self, at: usize, bytes: usize) {
        for (place, mask) in Self::marks(at, bytes) {
            if self.set[place].load(Ordering::Relaxed) & mask != mask {
                self.set[place].fetch_or(mask, Ordering::Release);
            }
        }
    }

    fn load(&self, at: usize, bytes: u32, order: Ordering) -> u64 {
        let low = u64::from(self.words[at / 4].load(order));
        match bytes {
            8 => low | u64::from(self.words[at / 4 + 1].load(order)) << 32,
            _ => crate::scalar::keep(low >> (8 * (at % 4)), 8 * bytes),
        }
    }

    fn store(&self, at: usize, bytes: u32, v: u64, order: Ordering) {
        match bytes {
            8 => {
                self.words[at / 4].store(v as u32, order);
                self.words[at / 4 + 1].store((v >> 32) as u32, order);
            }
            4 => self.words[at / 4].store(v as u32, order),
            _ => {
                let shift = 8 * (at % 4);
                let field = ((1u32 << (8 * bytes)) - 1) << shift;
                let new = |old: u32| Some(old & !field | (v as u32) << shift & field);
                let _ = self.words[at / 4].fetch_update(order, Ordering::Relaxed, new);
            }
        }
    }
}

/// One allocation.
pub(crate) struct Allocation {
    pub(crate) base: u64,
    bytes: u64,
    pub(crate) device: u32,
    pages: Box<[OnceLock<Box<Page>>]>,
    freed: AtomicBool,
}

impl Allocation {
    /// The page of an offset, made if nobody has written to it yet.
    #[inline]
    fn page(&self, offset: u64) -> &Page {
        let index = offset / PAGE;
        self.pages[index as usize].get_or_init(|| Box::new(Page::new((self.bytes - index * PAGE).min(PAGE))))
    }

    /// The page of an offset, if somebody has written to it.
    #[inline]
    fn existing(&self, offset: u64) -> Option<&Page> {
        self.pages[(offset / PAGE) as usize].get().map(|p| &**p)
    }

    /// Loads 1, 2, 4 or 8 aligned bytes; `None` if some were never written.
    #[inline]
    fn load(&self, offset: u64, bytes: u32, order: Ordering) -> Option<u64> {
        let (page, at) = (self.existing(offset)?, (offset % PAGE) as usize);
        let v = page.load(at, bytes, order);
        page.is_set(at, bytes).then_some(v)
    }

    #[inline]
    fn store(&self, offset: u64, bytes: u32, v: u64, order: Ordering) {
        let (page, at) = (self.page(offset), (offset % PAGE) as usize);
        page.mark(at, bytes);
        page.store(at, bytes, v, order);
    }

    #[inline(always)]
    fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address - self.base < self.bytes && self.bytes - (address - self.base) >= bytes
    }
}

#[derive(Default)]
struct Inner {
    table: RwLock<BTreeMap<u64, Arc<Allocation>>>,
    next: Mutex<BTreeMap<u32, u64>>,
    version: AtomicU64,
    /// Serialises read-modify-writes and synchronising accesses.
    atomics: Mutex<()>,
    /// Warps of each device that have been checked for races so far.
    warps: [AtomicU64; DEVICES],
    /// What all devices know of each other because the host waited for all.
    common: Mutex<Known>,
    /// What was released where, by address.
    messages: Mutex<HashMap<u64, Message>>,
    /// Counts what devices do besides waiting.
    beats: AtomicU64,
}

/// The address space that devices share: a pointer to one device's memory is valid in the others' kernels.
#[derive(Clone, Default)]
pub struct AddressSpace(Arc<Inner>);

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

/// What stopped an access of a warp, and the lane.
pub(crate) type LaneFault = (FaultKind, usize);

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

    /// The allocation that holds `bytes` bytes at `address`.
    #[inline(always)]
    pub(crate) fn find(&mut self, address: u64, bytes: u64, what: &'static str) -> Result<&Allocation, FaultKind> {
        let hit = self.table.get(self.last).is_some_and(|a| a.holds(address, bytes));
        if !hit {
            self.search(address, bytes, what)?;
        }
        let found = &self.table[self.last];
        if found.freed.load(Ordering::Relaxed) { Err(FaultKind::OutOfBounds(what)) } else { Ok(found) }
    }

    #[cold]
    fn search(&mut self, address: u64, bytes: u64, what: &'static str) -> Result<(), FaultKind> {
        if self.version != self.space.0.version.load(Ordering::Acquire) {
            self.refresh();
        }
        let after = self.table.partition_point(|a| a.base <= address);
        match after.checked_sub(1).filter(|&i| self.table[i].holds(address, bytes)) {
            Some(index) => self.last = index,
            None => return Err(FaultKind::OutOfBounds(what)),
        }
        Ok(())
    }

    /// The device whose memory it is.
    pub(crate) fn owner(&mut self, address: u64) -> Result<u32, FaultKind> {
        self.find(address, 1, "global").map(|a| a.device)
    }

    /// Checks that a range lies in one allocation.
    pub(crate) fn check(&mut self, address: u64, bytes: u64) -> Result<(), FaultKind> {
        self.find(address, bytes, "global").map(|_| ())
    }

    /// Checks and notes the accesses of a warp, which have been made.
    pub(crate) fn note(
        &mut self,
        at: &[u64; 32],
        bytes: u32,
        exec: u32,
        shape: Layout,
        access: &Access<'_>,
    ) -> Result<(), LaneFault> {
        let first = exec.trailing_zeros() as usize % 32;
        if let Some((from, length)) = span(at, exec, u64::from(bytes), shape)
            && let Ok(a) = self.find(from, length, "global")
        {
            for (offset, range) in pieces(from - a.base, length as usize) {
                let lane = first + range.start / bytes as usize;
                a.page(offset).note((offset % PAGE) as usize, range.len(), access).map_err(|k| (k, lane))?;
            }
            return Ok(());
        }
        for lane in crate::regs::lanes(exec) {
            let a = self.find(at[lane], u64::from(bytes), "global").map_err(|k| (k, lane))?;
            let offset = at[lane] - a.base;
            a.page(offset).note((offset % PAGE) as usize, bytes as usize, access).map_err(|k| (k, lane))?;
        }
        Ok(())
    }

    /// What was released at an address.
    pub(crate) fn message(&self, address: u64) -> Option<Message> {
        self.space.0.messages.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned()
    }

    /// Replaces what was released at an address.
    pub(crate) fn post(&self, address: u64, new: impl FnOnce(Option<&Message>) -> Option<Message>) {
        let mut messages = self.space.0.messages.lock().unwrap_or_else(PoisonError::into_inner);
        match new(messages.get(&address)) {
            Some(message) => messages.insert(address, message),
            None => messages.remove(&address),
        };
    }

    /// Loads `N` words a lane, aligned to their whole size.
    #[inline(always)]
    pub(crate) fn gather<const N: usize>(
        &mut self,
        at: &[u64; 32],
        exec: u32,
        shape: Layout,
        mut put: impl FnMut(usize, [u32; N]),
    ) -> Result<(), LaneFault> {
        let each = 4 * N as u64;
        if shape != Layout::Scattered
            && let Some(first) = span(at, exec, each, shape)
            && let Ok(a) = self.find(first.0, first.1, "global")
            && (first.0 - a.base) % PAGE + first.1 <= PAGE
            && let Some(page) = a.existing(first.0 - a.base)
            && page.range_is_set(((first.0 - a.base) % PAGE) as usize, first.1 as usize)
        {
            let from = ((first.0 - a.base) % PAGE / 4) as usize;
            let words = &page.words[from..from + first.1 as usize / 4];
            if shape == Layout::Same {
                let v = std::array::from_fn(|k| words[k].load(Ordering::Relaxed));
                (0..32).filter(|lane| exec >> lane & 1 == 1).for_each(|lane| put(lane, v));
                return Ok(());
            }
            for (lane, chunk) in words.chunks_exact(N).enumerate() {
                put(lane, std::array::from_fn(|k| chunk[k].load(Ordering::Relaxed)));
            }
            return Ok(());
        }
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let a = self.find(at[lane], each, "global").map_err(|k| (k, lane))?;
            let offset = at[lane] - a.base;
            let unset = || (FaultKind::Uninitialised("global"), lane);
            let (page, byte) = (a.existing(offset).ok_or_else(unset)?, (offset % PAGE) as usize);
            if !page.is_set(byte, 4 * N as u32) {
                return Err(unset());
            }
            let words = &page.words[byte / 4..byte / 4 + N];
            put(lane, std::array::from_fn(|k| words[k].load(Ordering::Relaxed)));
        }
        Ok(())
    }

    /// Stores `N` words a lane, aligned to their whole size; of lanes with the same address the last one wins.
    #[inline(always)]
    pub(crate) fn scatter<const N: usize>(
        &mut self,
        at: &[u64; 32],
        exec: u32,
        shape: Layout,
        get: impl Fn(usize) -> [u32; N],
    ) -> Result<(), LaneFault> {
        let each = 4 * N as u64;
        if shape == Layout::Consecutive
            && let Some(first) = span(at, exec, each, shape)
            && let Ok(a) = self.find(first.0, first.1, "global")
            && (first.0 - a.base) % PAGE + first.1 <= PAGE
        {
            let (page, byte) = (a.page(first.0 - a.base), ((first.0 - a.base) % PAGE) as usize);
            page.mark_range(byte, first.1 as usize);
            for (lane, chunk) in page.words[byte / 4..][..first.1 as usize / 4].chunks_exact(N).enumerate() {
                chunk.iter().zip(get(lane)).for_each(|(w, v)| w.store(v, Ordering::Relaxed));
            }
            return Ok(());
        }
        let mut rest = exec;
        while rest != 0 {
            let lane = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let a = self.find(at[lane], each, "global").map_err(|k| (k, lane))?;
            let offset = at[lane] - a.base;
            let (page, byte) = (a.page(offset), (offset % PAGE) as usize);
            page.mark(byte, 4 * N as u32);
            page.words[byte / 4..][..N].iter().zip(get(lane)).for_each(|(w, v)| w.store(v, Ordering::Relaxed));
        }
        Ok(())
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

    /// Loads up to 16 aligned bytes.
    pub(crate) fn bytes(&mut self, address: u64, out: &mut [u8]) -> Result<(), FaultKind> {
        let n = out.len();
        let a = self.find(address, n as u64, "global")?;
        let (offset, at) = (address - a.base, ((address - a.base) % PAGE) as usize);
        let page = a.existing(offset).filter(|p| p.range_is_set(at, n)).ok_or(FaultKind::Uninitialised("global"))?;
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = page.words[(at + i) / 4].load(Ordering::Relaxed).to_le_bytes()[(at + i) % 4];
        }
        Ok(())
    }

    pub(crate) fn host_write(&mut self, address: u64, data: &[u8]) -> Result<(), HostError> {
        let bytes = data.len() as u64;
        let wrong = |kind| HostError { address, bytes, kind };
        if data.is_empty() {
            return Ok(());
        }
        let a = self.find(address, bytes, "host write").map_err(wrong)?;
        for (offset, range) in pieces(address - a.base, data.len()) {
            let (page, at, data) = (a.page(offset), (offset % PAGE) as usize, &data[range]);
            page.mark_range(at, data.len());
            page.forget(at, data.len());
            let head = data.len().min(at.next_multiple_of(4) - at);
            let (head, body) = data.split_at(head);
            let (body, tail) = body.split_at(body.len() / 4 * 4);
            let odd = |at: usize, bytes: &[u8]| {
                bytes.iter().enumerate().for_each(|(i, &b)| page.store(at + i, 1, u64::from(b), Ordering::Relaxed));
            };
            odd(at, head);
            odd(at + head.len() + body.len(), tail);
            for (word, v) in page.words[(at + head.len()) / 4..].iter().zip(body.chunks_exact(4)) {
                word.store(u32::from_le_bytes([v[0], v[1], v[2], v[3]]), Ordering::Relaxed);
            }
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
        for (offset, range) in pieces(address - a.base, out.len()) {
            let (at, out) = ((offset % PAGE) as usize, &mut out[range]);
            let page = a.existing(offset).filter(|p| p.range_is_set(at, out.len()));
            let page = page.ok_or_else(|| wrong(FaultKind::Uninitialised("device")))?;
            let head = out.len().min(at.next_multiple_of(4) - at);
            let (head, body) = out.split_at_mut(head);
            let after = at + head.len();
            let (body, tail) = body.split_at_mut(body.len() / 4 * 4);
            let odd = |at: usize, bytes: &mut [u8]| {
                bytes.iter_mut().enumerate().for_each(|(i, b)| *b = page.load(at + i, 1, Ordering::Relaxed) as u8);
            };
            odd(at, head);
            odd(after + body.len(), tail);
            for (word, v) in page.words[after / 4..].iter().zip(body.chunks_exact_mut(4)) {
                v.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        }
        Ok(())
    }
}

/// How the addresses of a warp lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Side by side, all 32 lanes executing.
    Consecutive,
    /// All the same.
    Same,
    Scattered,
}

/// First byte and length of what a warp accesses.
#[inline(always)]
fn span(at: &[u64; 32], exec: u32, each: u64, layout: Layout) -> Option<(u64, u64)> {
    match layout {
        Layout::Consecutive => Some((at[0], 32 * each)),
        Layout::Same => Some((at[exec.trailing_zeros() as usize % 32], each)),
        Layout::Scattered => None,
    }
}

/// Cuts a range at the ends of pages: offset of each piece and its place in the whole.
fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let step = (bytes - done).min((PAGE - at % PAGE) as usize);
        let piece = done..done + step;
        done += step;
        (step > 0).then_some((at, piece))
    })
}
