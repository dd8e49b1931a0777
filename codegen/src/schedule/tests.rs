//! Kernels of schedules against the interpreter of computes, bit for bit.

use super::nest::Nest;
use super::rows::{self, Style};
use super::{Cpu, CpuCode, Operand, SCRATCH_ALIGN, Timing};
use crate::clif::Jit;
use intwain_ir::compute::{Axis, Compute, Guard, Index, Order};
use intwain_ir::kernel::{self, Id};
use intwain_ir::ops::{self, Body, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Scalar, Tensor, Type, interp};

/// Small numbers of varied sign and size, the same in every run.
pub(super) fn tensor(ty: &Type, seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let elements: Vec<Scalar> = (0..ty.shape.elements())
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let r = state >> 33;
            let x = (r % 4001) as f64 / 500.0 - 4.0;
            Scalar::from_f64(ty.dtype, if ty.dtype.is_float() { x } else { (x * 2.0).round() })
        })
        .collect();
    let mut t = Tensor::zeros(ty.clone());
    elements.into_iter().enumerate().for_each(|(i, x)| t.set(i, x));
    t
}

fn same(want: &Tensor, got: &Tensor, what: &str) {
    for i in 0..want.elements() {
        let (w, g) = (want.get(i), got.get(i));
        let equal = w == g || (w.to_f64().is_nan() && g.to_f64().is_nan());
        assert!(equal, "{what}: element {i} of {}: {w} expected, {g} found", want.ty);
    }
}

/// Schedules a compute both ways and compares both kernels, interpreted and compiled, with the compute's meaning.
pub(super) fn check(compute: &Compute, operands: &[Type], results: &[Type], what: &str) {
    let args: Vec<Tensor> = operands.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
    check_with(compute, &args, results, what);
}

pub(super) fn check_with(compute: &Compute, args: &[Tensor], results: &[Type], what: &str) {
    let (operand_types, result_types): (Vec<&Type>, Vec<&Type>) =
        (args.iter().map(|t| &t.ty).collect(), results.iter().collect());
    let want = interp::evaluate(compute, &args.iter().collect::<Vec<_>>(), &result_types);
    check_target(compute, args, results, what);
    for style in [Style::Naive, Style::Fast] {
        let what = format!("{what} {style:?}");
        let nest = Nest::new(compute, &operand_types);
        let k = rows::schedule("k", nest, &operand_types, &result_types, style);
        kernel::verify(&k.kernel).unwrap_or_else(|d| panic!("{what}: {d:?}\n{}", k.kernel));
        let mut memory: Vec<Vec<u8>> =
            args.iter().map(|t| t.data.clone()).chain(results.iter().map(|t| vec![0xAA; t.bytes()])).collect();
        let mut compiled = memory.clone();
        let ids = |id: Id| if id == Id::TaskEnd { k.tasks as i64 } else { 0 };
        if want.iter().map(|t| t.elements()).sum::<usize>() < 3000 {
            kernel::run(&k.kernel, &mut memory, &ids).unwrap_or_else(|f| panic!("{what}: {f}\n{}", k.kernel));
            for (w, m) in want.iter().zip(&memory[args.len()..]) {
                let got = Tensor::from_bytes(w.ty.clone(), m.clone()).expect("sizes agree");
                same(w, &got, &format!("{what}, interpreted\n{compute}{}", k.kernel));
            }
        }
        let code = Jit::new().expect("supported").compile(&[&k.kernel], 1).unwrap_or_else(|e| panic!("{what}: {e}"));
        let params: Vec<*mut u8> = compiled.iter_mut().map(|m| m.as_mut_ptr()).collect();
        let mut scratch = vec![0u8; k.kernel.buffer_offsets().1 + 64];
        let pad = scratch.as_ptr().align_offset(64);
        // In two calls, as two threads would.
        for (a, b) in [(0, k.tasks / 3), (k.tasks / 3, k.tasks)] {
            // SAFETY: the parameters have the sizes that the kernel states; nothing is shared.
            unsafe { code.run(0, &params, a as i64, b as i64, scratch[pad..].as_mut_ptr()) };
        }
        for (w, m) in want.iter().zip(&compiled[args.len()..]) {
            let got = Tensor::from_bytes(w.ty.clone(), m.clone()).expect("sizes agree");
            same(w, &got, &format!("{what}, compiled"));
        }
    }
}

