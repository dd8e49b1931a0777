//! Code generation of Intwain.
//!
//! [`clif`] turns CPU kernels into machine code.

pub mod clif;
