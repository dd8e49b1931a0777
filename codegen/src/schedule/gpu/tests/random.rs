//! Random Computes: nested reductions, windows, look-ups, divisions of positions, guards, uneven and empty extents.
//!
//! Operands hold small integers, so that sums are exact in any order and every schedule gives the interpreter's bits.

use super::{Gpu, Which, check, compare, f32s, types};
use crate::schedule::gpu::Precision;
use intwain_ir::compute::{Axis, Compute, ExprId, Guard, Index, Order};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Scalar, Shape, Tensor, Type};

/// Computes per run; `RANDOM_COMPUTES=first..end` in the environment runs others.
const SEEDS: std::ops::Range<u64> = 0..100;
/// Most positions of the results times those of one reduction.
const WORK: usize = 60_000;

/// A linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn extent(&mut self) -> usize {
        match self.below(12) {
            0 => 1,
            1..=4 => 1 + self.below(9),
            5..=8 => self.pick(&[8, 16, 24, 32, 64, 128, 256]),
            9 => self.pick(&[31, 33, 63, 65, 127, 129]),
            10 => 1 + self.below(300),
            _ => self.pick(&[0, 1, 2, 600, 1030]),
        }
    }
}

/// A Compute under construction and its operands.
struct Sketch {
    r: Random,
    c: Compute,
    operands: Vec<Type>,
    /// The positions of the results and of the reductions around.
    positions: usize,
}

