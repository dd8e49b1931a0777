//! Proves that split programs compute what the whole model computes.
//!
//! Three judges that share no code with the passes: the placement checker proves that the devices' graphs together mean
//! the whole graph; the program checker proves that communication cannot lock up and that no byte is overwritten before
//! its last reader; and both are run on small integers, where sums are exact in any order, so that what differs is a
//! defect and not rounding.

mod integers;
mod report;
mod training;

pub use report::{Execution, ProgramVerdict, VerifyReport};
pub use training::{TrainingStep, verify_training, verify_training_directory};

use crate::driver::{self, CompileError, Compiled, Loadable};
use crate::kernels;
use crate::program::{ProgramDir, ProgramError};
use crate::runtime::{self, Call, DeviceKind, Devices, Effects, Engines, HostOptions, Variant};
use crate::session::{self, RunError};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::{Graph, ParamKind, Tensor, interp};
use intwain_passes::check;
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Hardware;
use intwain_passes::place::{self, PlaceError, Strategy, Verdict};
use intwain_passes::program::DeviceProgram;
use intwain_passes::{Numerics, Timings};
use report::ALLOWED;

/// Why nothing could be verified. What verification finds is in the [`VerifyReport`].
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The model cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The model cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program directory cannot be used.
    #[error(transparent)]
    Program(Box<ProgramError>),
}

impl From<ProgramError> for VerifyError {
    fn from(e: ProgramError) -> VerifyError {
        VerifyError::Program(Box::new(e))
    }
}

/// How to verify.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// The strategies to verify; empty: every one that is possible.
    pub strategies: Vec<Strategy>,
    /// Rows per device of a data split; elsewhere their ratio.
    pub parts: Option<[usize; 2]>,
    /// Where the divided programs are run. CPU devices are spared what the interpreter can run.
    pub devices: Devices,
    /// What programs are planned for; `None`: what the devices are, or stand for.
    pub hardware: Option<Hardware>,
    /// How this machine executes programs.
    pub host: HostOptions,
    /// Graphs with at most so many scalar operations are run by the reference interpreter, others by compiled kernels.
    pub interpreted_flops: u64,
}

impl VerifyOptions {
    fn hardware(&self) -> Hardware {
        self.hardware.clone().unwrap_or_else(|| session::hardware_of(&self.devices))
    }
}

impl Default for VerifyOptions {
    fn default() -> VerifyOptions {
        VerifyOptions {
            strategies: Vec::new(),
            parts: None,
            devices: Devices::two(DeviceKind::Cpu),
            hardware: None,
            host: HostOptions::default(),
            interpreted_flops: 20_000_000,
        }
    }
}

/// Tells what is verified now.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

/// Verifies the splits of a model's graph over the devices; on one device, that it computes what the graph says.
pub fn verify(
    graph: &Graph,
    options: &VerifyOptions,
    timings: &mut Timings,
    progress: Progress<'_>,
) -> Result<VerifyReport, VerifyError> {
    let graph = driver::prepare(graph.clone(), Numerics::Free, timings, &mut |_, _| {})?;
    let strategies = match (&options.strategies[..], options.devices.count()) {
        ([], 1) | ([Strategy::One], 1) => &[Strategy::One],
        (asked, 1) => {
            let (asked, devices) = (asked.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "), &options.devices);
            return Err(RunError::Options(format!("{asked}: needs two devices, {devices} is one")).into());
        }
        ([], _) => &Strategy::ALL[1..],
        (asked, _) => asked,
    };
    let mut whole = Whole::new(&graph, options);
    let mut programs = Vec::new();
    for &strategy in strategies {
        progress(&format!("verifying {strategy}"));
        programs.push(match compiled(&graph, strategy, options, timings) {
            Ok(compiled) => whole.judge_compiled(&compiled, timings)?,
            Err(CompileError::Place(PlaceError::CannotSplit { reason, .. })) if options.strategies.is_empty() => {
                skipped(strategy, reason)
            }
            Err(CompileError::Refused(faults)) => refused(strategy, faults),
            Err(e) => return Err(e.into()),
        });
    }
    Ok(report(&graph, programs))
}

/// Verifies every program of a directory.
pub fn verify_directory(
    dir: &ProgramDir,
    options: &VerifyOptions,
    timings: &mut Timings,
    progress: Progress<'_>,
) -> Result<VerifyReport, VerifyError> {
    dir.fits(&options.devices)?;
    let mut programs = Vec::new();
    for v in dir.variants() {
        let name = v.rows.map_or("whole".to_string(), |r| format!("{r} rows"));
        progress(&format!("verifying {name}"));
        let program = v.loadable(options.devices.kind()).map_err(|why| dir.unusable(why))?;
        let mut whole = Whole::new(&v.whole, options);
        let judged = Judged {
            strategy: name,
            promised_equal: whole.promised_equal(!split_sums(&v.locals)),
            interface: &v.interface,
            locals: &v.locals,
            program,
        };
        programs.push(whole.judge(&judged, timings)?);
    }
    Ok(report(&dir.variants()[0].whole, programs))
}

/// Whether devices add up parts of sums, which rounds differently than one device does.
fn split_sums(locals: &[Graph]) -> bool {
    use intwain_ir::ops::Op;
    let mut nodes = locals.iter().flat_map(|g| g.nodes.values());
    nodes.any(|n| matches!(n.op, Op::AllReduce(_) | Op::Bucket(_) | Op::ReduceScatter(_)))
}

fn report(graph: &Graph, programs: Vec<ProgramVerdict>) -> VerifyReport {
    VerifyReport {
        version: crate::report::REPORT_VERSION,
        model: graph.name.to_string(),
        batch: crate::report::batch(graph),
        verified: programs.iter().all(|p| p.verified),
        programs,
    }
}

fn compiled(
    graph: &Graph,
    strategy: Strategy,
    options: &VerifyOptions,
    timings: &mut Timings,
) -> Result<Compiled, CompileError> {
    let ask = place::Options {
        strategy: Some(strategy),
        parts: options.parts,
        survey: place::Survey::Asked,
        ..place::Options::default()
    };
    let plan = driver::plan(graph, &options.hardware(), ask, timings)?;
    let target = kernels::target_of(options.devices.kind(), Precision::F32);
    driver::lower(graph.clone(), plan, &*target, timings, &mut |_, _| {})
}

fn empty(strategy: Strategy) -> ProgramVerdict {
    ProgramVerdict {
        strategy: strategy.name().to_string(),
        verified: true,
        skipped: None,
        devices: 0,
        communications: 0,
        commands: 0,
        faults: Vec::new(),
        execution: None,
    }
}

fn skipped(strategy: Strategy, reason: String) -> ProgramVerdict {
    ProgramVerdict { skipped: Some(Verdict::NotOffered(reason).to_string()), ..empty(strategy) }
}

fn refused(strategy: Strategy, faults: Vec<String>) -> ProgramVerdict {
    ProgramVerdict { verified: false, faults, ..empty(strategy) }
}

/// A split program to be judged.
struct Judged<'a> {
    strategy: String,
    promised_equal: bool,
    interface: &'a Interface,
    locals: &'a [Graph],
    program: Loadable<'a>,
}

