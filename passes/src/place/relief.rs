//! Plans that fit because activations are computed again, and what holds most memory where none does.

use super::search::{Assignment, Space};
use super::states::{Gathered, NodeStrategy, State};
use super::usage::Usage;
use super::{NotOffered, Options, PlaceError, Plan, Planner, Possible, Survey, usage};
use crate::cost::transfer;
use crate::remat::{Problem, Recomputed, choose};
use cranelift_entity::SecondaryMap;
use intwain_ir::shard::Layout;
use intwain_ir::{Graph, NodeId, ParamKind, Value};

/// How often a choice is tightened by what the plan of its graph exceeds memory.
const TRIES: usize = 4;
/// Layers that an error names.
const NAMED: usize = 4;

/// A plan that fits because some of its graph's nodes run again.
#[derive(Clone, Debug)]
pub struct Relieved {
    /// The graph with those nodes.
    pub graph: Graph,
    /// Its plan.
    pub plan: Plan,
    /// What is computed again.
    pub recomputed: Recomputed,
}

/// A plan that needs more memory than there is.
pub(super) struct Tight<'a, 's> {
    pub(super) space: &'s Space<'a>,
    pub(super) assignment: &'s Assignment,
    pub(super) usage: &'s Usage,
    /// Bytes of each device.
    pub(super) memory: Vec<f64>,
}

/// What a graph in which nodes run again needs, and its plan where it fits.
pub(super) struct Replanned {
    pub(super) peak_bytes: Vec<f64>,
    pub(super) seconds: f64,
    pub(super) plan: Option<Plan>,
}

/// The least that recomputation leaves, where that is too much: peak bytes of each device, seconds of a step.
pub(super) struct Shortage {
    peak_bytes: Vec<f64>,
    seconds: f64,
}

impl Planner<'_> {
    /// The fastest asked plan that fits if activations are computed again; for graphs of which [`plan`](Planner::plan)
    /// says that nothing fits.
    ///
    /// # Errors
    /// Where nothing fits even so: the reasons name what recomputation would leave.
    pub fn relieve(&self) -> Result<Relieved, PlaceError> {
        let found = self.found();
        let mut best: Option<Relieved> = None;
        let mut short = Vec::new();
        for (strategy, option) in &found {
            let asked = self.options.strategy.is_none_or(|s| s == *strategy);
            let Ok(option) = option else { continue };
            if !asked || !self.options.pins.is_empty() || self.inexact(option).is_some() {
                continue;
            }
            match self.tight(option).relieved(&|graph| self.replanned(graph, option)) {
                Ok(relieved) => {
                    if best.as_ref().is_none_or(|b| relieved.plan.seconds < b.plan.seconds) {
                        best = Some(relieved);
                    }
                }
                Err(shortage) => {
                    short.extend(shortage.map(|s| format!("`{strategy}` {}", s.text(option.assignment.seconds))))
                }
            }
        }
        let candidates = self.candidates(&found, None);
        let Some(mut best) = best else { return Err(self.failure(&found, &candidates, short)) };
        // The others are those of the graph as it was.
        let own = std::mem::take(&mut best.plan.candidates);
        let chosen = |c: super::Candidate| {
            own.iter().find(|o| o.strategy == best.plan.strategy && o.strategy == c.strategy).cloned().unwrap_or(c)
        };
        best.plan.candidates = candidates.into_iter().map(chosen).collect();
        Ok(best)
    }

    pub(super) fn tight<'s>(&'s self, option: &'s Possible) -> Tight<'s, 's> {
        Tight {
            space: &self.spaces[0].0,
            assignment: &option.assignment,
            usage: &option.usage,
            memory: self.devices(option).iter().enumerate().map(|(k, d)| self.options.memory(k, d)).collect(),
        }
    }

    /// The same strategy for a graph in which nodes run again.
    fn replanned(&self, graph: &Graph, option: &Possible) -> Option<Replanned> {
        let options = Options { strategy: Some(option.strategy), survey: Survey::Asked, ..self.options.clone() };
        let planner = Planner::new(graph, self.hardware, options);
        let possible = planner.candidate(option.strategy).map_err(|NotOffered(_)| ()).ok()?;
        let (peak_bytes, seconds) = (possible.usage.peak_bytes.clone(), possible.assignment.seconds);
        let plan = if planner.too_large(&possible).is_none() { planner.plan().ok() } else { None };
        Some(Replanned { peak_bytes, seconds, plan })
    }
}

