//! Trained models as files that Keras loads and goes on with: `.keras`, `.weights.h5` and whole-model `.h5`.
//!
//! The architecture is the model file's own; weights, the optimizer's state and what the model is compiled with are new.
//! Names of tensors are those by which the files are read (`Positions`, `topology`). A file is
//! written beside its place and then renamed, and holds no date: equal models are equal files.

mod config;
mod error;
mod hdf5;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use intwain_ir::Tensor;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use crate::frontend::{Generation, Json, Positions, VarTree, topology};
use crate::model::{Model, ModelError};
pub use config::Compile;
pub use error::ExportError;
use hdf5::{Dataset, Group, Taken};

/// What training made of a model.
#[derive(Clone, Debug, Default)]
pub struct Trained<'a> {
    /// Variables by path. Those that are not here are the model's own.
    pub weights: BTreeMap<&'a str, &'a Tensor>,
    /// What the optimizer keeps, where that is to be written.
    pub optimizer: Option<Kept<'a>>,
    /// What it was trained with.
    pub compile: Option<Compile>,
}

/// What an optimizer keeps.
#[derive(Clone, Debug)]
pub struct Kept<'a> {
    /// Paths and values, in the order in which Keras saves them.
    pub slots: Vec<(&'a str, &'a Tensor)>,
    /// The first slot of the optimizer inside, of one that scales losses.
    pub inner_from: Option<usize>,
}

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Archive,
    Weights,
    WholeH5,
}

impl Format {
    fn of(path: &Path) -> Result<Format, ExportError> {
        let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let ends = |ending: &str| name.len() > ending.len() && name.ends_with(ending);
        match () {
            () if ends(".keras") => Ok(Format::Archive),
            () if ends(".weights.h5") => Ok(Format::Weights),
            () if ends(".h5") || ends(".hdf5") => Ok(Format::WholeH5),
            () => Err(ExportError::Extension { file: path.to_path_buf() }),
        }
    }
}

/// Whether a model can be written to a file of this name: to be asked before training.
pub fn check(path: &Path, model: &Model) -> Result<(), ExportError> {
    let format = Format::of(path)?;
    let architecture = architecture(model)?;
    let tree = model.variables()?;
    match format {
        Format::Archive => {
            config::archive(&architecture, None, None).map(|_| ()).ok_or_else(|| not_keras3(path, model))
        }
        Format::Weights => Ok(()),
        Format::WholeH5 => fits_whole_h5(path, model, &tree),
    }
}

/// Writes a trained model in the format that the file's name says.
pub fn write(path: &Path, model: &Model, trained: &Trained<'_>) -> Result<(), ExportError> {
    check(path, model)?;
    let tree = model.variables()?;
    let values = values(&tree, model, trained)?;
    let taken = |taken: Taken| ExportError::Taken { file: path.to_path_buf(), path: taken.path };
    match Format::of(path)? {
        Format::Archive => {
            let root = positions(&tree, model, &values, trained).map_err(taken)?;
            let config = config::archive(&architecture(model)?, model.options().float, trained.compile.as_ref());
            let config = config.ok_or_else(|| not_keras3(path, model))?;
            beside(path, |file| archive(file, model, &config, &root))
        }
        Format::Weights => {
            let root = positions(&tree, model, &values, trained).map_err(taken)?;
            beside(path, |file| hdf5::write(&root, file))
        }
        Format::WholeH5 => {
            let root = whole_h5(&tree, model, &values, trained)?.map_err(taken)?;
            beside(path, |file| hdf5::write(&root, file))
        }
    }
}

fn not_keras3(path: &Path, model: &Model) -> ExportError {
    let why = match model.generation() {
        Generation::One => "the architecture is one of Keras 1, a .keras file is one of Keras 3",
        Generation::Two => "the architecture is one of Keras 2, a .keras file is one of Keras 3",
        Generation::Three => "the architecture names no modules, as a .keras file does",
    };
    match model.generation() {
        Generation::One => ExportError::unfit(path, why, AS_WEIGHTS),
        Generation::Two | Generation::Three => ExportError::unfit(path, why, AS_H5),
    }
}

const AS_WEIGHTS: &str = "give -o OUT.weights.h5, and load that into the model built again in Keras 3";
const AS_H5: &str = "give -o OUT.h5, or OUT.weights.h5 and load that into the model built again in Keras 3";

