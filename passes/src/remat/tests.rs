//! On small graphs: results, memory, and the choice against all choices.

use super::choose::{Choice, Problem, choose};
use super::lives::{Lives, Sizes};
use cranelift_entity::SecondaryMap;
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{DType, Graph, NodeId, Rows, Shape, Tensor, Type, Value, interp, text, verify};

/// A chain of layers of these widths in KiB, whose gradients read what each layer read; with costs that differ.
fn chain(widths: &[usize]) -> Graph {
    let mut g = Graph::new("chain");
    let x = g.input("x", Type::new(DType::F32, [256]), Rows::Batched);
    let mut forward: Vec<Value> = Vec::new();
    let mut h = x;
    for width in widths {
        // A step that takes another width takes part of its operand, repeated.
        let row = g.reduce(intwain_ir::scalar::Reduce::Max, h, &[0]).unwrap();
        let wide = g.broadcast(row, &Shape::from([*width * 256]), &[]).unwrap();
        h = g.unary(Unary::Exp, wide).unwrap();
        h = g.unary(Unary::Neg, h).unwrap();
        forward.push(h);
    }
    let mut sum: Option<Value> = None;
    for h in forward.iter().rev() {
        let least = g.reduce(intwain_ir::scalar::Reduce::Min, *h, &[0]).unwrap();
        sum = Some(match sum {
            Some(sum) => g.binary(Binary::Add, sum, least).unwrap(),
            None => least,
        });
    }
    g.output("y", sum.unwrap());
    g
}

/// Every result takes memory, broadcasts none; a node takes as long as its result is large, times its weight.
fn problem<'g>(graph: &'g Graph, limit: f64, weight: &dyn Fn(usize) -> f64) -> Problem<'g> {
    let is_free = |id: NodeId| matches!(graph.nodes[id].op, intwain_ir::ops::Op::Broadcast(_));
    let sizes = Sizes { bytes: &|v| vec![graph.ty(v).bytes() as f64], shares: &|_| None, is_free: &is_free };
    let lives = Lives::new(graph, 1, &sizes, Vec::new());
    let mut seconds = SecondaryMap::new();
    for (at, (id, node)) in graph.nodes.iter().enumerate() {
        seconds[id] = graph.ty(node.results[0]).bytes() as f64 * weight(at);
    }
    Problem { lives, seconds, exchanges: SecondaryMap::new(), limits: vec![limit] }
}

fn peak(graph: &Graph) -> f64 {
    problem(graph, 0.0, &|_| 1.0).lives.peaks()[0]
}

fn even(_: usize) -> f64 {
    1.0
}

/// Checks that a choice's graph computes the same with the memory that the choice promises.
fn applied(graph: &Graph, problem: &Problem<'_>, choice: &Choice) -> Graph {
    let again = problem.apply(choice).unwrap();
    assert_eq!(verify(&again), Ok(()));
    assert_eq!(text::parse(&again.to_string()).unwrap().to_string(), again.to_string());
    let x: Vec<f32> = (0..256).map(|i| i as f32 / 300.0 - 0.5).collect();
    let x = vec![Tensor::from_f32([256], &x)];
    assert_eq!(interp::run(&again, x.clone()).unwrap(), interp::run(graph, x).unwrap());
    assert_eq!(peak(&again), choice.peaks[0], "the graph's own peak is the choice's");
    again
}

#[test]
fn a_graph_that_fits_stays_as_it_is() {
    let graph = chain(&[4; 8]);
    let problem = problem(&graph, peak(&graph), &even);
    let choice = choose(&problem);
    assert!(choice.given_up.is_empty());
    assert_eq!(problem.apply(&choice).unwrap(), graph);
}

#[test]
fn what_is_computed_again_is_the_same_in_less_memory_and_survives_simplification() {
    let graph = chain(&[4, 8, 2, 8, 4, 6, 8, 3]);
    let most = peak(&graph);
    for share in [0.9, 0.7, 0.55] {
        let problem = problem(&graph, most * share, &even);
        let choice = choose(&problem);
        assert!(choice.peaks[0] <= most * share, "{share}: {} of {most}", choice.peaks[0]);
        let again = applied(&graph, &problem, &choice);
        let simple = crate::simplify::simplify(&again).unwrap();
        assert_eq!(simple.nodes.len(), again.nodes.len(), "nothing is merged");
        assert!(again.nodes.len() > graph.nodes.len());
    }
}

/// The least memory that a chain of n equal layers can be had in is about 2√n of them with one run again of each; the way
/// of the literature is in the search, so it is no more than that, and never more than without.
#[test]
fn long_chains_take_memory_of_the_order_of_the_root_of_their_length() {
    for layers in [16usize, 64, 144] {
        let graph = chain(&vec![4; layers]);
        let one = 4.0 * 1024.0;
        let root = (layers as f64).sqrt();
        assert!(peak(&graph) >= layers as f64 * one);
        // What a segment holds while it runs again, what was kept, and what is under way.
        let limit = (2.0 * root + 3.0) * one;
        let problem = problem(&graph, limit, &even);
        let choice = choose(&problem);
        assert!(choice.peaks[0] <= limit, "{layers}: {} layers", choice.peaks[0] / one);
        applied(&graph, &problem, &choice);
        let all: f64 = problem.seconds.values().sum();
        assert!(problem.seconds_again(&choice.steps) <= all, "no node runs more than twice");
    }
}

#[test]
fn never_worse_than_without() {
    for layers in [1usize, 2, 3, 5] {
        let graph = chain(&vec![4; layers]);
        let choice = choose(&problem(&graph, 1.0, &even));
        assert!(choice.peaks[0] <= peak(&graph), "{layers}");
    }
}

/// Among all sets of values that could be given up none that fits takes less than half the time of the one found, and
/// where some set fits, one is found.
#[test]
fn the_choice_is_within_twice_the_best_of_all() {
    let weights: [&dyn Fn(usize) -> f64; 3] =
        [&even, &|at| 1.0 + (at * 7 % 5) as f64, &|at| 1.0 + (at % 3) as f64 * 4.0];
    let mut found = 0;
    for widths in [vec![4; 6], vec![1, 8, 2, 8, 1, 8], vec![8, 4, 2, 1, 2, 4, 8]] {
        let graph = chain(&widths);
        for weight in weights {
            for share in [0.95, 0.85, 0.75, 0.65] {
                let problem = problem(&graph, peak(&graph) * share, weight);
                let choice = choose(&problem);
                let Some(best) = super::choose::exhaustive(&problem) else { continue };
                found += 1;
                assert!(choice.peaks[0] <= problem.limits[0], "{widths:?} at {share}: some choice fits");
                let (took, least) = (problem.seconds_again(&choice.steps), best);
                assert!(took <= 2.0 * least, "{widths:?} at {share}: {took} against {least}");
            }
        }
    }
    assert!(found > 20, "{found} problems can be solved");
}
