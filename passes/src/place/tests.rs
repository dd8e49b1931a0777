use super::*;
use crate::Numerics;
use crate::samples::{check_plan, convnet, hardware, mlp, towers, trained, transformer};
use intwain_ir::Value;

fn named(strategy: Strategy) -> Options {
    Options { strategy: Some(strategy), ..Options::default() }
}

fn models(rows: usize) -> Vec<Graph> {
    vec![mlp(rows, 16), mlp(rows, 7), towers(rows), convnet(rows), transformer(rows)]
}

#[test]
fn every_strategy_computes_the_whole_model() {
    let machine = hardware("2xa100-nvlink");
    for rows in [1, 2, 3, 5] {
        for graph in models(rows) {
            for strategy in Strategy::ALL {
                check_plan(&graph, &machine, named(strategy));
            }
        }
    }
}

fn plan(graph: &Graph, machine: &str, strategy: Strategy) -> Plan {
    Planner::new(graph, &hardware(machine), named(strategy)).plan().unwrap()
}

#[test]
fn a_data_split_cuts_every_row() {
    for graph in models(5) {
        let plan = plan(&graph, "2xa100-nvlink", Strategy::Data);
        for param in graph.inputs() {
            assert_eq!(plan.layouts[param.value], Some(Layout::split(0, [3, 2])));
        }
        for param in graph.weights() {
            assert_eq!(plan.layouts[param.value], Some(Layout::Replicated));
        }
        for output in &graph.outputs {
            assert_eq!(plan.layouts[output.value], Some(Layout::split(0, [3, 2])), "{}", graph.name);
        }
        assert_eq!(plan.usage.communications, 0, "{}", graph.name);
    }
}

#[test]
fn a_tensor_split_cuts_weights_and_work() {
    for machine in ["2xa100-nvlink", "2xrtx4090-pcie", "cpu"] {
        for graph in models(4) {
            let usage = plan(&graph, machine, Strategy::Tensor).usage;
            assert!(usage.split_flops >= 0.99, "{} {}", graph.name, usage.split_flops);
            assert!(usage.split_weights >= 0.85, "{} {}", graph.name, usage.split_weights);
            let most = usage.flops.iter().copied().fold(0.0, f64::max) / usage.flops.iter().sum::<f64>();
            assert!(most <= 0.6, "{} {most}", graph.name);
        }
    }
}

#[test]
fn a_transformer_is_cut_as_megatron_does() {
    let graph = transformer(8);
    let plan = plan(&graph, "2xa100-nvlink", Strategy::Tensor);
    let layout = |name: &str| {
        let param = graph.params.iter().find(|p| &*p.name == name).unwrap();
        plan.layouts[param.value].clone().unwrap()
    };
    for name in ["query/kernel", "key/kernel", "value/kernel"] {
        assert_eq!(layout(name), Layout::split(1, [3, 3]));
    }
    assert_eq!(layout("out/kernel"), Layout::split(0, [3, 3]));
    assert_eq!(layout("up/kernel"), Layout::split(1, [6, 6]));
    assert_eq!(layout("down/kernel"), Layout::split(0, [6, 6]));
}

#[test]
fn pipelines_are_balanced() {
    for graph in models(4) {
        let usage = plan(&graph, "2xa100-nvlink", Strategy::Pipeline).usage;
        let total: f64 = usage.flops.iter().sum();
        assert!(usage.flops.iter().all(|f| f / total >= 0.2), "{} {:?}", graph.name, usage.flops);
    }
}

#[test]
fn a_pipeline_refuses_parts() {
    let machine = hardware("2xa100-nvlink");
    let options = Options { strategy: Some(Strategy::Pipeline), parts: Some([3, 1]), ..Options::default() };
    let refused = Planner::new(&mlp(4, 16), &machine, options).plan().unwrap_err();
    assert!(
        matches!(&refused, PlaceError::CannotSplit { strategy: Strategy::Pipeline, reason } if reason.contains("parts"))
    );
}

#[test]
fn small_models_stay_on_one_device_and_large_ones_do_not() {
    let machine = hardware("2xa100-nvlink");
    let small = Planner::new(&mlp(4, 16), &machine, Options::default()).plan().unwrap();
    assert_eq!(small.strategy, Strategy::One);
    let large = mlp(65536, 4096);
    let large = Planner::new(&large, &machine, Options::default()).plan().unwrap();
    assert_eq!(large.strategy, Strategy::Data);
    let rejected = large.candidates.iter().filter(|c| c.verdict == Verdict::Rejected);
    assert!(rejected.clone().count() >= 2);
    assert!(rejected.into_iter().all(|c| c.seconds.unwrap() >= large.seconds * (1.0 - MARGIN)));
}

