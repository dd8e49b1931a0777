//! The passes of Intwain.

pub mod check;
pub mod hardware;
pub mod listing;
pub mod memory;
pub mod simulate;
pub mod solve;
