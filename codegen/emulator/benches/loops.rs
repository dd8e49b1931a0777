//! Thread instructions a second of an FMA chain and of the tiled matrix product, tensor-core products a second.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;
use std::time::Instant;

fn best(name: &str, f: impl Fn() -> Stats) {
    // An argument picks the benchmarks whose names contain it.
    if std::env::args().skip(1).any(|a| !a.starts_with('-') && !name.contains(&a)) {
        return;
    }
    let (mut seconds, mut stats) = (f64::INFINITY, Stats::default());
    for _ in 0..5 {
        let start = Instant::now();
        stats = f();
        seconds = seconds.min(start.elapsed().as_secs_f64());
    }
    let giga = stats.thread_instructions as f64 / seconds / 1e9;
    let products = stats.mma as f64 * 4096.0 / seconds / 1e9;
    println!("{name}: {giga:.2} G thread-instructions/s, {products:.1} GFLOP/s of m16n8k16");
}

fn main() {
    let device = device();
    let chain = "fma.rn.f32 %f1, %f2, %f3, %f1; fma.rn.f32 %f4, %f2, %f3, %f4;\n".repeat(16);
    let body = format!(
        "mov.f32 %f1, 0f3f800000; mov.f32 %f2, 0f3f000000; mov.f32 %f3, 0f3f100000; mov.f32 %f4, 0f3f800000; mov.u32 %r1, 0;
         L: {chain} add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 1000; @%p1 bra L;
         add.rn.f32 %f1, %f1, %f4; ld.param.u64 %d1, [p0]; st.global.f32 [%d1], %f1;"
    );
    let (fma, out) = (module("p", &body), device.alloc(1 << 20).unwrap());
    best("fma", || device.launch(&fma, "k", launch([8, 1, 1], [128, 1, 1], 0), &[Arg::U64(out)]).unwrap());

    let n = 128usize;
    let matmul = module("pppn", &tiled_matmul("bar.sync 0;", "bar.sync 0;"));
    let ones = floats(&device, &vec![1.0; n * n]);
    let args = [Arg::U64(ones), Arg::U64(ones), Arg::U64(out), Arg::U32(n as u32)];
    best("shared matmul", || device.launch(&matmul, "k", launch([8, 8, 1], [16, 16, 1], 0), &args).unwrap());

    let triton = Module::parse(include_str!("../tests/ptx/matmul.ptx")).unwrap();
    let halves = device.upload(&[0x80, 0x3f].repeat(n * n)).unwrap();
    let mut args = vec![Arg::U64(halves), Arg::U64(halves), Arg::U64(out)];
    args.extend([Arg::U32(n as u32), Arg::U32(n as u32), Arg::U32(n as u32), Arg::U64(0), Arg::U64(0)]);
    best("Triton matmul", || device.launch(&triton, "matmul", launch([4, 4, 1], [128, 1, 1], 8192), &args).unwrap());
}
