//! Writes a program directory beside its place, then renames it, so that no partial one is ever seen.

use super::manifest::{
    self, ImportManifest, Machine, Manifest, ModuleManifest, SourceManifest, TrainingManifest, VariantManifest,
};
use super::{COMPILER, FORMAT, ProgramError};
use crate::arrays::safetensors_dtype;
use crate::driver::{Compiled, Loadable};
use crate::frontend::Format;
use crate::kernels::{self, gpu::GpuCode};
use crate::model::{Matching, Model, ModelError};
use crate::report::{self, PlacementReport};
use intwain_codegen::ptx::EmitError;
use intwain_codegen::schedule::gpu::{Gpu, Precision};
use intwain_ir::{ParamKind, Tensor, Type};
use intwain_passes::Timings;
use intwain_passes::hardware::{DeviceKind, Hardware};
use intwain_passes::place::Strategy;
use intwain_passes::program::DeviceProgram;
use safetensors::tensor::{Dtype, View};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes the programs of a model for several numbers of rows; the first is for full calls. `asked` is the strategy
/// that was asked for by name. A program directory that is there already is replaced.
pub fn write(
    dir: &Path,
    model: &Model,
    (hardware, precision): (&Hardware, Precision),
    variants: &[Compiled],
    asked: Option<Strategy>,
    timings: &mut Timings,
) -> Result<Manifest, ProgramError> {
    let report = |c: &Compiled| report::placement(c, hardware, asked);
    let variants: Vec<(&Compiled, PlacementReport)> = variants.iter().map(|c| (c, report(c))).collect();
    write_all(dir, model, (hardware, precision), &variants, None, timings)
}

/// The same for steps of training, whose placements are given, asked for by `arguments`.
pub fn write_training(
    dir: &Path,
    model: &Model,
    machine: (&Hardware, Precision),
    variants: &[(&Compiled, PlacementReport)],
    arguments: Vec<String>,
    timings: &mut Timings,
) -> Result<Manifest, ProgramError> {
    if model.format() == Format::TensorFlowJs {
        let problem = "keeps its weights in several files, which a program of training does not take; \
                       give a .keras or .h5 file, or a JSON with --weights";
        return Err(ProgramError::unusable(model.path(), problem));
    }
    write_all(dir, model, machine, variants, Some(arguments), timings)
}

fn write_all(
    dir: &Path,
    model: &Model,
    (hardware, precision): (&Hardware, Precision),
    variants: &[(&Compiled, PlacementReport)],
    training: Option<Vec<String>>,
    timings: &mut Timings,
) -> Result<Manifest, ProgramError> {
    compiles_for(dir, hardware)?;
    let partial = beside(dir, "partial")?;
    let programs: Vec<&[DeviceProgram]> = variants.iter().map(|v| &v.0.programs[..]).collect();
    let code = timings.time("kernels", || code(hardware, precision, &programs))?;
    let written =
        timings.time("write", || fill(&partial, model, (hardware, precision), variants, code.as_deref(), training));
    let result = written.and_then(|m| {
        put(&partial, dir)?;
        Ok(m)
    });
    if result.is_err() {
        // The error of the write itself is the one to report.
        let _ = std::fs::remove_dir_all(&partial);
    }
    result
}

/// Whether a program for this machine can be written into this directory.
pub fn compiles_for(dir: &Path, hardware: &Hardware) -> Result<(), ProgramError> {
    let too_old = |target: &str| target.strip_prefix("sm_").and_then(|n| n.parse::<u32>().ok()).is_none_or(|n| n < 80);
    let gpus = hardware.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
    if let Some(gpu) = gpus.clone().find(|d| too_old(&d.target)) {
        let problem = format!(
            "a program for `{}` needs code for {} ({}); code is written for sm_80 and later",
            hardware.name, gpu.name, gpu.target
        );
        return Err(ProgramError::unusable(dir, problem));
    }
    if gpus.count() != hardware.devices.len() && !hardware.devices.iter().all(|d| d.kind == DeviceKind::Cpu) {
        let problem = format!("`{}` has devices of several kinds; a program runs on devices of one", hardware.name);
        return Err(ProgramError::unusable(dir, problem));
    }
    replaceable(dir)
}

