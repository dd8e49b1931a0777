//! Writes a program directory beside its place, then renames it, so that no partial one is ever seen.

use super::manifest::{self, Machine, Manifest, VariantManifest};
use super::{COMPILER, FORMAT, ProgramError};
use crate::driver::Compiled;
use crate::model::{Model, ModelError};
use crate::report;
use intwain_ir::{DType, ParamKind, Tensor, Type};
use intwain_passes::hardware::{DeviceKind, Hardware};
use intwain_passes::place::Strategy;
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
    hardware: &Hardware,
    variants: &[Compiled],
    asked: Option<Strategy>,
) -> Result<Manifest, ProgramError> {
    compiles_for(dir, hardware)?;
    let partial = beside(dir, "partial")?;
    let result = fill(&partial, model, hardware, variants, asked).and_then(|m| {
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
    if let Some(gpu) = hardware.devices.iter().find(|d| d.kind == DeviceKind::Gpu) {
        let problem = format!(
            "a program for `{}` ({}) needs PTX, which this version does not write; --hardware cpu compiles for the CPU, \
             and plan and inspect take any machine",
            hardware.name, gpu.name
        );
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

fn fill(
    dir: &Path,
    model: &Model,
    hardware: &Hardware,
    variants: &[Compiled],
    asked: Option<Strategy>,
) -> Result<Manifest, ProgramError> {
    std::fs::create_dir(dir).map_err(ProgramError::io(dir))?;
    let mut files = BTreeMap::new();
    let mut listed = Vec::new();
    let mut plan = String::new();
    for (i, compiled) in variants.iter().enumerate() {
        let report = report::placement(compiled, hardware, asked);
        let suffix = match (i, report.batch) {
            (0, _) | (_, None) => String::new(),
            (_, Some(rows)) => format!(".rows{rows}"),
        };
        let mut text = |name: String, text: String| -> Result<String, ProgramError> {
            let path = dir.join(&name);
            std::fs::write(&path, &text).map_err(ProgramError::io(&path))?;
            files.insert(name.clone(), manifest::sha256(text.as_bytes()));
            Ok(name)
        };
        let whole = text(format!("whole{suffix}.ir"), format!("{}\n", compiled.explicit))?;
        let graphs = compiled.locals.iter().enumerate();
        let graphs: Vec<String> =
            graphs.map(|(k, g)| text(format!("graph{k}{suffix}.ir"), format!("{g}\n"))).collect::<Result<_, _>>()?;
        let (params, outputs, devices) = manifest::describe(compiled.loadable(), &targets(hardware));
        plan.push_str(&format!("{}{report}\n", if i > 0 { "\n" } else { "" }));
        let placement = serde_json::to_value(&report).expect("a report has string keys and no failing parts");
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
    let path = dir.join("plan.txt");
    std::fs::write(&path, &plan).map_err(ProgramError::io(&path))?;
    files.insert("plan.txt".to_string(), manifest::sha256(plan.as_bytes()));
    let weights = "weights.safetensors".to_string();
    if let Some(first) = variants.first() {
        let file = dir.join(&weights);
        write_weights(&file, model, first)?;
        // The library makes files that only their owner reads.
        let like = std::fs::metadata(&path).map_err(ProgramError::io(&path))?.permissions();
        std::fs::set_permissions(&file, like).map_err(ProgramError::io(&file))?;
    }
    let manifest = Manifest {
        format: FORMAT,
        compiler: COMPILER.to_string(),
        model: model.name().to_string(),
        architecture: variants.first().map_or(String::new(), |v| super::read::architecture(&v.explicit)),
        hardware: Machine { name: hardware.name.clone(), hash: hardware.hash() },
        files,
        weights,
        variants: listed,
    };
    let text = serde_json::to_string_pretty(&manifest).expect("a manifest has string keys and no failing parts");
    let path = dir.join("program.json");
    std::fs::write(&path, text + "\n").map_err(ProgramError::io(&path))?;
    Ok(manifest)
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
        dtype(self.ty.dtype)
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

fn dtype(ty: DType) -> Dtype {
    match ty {
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

fn write_weights(path: &Path, model: &Model, compiled: &Compiled) -> Result<(), ProgramError> {
    let problem = RefCell::new(None);
    let params = &compiled.graph.params;
    let weights = params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. })).map(|p| {
        let late = Late { model, name: &p.name, ty: compiled.graph.ty(p.value), problem: &problem };
        (p.name.to_string(), late)
    });
    let written = safetensors::serialize_to_file(weights, None, path);
    if let Some(e) = problem.into_inner() {
        return Err(e.into());
    }
    written.map_err(|e| ProgramError::unusable(path, format!("cannot be written: {e}")))
}
