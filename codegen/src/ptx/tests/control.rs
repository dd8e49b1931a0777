//! Loops, conditionals, vectors, shared memory and what threads do together.

use super::{run, threads};
use crate::ptx::module;
use intwain_ir::DType;
use intwain_ir::kernel::{Access, Bound, Builder, Id, Inst, Kernel, MatrixForm, MmaShape, Reg, RegType, Shuffle, Stmt};
use intwain_ir::scalar::{self, Binary, Compare, Scalar};

fn i64s(bytes: &[u8]) -> Vec<i64> {
    bytes.chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn from_f32s(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// out[2t], out[2t + 1] = the Fibonacci numbers t and t + 1, by a loop that swaps its carried values.
#[test]
fn carried_values_swap() {
    let mut b = Builder::new("fibonacci", threads(32), Bound::Memory);
    let out = b.param(DType::I64, 64, Access::Write);
    let (zero, one, two) = (b.index(0), b.index(1), b.index(2));
    let t = b.id(Id::Thread(0));
    let l = b.open_loop(zero, t, 1, &[zero, one]);
    let args: Vec<_> = l.args().collect();
    let sum = b.binary(Binary::Add, args[0], args[1]);
    let last = b.close_loop(l, &[args[1], sum]);
    // A rotation of three, too.
    let l = b.open_loop(zero, t, 1, &[last[0], last[1], two]);
    let args: Vec<_> = l.args().collect();
    let turned = b.close_loop(l, &[args[1], args[2], args[0]]);
    let at = b.binary(Binary::Mul, t, two);
    b.store(out, at, 0, turned[0]);
    b.store(out, at, 1, turned[1]);
    let k = b.finish();
    let got = i64s(&run(&k, &[vec![0; 64 * 8]])[0]);
    let (mut x, mut y) = (0i64, 1i64);
    for t in 0..32usize {
        let ring = [x, y, 2];
        assert_eq!(got[2 * t..2 * t + 2], [ring[t % 3], ring[(t + 1) % 3]], "thread {t}");
        (x, y) = (y, x + y);
    }
}

/// Values merged by a conditional within a loop: the Collatz trajectory's length after 20 steps.
#[test]
fn conditionals_merge() {
    let mut b = Builder::new("collatz", threads(64), Bound::Memory);
    let out = b.param(DType::I64, 64, Access::Write);
    let (zero, one, two, three, end) = (b.index(0), b.index(1), b.index(2), b.index(3), b.index(20));
    let t = b.id(Id::Thread(0));
    let start = b.binary(Binary::Add, t, one);
    let l = b.open_loop(zero, end, 1, &[start]);
    let n = l.args().next().unwrap();
    let rest = b.binary(Binary::Mod, n, two);
    let even = b.compare(Compare::Eq, rest, zero);
    b.open_block();
    let half = b.binary(Binary::FloorDiv, n, two);
    let yes = b.take_block();
    b.open_block();
    let triple = b.binary(Binary::Mul, n, three);
    let next = b.binary(Binary::Add, triple, one);
    let no = b.take_block();
    let merged = b.conditional(even, (yes, &[half]), (no, &[next]));
    let last = b.close_loop(l, &merged);
    b.store(out, t, 0, last[0]);
    // A store in one branch only.
    let big = b.index(40);
    let high = b.compare(Compare::Ge, t, big);
    b.open_block();
    b.store(out, t, 0, zero);
    let then = b.take_block();
    b.conditional(high, (then, &[]), (Default::default(), &[]));
    let got = i64s(&run(&b.finish(), &[vec![0; 64 * 8]])[0]);
    for (t, got) in got.iter().enumerate() {
        let mut n = t as i64 + 1;
        for _ in 0..20 {
            n = if n % 2 == 0 { n / 2 } else { 3 * n + 1 };
        }
        assert_eq!(*got, if t >= 40 { 0 } else { n });
    }
}

fn vector_copy(dtype: DType, lanes: u8) -> Kernel {
    let n = 32 * lanes as usize;
    let mut b = Builder::new(format!("copy_{dtype}_{lanes}"), threads(32), Bound::Memory);
    let x = b.aligned_param(dtype, n, Access::Constant, 64);
    let y = b.aligned_param(dtype, n, Access::Write, 64);
    let shared = b.buffer(DType::I32, 3);
    let s = b.buffer(dtype, n);
    let _ = shared;
    let t = b.id(Id::Thread(0));
    let width = b.index(lanes.into());
    let at = b.binary(Binary::Mul, t, width);
    let v = b.load(x, at, 0, lanes);
    b.store(s, at, 0, v);
    b.push(Stmt::Barrier);
    // What another thread wrote.
    let last = b.index(31);
    let other = b.binary(Binary::Sub, last, t);
    let from = b.binary(Binary::Mul, other, width);
    let w = b.load(s, from, 0, lanes);
    let parts: Vec<_> = (0..lanes).map(|i| b.inst(RegType::scalar(dtype), Inst::Extract(w, i))).collect();
    let back = b.inst(RegType { dtype, lanes }, Inst::Pack(parts.into_iter().rev().collect()));
    b.store(y, at, 0, back);
    b.finish()
}

/// Vectors of every type are reversed through shared memory.
#[test]
fn vectors() {
    for dtype in [DType::Bool, DType::I8, DType::I16, DType::BF16, DType::F16, DType::F32, DType::I64, DType::F64] {
        for lanes in [1u8, 2, 4, 8] {
            if lanes == 8 && dtype.size() != 2 {
                continue;
            }
            let k = vector_copy(dtype, lanes);
            let n = 32 * lanes as usize;
            let x: Vec<Scalar> = (0..n).map(|i| Scalar::from_i64(dtype, (i * 37 % 101) as i64)).collect();
            let bytes = |x: &mut dyn Iterator<Item = &Scalar>| -> Vec<u8> {
                x.flat_map(|x| x.bits().to_le_bytes()[..dtype.size()].to_vec()).collect()
            };
            let input = bytes(&mut x.iter());
            let got = run(&k, &[input.clone(), vec![0; input.len()]]);
            assert_eq!(got[1], bytes(&mut x.iter().rev()), "{dtype} x {lanes}");
        }
    }
    let text = module(&[&vector_copy(DType::F32, 4)]).unwrap();
    assert!(text.contains("ld.global.nc.v4.f32") && text.contains("st.shared.v4.f32"), "{text}");
    let text = module(&[&vector_copy(DType::F64, 4)]).unwrap();
    assert!(text.matches("ld.global.nc.v2.f64").count() == 2, "{text}");
}

/// A sum over a warp by butterflies, the neighbour's value, and the first one's.
#[test]
fn shuffles() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::I8, DType::BF16, DType::Bool] {
        let mut b = Builder::new("warp", threads(32), Bound::Memory);
        let x = b.param(dtype, 32, Access::Constant);
        let y = b.param(dtype, 96, Access::Write);
        let t = b.id(Id::Thread(0));
        let v = b.load(x, t, 0, 1);
        let ty = RegType::scalar(dtype);
        let mut sum = v;
        for n in [16, 8, 4, 2, 1] {
            let other = b.inst(ty, Inst::Shuffle(Shuffle::Butterfly(n), sum));
            sum = b.binary(Binary::Add, sum, other);
        }
        let next = b.inst(ty, Inst::Shuffle(Shuffle::Down(3), v));
        let first = b.inst(ty, Inst::Shuffle(Shuffle::From(5), v));
        b.store(y, t, 0, sum);
        b.store(y, t, 32, next);
        b.store(y, t, 64, first);
        let values: Vec<i64> = (0..32).map(|i| i64::from(i == 7 || i > 20 || i == 5)).collect();
        let input: Vec<u8> = values
            .iter()
            .flat_map(|x| Scalar::from_i64(dtype, *x).bits().to_le_bytes()[..dtype.size()].to_vec())
            .collect();
        let got = &run(&b.finish(), &[input, vec![0; 96 * dtype.size()]])[1];
        let got: Vec<i64> = got.chunks(dtype.size()).map(|b| Scalar::read(dtype, b).to_i64()).collect();
        let sum: i64 = if dtype == DType::Bool { 1 } else { values.iter().sum() };
        for t in 0..32 {
            assert_eq!(got[t], sum);
            assert_eq!(got[32 + t], if t + 3 < 32 { values[t + 3] } else { values[t] });
            assert_eq!(got[64 + t], values[5]);
        }
    }
}

