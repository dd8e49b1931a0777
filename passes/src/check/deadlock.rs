//! Proves that command lists never wait for each other in a circle and that no byte is reused too early.
//!
//! The joined graph of all lists is acyclic exactly if no deadlock is possible when every send waits for its receive.
//! Given that, clocks with one component per stream say for any two commands whether one happens before the other;
//! two that touch the same byte, one of them writing, must be ordered.

use super::joined::{Instance, JoinFault, Joined, join};
use crate::listing::Listing;
use petgraph::algo::tarjan_scc;
use petgraph::graph::NodeIndex;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What is wrong with a set of command lists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListingFault {
    /// Commands have no partner, or partners disagree.
    #[error(transparent)]
    Join(#[from] JoinFault),
    /// Commands wait for each other in a circle.
    #[error("deadlock: {}", .cycle.join(" → waits for → "))]
    Deadlock {
        /// The shortest circle; each waits for the next, the last for the first.
        cycle: Vec<String>,
    },
    /// Two commands touch the same bytes in no order.
    #[error("race on device {device} at byte {byte}: {first} and {second} are not ordered")]
    Race {
        /// Whose memory.
        device: usize,
        /// The first byte both touch.
        byte: usize,
        /// One command.
        first: String,
        /// The other.
        second: String,
    },
}

/// Every fault; none if the lists run to their end and reuse memory in order.
pub fn check(listing: &Listing) -> Vec<ListingFault> {
    let joined = match join(listing) {
        Ok(joined) => joined,
        Err(faults) => return faults.into_iter().map(ListingFault::from).collect(),
    };
    // Tarjan gives components in reverse topological order.
    let mut components = tarjan_scc(&joined.graph);
    components.reverse();
    let looped = |c: &Vec<NodeIndex>| c.len() > 1 || joined.graph.contains_edge(c[0], c[0]);
    let cycles: Vec<ListingFault> = components.iter().filter(|c| looped(c)).map(|c| deadlock(&joined, c)).collect();
    if !cycles.is_empty() {
        return cycles;
    }
    let order: Vec<NodeIndex> = components.into_iter().map(|c| c[0]).collect();
    races(&joined, &order)
}

/// Vertices of a component from which a shortest cycle is searched.
const STARTS: usize = 2000;

fn deadlock(joined: &Joined<'_>, component: &[NodeIndex]) -> ListingFault {
    let inside: BTreeSet<NodeIndex> = component.iter().copied().collect();
    let mut shortest: Option<Vec<NodeIndex>> = None;
    for &start in inside.iter().take(STARTS) {
        let limit = shortest.as_ref().map_or(usize::MAX, Vec::len);
        if let Some(cycle) = cycle_through(joined, &inside, start, limit) {
            shortest = Some(cycle);
        }
    }
    let cycle = shortest.expect("every vertex of a strongly connected component lies on a cycle");
    // Edges point from what happens first; waiting goes the other way.
    let describe = |v: &NodeIndex| {
        let members: Vec<String> = joined.graph[*v].iter().map(|&i| joined.instances[i].describe()).collect();
        members.join(" with ")
    };
    ListingFault::Deadlock { cycle: cycle.iter().rev().map(describe).collect() }
}

/// The shortest cycle through `start`, if it is shorter than `limit`.
fn cycle_through(
    joined: &Joined<'_>,
    inside: &BTreeSet<NodeIndex>,
    start: NodeIndex,
    limit: usize,
) -> Option<Vec<NodeIndex>> {
    let mut from: BTreeMap<NodeIndex, NodeIndex> = BTreeMap::new();
    let mut queue = VecDeque::from([(start, 1)]);
    while let Some((at, length)) = queue.pop_front() {
        if length >= limit {
            return None;
        }
        let mut next: Vec<NodeIndex> = joined.graph.neighbors(at).filter(|n| inside.contains(n)).collect();
        next.sort_unstable();
        for to in next {
            if to == start {
                let mut cycle = vec![at];
                while let Some(&before) = from.get(&cycle[cycle.len() - 1]) {
                    cycle.push(before);
                }
                cycle.reverse();
                return Some(cycle);
            }
            if let Entry::Vacant(entry) = from.entry(to) {
                entry.insert(at);
                queue.push_back((to, length + 1));
            }
        }
    }
    None
}

/// The last accesses of every lane to one range of bytes: position and instance.
#[derive(Clone)]
struct Shadow {
    writes: Vec<Option<usize>>,
    reads: Vec<Option<usize>>,
}

fn races(joined: &Joined<'_>, order: &[NodeIndex]) -> Vec<ListingFault> {
    let lanes = joined.lanes.len();
    let cuts = boundaries(joined);
    let empty = Shadow { writes: vec![None; lanes], reads: vec![None; lanes] };
    let mut shadows: BTreeMap<(usize, usize), Shadow> = BTreeMap::new();
    let mut clocks: Vec<Option<Vec<u32>>> = vec![None; joined.graph.node_count()];
    let mut pending: Vec<usize> = vec![0; joined.graph.node_count()];
    let mut found: BTreeMap<(usize, usize), ListingFault> = BTreeMap::new();
    for &vertex in order {
        pending[vertex.index()] = joined.graph.neighbors(vertex).count();
    }
    for &vertex in order {
        let clock = clock_of(joined, vertex, lanes, &mut clocks, &mut pending);
        for &at in &joined.graph[vertex] {
            let instance = &joined.instances[at];
            let accesses = instance.command.reads.iter().map(|s| (s, false));
            for (span, writes) in accesses.chain(instance.command.writes.iter().map(|s| (s, true))) {
                let start = span.start_at(instance.iteration);
                for &byte in range(&cuts, span.device, start, start + span.len) {
                    let shadow = shadows.entry((span.device, byte)).or_insert_with(|| empty.clone());
                    let reads: &[Option<usize>] = if writes { &shadow.reads } else { &[] };
                    for &other in shadow.writes.iter().chain(reads).flatten() {
                        let other_instance = &joined.instances[other];
                        if clock[other_instance.lane] < other_instance.position {
                            found
                                .entry((other, at))
                                .or_insert_with(|| race(span.device, byte, other_instance, instance));
                        }
                    }
                    let last = if writes { &mut shadow.writes } else { &mut shadow.reads };
                    last[instance.lane] = Some(at);
                }
            }
        }
        clocks[vertex.index()] = Some(clock);
    }
    found.into_values().collect()
}

fn race(device: usize, byte: usize, first: &Instance<'_>, second: &Instance<'_>) -> ListingFault {
    ListingFault::Race { device, byte, first: first.describe(), second: second.describe() }
}

/// For each lane, the position of its last command that happens before `vertex` or is part of it.
fn clock_of(
    joined: &Joined<'_>,
    vertex: NodeIndex,
    lanes: usize,
    clocks: &mut [Option<Vec<u32>>],
    pending: &mut [usize],
) -> Vec<u32> {
    let mut clock = vec![0; lanes];
    for before in joined.graph.neighbors_directed(vertex, petgraph::Incoming) {
        let known = clocks[before.index()].as_ref().expect("vertices come in topological order");
        for (mine, &theirs) in clock.iter_mut().zip(known) {
            *mine = theirs.max(*mine);
        }
        pending[before.index()] -= 1;
        if pending[before.index()] == 0 {
            clocks[before.index()] = None;
        }
    }
    for &at in &joined.graph[vertex] {
        let instance = &joined.instances[at];
        clock[instance.lane] = instance.position;
    }
    clock
}

/// Every byte at which an access starts or ends, by device.
fn boundaries(joined: &Joined<'_>) -> BTreeMap<usize, Vec<usize>> {
    let mut cuts: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for instance in &joined.instances {
        for span in instance.command.reads.iter().chain(&instance.command.writes) {
            let start = span.start_at(instance.iteration);
            cuts.entry(span.device).or_default().extend([start, start + span.len]);
        }
    }
    for list in cuts.values_mut() {
        list.sort_unstable();
        list.dedup();
    }
    cuts
}

/// The starts of the pieces between `start` and `end`.
fn range(cuts: &BTreeMap<usize, Vec<usize>>, device: usize, start: usize, end: usize) -> &[usize] {
    let list = &cuts[&device];
    &list[list.partition_point(|&c| c < start)..list.partition_point(|&c| c < end)]
}

#[cfg(test)]
mod tests;