#[test]
fn unlike_devices_get_unlike_parts() {
    let graph = mlp(65536, 4096);
    let plan = plan(&graph, "a100-rtx4090", Strategy::Data);
    let Some(Layout::Split { sizes, .. }) = &plan.layouts[graph.params[0].value] else { panic!("not split") };
    assert!(sizes[0] < sizes[1], "the faster f32 unit takes more: {sizes:?}");
    let fixed = Options { parts: Some([3, 2]), ..named(Strategy::Data) };
    let graph = mlp(5, 16);
    let plan = Planner::new(&graph, &hardware("2xa100-pcie"), fixed).plan().unwrap();
    assert_eq!(plan.layouts[graph.params[0].value], Some(Layout::split(0, [3, 2])));
}

#[test]
fn pinning_to_the_runner_up_costs_what_was_said() {
    let machine = hardware("2xa100-nvlink");
    for strategy in [Strategy::Data, Strategy::Tensor, Strategy::Mixed, Strategy::Pipeline] {
        for graph in models(4) {
            let planner = Planner::new(&graph, &machine, named(strategy));
            let plan = planner.plan().unwrap();
            for id in graph.nodes.keys() {
                let Some(second) = planner.runner_up(&plan, id) else { continue };
                let cheaper = second.seconds < plan.seconds * (1.0 - 1e-12);
                assert!(!cheaper || second.permission == Permission::Forbidden);
                let options = Options { pins: vec![(id, second.strategy.clone())], ..named(strategy) };
                let pinned = Planner::new(&graph, &machine, options).plan().unwrap();
                assert_eq!(pinned.nodes[id], second.strategy);
                assert!((pinned.seconds - second.seconds).abs() <= 1e-12, "{} {id}", graph.name);
            }
        }
    }
}

#[test]
fn what_cannot_be_split_is_an_error_that_names_the_reason() {
    let mut graph = Graph::new("relu");
    let x = graph.input("x", crate::samples::f32s([4]), Rows::Whole);
    let y = crate::samples::relu(&mut graph, x);
    graph.output("y", y);
    let error = |strategy| Planner::new(&graph, &hardware("cpu"), named(strategy)).plan().unwrap_err().to_string();
    assert!(error(Strategy::Data).contains("row axis"), "{}", error(Strategy::Data));
    assert!(error(Strategy::Tensor).contains("channels, heads"), "{}", error(Strategy::Tensor));
    assert!(error(Strategy::Pipeline).contains("--allow-one"), "{}", error(Strategy::Pipeline));
}

#[test]
fn a_plan_that_fits_wins_over_a_faster_one() {
    let graph = mlp(64, 4096);
    let mut machine = hardware("2xrtx3090-pcie");
    let weights: f64 = graph.weights().map(|p| graph.ty(p.value).bytes() as f64).sum();
    for device in &mut machine.devices {
        device.memory.value = weights * 0.7;
    }
    machine.alone.memory.value = weights * 0.7;
    let plan = Planner::new(&graph, &machine, Options::default()).plan().unwrap();
    assert!(matches!(plan.strategy, Strategy::Tensor | Strategy::Mixed | Strategy::Pipeline));
    assert!(matches!(plan.candidates[0].verdict, Verdict::TooLarge { device: 0, .. }));
    machine.devices[0].memory.value = 1e3;
    machine.devices[1].memory.value = 1e3;
    machine.alone.memory.value = 1e3;
    let error = Planner::new(&graph, &machine, Options::default()).plan().unwrap_err();
    assert!(error.to_string().contains("no plan fits"), "{error}");
}

#[test]
fn deep_models_are_planned_to_the_proved_optimum() {
    let graph = crate::samples::deep(64, 16);
    let plan = Planner::new(&graph, &hardware("2xa100-nvlink"), Options::default()).plan().unwrap();
    assert_eq!((plan.strategy, plan.proof), (Strategy::Data, Proof::Optimal));
    let divided = crate::reshard::reshard(&crate::reshard::apply(&graph, &plan), &plan.nodes).unwrap();
    assert_eq!(crate::partition::partition(&divided).unwrap().len(), 2);
}

