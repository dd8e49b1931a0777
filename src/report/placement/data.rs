//! The facts of a placement.

use super::super::TrainingReport;
use super::super::plan::CandidateReport;
use serde::Serialize;

/// The placement of a model on a machine.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// Version of this form.
    pub version: u32,
    /// The model.
    pub model: String,
    /// The machine.
    pub hardware: String,
    /// Hash of every fact of the machine.
    pub hardware_hash: String,
    /// Rows of a call; `None` where the model has no row axis.
    pub batch: Option<usize>,
    /// The strategy.
    pub strategy: &'static str,
    /// Micro-batches of a pipeline, else 1.
    pub micro_batches: usize,
    /// Predicted seconds per step.
    pub seconds: f64,
    /// Whether the assignment is proved to be the cheapest of its strategy.
    pub optimal: bool,
    /// Every device.
    pub devices: Vec<DeviceReport>,
    /// Every layer that computes something or has weights, in order of execution.
    pub layers: Vec<LayerReport>,
    /// Sums.
    pub totals: Totals,
    /// Every communication of a step.
    pub communications: Vec<CommunicationReport>,
    /// Every strategy that was considered.
    pub candidates: Vec<CandidateReport>,
    /// Where it is a step of training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingReport>,
}

/// What one device holds and does.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its number.
    pub device: usize,
    /// Its name in the catalogue.
    pub name: String,
    /// Rows of a call that it gets; `None` where the model has no row axis.
    pub rows: Option<usize>,
    /// Scalar operations per step.
    pub flops: u64,
    /// The same over the whole model's.
    pub flops_share: f64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// The same over the whole model's.
    pub weight_share: f64,
    /// Bytes kept from call to call: weights and what is made of them.
    pub persistent_bytes: u64,
    /// Bytes reused within a call.
    pub arena_bytes: u64,
    /// Bytes at once: both together.
    pub peak_bytes: u64,
    /// Commands per step.
    pub commands: usize,
    /// Kernels.
    pub kernels: Vec<KernelReport>,
}

/// A kernel of a device.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// The layer that uses it first.
    pub name: String,
    /// Types of the operands.
    pub operands: Vec<String>,
    /// Types of the results.
    pub results: Vec<String>,
    /// How often it runs in a step.
    pub launches: usize,
}

/// Communications and their bytes, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// How many.
    pub count: usize,
    /// Bytes over the link.
    pub bytes: u64,
}

impl Traffic {
    pub(super) fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// What a layer is and where.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LayerReport {
    /// The layer's path.
    pub name: String,
    /// The devices that compute a part of it.
    pub devices: Vec<usize>,
    /// The type of its result; of the last where there are several.
    pub result: Option<String>,
    /// The layout of that result.
    pub layout: Option<String>,
    /// Scalar operations per step of the whole layer.
    pub flops: u64,
    /// Scalar operations per step of each device.
    pub device_flops: Vec<u64>,
    /// Bytes of its weights.
    pub parameter_bytes: u64,
    /// Bytes of its weights on each device.
    pub device_parameter_bytes: Vec<u64>,
    /// Bytes of what it gives to other layers.
    pub activation_bytes: u64,
    /// The same on each device.
    pub device_activation_bytes: Vec<u64>,
    /// What is exchanged so that it can read its operands.
    pub communication_in: Traffic,
    /// What is exchanged so that others can read its results.
    pub communication_out: Traffic,
}

/// Sums over the layers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Scalar operations per step of the whole model.
    pub flops: u64,
    /// Scalar operations per step of each device.
    pub device_flops: Vec<u64>,
    /// Share of the operations that only one device does.
    pub split_flops: f64,
    /// Bytes of the model's weights.
    pub weight_bytes: u64,
    /// Bytes of weights on each device.
    pub device_weight_bytes: Vec<u64>,
    /// Share of the weights that only one device holds.
    pub split_weight_bytes: f64,
    /// Communications per step.
    pub communications: usize,
    /// Bytes over the link per step, both directions.
    pub communication_bytes: u64,
    /// Bytes at once on each device.
    pub peak_bytes: Vec<u64>,
}

/// A change of layout for which devices exchange something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicationReport {
    /// Its number.
    pub channel: usize,
    /// `send`, `all_gather`, `all_reduce`, `reduce_scatter` or `all_to_all`.
    pub kind: &'static str,
    /// The layer whose result it is; the parameter's name for a parameter.
    pub from: String,
    /// Whether it is a parameter's value.
    pub of_parameter: bool,
    /// The layer that reads it first.
    pub to: String,
    /// The type of the whole value.
    pub value: String,
    /// The layout before.
    pub before: String,
    /// The layout after.
    pub after: String,
    /// Bytes over the link, both directions.
    pub bytes: u64,
}
