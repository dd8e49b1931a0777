//! Memory that kernels of several threads write to: aligned, zeroed, shared by raw pointer.

use memmap2::MmapMut;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Alignment of a region, and so of every buffer in it.
pub(crate) const ALIGNMENT: usize = 64;

/// From this size on a region is mapped: it then takes memory where it is written only, and gives all back at once.
const MAPPED: usize = 1 << 20;

/// A zeroed piece of memory of fixed size.
///
/// It hands out raw pointers only. Who uses them must make sure that no byte is written while another thread reads or
/// writes it: the program's commands run in order, the tasks of a kernel write disjoint bytes, and the memory plan
/// keeps values that live at the same time apart.
#[derive(Debug)]
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

#[derive(Debug)]
enum Owner {
    Allocated(Layout),
    /// Unmapped when it is dropped.
    Mapped(#[expect(dead_code, reason = "it is there to be dropped")] MmapMut),
}

// SAFETY: the region owns its memory and is freed once; all access goes through `unsafe` by the rule above.
unsafe impl Send for Region {}
// SAFETY: as for Send.
unsafe impl Sync for Region {}

/// The machine has not the memory asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot allocate {bytes} bytes of memory")]
pub struct OutOfMemory {
    /// What was asked for.
    pub bytes: usize,
}

impl Region {
    /// Allocates at least one byte.
    pub(crate) fn new(bytes: usize) -> Result<Region, OutOfMemory> {
        let bytes = bytes.max(1);
        if bytes >= MAPPED {
            // Pages are aligned to far more than buffers.
            let mut map = MmapMut::map_anon(bytes).map_err(|_| OutOfMemory { bytes })?;
            // Fewer pages are faster to come by. Where that is not to be had, nothing else changes.
            #[cfg(target_os = "linux")]
            let _ = map.advise(memmap2::Advice::HugePage);
            let start = NonNull::new(map.as_mut_ptr()).ok_or(OutOfMemory { bytes })?;
            return Ok(Region { start, bytes, owner: Owner::Mapped(map) });
        }
        let layout = Layout::from_size_align(bytes, ALIGNMENT).map_err(|_| OutOfMemory { bytes })?;
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(OutOfMemory { bytes })?;
        Ok(Region { start, bytes, owner: Owner::Allocated(layout) })
    }

    /// The byte at `offset`.
    ///
    /// # Panics
    /// If `offset` is beyond the end.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset <= self.bytes, "offset {offset} in {} bytes", self.bytes);
        // SAFETY: within the allocation, or one past its end.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        match self.owner {
            // SAFETY: allocated in `new` with this layout.
            Owner::Allocated(layout) => unsafe { dealloc(self.start.as_ptr(), layout) },
            Owner::Mapped(_) => {}
        }
    }
}
