//! Arrays of the command line: which array is which input, and output names.

use super::args::Common;
use super::{Failure, output};
use crate::arrays::{Npz, read_npy, write_npz};
use crate::model::{Model, to_array, to_tensor};
use intwain_ir::{DType, Graph, Tensor, scalar};
use std::collections::BTreeMap;
use std::path::Path;

/// Gives inputs that the model leaves open the extents that the data has.
pub(crate) fn close(path: &Path, model: &mut Model) -> Result<(), Failure> {
    let inputs: Vec<(String, bool)> = model.open_inputs().into_iter().map(|(n, open)| (n.to_string(), open)).collect();
    if inputs.iter().all(|(_, open)| !open) {
        return Ok(());
    }
    let names: Vec<String> = inputs.iter().map(|(name, _)| name.clone()).collect();
    let shapes: Vec<Vec<usize>> = if is_npy(path) {
        vec![read_npy(path)?.shape().to_vec(); names.len()]
    } else {
        let npz = Npz::open(path)?;
        let keys = choose(&npz, &names).map_err(|problem| Failure::file(path, problem))?;
        keys.iter().map(|key| npz.info(key).map_or_else(Vec::new, |(_, shape)| shape.to_vec())).collect()
    };
    let open = inputs.into_iter().zip(shapes).filter(|((_, open), shape)| *open && !shape.is_empty());
    model.close(open.map(|((name, _), shape)| (name, shape[1..].to_vec())).collect());
    Ok(())
}

/// Reads a model's inputs by the first rule that fits all of them: names of the inputs, `in0, in1, …`, `x0, x1, …`, the
/// order of the file. A file with one bare array serves a model with one input.
pub(crate) fn read_inputs(path: &Path, graph: &Graph, common: &Common) -> Result<BTreeMap<String, Tensor>, Failure> {
    let names: Vec<String> = graph.inputs().map(|p| p.name.to_string()).collect();
    let types: Vec<DType> = graph.inputs().map(|p| graph.ty(p.value).dtype).collect();
    let arrays = if is_npy(path) {
        if names.len() != 1 {
            return Err(Failure::file(path, format!("one array for the {} inputs {}", names.len(), names.join(", "))));
        }
        vec![to_tensor(&read_npy(path)?)]
    } else {
        let npz = Npz::open(path)?;
        let keys = choose(&npz, &names).map_err(|problem| Failure::file(path, problem))?;
        ignored(path, &npz, &keys, common);
        keys.iter().map(|k| Ok(to_tensor(&npz.read(k)?))).collect::<Result<_, Failure>>()?
    };
    let mut inputs = BTreeMap::new();
    for ((name, dtype), tensor) in names.into_iter().zip(types).zip(arrays) {
        let tensor = convert(&tensor, dtype).map_err(|p| Failure::file(path, format!("input `{name}`: {p}")))?;
        inputs.insert(name, tensor);
    }
    Ok(inputs)
}

fn is_npy(path: &Path) -> bool {
    std::fs::File::open(path).is_ok_and(|mut f| {
        let mut magic = [0u8; 6];
        std::io::Read::read_exact(&mut f, &mut magic).is_ok() && magic == *b"\x93NUMPY"
    })
}

/// Says which members of a file no input takes.
fn ignored(path: &Path, npz: &Npz, keys: &[String], common: &Common) {
    let others: Vec<&str> = npz.names().filter(|n| !keys.iter().any(|k| k == n)).collect();
    if !others.is_empty() {
        output::note(common, &format!("{}: no input takes {}", path.display(), list(&others)));
    }
    for (name, what) in npz.skipped() {
        output::note(common, &format!("{}: `{name}` is skipped: it is {what}", path.display()));
    }
}

/// The array of each input.
fn choose(npz: &Npz, names: &[String]) -> Result<Vec<String>, String> {
    let have: Vec<&str> = npz.names().collect();
    let numbered = |prefix: &str| (0..names.len()).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
    for keys in [names.to_vec(), numbered("in"), numbered("x")] {
        if keys.iter().all(|k| have.contains(&k.as_str())) {
            return Ok(keys);
        }
    }
    if have.len() == names.len() {
        return Ok(have.into_iter().map(String::from).collect());
    }
    Err(format!(
        "the arrays {} do not fit the inputs {}; name them so, or in0, in1, …",
        list(&have),
        list(&names.iter().map(String::as_str).collect::<Vec<_>>())
    ))
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "(none)".into() } else { names.join(", ") }
}

/// Floats convert to floats; integers convert where that is exact.
fn convert(t: &Tensor, dtype: DType) -> Result<Tensor, String> {
    if t.ty.dtype.is_float() && !dtype.is_float() {
        return Err(format!("holds {}, the model takes {dtype}", t.ty.dtype));
    }
    let converted = t.cast(dtype);
    if t.ty.dtype.is_float() || t.ty.dtype == dtype {
        return Ok(converted);
    }
    for i in 0..t.elements() {
        let (x, y) = (t.get(i), converted.get(i));
        if scalar::cast(t.ty.dtype, y) != x {
            return Err(format!("{x} is not a {dtype}"));
        }
    }
    Ok(converted)
}

/// Writes tensors beside the target and renames; names that repeat get `_1`, `_2`, ….
pub(crate) fn write_outputs(path: &Path, outputs: &[(String, Tensor)]) -> Result<(), Failure> {
    let mut used: BTreeMap<String, usize> = BTreeMap::new();
    let mut arrays = Vec::new();
    for (name, t) in outputs {
        let n = used.entry(name.clone()).or_insert(0);
        let unique = if *n == 0 { name.clone() } else { format!("{name}_{n}") };
        *n += 1;
        // NumPy has no bfloat16.
        let t = if t.ty.dtype == DType::BF16 { t.cast(DType::F32) } else { t.clone() };
        arrays.push((unique, to_array(&t)));
    }
    Ok(write_npz(path, arrays.iter().map(|(n, a)| (n.as_str(), a)))?)
}
