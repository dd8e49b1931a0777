//! Every operation on every type, against the scalar table.

use super::{run_all, threads};
use crate::ptx::{EmitError, module};
use intwain_ir::DType;
use intwain_ir::kernel::{Access, Bound, Builder, Id, Inst, Kernel, RegType};
use intwain_ir::scalar::{self, Binary, Compare, Scalar, Unary};

const TYPES: [DType; 11] = [
    DType::Bool,
    DType::I8,
    DType::U8,
    DType::I16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
];

/// Threads of a test kernel: pairs of elements.
const N: usize = 512;

/// A generator of bits (xorshift).
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The elements that break implementations.
fn special(dtype: DType) -> Vec<Scalar> {
    let ints = [0, 1, -1, 2, -2, 3, -3, 7, -7, 8, 31, 32, 33, 63, 64, 100, 127, -128, 255, i64::MAX, i64::MIN];
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        1e-8,
        1e-40,
        -1e-40,
        1e30,
        -1e30,
        88.0,
        -88.0,
        127.5,
        255.6,
        65504.0,
        2147483648.0,
        -2147483649.0,
        4294967296.0,
        9.3e18,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        3.7,
    ];
    let mut all: Vec<Scalar> = if dtype.is_float() {
        floats.iter().map(|x| Scalar::from_f64(dtype, *x)).collect()
    } else {
        ints.iter().map(|x| Scalar::from_i64(dtype, *x)).collect()
    };
    all.extend([Scalar::lowest(dtype), Scalar::highest(dtype)]);
    all
}

/// Elements: specials against specials as far as they go, then random bits, then small numbers.
fn elements(dtype: DType, bits: &mut Bits) -> [Vec<Scalar>; 3] {
    let special = special(dtype);
    let mut draw = |i: usize| match i % 3 {
        0 => special[(bits.next() % special.len() as u64) as usize],
        1 => Scalar::from_bits(dtype, bits.next()),
        _ => Scalar::from_f64(dtype, (bits.next() % 4001) as f64 / 100.0 - 20.0),
    };
    let mut lists = [(); 3].map(|()| Vec::new());
    for i in 0..N {
        lists[0].push(draw(i));
        lists[1].push(draw(i / 3));
        lists[2].push(draw(i / 9));
    }
    let n = special.len();
    for i in 0..(n * n).min(N) {
        (lists[0][i], lists[1][i]) = (special[i / n % n], special[i % n]);
    }
    lists
}

fn bytes(elements: &[Scalar]) -> Vec<u8> {
    let mut out = vec![0; elements.len() * elements[0].dtype().size()];
    let size = elements[0].dtype().size();
    elements.iter().zip(out.chunks_mut(size)).for_each(|(x, b)| x.write(b));
    out
}

/// out[i] = inst(inputs[i]).
fn kernel(name: String, inputs: &[DType], out: DType, inst: impl Fn(&[intwain_ir::kernel::Reg]) -> Inst) -> Kernel {
    let mut b = Builder::new(name, threads(N as u32), Bound::Memory);
    let places: Vec<_> = inputs.iter().map(|d| b.param(*d, N, Access::Constant)).collect();
    let to = b.param(out, N, Access::Write);
    let at = b.id(Id::Thread(0));
    let xs: Vec<_> = places.iter().map(|p| b.load(*p, at, 0, 1)).collect();
    let y = b.inst(RegType::scalar(out), inst(&xs));
    b.store(to, at, 0, y);
    b.finish()
}

struct Case {
    kernel: Kernel,
    memory: Vec<Vec<u8>>,
    expected: Vec<Scalar>,
}

fn case(kernel: Kernel, inputs: &[&[Scalar]], expected: Vec<Scalar>) -> Case {
    let mut memory: Vec<Vec<u8>> = inputs.iter().map(|x| bytes(x)).collect();
    memory.push(vec![0; N * expected[0].dtype().size()]);
    Case { kernel, memory, expected }
}