/// A name beside the directory that nothing has yet.
fn beside(dir: &Path, what: &str) -> Result<std::path::PathBuf, ProgramError> {
    let Some(name) = dir.file_name() else {
        return Err(ProgramError::unusable(dir, "is not the name of a directory to write"));
    };
    Ok(dir.with_file_name(format!(".{}.{}.{what}", name.to_string_lossy(), std::process::id())))
}

/// Only nothing, an empty directory or another program is replaced.
fn replaceable(dir: &Path) -> Result<(), ProgramError> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => {
            if entries.next().is_none() || dir.join("program.json").is_file() {
                return Ok(());
            }
            Err(ProgramError::unusable(dir, "has other files in it; name a new directory, or one with a program"))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(ProgramError::io(dir)(e)),
    }
}

/// Moves the finished directory to its place.
fn put(partial: &Path, dir: &Path) -> Result<(), ProgramError> {
    let old = beside(dir, "old")?;
    let replaces = dir.exists();
    if replaces {
        std::fs::rename(dir, &old).map_err(ProgramError::io(dir))?;
    }
    if let Err(e) = std::fs::rename(partial, dir) {
        if replaces {
            // Back to what was there; the first error is the one to report.
            let _ = std::fs::rename(&old, dir);
        }
        return Err(ProgramError::io(dir)(e));
    }
    if replaces {
        std::fs::remove_dir_all(&old).map_err(ProgramError::io(&old))?;
    }
    Ok(())
}

/// The files that are written, with their hashes.
struct Files<'d> {
    dir: &'d Path,
    hashes: BTreeMap<String, String>,
}

impl Files<'_> {
    fn put(&mut self, name: impl Into<String>, text: &str) -> Result<String, ProgramError> {
        let name = name.into();
        let path = self.dir.join(&name);
        std::fs::write(&path, text).map_err(ProgramError::io(&path))?;
        self.hashes.insert(name.clone(), manifest::sha256(text.as_bytes()));
        Ok(name)
    }
}

fn fill(
    dir: &Path,
    model: &Model,
    (hardware, precision): (&Hardware, Precision),
    variants: &[(&Compiled, PlacementReport)],
    code: Option<&[Vec<GpuCode>]>,
    training: Option<Vec<String>>,
) -> Result<Manifest, ProgramError> {
    std::fs::create_dir(dir).map_err(ProgramError::io(dir))?;
    let mut files = Files { dir, hashes: BTreeMap::new() };
    let mut listed = Vec::new();
    let mut plan = String::new();
    for (i, (compiled, report)) in variants.iter().enumerate() {
        let suffix = match (i, report.batch) {
            (0, _) | (_, None) => String::new(),
            (_, Some(rows)) => format!(".rows{rows}"),
        };
        let whole = files.put(format!("whole{suffix}.ir"), &format!("{}\n", compiled.explicit))?;
        let graphs = compiled.locals.iter().enumerate();
        let graphs: Vec<String> = graphs
            .map(|(k, g)| files.put(format!("graph{k}{suffix}.ir"), &format!("{g}\n")))
            .collect::<Result<_, _>>()?;
        let program = Loadable { code: code.as_ref().map(|c| &c[i][..]), ..compiled.loadable() };
        let (params, outputs, devices) = manifest::describe(program, &targets(hardware));
        plan.push_str(&format!("{}{report}\n", if i > 0 { "\n" } else { "" }));
        let placement = serde_json::to_value(report).expect("a report has string keys and no failing parts");
        let (rows, strategy, micro_batches) = (report.batch, report.strategy.to_string(), report.micro_batches);
        listed.push(VariantManifest {
            rows,
            strategy,
            micro_batches,
            whole,
            graphs,
            params,
            outputs,
            devices,
            placement,
        });
    }
    let mut modules = Vec::new();
    for made in code.iter().flat_map(|c| one_per_device(c)) {
        let file = files.put(format!("device{}.ptx", modules.len()), &made.text)?;
        modules.push(ModuleManifest { file, kernels: made.kernels.to_vec() });
    }
    files.put("plan.txt", &plan)?;
    let import = ImportManifest {
        model: files.put("model.json", model.architecture())?,
        shapes: model.options().shapes.clone(),
        dtype: model.options().float.map(|d| d.name().to_string()),
    };
    let weights = "weights.safetensors".to_string();
    if let Some((first, _)) = variants.first() {
        let file = dir.join(&weights);
        write_weights(&file, model, first)?;
        // The library makes files that only their owner reads.
        let plan = dir.join("plan.txt");
        let like = std::fs::metadata(&plan).map_err(ProgramError::io(&plan))?.permissions();
        std::fs::set_permissions(&file, like).map_err(ProgramError::io(&file))?;
    }
    let manifest = Manifest {
        format: FORMAT,
        compiler: COMPILER.to_string(),
        model: model.name().to_string(),
        architecture: variants.first().map_or(String::new(), |v| super::check::architecture(&v.0.explicit)),
        import,
        hardware: Machine { name: hardware.name.clone(), hash: hardware.hash() },
        precision: precision.name().to_string(),
        files: files.hashes,
        weights,
        modules,
        training: training.map(|arguments| sources(dir, model, arguments)).transpose()?,
        variants: listed,
    };
    let text = serde_json::to_string_pretty(&manifest).expect("a manifest has string keys and no failing parts");
    let path = dir.join("program.json");
    std::fs::write(&path, text + "\n").map_err(ProgramError::io(&path))?;
    Ok(manifest)
}

