//! The representations of Intwain.
