//! Races in global memory: each wrong program is flagged, the right one beside it is not.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

fn checked(space: &AddressSpace, ordinal: u32) -> Device {
    let mut device = Device::new(space, ordinal);
    device.global_races = Check::On;
    device.patience = std::time::Duration::from_millis(300);
    device
}

fn one() -> Device {
    checked(&AddressSpace::new(), 0)
}

/// Runs `body` with a buffer of 64 words as `%d1`, block and thread index in `%r1` and `%r2`.
fn run(device: &Device, body: &str, blocks: u32, threads: u32) -> Result<Stats, LaunchError> {
    let buffer = words(device, &[0; 64]);
    let body = format!(
        "ld.param.u64 %d1, [p0]; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %tid.x; setp.eq.u32 %p1, %r1, 0;
        setp.eq.u32 %p2, %r2, 0; mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d1, %d2; {body}"
    );
    device.launch(&module("p", &body), "k", launch([blocks, 1, 1], [threads, 1, 1], 0), &[Arg::U64(buffer)])
}

fn race(result: Result<Stats, LaunchError>) -> &'static str {
    match fault(result).0 {
        FaultKind::GlobalRace { how, .. } => how,
        other => panic!("{other}"),
    }
}

#[test]
fn between_blocks() {
    let device = one();
    assert_eq!(race(run(&device, "st.global.u32 [%d1], %r1;", 2, 1)), "write after write");
    let half = "mul.wide.u32 %d3, %r1, 2; add.s64 %d3, %d1, %d3; cvt.u16.u32 %h1, %r1; st.global.b16 [%d3], %h1;";
    run(&device, half, 7, 1).unwrap();
    let read = "@%p1 st.global.u32 [%d1], %r1; @!%p1 ld.global.u32 %r3, [%d1];";
    assert_eq!(race(run(&device, read, 2, 1)), "read after write");
    let write = "@%p1 ld.global.u32 %r3, [%d1]; @!%p1 st.global.u32 [%d1], %r1;";
    assert_eq!(race(run(&device, write, 2, 1)), "write after read");
    let kind = fault(run(&device, write, 2, 1)).0;
    assert_eq!(kind.to_string(), "global memory race with block 0 of the launch (write after read)");
    // A whole line against a word of it.
    let line = "@%p1 st.global.u32 [%d2], %r2; @!%p1 ld.global.u32 %r3, [%d1+64];";
    assert_eq!(race(run(&device, line, 2, 32)), "read after write");
    let apart = "@%p1 st.global.u32 [%d2], %r2; @!%p1 ld.global.u32 %r3, [%d1+128];";
    run(&device, apart, 2, 32).unwrap();
    run(&device, "red.global.add.u32 [%d1], 1; atom.global.max.u32 %r4, [%d1+4], %r2;", 5, 64).unwrap();
    let mixed = "@%p1 red.global.add.u32 [%d1], 1; @!%p1 ld.global.u32 %r4, [%d1];";
    assert_eq!(race(run(&device, mixed, 2, 1)), "read after write");
}

#[test]
fn between_warps_of_a_block() {
    let device = one();
    let body = |sync: &str| {
        format!(
            "st.global.u32 [%d2], %r2; {sync} xor.b32 %r3, %r2, 32; mul.wide.u32 %d3, %r3, 4; add.s64 %d3, %d1, %d3;
            ld.global.u32 %r4, [%d3];"
        )
    };
    run(&device, &body("bar.sync 0;"), 1, 64).unwrap();
    assert_eq!(race(run(&device, &body(""), 1, 64)), "write after read");
}

/// Block 0 writes words 1 to 32, a flag follows; block 1 awaits it and reads them.
fn hand_over(before: &str, signal: &str, wait: &str, after: &str) -> Result<Stats, LaunchError> {
    let body = format!(
        "@%p1 bra FIRST; SPIN: {wait} setp.eq.u32 %p3, %r3, 0; @%p3 bra SPIN; {after} ld.global.u32 %r4, [%d2+128];
        bra END; FIRST: st.global.u32 [%d2+128], %r2; {before} {signal} END:"
    );
    run(&one(), &body, 2, 32)
}

