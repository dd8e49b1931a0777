//! Files of weights, opened and not yet read.

use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use crate::arrays::{Array, ArrayError, ArrayErrorKind, DType, Npz, SafetensorsFile};

use super::hdf5::H5;
use super::tfjs::Manifest;

/// How a weight file names what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Keras 3: groups by class and position, `layers/dense_1/vars/0`.
    Position,
    /// Whole-model and weight files of Keras 2: lists of names in attributes below this group, by topology.
    Topology {
        /// The group that has `layer_names`.
        root: String,
    },
    /// By variable path, `outer/dense/kernel`.
    Path,
    /// TensorFlow.js: by the layer's name, `dense/kernel`, each layer's tensors in Keras's order.
    Layer,
}

/// Where whole-model files of Keras 2 keep the optimizer.
const OPTIMIZER: &str = "optimizer_weights";

/// A tensor that an optimizer keeps.
#[derive(Clone, Debug)]
pub(super) struct OptimizerTensor {
    /// The optimizer's name for it, where the file has that.
    pub(super) name: Option<String>,
    /// Its key.
    pub(super) key: String,
}

/// An opened weight file. Tensors are read one by one, when they are asked for.
#[derive(Debug)]
pub struct WeightSource {
    naming: Naming,
    store: Store,
}

#[derive(Debug)]
enum Store {
    Hdf5(H5),
    /// Several HDF5 files and the one that has each key.
    Shards {
        index: PathBuf,
        files: Vec<H5>,
        keys: IndexMap<String, usize>,
    },
    Npz(Npz),
    Safetensors(SafetensorsFile),
    Manifest(Manifest),
}

impl WeightSource {
    pub(crate) fn hdf5(h5: H5, naming: Naming) -> WeightSource {
        WeightSource { naming, store: Store::Hdf5(h5) }
    }

    /// Files that share the tensors of one model; `index` is the file that names them.
    pub(crate) fn shards(index: &Path, files: Vec<H5>) -> Result<WeightSource, ArrayError> {
        let mut keys = IndexMap::new();
        for (i, file) in files.iter().enumerate() {
            keys.extend(file.datasets("")?.into_iter().map(|key| (key, i)));
        }
        Ok(WeightSource { naming: Naming::Position, store: Store::Shards { index: index.to_path_buf(), files, keys } })
    }

    pub(crate) fn npz(npz: Npz) -> WeightSource {
        WeightSource { naming: Naming::Path, store: Store::Npz(npz) }
    }

    pub(crate) fn safetensors(file: SafetensorsFile) -> WeightSource {
        WeightSource { naming: Naming::Path, store: Store::Safetensors(file) }
    }

    pub(super) fn manifest(manifest: Manifest) -> WeightSource {
        WeightSource { naming: Naming::Layer, store: Store::Manifest(manifest) }
    }

    /// How the file names what it holds.
    pub fn naming(&self) -> &Naming {
        &self.naming
    }

    /// The file.
    pub fn path(&self) -> &Path {
        match &self.store {
            Store::Hdf5(h5) => h5.path(),
            Store::Shards { index, .. } => index,
            Store::Npz(npz) => npz.path(),
            Store::Safetensors(file) => file.path(),
            Store::Manifest(manifest) => manifest.path(),
        }
    }

    /// The HDF5 file, where this is one.
    pub(crate) fn as_hdf5(&self) -> Option<&H5> {
        match &self.store {
            Store::Hdf5(h5) => Some(h5),
            Store::Shards { .. } | Store::Npz(_) | Store::Safetensors(_) | Store::Manifest(_) => None,
        }
    }

    /// Keys of all tensors, in the file's order.
    pub fn keys(&self) -> Result<Vec<String>, ArrayError> {
        Ok(match &self.store {
            Store::Hdf5(h5) => h5.datasets("")?.into_iter().collect(),
            Store::Shards { keys, .. } => keys.keys().cloned().collect(),
            Store::Npz(npz) => npz.names().map(str::to_string).collect(),
            Store::Safetensors(file) => file.names().map(str::to_string).collect(),
            Store::Manifest(manifest) => manifest.names().map(str::to_string).collect(),
        })
    }

