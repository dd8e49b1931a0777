//! From one graph with layouts to a graph per device with local shapes.
//!
//! Every device keeps the nodes whose results exist there, localised to its parts, in the same order; `reshard` nodes
//! become slices, sends and collectives (`convert`). Because communication appears in the same order on all devices,
//! the lists never wait for each other in a circle. Parameters and outputs that do not exist on a device are left out
//! of its graph.

mod convert;

use convert::Conversion;
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{Bucket, LocalCx, Op, TypeError};
use intwain_ir::{Graph, Layout, NodeId, Output, ParamKind, Stage, Type, Value};

/// A graph that cannot be divided: a defect of the passes before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The graph is not at stage Explicit.
    #[error("partitioning needs stage explicit, the graph is at {0}")]
    Stage(Stage),
    /// A node reads a value that its device does not have.
    #[error("{node} ({origin}) on device {device} reads {value}, which is not there")]
    Missing {
        /// The node.
        node: NodeId,
        /// Its layer.
        origin: String,
        /// The device.
        device: usize,
        /// The value.
        value: Value,
    },
    /// A change of layout that has no meaning.
    #[error("{node} ({origin}) cannot turn {from} into {to}")]
    Conversion {
        /// The node.
        node: NodeId,
        /// Its layer.
        origin: String,
        /// The layout before.
        from: Layout,
        /// The layout after.
        to: Layout,
    },
    /// A localised operation does not accept its parts, or gives others than the layouts say.
    #[error("{node} ({origin}) on device {device}: {error}")]
    Operation {
        /// The node.
        node: NodeId,
        /// Its layer.
        origin: String,
        /// The device.
        device: usize,
        /// Why not.
        error: TypeError,
    },
}

/// The graph of every device.
pub fn partition(graph: &Graph) -> Result<Vec<Graph>, PartitionError> {
    if graph.stage != Stage::Explicit {
        return Err(PartitionError::Stage(graph.stage));
    }
    (0..graph.devices).map(|device| Partitioner::new(graph, device).run()).collect()
}

struct Partitioner<'g> {
    whole: &'g Graph,
    device: usize,
    local: Graph,
    map: SecondaryMap<Value, Option<Value>>,
}

