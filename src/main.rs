//! The `intwain` command.
fn main() {}