/// Memory at the alignment that scratch and packed operands need.
struct Aligned {
    bytes: Vec<u8>,
    at: usize,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let bytes = vec![0xAA; len + SCRATCH_ALIGN];
        let at = bytes.as_ptr().align_offset(SCRATCH_ALIGN);
        Aligned { bytes, at, len }
    }

    fn slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.at..self.at + self.len]
    }
}

/// The kernel that the CPU target chooses, for operands known with every call and for operands known at load time;
/// gives its name.
fn check_target(compute: &Compute, args: &[Tensor], results: &[Type], what: &str) -> &'static str {
    let (types, result_types): (Vec<&Type>, Vec<&Type>) =
        (args.iter().map(|t| &t.ty).collect(), results.iter().collect());
    let want = interp::evaluate(compute, &args.iter().collect::<Vec<_>>(), &result_types);
    let (cpu, jit) = (Cpu::host(), Jit::new().expect("supported"));
    let mut name = "";
    for timing in [Timing::Call, Timing::Load] {
        let operands: Vec<Operand<'_>> = types.iter().map(|ty| Operand { ty, timing }).collect();
        let kernel = cpu.schedule("k", compute, &operands, &result_types);
        name = kernel.schedule_name();
        let code = CpuCode::compile(&jit, &cpu, &[&kernel], 1).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut memory: Vec<Aligned> = args
            .iter()
            .map(|t| {
                let mut a = Aligned::new(t.data.len());
                a.slice().copy_from_slice(&t.data);
                a
            })
            .chain(results.iter().map(|t| Aligned::new(t.bytes())))
            .collect();
        if let Some(p) = code.packed(0) {
            let mut packed = Aligned::new(p.bytes);
            // SAFETY: the packed form has the size asked for.
            unsafe { code.pack(0, memory[p.operand].slice().as_ptr(), packed.slice().as_mut_ptr()) };
            memory[p.operand] = packed;
        }
        let params: Vec<*mut u8> = memory.iter_mut().map(|m| m.slice().as_mut_ptr()).collect();
        let mut scratch = Aligned::new(code.scratch_bytes(0));
        let tasks = code.tasks(0);
        for range in [0..tasks / 3, tasks / 3..tasks] {
            // SAFETY: the parameters have the types that the kernel was scheduled for.
            unsafe { code.run(0, &params, range, scratch.slice()) };
        }
        for (w, m) in want.iter().zip(&mut memory[args.len()..]) {
            let got = Tensor::from_bytes(w.ty.clone(), m.slice().to_vec()).expect("sizes agree");
            same(w, &got, &format!("{what}, {name} {timing:?}\n{compute}"));
        }
    }
    name
}

fn check_op(op: impl Into<Op>, args: &[Type]) {
    let op = op.into();
    let types: Vec<&Type> = args.iter().collect();
    let results: Vec<Type> = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}")).into_iter().collect();
    let Body::Compute(c) = op.body(&types, &results.iter().collect::<Vec<_>>()) else { panic!("{op:?} is no compute") };
    check(&c, args, &results, &format!("{op:?} of {args:?}"));
}

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

#[test]
fn pointwise() {
    for shape in [&[][..], &[1], &[3], &[8], &[5, 7], &[2, 3, 4, 6], &[0], &[3, 0, 2], &[1, 37], &[131, 130]] {
        for d in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            check_op(ops::Unary { function: Unary::Tanh }, &[Type::new(d, shape)]);
        }
        for d in DType::ALL {
            check_op(ops::Binary { function: Binary::Max }, &[Type::new(d, shape), Type::new(d, shape)]);
            check_op(ops::Cast { to: DType::F32 }, &[Type::new(d, shape)]);
            check_op(ops::Cast { to: d }, &[f32s(shape)]);
        }
    }
}

