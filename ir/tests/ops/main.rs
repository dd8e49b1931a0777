//! Every operation, by question: is its gradient right, are its sharding rules true, does its text read back, does the
//! verifier catch what is broken, does fusion by substitution keep the bits.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod bodies;
mod cases;
mod devices;
mod evaluate;
mod gradient;
mod inline;
mod messages;
mod rules;
mod scan_rules;
mod text;
mod verify;
