//! Opens program directories, and refuses those that are not what they say.

use super::check::{agree, modules, precision, variant};
use super::manifest::{self, Manifest};
use super::{COMPILER, FORMAT, ProgramError};
use crate::arrays::SafetensorsFile;
use crate::driver::{self, Loadable, Port};
use crate::kernels::gpu::GpuCode;
use crate::model::{Matching, Model, ModelOptions, to_tensor};
use crate::runtime::{DeviceKind, Devices};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::{DType, Graph, Tensor};
use intwain_passes::Timings;
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Catalogue;
use intwain_passes::program::DeviceProgram;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A program directory that was read and found to be what it says.
#[derive(Debug)]
pub struct ProgramDir {
    path: PathBuf,
    manifest: Manifest,
    placement: String,
    warnings: Vec<String>,
    variants: Vec<ProgramVariant>,
    weights: Weights,
}

/// Where the weights are.
#[derive(Debug)]
enum Weights {
    /// In the directory.
    Own(SafetensorsFile),
    /// In another file, read for the model of the directory.
    Given(Box<Model>),
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
    pub(super) on_gpus: Option<OnGpus>,
}

/// What GPUs run, for programs that were compiled for them.
#[derive(Debug)]
pub(super) struct OnGpus {
    /// Code with the text of the directory; why there is none.
    pub(super) code: Result<Vec<GpuCode>, String>,
    /// The programs of CPUs that take the GPUs' places.
    pub(super) on_cpus: Vec<DeviceProgram>,
}

