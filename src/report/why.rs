//! Why a layer is where it is: what was chosen, what would have been second, and what that would have cost.

use super::REPORT_VERSION;
use super::placement::{self, CommunicationReport};
use super::text::{bytes, seconds};
use intwain_ir::{Graph, Layout, NodeId};
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{NodeStrategy, Options, Permission, PlaceError, Plan, Planner, Strategy, Survey};
use intwain_passes::{PassError, reshard};
use serde::Serialize;
use std::fmt;

/// Why a layer cannot be explained.
#[derive(Debug, thiserror::Error)]
pub enum WhyError {
    /// There is no plan.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A plan could not be carried out: a defect.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// No layer has this name.
    #[error("no layer is called `{name}`{}; `inspect` lists them all", similar(.nearest))]
    NoLayer {
        /// What was asked for.
        name: String,
        /// Layers with similar names.
        nearest: Vec<String>,
    },
    /// The layer is in the model and not in its graph.
    #[error("`{0}` computes nothing: inference leaves it out, so that there is nothing to place")]
    Nothing(String),
}

fn similar(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("; similar: {}", names.join(", ")) }
}

/// A way of sharing an operation.
#[derive(Clone, Debug, Serialize)]
pub struct Choice {
    /// In words.
    pub what: String,
    /// The layouts of its operands.
    pub operands: Vec<String>,
    /// The layouts of its results.
    pub results: Vec<String>,
    /// Predicted seconds per step of the best plan with it.
    pub seconds: f64,
    /// Bytes over the link per step of that plan.
    pub communication_bytes: u64,
    /// Predicted bytes at once on each device under that plan.
    pub peak_bytes: Vec<u64>,
}

/// The second best way.
#[derive(Clone, Debug, Serialize)]
pub struct RunnerUpReport {
    /// The way.
    pub choice: Choice,
    /// Whether the strategy of the plan allows it.
    pub allowed: bool,
    /// How many seconds per step the plan would lose; negative if it would gain.
    pub more_seconds: f64,
    /// How many more bytes would cross the link per step.
    pub more_bytes: i64,
    /// Other layers that the plan would share in another way, so that they fit to it.
    pub moves: Vec<String>,
    /// Communications that would come.
    pub added: Vec<CommunicationReport>,
    /// Communications that would go.
    pub removed: Vec<CommunicationReport>,
    /// The way as the planner's pins take it.
    #[serde(skip)]
    pub strategy: NodeStrategy,
}

/// Why a layer is where it is.
#[derive(Clone, Debug, Serialize)]
pub struct WhyReport {
    /// Version of this form.
    pub version: u32,
    /// The layer.
    pub layer: String,
    /// The layer's heaviest operation, which is what is explained.
    pub operation: String,
    /// The strategy of the plan.
    pub strategy: &'static str,
    /// What was chosen.
    pub chosen: Choice,
    /// What would have been second.
    pub runner_up: Option<RunnerUpReport>,
    /// Where the runner-up is missing: why there is none.
    pub alone: Option<String>,
    /// The operation in the graph.
    #[serde(skip)]
    pub node: NodeId,
}

/// Explains a layer of a prepared graph.
pub fn why(graph: &Graph, hardware: &Hardware, options: &Options, layer: &str) -> Result<WhyReport, WhyError> {
    let node = heaviest(graph, layer)?;
    let planner = Planner::new(graph, hardware, options.clone());
    let plan = planner.plan()?;
    let strategy = &plan.nodes[node];
    let chosen = choice(graph, node, strategy, &plan);
    let mut alone = None;
    let runner_up = match planner.runner_up(&plan, node) {
        Some(other) => {
            let mut pins = options.pins.clone();
            pins.push((node, other.strategy.clone()));
            let pinned = Options { strategy: Some(plan.strategy), pins, survey: Survey::Asked, ..options.clone() };
            let with = Planner::new(graph, hardware, pinned).plan()?;
            let choice = choice(graph, node, &other.strategy, &with);
            let (here, there) = (communications(graph, &plan)?, communications(graph, &with)?);
            Some(RunnerUpReport {
                moves: moves(graph, layer, &plan, &with),
                added: without(&there, &here),
                removed: without(&here, &there),
                more_seconds: with.seconds - plan.seconds,
                more_bytes: choice.communication_bytes as i64 - chosen.communication_bytes as i64,
                allowed: other.permission == Permission::Allowed,
                strategy: other.strategy,
                choice,
            })
        }
        None => {
            alone = Some(match plan.strategy {
                Strategy::One => "the plan uses one device; `plan` shows what the splits would cost".to_string(),
                Strategy::Data | Strategy::Tensor | Strategy::Mixed | Strategy::Pipeline => {
                    "there is no other way to share it".to_string()
                }
            });
            None
        }
    };
    Ok(WhyReport {
        version: REPORT_VERSION,
        layer: layer.to_string(),
        operation: format!("{} : {}", graph.nodes[node].op.name(), result_type(graph, node)),
        strategy: plan.strategy.name(),
        chosen,
        runner_up,
        alone,
        node,
    })
}

