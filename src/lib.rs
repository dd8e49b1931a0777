//! Intwain.
