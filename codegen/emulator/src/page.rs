//! Pages of device memory and the allocations that they make up.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::FaultKind;
use crate::race::{Access, Shadow};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 1 << 16;

/// Words of memory and which of their bytes have values.
pub(crate) struct Page {
    pub(crate) words: Box<[AtomicU32]>,
    /// One bit a byte: the bits of word `w` begin at `4 * w`.
    set: Box<[AtomicU64]>,
    /// Past accesses, from the first one that is checked for races.
    shadow: Mutex<Option<Box<Shadow>>>,
}

impl Page {
    pub(crate) fn new(bytes: u64) -> Page {
        let words = bytes.div_ceil(64) * 16;
        Page {
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            set: (0..words / 16).map(|_| AtomicU64::new(0)).collect(),
            shadow: Mutex::new(None),
        }
    }

    /// Whether the bytes of an aligned access at byte `at`, up to 32 of them, all have values.
    #[inline]
    pub(crate) fn is_set(&self, at: usize, bytes: u32) -> bool {
        let mask = ((1u64 << bytes) - 1) << (at % 64);
        self.set[at / 64].load(Ordering::Relaxed) & mask == mask
    }

    /// Notes that the bytes of an aligned access have values. The marks come before the values: whoever sees a value
    /// also sees its marks.
    #[inline]
    pub(crate) fn mark(&self, at: usize, bytes: u32) {
        let mask = ((1u64 << bytes) - 1) << (at % 64);
        let set = &self.set[at / 64];
        if set.load(Ordering::Relaxed) & mask != mask {
            set.fetch_or(mask, Ordering::Release);
        }
    }

    /// The parts of `bytes` bytes from `at`: place in `set` and mask.
    pub(crate) fn marks(at: usize, bytes: usize) -> impl Iterator<Item = (usize, u64)> {
        let end = at + bytes;
        (at / 64..end.div_ceil(64)).map(move |place| {
            let (from, to) = (at.max(place * 64) - place * 64, end.min(place * 64 + 64) - place * 64);
            (place, (u64::MAX >> (64 - (to - from))) << from)
        })
    }

    /// Checks and notes an access to a range.
    pub(crate) fn note(&self, at: usize, bytes: usize, access: &Access<'_>) -> Result<(), FaultKind> {
        let mut shadow = self.shadow.lock().unwrap_or_else(PoisonError::into_inner);
        let size = 4 * self.words.len() as u64;
        shadow.get_or_insert_with(|| Box::new(Shadow::new(size))).note(at, bytes, access)
    }

    /// Forgets accesses: what the host does is ordered by the host.
    pub(crate) fn forget(&self, at: usize, bytes: usize) {
        if let Some(shadow) = &mut *self.shadow.lock().unwrap_or_else(PoisonError::into_inner) {
            shadow.forget(at, bytes);
        }
    }

    pub(crate) fn range_is_set(&self, at: usize, bytes: usize) -> bool {
        Self::marks(at, bytes).all(|(place, mask)| self.set[place].load(Ordering::Relaxed) & mask == mask)
    }

    pub(crate) fn mark_range(&self, at: usize, bytes: usize) {
        for (place, mask) in Self::marks(at, bytes) {
            if self.set[place].load(Ordering::Relaxed) & mask != mask {
                self.set[place].fetch_or(mask, Ordering::Release);
            }
        }
    }

    pub(crate) fn load(&self, at: usize, bytes: u32, order: Ordering) -> u64 {
        let low = u64::from(self.words[at / 4].load(order));
        match bytes {
            8 => low | u64::from(self.words[at / 4 + 1].load(order)) << 32,
            _ => crate::scalar::keep(low >> (8 * (at % 4)), 8 * bytes),
        }
    }

    pub(crate) fn store(&self, at: usize, bytes: u32, v: u64, order: Ordering) {
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
    pub(crate) freed: AtomicBool,
}

impl Allocation {
    pub(crate) fn new(base: u64, bytes: u64, device: u32) -> Allocation {
        let pages = (0..bytes.div_ceil(PAGE)).map(|_| OnceLock::new()).collect();
        Allocation { base, bytes, device, pages, freed: AtomicBool::new(false) }
    }

    /// The page of an offset, made if nobody has written to it yet.
    #[inline]
    pub(crate) fn page(&self, offset: u64) -> &Page {
        let index = offset / PAGE;
        self.pages[index as usize].get_or_init(|| Box::new(Page::new((self.bytes - index * PAGE).min(PAGE))))
    }

    /// The page of an offset, if somebody has written to it.
    #[inline]
    pub(crate) fn existing(&self, offset: u64) -> Option<&Page> {
        self.pages[(offset / PAGE) as usize].get().map(|p| &**p)
    }

    /// Loads 1, 2, 4 or 8 aligned bytes; `None` if some were never written.
    #[inline]
    pub(crate) fn load(&self, offset: u64, bytes: u32, order: Ordering) -> Option<u64> {
        let (page, at) = (self.existing(offset)?, (offset % PAGE) as usize);
        let v = page.load(at, bytes, order);
        page.is_set(at, bytes).then_some(v)
    }

    #[inline]
    pub(crate) fn store(&self, offset: u64, bytes: u32, v: u64, order: Ordering) {
        let (page, at) = (self.page(offset), (offset % PAGE) as usize);
        page.mark(at, bytes);
        page.store(at, bytes, v, order);
    }

    #[inline(always)]
    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base && address - self.base < self.bytes && self.bytes - (address - self.base) >= bytes
    }
}
