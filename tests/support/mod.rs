//! What the tests that start the `intwain` command share: running it, and reading and writing npz files.
#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses a part, and a test fails by panicking")]

pub(crate) mod goldens;
pub(crate) mod training;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Runs the command with these words.
pub(crate) fn intwain<I: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = I>) -> Output {
    Command::new(env!("CARGO_BIN_EXE_intwain")).args(words).output().unwrap()
}

/// What the command printed, as text.
pub(crate) fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The elements of an array, as floating-point numbers or as integers.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Elements {
    /// `<f4`.
    F32(Vec<f32>),
    /// `<i4`.
    I32(Vec<i32>),
}

/// An array of an npz file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Array {
    /// Its key in the file.
    pub(crate) name: String,
    /// Extents, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Elements in row-major order.
    pub(crate) elements: Elements,
}

impl Array {
    /// An array of 32-bit floats.
    pub(crate) fn f32(name: &str, shape: &[usize], elements: Vec<f32>) -> Array {
        Array { name: name.into(), shape: shape.to_vec(), elements: Elements::F32(elements) }
    }

    /// The elements, which must be floats.
    pub(crate) fn floats(&self) -> &[f32] {
        match &self.elements {
            Elements::F32(v) => v,
            Elements::I32(_) => panic!("{} holds integers", self.name),
        }
    }

    /// The first `n` rows.
    pub(crate) fn rows(&self, n: usize) -> Array {
        let kept = self.shape[1..].iter().product::<usize>() * n;
        let mut shape = self.shape.clone();
        shape[0] = n;
        let elements = match &self.elements {
            Elements::F32(v) => Elements::F32(v[..kept].to_vec()),
            Elements::I32(v) => Elements::I32(v[..kept].to_vec()),
        };
        Array { name: self.name.clone(), shape, elements }
    }

    fn npy(&self) -> Vec<u8> {
        let (descr, bytes): (_, Vec<u8>) = match &self.elements {
            Elements::F32(v) => ("<f4", v.iter().flat_map(|x| x.to_le_bytes()).collect()),
            Elements::I32(v) => ("<i4", v.iter().flat_map(|x| x.to_le_bytes()).collect()),
        };
        let extents: String = self.shape.iter().map(|n| format!("{n}, ")).collect();
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
        let mut out = b"\x93NUMPY\x01\x00".to_vec();
        let padded = (10 + header.len() + 1).next_multiple_of(64) - 11;
        out.extend((padded as u16 + 1).to_le_bytes());
        out.extend(format!("{header:padded$}\n").into_bytes());
        out.extend(bytes);
        out
    }

    fn from_npy(name: &str, bytes: &[u8]) -> Array {
        assert_eq!(&bytes[..7], b"\x93NUMPY\x01", "{name} is not an npy file of version 1");
        let start = 10 + usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        let header = said(&bytes[10..start]);
        let field =
            |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches([':', ' ', '\''])).unwrap();
        assert!(field("'fortran_order").starts_with("False"));
        let (list, _) = field("'shape").trim_start_matches('(').split_once(')').unwrap();
        let shape = list.split(',').map(str::trim).filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect();
        let words = bytes[start..].chunks_exact(4).map(|w| <[u8; 4]>::try_from(w).unwrap());
        let elements = match &field("'descr")[..3] {
            "<f4" => Elements::F32(words.map(f32::from_le_bytes).collect()),
            "<i4" => Elements::I32(words.map(i32::from_le_bytes).collect()),
            other => panic!("{name} has elements of type {other}"),
        };
        Array { name: name.into(), shape, elements }
    }
}

/// Writes arrays as NumPy's `savez` does.
pub(crate) fn write_npz(path: &Path, arrays: &[Array]) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for array in arrays {
        zip.start_file(format!("{}.npy", array.name), stored).unwrap();
        zip.write_all(&array.npy()).unwrap();
    }
    zip.finish().unwrap();
}

/// The arrays of an npz file, in its order.
pub(crate) fn read_npz(path: &Path) -> Vec<Array> {
    let mut zip = zip::ZipArchive::new(std::fs::File::open(path).unwrap()).unwrap();
    let mut arrays = Vec::new();
    for i in 0..zip.len() {
        let mut member = zip.by_index(i).unwrap();
        let name = member.name().unwrap().trim_end_matches(".npy").to_owned();
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes).unwrap();
        arrays.push(Array::from_npy(&name, &bytes));
    }
    arrays
}
