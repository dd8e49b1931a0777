//! Products on the emulator against the interpreter, bit for bit.

use super::plan::Plan;
use super::recognise::recognise;
use super::tile::{TILES, WIDE_TILES};
use crate::ptx;
use crate::schedule::gpu::harness::{self, Outcome};
use crate::schedule::gpu::launch::Arrays;
use crate::schedule::gpu::{Gpu, GpuKernel};
use crate::schedule::nest::Nest;
use crate::schedule::tests::tensor;
use intwain_emulator::{AddressSpace, Arg, Device, Launch, Module};
use intwain_ir::compute::{Compute, Index, Order};
use intwain_ir::kernel::{Entry, Inst, Kernel, Stmt};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Scalar, Tensor, Type, interp};
use std::panic::AssertUnwindSafe;

/// The compute of an op, and its result types.
fn compute_of(op: impl Into<Op>, args: &[Type]) -> (Compute, Vec<Type>) {
    let op = op.into();
    let types: Vec<&Type> = args.iter().collect();
    let results: Vec<Type> = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}")).into_iter().collect();
    let Body::Compute(c) = op.body(&types, &results.iter().collect::<Vec<_>>()) else { panic!("{op:?} is no compute") };
    (c, results)
}

fn kernel(compute: &Compute, args: &[Type], results: &[Type]) -> GpuKernel {
    let (args, results): (Vec<&Type>, Vec<&Type>) = (args.iter().collect(), results.iter().collect());
    let product = super::schedule("k", &Nest::new(compute, &args), &Arrays::new(&args, &results));
    product.unwrap_or_else(|| Gpu::default().schedule("k", compute, &args, &results))
}

fn filled(args: &[Type]) -> Vec<Tensor> {
    args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect()
}

/// Runs the schedule chosen, which must be a product, and compares with the interpreter.
fn check(compute: &Compute, args: &[Type], results: &[Type], what: &str) -> Outcome {
    check_with(compute, &filled(args), results, what)
}

fn check_with(compute: &Compute, args: &[Tensor], results: &[Type], what: &str) -> Outcome {
    let types: Vec<Type> = args.iter().map(|t| t.ty.clone()).collect();
    let k = kernel(compute, &types, results);
    let empty = types.iter().any(|t| t.shape.elements() == 0);
    assert!(k.schedule == "product" || empty, "{what}");
    compare(compute, args, results, &k, what)
}

/// Runs kernels and compares with the interpreter.
fn compare(compute: &Compute, args: &[Tensor], results: &[Type], k: &GpuKernel, what: &str) -> Outcome {
    let (args, types): (Vec<&Tensor>, Vec<&Type>) = (args.iter().collect(), results.iter().collect());
    let want = interp::evaluate(compute, &args, &types);
    let got = harness::run(k, &args, &types);
    for (w, g) in want.iter().zip(&got.results) {
        for i in 0..w.elements() {
            let (w, g) = (w.get(i), g.get(i));
            let equal = w.bits() == g.bits() || (w.to_f64().is_nan() && g.to_f64().is_nan());
            assert!(equal, "{what}: element {i}: {w} expected, {g} found\n{}", k.launches[0].kernel);
        }
    }
    got
}

