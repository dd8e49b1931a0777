//! Damaged programs: whatever stands in the text, parsing and running end with a result or an error, never a panic.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use std::sync::atomic::Ordering;
use std::time::Duration;

const TEXTS: [&str; 5] = [
    include_str!("ptx/gelu_add.ptx"),
    include_str!("ptx/layer_norm.ptx"),
    include_str!("ptx/matmul.ptx"),
    include_str!("ptx/matmul_tf32.ptx"),
    include_str!("ptx/softmax.ptx"),
];

/// The next of a fixed random sequence, below `n`.
fn below(state: &mut u64, n: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize % n
}

/// The text with a few words replaced by others of its own, or lines lost, doubled or moved.
fn damage(text: &str, state: &mut u64) -> String {
    let mut lines: Vec<Vec<String>> = text.lines().map(|l| l.split(' ').map(str::to_owned).collect()).collect();
    for _ in 0..1 + below(state, 3) {
        let at = below(state, lines.len());
        let from = below(state, lines.len());
        match below(state, 8) {
            0 => drop(lines.remove(at)),
            1 => lines[at] = lines[from].clone(),
            2 => lines.swap(at, from),
            3 => {
                let word = below(state, lines[at].len());
                let numbers = ["0", "-1", "4294967296", "18446744073709551615", "0x80000000", "31", "65", "1e9"];
                lines[at][word] = format!("{};", numbers[below(state, numbers.len())]);
            }
            4 => {
                // A part of an instruction's name.
                let word = below(state, lines[at].len());
                let other = lines[from][below(state, lines[from].len())].clone();
                let tail = other.rsplit('.').next().unwrap_or("").to_owned();
                if let Some((head, _)) = lines[at][word].clone().rsplit_once('.') {
                    lines[at][word] = format!("{head}.{tail}");
                }
            }
            _ => {
                let word = below(state, lines[at].len());
                lines[at][word] = lines[from][below(state, lines[from].len())].clone();
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.iter().map(|l| l.join(" ") + "\n").collect()
}

/// Runs whatever kernels the text has for a moment.
fn execute(module: &Module) {
    let mut device = device();
    device.patience = Duration::from_millis(20);
    let buffer = device.upload(&vec![0; 1 << 16]).unwrap();
    let cancel = device.cancel.clone();
    let watch = std::thread::spawn(move || {
        std::thread::park_timeout(Duration::from_millis(200));
        cancel.store(true, Ordering::Relaxed);
    });
    for kernel in module.kernels() {
        let sizes = module.parameters(kernel).unwrap();
        let args: Vec<Arg> = sizes.iter().map(|s| if *s == 8 { Arg::U64(buffer) } else { Arg::U32(64) }).collect();
        let _ = device.launch(module, kernel, launch([1, 1, 1], [128, 1, 1], 49152), &args);
    }
    watch.thread().unpark();
    watch.join().unwrap();
}

#[test]
fn damaged_programs_never_panic() {
    let range = std::env::var("DAMAGED").ok();
    let numbers = range.as_deref().and_then(|s| s.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    let seeds = match numbers {
        Some((Ok(first), Ok(end))) => first..end,
        Some(_) => panic!("DAMAGED is first..end"),
        None => 0..500u64,
    };
    let (mut parsed, mut failed) = (0, Vec::new());
    for seed in seeds.clone() {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let text = damage(TEXTS[seed as usize % TEXTS.len()], &mut state);
        let run = || Module::parse(&text).map(|m| execute(&m)).is_ok();
        match std::panic::catch_unwind(run) {
            Ok(ran) => parsed += usize::from(ran),
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
    assert!(parsed * 10 > (seeds.end - seeds.start) as usize, "only {parsed} texts were legal");
}

#[test]
fn numbers_at_their_limits() {
    let huge = launch([1, 1, 1], [u32::MAX; 3], 0);
    let refused = device().launch(&module("", ""), "k", huge, &[]).unwrap_err();
    assert!(refused.to_string().contains("1 to 1024 are possible"), "{refused}");
    let most = text("", "").replace("\n{", " .maxntid 4294967295, 4294967295, 4294967295\n{");
    device().launch(&Module::parse(&most).unwrap(), "k", launch([1, 1, 1], [32, 1, 1], 0), &[]).unwrap();
    // Every group but the last 2^32 - 1, of which there are fewer: nothing is waited for.
    let body = "cp.async.ca.shared.global [%r0], [%d0], 4; cp.async.commit_group; cp.async.wait_group 4294967295;";
    let body = format!(".shared .align 16 .b8 s[16]; mov.u32 %r0, s; ld.param.u64 %d0, [p0]; {body}");
    let device = device();
    let from = words(&device, &[7]);
    device.launch(&module("p", &body), "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(from)]).unwrap();
}
