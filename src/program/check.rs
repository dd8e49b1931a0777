//! Holds the files of a program directory against each other: graphs against the whole, commands, launches and code
//! against what the graphs give.

use super::manifest::{self, Manifest, VariantManifest};
use super::read::{ProgramVariant, plain};
use super::write::targets;
use super::{COMPILER, ProgramError};
use crate::driver;
use crate::kernels::gpu::GpuCode;
use crate::runtime::DeviceKind;
use intwain_codegen::schedule::gpu::{Gpu, Precision};
use intwain_ir::ops::Op;
use intwain_ir::{Graph, Rewriter, Stage, text, verify};
use intwain_passes::Timings;
use intwain_passes::check;
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Catalogue;
use intwain_passes::program::DeviceProgram;
use std::collections::BTreeMap;
use std::path::Path;

/// The program for a number of rows, from its graphs.
pub(super) fn variant(
    dir: &Path,
    manifest: &Manifest,
    texts: &BTreeMap<&str, String>,
    v: &VariantManifest,
) -> Result<ProgramVariant, ProgramError> {
    let explicit = graph(dir, texts, &v.whole)?;
    let locals: Vec<Graph> = v.graphs.iter().map(|name| graph(dir, texts, name)).collect::<Result<_, _>>()?;
    let path = dir.join("program.json");
    let unusable = |problem: String| Err(ProgramError::unusable(&path, problem));
    let devices = explicit.devices;
    let wrong = locals.iter().enumerate().any(|(k, g)| g.stage != Stage::Local || g.device != k);
    if explicit.stage != Stage::Explicit || locals.len() != devices || wrong || !(1..=2).contains(&devices) {
        return unusable(format!("its graphs are not those of one program on {} devices", locals.len()));
    }
    let Some(whole) = undivided(&explicit) else { return unusable(format!("{} cannot be read", v.whole)) };
    if v.rows == manifest.variants[0].rows && architecture(&explicit) != manifest.architecture {
        return unusable(format!("{} has another architecture than the program was made for", v.whole));
    }
    let interface = Interface::of(&explicit);
    if let Some(fault) = check::placement::check(&whole, &interface, &locals).first()
        && !follow(&explicit, &whole, &interface, &locals)
    {
        return unusable(format!("the devices' graphs do not compute the whole one: {fault}"));
    }
    let target = match manifest.modules.is_empty() {
        true => crate::kernels::target_of(DeviceKind::Cpu, Precision::F32),
        false => crate::kernels::target_of(DeviceKind::Ptx, precision(&path, manifest)?),
    };
    let (_, programs) = driver::programs(&locals, &*target, &mut Timings::default());
    if let Some(fault) = check::program::check(&programs).first() {
        return unusable(format!("its programs cannot be run: {fault}"));
    }
    let (params, outputs) = driver::ports(&explicit);
    Ok(ProgramVariant { rows: v.rows, whole, interface, locals, programs, params, outputs, on_gpus: None })
}

/// Whether devices' graphs are what follows from the whole graph by a division that computes it. Where devices add up parts
/// of trees of sums, that is what can be known.
fn follow(explicit: &Graph, whole: &Graph, interface: &Interface, locals: &[Graph]) -> bool {
    let Ok((raw, follows)) = driver::divided(explicit, &mut Timings::default()) else { return false };
    let same = |(a, b): (&Graph, &Graph)| a.to_string() == b.to_string();
    check::placement::check(whole, interface, &raw).is_empty()
        && follows.len() == locals.len()
        && follows.iter().zip(locals).all(same)
}

pub(super) fn precision(file: &Path, manifest: &Manifest) -> Result<Precision, ProgramError> {
    let name = &manifest.precision;
    let known = Precision::ALL.into_iter().find(|p| p.name() == name);
    known.ok_or_else(|| ProgramError::unusable(file, format!("has precision `{name}`, which is none")))
}