impl Tight<'_, '_> {
    /// The graph with as much computed again as it takes to fit, and its plan.
    ///
    /// # Errors
    /// Where it does not fit, with what is left at best if anything is saved.
    pub(super) fn relieved(&self, replan: &dyn Fn(&Graph) -> Option<Replanned>) -> Result<Relieved, Option<Shortage>> {
        let devices = self.memory.len();
        let before = &self.usage.peak_bytes;
        let mut limits: Vec<f64> = (0..devices).map(|k| self.memory[k] - self.usage.weight_bytes[k]).collect();
        if limits.iter().any(|l| *l <= 0.0) {
            return Err(None);
        }
        let of = |v: Value| self.layout(v);
        let mut problem = Problem {
            lives: usage::lives(self.space, self.assignment, &of, devices),
            seconds: self.seconds(),
            exchanges: self.exchanges(),
            limits: limits.clone(),
        };
        let mut least: Option<Shortage> = None;
        for _ in 0..TRIES {
            problem.limits.clone_from(&limits);
            let choice = choose(&problem);
            let saves = (0..devices).any(|k| choice.peaks[k] + self.usage.weight_bytes[k] < before[k]);
            let fits = (0..devices).all(|k| choice.peaks[k] <= limits[k]);
            let Some(graph) = (saves || fits).then(|| problem.apply(&choice)) else { break };
            let graph = graph.expect("operands fit the second time as they did the first");
            let Some(Replanned { peak_bytes, seconds, plan }) = replan(&graph) else { break };
            if let Some(plan) = plan {
                let saved_bytes = before.iter().zip(&peak_bytes).map(|(b, p)| b - p).collect();
                let added = seconds - self.assignment.seconds;
                let recomputed = Recomputed { layers: problem.layers(&choice), saved_bytes, seconds: added };
                return Ok(Relieved { graph, plan, recomputed });
            }
            let over = |k: usize| (peak_bytes[k] - self.memory[k]).max(0.0);
            (0..devices).for_each(|k| limits[k] -= over(k));
            let most = |bytes: &[f64]| (0..devices).map(|k| bytes[k] - self.memory[k]).fold(f64::MIN, f64::max);
            let saves = most(&peak_bytes) < least.as_ref().map_or(most(before), |l| most(&l.peak_bytes));
            if saves {
                least = Some(Shortage { peak_bytes, seconds });
            }
            if !saves || limits.iter().any(|l| *l <= 0.0) {
                break;
            }
        }
        Err(least)
    }

    fn layout(&self, value: Value) -> Layout {
        let graph = self.space.graph;
        match graph.values[value].def {
            intwain_ir::Def::Param(at) => self.assignment.params[at].clone(),
            intwain_ir::Def::Node(id, result) => {
                let count = graph.nodes[id].results.len();
                self.assignment.nodes[id].result_layouts(&self.space.rules[id], count).swap_remove(result)
            }
        }
    }

    /// Seconds of each node on the slower device.
    fn seconds(&self) -> SecondaryMap<NodeId, f64> {
        let hardware = self.space.model.hardware();
        let mut seconds = SecondaryMap::new();
        for id in self.space.graph.nodes.keys() {
            seconds[id] = match (&self.assignment.nodes[id], self.memory.len()) {
                (NodeStrategy::On(k), _) => self.space.alone_seconds(id, &hardware.devices[*k]),
                (_, 1) => self.space.alone_seconds(id, &hardware.alone),
                (strategy, _) => self.space.strategy_seconds(id, strategy),
            };
        }
        seconds
    }

    /// The nodes that read what devices exchange.
    fn exchanges(&self) -> SecondaryMap<NodeId, bool> {
        let mut exchanges = SecondaryMap::new();
        let graph = self.space.graph;
        for (id, node) in &graph.nodes {
            let wanted = self.assignment.nodes[id].operand_layouts(&self.space.rules[id], node.args.len());
            let mut operands = node.args.iter().zip(wanted);
            exchanges[id] = operands.any(|(v, to)| transfer(graph.ty(*v), &self.layout(*v), &to).communicates);
        }
        exchanges
    }

