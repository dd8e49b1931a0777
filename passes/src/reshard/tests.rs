use super::*;
use crate::samples::{f32s, relu};
use intwain_ir::ops::Op;
use intwain_ir::scalar::Reduce;
use intwain_ir::{Rows, verify};

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes.values().filter(|n| n.op.name() == name).count()
}

/// Strategies for a graph whose nodes are named by position.
fn strategies(graph: &Graph, list: &[NodeStrategy]) -> SecondaryMap<NodeId, NodeStrategy> {
    let mut all = SecondaryMap::new();
    for (id, strategy) in graph.nodes.keys().zip(list) {
        all[id] = strategy.clone();
    }
    all
}

fn sharded(graph: &Graph, params: &[Layout], strategies: &SecondaryMap<NodeId, NodeStrategy>) -> Graph {
    let mut sharded = graph.clone();
    (sharded.stage, sharded.devices) = (Stage::Sharded, 2);
    for (param, layout) in graph.params.iter().zip(params) {
        sharded.values[param.value].layout = Some(layout.clone());
    }
    for (id, node) in &graph.nodes {
        let layouts = strategies[id].result_layouts(&graph.rule(id), node.results.len());
        for (value, layout) in node.results.iter().zip(layouts) {
            sharded.values[*value].layout = Some(layout);
        }
    }
    sharded
}

fn cut(factor: usize, units: [usize; 2]) -> NodeStrategy {
    NodeStrategy::Cut { factor, units: units.into_iter().collect() }
}

#[test]
fn a_value_is_converted_once_for_all_its_readers() {
    let mut g = Graph::new("shared");
    let x = g.input("x", f32s([4, 6]), Rows::Batched);
    for name in ["a", "b", "c"] {
        let y = relu(&mut g, x);
        g.output(name, y);
    }
    let whole = strategies(&g, &vec![NodeStrategy::Whole; 6]);
    let explicit = reshard(&sharded(&g, &[Layout::split(0, [2, 2])], &whole), &whole).unwrap();
    verify(&explicit).unwrap();
    assert_eq!(count(&explicit, "reshard"), 1);
}

#[test]
fn parts_are_taken_from_a_copy_that_is_needed_anyway() {
    let mut g = Graph::new("copy");
    let a = g.input("a", f32s([4, 8]), Rows::Whole);
    let b = g.input("b", f32s([8, 6]), Rows::Whole);
    let sum = g.matmul(a, b).unwrap();
    let whole = g.unary(intwain_ir::scalar::Unary::Tanh, sum).unwrap();
    let part = g.unary(intwain_ir::scalar::Unary::Exp, sum).unwrap();
    g.output("whole", whole);
    g.output("part", part);
    let product = g.nodes.keys().next().unwrap();
    let k = g.rule(product).factors.iter().position(|f| f.results[0].is_none()).unwrap();
    let list = [cut(k, [4, 4]), NodeStrategy::Whole, cut(0, [2, 2])];
    let all = strategies(&g, &list);
    let params = [Layout::split(1, [4, 4]), Layout::split(0, [4, 4])];
    let explicit = reshard(&sharded(&g, &params, &all), &all).unwrap();
    verify(&explicit).unwrap();
    let conversions: Vec<(Layout, Layout)> = explicit
        .nodes
        .values()
        .filter(|n| matches!(n.op, Op::Reshard(_)))
        .map(|n| (explicit.layout(n.args[0]), explicit.layout(n.results[0])))
        .collect();
    let (partial, rows) = (Layout::Partial(Reduce::Sum), Layout::split(0, [2, 2]));
    assert_eq!(conversions, [(partial, Layout::Replicated), (Layout::Replicated, rows)]);
}

#[test]
fn constants_are_made_in_every_layout_that_is_read() {
    let mut g = Graph::new("constants");
    let x = g.input("x", f32s([4, 6]), Rows::Batched);
    let zero = g.full(intwain_ir::DType::F32, 0.0, &g.shape(x).clone()).unwrap();
    let rows = g.add(x, zero).unwrap();
    let whole = g.mul(zero, zero).unwrap();
    g.output("rows", rows);
    g.output("whole", whole);
    let all = strategies(&g, &[NodeStrategy::Whole, cut(0, [3, 1]), NodeStrategy::Whole]);
    let explicit = reshard(&sharded(&g, &[Layout::split(0, [3, 1])], &all), &all).unwrap();
    verify(&explicit).unwrap();
    assert_eq!((count(&explicit, "constant"), count(&explicit, "reshard")), (2, 0));
}

#[test]
fn partial_outputs_are_combined() {
    let mut g = Graph::new("output");
    let x = g.input("x", f32s([4, 6]), Rows::Whole);
    let y = g.reduce(Reduce::Max, x, &[1]).unwrap();
    g.output("y", y);
    let node = g.nodes.keys().next().unwrap();
    let along = g.rule(node).factors.iter().position(|f| f.results[0].is_none()).unwrap();
    let all = strategies(&g, &[cut(along, [3, 3])]);
    let explicit = reshard(&sharded(&g, &[Layout::split(1, [3, 3])], &all), &all).unwrap();
    verify(&explicit).unwrap();
    assert_eq!(explicit.layout(explicit.outputs[0].value), Layout::Replicated);
}
