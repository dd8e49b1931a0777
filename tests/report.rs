//! Reports of plans and placements: what they say is what the planner and the programs do.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::build::{self, Request};
use intwain::report::{self, PlacementReport};
use intwain::{Catalogue, Model, ModelOptions, Strategy, Timings, driver};
use intwain_passes::Numerics;
use intwain_passes::place::{Options, Planner};
use std::collections::BTreeSet;
use std::path::Path;

fn model(name: &str) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
    Model::open(&file, ModelOptions::default()).unwrap()
}

fn request(hardware: &str, rows: usize) -> Request {
    Request::new(Catalogue::built_in().get(hardware).unwrap(), rows)
}

fn inspect(name: &str, strategy: Strategy, rows: usize) -> PlacementReport {
    let request = request("cpu", rows).split(strategy);
    build::inspect(&model(name), &request, &mut Timings::default()).unwrap()
}

#[test]
fn a_placement_has_at_most_twenty_lines_more_than_layers() {
    for strategy in [Strategy::One, Strategy::Data, Strategy::Tensor, Strategy::Pipeline] {
        let report = inspect("resnet50.json", strategy, 4);
        let lines = report.to_string().lines().count();
        // Keras counts 177 layers in this model.
        assert!(report.layers.len() <= 177, "{} layers", report.layers.len());
        assert!(lines <= report.layers.len() + 20, "{lines} lines for {} layers", report.layers.len());
    }
}

#[test]
fn a_tensor_split_divides_weights_and_work() {
    let report = inspect("resnet50.json", Strategy::Tensor, 4);
    // 25,636,712 parameters (Keras's summary) of four bytes.
    assert_eq!(report.totals.weight_bytes, 25_636_712 * 4);
    assert!(report.totals.split_weight_bytes >= 0.9, "{}", report.totals.split_weight_bytes);
    assert!(report.totals.split_flops >= 0.9, "{}", report.totals.split_flops);
    for d in &report.devices {
        assert!(d.flops_share <= 0.6 && d.weight_share <= 0.6, "device {}: {d:?}", d.device);
        assert!(d.peak_bytes < report.totals.weight_bytes, "device {} holds more than half", d.device);
    }
    assert!(report.communications.iter().all(|c| c.kind != "send"), "a tensor split uses collectives");
}

#[test]
fn a_pipeline_gives_each_segment_a_quarter_of_the_work() {
    let report = inspect("resnet50.json", Strategy::Pipeline, 4);
    for d in &report.devices {
        assert!(d.flops_share >= 0.25, "device {} has {}", d.device, d.flops_share);
    }
    // Every layer is on one device, and both are used.
    let used: BTreeSet<&[usize]> =
        report.layers.iter().map(|l| l.devices.as_slice()).filter(|d| !d.is_empty()).collect();
    assert_eq!(used, BTreeSet::from([&[0][..], &[1][..]]));
    assert!(report.communications.iter().all(|c| c.kind == "send"));
}

