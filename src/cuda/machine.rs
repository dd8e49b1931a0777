//! The GPUs that are plugged in as a machine to plan for, from what the driver knows of them.

use super::{GpuInfo, NoCuda, devices, probe};
use intwain_passes::hardware::{Catalogue, Hardware};
use std::fmt::Write as _;

/// Share of the peak that each class of operation reaches, seconds to launch a kernel: what the catalogue says of most cards.
const HABITS: &str = "launch = 4e-6\nefficiency = { contraction = 0.65, convolution = 0.55, attention = 0.5, memory = 0.8, \
                      gather = 0.4, sequential = 0.1 }\n";

/// The machine of the GPUs with these numbers, one or two. Every figure counts as assumed: nothing is measured, so that a
/// plan is the same every time.
///
/// # Errors
/// There are no such GPUs.
pub fn machine(ordinals: &[u32]) -> Result<Hardware, NoCuda> {
    let found = devices()?;
    let gpu = |o: &u32| found.get(*o as usize).ok_or(NoCuda::NoDevice);
    let gpus: Vec<&GpuInfo> = ordinals.iter().map(gpu).collect::<Result<_, _>>()?;
    let (first, last) = match gpus[..] {
        [] => return Err(NoCuda::NoDevice),
        [only] => (only, only),
        [first, second, ..] => (first, second),
    };
    let mut text = String::new();
    for g in std::iter::once(first).chain((first.ordinal != last.ordinal).then_some(last)) {
        describe(&mut text, g);
    }
    let _ = writeln!(
        text,
        "[machine.this]\ndevices = [\"cuda{}\", \"cuda{}\"]\n{}",
        first.ordinal,
        last.ordinal,
        link(first, last)?
    );
    Ok(Catalogue::built_in().read("this machine", &text).expect("all keys are written with positive figures"))
}

/// Operations that a multiprocessor starts in a clock, a multiply-add counting as two: f32, bf16 on tensor cores, f64. From
/// the throughput table of the CUDA C++ programming guide and NVIDIA's architecture papers.
fn per_clock(capability: (u32, u32)) -> (f64, f64, f64) {
    match capability {
        (8, 0) => (128.0, 2048.0, 64.0),
        (9, _) => (256.0, 4096.0, 128.0),
        (10, 0) => (256.0, 8192.0, 128.0),
        _ => (256.0, 512.0, 4.0),
    }
}

fn describe(text: &mut String, g: &GpuInfo) {
    let (f32, bf16, f64) = per_clock(g.capability);
    let clocks = f64::from(g.multiprocessors.max(1)) * f64::from(g.clock_khz.max(1)) * 1e3;
    // Memory moves twice a clock; the bus is counted in bits.
    let bandwidth = 2.0 * f64::from(g.memory_clock_khz.max(1)) * 1e3 * f64::from(g.bus_bits.max(8)) / 8.0;
    let rate = |each: f64| clocks * each;
    let _ = write!(
        text,
        "[device.cuda{}]\nkind = \"gpu\"\ntarget = \"sm_{}{}\"\nmemory = {:e}\nbandwidth = {bandwidth:e}\n{HABITS}\
         rates = {{ f32 = {:e}, tf32 = {:e}, bf16 = {:e}, f16 = {:e}, i8 = {:e}, f64 = {:e} }}\n\n",
        g.ordinal,
        g.capability.0,
        g.capability.1,
        g.memory.max(1) as f64,
        rate(f32),
        rate(bf16 / 2.0),
        rate(bf16),
        rate(bf16),
        rate(2.0 * bf16),
        rate(f64),
    );
}

/// The link: NVLink where the cards do atomic operations in each other's memory, else PCI Express.
fn link(a: &GpuInfo, b: &GpuInfo) -> Result<String, NoCuda> {
    let access = if probe::peer_access(a, b)? && probe::peer_access(b, a)? { "peer" } else { "host" };
    let (kind, latency, bandwidth) = match (access, probe::native_atomics(a, b)?) {
        ("peer", true) if a.capability.0.min(b.capability.0) >= 9 => ("nvlink", 9e-6, 400e9),
        ("peer", true) => ("nvlink", 9e-6, 250e9),
        ("peer", false) => ("pcie", 12e-6, 25e9),
        _ => ("pcie", 20e-6, 22e9),
    };
    Ok(format!(
        "link = {{ kind = \"{kind}\", access = \"{access}\", latency = {latency:e}, bandwidth = {bandwidth:e} }}"
    ))
}