/// Other layers that two plans share in different ways, in order.
fn moves(graph: &Graph, layer: &str, a: &Plan, b: &Plan) -> Vec<String> {
    let mut moved: Vec<String> = Vec::new();
    for (id, node) in &graph.nodes {
        let path = node.origin.path();
        let differs = a.nodes[id] != b.nodes[id] && !path.is_empty() && path != layer;
        if differs && !moved.iter().any(|m| m == path) {
            moved.push(path.to_string());
        }
    }
    moved
}

/// What a plan communicates.
fn communications(graph: &Graph, plan: &Plan) -> Result<Vec<CommunicationReport>, PassError> {
    let explicit = reshard::reshard(&reshard::apply(graph, plan), &plan.nodes)?;
    Ok(placement::communications(&explicit))
}

/// What the first list has more than the second, whatever its numbers.
fn without(all: &[CommunicationReport], others: &[CommunicationReport]) -> Vec<CommunicationReport> {
    let mut others: Vec<CommunicationReport> = others.to_vec();
    let same = |a: &CommunicationReport, b: &CommunicationReport| {
        CommunicationReport { channel: b.channel, ..a.clone() } == *b
    };
    let mut rest = Vec::new();
    for c in all {
        match others.iter().position(|o| same(c, o)) {
            Some(at) => {
                others.remove(at);
            }
            None => rest.push(c.clone()),
        }
    }
    rest
}

fn result_type(graph: &Graph, node: NodeId) -> String {
    graph.result_types(node).first().map_or(String::new(), ToString::to_string)
}

/// The operation of a layer with most work among those that run in every step.
fn heaviest(graph: &Graph, layer: &str) -> Result<NodeId, WhyError> {
    let prepared = graph.prepared();
    let of_layer = graph.nodes.iter().filter(|(_, n)| n.origin.path() == layer);
    let weight = |id: NodeId| {
        let node = &graph.nodes[id];
        let runs = !node.results.iter().all(|r| prepared[*r]);
        (runs, graph.flops(id), std::cmp::Reverse(id))
    };
    of_layer.map(|(id, _)| id).max_by_key(|id| weight(*id)).ok_or_else(|| no_layer(graph, layer))
}

fn no_layer(graph: &Graph, name: &str) -> WhyError {
    let mut paths: Vec<&str> = graph.nodes.values().map(|n| n.origin.path()).filter(|p| !p.is_empty()).collect();
    paths.sort_unstable();
    paths.dedup();
    let last = |p: &str| p.rsplit('/').next().unwrap_or(p).to_string();
    let mut scored: Vec<(usize, &str)> =
        paths.iter().map(|p| (distance(name, p).min(distance(name, &last(p))), *p)).collect();
    scored.sort_unstable();
    let close = scored.into_iter().filter(|(d, _)| *d <= 2 + name.len() / 3);
    WhyError::NoLayer { name: name.to_string(), nearest: close.take(3).map(|(_, p)| p.to_string()).collect() }
}

/// Letters to insert, remove or replace to get from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

