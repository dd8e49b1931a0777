//! Texts that must be refused, and how.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;
use intwain_emulator::Problem;

fn problem(params: &str, body: &str) -> String {
    Module::parse(&text(params, body)).unwrap_err().to_string()
}

#[test]
fn what_is_not_executed_is_named() {
    let wanted = "PTX line 6: `wgmma.fence.sync.aligned` is not supported: no such instruction is known (PTX ISA 9.7)";
    assert_eq!(problem("", "wgmma.fence.sync.aligned;"), wanted);
    assert!(problem("", "add.cc.u32 %r1, %r2, %r3;").contains("carry arithmetic (PTX ISA 9.7.2)"));
    assert!(problem("", "add.rz.f64 %d1, %d2, %d3;").contains("directed rounding of f64"));
    assert!(problem("", "ld.global.frobnicate.u32 %r1, [%d1];").contains("modifier .frobnicate"));
    assert!(problem("", "call f;").contains("9.7.12"));
}

#[test]
fn what_is_wrong_is_named() {
    assert!(problem("", "add.u32 %r1, %r2, %x;").contains("`%x` is not declared"));
    assert!(problem("", "add.u32 %r1, %f2, %r3;").contains("%f2 is .f32, the instruction takes .u32"));
    assert!(problem("", "add.u32 %r1, %d2, %r3;").contains("%d2 is .b64"));
    assert!(problem("", "add.f32 %f1, %f2, 1;").contains("integer literal"));
    assert!(problem("", "bra NOWHERE;").contains("`NOWHERE` is not declared"));
    assert!(problem("", "add.u32 %r1, %r2;").contains("takes 3 operands, found 2"));
    assert!(problem("", "A: A:").contains("declared twice"));
    assert!(problem("", "add.u32 %r100, %r1, %r1;").contains("`%r100` is not declared"));
    assert!(problem("", ".reg .b32 %z<4000000000>;").contains("more than"));
    assert!(problem("", ".shared .b8 s[99999999999999999999];").contains("not a number"));
    assert!(problem("", ".shared .b64 s[9999999999999999999];").contains("too large"));
    assert!(matches!(Module::parse("").unwrap_err().problem, Problem::Syntax(_)));
}

/// Cuts, swaps and repetitions of a real module: an error or a module, never a panic or a hang.
#[test]
fn damaged_text_never_panics() {
    let whole = include_str!("ptx/matmul.ptx");
    let mut random = Random(11);
    for cut in (0..whole.len()).step_by(41) {
        let _ = Module::parse(&whole[..cut]);
        let _ = Module::parse(&format!(".version 8.0 {}", &whole[cut..]));
    }
    let words: Vec<&str> = whole.split_inclusive([' ', '\n', ',', ';', '.']).collect();
    for _ in 0..400 {
        let mut mixed = words.clone();
        for _ in 0..1 + random.word() % 4 {
            let (a, b) = (random.word() as usize % mixed.len(), random.word() as usize % mixed.len());
            mixed.swap(a, b);
        }
        let _ = Module::parse(&mixed.concat());
    }
}

#[test]
fn parameters_are_laid_out_by_their_own_alignment() {
    let module = Module::parse(
        ".version 8.0 .target sm_80 .address_size 64
        .entry k(.param .u32 n, .param .u64 .ptr .global .align 1 out, .param .align 8 .b8 s[12])
        { .reg .b64 %d<3>; .reg .b32 %r<3>; ld.param.u64 %d1, [out]; ld.param.u32 %r1, [n]; ld.param.v2.u32 {_, %r2}, [s];
        add.u32 %r1, %r1, %r2; st.global.u32 [%d1], %r1; ret; }",
    )
    .unwrap();
    assert_eq!(module.parameters("k").unwrap(), [4, 8, 12]);
    let device = device();
    let out = device.alloc(4).unwrap();
    let args = [Arg::U32(40), Arg::U64(out), Arg::Bytes([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0].into())];
    device.launch(&module, "k", launch([1, 1, 1], [1, 1, 1], 0), &args).unwrap();
    assert_eq!(read_words(&device, out, 1), [42]);
}

#[test]
fn launches_are_checked() {
    let device = device();
    let module =
        Module::parse(".version 7.4 .target sm_80 .address_size 64 .entry k(.param .u32 a) .maxntid 64, 1, 1 { ret; }")
            .unwrap();
    let go = |kernel: &str, l: Launch, args: &[Arg]| device.launch(&module, kernel, l, args).unwrap_err().to_string();
    let fine = launch([1, 1, 1], [64, 1, 1], 0);
    device.launch(&module, "k", fine, &[Arg::U32(1)]).unwrap();
    assert!(go("x", fine, &[]).contains("no entry `x`"));
    assert!(go("k", fine, &[]).contains("takes 1 arguments, but 0"));
    assert!(go("k", fine, &[Arg::U64(1)]).contains("4 bytes as argument 0, but 8 bytes"));
    assert!(go("k", launch([1, 1, 1], [65, 1, 1], 0), &[Arg::U32(1)]).contains(".maxntid allows 64"));
    assert!(go("k", launch([1, 70000, 1], [1, 1, 1], 0), &[Arg::U32(1)]).contains("65535"));
    assert!(go("k", launch([1, 1, 1], [1, 1, 1], 300_000), &[Arg::U32(1)]).contains("shared memory"));
}

#[test]
fn variables_of_the_module() {
    let module = Module::parse(
        ".version 7.4 .target sm_80 .address_size 64
        .global .align 8 .u32 count; .visible .global .align 4 .f32 table[3] = {0f3f800000, 2.5, 4.0};
        .const .align 4 .u32 step = 7;
        .entry k(.param .u64 out) { .reg .b64 %d<9>; .reg .b32 %r<9>; ld.param.u64 %d1, [out]; ld.const.u32 %r1, [step];
        atom.global.add.u32 %r2, [count], %r1; mov.u64 %d2, table; cvta.global.u64 %d3, %d2; ld.u32 %r3, [%d3+4];
        ld.global.u32 %r4, [table+8]; st.global.v4.u32 [%d1], {%r1, %r2, %r3, %r4}; ret; }",
    )
    .unwrap();
    let (first, second) = (device(), device());
    for (device, wanted) in [(&first, 0), (&first, 7), (&second, 0)] {
        let out = device.alloc(16).unwrap();
        device.launch(&module, "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(out)]).unwrap();
        assert_eq!(read_words(device, out, 4), [7, wanted, 2.5f32.to_bits(), 4f32.to_bits()]);
    }
}
