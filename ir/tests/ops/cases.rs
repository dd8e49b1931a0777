//! One generator of cases for every operation, and random tensors.

use crate::bodies;
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Graph, Rows, Scalar, Shape, Tensor, Type};
use std::sync::Arc;

/// A seeded generator (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in lo..hi.
    pub(crate) fn real(&mut self, lo: f64, hi: f64) -> f64 {
        lo + (hi - lo) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in 0..n.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }
}

/// What an operand is filled with.
#[derive(Clone, Copy)]
pub(crate) enum Fill {
    /// Numbers of a range.
    Real(DType, f64, f64),
    /// Integers of a range, upper bound exclusive.
    Int(DType, i64, i64),
    /// Booleans.
    Bool,
    /// Numbers of a range, every third 0.
    Zeros(f64, f64),
}

impl Fill {
    pub(crate) fn tensor(self, shape: &[usize], random: &mut Random) -> Tensor {
        let n: usize = shape.iter().product();
        let (dtype, elements): (DType, Vec<Scalar>) = match self {
            Fill::Real(d, lo, hi) => (d, (0..n).map(|_| Scalar::from_f64(d, random.real(lo, hi))).collect()),
            Fill::Int(d, lo, hi) => {
                (d, (0..n).map(|_| Scalar::from_i64(d, lo + random.below((hi - lo) as usize) as i64)).collect())
            }
            Fill::Bool => {
                (DType::Bool, (0..n).map(|_| Scalar::from_i64(DType::Bool, random.below(2) as i64)).collect())
            }
            Fill::Zeros(lo, hi) => {
                let number = |i: usize, x: f64| Scalar::from_f64(DType::F64, if i % 3 == 1 { 0.0 } else { x });
                (DType::F64, (0..n).map(|i| number(i, random.real(lo, hi))).collect())
            }
        };
        let mut t = Tensor::zeros(Type::new(dtype, shape));
        elements.into_iter().enumerate().for_each(|(i, x)| t.set(i, x));
        t
    }
}

/// An operation with operands.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) op: Op,
    pub(crate) args: Vec<Tensor>,
}

impl Case {
    /// The operation alone in a graph, its operands inputs and its results outputs.
    pub(crate) fn graph(&self) -> Graph {
        let mut g = Graph::new(&self.name);
        let args: Vec<_> =
            (0..self.args.len()).map(|i| g.input(&format!("x{i}"), self.args[i].ty.clone(), Rows::Whole)).collect();
        let results = g.push_all(self.op.clone(), &args).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        for (i, r) in results.into_iter().enumerate() {
            g.output(&format!("y{i}"), r);
        }
        g
    }

    pub(crate) fn types(&self) -> Vec<&Type> {
        self.args.iter().map(|a| &a.ty).collect()
    }
}

struct Cases {
    all: Vec<Case>,
    random: Random,
}

impl Cases {
    fn add(&mut self, note: &str, op: impl Into<Op>, args: &[(&[usize], Fill)]) {
        let op = op.into();
        let name = format!("{} {note}", op.name()).trim_end().to_string();
        let args = args.iter().map(|(shape, fill)| fill.tensor(shape, &mut self.random)).collect();
        self.all.push(Case { name, op, args });
    }
}

const R: Fill = Fill::Real(DType::F64, -1.5, 1.5);

fn real(lo: f64, hi: f64) -> Fill {
    Fill::Real(DType::F64, lo, hi)
}

fn ids(below: i64) -> Fill {
    Fill::Int(DType::I32, 0, below)
}

/// Operations that only move data between devices; cases of their own run them on devices.
pub(crate) const COMMUNICATION: &[&str] =
    &["all_gather", "all_reduce", "all_to_all", "bucket", "recv", "reduce_scatter", "reshard", "send"];

