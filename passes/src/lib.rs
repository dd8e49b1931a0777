//! The passes of Intwain.

pub mod check;
pub mod hardware;
pub mod memory;
pub mod solve;
