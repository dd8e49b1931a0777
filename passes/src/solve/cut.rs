//! The best cut of a graph of operations into two segments, one per device.
//!
//! A cut is a downset: whatever an operation of the first segment reads is made in the first segment. Candidates are all
//! prefixes of several topological orders, the ancestors of every operation (which contain every cut at a dominator),
//! and what single moves across the cut reach from the best of them. On a chain this is exhaustive.
//!
//! With `m` micro-batches, `t0` and `t1` the times of the segments for one and `x` that of what crosses,
//! the step takes `t0 + t1 + c·x + (m − 1)·max(t0, t1, x)`, where `c` counts the crossings: one forward, two with gradients.

use super::cut_orders;
use std::cmp::Ordering;

/// A graph to be cut; operations are in a topological order.
#[derive(Clone, Debug)]
pub struct CutProblem {
    /// The operations.
    pub ops: Vec<CutOp>,
    /// What they pass to each other.
    pub values: Vec<CutValue>,
    /// What they read that nobody makes; kept by each segment that reads it.
    pub weights: Vec<CutWeight>,
    /// Bytes of memory of each device.
    pub memory: [f64; 2],
    /// Seconds before the first byte arrives.
    pub latency: f64,
    /// Seconds per byte that crosses.
    pub seconds_per_byte: f64,
    /// Allowed numbers of micro-batches; not empty.
    pub micro_batches: Vec<usize>,
    /// Whether gradients travel back.
    pub crossing: Crossing,
    /// The share of `share` that each segment should have at least.
    pub min_share: f64,
    /// Operations that a certain device must run.
    pub pins: Vec<(usize, usize)>,
}

/// One operation.
#[derive(Clone, Debug)]
pub struct CutOp {
    /// Seconds on each device that every micro-batch costs.
    pub overhead: [f64; 2],
    /// Seconds on each device for the whole batch; a micro-batch takes its part.
    pub work: [f64; 2],
    /// What the operation counts for balance, e.g. its flops.
    pub share: f64,
    /// Bytes live while it runs, for the whole batch.
    pub live: f64,
}

/// A value made by one operation and read by others.
#[derive(Clone, Debug)]
pub struct CutValue {
    /// The operation that makes it.
    pub producer: usize,
    /// The operations that read it.
    pub consumers: Vec<usize>,
    /// Its size for the whole batch.
    pub bytes: f64,
}

/// A weight and who reads it.
#[derive(Clone, Debug)]
pub struct CutWeight {
    /// Its size, with all state that goes with it.
    pub bytes: f64,
    /// The operations that read it.
    pub users: Vec<usize>,
}

/// How often what crosses the cut crosses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crossing {
    /// Activations go forward.
    Forward,
    /// Gradients come back too.
    ForwardBackward,
}

/// The part of a pipelined model that one device runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Segment {
    /// Runs first.
    First,
    /// Reads what the first makes.
    Second,
}

/// A cut with its predicted cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The segment of each operation.
    pub segments: Vec<Segment>,
    /// The device that runs the first and the second segment.
    pub devices: [usize; 2],
    /// Number of micro-batches.
    pub micro_batches: usize,
    /// Seconds for the whole batch.
    pub time: f64,
    /// Seconds of each segment for one micro-batch.
    pub segment_times: [f64; 2],
    /// Bytes that cross for the whole batch, one way.
    pub crossing_bytes: f64,
    /// Share of each segment in the sum of `share`.
    pub shares: [f64; 2],
    /// Bytes of memory that each segment needs.
    pub memory: [f64; 2],
    /// How many cuts were priced.
    pub considered: usize,
}

/// Prefixes priced per order; longer orders are sampled evenly.
const MAX_PREFIXES: usize = 2048;
/// Cuts from which the climb starts.
const STARTS: usize = 4;
/// Steps of one climb.
const MAX_CLIMB: usize = 400;

impl CutProblem {
    /// The best cut with two non-empty segments; `None` if there are fewer than two operations.
    pub fn solve(&self) -> Option<Cut> {
        let readers = self.readers();
        let mut best: Vec<Cut> = Vec::new();
        let mut considered = 0;
        let mut consider = |first: &[bool]| {
            if let Some(cut) = self.price(first) {
                considered += 1;
                self.keep(&mut best, cut);
            }
        };
        for order in cut_orders::orders(self, &readers) {
            let step = order.len().div_ceil(MAX_PREFIXES).max(1);
            let mut first = vec![false; self.ops.len()];
            for (at, &op) in order.iter().enumerate() {
                first[op] = true;
                if at % step == 0 {
                    consider(&first);
                }
            }
        }
        let step = self.ops.len().div_ceil(MAX_PREFIXES).max(1);
        for op in (0..self.ops.len()).step_by(step) {
            consider(&cut_orders::ancestors(op, &readers));
        }
        let starts = best.clone();
        for start in starts {
            let reached = self.climb(start, &readers, &mut considered);
            self.keep(&mut best, reached);
        }
        let mut cut = best.into_iter().next()?;
        cut.considered = considered;
        Some(cut)
    }

    /// For each operation, the operations it reads from and those that read from it.
    fn readers(&self) -> cut_orders::Adjacency {
        let mut adjacency = cut_orders::Adjacency::new(self.ops.len());
        for value in &self.values {
            for &consumer in &value.consumers {
                adjacency.connect(value.producer, consumer);
            }
        }
        adjacency.sort();
        adjacency
    }