/// Results of several types that are made together: a mean m + (g − m)/2 with the gradient stored the other way round, what it
/// leaves of a variable, and that in bf16.
pub(super) fn several([rows, columns]: [usize; 2], dtype: DType) -> (Compute, Vec<Type>, Vec<Type>) {
    let ty = Type::new(dtype, [rows, columns]);
    let operands = vec![Type::new(dtype, [columns, rows]), ty.clone(), ty.clone()];
    let mut c = Compute::new(&ty.shape);
    let position = c.position();
    let g = c.load(0, &operands[0], position.iter().rev().cloned().collect());
    let (m, w) = (c.load(1, &operands[1], position.clone()), c.load(2, &operands[2], position));
    let half = c.constant(Scalar::from_f64(dtype, 0.5));
    let moved = c.binary(Binary::Sub, g, m);
    let moved = c.binary(Binary::Mul, moved, half);
    let m = c.binary(Binary::Add, m, moved);
    let size = c.unary(Unary::Abs, m);
    let step = c.binary(Binary::Mul, m, size);
    let w = c.binary(Binary::Sub, w, step);
    let narrow = c.cast(DType::BF16, w);
    (c.with_results([w, m, narrow]), operands, vec![ty.clone(), ty.clone(), ty.with_dtype(DType::BF16)])
}

#[test]
fn several_results() {
    for extents in [[1, 1], [5, 7], [64, 48], [131, 130], [0, 3]] {
        for dtype in [DType::F32, DType::F64, DType::F16] {
            let (c, operands, results) = several(extents, dtype);
            check(&c, &operands, &results, &format!("several of {extents:?} {dtype}"));
        }
    }
}

#[test]
fn reductions() {
    let shapes: [(&[usize], &[usize]); 13] = [
        (&[5, 7], &[1]),
        (&[5, 7], &[0]),
        (&[5, 40], &[1]),
        (&[6, 64], &[1]),
        (&[40, 50], &[0]),
        (&[3, 4, 5], &[1, 2]),
        (&[3, 5, 8], &[1, 2]),
        (&[3, 5, 8], &[0, 2]),
        (&[2, 5, 6, 9], &[1, 2]),
        (&[2, 5, 6, 9], &[0, 3]),
        (&[11, 1], &[1]),
        (&[4, 0], &[1]),
        (&[0, 4], &[1]),
    ];
    for (shape, dims) in shapes {
        for d in [DType::F32, DType::F16, DType::F64, DType::I32, DType::Bool] {
            for function in [Reduce::Sum, Reduce::Max, Reduce::Min, Reduce::Prod] {
                check_op(ops::Reduce { function, dims: dims.to_vec() }, &[Type::new(d, shape)]);
            }
        }
    }
    for (shape, dim) in [(&[5usize, 9][..], 1), (&[9, 5], 0), (&[7, 1], 1), (&[3, 4, 6], 1)] {
        for d in [DType::F32, DType::F64, DType::I32, DType::U8] {
            check_op(ops::ArgMax { dim }, &[Type::new(d, shape)]);
        }
    }
}

#[test]
fn trees() {
    for count in [0usize, 1, 2, 3, 7, 8, 16, 17, 37, 64, 301] {
        for d in [DType::F32, DType::BF16, DType::F64, DType::I32] {
            for rest in [&[][..], &[3], &[5, 13], &[2, 40]] {
                let shape: Vec<usize> = std::iter::once(count).chain(rest.iter().copied()).collect();
                check_op(ops::TreeSum::of_leaves(count), &[Type::new(d, shape.as_slice())]);
            }
        }
    }
    for spans in [vec![4, 3], vec![1, 1, 2, 4, 1], vec![8]] {
        check_op(ops::TreeSum { spans: spans.clone() }, &[f32s(&[spans.len(), 21])]);
    }
}

