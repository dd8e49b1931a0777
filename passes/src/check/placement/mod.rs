//! Proves that the graphs of several devices together compute a whole graph.
//!
//! Every value of a device gets *meanings*: true statements about what it is in terms of the whole graph: equal to a
//! value, a range of one of its dimensions, or an addend of it. Parameters start with what the host feeds; an operation
//! whose operands mean the operands of a node of the whole graph means, by that node's sharding rule, its results or
//! their parts; communication joins the meanings of the devices, and addends become the value only if what was divided
//! is tiled: nothing left out, nothing counted twice. The devices run side by side, so receives without sends, messages
//! of another type and collectives that do not meet are found too. In the end every output must mean what the host
//! takes it for.
//!
//! Nothing here looks at how the graphs were divided, nor uses code of the passes that divide; only the rules of the
//! operations are shared.

mod communicate;
mod local;
mod meaning;
mod rearrange;
mod whole;

use communicate::{Arrival, Network};
use cranelift_entity::{EntityRef, SecondaryMap};
use intwain_ir::{Graph, Layout, NodeId, Type, Value};
use meaning::Meaning;
use whole::Whole;

/// A place where the devices' graphs do not compute the whole one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device {device}, {node} ({origin}): {problem}")]
pub struct PlacementFault {
    /// The device.
    pub device: usize,
    /// The node or interface where it shows.
    pub node: String,
    /// The layer.
    pub origin: String,
    /// What is wrong.
    pub problem: String,
}

/// How the host feeds parameters and reads outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// The layout of each parameter of the whole graph.
    pub params: Vec<Layout>,
    /// The layout of each output of the whole graph.
    pub outputs: Vec<Layout>,
}

impl Interface {
    /// The interface of a graph at stage Explicit.
    pub fn of(explicit: &Graph) -> Interface {
        Interface {
            params: explicit.params.iter().map(|p| explicit.layout(p.value)).collect(),
            outputs: explicit.outputs.iter().map(|o| explicit.layout(o.value)).collect(),
        }
    }
}

/// Every fault that is found; none if the devices compute the whole graph.
pub fn check(whole: &Graph, interface: &Interface, locals: &[Graph]) -> Vec<PlacementFault> {
    let numbered = Whole::new(whole);
    let mut devices: Vec<Device<'_>> = locals.iter().enumerate().map(|(k, g)| Device::new(g, k)).collect();
    let mut faults = Vec::new();
    for device in &mut devices {
        device.feed(&numbered, interface, &mut faults);
    }
    if faults.is_empty() {
        run(&numbered, &mut devices, &mut faults);
    }
    if faults.is_empty() {
        for device in &devices {
            device.read(&numbered, interface, &mut faults);
        }
        outputs_exist(&numbered, interface, &devices, &mut faults);
    }
    faults
}

/// Runs all devices until they are done, wait in vain, or one is at fault.
fn run(whole: &Whole<'_>, devices: &mut [Device<'_>], faults: &mut Vec<PlacementFault>) {
    let mut network = Network::default();
    loop {
        let mut moved = false;
        for device in devices.iter_mut() {
            while device.step(whole, &mut network, faults) {
                moved = true;
            }
            if !faults.is_empty() {
                return;
            }
        }
        moved |= network.settle(whole, devices, faults);
        if !moved {
            break;
        }
    }
    for device in devices.iter().filter(|d| d.next < d.graph.nodes.len()) {
        faults.push(device.fault(NodeId::new(device.next), "waits for what never comes".to_owned()));
    }
    faults.extend(network.unread());
}

/// A device and how far it has come.
struct Device<'a> {
    graph: &'a Graph,
    index: usize,
    next: usize,
    meanings: SecondaryMap<Value, Vec<Meaning>>,
    /// The communication it waits for.
    waits: bool,
}

