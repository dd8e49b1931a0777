//! What a plan and a program look like to people and scripts: data with a text form ([`std::fmt::Display`]) and a JSON
//! form ([`serde::Serialize`]) that say the same.
//!
//! [`LayersReport`] lists what a model consists of, [`PlanReport`] compares strategies, [`PlacementReport`] says what is where, [`WhyReport`] why a layer is where it is,
//! [`MachineReport`] what a machine is taken to be. Field names of the JSON forms are stable within a
//! [`REPORT_VERSION`].

mod exchanges;
mod layers;
mod machine;
mod placement;
mod plan;
mod text;
mod training;
mod why;

pub use exchanges::{ExchangesReport, MessageReport, exchanges};
pub use layers::{LayerRow, LayersReport, OptimizerRow, layers};
pub use machine::{DeviceFigures, FigureReport, LinkFigures, MachineReport};
pub use placement::{
    CommunicationReport, DeviceReport, KernelReport, LayerReport, PlacementReport, Totals, Traffic, placement,
};
pub(crate) use plan::batch;
pub use plan::{BreakEven, CandidateReport, PlanReport, plan};
pub use training::{StateReport, TrainingMemory, TrainingReport, order, training};
pub use why::{Choice, RunnerUpReport, WhyError, WhyReport, why};

/// The version of the JSON forms.
pub const REPORT_VERSION: u32 = 1;