/// Cases of every operation that computes.
pub(crate) fn cases() -> Vec<Case> {
    let mut c = Cases { all: Vec::new(), random: Random::new(2024) };
    pointwise(&mut c);
    movement(&mut c);
    reductions(&mut c);
    contractions(&mut c);
    windows(&mut c);
    tables(&mut c);
    scans(&mut c);
    for name in Op::NAMES {
        let known = COMMUNICATION.contains(name) || c.all.iter().any(|case| case.op.name() == *name);
        assert!(known, "operation `{name}` has no test case");
    }
    c.all
}

/// Cases whose name begins so.
pub(crate) fn cases_of(prefix: &str) -> Vec<Case> {
    cases().into_iter().filter(|c| c.name.starts_with(prefix)).collect()
}

/// Where a function of one value is smooth and defined.
fn domain(function: Unary) -> Fill {
    match function {
        Unary::Sqrt | Unary::Rsqrt | Unary::Log => real(0.3, 3.0),
        Unary::Log1p => real(-0.6, 2.0),
        Unary::Asin | Unary::Acos | Unary::Atanh => real(-0.8, 0.8),
        Unary::Acosh => real(1.3, 3.0),
        Unary::Neg
        | Unary::Abs
        | Unary::Sign
        | Unary::Floor
        | Unary::Ceil
        | Unary::Round
        | Unary::Trunc
        | Unary::Exp
        | Unary::Expm1
        | Unary::Tanh
        | Unary::Logistic
        | Unary::Erf
        | Unary::Sin
        | Unary::Cos
        | Unary::Tan
        | Unary::Sinh
        | Unary::Cosh
        | Unary::Atan
        | Unary::Asinh
        | Unary::Not
        | Unary::IsNan
        | Unary::IsFinite => real(-1.4, 1.4),
    }
}

fn pointwise(c: &mut Cases) {
    for &function in Unary::ALL {
        let fill = if function == Unary::Not { Fill::Bool } else { domain(function) };
        c.add(function.name(), ops::Unary { function }, &[(&[5, 2], fill)]);
    }
    for &function in Binary::ALL {
        let fill = match function {
            Binary::And | Binary::Or | Binary::Xor => Fill::Bool,
            Binary::Shl | Binary::Shr => Fill::Int(DType::I32, 0, 9),
            Binary::Pow => real(0.4, 2.5),
            _ => R,
        };
        // Away from 0 in the divisor.
        let second = match function {
            Binary::Div | Binary::FloorDiv | Binary::Mod | Binary::Atan2 => real(0.6, 2.2),
            _ => fill,
        };
        c.add(function.name(), ops::Binary { function }, &[(&[5, 2], fill), (&[5, 2], second)]);
    }
    for &relation in Compare::ALL {
        c.add(relation.name(), ops::Compare { relation }, &[(&[5, 2], R), (&[5, 2], R)]);
    }
    c.add("", ops::Select {}, &[(&[5, 3], Fill::Bool), (&[5, 3], R), (&[5, 3], R)]);
    c.add("same", ops::Cast { to: DType::F64 }, &[(&[4, 2], R)]);
    c.add("to int", ops::Cast { to: DType::I32 }, &[(&[4, 2], real(-9.0, 9.0))]);
    c.add("from int", ops::Cast { to: DType::F64 }, &[(&[4, 2], Fill::Int(DType::I32, -9, 9))]);
    c.add("narrow", ops::Cast { to: DType::F32 }, &[(&[4, 2], R)]);
    c.add("widen", ops::Cast { to: DType::F64 }, &[(&[4, 2], Fill::Real(DType::F32, -1.0, 1.0))]);
    let one = vec![Scalar::from_f64(DType::F64, 2.5)];
    c.add("filled", ops::Constant { shape: Shape::from([4, 3]), elements: one }, &[]);
    let elements = (0..6).map(|i| Scalar::from_f64(DType::F64, f64::from(i) - 2.25)).collect();
    c.add("listed", ops::Constant { shape: Shape::from([3, 2]), elements }, &[]);
    for dim in 0..2 {
        let iota = ops::Iota { dtype: DType::F64, shape: Shape::from([4, 3]), dim, start: -1 };
        c.add(&format!("dim {dim}"), iota, &[]);
    }
    c.add("each", ops::TakeEach {}, &[(&[3, 5, 2], R), (&[3, 4], Fill::Int(DType::I32, -1, 6))]);
    let step = Fill::Int(DType::U32, 3, 4);
    c.add("whole", ops::Random::whole(77, &Shape::from([4, 3])), &[(&[], step)]);
    let part =
        ops::Random { start: vec![5, 1], extents: Shape::from([9, 6]), ..ops::Random::whole(1 << 40, &[4, 3].into()) };
    c.add("part", part, &[(&[], step)]);
}