/// Operations on indices that provably fit in 32 bits, and on some that don't.
#[test]
fn indices() {
    let mut bits = Bits(5);
    let mut cases = Vec::new();
    let wide = |x: &Scalar| scalar::cast(DType::I64, *x);
    for (narrow, also) in [
        (DType::I16, DType::I16),
        (DType::U8, DType::I16),
        (DType::I32, DType::U8),
        (DType::I32, DType::I32),
        (DType::U32, DType::I16),
        (DType::Bool, DType::I8),
    ] {
        let [x, y, z] = elements(narrow, &mut bits);
        let y: Vec<Scalar> = y.iter().map(|y| scalar::cast(also, *y)).collect();
        for &op in Binary::ALL.iter().filter(|op| op.accepts(DType::I64)) {
            let name = format!("{}_index_{narrow}_{also}", op.name());
            let mut b = Builder::new(name, threads(N as u32), Bound::Memory);
            let (p, q) = (b.param(narrow, N, Access::Constant), b.param(also, N, Access::Constant));
            let to = b.param(DType::I64, N, Access::Write);
            let at = b.id(Id::Thread(0));
            let (v, w) = (b.load(p, at, 0, 1), b.load(q, at, 0, 1));
            let (v, w) = (b.cast(DType::I64, v), b.cast(DType::I64, w));
            let r = b.binary(op, v, w);
            b.store(to, at, 0, r);
            let expected = x.iter().zip(&y).map(|(x, y)| scalar::binary(op, wide(x), wide(y))).collect();
            cases.push(case(b.finish(), &[&x, &y], expected));
        }
        for &op in Unary::ALL.iter().filter(|op| op.accepts(DType::I64) && op.result(DType::I64) == DType::I64) {
            let mut b = Builder::new(format!("{}_index_{narrow}_{also}", op.name()), threads(N as u32), Bound::Memory);
            let p = b.param(narrow, N, Access::Constant);
            let to = b.param(DType::I64, N, Access::Write);
            let at = b.id(Id::Thread(0));
            let v = b.load(p, at, 0, 1);
            let v = b.cast(DType::I64, v);
            let r = b.unary(op, v);
            b.store(to, at, 0, r);
            cases.push(case(b.finish(), &[&x], x.iter().map(|x| scalar::unary(op, wide(x))).collect()));
        }
        let mut b = Builder::new(format!("mixed_{narrow}_{also}"), threads(N as u32), Bound::Memory);
        let (p, q, s) = (
            b.param(narrow, N, Access::Constant),
            b.param(also, N, Access::Constant),
            b.param(narrow, N, Access::Constant),
        );
        let to = b.param(DType::I64, N, Access::Write);
        let at = b.id(Id::Thread(0));
        let loads = [b.load(p, at, 0, 1), b.load(q, at, 0, 1), b.load(s, at, 0, 1)];
        let [x64, y64, z64] = loads.map(|v| b.cast(DType::I64, v));
        let f = b.fma(x64, y64, z64);
        let less = b.compare(Compare::Lt, x64, f);
        let both = b.select(less, f, y64);
        let single = b.cast(DType::I32, both);
        let back = b.cast(DType::I64, single);
        let sum = b.binary(Binary::Add, both, back);
        b.store(to, at, 0, sum);
        let expected = (0..N)
            .map(|i| {
                let [x, y, z] = [wide(&x[i]), wide(&y[i]), wide(&z[i])].map(Scalar::to_i64);
                let f = x.wrapping_mul(y).wrapping_add(z);
                let both = if x < f { f } else { y };
                Scalar::from_i64(DType::I64, both.wrapping_add(i64::from(both as i32)))
            })
            .collect();
        cases.push(case(b.finish(), &[&x, &y, &z], expected));
    }
    check(cases, |_| false);
}

