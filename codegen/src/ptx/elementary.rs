//! Elementary functions of f32 from the approximations that the hardware has: no branch, no call.
//!
//! Errors, in units in the last place, given what the instruction set promises of an approximation (2 for `ex2`, 1 for
//! `rcp`, a relative 2^−22.9 for `rsqrt`), and given an approximation rounded correctly:
//!
//! | function | promised | rounded correctly | exact |
//! |---|---|---|---|
//! | e^x | 2.5, counted at 2^(x·log₂ e) | 1 | limits, overflow, e^0; results below 2^−126 may be 0 |
//! | 1/x | ½ + 2^−20, subnormal results 1 | the same | limits, powers of two |
//! | √x | ½ + 2^−18 | the same | limits, squares of floats |
//! | 1/√x | 1.1 | 1.1 | limits, powers of four |
//!
//! NaN gives NaN. Functions are generic over [`Arithmetic`], so that tests run them on numbers with approximations as
//! bad as they may be.

use super::emit::Emitter;
use super::text::{Class, Value, float};

/// The instructions that elementary functions are made of.
pub(super) trait Arithmetic {
    /// A number.
    type V: Copy;
    /// The outcome of a comparison.
    type P: Copy;

    /// A constant.
    fn constant(&mut self, x: f32) -> Self::V;
    /// −x.
    fn negated(&mut self, x: Self::V) -> Self::V;
    /// |x|.
    fn magnitude(&mut self, x: Self::V) -> Self::V;
    /// x · y.
    fn times(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x · y + z, rounded once.
    fn fused(&mut self, x: Self::V, y: Self::V, z: Self::V) -> Self::V;
    /// The greater; NaN if either is.
    fn at_least(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// The lesser; NaN if either is.
    fn at_most(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// The lesser; y if x is NaN.
    fn number_at_most(&mut self, x: Self::V, y: Self::V) -> Self::V;
    /// x < y.
    fn less(&mut self, x: Self::V, y: Self::V) -> Self::P;
    /// x = y.
    fn same(&mut self, x: Self::V, y: Self::V) -> Self::P;
    /// x where p holds, else y.
    fn either(&mut self, p: Self::P, x: Self::V, y: Self::V) -> Self::V;
    /// About 2^x; 0 where that is subnormal.
    fn ex2(&mut self, x: Self::V) -> Self::V;
    /// About 1/x; subnormals count as 0.
    fn rcp(&mut self, x: Self::V) -> Self::V;
    /// About 1/√x; subnormals count as 0.
    fn rsqrt(&mut self, x: Self::V) -> Self::V;
}

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2, and what its rounding lost.
const LN2: f32 = std::f32::consts::LN_2;
const LN2_LOST: f32 = f32::from_bits(0xb102_e308);
/// The greatest number below 128: its power of two is finite.
const MOST: f32 = f32::from_bits(0x42ff_ffff);

/// e^x as e′ + e′·r, where e′ is about 2^t, t is x·log₂ e rounded, and r = x − t·ln 2 is what the rounding lost.
pub(super) fn exp<A: Arithmetic>(a: &mut A, x: A::V) -> A::V {
    // Bounded, t has a finite power and r is a number; above, r alone gives infinity.
    let (least, most) = (a.constant(-104.0), a.constant(MOST));
    let x = a.at_least(x, least);
    let log2e = a.constant(LOG2_E);
    let t = a.times(x, log2e);
    let t = a.at_most(t, most);
    let power = a.ex2(t);
    let (ln2, lost) = (a.constant(-LN2), a.constant(-LN2_LOST));
    let r = a.fused(t, ln2, x);
    let r = a.fused(t, lost, r);
    a.fused(power, r, power)
}

/// 1/x by a Newton step, on x times a power of two that keeps clear of subnormals.
pub(super) fn reciprocal<A: Arithmetic>(a: &mut A, x: A::V) -> A::V {
    let size = a.magnitude(x);
    let (one, up, down) = (a.constant(1.0), a.constant(16_777_216.0), a.constant(1.0 / 16_777_216.0));
    let small = a.less(size, one);
    let scale = a.either(small, up, down);
    let scaled = a.times(x, scale);
    let near = a.rcp(scaled);
    let minus = a.negated(scaled);
    let error = a.fused(minus, near, one);
    // The error is no number where x is 0 or infinite; then any positive one leaves the limit as it is.
    let error = a.number_at_most(error, one);
    let y = a.fused(near, error, near);
    a.times(y, scale)
}

/// √x from 1/√x by a Newton step, on x times a power of two that keeps errors clear of subnormals.
pub(super) fn root<A: Arithmetic>(a: &mut A, x: A::V) -> A::V {
    let power = |n: i32| 2f32.powi(n);
    let [one, limit, up, back, most] = [1.0, power(-96), power(96), power(-48), power(100)].map(|k| a.constant(k));
    let small = a.less(x, limit);
    let scale = a.either(small, up, one);
    let scaled = a.times(x, scale);
    let near = a.rsqrt(scaled);
    // Bounded, so that 0 gives 0 with its sign.
    let near = a.magnitude(near);
    let near = a.at_most(near, most);
    let y = a.times(scaled, near);
    let half = a.constant(0.5);
    let half = a.times(near, half);
    let minus = a.negated(y);
    let error = a.fused(minus, y, scaled);
    let y = a.fused(error, half, y);
    let scale = a.either(small, back, one);
    let y = a.times(y, scale);
    let infinity = a.constant(f32::INFINITY);
    let unbounded = a.same(x, infinity);
    a.either(unbounded, x, y)
}

/// 1/√x by a Newton step.
pub(super) fn reciprocal_root<A: Arithmetic>(a: &mut A, x: A::V) -> A::V {
    let power = |n: i32| 2f32.powi(n);
    let [one, limit, up, back] = [1.0, power(-96), power(96), power(48)].map(|k| a.constant(k));
    let small = a.less(x, limit);
    let scale = a.either(small, up, one);
    let scaled = a.times(x, scale);
    let near = a.rsqrt(scaled);
    let root = a.times(scaled, near);
    let minus = a.negated(root);
    let error = a.fused(minus, near, one);
    // As in `reciprocal`.
    let error = a.number_at_most(error, one);
    let half = a.constant(0.5);
    let half = a.times(near, half);
    let y = a.fused(half, error, near);
    let scale = a.either(small, back, one);
    a.times(y, scale)
}

impl Arithmetic for Emitter<'_> {
    type V = Value;
    type P = Value;

    fn constant(&mut self, x: f32) -> Value {
        float(x)
    }
    fn negated(&mut self, x: Value) -> Value {
        self.t.op(Class::Float, "neg.f32", &[x])
    }
    fn magnitude(&mut self, x: Value) -> Value {
        self.t.op(Class::Float, "abs.f32", &[x])
    }
    fn times(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Float, "mul.rn.f32", &[x, y])
    }
    fn fused(&mut self, x: Value, y: Value, z: Value) -> Value {
        self.t.op(Class::Float, "fma.rn.f32", &[x, y, z])
    }
    fn at_least(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Float, "max.NaN.f32", &[x, y])
    }
    fn at_most(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Float, "min.NaN.f32", &[x, y])
    }
    fn number_at_most(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Float, "min.f32", &[x, y])
    }
    fn less(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Pred, "setp.lt.f32", &[x, y])
    }
    fn same(&mut self, x: Value, y: Value) -> Value {
        self.t.op(Class::Pred, "setp.eq.f32", &[x, y])
    }
    fn either(&mut self, p: Value, x: Value, y: Value) -> Value {
        self.select(p, x, y)
    }
    fn ex2(&mut self, x: Value) -> Value {
        self.t.op(Class::Float, "ex2.approx.ftz.f32", &[x])
    }
    fn rcp(&mut self, x: Value) -> Value {
        self.t.op(Class::Float, "rcp.approx.ftz.f32", &[x])
    }
    fn rsqrt(&mut self, x: Value) -> Value {
        self.t.op(Class::Float, "rsqrt.approx.ftz.f32", &[x])
    }
}