#[test]
fn rows_with_statistics() {
    for shape in [&[3usize, 5][..], &[4, 64], &[2, 3, 33], &[7, 1], &[1, 8], &[6, 1000]] {
        let dim = shape.len() - 1;
        for d in [DType::F32, DType::BF16, DType::F64] {
            check_op(ops::Softmax { dim }, &[Type::new(d, shape)]);
            check_op(ops::LogSoftmax { dim }, &[Type::new(d, shape)]);
            check_op(ops::Softmax { dim: 0 }, &[Type::new(d, shape)]);
            check_op(ops::Standardize { dims: vec![dim], epsilon: 1e-3 }, &[Type::new(d, shape)]);
        }
    }
    check_op(ops::Standardize { dims: vec![1, 2, 3], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 5])]);
    check_op(ops::Standardize { dims: vec![0, 1, 2], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 40])]);
    check_op(ops::Standardize { dims: vec![1, 2, 4], epsilon: 1e-3 }, &[f32s(&[2, 3, 4, 2, 5])]);
}

#[test]
fn windows() {
    for (shape, size, stride, pad) in [
        ([2usize, 9, 8, 5], [3usize, 3], [2usize, 2], (1, 1)),
        ([1, 7, 7, 64], [2, 2], [2, 2], (0, 0)),
        ([2, 6, 5, 16], [3, 3], [1, 1], (1, 1)),
        ([1, 6, 6, 3], [5, 5], [1, 1], (2, 2)),
    ] {
        for function in [Reduce::Max, Reduce::Sum] {
            let op = ops::Pool {
                function,
                size: size.to_vec(),
                stride: stride.to_vec(),
                pads: vec![pad; 2],
                dilation: vec![1, 1],
                input_dilation: vec![1, 1],
            };
            check_op(op, &[f32s(&shape)]);
        }
        let channels = shape[3];
        let depthwise = ops::Conv {
            stride: stride.to_vec(),
            pads: vec![pad; 2],
            input_dilation: vec![1, 1],
            kernel_dilation: vec![1, 1],
            groups: channels,
            batch_groups: 1,
        };
        check_op(depthwise, &[f32s(&shape), f32s(&[size[0], size[1], 1, channels])]);
    }
}

#[test]
fn contractions_and_convolutions() {
    let matmul = ops::Contract { batch: vec![], contract: vec![(1, 0)] };
    for (m, k, n) in [(1, 1, 1), (3, 5, 7), (17, 16, 33), (2, 0, 4), (5, 64, 1)] {
        for d in [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32] {
            check_op(matmul.clone(), &[Type::new(d, [m, k]), Type::new(d, [k, n])]);
        }
    }
    let batched = ops::Contract { batch: vec![(0, 0), (2, 1)], contract: vec![(3, 3)] };
    check_op(batched, &[f32s(&[2, 5, 3, 4]), f32s(&[2, 3, 6, 4])]);
    for (groups, batch_groups, dilation) in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)] {
        let conv = ops::Conv {
            stride: vec![2, 1],
            pads: vec![(1, 0), (2, 1)],
            input_dilation: vec![dilation, 1],
            kernel_dilation: vec![1, 2],
            groups,
            batch_groups,
        };
        check_op(conv, &[f32s(&[2, 7, 6, 4]), f32s(&[3, 2, 4 / groups, 6])]);
    }
}