/// The whole graph with arguments, and its results once they are known.
struct Whole<'g> {
    graph: &'g Graph,
    options: &'g VerifyOptions,
    args: Vec<Tensor>,
    expected: Option<Vec<Tensor>>,
    interpreted: bool,
}

impl<'g> Whole<'g> {
    fn new(graph: &'g Graph, options: &'g VerifyOptions) -> Whole<'g> {
        let flops: u64 = graph.nodes.keys().map(|id| graph.flops(id)).sum();
        let args = integers::arguments(graph);
        Whole { graph, options, args, expected: None, interpreted: flops <= options.interpreted_flops }
    }

    fn judge_compiled(&mut self, compiled: &Compiled, timings: &mut Timings) -> Result<ProgramVerdict, VerifyError> {
        let interface = Interface::of(&compiled.explicit);
        let strategy = compiled.plan.strategy;
        self.judge(
            &Judged {
                strategy: strategy.name().to_string(),
                promised_equal: self.promised_equal(match strategy {
                    Strategy::One | Strategy::Data | Strategy::Pipeline => true,
                    Strategy::Tensor | Strategy::Mixed => false,
                }),
                interface: &interface,
                locals: &compiled.locals,
                program: compiled.loadable(),
            },
            timings,
        )
    }

    fn judge(&mut self, judged: &Judged<'_>, timings: &mut Timings) -> Result<ProgramVerdict, VerifyError> {
        let programs = judged.program.programs;
        let mut faults: Vec<String> = timings
            .time("check placement", || check::placement::check(self.graph, judged.interface, judged.locals))
            .iter()
            .map(ToString::to_string)
            .collect();
        let program_faults = timings.time("check program", || check::program::check(programs));
        faults.extend(program_faults.iter().map(ToString::to_string));
        // A program that may lock up is not run.
        let execution = if faults.is_empty() {
            let got = timings.time("execute", || self.execute(judged))?;
            let engine = if self.interprets() { "interpreter" } else { self.options.devices.kind().engine() };
            let expected = self.expected(timings)?;
            Some(compare(engine, judged.promised_equal, expected, &got))
        } else {
            None
        };
        let is_communication =
            |c: &&intwain_passes::program::Command| matches!(c.action, intwain_passes::program::Action::Communicate(_));
        let count = |f: &dyn Fn(&DeviceProgram) -> usize| programs.iter().map(f).sum();
        Ok(ProgramVerdict {
            strategy: judged.strategy.clone(),
            verified: faults.is_empty() && execution.as_ref().is_some_and(Execution::is_right),
            skipped: None,
            devices: programs.len(),
            communications: count(&|p| p.step.iter().filter(is_communication).count()),
            commands: count(&|p| p.step.len()),
            faults,
            execution,
        })
    }

    /// Whether the divided graphs are interpreted: on other devices the question is whether they compute the same.
    fn interprets(&self) -> bool {
        self.interpreted && self.options.devices.kind() == DeviceKind::Cpu
    }

    /// Whether a program gives the bits of the whole graph. GPUs may take sums in another order.
    fn promised_equal(&self, strategy_promises: bool) -> bool {
        strategy_promises && self.options.devices.kind() == DeviceKind::Cpu
    }

    fn expected(&mut self, timings: &mut Timings) -> Result<&[Tensor], VerifyError> {
        if self.expected.is_none() {
            let results = if self.interpreted {
                timings.time("execute whole", || interp::run(self.graph, self.args.clone())).map_err(defect)?
            } else {
                let cpu = Devices::one(DeviceKind::Cpu);
                let host = HostOptions { effects: Effects::default(), ..self.options.host };
                let alone = VerifyOptions { devices: cpu, hardware: None, host, ..self.options.clone() };
                let one = compiled(self.graph, Strategy::One, &alone, timings)?;
                timings.time("execute whole", || self.run(one.loadable(), &alone))?
            };
            self.expected = Some(results);
        }
        Ok(self.expected.as_deref().unwrap_or_default())
    }

    fn execute(&self, judged: &Judged<'_>) -> Result<Vec<Tensor>, VerifyError> {
        if !self.interprets() {
            return self.run(judged.program, self.options);
        }
        let args = |local: &Graph| -> Vec<Tensor> {
            let arg = |p: &intwain_ir::Param| {
                let at = self.graph.params.iter().position(|q| q.name == p.name);
                let at = at.expect("the placement checker found every parameter");
                self.args[at].part(&judged.interface.params[at], local.device)
            };
            local.params.iter().map(arg).collect()
        };
        let all = judged.locals.iter().map(args).collect();
        let parts = interp::run_devices(judged.locals, all).map_err(defect)?;
        Ok(self.join(judged, &parts))
    }

    /// The whole outputs from the devices' parts.
    fn join(&self, judged: &Judged<'_>, parts: &[Vec<Tensor>]) -> Vec<Tensor> {
        let output = |(at, o): (usize, &intwain_ir::Output)| {
            let of = |k: usize| {
                let index = judged.locals[k].outputs.iter().position(|l| l.name == o.name);
                index.map(|i| parts[k][i].clone())
            };
            let found: Vec<Tensor> = (0..parts.len()).filter_map(of).collect();
            match &judged.interface.outputs[at] {
                intwain_ir::Layout::Split { dim, .. } => Tensor::join(&found, *dim),
                intwain_ir::Layout::Replicated | intwain_ir::Layout::On(_) | intwain_ir::Layout::Partial(_) => {
                    found.into_iter().next().expect("the placement checker found every output")
                }
            }
        };
        self.graph.outputs.iter().enumerate().map(output).collect()
    }

    /// Runs a program on devices.
    fn run(&self, program: Loadable<'_>, options: &VerifyOptions) -> Result<Vec<Tensor>, VerifyError> {
        let engines = Engines::open(&options.devices, Precision::F32, options.host).map_err(RunError::from)?;
        let mut variant = Variant::new(program, &engines, |i: usize| Ok::<_, RunError>(self.args[i].clone()))?;
        let is_input = |p: &intwain_ir::Param| matches!(p.kind, ParamKind::Input { .. });
        let params = self.graph.params.iter().zip(&self.args);
        let inputs: Vec<&Tensor> = params.filter(|(p, _)| is_input(p)).map(|(_, t)| t).collect();
        let mut outputs: Vec<Tensor> = program.outputs.iter().map(|o| Tensor::zeros(o.ty.clone())).collect();
        let call = [Call { variant: 0, rows: None }];
        runtime::run(&mut [&mut variant], &call, &inputs, &mut outputs).map_err(RunError::from)?;
        Ok(outputs)
    }
}

fn defect(e: interp::EvalError) -> VerifyError {
    VerifyError::Compile(CompileError::Refused(vec![e.to_string()]))
}

fn compare(engine: &'static str, promised_equal: bool, expected: &[Tensor], got: &[Tensor]) -> Execution {
    let (mut elements, mut unequal, mut largest_error) = (0, 0, 0.0f64);
    for (e, g) in expected.iter().zip(got) {
        let size = e.ty.dtype.size();
        elements += e.elements();
        let pairs = e.data.chunks_exact(size).zip(g.data.chunks_exact(size));
        unequal += pairs.filter(|(a, b)| a != b).count();
        let (e, g) = (e.to_f64(), g.to_f64());
        let scale = e.iter().filter(|x| x.is_finite()).fold(f64::MIN_POSITIVE, |m, x| m.max(x.abs()));
        for (a, b) in e.iter().zip(&g) {
            let same = a == b || (a.is_nan() && b.is_nan());
            let error = if same { 0.0 } else { (a - b).abs() / scale };
            largest_error = if error.is_nan() { f64::INFINITY } else { largest_error.max(error) };
        }
    }
    Execution { engine, elements, unequal, promised_equal, largest_error, allowed_error: ALLOWED }
}
