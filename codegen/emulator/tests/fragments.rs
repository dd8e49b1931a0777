//! `mma.sync` and `ldmatrix` against products of small integers, with fragment layouts written out from PTX ISA 9.7.14.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

type Pick = fn(usize, usize) -> (usize, usize);

/// Element kinds of a register: what is stored for an integer value.
fn f16(v: i32) -> u32 {
    let bits = (v as f32).to_bits();
    if v == 0 { 0 } else { (bits >> 16 & 0x8000) | (((bits >> 23 & 0xff) - 112) << 10) | (bits >> 13 & 0x3ff) }
}

fn bf16(v: i32) -> u32 {
    (v as f32).to_bits() >> 16
}

fn tf32(v: i32) -> u32 {
    // The low bits must be ignored.
    (v as f32).to_bits() | 0x1abc
}

/// Runs one mma: `a` and `b` give for a register and a lane the place (row, column) of its first element.
fn check(shape: &str, types: [&str; 4], k: usize, a: &[Pick], b: &[Pick], store: fn(i32) -> u32, pair: bool) {
    let value = |i: usize, j: usize, salt: usize| ((i * 7 + j * 5 + salt) % 9) as i32 - 4;
    let half = types[0] == "f16";
    let mut memory = vec![0u32; 32 * 16];
    for lane in 0..32 {
        let row = &mut memory[lane * 16..][..16];
        for (r, pick) in a.iter().enumerate() {
            let (i, e) = pick(lane / 4, lane % 4);
            row[r] = store(value(i, e, 1)) | if pair { store(value(i, e + 1, 1)) << 16 } else { 0 };
        }
        for (r, pick) in b.iter().enumerate() {
            let (e, j) = pick(lane / 4, lane % 4);
            row[4 + r] = store(value(e, j, 2)) | if pair { store(value(e + 1, j, 2)) << 16 } else { 0 };
        }
        for c in 0..4 {
            let v = value(lane / 4 + c / 2 * 8, lane % 4 * 2 + c % 2, 3);
            match half {
                true => row[8 + c / 2] |= f16(v) << (16 * (c % 2)),
                false => row[8 + c] = (v as f32).to_bits(),
            }
        }
    }
    let list = |prefix: &str, from: usize, n: usize| {
        (from..from + n).map(|r| format!("%{prefix}{r}")).collect::<Vec<_>>().join(", ")
    };
    let (file, n) = if half { ("r", 2) } else { ("f", 4) };
    let loads: String =
        (0..12).map(|r| format!("ld.global.b32 %r{r}, [%d1+{}]; mov.b32 %f{r}, %r{r};\n", 4 * r)).collect();
    let stores: String = (0..n).map(|r| format!("st.global.b32 [%d1+{}], %{file}{};\n", 48 + 4 * r, 20 + r)).collect();
    let [d, x, y, c] = types;
    let body = format!(
        "ld.param.u64 %d1, [p0]; mov.u32 %r50, %tid.x; mul.wide.u32 %d2, %r50, 64; add.s64 %d1, %d1, %d2; {loads}
         mma.sync.aligned.{shape}.row.col.{d}.{x}.{y}.{c} {{{}}}, {{{}}}, {{{}}}, {{{}}}; {stores}",
        list(file, 20, n),
        list("r", 0, a.len()),
        list("r", 4, b.len()),
        list(file, 8, n),
    );
    let device = device();
    let at = words(&device, &memory);
    device.launch(&module("p", &body), "k", launch([1, 1, 1], [32, 1, 1], 0), &[Arg::U64(at)]).unwrap();
    for (lane, row) in read_words(&device, at, 512).chunks(16).enumerate() {
        for c in 0..4 {
            let (i, j) = (lane / 4 + c / 2 * 8, lane % 4 * 2 + c % 2);
            let wanted = value(i, j, 3) + (0..k).map(|e| value(i, e, 1) * value(e, j, 2)).sum::<i32>();
            match half {
                true => assert_eq!(row[12 + c / 2] >> (16 * (c % 2)) & 0xffff, f16(wanted), "{shape} ({i}, {j})"),
                false => assert_eq!(f32::from_bits(row[12 + c]), wanted as f32, "{shape} ({i}, {j})"),
            }
        }
    }
}

#[test]
fn every_shape_and_type() {
    let a16: [Pick; 4] = [|g, t| (g, 2 * t), |g, t| (g + 8, 2 * t), |g, t| (g, 2 * t + 8), |g, t| (g + 8, 2 * t + 8)];
    let b16: [Pick; 2] = [|g, t| (2 * t, g), |g, t| (2 * t + 8, g)];
    let a32: [Pick; 4] = [|g, t| (g, t), |g, t| (g + 8, t), |g, t| (g, t + 4), |g, t| (g + 8, t + 4)];
    let b32: [Pick; 2] = [|g, t| (t, g), |g, t| (t + 4, g)];
    check("m16n8k16", ["f32", "f16", "f16", "f32"], 16, &a16, &b16, f16, true);
    check("m16n8k16", ["f16", "f16", "f16", "f16"], 16, &a16, &b16, f16, true);
    check("m16n8k16", ["f32", "bf16", "bf16", "f32"], 16, &a16, &b16, bf16, true);
    check("m16n8k8", ["f32", "f16", "f16", "f32"], 8, &a16[..2], &b16[..1], f16, true);
    check("m16n8k8", ["f32", "bf16", "bf16", "f32"], 8, &a16[..2], &b16[..1], bf16, true);
    check("m16n8k8", ["f32", "tf32", "tf32", "f32"], 8, &a32, &b32, tf32, false);
    check("m16n8k4", ["f32", "tf32", "tf32", "f32"], 4, &a32[..2], &b32[..1], tf32, false);
}

#[test]
fn ldmatrix_distributes_rows() {
    let body = |trans: &str| {
        format!(
            ".shared .align 16 .b16 s[256]; mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 4; add.u32 %r2, %r2, %r3;
             mul.lo.u32 %r4, %r1, 0x00080008; add.u32 %r4, %r4, 0x00010000; add.u32 %r5, %r4, 0x00020002;
             add.u32 %r6, %r5, 0x00020002; add.u32 %r7, %r6, 0x00020002; st.shared.v4.b32 [%r2], {{%r4, %r5, %r6, %r7}};
             bar.warp.sync -1; ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{%r10, %r11, %r12, %r13}}, [%r2];
             ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d1, %d2;
             st.global.v4.b32 [%d1], {{%r10, %r11, %r12, %r13}};"
        )
    };
    for trans in [false, true] {
        let device = device();
        let out = device.alloc(512).unwrap();
        let module = module("p", &body(if trans { ".trans" } else { "" }));
        device.launch(&module, "k", launch([1, 1, 1], [32, 1, 1], 0), &[Arg::U64(out)]).unwrap();
        for (lane, row) in read_words(&device, out, 128).chunks(4).enumerate() {
            for (tile, &got) in row.iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4 * 2);
                let element = |i: usize, j: usize| (tile * 64 + i * 8 + j) as u32;
                let wanted = match trans {
                    false => element(g, t) | element(g, t + 1) << 16,
                    true => element(t, g) | element(t + 1, g) << 16,
                };
                assert_eq!(got, wanted, "lane {lane}, tile {tile}");
            }
        }
    }
}
