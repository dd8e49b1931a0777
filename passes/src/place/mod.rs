//! Decides what each of two devices holds and computes.
//!
//! Candidates are `one` device, a `data` split, a `tensor` split, any `mixed` assignment of layouts, and the best
//! `pipeline` of two segments. The splits are exact minima of one cost graph under restrictions (`search`,
//! `restrict`); the pipeline is searched by `solve::cut`. Every candidate keeps its predicted time, memory and traffic and
//! the reason why it was or was not chosen: that list is the explanation of the plan.

mod groups;
mod pipeline;
mod plan;
mod relief;
mod restrict;
mod search;
mod segments;
mod sharding;
mod states;
mod usage;

pub use plan::{
    Candidate, MARGIN, Options, PIPELINE_MARGIN, Permission, PlaceError, Plan, RunnerUp, Strategy, Survey, Verdict,
};
pub use relief::Relieved;
pub use segments::{relieved_segments, segments};
pub use sharding::{Sharding, StateSharding, WHOLE_BELOW};
pub use states::NodeStrategy;
use states::Sums;
pub use usage::Usage;

use crate::buckets::{Buckets, timeline};
use crate::cost::CostModel;
use crate::hardware::{DeviceSpec, Hardware, OpClass};
use crate::reshard;
use crate::row_blocks::sums_rows;
use crate::solve::{CostGraph, Proof};
use crate::ties::{self, Ties};
use cranelift_entity::SecondaryMap;
use groups::Groups;
use intwain_ir::shard::Layout;
use intwain_ir::{Graph, NodeId, ParamKind, Rows};
use restrict::NotOffered;
use search::{Allowed, Asked, Assignment, Space};

/// Plans one graph for one machine.
#[derive(Debug)]
pub struct Planner<'a> {
    graph: &'a Graph,
    hardware: &'a Hardware,
    options: Options,
    spaces: Vec<(Space<'a>, CostGraph)>,
}

/// A possible plan.
struct Possible {
    strategy: Strategy,
    assignment: Assignment,
    usage: Usage,
    micro_batches: usize,
    devices: usize,
}

