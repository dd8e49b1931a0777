//! Opens program directories, and refuses those that are not what they say.

use super::manifest::{self, Manifest, VariantManifest};
use super::write::targets;
use super::{COMPILER, FORMAT, ProgramError};
use crate::arrays::SafetensorsFile;
use crate::driver::{self, Loadable, Port};
use crate::model::to_tensor;
use intwain_ir::ops::Op;
use intwain_ir::{Graph, ParamKind, Rewriter, Stage, Tensor, text, verify};
use intwain_passes::Timings;
use intwain_passes::check;
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Catalogue;
use intwain_passes::program::DeviceProgram;
use std::path::{Path, PathBuf};

/// A program directory that was read and found to be what it says.
#[derive(Debug)]
pub struct ProgramDir {
    path: PathBuf,
    manifest: Manifest,
    placement: String,
    warnings: Vec<String>,
    variants: Vec<ProgramVariant>,
    weights: SafetensorsFile,
}

/// The program for one number of rows.
#[derive(Debug)]
pub struct ProgramVariant {
    /// Rows of a call; `None` where the model has no row axis.
    pub rows: Option<usize>,
    /// The graph before it was divided.
    pub whole: Graph,
    /// How the host feeds parameters and reads outputs.
    pub interface: Interface,
    /// Each device's graph.
    pub locals: Vec<Graph>,
    /// Each device's program.
    pub programs: Vec<DeviceProgram>,
    pub(super) params: Vec<Port>,
    pub(super) outputs: Vec<Port>,
}

impl ProgramVariant {
    /// What runs.
    pub(crate) fn loadable(&self) -> Loadable<'_> {
        Loadable { graph: &self.whole, params: &self.params, outputs: &self.outputs, programs: &self.programs }
    }
}

/// Largest manifest or graph that is read.
const MAX_TEXT: u64 = 1 << 28;

impl ProgramDir {
    /// Reads a directory.
    pub fn open(path: &Path) -> Result<ProgramDir, ProgramError> {
        let file = path.join("program.json");
        if !file.is_file() {
            return Err(ProgramError::unusable(
                path,
                "is a directory without a program.json; `compile -o DIR` makes one",
            ));
        }
        let manifest = read_manifest(&file)?;
        let mut warnings = Vec::new();
        if manifest.compiler != COMPILER {
            let by = &manifest.compiler;
            warnings.push(format!("{}: made by intwain {by}, this is {COMPILER}", path.display()));
        }
        machine(&file, &manifest)?;
        let mut placement = String::new();
        for (name, hash) in &manifest.files {
            let text = member(path, name)?;
            if manifest::sha256(text.as_bytes()) != *hash {
                let problem = "is not the file that the program was written with (its hash differs); compile again";
                return Err(ProgramError::unusable(&path.join(name), problem));
            }
            if name == "plan.txt" {
                placement = text;
            }
        }
        if manifest.variants.is_empty() {
            return Err(ProgramError::unusable(&file, "lists no variants"));
        }
        let variants: Vec<ProgramVariant> =
            manifest.variants.iter().map(|v| variant(path, &manifest, v)).collect::<Result<_, _>>()?;
        let weights = SafetensorsFile::open(&path.join(plain(path, &manifest.weights)?))?;
        let dir = ProgramDir { path: path.to_path_buf(), manifest, placement, warnings, variants, weights };
        dir.check_weights()?;
        Ok(dir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The placement dump.
    pub fn placement(&self) -> &str {
        &self.placement
    }

    /// What the user should know and can go on without.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The programs; the first is for full calls.
    pub fn variants(&self) -> &[ProgramVariant] {
        &self.variants
    }

    /// Reads a weight.
    pub fn weight(&self, name: &str) -> Result<Tensor, ProgramError> {
        Ok(to_tensor(&self.weights.read(name)?))
    }

    /// Names, types and shapes of the weights must be those of the graph.
    fn check_weights(&self) -> Result<(), ProgramError> {
        let graph = &self.variants[0].whole;
        let unusable = |problem: String| Err(ProgramError::unusable(self.weights.path(), problem));
        let mut known = Vec::new();
        for p in graph.params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. })) {
            known.push(&*p.name);
            let want = graph.ty(p.value);
            match self.weights.info(&p.name) {
                None => return unusable(format!("has no weight `{}`", p.name)),
                Some((dtype, shape)) if dtype != want.dtype || *shape != want.shape[..] => {
                    return unusable(format!("`{}` is {dtype}{shape:?}, the program takes {want}", p.name));
                }
                Some(_) => {}
            }
        }
        match self.weights.names().find(|n| !known.contains(n)) {
            Some(name) => unusable(format!("has a weight `{name}`, which the program does not have")),
            None => Ok(()),
        }
    }
}

