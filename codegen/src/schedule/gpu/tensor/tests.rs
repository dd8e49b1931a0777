//! Contractions on tensor cores, on the emulator: bit for bit on integers, within a stated bound elsewhere.

use super::layout::{Fragment, Plane, Reading, Role, Swizzle, Unit, accumulator};
use super::*;
use crate::schedule::gpu::{Argument, Gpu, harness};
use intwain_ir::compute::Compute;
use intwain_ir::kernel::{Access, Bound as Limit, Builder, Entry, Id, RegType, Stmt};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{Scalar, Tensor, Type, interp};
use smallvec::SmallVec;

pub(super) fn types(list: &[Type]) -> Vec<&Type> {
    list.iter().collect()
}

pub(super) fn compute_of(op: impl Into<Op>, args: &[Type]) -> (Compute, Vec<Type>) {
    let op = op.into();
    let results: Vec<Type> = op.infer(&types(args)).unwrap().into_iter().collect();
    let Body::Compute(c) = op.body(&types(args), &types(&results)) else { panic!("{op:?} is no compute") };
    (c, results)
}

fn numbers(ty: &Type, seed: u64, f: impl Fn(u64) -> f64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut t = Tensor::zeros(ty.clone());
    for i in 0..t.elements() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        t.set(i, Scalar::from_f64(ty.dtype, f(state >> 33)));
    }
    t
}

/// Integers from −4 to 4: exact in every type, and so are their sums in any order.
pub(super) fn integers(ty: &Type, seed: u64) -> Tensor {
    numbers(ty, seed, |r| (r % 9) as f64 - 4.0)
}

const fn tile(rows: usize, columns: usize, inner: usize, warps: [usize; 2], stages: usize) -> Tile {
    Tile { rows, columns, inner, warps, stages }
}

pub(super) const SMALL: Tile = tile(64, 64, 32, [2, 2], 3);

pub(super) fn matmul(contract: (usize, usize)) -> ops::Contract {
    ops::Contract { batch: vec![], contract: vec![contract] }
}

/// Schedules and runs a compute on integers and demands the interpreter's bits; gives counts.
fn exact(
    precision: Precision,
    c: &Compute,
    args: &[Type],
    results: &[Type],
    tile: Option<&Tile>,
) -> intwain_emulator::Stats {
    let gpu = Gpu { precision };
    let k = match tile {
        Some(t) => gpu.schedule_tile("product", c, &types(args), &types(results), t),
        None => Some(gpu.schedule("product", c, &types(args), &types(results))),
    };
    let k = k.unwrap_or_else(|| panic!("{args:?} with {tile:?} is not for tensor cores"));
    assert_eq!(k.schedule, NAME, "{args:?}");
    let operands: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| integers(t, i as u64 + 1)).collect();
    let operands: Vec<&Tensor> = operands.iter().collect();
    let want = interp::evaluate(c, &operands, &types(results));
    let got = harness::run(&k, &operands, &types(results));
    for (w, g) in want.iter().zip(&got.results) {
        for i in 0..w.elements() {
            assert_eq!(w.get(i), g.get(i), "{args:?}, {tile:?}: element {i} of {}\n{c}", w.ty);
        }
    }
    got.stats[0]
}

fn exact_op(precision: Precision, op: impl Into<Op>, args: &[Type], tile: Option<&Tile>) -> intwain_emulator::Stats {
    let (c, results) = compute_of(op, args);
    exact(precision, &c, args, &results, tile)
}

