//! Hand-written kernels against closed forms.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

const INDEX: &str = "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x; mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.u32 %d9, %r4, 4;";

#[test]
fn saxpy_with_a_tail() {
    let body = format!(
        "{INDEX} ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u32 %r5, [p2];
         setp.ge.u32 %p1, %r4, %r5; @%p1 bra END;
         cvta.to.global.u64 %d1, %d1; add.s64 %d3, %d1, %d9; add.s64 %d4, %d2, %d9;
         ld.global.f32 %f1, [%d3]; ld.global.f32 %f2, [%d4];
         fma.rn.f32 %f3, %f1, 0f40200000, %f2; st.global.f32 [%d4], %f3; END:"
    );
    let (device, mut random) = (device(), Random(7));
    let x: Vec<f32> = (0..1000).map(|_| random.float()).collect();
    let y: Vec<f32> = (0..1000).map(|_| random.float()).collect();
    let (dx, dy) = (floats(&device, &x), floats(&device, &y));
    let args = [Arg::U64(dx), Arg::U64(dy), Arg::U32(1000)];
    let stats = device.launch(&module("ppn", &body), "k", launch([8, 1, 1], [128, 1, 1], 0), &args).unwrap();
    assert_eq!((stats.global_read, stats.global_written), (8000, 4000));
    for (i, v) in read_floats(&device, dy, 1000).into_iter().enumerate() {
        assert_eq!(v, x[i].mul_add(2.5, y[i]));
    }
}

#[test]
fn block_sum_with_shuffles_and_shared_memory() {
    let mut body = format!(
        ".shared .align 4 .f32 part[32]; {INDEX} ld.param.u64 %d1, [p0]; add.s64 %d3, %d1, %d9;
         ld.global.f32 %f1, [%d3];"
    );
    for by in [16, 8, 4, 2, 1] {
        body += &format!("shfl.sync.bfly.b32 %f2|%p2, %f1, {by}, 31, -1; add.rn.f32 %f1, %f1, %f2;\n");
    }
    body += "mov.u32 %r5, %laneid; setp.ne.u32 %p1, %r5, 0; shr.u32 %r6, %r3, 5; shl.b32 %r6, %r6, 2;
         mov.u32 %r7, part; add.u32 %r7, %r7, %r6; @!%p1 st.shared.f32 [%r7], %f1; bar.sync 0;
         setp.ne.u32 %p1, %r3, 0; @%p1 bra END; mov.f32 %f1, 0f00000000; mov.u32 %r8, part; mov.u32 %r9, 0;
         LOOP: ld.shared.f32 %f2, [%r8]; add.rn.f32 %f1, %f1, %f2; add.u32 %r8, %r8, 4; add.u32 %r9, %r9, 1;
         setp.lt.u32 %p1, %r9, 8; @%p1 bra LOOP;
         ld.param.u64 %d2, [p1]; red.global.add.f32 [%d2], %f1; END:";
    let device = device();
    let x: Vec<f32> = (0..1024).map(|i| (i % 37) as f32).collect();
    let (dx, out) = (floats(&device, &x), floats(&device, &[0.5]));
    let args = [Arg::U64(dx), Arg::U64(out)];
    device.launch(&module("pp", &body), "k", launch([4, 1, 1], [256, 1, 1], 0), &args).unwrap();
    assert_eq!(read_floats(&device, out, 1)[0], x.iter().sum::<f32>() + 0.5);
}

fn run_matmul(body: &str) -> Result<Stats, LaunchError> {
    let (device, mut random, n) = (device(), Random(9), 48usize);
    let a: Vec<f32> = (0..n * n).map(|_| random.float()).collect();
    let b: Vec<f32> = (0..n * n).map(|_| random.float()).collect();
    let out = device.alloc(4 * (n * n) as u64).unwrap();
    let args = [Arg::U64(floats(&device, &a)), Arg::U64(floats(&device, &b)), Arg::U64(out), Arg::U32(n as u32)];
    let stats = device.launch(&module("pppn", body), "k", launch([3, 3, 1], [16, 16, 1], 0), &args)?;
    for (i, v) in read_floats(&device, out, n * n).into_iter().enumerate() {
        let wanted = (0..n).fold(0f32, |s, k| a[i / n * n + k].mul_add(b[k * n + i % n], s));
        assert_eq!(v, wanted, "{i}");
    }
    Ok(stats)
}

