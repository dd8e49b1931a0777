//! The example of the library, and what it finds.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]
#![allow(unreachable_pub, reason = "the example is a program of its own")]

#[path = "../examples/embed.rs"]
mod embed;

use intwain::{Model, ModelOptions, Tensor};
use intwain_ir::interp;
use std::path::Path;

/// What the reference interpreter says of the inputs that the example uses.
fn expected() -> Vec<Tensor> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_tower.json");
    let model = Model::open(&file, ModelOptions::default()).unwrap();
    let graph = model.graph(5).unwrap();
    let numbers = |n: usize| (0..n).map(|i| (i % 7) as f32 / 4.0 - 0.75).collect::<Vec<_>>();
    let argument = |p: &intwain_ir::Param| match p.kind {
        intwain_ir::ParamKind::Input { .. } => {
            let shape = graph.shape(p.value).clone();
            Tensor::from_f32(shape.clone(), &numbers(shape.elements()))
        }
        intwain_ir::ParamKind::Weight { .. } | intwain_ir::ParamKind::State { .. } => model.weight(&p.name).unwrap(),
    };
    let args = graph.params.iter().map(argument).collect();
    interp::run(&graph, args).unwrap()
}

#[test]
fn the_example_finds_what_is_so() {
    let folder = tempfile::tempdir().unwrap();
    let findings = embed::explore(folder.path()).unwrap();
    assert!(findings.verified);
    assert!(findings.split_weights > 0.9, "{}", findings.split_weights);
    assert!(["one", "data", "tensor", "mixed", "pipeline"].contains(&findings.strategy));
    let expected = expected();
    for found in [&findings.outputs, &findings.from_program] {
        assert_eq!(found.iter().map(|o| o.0.as_str()).collect::<Vec<_>>(), ["click", "rating"]);
        for ((name, got), want) in found.iter().zip(&expected) {
            assert_eq!(got.ty, want.ty, "{name}");
            for (a, b) in got.to_f64().iter().zip(want.to_f64()) {
                assert!((a - b).abs() < 1e-5, "{name}: {a} against {b}");
            }
        }
    }
}