fn movement(c: &mut Cases) {
    let broadcast = |shape: &[usize], dims: &[usize]| ops::Broadcast { shape: Shape::from(shape), dims: dims.to_vec() };
    c.add("scalar", broadcast(&[3, 2], &[]), &[(&[], R)]);
    c.add("rows", broadcast(&[4, 5, 3], &[0, 2]), &[(&[4, 3], R)]);
    c.add("unit", broadcast(&[4, 5, 3], &[0, 1, 2]), &[(&[4, 1, 3], R)]);
    c.add("to empty", broadcast(&[0, 3], &[0, 1]), &[(&[1, 3], R)]);
    for dim in 0..3 {
        let shape = |n: usize| -> Vec<usize> { (0..3).map(|d| if d == dim { n } else { [4, 3, 2][d] }).collect() };
        let args = [shape(2), shape(1), shape(0), shape(5), shape(3), shape(1)];
        let args: Vec<(&[usize], Fill)> = args.iter().map(|s| (s.as_slice(), R)).collect();
        c.add(&format!("dim {dim}"), ops::Concat { dim }, &args);
        c.add(&format!("pair dim {dim}"), ops::Concat { dim }, &args[..2]);
    }
    c.add("one", ops::Concat { dim: 0 }, &[(&[3, 2], R)]);
    for (dim, size) in [(0, 2), (0, 3), (0, 7), (0, 9), (1, 4), (1, 3)] {
        c.add(&format!("of {size} in {dim}"), ops::Blocks { dim, size }, &[(&[7, 4], R)]);
    }
    c.add("of nothing", ops::Blocks { dim: 0, size: 3 }, &[(&[0, 2], R)]);
    let slice = |b: &[(usize, usize, usize)]| ops::Slice {
        start: b.iter().map(|x| x.0).collect(),
        limit: b.iter().map(|x| x.1).collect(),
        stride: b.iter().map(|x| x.2).collect(),
    };
    c.add("whole and part", slice(&[(0, 4, 1), (1, 6, 1)]), &[(&[4, 7], R)]);
    c.add("strides", slice(&[(1, 9, 3), (0, 7, 2), (0, 3, 1)]), &[(&[9, 7, 3], R)]);
    c.add("empty", slice(&[(2, 2, 1), (0, 3, 1)]), &[(&[4, 3], R)]);
    let pad = |low: &[i64], high: &[i64], interior: &[usize], x: f64| ops::Pad {
        low: low.to_vec(),
        high: high.to_vec(),
        interior: interior.to_vec(),
        value: vec![Scalar::from_f64(DType::F64, x)],
    };
    c.add("edges", pad(&[0, 2], &[0, 1], &[0, 0], 0.0), &[(&[4, 3], R)]);
    c.add("interior", pad(&[1, 0, 0], &[2, 0, 3], &[2, 0, 1], 0.5), &[(&[3, 2, 3], R)]);
    c.add("crop", pad(&[-1, -2], &[-2, 1], &[0, 0], 0.0), &[(&[6, 5], R)]);
    c.add("crop interior", pad(&[-2, 1], &[-3, -2], &[2, 1], 0.0), &[(&[4, 4], R)]);
    c.add("of empty", pad(&[2, 0], &[1, 0], &[3, 0], 1.0), &[(&[0, 2], R)]);
    c.add("with -inf", pad(&[0, 1], &[0, 0], &[0, 0], f64::NEG_INFINITY), &[(&[3, 3], R)]);
    let reshape = |shape: &[usize]| ops::Reshape { shape: Shape::from(shape) };
    c.add("split heads", reshape(&[3, 4, 2, 5]), &[(&[3, 4, 10], R)]);
    c.add("merge heads", reshape(&[3, 4, 10]), &[(&[3, 4, 2, 5], R)]);
    c.add("flatten", reshape(&[12, 5]), &[(&[4, 3, 5], R)]);
    c.add("unflatten", reshape(&[4, 3, 5]), &[(&[12, 5], R)]);
    c.add("regroup", reshape(&[4, 9]), &[(&[6, 6], R)]);
    c.add("units", reshape(&[1, 4, 1, 6]), &[(&[4, 1, 6, 1], R)]);
    c.add("empty", reshape(&[0, 5]), &[(&[3, 0], R)]);
    c.add("scalar", reshape(&[]), &[(&[1, 1], R)]);
    for perm in [vec![1, 0, 2], vec![2, 0, 1], vec![2, 1, 0], vec![0, 1, 2]] {
        c.add(&format!("{perm:?}"), ops::Transpose { perm }, &[(&[4, 3, 2], R)]);
    }
    for dims in [vec![0], vec![1, 2], vec![]] {
        c.add(&format!("{dims:?}"), ops::Reverse { dims }, &[(&[4, 3, 2], R)]);
    }
    c.add("unit", ops::Reverse { dims: vec![1] }, &[(&[4, 1], R)]);
    c.add("of rank 3", ops::StopGradient {}, &[(&[4, 3, 2], R)]);
    c.add("of a scalar", ops::StopGradient {}, &[(&[], R)]);
}