/// Copies what training starts from.
fn sources(dir: &Path, model: &Model, arguments: Vec<String>) -> Result<TrainingManifest, ProgramError> {
    let copy = |from: &Path, name: &str| -> Result<SourceManifest, ProgramError> {
        let bytes = std::fs::read(from).map_err(ProgramError::io(from))?;
        let extension = from.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
        let file = format!("{name}{extension}");
        let to = dir.join(&file);
        std::fs::write(&to, &bytes).map_err(ProgramError::io(&to))?;
        Ok(SourceManifest { file, hash: manifest::sha256(&bytes) })
    };
    let options = model.options();
    Ok(TrainingManifest {
        model: copy(model.path(), "source")?,
        weights: options.weights.as_deref().map(|w| copy(w, "source.weights")).transpose()?,
        by_name: options.matching == Matching::LayerNames,
        seed: options.seed,
        arguments,
    })
}

/// The code of every variant's devices, where they are GPUs.
fn code(
    hardware: &Hardware,
    precision: Precision,
    variants: &[&[DeviceProgram]],
) -> Result<Option<Vec<Vec<GpuCode>>>, EmitError> {
    let gpus = hardware.devices.iter().any(|d| d.kind == DeviceKind::Gpu);
    gpus.then(|| kernels::gpu::compile_variants(&Gpu { precision }, variants)).transpose()
}

/// The modules of the devices: all variants of a device share one.
fn one_per_device(variants: &[Vec<GpuCode>]) -> impl Iterator<Item = &GpuCode> {
    let devices = variants.iter().map(Vec::len).max().unwrap_or(0);
    (0..devices).filter_map(|d| variants.iter().find_map(|v| v.get(d)))
}

/// What code is generated for on each device.
pub(super) fn targets(hardware: &Hardware) -> Vec<String> {
    hardware.devices.iter().map(|d| d.target.clone()).collect()
}

/// A weight that is read when it is written.
struct Late<'m> {
    model: &'m Model,
    name: &'m str,
    ty: &'m Type,
    problem: &'m RefCell<Option<ModelError>>,
}

impl View for Late<'_> {
    fn dtype(&self) -> Dtype {
        safetensors_dtype(self.ty.dtype)
    }

    fn shape(&self) -> &[usize] {
        &self.ty.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let read = match self.model.weight(self.name) {
            Ok(t) => t.cast(self.ty.dtype),
            Err(e) => {
                self.problem.replace(Some(e));
                Tensor::zeros(self.ty.clone())
            }
        };
        Cow::Owned(read.data)
    }

    fn data_len(&self) -> usize {
        self.ty.bytes()
    }
}

fn write_weights(path: &Path, model: &Model, compiled: &Compiled) -> Result<(), ProgramError> {
    let problem = RefCell::new(None);
    let params = &compiled.graph.params;
    let weights = params.iter().filter(|p| matches!(p.kind, ParamKind::Weight { .. })).map(|p| {
        let late = Late { model, name: &p.name, ty: compiled.graph.ty(p.value), problem: &problem };
        (p.name.to_string(), late)
    });
    let written = safetensors::serialize_to_file(weights, None, path);
    if let Some(e) = problem.into_inner() {
        return Err(e.into());
    }
    written.map_err(|e| ProgramError::unusable(path, format!("cannot be written: {e}")))
}
