//! Keras files: from a model file to a wired tree of layers, and from a weight file to every layer's variables.
//!
//! [`open_model`] tells formats apart and reads the architecture; [`KerasModel::read`] turns it into layers and calls with
//! every reference resolved; [`assign`] says which stored tensor each variable takes. Weights stay in their file until one
//! is [read](WeightSource::read). All problems of a file are collected and reported together.
//!
//! Nothing here runs code from a file, and no size a file declares is trusted before it is compared with the bytes there.

mod constraint;
mod cursor;
mod error;
mod file;
mod forms;
mod gru;
mod hdf5;
mod init;
mod json;
mod keras1;
mod layers;
mod model;
mod named;
mod names;
mod objects;
mod optimizer;
mod random;
mod regularizer;
mod source;
mod tfjs;
mod weights;
mod wiring;

pub use constraint::{Axes, Constraint};
pub use cursor::{At, Fields};
pub use error::{ImportError, ImportErrorKind, ImportErrors, JsonPath, Refusal};
pub use file::{Format, Generation, ModelFile, architecture_text, open_model, open_model_bytes, open_weights};
pub use forms::{Form, Recipe};
pub(crate) use gru::with_reset_after;
#[cfg(test)]
pub(crate) use hdf5::H5;
pub use init::{Distribution, Fans, Initializer, Mode};
pub use json::Json;
pub use layers::{
    ClassKind, Extent, ImportOptions, Imported, KnownClass, Penalties, Penalty, Phase, ResultShapes, STEP, Statistics,
    TrainingPhase, import, known_classes, result_shapes, variables,
};
pub use model::{Arg, Call, InputSpec, KerasModel, Layer, LayerBody, ModelKind, Nest, Source};
pub use optimizer::{OptimizerSlot, OptimizerState, SlotRole};
pub(crate) use random::Philox;
pub use regularizer::{Lines, Regularizer};
pub use source::{Naming, WeightSource};
pub use weights::{ByName, Channels, Origin, Slot, VarSpec, VarTree, Weights, assign};
pub(crate) use weights::{Positions, topology};
