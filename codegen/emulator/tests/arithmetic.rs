//! Arithmetic instructions against Rust's own arithmetic and values worked out by hand.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

/// Runs `body` for one thread; inputs are 64-bit words in `%d1`, `%d2`, … and the result is `%d90`.
fn eval(inputs: &[u64], body: &str) -> u64 {
    let device = device();
    let memory = device.upload(&inputs.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap();
    let out = device.alloc(8).unwrap();
    let mut load = "ld.param.u64 %d80, [p0]; ld.param.u64 %d81, [p1];".to_owned();
    for i in 0..inputs.len() {
        let n = i + 1;
        load += &format!(
            "ld.global.b64 %d{n}, [%d80+{o}]; ld.global.b32 %r{n}, [%d80+{o}]; ld.global.f32 %f{n}, [%d80+{o}];
             ld.global.b16 %h{n}, [%d80+{o}];",
            o = 8 * i
        );
    }
    let body = format!(".reg .f64 %e<9>; mov.b64 %d90, 0; {load} {body}; st.global.b64 [%d81], %d90;");
    device
        .launch(&module("pp", &body), "k", launch([1, 1, 1], [1, 1, 1], 0), &[Arg::U64(memory), Arg::U64(out)])
        .unwrap();
    let mut bytes = [0; 8];
    device.read(out, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn eval32(inputs: &[u32], body: &str) -> u32 {
    let inputs: Vec<u64> = inputs.iter().map(|&v| u64::from(v)).collect();
    eval(&inputs, &format!("{body}; cvt.u64.u32 %d90, %r90")) as u32
}

fn evalf(inputs: &[f32], body: &str) -> f32 {
    let inputs: Vec<u32> = inputs.iter().map(|v| v.to_bits()).collect();
    f32::from_bits(eval32(&inputs, &format!("{body}; mov.b32 %r90, %f90")))
}

#[test]
fn integers() {
    let (a, b) = (0xdead_beef_u32, 0x0123_4567_u32);
    let (x, y) = (a as i32, b as i32);
    assert_eq!(eval32(&[a, b], "mul.hi.s32 %r90, %r1, %r2"), ((i64::from(x) * i64::from(y)) >> 32) as u32);
    assert_eq!(eval32(&[a, b], "mul.hi.u32 %r90, %r1, %r2"), ((u64::from(a) * u64::from(b)) >> 32) as u32);
    assert_eq!(eval32(&[a, b, 9], "mad.hi.s32 %r90, %r1, %r2, %r3"), ((i64::from(x) * i64::from(y)) >> 32) as u32 + 9);
    assert_eq!(
        eval(&[u64::from(a), u64::from(b)], "mul.wide.s32 %d90, %r1, %r2"),
        (i64::from(x) * i64::from(y)) as u64
    );
    assert_eq!(eval(&[u64::MAX, 3], "mul.hi.u64 %d90, %d1, %d2"), 2);
    assert_eq!(eval(&[u64::MAX, 3], "mul.hi.s64 %d90, %d1, %d2"), u64::MAX);
    assert_eq!(eval32(&[a, b], "div.s32 %r90, %r1, %r2"), (x / y) as u32);
    assert_eq!(eval32(&[a, b], "rem.s32 %r90, %r1, %r2"), (x % y) as u32);
    assert_eq!(eval32(&[a, 0], "div.u32 %r90, %r1, %r2"), u32::MAX);
    assert_eq!(eval32(&[0x8000_0000, u32::MAX], "div.s32 %r90, %r1, %r2"), 0x8000_0000);
    assert_eq!(eval32(&[0x7fff_ffff, 5], "add.sat.s32 %r90, %r1, %r2"), 0x7fff_ffff);
    assert_eq!(eval32(&[0x8000_0000], "abs.s32 %r90, %r1"), 0x8000_0000);
    assert_eq!(eval32(&[a, b], "min.s32 %r90, %r1, %r2"), a);
    assert_eq!(eval32(&[a, b], "max.u32 %r90, %r1, %r2"), a);
    assert_eq!(eval32(&[a, 40], "shr.s32 %r90, %r1, %r2"), u32::MAX);
    assert_eq!(eval32(&[a, 40], "shl.b32 %r90, %r1, %r2"), 0);
    assert_eq!(eval32(&[a], "popc.b32 %r90, %r1"), a.count_ones());
    assert_eq!(eval32(&[b], "clz.b32 %r90, %r1"), b.leading_zeros());
    assert_eq!(eval(&[1], "clz.b64 %r90, %d1; cvt.u64.u32 %d90, %r90"), 63);
    assert_eq!(eval32(&[b], "brev.b32 %r90, %r1"), b.reverse_bits());
    assert_eq!(eval32(&[b], "bfind.u32 %r90, %r1"), 24);
    assert_eq!(eval32(&[0], "bfind.s32 %r90, %r1"), u32::MAX);
    assert_eq!(eval32(&[a, 8, 8], "bfe.u32 %r90, %r1, %r2, %r3"), 0xbe);
    assert_eq!(eval32(&[a, 8, 8], "bfe.s32 %r90, %r1, %r2, %r3"), 0xffff_ffbe);
    assert_eq!(eval32(&[0xff, a, 4, 12], "bfi.b32 %r90, %r1, %r2, %r3, %r4"), 0xdead_0fff & 0xffff_0000 | 0x0fff);
    assert_eq!(eval32(&[a, b, 0x3715], "prmt.b32 %r90, %r1, %r2, %r3"), 0xde01_be45);
    assert_eq!(eval32(&[a, 0], "prmt.b32 %r90, %r1, %r2, 0x8888"), u32::MAX);
    assert_eq!(eval32(&[a, b, 0x0f0f_0f0f], "lop3.b32 %r90, %r1, %r2, %r3, 0xca"), a & b | !a & 0x0f0f_0f0f);
    assert_eq!(eval32(&[a, b, 4], "shf.l.wrap.b32 %r90, %r1, %r2, %r3"), b << 4 | a >> 28);
    assert_eq!(eval32(&[a, b, 36], "shf.r.wrap.b32 %r90, %r1, %r2, %r3"), a >> 4 | b << 28);
    assert_eq!(eval32(&[a, b, 40], "shf.r.clamp.b32 %r90, %r1, %r2, %r3"), b);
    assert_eq!(eval32(&[9, 14, 100], "sad.u32 %r90, %r1, %r2, %r3"), 105);
}

#[test]
fn floats() {
    let sum = |op: &str| evalf(&[1.0, f32::powi(2.0, -30)], &format!("add.{op}.f32 %f90, %f1, %f2"));
    assert_eq!((sum("rn"), sum("rz"), sum("rm")), (1.0, 1.0, 1.0));
    assert_eq!(sum("rp"), 1.0 + f32::EPSILON);
    assert_eq!(evalf(&[1.0, 3.0], "div.rz.f32 %f90, %f1, %f2"), f32::from_bits(0x3eaa_aaaa));
    assert_eq!(evalf(&[1.0, 3.0], "div.rn.f32 %f90, %f1, %f2"), 1.0 / 3.0);
    assert_eq!(evalf(&[2.0], "sqrt.rn.f32 %f90, %f1"), 2f32.sqrt());
    assert_eq!(evalf(&[1e-40, 1.0], "mul.rn.f32 %f90, %f1, %f2"), 1e-40);
    assert_eq!(evalf(&[1e-40, 1.0], "mul.rn.ftz.f32 %f90, %f1, %f2").to_bits(), 0);
    assert_eq!(evalf(&[-1e-20, 1e-20], "mul.rn.ftz.f32 %f90, %f1, %f2").to_bits(), 0x8000_0000);
    assert_eq!(evalf(&[3.0, 1.0], "add.rn.sat.f32 %f90, %f1, %f2"), 1.0);
    assert_eq!(evalf(&[f32::NAN, 1.0], "add.rn.sat.f32 %f90, %f1, %f2").to_bits(), 0);
    assert_eq!(evalf(&[f32::NAN, 1.0], "max.f32 %f90, %f1, %f2"), 1.0);
    assert_eq!(evalf(&[f32::NAN, 1.0], "max.NaN.f32 %f90, %f1, %f2").to_bits(), 0x7fff_ffff);
    assert_eq!(evalf(&[-0.0, 0.0], "max.f32 %f90, %f1, %f2").to_bits(), 0);
    assert_eq!(evalf(&[-0.0, 0.0], "min.f32 %f90, %f1, %f2").to_bits(), 0x8000_0000);
    assert_eq!(evalf(&[f32::INFINITY, f32::INFINITY], "sub.rn.f32 %f90, %f1, %f2").to_bits(), 0x7fff_ffff);
    for x in [0.3f32, -2.5, 11.0, -0.001] {
        let close = |got: f32, wanted: f64| assert_eq!(got, wanted as f32, "{x}");
        let wide = f64::from(x);
        close(evalf(&[x], "ex2.approx.f32 %f90, %f1"), wide.exp2());
        close(evalf(&[x.abs()], "lg2.approx.f32 %f90, %f1"), wide.abs().log2());
        close(evalf(&[x], "tanh.approx.f32 %f90, %f1"), wide.tanh());
        close(evalf(&[x], "sin.approx.f32 %f90, %f1"), wide.sin());
        close(evalf(&[x], "cos.approx.f32 %f90, %f1"), wide.cos());
        close(evalf(&[x.abs()], "rsqrt.approx.f32 %f90, %f1"), 1.0 / wide.abs().sqrt());
    }
    let v = eval(
        &[2f64.to_bits(), 3f64.to_bits()],
        "mov.b64 %e1, %d1; mov.b64 %e2, %d2; div.rn.f64 %e3, %e1, %e2; mov.b64 %d90, %e3",
    );
    assert_eq!(f64::from_bits(v), 2.0 / 3.0);
}

#[test]
fn conversions() {
    let to_int = |v: f32, form: &str| eval32(&[v.to_bits()], &format!("cvt.{form} %r90, %f1"));
    assert_eq!(to_int(2.5, "rni.s32.f32"), 2);
    assert_eq!(to_int(-2.5, "rzi.s32.f32"), -2i32 as u32);
    assert_eq!(to_int(-2.5, "rmi.s32.f32"), -3i32 as u32);
    assert_eq!(to_int(2.1, "rpi.u32.f32"), 3);
    assert_eq!(to_int(-7.0, "rzi.u32.f32"), 0);
    assert_eq!(to_int(1e20, "rzi.s32.f32"), i32::MAX as u32);
    assert_eq!(to_int(f32::NAN, "rzi.s32.f32"), 0);
    assert_eq!(to_int(-3.0, "rzi.s8.f32"), -3i32 as u32);
    let to_float =
        |v: u32, form: &str| f32::from_bits(eval32(&[v], &format!("cvt.{form} %f90, %r1; mov.b32 %r90, %f90")));
    assert_eq!(to_float(0xffff_ffff, "rn.f32.u32"), u32::MAX as f32);
    assert_eq!(to_float(0xffff_ffff, "rz.f32.u32"), f32::from_bits(0x4f7f_ffff));
    assert_eq!(to_float(0xffff_ffff, "rn.f32.s32"), -1.0);
    assert_eq!(eval32(&[0x1ff], "cvt.s32.s8 %r90, %r1"), u32::MAX);
    assert_eq!(eval32(&[300], "cvt.sat.u8.u32 %r90, %r1"), 255);
    assert_eq!(eval(&[0xffff_fffe], "cvt.s64.s32 %d90, %r1"), -2i64 as u64);
    let pair =
        |a: f32, b: f32, form: &str| eval32(&[a.to_bits(), b.to_bits()], &format!("cvt.{form}.f32 %r90, %f1, %f2"));
    assert_eq!(pair(1.0, -2.0, "rn.f16x2"), 0x3c00_c000);
    assert_eq!(pair(1.0, -2.0, "rn.bf16x2"), 0x3f80_c000);
    assert_eq!(pair(-1.0, 2.0, "rn.relu.f16x2"), 0x0000_4000);
    assert_eq!(
        evalf(&[1.0 + f32::powi(2.0, -11)], "cvt.rna.tf32.f32 %r5, %f1; mov.b32 %f90, %r5"),
        1.0 + f32::powi(2.0, -10)
    );
    assert_eq!(evalf(&[f32::from_bits(0x3555)], "cvt.f32.f16 %f90, %h1"), 0.333_251_95);
    assert_eq!(evalf(&[2.7], "cvt.rmi.f32.f32 %f90, %f1"), 2.0);
}

#[test]
fn halves_round_once() {
    // (1 + 2^-10) · 1.5 lies midway between two f16 and would round up; the -2^-24 added to it decides.
    assert_eq!(eval32(&[0x3c01, 0x3e00, 0x8001], "fma.rn.f16 %h4, %h1, %h2, %h3; cvt.u32.u16 %r90, %h4"), 0x3e01);
    assert_eq!(eval32(&[0x3c00_4000, 0x4000_3c00], "add.rn.f16x2 %r90, %r1, %r2"), 0x4200_4200);
    assert_eq!(eval32(&[0x3f80_4000, 0x4000_3f80], "mul.rn.bf16x2 %r90, %r1, %r2"), 0x4000_4000);
    assert_eq!(eval32(&[0x7c00_fc00, 0x3c00_3c00], "max.f16x2 %r90, %r1, %r2"), 0x7c00_3c00);
}

#[test]
fn predicates_and_selection() {
    let nan = f32::NAN.to_bits();
    let set = |a: u32, b: u32, form: &str| {
        eval32(&[a, b], &format!("setp.{form}.f32 %p1, %f1, %f2; selp.u32 %r90, 1, 0, %p1"))
    };
    let one = 1f32.to_bits();
    assert_eq!((set(nan, one, "lt"), set(nan, one, "ltu"), set(nan, one, "ne"), set(nan, one, "neu")), (0, 1, 0, 1));
    assert_eq!((set(nan, one, "nan"), set(one, one, "num"), set(one, one, "geu"), set(0, 1 << 31, "eq")), (1, 1, 1, 1));
    let both = "setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3; selp.u32 %r3, 1, 0, %p1; selp.u32 %r4, 2, 0, %p2; or.b32 %r90, %r3, %r4";
    assert_eq!(eval32(&[u32::MAX, 1], &format!("setp.eq.u32 %p3, %r1, %r2; {both}")), 1);
    assert_eq!(eval32(&[5, 1], &format!("setp.eq.u32 %p3, %r1, %r2; {both}")), 2);
    assert_eq!(eval32(&[7, 7], "set.eq.u32.u32 %r90, %r1, %r2"), u32::MAX);
    assert_eq!(
        eval32(
            &[7, 7],
            "setp.ne.u32 %p1, %r1, %r2; not.pred %p2, %p1; xor.pred %p3, %p1, %p2; @%p3 mov.u32 %r90, 5; @!%p3 mov.u32 %r90, 6"
        ),
        5
    );
}

#[test]
fn warp_collectives() {
    let body = "mov.u32 %r1, %laneid; ld.param.u64 %d1, [p0]; mul.wide.u32 %d2, %r1, 32; add.s64 %d1, %d1, %d2;
        mov.u32 %r20, 0;
        shfl.sync.up.b32 %r2|%p1, %r1, 3, 0, -1; selp.u32 %r3, %r2, 99, %p1;
        shfl.sync.down.b32 %r4|%p1, %r1, 2, 0x181f, -1; selp.u32 %r4, %r4, 99, %p1;
        shfl.sync.idx.b32 %r5, %r1, 5, 0x181f, -1;
        setp.lt.u32 %p2, %r1, 7; vote.sync.ballot.b32 %r6, %p2, -1; vote.sync.any.pred %p3, %p2, -1;
        selp.u32 %r7, 1, 0, %p3; redux.sync.add.u32 %r8, %r1, -1;
        and.b32 %r9, %r1, 3; match.any.sync.b32 %r10, %r9, -1; mov.u32 %r11, %lanemask_lt;
        st.global.v4.u32 [%d1], {%r3, %r4, %r5, %r6}; st.global.v4.u32 [%d1+16], {%r7, %r8, %r10, %r11};";
    let device = device();
    let out = device.alloc(32 * 32).unwrap();
    device.launch(&module("p", body), "k", launch([1, 1, 1], [32, 1, 1], 0), &[Arg::U64(out)]).unwrap();
    for (lane, row) in read_words(&device, out, 256).chunks(8).enumerate() {
        let l = lane as u32;
        let up = if l >= 3 { l - 3 } else { 99 };
        let down = if l % 8 < 6 { l + 2 } else { 99 };
        assert_eq!(row, [up, down, l / 8 * 8 + 5, 0x7f, 1, 496, 0x1111_1111 << (l % 4), (1 << l) - 1], "{lane}");
    }
}

#[test]
fn selection_by_sign_and_tests_of_floats() {
    let slct = |x: f32| eval32(&[x.to_bits()], "mov.u32 %r2, 5; mov.u32 %r3, 6; slct.u32.f32 %r90, %r2, %r3, %f1");
    assert_eq!([0.0, -0.0, 1.0, -1.0, f32::NAN].map(slct), [5, 5, 5, 6, 6]);
    assert_eq!(eval32(&[u32::MAX], "slct.u32.s32 %r90, 5, 6, %r1"), 6);
    let values = [0.0, -1.5, 1e-40, f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::NAN];
    let test = |name: &str| {
        values.map(|v| eval32(&[v.to_bits()], &format!("testp.{name}.f32 %p1, %f1; selp.u32 %r90, 1, 0, %p1")) == 1)
    };
    assert_eq!(test("finite"), values.map(f32::is_finite));
    assert_eq!(test("infinite"), values.map(f32::is_infinite));
    assert_eq!(test("number"), values.map(|v| !v.is_nan()));
    assert_eq!(test("notanumber"), values.map(f32::is_nan));
    assert_eq!(test("normal"), values.map(f32::is_normal));
    assert_eq!(test("subnormal"), values.map(f32::is_subnormal));
    let wide =
        |v: f64| eval(&[v.to_bits()], "mov.b64 %e1, %d1; testp.subnormal.f64 %p1, %e1; selp.u64 %d90, 1, 0, %p1") == 1;
    assert_eq!([1e-310, 1.0, f64::NAN].map(wide), [true, false, false]);
}
