//! Read-only bytes of a file, mapped into memory and shared by cheap handles.
//!
//! Everything that reads weights goes through this, so that a tensor's bytes are paged in when it is read and not before.

use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

#[derive(Debug)]
enum Owner {
    Map(Mmap),
    Heap(Vec<u8>),
}

/// A window into a mapped file or a byte vector. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub struct FileBytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

impl FileBytes {
    /// Maps a whole file.
    pub fn open(path: &Path) -> io::Result<FileBytes> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(io::Error::new(io::ErrorKind::IsADirectory, "is a directory"));
        }
        if meta.len() == 0 || !meta.is_file() {
            // An empty file cannot be mapped, and a pipe has no length.
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut { file }, &mut bytes)?;
            return Ok(bytes.into());
        }
        // SAFETY: the mapping is private and read-only. As with every mapped file, another process that truncates it
        // while we read can raise SIGBUS; the bytes themselves are only ever interpreted through bounds-checked slices.
        let map = unsafe { Mmap::map(&file)? };
        let range = 0..map.len();
        Ok(FileBytes { owner: Arc::new(Owner::Map(map)), range })
    }

    /// The part of these bytes in `range`, or `None` where it reaches outside.
    pub fn slice(&self, range: Range<usize>) -> Option<FileBytes> {
        (range.start <= range.end && range.end <= self.len()).then(|| FileBytes {
            owner: self.owner.clone(),
            range: self.range.start + range.start..self.range.start + range.end,
        })
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        FileBytes { owner: Arc::new(Owner::Heap(bytes)), range }
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &*self.owner {
            Owner::Map(map) => map,
            Owner::Heap(bytes) => bytes,
        };
        &all[self.range.clone()]
    }
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