fn read_manifest(file: &Path) -> Result<Manifest, ProgramError> {
    /// The part that every format has.
    #[derive(serde::Deserialize)]
    struct Version {
        format: u32,
    }
    let text = read(file)?;
    let broken = |e: serde_json::Error| ProgramError::unusable(file, format!("is not a program's manifest: {e}"));
    let Version { format } = serde_json::from_str(&text).map_err(broken)?;
    if format != FORMAT {
        let problem = format!("has format {format}, this version reads format {FORMAT}; compile the model again");
        return Err(ProgramError::unusable(file, problem));
    }
    serde_json::from_str(&text).map_err(broken)
}

/// The machine must still be what the program was planned for.
fn machine(file: &Path, manifest: &Manifest) -> Result<(), ProgramError> {
    let known = Catalogue::built_in().get(&manifest.hardware.name);
    match known {
        Ok(machine) if machine.hash() == manifest.hardware.hash => Ok(()),
        // A machine from a file: nothing here says that it changed.
        Err(_) => Ok(()),
        Ok(machine) => {
            let problem = format!(
                "was planned for another `{}` than the catalogue has now (hash {} there, {} here); compile again",
                machine.name,
                short(&manifest.hardware.hash),
                short(&machine.hash())
            );
            Err(ProgramError::unusable(file, problem))
        }
    }
}

fn short(hash: &str) -> String {
    hash.chars().take(12).collect()
}

/// A file name without a path in it.
fn plain<'n>(dir: &Path, name: &'n str) -> Result<&'n str, ProgramError> {
    let is_plain = Path::new(name).file_name().is_some_and(|f| f == name);
    if is_plain {
        Ok(name)
    } else {
        Err(ProgramError::unusable(dir, format!("`{name}` is not a name of a file in it")))
    }
}

fn member(dir: &Path, name: &str) -> Result<String, ProgramError> {
    read(&dir.join(plain(dir, name)?))
}

fn read(file: &Path) -> Result<String, ProgramError> {
    let size = std::fs::metadata(file).map_err(ProgramError::io(file))?.len();
    if size > MAX_TEXT {
        return Err(ProgramError::unusable(file, format!("has {size} bytes; at most {MAX_TEXT} are read")));
    }
    std::fs::read_to_string(file).map_err(ProgramError::io(file))
}

fn variant(dir: &Path, manifest: &Manifest, v: &VariantManifest) -> Result<ProgramVariant, ProgramError> {
    let explicit = graph(dir, manifest, &v.whole)?;
    let locals: Vec<Graph> = v.graphs.iter().map(|name| graph(dir, manifest, name)).collect::<Result<_, _>>()?;
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
    if let Some(fault) = check::placement::check(&whole, &interface, &locals).first() {
        return unusable(format!("the devices' graphs do not compute the whole one: {fault}"));
    }
    let mut timings = Timings::default();
    let (_, programs) = driver::programs(&locals, &crate::kernels::target(), &mut timings);
    if let Some(fault) = check::program::check(&programs).first() {
        return unusable(format!("its programs cannot be run: {fault}"));
    }
    let (params, outputs) = driver::ports(&explicit);
    let found = ProgramVariant { rows: v.rows, whole, interface, locals, programs, params, outputs };
    // Another version may fuse or place otherwise: the graphs say what counts.
    if manifest.compiler == COMPILER {
        let machine = Catalogue::built_in().get(&manifest.hardware.name);
        let stored = v.devices.iter().map(|d| d.target.clone()).collect();
        let described = manifest::describe(found.loadable(), &machine.map_or(stored, |m| targets(&m)));
        if described != (v.params.clone(), v.outputs.clone(), v.devices.clone()) {
            return unusable("its commands are not those of its graphs; compile again".to_string());
        }
    }
    Ok(found)
}

fn graph(dir: &Path, manifest: &Manifest, name: &str) -> Result<Graph, ProgramError> {
    let file = dir.join(plain(dir, name)?);
    if !manifest.files.contains_key(name) {
        return Err(ProgramError::unusable(&file, "is not among the files of program.json"));
    }
    let graph = text::parse(&read(&file)?).map_err(|e| ProgramError::unusable(&file, e.to_string()))?;
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
                let same = rw.value(node.args[0]);
                rw.set(node.results[0], same);
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
