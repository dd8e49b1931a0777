//! The passes that rewrite a graph, in the order in which they run, and how one is run: the result is verified, timed
//! and may be dumped.

use crate::row_blocks::row_blocks;
use crate::simplify::{dead_code, simplify};
use intwain_ir::ops::{GradError, TypeError};
use intwain_ir::{Graph, Problem, verify};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// A pass that rewrites a graph.
#[derive(Clone, Copy, Debug)]
pub struct PassInfo {
    /// Its name in `--after`, `--time` and dumps.
    pub name: &'static str,
    /// What it does, in a line.
    pub doc: &'static str,
    /// The function.
    pub run: fn(&Graph) -> Result<Graph, PassError>,
}

/// Passes on the whole graph before placement. They may change rounding: what they do depends on the model only.
pub const GLOBAL: &[PassInfo] = &[
    PassInfo { name: "simplify", doc: "simplifies, folds constants and merges equal nodes", run: simplify },
    PassInfo { name: "dead-code", doc: "drops nodes whose results nobody needs", run: dead_code },
];

/// Passes on each device's graph. They keep the bits of every result.
pub const LOCAL: &[PassInfo] = &[
    PassInfo { name: "local-simplify", doc: "simplifies each device's graph", run: simplify },
    PassInfo { name: "local-dead-code", doc: "drops what a device does not need", run: dead_code },
];

/// How results may depend on the number of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Numerics {
    /// Sums may be divided over devices in any way.
    #[default]
    Free,
    /// Sums over rows have one order, so that a split by rows computes what one device computes, bit for bit; see
    /// [`row_blocks`](crate::row_blocks()).
    Exact(Exact),
}

/// What the order of sums over rows follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Exact {
    /// Rows of the batch that the graph's rows are a part of; `None`: they are all.
    pub batch: Option<usize>,
}

impl Numerics {
    /// Exact, the graph's rows being the batch.
    pub const EXACT: Numerics = Numerics::Exact(Exact { batch: None });

    /// Whether results must not depend on the number of devices.
    pub fn is_exact(self) -> bool {
        matches!(self, Numerics::Exact(_))
    }
}

/// The pass that follows [`GLOBAL`] where results are to be exact.
pub const ROW_BLOCKS: (&str, &str) = ("row-blocks", "gives sums over rows an order that no split changes");

/// Why a pass failed. Never caused by the user's model: the frontend and the planner refuse those.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// A pass built an operation whose operands do not fit.
    #[error("a pass built an operation that does not fit: {0}")]
    Type(#[from] TypeError),
    /// A gradient could not be written.
    #[error(transparent)]
    Grad(#[from] GradError),
    /// A pass broke a rule of the graph.
    #[error("after pass `{pass}` {} rule(s) are broken, first: {}", problems.len(), first(problems))]
    Broken {
        /// The pass.
        pass: &'static str,
        /// Everything the verifier found.
        problems: Vec<Problem>,
        /// The graph as text.
        dump: String,
    },
}

fn first(problems: &[Problem]) -> String {
    problems.first().map_or(String::new(), Problem::to_string)
}

/// How long each pass took, in order.
#[derive(Clone, Debug, Default)]
pub struct Timings(pub Vec<(&'static str, Duration)>);

impl Timings {
    /// Runs `work` and records its time under `name`, added to what stands there already.
    pub fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let took = start.elapsed();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, total)) => *total += took,
            None => self.0.push((name, took)),
        }
        result
    }

    /// A table, a line a pass.
    pub fn table(&self) -> String {
        let mut out = String::new();
        for (name, took) in &self.0 {
            let _ = writeln!(out, "{name:<20} {:>9.3} ms", took.as_secs_f64() * 1e3);
        }
        out
    }
}

/// Runs passes in order. `after` sees the graph after each pass.
pub fn run(
    passes: &[PassInfo],
    mut graph: Graph,
    timings: &mut Timings,
    after: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Graph, PassError> {
    for pass in passes {
        graph = timings.time(pass.name, || (pass.run)(&graph))?;
        check(pass.name, &graph, timings)?;
        after(pass.name, &graph);
    }
    Ok(graph)
}

/// Runs the passes before placement.
pub fn run_global(
    graph: Graph,
    numerics: Numerics,
    timings: &mut Timings,
    after: &mut dyn FnMut(&'static str, &Graph),
) -> Result<Graph, PassError> {
    let graph = run(GLOBAL, graph, timings, after)?;
    let Numerics::Exact(exact) = numerics else { return Ok(graph) };
    let name = ROW_BLOCKS.0;
    let graph = timings.time(name, || row_blocks(&graph, exact))?;
    check(name, &graph, timings)?;
    after(name, &graph);
    Ok(graph)
}

/// Verifies a graph that `pass` produced.
pub fn check(pass: &'static str, graph: &Graph, timings: &mut Timings) -> Result<(), PassError> {
    timings.time("verify", || verify(graph)).map_err(|problems| PassError::Broken {
        pass,
        problems,
        dump: graph.to_string(),
    })
}
