//! Topological orders and downsets from which cuts are taken.

use super::cut::CutProblem;
use std::collections::BTreeSet;

/// Who reads from whom.
pub(super) struct Adjacency {
    pub(super) before: Vec<Vec<usize>>,
    pub(super) after: Vec<Vec<usize>>,
}

impl Adjacency {
    pub(super) fn new(n: usize) -> Adjacency {
        Adjacency { before: vec![Vec::new(); n], after: vec![Vec::new(); n] }
    }

    pub(super) fn connect(&mut self, from: usize, to: usize) {
        self.before[to].push(from);
        self.after[from].push(to);
    }

    pub(super) fn sort(&mut self) {
        for list in self.before.iter_mut().chain(&mut self.after) {
            list.sort_unstable();
            list.dedup();
        }
    }
}

/// Everything that `op` needs, and itself.
pub(super) fn ancestors(op: usize, adjacency: &Adjacency) -> Vec<bool> {
    let mut found = vec![false; adjacency.before.len()];
    found[op] = true;
    let mut stack = vec![op];
    while let Some(at) = stack.pop() {
        for &from in &adjacency.before[at] {
            if !found[from] {
                found[from] = true;
                stack.push(from);
            }
        }
    }
    found
}

/// The given order, breadth first, depth first, and the one that keeps least alive.
pub(super) fn orders(problem: &CutProblem, adjacency: &Adjacency) -> Vec<Vec<usize>> {
    let n = problem.ops.len();
    let mut orders = vec![(0..n).collect()];
    let mut arrival = 0;
    orders.push(kahn(adjacency, |_| {
        arrival += 1;
        arrival as f64
    }));
    let mut depth = 0;
    orders.push(kahn(adjacency, |_| {
        depth -= 1;
        f64::from(depth)
    }));
    let mut growth = vec![0.0; n];
    for value in &problem.values {
        growth[value.producer] += value.bytes;
        if let Some(&last) = value.consumers.iter().max() {
            growth[last] -= value.bytes;
        }
    }
    orders.push(kahn(adjacency, |op| growth[op]));
    orders
}

/// A topological order that takes the ready operation of least rank; the rank is asked when an operation gets ready.
fn kahn(adjacency: &Adjacency, mut rank: impl FnMut(usize) -> f64) -> Vec<usize> {
    // Ranks are ordered by their bits, which for finite numbers is `total_cmp`.
    let key = |x: f64| {
        let bits = x.to_bits() as i64;
        bits ^ (((bits >> 63) as u64) >> 1) as i64
    };
    let mut waiting: Vec<usize> = adjacency.before.iter().map(Vec::len).collect();
    let mut ready: BTreeSet<(i64, usize)> = BTreeSet::new();
    for (op, &count) in waiting.iter().enumerate() {
        if count == 0 {
            ready.insert((key(rank(op)), op));
        }
    }
    let mut order = Vec::with_capacity(waiting.len());
    while let Some((_, op)) = ready.pop_first() {
        order.push(op);
        for &next in &adjacency.after[op] {
            waiting[next] -= 1;
            if waiting[next] == 0 {
                ready.insert((key(rank(next)), next));
            }
        }
    }
    order
}
