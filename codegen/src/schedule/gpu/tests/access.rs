//! What accesses are: 16 bytes where they can be, right at the ends of axes and past 2^31.

use super::{Which, check_fast, compute_of, f32s, schedule};
use intwain_emulator::{AddressSpace, Arg, Device, Module};
use intwain_ir::kernel::{Block, Entry, Inst, Kernel, Place, Stmt};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Type};

/// The instructions and statements of a kernel.
fn accesses(k: &Kernel) -> Vec<(Place, usize)> {
    fn walk(k: &Kernel, b: &Block, found: &mut Vec<(Place, usize)>) {
        for s in &b.0 {
            match s {
                Stmt::Let(r, Inst::Load { from, .. }) => found.push((*from, k.regs[*r].lanes as usize)),
                Stmt::Store { to, value, .. } => found.push((*to, k.regs[*value].lanes as usize)),
                Stmt::If { then, otherwise, .. } => {
                    walk(k, then, found);
                    walk(k, otherwise, found);
                }
                Stmt::For(l) => walk(k, &l.body, found),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    walk(k, &k.body, &mut found);
    found
}

/// Whether all accesses to parameters are of 16 bytes.
fn is_wide(op: impl Into<Op>, args: &[Type]) {
    let op = op.into();
    let (c, results) = compute_of(op.clone(), args);
    let k = schedule(Which::Fast, "k", &c, args, &results);
    for l in &k.launches {
        for (place, lanes) in accesses(&l.kernel) {
            let Place::Param(i) = place else { continue };
            let p = &l.kernel.params[i as usize];
            let bytes = lanes * p.dtype.size();
            assert_eq!(bytes, 16, "{op:?} of {args:?}, {}: {bytes} bytes at {place}\n{}", k.schedule, l.kernel);
        }
    }
}

#[test]
fn accesses_are_16_bytes_wide_where_they_can_be() {
    for d in [DType::F32, DType::F16, DType::BF16, DType::I32, DType::F64] {
        let ty = |shape: &[usize]| Type::new(d, shape);
        is_wide(ops::Binary { function: Binary::Add }, &[ty(&[12, 16]), ty(&[12, 16])]);
        is_wide(ops::Binary { function: Binary::Add }, &[ty(&[3000, 1024]), ty(&[3000, 1024])]);
        is_wide(ops::Concat { dim: 1 }, &[ty(&[5, 8]), ty(&[5, 24]), ty(&[5, 16])]);
        is_wide(ops::Concat { dim: 0 }, &[ty(&[5, 8]), ty(&[7, 8])]);
        is_wide(ops::Transpose { perm: vec![0, 2, 1, 3] }, &[ty(&[2, 3, 5, 64])]);
        is_wide(ops::Transpose { perm: vec![1, 0] }, &[ty(&[64, 128])]);
        if d.is_float() {
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 64])]);
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 1000])]);
            is_wide(ops::Softmax { dim: 1 }, &[ty(&[5, 4096])]);
            is_wide(ops::Standardize { dims: vec![1], epsilon: 1e-3 }, &[ty(&[5, 768])]);
        }
    }
    let pool = ops::Pool {
        function: Reduce::Max,
        size: vec![3, 3],
        stride: vec![2, 2],
        pads: vec![(1, 1), (1, 1)],
        dilation: vec![1, 1],
        input_dilation: vec![1, 1],
    };
    is_wide(pool, &[f32s(&[2, 9, 9, 64])]);
    // The table's rows and the result; positions are single elements.
    let args = [f32s(&[50, 64]), Type::new(DType::I32, [7])];
    let (c, results) = compute_of(ops::Take { base: 0 }, &args);
    let k = schedule(Which::Fast, "k", &c, &args, &results);
    let lanes: Vec<usize> = accesses(&k.launches[0].kernel).into_iter().map(|a| a.1).collect();
    assert_eq!(lanes, [1, 4, 4]);
}

#[test]
fn adversarial_shapes() {
    for n in [1, 2, 3, 7, 31, 32, 33, 127, 128, 129, 255, 257, 1021, 1024] {
        check_fast(ops::Unary { function: Unary::Neg }, &[f32s(&[n])], 0.0);
        check_fast(ops::Unary { function: Unary::Neg }, &[Type::new(DType::I8, [n])], 0.0);
        check_fast(ops::Binary { function: Binary::Add }, &[f32s(&[3, n]), f32s(&[3, n])], 0.0);
        check_fast(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[n, 19])], 0.0);
        check_fast(ops::Transpose { perm: vec![1, 0] }, &[Type::new(DType::F16, [24, n])], 0.0);
        check_fast(ops::Concat { dim: 1 }, &[f32s(&[3, n]), f32s(&[3, 5]), f32s(&[3, 8])], 0.0);
        for d in [DType::I32, DType::U8, DType::I64, DType::Bool] {
            for function in [Reduce::Sum, Reduce::Max, Reduce::Prod] {
                let reduce = |dim: usize| ops::Reduce { function, dims: vec![dim] };
                check_fast(reduce(1), &[Type::new(d, [5, n])], 0.0);
                check_fast(reduce(0), &[Type::new(d, [n, 6])], 0.0);
            }
        }
        for shape in [&[5, n][..], &[n, 6]] {
            check_fast(ops::Softmax { dim: 1 }, &[f32s(shape)], 1e-6);
            check_fast(ops::Softmax { dim: 0 }, &[f32s(shape)], 1e-6);
            check_fast(ops::ArgMax { dim: 0 }, &[f32s(shape)], 0.0);
            check_fast(ops::ArgMax { dim: 1 }, &[f32s(shape)], 0.0);
        }
    }
}

