//! Which values to give up.
//!
//! What counts is by how much memory is exceeded, added up over steps and devices. Values are given up one by one, each
//! time the one that lowers this most per second of work, as in XLA's rematerialisation with time in place of size. The
//! gain of a value only falls while others are given up, nearly always, so that few are measured anew in each round.
//! Beside that the way of the literature is tried (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016):
//! the nodes are divided into as many segments of equal memory as is best, and what only its own segment reads is given up.
//! At the end, whatever need not be given up is kept after all, the most expensive first.

use super::lives::{Lives, peaks};
use super::sequence::{self, Fixed, GivenUp, Step};
use cranelift_entity::SecondaryMap;
use intwain_ir::{Def, NodeId};

/// A value that is smaller than the largest by this factor is kept rather than computed again for another.
const SMALL: f64 = 1.0 / 64.0;
/// Most segments that are tried.
const MOST_SEGMENTS: usize = 256;

/// What memory is short of and what computing again costs.
#[derive(Debug)]
pub(crate) struct Problem<'g> {
    /// What lives when.
    pub(crate) lives: Lives<'g>,
    /// Seconds of each node.
    pub(crate) seconds: SecondaryMap<NodeId, f64>,
    /// Nodes for which devices exchange something.
    pub(crate) exchanges: SecondaryMap<NodeId, bool>,
    /// Bytes that may live at once on each device.
    pub(crate) limits: Vec<f64>,
}

/// What is computed again.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    pub(super) steps: Vec<Step>,
    /// The values that are given up.
    pub(crate) given_up: Vec<intwain_ir::Value>,
    /// Most bytes that live at once on each device.
    pub(crate) peaks: Vec<f64>,
}

/// How good a choice is.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score {
    /// Bytes over the limits, added up over steps and devices.
    excess: f64,
    seconds: f64,
}

impl Score {
    fn is_better(self, than: Score) -> bool {
        (self.excess, self.seconds) < (than.excess, than.seconds)
    }
}

/// A value that may be given up.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    piece: usize,
    /// The last node that reads the first value.
    last: usize,
}

struct Search<'a> {
    problem: &'a Problem<'a>,
    fixed: Fixed,
    candidates: Vec<Candidate>,
}

/// The values whose giving up brings memory under the limits in least time, or as near to them as is found.
pub(crate) fn choose(problem: &Problem<'_>) -> Choice {
    let search = Search::new(problem);
    let nothing: GivenUp = vec![None; problem.lives.pieces.len()];
    let mut best = search.greedy(nothing);
    for segments in std::iter::successors(Some(2), |s| Some(s + (s / 4).max(1))).take_while(|s| *s <= MOST_SEGMENTS) {
        let found = search.segments(segments);
        let score = search.score(&found);
        if score.is_better(search.score(&best)) {
            best = found;
        }
    }
    let best = search.pruned(best);
    let steps = sequence::sequence(&problem.lives, &best, &search.fixed);
    let given_up = best.iter().enumerate().filter(|(_, g)| g.is_some());
    Choice {
        given_up: given_up.map(|(piece, _)| problem.lives.pieces[piece].root).collect(),
        peaks: peaks(&problem.lives.profile(&steps)),
        steps,
    }
}

