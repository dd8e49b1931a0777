//! What can be wrong with training data.

use std::path::PathBuf;

use intwain_ir::{DType, Shape};

use crate::arrays::ArrayError;

/// Training data that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A file cannot be read.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A directory without arrays, or none given.
    #[error("{}: has no array; give an .npz file, .npy files, or a directory of them", .file.display())]
    Empty {
        /// The place.
        file: PathBuf,
    },
    /// Two files have an array of the same name.
    #[error("the array `{name}` is in {} and in {}", .first.display(), .second.display())]
    Twice {
        /// The name.
        name: String,
        /// The file that was read first.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
    },
    /// No rule of naming fits.
    #[error("the arrays {} do not fit the {what} {}; name them so, or {numbered}", list(.have), list(.wanted))]
    NoFit {
        /// `inputs` or `labels`.
        what: &'static str,
        /// What could be taken.
        have: Vec<String>,
        /// What the model has.
        wanted: Vec<String>,
        /// The other spelling.
        numbered: &'static str,
    },
    /// Weights for all outputs and weights for one.
    #[error("`sample_weight` is for all outputs and `{name}` for one of them; give weights of one kind")]
    WeightsTwice {
        /// The array for one.
        name: String,
    },
    /// Class weights where they mean nothing.
    #[error("class weights {why}")]
    ClassWeights {
        /// A clause.
        why: String,
    },
    /// An array without rows.
    #[error("`{name}` is a single number; its first dimension must count rows")]
    Scalar {
        /// The array.
        name: String,
    },
    /// Arrays of different lengths.
    #[error("`{name}` has {rows} rows, `{other}` has {other_rows}; all arrays must have as many")]
    RowCount {
        /// An array.
        name: String,
        /// Its rows.
        rows: usize,
        /// The first array.
        other: String,
        /// Its rows.
        other_rows: usize,
    },
    /// No rows at all.
    #[error("`{name}` has no rows")]
    NoRows {
        /// The first array.
        name: String,
    },
    /// Rows of another shape than the input's.
    #[error("a row of `{name}` has the shape {found}; the input `{input}` takes {expected}")]
    RowShape {
        /// The array.
        name: String,
        /// Its rows' shape.
        found: Box<Shape>,
        /// The input.
        input: String,
        /// What it takes.
        expected: Box<Shape>,
    },
    /// A value that the wanted type does not have.
    #[error("`{name}`, row {row}: {value} is not a {dtype}, which the model takes")]
    Value {
        /// The array.
        name: String,
        /// The row in the file.
        row: usize,
        /// The value.
        value: String,
        /// The type it should have.
        dtype: DType,
    },
    /// A fraction that leaves one part empty.
    #[error(
        "{rows} rows cannot be split so that {fraction} of them validate: one part would be empty; give another fraction, or more data"
    )]
    Split {
        /// Rows there are.
        rows: usize,
        /// What was asked for.
        fraction: f64,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "(none)".into() } else { names.join(", ") }
}