#[test]
fn more_rows_than_a_launch_has_along_y() {
    let tall = f32s(&[66_001, 5]);
    for op in [Op::from(ops::Softmax { dim: 1 }), ops::Reduce { function: Reduce::Max, dims: vec![1] }.into()] {
        check_fast(op, std::slice::from_ref(&tall), 1e-6);
    }
    check_fast(ops::Reduce { function: Reduce::Max, dims: vec![1] }, &[f32s(&[66_001, 33])], 0.0);
    check_fast(ops::Reduce { function: Reduce::Max, dims: vec![0] }, &[f32s(&[66_001, 5])], 0.0);
    check_fast(ops::Transpose { perm: vec![1, 0] }, &[f32s(&[66_001, 17])], 0.0);
}

/// Runs the last block of a kernel whose tensors have more than 2^31 elements, of which memory holds those given, and
/// gives the elements of the result asked for.
fn last_block(op: impl Into<Op>, ty: &Type, filled: &[(usize, Vec<f32>)], wanted: &[(usize, usize)]) -> Vec<Vec<f32>> {
    let (c, results) = compute_of(op, std::slice::from_ref(ty));
    let k = schedule(Which::Fast, "k", &c, std::slice::from_ref(ty), &results);
    let [launch] = &k.launches[..] else { panic!("{} has several launches", k.schedule) };
    let Entry::Grid { blocks, threads } = launch.kernel.entry else { panic!("not a GPU kernel") };
    let text = crate::ptx::module(&[&launch.kernel]).unwrap();
    assert!(text.contains("%ctaid.x"), "{text}");
    let text = text.replace("%ctaid.x", &(blocks[0] - 1).to_string());
    let device = Device::new(&AddressSpace::default(), 0);
    let [x, y] = [ty, &results[0]].map(|t| device.alloc(t.bytes() as u64).unwrap());
    for (at, values) in filled {
        let data: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        device.write(x + 4 * *at as u64, &data).unwrap();
    }
    let module = Module::parse(&text).unwrap();
    let shape =
        intwain_emulator::Launch { grid: [1, 1, 1], block: threads, shared: launch.kernel.buffer_offsets().1 as u32 };
    device.launch(&module, "k", shape, &[Arg::U64(x), Arg::U64(y)]).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let read = |&(at, n): &(usize, usize)| {
        let mut data = vec![0; 4 * n];
        device.read(y + 4 * at as u64, &mut data).unwrap();
        data.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    wanted.iter().map(read).collect()
}

#[test]
fn offsets_past_two_to_the_31() {
    let value = |i: usize| (i % 1013) as f32;
    let values = |at: usize, n: usize| (at, (at..at + n).map(value).collect::<Vec<f32>>());
    let n = (1 << 31) + 776;
    let got =
        last_block(ops::Unary { function: Unary::Neg }, &f32s(&[n]), &[values(n - 8192, 8192)], &[(n - 700, 700)]);
    assert!(got[0].iter().zip(n - 700..).all(|(&y, i)| y == -value(i)));

    let rows = (1 << 21) + 3;
    let start = (rows - 1) * 1024;
    let sum = ops::Reduce { function: Reduce::Max, dims: vec![1] };
    let got = last_block(sum, &f32s(&[rows, 1024]), &[values(start - 4096, 5120)], &[(rows - 1, 1)]);
    assert_eq!(got[0], [1012.0]);
    let norm = ops::Standardize { dims: vec![1], epsilon: 1e-3 };
    let got = last_block(norm, &f32s(&[rows, 1024]), &[values(start - 4096, 5120)], &[(start, 1024)]);
    assert!(got[0].iter().sum::<f32>().abs() < 1e-3);

    let (high, wide) = ((1 << 16) + 40, (1 << 15) + 24);
    let filled: Vec<_> = (high - 104..high).map(|r| values(r * wide + wide - 56, 56)).collect();
    let wanted: Vec<_> = (wide - 24..wide).map(|c| (c * high + high - 40, 40)).collect();
    let got = last_block(ops::Transpose { perm: vec![1, 0] }, &f32s(&[high, wide]), &filled, &wanted);
    for (line, c) in got.iter().zip(wide - 24..) {
        assert!(line.iter().zip(high - 40..).all(|(&y, r)| y == value(r * wide + c)));
    }
}
