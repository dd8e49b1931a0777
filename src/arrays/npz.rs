//! NumPy's npz: a zip of npy members.

use std::fs::File;
use std::io::{BufWriter, Cursor, Read, Write};
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::npy::{Header, header_bytes};
use super::{Array, ArrayError, ArrayErrorKind, DType, FileBytes, Rows};

/// An opened npz archive. Headers are read when it is opened, data when it is asked for.
#[derive(Debug)]
pub struct Npz {
    file: PathBuf,
    archive: ZipArchive<Cursor<FileBytes>>,
    members: IndexMap<String, Member>,
    skipped: Vec<(String, String)>,
}

#[derive(Debug)]
struct Member {
    index: usize,
    header: Header,
    dtype: DType,
}

impl Npz {
    /// Opens an archive. A bare `.npy` file is an archive of one array, named by the empty string.
    pub fn open(path: &Path) -> Result<Npz, ArrayError> {
        let bytes = FileBytes::open(path).map_err(|e| ArrayErrorKind::Io(e).at(path))?;
        Npz::from_bytes(path, bytes)
    }

    /// Opens an archive that lies in memory; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: FileBytes) -> Result<Npz, ArrayError> {
        let damaged = |why: String| ArrayErrorKind::Damaged { format: "npz", why };
        let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|e| damaged(e.to_string()).at(path))?;
        let mut members = IndexMap::new();
        let mut skipped = Vec::new();
        for index in 0..archive.len() {
            let mut entry = archive.by_index(index).map_err(|e| damaged(e.to_string()).at(path))?;
            let full = entry.name().map_err(|e| damaged(e.to_string()).at(path))?.to_string();
            let Some(name) = full.strip_suffix(".npy") else {
                skipped.push((full, "not an npy member".to_string()));
                continue;
            };
            let header = Header::read(&mut entry).map_err(|e| e.in_member(path, name))?;
            match header.dtype() {
                Some(dtype) => {
                    if members.insert(name.to_string(), Member { index, header, dtype }).is_some() {
                        return Err(damaged("two arrays have this name".to_string()).in_member(path, name));
                    }
                }
                None => skipped.push((name.to_string(), format!("{:?}", header.element))),
            }
        }
        Ok(Npz { file: path.to_path_buf(), archive, members, skipped })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Names of the numeric arrays, in file order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Members that are no numeric arrays (strings, objects, other files), which are never read: name and what they are.
    pub fn skipped(&self) -> &[(String, String)] {
        &self.skipped
    }

    /// Dtype (after widening) and shape of an array.
    pub fn info(&self, name: &str) -> Option<(DType, &[usize])> {
        self.members.get(name).map(|m| (m.dtype, m.header.shape.as_slice()))
    }

    /// Reads one array.
    pub fn read(&self, name: &str) -> Result<Array, ArrayError> {
        let member = self.members.get(name).ok_or_else(|| ArrayErrorKind::Missing.in_member(&self.file, name))?;
        let damaged = |e: zip::result::ZipError| ArrayErrorKind::Damaged { format: "npz", why: e.to_string() };
        // Cloning shares the directory and the bytes; reading needs a cursor of its own.
        let mut archive = self.archive.clone();
        let mut entry = archive.by_index(member.index).map_err(|e| damaged(e).in_member(&self.file, name))?;
        Header::read(&mut entry)
            .and_then(|header| header.read_data(&mut entry))
            .map_err(|e| e.in_member(&self.file, name))
    }

    /// The rows of an array, to be read where they lie: a member that is not compressed stays in the file.
    pub fn rows(&self, name: &str) -> Result<Rows, ArrayError> {
        let member = self.members.get(name).ok_or_else(|| ArrayErrorKind::Missing.in_member(&self.file, name))?;
        let damaged = |e: zip::result::ZipError| ArrayErrorKind::Damaged { format: "npz", why: e.to_string() };
        let mut archive = self.archive.clone();
        let stored = {
            let entry = archive.by_index(member.index).map_err(|e| damaged(e).in_member(&self.file, name))?;
            let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
            let size = usize::try_from(entry.size()).ok();
            (entry.compression() == CompressionMethod::Stored)
                .then(|| start.zip(size).and_then(|(start, size)| Some(start..start.checked_add(size)?)))
                .flatten()
        };
        let npy = match stored.and_then(|range| archive.into_inner().get_ref().slice(range)) {
            Some(bytes) => bytes,
            None => {
                let mut archive = self.archive.clone();
                let mut entry = archive.by_index(member.index).map_err(|e| damaged(e).in_member(&self.file, name))?;
                let mut all = Vec::new();
                // Deflate cannot do better than 1,032 : 1.
                let limit = entry.compressed_size().saturating_mul(1_100);
                let read = entry.by_ref().take(limit).read_to_end(&mut all);
                read.map_err(|e| ArrayErrorKind::Io(e).in_member(&self.file, name))?;
                all.into()
            }
        };
        Rows::read(npy).map_err(|e| e.in_member(&self.file, name))
    }
}

/// Reads a bare `.npy` file.
pub fn read_npy(path: &Path) -> Result<Array, ArrayError> {
    let bytes = FileBytes::open(path).map_err(|e| ArrayErrorKind::Io(e).at(path))?;
    let mut cursor = Cursor::new(bytes);
    Header::read(&mut cursor).and_then(|h| h.read_data(&mut cursor)).map_err(|e| e.at(path))
}

/// Writes arrays as an uncompressed npz, beside the target and then renamed, so that no partial file is ever seen.
/// bfloat16, which NumPy does not know, is written as float32.
pub fn write_npz<'a>(path: &Path, arrays: impl IntoIterator<Item = (&'a str, &'a Array)>) -> Result<(), ArrayError> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let partial = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let result = write_archive(&partial, arrays).and_then(|()| std::fs::rename(&partial, path));
    if result.is_err() {
        // The error of the write itself is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    result.map_err(|e| ArrayErrorKind::Io(e).at(path))
}

fn write_archive<'a>(path: &Path, arrays: impl IntoIterator<Item = (&'a str, &'a Array)>) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(BufWriter::new(File::create(path)?));
    for (name, array) in arrays {
        let widened;
        let array = if array.dtype() == DType::BF16 {
            widened = array.cast(DType::F32);
            &widened
        } else {
            array
        };
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(zip::DateTime::default())
            .large_file(array.bytes().len() >= 1 << 31);
        zip.start_file(format!("{name}.npy"), options)?;
        zip.write_all(&header_bytes(array.dtype(), array.shape()))?;
        zip.write_all(array.bytes())?;
    }
    zip.finish()?.flush()
}
