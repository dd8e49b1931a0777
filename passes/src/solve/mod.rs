//! Exact minima over a graph of choices.
//!
//! A node has at most a few states with a cost each; an edge has a cost for every pair of states of its ends, infinite
//! where the pair is forbidden. Wanted is one state per node with the least sum. Chains, residual blocks and cells that
//! branch and join vanish by eliminating one node at a time: the node's costs are folded into a table over its
//! neighbours, the best state for every entry is kept, and the choices are unwound at the end (non-serial dynamic
//! programming). Before that, states that another state makes superfluous are removed. This is exact whatever the order; the order that keeps tables small is chosen greedily. Where tables
//! would grow past a limit the rest is searched with a beam, and the result says that it is not proved.
//!
//! Ties go to the lower state, sums are taken in a fixed order: the result is a function of the input.

mod beam;
pub mod cut;
mod cut_orders;
mod eliminate;
mod prune;
mod table;

use table::Table;

/// Most states a node may have.
pub const MAX_STATES: usize = 16;

/// A set of states of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct StateSet(u16);

impl StateSet {
    /// One state.
    pub fn one(state: usize) -> StateSet {
        StateSet(1 << state)
    }

    /// The first `n` states.
    pub fn first(n: usize) -> StateSet {
        StateSet(((1u32 << n) - 1) as u16)
    }

    /// Whether the state is in the set.
    pub fn contains(self, state: usize) -> bool {
        self.0 >> state & 1 == 1
    }

    /// The states in the set that satisfy a condition.
    pub fn filter(self, keep: impl Fn(usize) -> bool) -> StateSet {
        StateSet((0..MAX_STATES).filter(|&s| self.contains(s) && keep(s)).fold(0, |set, s| set | 1 << s))
    }

    /// Whether the sets have a state in common.
    pub fn intersects(self, other: StateSet) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether no state is in the set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// A node of a [`CostGraph`].
pub type NodeIdx = usize;

/// Nodes with states, and what each state and each pair of neighbouring states costs.
#[derive(Clone, Debug, Default)]
pub struct CostGraph {
    nodes: Vec<Vec<f64>>,
    edges: Vec<Edge>,
}

#[derive(Clone, Debug)]
struct Edge {
    ends: [NodeIdx; 2],
    /// Row-major: the state of `ends[0]` selects the row.
    costs: Vec<f64>,
}

impl Edge {
    fn other(&self, node: NodeIdx) -> NodeIdx {
        if self.ends[0] == node { self.ends[1] } else { self.ends[0] }
    }
}

/// What is known about a solution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Proof {
    /// No assignment is cheaper.
    Optimal,
    /// No assignment is cheaper than this bound.
    AtLeast(f64),
}

/// A state for every node.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// The state of each node.
    pub states: Vec<usize>,
    /// The sum of all costs.
    pub cost: f64,
    /// Whether the cost is proved to be the least.
    pub proof: Proof,
}

/// Every assignment has infinite cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no combination of states is allowed")]
pub struct Infeasible;

/// How much work a solution may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most entries of one table.
    pub table: usize,
    /// Partial assignments kept by the beam.
    pub beam: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { table: 1 << 20, beam: 4096 }
    }
}

impl CostGraph {
    /// An empty graph.
    pub fn new() -> CostGraph {
        CostGraph::default()
    }

    /// Adds a node with a cost per state.
    ///
    /// # Panics
    /// If there are no states or more than [`MAX_STATES`], or a cost is NaN or −∞.
    pub fn node(&mut self, costs: impl Into<Vec<f64>>) -> NodeIdx {
        let costs = costs.into();
        assert!((1..=MAX_STATES).contains(&costs.len()), "a node has 1 to {MAX_STATES} states, not {}", costs.len());
        assert!(costs.iter().all(|&c| c > f64::NEG_INFINITY), "costs are numbers or +∞");
        self.nodes.push(costs);
        self.nodes.len() - 1
    }