/// Fragment maps as data, against `mma`: operands go to registers as the maps say, the result comes from them.
#[test]
fn fragments_are_where_the_maps_say() {
    for unit in [Unit::Half(DType::BF16), Unit::Half(DType::F16), Unit::Tf32] {
        let (k, stored) = (unit.inner(), if unit == Unit::Tf32 { DType::F32 } else { unit.shape().operand });
        let factor = |rows: usize, seed| integers(&Type::new(stored, [rows, k]), seed);
        // The right factor with its columns as rows: both fragments have (outer, inner).
        let (left, right) = (factor(16, 1), factor(16, 2));
        let mut words = vec![0u8; 32 * 8 * 4];
        for (f, (role, t)) in [(Role::Left, &left), (Role::Right, &right)].into_iter().enumerate() {
            for (lane, r) in (0..32).flat_map(|lane| (0..4).map(move |r| (lane, r))) {
                let (outer, inner) = Fragment { unit, role }.place(lane, r);
                let from = (outer * k + inner) * stored.size();
                let to = (lane * 8 + 4 * f + r) * 4;
                words[to..to + 4].copy_from_slice(&t.data[from..from + 4]);
            }
        }
        let words = Tensor::from_bytes(Type::new(DType::U32, [32, 8]), words).unwrap();
        let entry = Entry::Grid { blocks: [1, 1, 1], threads: [32, 1, 1] };
        let mut b = Builder::new("fragments", entry, Limit::Memory);
        let (from, to) = (b.param(DType::U32, 256, Access::Constant), b.param(DType::F32, 256, Access::Write));
        let (thread, eight) = (b.id(Id::Thread(0)), b.index(8));
        let at = b.binary(Binary::Mul, thread, eight);
        let regs: Vec<_> = (0..8).map(|r| b.load(from, at, r, 1)).collect();
        let zero = b.constant(Scalar::zero(DType::F32));
        for n in 0..2 {
            let d: SmallVec<[_; 4]> = (0..4).map(|_| b.reg(RegType::scalar(DType::F32))).collect();
            let right = SmallVec::from_slice(&regs[4 + 2 * n..][..2]);
            let (a, c) = (SmallVec::from_slice(&regs[..4]), SmallVec::from_elem(zero, 4));
            b.push(Stmt::Mma { shape: unit.shape(), d: d.clone(), a, b: right, c });
            d.iter().enumerate().for_each(|(r, x)| b.store(to, at, (4 * n + r) as i64, *x));
        }
        let args = vec![Argument::Operand(0), Argument::Result(0)];
        let k = GpuKernel { launches: vec![Launch { kernel: b.finish(), args }], workspace: 0, schedule: NAME };
        let got = harness::run(&k, &[&words], &[&Type::new(DType::F32, [256])]);
        for (lane, n, r) in (0..32).flat_map(|l| (0..8).map(move |i| (l, i / 4, i % 4))) {
            let (row, column) = accumulator(lane, r);
            let inner = unit.inner();
            let term = |e: usize| left.get(row * inner + e).to_f64() * right.get((8 * n + column) * inner + e).to_f64();
            let want: f64 = (0..inner).map(term).sum();
            assert_eq!(got.results[0].get(lane * 8 + 4 * n + r).to_f64(), want, "{unit:?} lane {lane} register {r}");
        }
    }
}

/// Every swizzle permutes a plane, and all lanes that shared memory serves together meet different banks.
#[test]
fn swizzles_permute_without_conflicts() {
    let distinct = |banks: Vec<usize>, what: &str| {
        let all: std::collections::BTreeSet<usize> = banks.iter().map(|b| b % 32).collect();
        assert_eq!(all.len(), banks.len(), "{what}: {banks:?}");
    };
    for reading in [Reading::Matrix, Reading::Words, Reading::Pairs, Reading::Columns] {
        for pitch in [64, 128, 256, 512, 1024] {
            let p = Plane { rows: 32, pitch: pitch / 4, swizzle: Swizzle::of(reading, pitch) };
            let all: std::collections::BTreeSet<usize> =
                (0..p.rows).flat_map(|r| (0..p.pitch).map(move |w| p.index(r, w))).collect();
            assert_eq!((all.len(), all.last().copied()), (p.words(), Some(p.words() - 1)), "{p:?}");
            let what = format!("{reading:?} of rows of {pitch} bytes");
            for w in (0..p.pitch).step_by(4) {
                match reading {
                    Reading::Matrix => {
                        let rows = (0..8).flat_map(|r| (0..4).map(move |i| p.index(r, w + i)));
                        distinct(rows.collect(), &what);
                    }
                    Reading::Words if w % 8 == 0 => {
                        distinct((0..32).map(|l| p.index(l % 4, w + l / 4)).collect(), &what);
                    }
                    Reading::Pairs if w % 8 == 0 => {
                        let half = (0..16).flat_map(|l| (0..2).map(move |i| p.index(l / 4, w + 2 * (l % 4) + i)));
                        distinct(half.collect(), &what);
                    }
                    Reading::Columns if w % 8 == 0 && pitch >= 128 => {
                        distinct((0..32).map(|l| p.index(2 * (l % 4), w + l / 4)).collect(), &what);
                    }
                    Reading::Words | Reading::Pairs | Reading::Columns => {}
                }
            }
        }
    }
}

