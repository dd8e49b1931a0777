//! What is where: every layer with its devices, layout, work, memory and traffic, and every device with its shares.
//!
//! Work and memory of a device are counted on its own graph and program, not derived from the plan: what is reported is
//! what will run.

mod communication;
mod data;
mod text;

pub(super) use communication::communications;
pub use data::{CommunicationReport, DeviceReport, KernelReport, LayerReport, PlacementReport, Totals, Traffic};

use super::REPORT_VERSION;
use super::plan::{batch, candidates};
use crate::driver::Compiled;
use intwain_ir::{Graph, Layout, ParamKind, Rows};
use intwain_passes::hardware::Hardware;
use intwain_passes::place::Strategy;
use intwain_passes::program::{Action, DeviceProgram};
use intwain_passes::solve::Proof;
use std::collections::{BTreeMap, BTreeSet};

/// The name under which what belongs to no layer is listed.
pub(super) const ADDED: &str = "(added)";

/// Reports a compiled model. `asked` is the strategy that was asked for by name.
pub fn placement(compiled: &Compiled, hardware: &Hardware, asked: Option<Strategy>) -> PlacementReport {
    let mut layers = Layers::new(compiled);
    layers.whole(compiled);
    layers.local(compiled);
    let communications = communications(&compiled.explicit);
    layers.traffic(&communications);
    let layers = layers.layers;
    let devices: Vec<DeviceReport> = compiled.programs.iter().map(|p| device(compiled, p, hardware, &layers)).collect();
    let totals = totals(&layers, &communications, &devices);
    PlacementReport {
        version: REPORT_VERSION,
        model: compiled.graph.name.to_string(),
        hardware: hardware.name.clone(),
        hardware_hash: hardware.hash(),
        batch: batch(&compiled.graph),
        strategy: compiled.plan.strategy.name(),
        micro_batches: compiled.plan.micro_batches,
        seconds: compiled.plan.seconds,
        optimal: matches!(compiled.plan.proof, Proof::Optimal),
        devices,
        layers,
        totals,
        communications,
        candidates: candidates(&compiled.plan, asked),
        training: None,
    }
}

/// Layers in the order in which they appear.
struct Layers {
    layers: Vec<LayerReport>,
    index: BTreeMap<String, usize>,
    devices: usize,
}

impl Layers {
    fn new(compiled: &Compiled) -> Layers {
        Layers { layers: Vec::new(), index: BTreeMap::new(), devices: compiled.programs.len() }
    }

    fn layer(&mut self, name: &str) -> &mut LayerReport {
        let name = if name.is_empty() { ADDED } else { name };
        let at = *self.index.entry(name.to_string()).or_insert_with(|| {
            self.layers.push(LayerReport {
                name: name.to_string(),
                device_flops: vec![0; self.devices],
                device_parameter_bytes: vec![0; self.devices],
                device_activation_bytes: vec![0; self.devices],
                ..LayerReport::default()
            });
            self.layers.len() - 1
        });
        &mut self.layers[at]
    }

    /// What is known of the whole graph: work, weights, results and their layouts.
    fn whole(&mut self, compiled: &Compiled) {
        let graph = &compiled.graph;
        let prepared = graph.prepared();
        let uses = graph.uses();
        for (id, node) in &graph.nodes {
            let once = node.results.iter().all(|r| prepared[*r]);
            let flops = if once { 0 } else { graph.flops(id) };
            let layer = self.layer(node.origin.path());
            layer.flops += flops;
            for value in node.results.iter().filter(|_| !once) {
                let elsewhere = uses[*value].iter().any(|u| graph.nodes[*u].origin != node.origin);
                let output = graph.outputs.iter().any(|o| o.value == *value);
                if elsewhere || output {
                    let ty = graph.ty(*value);
                    let layout = compiled.plan.layouts[*value].clone().unwrap_or(Layout::Replicated);
                    (layer.result, layer.layout) = (Some(ty.to_string()), Some(layout.to_string()));
                    layer.activation_bytes += ty.bytes() as u64;
                    for (device, total) in layer.device_activation_bytes.iter_mut().enumerate() {
                        *total += layout.local_type(ty, device).map_or(0, |t| t.bytes() as u64);
                    }
                }
            }
        }
        for (name, owner, bytes) in weights(graph) {
            let held: Vec<u64> = compiled.locals.iter().map(|l| held(l, &name)).collect();
            let layer = self.layer(&owner);
            layer.parameter_bytes += bytes;
            layer.device_parameter_bytes.iter_mut().zip(held).for_each(|(total, b)| *total += b);
        }
    }

    /// What each device computes.
    fn local(&mut self, compiled: &Compiled) {
        for (device, graph) in compiled.locals.iter().enumerate() {
            let prepared = graph.prepared();
            for (id, node) in &graph.nodes {
                let empty = node.results.iter().all(|r| graph.ty(*r).bytes() == 0);
                if node.op.is_communication() || empty || node.results.iter().all(|r| prepared[*r]) {
                    continue;
                }
                let flops = graph.flops(id);
                let layer = self.layer(node.origin.path());
                layer.device_flops[device] += flops;
                if !layer.devices.contains(&device) {
                    layer.devices.push(device);
                }
            }
        }
    }

