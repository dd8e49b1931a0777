//! What devices exchange.

use super::{ADDED, CommunicationReport};
use intwain_ir::ops::Op;
use intwain_ir::{Def, Graph, Layout, NodeId, Value};
use intwain_passes::cost::transfer;

/// Every communication of a graph at stage Explicit.
pub(in crate::report) fn communications(explicit: &Graph) -> Vec<CommunicationReport> {
    let mut found = Vec::new();
    for node in explicit.nodes.values() {
        let Op::Reshard(op) = &node.op else { continue };
        for (&source, &result) in node.args.iter().zip(&node.results) {
            let (before, after) = (explicit.layout(source), explicit.layout(result));
            let moved = transfer(explicit.ty(source), &before, &after);
            if !moved.communicates {
                continue;
            }
            let made_by = origin(explicit, source);
            let of_parameter = made_by.is_err();
            let named = |path: &str| if path.is_empty() { ADDED.to_string() } else { path.to_string() };
            let from = made_by.map_or_else(|param| param, |node| named(explicit.nodes[node].origin.path()));
            // Outputs have no reader of their own: what is exchanged for them belongs to the layer that makes them.
            let to = match node.origin.path() {
                "" => from.clone(),
                // The gradients of a bucket are those of several layers.
                _ if node.args.len() > 1 => from.clone(),
                path => path.to_string(),
            };
            found.push(CommunicationReport {
                channel: op.channel,
                kind: kind(&before, &after),
                from,
                of_parameter,
                to,
                value: explicit.ty(source).to_string(),
                before: before.to_string(),
                after: after.to_string(),
                bytes: moved.total_bytes.round() as u64,
            });
        }
    }
    found
}

/// The node that made a value, through changes of layout; the name of the parameter if it is one.
fn origin(explicit: &Graph, mut value: Value) -> Result<NodeId, String> {
    loop {
        match explicit.values[value].def {
            Def::Param(p) => return Err(explicit.params[p].name.to_string()),
            Def::Node(id, at) => match &explicit.nodes[id].op {
                Op::Reshard(_) => value = explicit.nodes[id].args[at],
                _ => return Ok(id),
            },
        }
    }
}

/// What devices do to change a layout.
fn kind(before: &Layout, after: &Layout) -> &'static str {
    match (before, after) {
        (Layout::Partial(_), Layout::Replicated) => "all_reduce",
        (Layout::Partial(_), Layout::Split { .. }) => "reduce_scatter",
        (Layout::Split { .. }, Layout::Replicated) => "all_gather",
        (Layout::Split { .. }, Layout::Split { .. }) => "all_to_all",
        (Layout::On(_), _) | (_, Layout::On(_) | Layout::Partial(_)) | (Layout::Replicated, _) => "send",
    }
}