/// Staging is a permutation of a warp's words.
#[test]
fn staging_permutes() {
    for (columns, pair, width) in (1..5).flat_map(|c| [(16 * c, 1, 8), (16 * c, 2, 4), (16 * c, 2, 8)]) {
        if columns == 48 {
            continue;
        }
        let s = staging::Staging { warp: [32, columns], pair, width };
        let vectors =
            (0..32).flat_map(|row| (0..s.sets()).flat_map(move |set| (0..4).map(move |q| s.index(row, set, q))));
        let all: std::collections::BTreeSet<usize> = vectors.collect();
        assert_eq!(all.len() * s.vector(), s.words(), "{s:?}");
        assert_eq!(all.last().copied(), Some(s.words() - s.vector()), "{s:?}");
    }
}

#[test]
fn products_of_every_orientation_and_type() {
    for (dtype, precision) in [
        (DType::BF16, Precision::F32),
        (DType::F16, Precision::F32),
        (DType::F32, Precision::Tf32),
        (DType::F32, Precision::Bf16),
    ] {
        for contract in [(1, 0), (1, 1), (0, 0), (0, 1)] {
            let place = |at: usize, outer: usize, inner: usize| if at == 1 { [outer, inner] } else { [inner, outer] };
            for (m, n, k) in [(64, 64, 96), (128, 64, 32), (65, 72, 40), (96, 56, 136)] {
                let args = [Type::new(dtype, place(contract.0, m, k)), Type::new(dtype, place(contract.1, n, k))];
                let stats = exact_op(precision, matmul(contract), &args, Some(&SMALL));
                if m % 8 == 0 {
                    assert_eq!(stats.shared_conflicts, 0, "{dtype} {contract:?}");
                    let wide = [stats.reads_by_width[4], stats.writes_by_width[4]];
                    let all = [stats.reads_by_width.iter().sum(), stats.writes_by_width.iter().sum::<u64>()];
                    assert_eq!(
                        wide, all,
                        "{dtype} {contract:?} {:?} {:?}",
                        stats.reads_by_width, stats.writes_by_width
                    );
                }
            }
        }
    }
}

#[test]
fn products_with_tails() {
    for dtype in [DType::BF16, DType::F32] {
        let f = |shape: [usize; 2]| Type::new(dtype, shape);
        for m in [1, 17, 63, 64, 65] {
            for n in [1, 10, 63, 64, 65].into_iter().filter(|n| m * n > 1) {
                exact_op(Precision::Tf32, matmul((1, 0)), &[f([m, 33]), f([33, n])], Some(&SMALL));
            }
        }
        for k in [1, 2, 31, 32, 33, 64, 65, 127, 129] {
            exact_op(Precision::Tf32, matmul((1, 0)), &[f([37, k]), f([k, 40])], Some(&SMALL));
            exact_op(Precision::Tf32, matmul((1, 1)), &[f([37, k]), f([41, k])], None);
        }
    }
}