impl<'g> Partitioner<'g> {
    fn new(whole: &'g Graph, device: usize) -> Partitioner<'g> {
        let mut local = Graph::new(&whole.name);
        (local.stage, local.devices, local.device) = (Stage::Local, whole.devices, device);
        let mut map = SecondaryMap::new();
        for param in &whole.params {
            if let Some(ty) = whole.layout(param.value).local_type(whole.ty(param.value), device) {
                map[param.value] = Some(local.param(&param.name, ty, param.kind.clone()));
            }
        }
        Partitioner { whole, device, local, map }
    }

    fn run(mut self) -> Result<Graph, PartitionError> {
        for (id, node) in &self.whole.nodes {
            self.local.origin = node.origin.clone();
            if let Op::Reshard(op) = &node.op {
                self.convert(id, op.channel)?;
            } else if node.results.iter().any(|r| self.local_type(*r).is_some()) {
                self.copy(id)?;
            }
        }
        for output in &self.whole.outputs {
            if let Some(value) = self.map[output.value] {
                self.local.outputs.push(Output { value, name: output.name.clone() });
            }
        }
        for param in &mut self.local.params {
            if let ParamKind::State { next: Some(next) } = &mut param.kind {
                *next = self.map[*next].expect("a state and its next value have the same layout");
            }
        }
        self.local.origin = self.whole.origin.clone();
        Ok(self.local)
    }

    fn local_type(&self, value: Value) -> Option<Type> {
        self.whole.layout(value).local_type(self.whole.ty(value), self.device)
    }

    fn copy(&mut self, id: NodeId) -> Result<(), PartitionError> {
        let (whole, device) = (self.whole, self.device);
        let node = &whole.nodes[id];
        let origin = || node.origin.to_string();
        let mut args = Vec::with_capacity(node.args.len());
        for &value in &node.args {
            let missing = || PartitionError::Missing { node: id, origin: origin(), device, value };
            args.push(self.map[value].ok_or_else(missing)?);
        }
        let results: Vec<Type> = node.results.iter().filter_map(|r| self.local_type(*r)).collect();
        let layouts = |values: &[Value]| values.iter().map(|v| whole.layout(*v)).collect::<Vec<_>>();
        let (arg_layouts, result_layouts) = (layouts(&node.args), layouts(&node.results));
        let cx = LocalCx {
            device,
            args: &whole.arg_types(id),
            arg_layouts: &arg_layouts,
            results: &results,
            global_results: &whole.result_types(id),
            result_layouts: &result_layouts,
        };
        let made = self.local.push_local(&node.op, &args, &cx).map_err(|error| PartitionError::Operation {
            node: id,
            origin: origin(),
            device,
            error,
        })?;
        for (&old, &new) in node.results.iter().zip(&made) {
            self.map[old] = Some(new);
        }
        Ok(())
    }

    fn convert(&mut self, id: NodeId, channel: usize) -> Result<(), PartitionError> {
        let node = &self.whole.nodes[id];
        if node.args.len() > 1 {
            return self.combine(id, channel);
        }
        let (arg, result) = (node.args[0], node.results[0]);
        let (from, to) = (self.whole.layout(arg), self.whole.layout(result));
        let conversion = Conversion {
            ty: self.whole.ty(arg),
            devices: self.whole.devices,
            device: self.device,
            channel,
            here: self.map[arg],
        };
        let made = conversion.build(&mut self.local, &from, &to).map_err(|e| self.failed(id, 0, e))?;
        self.map[result] = made;
        Ok(())
    }

    /// Several partial values that one message combines.
    fn combine(&mut self, id: NodeId, channel: usize) -> Result<(), PartitionError> {
        let node = &self.whole.nodes[id];
        let (mut members, mut kept) = (Vec::new(), Vec::new());
        let mut functions = Vec::new();
        for (k, (arg, result)) in node.args.iter().zip(&node.results).enumerate() {
            let (function, keeps) = convert::kept(&self.whole.layout(*arg), &self.whole.layout(*result))
                .filter(|(f, _)| functions.first().is_none_or(|first| first == f))
                .ok_or_else(|| self.failed(id, k, convert::Failure::Meaningless))?;
            functions.push(function);
            kept.push(keeps);
            members.push(self.map[*arg].ok_or_else(|| self.failed(id, k, convert::Failure::Missing))?);
        }
        let devices = self.whole.devices;
        let channel = convert::collective(channel, devices);
        let op = Bucket { channel, function: functions[0], kept, device: self.device, devices };
        let made = self.local.push_all(op, &members);
        let made = made.map_err(|e| self.failed(id, 0, convert::Failure::Operation(e)))?;
        for (&old, &new) in node.results.iter().zip(&made) {
            self.map[old] = Some(new);
        }
        Ok(())
    }

    /// Why the change of layout of an operand cannot be built.
    fn failed(&self, id: NodeId, operand: usize, error: convert::Failure) -> PartitionError {
        let node = &self.whole.nodes[id];
        let (origin, device) = (node.origin.to_string(), self.device);
        let (arg, result) = (node.args[operand], node.results[operand]);
        match error {
            convert::Failure::Meaningless => {
                let (from, to) = (self.whole.layout(arg), self.whole.layout(result));
                PartitionError::Conversion { node: id, origin, from, to }
            }
            convert::Failure::Missing => PartitionError::Missing { node: id, origin, device, value: arg },
            convert::Failure::Operation(error) => PartitionError::Operation { node: id, origin, device, error },
        }
    }
}

#[cfg(test)]
mod tests;
