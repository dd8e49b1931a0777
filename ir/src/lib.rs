//! The representation of Intwain: graphs of tensor operations, what each operation computes, and how values are divided
//! over devices.
//!
//! In reading order: [`Type`] and [`scalar`] say what elements are and what functions of them mean; [`compute`] says
//! what an operation computes, as data; [`ops`] are the operations, a file each; [`Graph`] holds them; [`shard`] says
//! how values are divided; [`messages`] says what communication moves; [`Stage`] says what holds when, and [`verify`]
//! checks it; [`interp`] runs graphs, on one device or several, and is what every back end is compared with; [`text`] is
//! the text form.
//!
//! This crate does no input or output and knows no device API. Only [`ops`] names operations.

pub mod attr;
mod build;
pub mod compute;
pub mod grad;
mod graph;
pub mod interp;
pub mod kernel;
pub mod messages;
pub mod ops;
mod rewrite;
pub mod scalar;
pub mod shard;
mod stage;
mod target;
mod tensor;
pub mod text;
mod ty;
mod verify;

pub use graph::{
    Def, Graph, Node, NodeId, Origin, Output, Param, ParamKind, Rows, Trainable, Turn, Value, ValueData, Way,
};
pub use rewrite::Rewriter;
pub use scalar::Scalar;
pub use shard::{Layout, ShardingRule};
pub use stage::Stage;
pub use target::Target;
pub use tensor::Tensor;
pub use ty::{DType, MAX_EXTENT, MAX_RANK, Shape, Type};
pub use verify::{Problem, verify};
