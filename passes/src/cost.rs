//! What a node and a change of layout cost on given hardware.
//!
//! A kernel takes the longer of its arithmetic and its memory traffic, and a launch. Pointwise work that fuses with its
//! producer costs no launch and moves only what the producer does not already hold. Everything is a function of the
//! graph and the hardware description.

use crate::hardware::{Arithmetic, Basis, DeviceSpec, Hardware, OpClass};
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::Op;
use intwain_ir::shard::Layout;
use intwain_ir::{Graph, NodeId, Type, Value};

/// What a node does, for the whole tensors.
#[derive(Clone, Debug, Default)]
pub struct NodeWork {
    /// Scalar operations; a multiply-add counts as two.
    pub flops: f64,
    /// The class that decides which share of the peak is reached.
    pub class: Option<OpClass>,
    /// Kernels started: 0 for views and for what is fused into its producer.
    pub launches: f64,
    /// For each operand, whether its bytes are read from memory (not if it is the producer's register).
    pub reads: Vec<bool>,
    /// Whether the result is written to memory by a kernel of its own.
    pub writes: bool,
}

impl NodeWork {
    /// Seconds for a share of the work that moves so many bytes, with its launches.
    pub fn seconds(
        &self,
        model: &CostModel<'_>,
        device: &DeviceSpec,
        graph: &Graph,
        id: NodeId,
        share: f64,
        bytes: f64,
    ) -> f64 {
        let node = &graph.nodes[id];
        let Some(&typed) = node.args.first().or(node.results.first()) else { return 0.0 };
        let class = self.class.unwrap_or(OpClass::Memory);
        model.kernel(device, class, graph.ty(typed), self.flops * share, bytes) + self.launches * device.launch.value
    }
}

/// Prices work and communication.
#[derive(Clone, Debug)]
pub struct CostModel<'a> {
    hardware: &'a Hardware,
    /// How f32 products are computed.
    f32_arithmetic: Arithmetic,
}

impl<'a> CostModel<'a> {
    /// A model for this hardware, with f32 products computed as `f32_arithmetic`.
    pub fn new(hardware: &'a Hardware, f32_arithmetic: Arithmetic) -> CostModel<'a> {
        CostModel { hardware, f32_arithmetic }
    }

    /// The hardware.
    pub fn hardware(&self) -> &'a Hardware {
        self.hardware
    }

    /// The weakest basis among the figures that a class of operation is priced with.
    pub fn basis(&self, class: OpClass) -> Basis {
        let link = &self.hardware.link;
        self.hardware
            .devices
            .iter()
            .flat_map(|d| [d.rate(self.f32_arithmetic), d.bandwidth, d.efficiency(class)])
            .chain([link.latency, link.bandwidth])
            .fold(Basis::Measured, |basis, figure| basis.weaker(figure.basis))
    }

    /// Seconds for `flops` operations of an element type and `bytes` of traffic, without the launch.
    pub fn kernel(&self, device: &DeviceSpec, class: OpClass, ty: &Type, flops: f64, bytes: f64) -> f64 {
        let arithmetic = match class {
            OpClass::Contraction | OpClass::Convolution | OpClass::Attention => self.f32_arithmetic,
            OpClass::Memory | OpClass::Gather | OpClass::Sequential => Arithmetic::F32,
        };
        let rate = device.rate(Arithmetic::of(ty.dtype, arithmetic)).value * device.efficiency(class).value;
        let bandwidth = match class {
            OpClass::Gather => device.bandwidth.value * device.efficiency(OpClass::Gather).value,
            OpClass::Contraction
            | OpClass::Convolution
            | OpClass::Attention
            | OpClass::Memory
            | OpClass::Sequential => device.stream_bandwidth(),
        };
        (flops / rate).max(bytes / bandwidth)
    }

    /// Seconds to change the layout of a value on two devices; infinite if there is no way.
    pub fn reshard(&self, ty: &Type, from: &Layout, to: &Layout) -> f64 {
        self.moving(transfer(ty, from, to))
    }

