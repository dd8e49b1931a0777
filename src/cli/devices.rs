//! `intwain devices`.

use super::args::Common;
use super::{Failure, output};
use crate::cuda::{self, GpuInfo};
use serde::Serialize;
use std::fmt::Write as _;
use std::time::Instant;

/// What was found on this machine.
#[derive(Debug, Serialize)]
struct Found {
    devices: Vec<FoundDevice>,
    links: Vec<FoundLink>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct FoundDevice {
    name: String,
    kind: &'static str,
    target: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<usize>,
    memory_bytes: Option<u64>,
}

#[derive(Debug, Serialize)]
struct FoundLink {
    from: String,
    to: String,
    kind: &'static str,
    peer: bool,
    bytes_per_second: f64,
    correct: bool,
}

pub(crate) fn devices(common: &Common) -> Result<(), Failure> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = memory();
    let device = |k: usize| FoundDevice {
        name: format!("cpu:{k}"),
        kind: "cpu",
        target: std::env::consts::ARCH.to_string(),
        cores: Some((cores / 2).max(1)),
        memory_bytes: memory,
    };
    let link = |from: usize, to: usize| {
        let (bytes_per_second, correct) = copy_test(from as u8);
        let name = |k| format!("cpu:{k}");
        FoundLink { from: name(from), to: name(to), kind: "shared-memory", peer: true, bytes_per_second, correct }
    };
    let mut found =
        Found { devices: vec![device(0), device(1)], links: vec![link(0, 1), link(1, 0)], notes: Vec::new() };
    match cuda::devices() {
        Ok(gpus) => add_gpus(&mut found, &gpus),
        Err(why) => found.notes.push(format!("no cuda devices: {why}")),
    }
    if let Some(bad) = found.links.iter().find(|l| !l.correct) {
        return Err(Failure::Input(format!("copies from {} to {} arrive changed: check the memory", bad.from, bad.to)));
    }
    if common.json { output::json(&found) } else { output::print(&text(&found)) }
}

/// The GPUs, and the links of every two of them, each tried by a copy.
fn add_gpus(found: &mut Found, gpus: &[GpuInfo]) {
    for gpu in gpus {
        let (major, minor) = gpu.capability;
        found.devices.push(FoundDevice {
            name: format!("cuda:{}", gpu.ordinal),
            kind: "gpu",
            target: format!("{}, sm_{major}{minor}", gpu.name),
            cores: None,
            memory_bytes: Some(gpu.memory as u64),
        });
        if !gpu.is_usable() {
            found.notes.push(format!("cuda:{} cannot be used: programs need sm_80 or later", gpu.ordinal));
        }
    }
    let usable = || gpus.iter().filter(|g| g.is_usable());
    for (from, to) in usable().flat_map(|a| usable().map(move |b| (a, b))).filter(|(a, b)| a.ordinal != b.ordinal) {
        let test = match cuda::copy_test(from, to) {
            Ok(test) => test,
            // Another program may have all of its memory.
            Err(why) => {
                found.notes.push(format!("no copy from cuda:{} to cuda:{}: {why}", from.ordinal, to.ordinal));
                continue;
            }
        };
        found.links.push(FoundLink {
            from: format!("cuda:{}", from.ordinal),
            to: format!("cuda:{}", to.ordinal),
            kind: if test.peer { "peer access" } else { "through the host" },
            peer: test.peer,
            bytes_per_second: test.bytes_per_second,
            correct: test.correct,
        });
    }
}

fn text(found: &Found) -> String {
    let mut out = String::new();
    for d in &found.devices {
        let cores = d.cores.map_or(String::new(), |n| format!(", {n} cores"));
        let shared = if d.cores.is_some() { " shared" } else { "" };
        let memory = d.memory_bytes.map_or(String::new(), |m| format!(", {:.1} GB of memory{shared}", m as f64 / 1e9));
        let _ = writeln!(out, "{}  {}{cores}{memory}", d.name, d.target);
    }
    for l in &found.links {
        let rate = l.bytes_per_second / 1e9;
        let _ = writeln!(out, "{} → {}  {}, {rate:.1} GB/s, copies arrive as they were sent", l.from, l.to, l.kind);
    }
    for note in &found.notes {
        let _ = writeln!(out, "{note}");
    }
    out
}

/// Bytes of memory of this machine.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb * 1024)
}

/// Copies a pattern and looks at what arrives: bytes per second, and whether all are right.
fn copy_test(seed: u8) -> (f64, bool) {
    const BYTES: usize = 32 << 20;
    let from: Vec<u8> = (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect();
    let mut to = vec![0u8; BYTES];
    to.copy_from_slice(&from);
    let start = Instant::now();
    to.copy_from_slice(&from);
    (BYTES as f64 / start.elapsed().as_secs_f64(), to == from)
}
