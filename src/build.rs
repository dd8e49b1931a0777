//! Plans and compiles models for machines that need not be there.
//!
//! A [`Request`] says for what and how; [`plan`] compares strategies, [`compile`] makes programs, whose placement
//! [`report::placement`] shows, [`why`] explains one layer, and [`write()`] puts programs into a directory.

use crate::driver::{self, CompileError, Compiled, Observer};
use crate::model::{Model, ModelError};
use crate::program::{self, Manifest, ProgramError};
use crate::report::{self, BreakEven, PlacementReport, PlanReport, WhyError, WhyReport};
use crate::session::{Fallback, FixedRows};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::Graph;
use intwain_passes::Timings;
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{self, PlaceError, Plan, Strategy};
use std::path::Path;

/// What to plan for, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// The machine.
    pub hardware: Hardware,
    /// A named strategy, parts and pins.
    pub options: place::Options,
    /// What happens when the named strategy cannot split the model.
    pub fallback: Fallback,
    /// Rows of a call.
    pub rows: usize,
    /// How GPUs round the factors of products.
    pub precision: Precision,
}

impl Request {
    /// The fastest plan for a machine that fits.
    pub fn new(hardware: Hardware, rows: usize) -> Request {
        let (options, precision) = (place::Options::default(), Precision::default());
        Request { hardware, options, fallback: Fallback::Refuse, rows, precision }
    }

    /// The same with a named strategy.
    pub fn split(mut self, strategy: Strategy) -> Request {
        self.options.strategy = Some(strategy);
        self
    }

    /// The strategy that was asked for by name.
    pub fn asked(&self) -> Option<Strategy> {
        self.options.strategy
    }
}

/// Why a model could not be planned or compiled.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The layer cannot be explained.
    #[error(transparent)]
    Why(#[from] WhyError),
    /// The model has programs for other numbers of rows only.
    #[error("{0}")]
    Rows(String),
    /// The program cannot be written.
    #[error(transparent)]
    Program(Box<ProgramError>),
}

impl From<ProgramError> for BuildError {
    fn from(e: ProgramError) -> BuildError {
        BuildError::Program(Box::new(e))
    }
}

/// Compares strategies.
pub fn plan(model: &Model, request: &Request, timings: &mut Timings) -> Result<PlanReport, BuildError> {
    let graph = prepared(model, request, timings)?;
    let plan = planned(&graph, request, timings)?;
    let mut report = report::plan(&graph, &plan, &request.hardware, request.asked());
    if request.asked().is_none() && plan.strategy == Strategy::One && report.batch.is_some() {
        report.break_even = break_even(model, request, timings)?;
    }
    Ok(report)
}

/// Largest number of rows that is tried.
const MOST_ROWS: usize = 1 << 14;

/// The fewest rows from which on two devices are faster, where one is for the request's rows.
fn break_even(model: &Model, request: &Request, timings: &mut Timings) -> Result<Option<BreakEven>, BuildError> {
    let mut best = |rows: usize| -> Result<Option<Strategy>, BuildError> {
        let request = Request { rows, ..request.clone() };
        let graph = prepared(model, &request, timings)?;
        match planned(&graph, &request, timings) {
            Ok(plan) => Ok(Some(plan.strategy).filter(|s| *s != Strategy::One)),
            // So many rows do not fit: no more will.
            Err(CompileError::Place(PlaceError::DoesNotFit(_))) => Ok(None),
            Err(e) => Err(e.into()),
        }
    };
    let (mut low, mut high) = (request.rows, request.rows.saturating_mul(2));
    let mut strategy = loop {
        if high > MOST_ROWS {
            return Ok(None);
        }
        if let Some(strategy) = best(high)? {
            break strategy;
        }
        (low, high) = (high, high * 2);
    };
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match best(middle)? {
            Some(found) => (high, strategy) = (middle, found),
            None => low = middle,
        }
    }
    Ok(Some(BreakEven { batch: high, strategy: strategy.name() }))
}

/// Makes the programs of the devices. `after` sees the graph after each pass, and each device's.
pub fn compile(
    model: &Model,
    request: &Request,
    timings: &mut Timings,
    after: Observer<'_>,
) -> Result<Compiled, BuildError> {
    let graph = timings.time("read", || model.graph(request.rows))?;
    let graph = driver::prepare(graph, request.options.numerics, timings, after)?;
    let plan = planned(&graph, request, timings)?;
    let target = crate::kernels::target_for(&request.hardware, request.precision);
    Ok(driver::lower(graph, plan, &*target, timings, after)?)
}

/// Says what is where.
pub fn inspect(model: &Model, request: &Request, timings: &mut Timings) -> Result<PlacementReport, BuildError> {
    let compiled = compile(model, request, timings, &mut |_, _| {})?;
    Ok(report::placement(&compiled, &request.hardware, request.asked()))
}

/// Says why a layer is where it is.
pub fn why(model: &Model, request: &Request, layer: &str, timings: &mut Timings) -> Result<WhyReport, BuildError> {
    let graph = prepared(model, request, timings)?;
    let why = timings.time("why", || report::why(&graph, &request.hardware, &request.options, layer));
    match why {
        Err(WhyError::NoLayer { name, .. }) if model.layers().contains(&name) => Err(WhyError::Nothing(name).into()),
        why => Ok(why?),
    }
}

/// Compiles for the request's rows and for `more` numbers of rows, and writes a program directory.
pub fn write(
    dir: &Path,
    model: &Model,
    request: &Request,
    more: &[usize],
    timings: &mut Timings,
) -> Result<Manifest, BuildError> {
    program::compiles_for(dir, &request.hardware)?;
    let mut variants: Vec<Compiled> = Vec::new();
    for &rows in std::iter::once(&request.rows).chain(more) {
        // Without a row axis every number of rows gives the same program.
        if let Some(fixed) = variants.first().and_then(|v| FixedRows::of(&v.graph, request.rows)) {
            fixed.batch(None, Some(rows)).map_err(|e| BuildError::Rows(e.to_string()))?;
        }
        let known = variants.iter().any(|v| v.rows().is_none_or(|r| r == rows));
        if !known {
            variants.push(compile(model, &Request { rows, ..request.clone() }, timings, &mut |_, _| {})?);
        }
    }
    let asked = request.asked();
    let machine = (&request.hardware, request.precision);
    Ok(program::write(dir, model, machine, &variants, asked, timings)?)
}

/// The model's graph after the passes before placement.
fn prepared(model: &Model, request: &Request, timings: &mut Timings) -> Result<Graph, BuildError> {
    let graph = timings.time("read", || model.graph(request.rows))?;
    Ok(driver::prepare(graph, request.options.numerics, timings, &mut |_, _| {})?)
}

/// The plan, or the one for one device where the request allows it.
fn planned(graph: &Graph, request: &Request, timings: &mut Timings) -> Result<Plan, CompileError> {
    match driver::plan(graph, &request.hardware, request.options.clone(), timings) {
        Err(CompileError::Place(PlaceError::CannotSplit { .. })) if request.fallback == Fallback::One => {
            let one = place::Options { strategy: Some(Strategy::One), ..request.options.clone() };
            driver::plan(graph, &request.hardware, one, timings)
        }
        plan => plan,
    }
}