/// Division by constants around multiples, where a wrong multiplier shows.
#[test]
fn division_by_constants() {
    let divisors: Vec<i64> = (1..=40)
        .chain([49, 56, 64, 100, 112, 127, 128, 196, 225, 641, 1000, 3136, 12544, 50176, 65535, 65537, 150528])
        .chain([6_700_417, 1 << 30, (1 << 30) - 1, (1 << 30) + 1, i64::from(i32::MAX), i64::from(i32::MAX) - 1])
        .collect();
    let mut cases = Vec::new();
    for (dtype, natural) in [(DType::I32, false), (DType::I32, true), (DType::I64, false), (DType::I64, true)] {
        let most = if dtype == DType::I32 { i64::from(i32::MAX) } else { i64::MAX };
        for &d in &divisors {
            let quotients = [0, 1, 2, 3, 5, 1 << 10, most / d / 2, most / d - 1, most / d];
            let mut xs: Vec<i64> = quotients
                .iter()
                .flat_map(|q| [-2, -1, 0, 1, 2].map(|r| q.saturating_mul(d).saturating_add(r).min(most)))
                .flat_map(|x| if natural { [x.max(0), x.max(0) / 2] } else { [x, -x] })
                .collect();
            xs.extend([most, most - 1, if natural { 0 } else { -most - 1 }]);
            xs.resize(N, most);
            let x: Vec<Scalar> = xs.iter().map(|x| Scalar::from_i64(dtype, *x)).collect();
            let kind = if natural { "natural" } else { "signed" };
            let mut b = Builder::new(format!("divide_{dtype}_{kind}_{d}"), threads(N as u32), Bound::Memory);
            let from = b.param(dtype, N, Access::Constant);
            let to = b.param(DType::I64, 2 * N, Access::Write);
            let at = b.id(Id::Thread(0));
            let v = b.load(from, at, 0, 1);
            let mut v = b.cast(DType::I64, v);
            if natural {
                let zero = b.index(0);
                v = b.binary(Binary::Max, v, zero);
            }
            let k = b.index(d);
            let (q, r) = (b.binary(Binary::FloorDiv, v, k), b.binary(Binary::Mod, v, k));
            b.store(to, at, 0, q);
            b.store(to, at, N as i64, r);
            let int = |x| Scalar::from_i64(DType::I64, x);
            let quotients = xs.iter().map(|x| int(x.div_euclid(d)));
            let expected = quotients.chain(xs.iter().map(|x| int(x.rem_euclid(d)))).collect();
            let mut c = case(b.finish(), &[&x], expected);
            c.memory[1] = vec![0; 16 * N];
            cases.push(c);
        }
    }
    check(cases, |_| false);
}

/// Whether bits are equal, or both are NaN where the operation may give any, or so many neighbours lie between them.
fn same(a: Scalar, b: Scalar, any_nan: bool, ulps: u64) -> bool {
    if a == b || any_nan && a.dtype().is_float() && a.to_f64().is_nan() && b.to_f64().is_nan() {
        return true;
    }
    let flushed = b.to_f64() == 0.0 && (0.0..f64::from(f32::MIN_POSITIVE)).contains(&a.to_f64());
    let near = a.bits().abs_diff(b.bits()) <= ulps && a.to_f64().is_finite() && b.to_f64().is_finite();
    ulps > 0 && (near || flushed)
}

/// How far the result of a kernel of this name may be from the table's: the sum of both errors.
fn ulps(name: &str) -> u64 {
    match name.split('_').collect::<Vec<_>>()[..] {
        ["exp" | "rsqrt", "f32"] => 2,
        ["exp" | "sqrt" | "rsqrt", "f32" | "f16" | "bf16"] => 1,
        _ => 0,
    }
}

fn check(cases: Vec<Case>, any_nan: impl Fn(&str) -> bool) {
    let list: Vec<(&Kernel, &[Vec<u8>])> = cases.iter().map(|c| (&c.kernel, c.memory.as_slice())).collect();
    for (case, memory) in cases.iter().zip(run_all(&list)) {
        let name = &case.kernel.name;
        let dtype = case.expected[0].dtype();
        let out = memory.last().expect("the result is the last parameter");
        for (i, (want, got)) in case.expected.iter().zip(out.chunks(dtype.size())).enumerate() {
            let got = Scalar::read(dtype, got);
            let args: Vec<String> = (0..case.kernel.params.len() - 1)
                .map(|p| {
                    let d = case.kernel.params[p].dtype;
                    Scalar::read(d, &case.memory[p][i % N * d.size()..]).to_string()
                })
                .collect();
            assert!(same(*want, got, any_nan(name), ulps(name)), "{name}({}) is {got}, not {want}", args.join(", "));
        }
    }
}

/// Whether a kernel has PTX. Only functions of f64 may have none.
fn available(kernel: &Kernel) -> bool {
    match module(&[kernel]) {
        Ok(_) => true,
        Err(EmitError::Unsupported { kernel: name, .. }) => {
            assert!(name == kernel.name && name.contains("f64"), "{name}");
            false
        }
    }
}

