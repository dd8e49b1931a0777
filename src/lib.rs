//! Intwain cuts a Keras model in two.
//!
//! A model file becomes a graph ([`model`]); a planner decides what each of two devices holds and computes; the graph
//! becomes one program per device ([`driver`]), whose operations are fused kernels; a [`session`] runs them.

pub mod arrays;
pub mod cli;
pub mod driver;
pub mod frontend;
mod kernels;
pub mod model;
pub mod program;
pub mod report;
pub mod runtime;
pub mod session;
pub mod verify;

pub use driver::{CompileError, Compiled};
pub use model::{Model, ModelError, ModelOptions};
pub use session::{Fallback, RunError, Session, SessionOptions};
