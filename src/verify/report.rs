//! What verification found.

use serde::Serialize;
use std::fmt;

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct VerifyReport {
    /// Version of this form.
    pub version: u32,
    /// The model.
    pub model: String,
    /// Rows of the call that was verified.
    pub batch: Option<usize>,
    /// Whether everything is as it should be.
    pub verified: bool,
    /// Every program.
    pub programs: Vec<ProgramVerdict>,
}

/// What was found of one split program.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramVerdict {
    /// How the model is split.
    pub strategy: String,
    /// Whether everything is as it should be.
    pub verified: bool,
    /// Where it is not possible: why.
    pub skipped: Option<String>,
    /// Number of devices.
    pub devices: usize,
    /// Communications of a step on all devices.
    pub communications: usize,
    /// Commands of a step on all devices.
    pub commands: usize,
    /// What the checkers found.
    pub faults: Vec<String>,
    /// What running it showed.
    pub execution: Option<Execution>,
}

/// A comparison of the split program with the whole graph, on small integers.
#[derive(Clone, Debug, Serialize)]
pub struct Execution {
    /// `interpreter`, or where the kernels ran: `compiled` for this machine, `ptx` or `cuda`.
    pub engine: &'static str,
    /// Numbers compared.
    pub elements: usize,
    /// Numbers whose bits differ.
    pub unequal: usize,
    /// Whether the plan promises equal bits.
    pub promised_equal: bool,
    /// The largest difference over the output's largest number.
    pub largest_error: f64,
    /// The largest that is allowed where equal bits are not promised.
    pub allowed_error: f64,
}

/// Differences that rounding can make where sums are taken in another order.
pub(super) const ALLOWED: f64 = 1e-5;

impl Execution {
    pub(super) fn is_right(&self) -> bool {
        self.unequal == 0 || (!self.promised_equal && self.largest_error <= self.allowed_error)
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batch = self.batch.map_or("no row axis".to_string(), |b| format!("batch {b}"));
        writeln!(f, "{}, {batch}", self.model)?;
        for p in &self.programs {
            writeln!(f, "{:<10} {p}", p.strategy)?;
        }
        f.write_str(if self.verified { "verified" } else { "NOT VERIFIED" })
    }
}

impl fmt::Display for ProgramVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(reason) = &self.skipped {
            return f.write_str(reason);
        }
        if !self.faults.is_empty() {
            const SHOWN: usize = 5;
            write!(f, "{} fault(s)", self.faults.len())?;
            self.faults.iter().take(SHOWN).try_for_each(|fault| write!(f, "\n  {fault}"))?;
            let more = self.faults.len().saturating_sub(SHOWN);
            return if more > 0 { write!(f, "\n  and {more} more") } else { Ok(()) };
        }
        write!(
            f,
            "proved equal to the whole; {} communications cannot lock up, memory of {} commands in order; ",
            self.communications, self.commands
        )?;
        match &self.execution {
            Some(e) => write!(f, "{e}"),
            None => f.write_str("not run"),
        }
    }
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (engine, n) = (self.engine, self.elements);
        if self.unequal == 0 {
            return write!(f, "on integers ({engine}) all {n} numbers equal bit for bit");
        }
        let (unequal, error, allowed) = (self.unequal, self.largest_error, self.allowed_error);
        write!(f, "on integers ({engine}) {unequal} of {n} numbers differ, by {error:.1e} of the scale at most; ")?;
        if self.promised_equal {
            f.write_str("equal bits were promised")
        } else {
            write!(f, "{allowed:.0e} is allowed")
        }
    }
}
