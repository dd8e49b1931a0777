//! What exchanges of gradients are predicted to take.

use super::size::{self, Rates};
use super::{Exchanges, buckets, message_bytes};
use crate::cost::{CostModel, NodeWork, works};
use crate::hardware::{DeviceKind, DeviceSpec, Link};
use crate::listing::{Action, Command, Listing, Message, Stream};
use crate::partition::partition;
use crate::simulate::simulate;
use intwain_ir::ops::Op;
use intwain_ir::{DType, Graph, NodeId, Value};
use std::collections::BTreeMap;

/// Bytes of a bucket that are best for a graph at stage Explicit, up to the end of a tensor; `None` where nothing is to be
/// joined: on CPU devices, and where fewer than two gradients are exchanged.
pub fn choose(explicit: &Graph, model: &CostModel<'_>) -> Option<usize> {
    if model.hardware().devices.iter().any(|d| d.kind != DeviceKind::Gpu) {
        return None;
    }
    let early = buckets(explicit, None).ok()?;
    let ready = ready(&early, model)?;
    Some(size::rounded(&ready, &rates_of(&ready, model)))
}

/// What the size of buckets depends on: bytes of the gradients, and the time over which they appear. The first appears
/// after some time too; it is taken to be made as fast as the others. `None` where fewer than two are exchanged.
pub fn rates(explicit: &Graph, model: &CostModel<'_>) -> Option<Rates> {
    let early = buckets(explicit, None).ok()?;
    Some(rates_of(&ready(&early, model)?, model))
}

fn rates_of(ready: &[(f64, usize)], model: &CostModel<'_>) -> Rates {
    let bytes: f64 = ready.iter().map(|r| r.1 as f64).sum();
    let (first, last) = (ready.first().copied().unwrap_or_default(), ready.last().copied().unwrap_or_default());
    let rest = bytes - first.1 as f64;
    let seconds = if rest > 0.0 { (last.0 - first.0) * bytes / rest } else { 0.0 };
    let (latency, bandwidth) = line(&model.hardware().link);
    Rates { bytes, seconds, latency, bandwidth }
}

/// When each gradient is there on both devices, in seconds, and its bytes, in the order in which they become ready.
fn ready(early: &Graph, model: &CostModel<'_>) -> Option<Vec<(f64, usize)>> {
    let found = Exchanges::find(early)?;
    let clocks = clocks(early, model)?;
    let of = |id: &NodeId| {
        let Op::Reshard(op) = &early.nodes[*id].op else { return None };
        let at = clocks.iter().filter_map(|c| c.get(&op.channel)).fold(0.0, |a: f64, b| a.max(*b));
        Some((at, message_bytes(early, *id)))
    };
    Some(found.nodes.iter().filter_map(of).collect())
}

/// Seconds for a message of no bytes, and bytes per second.
fn line(link: &Link) -> (f64, f64) {
    let (nothing, much) = (link.transfer(0.0), link.transfer(1e9));
    (nothing, 1e9 / (much - nothing))
}

/// For each device when the operand of each communication is there, by channel, if nothing is waited for.
fn clocks(explicit: &Graph, model: &CostModel<'_>) -> Option<Vec<BTreeMap<usize, f64>>> {
    let locals = partition(explicit).ok()?;
    let pairs = explicit.devices * explicit.devices;
    let of = |(local, device): (&Graph, &DeviceSpec)| {
        let (works, mut clock, mut at) = (works(local), 0.0, BTreeMap::new());
        for (id, node) in &local.nodes {
            match &node.op {
                Op::AllReduce(o) => drop(at.insert(o.channel / pairs, clock)),
                Op::ReduceScatter(o) => drop(at.insert(o.channel / pairs, clock)),
                _ => clock += seconds(local, id, &works[id], model, device),
            }
        }
        at
    };
    Some(locals.iter().zip(&model.hardware().devices).map(of).collect())
}

