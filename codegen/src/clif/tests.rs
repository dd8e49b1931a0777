//! The interpreter and generated code agree bit for bit: on every operation, type and lane count, and on random
//! kernels with loops and conditionals.

use super::{Function, Jit};
use intwain_ir::DType;
use intwain_ir::kernel::{self, Access, Bound, Builder, Entry, Id, Inst, Kernel, Memory, Place, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar, Unary};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};

fn rng(seed: u8) -> TestRng {
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// Elements worth trying: limits, halves, ties, subnormals, and random bits.
fn element(dtype: DType, rng: &mut TestRng) -> Scalar {
    const SPECIAL: [f64; 24] = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        7.0,
        -7.0,
        88.7,
        -103.9,
        1e-40,
        -1e-45,
        3.4e38,
        1e9,
        -1e19,
        2_147_483_648.0,
        -2_147_483_649.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ];
    let r = rng.next_u64();
    match r % 4 {
        0 => Scalar::from_f64(dtype, SPECIAL[(r >> 8) as usize % SPECIAL.len()]),
        1 => Scalar::from_bits(dtype, rng.next_u64()),
        2 => Scalar::from_f64(dtype, (r >> 40) as i32 as f64 / 1048576.0 - 8.0),
        _ => Scalar::from_i64(dtype, (r >> 32) as i64 % 9 - 4),
    }
}

fn memory(dtype: DType, n: usize, rng: &mut TestRng) -> Memory {
    let mut bytes = vec![0; n * dtype.size()];
    for at in bytes.chunks_mut(dtype.size()) {
        element(dtype, rng).write(at);
    }
    bytes
}

/// Runs a kernel both ways on the same memory and demands equal results.
fn check(kernel: &Kernel, memory: &[Memory], tasks: i64) {
    let ids = |id: Id| if id == Id::TaskEnd { tasks } else { 0 };
    kernel::verify(kernel).unwrap_or_else(|d| panic!("{d:?}\n{kernel}"));
    let mut want = memory.to_vec();
    kernel::run(kernel, &mut want, &ids).unwrap_or_else(|f| panic!("{f}\n{kernel}"));
    let code = Jit::new().expect("the machine is supported").compile(&[kernel], 1).unwrap_or_else(|e| panic!("{e}"));
    let mut got = memory.to_vec();
    let params: Vec<*mut u8> = got.iter_mut().map(|m| m.as_mut_ptr()).collect();
    let mut scratch = vec![0u8; kernel.buffer_offsets().1 + kernel::BUFFER_ALIGN];
    let pad = scratch.as_ptr().align_offset(kernel::BUFFER_ALIGN);
    // SAFETY: the interpreter has run the same accesses within bounds; memory is not shared.
    unsafe { code.run(0, &params, 0, tasks, scratch[pad..].as_mut_ptr()) };
    for (i, p) in kernel.params.iter().enumerate() {
        let n = p.dtype.size();
        for (at, (w, g)) in want[i].chunks(n).zip(got[i].chunks(n)).enumerate() {
            let (w, g) = (Scalar::read(p.dtype, w), Scalar::read(p.dtype, g));
            let same = w == g || (w.to_f64().is_nan() && g.to_f64().is_nan());
            assert!(same, "p{i}[{at}]: interpreter {w} ({:#x}), machine {g} ({:#x})\n{kernel}", w.bits(), g.bits());
        }
    }
}

/// out[i] = f(in₀[i], in₁[i], …), `lanes` at a time.
fn map(inputs: &[DType], output: DType, lanes: u8, f: impl Fn(&mut Builder, &[Reg]) -> Reg) -> (Kernel, usize) {
    const N: usize = 256;
    let mut b = Builder::new("map", Entry::Tasks, Bound::Memory);
    let places: Vec<Place> = inputs.iter().map(|&d| b.param(d, N, Access::Constant)).collect();
    let out = b.param(output, N, Access::Write);
    let (begin, end) = (b.id(Id::TaskBegin), b.id(Id::TaskEnd));
    let l = b.open_loop(begin, end, i64::from(lanes), &[]);
    let at = l.var();
    let xs: Vec<Reg> = places.iter().map(|&p| b.load(p, at, 0, lanes)).collect();
    let y = f(&mut b, &xs);
    b.store(out, at, 0, y);
    b.close_loop(l, &[]);
    (b.finish(), N)
}

fn try_map(inputs: &[DType], output: DType, lanes: u8, rng: &mut TestRng, f: impl Fn(&mut Builder, &[Reg]) -> Reg) {
    let (kernel, n) = map(inputs, output, lanes, f);
    let memory: Vec<Memory> = inputs.iter().chain([&output]).map(|&d| memory(d, n, rng)).collect();
    check(&kernel, &memory, n as i64);
}