/// Asynchronous copies with a guard fill shared memory with data or zeros.
#[test]
fn asynchronous_copies() {
    let mut b = Builder::new("stage", threads(32), Bound::Memory);
    let x = b.aligned_param(DType::F32, 100, Access::Constant, 64);
    let y = b.aligned_param(DType::F32, 128, Access::Write, 64);
    let s = b.buffer(DType::F32, 128);
    let t = b.id(Id::Thread(0));
    let (four, n) = (b.index(4), b.index(100));
    let at = b.binary(Binary::Mul, t, four);
    let inside = b.compare(Compare::Lt, at, n);
    b.push(Stmt::AsyncCopy {
        to: s,
        to_index: at,
        to_offset: 0,
        from: x,
        from_index: at,
        from_offset: 0,
        bytes: 16,
        guard: Some(inside),
    });
    b.push(Stmt::AsyncCommit);
    b.push(Stmt::AsyncWait(0));
    b.push(Stmt::Barrier);
    let v = b.load(s, at, 0, 4);
    b.store(y, at, 0, v);
    let input: Vec<f32> = (0..100).map(|i| i as f32 + 0.5).collect();
    let got = run(&b.finish(), &[from_f32s(&input), vec![0; 512]]);
    let want: Vec<f32> = input.iter().copied().chain([0.0; 28]).collect();
    assert_eq!(f32s(&got[1]), want);
}

