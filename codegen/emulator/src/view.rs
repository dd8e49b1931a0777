//! Accesses to device memory from one host thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use crate::error::FaultKind;
use crate::fast;
use crate::known::Message;
use crate::memory::AddressSpace;
use crate::op::Order;
use crate::page::{Allocation, PAGE};
use crate::race::Access;

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
    pub(crate) fn new(space: AddressSpace) -> View {
        let mut view = View { space, version: 0, table: Vec::new(), last: 0 };
        view.refresh();
        view
    }

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
                let v = fast::each(|k| words[k].load(Ordering::Relaxed));
                (0..32).filter(|lane| exec >> lane & 1 == 1).for_each(|lane| put(lane, v));
                return Ok(());
            }
            for (lane, chunk) in words.chunks_exact(N).enumerate() {
                put(lane, fast::each(|k| chunk[k].load(Ordering::Relaxed)));
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
            put(lane, fast::each(|k| words[k].load(Ordering::Relaxed)));
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
    pub(crate) fn load(&mut self, address: u64, bytes: u32, order: Order) -> Result<u64, FaultKind> {
        let lock = (order != Order::Weak && bytes == 8).then(|| self.space.clone());
        let _guard = lock.as_ref().map(|s| s.0.atomics.lock().unwrap_or_else(PoisonError::into_inner));
        let a = self.find(address, u64::from(bytes), "global")?;
        let order = if order == Order::Weak { Ordering::Relaxed } else { Ordering::Acquire };
        a.load(address - a.base, bytes, order).ok_or(FaultKind::Uninitialised("global"))
    }

    #[inline]
    pub(crate) fn store(&mut self, address: u64, bytes: u32, v: u64, order: Order) -> Result<(), FaultKind> {
        let lock = (order != Order::Weak).then(|| self.space.clone());
        let _guard = lock.as_ref().map(|s| s.0.atomics.lock().unwrap_or_else(PoisonError::into_inner));
        let a = self.find(address, u64::from(bytes), "global")?;
        let order = if order == Order::Weak { Ordering::Relaxed } else { Ordering::Release };
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
pub(crate) fn pieces(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let step = (bytes - done).min((PAGE - at % PAGE) as usize);
        let piece = done..done + step;
        done += step;
        (step > 0).then_some((at, piece))
    })
}