fn vectors(dtype: DType) -> &'static [u8] {
    if matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::I32 | DType::U32 | DType::Bool) {
        &[1, 4]
    } else {
        &[1]
    }
}

#[test]
fn every_unary_operation() {
    let mut rng = rng(1);
    for &op in Unary::ALL {
        for d in DType::ALL.into_iter().filter(|&d| op.accepts(d)) {
            for &lanes in vectors(d) {
                try_map(&[d], op.result(d), lanes, &mut rng, |b, x| b.unary(op, x[0]));
            }
        }
    }
}

#[test]
fn every_binary_operation() {
    let mut rng = rng(2);
    for &op in Binary::ALL {
        for d in DType::ALL.into_iter().filter(|&d| op.accepts(d)) {
            for &lanes in vectors(d) {
                try_map(&[d, d], d, lanes, &mut rng, |b, x| b.binary(op, x[0], x[1]));
            }
            for c in [0.0, -0.0, 1.0, 3.0, 8.0, -2.0] {
                let c = Scalar::from_f64(d, c);
                try_map(&[d], d, 1, &mut rng, |b, x| {
                    let c = b.constant(c);
                    b.binary(op, x[0], c)
                });
            }
        }
    }
}

#[test]
fn extrema_with_constants_in_vectors() {
    let mut rng = rng(3);
    for op in [Binary::Max, Binary::Min] {
        for c in [0.0, -0.0, 6.0, -1.0, f64::NAN, f64::INFINITY] {
            for first in [false, true] {
                try_map(&[DType::F32], DType::F32, 4, &mut rng, |b, x| {
                    let ty = RegType { dtype: DType::F32, lanes: 4 };
                    let c = b.inst(ty, Inst::Const(Scalar::from_f64(DType::F32, c)));
                    if first { b.binary(op, c, x[0]) } else { b.binary(op, x[0], c) }
                });
            }
        }
    }
}

#[test]
fn every_comparison_and_selection() {
    let mut rng = rng(4);
    for &op in Compare::ALL {
        for d in DType::ALL {
            for &lanes in vectors(d) {
                try_map(&[d, d], DType::Bool, lanes, &mut rng, |b, x| b.compare(op, x[0], x[1]));
                try_map(&[d, d], d, lanes, &mut rng, |b, x| {
                    let c = b.compare(op, x[0], x[1]);
                    b.select(c, x[0], x[1])
                });
            }
        }
    }
}

#[test]
fn every_cast() {
    let mut rng = rng(5);
    for from in DType::ALL {
        for to in DType::ALL {
            for &lanes in vectors(from) {
                if vectors(to).contains(&lanes) {
                    try_map(&[from], to, lanes, &mut rng, |b, x| b.cast(to, x[0]));
                }
            }
        }
    }
}

#[test]
fn fused_products() {
    let mut rng = rng(6);
    for d in DType::ALL {
        for &lanes in vectors(d) {
            try_map(&[d, d, d], d, lanes, &mut rng, |b, x| b.fma(x[0], x[1], x[2]));
        }
    }
}

/// Random straight-line code, loops and conditionals over f32, i32 and bool.
struct Random<'r> {
    b: Builder,
    rng: &'r mut TestRng,
    input: Place,
    output: Place,
    scratch: Place,
    index: Reg,
}