/// One block signals, the other waits; epochs wrap.
#[test]
fn flags() {
    let entry = intwain_ir::kernel::Entry::Grid { blocks: [2, 1, 1], threads: [32, 1, 1] };
    let mut b = Builder::new("flags", entry, Bound::Memory);
    let flags = b.param(DType::U32, 2, Access::Update);
    let data = b.param(DType::I64, 2, Access::Update);
    let (zero, one) = (b.index(0), b.index(1));
    let (block, t) = (b.id(Id::Block(0)), b.id(Id::Thread(0)));
    let epoch = b.constant(Scalar::from_i64(DType::U32, 3));
    let first_thread = b.compare(Compare::Eq, t, zero);
    let first_block = b.compare(Compare::Eq, block, zero);
    b.open_block();
    b.push(Stmt::Await { from: flags, index: one, value: epoch });
    let v = b.load(data, one, 0, 1);
    b.store(data, zero, 0, v);
    let wait = b.take_block();
    b.open_block();
    let answer = b.index(42);
    b.store(data, one, 0, answer);
    b.push(Stmt::Signal { to: flags, index: one, value: epoch });
    let signal = b.take_block();
    b.open_block();
    b.conditional(first_block, (wait, &[]), (signal, &[]));
    let inner = b.take_block();
    b.conditional(first_thread, (inner, &[]), (Default::default(), &[]));
    // The flag starts just below zero: as unsigned it is far above the epoch.
    let start: Vec<u8> = [0u32, u32::MAX - 1].iter().flat_map(|x| x.to_le_bytes()).collect();
    let got = run(&b.finish(), &[start, vec![0; 16]]);
    assert_eq!(i64s(&got[1]), [42, 42]);
}