/// Seconds of a node on a device, with what it reads and writes.
fn seconds(local: &Graph, id: NodeId, work: &NodeWork, model: &CostModel<'_>, device: &DeviceSpec) -> f64 {
    let node = &local.nodes[id];
    let size = |v: &Value| local.ty(*v).bytes() as f64;
    let read: f64 = node.args.iter().zip(&work.reads).filter(|(_, reads)| **reads).map(|(a, _)| size(a)).sum();
    let written: f64 = if work.writes { node.results.iter().map(size).sum() } else { 0.0 };
    work.seconds(model, device, local, id, 1.0, read + written)
}

/// What the devices do and how long it takes: kernels on one stream, communication on its own, each command as soon as
/// what it reads is there. Messages of the channels `free` take no time. Memory is not looked at.
pub fn listing(locals: &[Graph], model: &CostModel<'_>, free: &[usize]) -> Listing {
    let devices = locals.iter().zip(&model.hardware().devices).map(|(local, device)| {
        let works = works(local);
        let mut made: BTreeMap<Value, (u32, Stream)> = BTreeMap::new();
        let mut list = Vec::new();
        for (at, (id, node)) in local.nodes.iter().enumerate() {
            let (stream, action, seconds) = match messages_of(local, id) {
                Some((stream, action, channel, bytes)) => {
                    let timed = bytes > 0 && !free.contains(&channel);
                    (stream, action, if timed { model.hardware().link.transfer(bytes as f64) } else { 0.0 })
                }
                None => (Stream::Compute, Action::Work, seconds(local, id, &works[id], model, device)),
            };
            let others = node.args.iter().filter_map(|a| made.get(a)).filter(|(_, s)| *s != stream);
            let mut waits: Vec<u32> = others.map(|(event, _)| *event).collect();
            waits.sort_unstable();
            waits.dedup();
            let label = format!("{} of {}", node.op.name(), node.origin.path());
            let signals = Some(at as u32);
            list.push(Command { seconds, waits, signals, ..Command::new(label, stream, action) });
            made.extend(node.results.iter().map(|r| (*r, (at as u32, stream))));
        }
        list
    });
    Listing { devices: devices.collect(), rings: BTreeMap::new() }
}

/// A communication's stream, what it does, its channel, and the bytes of its message in the busier direction.
fn messages_of(local: &Graph, id: NodeId) -> Option<(Stream, Action, usize, usize)> {
    let node = &local.nodes[id];
    let all = node.op.members(&local.arg_types(id), &local.result_types(id))?;
    let sent: usize = all.iter().filter_map(|m| m.outgoing.as_ref()).map(|p| p.ty.bytes()).sum();
    let taken: usize = all.iter().filter_map(|m| m.incoming.as_ref()).map(|ty| ty.bytes()).sum();
    let bytes = sent.max(taken);
    let number = all.first()?.channel;
    let channel = number as u32;
    let message = |kind: &str, bytes: usize| Message { kind: kind.to_owned(), bytes, dtype: DType::U8 };
    let (stream, action) = match &node.op {
        Op::Send(_) => (Stream::CopyOut, Action::Send { channel, message: message("send", bytes) }),
        Op::Recv(_) => (Stream::CopyIn, Action::Recv { channel, message: message("send", bytes) }),
        op => (Stream::CopyOut, Action::Collective { channel, message: message(op.name(), 0) }),
    };
    Some((stream, action, number, bytes))
}

/// What is predicted of a step's exchanges of gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Forecast {
    /// Seconds until the last command is done.
    pub seconds: f64,
    /// By how much that is longer than if gradients took no time on the link.
    pub exposed: f64,
}

/// What a graph at stage Explicit is predicted to take; `None` where fewer than two gradients are exchanged.
pub fn forecast(explicit: &Graph, model: &CostModel<'_>) -> Option<Forecast> {
    let found = Exchanges::find(explicit)?;
    let locals = partition(explicit).ok()?;
    let pairs = explicit.devices * explicit.devices;
    let channel = |id: &NodeId| match &explicit.nodes[*id].op {
        Op::Reshard(op) => Some(op.channel * pairs),
        _ => None,
    };
    let gradients: Vec<usize> = found.nodes.iter().filter_map(channel).collect();
    let run = |free: &[usize]| simulate(&listing(&locals, model, free)).ok().map(|t| t.makespan);
    let (seconds, without) = (run(&[])?, run(&gradients)?);
    Some(Forecast { seconds, exposed: seconds - without })
}