impl Problem<'_> {
    /// Seconds of what runs again.
    pub(super) fn seconds_again(&self, steps: &[Step]) -> f64 {
        sequence::repeated(steps).map(|id| self.seconds[id]).sum()
    }
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>) -> Search<'a> {
        let lives = &problem.lives;
        let largest = |p: &super::lives::Piece| p.bytes.iter().copied().fold(0.0, f64::max);
        let most = lives.pieces.iter().map(largest).fold(0.0, f64::max);
        let small = lives.pieces.iter().map(|p| largest(p) < most * SMALL).collect();
        let fixed = Fixed { nodes: problem.exchanges.clone(), small };
        let mut search = Search { problem, fixed, candidates: Vec::new() };
        search.candidates = search.candidates();
        search
    }

    /// Values that live where memory is short, between two nodes that read them.
    fn candidates(&self) -> Vec<Candidate> {
        let lives = &self.problem.lives;
        let profile = lives.profile(&sequence::plain(lives.graph));
        let over = |step: usize| profile.iter().zip(&self.problem.limits).any(|(live, limit)| live[step] > *limit);
        // For each step how many before it are short of memory.
        let mut short = vec![0usize; lives.graph.nodes.len() + 1];
        for step in 0..lives.graph.nodes.len() {
            short[step + 1] = short[step] + usize::from(over(step));
        }
        let mut barred = vec![false; lives.pieces.len()];
        for (id, node) in &lives.graph.nodes {
            for piece in node.results.iter().filter_map(|r| lives.piece[*r]) {
                barred[piece] |= self.fixed.nodes[id];
            }
        }
        let mut candidates = Vec::new();
        for (piece, p) in lives.pieces.iter().enumerate() {
            let made = matches!(lives.graph.values[p.root].def, Def::Node(..));
            if p.kept || barred[piece] || !made || p.bytes.iter().all(|b| *b == 0.0) {
                continue;
            }
            let mut reads = vec![lives.defined(piece)];
            reads.extend(&p.reads);
            let gap = reads.windows(2).map(|w| (short[w[1]] - short[(w[0] + 1).min(w[1])], w[0])).max_by_key(|g| g.0);
            let Some((crossed, last)) = gap else { continue };
            let exchanged = p.reads.iter().any(|r| *r > last && self.fixed.nodes[sequence::node_at(*r)]);
            if crossed > 0 && !exchanged {
                candidates.push(Candidate { piece, last });
            }
        }
        candidates
    }

    fn score(&self, given_up: &GivenUp) -> Score {
        let lives = &self.problem.lives;
        let steps = sequence::sequence(lives, given_up, &self.fixed);
        let over = |(live, limit): (&Vec<f64>, &f64)| live.iter().map(|l| (l - limit).max(0.0)).sum::<f64>();
        let excess = lives.profile(&steps).iter().zip(&self.problem.limits).map(over).sum();
        Score { excess, seconds: self.problem.seconds_again(&steps) }
    }

    /// Gives up what gains most per second until memory suffices or nothing gains.
    fn greedy(&self, mut given_up: GivenUp) -> GivenUp {
        let mut now = self.score(&given_up);
        let mut left: Vec<(f64, Candidate)> = self.candidates.iter().map(|c| (f64::INFINITY, *c)).collect();
        let mut refused: Vec<(f64, Candidate)> = Vec::new();
        let mut gained = true;
        while now.excess > 0.0 {
            if left.is_empty() {
                // What gained nothing may gain now.
                if !std::mem::replace(&mut gained, false) || refused.is_empty() {
                    break;
                }
                left = refused.drain(..).map(|(_, c)| (f64::INFINITY, c)).collect();
            }
            let at = (0..left.len()).max_by(|a, b| left[*a].0.total_cmp(&left[*b].0).then(b.cmp(a)));
            let Some((_, candidate)) = at.map(|at| left.swap_remove(at)) else { break };
            given_up[candidate.piece] = Some(candidate.last);
            let score = self.score(&given_up);
            let gain = (now.excess - score.excess) / (score.seconds - now.seconds).max(1e-12);
            let next = left.iter().map(|l| l.0).fold(f64::NEG_INFINITY, f64::max);
            if gain > 0.0 && gain >= next {
                (now, gained) = (score, true);
                continue;
            }
            given_up[candidate.piece] = None;
            if gain > 0.0 {
                left.push((gain, candidate));
            } else {
                refused.push((gain, candidate));
            }
        }
        given_up
    }

    /// Gives up what no other of so many segments reads on the way to where memory is shortest.
    fn segments(&self, count: usize) -> GivenUp {
        let lives = &self.problem.lives;
        let total: f64 = self.candidates.iter().map(|c| lives.pieces[c.piece].bytes.iter().sum::<f64>()).sum();
        let mut segment = vec![0usize; lives.graph.nodes.len() + 1];
        let mut before = vec![0.0; lives.graph.nodes.len() + 1];
        for c in &self.candidates {
            before[lives.defined(c.piece)] += lives.pieces[c.piece].bytes.iter().sum::<f64>();
        }
        let mut sum = 0.0;
        for (place, bytes) in before.iter().enumerate() {
            segment[place] = ((sum / total.max(1.0) * count as f64) as usize).min(count - 1);
            sum += bytes;
        }
        let mut given_up: GivenUp = vec![None; lives.pieces.len()];
        for c in &self.candidates {
            if segment[lives.defined(c.piece)] == segment[c.last] {
                given_up[c.piece] = Some(c.last);
            }
        }
        given_up
    }

    /// Keeps what need not be given up, the most expensive first.
    fn pruned(&self, mut given_up: GivenUp) -> GivenUp {
        let mut now = self.score(&given_up);
        let lives = &self.problem.lives;
        let seconds =
            |piece: usize| lives.graph.def_node(lives.pieces[piece].root).map_or(0.0, |id| self.problem.seconds[id]);
        let mut order: Vec<usize> = (0..given_up.len()).filter(|p| given_up[*p].is_some()).collect();
        order.sort_by(|a, b| seconds(*b).total_cmp(&seconds(*a)).then(a.cmp(b)));
        for piece in order {
            let was = given_up[piece].take();
            let score = self.score(&given_up);
            if score.excess <= now.excess && score.seconds <= now.seconds {
                now = score;
            } else {
                given_up[piece] = was;
            }
        }
        given_up
    }
}

/// Seconds of the best of all choices that fit, for tests.
#[cfg(test)]
pub(super) fn exhaustive(problem: &Problem<'_>) -> Option<f64> {
    let search = Search::new(problem);
    let count = search.candidates.len();
    assert!(count < 20, "{count} values are too many to try all sets of them");
    let set = |bits: usize| {
        let mut given_up: GivenUp = vec![None; problem.lives.pieces.len()];
        for (_, c) in search.candidates.iter().enumerate().filter(|(at, _)| bits >> at & 1 == 1) {
            given_up[c.piece] = Some(c.last);
        }
        search.score(&given_up)
    };
    let fitting = (0..1usize << count).map(set).filter(|s| s.excess == 0.0).map(|s| s.seconds);
    fitting.min_by(f64::total_cmp)
}