    /// Seconds to move so much; infinite if there is no way.
    pub fn moving(&self, moved: Transfer) -> f64 {
        if moved.bytes.is_infinite() {
            return f64::INFINITY;
        }
        let link = if moved.communicates { self.hardware.link.transfer(moved.bytes) } else { 0.0 };
        let local = |d: &DeviceSpec| match moved.local_bytes {
            0.0 => 0.0,
            bytes => bytes / d.stream_bandwidth() + d.launch.value,
        };
        link + self.hardware.devices.iter().map(local).fold(0.0, f64::max)
    }
}

/// What a change of layout moves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transfer {
    /// Bytes in the busier direction of the link.
    pub bytes: f64,
    /// Bytes in both directions together.
    pub total_bytes: f64,
    /// Bytes that devices read and write in their own memory meanwhile.
    pub local_bytes: f64,
    /// Whether devices wait for each other.
    pub communicates: bool,
}

impl Transfer {
    const FREE: Transfer = Transfer { bytes: 0.0, total_bytes: 0.0, local_bytes: 0.0, communicates: false };
    const IMPOSSIBLE: Transfer =
        Transfer { bytes: f64::INFINITY, total_bytes: f64::INFINITY, local_bytes: 0.0, communicates: true };

    fn local(bytes: f64) -> Transfer {
        Transfer { local_bytes: bytes, ..Transfer::FREE }
    }

    fn exchange(there: f64, back: f64, local_bytes: f64) -> Transfer {
        Transfer { bytes: there.max(back), total_bytes: there + back, local_bytes, communicates: true }
    }
}

/// What changing the layout of a value on two devices moves.
pub fn transfer(ty: &Type, from: &Layout, to: &Layout) -> Transfer {
    use Layout::{On, Partial, Replicated, Split};
    let n = ty.bytes() as f64;
    let part = |dim: usize, size: usize| n * size as f64 / ty.shape[dim].max(1) as f64;
    match (from, to) {
        _ if from == to => Transfer::FREE,
        (Replicated, Split { dim, sizes }) => {
            // Only a cut of the outermost dimension is consecutive in memory.
            let copied = if *dim == 0 { 0.0 } else { part(*dim, sizes.iter().copied().max().unwrap_or(0)) };
            Transfer::local(2.0 * copied)
        }
        (Replicated, On(_)) => Transfer::FREE,
        (Replicated | On(_) | Split { .. }, Partial(_)) => Transfer::local(n),
        (Split { dim, sizes }, Replicated) => {
            Transfer::exchange(part(*dim, sizes[0]), part(*dim, sizes[1]), if *dim == 0 { 0.0 } else { 2.0 * n })
        }
        (Split { dim: i, sizes: a }, Split { dim: j, sizes: b }) if i == j => {
            let shifted = part(*i, a[0].abs_diff(b[0]));
            Transfer::exchange(shifted, 0.0, n)
        }
        (Split { dim: i, sizes: a }, Split { dim: j, sizes: b }) => {
            let share = |k: usize, l: usize| part(*i, a[k]) * b[l] as f64 / ty.shape[*j].max(1) as f64;
            Transfer::exchange(share(0, 1), share(1, 0), n)
        }
        (Partial(_), Replicated) => Transfer::exchange(n, n, 3.0 * n),
        (Partial(_), Split { dim, sizes }) => Transfer::exchange(part(*dim, sizes[1]), part(*dim, sizes[0]), 1.5 * n),
        (Partial(_), On(_)) => Transfer::exchange(n, 0.0, 3.0 * n),
        (Partial(_), Partial(_)) => Transfer::IMPOSSIBLE,
        (On(_), Replicated | On(_)) => Transfer::exchange(n, 0.0, 0.0),
        (On(k), Split { dim, sizes }) => Transfer::exchange(part(*dim, sizes[1 - *k]), 0.0, 0.0),
        (Split { dim, sizes }, On(k)) => Transfer::exchange(part(*dim, sizes[1 - *k]), 0.0, 0.0),
        (Replicated, Replicated) => Transfer::FREE,
    }
}

/// The class of an operation.
pub fn class(op: &Op) -> OpClass {
    match op {
        Op::Contract(_) => OpClass::Contraction,
        Op::Conv(_) => OpClass::Convolution,
        Op::Take(_) | Op::Pick(_) | Op::ScatterAdd(_) => OpClass::Gather,
        Op::Scan(_) => OpClass::Sequential,
        _ => OpClass::Memory,
    }
}