/// The code of GPUs for each variant: the directory's PTX, and the launches that the graphs give. Nothing for CPUs.
pub(super) fn modules(
    dir: &Path,
    manifest: &Manifest,
    texts: &BTreeMap<&str, String>,
    variants: &[ProgramVariant],
) -> Result<Vec<Vec<GpuCode>>, ProgramError> {
    if manifest.modules.is_empty() {
        return Ok(Vec::new());
    }
    let path = dir.join("program.json");
    let gpu = Gpu { precision: precision(&path, manifest)? };
    let programs: Vec<&[DeviceProgram]> = variants.iter().map(|v| &v.programs[..]).collect();
    let mut made = crate::kernels::gpu::compile_variants(&gpu, &programs)?;
    let devices = made.iter().map(Vec::len).max().unwrap_or(0);
    if manifest.modules.len() != devices {
        let problem = format!("lists {} PTX files for {devices} devices", manifest.modules.len());
        return Err(ProgramError::unusable(&path, problem));
    }
    for (d, module) in manifest.modules.iter().enumerate() {
        let file = dir.join(plain(dir, &module.file)?);
        let Some(text) = texts.get(module.file.as_str()) else {
            return Err(ProgramError::unusable(&file, "is not among the files of program.json"));
        };
        for code in made.iter_mut().filter_map(|v| v.get_mut(d)) {
            if manifest.compiler == COMPILER && (*code.text != **text || code.kernels[..] != module.kernels[..]) {
                let problem = "is not the code that the program's graphs give; compile again";
                return Err(ProgramError::unusable(&file, problem));
            }
            code.text = text.as_str().into();
        }
    }
    Ok(made)
}

/// Holds the manifest against what the graphs give. Another version of the compiler may fuse or place otherwise: the
/// graphs say what counts, and code that does not fit them is not run.
pub(super) fn agree(
    file: &Path,
    manifest: &Manifest,
    v: &mut ProgramVariant,
    stored: &VariantManifest,
) -> Result<(), ProgramError> {
    let machine = Catalogue::built_in().get(&manifest.hardware.name);
    let named = stored.devices.iter().map(|d| d.target.clone()).collect();
    let code = v.on_gpus.as_ref().and_then(|g| g.code.as_deref().ok());
    let described = manifest::describe(v.compiled(&v.programs, code), &machine.map_or(named, |m| targets(&m)));
    if described == (stored.params.clone(), stored.outputs.clone(), stored.devices.clone()) {
        return Ok(());
    }
    if manifest.compiler == COMPILER {
        return Err(ProgramError::unusable(file, "its commands are not those of its graphs; compile again"));
    }
    if let Some(gpus) = &mut v.on_gpus {
        let by = &manifest.compiler;
        gpus.code = Err(format!("was made by intwain {by}, whose code {COMPILER} does not launch; compile again"));
    }
    Ok(())
}

fn graph(dir: &Path, texts: &BTreeMap<&str, String>, name: &str) -> Result<Graph, ProgramError> {
    let file = dir.join(plain(dir, name)?);
    let Some(text) = texts.get(name) else {
        return Err(ProgramError::unusable(&file, "is not among the files of program.json"));
    };
    let graph = text::parse(text).map_err(|e| ProgramError::unusable(&file, e.to_string()))?;
    match verify(&graph) {
        Ok(()) => Ok(graph),
        Err(problems) => {
            let first = problems.first().map_or(String::new(), ToString::to_string);
            Err(ProgramError::unusable(&file, format!("{} rule(s) are broken, first: {first}", problems.len())))
        }
    }
}

/// The graph without layouts and changes of layout.
fn undivided(explicit: &Graph) -> Option<Graph> {
    let mut rw = Rewriter::new(explicit);
    for (id, node) in &explicit.nodes {
        match &node.op {
            Op::Reshard(_) => {
                for (arg, result) in node.args.iter().zip(&node.results) {
                    let same = rw.value(*arg);
                    rw.set(*result, same);
                }
            }
            _ => rw.copy(id).ok()?,
        }
    }
    let mut whole = rw.finish();
    (whole.stage, whole.devices) = (Stage::Imported, 1);
    for value in whole.values.values_mut() {
        value.layout = None;
    }
    Some(whole)
}

/// The hash of a graph without what planning adds.
pub(super) fn architecture(explicit: &Graph) -> String {
    undivided(explicit).map_or(String::new(), |g| manifest::sha256(g.to_string().as_bytes()))
}
