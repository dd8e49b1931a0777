//! Packed CPU micro-kernels for matrix products and convolutions.

mod descriptor;
mod error;
mod image;
mod isa;
mod kernel;
mod pack;
mod plan;
mod run;
mod view;

pub use descriptor::{Contraction, Element, Operand, Output, RightForm, Start, Window};
pub use error::{Array, Error};
pub use isa::Isa;
pub use plan::{ALIGNMENT, Epilogue, EpilogueFn, Plan};