    /// What an optimizer keeps in this file, in the order in which it made it; behind it, of one that scales losses, what the
    /// one inside keeps.
    pub(super) fn optimizer(&self) -> Result<Vec<Vec<OptimizerTensor>>, ArrayError> {
        match (&self.naming, &self.store) {
            (Naming::Position, _) => {
                let keys = self.keys()?;
                let within = |folder: &str| {
                    let number = |key: &String| key.strip_prefix(folder).and_then(|n| n.parse::<usize>().ok());
                    let mut found: Vec<(usize, String)> =
                        keys.iter().filter_map(|key| number(key).map(|n| (n, key.clone()))).collect();
                    found.sort();
                    found.into_iter().map(|(_, key)| OptimizerTensor { name: None, key }).collect()
                };
                Ok(["optimizer/vars/", "optimizer/inner_optimizer/vars/"].into_iter().map(within).collect())
            }
            (Naming::Topology { .. }, Store::Hdf5(h5)) if h5.has_group(OPTIMIZER) => {
                let names = h5.strings(OPTIMIZER, "weight_names")?.unwrap_or_default();
                let tensor = |name: String| OptimizerTensor { key: format!("{OPTIMIZER}/{name}"), name: Some(name) };
                Ok(vec![names.into_iter().map(tensor).collect()])
            }
            (Naming::Topology { .. } | Naming::Path | Naming::Layer, _) => Ok(Vec::new()),
        }
    }

    fn info(&self, key: &str) -> Option<(DType, Vec<usize>)> {
        match &self.store {
            Store::Hdf5(h5) => h5.info(key),
            Store::Shards { files, keys, .. } => files[*keys.get(key)?].info(key),
            Store::Npz(npz) => npz.info(key).map(|(dtype, shape)| (dtype, shape.to_vec())),
            Store::Safetensors(file) => file.info(key).map(|(dtype, shape)| (dtype, shape.to_vec())),
            Store::Manifest(manifest) => manifest.info(key).map(|(dtype, shape)| (dtype, shape.to_vec())),
        }
    }

    /// A tensor's shape, `None` where the file has no numeric tensor of this name.
    pub fn shape(&self, key: &str) -> Option<Vec<usize>> {
        Some(self.info(key)?.1)
    }

    /// A tensor's element type, `None` where the file has no numeric tensor of this name.
    pub fn dtype(&self, key: &str) -> Option<DType> {
        Some(self.info(key)?.0)
    }

    /// The shard that has a key.
    fn shard(&self, key: &str) -> Result<&H5, ArrayError> {
        let found = match &self.store {
            Store::Shards { files, keys, .. } => keys.get(key).map(|i| &files[*i]),
            Store::Hdf5(_) | Store::Npz(_) | Store::Safetensors(_) | Store::Manifest(_) => None,
        };
        found.ok_or_else(|| ArrayErrorKind::Missing.in_member(self.path(), key))
    }

    /// Reads a tensor.
    pub fn read(&self, key: &str) -> Result<Array, ArrayError> {
        match &self.store {
            Store::Hdf5(h5) => h5.read(key),
            Store::Shards { .. } => self.shard(key)?.read(key),
            Store::Npz(npz) => npz.read(key),
            Store::Safetensors(file) => file.read(key),
            Store::Manifest(manifest) => manifest.read(key),
        }
    }

    /// Reads the rows `start..end` of a tensor along its first dimension.
    pub fn read_rows(&self, key: &str, start: usize, end: usize) -> Result<Array, ArrayError> {
        match &self.store {
            Store::Hdf5(h5) => h5.read_rows(key, start, end),
            Store::Shards { .. } => self.shard(key)?.read_rows(key, start, end),
            Store::Manifest(manifest) => manifest.read_rows(key, start, end),
            Store::Npz(_) | Store::Safetensors(_) => {
                let whole = self.read(key)?;
                let rows = whole.shape().first().copied().unwrap_or(0);
                let missing = || ArrayErrorKind::Rows { rows, start, end }.in_member(self.path(), key);
                whole.rows(start, end).ok_or_else(missing)
            }
        }
    }

    /// Reads a tensor, or its rows along its first dimension, into memory of their size.
    pub(super) fn read_into(&self, key: &str, rows: Option<Range<usize>>, to: &mut [u8]) -> Result<(), ArrayError> {
        let h5 = match &self.store {
            Store::Hdf5(h5) => Some(h5),
            Store::Shards { .. } => Some(self.shard(key)?),
            Store::Npz(_) | Store::Safetensors(_) | Store::Manifest(_) => None,
        };
        if let Some(h5) = h5 {
            return h5.read_into(key, rows, to);
        }
        if let Store::Safetensors(file) = &self.store {
            let row = to.len().checked_div(rows.as_ref().map_or(1, |rows| rows.len())).unwrap_or(0);
            let start = rows.map_or(0, |rows| rows.start * row);
            let bytes = file.bytes(key)?.get(start..).and_then(|rest| rest.get(..to.len()));
            to.copy_from_slice(bytes.ok_or_else(|| ArrayErrorKind::Missing.in_member(self.path(), key))?);
            return Ok(());
        }
        let array = match rows {
            Some(rows) => self.read_rows(key, rows.start, rows.end)?,
            None => self.read(key)?,
        };
        to.copy_from_slice(array.bytes());
        Ok(())
    }
}
