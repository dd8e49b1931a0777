//! Each check fires on a minimal wrong program, names its line, and is silent on the right one.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

fn run(params: &str, body: &str, args: &[Arg], threads: u32, device: &Device) -> Result<Stats, LaunchError> {
    device.launch(&module(params, body), "k", launch([1, 1, 1], [threads, 1, 1], 0), args)
}

#[test]
fn global_memory() {
    let device = device();
    let one = words(&device, &[1, 2, 3, 4]);
    let try_body =
        |body: &str| fault(run("p", &format!("ld.param.u64 %d1, [p0];\n{body}"), &[Arg::U64(one)], 1, &device));
    assert_eq!(try_body("ld.global.u32 %r1, [%d1+16];"), (FaultKind::OutOfBounds("global"), 7));
    assert_eq!(try_body("ld.global.u32 %r1, [%d1-4];").0, FaultKind::OutOfBounds("global"));
    assert_eq!(try_body("\nld.global.u32 %r1, [%d1+2];"), (FaultKind::Misaligned(4), 8));
    assert_eq!(try_body("ld.global.v2.u32 {%r1, %r2}, [%d1+4];").0, FaultKind::Misaligned(8));
    assert_eq!(try_body("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1+8];").0, FaultKind::Misaligned(16));
    assert_eq!(try_body("ld.global.u32 %r1, [8];").0, FaultKind::OutOfBounds("global"));
    let fresh = device.alloc(64).unwrap();
    device.write(fresh, &[1, 2]).unwrap();
    let body = "ld.param.u64 %d1, [p0]; ld.global.u16 %h1, [%d1]; ld.global.u32 %r1, [%d1];";
    assert_eq!(fault(run("p", body, &[Arg::U64(fresh)], 1, &device)).0, FaultKind::Uninitialised("global"));
    device.free(one).unwrap();
    assert_eq!(try_body("ld.global.u32 %r1, [%d1];").0, FaultKind::OutOfBounds("global"));
}

#[test]
fn a_fault_names_everything() {
    let device = device();
    let out = device.alloc(4 * 40).unwrap();
    let body = "ld.param.u64 %d1, [p0]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;\n st.global.u32 [%d2], %r1;";
    let error = run("p", body, &[Arg::U64(out)], 64, &device).unwrap_err().to_string();
    let wanted = format!(
        "kernel `k`, line 7, block (0, 0, 0), thread (40, 0, 0): global access out of bounds at {:#x}",
        out + 160
    );
    assert_eq!(error, wanted);
}

#[test]
fn shared_local_and_registers() {
    let device = device();
    let try_body = |body: &str| fault(run("", body, &[], 32, &device)).0;
    assert_eq!(try_body(".shared .b32 s[4]; ld.shared.u32 %r1, [s];"), FaultKind::Uninitialised("shared"));
    assert_eq!(try_body(".shared .b32 s[4]; ld.shared.u32 %r1, [s+16];"), FaultKind::OutOfBounds("shared"));
    assert_eq!(try_body(".local .b32 l[4]; ld.local.u32 %r1, [l+4];"), FaultKind::Uninitialised("local"));
    assert_eq!(try_body(".local .b32 l[4]; st.local.u32 [l+16], 1;"), FaultKind::OutOfBounds("local"));
    assert_eq!(try_body("add.u32 %r1, %r2, 1;"), FaultKind::UninitialisedRegister);
    assert_eq!(try_body("@%p1 add.u32 %r1, 1, 1;"), FaultKind::UninitialisedRegister);
    let race = try_body(".shared .b32 s[4]; mov.u32 %r1, %tid.x; st.shared.u32 [s], %r1;");
    assert_eq!(race, FaultKind::Race { other: 0, how: "write after write" });
}

#[test]
fn warp_level_ordering_of_shared_memory() {
    let device = device();
    let body = |sync: &str| {
        format!(
            ".shared .b32 s[32]; mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; add.u32 %r2, %r2, %r3;
             st.shared.u32 [%r2], %r1; {sync} xor.b32 %r4, %r2, 4; ld.shared.u32 %r5, [%r4];"
        )
    };
    run("", &body("bar.warp.sync -1;"), &[], 32, &device).unwrap();
    assert!(matches!(fault(run("", &body(""), &[], 32, &device)).0, FaultKind::Race { how: "read after write", .. }));
}

#[test]
fn named_barriers_order_only_those_that_meet() {
    // Warp 0 produces, warp 1 consumes; warp 2 has nothing to do with it.
    let body = |arrive: &str, wait: &str| {
        format!(
            ".shared .b32 s[1]; mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 64; @%p1 bra END; setp.ge.u32 %p1, %r1, 32;
             @%p1 bra CONSUME; setp.ne.u32 %p2, %r1, 0; @!%p2 st.shared.u32 [s], %r1; {arrive} bra END;
             CONSUME: {wait} ld.shared.u32 %r2, [s]; END:"
        )
    };
    let device = device();
    run("", &body("bar.arrive 3, 64;", "bar.sync 3, 64;"), &[], 96, &device).unwrap();
    let late = "ld.shared.u32 %r3, [s]; bar.sync 3, 64;";
    assert!(matches!(fault(run("", &body("bar.arrive 3, 64;", late), &[], 96, &device)).0, FaultKind::Race { .. }));
    let kind = fault(run("", &body("", "bar.sync 3, 64;"), &[], 96, &device)).0;
    assert!(matches!(kind, FaultKind::Deadlock(_)), "{kind}");
}