fn reductions(c: &mut Cases) {
    for &function in Reduce::ALL {
        for dims in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1, 2], vec![]] {
            let note = format!("{} {dims:?}", function.name());
            c.add(&note, ops::Reduce { function, dims }, &[(&[4, 3, 11], real(0.5, 1.5))]);
        }
        c.add(&format!("{} of nothing", function.name()), ops::Reduce { function, dims: vec![1] }, &[(&[4, 0], R)]);
    }
    c.add(
        "prod with zeros",
        ops::Reduce { function: Reduce::Prod, dims: vec![1] },
        &[(&[5, 2], Fill::Zeros(0.5, 1.5))],
    );
    c.add(
        "prod all zeros",
        ops::Reduce { function: Reduce::Prod, dims: vec![0, 1] },
        &[(&[5, 2], Fill::Zeros(0.5, 1.5))],
    );
    c.add("any", ops::Reduce { function: Reduce::Sum, dims: vec![1] }, &[(&[4, 3], Fill::Bool)]);
    c.add("max int", ops::Reduce { function: Reduce::Max, dims: vec![0] }, &[(&[4, 3], Fill::Int(DType::I32, -9, 9))]);
    let half = Fill::Real(DType::BF16, -1.0, 1.0);
    c.add("sum bf16", ops::Reduce { function: Reduce::Sum, dims: vec![1] }, &[(&[4, 6], half)]);
    for spans in [vec![1; 5], vec![1], vec![4, 2, 1], vec![1, 1, 2, 3], vec![6]] {
        let rows = spans.len();
        c.add(&format!("{spans:?}"), ops::TreeSum { spans }, &[(&[rows, 3, 4], R)]);
    }
    c.add("of nothing", ops::TreeSum { spans: Vec::new() }, &[(&[0, 4], R)]);
    c.add("bf16", ops::TreeSum::of_leaves(6), &[(&[6, 4], half)]);
    for dim in 0..3 {
        c.add(&format!("dim {dim}"), ops::ArgMax { dim }, &[(&[4, 3, 2], R)]);
        c.add(&format!("dim {dim}"), ops::Softmax { dim }, &[(&[4, 3, 10], R)]);
        c.add(&format!("dim {dim}"), ops::LogSoftmax { dim }, &[(&[4, 3, 10], R)]);
    }
    for dims in [vec![0], vec![2], vec![1, 2], vec![0, 1]] {
        c.add(&format!("{dims:?}"), ops::Standardize { dims, epsilon: 1e-3 }, &[(&[4, 3, 10], R)]);
    }
}