#[test]
fn movement() {
    check_op(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[9, 13])]);
    check_op(ops::Transpose { perm: vec![0, 2, 1, 3] }, &[f32s(&[2, 3, 5, 8])]);
    check_op(ops::Transpose { perm: vec![2, 0, 1] }, &[Type::new(DType::I8, [4, 5, 6])]);
    check_op(ops::Concat { dim: 1 }, &[f32s(&[3, 5]), f32s(&[3, 16]), f32s(&[3, 1]), f32s(&[3, 9])]);
    check_op(ops::Concat { dim: 0 }, &[f32s(&[3, 5]), f32s(&[2, 5])]);
    check_op(ops::Reverse { dims: vec![0, 1] }, &[f32s(&[4, 9])]);
    check_op(ops::StopGradient {}, &[f32s(&[4, 9])]);
    for d in [DType::I32, DType::I64, DType::U8] {
        let (table, at) = (f32s(&[6, 10]), Type::new(d, [2, 5]));
        check_op(ops::Take { base: 0 }, &[table.clone(), at.clone()]);
        check_op(ops::Take { base: 2 }, &[table, at.clone()]);
        check_op(ops::TakeEach {}, &[f32s(&[2, 6, 5, 3]), at.clone()]);
        check_op(ops::Take { base: 0 }, &[f32s(&[9]), at]);
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        check_op(ops::Iota { dim: 1, start: 3, dtype, shape: [3, 10].into() }, &[]);
    }
    for shape in [&[][..], &[3, 10], &[2, 1, 37], &[64]] {
        check_op(ops::Random::whole(0x0123_4567_89ab_cdef, &shape.into()), &[Type::new(DType::U32, [])]);
    }
    // Across the 32nd bit of the index.
    let far = ops::Random::whole(5, &[4, 8].into());
    check_op(ops::Random { start: vec![(1 << 29) - 2, 0], ..far }, &[Type::new(DType::U32, [])]);
}

/// The compute of an op, and its result types.
fn compute_of(op: impl Into<Op>, args: &[Type]) -> (Compute, Vec<Type>) {
    let op = op.into();
    let types: Vec<&Type> = args.iter().collect();
    let results: Vec<Type> = op.infer(&types).unwrap_or_else(|e| panic!("{op:?}: {e}")).into_iter().collect();
    let Body::Compute(c) = op.body(&types, &results.iter().collect::<Vec<_>>()) else { panic!("{op:?} is no compute") };
    (c, results)
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
    // Operand 0 is replaced; the others keep their numbers, so the product's come after them.
    let fused = c.inline(0, product, 0, &|o| 3 + o);
    let fused = fused.renumber(&|o| if o >= 3 { o - 3 } else { n_args + o - 1 });
    (fused, vec![bias_ty, ty.clone()])
}

#[test]
fn epilogues() {
    let matmul = ops::Contract { batch: vec![], contract: vec![(1, 0)] };
    let conv = |stride: usize, pad: i64, groups: usize| ops::Conv {
        stride: vec![stride; 2],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups,
        batch_groups: 1,
    };
    let batched = ops::Contract { batch: vec![(0, 0), (2, 2)], contract: vec![(3, 3)] };
    let cases: Vec<(Op, Vec<Type>)> = vec![
        (matmul.clone().into(), vec![f32s(&[5, 7]), f32s(&[7, 9])]),
        (matmul.clone().into(), vec![f32s(&[1, 64]), f32s(&[64, 100])]),
        (matmul.into(), vec![Type::new(DType::F64, [6, 5]), Type::new(DType::F64, [5, 4])]),
        (batched.into(), vec![f32s(&[2, 5, 3, 4]), f32s(&[2, 6, 3, 4])]),
        (conv(1, 1, 1).into(), vec![f32s(&[2, 6, 5, 4]), f32s(&[3, 3, 4, 6])]),
        (conv(2, 0, 1).into(), vec![f32s(&[2, 6, 5, 4]), f32s(&[1, 1, 4, 8])]),
        (conv(2, 3, 1).into(), vec![f32s(&[1, 11, 12, 3]), f32s(&[7, 7, 3, 16])]),
        (conv(1, 1, 2).into(), vec![f32s(&[2, 4, 4, 6]), f32s(&[3, 3, 3, 8])]),
    ];
    let narrow = |d: DType| {
        let f32_alone = cases.iter().filter(|(_, args)| args[0].dtype == DType::F32);
        f32_alone.map(move |(op, args)| (op.clone(), args.iter().map(|t| t.with_dtype(d)).collect::<Vec<_>>()))
    };
    let more: Vec<(Op, Vec<Type>)> = narrow(DType::F16).chain(narrow(DType::BF16)).collect();
    for (op, args) in cases.into_iter().chain(more) {
        let (product, results) = compute_of(op.clone(), &args);
        let (fused, more) = with_epilogue(&product, args.len(), &results[0]);
        let tensors: Vec<Tensor> = args.iter().chain(&more).enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
        let what = format!("{op:?} of {args:?} with an epilogue");
        assert_eq!(check_target(&product, &tensors[..args.len()], &results, &what), "contraction", "{what}");
        assert_eq!(check_target(&fused, &tensors, &results, &what), "contraction", "{what} fused");
    }
}

