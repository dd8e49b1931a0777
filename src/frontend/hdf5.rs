//! HDF5 files as Keras writes them: groups of datasets, string lists in attributes.
//!
//! Only this file knows the HDF5 library. Datasets are read one at a time; what a dataset declares is compared with the
//! size of the file before memory for it is taken.

use std::ops::Range;
use std::path::{Path, PathBuf};

use hdf5_reader::error::ByteOrder;
use hdf5_reader::group::Group;
use hdf5_reader::{Dataset, Datatype, H5Type, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem};
use indexmap::IndexSet;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType, FileBytes};

/// No Keras file nests groups deeper.
const MAX_DEPTH: usize = 64;
/// No Keras file has more objects; a file whose links run in circles reaches it.
const MAX_OBJECTS: usize = 1_000_000;
/// Deflate cannot do better than 1,032 : 1.
const MAX_RATIO: u64 = 1_100;

/// An opened HDF5 file.
pub(crate) struct H5 {
    file: Hdf5File,
    path: PathBuf,
    len: u64,
}

impl std::fmt::Debug for H5 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("H5").field("path", &self.path).finish_non_exhaustive()
    }
}

fn damaged(error: &hdf5_reader::error::Error) -> ArrayErrorKind {
    ArrayErrorKind::Damaged { format: "HDF5", why: error.to_string() }
}