fn check_op(op: impl Into<Op>, args: &[Type]) -> Outcome {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    check(&c, args, &results, &format!("{op:?} of {args:?}"))
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

fn matmul() -> ops::Contract {
    ops::Contract { batch: vec![], contract: vec![(1, 0)] }
}

#[test]
fn matrix_products() {
    for (m, k, n) in [
        (1, 1, 1),
        (3, 5, 7),
        (17, 16, 33),
        (2, 0, 4),
        (5, 64, 1),
        (1, 70, 100),
        (129, 17, 65),
        (127, 33, 128),
        (128, 32, 128),
        (64, 16, 64),
        (40, 15, 8),
    ] {
        for (dtype, left, right) in [
            (DType::F32, 0, 0),
            (DType::F32, 1, 0),
            (DType::F32, 0, 1),
            (DType::F32, 1, 1),
            (DType::F64, 0, 0),
            (DType::F16, 0, 0),
            (DType::I32, 0, 0),
        ] {
            let op = ops::Contract { batch: vec![], contract: vec![(1 - left, right)] };
            let shape = |turned: usize, a: usize, b: usize| if turned == 1 { [b, a] } else { [a, b] };
            let args = [Type::new(dtype, shape(left, m, k)), Type::new(dtype, shape(right, k, n))];
            check_op(op, &args);
        }
    }
}

#[test]
fn batches() {
    let heads = ops::Contract { batch: vec![(0, 0), (2, 1)], contract: vec![(3, 3)] };
    check_op(heads.clone(), &[f32s(&[2, 5, 3, 4]), f32s(&[2, 3, 6, 4])]);
    check_op(heads, &[f32s(&[2, 20, 3, 32]), f32s(&[2, 3, 24, 32])]);
    let mix = ops::Contract { batch: vec![(0, 0), (1, 2)], contract: vec![(3, 1)] };
    check_op(mix, &[f32s(&[2, 3, 20, 24]), f32s(&[2, 24, 3, 16])]);
}

fn conv(stride: usize, dilation: usize, input_dilation: usize, groups: usize, batch_groups: usize) -> ops::Conv {
    ops::Conv {
        stride: vec![stride, 1],
        pads: vec![(2, 1), (1, 2)],
        input_dilation: vec![input_dilation, 1],
        kernel_dilation: vec![dilation, 1],
        groups,
        batch_groups,
    }
}

#[test]
fn convolutions() {
    for (stride, dilation, input_dilation, groups, batch_groups) in
        [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 2, 1, 2, 1), (1, 1, 2, 1, 1), (2, 1, 3, 1, 1), (1, 1, 1, 1, 2)]
    {
        for channels in [4, 6, 16, 32] {
            let conv = conv(stride, dilation, input_dilation, groups, batch_groups);
            check_op(conv, &[f32s(&[2, 7, 6, channels]), f32s(&[3, 2, channels / groups, 8])]);
        }
    }
    let same = |stride: usize, pad: i64, groups: usize| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups,
        batch_groups: 1,
    };
    check_op(same(2, 3, 1), &[f32s(&[1, 15, 14, 3]), f32s(&[7, 7, 3, 16])]);
    check_op(same(1, 0, 1), &[f32s(&[2, 9, 8, 32]), f32s(&[1, 1, 32, 64])]);
    check_op(same(1, 1, 2), &[f32s(&[1, 8, 8, 32]), f32s(&[3, 3, 16, 64])]);
}

/// relu(product + bias + residual), as fusion makes it: operands are those of the product, bias, residual.
fn with_epilogue(product: &Compute, n_args: usize, ty: &Type) -> (Compute, Vec<Type>) {
    let mut c = Compute::new(&ty.shape);
    let position = c.position();
    let bias_ty = Type::new(ty.dtype, [*ty.shape.last().expect("there are columns")]);
    let sum = c.load(0, ty, position.clone());
    let bias = c.load(1, &bias_ty, vec![position[position.len() - 1].clone()]);
    let residual = c.load(2, ty, position);
    let y = c.binary(Binary::Add, sum, bias);
    let y = c.binary(Binary::Add, y, residual);
    let zero = c.number(ty.dtype, 0.0);
    let y = c.binary(Binary::Max, y, zero);
    let c = c.with_results([y]);
    let fused = c.inline(0, product, 0, &|o| 3 + o);
    let fused = fused.renumber(&|o| if o >= 3 { o - 3 } else { n_args + o - 1 });
    (fused, vec![bias_ty, ty.clone()])
}

#[test]
fn epilogues() {
    let simple = |stride: usize, pad: i64, groups: usize| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups,
        batch_groups: 1,
    };
    let batched = ops::Contract { batch: vec![(0, 0), (2, 2)], contract: vec![(3, 3)] };
    let cases: Vec<(Op, Vec<Type>)> = vec![
        (matmul().into(), vec![f32s(&[5, 7]), f32s(&[7, 9])]),
        (matmul().into(), vec![f32s(&[1, 64]), f32s(&[64, 100])]),
        (matmul().into(), vec![Type::new(DType::F64, [6, 5]), Type::new(DType::F64, [5, 4])]),
        (matmul().into(), vec![Type::new(DType::BF16, [6, 32]), Type::new(DType::BF16, [32, 40])]),
        (batched.into(), vec![f32s(&[2, 5, 3, 4]), f32s(&[2, 6, 3, 4])]),
        (simple(1, 1, 1).into(), vec![f32s(&[2, 6, 5, 4]), f32s(&[3, 3, 4, 6])]),
        (simple(2, 0, 1).into(), vec![f32s(&[2, 6, 5, 4]), f32s(&[1, 1, 4, 8])]),
        (simple(2, 3, 1).into(), vec![f32s(&[1, 11, 12, 3]), f32s(&[7, 7, 3, 16])]),
        (simple(1, 1, 2).into(), vec![f32s(&[2, 4, 4, 6]), f32s(&[3, 3, 3, 8])]),
    ];
    for (op, args) in cases {
        let (product, results) = compute_of(op.clone(), &args);
        let (fused, more) = with_epilogue(&product, args.len(), &results[0]);
        let all: Vec<Type> = args.iter().chain(&more).cloned().collect();
        check(&fused, &all, &results, &format!("{op:?} of {args:?} with an epilogue"));
    }
}

