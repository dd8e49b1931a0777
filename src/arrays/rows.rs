//! Rows of an array, read one by one and in any order: how data larger than memory is trained on.

use std::io::Cursor;
use std::path::Path;

use super::npy::Header;
use super::{ArrayError, ArrayErrorKind, DType, FileBytes};

/// An array whose first dimension counts rows, of which some are read at a time. A mapped file stays on disk.
#[derive(Clone, Debug)]
pub struct Rows {
    header: Header,
    dtype: DType,
    /// The elements as they are stored.
    bytes: FileBytes,
}

impl Rows {
    /// Opens a bare `.npy` file.
    pub fn open(path: &Path) -> Result<Rows, ArrayError> {
        let bytes = FileBytes::open(path).map_err(|e| ArrayErrorKind::Io(e).at(path))?;
        Rows::read(bytes).map_err(|e| e.at(path))
    }

    /// Reads the header of an npy array.
    pub(super) fn read(npy: FileBytes) -> Result<Rows, ArrayErrorKind> {
        let mut cursor = Cursor::new(npy);
        let header = Header::read(&mut cursor)?;
        let Some(dtype) = header.dtype() else {
            return Err(ArrayErrorKind::Element { dtype: format!("{:?}", header.element) });
        };
        let start = usize::try_from(cursor.position()).expect("a position in memory");
        let npy = cursor.into_inner();
        let size = header.shape.iter().try_fold(header.element_size(), |n, &d| n.checked_mul(d));
        let bytes = size.and_then(|size| npy.slice(start..start.checked_add(size)?));
        let bytes = bytes.ok_or_else(|| {
            let wide = header.shape.iter().try_fold(header.element_size() as u128, |n, &d| n.checked_mul(d as u128));
            ArrayErrorKind::Short { declared: wide.unwrap_or(u128::MAX), present: (npy.len() - start) as u64 }
        })?;
        Ok(Rows { header, dtype, bytes })
    }

    /// The element type that reading gives.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// All extents, rows first. A scalar has none.
    pub fn shape(&self) -> &[usize] {
        &self.header.shape
    }

    /// The elements of some rows, in the order asked for: little-endian, row-major.
    ///
    /// # Panics
    /// Where the array has no such row.
    pub fn gather(&self, rows: impl ExactSizeIterator<Item = usize>) -> Result<Vec<u8>, ArrayErrorKind> {
        let (&count, rest) = self.header.shape.split_first().expect("an array with rows");
        let size = self.header.element_size();
        let row = rest.iter().product::<usize>() * size;
        let mut out = Vec::with_capacity(rows.len() * row);
        for r in rows {
            assert!(r < count, "row {r} of {count}");
            if self.header.fortran {
                self.column_major(r, &mut out);
            } else {
                out.extend_from_slice(&self.bytes[r * row..(r + 1) * row]);
            }
        }
        Ok(self.header.decode(out)?.1)
    }

    /// Appends row `r` of an array whose first index runs fastest.
    fn column_major(&self, r: usize, out: &mut Vec<u8>) {
        let (shape, size) = (&self.header.shape, self.header.element_size());
        let mut strides = vec![size; shape.len()];
        for d in 1..shape.len() {
            strides[d] = strides[d - 1] * shape[d - 1];
        }
        let elements: usize = shape[1..].iter().product();
        let mut index = vec![0usize; shape.len()];
        index[0] = r;
        for _ in 0..elements {
            let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
            out.extend_from_slice(&self.bytes[at..at + size]);
            for d in (1..shape.len()).rev() {
                index[d] += 1;
                if index[d] < shape[d] {
                    break;
                }
                index[d] = 0;
            }
        }
    }
}