/// Bits seen as other types and back.
#[test]
fn bits() {
    let ty = |dtype, lanes| RegType { dtype, lanes };
    let through = [
        (ty(DType::F32, 1), ty(DType::U32, 1)),
        (ty(DType::F16, 2), ty(DType::U32, 1)),
        (ty(DType::BF16, 4), ty(DType::I64, 1)),
        (ty(DType::I16, 2), ty(DType::F32, 1)),
        (ty(DType::I8, 4), ty(DType::U32, 1)),
        (ty(DType::U8, 2), ty(DType::F16, 1)),
        (ty(DType::F64, 1), ty(DType::I16, 4)),
        (ty(DType::BF16, 8), ty(DType::U32, 4)),
        (ty(DType::F16, 1), ty(DType::BF16, 1)),
    ];
    for (of, to) in through {
        let n = 32 * of.lanes as usize;
        let m = 32 * to.lanes as usize;
        let mut b = Builder::new("bits", threads(32), Bound::Memory);
        let x = b.aligned_param(of.dtype, n, Access::Constant, 64);
        let y = b.aligned_param(to.dtype, m, Access::Write, 64);
        let z = b.aligned_param(of.dtype, n, Access::Write, 64);
        let t = b.id(Id::Thread(0));
        let (a, c) = (b.index(of.lanes.into()), b.index(to.lanes.into()));
        let (at, there) = (b.binary(Binary::Mul, t, a), b.binary(Binary::Mul, t, c));
        let v = b.load(x, at, 0, of.lanes);
        let w = b.inst(to, Inst::Bits(v));
        let back = b.inst(of, Inst::Bits(w));
        b.store(y, there, 0, w);
        b.store(z, at, 0, back);
        let input: Vec<u8> = (0..n * of.dtype.size()).map(|i| (i * 73 % 251) as u8).collect();
        let got = run(&b.finish(), &[input.clone(), vec![0; input.len()], vec![0; input.len()]]);
        assert_eq!((&got[1], &got[2]), (&input, &input), "{of} as {to}");
    }
}

#[test]
fn tf32() {
    let mut b = Builder::new("tf32", threads(32), Bound::Memory);
    let x = b.param(DType::F32, 32, Access::Constant);
    let y = b.param(DType::F32, 32, Access::Write);
    let t = b.id(Id::Thread(0));
    let v = b.load(x, t, 0, 1);
    let r = b.inst(RegType::scalar(DType::F32), Inst::Tf32(v));
    b.store(y, t, 0, r);
    let x: Vec<f32> = (0..32).map(|i| 1.0 + i as f32 / 4096.0 - if i > 20 { 3.0 } else { 0.0 }).collect();
    let got = f32s(&run(&b.finish(), &[from_f32s(&x), vec![0; 128]])[1]);
    for (x, got) in x.iter().zip(got) {
        // 10 bits of mantissa, ties away from zero.
        assert_eq!(got.to_bits(), (x.to_bits() + 0x1000) & !0x1fff, "{x}");
    }
}

/// What is stored where: a fragment of a 16 × 8 result.
fn store_fragment(b: &mut Builder, to: intwain_ir::kernel::Place, d: &[Reg]) {
    let t = b.id(Id::Thread(0));
    let (four, two, eight) = (b.index(4), b.index(2), b.index(8));
    let (row, pair) = (b.binary(Binary::FloorDiv, t, four), b.binary(Binary::Mod, t, four));
    let (begin, column) = (b.binary(Binary::Mul, row, eight), b.binary(Binary::Mul, pair, two));
    let at = b.binary(Binary::Add, begin, column);
    for (i, offset) in [0, 1, 64, 65].into_iter().enumerate() {
        b.store(to, at, offset, d[i]);
    }
}

