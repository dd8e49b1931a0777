//! Elimination of nodes, smallest resulting table first.

use super::NodeIdx;
use super::table::Table;
use std::collections::BTreeSet;

/// What is left after elimination, and how to get the eliminated states back.
pub(super) struct Elimination {
    /// The cost of everything that was folded into no table.
    pub(super) constant: f64,
    /// Nodes that were not eliminated, ascending.
    pub(super) residue: Vec<NodeIdx>,
    /// Tables over the residue.
    pub(super) tables: Vec<Table>,
    steps: Vec<Step>,
    sizes: Vec<usize>,
}

/// The best state of an eliminated node for every combination of states of its neighbours.
struct Step {
    node: NodeIdx,
    over: Vec<NodeIdx>,
    best: Vec<u8>,
}

impl Elimination {
    /// Fills in the states of the eliminated nodes, given those of the residue.
    pub(super) fn unwind(&self, states: &mut [usize]) {
        for step in self.steps.iter().rev() {
            let index = step.over.iter().fold(0, |index, &node| index * self.sizes[node] + states[node]);
            states[step.node] = step.best[index] as usize;
        }
    }
}

/// Eliminates nodes while the table over a node's neighbours has at most `limit` entries.
pub(super) fn run(sizes: &[usize], tables: Vec<Table>, limit: usize) -> Elimination {
    let (settled, tables): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|t| t.scope.is_empty());
    let mut constant: f64 = settled.iter().map(|t| t.costs[0]).sum();
    let mut work = Work::new(sizes, tables);
    let mut steps = Vec::new();
    while let Some(&(size, node)) = work.queue.first() {
        if size > limit {
            break;
        }
        work.queue.pop_first();
        let (step, table) = work.fold(node);
        steps.push(step);
        if table.scope.is_empty() {
            constant += table.costs[0];
        } else {
            work.replace(node, table);
        }
    }
    let residue: Vec<NodeIdx> = work.queue.iter().map(|&(_, node)| node).collect::<BTreeSet<_>>().into_iter().collect();
    let tables = if residue.is_empty() { Vec::new() } else { work.tables.into_iter().flatten().collect() };
    Elimination { constant, residue, tables, steps, sizes: sizes.to_vec() }
}

struct Work<'a> {
    sizes: &'a [usize],
    tables: Vec<Option<Table>>,
    /// Tables that mention each node, in order of creation.
    mentions: Vec<Vec<usize>>,
    neighbours: Vec<BTreeSet<NodeIdx>>,
    /// Entries of the table that eliminating a node would make, and the node.
    queue: BTreeSet<(usize, NodeIdx)>,
}

impl Work<'_> {
    fn new(sizes: &[usize], tables: Vec<Table>) -> Work<'_> {
        let mut work = Work {
            sizes,
            tables: Vec::new(),
            mentions: vec![Vec::new(); sizes.len()],
            neighbours: vec![BTreeSet::new(); sizes.len()],
            queue: BTreeSet::new(),
        };
        for table in tables {
            work.add(table);
        }
        work.queue = (0..sizes.len()).map(|node| (work.result_size(node), node)).collect();
        work
    }

    fn result_size(&self, node: NodeIdx) -> usize {
        self.neighbours[node].iter().fold(1, |n: usize, &other| n.saturating_mul(self.sizes[other]))
    }

    fn add(&mut self, table: Table) {
        let id = self.tables.len();
        for &node in &table.scope {
            self.mentions[node].push(id);
            self.neighbours[node].extend(table.scope.iter().copied().filter(|&other| other != node));
        }
        self.tables.push(Some(table));
    }

    /// The table over the neighbours of `node` with the node at its best, consuming the tables that mention it.
    fn fold(&mut self, node: NodeIdx) -> (Step, Table) {
        let over: Vec<NodeIdx> = self.neighbours[node].iter().copied().collect();
        let mut consumed = Vec::new();
        for id in std::mem::take(&mut self.mentions[node]) {
            if let Some(table) = self.tables[id].take() {
                let strides = table.strides_over(&over, self.sizes);
                let own = table.strides_over(&[node], self.sizes)[0];
                consumed.push((table, strides, own));
            }
        }
        let entries: usize = over.iter().map(|&n| self.sizes[n]).product();
        let (mut costs, mut best) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        let mut states = vec![0; over.len()];
        let mut bases = vec![0; consumed.len()];
        for _ in 0..entries {
            let (mut least, mut at) = (f64::INFINITY, 0);
            for state in 0..self.sizes[node] {
                let sum: f64 = consumed.iter().zip(&bases).map(|((t, _, own), base)| t.costs[base + own * state]).sum();
                if sum < least {
                    (least, at) = (sum, state as u8);
                }
            }
            costs.push(least);
            best.push(at);
            self.advance(&over, &mut states, &mut bases, &consumed);
        }
        (Step { node, over: over.clone(), best }, Table::new(over, costs))
    }

    /// Counts `states` up by one and moves the position in each consumed table along.
    fn advance(
        &self,
        over: &[NodeIdx],
        states: &mut [usize],
        bases: &mut [usize],
        consumed: &[(Table, Vec<usize>, usize)],
    ) {
        for digit in (0..over.len()).rev() {
            states[digit] += 1;
            let wraps = states[digit] == self.sizes[over[digit]];
            for (base, (_, strides, _)) in bases.iter_mut().zip(consumed) {
                *base += strides[digit];
                if wraps {
                    *base -= strides[digit] * states[digit];
                }
            }
            if !wraps {
                return;
            }
            states[digit] = 0;
        }
    }

    /// Puts the table that replaces `node` in its place.
    fn replace(&mut self, node: NodeIdx, table: Table) {
        let affected = table.scope.clone();
        for &other in &affected {
            self.queue.remove(&(self.result_size(other), other));
            self.neighbours[other].remove(&node);
        }
        self.add(table);
        for &other in &affected {
            let tables = &self.tables;
            self.mentions[other].retain(|&id| tables[id].is_some());
            self.queue.insert((self.result_size(other), other));
        }
    }
}