    /// Adds a cost for every pair of states of two nodes. Several edges between the same nodes add up.
    ///
    /// # Panics
    /// If the ends are equal, do not exist, or a cost is NaN or −∞.
    pub fn edge(&mut self, from: NodeIdx, to: NodeIdx, cost: impl Fn(usize, usize) -> f64) {
        assert!(from != to, "an edge joins two nodes");
        let (rows, columns) = (self.nodes[from].len(), self.nodes[to].len());
        let costs: Vec<f64> = (0..rows * columns).map(|i| cost(i / columns, i % columns)).collect();
        assert!(costs.iter().all(|&c| c > f64::NEG_INFINITY), "costs are numbers or +∞");
        self.edges.push(Edge { ends: [from, to], costs });
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of states of a node.
    pub fn states(&self, node: NodeIdx) -> usize {
        self.nodes[node].len()
    }

    /// The sum of all costs under an assignment.
    pub fn cost(&self, states: &[usize]) -> f64 {
        let nodes: f64 = self.nodes.iter().zip(states).map(|(costs, &s)| costs[s]).sum();
        let edges: f64 = self
            .edges
            .iter()
            .map(|e| e.costs[states[e.ends[0]] * self.nodes[e.ends[1]].len() + states[e.ends[1]]])
            .sum();
        nodes + edges
    }

    /// The cheapest assignment.
    pub fn solve(&self) -> Result<Solution, Infeasible> {
        self.solve_within(&[], Limits::default())
    }

    /// The cheapest assignment in which the given nodes have the given states.
    pub fn solve_pinned(&self, pins: &[(NodeIdx, usize)]) -> Result<Solution, Infeasible> {
        let allowed: Vec<(NodeIdx, StateSet)> =
            pins.iter().map(|&(node, state)| (node, StateSet::one(state))).collect();
        self.solve_within(&allowed, Limits::default())
    }

    /// The cheapest assignment in which the given nodes have states of the given sets, under limits of work.
    pub fn solve_within(&self, allowed: &[(NodeIdx, StateSet)], limits: Limits) -> Result<Solution, Infeasible> {
        let mut alive: Vec<StateSet> = self.nodes.iter().map(|costs| StateSet::first(costs.len())).collect();
        for &(node, set) in allowed {
            alive[node] = alive[node].filter(|s| set.contains(s));
        }
        let alive = prune::run(&self.nodes, &self.edges, alive);
        let kept: Vec<Vec<usize>> =
            alive.iter().map(|set| (0..MAX_STATES).filter(|&s| set.contains(s)).collect()).collect();
        if kept.iter().any(Vec::is_empty) {
            return Err(Infeasible);
        }
        let sizes: Vec<usize> = kept.iter().map(Vec::len).collect();
        let elimination = eliminate::run(&sizes, self.tables(&kept), limits.table);
        let mut choice = vec![0; self.nodes.len()];
        let mut bound = elimination.constant;
        let mut proved = true;
        if !elimination.residue.is_empty() {
            bound += elimination.tables.iter().map(Table::minimum).sum::<f64>();
            let found = beam::run(&sizes, &elimination.residue, &elimination.tables, limits.beam, &mut choice);
            proved = match found.ok_or(Infeasible)? {
                beam::Found::Cheapest => true,
                beam::Found::Cheap => false,
            };
        }
        if bound.is_infinite() {
            return Err(Infeasible);
        }
        elimination.unwind(&mut choice);
        let states: Vec<usize> = choice.iter().zip(&kept).map(|(&c, kept)| kept[c]).collect();
        let cost = self.cost(&states);
        Ok(Solution { states, cost, proof: if proved { Proof::Optimal } else { Proof::AtLeast(bound) } })
    }

    /// For every state of `node`, the cheapest assignment with the node in that state, or infinity.
    pub fn alternatives(&self, node: NodeIdx) -> Vec<f64> {
        (0..self.states(node)).map(|s| self.solve_pinned(&[(node, s)]).map_or(f64::INFINITY, |x| x.cost)).collect()
    }

    /// The best state of `node` other than `chosen`, and the cheapest assignment with it.
    pub fn runner_up(&self, node: NodeIdx, chosen: usize) -> Option<(usize, Solution)> {
        let mut best: Option<(usize, Solution)> = None;
        for state in (0..self.states(node)).filter(|&s| s != chosen) {
            if let Ok(solution) = self.solve_pinned(&[(node, state)])
                && best.as_ref().is_none_or(|(_, b)| solution.cost < b.cost)
            {
                best = Some((state, solution));
            }
        }
        best
    }

    /// The costs over the states that are kept. Nodes with one state are no part of a scope: eliminating them would tie
    /// all their neighbours together for nothing.
    fn tables(&self, kept: &[Vec<usize>]) -> Vec<Table> {
        let open = |scope: &[NodeIdx]| scope.iter().copied().filter(|&node| kept[node].len() > 1).collect::<Vec<_>>();
        let unary = |(node, costs): (NodeIdx, &Vec<f64>)| {
            Table::new(open(&[node]), kept[node].iter().map(|&s| costs[s]).collect())
        };
        let mut tables: Vec<Table> = self.nodes.iter().enumerate().map(unary).collect();
        for edge in &self.edges {
            let [a, b] = edge.ends;
            let columns = self.nodes[b].len();
            let (low, high) = (a.min(b), a.max(b));
            let cost = |x: usize, y: usize| match a < b {
                true => edge.costs[x * columns + y],
                false => edge.costs[y * columns + x],
            };
            let costs = kept[low].iter().flat_map(|&x| kept[high].iter().map(move |&y| cost(x, y))).collect();
            tables.push(Table::new(open(&[low, high]), costs));
        }
        tables
    }
}

#[cfg(test)]
mod tests;