    /// Keeps the few best, best first; of equal ones those found earlier.
    fn keep(&self, best: &mut Vec<Cut>, cut: Cut) {
        let at = best.partition_point(|kept| compare(kept, &cut, self) != Ordering::Greater);
        if at < STARTS && (at == 0 || best[at - 1].segments != cut.segments) {
            best.insert(at, cut);
            best.truncate(STARTS);
        }
    }

    fn climb(&self, start: Cut, readers: &cut_orders::Adjacency, considered: &mut usize) -> Cut {
        let mut here = start;
        for _ in 0..MAX_CLIMB {
            let mut first: Vec<bool> = here.segments.iter().map(|&s| s == Segment::First).collect();
            let mut better: Option<Cut> = None;
            for op in 0..self.ops.len() {
                let movable = if first[op] {
                    readers.after[op].iter().all(|&o| !first[o])
                } else {
                    readers.before[op].iter().all(|&o| first[o])
                };
                if !movable {
                    continue;
                }
                first[op] = !first[op];
                if let Some(cut) = self.price(&first) {
                    *considered += 1;
                    if compare(&cut, better.as_ref().unwrap_or(&here), self) == Ordering::Less {
                        better = Some(cut);
                    }
                }
                first[op] = !first[op];
            }
            match better {
                Some(cut) => here = cut,
                None => break,
            }
        }
        here
    }

    /// The cut with this first segment, in the better order of devices and number of micro-batches.
    pub fn price(&self, first: &[bool]) -> Option<Cut> {
        let mut sums = Sums::default();
        for (op, &in_first) in self.ops.iter().zip(first) {
            sums.add(op, usize::from(!in_first));
        }
        if sums.ops.contains(&0) {
            return None;
        }
        let crossing_bytes: f64 = self
            .values
            .iter()
            .filter(|v| first[v.producer] && v.consumers.iter().any(|&c| !first[c]))
            .map(|v| v.bytes)
            .sum();
        let mut weights = [0.0; 2];
        for weight in &self.weights {
            for (segment, bytes) in weights.iter_mut().enumerate() {
                if weight.users.iter().any(|&u| first[u] == (segment == 0)) {
                    *bytes += weight.bytes;
                }
            }
        }
        let mut best: Option<Cut> = None;
        for devices in [[0, 1], [1, 0]] {
            for &m in &self.micro_batches {
                let cut = self.timed(first, &sums, weights, crossing_bytes, devices, m);
                if best.as_ref().is_none_or(|b| compare(&cut, b, self) == Ordering::Less) {
                    best = Some(cut);
                }
            }
        }
        best
    }

    fn timed(&self, first: &[bool], sums: &Sums, weights: [f64; 2], bytes: f64, devices: [usize; 2], m: usize) -> Cut {
        let parts = m as f64;
        let times = [0, 1].map(|s: usize| sums.overhead[s][devices[s]] + sums.work[s][devices[s]] / parts);
        let x = if bytes > 0.0 { self.latency + bytes / parts * self.seconds_per_byte } else { 0.0 };
        let crossings = match self.crossing {
            Crossing::Forward => 1.0,
            Crossing::ForwardBackward => 2.0,
        };
        let time = times[0] + times[1] + crossings * x + (parts - 1.0) * times[0].max(times[1]).max(x);
        let total = (sums.share[0] + sums.share[1]).max(f64::MIN_POSITIVE);
        let segments = first.iter().map(|&f| if f { Segment::First } else { Segment::Second }).collect();
        Cut {
            segments,
            devices,
            micro_batches: m,
            time,
            segment_times: times,
            crossing_bytes: bytes,
            shares: [sums.share[0] / total, sums.share[1] / total],
            memory: [0, 1].map(|s: usize| weights[s] + sums.live[s] / parts + 2.0 * bytes / parts),
            considered: 0,
        }
    }
}

/// Sums over the operations of each segment.
#[derive(Default)]
struct Sums {
    ops: [usize; 2],
    overhead: [[f64; 2]; 2],
    work: [[f64; 2]; 2],
    share: [f64; 2],
    live: [f64; 2],
}

impl Sums {
    fn add(&mut self, op: &CutOp, segment: usize) {
        self.ops[segment] += 1;
        for device in 0..2 {
            self.overhead[segment][device] += op.overhead[device];
            self.work[segment][device] += op.work[device];
        }
        self.share[segment] += op.share;
        self.live[segment] = self.live[segment].max(op.live);
    }
}

/// Cuts that obey pins, fit and are balanced come first, then the faster, then the one with less to send.
fn compare(a: &Cut, b: &Cut, problem: &CutProblem) -> Ordering {
    let disobeyed = |cut: &Cut| {
        let device = |op: usize| cut.devices[usize::from(cut.segments[op] == Segment::Second)];
        problem.pins.iter().filter(|&&(op, wanted)| device(op) != wanted).count()
    };
    let lacking = |cut: &Cut| cut.shares.iter().map(|&s| (problem.min_share - s).max(0.0)).fold(0.0, f64::max);
    let excess = |cut: &Cut| {
        let over = |s: usize| (cut.memory[s] - problem.memory[cut.devices[s]]).max(0.0);
        over(0).max(over(1))
    };
    disobeyed(a)
        .cmp(&disobeyed(b))
        .then(excess(a).total_cmp(&excess(b)))
        .then(lacking(a).total_cmp(&lacking(b)))
        .then(a.time.total_cmp(&b.time))
        .then(a.crossing_bytes.total_cmp(&b.crossing_bytes))
}

#[cfg(test)]
mod tests;
