//! Emitted text runs on the emulator and gives the bits of the scalar table, or elementary functions within their errors.

mod control;
mod elementary;
mod table;

use super::module;
use intwain_emulator::{AddressSpace, Arg, Device, Launch, Module, Schedule};
use intwain_ir::kernel::{Entry, Kernel, verify};

/// Runs a kernel whose parameters have these bytes, and gives them afterwards.
fn run(kernel: &Kernel, memory: &[Vec<u8>]) -> Vec<Vec<u8>> {
    run_all(&[(kernel, memory)]).remove(0)
}

/// Runs kernels of one module, each on its own memory.
fn run_all(kernels: &[(&Kernel, &[Vec<u8>])]) -> Vec<Vec<Vec<u8>>> {
    let list: Vec<&Kernel> = kernels.iter().map(|k| k.0).collect();
    list.iter().for_each(|k| verify(k).unwrap_or_else(|e| panic!("{}\n{k}", e[0])));
    let text = module(&list).unwrap();
    let parsed = Module::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    kernels.iter().map(|(k, memory)| launch(&parsed, &text, k, memory)).collect()
}

fn launch(module: &Module, text: &str, kernel: &Kernel, memory: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let space = AddressSpace::default();
    let mut device = Device::new(&space, 0);
    device.schedule = Schedule::Late;
    let at: Vec<u64> = memory.iter().map(|m| device.alloc(m.len().max(1) as u64).unwrap()).collect();
    for (at, m) in at.iter().zip(memory) {
        device.write(*at, m).unwrap();
    }
    let args: Vec<Arg> = at.iter().map(|a| Arg::U64(*a)).collect();
    let Entry::Grid { blocks, threads } = kernel.entry else { panic!("not a GPU kernel") };
    let shape = Launch { grid: blocks, block: threads, shared: kernel.buffer_offsets().1 as u32 };
    let done = device.launch(module, &kernel.name, shape, &args);
    done.unwrap_or_else(|e| panic!("{e}\n{kernel}\n{text}"));
    at.iter()
        .zip(memory)
        .map(|(at, m)| {
            let mut out = m.clone();
            device.read(*at, &mut out).unwrap();
            out
        })
        .collect()
}

/// One block of threads.
fn threads(n: u32) -> Entry {
    Entry::Grid { blocks: [1; 3], threads: [n, 1, 1] }
}

/// Writes a module where the environment's `PTX_DIR` says, for assemblers to check.
pub(super) fn keep(text: &str) {
    let Ok(dir) = std::env::var("PTX_DIR") else { return };
    let name = text.split(".entry ").nth(1).and_then(|t| t.split('(').next()).unwrap_or("empty");
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    std::fs::write(format!("{dir}/{name}_{hash:016x}.ptx"), text).unwrap();
}
