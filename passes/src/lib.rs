//! The passes of Intwain.

pub mod hardware;