/// A product of small integers on tensor cores, operands through shared memory, for each 16-bit type and accumulator.
#[test]
fn matrix_products() {
    for (operand, accumulator) in [(DType::BF16, DType::F32), (DType::F16, DType::F32), (DType::F16, DType::F16)] {
        let mut b = Builder::new(format!("product_{operand}_{accumulator}"), threads(32), Bound::Arithmetic);
        let x = b.aligned_param(operand, 256, Access::Constant, 64);
        let y = b.aligned_param(operand, 128, Access::Constant, 64);
        let z = b.aligned_param(accumulator, 128, Access::Write, 64);
        let (left, right) = (b.buffer(operand, 256), b.buffer(operand, 128));
        let t = b.id(Id::Thread(0));
        let (four, eight, sixteen) = (b.index(4), b.index(8), b.index(16));
        let (at8, at4) = (b.binary(Binary::Mul, t, eight), b.binary(Binary::Mul, t, four));
        let (v, w) = (b.load(x, at8, 0, 8), b.load(y, at4, 0, 4));
        b.store(left, at8, 0, v);
        b.store(right, at4, 0, w);
        b.push(Stmt::Barrier);
        let (row, half) = (b.binary(Binary::Mod, t, sixteen), b.binary(Binary::FloorDiv, t, sixteen));
        let (begin, column) = (b.binary(Binary::Mul, row, sixteen), b.binary(Binary::Mul, half, eight));
        let a_at = b.binary(Binary::Add, begin, column);
        let b_at = b.binary(Binary::Mul, row, eight);
        let word = RegType::scalar(DType::U32);
        let a: Vec<Reg> = (0..4).map(|_| b.reg(word)).collect();
        let c: Vec<Reg> = (0..2).map(|_| b.reg(word)).collect();
        let d: Vec<Reg> = (0..4).map(|_| b.reg(RegType::scalar(accumulator))).collect();
        let (rows, columns) = (MatrixForm::Rows, MatrixForm::Columns);
        b.push(Stmt::LoadMatrix { d: a.clone().into(), from: left, index: a_at, offset: 0, form: rows });
        b.push(Stmt::LoadMatrix { d: c.clone().into(), from: right, index: b_at, offset: 0, form: columns });
        let half = b.constant(Scalar::from_f64(accumulator, 0.5));
        let shape = MmaShape { m: 16, n: 8, k: 16, operand, accumulator };
        b.push(Stmt::Mma { shape, d: d.clone().into(), a: a.into(), b: c.into(), c: vec![half; 4].into() });
        store_fragment(&mut b, z, &d);
        let (p, q) = (|i: usize| (i * 7 % 11) as i64 - 5, |i: usize| (i * 5 % 13) as i64 - 6);
        let bytes = |f: &dyn Fn(usize) -> i64, n: usize| -> Vec<u8> {
            (0..n).flat_map(|i| Scalar::from_i64(operand, f(i)).bits().to_le_bytes()[..2].to_vec()).collect()
        };
        let size = accumulator.size();
        let got = run(&b.finish(), &[bytes(&p, 256), bytes(&q, 128), vec![0; 128 * size]]);
        for (i, got) in got[2].chunks(size).enumerate() {
            let sum: i64 = (0..16).map(|k| p(i / 8 * 16 + k) * q(k * 8 + i % 8)).sum();
            assert_eq!(Scalar::read(accumulator, got).to_f64(), sum as f64 + 0.5, "{operand} {accumulator} at {i}");
        }
    }
}

/// Vectors rounded to 16 bits, two elements an instruction.
#[test]
fn rounded_pairs() {
    for (dtype, name) in [(DType::BF16, "cvt.rn.bf16x2.f32"), (DType::F16, "cvt.rn.f16x2.f32")] {
        let mut b = Builder::new("rounded", threads(32), Bound::Memory);
        let x = b.aligned_param(DType::F32, 128, Access::Constant, 64);
        let y = b.aligned_param(dtype, 128, Access::Write, 64);
        let (t, four) = (b.id(Id::Thread(0)), b.index(4));
        let at = b.binary(Binary::Mul, t, four);
        let v = b.load(x, at, 0, 4);
        let r = b.cast(dtype, v);
        let twice = b.binary(Binary::Add, r, r);
        b.store(y, at, 0, twice);
        let k = b.finish();
        let x: Vec<f32> = (0..128).map(|i| (i as f32 - 60.0) * 1.003_7 + 1.0 / (i + 1) as f32).collect();
        let got = run(&k, &[from_f32s(&x), vec![0; 256]]);
        for (x, got) in x.iter().zip(got[1].chunks(2)) {
            let once = scalar::cast(dtype, Scalar::from_f64(DType::F32, f64::from(*x)));
            assert_eq!(Scalar::read(dtype, got), scalar::binary(Binary::Add, once, once), "{x}");
        }
        let text = module(&[&k]).unwrap();
        assert!(text.contains(name) && text.contains("st.global.v2.b32"), "{text}");
    }
}