    /// Adds communications to the layers at both ends.
    fn traffic(&mut self, communications: &[CommunicationReport]) {
        for c in communications {
            if !c.of_parameter {
                self.layer(&c.from).communication_out.add(c.bytes);
            }
            self.layer(&c.to).communication_in.add(c.bytes);
        }
    }
}

/// Every weight with the layer that reads it first and its bytes.
fn weights(graph: &Graph) -> Vec<(String, String, u64)> {
    let uses = graph.uses();
    let weight = |p: &intwain_ir::Param| {
        let reader = uses[p.value].first().map(|n| graph.nodes[*n].origin.path()).filter(|path| !path.is_empty());
        let parent = p.name.rsplit_once('/').map_or("", |(parent, _)| parent);
        (p.name.to_string(), reader.unwrap_or(parent).to_string(), graph.ty(p.value).bytes() as u64)
    };
    graph.params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. })).map(weight).collect()
}

/// Bytes of a weight on a device.
fn held(local: &Graph, name: &str) -> u64 {
    local.params.iter().find(|p| *p.name == *name).map_or(0, |p| local.ty(p.value).bytes() as u64)
}

fn device(compiled: &Compiled, program: &DeviceProgram, hardware: &Hardware, layers: &[LayerReport]) -> DeviceReport {
    let device = program.device;
    let spec = if compiled.programs.len() == 1 { &hardware.alone } else { &hardware.devices[device] };
    let sum = |f: &dyn Fn(&LayerReport) -> u64| layers.iter().map(f).sum::<u64>();
    let (flops, all_flops) = (sum(&|l| l.device_flops[device]), sum(&|l| l.flops));
    let (weights, all_weights) = (sum(&|l| l.device_parameter_bytes[device]), sum(&|l| l.parameter_bytes));
    let mut kernels: Vec<KernelReport> = program
        .kernels
        .iter()
        .map(|k| KernelReport {
            name: k.name.clone(),
            operands: k.operands.iter().map(|(ty, _)| ty.to_string()).collect(),
            results: k.results.iter().map(ToString::to_string).collect(),
            launches: 0,
        })
        .collect();
    for command in &program.step {
        if let Action::Kernel(k) = command.action {
            kernels[k].launches += 1;
        }
    }
    DeviceReport {
        device,
        name: spec.name.clone(),
        rows: rows(compiled, device),
        flops,
        flops_share: share(flops, all_flops),
        weight_bytes: weights,
        weight_share: share(weights, all_weights),
        persistent_bytes: program.persistent_bytes as u64,
        arena_bytes: program.arena_bytes as u64,
        peak_bytes: (program.persistent_bytes + program.arena_bytes) as u64,
        commands: program.step.len(),
        kernels,
    }
}

/// Rows of a call that a device gets, of the first input with rows.
fn rows(compiled: &Compiled, device: usize) -> Option<usize> {
    let is_batched = |k: &ParamKind| matches!(k, ParamKind::Input { rows: Rows::Batched });
    let (param, port) = compiled.graph.params.iter().zip(&compiled.params).find(|(p, _)| is_batched(&p.kind))?;
    let all = compiled.graph.shape(param.value).first().copied()?;
    Some(match &port.layout {
        Layout::Split { dim: 0, sizes } => sizes[device],
        Layout::On(_) if compiled.plan.strategy == Strategy::Pipeline => all,
        Layout::On(k) if *k != device => 0,
        Layout::On(_) | Layout::Replicated | Layout::Split { .. } | Layout::Partial(_) => all,
    })
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn totals(layers: &[LayerReport], communications: &[CommunicationReport], devices: &[DeviceReport]) -> Totals {
    let flops: u64 = layers.iter().map(|l| l.flops).sum();
    let weight_bytes: u64 = layers.iter().map(|l| l.parameter_bytes).sum();
    let device_flops: Vec<u64> = devices.iter().map(|d| d.flops).collect();
    let device_weight_bytes: Vec<u64> = devices.iter().map(|d| d.weight_bytes).collect();
    // What two devices do together beyond the whole, both do.
    let split = |parts: &[u64], whole: u64| match (parts.len(), whole) {
        (1, _) | (_, 0) => 0.0,
        _ => 1.0 - parts.iter().sum::<u64>().saturating_sub(whole) as f64 / whole as f64,
    };
    Totals {
        split_flops: split(&device_flops, flops),
        split_weight_bytes: split(&device_weight_bytes, weight_bytes),
        flops,
        device_flops,
        weight_bytes,
        device_weight_bytes,
        communications: communications.iter().map(|c| c.channel).collect::<BTreeSet<_>>().len(),
        communication_bytes: communications.iter().map(|c| c.bytes).sum(),
        peak_bytes: devices.iter().map(|d| d.peak_bytes).collect(),
    }
}