#[test]
fn matmul_in_shared_tiles() {
    assert_eq!(run_matmul(&tiled_matmul("bar.sync 0;", "bar.sync 0;")).unwrap().barriers, 9 * 3 * 2);
}

#[test]
fn a_removed_barrier_is_a_race() {
    for body in [tiled_matmul("", "bar.sync 0;"), tiled_matmul("bar.sync 0;", "")] {
        let kind = fault(run_matmul(&body)).0;
        assert!(matches!(kind, FaultKind::Race { .. } | FaultKind::Uninitialised("shared")), "{kind}");
    }
}

#[test]
fn transpose_through_padded_tiles() {
    let body = ".shared .align 4 .b32 t[1056]; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1];
        mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y;
        mad.lo.u32 %r3, %r2, 32, %r1; mul.wide.u32 %d3, %r3, 4; add.s64 %d4, %d1, %d3; ld.global.b32 %r4, [%d4];
        mad.lo.u32 %r5, %r2, 33, %r1; shl.b32 %r5, %r5, 2; mov.u32 %r6, t; add.u32 %r5, %r5, %r6;
        st.shared.b32 [%r5], %r4; barrier.sync.aligned 1;
        mad.lo.u32 %r5, %r1, 33, %r2; shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r6;
        ld.shared.b32 %r4, [%r5]; add.s64 %d4, %d2, %d3; st.global.b32 [%d4], %r4;";
    let device = device();
    let x: Vec<u32> = (0..1024).collect();
    let (dx, out) = (words(&device, &x), device.alloc(4096).unwrap());
    let args = [Arg::U64(dx), Arg::U64(out)];
    device.launch(&module("pp", body), "k", launch([1, 1, 1], [32, 32, 1], 0), &args).unwrap();
    let wanted: Vec<u32> = (0..1024).map(|i| i % 32 * 32 + i / 32).collect();
    assert_eq!(read_words(&device, out, 1024), wanted);
}

#[test]
fn divergent_loops_reconverge() {
    // Collatz steps of every thread: a loop of different length with a branch inside; a vote at the end.
    let body = format!(
        "{INDEX} ld.param.u64 %d1, [p0]; add.s64 %d3, %d1, %d9; add.u32 %r5, %r4, 1; mov.u32 %r6, 0;
        LOOP: setp.eq.u32 %p1, %r5, 1; @%p1 bra DONE; and.b32 %r7, %r5, 1; setp.eq.u32 %p2, %r7, 0; @%p2 bra EVEN;
        mad.lo.u32 %r5, %r5, 3, 1; bra NEXT; EVEN: shr.u32 %r5, %r5, 1; NEXT: add.u32 %r6, %r6, 1; bra.uni LOOP;
        DONE: activemask.b32 %r8; setp.ne.b32 %p3, %r8, -1; @%p3 trap; st.global.u32 [%d3], %r6;"
    );
    let device = device();
    let out = device.alloc(4 * 256).unwrap();
    device.launch(&module("p", &body), "k", launch([2, 1, 1], [128, 1, 1], 0), &[Arg::U64(out)]).unwrap();
    for (i, steps) in read_words(&device, out, 256).into_iter().enumerate() {
        let (mut v, mut n) = (i + 1, 0);
        while v != 1 {
            v = if v % 2 == 0 { v / 2 } else { 3 * v + 1 };
            n += 1;
        }
        assert_eq!(steps, n, "{i}");
    }
}

#[test]
fn atomics_count_and_a_lock_is_taken_by_every_lane() {
    let body = "ld.param.u64 %d1, [p0]; atom.global.add.u32 %r1, [%d1], 3; red.global.max.s32 [%d1+4], %r1;
        SPIN: atom.acquire.gpu.global.cas.b32 %r2, [%d1+8], 0, 1; setp.ne.u32 %p1, %r2, 0; @%p1 bra SPIN;
        ld.relaxed.gpu.global.u32 %r3, [%d1+12]; add.u32 %r3, %r3, 1; st.relaxed.gpu.global.u32 [%d1+12], %r3;
        atom.release.gpu.global.exch.b32 %r4, [%d1+8], 0;";
    let device = device();
    let memory = words(&device, &[0, 0, 0, 0]);
    device.launch(&module("p", body), "k", launch([3, 1, 1], [64, 1, 1], 0), &[Arg::U64(memory)]).unwrap();
    assert_eq!(read_words(&device, memory, 4), [576, 573, 0, 192]);
}

