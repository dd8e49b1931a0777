//! Packed CPU micro-kernels.
