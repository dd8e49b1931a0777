//! What a step of training keeps where, and in which order its micro-batches are worked on.

use super::exchanges::{ExchangesReport, exchanges};
use super::text::{Align, Table, bytes};
use crate::driver::Compiled;
use crate::train::assemble::Planned;
use crate::train::optimizer::Slot;
use crate::train::pieces::{self, Sums};
use crate::train::step::WAITING;
use crate::train::trainer::{Normalisation, Recipe};
use intwain_ir::{Graph, Layout, ParamKind, Way};
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{Plan, Strategy};
use intwain_passes::remat::{Recomputed, RecomputedLayer};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;

/// A step of training, beside what every plan says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingReport {
    /// The optimizer's class.
    pub optimizer: String,
    /// For each output its loss.
    pub losses: Vec<Option<String>>,
    /// Whether sums over rows give the same on one device and on two.
    pub exact: bool,
    /// Whose rows batch normalisation takes its statistics from: `global`, `device` or `micro-batch`.
    pub statistics: &'static str,
    /// Steps after which gradients are applied.
    pub staleness: usize,
    /// Rows of each micro-batch.
    pub micro_batches: Vec<usize>,
    /// In a pipeline, the order in which the segments work on them.
    pub schedule: Option<&'static str>,
    /// What each device keeps.
    pub devices: Vec<TrainingMemory>,
    /// What is computed again because the step would not fit into memory otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed: Option<RecomputedReport>,
    /// Every state: variables, what layers keep, the optimizer's slots.
    pub states: Vec<StateReport>,
    /// In a data split, how gradients are exchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exchanges: Option<ExchangesReport>,
    /// In a pipeline, what each device does in order: `F0` is micro-batch 0 forward, `B0` backward, `W0` what it puts off
    /// of the gradients of weights. Known once programs are made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub order: Vec<Vec<String>>,
}

/// Activations that are computed again rather than kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecomputedReport {
    /// Bytes of the predicted peak that this saves on each device.
    pub saved_bytes: Vec<u64>,
    /// Microseconds that it is predicted to add to a step.
    pub microseconds: f64,
    /// The layers of what is given up or runs again, largest first.
    pub layers: Vec<RecomputedLayerReport>,
}

/// What of a layer is computed again.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RecomputedLayerReport {
    /// The layer's path; empty for what the compiler adds.
    pub layer: String,
    /// Bytes that are given up, on all devices together; 0 where the layer only runs again for others.
    pub bytes: u64,
    /// Microseconds of what runs again, on the slower device.
    pub microseconds: f64,
}

impl RecomputedReport {
    fn of(recomputed: &Recomputed) -> RecomputedReport {
        let layer = |l: &RecomputedLayer| RecomputedLayerReport {
            layer: l.path.clone(),
            bytes: l.bytes.round() as u64,
            microseconds: l.seconds * 1e6,
        };
        RecomputedReport {
            saved_bytes: recomputed.saved_bytes.iter().map(|b| b.max(0.0).round() as u64).collect(),
            microseconds: recomputed.seconds * 1e6,
            layers: recomputed.layers.iter().map(layer).collect(),
        }
    }
}

/// What is saved at which cost, then a line a layer.
impl fmt::Display for RecomputedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let saved: Vec<String> = self.saved_bytes.iter().map(|b| bytes(*b as f64)).collect();
        write!(
            f,
            "computed again so that the step fits: saves {} of memory for {:+.1} µs a step",
            saved.join(" and "),
            self.microseconds
        )?;
        for l in &self.layers {
            let layer = if l.layer.is_empty() { "(the compiler's)" } else { &l.layer };
            write!(f, "\n  {layer}: {} given up, {:.1} µs again", bytes(l.bytes as f64), l.microseconds)?;
        }
        Ok(())
    }
}

