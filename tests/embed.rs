//! The example of the library, and what it finds.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]
#![allow(unreachable_pub, reason = "the example is a program of its own")]

#[path = "../examples/embed.rs"]
mod embed;

use intwain::build::{self, Request};
use intwain::{
    Catalogue, HostOptions, Model, ModelOptions, Precision, ProgramDir, ProgramSession, Session, SessionOptions,
    Strategy, Tensor, Timings,
};
use intwain_ir::interp;
use std::collections::BTreeMap;
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

#[test]
fn variants_of_a_program_may_use_unlike_numbers_of_devices() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/two_tower.json");
    let model = Model::open(&file, ModelOptions::default()).unwrap();
    let hardware = Catalogue::built_in().get("cpu").unwrap();
    let compile = |rows, strategy| {
        let request = Request::new(hardware.clone(), rows).split(strategy);
        build::compile(&model, &request, &mut Timings::default(), &mut |_, _| {}).unwrap()
    };
    let graph = model.graph(5).unwrap();
    let input = |p: &intwain_ir::Param| {
        let shape = graph.shape(p.value).clone();
        let numbers: Vec<f32> = (0..shape.elements()).map(|i| (i % 11) as f32 / 8.0 - 0.5).collect();
        (p.name.to_string(), Tensor::from_f32(shape, &numbers))
    };
    let inputs: BTreeMap<String, Tensor> = graph.inputs().map(input).collect();
    let whole = Session::new(&model, SessionOptions::default()).unwrap().run(&inputs).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let orders = [[(4, Strategy::Data), (1, Strategy::One)], [(2, Strategy::One), (1, Strategy::Pipeline)]];
    for (i, variants) in orders.into_iter().enumerate() {
        let variants = variants.map(|(rows, strategy)| compile(rows, strategy));
        let path = folder.path().join(i.to_string());
        intwain::program::write(&path, &model, (&hardware, Precision::F32), &variants, None, &mut Timings::default())
            .unwrap();
        let dir = ProgramDir::open(&path).unwrap();
        let found = ProgramSession::new(&dir, &dir.cpus(), HostOptions { threads: Some(1), ..HostOptions::default() })
            .unwrap()
            .run(&inputs)
            .unwrap();
        assert_eq!(found, whole);
    }
}