#[test]
fn unary() {
    let mut bits = Bits(1);
    let mut cases = Vec::new();
    for dtype in TYPES {
        for &op in Unary::ALL.iter().filter(|op| op.accepts(dtype)) {
            let [x, ..] = elements(dtype, &mut bits);
            let name = format!("{}_{dtype}", op.name());
            let k = kernel(name, &[dtype], op.result(dtype), |r| Inst::Unary(op, r[0]));
            if available(&k) {
                let expected = x.iter().map(|x| scalar::unary(op, *x)).collect();
                cases.push(case(k, &[&x], expected));
            }
        }
    }
    assert!(cases.len() > 155, "only {} kernels", cases.len());
    check(cases, |name| !name.starts_with("neg") && !name.starts_with("abs"));
}

#[test]
fn binary() {
    let mut bits = Bits(2);
    let mut cases = Vec::new();
    for dtype in TYPES {
        for &op in Binary::ALL.iter().filter(|op| op.accepts(dtype)) {
            let [x, y, _] = elements(dtype, &mut bits);
            let name = format!("{}_{dtype}", op.name());
            let k = kernel(name, &[dtype, dtype], dtype, |r| Inst::Binary(op, r[0], r[1]));
            if available(&k) {
                let expected = x.iter().zip(&y).map(|(x, y)| scalar::binary(op, *x, *y)).collect();
                cases.push(case(k, &[&x, &y], expected));
            }
        }
    }
    assert!(cases.len() > 110, "only {} kernels", cases.len());
    check(cases, |_| true);
}

#[test]
fn binary_with_constants() {
    let mut bits = Bits(3);
    let mut cases = Vec::new();
    for dtype in TYPES {
        for &op in Binary::ALL.iter().filter(|op| op.accepts(dtype)) {
            for (j, c) in special(dtype).into_iter().enumerate() {
                let [x, ..] = elements(dtype, &mut bits);
                for side in ["left", "right"] {
                    let mut b =
                        Builder::new(format!("{}_{dtype}_{side}_{j}", op.name()), threads(N as u32), Bound::Memory);
                    let from = b.param(dtype, N, Access::Constant);
                    let to = b.param(dtype, N, Access::Write);
                    let at = b.id(Id::Thread(0));
                    let v = b.load(from, at, 0, 1);
                    let k = b.constant(c);
                    let (l, r) = if side == "left" { (k, v) } else { (v, k) };
                    let z = b.binary(op, l, r);
                    b.store(to, at, 0, z);
                    let kernel = b.finish();
                    if available(&kernel) {
                        let f = |x: &Scalar| {
                            if side == "left" { scalar::binary(op, c, *x) } else { scalar::binary(op, *x, c) }
                        };
                        let expected = x.iter().map(f).collect();
                        cases.push(case(kernel, &[&x], expected));
                    }
                }
            }
        }
    }
    check(cases, |_| true);
}

#[test]
fn the_rest() {
    let mut bits = Bits(4);
    let mut cases = Vec::new();
    for dtype in TYPES {
        let [x, y, z] = elements(dtype, &mut bits);
        let zip = |f: &dyn Fn(Scalar, Scalar, Scalar) -> Scalar| -> Vec<Scalar> {
            (0..N).map(|i| f(x[i], y[i], z[i])).collect()
        };
        let fma = kernel(format!("fma_{dtype}"), &[dtype; 3], dtype, |r| Inst::Fma(r[0], r[1], r[2]));
        cases.push(case(fma, &[&x, &y, &z], zip(&scalar::fma)));
        for &op in Compare::ALL {
            let name = format!("{}_{dtype}", op.name());
            let k = kernel(name, &[dtype; 2], DType::Bool, |r| Inst::Compare(op, r[0], r[1]));
            let holds = |x, y, _| Scalar::from_bits(DType::Bool, u64::from(scalar::compare(op, x, y)));
            cases.push(case(k, &[&x, &y], zip(&holds)));
        }
        let [c, ..] = elements(DType::Bool, &mut bits);
        let select =
            kernel(format!("select_{dtype}"), &[DType::Bool, dtype, dtype], dtype, |r| Inst::Select(r[0], r[1], r[2]));
        let expected = (0..N).map(|i| if c[i].bits() != 0 { x[i] } else { y[i] }).collect();
        cases.push(case(select, &[&c, &x, &y], expected));
        for to in TYPES {
            let k = kernel(format!("cast_{dtype}_to_{to}"), &[dtype], to, |r| Inst::Cast(r[0]));
            cases.push(case(k, &[&x], x.iter().map(|x| scalar::cast(to, *x)).collect()));
        }
    }
    check(cases, |name| !name.starts_with("select"));
}