/// What a device keeps for a step, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TrainingMemory {
    /// Variables, frozen ones too, and what layers keep.
    pub variable_bytes: u64,
    /// Gradients of the variables that it updates, and those that wait.
    pub gradient_bytes: u64,
    /// What the optimizer keeps.
    pub optimizer_bytes: u64,
    /// What is left of the predicted peak: activations, and gradients while they are made.
    pub rest_bytes: u64,
}

/// A tensor that is kept from step to step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StateReport {
    /// Its path.
    pub name: String,
    /// `variable` (trained), `frozen`, `kept` (changed by a layer itself), `optimizer` or `gradient` (one that waits).
    pub kind: &'static str,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How it is divided.
    pub layout: String,
    /// Bytes on each device.
    pub device_bytes: Vec<u64>,
}

/// Reports a planned step of training.
pub fn training(
    planned: &Planned,
    recipe: &Recipe,
    trainable: &BTreeSet<String>,
    rows: usize,
    hardware: &Hardware,
) -> TrainingReport {
    let (graph, plan) = (&planned.step.graph, &planned.plan);
    let states = states(graph, plan, &planned.step.slots, trainable);
    let device = |k: usize| {
        let of = |kinds: &[&str]| -> u64 {
            states.iter().filter(|s| kinds.contains(&s.kind)).map(|s| s.device_bytes[k]).sum()
        };
        let (variables, gradients, slots) =
            (of(&["variable", "frozen", "kept"]), of(&["variable"]), of(&["optimizer"]));
        let peak = plan.usage.peak_bytes.get(k).map_or(0, |b| b.round() as u64);
        let waiting = of(&["gradient"]);
        TrainingMemory {
            variable_bytes: variables,
            gradient_bytes: gradients + waiting,
            optimizer_bytes: slots,
            rest_bytes: peak.saturating_sub(variables + slots + waiting),
        }
    };
    let pipelined = plan.strategy == Strategy::Pipeline;
    let count = if pipelined { plan.micro_batches } else { recipe.micro_batches.map_or(1, |n| n.get()) };
    let class = recipe.optimizer.as_ref().and_then(|o| {
        let config = o.config();
        config.get("class_name").and_then(|c| c.as_str()).map(str::to_string)
    });
    TrainingReport {
        optimizer: class.unwrap_or_default(),
        losses: recipe.objectives.iter().map(|o| o.loss.as_ref().map(|l| l.name().to_string())).collect(),
        exact: recipe.sums == Sums::Exact,
        statistics: match recipe.normalisation {
            Normalisation::Global => "global",
            Normalisation::Device => "device",
            Normalisation::MicroBatch => "micro-batch",
        },
        staleness: recipe.staleness,
        micro_batches: pieces::micro_batches(rows, count, recipe.sums).iter().map(|r| r.len()).collect(),
        schedule: pipelined.then(|| recipe.schedule.name()),
        devices: (0..plan.devices).map(device).collect(),
        recomputed: planned.recomputed.as_ref().map(RecomputedReport::of),
        states,
        exchanges: exchanges(graph, plan, hardware),
        order: Vec::new(),
    }
}

fn states(graph: &Graph, plan: &Plan, slots: &[Slot], trainable: &BTreeSet<String>) -> Vec<StateReport> {
    let slots: BTreeSet<&str> = slots.iter().map(|s| s.path.as_str()).collect();
    let mut all = Vec::new();
    for (p, layout) in graph.params.iter().zip(&plan.params) {
        let kind = match p.kind {
            ParamKind::Input { .. } => continue,
            ParamKind::Weight { .. } => "frozen",
            ParamKind::State { .. } if slots.contains(&*p.name) => "optimizer",
            ParamKind::State { .. } if trainable.contains(&*p.name) => "variable",
            ParamKind::State { .. } if p.name.starts_with(WAITING) => "gradient",
            ParamKind::State { .. } => "kept",
        };
        let ty = graph.ty(p.value);
        let held = |k: usize| layout.local_type(ty, k).map_or(0, |t| t.bytes() as u64);
        // One device has no layouts.
        let layout_text = if plan.devices == 1 { Layout::Replicated.to_string() } else { layout.to_string() };
        all.push(StateReport {
            name: p.name.to_string(),
            kind,
            ty: ty.to_string(),
            layout: layout_text,
            device_bytes: (0..plan.devices).map(held).collect(),
        });
    }
    all
}

