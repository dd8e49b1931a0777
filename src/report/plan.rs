//! Every way of using the devices, with what it is predicted to cost.

use super::text::{Align, Table, bytes, or_dash, seconds};
use super::{REPORT_VERSION, TrainingReport};
use intwain_ir::{Graph, ParamKind, Rows};
use intwain_passes::cost::CostModel;
use intwain_passes::hardware::{Arithmetic, Hardware, OpClass};
use intwain_passes::place::{Candidate, MARGIN, PIPELINE_MARGIN, Plan, Strategy, Verdict};
use serde::Serialize;
use std::fmt;

/// A comparison of strategies for one model on one machine.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// Version of this form.
    pub version: u32,
    /// The model.
    pub model: String,
    /// The machine.
    pub hardware: String,
    /// Hash of every fact of the machine.
    pub hardware_hash: String,
    /// The machine's devices.
    pub devices: Vec<String>,
    /// Rows of a step; `None` where the model has no row axis.
    pub batch: Option<usize>,
    /// The strategy that was chosen.
    pub strategy: &'static str,
    /// Its predicted seconds per step.
    pub seconds: f64,
    /// How the weakest figure behind the predictions is known: measured, interpolated or assumed.
    pub basis: &'static str,
    /// Why it was chosen.
    pub reason: String,
    /// Where one device is fastest: from how many rows on two are.
    pub break_even: Option<BreakEven>,
    /// Every strategy.
    pub candidates: Vec<CandidateReport>,
    /// Where it is a step of training that is planned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingReport>,
}

/// From how many rows on two devices are faster than one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BreakEven {
    /// The rows.
    pub batch: usize,
    /// The strategy that is fastest then.
    pub strategy: &'static str,
}

/// A strategy that was considered.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateReport {
    /// The strategy.
    pub strategy: &'static str,
    /// `chosen`, `rejected`, `too_large` or `not_possible`.
    pub verdict: &'static str,
    /// The verdict as a sentence.
    pub reason: String,
    /// Predicted seconds per step.
    pub seconds: Option<f64>,
    /// Micro-batches of a pipeline, else 1.
    pub micro_batches: usize,
    /// Predicted bytes at once on each device.
    pub peak_bytes: Vec<u64>,
    /// Bytes of weights on each device.
    pub weight_bytes: Vec<u64>,
    /// Scalar operations of each device per step.
    pub flops: Vec<u64>,
    /// Share of the work of contractions, convolutions and lookups that is cut.
    pub split_flops: Option<f64>,
    /// Share of the weights that is cut.
    pub split_weights: Option<f64>,
    /// Communications per step.
    pub communications: usize,
    /// Bytes over the link per step, both directions.
    pub communication_bytes: u64,
}

/// Reports the plan of a graph. `asked` is the strategy that was asked for by name.
pub fn plan(graph: &Graph, plan: &Plan, hardware: &Hardware, asked: Option<Strategy>) -> PlanReport {
    PlanReport {
        version: REPORT_VERSION,
        model: graph.name.to_string(),
        hardware: hardware.name.clone(),
        hardware_hash: hardware.hash(),
        devices: hardware.devices.iter().map(|d| d.name.clone()).collect(),
        batch: batch(graph),
        strategy: plan.strategy.name(),
        seconds: plan.seconds,
        basis: CostModel::new(hardware, Arithmetic::F32).basis(OpClass::Contraction).name(),
        reason: reason(plan, asked),
        break_even: None,
        candidates: candidates(plan, asked),
        training: None,
    }
}

/// Rows of a call of the graph.
pub(crate) fn batch(graph: &Graph) -> Option<usize> {
    graph.inputs().find_map(|p| match p.kind {
        ParamKind::Input { rows: Rows::Batched } => graph.shape(p.value).first().copied(),
        ParamKind::Input { rows: Rows::Whole } | ParamKind::Weight { .. } | ParamKind::State { .. } => None,
    })
}

/// Every candidate of a plan.
pub(super) fn candidates(plan: &Plan, asked: Option<Strategy>) -> Vec<CandidateReport> {
    plan.candidates.iter().map(|c| candidate(c, plan, asked)).collect()
}

