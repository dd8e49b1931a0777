//! The order of a pipelined step of training.
//!
//! The nodes of such a step say in which segment, for which micro-batch and on which way they are computed
//! ([`Turn`]). A device runs its nodes in the order of the graph, so a schedule is an order of the nodes. Schedules, with
//! F a micro-batch's way forward, B the gradients that the segment before waits for, W those of its weights:
//!
//! * GPipe: all F, then all B and W.
//! * 1F1B: the last segment does B right after F; earlier ones run ahead by as many F as segments follow.
//! * Zero bubble: as 1F1B, with W put off to where the device would wait (Qi et al., "Zero Bubble Pipeline Parallelism",
//!   2023): whenever it can, a device does B, else F while fewer than two micro-batches are under way, else W.

use cranelift_entity::SecondaryMap;
use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, NodeId, Rewriter, Turn, Value, Way};
use std::fmt;

/// In which order segments work on micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Schedule {
    /// All forward, then all backward.
    GPipe,
    /// One forward, one backward.
    #[default]
    OneForwardOneBackward,
    /// The gradients of weights fill the gaps.
    ZeroBubble,
}

impl Schedule {
    /// All of them.
    pub const ALL: [Schedule; 3] = [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubble];

    /// The name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Schedule::GPipe => "gpipe",
            Schedule::OneForwardOneBackward => "1f1b",
            Schedule::ZeroBubble => "zero-bubble",
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a segment does for a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Work {
    Forward,
    Backward,
    Weights,
}

/// The pieces of work of a segment, in order: work and micro-batch.
type Sequence = Vec<(Work, usize)>;

/// Micro-batches that are under way at once in a segment of a zero-bubble schedule.
const UNDER_WAY: usize = 2;

/// The graph with its nodes in the order of a schedule. What belongs to no micro-batch comes as early as something needs
/// it, or last.
pub fn order(graph: &Graph, schedule: Schedule) -> Result<Graph, TypeError> {
    let turns = graph.nodes.values().filter_map(|n| n.origin.turn());
    let (segments, pieces) = turns.fold((0, 0), |(s, p), t| (s.max(t.segment + 1), p.max(t.micro_batch + 1)));
    let works = works(graph, schedule);
    let mut work: Vec<Vec<NodeId>> = vec![Vec::new(); segments * pieces * 3];
    let slot = |segment: usize, work: Work, piece: usize| (segment * pieces + piece) * 3 + work as usize;
    for (id, node) in &graph.nodes {
        if let (Some(t), Some(w)) = (node.origin.turn(), works[id]) {
            work[slot(t.segment, w, t.micro_batch)].push(id);
        }
    }
    let sequences = sequences(schedule, segments, pieces);
    let mut emitter = Emitter { rewriter: Rewriter::new(graph), done: SecondaryMap::new() };
    for (segment, w, piece) in merged(&sequences) {
        for &id in &work[slot(segment, w, piece)] {
            emitter.emit(id)?;
        }
    }
    for id in graph.nodes.keys() {
        emitter.emit(id)?;
    }
    Ok(emitter.rewriter.finish())
}

/// What each node of a micro-batch is part of.
fn works(graph: &Graph, schedule: Schedule) -> SecondaryMap<NodeId, Option<Work>> {
    // Values that another segment, or what leads to it, needs.
    let mut needed: SecondaryMap<Value, bool> = SecondaryMap::new();
    let mut works: SecondaryMap<NodeId, Option<Work>> = SecondaryMap::new();
    let segment = |t: Option<Turn>| t.map(|t| t.segment);
    for (id, node) in graph.nodes.iter().rev() {
        let turn = node.origin.turn();
        let is_needed = node.results.iter().any(|r| needed[*r]);
        works[id] = turn.map(|t| match (t.way, schedule) {
            (Way::Forward, _) => Work::Forward,
            (Way::Backward, Schedule::ZeroBubble) if !is_needed => Work::Weights,
            (Way::Backward, _) => Work::Backward,
        });
        for &arg in &node.args {
            let from = graph.def_node(arg).map(|d| graph.nodes[d].origin.turn());
            let crosses = from.is_some_and(|f| f.is_some() && turn.is_some() && segment(f) != segment(turn));
            needed[arg] |= crosses || (turn.is_some() && is_needed);
        }
    }
    works
}

/// Each segment's work in order.
fn sequences(schedule: Schedule, segments: usize, pieces: usize) -> Vec<Sequence> {
    match schedule {
        Schedule::GPipe => {
            let all = |w: Work| (0..pieces).map(move |p| (w, p));
            vec![all(Work::Forward).chain(all(Work::Backward)).collect(); segments]
        }
        Schedule::OneForwardOneBackward => (0..segments).map(|s| one_by_one(segments - 1 - s, pieces)).collect(),
        Schedule::ZeroBubble => zero_bubble(segments, pieces),
    }
}

/// `ahead` micro-batches forward, then one forward and one backward in turn.
fn one_by_one(ahead: usize, pieces: usize) -> Sequence {
    let ahead = ahead.min(pieces);
    let mut sequence: Sequence = (0..ahead).map(|p| (Work::Forward, p)).collect();
    for p in 0..pieces {
        if p + ahead < pieces {
            sequence.push((Work::Forward, p + ahead));
        }
        sequence.push((Work::Backward, p));
    }
    sequence
}

/// Greedy in time, every piece of work taking as long.
fn zero_bubble(segments: usize, pieces: usize) -> Vec<Sequence> {
    let mut sequences: Vec<Sequence> = vec![Vec::new(); segments];
    // When each piece of work is done, by segment and micro-batch.
    let mut done = [Work::Forward, Work::Backward, Work::Weights].map(|_| vec![vec![usize::MAX; pieces]; segments]);
    let mut next = vec![[0; 3]; segments];
    for now in 0.. {
        if next.iter().all(|n| n[Work::Weights as usize] == pieces) {
            break;
        }
        for s in 0..segments {
            let [f, b, w] = next[s];
            let is_done = |work: Work, segment: usize, piece: usize| done[work as usize][segment][piece] <= now;
            let can_back =
                b < f && is_done(Work::Forward, s, b) && (s + 1 == segments || is_done(Work::Backward, s + 1, b));
            let can_go = f < pieces
                && f - w.min(b) < UNDER_WAY.max(segments - s)
                && (s == 0 || is_done(Work::Forward, s - 1, f));
            let (work, piece) = match (can_back, can_go, w < b) {
                (true, _, _) => (Work::Backward, b),
                (false, true, _) => (Work::Forward, f),
                (false, false, true) => (Work::Weights, w),
                (false, false, false) => continue,
            };
            sequences[s].push((work, piece));
            done[work as usize][s][piece] = now + 1;
            next[s][work as usize] += 1;
        }
    }
    sequences
}

/// All segments' work in one order in which nothing waits for what comes later.
fn merged(sequences: &[Sequence]) -> Vec<(usize, Work, usize)> {
    let mut order: Vec<(usize, Work, usize)> = Vec::new();
    let mut at = vec![0; sequences.len()];
    let total: usize = sequences.iter().map(Vec::len).sum();
    while order.len() < total {
        let before = order.len();
        for (s, sequence) in sequences.iter().enumerate() {
            let Some(&(work, piece)) = sequence.get(at[s]) else { continue };
            let has = |segment: usize, work: Work| order.contains(&(segment, work, piece));
            let ready = match work {
                Work::Forward => s == 0 || has(s - 1, Work::Forward),
                Work::Backward => has(s, Work::Forward) && (s + 1 == sequences.len() || has(s + 1, Work::Backward)),
                Work::Weights => has(s, Work::Backward),
            };
            if ready {
                order.push((s, work, piece));
                at[s] += 1;
            }
        }
        assert!(order.len() > before, "schedules of segments wait for each other in a circle");
    }
    order
}

/// Copies nodes in any order, what they need before them.
struct Emitter<'g> {
    rewriter: Rewriter<'g>,
    done: SecondaryMap<NodeId, bool>,
}