#[test]
fn blocks_of_a_grid_may_wait_for_each_other() {
    // Block b waits for the flag of block b + 1; the last one starts the chain.
    let body = "ld.param.u64 %d1, [p0]; mov.u32 %r1, %ctaid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
        SPIN: ld.acquire.gpu.global.u32 %r2, [%d1+4]; setp.eq.u32 %p1, %r2, 0; @%p1 bra SPIN;
        add.u32 %r2, %r2, 1; st.release.gpu.global.u32 [%d1], %r2;";
    let device = device();
    let mut flags = vec![0; 41];
    flags[40] = 1;
    let memory = words(&device, &flags);
    device.launch(&module("p", body), "k", launch([40, 1, 1], [1, 1, 1], 0), &[Arg::U64(memory)]).unwrap();
    assert_eq!(read_words(&device, memory, 41), (1..=41).rev().collect::<Vec<_>>());
}

#[test]
fn two_devices_exchange_through_flags() {
    // Each adds 1 to the token when it holds it: only concurrent devices finish.
    let body = "ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u32 %r9, [p2]; mov.u32 %r1, 0;
        LOOP: add.u32 %r2, %r1, %r9;
        SPIN: ld.acquire.sys.global.u32 %r3, [%d1]; setp.ne.u32 %p1, %r3, %r2; @%p1 bra SPIN;
        add.u32 %r4, %r3, 1; st.global.u32 [%d2+4], %r4; st.release.sys.global.u32 [%d2], %r4;
        add.u32 %r1, %r1, 2; setp.lt.u32 %p1, %r1, 200; @%p1 bra LOOP;";
    let (space, module) = (AddressSpace::new(), module("ppn", body));
    let (one, two) = (Device::new(&space, 0), Device::new(&space, 1));
    let (a, b) = (words(&one, &[0, 0]), words(&two, &[7777, 0]));
    let go = |device: &Device, own, peer, first| {
        let args = [Arg::U64(own), Arg::U64(peer), Arg::U32(first)];
        device.launch(&module, "k", launch([1, 1, 1], [1, 1, 1], 0), &args).unwrap()
    };
    std::thread::scope(|scope| {
        scope.spawn(|| go(&one, a, b, 0));
        scope.spawn(|| go(&two, b, a, 1));
    });
    assert_eq!((read_words(&one, a, 2), read_words(&two, b, 2)), (vec![200, 200], vec![199, 199]));
}

#[test]
fn every_way_to_name_memory() {
    let body = ".local .align 8 .b8 stack[16]; .shared .align 8 .b64 s[4];
        ld.param.u64 %d1, [p0]; mov.u64 %d2, stack; cvta.local.u64 %d3, %d2; mov.u64 %d4, s; cvta.shared.u64 %d5, %d4;
        mov.u64 %d6, 0x1122334455667788; st.local.b64 [stack+8], %d6; ld.u8 %r1, [%d3+9]; ld.s8 %r2, [%d3+8];
        st.v2.b32 [%d5], {%r1, %r2}; ld.shared.v2.u32 {%r3, _}, [s]; ld.shared.u32 %r4, [s+4];
        mov.b64 {%r5, %r6}, %d6; mov.b64 %d7, {%r6, %r5};
        st.global.v4.b32 [%d1], {%r3, %r4, %r5, %r6}; st.global.b64 [%d1+16], %d7; cvta.to.shared.u64 %d8, %d5;
        cvt.u32.u64 %r7, %d8; st.global.b32 [%d1+24], %r7; mov.u32 %r8, %ntid.y; st.global.b32 [%d1+28], %r8;";
    let device = device();
    let out = device.alloc(32).unwrap();
    device.launch(&module("p", body), "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(out)]).unwrap();
    let wanted = [0x77, 0xffff_ff88, 0x5566_7788, 0x1122_3344, 0x1122_3344, 0x5566_7788, 0, 1];
    assert_eq!(read_words(&device, out, 8), wanted);
}
