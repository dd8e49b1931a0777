//! Times every kernel of a training step on one thread, the most expensive first.
//!
//!     cargo bench --bench training -- MODEL.keras BATCH [exact] [LINES]
//!
//! The step is the model's in training phase, its gradients, and an update of every weight in its direction. Operands are
//! small numbers; what a kernel costs is the least of several runs. The rate is that of the scalar operations that the
//! kernel's Compute states.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a measurement prints, and fails by panicking")]

use intwain::driver;
use intwain::frontend::TrainingPhase;
use intwain::{Catalogue, Model, ModelOptions, Strategy, Timings};
use intwain_codegen::clif::Jit;
use intwain_codegen::schedule::{Cpu, CpuCode, CpuKernel, Operand, SCRATCH_ALIGN, Timing};
use intwain_ir::{Graph, ParamKind, Trainable, Type};
use intwain_passes::Numerics;
use intwain_passes::differentiate::gradients;
use intwain_passes::place;
use intwain_passes::program::{Action, DeviceProgram, Home, KernelSpec};
use std::time::Instant;

fn main() {
    let given: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [model, batch, rest @ ..] = &given[..] else { return };
    let (numerics, rest) = match rest {
        [exact, rest @ ..] if exact == "exact" => (Numerics::EXACT, rest),
        _ => (Numerics::Free, rest),
    };
    let lines = rest.first().map_or(30, |n| n.parse().unwrap());
    let model = Model::open(model.as_ref(), ModelOptions::default()).unwrap();
    let imported = model.training_graph(batch.parse().unwrap(), &TrainingPhase::default()).unwrap();
    let graph = step(&imported.graph);
    let mut timings = Timings::default();
    let graph = driver::prepare(graph, numerics, &mut timings, &mut |_, _| {}).unwrap();
    let options = place::Options { strategy: Some(Strategy::One), ..place::Options::default() };
    let plan = driver::plan(&graph, &Catalogue::built_in().get("cpu").unwrap(), options, &mut timings).unwrap();
    let compiled = driver::lower(graph, plan, &Cpu::host(), &mut timings, &mut |_, _| {}).unwrap();
    report(&compiled.programs[0], lines);
}

/// Gradients of a model and an update of its weights.
fn step(graph: &Graph) -> Graph {
    let mut g = gradients(graph).unwrap();
    let trained: Vec<usize> = (0..g.params.len())
        .filter(|&i| g.params[i].kind == ParamKind::Weight { trainable: Trainable::Yes })
        .filter(|&i| g.ty(g.params[i].value).dtype.is_float())
        .collect();
    let found: Vec<_> = g.outputs.iter().filter(|o| o.name.starts_with("gw")).map(|o| o.value).collect();
    g.outputs.clear();
    for (i, gradient) in trained.into_iter().zip(found) {
        let (value, ty) = (g.params[i].value, g.ty(gradient).clone());
        let rate = g.full(ty.dtype, 1e-3, &ty.shape).unwrap();
        let change = g.mul(gradient, rate).unwrap();
        let next = g.sub(value, change).unwrap();
        g.params[i].kind = ParamKind::State { next: Some(next) };
    }
    g
}

struct Line {
    seconds: f64,
    count: usize,
    text: String,
}

fn report(program: &DeviceProgram, lines: usize) {
    let mut counts = vec![0; program.kernels.len()];
    let (mut leaves, mut loops) = (0, 0);
    for c in &program.step {
        match &c.action {
            Action::Kernel(k) => counts[*k] += 1,
            Action::Leaf(_) | Action::Communicate(_) => leaves += 1,
            Action::Loop(_) => loops += 1,
        }
    }
    let used = (0..counts.len()).filter(|&k| counts[k] > 0);
    let mut all: Vec<Line> = used.map(|k| line(&program.kernels[k], counts[k])).collect();
    all.sort_by(|a, b| (b.seconds * b.count as f64).total_cmp(&(a.seconds * a.count as f64)));
    let total: f64 = all.iter().map(|l| l.seconds * l.count as f64).sum();
    println!(
        "{:.1} ms in {} kernels; besides {leaves} leaves and {loops} loops",
        1e3 * total,
        counts.iter().sum::<usize>()
    );
    for l in all.iter().take(lines) {
        println!("{:8.2} ms  {} x {:.3} ms  {}", 1e3 * l.seconds * l.count as f64, l.count, 1e3 * l.seconds, l.text);
    }
}

/// Memory aligned as kernels want it.
struct Aligned(Vec<u8>, usize);

impl Aligned {
    fn new(bytes: usize) -> Aligned {
        let v = vec![0u8; bytes + SCRATCH_ALIGN];
        let skip = v.as_ptr().align_offset(SCRATCH_ALIGN);
        Aligned(v, skip)
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.1;
        let end = self.0.len() - SCRATCH_ALIGN + at;
        &mut self.0[at..end]
    }
}

fn line(spec: &KernelSpec, count: usize) -> Line {
    let operand = |(ty, home): &'_ (Type, Home)| match home {
        Home::Persistent => (ty.clone(), Timing::Load),
        Home::State | Home::Arena => (ty.clone(), Timing::Call),
    };
    let operands: Vec<(Type, Timing)> = spec.operands.iter().map(operand).collect();
    let asked: Vec<Operand<'_>> = operands.iter().map(|(ty, timing)| Operand { ty, timing: *timing }).collect();
    let results: Vec<&Type> = spec.results.iter().collect();
    let cpu = Cpu::host();
    let kernel: CpuKernel = cpu.schedule(&spec.name, &spec.compute, &asked, &results);
    let code = CpuCode::compile(&Jit::new().unwrap(), &cpu, &[&kernel], 1).unwrap();
    let mut memory: Vec<Aligned> = operands.iter().map(|o| &o.0).chain(results.iter().copied()).map(filled).collect();
    if let Some(p) = code.packed(0) {
        let mut packed = Aligned::new(p.bytes);
        // SAFETY: the packed form has the size asked for.
        unsafe { code.pack(0, memory[p.operand].bytes().as_ptr(), packed.bytes().as_mut_ptr()) };
        memory[p.operand] = packed;
    }
    let params: Vec<*mut u8> = memory.iter_mut().map(|m| m.bytes().as_mut_ptr()).collect();
    let mut scratch = Aligned::new(code.scratch_bytes(0));
    let mut seconds = f64::INFINITY;
    for _ in 0..4 {
        let start = Instant::now();
        // SAFETY: the parameters have the types that the kernel was scheduled for.
        unsafe { code.run(0, &params, 0..code.tasks(0), scratch.bytes()) };
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    let shapes: Vec<String> = operands.iter().map(|o| o.0.to_string()).collect();
    let made: Vec<String> = results.iter().map(ToString::to_string).collect();
    let bytes: usize = operands.iter().map(|o| o.0.bytes()).chain(results.iter().map(|t| t.bytes())).sum();
    let text = format!(
        "{:6.1} Gop/s {:5.1} GB/s {} ({} tasks) {}: {} -> {}",
        spec.compute.flops() as f64 / seconds / 1e9,
        bytes as f64 / seconds / 1e9,
        kernel.schedule_name(),
        code.tasks(0),
        spec.name,
        shapes.join(" "),
        made.join(" "),
    );
    Line { seconds, count, text }
}

fn filled(ty: &Type) -> Aligned {
    let mut memory = Aligned::new(ty.bytes());
    if ty.dtype == intwain_ir::DType::F32 {
        for (i, x) in memory.bytes().as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *x = ((i * 7919 % 1013) as f32 / 500.0 - 1.0).to_le_bytes();
        }
    }
    memory
}