impl Emitter<'_> {
    fn emit(&mut self, id: NodeId) -> Result<(), TypeError> {
        let graph = self.rewriter.old();
        let mut open = vec![id];
        while let Some(&id) = open.last() {
            if self.done[id] {
                open.pop();
                continue;
            }
            let first = open.len();
            let needed = graph.nodes[id].args.iter().filter_map(|a| graph.def_node(*a));
            open.extend(needed.filter(|d| !self.done[*d]));
            if open.len() == first {
                self.rewriter.copy(id)?;
                self.done[id] = true;
                open.pop();
            } else {
                // In the order of the graph.
                open[first..].sort_unstable_by(|a, b| b.cmp(a));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{DType, Origin, Type, interp, verify};

    fn text(sequence: &Sequence) -> String {
        let letter = |w: Work| match w {
            Work::Forward => 'F',
            Work::Backward => 'B',
            Work::Weights => 'W',
        };
        sequence.iter().map(|(w, p)| format!("{}{p} ", letter(*w))).collect::<String>().trim_end().to_string()
    }

    #[test]
    fn one_forward_one_backward_is_that_of_the_literature() {
        let s = sequences(Schedule::OneForwardOneBackward, 2, 4);
        assert_eq!(text(&s[0]), "F0 F1 B0 F2 B1 F3 B2 B3");
        assert_eq!(text(&s[1]), "F0 B0 F1 B1 F2 B2 F3 B3");
    }

    #[test]
    fn zero_bubble_fills_the_gaps_with_weights() {
        // Measured in the literature's unit times: 13 in place of 15 steps for four micro-batches with two under way.
        for (pieces, most) in [(4, 13), (8, 25)] {
            let s = sequences(Schedule::ZeroBubble, 2, pieces);
            for one in &s {
                assert_eq!(one.len(), 3 * pieces);
            }
            let mut clock = [0usize; 2];
            let mut done = std::collections::BTreeMap::new();
            for (segment, work, piece) in merged(&s) {
                let of = |s: usize, w: Work| done.get(&(s, w, piece)).copied().unwrap_or(0);
                let after = match work {
                    Work::Forward if segment == 1 => of(0, Work::Forward),
                    Work::Backward if segment == 0 => of(1, Work::Backward),
                    Work::Forward | Work::Backward | Work::Weights => 0,
                };
                clock[segment] = clock[segment].max(after) + 1;
                done.insert((segment, work, piece), clock[segment]);
            }
            assert!(clock[0].max(clock[1]) <= most, "{pieces} micro-batches take {clock:?}");
        }
    }

    #[test]
    fn an_ordered_graph_computes_the_same() {
        let mut g = Graph::new("m");
        let ty = Type::new(DType::F32, [2]);
        let x = g.input("x", ty, intwain_ir::Rows::Batched);
        let mut values = Vec::new();
        for micro_batch in 0..3 {
            let at = |segment, way| Origin::default().in_turn(Some(Turn { segment, micro_batch, way }));
            let mut v = x;
            for (segment, way) in [(0, Way::Forward), (1, Way::Forward), (1, Way::Backward), (0, Way::Backward)] {
                g.origin = at(segment, way);
                v = g.add(v, x).unwrap();
            }
            values.push(v);
        }
        g.origin = Origin::default();
        let sum = g.add(values[0], values[2]).unwrap();
        g.output("y", sum);
        let x = intwain_ir::Tensor::from_f32([2], &[1.0, 2.0]);
        let want = interp::run(&g, vec![x.clone()]).unwrap();
        for schedule in Schedule::ALL {
            let ordered = order(&g, schedule).unwrap();
            assert_eq!(verify(&ordered), Ok(()));
            assert_eq!(ordered.nodes.len(), g.nodes.len());
            assert_eq!(interp::run(&ordered, vec![x.clone()]).unwrap(), want);
        }
    }
}
