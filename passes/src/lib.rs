//! The passes of Intwain.
