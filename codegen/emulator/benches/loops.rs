//! Thread instructions a second of an FMA chain and of the tiled matrix product, tensor-core products a second.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;

/// Seconds that this thread has spent on a core, which others on the machine change less than the time of day; that
/// where the system does not tell.
fn now() -> f64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    match spent.and_then(|s| s.split(' ').next()?.parse::<f64>().ok()) {
        Some(nanoseconds) => nanoseconds / 1e9,
        None => std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |d| d.as_secs_f64()),
    }
}

fn best(name: &str, f: impl Fn() -> Stats) {
    // An argument picks the benchmarks whose names contain it.
    if std::env::args().skip(1).any(|a| !a.starts_with('-') && !name.contains(&a)) {
        return;
    }
    let (mut seconds, mut stats) = (f64::INFINITY, Stats::default());
    for _ in 0..10 {
        let (start, mut runs) = (now(), 0.0);
        while runs < 1.0 || now() - start < 0.02 && runs < 1000.0 {
            stats = f();
            runs += 1.0;
        }
        seconds = seconds.min((now() - start) / runs);
    }
    let giga = stats.thread_instructions as f64 / seconds / 1e9;
    let products = stats.mma_flops as f64 / seconds / 1e9;
    println!("{name}: {giga:.2} G thread-instructions/s, {products:.1} GFLOP/s of mma.sync");
}

fn main() {
    let mut device = Device::new(&AddressSpace::new(), 0);
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

    device.global_races = Check::On;
    best("shared matmul, races", || device.launch(&matmul, "k", launch([8, 8, 1], [16, 16, 1], 0), &args).unwrap());
    let copy = module(
        "pp",
        "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r1, %r1, 256, %r2; mul.wide.u32 %d9, %r1, 16;
        ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; add.s64 %d1, %d1, %d9; add.s64 %d2, %d2, %d9;
        ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d1]; add.rn.f32 %f1, %f1, %f1; add.rn.f32 %f2, %f2, %f2;
        add.rn.f32 %f3, %f3, %f3; add.rn.f32 %f4, %f4, %f4; st.global.v4.f32 [%d2], {%f1, %f2, %f3, %f4};",
    );
    let [from, to] = [(); 2].map(|()| Arg::U64(device.upload(&[1; 1 << 20]).unwrap()));
    let args = [from, to];
    best("pointwise, races", || device.launch(&copy, "k", launch([256, 1, 1], [256, 1, 1], 0), &args).unwrap());
    device.global_races = Check::Off;
    best("pointwise", || device.launch(&copy, "k", launch([256, 1, 1], [256, 1, 1], 0), &args).unwrap());

    let triton = Module::parse(include_str!("../tests/ptx/matmul.ptx")).unwrap();
    let (n, k) = (64u32, 2048u32);
    let halves = device.upload(&[0x80, 0x3f].repeat((n * k) as usize)).unwrap();
    let mut args = vec![Arg::U64(halves), Arg::U64(halves), Arg::U64(out)];
    args.extend([Arg::U32(n), Arg::U32(n), Arg::U32(k), Arg::U64(0), Arg::U64(0)]);
    best("Triton matmul", || device.launch(&triton, "matmul", launch([2, 2, 1], [128, 1, 1], 8192), &args).unwrap());

    // A warp's share of a 64×64×16 step: 4 fragments of A and 4 pairs of B from shared memory, 32 products.
    let mut step = String::new();
    for i in 0..4 {
        step +=
            &format!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%a{i}0, %a{i}1, %a{i}2, %a{i}3}}, [%r3+{}];", 512 * i);
        let b = format!("{{%b{i}0, %b{i}1, %b{i}2, %b{i}3}}");
        step += &format!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {b}, [%r3+{}];\n", 2048 + 512 * i);
    }
    let mut registers = ".reg .b32 %a<40>, %b<40>; .reg .f32 %c<400>;".to_owned();
    for (i, j) in (0..32).map(|t| (t % 4, t / 4)) {
        let c = (0..4).map(|e| format!("%c{i}{j}{e}")).collect::<Vec<_>>().join(", ");
        let [b0, b1] = [0, 1].map(|e| format!("%b{}{}", j / 2, j % 2 * 2 + e));
        step += &format!(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{{c}}}, {{%a{i}0, %a{i}1, %a{i}2, %a{i}3}}, {{{b0}, {b1}}}, {{{c}}};\n"
        );
        registers += &(0..4).map(|e| format!("mov.f32 %c{i}{j}{e}, 0f00000000;")).collect::<String>();
    }
    let body = format!(
        ".shared .align 16 .b32 s[1024]; {registers} mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 4;
        and.b32 %r3, %r3, 511; add.u32 %r3, %r3, %r2; shl.b32 %r4, %r1, 5; add.u32 %r4, %r4, %r2; mov.b32 %r5, 0x3f803f80;
        st.shared.v4.b32 [%r4], {{%r5, %r5, %r5, %r5}}; st.shared.v4.b32 [%r4+16], {{%r5, %r5, %r5, %r5}};
        bar.sync 0; mov.u32 %r6, 0;
        L: {step} add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 50; @%p1 bra L;
        ld.param.u64 %d1, [p0]; st.global.f32 [%d1], %c000;"
    );
    let tiles = module("p", &body);
    best("warp tiles", || device.launch(&tiles, "k", launch([2, 1, 1], [128, 1, 1], 0), &[Arg::U64(out)]).unwrap());
}