/// The sum of a row and a column in parts, as the plan says.
fn in_parts(x: &Tensor, y: &Tensor, plan: &Plan, [m, k, n]: [usize; 3]) -> Tensor {
    let mut z = Tensor::zeros(f32s(&[m, n]));
    let at = |t: &Tensor, i: usize| t.get(i).to_f64() as f32;
    for i in 0..m * n {
        let parts = (0..plan.parts).map(|p| {
            let range = p * plan.length..((p + 1) * plan.length).min(k);
            range.fold(0f32, |s, j| at(x, i / n * k + j).mul_add(at(y, j * n + i % n), s))
        });
        z.set(i, Scalar::from_f64(DType::F32, f64::from(parts.fold(0f32, |s, p| s + p))));
    }
    z
}

#[test]
fn long_sums_in_parts() {
    for (m, k, n) in [(1, 4096, 100), (3, 5003, 7), (1, 3000, 1), (10, 4000, 4), (40, 8000, 36)] {
        let args = [f32s(&[m, k]), f32s(&[k, n])];
        let (c, results) = compute_of(matmul(), &args);
        let nest = Nest::new(&c, &args.iter().collect::<Vec<_>>());
        let plan = Plan::choose(&recognise(&nest, 2).unwrap());
        assert!(plan.parts > 1, "{m} {k} {n}: {plan:?}");
        let k1 = kernel(&c, &args, &results);
        assert_eq!((k1.schedule, k1.launches.len()), ("product in parts", 2));
        let tensors = filled(&args);
        let got = harness::run(&k1, &tensors.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
        let want = in_parts(&tensors[0], &tensors[1], &plan, [m, k, n]);
        assert_eq!(got.results[0], want, "{m} {k} {n} {plan:?}");
        // With what follows: relu of the same sums and more.
        let (fused, more) = with_epilogue(&c, 2, &results[0]);
        let all: Vec<Type> = args.iter().chain(&more).cloned().collect();
        let k2 = kernel(&fused, &all, &results);
        let tensors = filled(&all);
        let got = harness::run(&k2, &tensors.iter().collect::<Vec<_>>(), &results.iter().collect::<Vec<_>>());
        for i in 0..m * n {
            let [bias, residual] = [tensors[2].get(i % n), tensors[3].get(i)].map(|x| x.to_f64() as f32);
            let want = (want.get(i).to_f64() as f32 + bias + residual).max(0.0);
            assert_eq!(got.results[0].get(i).to_f64() as f32, want);
        }
    }
}

/// The gradient of a convolution's kernel: channels as rows, rows of the batch as channels, the result's gradient as
/// the kernel.
#[test]
fn weight_gradients() {
    let gradient = |stride: usize, pad: i64| ops::Conv {
        stride: vec![1; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1; 2],
        kernel_dilation: vec![stride; 2],
        groups: 1,
        batch_groups: 1,
    };
    for (channels, rows, size, filters) in [(3, 4, 9, 8), (16, 32, 8, 20), (5, 8, 40, 7)] {
        let args = [f32s(&[channels, size, size, rows]), f32s(&[size, size, rows, filters])];
        let (c, results) = compute_of(gradient(1, 1), &args);
        let k = kernel(&c, &args, &results);
        assert!(k.schedule.starts_with("product"));
        let tensors = filled(&args);
        let (tensors, types): (Vec<&Tensor>, Vec<&Type>) = (tensors.iter().collect(), results.iter().collect());
        let want = interp::evaluate(&c, &tensors, &types).remove(0);
        let got = harness::run(&k, &tensors, &types).results.remove(0);
        for i in 0..want.elements() {
            let (w, g) = (want.get(i).to_f64(), got.get(i).to_f64());
            let scale = 16.0 * ((size * size * rows) as f64).sqrt();
            assert!((w - g).abs() < 1e-5 * scale, "{channels} {rows} {size} {filters}: {w} and {g}");
        }
    }
}

/// Requests, bank conflicts and widths of accesses of a product whose factors have `rows` and `columns` in tiles.
fn check_traffic(op: impl Into<Op>, args: &[Type], alignment: Alignment) {
    let op = op.into();
    let what = format!("{op:?} of {args:?}");
    let (c, results) = compute_of(op, args);
    let nest = Nest::new(&c, &args.iter().collect::<Vec<_>>());
    let product = recognise(&nest, 2).unwrap();
    let plan = Plan::choose(&product);
    assert_eq!(plan.parts, 1, "{what}");
    let stats = check(&c, args, &results, &what).stats[0];
    let (m, n, k, b) = (product.rows, product.columns, product.inner, product.batch);
    let (down, across) = (m.div_ceil(plan.tile.rows), n.div_ceil(plan.tile.columns));
    let read = 4 * b * k * (m * across + n * down);
    let written = 4 * b * m * n;
    assert!(stats.global_read as f64 <= 1.05 * read as f64, "{what}: {} of {read} bytes read", stats.global_read);
    assert_eq!(stats.global_written as usize, written, "{what}");
    if alignment == Alignment::Aligned {
        assert_eq!(stats.shared_conflicts, 0, "{what}: {} wavefronts", stats.shared_wavefronts);
        let wide = |by: [u64; 6]| by.iter().sum::<u64>() == by[4];
        assert!(wide(stats.reads_by_width) && wide(stats.writes_by_width), "{what}: {stats:?}");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Alignment {
    /// Everything can be moved in groups of 16 bytes.
    Aligned,
    /// Not so.
    Odd,
}

#[test]
fn traffic() {
    let (aligned, odd) = (Alignment::Aligned, Alignment::Odd);
    let sides = |left: usize, right: usize| ops::Contract { batch: vec![], contract: vec![(1 - left, right)] };
    for (m, k, n) in [(256, 32, 256), (128, 48, 64), (64, 64, 64), (132, 20, 68), (32, 64, 1024), (16, 64, 512)] {
        check_traffic(sides(0, 0), &[f32s(&[m, k]), f32s(&[k, n])], aligned);
        check_traffic(sides(1, 0), &[f32s(&[k, m]), f32s(&[k, n])], aligned);
        check_traffic(sides(0, 1), &[f32s(&[m, k]), f32s(&[n, k])], aligned);
    }
    for (m, k, n) in [(129, 17, 65), (1, 100, 400), (5, 33, 1000), (1000, 9, 3)] {
        check_traffic(matmul(), &[f32s(&[m, k]), f32s(&[k, n])], odd);
    }
    let heads = ops::Contract { batch: vec![(0, 0), (2, 2)], contract: vec![(3, 3)] };
    check_traffic(heads, &[f32s(&[2, 64, 4, 32]), f32s(&[2, 64, 4, 32])], aligned);
    let same = |stride: usize, pad: i64| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups: 1,
        batch_groups: 1,
    };
    check_traffic(same(1, 1), &[f32s(&[2, 14, 14, 32]), f32s(&[3, 3, 32, 64])], aligned);
    check_traffic(same(2, 0), &[f32s(&[2, 14, 14, 16]), f32s(&[1, 1, 16, 64])], aligned);
    check_traffic(same(2, 3), &[f32s(&[1, 32, 32, 3]), f32s(&[7, 7, 3, 64])], odd);
}

#[test]
fn every_tile() {
    let sides = |left: usize, right: usize| ops::Contract { batch: vec![], contract: vec![(1 - left, right)] };
    let tiles = TILES.iter().map(|t| (DType::F32, t)).chain(WIDE_TILES.iter().map(|t| (DType::F64, t)));
    for (i, (dtype, tile)) in tiles.enumerate() {
        for (m, k, n) in [(tile.rows + 4, 32, tile.columns), (tile.rows - 1, 19, tile.columns + 1)] {
            let (left, right) = [(0, 0), (1, 0), (0, 1), (1, 1)][i % 4];
            let shape = |turned: usize, a: usize, b: usize| if turned == 1 { [b, a] } else { [a, b] };
            let args = [Type::new(dtype, shape(left, m, k)), Type::new(dtype, shape(right, k, n))];
            let (product, results) = compute_of(sides(left, right), &args);
            let (c, more) = with_epilogue(&product, 2, &results[0]);
            let args: Vec<Type> = args.into_iter().chain(more).collect();
            let (types, result_types): (Vec<&Type>, Vec<&Type>) = (args.iter().collect(), results.iter().collect());
            let product = recognise(&Nest::new(&c, &types), args.len()).unwrap();
            let plan = Plan::new(&product, tile, 1).unwrap();
            let k = super::planned("k", &product, &Arrays::new(&types, &result_types), &plan);
            let outcome = compare(&c, &filled(&args), &results, &k, &format!("{left} {right} in {tile:?}"));
            assert_eq!(outcome.stats[0].shared_conflicts, 0, "{left} {right} in {tile:?}");
        }
    }
}

/// What follows is fused, for factors of any type; what precedes only if it costs next to nothing.
#[test]
fn fusion_keeps_contractions() {
    for dtype in [DType::F32, DType::BF16, DType::F64] {
        let args = [Type::new(dtype, [8, 16]), Type::new(dtype, [16, 8])];
        let (product, results) = compute_of(matmul(), &args);
        let (after, more) = with_epilogue(&product, 2, &results[0]);
        let all: Vec<Type> = args.iter().chain(&more).cloned().collect();
        let fuses =
            |c: &Compute, args: &[Type]| super::takes(&Nest::new(c, &args.iter().collect::<Vec<_>>()), args.len());
        assert!(fuses(&product, &args) && fuses(&after, &all), "{dtype}");
        let (tanh, _) = compute_of(ops::Unary { function: Unary::Tanh }, &args[..1]);
        let before = product.inline(0, &tanh, 0, &|_| 0);
        assert!(!fuses(&before, &args), "{dtype}");
        let mut relu = Compute::new(&args[0].shape);
        let x = relu.load(0, &args[0], relu.position());
        let zero = relu.number(dtype, 0.0);
        let y = relu.binary(Binary::Max, x, zero);
        let before = product.inline(0, &relu.with_results([y]), 0, &|_| 0);
        assert!(fuses(&before, &args), "{dtype}");
        if dtype == DType::F32 {
            check(&before, &args, &results, "relu before a product");
        }
    }
}

/// Positions of factors beyond 2^31 elements.
#[test]
fn far_addresses() {
    let far = 1usize << 28;
    let (x, w) = (f32s(&[20, far]), f32s(&[32, 8]));
    let mut c = Compute::new(&[20, 8].into());
    let position = c.position();
    let k = c.reduce_axis(32);
    let left = c.load(0, &x, vec![position[0].clone(), Index::axis(k).plus(far as i64 - 32)]);
    let right = c.load(1, &w, vec![Index::axis(k), position[1].clone()]);
    let body = c.binary(Binary::Mul, left, right);
    let sum = c.reduce(Reduce::Sum, vec![k], Order::Fma, body);
    let c = c.with_results([sum]);
    let kernel = kernel(&c, &[x, w.clone()], &[f32s(&[20, 8])]);
    assert_eq!(kernel.schedule, "product");
    let launch = &kernel.launches[0];
    let (space, near) = (AddressSpace::default(), f32s(&[20, 32]));
    let device = Device::new(&space, 0);
    let (x, w) = (tensor(&near, 1), tensor(&w, 2));
    let [px, pw, py] = [20 * far * 4, w.data.len(), 20 * 8 * 4].map(|n| device.alloc(n as u64).unwrap());
    for row in 0..20 {
        device.write(px + ((row + 1) * far - 32) as u64 * 4, &x.data[row * 128..(row + 1) * 128]).unwrap();
    }
    device.write(pw, &w.data).unwrap();
    let module = Module::parse(&ptx::module(&[&launch.kernel]).unwrap()).unwrap();
    let Entry::Grid { blocks, threads } = launch.kernel.entry else { panic!("not a GPU kernel") };
    let shape = Launch { grid: blocks, block: threads, shared: launch.kernel.buffer_offsets().1 as u32 };
    device.launch(&module, "k", shape, &[px, pw, py].map(Arg::U64)).unwrap();
    let mut got = Tensor::zeros(f32s(&[20, 8]));
    device.read(py, &mut got.data).unwrap();
    let (product, results) = compute_of(matmul(), &[near, w.ty.clone()]);
    let want = interp::evaluate(&product, &[&x, &w], &results.iter().collect::<Vec<_>>());
    assert_eq!(got, want[0]);
}

/// The loop of a kernel's body.
fn main_loop(k: &mut Kernel) -> &mut Vec<Stmt> {
    let found = k.body.0.iter_mut().find_map(|s| match s {
        Stmt::For(l) => Some(&mut l.body.0),
        _ => None,
    });
    found.expect("there is a loop")
}

/// Mistakes in the main loop are found by the emulator.
#[test]
fn mutants_are_caught() {
    let args = [f32s(&[40, 64]), f32s(&[64, 68])];
    let (c, results) = compute_of(matmul(), &args);
    let run = |change: &dyn Fn(&mut Kernel)| {
        let mut k = kernel(&c, &args, &results);
        change(&mut k.launches[0].kernel);
        let tensors = filled(&args);
        let (tensors, types): (Vec<&Tensor>, Vec<&Type>) = (tensors.iter().collect(), results.iter().collect());
        let want = interp::evaluate(&c, &tensors, &types);
        std::panic::catch_unwind(AssertUnwindSafe(|| harness::run(&k, &tensors, &types).results)).map(|got| got == want)
    };
    let right = |outcome: Result<bool, _>| matches!(outcome, Ok(true));
    assert!(right(run(&|_| ())));
    let no_barrier = |k: &mut Kernel| main_loop(k).retain(|s| *s != Stmt::Barrier);
    assert!(!right(run(&no_barrier)), "a barrier is missing");
    let no_first_barrier = |k: &mut Kernel| k.body.0.retain(|s| *s != Stmt::Barrier);
    assert!(!right(run(&no_first_barrier)), "the first barrier is missing");
    // The next tile goes to the stage that is read.
    let same_stage = |k: &mut Kernel| {
        for s in main_loop(k) {
            if let Stmt::Let(_, Inst::Binary(op @ Binary::Sub, other, now)) = s {
                (*op, *other) = (Binary::Max, *now);
            }
        }
    };
    assert!(!right(run(&same_stage)), "the live stage is written");
    let shorter = |k: &mut Kernel| {
        let mut last = 0;
        main_loop(k).retain(|s| {
            let store = matches!(s, Stmt::Store { .. });
            last += usize::from(store);
            !(store && last == 1)
        });
    };
    assert!(!right(run(&shorter)), "an element of the next tile is missing");
}

/// Products and convolutions of many extents, the same in every run.
#[test]
fn varied_extents() {
    let mut state = 7u64;
    let mut draw = |low: usize, high: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        low + (state >> 33) as usize % (high - low + 1)
    };
    for case in 0..24 {
        let (b, m, k, n) = (draw(1, 3), draw(1, 150), draw(1, 70), draw(1, 150));
        let (left, right) = (draw(0, 1), draw(0, 1));
        let shape = |turned: usize, x: usize, y: usize| if turned == 1 { [b, y, x] } else { [b, x, y] };
        let op = ops::Contract { batch: vec![(0, 0)], contract: vec![(2 - left, 1 + right)] };
        let args = [f32s(&shape(left, m, k)), f32s(&shape(right, k, n))];
        let (product, results) = compute_of(op, &args);
        let (fused, more) = with_epilogue(&product, 2, &results[0]);
        let all: Vec<Type> = args.iter().chain(&more).cloned().collect();
        let nest = Nest::new(&fused, &all.iter().collect::<Vec<_>>());
        if recognise(&nest, 4).is_some_and(|p| p.has_tiles()) {
            check(&fused, &all, &results, &format!("case {case}: {b} {m} {k} {n}"));
        }
        let (size, channels, filters) = (draw(3, 9), draw(1, 20), draw(4, 40));
        let kernel = [draw(1, 3), draw(1, 3)];
        let conv = ops::Conv {
            stride: vec![draw(1, 2), draw(1, 3)],
            pads: vec![(draw(0, 2) as i64, draw(0, 3) as i64 - 1), (draw(0, 2) as i64, draw(0, 2) as i64)],
            input_dilation: vec![draw(1, 2), draw(1, 3)],
            kernel_dilation: vec![draw(1, 2), 1],
            groups: 1,
            batch_groups: 1,
        };
        let args = [f32s(&[b, size, size + 1, channels]), f32s(&[kernel[0], kernel[1], channels, filters])];
        check_op(conv, &args);
    }
}