#[test]
fn a_data_split_gives_each_device_its_rows() {
    let rows = |batch| {
        let devices = inspect("two_tower.json", Strategy::Data, batch).devices;
        devices.iter().map(|d| d.rows.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(rows(4), [2, 2]);
    assert_eq!(rows(5).iter().sum::<usize>(), 5);
    assert_eq!(rows(1).iter().sum::<usize>(), 1);
    let report = inspect("two_tower.json", Strategy::Data, 5);
    assert_eq!(report.totals.split_weight_bytes, 0.0);
    assert!(report.communications.is_empty());
}

#[test]
fn sums_of_layers_are_the_totals() {
    for strategy in [Strategy::One, Strategy::Data, Strategy::Tensor, Strategy::Pipeline] {
        let r = inspect("two_tower.json", strategy, 5);
        assert_eq!(r.layers.iter().map(|l| l.flops).sum::<u64>(), r.totals.flops);
        assert_eq!(r.layers.iter().map(|l| l.parameter_bytes).sum::<u64>(), r.totals.weight_bytes);
        for d in &r.devices {
            assert_eq!(r.layers.iter().map(|l| l.device_flops[d.device]).sum::<u64>(), d.flops);
            assert_eq!(d.persistent_bytes + d.arena_bytes, d.peak_bytes);
            assert!(d.persistent_bytes >= d.weight_bytes);
            let launched: usize = d.kernels.iter().map(|k| k.launches).sum();
            assert!(launched <= d.commands, "{launched} kernels in {} commands", d.commands);
        }
        assert_eq!(r.layers.iter().map(|l| l.communication_in.bytes).sum::<u64>(), r.totals.communication_bytes);
        let chosen: Vec<_> = r.candidates.iter().filter(|c| c.verdict == "chosen").collect();
        assert_eq!(chosen.len(), 1);
        assert_eq!(chosen[0].communications, r.totals.communications);
        assert_eq!(chosen[0].communication_bytes, r.totals.communication_bytes);
        assert!(r.candidates.iter().all(|c| c.seconds.is_some() || c.verdict == "not_possible"));
    }
}

/// The promise of `--why`: planning with the layer pinned to the runner-up costs what was printed.
#[test]
fn pinning_a_layer_to_its_runner_up_costs_what_is_said() {
    let graph = driver::prepare(
        model("two_tower.json").graph(64).unwrap(),
        Numerics::Free,
        &mut Timings::default(),
        &mut |_, _| {},
    );
    let graph = graph.unwrap();
    let layers: BTreeSet<&str> = graph.nodes.values().map(|n| n.origin.path()).filter(|p| !p.is_empty()).collect();
    let mut explained = 0;
    for hardware in ["cpu", "2xrtx4090-pcie", "rtx4090-rtx3090"] {
        let hardware = Catalogue::built_in().get(hardware).unwrap();
        for strategy in [Strategy::Data, Strategy::Tensor, Strategy::Mixed, Strategy::Pipeline] {
            let options = Options { strategy: Some(strategy), ..Options::default() };
            for layer in &layers {
                let why = report::why(&graph, &hardware, &options, layer).unwrap();
                let plan = Planner::new(&graph, &hardware, options.clone()).plan().unwrap();
                assert_eq!(why.chosen.seconds, plan.seconds);
                let Some(other) = why.runner_up else { continue };
                let pins = vec![(why.node, other.strategy)];
                let pinned = Planner::new(&graph, &hardware, Options { pins, ..options.clone() }).plan().unwrap();
                let text = format!("{layer} under {strategy} on {}", hardware.name);
                assert_eq!(pinned.seconds, other.choice.seconds, "{text}");
                assert!((pinned.seconds - plan.seconds - other.more_seconds).abs() < 1e-15, "{text}");
                let bytes = |p: &intwain_passes::place::Plan| p.usage.communication_bytes.round() as i64;
                assert_eq!(bytes(&pinned) - bytes(&plan), other.more_bytes, "{text}");
                let sum = |list: &[report::CommunicationReport]| list.iter().map(|c| c.bytes as i64).sum::<i64>();
                assert_eq!(sum(&other.added) - sum(&other.removed), other.more_bytes, "{text}");
                if other.allowed {
                    assert!(other.more_seconds >= -1e-12, "{text}: the runner-up is better by {}", -other.more_seconds);
                }
                explained += 1;
            }
        }
    }
    assert!(explained > 40, "only {explained} layers have a runner-up");
}

#[test]
fn where_one_device_is_fastest_the_break_even_is_named() {
    let model = model("resnet50.json");
    let plan = |rows| build::plan(&model, &request("2xrtx4090-pcie", rows), &mut Timings::default()).unwrap();
    let first = plan(1);
    assert_eq!(first.strategy, "one");
    let from = first.break_even.clone().unwrap();
    assert_ne!(plan(from.batch).strategy, "one");
    assert_eq!(plan(from.batch).strategy, from.strategy);
    assert_eq!(plan(from.batch - 1).strategy, "one");
    assert!(first.to_string().contains(&format!("from batch {} on", from.batch)));
    assert_eq!(plan(from.batch).break_even, None);
}

#[test]
fn a_layer_that_computes_nothing_is_told_from_one_that_is_not_there() {
    let model = model("two_tower.json");
    let ask =
        |layer: &str| build::why(&model, &request("cpu", 4), layer, &mut Timings::default()).unwrap_err().to_string();
    let absent = ask("no_such_layer");
    assert!(absent.contains("no layer is called"), "{absent}");
    let input = ask("user");
    assert!(input.contains("computes nothing"), "{input}");
}

#[test]
fn the_graph_after_every_pass_is_text_that_reads_back() {
    let mut seen = Vec::new();
    let mut request = request("cpu", 5).split(Strategy::Tensor);
    request.options.numerics = Numerics::EXACT;
    build::compile(&model("two_tower.json"), &request, &mut Timings::default(), &mut |pass, graph| {
        let text = graph.to_string();
        assert_eq!(intwain_ir::text::parse(&text).unwrap().to_string(), text, "after {pass}");
        if seen.last() != Some(&pass) {
            seen.push(pass);
        }
    })
    .unwrap();
    // What does not fit into memory is in `recompute.rs`.
    let names: BTreeSet<&str> = driver::passes().into_iter().map(|p| p.0).filter(|name| *name != "recompute").collect();
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), names);
}

#[test]
fn layers_are_listed_as_keras_lists_them() {
    let report = report::layers(&model("resnet50.json")).unwrap();
    // Figures of Keras's summary.
    assert_eq!(
        (report.layers.len(), report.total_params, report.trainable_params, report.non_trainable_params),
        (177, 25_636_712, 25_583_592, 53_120)
    );
    let pool = report.layers.iter().find(|l| l.name == "avg_pool").unwrap();
    assert_eq!((pool.class.as_str(), pool.parameters), ("GlobalAveragePooling2D", 0));
    assert_eq!(pool.output_shape, Some(vec![None, Some(2048)]));
    assert_eq!(pool.connected_to, ["conv5_block3_out[0][0]"]);
}

#[test]
fn extents_that_a_file_leaves_open_stay_open_in_the_list_of_layers() {
    let json = r#"{"class_name": "Functional", "keras_version": "2.15.0", "config": {"name": "m", "layers": [
        {"class_name": "InputLayer", "name": "x", "inbound_nodes": [], "config": {"batch_input_shape": [null, null, 3], "name": "x"}},
        {"class_name": "Conv1D", "name": "c", "config": {"name": "c", "filters": 5, "kernel_size": [2]}, "inbound_nodes": [[["x", 0, 0, {}]]]},
        {"class_name": "GlobalMaxPooling1D", "name": "p", "config": {"name": "p"}, "inbound_nodes": [[["c", 0, 0, {}]]]}],
        "input_layers": [["x", 0, 0]], "output_layers": [["p", 0, 0]]}}"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.json");
    std::fs::write(&file, json).unwrap();
    let report = report::layers(&Model::open(&file, ModelOptions::default()).unwrap()).unwrap();
    let shapes: Vec<_> = report.layers.iter().map(|l| l.output_shape.clone().unwrap()).collect();
    assert_eq!(shapes, [vec![None, None, Some(3)], vec![None, None, Some(5)], vec![None, Some(5)]]);
    assert_eq!(report.total_params, 2 * 3 * 5 + 5);
}