#[test]
fn every_tile_and_number_of_stages() {
    let halves = [
        tile(128, 256, 64, [2, 4], 3),
        tile(128, 256, 32, [2, 4], 3),
        tile(128, 128, 64, [4, 2], 3),
        tile(128, 128, 32, [2, 2], 4),
        tile(128, 64, 32, [4, 1], 4),
        tile(64, 128, 32, [2, 2], 2),
        tile(64, 64, 32, [2, 2], 5),
        tile(128, 32, 32, [4, 1], 4),
        tile(32, 128, 32, [1, 4], 4),
        tile(16, 64, 64, [1, 4], 4),
        tile(64, 16, 64, [4, 1], 4),
    ];
    for t in &halves {
        let args = [Type::new(DType::BF16, [136, 200]), Type::new(DType::BF16, [200, 264])];
        let stats = exact_op(Precision::F32, matmul((1, 0)), &args, Some(t));
        // Warps of 16 rows stage single words, in two passes.
        assert!(stats.shared_conflicts == 0 || t.warp()[0] == 16, "{t:?}");
    }
    let words = [
        tile(128, 128, 32, [2, 4], 3),
        tile(128, 128, 32, [4, 2], 2),
        tile(128, 64, 32, [4, 1], 3),
        tile(64, 64, 32, [2, 2], 4),
        tile(32, 128, 32, [1, 4], 4),
        tile(16, 64, 32, [1, 4], 4),
        tile(64, 16, 32, [4, 1], 4),
    ];
    for t in &words {
        for precision in [Precision::Tf32, Precision::Bf16] {
            let args = [Type::new(DType::F32, [136, 200]), Type::new(DType::F32, [200, 264])];
            exact_op(precision, matmul((1, 0)), &args, Some(t));
        }
    }
}

#[test]
fn batches() {
    let f = |shape: &[usize]| Type::new(DType::BF16, shape);
    let op = ops::Contract { batch: vec![(0, 0)], contract: vec![(2, 1)] };
    exact_op(Precision::F32, op, &[f(&[3, 40, 24]), f(&[3, 24, 16])], None);
    // Attention: (batch, head) between the others.
    let op = ops::Contract { batch: vec![(0, 0), (2, 2)], contract: vec![(3, 3)] };
    exact_op(Precision::F32, op, &[f(&[2, 17, 3, 16]), f(&[2, 19, 3, 16])], None);
    // Two inner axes and two outer ones.
    let op = ops::Contract { batch: vec![], contract: vec![(2, 1), (1, 0)] };
    exact_op(Precision::F32, op, &[f(&[9, 4, 8]), f(&[4, 8, 24])], None);
}

/// Random values: every product is exact in f32 up to the factors' own rounding, and a sum of K terms of either sign
/// has an error of at most K · 2⁻²³ of the sum of their magnitudes, with the result's rounding besides.
#[test]
fn random_values_within_the_bound() {
    for (dtype, precision, factor) in [
        (DType::BF16, Precision::F32, 0.0),
        (DType::F16, Precision::F32, 0.0),
        (DType::F32, Precision::Tf32, 2f64.powi(-11)),
        (DType::F32, Precision::Bf16, 2f64.powi(-9)),
    ] {
        let (m, n, k) = (72, 88, 256);
        let args = [Type::new(dtype, [m, k]), Type::new(dtype, [k, n])];
        let (c, results) = compute_of(matmul((1, 0)), &args);
        let kernel = Gpu { precision }.schedule("product", &c, &types(&args), &types(&results));
        let random = |t: &Type, seed| numbers(t, seed, |r| (r % 20011) as f64 / 5000.0 - 2.0);
        let (a, b) = (random(&args[0], 1), random(&args[1], 2));
        let got = harness::run(&kernel, &[&a, &b], &types(&results));
        let last = match dtype {
            DType::BF16 => 2f64.powi(-8),
            DType::F16 => 2f64.powi(-11),
            _ => 0.0,
        };
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let terms = (0..k).map(|e| a.get(i * k + e).to_f64() * b.get(e * n + j).to_f64());
            let (sum, size) = terms.fold((0.0, 0.0), |(s, z), t| (s + t, z + t.abs()));
            let bound = size * (2.0 * factor + factor * factor + k as f64 * 2f64.powi(-23)) + sum.abs() * last;
            let found = got.results[0].get(i * n + j).to_f64();
            assert!((found - sum).abs() <= bound, "{dtype} {precision:?} ({i}, {j}): {found}, {sum}, bound {bound}");
        }
    }
}

