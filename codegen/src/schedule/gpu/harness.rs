//! Runs GPU kernels on the emulator, for tests.

use super::{ALIGNMENT, Argument, GpuKernel};
use crate::ptx;
use intwain_emulator::{AddressSpace, Arg, Device, Launch, LaunchError, Module, Schedule, Stats};
use intwain_ir::kernel::{Entry, Kernel, verify};
use intwain_ir::{Tensor, Type};

/// What the launches of a kernel gave.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The results, in order.
    pub(crate) results: Vec<Tensor>,
    /// Counts of all launches.
    pub(crate) stats: Vec<Stats>,
}

/// Runs a kernel under both schedules of asynchronous effects, whose results must agree, and gives the outcome.
///
/// # Panics
/// The kernel is malformed, has no PTX, or the emulator finds a fault.
pub(crate) fn run(kernel: &GpuKernel, operands: &[&Tensor], results: &[&Type]) -> Outcome {
    let late = run_under(kernel, operands, results, Schedule::Late);
    let early = run_under(kernel, operands, results, Schedule::Early);
    assert_eq!(late.results, early.results, "results depend on when asynchronous effects happen");
    late
}

/// Runs a kernel under one schedule.
///
/// # Panics
/// As [`run`].
pub(crate) fn run_under(kernel: &GpuKernel, operands: &[&Tensor], results: &[&Type], schedule: Schedule) -> Outcome {
    let outcome = attempt(kernel, operands, results, schedule);
    let text = || kernel.launches.iter().map(|l| ptx::module(&[&l.kernel]).unwrap()).collect::<String>();
    outcome.unwrap_or_else(|e| panic!("{e}\n{}", text()))
}

/// Runs a kernel under one schedule up to the first fault.
///
/// # Panics
/// The kernel is malformed or has no PTX, or doesn't write a result everywhere.
pub(crate) fn attempt(
    kernel: &GpuKernel,
    operands: &[&Tensor],
    results: &[&Type],
    schedule: Schedule,
) -> Result<Outcome, LaunchError> {
    let space = AddressSpace::default();
    let mut device = Device::new(&space, 0);
    device.schedule = schedule;
    device.global_races = intwain_emulator::Check::On;
    let inputs: Vec<u64> = operands.iter().map(|t| upload(&device, &t.data)).collect();
    let outputs: Vec<u64> = results.iter().map(|t| device.alloc(t.bytes().max(1) as u64).unwrap()).collect();
    let workspace = device.alloc(kernel.workspace.max(1) as u64).unwrap();
    let kernels: Vec<&Kernel> = kernel.launches.iter().map(|l| &l.kernel).collect();
    kernels.iter().for_each(|k| verify(k).unwrap_or_else(|e| panic!("{}\n{k}", e[0])));
    let text = ptx::module(&kernels).unwrap();
    let module = (!kernels.is_empty()).then(|| Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}")));
    let mut stats = Vec::new();
    for launch in &kernel.launches {
        let Entry::Grid { blocks, threads } = launch.kernel.entry else { panic!("not a GPU kernel") };
        let address = |a: &Argument| match *a {
            Argument::Operand(i) => inputs[i],
            Argument::Result(i) => outputs[i],
            Argument::Workspace(at) => workspace + at as u64,
        };
        let args: Vec<Arg> = launch.args.iter().map(|a| Arg::U64(address(a))).collect();
        let shape = Launch { grid: blocks, block: threads, shared: launch.kernel.buffer_offsets().1 as u32 };
        let module = module.as_ref().expect("there are kernels");
        let done = device.launch(module, &launch.kernel.name, shape, &args);
        stats.push(done?);
    }
    let results = results.iter().zip(&outputs).map(|(ty, &at)| {
        let mut t = Tensor::zeros((*ty).clone());
        device.read(at, &mut t.data).unwrap_or_else(|e| panic!("{e}: a result is not written everywhere"));
        t
    });
    Ok(Outcome { results: results.collect(), stats })
}

fn upload(device: &Device, data: &[u8]) -> u64 {
    let at = device.alloc(data.len().max(1) as u64).unwrap();
    assert!(at.is_multiple_of(u64::from(ALIGNMENT)));
    device.write(at, data).unwrap();
    at
}