fn contractions(c: &mut Cases) {
    let contract = |batch: &[(usize, usize)], contract: &[(usize, usize)]| ops::Contract {
        batch: batch.to_vec(),
        contract: contract.to_vec(),
    };
    c.add("dense", contract(&[], &[(1, 0)]), &[(&[4, 6], R), (&[6, 3], R)]);
    c.add("dense of rank 3", contract(&[], &[(2, 0)]), &[(&[2, 4, 6], R), (&[6, 3], R)]);
    c.add("outer", contract(&[], &[]), &[(&[4], R), (&[3], R)]);
    c.add("inner", contract(&[], &[(0, 0)]), &[(&[7], R), (&[7], R)]);
    c.add("over nothing", contract(&[], &[(1, 0)]), &[(&[4, 0], R), (&[0, 3], R)]);
    // Attention: [N, T, H, D] with [N, S, H, D], and its values.
    c.add("scores", contract(&[(0, 0), (2, 2)], &[(3, 3)]), &[(&[2, 3, 4, 5], R), (&[2, 6, 4, 5], R)]);
    c.add("values", contract(&[(0, 0), (1, 2)], &[(3, 1)]), &[(&[2, 4, 3, 6], R), (&[2, 6, 4, 5], R)]);
    c.add("permuted", contract(&[], &[(0, 2), (2, 0)]), &[(&[3, 4, 5], R), (&[5, 2, 3], R)]);
    c.add("batch permuted", contract(&[(2, 0)], &[(0, 3), (3, 1)]), &[(&[3, 4, 2, 5], R), (&[2, 5, 6, 3], R)]);
    c.add("heads to width", contract(&[], &[(2, 0), (3, 1)]), &[(&[2, 3, 4, 5], R), (&[4, 5, 6], R)]);
    let half = Fill::Real(DType::BF16, -1.0, 1.0);
    c.add("bf16", contract(&[], &[(1, 0)]), &[(&[4, 6], half), (&[6, 4], half)]);
    let whole = Fill::Int(DType::I32, -5, 5);
    c.add("int", contract(&[], &[(1, 0)]), &[(&[4, 6], whole), (&[6, 4], whole)]);
    convolutions(c);
}

/// Attributes of a convolution of two spatial dimensions.
struct Conv {
    stride: [usize; 2],
    pads: [(i64, i64); 2],
    input_dilation: [usize; 2],
    kernel_dilation: [usize; 2],
    groups: usize,
    batch_groups: usize,
}

const PLAIN: Conv = Conv {
    stride: [1, 1],
    pads: [(0, 0), (0, 0)],
    input_dilation: [1, 1],
    kernel_dilation: [1, 1],
    groups: 1,
    batch_groups: 1,
};

impl Conv {
    fn op(&self) -> ops::Conv {
        ops::Conv {
            stride: self.stride.to_vec(),
            pads: self.pads.to_vec(),
            input_dilation: self.input_dilation.to_vec(),
            kernel_dilation: self.kernel_dilation.to_vec(),
            groups: self.groups,
            batch_groups: self.batch_groups,
        }
    }
}

