//! What is where: every layer with its devices, layout, work, memory and traffic, and every device with its shares.
//!
//! Work and memory of a device are counted on its own graph and program, not derived from the plan: what is reported is
//! what will run.

use super::REPORT_VERSION;
use super::plan::{CandidateReport, batch, candidates, table};
use super::text::{Align, Table, bytes, count, or_dash, seconds};
use crate::driver::Compiled;
use intwain_ir::ops::Op;
use intwain_ir::{Def, Graph, Layout, NodeId, ParamKind, Rows, Value};
use intwain_passes::cost::transfer;
use intwain_passes::hardware::Hardware;
use intwain_passes::place::Strategy;
use intwain_passes::program::{Action, DeviceProgram};
use intwain_passes::solve::Proof;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The placement of a model on a machine.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    /// Version of this form.
    pub version: u32,
    /// The model.
    pub model: String,
    /// The machine.
    pub hardware: String,
    /// Hash of every fact of the machine.
    pub hardware_hash: String,
    /// Rows of a call; `None` where the model has no row axis.
    pub batch: Option<usize>,
    /// The strategy.
    pub strategy: &'static str,
    /// Micro-batches of a pipeline, else 1.
    pub micro_batches: usize,
    /// Predicted seconds per step.
    pub seconds: f64,
    /// Whether the assignment is proved to be the cheapest of its strategy.
    pub optimal: bool,
    /// Every device.
    pub devices: Vec<DeviceReport>,
    /// Every layer that computes something or has weights, in order of execution.
    pub layers: Vec<LayerReport>,
    /// Sums.
    pub totals: Totals,
    /// Every communication of a step.
    pub communications: Vec<CommunicationReport>,
    /// Every strategy that was considered.
    pub candidates: Vec<CandidateReport>,
}

/// What one device holds and does.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its number.
    pub device: usize,
    /// Its name in the catalogue.
    pub name: String,
    /// Rows of a call that it gets; `None` where the model has no row axis.
    pub rows: Option<usize>,
    /// Scalar operations per step.
    pub flops: u64,
    /// The same over the whole model's.
    pub flops_share: f64,
    /// Bytes of weights.
    pub weight_bytes: u64,
    /// The same over the whole model's.
    pub weight_share: f64,
    /// Bytes kept from call to call: weights and what is made of them.
    pub persistent_bytes: u64,
    /// Bytes reused within a call.
    pub arena_bytes: u64,
    /// Bytes at once: both together.
    pub peak_bytes: u64,
    /// Commands per step.
    pub commands: usize,
    /// Kernels.
    pub kernels: Vec<KernelReport>,
}

/// A kernel of a device.
#[derive(Clone, Debug, Serialize)]
pub struct KernelReport {
    /// The layer that uses it first.
    pub name: String,
    /// Types of the operands.
    pub operands: Vec<String>,
    /// Types of the results.
    pub results: Vec<String>,
    /// How often it runs in a step.
    pub launches: usize,
}

/// Communications and their bytes, both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// How many.
    pub count: usize,
    /// Bytes over the link.
    pub bytes: u64,
}

impl Traffic {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}

/// What a layer is and where.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LayerReport {
    /// The layer's path.
    pub name: String,
    /// The devices that compute a part of it.
    pub devices: Vec<usize>,
    /// The type of its result; of the last where there are several.
    pub result: Option<String>,
    /// The layout of that result.
    pub layout: Option<String>,
    /// Scalar operations per step of the whole layer.
    pub flops: u64,
    /// Scalar operations per step of each device.
    pub device_flops: Vec<u64>,
    /// Bytes of its weights.
    pub parameter_bytes: u64,
    /// Bytes of its weights on each device.
    pub device_parameter_bytes: Vec<u64>,
    /// Bytes of what it gives to other layers.
    pub activation_bytes: u64,
    /// The same on each device.
    pub device_activation_bytes: Vec<u64>,
    /// What is exchanged so that it can read its operands.
    pub communication_in: Traffic,
    /// What is exchanged so that others can read its results.
    pub communication_out: Traffic,
}

/// Sums over the layers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Totals {
    /// Scalar operations per step of the whole model.
    pub flops: u64,
    /// Scalar operations per step of each device.
    pub device_flops: Vec<u64>,
    /// Share of the operations that only one device does.
    pub split_flops: f64,
    /// Bytes of the model's weights.
    pub weight_bytes: u64,
    /// Bytes of weights on each device.
    pub device_weight_bytes: Vec<u64>,
    /// Share of the weights that only one device holds.
    pub split_weight_bytes: f64,
    /// Communications per step.
    pub communications: usize,
    /// Bytes over the link per step, both directions.
    pub communication_bytes: u64,
    /// Bytes at once on each device.
    pub peak_bytes: Vec<u64>,
}