#[test]
fn convolutions() {
    let conv = |stride: usize, pad: (i64, i64), dilation: [usize; 2], groups: usize| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![pad; 2],
        input_dilation: vec![dilation[0]; 2],
        kernel_dilation: vec![dilation[1]; 2],
        groups,
        batch_groups: 1,
    };
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        let f = |shape: &[usize]| Type::new(dtype, shape);
        for (op, x, w) in [
            (conv(1, (1, 1), [1, 1], 1), [2, 9, 9, 8], [3, 3, 8, 16]),
            (conv(2, (0, 1), [1, 1], 1), [2, 12, 10, 16], [3, 3, 16, 24]),
            (conv(2, (3, 2), [1, 1], 1), [1, 15, 15, 3], [7, 7, 3, 16]),
            (conv(1, (2, 2), [1, 2], 1), [1, 9, 8, 4], [3, 3, 4, 5]),
            (conv(1, (1, 1), [2, 1], 1), [1, 5, 6, 8], [3, 3, 8, 8]),
            (conv(1, (1, 1), [1, 1], 2), [1, 6, 6, 16], [3, 3, 8, 32]),
            (conv(1, (0, 0), [1, 1], 1), [2, 7, 7, 32], [1, 1, 32, 64]),
            (conv(1, (-1, -1), [1, 1], 1), [1, 8, 8, 8], [2, 2, 8, 8]),
        ] {
            exact_op(precision, op, &[f(&x), f(&w)], None);
        }
    }
}

/// The gradient of a convolution's kernel: positions and batch are summed over, channels and outputs remain.
#[test]
fn kernel_gradients() {
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        let f = |shape: &[usize]| Type::new(dtype, shape);
        let (x, dy) = (f(&[3, 9, 9, 8]), f(&[4, 4, 8, 16]));
        let op = ops::Conv {
            stride: vec![1; 2],
            pads: vec![(1, 0); 2],
            input_dilation: vec![1; 2],
            kernel_dilation: vec![2; 2],
            groups: 1,
            batch_groups: 1,
        };
        exact_op(precision, op, &[x, dy], None);
    }
}

/// Every tile of a factor is read once per tile of the other, every result written once: nothing else moves.
#[test]
fn traffic_is_that_of_the_tiles() {
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        for (m, n, k) in [(200, 136, 264), (64, 128, 96)] {
            let args = [Type::new(dtype, [m, k]), Type::new(dtype, [k, n])];
            let stats = exact_op(precision, matmul((1, 0)), &args, Some(&SMALL));
            let size = dtype.size();
            let read = (m * k * n.div_ceil(SMALL.columns) + n * k * m.div_ceil(SMALL.rows)) * size;
            assert_eq!((stats.global_read, stats.global_written), (read as u64, (m * n * size) as u64));
            assert_eq!(stats.distinct_read, ((m * k + k * n) * size) as u64);
        }
        // A convolution reads windows: rows of the product are positions, its inner extent taps and channels.
        let (x, w) = (Type::new(dtype, [2, 16, 16, 16]), Type::new(dtype, [3, 3, 16, 64]));
        let op = ops::Conv {
            stride: vec![1; 2],
            pads: vec![(1, 1); 2],
            input_dilation: vec![1; 2],
            kernel_dilation: vec![1; 2],
            groups: 1,
            batch_groups: 1,
        };
        let stats = exact_op(precision, op, &[x.clone(), w.clone()], Some(&SMALL));
        let (m, n, k) = (2 * 16 * 16, 64, 9 * 16);
        let most = (m * k * n / SMALL.columns + n * k * m / SMALL.rows) * dtype.size();
        assert!(stats.global_read <= most as u64, "{} of {most}", stats.global_read);
        assert_eq!(stats.distinct_read, (x.bytes() + w.bytes()) as u64);
    }
}

