//! What can be wrong with an array file.

use std::path::{Path, PathBuf};

/// An array file that cannot be read or written. Shown as `weights.npz: dense/kernel: …`.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {kind}", .file.display(), .member.as_ref().map(|m| format!(": `{m}`")).unwrap_or_default())]
pub struct ArrayError {
    /// The file.
    pub file: PathBuf,
    /// The array inside it, where the file holds several.
    pub member: Option<String>,
    /// What is wrong.
    #[source]
    pub kind: ArrayErrorKind,
}

/// The kinds of [`ArrayError`].
#[derive(Debug, thiserror::Error)]
pub enum ArrayErrorKind {
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The container is damaged.
    #[error("is not a readable {format} file: {why}")]
    Damaged {
        /// What the file was taken for.
        format: &'static str,
        /// What the reader found.
        why: String,
    },
    /// The file holds something else.
    #[error("is neither an npz archive, an npy array nor a safetensors file")]
    Unknown,
    /// The header promises more bytes than the file has.
    #[error("declares {declared} bytes of data, but only {present} are there")]
    Short {
        /// Bytes that dtype and shape ask for.
        declared: u128,
        /// Bytes that follow the header.
        present: u64,
    },
    /// An element type no tensor of ours can hold.
    #[error(
        "has the element type `{dtype}`, which is no numeric type intwain reads; expected bool, int8…int64, uint8…uint64, float16, bfloat16, float32 or float64"
    )]
    Element {
        /// The file's spelling of the type.
        dtype: String,
    },
    /// An integer that no wider signed type holds.
    #[error("holds {value}, which does not fit int64")]
    TooLarge {
        /// The value.
        value: u64,
    },
    /// No array has this name.
    #[error("has no array of this name")]
    Missing,
    /// A row range that the array does not have.
    #[error("has {rows} rows; rows {start}..{end} were asked for")]
    Rows {
        /// Rows there are.
        rows: usize,
        /// First row wanted.
        start: usize,
        /// End of the rows wanted.
        end: usize,
    },
}

impl ArrayErrorKind {
    /// Names the file.
    pub fn at(self, file: &Path) -> ArrayError {
        ArrayError { file: file.to_path_buf(), member: None, kind: self }
    }

    /// Names the file and the array in it.
    pub fn in_member(self, file: &Path, member: &str) -> ArrayError {
        ArrayError { file: file.to_path_buf(), member: Some(member.to_string()), kind: self }
    }
}
