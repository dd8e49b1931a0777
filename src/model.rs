//! A model: architecture and weights.

use crate::arrays::{Array, ArrayError};
use crate::frontend::{
    self, ByName, Format, Generation, ImportError, ImportErrorKind, ImportErrors, ImportOptions, Imported, InputSpec,
    Json, KerasModel, LayerBody, ModelFile, OptimizerState, Penalties, Phase, ResultShapes, TrainingPhase, VarTree,
    Weights,
};
use intwain_ir::{DType, Graph, Shape, Tensor, Type};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// How the layers of a weight file find the model's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// As the file says: by position, order or path; all must be there.
    #[default]
    File,
    /// By name, of the `.h5` files of Keras 2. Layers that the file does not have are initialised.
    LayerNames,
}

/// How to read a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOptions {
    /// A weight file in place of the model's own weights.
    pub weights: Option<PathBuf>,
    /// How its layers find the model's.
    pub matching: Matching,
    /// Seed for weights that are initialised because there are none.
    pub seed: u64,
    /// Extents of inputs (without the batch) that the file leaves open, by input name.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The floating type in place of the file's.
    pub float: Option<DType>,
}

impl ModelOptions {
    fn ask(&self, batch: usize) -> ImportOptions {
        ImportOptions { batch, shapes: self.shapes.clone(), float: self.float, ..ImportOptions::default() }
    }
}

/// Why a model could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The file holds a model that cannot be imported.
    #[error(transparent)]
    Import(#[from] ImportErrors),
    /// An array cannot be read.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// A weight that the model does not have.
    #[error("the model has no weight `{0}`")]
    NoWeight(String),
}

/// A Keras model, read from a file. Weights stay in their file until a device needs them.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    keras: KerasModel,
    /// The architecture as JSON.
    architecture: String,
    options: ModelOptions,
    weights: Weights,
    by_name: Option<ByName>,
    generation: Generation,
    format: Format,
    /// Optimizer, loss and metrics of the file.
    training: Option<Json>,
}

/// Where a model's weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightOrigin {
    /// A file.
    File,
    /// The model's initializers and a seed.
    Initialised,
}

impl Model {
    /// Reads a model file, and its weights if there are any.
    pub fn open(path: &Path, options: ModelOptions) -> Result<Model, ModelError> {
        match Model::read(frontend::open_model(path)?, path, options.clone()) {
            Err(ModelError::Import(errors)) if errors.problems.iter().any(misshapen) => {
                let file = frontend::open_model(path)?;
                let Some(architecture) = frontend::with_reset_after(&file.architecture, file.generation) else {
                    return Err(errors.into());
                };
                Model::read(ModelFile { architecture, ..file }, path, options).map_err(|_| errors.into())
            }
            result => result,
        }
    }

    fn read(file: ModelFile, path: &Path, options: ModelOptions) -> Result<Model, ModelError> {
        let (keras, mut problems) = KerasModel::read_leniently(&file)?;
        let architecture = frontend::architecture_text(&file);
        let source = match &options.weights {
            Some(weights) => Some(frontend::open_weights(weights)?),
            None if file.weights.is_none() && matches!(file.format, Format::Archive | Format::WholeH5) => {
                let why = "model.weights.h5 is missing; give the weights with --weights".into();
                return Err(ImportErrors::one(path, ImportErrorKind::Damaged { format: "Keras", why }).into());
            }
            None => file.weights,
        };
        let vars = match frontend::variables(&keras, path, &options.ask(1)) {
            Ok(vars) if problems.is_empty() => vars,
            Ok(_) => return Err(ImportErrors { file: path.to_path_buf(), problems }.into()),
            Err(found) => {
                problems.extend(found.problems);
                return Err(ImportErrors { file: path.to_path_buf(), problems }.into());
            }
        };
        let stored = options.weights.as_deref().unwrap_or(path).to_path_buf();
        let weights = match (source, options.matching) {
            (Some(source), Matching::LayerNames) => {
                Weights::by_name(&vars, source, options.seed).map(|(weights, report)| (weights, Some(report)))
            }
            (source, Matching::File | Matching::LayerNames) => {
                Weights::new(&vars, source, options.seed).map(|weights| (weights, None))
            }
        };
        let (weights, by_name) = weights.map_err(|problems| ImportErrors { file: stored, problems })?;
        let (generation, format, training) = (file.generation, file.format, file.compile_config);
        let path = path.to_path_buf();
        Ok(Model { path, keras, architecture, options, weights, by_name, generation, format, training })
    }

    /// What kind of file it was read from.
    pub fn format(&self) -> Format {
        self.format
    }

    /// What was loaded by name, where that was asked for.
    pub fn by_name(&self) -> Option<&ByName> {
        self.by_name.as_ref()
    }

    /// The model's variables and where their values come from.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The state that an optimizer left in the file of the weights.
    pub fn optimizer(&self) -> Result<Option<OptimizerState>, ModelError> {
        Ok(self.weights.optimizer(self.training.as_ref())?)
    }

    /// What the file says about training: optimizer, losses and metrics.
    pub fn compile_config(&self) -> Option<&Json> {
        self.training.as_ref()
    }

    /// The model's name in its file.
    pub fn name(&self) -> &str {
        &self.keras.name
    }