fn convolutions(c: &mut Cases) {
    let mut add = |note: &str, conv: Conv, x: [usize; 4], w: [usize; 4]| c.add(note, conv.op(), &[(&x, R), (&w, R)]);
    add("plain", PLAIN, [2, 5, 4, 3], [3, 2, 3, 4]);
    add("one by one", PLAIN, [3, 3, 2, 4], [1, 1, 4, 5]);
    add("same", Conv { pads: [(1, 1), (0, 1)], ..PLAIN }, [2, 4, 4, 2], [3, 2, 2, 4]);
    add("strided", Conv { stride: [2, 3], pads: [(0, 1), (1, 1)], ..PLAIN }, [2, 6, 7, 2], [3, 3, 2, 2]);
    add("strided with a rest", Conv { stride: [3, 2], ..PLAIN }, [1, 7, 6, 2], [2, 3, 2, 3]);
    add(
        "kernel dilated",
        Conv { kernel_dilation: [2, 3], pads: [(1, 2), (3, 0)], ..PLAIN },
        [1, 5, 6, 2],
        [3, 2, 2, 2],
    );
    let transposed = Conv { input_dilation: [2, 3], pads: [(1, 2), (2, 0)], ..PLAIN };
    add("input dilated", transposed, [2, 3, 3, 2], [3, 2, 2, 3]);
    add("cropped", Conv { pads: [(-1, 0), (1, -2)], ..PLAIN }, [1, 6, 6, 2], [2, 3, 2, 2]);
    let all = Conv {
        stride: [2, 1],
        pads: [(2, -1), (1, 2)],
        input_dilation: [3, 2],
        kernel_dilation: [2, 3],
        groups: 2,
        batch_groups: 1,
    };
    add("everything", all, [2, 4, 3, 4], [2, 2, 2, 6]);
    add("groups", Conv { groups: 3, pads: [(1, 0), (0, 0)], ..PLAIN }, [2, 3, 3, 6], [2, 2, 2, 6]);
    add("groups of one output", Conv { groups: 4, ..PLAIN }, [2, 3, 3, 8], [2, 2, 2, 4]);
    add("depthwise", Conv { groups: 4, pads: [(1, 1), (1, 1)], ..PLAIN }, [2, 3, 3, 4], [3, 3, 1, 4]);
    add("depthwise by 3", Conv { groups: 4, stride: [2, 2], ..PLAIN }, [2, 5, 5, 4], [2, 2, 1, 12]);
    add("batch groups", Conv { batch_groups: 2, pads: [(0, 1), (0, 0)], ..PLAIN }, [4, 3, 3, 2], [2, 2, 2, 6]);
    add("batch groups of one output", Conv { batch_groups: 3, ..PLAIN }, [6, 3, 3, 2], [2, 2, 2, 3]);
    let strided = Conv { batch_groups: 2, stride: [2, 1], kernel_dilation: [1, 2], input_dilation: [1, 2], ..PLAIN };
    add("batch groups, strided", strided, [2, 5, 3, 3], [2, 2, 3, 4]);
    add("kernel larger than input", PLAIN, [2, 2, 3, 2], [3, 2, 2, 2]);
    add("empty batch", PLAIN, [0, 3, 3, 2], [2, 2, 2, 2]);
    let line = ops::Conv {
        stride: vec![2],
        pads: vec![(2, 0)],
        input_dilation: vec![1],
        kernel_dilation: vec![2],
        groups: 1,
        batch_groups: 1,
    };
    c.add("1d causal", line, &[(&[2, 7, 3], R), (&[2, 3, 4], R)]);
    let cube = ops::Conv {
        stride: vec![1, 2, 1],
        pads: vec![(1, 0), (0, 1), (1, 1)],
        input_dilation: vec![1, 1, 1],
        kernel_dilation: vec![1, 1, 1],
        groups: 1,
        batch_groups: 1,
    };
    c.add("3d", cube, &[(&[1, 3, 4, 2, 2], R), (&[2, 2, 2, 2, 2], R)]);
}