fn fits_whole_h5(path: &Path, model: &Model, tree: &VarTree) -> Result<(), ExportError> {
    fn find<'t>(tree: &'t VarTree, is: &impl Fn(&VarTree) -> bool) -> Option<&'t VarTree> {
        if is(tree) { Some(tree) } else { tree.parts.iter().find_map(|part| find(part, is)) }
    }
    if model.generation() == Generation::One {
        return Err(ExportError::unfit(path, "the model is one of Keras 1, whose files are not written", AS_WEIGHTS));
    }
    if let Some(layer) = find(tree, &|layer| layer.factors > 0) {
        let why = format!("`{}` trains low-rank factors, which a .h5 file has apart from the kernel", layer.path);
        return Err(ExportError::unfit(path, why, "give -o OUT.keras, which holds the product"));
    }
    if let Some(layer) = find(tree, &|layer| layer.class.starts_with("CuDNN")) {
        let why = format!("`{}` is a {}, whose layout of weights is not written", layer.path, layer.class);
        return Err(ExportError::unfit(path, why, AS_WEIGHTS));
    }
    Ok(())
}

fn architecture(model: &Model) -> Result<Json, ExportError> {
    let parsed = Json::parse(model.architecture());
    parsed.map_err(|kind| ModelError::from(crate::frontend::ImportErrors::one(model.path(), kind)).into())
}

/// Every variable's value, in the order of [`VarTree::flatten`].
fn values<'a>(tree: &VarTree, model: &Model, trained: &Trained<'a>) -> Result<Vec<Cow<'a, Tensor>>, ExportError> {
    let specs = tree.flatten();
    let mut unknown = trained.weights.clone();
    let mut values = Vec::with_capacity(specs.len());
    for spec in specs {
        let value = match unknown.remove(&*spec.path) {
            Some(value) => Cow::Borrowed(value),
            None => Cow::Owned(model.weight(&spec.path)?),
        };
        if value.ty.shape[..] != spec.shape[..] {
            let (path, expected) = (spec.path.clone(), spec.shape.clone());
            return Err(ExportError::Shape { path, expected, found: value.ty.shape.to_vec() });
        }
        values.push(value);
    }
    if unknown.is_empty() {
        return Ok(values);
    }
    Err(ExportError::Unknown { paths: unknown.keys().map(|path| path.to_string()).collect() })
}

fn dataset<'v>(tensor: &'v Tensor) -> Dataset<'v> {
    Dataset { dtype: tensor.ty.dtype, shape: tensor.ty.shape.to_vec(), data: Cow::Borrowed(&tensor.data) }
}

/// `.weights.h5` of Keras 3.
fn positions<'v>(
    tree: &VarTree,
    model: &Model,
    values: &'v [Cow<'_, Tensor>],
    trained: &Trained<'v>,
) -> Result<Group<'v>, Taken> {
    let found = Positions::of(tree);
    let mut root = Group::default();
    for (group, layer) in &found.groups {
        let name = if layer.is_empty() { model.name() } else { layer.rsplit('/').next().unwrap_or_default() };
        root.group(group)?.text("name", name);
    }
    for (key, value) in found.keys.iter().zip(values) {
        root.put(key, dataset(value))?;
    }
    for (key, variable) in &found.repeated {
        root.put(key, dataset(&values[*variable]))?;
    }
    let Some(kept) = &trained.optimizer else { return Ok(root) };
    let name = |slot: Option<&(&str, &Tensor)>| {
        slot.and_then(|(path, _)| path.split('/').next()).unwrap_or("optimizer").to_string()
    };
    root.group("optimizer/vars")?.text("name", name(kept.slots.first()));
    for (i, (_, value)) in kept.slots.iter().enumerate() {
        root.put(&format!("optimizer/vars/{i}"), dataset(value))?;
    }
    let Some(from) = kept.inner_from else { return Ok(root) };
    // Keras lists what the optimizer inside keeps among the outer one's, and saves it as its own once more.
    let inner = kept.slots.get(from..).unwrap_or_default();
    root.group("optimizer/inner_optimizer/vars")?.text("name", name(inner.first()));
    for (i, (_, value)) in inner.iter().enumerate() {
        root.put(&format!("optimizer/inner_optimizer/vars/{i}"), dataset(value))?;
    }
    Ok(root)
}

