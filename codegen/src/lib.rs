//! Code generation of Intwain.
