//! `.safetensors` files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use safetensors::{Dtype, SafeTensors};

use super::{Array, ArrayError, ArrayErrorKind, DType, FileBytes, byte_len};

/// An opened safetensors file: the directory in memory, the data mapped.
#[derive(Debug)]
pub struct SafetensorsFile {
    file: PathBuf,
    bytes: FileBytes,
    tensors: IndexMap<String, Entry>,
    remarks: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    dtype: Result<DType, String>,
    shape: Vec<usize>,
    start: usize,
    end: usize,
}

impl SafetensorsFile {
    /// Opens a file and checks its directory against its size.
    pub fn open(path: &Path) -> Result<SafetensorsFile, ArrayError> {
        let bytes = FileBytes::open(path).map_err(|e| ArrayErrorKind::Io(e).at(path))?;
        SafetensorsFile::from_bytes(path, bytes)
    }

    /// Opens a file that lies in memory; `path` is for messages.
    pub fn from_bytes(path: &Path, bytes: FileBytes) -> Result<SafetensorsFile, ArrayError> {
        let damaged = |why: String| ArrayErrorKind::Damaged { format: "safetensors", why }.at(path);
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| damaged(e.to_string()))?;
        let data = header.checked_add(8).ok_or_else(|| damaged("its header length overflows".to_string()))?;
        let mut tensors = IndexMap::new();
        // `offset_keys` is in order of the data, which does not depend on a hash map.
        for name in metadata.offset_keys() {
            let Some(info) = metadata.info(&name) else { continue };
            let (start, end) = (data + info.data_offsets.0, data + info.data_offsets.1);
            if start > end || end > bytes.len() {
                return Err(damaged(format!("`{name}` reaches beyond the end of the file")));
            }
            let dtype = dtype_of(info.dtype);
            if let Ok(dtype) = dtype
                && byte_len(dtype, &info.shape) != Some(end - start)
            {
                return Err(damaged(format!("`{name}` has {} bytes, its shape asks for another number", end - start)));
            }
            tensors.insert(name, Entry { dtype, shape: info.shape.clone(), start, end });
        }
        let remarks = metadata.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
        Ok(SafetensorsFile { file: path.to_path_buf(), bytes, tensors, remarks })
    }

    /// What the file says beside its tensors.
    pub fn remark(&self, key: &str) -> Option<&str> {
        self.remarks.get(key).map(String::as_str)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Names of all tensors, in the order of their data.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Dtype and shape, `None` where there is no such tensor or its type is not one of ours.
    pub fn info(&self, name: &str) -> Option<(DType, &[usize])> {
        let entry = self.tensors.get(name)?;
        Some((*entry.dtype.as_ref().ok()?, &entry.shape))
    }

    /// The bytes of one tensor, as they lie in the file.
    pub fn bytes(&self, name: &str) -> Result<&[u8], ArrayError> {
        let entry = self.tensors.get(name).ok_or_else(|| ArrayErrorKind::Missing.in_member(&self.file, name))?;
        Ok(&self.bytes[entry.start..entry.end])
    }

    /// Reads one tensor.
    pub fn read(&self, name: &str) -> Result<Array, ArrayError> {
        let entry = self.tensors.get(name).ok_or_else(|| ArrayErrorKind::Missing.in_member(&self.file, name))?;
        let dtype = entry
            .dtype
            .as_ref()
            .map_err(|d| ArrayErrorKind::Element { dtype: d.clone() }.in_member(&self.file, name))?;
        Ok(Array::from_bytes(*dtype, entry.shape.clone(), &self.bytes[entry.start..entry.end])
            .expect("sizes are compared when the file is opened"))
    }
}

/// The format's name of a type.
pub(crate) fn safetensors_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bool => Dtype::BOOL,
        DType::I8 => Dtype::I8,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::U8 => Dtype::U8,
        DType::U32 => Dtype::U32,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
    }
}

fn dtype_of(dtype: Dtype) -> Result<DType, String> {
    Ok(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::I8 => DType::I8,
        Dtype::I16 => DType::I16,
        Dtype::I32 => DType::I32,
        Dtype::I64 => DType::I64,
        Dtype::U8 => DType::U8,
        Dtype::U32 => DType::U32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        other => return Err(format!("{other:?}")),
    })
}