/// Any state for every parameter and node, as long as each can be brought from what is there to what is wanted.
fn random_assignment(space: &Space<'_>, seed: u64) -> Assignment {
    let mut noise = crate::samples::Noise(seed);
    let mut pick = |n: usize| (((noise.next() + 1.0) / 2.0 * n as f64) as usize).min(n - 1);
    let params: Vec<Layout> = space.params.iter().map(|layouts| layouts[pick(layouts.len())].0.clone()).collect();
    let mut layouts: SecondaryMap<Value, Option<Layout>> = SecondaryMap::new();
    for (param, layout) in space.graph.params.iter().zip(&params) {
        layouts[param.value] = Some(layout.clone());
    }
    let mut nodes: SecondaryMap<NodeId, NodeStrategy> = SecondaryMap::new();
    for (id, node) in &space.graph.nodes {
        let possible: Vec<&super::states::State> = space.nodes[id]
            .iter()
            .filter(|s| {
                node.args.iter().zip(&s.operands).all(|(a, want)| {
                    let from = layouts[*a].clone().unwrap_or(Layout::Replicated);
                    crate::cost::transfer(space.graph.ty(*a), &from, want).bytes.is_finite()
                })
            })
            .collect();
        let state = possible[pick(possible.len())];
        nodes[id] = state.strategy.clone();
        for (value, layout) in node.results.iter().zip(&state.results) {
            layouts[*value] = Some(layout.clone());
        }
    }
    Assignment { params, nodes, seconds: 0.0, proof: Proof::AtLeast(0.0) }
}

#[test]
fn any_assignment_of_layouts_computes_the_whole_and_is_proved() {
    let machine = hardware("2xa100-nvlink");
    for (at, graph) in models(3).into_iter().enumerate() {
        let args = crate::samples::arguments(&graph, 3);
        let whole = intwain_ir::interp::run(&graph, args.clone()).unwrap();
        let planner = Planner::new(&graph, &machine, Options::default());
        let plan = planner.plan().unwrap();
        let space = &planner.spaces[0].0;
        for seed in 0..40 {
            let assignment = random_assignment(space, seed * 31 + at as u64);
            let layouts = usage::layouts(space, &assignment);
            let plan = Plan { devices: 2, nodes: assignment.nodes, layouts, ..plan.clone() };
            let explicit = crate::reshard::reshard(&crate::reshard::apply(&graph, &plan), &plan.nodes).unwrap();
            let divided = crate::samples::run_explicit(&explicit, &args);
            let locals = crate::partition::partition(&explicit).unwrap();
            let interface = crate::check::placement::Interface::of(&explicit);
            let faults = crate::check::placement::check(&graph, &interface, &locals);
            assert!(faults.is_empty(), "{} {seed}: {}\n{explicit}", graph.name, faults[0]);
            for (x, y) in whole.iter().zip(&divided).flat_map(|(a, b)| a.to_f64().into_iter().zip(b.to_f64())) {
                assert!((x - y).abs() <= 1e-4 * x.abs().max(1.0), "{} {seed}: {x} {y}", graph.name);
            }
        }
    }
}

#[test]
fn states_in_parts_are_predicted_and_proposed() {
    let (rows, width) = (4, 1024);
    let graph = trained(rows, width);
    let weight = (width * width * 4) as f64;
    let mut machine = hardware("2xa100-nvlink");
    let planned = |machine: &Hardware, states: StateSharding, numerics: Numerics| {
        let sharding = states.into();
        let options = Options { strategy: Some(Strategy::Data), sharding, numerics, ..Options::default() };
        Planner::new(&graph, machine, options).plan()
    };
    let mut bytes = Vec::new();
    // Gradients whole move 2, parts 1; variables are gathered behind the update, or where they are read: on the way back
    // again, but for the last layer's, which is read right away, and the first one's, whose input needs no gradient.
    let expected = [(6.0, 6.0), (4.5, 9.0), (4.5, 6.0), (3.0, 3.0 + 4.0)];
    for (states, (held, moves)) in StateSharding::ALL.into_iter().zip(expected) {
        let plan = planned(&machine, states, Numerics::Free).unwrap();
        assert_eq!(plan.usage.weight_bytes, [held * weight; 2], "{states}");
        assert_eq!(plan.proof, Proof::Optimal);
        bytes.push(plan.usage.peak_bytes[0]);
        assert_eq!((plan.usage.communication_bytes / weight).round(), moves, "{states}");
    }
    assert!(bytes.windows(2).all(|b| b[1] <= b[0]), "{bytes:?}");
    for device in machine.devices.iter_mut().chain([&mut machine.alone]) {
        device.memory.value = (bytes[0] + bytes[3]) / 2.0;
    }
    let error = planned(&machine, StateSharding::Replicated, Numerics::Free).unwrap_err().to_string();
    let saved = (bytes[0] - bytes[3]) / 1e6;
    assert!(error.contains(&format!("`data` with --zero 3 fits (−{saved:.2} MB, ")), "{error}");
    let tensor =
        Options { strategy: Some(Strategy::Tensor), sharding: StateSharding::Slots.into(), ..Options::default() };
    let error = Planner::new(&graph, &machine, tensor).plan().unwrap_err();
    assert!(error.to_string().contains("use --split data"), "{error}");
}