    /// The paths of all layers, in the order of the file.
    pub fn layers(&self) -> Vec<String> {
        fn visit(model: &KerasModel, paths: &mut Vec<String>) {
            for layer in &model.layers {
                paths.push(layer.path.clone());
                if let LayerBody::Model(inner) = &layer.body {
                    visit(inner, paths);
                }
            }
        }
        let mut paths = Vec::new();
        visit(&self.keras, &mut paths);
        paths
    }

    /// The generation of Keras that its file is of.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Optimizer, loss and metrics as the file has them: `compile_config` of Keras 3, `training_config` of Keras 2.
    pub fn training(&self) -> Option<&Json> {
        self.training.as_ref()
    }

    /// All variables, by the layers that hold them.
    pub fn variables(&self) -> Result<VarTree, ModelError> {
        Ok(frontend::variables(&self.keras, &self.path, &self.options.ask(1))?)
    }

    /// The architecture as JSON, from which [`Model::open`] reads the same model without its weights.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// How it was read.
    pub fn options(&self) -> &ModelOptions {
        &self.options
    }

    /// Gives extents (without the batch) to inputs that the file leaves open. Those given already stay.
    pub fn close(&mut self, shapes: BTreeMap<String, Vec<usize>>) {
        for (name, extents) in shapes {
            self.options.shapes.entry(name).or_insert(extents);
        }
    }

    /// Names of the inputs in order, and whether extents beside the batch are left open.
    pub fn open_inputs(&self) -> Vec<(&str, bool)> {
        let given = |name: &str| self.options.shapes.contains_key(name);
        let open = |spec: &InputSpec| spec.shape.iter().flatten().skip(1).any(Option::is_none);
        self.keras.input_specs().into_iter().map(|(name, spec)| (name, open(spec) && !given(name))).collect()
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the weights come from.
    pub fn weight_origin(&self) -> WeightOrigin {
        if self.weights.source().is_some() { WeightOrigin::File } else { WeightOrigin::Initialised }
    }

    /// The graph for calls of `rows` rows.
    pub fn graph(&self, rows: usize) -> Result<Graph, ModelError> {
        Ok(import(&self.keras, &self.path, &self.options, rows)?.graph)
    }

    /// The model in training mode, for calls of `rows` rows: what a step of training begins with.
    pub fn training_graph(&self, rows: usize, phase: &TrainingPhase) -> Result<Imported, ModelError> {
        self.imported(rows, Phase::Training(phase.clone()))
    }

    /// The model for calls of `rows` rows, with what losses need beside the outputs: masks and penalties.
    pub fn imported(&self, rows: usize, phase: Phase) -> Result<Imported, ModelError> {
        let options = ImportOptions { phase, penalties: Penalties::Always, ..self.options.ask(rows) };
        Ok(frontend::import(&self.keras, &self.path, &options)?)
    }

    /// The architecture.
    pub fn keras(&self) -> &KerasModel {
        &self.keras
    }

    /// The shapes of all layers' results, with extents that the file leaves open, and all variables.
    pub fn result_shapes(&self) -> Result<(ResultShapes, VarTree), ModelError> {
        let ask = self.options.ask(1);
        Ok(frontend::result_shapes(&self.keras, &self.path, &ask)?)
    }

    /// The extents of a weight, by its path.
    pub fn weight_shape(&self, path: &str) -> Option<&[usize]> {
        self.weights.specs().iter().find(|s| s.path == path).map(|s| &s.shape[..])
    }

    /// Reads or makes the rows of a weight along its first dimension into memory of their size; a scalar has one row.
    pub fn weight_rows(&self, path: &str, rows: Range<usize>, to: &mut [u8]) -> Result<(), ModelError> {
        let i = self.weights.specs().iter().position(|s| s.path == path);
        let i = i.ok_or_else(|| ModelError::NoWeight(path.into()))?;
        Ok(self.weights.read_into(i, rows, to)?)
    }

    /// The paths of the weights that training changes, in the order of the model.
    pub fn trainable_paths(&self) -> impl Iterator<Item = &str> {
        let specs = self.weights.specs().iter().enumerate();
        specs.filter(|(i, _)| self.weights.trainable(*i)).map(|(_, s)| s.path.as_str())
    }

    /// Reads or makes a weight by its path.
    pub fn weight(&self, path: &str) -> Result<Tensor, ModelError> {
        let i = self.weights.specs().iter().position(|s| s.path == path);
        let i = i.ok_or_else(|| ModelError::NoWeight(path.into()))?;
        Ok(to_tensor(&self.weights.read(i)?))
    }
}

/// A stored tensor of another shape than its variable.
fn misshapen(problem: &ImportError) -> bool {
    matches!(*problem.kind, ImportErrorKind::WeightShape { .. })
}

fn import(keras: &KerasModel, path: &Path, options: &ModelOptions, batch: usize) -> Result<Imported, ImportErrors> {
    frontend::import(keras, path, &options.ask(batch))
}

/// An array of a file as a tensor.
pub fn to_tensor(array: &Array) -> Tensor {
    let ty = Type::new(array.dtype(), Shape::from(array.shape()));
    Tensor::from_bytes(ty, array.bytes().to_vec()).expect("an array has as many bytes as its type")
}

/// A tensor as an array for a file.
pub fn to_array(tensor: &Tensor) -> Array {
    Array::from_bytes(tensor.ty.dtype, tensor.ty.shape.to_vec(), &tensor.data)
        .expect("a tensor has as many bytes as its type")
}