#[test]
fn products_are_recognised() {
    for (stride, dilation, input_dilation, groups, batch_groups) in
        [(1, 1, 1, 1, 1), (2, 1, 1, 1, 1), (1, 2, 1, 2, 1), (1, 1, 2, 1, 1), (2, 1, 3, 1, 1), (1, 1, 1, 1, 2)]
    {
        let conv = ops::Conv {
            stride: vec![stride, 1],
            pads: vec![(2, 1), (1, 2)],
            input_dilation: vec![input_dilation, 1],
            kernel_dilation: vec![dilation, 1],
            groups,
            batch_groups,
        };
        for d in [DType::F32, DType::F16, DType::BF16] {
            let args = [Type::new(d, [2, 7, 6, 4]), Type::new(d, [3, 2, 4 / groups, 6])];
            let (c, results) = compute_of(conv.clone(), &args);
            let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
            assert_eq!(check_target(&c, &tensors, &results, &format!("{conv:?}")), "contraction", "{conv:?}");
        }
    }
}

/// A tree over the first dimension of a product's result, as fusion makes it.
fn added_up(product: &Compute, partial: &Type) -> (Compute, Vec<Type>) {
    let (tree, results) = compute_of(ops::TreeSum::of_leaves(partial.shape[0]), std::slice::from_ref(partial));
    (tree.inline(0, product, 0, &|o| 1 + o).renumber(&|o| o - 1), results)
}

#[test]
fn trees_of_products() {
    for (blocks, rows, m, n) in
        [(8, 16, 30, 40), (7, 3, 5, 33), (2, 300, 17, 20), (1, 9, 4, 8), (8, 1, 9, 16), (5, 13, 1, 3)]
    {
        for d in [DType::F32, DType::F64] {
            let args = [Type::new(d, [blocks, rows, m]), Type::new(d, [blocks, rows, n])];
            let (product, partial) = compute_of(ops::Contract { batch: vec![(0, 0)], contract: vec![(1, 1)] }, &args);
            let (fused, results) = added_up(&product, &partial[0]);
            let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
            let what = format!("{blocks} blocks of {args:?}");
            assert_eq!(check_target(&fused, &tensors, &results, &what), "contraction", "{what}");
        }
    }
}

/// Blocks that the rows don't fill: both factors are zero beyond the last row.
#[test]
fn trees_of_padded_products() {
    for (total, rows, m, n) in [(100, 13, 30, 40), (9, 2, 5, 33), (23, 3, 16, 16)] {
        let blocks = (total as usize).div_ceil(rows as usize);
        let args = [f32s(&[total as usize, m]), f32s(&[total as usize, n])];
        let mut c = Compute::new(&[m, n].into());
        let (t, s) = (c.reduce_axis(blocks), c.reduce_axis(rows as usize));
        let at = Index::axis(t).times(rows) + Index::axis(s);
        let inside = vec![Guard { index: at.clone(), lo: 0, hi: total }];
        let zero = Scalar::zero(DType::F32);
        let [x, y] = [0, 1].map(|i| {
            let index = vec![at.clone(), Index::axis(Axis(i as u8))];
            c.load_guarded(i, &args[i], index, inside.clone(), zero)
        });
        let product = c.binary(Binary::Mul, x, y);
        let chain = c.reduce(Reduce::Sum, vec![s], Order::Fma, product);
        let sum = c.reduce(Reduce::Sum, vec![t], Order::Tree, chain);
        let c = c.with_results([sum]);
        let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
        let results = [f32s(&[m, n])];
        assert_eq!(check_target(&c, &tensors, &results, &format!("{total} rows")), "contraction", "{total} rows");
    }
}