/// What each device of a pipeline does, in order.
pub fn order(compiled: &Compiled) -> Vec<Vec<String>> {
    compiled.locals.iter().map(device_order).collect()
}

fn device_order(graph: &Graph) -> Vec<String> {
    let mut order: Vec<String> = Vec::new();
    let mut seen: BTreeSet<(usize, bool)> = BTreeSet::new();
    let mut last = None;
    for node in graph.nodes.values() {
        let Some(turn) = node.origin.turn().filter(|_| !node.op.is_communication()) else { continue };
        let now = (turn.micro_batch, turn.way == Way::Backward);
        if last == Some(now) {
            continue;
        }
        last = Some(now);
        let letter = match (now.1, seen.insert(now)) {
            (false, _) => 'F',
            (true, true) => 'B',
            (true, false) => 'W',
        };
        order.push(format!("{letter}{}", turn.micro_batch));
    }
    order.dedup();
    order
}

impl fmt::Display for TrainingReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let losses: Vec<&str> = self.losses.iter().flatten().map(String::as_str).collect();
        let sums = if self.exact { "exact sums" } else { "free sums" };
        write!(f, "a step of training: {}, {}, {sums}", losses.join(" + "), self.optimizer)?;
        if self.micro_batches.len() > 1 {
            let mut rows: Vec<String> = self.micro_batches.iter().map(usize::to_string).collect();
            rows.dedup();
            write!(f, ", {} micro-batches of {} rows", self.micro_batches.len(), rows.join(", "))?;
        }
        match self.schedule {
            Some(schedule) => writeln!(f, ", {schedule}")?,
            None => writeln!(f)?,
        }
        if self.staleness > 0 {
            let k = self.staleness;
            let steps = if k == 1 { "step".to_string() } else { format!("{k} steps") };
            writeln!(
                f,
                "staleness {k}: an update takes the gradients of {k} before, which variables {k} updates older gave; the first {steps} update \
                 nothing. The same on one device and on two; not what --staleness 0 gives"
            )?;
        }
        if self.statistics == "device" {
            writeln!(f, "batch statistics of each device's rows: not what one device with all rows gives")?;
        }
        let head = ["device", "variables", "gradients", "optimizer", "rest"];
        let mut table = Table::new(&head.map(|h| (h, if h == "device" { Align::Left } else { Align::Right })));
        for (k, d) in self.devices.iter().enumerate() {
            let numbers = [d.variable_bytes, d.gradient_bytes, d.optimizer_bytes, d.rest_bytes];
            let cells = numbers.map(|n| bytes(n as f64));
            table.row(std::iter::once(k.to_string()).chain(cells).collect());
        }
        write!(f, "{}", table.to_string().trim_end())?;
        if let Some(exchanges) = &self.exchanges {
            write!(f, "\n{exchanges}")?;
        }
        if let Some(recomputed) = &self.recomputed {
            write!(f, "\n{recomputed}")?;
        }
        for (k, order) in self.order.iter().enumerate().filter(|(_, o)| !o.is_empty()) {
            write!(f, "\ndevice {k}: {}", order.join(" "))?;
        }
        Ok(())
    }
}

impl TrainingReport {
    /// A table of all states.
    pub fn state_table(&self) -> String {
        let head = [("state", Align::Left), ("kind", Align::Left), ("type", Align::Left), ("layout", Align::Left)];
        let mut table = Table::new(&head);
        for s in &self.states {
            table.row(vec![s.name.clone(), s.kind.to_string(), s.ty.clone(), s.layout.clone()]);
        }
        table.to_string()
    }
}