impl<'a> Planner<'a> {
    /// Prepares the search.
    pub fn new(graph: &'a Graph, hardware: &'a Hardware, options: Options) -> Planner<'a> {
        let rules = ties::rules(graph);
        let ties = Ties::new(graph, &rules);
        let exact = options.numerics.is_exact() && sums_rows(graph, &ties, &rules);
        let sums = if exact { Sums::RowsWhole } else { Sums::Divided };
        let spaces = shares(hardware, &options)
            .into_iter()
            .map(|shares| {
                let groups = Groups::new(graph, ties.clone(), shares, shares);
                let model = CostModel::new(hardware, options.f32_arithmetic);
                let asked = Asked { sums, parts: options.parts, sharding: options.sharding };
                let space = Space::new(graph, model, rules.clone(), groups, asked);
                let costs = space.costs();
                (space, costs)
            })
            .collect();
        Planner { graph, hardware, options, spaces }
    }

    /// The plan.
    pub fn plan(&self) -> Result<Plan, PlaceError> {
        if self.options.sharding.divides() && !matches!(self.options.strategy, Some(Strategy::Data | Strategy::One)) {
            return Err(PlaceError::Sharding { states: self.options.sharding.states, asked: self.options.strategy });
        }
        let found = self.found();
        let mut chosen: Option<(usize, f64)> = None;
        for (at, (strategy, result)) in found.iter().enumerate() {
            let asked = self.options.strategy.is_none_or(|s| s == *strategy);
            let Ok(option) = result else { continue };
            let faster = chosen.is_none_or(|(_, best)| option.assignment.seconds < best * (1.0 - MARGIN));
            if asked && self.too_large(option).is_none() && self.inexact(option).is_none() && faster {
                chosen = Some((at, option.assignment.seconds));
            }
        }
        let candidates = self.candidates(&found, chosen.map(|c| c.0));
        let Some((at, seconds)) = chosen else { return Err(self.failure(&found, &candidates, Vec::new())) };
        let option = found.into_iter().nth(at).and_then(|(_, r)| r.ok()).expect("the chosen candidate is possible");
        let layouts = usage::layouts(&self.spaces[0].0, &option.assignment);
        let mut plan = Plan {
            bucket_bytes: None,
            strategy: option.strategy,
            devices: option.devices,
            micro_batches: option.micro_batches,
            params: option.assignment.params,
            nodes: option.assignment.nodes,
            layouts,
            seconds,
            usage: option.usage,
            proof: option.assignment.proof,
            sharding: if option.strategy == Strategy::Data { self.options.sharding.states } else { Default::default() },
            candidates,
        };
        plan.bucket_bytes = self.bucket_bytes(&plan);
        Ok(plan)
    }

    /// How large the messages are in which a data split's gradients are exchanged.
    fn bucket_bytes(&self, plan: &Plan) -> Option<usize> {
        if plan.strategy != Strategy::Data {
            return None;
        }
        match self.options.buckets {
            Buckets::Apart => None,
            Buckets::Bytes(bytes) => Some(bytes),
            Buckets::Auto => {
                // Divided once more where this is lowered, which is where a plan that cannot be divided is refused.
                let explicit =
                    reshard::reshard_states(&reshard::apply(self.graph, plan), &plan.nodes, plan.sharding).ok()?;
                timeline::choose(&explicit, &CostModel::new(self.hardware, self.options.f32_arithmetic))
            }
        }
    }

    /// Every strategy that is priced.
    fn found(&self) -> Vec<(Strategy, Result<Possible, NotOffered>)> {
        let asked = |s: &Strategy| self.options.strategy.is_none_or(|named| named == *s || *s == Strategy::One);
        let priced = |s: &Strategy| match self.options.survey {
            Survey::All => true,
            Survey::Splits => *s != Strategy::Pipeline,
            Survey::Asked => asked(s),
        };
        Strategy::ALL.into_iter().filter(priced).map(|s| (s, self.candidate(s))).collect()
    }

    /// The best other choice for a node, and what the whole plan would cost with it: in a split another way of sharing
    /// it, in a pipeline the other segment. Planning again with the node pinned to it gives the same cost. Choices that
    /// the strategy allows come first. `None` where there is no other, and for `one`.
    pub fn runner_up(&self, plan: &Plan, node: NodeId) -> Option<RunnerUp> {
        if plan.strategy == Strategy::Pipeline {
            return self.other_segment(plan, node);
        }
        let mut best: Option<RunnerUp> = None;
        for (space, costs) in &self.spaces {
            let allowed = self.allowed(space, plan.strategy).ok()?;
            let mut tried: Vec<&NodeStrategy> = vec![&plan.nodes[node]];
            for state in &space.nodes[node] {
                if tried.contains(&&state.strategy) {
                    continue;
                }
                tried.push(&state.strategy);
                let mut pinned = allowed.clone();
                pin(space, &mut pinned, node, &state.strategy);
                let Ok(assignment) = space.solve(costs, &pinned) else { continue };
                let is_allowed = allowed.nodes[node].intersects(pinned.nodes[node]);
                let permission = if is_allowed { Permission::Allowed } else { Permission::Forbidden };
                let seconds = assignment.seconds;
                let better = |b: &RunnerUp| (permission, seconds) < (b.permission, b.seconds);
                if best.as_ref().is_none_or(better) {
                    let (strategy, results) = (state.strategy.clone(), state.results.clone());
                    best = Some(RunnerUp { strategy, results, seconds, permission });
                }
            }
        }
        best
    }

    fn candidate(&self, strategy: Strategy) -> Result<Possible, NotOffered> {
        match strategy {
            Strategy::One => Ok(self.one()),
            Strategy::Pipeline => self.pipeline(&self.options.pins),
            Strategy::Data | Strategy::Tensor | Strategy::Mixed => self.split(strategy),
        }
    }

    fn one(&self) -> Possible {
        let space = &self.spaces[0].0;
        let mut nodes = SecondaryMap::new();
        let mut seconds = 0.0;
        for (id, node) in &self.graph.nodes {
            nodes[id] = NodeStrategy::Whole;
            if !node.results.iter().all(|r| space.prepared[*r]) {
                seconds += space.alone_seconds(id, &self.hardware.alone);
            }
        }
        let params = vec![Layout::Replicated; self.graph.params.len()];
        let assignment = Assignment { params, nodes, seconds, proof: Proof::Optimal };
        let usage = usage::usage(space, &assignment, 1);
        Possible { strategy: Strategy::One, assignment, usage, micro_batches: 1, devices: 1 }
    }

    fn pipeline(&self, pins: &[(NodeId, NodeStrategy)]) -> Result<Possible, NotOffered> {
        if self.options.parts.is_some() {
            return Err(NotOffered(
                "parts divide rows and weights; where a pipeline is cut is searched for".to_owned(),
            ));
        }
        let space = &self.spaces[0].0;
        let rows = self.graph.inputs().find_map(|p| match p.kind {
            ParamKind::Input { rows: Rows::Batched } => self.graph.shape(p.value).first().copied(),
            ParamKind::Input { rows: Rows::Whole } | ParamKind::Weight { .. } | ParamKind::State { .. } => None,
        });
        let best = pipeline::best(space, rows, pins)
            .ok_or_else(|| NotOffered("there are fewer than two operations to divide".to_owned()))?;
        let usage = usage::usage(space, &best.assignment, 2);
        let micro_batches = best.cut.micro_batches;
        Ok(Possible { strategy: Strategy::Pipeline, assignment: best.assignment, usage, micro_batches, devices: 2 })
    }

    /// The best pipeline with a node on the other device.
    fn other_segment(&self, plan: &Plan, node: NodeId) -> Option<RunnerUp> {
        let NodeStrategy::On(device) = plan.nodes[node] else { return None };
        let strategy = NodeStrategy::On(1 - device);
        let mut pins = self.options.pins.clone();
        pins.push((node, strategy.clone()));
        let found = self.pipeline(&pins).ok().filter(|p| p.assignment.nodes[node] == strategy)?;
        let results = vec![Layout::On(1 - device); self.graph.nodes[node].results.len()];
        Some(RunnerUp { strategy, results, seconds: found.assignment.seconds, permission: Permission::Allowed })
    }

    fn allowed(&self, space: &Space<'_>, strategy: Strategy) -> Result<Allowed, NotOffered> {
        let mut allowed = match strategy {
            Strategy::Data => space.data()?,
            Strategy::Tensor => space.tensor()?,
            Strategy::Mixed => space.mixed(),
            Strategy::One | Strategy::Pipeline => return Err(NotOffered("it has no layouts to choose".to_owned())),
        };
        for (node, strategy) in &self.options.pins {
            pin(space, &mut allowed, *node, strategy);
        }
        Ok(allowed)
    }

    fn split(&self, strategy: Strategy) -> Result<Possible, NotOffered> {
        let mut best: Option<Possible> = None;
        let mut refused = NotOffered("there is nothing to divide".to_owned());
        for (space, costs) in &self.spaces {
            let allowed = self.allowed(space, strategy)?;
            let assignment = match space.solve(costs, &allowed) {
                Ok(assignment) => assignment,
                // A pin names units of one ratio; the others do not have it.
                Err(e) => {
                    refused = NotOffered(format!("{e} (a pin may forbid it)"));
                    continue;
                }
            };
            if best.as_ref().is_none_or(|b| assignment.seconds < b.assignment.seconds) {
                let usage = usage::usage(space, &assignment, 2);
                best = Some(Possible { strategy, assignment, usage, micro_batches: 1, devices: 2 });
            }
        }
        best.ok_or(refused)
    }

    /// Why a plan that nobody named is not taken where results must not depend on the split.
    fn inexact(&self, option: &Possible) -> Option<Verdict> {
        let space = &self.spaces[0].0;
        let named = self.options.strategy.is_some() || space.sums == Sums::Divided;
        let divides = |id: NodeId| {
            let strategy = &option.assignment.nodes[id];
            space.nodes[id].iter().any(|s| s.strategy == *strategy && s.divides_sums(self.graph, id))
        };
        let inexact = option.strategy == Strategy::Tensor && !named && self.graph.nodes.keys().any(divides);
        inexact.then(|| Verdict::NotOffered("it divides sums, so that results would depend on the split".to_owned()))
    }

    /// The devices of a plan.
    fn devices(&self, option: &Possible) -> &[DeviceSpec] {
        if option.devices == 1 { std::slice::from_ref(&self.hardware.alone) } else { &self.hardware.devices }
    }

    fn too_large(&self, option: &Possible) -> Option<Verdict> {
        option.usage.peak_bytes.iter().zip(self.devices(option)).enumerate().find_map(|(device, (&bytes, spec))| {
            let memory = self.options.memory(device, spec);
            (bytes > memory).then_some(Verdict::TooLarge { device, bytes, memory })
        })
    }

    fn candidates(&self, found: &[(Strategy, Result<Possible, NotOffered>)], chosen: Option<usize>) -> Vec<Candidate> {
        let candidate = |(at, (strategy, result)): (usize, &(Strategy, Result<Possible, NotOffered>))| match result {
            Ok(option) => Candidate {
                strategy: *strategy,
                seconds: Some(option.assignment.seconds),
                usage: Some(option.usage.clone()),
                micro_batches: option.micro_batches,
                verdict: match (chosen == Some(at), self.too_large(option).or_else(|| self.inexact(option))) {
                    (true, _) => Verdict::Chosen,
                    (false, Some(verdict)) => verdict,
                    (false, None) => Verdict::Rejected,
                },
            },
            Err(NotOffered(reason)) => Candidate {
                strategy: *strategy,
                seconds: None,
                usage: None,
                micro_batches: 1,
                verdict: Verdict::NotOffered(reason.clone()),
            },
        };
        found.iter().enumerate().map(candidate).collect()
    }

    /// Why there is no plan; `short` is what else was tried.
    fn failure(
        &self,
        found: &[(Strategy, Result<Possible, NotOffered>)],
        candidates: &[Candidate],
        short: Vec<String>,
    ) -> PlaceError {
        if let Some(strategy) = self.options.strategy
            && let Some(Candidate { verdict: Verdict::NotOffered(reason), .. }) =
                candidates.iter().find(|c| c.strategy == strategy)
        {
            return PlaceError::CannotSplit { strategy, reason: reason.clone() };
        }
        let asked = |c: &&Candidate| self.options.strategy.is_none_or(|s| s == c.strategy);
        let verdict = |c: &Candidate| format!("`{}` {}", c.strategy, c.verdict);
        let mut reasons: Vec<String> = candidates.iter().filter(asked).map(verdict).collect();
        reasons.extend(short);
        reasons.extend(self.reliefs(candidates));
        // Of the plans that were asked for, the one that needs least says what to change.
        let named = |s: Strategy| self.options.strategy.is_none_or(|asked| asked == s);
        let options = found.iter().filter(|(s, _)| named(*s)).filter_map(|(_, option)| option.as_ref().ok());
        let most = |p: &&Possible| p.usage.peak_bytes.iter().copied().fold(0.0, f64::max);
        if let Some(option) = options.min_by(|a, b| most(a).total_cmp(&most(b))) {
            reasons.extend(self.tight(option).told());
        }
        PlaceError::DoesNotFit(reasons)
    }

    /// What a data split that does not fit would need if its devices kept more of the states in parts.
    fn reliefs(&self, candidates: &[Candidate]) -> Vec<String> {
        let data = candidates.iter().find(|c| c.strategy == Strategy::Data);
        let Some((Verdict::TooLarge { device, .. }, Some(usage))) = data.map(|c| (&c.verdict, &c.usage)) else {
            return Vec::new();
        };
        let relief = |states: StateSharding| {
            let sharding = Sharding { states, ..self.options.sharding };
            let options = Options { strategy: Some(Strategy::Data), sharding, ..self.options.clone() };
            let possible = Planner::new(self.graph, self.hardware, options);
            let possible = possible.split(Strategy::Data).ok()?;
            let saved = usage.peak_bytes[*device] - possible.usage.peak_bytes[*device];
            let seconds = possible.assignment.seconds - data?.seconds?;
            let fits = if self.too_large(&possible).is_none() { "fits" } else { "does not fit either" };
            let change = format!("−{}, {:+.2} ms", relief::bytes_text(saved), seconds * 1e3);
            (saved > 0.0).then(|| format!("`data` with --zero {} {fits} ({change})", states.stage()))
        };
        let more = StateSharding::ALL.into_iter().filter(|s| *s > self.options.sharding.states);
        more.filter_map(relief).collect()
    }
}

fn pin(space: &Space<'_>, allowed: &mut Allowed, node: NodeId, strategy: &NodeStrategy) {
    allowed.nodes[node] = space.all().nodes[node].filter(|s| space.nodes[node][s].strategy == *strategy);
}

/// Ratios in which devices may share: as asked, evenly between equal devices, by speed between others.
fn shares(hardware: &Hardware, options: &Options) -> Vec<[f64; 2]> {
    if let Some(parts) = options.parts {
        return vec![parts.map(|p| p as f64)];
    }
    if hardware.is_even() {
        return vec![[1.0, 1.0]];
    }
    let both = |f: &dyn Fn(usize) -> f64| [f(0), f(1)];
    let compute = both(&|k| {
        let device = &hardware.devices[k];
        device.rate(options.f32_arithmetic).value * device.efficiency(OpClass::Contraction).value
    });
    let memory = both(&|k| hardware.devices[k].stream_bandwidth());
    vec![compute, memory, [1.0, 1.0]]
}

#[cfg(test)]
mod tests;