impl Sketch {
    fn new(seed: u64) -> Sketch {
        let mut r = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x51ed);
        (0..4).for_each(|_| {
            r.below(2);
        });
        let rank = r.below(5);
        let mut shape: Vec<usize> = (0..rank).map(|_| r.extent()).collect();
        while shape.iter().product::<usize>() > WORK / 4 {
            let at = r.below(rank);
            shape[at] = 1 + r.below(8);
        }
        let positions = shape.iter().product();
        Sketch { r, c: Compute::new(&Shape::from(shape.as_slice())), operands: Vec::new(), positions }
    }

    /// A quasi-affine index of axes in scope.
    fn index(&mut self, scope: &[Axis]) -> Index {
        if scope.is_empty() {
            return Index::constant(self.r.below(3) as i64);
        }
        let a = Index::axis(self.r.pick(scope));
        let b = Index::axis(self.r.pick(scope));
        let n = 2 + self.r.below(7) as i64;
        match self.r.below(16) {
            0 => a.times(n).plus(self.r.below(5) as i64 - 2),
            1 => a.times(self.r.pick(&[1, 2, 4])) + b.plus(-1),
            2 => a.times(-1),
            3 => a.floor_div(n, self.c.extents()),
            4 => a.modulo(n, self.c.extents()),
            5 => (a.times(n) + b).floor_div(4, self.c.extents()),
            6 => (a.times(n) + b.plus(-3)).modulo(n + 1, self.c.extents()),
            7 => a.plus(-2).floor_div(n, self.c.extents()),
            8 => Index::constant(self.r.below(3) as i64),
            _ => a,
        }
    }

    fn guard(&mut self, scope: &[Axis]) -> Guard {
        let index = self.index(scope);
        let (lo, hi) = index.range(self.c.extents());
        let span = (hi - lo + 2) as usize;
        let lo = lo + self.r.below(span) as i64 / 2;
        Guard { index, lo, hi: lo + self.r.below(span) as i64 }
    }

    /// Extents and indices of a load, with the guards that keep it inside.
    fn address(&mut self, scope: &[Axis]) -> (Vec<usize>, Vec<Index>, Vec<Guard>) {
        let (mut shape, mut index, mut guards) = (Vec::new(), Vec::new(), Vec::new());
        let straight = self.r.below(2) == 0;
        let dims = if straight { scope.len() } else { self.r.below(4) };
        for d in 0..dims {
            let i = if straight { Index::axis(scope[d]) } else { self.index(scope) };
            let (lo, hi) = i.range(self.c.extents());
            let span = (hi - lo + 1) as usize;
            let room = 40_000 / shape.iter().product::<usize>().max(1);
            if self.r.below(4) == 0 || span > room {
                let extent = self.r.below(span.min(room) + 1);
                let at = i.plus(-lo - self.r.below(2) as i64);
                guards.push(Guard { index: at.clone(), lo: 0, hi: extent as i64 });
                index.push(at);
                shape.push(extent);
            } else {
                index.push(i.plus(-lo));
                shape.push(span);
            }
        }
        if self.r.below(6) == 0 {
            let g = self.guard(scope);
            guards.push(g);
        }
        (shape, index, guards)
    }

    fn operand(&mut self, ty: &Type) -> usize {
        let again = self.operands.iter().position(|t| t == ty).filter(|_| self.r.below(2) == 0);
        again.unwrap_or_else(|| {
            self.operands.push(ty.clone());
            self.operands.len() - 1
        })
    }

    fn load(&mut self, dtype: DType, scope: &[Axis]) -> ExprId {
        let (shape, index, guards) = self.address(scope);
        let from = match self.r.below(3) {
            0 => self.r.pick(&[DType::F16, DType::BF16, DType::I8, DType::F32, DType::I32, DType::Bool, DType::I64]),
            _ => dtype,
        };
        let ty = Type::new(from, shape.as_slice());
        let operand = self.operand(&ty);
        let fill = Scalar::from_f64(from, self.r.below(2) as f64);
        let x = self.c.load_guarded(operand, &ty, index, guards, fill);
        self.c.cast(dtype, x)
    }

    fn take(&mut self, dtype: DType, scope: &[Axis]) -> ExprId {
        let (mut shape, index, guards) = self.address(scope);
        if !guards.is_empty() || shape.is_empty() {
            return self.load(dtype, scope);
        }
        let dim = self.r.below(shape.len());
        shape[dim] = self.r.below(6);
        let integer = self.r.pick(&[DType::I32, DType::I64, DType::U8, DType::I8]);
        let at = self.load(integer, scope);
        let ty = Type::new(dtype, shape.as_slice());
        let operand = self.operand(&ty);
        let base = self.r.below(3) as i64 - 1;
        self.c.take(operand, &ty, index, dim, at, base)
    }

    fn reduce(&mut self, dtype: DType, scope: &[Axis], depth: usize) -> ExprId {
        let mut axes = Vec::new();
        let before = self.positions;
        for _ in 0..1 + self.r.below(2) {
            let mut extent = self.r.extent();
            if self.positions.saturating_mul(extent) > WORK {
                extent = 1 + self.r.below((WORK / self.positions.max(1)).clamp(1, 4));
            }
            self.positions = self.positions.max(1) * extent.max(1);
            axes.push(self.c.reduce_axis(extent));
        }
        let inside: Vec<Axis> = scope.iter().chain(&axes).copied().collect();
        let result = match self.r.below(8) {
            0 => {
                let body = self.value(dtype, &inside, depth);
                let at = self.c.arg_max(axes, body);
                self.c.cast(dtype, at)
            }
            1 | 2 if dtype.is_float() => {
                let (x, y) = (self.load(dtype, &inside), self.load(dtype, &inside));
                let product = self.c.binary(Binary::Mul, x, y);
                self.c.reduce(Reduce::Sum, axes, Order::Fma, product)
            }
            _ => {
                let op = self.r.pick(&[Reduce::Sum, Reduce::Sum, Reduce::Max, Reduce::Min]);
                let order = self.r.pick(&[Order::Lanes, Order::Sequential, Order::Tree]);
                let body = self.value(dtype, &inside, depth);
                self.c.reduce(op, axes, order, body)
            }
        };
        self.positions = before;
        result
    }

    fn value(&mut self, dtype: DType, scope: &[Axis], depth: usize) -> ExprId {
        if depth == 0 {
            return match self.r.below(12) {
                0 => self.c.number(dtype, 2.0),
                1 => {
                    let i = self.index(scope);
                    let small = i.modulo(5, self.c.extents());
                    self.c.index_value(dtype, small)
                }
                2 => self.take(dtype, scope),
                _ => self.load(dtype, scope),
            };
        }
        match self.r.below(9) {
            0 => {
                let x = self.value(dtype, scope, depth - 1);
                let f = self.r.pick(&[Unary::Neg, Unary::Abs]);
                self.c.unary(f, x)
            }
            1 => {
                let (x, y) = (self.value(dtype, scope, depth - 1), self.value(dtype, scope, depth - 1));
                let cond = self.c.compare(Compare::Lt, x, y);
                let z = self.load(dtype, scope);
                self.c.select(cond, z, y)
            }
            2 => {
                let g = self.guard(scope);
                let cond = self.c.add(intwain_ir::compute::Expr::InRange(vec![g]), DType::Bool);
                let (x, y) = (self.value(dtype, scope, depth - 1), self.load(dtype, scope));
                self.c.select(cond, x, y)
            }
            3 | 4 => {
                let (x, y) = (self.value(dtype, scope, depth - 1), self.value(dtype, scope, depth - 1));
                let f = self.r.pick(&[Binary::Add, Binary::Sub, Binary::Max, Binary::Min]);
                self.c.binary(f, x, y)
            }
            5 => self.value(dtype, scope, depth - 1),
            _ => self.reduce(dtype, scope, depth - 1),
        }
    }

    /// A contraction, as a model has it: each factor has some of the result's axes and the one that is summed.
    fn contraction(&mut self, scope: &[Axis]) -> ExprId {
        let extent = self.r.extent().min(WORK / self.positions.max(1) + 1);
        let k = self.c.reduce_axis(extent);
        let half = scope.len() / 2;
        let from = self.r.pick(&[DType::F32, DType::F16, DType::BF16]);
        let factor = |s: &mut Sketch, own: &[Axis]| {
            let mut axes = own.to_vec();
            axes.insert(s.r.below(own.len() + 1), k);
            let shape: Vec<usize> = axes.iter().map(|a| s.c.extents()[a.0 as usize]).collect();
            let ty = Type::new(from, shape.as_slice());
            s.operands.push(ty.clone());
            let x = s.c.load(s.operands.len() - 1, &ty, axes.into_iter().map(Index::axis).collect());
            s.c.cast(DType::F32, x)
        };
        let (x, y) = (factor(self, &scope[..half]), factor(self, &scope[half..]));
        let product = self.c.binary(Binary::Mul, x, y);
        self.c.reduce(Reduce::Sum, vec![k], Order::Fma, product)
    }

    /// A Compute with one or two results, and their types.
    fn finish(mut self) -> (Compute, Vec<Type>, Vec<Type>) {
        let scope: Vec<Axis> = self.c.axes().collect();
        let shape = self.c.shape().to_vec();
        let (mut values, mut results) = (Vec::new(), Vec::new());
        for _ in 0..1 + usize::from(self.r.below(4) == 0) {
            let dtype = self.r.pick(&[DType::F32, DType::F32, DType::F32, DType::I32, DType::F64, DType::I64]);
            let depth = self.r.below(4);
            let x = match (dtype, self.r.below(5)) {
                (DType::F32, 0) => {
                    let (x, y) = (self.contraction(&scope), self.value(dtype, &scope, depth / 2));
                    self.c.binary(Binary::Add, x, y)
                }
                _ => self.value(dtype, &scope, depth),
            };
            let stored = match dtype {
                DType::F32 => self.r.pick(&[DType::F32, DType::F32, DType::F16, DType::BF16]),
                _ => dtype,
            };
            values.push(self.c.cast(stored, x));
            results.push(Type::new(stored, shape.as_slice()));
        }
        (self.c.with_results(values), self.operands, results)
    }
}