/// The last block of a product whose left factor and result have more than 2^31 elements, of which memory holds what
/// that block reads.
#[test]
fn offsets_past_two_to_the_31() {
    let (m, n, k) = ((1 << 26) + 5, 40, 32);
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        let args = [Type::new(dtype, [m, k]), Type::new(dtype, [k, n])];
        let (c, results) = compute_of(matmul((1, 0)), &args);
        let kernel = Gpu { precision }.schedule_tile("product", &c, &types(&args), &types(&results), &SMALL).unwrap();
        let kernel = &kernel.launches[0].kernel;
        let Entry::Grid { blocks, threads } = kernel.entry else { panic!("not a GPU kernel") };
        let text = crate::ptx::module(&[kernel]).unwrap().replace("%ctaid.x", &(blocks[0] - 1).to_string());
        // The last rows alone, as a product of their own.
        let rows = 5;
        let small = [Type::new(dtype, [rows, k]), args[1].clone()];
        let (c, small_results) = compute_of(matmul((1, 0)), &small);
        let operands = [integers(&small[0], 1), integers(&small[1], 2)];
        let want = interp::evaluate(&c, &[&operands[0], &operands[1]], &types(&small_results));
        let device = intwain_emulator::Device::new(&intwain_emulator::AddressSpace::default(), 0);
        let [x, w, y] = [&args[0], &args[1], &results[0]].map(|t| device.alloc(t.bytes() as u64).unwrap());
        device.write(x + ((m - rows) * k * dtype.size()) as u64, &operands[0].data).unwrap();
        device.write(w, &operands[1].data).unwrap();
        let shape =
            intwain_emulator::Launch { grid: [1, 1, 1], block: threads, shared: kernel.buffer_offsets().1 as u32 };
        let module = intwain_emulator::Module::parse(&text).unwrap();
        let pointers = [x, w, y].map(intwain_emulator::Arg::U64);
        device.launch(&module, "product", shape, &pointers).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let mut got = vec![0; want[0].data.len()];
        device.read(y + ((m - rows) * n * dtype.size()) as u64, &mut got).unwrap();
        assert_eq!(got, want[0].data, "{dtype}");
    }
}

/// Few tiles and many steps: segments in one launch, what follows in another.
#[test]
fn long_sums_in_segments() {
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        let args = [Type::new(dtype, [40, 1024]), Type::new(dtype, [1024, 24]), Type::new(dtype, [24])];
        let (mut c, results) = compute_of(matmul((1, 0)), &args[..2]);
        let column = c.position()[1].clone();
        let (sum, bias) = (c.results()[0], c.load(2, &args[2], vec![column]));
        let x = c.binary(Binary::Add, sum, bias);
        let c = c.with_results([x]);
        let gpu = Gpu { precision };
        assert_eq!(gpu.schedule("product", &c, &types(&args), &types(&results)).launches.len(), 2);
        exact(precision, &c, &args, &results, None);
    }
    // The gradient of a convolution's kernel: positions are the outermost of what is summed over.
    let f = |shape: &[usize]| Type::new(DType::BF16, shape);
    let op = ops::Conv {
        stride: vec![1; 2],
        pads: vec![(1, 1); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![1; 2],
        groups: 1,
        batch_groups: 1,
    };
    exact_op(Precision::F32, op, &[f(&[16, 12, 12, 8]), f(&[12, 12, 8, 16])], None);
}