/// Whether a node is pointwise: every result element reads the operands' elements at its own position only, or
/// broadcast ones.
pub(crate) fn is_pointwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::Cast(_) | Op::Compare(_) | Op::Broadcast(_))
}

/// The work of every node, with what fuses taken off.
pub fn works(graph: &Graph) -> SecondaryMap<NodeId, NodeWork> {
    let uses = graph.uses();
    let prepared = graph.prepared();
    let mut works: SecondaryMap<NodeId, NodeWork> = SecondaryMap::new();
    for (id, node) in &graph.nodes {
        let class = class(&node.op);
        let is_view = matches!(node.op, Op::Reshape(_)) || node.op.is_communication();
        let mut reads = vec![!is_view; node.args.len()];
        let pointwise = is_pointwise(&node.op);
        let mut fused = false;
        if pointwise {
            for (arg, read) in node.args.iter().zip(&mut reads) {
                if single_use_of_kernel(graph, &uses, *arg) {
                    (*read, fused) = (false, true);
                }
            }
            // A broadcast, or pointwise work on weights, is part of whatever reads it.
            fused |= matches!(node.op, Op::Broadcast(_)) || node.args.iter().all(|a| prepared[*a]);
        }
        let source = matches!(node.op, Op::Constant(_) | Op::Iota(_));
        works[id] = NodeWork {
            flops: graph.flops(id) as f64,
            class: Some(class),
            launches: if is_view || fused || source { 0.0 } else { 1.0 },
            reads,
            writes: !is_view && !fused && !source,
        };
    }
    works
}

fn single_use_of_kernel(graph: &Graph, uses: &SecondaryMap<Value, Vec<NodeId>>, value: Value) -> bool {
    let Some(def) = graph.def_node(value) else { return false };
    uses[value].len() == 1 && !matches!(graph.nodes[def].op, Op::Reshape(_) | Op::Constant(_) | Op::Iota(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::Catalogue;
    use intwain_ir::DType;
    use intwain_ir::scalar::Reduce;

    fn bytes(from: Layout, to: Layout) -> f64 {
        transfer(&Type::new(DType::F32, [10, 100]), &from, &to).bytes
    }

    #[test]
    fn transfers_move_what_is_missing() {
        let (rows, uneven, columns) = (Layout::split(0, [5, 5]), Layout::split(0, [7, 3]), Layout::split(1, [50, 50]));
        let partial = Layout::Partial(Reduce::Sum);
        assert_eq!(bytes(Layout::Replicated, rows.clone()), 0.0);
        assert_eq!(bytes(rows.clone(), Layout::Replicated), 2000.0);
        assert_eq!(bytes(uneven.clone(), Layout::Replicated), 2800.0);
        assert_eq!(bytes(rows.clone(), uneven.clone()), 800.0);
        assert_eq!(bytes(rows.clone(), columns), 1000.0);
        assert_eq!(bytes(partial.clone(), Layout::Replicated), 4000.0);
        assert_eq!(bytes(partial.clone(), uneven), 2800.0);
        assert_eq!(bytes(Layout::On(0), Layout::On(1)), 4000.0);
        assert_eq!(bytes(rows, Layout::On(1)), 2000.0);
        assert_eq!(bytes(Layout::Replicated, partial.clone()), 0.0);
        assert!(bytes(partial, Layout::Partial(Reduce::Max)).is_infinite());
    }

    #[test]
    fn slower_links_and_devices_cost_more() {
        let catalogue = Catalogue::built_in();
        let ty = Type::new(DType::F32, [1 << 20, 16]);
        let time = |name: &str| {
            let hardware = catalogue.get(name).unwrap();
            CostModel::new(&hardware, Arithmetic::F32).reshard(&ty, &Layout::Partial(Reduce::Sum), &Layout::Replicated)
        };
        assert!(time("2xh100-nvlink") < time("2xa100-nvlink"));
        assert!(time("2xa100-nvlink") < time("2xa100-pcie"));
        assert!(time("2xa100-pcie") < time("2xrtx4090-pcie"));
    }
}
