//! Intwain cuts a Keras model in two.
//!
//! A model file becomes a graph ([`model`]); a planner decides what each of two devices holds and computes ([`build`]
//! plans and compiles, [`report`] shows what was decided and why); the graph becomes one program per device
//! ([`driver`]), whose operations are fused kernels; a [`session`] runs them. [`program`] keeps compiled models as
//! directories, and [`verify`] proves split programs equal to the whole.
//!
//! ```no_run
//! use intwain::build::{self, Request};
//! use intwain::{Catalogue, Model, ModelOptions, Strategy, Timings};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("model.keras".as_ref(), ModelOptions::default())?;
//! let request = Request::new(Catalogue::built_in().get("2xh100-nvlink")?, 64);
//! let mut timings = Timings::default();
//! println!("{}", build::plan(&model, &request, &mut timings)?);
//! println!("{}", build::inspect(&model, &request.split(Strategy::Tensor), &mut timings)?);
//! # Ok(())
//! # }
//! ```
//!
//! `examples/embed.rs` also runs a model and writes a program directory.

pub mod arrays;
pub mod build;
pub mod cli;
pub mod cuda;
pub mod driver;
pub mod export;
pub mod frontend;
mod kernels;
mod lookups;
pub mod model;
pub mod program;
pub mod report;
pub mod runtime;
pub mod session;
pub mod train;
pub mod verify;

pub use driver::{CompileError, Compiled};
pub use intwain_codegen::schedule::gpu::Precision;
pub use intwain_ir::{DType, Shape, Tensor, Type};
pub use intwain_passes::Timings;
pub use intwain_passes::buckets::Buckets;
pub use intwain_passes::hardware::{Catalogue, Hardware, HardwareError};
pub use intwain_passes::place::{Sharding, StateSharding, Strategy};
pub use model::{Matching, Model, ModelError, ModelOptions};
pub use program::{ProgramDir, ProgramError, ProgramSession};
pub use runtime::{DeviceKind, Devices, Effects, HostOptions};
pub use session::{Fallback, RunError, Session, SessionOptions, TrainingCall};