/// A change of layout for which devices exchange something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CommunicationReport {
    /// Its number.
    pub channel: usize,
    /// `send`, `all_gather`, `all_reduce`, `reduce_scatter` or `all_to_all`.
    pub kind: &'static str,
    /// The layer whose result it is; the parameter's name for a parameter.
    pub from: String,
    /// Whether it is a parameter's value.
    pub of_parameter: bool,
    /// The layer that reads it first.
    pub to: String,
    /// The type of the whole value.
    pub value: String,
    /// The layout before.
    pub before: String,
    /// The layout after.
    pub after: String,
    /// Bytes over the link, both directions.
    pub bytes: u64,
}

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

/// Every communication of a graph at stage Explicit.
pub(super) fn communications(explicit: &Graph) -> Vec<CommunicationReport> {
    let mut found = Vec::new();
    for node in explicit.nodes.values() {
        let Op::Reshard(op) = &node.op else { continue };
        let (source, result) = (node.args[0], node.results[0]);
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
    found
}

/// The name under which what belongs to no layer is listed.
const ADDED: &str = "(added)";

/// The node that made a value, through changes of layout; the name of the parameter if it is one.
fn origin(explicit: &Graph, mut value: Value) -> Result<NodeId, String> {
    loop {
        match explicit.values[value].def {
            Def::Param(p) => return Err(explicit.params[p].name.to_string()),
            Def::Node(id, _) => match &explicit.nodes[id].op {
                Op::Reshard(_) => value = explicit.nodes[id].args[0],
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
        communications: communications.len(),
        communication_bytes: communications.iter().map(|c| c.bytes).sum(),
        peak_bytes: devices.iter().map(|d| d.peak_bytes).collect(),
    }
}

impl fmt::Display for PlacementReport {
    /// At most as many lines as there are layers, and 20.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batch = self.batch.map_or("no row axis".to_string(), |b| format!("batch {b}"));
        let pieces = if self.micro_batches > 1 { format!(" × {}", self.micro_batches) } else { String::new() };
        let (split, time) = (self.strategy, seconds(self.seconds));
        writeln!(f, "{} on {}, {batch}: {split}{pieces}, {time} per step", self.model, self.hardware)?;
        writeln!(f)?;
        write!(f, "{}", self.layer_table())?;
        writeln!(f)?;
        for d in &self.devices {
            writeln!(f, "{}", d.line())?;
        }
        let Traffic { count, bytes: total } =
            Traffic { count: self.totals.communications, bytes: self.totals.communication_bytes };
        let percent = |x: f64| format!("{:.1} %", x * 100.0);
        let plural = if count == 1 { "" } else { "s" };
        write!(f, "{count} transfer{plural}, {} per step", bytes(total as f64))?;
        if self.devices.len() > 1 {
            let (work, weights) = (percent(self.totals.split_flops), percent(self.totals.split_weight_bytes));
            write!(f, "; divided: {work} of the work, {weights} of the weights")?;
        }
        writeln!(f)?;
        writeln!(f)?;
        let text = table(&self.candidates).to_string();
        f.write_str(text.trim_end())
    }
}

impl PlacementReport {
    fn layer_table(&self) -> Table {
        let mut table = Table::new(&[
            ("layer", Align::Left),
            ("on", Align::Left),
            ("layout", Align::Left),
            ("result", Align::Left),
            ("flops", Align::Right),
            ("weights", Align::Right),
            ("activations", Align::Right),
            ("in", Align::Right),
            ("out", Align::Right),
        ]);
        for l in &self.layers {
            let on: Vec<String> = l.devices.iter().map(usize::to_string).collect();
            table.row(vec![
                l.name.clone(),
                if on.is_empty() { "-".to_string() } else { on.join("+") },
                l.layout.clone().unwrap_or_else(|| "-".to_string()),
                l.result.clone().unwrap_or_else(|| "-".to_string()),
                or_dash(l.flops as f64, count),
                or_dash(l.parameter_bytes as f64, bytes),
                or_dash(l.activation_bytes as f64, bytes),
                or_dash(l.communication_in.bytes as f64, bytes),
                or_dash(l.communication_out.bytes as f64, bytes),
            ]);
        }
        table.row(vec![
            "total".to_string(),
            String::new(),
            String::new(),
            String::new(),
            or_dash(self.totals.flops as f64, count),
            or_dash(self.totals.weight_bytes as f64, bytes),
            String::new(),
            or_dash(self.totals.communication_bytes as f64, bytes),
            String::new(),
        ]);
        table
    }
}

impl DeviceReport {
    fn line(&self) -> String {
        let rows = self.rows.map_or(String::new(), |r| format!("{r} rows, "));
        format!(
            "device {} ({}): {rows}{:.1} % of the work, {} weights ({:.1} %), peak {} ({} kept, {} reused), {} commands, {} kernels",
            self.device,
            self.name,
            self.flops_share * 100.0,
            bytes(self.weight_bytes as f64),
            self.weight_share * 100.0,
            bytes(self.peak_bytes as f64),
            bytes(self.persistent_bytes as f64),
            bytes(self.arena_bytes as f64),
            self.commands,
            self.kernels.len()
        )
    }
}