#[test]
fn divergence() {
    let device = device();
    let try_body = |body: &str| fault(run("", &format!("mov.u32 %r1, %tid.x; {body}"), &[], 64, &device)).0;
    let half = "setp.lt.u32 %p1, %r1, 16;";
    let kind = try_body(&format!("{half} @%p1 bra L; bar.sync 0; L:"));
    assert!(matches!(kind, FaultKind::DivergentBarrier { arrived: 0xffff_0000, live: u32::MAX }), "{kind}");
    let kind = try_body(&format!("{half} @%p1 bra L; shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1; L:"));
    assert!(matches!(kind, FaultKind::Deadlock(_) | FaultKind::MemberMask { .. }), "{kind}");
    let kind = try_body("shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xff;");
    assert_eq!(kind, FaultKind::MemberMask { mask: 0xff, lanes: u32::MAX });
    let kind = try_body("setp.lt.u32 %p1, %r1, 32; @%p1 bra L; bar.sync 1; L: bar.sync 0;");
    assert!(matches!(kind, FaultKind::Deadlock(_)), "{kind}");
}

#[test]
fn spinning_without_hope_is_a_deadlock() {
    let mut device = device();
    device.patience = std::time::Duration::from_millis(30);
    let flag = words(&device, &[0]);
    let body = "ld.param.u64 %d1, [p0]; S: ld.acquire.sys.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra S;";
    assert!(matches!(fault(run("p", body, &[Arg::U64(flag)], 1, &device)).0, FaultKind::Deadlock(_)));
}

#[test]
fn scopes_between_devices() {
    let space = AddressSpace::new();
    let (one, two) = (Device::new(&space, 0), Device::new(&space, 1));
    let flag = words(&two, &[0]);
    let body = |scope: &str| format!("ld.param.u64 %d1, [p0]; st.release.{scope}.global.u32 [%d1], 1;");
    run("p", &body("sys"), &[Arg::U64(flag)], 1, &one).unwrap();
    assert_eq!(fault(run("p", &body("gpu"), &[Arg::U64(flag)], 1, &one)).0, FaultKind::Scope("gpu"));
    run("p", &body("gpu"), &[Arg::U64(flag)], 1, &two).unwrap();
}

/// A two-stage pipeline over 8 tiles of 32 words: each thread copies its neighbour's word of the next tile.
fn pipeline(wait: &str, barrier: &str, end: &str) -> String {
    let copy = "xor.b32 %r9, %r1, 1; and.b32 %r10, %r4, 1; shl.b32 %r10, %r10, 5; add.u32 %r10, %r10, %r9;
        shl.b32 %r10, %r10, 2; add.u32 %r10, %r10, %r8; shl.b32 %r11, %r4, 5; add.u32 %r11, %r11, %r9;
        mul.wide.u32 %d3, %r11, 4; add.s64 %d3, %d1, %d3;";
    format!(
        ".shared .align 16 .b32 s[64]; ld.param.u64 %d1, [p0]; ld.param.u64 %d2, [p1]; mov.u32 %r1, %tid.x;
        mov.u32 %r8, s; mov.u32 %r5, 0; mov.u32 %r4, 0; {copy} cp.async.ca.shared.global [%r10], [%d3], 4; cp.async.commit_group;
        mov.u32 %r6, 0;
        LOOP: add.u32 %r4, %r6, 1; setp.ge.u32 %p2, %r4, 8; {copy} @!%p2 cp.async.ca.shared.global [%r10], [%d3], 4;
        cp.async.commit_group; cp.async.wait_group {wait}; {barrier}
        and.b32 %r12, %r6, 1; shl.b32 %r12, %r12, 5; add.u32 %r12, %r12, %r1; shl.b32 %r12, %r12, 2; add.u32 %r12, %r12, %r8;
        ld.shared.u32 %r13, [%r12]; add.u32 %r5, %r5, %r13; {end}
        add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 8; @%p1 bra LOOP;
        mul.wide.u32 %d3, %r1, 4; add.s64 %d3, %d2, %d3; st.global.u32 [%d3], %r5;"
    )
}

#[test]
fn asynchronous_copies() {
    for schedule in [Schedule::Late, Schedule::Early] {
        let mut device = device();
        device.schedule = schedule;
        let x: Vec<u32> = (0..256).collect();
        let (dx, out) = (words(&device, &x), device.alloc(128).unwrap());
        let args = [Arg::U64(dx), Arg::U64(out)];
        let go = |wait: &str, barrier: &str, end: &str| run("pp", &pipeline(wait, barrier, end), &args, 32, &device);
        go("1", "bar.sync 0;", "bar.sync 0;").unwrap();
        let wanted: Vec<u32> = (0..32).map(|t| (0..8).map(|i| i * 32 + t).sum()).collect();
        assert_eq!(read_words(&device, out, 32), wanted);
        assert_eq!(fault(go("2", "bar.sync 0;", "bar.sync 0;")).0, FaultKind::InFlight);
        assert!(matches!(fault(go("1", "", "bar.sync 0;")).0, FaultKind::Race { how: "read after write", .. }));
        assert!(matches!(fault(go("1", "bar.sync 0;", "")).0, FaultKind::Race { .. }));
    }
}
