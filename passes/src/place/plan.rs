//! What is asked of the planner, and its answer.

use super::relief::bytes_text;
use super::sharding::{Sharding, StateSharding};
use super::states::NodeStrategy;
use super::usage::Usage;
use crate::Numerics;
use crate::buckets::Buckets;
use crate::hardware::{Arithmetic, DeviceSpec};
use crate::solve::Proof;
use cranelift_entity::SecondaryMap;
use intwain_ir::shard::Layout;
use intwain_ir::{NodeId, Value};
use std::fmt;

/// A way of using the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// One device does everything.
    One,
    /// Devices take parts of the rows.
    Data,
    /// Devices take parts of channels, heads and vocabularies.
    Tensor,
    /// Whatever is cheapest, node by node.
    Mixed,
    /// Devices take segments of the model.
    Pipeline,
}

impl Strategy {
    /// Every strategy, simplest first; of equally fast ones the first is chosen.
    pub const ALL: [Strategy; 5] =
        [Strategy::One, Strategy::Data, Strategy::Tensor, Strategy::Mixed, Strategy::Pipeline];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::One => "one",
            Strategy::Data => "data",
            Strategy::Tensor => "tensor",
            Strategy::Mixed => "mixed",
            Strategy::Pipeline => "pipeline",
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is asked of the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// A named strategy; `None`: the fastest.
    pub strategy: Option<Strategy>,
    /// Rows per device in a data split; elsewhere their ratio.
    pub parts: Option<[usize; 2]>,
    /// Nodes that must have a certain strategy in the splits.
    pub pins: Vec<(NodeId, NodeStrategy)>,
    /// How f32 products are computed.
    pub f32_arithmetic: Arithmetic,
    /// Which candidates are priced when a strategy is named.
    pub survey: Survey,
    /// Whether results may depend on the split.
    pub numerics: Numerics,
    /// Which states the devices of a data split keep in parts.
    pub sharding: Sharding,
    /// How exchanges of a data split's gradients are joined.
    pub buckets: Buckets,
    /// Bytes of each device that a plan leaves free.
    pub reserve: [f64; 2],
}

impl Options {
    /// Bytes that a plan may use of a device.
    pub(super) fn memory(&self, device: usize, spec: &DeviceSpec) -> f64 {
        spec.memory.value - self.reserve[device]
    }
}

/// Which candidates are priced when a strategy is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survey {
    /// All: the plan says what the others would cost.
    All,
    /// All but the pipeline, which is planned elsewhere.
    Splits,
    /// Only the one that is asked for, and `one`.
    Asked,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            strategy: None,
            parts: None,
            pins: Vec::new(),
            f32_arithmetic: Arithmetic::F32,
            survey: Survey::All,
            numerics: Numerics::Free,
            sharding: Sharding::default(),
            buckets: Buckets::default(),
            reserve: [0.0; 2],
        }
    }
}

/// Who holds and computes what, and why.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The strategy.
    pub strategy: Strategy,
    /// Number of devices used.
    pub devices: usize,
    /// Number of micro-batches of a pipeline, else 1.
    pub micro_batches: usize,
    /// The layout of each parameter.
    pub params: Vec<Layout>,
    /// How each node is shared.
    pub nodes: SecondaryMap<NodeId, NodeStrategy>,
    /// The layout of each value as its definition leaves it.
    pub layouts: SecondaryMap<Value, Option<Layout>>,
    /// Predicted seconds per step.
    pub seconds: f64,
    /// Memory, traffic and work.
    pub usage: Usage,
    /// Whether the assignment is proved to be the cheapest of its kind.
    pub proof: Proof,
    /// Which states are kept in parts.
    pub sharding: StateSharding,
    /// In a data split, most bytes of gradients that are exchanged in one message; `None`: each is a message of its own.
    pub bucket_bytes: Option<usize>,
    /// Every strategy that was priced with its costs and verdict, in the order of [`Strategy::ALL`].
    pub candidates: Vec<Candidate>,
}

/// A strategy that was considered.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The strategy.
    pub strategy: Strategy,
    /// Predicted seconds per step, where it is possible.
    pub seconds: Option<f64>,
    /// What it needs, where it is possible.
    pub usage: Option<Usage>,
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// What became of it.
    pub verdict: Verdict,
}

/// Why a candidate was chosen or not.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// It is the plan.
    Chosen,
    /// It fits and is not faster than the chosen one by [`MARGIN`], or was not asked for.
    Rejected,
    /// It needs more memory than a device has.
    TooLarge {
        /// The device.
        device: usize,
        /// Bytes needed.
        bytes: f64,
        /// Bytes there are.
        memory: f64,
    },
    /// The model or the request does not allow it.
    NotOffered(String),
}

/// The verdict as a sentence.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Chosen => f.write_str("chosen"),
            Verdict::Rejected => f.write_str("rejected"),
            Verdict::TooLarge { device, bytes, memory } => {
                let (needs, has) = (bytes_text(*bytes), bytes_text(*memory));
                write!(f, "does not fit: device {device} needs {needs} and has {has}")
            }
            Verdict::NotOffered(reason) => write!(f, "not possible: {reason}"),
        }
    }
}

/// A strategy is preferred to simpler ones only if it is faster by this share: predictions are not better than that.
pub const MARGIN: f64 = 0.01;

/// A step of training becomes a pipeline by itself only if that is predicted to be faster by this share: what is predicted is the turns' work
/// and what crosses the link, without the waits between turns and what every micro-batch costs anew.
pub const PIPELINE_MARGIN: f64 = 0.25;

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlaceError {
    /// The named strategy cannot split this model.
    #[error(
        "the model cannot be split by `{strategy}`: {reason}; use another split, or --allow-one to run on one device"
    )]
    CannotSplit {
        /// The strategy.
        strategy: Strategy,
        /// Why not.
        reason: String,
    },
    /// States are to be kept in parts by devices that do not share rows.
    #[error(
        "states can be kept in parts ({states}, --zero {}) where devices share the rows and nothing else: {}, use --split data",
        states.stage(),
        asked.map_or("no split is named".to_owned(), |s| format!("the split is `{s}`"))
    )]
    Sharding {
        /// Which states.
        states: StateSharding,
        /// The strategy that was named.
        asked: Option<Strategy>,
    },
    /// Nothing fits.
    #[error("no plan fits into memory: {}", .0.join("; "))]
    DoesNotFit(Vec<String>),
}

/// The second best choice for a node.
#[derive(Clone, Debug, PartialEq)]
pub struct RunnerUp {
    /// The choice.
    pub strategy: NodeStrategy,
    /// The layouts of the node's results under it.
    pub results: Vec<Layout>,
    /// Predicted seconds per step of the best plan with it.
    pub seconds: f64,
    /// Whether the plan's strategy allows it.
    pub permission: Permission,
}

/// Whether a strategy allows a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Permission {
    /// It does; the choice was rejected for its cost.
    Allowed,
    /// It does not, whatever the cost: a pin overrides that.
    Forbidden,
}