fn choice(graph: &Graph, node: NodeId, strategy: &NodeStrategy, plan: &Plan) -> Choice {
    let rule = graph.rule(node);
    let n = &graph.nodes[node];
    let operands = strategy.operand_layouts(&rule, n.args.len());
    let results = strategy.result_layouts(&rule, n.results.len());
    let text = |layouts: &[Layout]| layouts.iter().map(ToString::to_string).collect();
    Choice {
        what: words(strategy, &operands, &results),
        operands: text(&operands),
        results: text(&results),
        seconds: plan.seconds,
        communication_bytes: plan.usage.communication_bytes.round() as u64,
        peak_bytes: plan.usage.peak_bytes.iter().map(|b| b.round() as u64).collect(),
    }
}

/// A way of sharing in words.
fn words(strategy: &NodeStrategy, operands: &[Layout], results: &[Layout]) -> String {
    match strategy {
        NodeStrategy::Whole => "every device computes all of it".to_string(),
        NodeStrategy::On(k) => format!("device {k} computes it"),
        NodeStrategy::Linear(_) => "each device applies it to its own part of a sum".to_string(),
        NodeStrategy::Cut { units, .. } => {
            let parts: Vec<String> = units.iter().map(usize::to_string).collect();
            let parts = parts.join(" + ");
            match (results.first(), operands.iter().position(Layout::is_split)) {
                (Some(Layout::Split { dim, .. }), _) => {
                    format!("cut along dimension {dim} of its result, {parts}")
                }
                (Some(Layout::Partial(_)), Some(at)) => {
                    format!(
                        "cut along what it sums over, {parts} ({} of operand {at}); results are added",
                        operands[at]
                    )
                }
                _ => format!("cut {parts}"),
            }
        }
    }
}

impl fmt::Display for WhyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} ({}) under `{}`", self.layer, self.operation, self.strategy)?;
        writeln!(f)?;
        self.chosen.write(f, "chosen")?;
        match (&self.runner_up, &self.alone) {
            (Some(other), _) => {
                let forbidden = format!("runner-up (which `{}` does not allow)", self.strategy);
                other.choice.write(f, if other.allowed { "runner-up" } else { &forbidden })?;
                let (more, sign) =
                    (other.more_bytes.unsigned_abs() as f64, if other.more_bytes < 0 { "−" } else { "+" });
                let time = if other.more_seconds < 0.0 { "−" } else { "+" };
                let percent = other.more_seconds / self.chosen.seconds.max(f64::MIN_POSITIVE) * 100.0;
                write!(
                    f,
                    "difference: {time}{} ({percent:+.2} %), {sign}{} over the link per step",
                    seconds(other.more_seconds.abs()),
                    bytes(more)
                )?;
                other.write_changes(f)
            }
            (None, reason) => write!(f, "no runner-up: {}", reason.as_deref().unwrap_or("there is no other way")),
        }
    }
}

/// Most lines about what a runner-up would change.
const SHOWN: usize = 4;

impl RunnerUpReport {
    fn write_changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (sign, list) in [("+", &self.added), ("−", &self.removed)] {
            for c in list.iter().take(SHOWN) {
                write!(
                    f,
                    "\n  {sign} {} {}, {} → {}, from {} to {}",
                    c.kind, c.value, c.before, c.after, c.from, c.to
                )?;
            }
            if list.len() > SHOWN {
                write!(f, "\n  {sign} {} more", list.len() - SHOWN)?;
            }
        }
        if !self.moves.is_empty() {
            let names: Vec<&str> = self.moves.iter().take(SHOWN).map(String::as_str).collect();
            let more = self.moves.len().saturating_sub(SHOWN);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            write!(f, "\nother layers that would move with it: {}{more}", names.join(", "))?;
        }
        Ok(())
    }
}

impl Choice {
    fn write(&self, f: &mut fmt::Formatter<'_>, title: &str) -> fmt::Result {
        writeln!(f, "{title}: {}", self.what)?;
        writeln!(f, "  reads {}, gives {}", self.operands.join(", "), self.results.join(", "))?;
        let peaks: Vec<String> = self.peak_bytes.iter().map(|b| bytes(*b as f64)).collect();
        let (time, moved) = (seconds(self.seconds), bytes(self.communication_bytes as f64));
        writeln!(f, "  the plan with it: {time} per step, {moved} over the link, peak {}", peaks.join(" and "))
    }
}