impl H5 {
    /// Opens a file whose bytes are mapped or in memory; `path` is for messages.
    pub(crate) fn open(path: &Path, bytes: FileBytes) -> Result<H5, ArrayError> {
        let len = bytes.len() as u64;
        let limit = usize::try_from(len.saturating_mul(MAX_RATIO)).unwrap_or(usize::MAX);
        let options = OpenOptions::default().with_max_read_bytes(limit).with_chunk_cache_bytes(8 << 20);
        let file = Hdf5File::from_owner(bytes, options).map_err(|e| damaged(&e).at(path))?;
        Ok(H5 { file, path: path.to_path_buf(), len })
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn group(&self, name: &str) -> Result<Group, ArrayError> {
        let found = if name.is_empty() { self.file.root_group() } else { self.file.group(name) };
        found.map_err(|e| damaged(&e).in_member(&self.path, name))
    }

    /// Whether there is a group of this name.
    pub(crate) fn has_group(&self, name: &str) -> bool {
        self.group(name).is_ok()
    }

    /// A string attribute, `None` where there is none.
    pub(crate) fn string(&self, group: &str, attribute: &str) -> Option<String> {
        self.group(group).ok()?.attribute(attribute).ok()?.read_string().ok()
    }

    /// A list of strings in an attribute, or spread over `name0`, `name1`, … where it was too long for one.
    pub(crate) fn strings(&self, group: &str, attribute: &str) -> Result<Option<Vec<String>>, ArrayError> {
        let here = self.group(group)?;
        let read = |name: &str| -> Result<Option<Vec<String>>, ArrayError> {
            match here.attribute(name) {
                Err(_) => Ok(None),
                // An empty list has a numeric type, since NumPy gives it one.
                Ok(found) if found.num_elements().unwrap_or(0) == 0 => Ok(Some(Vec::new())),
                Ok(found) => found.read_strings().map(Some).map_err(|e| damaged(&e).in_member(&self.path, name)),
            }
        };
        if let Some(all) = read(attribute)? {
            return Ok(Some(all));
        }
        let mut all = Vec::new();
        for i in 0.. {
            match read(&format!("{attribute}{i}"))? {
                Some(part) => all.extend(part),
                None if i == 0 => return Ok(None),
                None => break,
            }
        }
        Ok(Some(all))
    }

    /// Paths of all datasets below a group, in the file's order.
    pub(crate) fn datasets(&self, below: &str) -> Result<IndexSet<String>, ArrayError> {
        let mut found = IndexSet::new();
        let mut pending = vec![(below.to_string(), self.group(below)?, 0)];
        let mut seen = 0usize;
        while let Some((prefix, group, depth)) = pending.pop() {
            let join = |name: &str| if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
            let (groups, datasets) = group.member_names().map_err(|e| damaged(&e).in_member(&self.path, &prefix))?;
            seen += groups.len() + datasets.len();
            if depth > MAX_DEPTH || seen > MAX_OBJECTS {
                let why = "its groups go deeper or are more than any model's".to_string();
                return Err(ArrayErrorKind::Damaged { format: "HDF5", why }.at(&self.path));
            }
            found.extend(datasets.iter().map(|name| join(name)));
            for name in groups.iter().rev() {
                let child = group.group(name).map_err(|e| damaged(&e).in_member(&self.path, &join(name)))?;
                pending.push((join(name), child, depth + 1));
            }
        }
        Ok(found)
    }

    fn dataset(&self, key: &str) -> Result<Dataset, ArrayError> {
        self.file.dataset(key).map_err(|e| damaged(&e).in_member(&self.path, key))
    }

    /// Dtype and shape of a dataset, `None` where there is no such dataset or its type is not one of ours.
    pub(crate) fn info(&self, key: &str) -> Option<(DType, Vec<usize>)> {
        let dataset = self.file.dataset(key).ok()?;
        let shape = dataset.shape().iter().map(|&d| usize::try_from(d).ok()).collect::<Option<_>>()?;
        Some((element(dataset.dtype())?.0, shape))
    }

    /// Reads a dataset.
    pub(crate) fn read(&self, key: &str) -> Result<Array, ArrayError> {
        let (dataset, dtype, order, shape) = self.checked(key)?;
        let too_large = || ArrayErrorKind::Short { declared: u128::MAX, present: self.len }.in_member(&self.path, key);
        let mut array = Array::zeros(dtype, shape).ok_or_else(too_large)?;
        self.fill(key, &dataset, (dtype, order), array.bytes_mut())?;
        Ok(array)
    }

    /// Reads a dataset, or its rows `start..end`, into memory of their size.
    pub(crate) fn read_into(&self, key: &str, rows: Option<Range<usize>>, to: &mut [u8]) -> Result<(), ArrayError> {
        if let Some(rows) = rows {
            return self.rows(key, rows.start, rows.end, |bytes| to.copy_from_slice(bytes));
        }
        let (dataset, dtype, order, _) = self.checked(key)?;
        self.fill(key, &dataset, (dtype, order), to)
    }

    fn fill(
        &self,
        key: &str,
        dataset: &Dataset,
        (dtype, order): (DType, ByteOrder),
        to: &mut [u8],
    ) -> Result<(), ArrayError> {
        dataset.read_raw_bytes_into(to).map_err(|e| damaged(&e).in_member(&self.path, key))?;
        to_native(dtype, order, to);
        Ok(())
    }

    /// Reads the rows `start..end` of a dataset.
    pub(crate) fn read_rows(&self, key: &str, start: usize, end: usize) -> Result<Array, ArrayError> {
        let (_, dtype, _, mut shape) = self.checked(key)?;
        if (start, end) == (0, shape.first().copied().unwrap_or(0)) {
            return self.read(key);
        }
        let array = self.rows(key, start, end, |bytes| {
            shape[0] = end - start;
            Array::from_bytes(dtype, shape, bytes)
        })?;
        Ok(array.expect("as many bytes as the rows have"))
    }

    /// Gives the bytes of the rows `start..end` to `then`.
    fn rows<X>(&self, key: &str, start: usize, end: usize, then: impl FnOnce(&[u8]) -> X) -> Result<X, ArrayError> {
        let (dataset, dtype, _, shape) = self.checked(key)?;
        let rows = shape.first().copied().unwrap_or(0);
        if start > end || end > rows || shape.is_empty() {
            return Err(ArrayErrorKind::Rows { rows, start, end }.in_member(&self.path, key));
        }
        let wanted = (&shape[..], start, end);
        let read = match dtype {
            DType::F32 => slice::<f32, X>(&dataset, wanted, then),
            DType::F64 => slice::<f64, X>(&dataset, wanted, then),
            DType::I32 => slice::<i32, X>(&dataset, wanted, then),
            DType::I64 => slice::<i64, X>(&dataset, wanted, then),
            // The library has no element type for these; they are half as large or smaller, so the whole is read.
            DType::Bool | DType::I8 | DType::I16 | DType::U8 | DType::U32 | DType::F16 | DType::BF16 => {
                let part = self.read(key)?.rows(start, end).expect("the range is checked above");
                return Ok(then(part.bytes()));
            }
        };
        read.map_err(|e| damaged(&e).in_member(&self.path, key))
    }

    /// A dataset whose declared size the file could hold.
    fn checked(&self, key: &str) -> Result<(Dataset, DType, ByteOrder, Vec<usize>), ArrayError> {
        let dataset = self.dataset(key)?;
        let Some((dtype, order)) = element(dataset.dtype()) else {
            let dtype = format!("{:?}", dataset.dtype());
            return Err(ArrayErrorKind::Element { dtype }.in_member(&self.path, key));
        };
        let declared = dataset.shape().iter().try_fold(dtype.size() as u128, |n, &d| n.checked_mul(d.into()));
        let declared = declared.unwrap_or(u128::MAX);
        if declared > u128::from(self.len) * u128::from(MAX_RATIO) {
            return Err(ArrayErrorKind::Short { declared, present: self.len }.in_member(&self.path, key));
        }
        let shape = dataset.shape().iter().map(|&d| d as usize).collect();
        Ok((dataset, dtype, order, shape))
    }
}

fn slice<T: H5Type + bytemuck::Pod, X>(
    dataset: &Dataset,
    (shape, start, end): (&[usize], usize, usize),
    then: impl FnOnce(&[u8]) -> X,
) -> Result<X, hdf5_reader::error::Error> {
    let mut selection = SliceInfo::all(shape.len());
    selection.selections[0] = SliceInfoElem::Slice { start: start as u64, end: end as u64, step: 1 };
    let read = dataset.read_slice::<T>(&selection)?;
    let values = read.as_slice().filter(|v| v.len() == (end - start) * shape[1..].iter().product::<usize>());
    let mismatch = || hdf5_reader::error::Error::InvalidData("a slice has another size than was asked for".to_string());
    Ok(then(bytemuck::cast_slice(values.ok_or_else(mismatch)?)))
}

fn element(datatype: &Datatype) -> Option<(DType, ByteOrder)> {
    Some(match datatype {
        Datatype::FixedPoint { size: 1, signed: true, byte_order } => (DType::I8, *byte_order),
        Datatype::FixedPoint { size: 2, signed: true, byte_order } => (DType::I16, *byte_order),
        Datatype::FixedPoint { size: 4, signed: true, byte_order } => (DType::I32, *byte_order),
        Datatype::FixedPoint { size: 8, signed: true, byte_order } => (DType::I64, *byte_order),
        Datatype::FixedPoint { size: 1, signed: false, byte_order } => (DType::U8, *byte_order),
        Datatype::FixedPoint { size: 4, signed: false, byte_order } => (DType::U32, *byte_order),
        Datatype::FloatingPoint { size: 2, byte_order } => (DType::F16, *byte_order),
        Datatype::FloatingPoint { size: 4, byte_order } => (DType::F32, *byte_order),
        Datatype::FloatingPoint { size: 8, byte_order } => (DType::F64, *byte_order),
        // h5py's bool, and ml_dtypes' bfloat16, which HDF5 has no type for.
        Datatype::Enum { base, members }
            if members.len() == 2 && matches!(**base, Datatype::FixedPoint { size: 1, .. }) =>
        {
            (DType::Bool, ByteOrder::LittleEndian)
        }
        Datatype::Opaque { size: 2, .. } => (DType::BF16, ByteOrder::LittleEndian),
        _ => return None,
    })
}

fn to_native(dtype: DType, order: ByteOrder, bytes: &mut [u8]) {
    let size = dtype.size();
    if order == ByteOrder::BigEndian && size > 1 {
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    if dtype == DType::Bool {
        bytes.iter_mut().for_each(|b| *b = u8::from(*b != 0));
    }
}
