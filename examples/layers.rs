//! Lists the classes of Keras that are known, as JSON: what each is, and why those are refused that are.

#![allow(clippy::print_stdout, reason = "an example prints")]

use intwain::frontend::{ClassKind, known_classes};
use serde_json::{Value, json};

fn main() {
    let kind = |kind| match kind {
        ClassKind::Layer => "layer",
        ClassKind::Operation => "operation",
    };
    let row = |c: intwain::frontend::KnownClass| {
        let refused = c.refused.map(|r| json!({ "why": r.why, "remedy": r.remedy }));
        json!({ "class": c.class, "aliases": c.aliases, "kind": kind(c.kind), "refused": refused })
    };
    let rows: Vec<Value> = known_classes().map(row).collect();
    println!("{:#}", Value::Array(rows));
}