/// Bias, activation, residual and conversion belong to the kernel.
#[test]
fn epilogues() {
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        for (m, n, k) in [(64, 128, 64), (50, 72, 40), (33, 10, 16), (1, 65, 24)] {
            let args =
                [Type::new(dtype, [m, k]), Type::new(dtype, [k, n]), Type::new(dtype, [n]), Type::new(dtype, [m, n])];
            let (mut c, results) = compute_of(matmul((1, 0)), &args[..2]);
            let [row, column] = [0, 1].map(|i| c.position()[i].clone());
            let sum = c.results()[0];
            let bias = c.load(2, &args[2], vec![column.clone()]);
            let x = c.binary(Binary::Add, sum, bias);
            let zero = c.constant(Scalar::zero(dtype));
            let x = c.binary(Binary::Max, x, zero);
            let residual = c.load(3, &args[3], vec![row, column]);
            let x = c.binary(Binary::Add, x, residual);
            let wide = c.cast(DType::F32, x);
            let negative = c.unary(Unary::Neg, wide);
            let results = [results[0].clone(), Type::new(DType::F32, [m, n])];
            let c = c.with_results([x, negative]);
            let stats = exact(precision, &c, &args, &results, None);
            if n % 8 == 0 {
                assert_eq!(stats.writes_by_width[4], stats.writes_by_width.iter().sum::<u64>(), "{m} {n} {k}");
                assert_eq!(stats.reads_by_width[4], stats.reads_by_width.iter().sum::<u64>(), "{m} {n} {k}");
            }
        }
    }
}

/// Long epilogues are loops.
#[test]
fn transcendental_epilogues() {
    for (dtype, precision) in [(DType::BF16, Precision::F32), (DType::F32, Precision::Tf32)] {
        for (m, n, k) in [(64, 128, 64), (50, 72, 40), (33, 10, 16), (1, 65, 24)] {
            let args =
                [Type::new(dtype, [m, k]), Type::new(dtype, [k, n]), Type::new(dtype, [n]), Type::new(dtype, [m, n])];
            let (mut c, results) = compute_of(matmul((1, 0)), &args[..2]);
            let [row, column] = [0, 1].map(|i| c.position()[i].clone());
            let sum = c.results()[0];
            let bias = c.load(2, &args[2], vec![column.clone()]);
            let x = c.binary(Binary::Add, sum, bias);
            let x = c.unary(Unary::Tanh, x);
            let residual = c.load(3, &args[3], vec![row, column]);
            let x = c.binary(Binary::Add, x, residual);
            let c = c.with_results([x]);
            exact(precision, &c, &args, &results, None);
        }
    }
}

/// The sum itself goes on in f32.
#[test]
fn sums_that_are_not_converted() {
    let args = [Type::new(DType::BF16, [70, 48]), Type::new(DType::BF16, [48, 72])];
    let (mut c, _) = compute_of(matmul((1, 0)), &args);
    let intwain_ir::compute::Expr::Cast(_, sum) = *c.expr(c.results()[0]) else { panic!("a conversion") };
    let half = c.constant(Scalar::from_f64(DType::F32, 0.5));
    let halved = c.binary(Binary::Mul, sum, half);
    let narrow = c.cast(DType::BF16, halved);
    let results = [Type::new(DType::F32, [70, 72]), Type::new(DType::BF16, [70, 72])];
    let c = c.with_results([sum, narrow]);
    exact(Precision::F32, &c, &args, &results, None);
}

/// What can't be copied is computed on its way to shared memory.
#[test]
fn computed_factors() {
    for dtype in [DType::BF16, DType::F32] {
        let args = [Type::new(dtype, [40, 50]), Type::new(dtype, [50, 30]), Type::new(dtype, [50])];
        let mut c = Compute::new(&[40, 30].into());
        let k = c.reduce_axis(50);
        let [row, column] = [0, 1].map(|i| c.position()[i].clone());
        let inner = intwain_ir::compute::Index::axis(k);
        let (x, y) = (c.load(0, &args[0], vec![row, inner.clone()]), c.load(1, &args[1], vec![inner.clone(), column]));
        let shift = c.load(2, &args[2], vec![inner]);
        let x = c.binary(Binary::Add, x, shift);
        let (x, y) = (c.cast(DType::F32, x), c.cast(DType::F32, y));
        let product = c.binary(Binary::Mul, x, y);
        let sum = c.reduce(intwain_ir::scalar::Reduce::Sum, vec![k], intwain_ir::compute::Order::Fma, product);
        let c = c.with_results([sum]);
        exact(Precision::Tf32, &c, &args, &[Type::new(DType::F32, [40, 30])], None);
    }
}
