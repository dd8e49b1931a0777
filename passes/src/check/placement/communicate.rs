//! Communication between the devices, as far as meanings go.

use super::meaning::{Meaning, Shares, untiled};
use super::whole::Whole;
use super::{Device, PlacementFault};
use cranelift_entity::EntityRef;
use intwain_ir::ops::{Kept, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::{NodeId, Type, Value};
use std::collections::BTreeMap;

/// What happens when a device comes to a communication.
pub(super) enum Arrival {
    /// It goes on.
    Done,
    /// It waits for others.
    Waits,
    /// It cannot be right.
    Fault(String),
}

/// Messages under way, and devices that wait.
#[derive(Default)]
pub(super) struct Network {
    /// By channel and receiver.
    sent: BTreeMap<(usize, usize), Message>,
    /// By device.
    waiting: BTreeMap<usize, NodeId>,
}

struct Message {
    from: usize,
    ty: Type,
    meanings: Vec<Meaning>,
    fault: PlacementFault,
}

impl Network {
    pub(super) fn arrive(&mut self, device: &Device<'_>, id: NodeId) -> Arrival {
        let node = &device.graph.nodes[id];
        if let Op::Send(op) = &node.op {
            let message = Message {
                from: device.index,
                ty: device.graph.ty(node.args[0]).clone(),
                meanings: device.meanings[node.args[0]].clone(),
                fault: device.fault(id, format!("nobody receives it on device {}", op.to)),
            };
            return match self.sent.insert((op.channel, op.to), message) {
                None => Arrival::Done,
                Some(_) => Arrival::Fault(format!("channel {} already carries a message", op.channel)),
            };
        }
        self.waiting.insert(device.index, id);
        Arrival::Waits
    }

    /// Lets devices go on whose communication is complete; false if there is none.
    pub(super) fn settle(
        &mut self,
        whole: &Whole<'_>,
        devices: &mut [Device<'_>],
        faults: &mut Vec<PlacementFault>,
    ) -> bool {
        let mut moved = false;
        for (k, device) in devices.iter_mut().enumerate() {
            let Some(&id) = self.waiting.get(&k) else { continue };
            if let Op::Recv(op) = &device.graph.nodes[id].op {
                let Some(message) = self.sent.remove(&(op.channel, k)) else { continue };
                if message.from != op.from || message.ty != op.ty {
                    let problem = format!(
                        "expects {} from device {}, gets {} from device {}",
                        op.ty, op.from, message.ty, message.from
                    );
                    faults.push(device.fault(id, problem));
                    return false;
                }
                self.finish(device, id, vec![message.meanings]);
                moved = true;
            }
        }
        moved | self.settle_collective(whole, devices, faults)
    }

    /// A device goes on with what the results of a communication mean.
    fn finish(&mut self, device: &mut Device<'_>, id: NodeId, meanings: Vec<Vec<Meaning>>) {
        for (result, meanings) in device.graph.nodes[id].results.iter().zip(meanings) {
            device.meanings[*result] = meanings;
        }
        self.waiting.remove(&device.index);
        device.waits = false;
        device.next = id.index() + 1;
    }

    /// A collective happens when all devices have come to it.
    fn settle_collective(
        &mut self,
        whole: &Whole<'_>,
        devices: &mut [Device<'_>],
        faults: &mut Vec<PlacementFault>,
    ) -> bool {
        let at: Vec<Option<NodeId>> = (0..devices.len()).map(|k| self.waiting.get(&k).copied()).collect();
        let Some(at) = at.into_iter().collect::<Option<Vec<NodeId>>>() else { return false };
        let ops: Vec<&Op> = at.iter().zip(devices.iter()).map(|(id, d)| &d.graph.nodes[*id].op).collect();
        if ops.iter().any(|op| matches!(op, Op::Recv(_))) {
            return false;
        }
        if let Some(problem) = disagreement(&ops) {
            faults.push(devices[0].fault(at[0], problem));
            return false;
        }
        let members = devices[0].graph.nodes[at[0]].args.len();
        if at.iter().zip(devices.iter()).any(|(id, d)| d.graph.nodes[*id].args.len() != members) {
            faults.push(devices[0].fault(at[0], "the devices combine different numbers of values".to_owned()));
            return false;
        }
        // For each device the meaning of each result.
        let results: Result<Vec<Vec<Vec<Meaning>>>, String> = (0..devices.len())
            .map(|k| {
                let each = (0..members).map(|member| {
                    let held = at.iter().zip(devices.iter());
                    let operands: Vec<&[Meaning]> =
                        held.map(|(id, d)| d.meanings[d.graph.nodes[*id].args[member]].as_slice()).collect();
                    result(whole, ops[k], (k, member), &operands).map(|meaning| vec![meaning])
                });
                each.collect()
            })
            .collect();
        match results {
            Ok(results) => {
                for (k, meanings) in results.into_iter().enumerate() {
                    self.finish(&mut devices[k], at[k], meanings);
                }
                true
            }
            Err(problem) => {
                faults.push(devices[0].fault(at[0], problem));
                false
            }
        }
    }

    /// Messages that nobody received.
    pub(super) fn unread(self) -> impl Iterator<Item = PlacementFault> {
        self.sent.into_values().map(|m| m.fault)
    }
}

/// How the ends of a collective differ: all but the device must be equal, and the device must be the own one.
fn disagreement(ops: &[&Op]) -> Option<String> {
    let normal = |op: &Op| {
        let mut op = op.clone();
        let device = match &mut op {
            Op::AllGather(o) => std::mem::take(&mut o.device),
            Op::AllReduce(o) => std::mem::take(&mut o.device),
            Op::AllToAll(o) => std::mem::take(&mut o.device),
            Op::Bucket(o) => std::mem::take(&mut o.device),
            Op::ReduceScatter(o) => std::mem::take(&mut o.device),
            _ => usize::MAX,
        };
        (op, device)
    };
    let first = normal(ops[0]).0;
    for (k, op) in ops.iter().enumerate() {
        let (op, device) = normal(op);
        if op != first {
            return Some(format!("device 0 is at {:?}, device {k} at {op:?}", ops[0]));
        }
        if device != k {
            return Some(format!("device {k} takes part as device {device}"));
        }
    }
    None
}

/// What device `k` has as a result of a collective, by the result's number, given what the devices hold of the operand of
/// that number.
fn result(whole: &Whole<'_>, op: &Op, (k, member): (usize, usize), operands: &[&[Meaning]]) -> Result<Meaning, String> {
    let part = |dim: usize, sizes: &[usize], value: Value| {
        let start: usize = sizes[..k].iter().sum();
        Meaning::Piece { value, dim, range: start..start + sizes[k] }
    };
    match op {
        Op::AllGather(op) => pieces(whole, operands, op.dim, &op.sizes).map(Meaning::Full),
        Op::AllToAll(op) => {
            pieces(whole, operands, op.from, &op.from_sizes).map(|value| part(op.to, &op.to_sizes, value))
        }
        Op::AllReduce(op) => combined(operands, op.function).map(Meaning::Full),
        Op::Bucket(op) => {
            let value = combined(operands, op.function)?;
            match op.kept.get(member) {
                Some(Kept::All) => Ok(Meaning::Full(value)),
                Some(Kept::Part { dim, sizes }) => Ok(part(*dim, sizes, value)),
                None => Err(format!("`bucket` says nothing of operand {member}")),
            }
        }
        Op::ReduceScatter(op) => combined(operands, op.function).map(|value| part(op.dim, &op.sizes, value)),
        _ => Err(format!("`{}` is no collective", op.name())),
    }
}

/// The value whose parts the devices hold, in device order.
fn pieces(whole: &Whole<'_>, operands: &[&[Meaning]], dim: usize, sizes: &[usize]) -> Result<Value, String> {
    let values = operands[0].iter().filter_map(|m| match m {
        Meaning::Piece { value, .. } | Meaning::Uniform { value, .. } | Meaning::Full(value) => Some(*value),
        Meaning::Term { .. } | Meaning::Splat(_) => None,
    });
    for value in values {
        let extent = whole.graph.shape(value).get(dim).copied().unwrap_or(0);
        let holds = |k: usize| {
            let start: usize = sizes[..k].iter().sum();
            let range = start..start + sizes[k];
            let is_all = range == (0..extent);
            operands[k].iter().any(|m| m.is_piece(value, dim, &range) || (is_all && *m == Meaning::Full(value)))
        };
        if sizes.len() == operands.len() && sizes.iter().sum::<usize>() == extent && (0..operands.len()).all(holds) {
            return Ok(value);
        }
    }
    Err(format!("the devices do not hold parts {sizes:?} of dimension {dim} of one value, in order: {operands:?}"))
}

fn has_content(shares: &Shares) -> bool {
    shares.is_empty() || shares.values().any(|(range, _)| !range.is_empty())
}

/// The value whose addends the devices hold.
fn combined(operands: &[&[Meaning]], op: Reduce) -> Result<Value, String> {
    let mut problem = None;
    let values = operands.iter().flat_map(|o| o.iter()).filter_map(|m| match m {
        Meaning::Term { value, .. } | Meaning::Full(value) => Some(*value),
        Meaning::Piece { .. } | Meaning::Uniform { .. } | Meaning::Splat(_) => None,
    });
    for value in values {
        let addends: Option<Vec<Shares>> =
            operands.iter().map(|o| o.iter().find_map(|m| m.as_term(value, op))).collect();
        let Some(mut addends) = addends else { continue };
        // An addend into which nothing went is nothing, whatever the others are made of.
        if addends.iter().any(has_content) {
            addends.retain(has_content);
        }
        match untiled(&addends) {
            None => return Ok(value),
            Some(why) => problem = problem.or(Some(why)),
        }
    }
    Err(problem.unwrap_or_else(|| format!("the devices do not hold addends of one value: {operands:?}")))
}