/// Kernel gradients of convolutions, the rows in blocks that they may not fill.
#[test]
fn trees_of_kernel_gradients() {
    for (total, rows, side, pad, stride, channels, outputs) in [
        (6i64, 3i64, 9usize, 0i64, 1i64, 4usize, 6usize),
        (7, 2, 8, 1, 1, 17, 16),
        (8, 1, 16, 1, 2, 3, 20),
        (16, 2, 2, 1, 1, 8, 9),
    ] {
        let (kernel, blocks) = (3usize, (total as usize).div_ceil(rows as usize));
        let out = (side + 2 * pad as usize - kernel) / stride as usize + 1;
        let args = [f32s(&[total as usize, side, channels]), f32s(&[total as usize, out, outputs])];
        let mut c = Compute::new(&[kernel, channels, outputs].into());
        let (t, p, s) = (c.reduce_axis(blocks), c.reduce_axis(out), c.reduce_axis(rows as usize));
        let [k, channel, output] = [0, 1, 2].map(|a| Index::axis(Axis(a)));
        for order in [[s, p], [p, s]] {
            let mut c = c.clone();
            let row = Index::axis(t).times(rows) + Index::axis(s);
            let at = Index::axis(p).times(stride) + k.clone().plus(-pad);
            let inside = Guard { index: row.clone(), lo: 0, hi: total };
            let window = Guard { index: at.clone(), lo: 0, hi: side as i64 };
            let zero = Scalar::zero(DType::F32);
            let index = vec![row.clone(), at, channel.clone()];
            let x = c.load_guarded(0, &args[0], index, vec![inside.clone(), window], zero);
            let index = vec![row, Index::axis(p), output.clone()];
            let y = c.load_guarded(1, &args[1], index, vec![inside], zero);
            let product = c.binary(Binary::Mul, x, y);
            let chain = c.reduce(Reduce::Sum, order.to_vec(), Order::Fma, product);
            let sum = c.reduce(Reduce::Sum, vec![t], Order::Tree, chain);
            let c = c.with_results([sum]);
            let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
            let what = format!("{total} rows of {side}, {order:?}");
            let results = [f32s(&[kernel, channels, outputs])];
            let fits = total % rows == 0 || order[0] == s;
            let expected = if fits { "contraction" } else { "loops" };
            assert_eq!(check_target(&c, &tensors, &results, &what), expected, "{what}");
        }
    }
}

#[test]
fn trees_of_reductions() {
    for (shape, dims) in [(&[8usize, 4, 5, 6, 7][..], &[1usize, 2, 3][..]), (&[5, 3, 40], &[1]), (&[8, 6, 9], &[1, 2])]
    {
        let reduce = ops::Reduce { function: Reduce::Sum, dims: dims.to_vec() };
        let args = [f32s(shape)];
        let (sums, partial) = compute_of(reduce, &args);
        let (fused, results) = added_up(&sums, &partial[0]);
        check(&fused, &args, &results, &format!("a tree of sums of {shape:?}"));
    }
}

/// A product of 16 bits whose result is widened again: the sums are in the f32 result, rounded all the same.
#[test]
fn widened_products() {
    let matmul = ops::Contract { batch: vec![], contract: vec![(1, 0)] };
    for d in [DType::F16, DType::BF16] {
        let args = [Type::new(d, [5, 40]), Type::new(d, [40, 19])];
        let (product, results) = compute_of(matmul.clone(), &args);
        let mut c = Compute::new(&results[0].shape);
        let y = c.load(0, &results[0], c.position());
        let y = c.cast(DType::F32, y);
        let c = c.with_results([y]);
        let fused = c.inline(0, &product, 0, &|o| 1 + o).renumber(&|o| o - 1);
        let tensors: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| tensor(t, i as u64 + 1)).collect();
        let results = [results[0].with_dtype(DType::F32)];
        assert_eq!(check_target(&fused, &tensors, &results, "widened"), "contraction", "{d}");
    }
}
