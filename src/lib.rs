//! Intwain.

pub mod arrays;
pub mod frontend;
