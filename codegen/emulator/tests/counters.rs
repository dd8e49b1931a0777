//! What a launch is said to have done, against numbers worked out by hand; cancelling, sharing blocks out, memory.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use std::sync::atomic::Ordering;

const INDEX: &str = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1];";

fn go(body: &str, grid: u32, threads: u32, args: &[u64]) -> Stats {
    let device = device();
    let buffers: Vec<Arg> = args.iter().map(|&n| Arg::U64(device.upload(&vec![1; n as usize]).unwrap())).collect();
    device.launch(&module("pp", body), "k", launch([grid, 1, 1], [threads, 1, 1], 0), &buffers).unwrap()
}

#[test]
fn bytes_sectors_and_widths() {
    // A vector copy of 4 × 128 × 16 bytes.
    let copy = format!(
        "{INDEX} mul.wide.u32 %d9, %r4, 16; add.s64 %d1, %d1, %d9; add.s64 %d2, %d2, %d9;
        ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%d1]; st.global.v4.b32 [%d2], {{%r5, %r6, %r7, %r8}};"
    );
    let s = go(&copy, 4, 128, &[8192, 8192]);
    assert_eq!((s.global_read, s.global_written, s.distinct_read, s.distinct_written), (8192, 8192, 8192, 8192));
    assert_eq!((s.read_sectors, s.written_sectors), (256, 256));
    assert_eq!((s.reads_by_width, s.writes_by_width), ([0, 0, 0, 0, 512, 0], [0, 0, 0, 0, 512, 0]));
    assert_eq!((s.classes.global, s.warp_instructions), (2 * 16, 16 * (6 + 3 + 2 + 1)));
    // Every thread reads the same word and a column of a 64-byte row: a sector each.
    let column = format!(
        "{INDEX} ld.global.b32 %r5, [%d1]; mul.wide.u32 %d9, %r4, 64; add.s64 %d3, %d1, %d9; ld.global.u8 %r6, [%d3];
        setp.lt.u32 %p1, %r3, 5; mul.wide.u32 %d9, %r4, 2; add.s64 %d3, %d2, %d9; cvt.u16.u32 %h1, %r6;
        @%p1 st.global.b16 [%d3], %h1;"
    );
    let s = go(&column, 2, 64, &[8192, 8192]);
    assert_eq!((s.global_read, s.distinct_read, s.read_sectors), (128 * 5, 128 * 4, 4 + 128));
    // Halves 0 to 4 lie in 3 words, halves 64 to 68 in 3 others.
    assert_eq!((s.global_written, s.distinct_written, s.written_sectors), (20, 24, 2));
    assert_eq!((s.reads_by_width, s.writes_by_width), ([128, 0, 128, 0, 0, 0], [0, 10, 0, 0, 0, 0]));
}

#[test]
fn bank_conflicts_of_a_transposition() {
    let transpose = |pitch: u32| {
        format!(
            ".shared .align 4 .b32 t[1056]; {INDEX} and.b32 %r5, %r3, 31; shr.u32 %r6, %r3, 5; mov.u32 %r9, t;
            mad.lo.u32 %r7, %r6, {pitch}, %r5; mad.lo.u32 %r7, %r7, 4, %r9; st.shared.b32 [%r7], %r3; bar.sync 0;
            mad.lo.u32 %r7, %r5, {pitch}, %r6; mad.lo.u32 %r7, %r7, 4, %r9; ld.shared.b32 %r8, [%r7];"
        )
    };
    let s = go(&transpose(33), 1, 1024, &[4, 4]);
    assert_eq!((s.shared_wavefronts, s.shared_conflicts, s.classes.shared), (64, 0, 64));
    let s = go(&transpose(32), 1, 1024, &[4, 4]);
    assert_eq!((s.shared_wavefronts, s.shared_conflicts), (32 + 32 * 32, 31 * 32));
}

#[test]
fn a_launch_is_cancelled_from_outside() {
    let device = device();
    let flag = words(&device, &[0]);
    let body = "ld.param.u64 %d1, [p0]; S: ld.acquire.sys.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra S;";
    let module = module("p", body);
    let cancel = device.cancel.clone();
    let kind = std::thread::scope(|scope| {
        let stopped =
            scope.spawn(|| fault(device.launch(&module, "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(flag)])).0);
        std::thread::sleep(std::time::Duration::from_millis(20));
        cancel.store(true, Ordering::Relaxed);
        stopped.join().unwrap()
    });
    assert_eq!(kind, FaultKind::Cancelled);
}

#[test]
fn workers_change_nothing() {
    let mut one = device();
    let n = 64usize;
    let mut random = Random(3);
    let a: Vec<f32> = (0..n * n).map(|_| random.float()).collect();
    let matmul = module("pppn", &tiled_matmul("bar.sync 0;", "bar.sync 0;"));
    let mut run = |workers: usize| {
        one.workers = workers;
        let out = one.alloc(4 * (n * n) as u64).unwrap();
        let args = [Arg::U64(floats(&one, &a)), Arg::U64(floats(&one, &a)), Arg::U64(out), Arg::U32(n as u32)];
        let stats = one.launch(&matmul, "k", launch([4, 4, 1], [16, 16, 1], 0), &args).unwrap();
        (read_words(&one, out, n * n), stats)
    };
    let alone = run(1);
    assert_eq!(alone, run(3));
    // Blocks 5 and later fault; block 5 is reported by any number of workers.
    let mut many = device();
    let small = many.alloc(4 * 32 * 5).unwrap();
    let body = format!("{INDEX} mul.wide.u32 %d9, %r4, 4; add.s64 %d3, %d1, %d9; st.global.u32 [%d3], %r4;");
    for workers in [1, 2, 4] {
        many.workers = workers;
        let launched = many.launch(
            &module("pp", &body),
            "k",
            launch([200, 1, 1], [32, 1, 1], 0),
            &[Arg::U64(small), Arg::U64(small)],
        );
        let Err(LaunchError::Fault(fault)) = launched else { panic!("{launched:?}") };
        assert_eq!((fault.block, fault.thread, fault.address), ([5, 0, 0], [0, 0, 0], Some(small + 4 * 32 * 5)));
    }
}

#[test]
fn sparse_allocations_reach_past_32_bits() {
    let device = device();
    let huge = device.alloc(10 << 30).unwrap();
    // Thread t touches word t · 2^26 + 3: offsets to 9.75 GiB.
    let body = "mov.u32 %r1, %tid.x; ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 0x10000000; add.s64 %d1, %d1, %d2;
        st.global.u32 [%d1+12], %r1; ld.global.u32 %r2, [%d1+12]; add.u32 %r2, %r2, 1; st.global.u32 [%d1+16], %r2;";
    device.launch(&module("p", body), "k", launch([1, 1, 1], [40, 1, 1], 0), &[Arg::U64(huge)]).unwrap();
    assert_eq!(read_words(&device, huge + 39 * (1 << 28) + 12, 2), [39, 40]);
    let text = "mov.u32 %r1, 40; ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 0x10000000; add.s64 %d1, %d1, %d2;
        st.global.u32 [%d1], %r1;";
    let beyond = device.launch(&module("p", text), "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(huge)]);
    assert_eq!(fault(beyond).0, FaultKind::OutOfBounds("global"));
    device.fill(huge + (5 << 30) - 3, 0x11, 70_000).unwrap();
    let mut back = vec![0; 70_000];
    device.copy(huge + 1, huge + (5 << 30) - 3, 70_000).unwrap();
    device.read(huge + 1, &mut back).unwrap();
    assert!(back.iter().all(|&b| b == 0x11));
}
