//! The passes of Intwain.

pub mod hardware;
pub mod solve;
