//! The floating-point part of [`crate::scalar`].

use crate::float::{self, Format, Round};
use crate::scalar::{Approx, BoolOp, Compare, Convert, FloatOp, Mods, clamp, integer, keep};
use crate::types::{Kind, Ty};

/// The format of a narrow float type; `None` for f64.
pub(crate) fn format(ty: Ty) -> Option<Format> {
    match (ty.kind, ty.bits) {
        (Kind::Brain, _) => Some(float::BF16),
        (Kind::Tf32, _) => Some(float::TF32),
        (_, 16) => Some(float::F16),
        (_, 32) => Some(float::F32),
        _ => None,
    }
}

/// The value of a float register, exactly.
pub(crate) fn value(ty: Ty, bits: u64) -> f64 {
    match format(ty) {
        Some(float::TF32) => float::F32.value(bits),
        Some(format) => format.value(bits),
        None => f64::from_bits(bits),
    }
}

fn flushed(v: f64, ty: Ty, flush: bool) -> f64 {
    let smallest = if ty == Ty::F32 { f64::from(f32::MIN_POSITIVE) } else { f64::powi(2.0, -14) };
    if flush && v.abs() < smallest { 0f64.copysign(v) } else { v }
}

/// Rounds an f64 that was rounded to odd to `ty`, with saturation and flushing.
fn finish(v: f64, ty: Ty, mods: Mods) -> u64 {
    let v = if mods.saturate { if v.is_nan() { 0.0 } else { v.clamp(0.0, 1.0) + 0.0 } } else { v };
    let v = if mods.relu && v <= 0.0 { 0.0 } else { v };
    match format(ty) {
        None if v.is_nan() && mods.saturate => 0,
        None => v.to_bits(),
        Some(format) => {
            let bits = format.round(v, mods.round);
            if mods.flush && flushed(format.value(bits), ty, true) == 0.0 { bits & 1 << (ty.bits - 1) } else { bits }
        }
    }
}

pub(crate) fn float_op(op: FloatOp, ty: Ty, mods: Mods, a: u64, b: u64, c: u64) -> u64 {
    let sign = 1u64 << (ty.bits - 1);
    let load = |bits: u64| flushed(value(ty, bits), ty, mods.flush);
    let (x, y) = (load(a), load(b));
    let wide = ty.bits == 64;
    let v = match op {
        FloatOp::Abs => return finish(x.abs(), ty, mods),
        FloatOp::Neg if x.is_nan() => return a ^ sign,
        FloatOp::Neg => return finish(-x, ty, mods),
        FloatOp::CopySign => return b & !sign | a & sign,
        FloatOp::Min { nan } => pick(x, y, nan, x < y || x == y && x.is_sign_negative()),
        FloatOp::Max { nan } => pick(x, y, nan, x > y || x == y && x.is_sign_positive()),
        FloatOp::Add if wide => x + y,
        FloatOp::Sub if wide => x - y,
        FloatOp::Fma if wide => libm::fma(x, y, f64::from_bits(c)),
        FloatOp::Mul => x * y,
        FloatOp::Div if wide => x / y,
        FloatOp::Sqrt if wide => x.sqrt(),
        FloatOp::Rcp if wide => 1.0 / x,
        FloatOp::Add => float::add(x, y, mods.round),
        FloatOp::Sub => float::add(x, -y, mods.round),
        FloatOp::Fma => float::fma(x, y, load(c), mods.round),
        FloatOp::Div => float::div(x, y),
        FloatOp::Sqrt => float::sqrt(x),
        FloatOp::Rcp => float::div(1.0, x),
    };
    finish(v, ty, mods)
}

fn pick(x: f64, y: f64, nan: bool, first: bool) -> f64 {
    match (x.is_nan(), y.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) if !nan => y,
        (false, true) if !nan => x,
        (false, false) => {
            if first {
                x
            } else {
                y
            }
        }
        _ => f64::NAN,
    }
}

pub(crate) fn approx(f: Approx, ty: Ty, mods: Mods, a: u64) -> u64 {
    let x = flushed(value(ty, a), ty, mods.flush);
    let v = match f {
        Approx::Rsqrt => 1.0 / x.sqrt(),
        Approx::Ex2 => libm::exp2(x),
        Approx::Lg2 => libm::log2(x),
        Approx::Sin => libm::sin(x),
        Approx::Cos => libm::cos(x),
        Approx::Tanh => libm::tanh(x),
    };
    finish(v, ty, mods)
}

impl Convert {
    pub(crate) fn eval(self, a: u64, b: u64) -> u64 {
        let Convert { to, from, mods, integral } = self;
        if to.packed {
            let one = Convert { to: Ty { packed: false, ..to }, ..self };
            return one.eval(a, 0) << 16 | one.eval(b, 0);
        }
        match (from.is_float(), to.is_float()) {
            (false, false) => {
                let v = integer(a, from);
                if mods.saturate { clamp(v, to) } else { keep(v as u64, to.bits) }
            }
            (false, true) if to == Ty::F64 => (integer(a, from) as f64).to_bits(),
            (false, true) => finish(float::from_integer(integer(a, from)), to, mods),
            (true, false) => {
                let v = flushed(value(from, a), from, mods.flush);
                if v.is_nan() { 0 } else { clamp(integral_value(v, mods.round) as i128, to) }
            }
            (true, true) => {
                let v = flushed(value(from, a), from, mods.flush && from == Ty::F32);
                let flush = mods.flush && to == Ty::F32;
                finish(if integral { integral_value(v, mods.round) } else { v }, to, Mods { flush, ..mods })
            }
        }
    }
}

fn integral_value(v: f64, round: Round) -> f64 {
    match round {
        Round::Nearest | Round::Away => v.round_ties_even(),
        Round::Zero => v.trunc(),
        Round::Down => v.floor(),
        Round::Up => v.ceil(),
    }
}

impl Compare {
    /// Compares one lane.
    pub(crate) fn eval(self, ty: Ty, a: u64, b: u64) -> bool {
        let order = match ty.is_float() {
            true => flushed(value(ty, a), ty, self.flush).partial_cmp(&flushed(value(ty, b), ty, self.flush)),
            false => Some(integer(a, ty).cmp(&integer(b, ty))),
        };
        match order {
            None => self.unordered,
            Some(std::cmp::Ordering::Less) => self.less,
            Some(std::cmp::Ordering::Equal) => self.equal,
            Some(std::cmp::Ordering::Greater) => self.greater,
        }
    }
}

impl BoolOp {
    pub(crate) fn eval(self, a: u32, b: u32) -> u32 {
        match self {
            BoolOp::And => a & b,
            BoolOp::Or => a | b,
            BoolOp::Xor => a ^ b,
        }
    }
}
