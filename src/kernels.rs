//! Kernels: what a program asks for, scheduled and compiled. Those for GPUs are in [`gpu`].

pub(crate) mod gpu;

use crate::runtime::DeviceKind;
use intwain_codegen::clif::{CompileError, Jit};
use intwain_codegen::schedule::gpu::{Gpu, Precision};
use intwain_codegen::schedule::{Cpu, CpuCode, CpuKernel, Operand, Timing};
use intwain_ir::{Target, Type};
use intwain_passes::hardware::{self, Hardware};
use intwain_passes::program::{DeviceProgram, Home, KernelSpec};

/// What passes ask about CPU devices, and what schedules are made for.
pub(crate) fn target() -> Cpu {
    Cpu::host()
}

/// What passes ask about devices of a kind.
pub(crate) fn target_of(kind: DeviceKind, precision: Precision) -> Box<dyn Target> {
    match kind {
        DeviceKind::Cpu => Box::new(target()),
        DeviceKind::Ptx | DeviceKind::Cuda => Box::new(Gpu { precision }),
    }
}

/// What passes ask about the devices of a machine.
pub(crate) fn target_for(hardware: &Hardware, precision: Precision) -> Box<dyn Target> {
    let gpu = hardware.devices.iter().any(|d| d.kind == hardware::DeviceKind::Gpu);
    target_of(if gpu { DeviceKind::Ptx } else { DeviceKind::Cpu }, precision)
}

/// The kernels of a program, in its order, compiled on all cores.
pub(crate) fn compile(program: &DeviceProgram) -> Result<CpuCode, CompileError> {
    let cpu = target();
    let kernels: Vec<CpuKernel> = program.kernels.iter().map(|k| schedule(&cpu, k)).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    CpuCode::compile(&Jit::new()?, &cpu, &kernels.iter().collect::<Vec<_>>(), cores)
}

/// How a kernel is computed.
pub(crate) fn schedule(cpu: &Cpu, spec: &KernelSpec) -> CpuKernel {
    let operands: Vec<Operand<'_>> = spec
        .operands
        .iter()
        .map(|(ty, home)| {
            let timing = match home {
                Home::Persistent => Timing::Load,
                Home::State | Home::Arena => Timing::Call,
            };
            Operand { ty, timing }
        })
        .collect();
    let results: Vec<&Type> = spec.results.iter().collect();
    cpu.schedule(&spec.name, &spec.compute, &operands, &results)
}