#[test]
fn flags_between_blocks() {
    let (release, acquire) = ("@%p2 st.release.gpu.global.u32 [%d1], 1;", "ld.acquire.gpu.global.u32 %r3, [%d1];");
    let (store, load) = ("@%p2 st.relaxed.gpu.global.u32 [%d1], 1;", "ld.relaxed.gpu.global.u32 %r3, [%d1];");
    let sync = "bar.warp.sync -1;";
    hand_over(sync, release, acquire, "").unwrap();
    hand_over("fence.acq_rel.gpu;", store, load, "fence.acq_rel.gpu;").unwrap();
    hand_over("membar.gl;", "@%p2 red.global.add.u32 [%d1], 1;", load, "membar.gl;").unwrap();
    hand_over(sync, "@%p2 atom.release.gpu.global.exch.b32 %r9, [%d1], 1;", acquire, "").unwrap();
    for (signal, wait) in [
        (store, acquire),
        (release, load),
        ("@%p2 st.release.cta.global.u32 [%d1], 1;", acquire),
        (release, "ld.acquire.cta.global.u32 %r3, [%d1];"),
        ("@%p2 st.global.u32 [%d1], 1;", acquire),
        (release, "ld.volatile.global.u32 %r3, [%d1];"),
    ] {
        race(hand_over(sync, signal, wait, ""));
    }
    race(hand_over("fence.acq_rel.cta;", store, load, "fence.acq_rel.gpu;"));
    race(hand_over("", store, load, "fence.acq_rel.gpu;"));
}

/// Device 0 fills a message in device 1's memory, signals, and awaits the answer before it fills it anew, three times.
/// `d1`: message, `d2`: flag at device 1, `d3`: flag at device 0; two warps a block.
fn exchange(mutate: impl Fn(&str) -> String) -> Vec<Result<Stats, LaunchError>> {
    let send = "ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u64 %d3, [p2]; mov.u32 %r1, %tid.x;
        setp.eq.u32 %p1, %r1, 0; mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d1, %d4; mov.u32 %r2, 0;
        LOOP: add.u32 %r2, %r2, 1; mad.lo.u32 %r3, %r2, 1000, %r1; st.global.u32 [%d4], %r3;
        bar.sync 0;
        @%p1 st.release.sys.global.u32 [%d2], %r2;
        @!%p1 bra WAITED;
        SPIN: ld.acquire.sys.global.u32 %r5, [%d3]; setp.ne.u32 %p2, %r5, %r2; @%p2 bra SPIN; WAITED:
        bar.sync 1;
        setp.lt.u32 %p3, %r2, 3; @%p3 bra LOOP;";
    let receive = "ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; ld.param.u64 %d3, [p2]; mov.u32 %r1, %tid.x;
        setp.eq.u32 %p1, %r1, 0; mul.wide.u32 %d4, %r1, 4; add.s64 %d4, %d1, %d4; mov.u32 %r2, 0;
        LOOP: add.u32 %r2, %r2, 1; @!%p1 bra WAITED;
        SPIN: ld.acquire.sys.global.u32 %r5, [%d2]; setp.ne.u32 %p2, %r5, %r2; @%p2 bra SPIN; WAITED:
        bar.sync 2;
        xor.b32 %r9, %r1, 32; mul.wide.u32 %d5, %r9, 4; add.s64 %d5, %d1, %d5; ld.global.u32 %r6, [%d5];
        mad.lo.u32 %r3, %r2, 1000, %r9; setp.ne.u32 %p4, %r3, %r6; @%p4 trap;
        bar.sync 3;
        @%p1 st.release.sys.global.u32 [%d3], %r2;
        setp.lt.u32 %p3, %r2, 3; @%p3 bra LOOP;";
    let space = AddressSpace::new();
    let (a, b) = (checked(&space, 0), checked(&space, 1));
    let args = [b.alloc(256).unwrap(), words(&b, &[0]), words(&a, &[0])].map(Arg::U64);
    let shape = launch([1, 1, 1], [64, 1, 1], 0);
    let [send, receive] = [send, receive].map(|text| module("ppp", &mutate(text)));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let result = a.launch(&send, "k", shape, &args);
            (
                if result.is_err() {
                    b.cancel.store(true, std::sync::atomic::Ordering::Relaxed)
                },
                result,
            )
                .1
        });
        let own = b.launch(&receive, "k", shape, &args);
        if own.is_err() {
            a.cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        }
        vec![own, other.join().unwrap()]
    })
}