impl<'a> Device<'a> {
    fn new(graph: &'a Graph, index: usize) -> Device<'a> {
        Device { graph, index, next: 0, meanings: SecondaryMap::new(), waits: false }
    }

    fn fault(&self, node: NodeId, problem: String) -> PlacementFault {
        let origin = self.graph.nodes[node].origin.to_string();
        let name = format!("{node} {}", self.graph.nodes[node].op.name());
        PlacementFault { device: self.index, node: name, origin, problem }
    }

    fn interface_fault(&self, name: &str, problem: String) -> PlacementFault {
        PlacementFault { device: self.index, node: format!("`{name}`"), origin: name.to_owned(), problem }
    }

    /// What a layout says that this device holds of a whole value.
    fn held(&self, whole: &Whole<'_>, value: Value, layout: &Layout) -> Option<Meaning> {
        let canonical = whole.canonical(value);
        match layout {
            Layout::Replicated => Some(Meaning::Full(canonical)),
            Layout::On(k) => (*k == self.index).then_some(Meaning::Full(canonical)),
            Layout::Split { dim, sizes } => {
                let start = sizes[..self.index].iter().sum();
                Some(Meaning::Piece { value: canonical, dim: *dim, range: start..start + sizes[self.index] })
            }
            Layout::Partial(_) => None,
        }
    }

    fn feed(&mut self, whole: &Whole<'_>, interface: &Interface, faults: &mut Vec<PlacementFault>) {
        for param in &self.graph.params {
            let found = whole.graph.params.iter().position(|p| p.name == param.name);
            let meaning = found
                .and_then(|at| self.held(whole, whole.graph.params[at].value, &interface.params[at]).map(|m| (at, m)));
            let Some((at, meaning)) = meaning else {
                faults.push(self.interface_fault(&param.name, "is not fed by the host".to_owned()));
                continue;
            };
            let want = shape_of(whole.graph.ty(whole.graph.params[at].value), &meaning);
            if want != *self.graph.ty(param.value) {
                let got = self.graph.ty(param.value);
                faults.push(self.interface_fault(&param.name, format!("is fed {want} and declared {got}")));
            }
            self.meanings[param.value] = vec![meaning];
        }
    }

    /// Whether every output means what the host takes it for.
    fn read(&self, whole: &Whole<'_>, interface: &Interface, faults: &mut Vec<PlacementFault>) {
        for output in &self.graph.outputs {
            let found = whole.graph.outputs.iter().position(|o| o.name == output.name);
            let want = found.and_then(|at| self.held(whole, whole.graph.outputs[at].value, &interface.outputs[at]));
            let has = &self.meanings[output.value];
            let constant = |m: &Meaning, want: &Meaning| {
                let value = found.map(|at| whole.graph.outputs[at].value);
                let shaped = value.is_some_and(|v| shape_of(whole.graph.ty(v), want) == *self.graph.ty(output.value));
                matches!(m, Meaning::Splat(x) if shaped && value.and_then(|v| whole.splat(v)) == Some(*x))
            };
            let right = want.as_ref().is_some_and(|want| has.iter().any(|m| same(whole, m, want) || constant(m, want)));
            if !right {
                let problem = format!("the host takes it for {want:?}, it is {has:?}");
                faults.push(self.interface_fault(&output.name, problem));
            }
        }
        for param in &self.graph.params {
            let intwain_ir::ParamKind::State { next: Some(next) } = param.kind else { continue };
            let at = whole.graph.params.iter().position(|p| p.name == param.name);
            let whole_next = at.and_then(|at| match whole.graph.params[at].kind {
                intwain_ir::ParamKind::State { next: Some(n) } => Some((at, n)),
                intwain_ir::ParamKind::State { next: None }
                | intwain_ir::ParamKind::Input { .. }
                | intwain_ir::ParamKind::Weight { .. } => None,
            });
            let want = whole_next.and_then(|(at, n)| self.held(whole, n, &interface.params[at]));
            if want.is_none_or(|want| !self.meanings[next].iter().any(|m| same(whole, m, &want))) {
                faults.push(self.interface_fault(&param.name, "does not become its next value".to_owned()));
            }
        }
    }

    /// Does the next node; false if the device is done or waits.
    fn step(&mut self, whole: &Whole<'_>, network: &mut Network, faults: &mut Vec<PlacementFault>) -> bool {
        if self.waits || self.next >= self.graph.nodes.len() {
            return false;
        }
        let id = NodeId::new(self.next);
        let node = &self.graph.nodes[id];
        if node.op.is_communication() {
            return match network.arrive(self, id) {
                Arrival::Done => {
                    self.next += 1;
                    true
                }
                Arrival::Waits => {
                    self.waits = true;
                    false
                }
                Arrival::Fault(problem) => {
                    faults.push(self.fault(id, problem));
                    false
                }
            };
        }
        match local::meanings(whole, self.graph, id, &self.meanings) {
            Ok(results) => {
                for (value, meanings) in node.results.iter().zip(results) {
                    self.meanings[*value] = meanings;
                }
                self.next += 1;
                true
            }
            Err(problem) => {
                faults.push(self.fault(id, problem));
                false
            }
        }
    }
}

/// Whether two meanings say the same: a piece may be all there is.
fn same(whole: &Whole<'_>, a: &Meaning, b: &Meaning) -> bool {
    let full = |m: &Meaning| m.as_full(|v, dim| whole.graph.shape(v)[dim]);
    let piece = match b {
        Meaning::Piece { value, dim, range } => a.is_piece(*value, *dim, range),
        Meaning::Full(_) | Meaning::Uniform { .. } | Meaning::Term { .. } | Meaning::Splat(_) => false,
    };
    a == b || piece || full(a).is_some_and(|v| full(b) == Some(v))
}

/// The type of what a meaning says.
fn shape_of(ty: &Type, meaning: &Meaning) -> Type {
    match meaning {
        Meaning::Piece { dim, range, .. } => ty.with_shape(ty.shape.with(*dim, range.len())),
        Meaning::Uniform { dim, length, .. } => ty.with_shape(ty.shape.with(*dim, *length)),
        Meaning::Full(_) | Meaning::Term { .. } | Meaning::Splat(_) => ty.clone(),
    }
}

/// Every output is there where the host reads it.
fn outputs_exist(whole: &Whole<'_>, interface: &Interface, devices: &[Device<'_>], faults: &mut Vec<PlacementFault>) {
    for (output, layout) in whole.graph.outputs.iter().zip(&interface.outputs) {
        for device in devices {
            let reads = match layout {
                Layout::On(k) => *k == device.index,
                Layout::Replicated | Layout::Split { .. } => true,
                Layout::Partial(_) => {
                    faults.push(device.interface_fault(&output.name, "is a partial value".to_owned()));
                    false
                }
            };
            if reads && !device.graph.outputs.iter().any(|o| o.name == output.name) {
                faults.push(device.interface_fault(&output.name, "is missing".to_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests;
