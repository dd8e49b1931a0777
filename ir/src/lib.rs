//! The representations of Intwain.

pub mod kernel;
pub mod scalar;
mod ty;

pub use scalar::Scalar;
pub use ty::{DType, Shape, Type};
