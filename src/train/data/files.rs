//! The arrays of data files by name, and which of them are inputs, labels and weights.

use std::path::{Path, PathBuf};

use indexmap::IndexMap;

use super::{DataError, Port};
use crate::arrays::{ArrayErrorKind, Npz, Rows};

/// An array that is there.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) file: PathBuf,
    pub(super) rows: Rows,
}

/// All arrays of some files.
#[derive(Debug, Default)]
pub(super) struct Arrays {
    pub(super) arrays: IndexMap<String, Found>,
    /// What is no numeric array: name and what it is.
    pub(super) skipped: Vec<(String, String)>,
}

impl Arrays {
    /// Opens `.npz` and `.npy` files, and those of directories in order of their names.
    pub(super) fn open(paths: &[PathBuf]) -> Result<Arrays, DataError> {
        let mut all = Arrays::default();
        for path in paths {
            if path.is_dir() {
                let files = members(path)?;
                if files.is_empty() {
                    return Err(DataError::Empty { file: path.clone() });
                }
                files.iter().try_for_each(|file| all.file(file))?;
            } else {
                all.file(path)?;
            }
        }
        if all.arrays.is_empty() {
            return Err(DataError::Empty { file: paths.first().cloned().unwrap_or_default() });
        }
        Ok(all)
    }

    fn file(&mut self, path: &Path) -> Result<(), DataError> {
        if starts_with(path, b"\x93NUMPY") {
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            return self.add(name, path, Rows::open(path)?);
        }
        let npz = Npz::open(path)?;
        self.skipped.extend_from_slice(npz.skipped());
        for name in npz.names() {
            self.add(name.to_string(), path, npz.rows(name)?)?;
        }
        Ok(())
    }

    fn add(&mut self, name: String, file: &Path, rows: Rows) -> Result<(), DataError> {
        if let Some(first) = self.arrays.get(&name) {
            return Err(DataError::Twice { name, first: first.file.clone(), second: file.to_path_buf() });
        }
        self.arrays.insert(name, Found { file: file.to_path_buf(), rows });
        Ok(())
    }
}

/// The array files of a directory, by name.
fn members(dir: &Path) -> Result<Vec<PathBuf>, DataError> {
    let failed = |e| ArrayErrorKind::Io(e).at(dir);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "npy" || e == "npz") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn starts_with(path: &Path, magic: &[u8; 6]) -> bool {
    std::fs::File::open(path).is_ok_and(|mut f| {
        let mut start = [0u8; 6];
        std::io::Read::read_exact(&mut f, &mut start).is_ok() && start == *magic
    })
}

/// Which arrays are what.
#[derive(Debug)]
pub(super) struct Chosen {
    pub(super) inputs: Vec<String>,
    pub(super) labels: Vec<String>,
    pub(super) weights: Vec<Option<String>>,
}

/// Labels by number, then by name; weights by number or one for all; inputs by name, by number, or in order of what is left.
pub(super) fn choose(have: &[String], inputs: &[Port], outputs: &[Port]) -> Result<Chosen, DataError> {
    let there = |name: &String| have.contains(name);
    let numbered = |ports: &[Port], prefix: &str| -> Vec<String> {
        ports.iter().map(|port| format!("{prefix}{}", port.number)).collect()
    };
    let named = |ports: &[Port]| -> Vec<String> { ports.iter().map(|port| port.name.clone()).collect() };
    let first = |rules: &[Vec<String>]| rules.iter().find(|keys| keys.iter().all(there)).cloned();

    let labels = first(&[numbered(outputs, "y"), named(outputs)]).ok_or_else(|| DataError::NoFit {
        what: "labels",
        have: have.to_vec(),
        wanted: named(outputs),
        numbered: "y0, y1, …",
    })?;

    let one_each: Vec<Option<String>> =
        numbered(outputs, "sample_weight").into_iter().map(|key| Some(key).filter(there)).collect();
    let for_all = Some("sample_weight".to_string()).filter(there);
    let weights = match (one_each.iter().flatten().next(), for_all) {
        (Some(name), Some(_)) => return Err(DataError::WeightsTwice { name: name.clone() }),
        (None, Some(name)) => vec![Some(name); outputs.len()],
        (_, None) => one_each,
    };

    let taken = |name: &&String| labels.contains(name) || weights.iter().flatten().any(|w| w == *name);
    let left: Vec<String> = have.iter().filter(|name| !taken(name)).cloned().collect();
    let in_order = if left.len() == inputs.len() { vec![left.clone()] } else { Vec::new() };
    let rules = [vec![named(inputs), numbered(inputs, "in"), numbered(inputs, "x")], in_order].concat();
    let inputs = first(&rules).ok_or_else(|| DataError::NoFit {
        what: "inputs",
        have: left,
        wanted: named(inputs),
        numbered: "in0, in1, …",
    })?;
    Ok(Chosen { inputs, labels, weights })
}
