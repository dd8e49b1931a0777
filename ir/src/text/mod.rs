//! The text form of graphs. `parse(print(x)) == x`.
//!
//! ```text
//! graph "mlp" sharded devices 2 {
//!   input %0 "x": f32[8, 64] batched S(0,[4,4])
//!   weight %1 "dense/kernel": f32[64, 16] trainable R
//!   %2 = contract{batch=[], contract=[[1, 0]]} %0 %1 : f32[8, 16] S(0,[4,4]) # dense
//!   output "y" %2
//! }
//! ```
//!
//! Values are numbered in order of definition. A `#` begins the origin, up to the end of the line, or quoted. Layouts stand after
//! the type when there are any. Before the origin, `again` is said of what computes a value once more ([`Origin::is_again`](crate::Origin::is_again)), and `in 1.3.backward` is the place in a pipelined step ([`Turn`](crate::Turn)). States are written `state %3 "step": i64[] next %9`.

mod lex;
mod parse;
mod print;

pub use parse::{ParseError, parse};
