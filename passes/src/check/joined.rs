//! The command lists of all devices as one graph: a vertex per command, or per communication that joins several.
//!
//! Loops are unrolled. Edges are the order within a stream, events, and the slots of rings: a message arrives after it
//! was sent, and a slot is written again after it was given back.

use crate::listing::{Action, Command, Listing, Message, Stream};
use petgraph::graph::{DiGraph, NodeIndex};
use std::collections::BTreeMap;

/// One execution of a command.
#[derive(Clone, Debug)]
pub(crate) struct Instance<'a> {
    pub(crate) command: &'a Command,
    pub(crate) device: usize,
    /// Of the innermost loop.
    pub(crate) iteration: usize,
    /// Index of its (device, stream).
    pub(crate) lane: usize,
    /// How many came before it in its lane, plus one.
    pub(crate) position: u32,
}

impl Instance<'_> {
    pub(crate) fn describe(&self) -> String {
        let Instance { command, device, iteration, .. } = self;
        if *iteration == 0 {
            format!("device {device}: {}", command.label)
        } else {
            format!("device {device}: {} (iteration {iteration})", command.label)
        }
    }
}

/// The joined graph. Vertices hold indices of instances.
pub(crate) struct Joined<'a> {
    pub(crate) instances: Vec<Instance<'a>>,
    pub(crate) graph: DiGraph<Vec<usize>, ()>,
    pub(crate) lanes: Vec<(usize, Stream)>,
}

/// Ways in which lists cannot be joined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JoinFault {
    /// A send without receive, a receive without send, or a collective in which a device does not take part.
    #[error("channel {channel}: {what} has no partner")]
    Unmatched {
        /// The channel.
        channel: u32,
        /// The command.
        what: String,
    },
    /// Two ends disagree.
    #[error("channel {channel}: {first} and {second} meet but differ: {first_message} against {second_message}")]
    Mismatch {
        /// The channel.
        channel: u32,
        /// One end.
        first: String,
        /// The other.
        second: String,
        /// What the first moves.
        first_message: String,
        /// What the second expects.
        second_message: String,
    },
    /// A wait for an event that nothing before it signals.
    #[error("{what} waits for event {event}, which nothing before it signals")]
    NeverSignalled {
        /// The event.
        event: u32,
        /// The command that waits.
        what: String,
    },
    /// Unrolled, the lists are longer than can be checked.
    #[error("the lists unroll to more than {limit} commands")]
    TooLong {
        /// The most that is checked.
        limit: usize,
    },
}

/// Most commands after unrolling.
const LIMIT: usize = 2_000_000;

pub(crate) fn join(listing: &Listing) -> Result<Joined<'_>, Vec<JoinFault>> {
    let mut joined = Joined { instances: Vec::new(), graph: DiGraph::new(), lanes: Vec::new() };
    for (device, commands) in listing.devices.iter().enumerate() {
        if !joined.unroll(device, commands, 0) {
            return Err(vec![JoinFault::TooLong { limit: LIMIT }]);
        }
    }
    let mut faults = Vec::new();
    let channels = Channels::collect(&joined.instances);
    let vertex = joined.add_vertices(listing, &channels, &mut faults);
    joined.order_lanes(&vertex);
    joined.order_events(&vertex, &mut faults);
    channels.order_rings(listing, &vertex, &mut joined.graph);
    if faults.is_empty() { Ok(joined) } else { Err(faults) }
}

impl<'a> Joined<'a> {
    fn unroll(&mut self, device: usize, commands: &'a [Command], iteration: usize) -> bool {
        for command in commands {
            if let Action::Loop { count, body } = &command.action {
                for i in 0..*count {
                    if !self.unroll(device, body, i) {
                        return false;
                    }
                }
                continue;
            }
            let key = (device, command.stream);
            let lane = self.lanes.iter().position(|&l| l == key).unwrap_or_else(|| {
                self.lanes.push(key);
                self.lanes.len() - 1
            });
            self.instances.push(Instance { command, device, iteration, lane, position: 0 });
            if self.instances.len() > LIMIT {
                return false;
            }
        }
        true
    }

    /// One vertex per command; commands that meet share one.
    fn add_vertices(&mut self, listing: &Listing, channels: &Channels, faults: &mut Vec<JoinFault>) -> Vec<NodeIndex> {
        let mut vertex: Vec<Option<NodeIndex>> = vec![None; self.instances.len()];
        let mut groups = channels.pairs(&self.instances, faults);
        groups.retain(|(channel, _)| !listing.rings.contains_key(channel));
        groups.extend(channels.collectives(&self.instances, faults));
        for (_, group) in groups {
            let node = self.graph.add_node(group.clone());
            for instance in group {
                vertex[instance] = Some(node);
            }
        }
        let graph = &mut self.graph;
        vertex.into_iter().enumerate().map(|(i, v)| v.unwrap_or_else(|| graph.add_node(vec![i]))).collect()
    }

    fn order_lanes(&mut self, vertex: &[NodeIndex]) {
        let mut last: Vec<Option<usize>> = vec![None; self.lanes.len()];
        for at in 0..self.instances.len() {
            let lane = self.instances[at].lane;
            let before = last[lane].replace(at);
            self.instances[at].position = before.map_or(1, |b| self.instances[b].position + 1);
            if let Some(before) = before {
                self.graph.add_edge(vertex[before], vertex[at], ());
            }
        }
    }