fn windows(c: &mut Cases) {
    let both = |v: [usize; 2]| v.to_vec();
    type Geometry = (&'static str, [usize; 2], [usize; 2], [(i64, i64); 2], [usize; 2]);
    let geometries: [Geometry; 7] = [
        ("plain", [2, 2], [2, 2], [(0, 0), (0, 0)], [1, 1]),
        ("overlapping", [3, 2], [2, 1], [(1, 1), (0, 1)], [1, 1]),
        ("dilated", [2, 3], [1, 2], [(1, 0), (2, 2)], [3, 2]),
        ("with a rest", [2, 2], [3, 2], [(0, 0), (0, 0)], [1, 1]),
        ("of one", [1, 1], [2, 1], [(0, 0), (0, 0)], [1, 1]),
        ("touching", [5, 3], [5, 3], [(0, 0), (0, 1)], [1, 1]),
        ("cropped", [2, 2], [1, 1], [(-1, 0), (0, -1)], [1, 1]),
    ];
    let x: &[usize] = &[2, 5, 6, 3];
    for (note, size, stride, pads, dilation) in geometries {
        for function in [Reduce::Sum, Reduce::Max] {
            let pool = ops::Pool {
                function,
                size: both(size),
                stride: both(stride),
                pads: pads.to_vec(),
                dilation: both(dilation),
                input_dilation: vec![1, 1],
            };
            c.add(&format!("{} {note}", function.name()), pool, &[(x, R)]);
        }
        let arg_max =
            ops::PoolArgMax { size: both(size), stride: both(stride), pads: pads.to_vec(), dilation: both(dilation) };
        let input = Fill::Real(DType::F64, -1.0, 1.0).tensor(x, &mut c.random);
        c.all.push(Case {
            name: format!("pool_arg_max {note}"),
            op: arg_max.clone().into(),
            args: vec![input.clone()],
        });
        let which = intwain_ir::interp::run(&c.all[c.all.len() - 1].graph(), vec![input.clone()]).unwrap().remove(0);
        let pick = ops::Pick { size: both(size), stride: both(stride), pads: pads.to_vec(), dilation: both(dilation) };
        let y = R.tensor(&which.ty.shape.clone(), &mut c.random);
        c.all.push(Case { name: format!("pick {note}"), op: pick.into(), args: vec![which.clone(), input] });
        let unpool = ops::Unpool {
            size: both(size),
            stride: both(stride),
            pads: pads.to_vec(),
            dilation: both(dilation),
            input: vec![x[1], x[2]],
        };
        c.all.push(Case { name: format!("unpool {note}"), op: unpool.into(), args: vec![which, y] });
    }
    let dilated = ops::Pool {
        function: Reduce::Sum,
        size: vec![3],
        stride: vec![2],
        pads: vec![(1, 2)],
        dilation: vec![2],
        input_dilation: vec![3],
    };
    c.add("sum input dilated", dilated, &[(&[2, 4, 3], R)]);
}

fn tables(c: &mut Cases) {
    c.add("rows", ops::Take { base: 0 }, &[(&[7, 4], R), (&[3, 2], ids(7))]);
    c.add("one row", ops::Take { base: 0 }, &[(&[7, 4], R), (&[], ids(7))]);
    c.add("of a part", ops::Take { base: 2 }, &[(&[5, 4], R), (&[6], ids(9))]);
    c.add("repeated", ops::Take { base: 0 }, &[(&[2, 3, 2], R), (&[8], ids(2))]);
    c.add("rows", ops::ScatterAdd { rows: 6, base: 0 }, &[(&[3, 2], ids(6)), (&[3, 2, 4], R)]);
    c.add("of a part", ops::ScatterAdd { rows: 4, base: 2 }, &[(&[7], ids(8)), (&[7, 3], R)]);
    c.add("repeated", ops::ScatterAdd { rows: 2, base: 0 }, &[(&[8], ids(2)), (&[8], R)]);
}

/// h' = tanh(x·W + h·U + b), stacked and carried, with a second state that counts and a running sum of h'.
pub(crate) fn recurrent_body(batch: usize, inputs: usize, units: usize) -> Graph {
    let f = |dims: &[usize]| Type::new(DType::F64, dims);
    let mut g = Graph::new("cell");
    let h = g.input("h", f(&[batch, units]), Rows::Whole);
    let total = g.input("total", f(&[batch, units]), Rows::Whole);
    let x = g.input("x", f(&[batch, inputs]), Rows::Whole);
    let w = g.input("w", f(&[inputs, units]), Rows::Whole);
    let u = g.input("u", f(&[units, units]), Rows::Whole);
    let b = g.input("b", f(&[units]), Rows::Whole);
    let xw = g.matmul(x, w).unwrap();
    let hu = g.matmul(h, u).unwrap();
    let sum = g.add(xw, hu).unwrap();
    let bias = g.broadcast(b, &Shape::from([batch, units]), &[1]).unwrap();
    let sum = g.add(sum, bias).unwrap();
    let next = g.unary(Unary::Tanh, sum).unwrap();
    let half = g.full(DType::F64, 0.5, &Shape::from([batch, units])).unwrap();
    let part = g.mul(half, next).unwrap();
    let running = g.add(total, part).unwrap();
    let squared = g.mul(next, next).unwrap();
    g.output("h", next);
    g.output("total", running);
    g.output("y", squared);
    g
}

/// Sums a sequence of sequences: the body itself scans.
pub(crate) fn nested_body() -> Graph {
    let f = |dims: &[usize]| Type::new(DType::F64, dims);
    let mut inner = Graph::new("inner");
    let s = inner.input("s", f(&[4, 2]), Rows::Whole);
    let x = inner.input("x", f(&[4, 2]), Rows::Whole);
    let k = inner.input("k", f(&[2]), Rows::Whole);
    let k = inner.broadcast(k, &Shape::from([4, 2]), &[1]).unwrap();
    let p = inner.mul(x, k).unwrap();
    let next = inner.add(s, p).unwrap();
    inner.output("s", next);
    let mut outer = Graph::new("outer");
    let s = outer.input("s", f(&[4, 2]), Rows::Whole);
    let x = outer.input("x", f(&[3, 4, 2]), Rows::Whole);
    let k = outer.input("k", f(&[2]), Rows::Whole);
    let scan = ops::Scan { count: 3, states: 1, sequences: 1, body: Arc::new(inner) };
    let r = outer.push_all(scan, &[s, x, k]).unwrap();
    let next = outer.unary(Unary::Sin, r[0]).unwrap();
    outer.output("s", next);
    outer.output("y", r[0]);
    outer
}

fn scans(c: &mut Cases) {
    let body = Arc::new(recurrent_body(4, 3, 2));
    let scan = ops::Scan { count: 5, states: 2, sequences: 1, body: body.clone() };
    let args: [(&[usize], Fill); 6] =
        [(&[4, 2], R), (&[4, 2], R), (&[5, 4, 3], R), (&[3, 2], R), (&[2, 2], R), (&[2], R)];
    c.add("recurrent", scan, &args);
    let never: [(&[usize], Fill); 6] =
        [(&[4, 2], R), (&[4, 2], R), (&[0, 4, 3], R), (&[3, 2], R), (&[2, 2], R), (&[2], R)];
    c.add("of no step", ops::Scan { count: 0, states: 2, sequences: 1, body }, &never);
    let nested = ops::Scan { count: 2, states: 1, sequences: 1, body: Arc::new(nested_body()) };
    c.add("nested", nested, &[(&[4, 2], R), (&[2, 3, 4, 2], R), (&[2], R)]);
    let scan =
        |count: usize, sequences: usize, body: Graph| ops::Scan { count, states: 1, sequences, body: Arc::new(body) };
    let masked: [(&[usize], Fill); 5] = [(&[3, 2], R), (&[4, 3, 4], R), (&[4, 3], Fill::Bool), (&[2, 4], R), (&[4], R)];
    c.add("gated", scan(4, 2, bodies::gated(3, 2)), &masked);
    for groups in [1, 2] {
        let args: [(&[usize], Fill); 4] = [(&[2, 5, 4], R), (&[3, 2, 5, 4], R), (&[3, 4 / groups, 4], R), (&[4], R)];
        c.add(&format!("convolving {groups}"), scan(3, 1, bodies::convolving(2, 5, 4, groups)), &args);
    }
    let memory: [(&[usize], Fill); 6] =
        [(&[3, 2], R), (&[4, 3, 2], R), (&[3, 5, 2], R), (&[3, 2], R), (&[2, 2], R), (&[2, 2], R)];
    c.add("attending", scan(4, 1, bodies::attending(3, 5, 2)), &memory);
    c.add("normed", scan(4, 1, bodies::normed(3, 2)), &[(&[3, 2], R), (&[4, 3, 2], R), (&[2, 2], R)]);
}
