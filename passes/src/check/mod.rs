//! Checkers: each judges the result of a pass from its definition and shares no code with the pass.

pub mod deadlock;
pub(crate) mod joined;
pub mod memory;
pub mod placement;
pub mod program;

pub use joined::JoinFault;