    fn order_events(&mut self, vertex: &[NodeIndex], faults: &mut Vec<JoinFault>) {
        let mut signalled: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (at, instance) in self.instances.iter().enumerate() {
            for &event in &instance.command.waits {
                match signalled.get(&(instance.device, event)) {
                    Some(&by) => {
                        self.graph.add_edge(vertex[by], vertex[at], ());
                    }
                    None => faults.push(JoinFault::NeverSignalled { event, what: instance.describe() }),
                }
            }
            if let Some(event) = instance.command.signals {
                signalled.insert((instance.device, event), at);
            }
        }
    }
}

/// Instances by channel, each list in order of execution.
#[derive(Default)]
struct Channels {
    sends: BTreeMap<u32, Vec<usize>>,
    recvs: BTreeMap<u32, Vec<usize>>,
    releases: BTreeMap<u32, Vec<usize>>,
    collectives: BTreeMap<u32, BTreeMap<usize, Vec<usize>>>,
}

impl Channels {
    fn collect(instances: &[Instance<'_>]) -> Channels {
        let mut all = Channels::default();
        for (at, instance) in instances.iter().enumerate() {
            match &instance.command.action {
                Action::Send { channel, .. } => all.sends.entry(*channel).or_default().push(at),
                Action::Recv { channel, .. } => all.recvs.entry(*channel).or_default().push(at),
                Action::Release { channel } => all.releases.entry(*channel).or_default().push(at),
                Action::Collective { channel, .. } => {
                    all.collectives.entry(*channel).or_default().entry(instance.device).or_default().push(at);
                }
                Action::Work | Action::Loop { .. } => {}
            }
        }
        all
    }

    /// Every send with its receive.
    fn pairs(&self, instances: &[Instance<'_>], faults: &mut Vec<JoinFault>) -> Vec<(u32, Vec<usize>)> {
        let mut groups = Vec::new();
        let channels: std::collections::BTreeSet<u32> = self.sends.keys().chain(self.recvs.keys()).copied().collect();
        for channel in channels {
            let (sends, recvs) = (ends(&self.sends, channel), ends(&self.recvs, channel));
            for (&send, &recv) in sends.iter().zip(recvs) {
                compare(channel, &instances[send], &instances[recv], faults);
                if instances[send].device == instances[recv].device {
                    faults.push(JoinFault::Unmatched { channel, what: instances[recv].describe() });
                }
                groups.push((channel, vec![send, recv]));
            }
            let longer = if sends.len() > recvs.len() { sends } else { recvs };
            for &alone in &longer[sends.len().min(recvs.len())..] {
                faults.push(JoinFault::Unmatched { channel, what: instances[alone].describe() });
            }
        }
        groups
    }

    /// Every collective with all that take part.
    fn collectives(&self, instances: &[Instance<'_>], faults: &mut Vec<JoinFault>) -> Vec<(u32, Vec<usize>)> {
        let mut groups = Vec::new();
        for (&channel, by_device) in &self.collectives {
            let most = by_device.values().map(Vec::len).max().unwrap_or(0);
            for k in 0..most {
                let group: Vec<usize> = by_device.values().filter_map(|list| list.get(k).copied()).collect();
                if group.len() < by_device.len().max(2) {
                    let what = instances[group[0]].describe();
                    faults.push(JoinFault::Unmatched { channel, what });
                }
                for &other in &group[1..] {
                    compare(channel, &instances[group[0]], &instances[other], faults);
                }
                groups.push((channel, group));
            }
        }
        groups
    }

    fn order_rings(&self, listing: &Listing, vertex: &[NodeIndex], graph: &mut DiGraph<Vec<usize>, ()>) {
        for (&channel, &slots) in &listing.rings {
            let (sends, recvs) = (ends(&self.sends, channel), ends(&self.recvs, channel));
            for (&send, &recv) in sends.iter().zip(recvs) {
                graph.add_edge(vertex[send], vertex[recv], ());
            }
            let given_back = self.releases.get(&channel).map_or(recvs, Vec::as_slice);
            for (&free, &send) in given_back.iter().zip(sends.iter().skip(slots)) {
                graph.add_edge(vertex[free], vertex[send], ());
            }
        }
    }
}

fn ends(lists: &BTreeMap<u32, Vec<usize>>, channel: u32) -> &[usize] {
    lists.get(&channel).map_or(&[], Vec::as_slice)
}

fn message<'a>(instance: &Instance<'a>) -> Option<&'a Message> {
    match &instance.command.action {
        Action::Send { message, .. } | Action::Recv { message, .. } | Action::Collective { message, .. } => {
            Some(message)
        }
        Action::Work | Action::Release { .. } | Action::Loop { .. } => None,
    }
}

fn compare(channel: u32, first: &Instance<'_>, second: &Instance<'_>, faults: &mut Vec<JoinFault>) {
    let (a, b) = (message(first), message(second));
    if a != b {
        let show = |m: Option<&Message>| {
            m.map_or_else(|| "nothing".to_owned(), |m| format!("{} of {} bytes of {}", m.kind, m.bytes, m.dtype))
        };
        faults.push(JoinFault::Mismatch {
            channel,
            first: first.describe(),
            second: second.describe(),
            first_message: show(a),
            second_message: show(b),
        });
    }
}
