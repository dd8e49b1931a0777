//! The passes of Intwain.

pub mod check;
pub mod cost;
pub mod hardware;
pub mod listing;
pub mod memory;
pub mod place;
pub mod simulate;
pub mod solve;
