//! How the devices of a data split exchange gradients.

use super::text::{bytes, seconds};
use intwain_ir::{Graph, Value};
use intwain_passes::buckets::{Exchanges, buckets, message_bytes, timeline};
use intwain_passes::cost::CostModel;
use intwain_passes::hardware::{Arithmetic, DeviceKind, Hardware};
use intwain_passes::place::{Plan, Strategy};
use intwain_passes::reshard;
use serde::Serialize;
use std::fmt;

/// Exchanges of gradients, in the order in which they begin.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExchangesReport {
    /// Most bytes that are joined; none where every gradient is a message of its own.
    pub bucket_bytes: Option<u64>,
    /// Gradients that are exchanged.
    pub gradients: usize,
    /// The messages.
    pub messages: Vec<MessageReport>,
    /// Seconds by which a step is predicted to be longer than if gradients took no time on the link; none for CPU devices,
    /// which copy messages themselves.
    pub exposed_seconds: Option<f64>,
}

/// A message of gradients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageReport {
    /// Bytes in the busier direction.
    pub bytes: u64,
    /// Gradients that are in it.
    pub gradients: usize,
    /// The layers whose gradients they are.
    pub layers: Vec<String>,
}

/// What a plan exchanges; `None` where devices do not share rows, or exchange fewer than two gradients.
pub fn exchanges(graph: &Graph, plan: &Plan, hardware: &Hardware) -> Option<ExchangesReport> {
    if plan.strategy != Strategy::Data {
        return None;
    }
    let sharded = reshard::apply(graph, plan);
    let explicit = reshard::reshard_states(&sharded, &plan.nodes, plan.sharding).ok()?;
    let explicit = buckets(&explicit, plan.bucket_bytes).ok()?;
    let found = Exchanges::find(&explicit)?;
    let message = |id: &intwain_ir::NodeId| {
        let args = &explicit.nodes[*id].args;
        let mut layers: Vec<String> = Vec::new();
        for layer in args.iter().map(|a| made_by(&explicit, *a)) {
            if !layers.contains(&layer) {
                layers.push(layer);
            }
        }
        MessageReport { bytes: message_bytes(&explicit, *id) as u64, gradients: args.len(), layers }
    };
    let messages: Vec<MessageReport> = found.nodes.iter().map(message).collect();
    let model = CostModel::new(hardware, Arithmetic::F32);
    let gpus = hardware.devices.iter().all(|d| d.kind == DeviceKind::Gpu);
    Some(ExchangesReport {
        bucket_bytes: plan.bucket_bytes.map(|b| b as u64),
        gradients: messages.iter().map(|m| m.gradients).sum(),
        exposed_seconds: timeline::forecast(&explicit, &model).filter(|_| gpus).map(|f| f.exposed),
        messages,
    })
}

/// The layer that a value comes from.
fn made_by(graph: &Graph, value: Value) -> String {
    let path = graph.def_node(value).map_or("", |id| graph.nodes[id].origin.path());
    if path.is_empty() { super::placement::ADDED.to_string() } else { path.to_string() }
}

/// Messages that the text form lists.
const LISTED: usize = 12;

impl fmt::Display for ExchangesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (gradients, messages) = (self.gradients, self.messages.len());
        write!(f, "{gradients} gradients are exchanged in {messages} messages")?;
        if let Some(most) = self.bucket_bytes {
            write!(f, " of up to {}", bytes(most as f64))?;
        }
        if let Some(exposed) = self.exposed_seconds {
            write!(f, ", {} exposed", seconds(exposed))?;
        }
        if self.bucket_bytes.is_none() {
            return Ok(());
        }
        for m in self.messages.iter().take(LISTED) {
            let layers = match m.layers.as_slice() {
                [first, .., last] => format!("{first} … {last}"),
                layers => layers.join(""),
            };
            write!(f, "\n  {} of {} gradients: {layers}", bytes(m.bytes as f64), m.gradients)?;
        }
        if messages > LISTED {
            write!(f, "\n  and {} more", messages - LISTED)?;
        }
        Ok(())
    }
}