impl Random<'_> {
    fn pick<T: Copy>(&mut self, xs: &[T]) -> T {
        xs[self.rng.next_u64() as usize % xs.len()]
    }

    fn pick_of(&mut self, live: &[Reg], ty: RegType) -> Option<Reg> {
        let fitting: Vec<Reg> = live.iter().copied().filter(|&r| self.b.ty(r) == ty).collect();
        if fitting.is_empty() { None } else { Some(self.pick(&fitting)) }
    }

    fn float(&mut self, live: &[Reg], lanes: u8) -> Reg {
        let ty = RegType { dtype: DType::F32, lanes };
        match self.pick_of(live, ty) {
            Some(r) if !self.rng.next_u64().is_multiple_of(8) => r,
            _ => {
                let c = element(DType::F32, self.rng);
                self.b.inst(ty, Inst::Const(c))
            }
        }
    }

    fn statements(&mut self, live: &mut Vec<Reg>, depth: usize) {
        const UNARY: [Unary; 9] = [
            Unary::Neg,
            Unary::Abs,
            Unary::Exp,
            Unary::Tanh,
            Unary::Round,
            Unary::Sqrt,
            Unary::Sign,
            Unary::Erf,
            Unary::Sin,
        ];
        const BINARY: [Binary; 6] = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min];
        for _ in 0..3 + self.rng.next_u64() % 6 {
            let lanes = self.pick(&[1u8, 4]);
            let made = match self.rng.next_u64() % 10 {
                0 | 1 => {
                    let (op, x) = (self.pick(&UNARY), self.float(live, lanes));
                    self.b.unary(op, x)
                }
                2 | 3 => {
                    let (op, x, y) = (self.pick(&BINARY), self.float(live, lanes), self.float(live, lanes));
                    self.b.binary(op, x, y)
                }
                4 => {
                    let (x, y, z) = (self.float(live, lanes), self.float(live, lanes), self.float(live, lanes));
                    self.b.fma(x, y, z)
                }
                5 => {
                    let (x, y) = (self.float(live, lanes), self.float(live, lanes));
                    let op = self.pick(Compare::ALL);
                    let c = self.b.compare(op, x, y);
                    let (u, v) = (self.float(live, lanes), self.float(live, lanes));
                    self.b.select(c, u, v)
                }
                6 => {
                    let offset = self.rng.next_u64() as i64 % 4;
                    let offset = offset.abs();
                    self.b.load(self.input, self.index, offset, lanes)
                }
                7 => {
                    let x = self.float(live, 1);
                    self.b.inst(RegType { dtype: DType::F32, lanes: 4 }, Inst::Splat(x))
                }
                8 if depth < 2 => self.nested_loop(live, depth),
                9 if depth < 2 => self.nested_if(live, depth),
                _ => {
                    let x = self.float(live, 4);
                    let lane = self.pick(&[0u8, 1, 2, 3]);
                    self.b.inst(RegType::scalar(DType::F32), Inst::Extract(x, lane))
                }
            };
            live.push(made);
        }
    }

    fn nested_loop(&mut self, live: &[Reg], depth: usize) -> Reg {
        let trips = self.rng.next_u64() as i64 & 3;
        let (begin, end) = (self.b.index(0), self.b.index(trips));
        let lanes = self.pick(&[1u8, 4]);
        let init = self.float(live, lanes);
        let l = self.b.open_loop(begin, end, 1, &[init]);
        let mut inner = live.to_vec();
        inner.extend(l.args());
        self.statements(&mut inner, depth + 1);
        let next = self.float(&inner[live.len()..], lanes);
        let at = self.b.index(0);
        let stored = self.float(&inner, 1);
        self.b.store(self.scratch, at, 0, stored);
        self.b.close_loop(l, &[next])[0]
    }

    fn nested_if(&mut self, live: &[Reg], depth: usize) -> Reg {
        let (x, y) = (self.float(live, 1), self.float(live, 1));
        let cond = self.b.compare(Compare::Lt, x, y);
        let lanes = self.pick(&[1u8, 4]);
        let mut side = || {
            self.b.open_block();
            let mut inner = live.to_vec();
            self.statements(&mut inner, depth + 1);
            let v = self.float(&inner, lanes);
            (self.b.take_block(), v)
        };
        let (then, otherwise) = (side(), side());
        self.b.conditional(cond, (then.0, &[then.1]), (otherwise.0, &[otherwise.1]))[0]
    }
}

#[test]
fn random_kernels() {
    let mut rng = rng(7);
    for bound in [Bound::Memory, Bound::Arithmetic] {
        for _ in 0..60 {
            let mut b = Builder::new("random", Entry::Tasks, bound);
            let input = b.param(DType::F32, 64, Access::Constant);
            let output = b.param(DType::F32, 64, Access::Update);
            let scratch = b.buffer(DType::F32, 8);
            let (begin, end) = (b.id(Id::TaskBegin), b.id(Id::TaskEnd));
            let l = b.open_loop(begin, end, 1, &[]);
            let zero = b.index(0);
            let first = b.load(input, l.var(), 0, 1);
            b.store(scratch, zero, 0, first);
            let index = l.var();
            let mut r = Random { b, rng: &mut rng, input, output, scratch, index };
            let mut live = vec![first];
            r.statements(&mut live, 0);
            let kept = r.b.load(scratch, zero, 0, 1);
            let y = r.float(&live, 1);
            let y = r.b.binary(Binary::Add, y, kept);
            r.b.store(r.output, index, 0, y);
            r.b.close_loop(l, &[]);
            let kernel = r.b.finish();
            let memory = vec![memory(DType::F32, 64, &mut rng), memory(DType::F32, 64, &mut rng)];
            check(&kernel, &memory, 32);
        }
    }
}

#[test]
fn compiles_on_threads() {
    let kernels: Vec<Kernel> =
        (0..13).map(|i| map(&[DType::F32], DType::F32, 4, |b, x| b.unary(Unary::ALL[i], x[0])).0).collect();
    let refs: Vec<&Kernel> = kernels.iter().take(9).collect();
    let code = Jit::new().expect("the machine is supported").compile(&refs, 4).expect("the kernels are right");
    for i in 0..refs.len() {
        assert!(matches!(code.function(i), Function::Tasks(_)));
    }
    assert!(code.bytes() > 0);
}