    /// What an error says of a plan that does not fit: the layers that hold most where most is held, and how many of the
    /// rows would fit.
    pub(super) fn told(&self) -> Vec<String> {
        let over = |k: &usize| self.usage.peak_bytes[*k] - self.memory[*k];
        let Some(device) = (0..self.memory.len()).max_by(|a, b| over(a).total_cmp(&over(b))) else { return Vec::new() };
        let held = self.held(device);
        let mut layers: Vec<(String, f64)> = Vec::new();
        for (holder, _, bytes) in &held {
            match layers.iter_mut().find(|l| l.0 == *holder) {
                Some(layer) => layer.1 += bytes,
                None => layers.push((holder.clone(), *bytes)),
            }
        }
        layers.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let named: Vec<String> = layers.iter().take(NAMED).map(|(l, b)| format!("{l} {}", bytes_text(*b))).collect();
        let mut told = vec![format!("most of device {device} is held by {}", named.join(", "))];
        let rows: f64 = held.iter().filter(|h| h.1 == Grows::WithRows).map(|h| h.2).sum();
        let rest = self.usage.peak_bytes[device] - rows;
        let share = (self.memory[device] - rest) / rows.max(1.0);
        if (0.01..1.0).contains(&share) {
            told.push(format!("about {:.0} % of the rows would fit", (share * 100.0).floor()));
        }
        told
    }

    /// What a device holds where it holds most: the layer in backquotes, or what else it is; whether it grows with the
    /// rows; bytes.
    fn held(&self, device: usize) -> Vec<(String, Grows, f64)> {
        let (space, graph) = (self.space, self.space.graph);
        let uses = graph.uses();
        let named = |path: &str| match path {
            "" => "what the compiler adds".to_string(),
            path => format!("`{path}`"),
        };
        let of = |v: Value| self.layout(v);
        let lives = usage::lives(space, self.assignment, &of, self.memory.len());
        let mut held = Vec::new();
        for (value, bytes) in lives.at_peak(device) {
            let holder = match graph.def_node(value) {
                Some(id) => named(graph.nodes[id].origin.path()),
                None => "inputs".to_string(),
            };
            let grows = space.groups.row_dim(graph, value).map_or(Grows::Never, |_| Grows::WithRows);
            held.push((holder, grows, bytes));
        }
        for p in graph.params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. })) {
            let bytes = space.local_bytes(p.value, &self.layout(p.value), device);
            let path = uses[p.value].first().map_or("", |id| graph.nodes[*id].origin.path());
            let holder = if path.is_empty() { "optimizer and counters".to_string() } else { named(path) };
            held.push((holder, Grows::Never, bytes));
        }
        held
    }
}

/// Whether a value is larger for more rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Grows {
    WithRows,
    Never,
}

impl Shortage {
    /// What is left, as the end of a sentence about a plan that takes `before` seconds.
    pub(super) fn text(&self, before: f64) -> String {
        let peaks: Vec<String> = self.peak_bytes.iter().map(|b| bytes_text(*b)).collect();
        let added = (self.seconds - before) * 1e3;
        format!("with recomputation does not fit either: it needs {} ({added:+.2} ms)", peaks.join(" and "))
    }
}

/// `1.23 GB`, `456 kB`.
pub(super) fn bytes_text(bytes: f64) -> String {
    let units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(size, _)| bytes.abs() >= *size) {
        Some((size, unit)) => format!("{:.2} {unit}", bytes / size),
        None => format!("{bytes:.0} B"),
    }
}

impl Space<'_> {
    /// Seconds that the slower device spends on its part of a node.
    fn strategy_seconds(&self, id: NodeId, strategy: &NodeStrategy) -> f64 {
        let (node, rule) = (&self.graph.nodes[id], &self.rules[id]);
        let state = State {
            operands: strategy.operand_layouts(rule, node.args.len()),
            results: strategy.result_layouts(rule, node.results.len()),
            strategy: strategy.clone(),
            group: None,
            gathered: Gathered::No,
        };
        (0..2).map(|k| self.node_seconds(id, &state, k)).fold(0.0, f64::max)
    }
}