fn candidate(c: &Candidate, plan: &Plan, asked: Option<Strategy>) -> CandidateReport {
    let whole = |numbers: &[f64]| numbers.iter().map(|n| n.round() as u64).collect();
    let usage = c.usage.clone().unwrap_or_default();
    let verdict = match c.verdict {
        Verdict::Chosen => "chosen",
        Verdict::Rejected => "rejected",
        Verdict::TooLarge { .. } => "too_large",
        Verdict::NotOffered(_) => "not_possible",
    };
    CandidateReport {
        strategy: c.strategy.name(),
        verdict,
        reason: candidate_reason(c, plan, asked),
        seconds: c.seconds,
        micro_batches: c.micro_batches,
        peak_bytes: whole(&usage.peak_bytes),
        weight_bytes: whole(&usage.weight_bytes),
        flops: whole(&usage.flops),
        split_flops: c.usage.as_ref().map(|u| u.split_flops),
        split_weights: c.usage.as_ref().map(|u| u.split_weights),
        communications: usage.communications,
        communication_bytes: usage.communication_bytes.round() as u64,
    }
}

fn candidate_reason(c: &Candidate, plan: &Plan, asked: Option<Strategy>) -> String {
    match (&c.verdict, c.seconds) {
        (Verdict::Chosen, _) if asked.is_some() => "chosen: asked for".to_string(),
        (Verdict::Chosen, _) => "chosen: fastest that fits".to_string(),
        (Verdict::Rejected, Some(s)) => {
            let ratio = s / plan.seconds;
            let close = ratio < 1.0 + MARGIN;
            // Only a step of training has a pipeline that is faster and not chosen.
            let margin = if c.strategy == Strategy::Pipeline && ratio < 1.0 { PIPELINE_MARGIN } else { MARGIN };
            match asked {
                Some(_) => format!("not asked for; {ratio:.2} × the time of `{}`", plan.strategy),
                None if close => format!("not faster than `{}` by {:.0} %", plan.strategy, margin * 100.0),
                None => format!("{ratio:.2} × the time of `{}`", plan.strategy),
            }
        }
        (Verdict::Rejected | Verdict::TooLarge { .. } | Verdict::NotOffered(_), _) => c.verdict.to_string(),
    }
}

fn reason(plan: &Plan, asked: Option<Strategy>) -> String {
    let one = plan.candidates.iter().find(|c| c.strategy == Strategy::One).and_then(|c| c.seconds);
    let speed = one.filter(|_| plan.strategy != Strategy::One).map(|one| {
        let ratio = one / plan.seconds;
        if ratio >= 1.0 {
            format!("{ratio:.2} × as fast as one device")
        } else {
            format!("{:.2} × slower than one device", 1.0 / ratio)
        }
    });
    match (asked, plan.strategy, speed) {
        (Some(_), _, Some(speed)) => format!("asked for; {speed}"),
        (Some(_), _, None) => "asked for".to_string(),
        (None, Strategy::One, _) => "no split is predicted to be faster than one device".to_string(),
        (None, _, speed) => format!("the fastest that fits, {}", speed.unwrap_or_default()),
    }
}

impl PlanReport {
    /// The candidate that was chosen.
    pub fn chosen(&self) -> Option<&CandidateReport> {
        self.candidates.iter().find(|c| c.strategy == self.strategy)
    }
}

/// A table of candidates.
pub(super) fn table(candidates: &[CandidateReport]) -> Table {
    let mut table = Table::new(&[
        ("strategy", Align::Left),
        ("step", Align::Right),
        ("peak 0", Align::Right),
        ("peak 1", Align::Right),
        ("transfers", Align::Right),
        ("bytes", Align::Right),
        ("verdict", Align::Left),
    ]);
    for c in candidates {
        let peak = |k: usize| c.peak_bytes.get(k).map_or("-".to_string(), |&b| bytes(b as f64));
        let transfers = if c.communications == 0 { "-".to_string() } else { c.communications.to_string() };
        let name = match c.micro_batches {
            1 => c.strategy.to_string(),
            m => format!("{} × {m}", c.strategy),
        };
        table.row(vec![
            name,
            c.seconds.map_or("-".to_string(), seconds),
            peak(0),
            peak(1),
            transfers,
            or_dash(c.communication_bytes as f64, bytes),
            c.reason.clone(),
        ]);
    }
    table
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batch = self.batch.map_or("no row axis".to_string(), |b| format!("batch {b}"));
        writeln!(f, "{} on {} ({}), {batch}", self.model, self.hardware, self.devices.join(", "))?;
        writeln!(f)?;
        write!(f, "{}", table(&self.candidates))?;
        writeln!(f)?;
        writeln!(f, "{}: {}", self.strategy, self.reason)?;
        if let Some(BreakEven { batch, strategy }) = &self.break_even {
            writeln!(f, "two devices are faster from batch {batch} on (`{strategy}`)")?;
        }
        write!(f, "predicted from {} figures", self.basis)?;
        match &self.training {
            Some(training) => write!(f, "\n\n{training}"),
            None => Ok(()),
        }
    }
}