/// Whole-model HDF5, as Keras 2 introduced it and Keras 3 still writes it.
fn whole_h5<'v>(
    tree: &VarTree,
    model: &Model,
    values: &'v [Cow<'_, Tensor>],
    trained: &Trained<'v>,
) -> Result<Result<Group<'v>, Taken>, ExportError> {
    let architecture = architecture(model)?;
    let mut root = Group::default();
    for (name, text) in [("keras_version", config::version(&architecture)), ("backend", "tensorflow")] {
        root.text(name, text);
    }
    root.text("model_config", config::whole_h5(&architecture, model.options().float).to_text());
    if let Some(compile) = &trained.compile {
        root.text("training_config", compile.legacy(model.generation()).to_text());
    }
    let filled = layers(&mut root, tree, (model, config::version(&architecture)), values);
    Ok(filled.and_then(|()| optimizer_weights(&mut root, trained)).map(|()| root))
}

fn layers<'v>(
    root: &mut Group<'v>,
    tree: &VarTree,
    (model, version): (&Model, &str),
    values: &'v [Cow<'_, Tensor>],
) -> Result<(), Taken> {
    // Keras 2 has the number of an output behind a variable's name.
    let ending = if model.generation() == Generation::Three { "" } else { ":0" };
    let paths = tree.flatten();
    let layers = topology(tree);
    let all = root.group("model_weights")?;
    all.texts("layer_names", layers.iter().map(|(layer, _)| layer.path.clone()).collect());
    all.text("backend", "tensorflow");
    all.text("keras_version", version);
    let own: Vec<usize> = (0..tree.vars.len()).collect();
    let top = ("top_level_model_weights", own);
    let layers = layers.into_iter().map(|(layer, variables)| (&*layer.path, variables));
    for (layer, variables) in layers.chain([top]) {
        let group = all.group(layer)?;
        let name = |i: &usize| format!("{}{ending}", paths[*i].path);
        group.texts("weight_names", variables.iter().map(name).collect());
        for i in &variables {
            group.put(&name(i), dataset(&values[*i]))?;
        }
    }
    Ok(())
}

fn optimizer_weights<'v>(root: &mut Group<'v>, trained: &Trained<'v>) -> Result<(), Taken> {
    let Some(kept) = trained.optimizer.as_ref().filter(|kept| !kept.slots.is_empty()) else { return Ok(()) };
    let group = root.group("optimizer_weights")?;
    group.texts("weight_names", kept.slots.iter().map(|(path, _)| path.to_string()).collect());
    for (path, value) in &kept.slots {
        group.put(path, dataset(value))?;
    }
    Ok(())
}

/// The members of a `.keras` file.
fn archive(file: &mut BufWriter<File>, model: &Model, config: &Json, root: &Group<'_>) -> std::io::Result<()> {
    let stored = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default());
    let mut zip = ZipWriter::new(file);
    let version = Json::parse(model.architecture()).map(|json| config::version(&json).to_string());
    let version = Json::String(version.unwrap_or_default());
    zip.start_file("metadata.json", stored)?;
    zip.write_all(Json::Object([("keras_version".to_string(), version)].into_iter().collect()).to_text().as_bytes())?;
    zip.start_file("config.json", stored)?;
    zip.write_all(config.to_text().as_bytes())?;
    zip.start_file("model.weights.h5", stored.large_file(root.bytes() >= 1 << 31))?;
    hdf5::write(root, &mut zip)?;
    assets(model.path(), &mut zip)?;
    zip.finish()?;
    Ok(())
}

/// What layers keep in files of their own, such as vocabularies: those of the model's own archive.
fn assets<W: Write + Seek>(from: &Path, to: &mut ZipWriter<W>) -> std::io::Result<()> {
    let mut file = File::open(from)?;
    let mut magic = [0; 4];
    if file.read_exact(&mut magic).is_err() || magic != *b"PK\x03\x04" {
        return Ok(());
    }
    let mut archive = ZipArchive::new(file)?;
    for i in 0..archive.len() {
        let member = archive.by_index_raw(i)?;
        if member.name().is_ok_and(|name| name.starts_with("assets/")) {
            to.raw_copy_file(member)?;
        }
    }
    Ok(())
}

/// Writes a file beside its place and renames it, so that no partial one is ever seen.
fn beside(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<(), ExportError> {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let partial: PathBuf = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
    let result = (|| {
        let mut file = BufWriter::new(File::create(&partial)?);
        write(&mut file)?;
        file.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        std::fs::rename(&partial, path)
    })();
    if result.is_err() {
        // The error of the write itself is the one to report.
        let _ = std::fs::remove_file(&partial);
    }
    result.map_err(ExportError::io(path))
}