/// Integers from −2 to 3.
fn integers(ty: &Type, seed: u64) -> Tensor {
    let mut r = Random(seed);
    let mut t = Tensor::zeros(ty.clone());
    for i in 0..ty.shape.elements() {
        let x = r.below(6) as f64 - 2.0;
        t.set(i, Scalar::from_f64(ty.dtype, if ty.dtype == DType::Bool { f64::from(x > 0.0) } else { x }));
    }
    t
}

#[test]
fn random_computes() {
    let range = std::env::var("RANDOM_COMPUTES").ok();
    let numbers = range.as_deref().and_then(|s| s.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    let seeds = match numbers {
        Some((Ok(first), Ok(end))) => first..end,
        Some(_) => panic!("RANDOM_COMPUTES is first..end"),
        None => SEEDS,
    };
    let mut failed = String::new();
    for seed in seeds {
        let (c, operands, results) = Sketch::new(seed).finish();
        let args: Vec<Tensor> = operands.iter().enumerate().map(|(i, t)| integers(t, seed + i as u64)).collect();
        let (of, to) = (types(&operands), types(&results));
        let fast = Precision::ALL.map(|precision| Gpu { precision }.schedule("k", &c, &of, &to));
        let kernels = [Gpu::default().schedule_naive("k", &c, &of, &to)].into_iter().chain(fast);
        for k in kernels {
            let what = format!("compute {seed}, {}", k.schedule);
            let run = || compare(&k, &c, &args, &results, 0.0, &what);
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err() {
                failed += &format!("{what}\n{c}\n{operands:?} -> {results:?}\n");
            }
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn reductions_of_reductions_of_nothing_launch_no_empty_grid() {
    let x = f32s(&[6, 5, 65]);
    let mut c = Compute::new(&[6].as_slice().into());
    let (j, k) = (c.reduce_axis(0), c.reduce_axis(65));
    let x_at = c.load(0, &x, vec![Index::axis(Axis(0)), Index::axis(j), Index::axis(k)]);
    let rows = c.reduce(Reduce::Max, vec![k], Order::Lanes, x_at);
    let sum = c.reduce(Reduce::Sum, vec![j], Order::Lanes, rows);
    let c = c.with_results([sum]);
    let done = check(Which::Fast, &c, &[integers(&x, 1)], &[f32s(&[6])], 0.0, "a sum of no maxima");
    assert_eq!((done.schedule, done.launches), ("stages", 1));
}

#[test]
fn what_follows_from_reductions_to_a_scalar_is_computed_where_they_are_combined() {
    // |sum of one x| − max y.
    let (x, y) = (f32s(&[1]), f32s(&[70]));
    let mut c = Compute::new(&Shape::default());
    let (j, k) = (c.reduce_axis(1), c.reduce_axis(70));
    let x_at = c.load(0, &x, vec![Index::axis(j)]);
    let y_at = c.load(1, &y, vec![Index::axis(k).times(-1).plus(69)]);
    let (sum, max) = (
        c.reduce(Reduce::Sum, vec![j], Order::Sequential, x_at),
        c.reduce(Reduce::Max, vec![k], Order::Sequential, y_at),
    );
    let abs = c.unary(Unary::Abs, sum);
    let z = c.binary(Binary::Sub, abs, max);
    let c = c.with_results([z]);
    let args = [integers(&x, 1), integers(&y, 2)];
    let done = check(Which::Fast, &c, &args, &[f32s(&[])], 0.0, "two reductions to a scalar");
    assert_eq!((done.schedule, done.launches), ("columns", 1));
}

#[test]
fn transposition_of_long_elements_written_as_short_ones() {
    for (from, to) in
        [(DType::F64, DType::F32), (DType::I64, DType::F16), (DType::F64, DType::BF16), (DType::F16, DType::F64)]
    {
        let (x, y) = (Type::new(from, [72, 40]), Type::new(to, [40, 72]));
        let mut c = Compute::new(&y.shape);
        let turned = c.load(0, &x, vec![Index::axis(Axis(1)), Index::axis(Axis(0))]);
        let cast = c.cast(to, turned);
        let c = c.with_results([cast]);
        let done = check(Which::Fast, &c, &[integers(&x, 1)], &[y], 0.0, "a cast of a transposed tensor");
        assert_eq!(done.schedule, "transpose");
    }
}