#[test]
fn flags_between_devices() {
    for result in exchange(str::to_owned) {
        result.unwrap();
    }
    for (from, to) in [
        ("st.release.sys", "st.relaxed.sys"),
        ("ld.acquire.sys", "ld.relaxed.sys"),
        ("st.release.sys", "st.release.gpu"),
        ("ld.acquire.sys", "ld.acquire.gpu"),
        ("st.release.sys.global", "st.global"),
        ("ld.acquire.sys.global", "ld.global"),
        ("bar.sync 0;", ""),
        ("bar.sync 1;", ""),
        ("bar.sync 2;", ""),
        ("bar.sync 3;", ""),
    ] {
        let results = exchange(|text| text.replace(from, to));
        let caught = results.iter().any(|r| match r {
            Err(LaunchError::Fault(f)) => {
                matches!(f.kind, FaultKind::GlobalRace { .. } | FaultKind::Scope(_) | FaultKind::Uninitialised(_))
            }
            _ => false,
        });
        assert!(caught, "{from} -> {to}: {results:?}");
    }
}

#[test]
fn launches_of_one_device_are_ordered_and_of_two_are_not() {
    let space = AddressSpace::new();
    let (a, b) = (checked(&space, 0), checked(&space, 1));
    let buffer = words(&a, &[0; 64]);
    let go = |device: &Device, body: &str| {
        let body = format!("ld.param.u64 %d1, [p0]; {body}");
        device.launch(&module("p", &body), "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(buffer)])
    };
    go(&a, "st.global.u32 [%d1], 1;").unwrap();
    go(&a, "ld.global.u32 %r1, [%d1]; st.global.u32 [%d1], 2;").unwrap();
    let kind = fault(go(&b, "ld.global.u32 %r1, [%d1];")).0;
    assert_eq!(kind, FaultKind::GlobalRace { how: "read after write", device: 0, block: None });
    space.synchronise();
    go(&b, "ld.global.u32 %r1, [%d1];").unwrap();
    race(go(&a, "st.global.u32 [%d1], 2;"));
    // What the host writes is ordered by the host.
    a.write(buffer, &[0; 256]).unwrap();
    go(&b, "st.global.u32 [%d1], 2;").unwrap();
    // Through a flag: what the first launch of a did, a second one of it releases to b.
    go(&a, "st.global.u32 [%d1+64], 1;").unwrap();
    go(&a, "st.release.sys.global.u32 [%d1+4], 1;").unwrap();
    go(&b, "ld.acquire.sys.global.u32 %r1, [%d1+4];").unwrap();
    go(&b, "ld.global.u32 %r1, [%d1+64];").unwrap();
}

#[test]
fn non_coherent_loads() {
    let device = one();
    run(&device, "ld.global.nc.u32 %r3, [%d2]; st.global.u32 [%d2+128], %r3;", 1, 32).unwrap();
    let before = "ld.global.nc.u32 %r3, [%d2]; st.global.u32 [%d2], %r3;";
    assert_eq!(fault(run(&device, before, 1, 32)).0, FaultKind::NonCoherent);
    let after = "st.global.u32 [%d2], %r2; bar.sync 0; ld.global.nc.u32 %r3, [%d2];";
    assert_eq!(fault(run(&device, after, 1, 32)).0, FaultKind::NonCoherent);
}
