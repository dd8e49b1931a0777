use super::*;
use proptest::prelude::*;

fn brute_force(graph: &CostGraph) -> f64 {
    let mut states = vec![0; graph.len()];
    let mut best = f64::INFINITY;
    loop {
        best = best.min(graph.cost(&states));
        let Some(digit) = (0..graph.len()).find(|&d| states[d] + 1 < graph.states(d)) else { return best };
        states[digit] += 1;
        states[..digit].fill(0);
    }
}

#[derive(Debug, Clone)]
struct Case {
    nodes: Vec<Vec<f64>>,
    edges: Vec<(usize, usize, Vec<f64>)>,
}

impl Case {
    fn graph(&self) -> CostGraph {
        let mut graph = CostGraph::new();
        for costs in &self.nodes {
            graph.node(costs.clone());
        }
        for (a, b, costs) in &self.edges {
            graph.edge(*a, *b, |i, j| costs[(i * 4 + j) % costs.len()]);
        }
        graph
    }
}

fn cost() -> impl Strategy<Value = f64> {
    prop_oneof![8 => (0u32..1000).prop_map(f64::from), 1 => Just(f64::INFINITY)]
}

/// A chain with skip connections of random length, as residual networks have.
fn residual() -> impl Strategy<Value = Case> {
    (2usize..9).prop_flat_map(|n| {
        let nodes = prop::collection::vec(prop::collection::vec((0u32..1000).prop_map(f64::from), 1..4), n);
        let skips = prop::collection::vec((0..n, 1..n), 0..4);
        let costs = prop::collection::vec(prop::collection::vec(cost(), 16), n + 4);
        (nodes, skips, costs).prop_map(move |(nodes, skips, costs)| {
            let chain = (1..n).map(|i| (i - 1, i));
            let skips = skips.into_iter().filter(move |&(from, by)| from + by < n).map(|(from, by)| (from, from + by));
            let edges = chain.chain(skips).zip(costs).map(|((a, b), c)| (b, a, c)).collect();
            Case { nodes, edges }
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn equals_brute_force(case in residual()) {
        let graph = case.graph();
        let best = brute_force(&graph);
        match graph.solve() {
            Ok(solution) => {
                prop_assert_eq!(solution.cost, best);
                prop_assert_eq!(graph.cost(&solution.states), best);
                prop_assert_eq!(solution.proof, Proof::Optimal);
            }
            Err(Infeasible) => prop_assert!(best.is_infinite()),
        }
    }

    #[test]
    fn pinned_equals_brute_force(case in residual(), node in 0usize..8, state in 0usize..4) {
        let graph = case.graph();
        let node = node % graph.len();
        let state = state % graph.states(node);
        let mut pinned = case.clone();
        for (s, c) in pinned.nodes[node].iter_mut().enumerate() {
            if s != state { *c = f64::INFINITY }
        }
        let best = brute_force(&pinned.graph());
        let found = graph.solve_pinned(&[(node, state)]).map_or(f64::INFINITY, |s| s.cost);
        prop_assert_eq!(found, best);
        prop_assert_eq!(graph.alternatives(node)[state], best);
    }

    #[test]
    fn beam_is_bounded_and_wide_beam_is_exact(case in residual()) {
        let graph = case.graph();
        let best = brute_force(&graph);
        match graph.solve_within(&[], Limits { table: 1, beam: 100_000 }) {
            Ok(solution) => {
                prop_assert_eq!(solution.cost, best);
                prop_assert_eq!(solution.proof, Proof::Optimal);
            }
            Err(Infeasible) => prop_assert!(best.is_infinite()),
        }
    }

    #[test]
    fn a_narrow_beam_says_what_it_does_not_know(case in residual(), beam in 1usize..4) {
        let graph = case.graph();
        let best = brute_force(&graph);
        if let Ok(solution) = graph.solve_within(&[], Limits { table: 1, beam }) {
            prop_assert_eq!(graph.cost(&solution.states), solution.cost);
            match solution.proof {
                Proof::Optimal => prop_assert_eq!(solution.cost, best),
                Proof::AtLeast(bound) => prop_assert!(bound <= best && best <= solution.cost),
            }
        }
    }
}

#[test]
fn partial_assignments_that_go_on_alike_are_one() {
    // A chain of 40 nodes with 8 states each: 8 partial assignments differ in what comes next, of 8^40.
    let mut graph = CostGraph::new();
    let nodes: Vec<NodeIdx> =
        (0..40).map(|i| graph.node((0..8).map(|s| f64::from((s * 5 + i) % 8)).collect::<Vec<_>>())).collect();
    for pair in nodes.windows(2) {
        graph.edge(pair[0], pair[1], |a, b| if a == b { 0.0 } else { 3.0 });
    }
    let found = graph.solve_within(&[], Limits { table: 1, beam: 8 }).unwrap();
    assert_eq!((found.cost, found.proof), (graph.solve().unwrap().cost, Proof::Optimal));
}

#[test]
fn runner_up_is_the_second_best() {
    let mut graph = CostGraph::new();
    let a = graph.node([1.0, 2.0, 9.0]);
    let b = graph.node([0.0, 0.0]);
    graph.edge(a, b, |i, j| if i == 0 { 5.0 } else { j as f64 });
    let best = graph.solve().unwrap();
    assert_eq!((best.states[a], best.cost), (1, 2.0));
    let (state, second) = graph.runner_up(a, 1).unwrap();
    assert_eq!((state, second.cost), (0, 6.0));
}

#[test]
fn long_residual_chains_leave_no_residue() {
    let mut graph = CostGraph::new();
    let mut seed = 7u64;
    let mut random = move || {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 40) as f64
    };
    for i in 0..600 {
        let costs: Vec<f64> = (0..12).map(|_| random()).collect();
        let node = graph.node(costs);
        for back in [1, 4] {
            if i >= back && (back == 1 || i % 3 == 0) {
                let costs: Vec<f64> = (0..144).map(|_| random()).collect();
                graph.edge(node - back, node, |a, b| costs[a * 12 + b]);
            }
        }
    }
    assert_eq!(graph.solve().unwrap().proof, Proof::Optimal);
}

#[test]
fn an_impossible_graph_is_infeasible() {
    let mut graph = CostGraph::new();
    let (a, b) = (graph.node([0.0, 0.0]), graph.node([0.0, 0.0]));
    graph.edge(a, b, |_, _| f64::INFINITY);
    assert_eq!(graph.solve(), Err(Infeasible));
}

#[test]
fn nodes_without_a_choice_tie_nothing_together() {
    let mut graph = CostGraph::new();
    let nodes: Vec<NodeIdx> =
        (0..600).map(|i| graph.node(if i % 50 == 0 { vec![1.0, 2.0] } else { vec![1.0] })).collect();
    for (at, &node) in nodes.iter().enumerate() {
        for back in [1, 7, 90, 400] {
            if at >= back {
                graph.edge(nodes[at - back], node, |a, b| (a + b) as f64);
            }
        }
    }
    let solution = graph.solve_within(&[], Limits { table: 64, beam: 1 }).unwrap();
    assert_eq!((solution.cost, solution.proof), (600.0, Proof::Optimal));
}