impl ProgramVariant {
    /// What runs on devices of a kind; why nothing can.
    pub(crate) fn loadable(&self, kind: DeviceKind) -> Result<Loadable<'_>, String> {
        let (code, programs) = match (kind, &self.on_gpus) {
            (DeviceKind::Cpu, None) => (None, &self.programs),
            (DeviceKind::Cpu, Some(gpus)) => (None, &gpus.on_cpus),
            (DeviceKind::Ptx | DeviceKind::Cuda, Some(gpus)) => {
                (Some(&gpus.code.as_ref().map_err(String::clone)?[..]), &self.programs)
            }
            (DeviceKind::Ptx | DeviceKind::Cuda, None) => {
                let why = "was compiled for CPUs and has no PTX; compile it with --hardware and the name of GPUs";
                return Err(why.to_string());
            }
        };
        Ok(self.compiled(programs, code))
    }

    pub(super) fn compiled<'a>(&'a self, programs: &'a [DeviceProgram], code: Option<&'a [GpuCode]>) -> Loadable<'a> {
        Loadable { graph: &self.whole, params: &self.params, outputs: &self.outputs, programs, code }
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
        let mut texts = BTreeMap::new();
        for (name, hash) in &manifest.files {
            let text = member(path, name)?;
            if manifest::sha256(text.as_bytes()) != *hash {
                let problem = "is not the file that the program was written with (its hash differs); compile again";
                return Err(ProgramError::unusable(&path.join(name), problem));
            }
            texts.insert(name.as_str(), text);
        }
        if manifest.variants.is_empty() {
            return Err(ProgramError::unusable(&file, "lists no variants"));
        }
        let mut variants: Vec<ProgramVariant> =
            manifest.variants.iter().map(|v| variant(path, &manifest, &texts, v)).collect::<Result<_, _>>()?;
        let code = modules(path, &manifest, &texts, &variants)?;
        for (i, code) in code.into_iter().enumerate() {
            let target = crate::kernels::target();
            let (_, on_cpus) = driver::programs(&variants[i].locals, &target, &mut Timings::default());
            variants[i].on_gpus = Some(OnGpus { code: Ok(code), on_cpus });
        }
        for (v, stored) in variants.iter_mut().zip(&manifest.variants) {
            agree(&file, &manifest, v, stored)?;
        }
        for source in manifest.training.iter().flat_map(|t| std::iter::once(&t.model).chain(&t.weights)) {
            let file = path.join(plain(path, &source.file)?);
            let bytes = std::fs::read(&file).map_err(ProgramError::io(&file))?;
            if manifest::sha256(&bytes) != source.hash {
                let problem = "is not the file that the program was written with (its hash differs); compile again";
                return Err(ProgramError::unusable(&file, problem));
            }
        }
        let placement = texts.remove("plan.txt").unwrap_or_default();
        let weights = Weights::Own(SafetensorsFile::open(&path.join(plain(path, &manifest.weights)?))?);
        let dir = ProgramDir { path: path.to_path_buf(), manifest, placement, warnings, variants, weights };
        dir.check_weights()?;
        Ok(dir)
    }

    /// The same program with the weights of another file: any that can be read for the program's model.
    pub fn with_weights(self, file: &Path) -> Result<ProgramDir, ProgramError> {
        let import = &self.manifest.import;
        let options = ModelOptions {
            weights: Some(file.to_path_buf()),
            shapes: import.shapes.clone(),
            float: self.float()?,
            ..ModelOptions::default()
        };
        let model = Model::open(&self.path.join(plain(&self.path, &import.model)?), options)?;
        let dir = ProgramDir { weights: Weights::Given(Box::new(model)), ..self };
        dir.check_weights()?;
        Ok(dir)
    }

    /// The model that a program of training starts from, with the weights of `weights` in place of its own.
    ///
    /// # Errors
    /// A program of calls, or files that cannot be read.
    pub fn trained_model(&self, weights: Option<&Path>) -> Result<Model, ProgramError> {
        let Some(training) = &self.manifest.training else {
            let problem = "is a program of calls, not of a step of training; compile the model with --train";
            return Err(ProgramError::unusable(&self.path, problem));
        };
        let own = training.weights.as_ref().map(|w| self.path.join(&w.file));
        let by_name = training.by_name && weights.is_none();
        let options = ModelOptions {
            weights: weights.map(Path::to_path_buf).or(own),
            matching: if by_name { Matching::LayerNames } else { Matching::File },
            seed: training.seed,
            shapes: self.manifest.import.shapes.clone(),
            float: self.float()?,
        };
        Ok(Model::open(&self.path.join(&training.model.file), options)?)
    }

    /// The floating type in place of the model's.
    fn float(&self) -> Result<Option<DType>, ProgramError> {
        let dtype = self.manifest.import.dtype.as_deref().map(|name| {
            let unknown = || ProgramError::unusable(&self.path, format!("`{name}` is no type of elements"));
            DType::from_name(name).ok_or_else(unknown)
        });
        dtype.transpose()
    }

    /// How GPUs round the factors of products.
    pub fn precision(&self) -> Result<Precision, ProgramError> {
        precision(&self.path.join("program.json"), &self.manifest)
    }

    /// Refuses what only a program of calls can do.
    pub(crate) fn refuse_training(&self) -> Result<(), ProgramError> {
        match self.manifest.training {
            None => Ok(()),
            Some(_) => Err(self.unusable("is a program of a step of training; `train` runs it")),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn unusable(&self, why: impl Into<String>) -> ProgramError {
        ProgramError::unusable(&self.path, why)
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

    /// How many devices the program was compiled for.
    pub fn devices(&self) -> usize {
        self.variants.iter().map(|v| v.programs.len()).max().unwrap_or(1)
    }

    /// Whether devices run the program: as many as it was compiled for, of a kind that it has code for.
    pub(crate) fn fits(&self, devices: &Devices) -> Result<(), ProgramError> {
        let (has, given) = (self.devices(), devices.count());
        if has != given {
            let problem = format!("is a program for {has} device(s), not for the {given} of {devices}");
            return Err(self.unusable(problem));
        }
        self.variants.iter().try_for_each(|v| match v.loadable(devices.kind()) {
            Ok(_) => Ok(()),
            Err(why) => Err(self.unusable(why)),
        })
    }

    /// CPU devices that run the program: as many as it was compiled for.
    pub fn cpus(&self) -> Devices {
        if self.devices() == 1 { Devices::one(DeviceKind::Cpu) } else { Devices::two(DeviceKind::Cpu) }
    }

    /// The best devices of this machine that run the program: GPUs if it was compiled for GPUs and as many are here.
    pub fn best_devices(&self) -> Devices {
        let found = Devices::found(self.devices());
        let fits = found.kind() == DeviceKind::Cuda && found.count() == self.devices();
        if fits && self.variants.iter().all(|v| v.on_gpus.is_some()) { found } else { self.cpus() }
    }

    /// The programs; the first is for full calls.
    pub fn variants(&self) -> &[ProgramVariant] {
        &self.variants
    }

    /// Reads a weight.
    pub fn weight(&self, name: &str) -> Result<Tensor, ProgramError> {
        match &self.weights {
            Weights::Own(file) => Ok(to_tensor(&file.read(name)?)),
            Weights::Given(model) => {
                let graph = &self.variants[0].whole;
                let read = model.weight(name)?;
                let param = graph.weights().find(|p| *p.name == *name);
                Ok(param.map_or_else(|| read.clone(), |p| read.cast(graph.ty(p.value).dtype)))
            }
        }
    }

    /// Reads rows of a weight along its first dimension into memory of their size; a scalar has one row.
    pub(super) fn weight_rows(&self, name: &str, rows: Range<usize>, to: &mut [u8]) -> Result<(), ProgramError> {
        let whole = match &self.weights {
            Weights::Own(file) => Cow::Borrowed(file.bytes(name)?),
            Weights::Given(_) => Cow::Owned(self.weight(name)?.data),
        };
        let row = to.len().checked_div(rows.len()).unwrap_or(0);
        to.copy_from_slice(&whole[rows.start * row..rows.end * row]);
        Ok(())
    }

    /// Names, types and shapes of the weights must be those of the graph.
    fn check_weights(&self) -> Result<(), ProgramError> {
        let graph = &self.variants[0].whole;
        let wanted = graph.weights();
        let file = match &self.weights {
            Weights::Own(file) => file,
            Weights::Given(model) => {
                let missing = wanted
                    .map(|p| (&*p.name, &graph.ty(p.value).shape))
                    .find(|(name, shape)| model.weight_shape(name).is_none_or(|has| has != &shape[..]));
                return match missing {
                    None => Ok(()),
                    Some((name, shape)) => {
                        let problem = format!("is not the program's model: it has no weight `{name}` of shape {shape}");
                        Err(ProgramError::unusable(model.path(), problem))
                    }
                };
            }
        };
        let unusable = |problem: String| Err(ProgramError::unusable(file.path(), problem));
        let mut known = Vec::new();
        for p in wanted {
            known.push(&*p.name);
            let want = graph.ty(p.value);
            match file.info(&p.name) {
                None => return unusable(format!("has no weight `{}`", p.name)),
                Some((dtype, shape)) if dtype != want.dtype || *shape != want.shape[..] => {
                    return unusable(format!("`{}` is {dtype}{shape:?}, the program takes {want}", p.name));
                }
                Some(_) => {}
            }
        }
        match file.names().find(|n| !known.contains(n)) {
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
    let text = text(file)?;
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
pub(super) fn plain<'n>(dir: &Path, name: &'n str) -> Result<&'n str, ProgramError> {
    let is_plain = Path::new(name).file_name().is_some_and(|f| f == name);
    if is_plain {
        Ok(name)
    } else {
        Err(ProgramError::unusable(dir, format!("`{name}` is not a name of a file in it")))
    }
}

fn member(dir: &Path, name: &str) -> Result<String, ProgramError> {
    text(&dir.join(plain(dir, name)?))
}

/// The text of a file, if it is not too long.
fn text(file: &Path) -> Result<String, ProgramError> {
    let size = std::fs::metadata(file).map_err(ProgramError::io(file))?.len();
    if size > MAX_TEXT {
        return Err(ProgramError::unusable(file, format!("has {size} bytes; at most {MAX_TEXT} are read")));
    }
    std::fs::read_to_string(file).map_err(ProgramError::io(file))
}
