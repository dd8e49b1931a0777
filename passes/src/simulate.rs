//! Predicts when every command of a set of lists runs.
//!
//! Streams run their commands in order, a communication starts when all its ends have arrived and lasts as long as its
//! longest end says, and a command waits for its events. The result is the longest path through the joined graph; it
//! depends on nothing but the lists.

use crate::check::deadlock::{ListingFault, check};
use crate::check::joined::{Joined, join};
use crate::listing::{Listing, Stream};
use petgraph::algo::toposort;

/// When everything runs.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Seconds until the last command is done.
    pub makespan: f64,
    /// Every execution, by start, then device and stream.
    pub runs: Vec<Run>,
    /// Indices into `runs` that determine the makespan, in time order.
    pub critical: Vec<usize>,
}

/// One execution of a command.
#[derive(Clone, Debug)]
pub struct Run {
    /// The device.
    pub device: usize,
    /// Its stream.
    pub stream: Stream,
    /// The command's label.
    pub label: String,
    /// Seconds from the start of the step.
    pub start: f64,
    /// Seconds from the start of the step.
    pub end: f64,
    /// How long its stream stood still before it, and for what.
    pub idle: Option<(f64, String)>,
}

impl Timeline {
    /// Seconds for which a stream of a device is busy.
    pub fn busy(&self, device: usize, stream: Stream) -> f64 {
        self.runs.iter().filter(|r| (r.device, r.stream) == (device, stream)).map(|r| r.end - r.start).sum()
    }
}

/// Simulates the lists; they must pass the checks of order (races are not looked at here).
pub fn simulate(listing: &Listing) -> Result<Timeline, Vec<ListingFault>> {
    let joined = join(listing).map_err(|faults| faults.into_iter().map(ListingFault::from).collect::<Vec<_>>())?;
    let Ok(order) = toposort(&joined.graph, None) else { return Err(check(listing)) };
    let n = joined.graph.node_count();
    let (mut start, mut end, mut cause) = (vec![0.0f64; n], vec![0.0f64; n], vec![None; n]);
    for &vertex in &order {
        let at = vertex.index();
        let mut before: Vec<usize> =
            joined.graph.neighbors_directed(vertex, petgraph::Incoming).map(|b| b.index()).collect();
        before.sort_unstable();
        for b in before {
            if end[b] > start[at] {
                (start[at], cause[at]) = (end[b], Some(b));
            }
        }
        let members = &joined.graph[vertex];
        let lasts = members.iter().map(|&i| joined.instances[i].command.seconds).fold(0.0, f64::max);
        end[at] = start[at] + lasts;
    }
    Ok(timeline(&joined, &start, &end, &cause))
}

fn timeline(joined: &Joined<'_>, start: &[f64], end: &[f64], cause: &[Option<usize>]) -> Timeline {
    let mut vertex_of = vec![0; joined.instances.len()];
    for vertex in joined.graph.node_indices() {
        for &i in &joined.graph[vertex] {
            vertex_of[i] = vertex.index();
        }
    }
    let label = |vertex: usize| {
        let first = joined.graph[petgraph::graph::NodeIndex::new(vertex)][0];
        joined.instances[first].describe()
    };
    let mut free = vec![0.0; joined.lanes.len()];
    let mut runs = Vec::with_capacity(joined.instances.len());
    for (i, instance) in joined.instances.iter().enumerate() {
        let vertex = vertex_of[i];
        let waited = start[vertex] - free[instance.lane];
        let idle = cause[vertex].filter(|_| waited > 0.0).map(|by| (waited, label(by)));
        free[instance.lane] = end[vertex];
        let run = Run {
            device: instance.device,
            stream: instance.command.stream,
            label: instance.command.label.clone(),
            start: start[vertex],
            end: end[vertex],
            idle,
        };
        runs.push((vertex, run));
    }
    runs.sort_by(|(_, a), (_, b)| a.start.total_cmp(&b.start).then((a.device, a.stream).cmp(&(b.device, b.stream))));
    let mut last = (0..end.len()).fold(None, |best: Option<usize>, v| match best {
        Some(b) if end[b] >= end[v] => best,
        Some(_) | None => Some(v),
    });
    let makespan = last.map_or(0.0, |v| end[v]);
    let mut critical = Vec::new();
    while let Some(vertex) = last {
        critical.extend(runs.iter().position(|(v, _)| *v == vertex));
        last = cause[vertex];
    }
    critical.reverse();
    Timeline { makespan, runs: runs.into_iter().map(|(_, run)| run).collect(), critical }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::{Action, Command, Message};
    use intwain_ir::DType;

    fn timed(label: String, seconds: f64, action: Action) -> Command {
        Command { seconds, ..Command::new(label, Stream::Compute, action) }
    }

    /// A forward pipeline of `m` micro-batches with times 2 and 3 and a transfer of 1 on the copy stream.
    fn pipeline(m: usize) -> Listing {
        let message = || Message { kind: "send".to_owned(), bytes: 4, dtype: DType::F32 };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        for k in 0..m {
            let mut make = timed(format!("F{k}"), 2.0, Action::Work);
            make.signals = Some(k as u32);
            let mut send = timed(format!("send{k}"), 1.0, Action::Send { channel: 0, message: message() });
            (send.stream, send.waits) = (Stream::CopyOut, vec![k as u32]);
            first.extend([make, send]);
            let mut recv = timed(format!("recv{k}"), 0.0, Action::Recv { channel: 0, message: message() });
            (recv.stream, recv.signals) = (Stream::CopyIn, Some(k as u32));
            let mut apply = timed(format!("G{k}"), 3.0, Action::Work);
            apply.waits = vec![k as u32];
            second.extend([recv, apply]);
        }
        Listing { devices: vec![first, second], rings: Default::default() }
    }

    #[test]
    fn pipelines_take_what_the_formula_says() {
        for m in 1..6 {
            let timeline = simulate(&pipeline(m)).unwrap();
            assert_eq!(timeline.makespan, 2.0 + 1.0 + 3.0 + (m - 1) as f64 * 3.0);
            assert_eq!(timeline.busy(1, Stream::Compute), 3.0 * m as f64);
            let path: f64 = timeline.critical.iter().map(|&r| timeline.runs[r].end - timeline.runs[r].start).sum();
            assert_eq!(path, timeline.makespan);
        }
    }

    #[test]
    fn idle_time_names_its_cause() {
        let timeline = simulate(&pipeline(1)).unwrap();
        let second = timeline.runs.iter().find(|r| r.label == "G0").unwrap();
        assert_eq!(second.idle.as_ref().unwrap().0, 3.0);
        assert!(second.idle.as_ref().unwrap().1.contains("send0"));
    }
}
