//! Functions of elements: arithmetic, comparisons, logic, bits.

use intwain_ir::ops::StopGradient;
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, Value};

use super::args::{Call, Operand, operations};
use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, misfit, unsupported};
use crate::frontend::layers::inputs::Item;

operations! {
    add = |c| arithmetic(c, Binary::Add);
    subtract = |c| arithmetic(c, Binary::Sub);
    multiply = |c| arithmetic(c, Binary::Mul);
    maximum = |c| extreme(c, Binary::Max);
    minimum = |c| extreme(c, Binary::Min);
    power = |c| arithmetic(c, Binary::Pow);
    floor_divide = |c| arithmetic(c, Binary::FloorDiv);
    modulo = |c| arithmetic(c, Binary::Mod);
    divide = |c| { let (x, y) = c.float_pair()?; c.binary(Binary::Div, x, y) };
    arctan_2 = |c| { let (x, y) = c.float_pair()?; c.binary(Binary::Atan2, x, y) };
    truncated_divide = |c| arithmetic(c, Binary::Div);
    divide_no_nan = |c| {
        let (x, y) = c.float_pair()?;
        let (x, y) = c.cx.g.broadcast_pair(x, y)?;
        let (zero, one) = (c.like(y, 0.0)?, c.like(y, 1.0)?);
        let nothing = c.cx.g.compare(Compare::Eq, y, zero)?;
        let below = c.cx.g.select(nothing, one, y)?;
        let q = c.cx.g.div(x, below)?;
        Ok(c.cx.g.select(nothing, zero, q)?)
    };
    stop_gradient = |c| {
        let x = c.tensor(0, "variable")?;
        Ok(c.cx.g.push(StopGradient {}, &[x])?)
    };
    fmod = |c| {
        let (x, y) = c.pair()?;
        truncated_remainder(c, x, y)
    };
    fmax = |c| nan_ignored(c, Binary::Max);
    fmin = |c| nan_ignored(c, Binary::Min);
    squared_difference = |c| {
        let (x, y) = c.pair()?;
        let d = c.binary(Binary::Sub, x, y)?;
        Ok(c.cx.g.mul(d, d)?)
    };
    add_n = |c| {
        let values = c.many("xs")?;
        let mut sum = values[0];
        for &v in &values[1..] {
            sum = c.binary(Binary::Add, sum, v)?;
        }
        Ok(sum)
    };
    hypot = |c| {
        let (x, y) = c.float_pair()?;
        let (x, y) = c.cx.g.broadcast_pair(x, y)?;
        let (x, y) = (c.cx.g.unary(Unary::Abs, x)?, c.cx.g.unary(Unary::Abs, y)?);
        let (large, small) = (c.cx.g.binary(Binary::Max, x, y)?, c.cx.g.binary(Binary::Min, x, y)?);
        let (zero, one) = (c.like(x, 0.0)?, c.like(x, 1.0)?);
        let nothing = c.cx.g.compare(Compare::Eq, large, zero)?;
        let below = c.cx.g.select(nothing, one, large)?;
        let ratio = c.cx.g.div(small, below)?;
        let square = c.cx.g.mul(ratio, ratio)?;
        let sum = c.cx.g.add(square, one)?;
        let root = c.cx.g.unary(Unary::Sqrt, sum)?;
        Ok(c.cx.g.mul(large, root)?)
    };
    log_add_exp = |c| {
        let (x, y) = c.float_pair()?;
        log_add_exp_of(c, x, y)
    };
    log_add_exp_2 = |c| {
        let (x, y) = c.float_pair()?;
        let (x, y) = c.cx.g.broadcast_pair(x, y)?;
        let (x, y) = (scaled(c, x, std::f64::consts::LN_2)?, scaled(c, y, std::f64::consts::LN_2)?);
        let z = log_add_exp_of(c, x, y)?;
        scaled(c, z, std::f64::consts::LOG2_E)
    };
    heaviside = |c| {
        let (x, y) = c.float_pair()?;
        let (x, y) = c.cx.g.broadcast_pair(x, y)?;
        let (zero, one) = (c.like(x, 0.0)?, c.like(x, 1.0)?);
        let (below, above) = (c.cx.g.compare(Compare::Lt, x, zero)?, c.cx.g.compare(Compare::Gt, x, zero)?);
        let rest = c.cx.g.select(above, one, y)?;
        Ok(c.cx.g.select(below, zero, rest)?)
    };
    ldexp = |c| {
        let x = c.floating(0, "x1")?;
        let y = c.floating(1, "x2")?;
        let two = c.like(y, 2.0)?;
        let factor = c.cx.g.binary(Binary::Pow, two, y)?;
        c.binary(Binary::Mul, x, factor)
    };

    equal = |c| comparison(c, Compare::Eq);
    greater = |c| comparison(c, Compare::Gt);
    greater_equal = |c| comparison(c, Compare::Ge);
    less = |c| comparison(c, Compare::Lt);
    less_equal = |c| comparison(c, Compare::Le);
    not_equal = |c| comparison(c, Compare::Ne);
    is_close = |c| close(c);

    logical_and = |c| logical(c, Binary::And);
    logical_or = |c| logical(c, Binary::Or);
    logical_xor = |c| logical(c, Binary::Xor);
    logical_not = |c| {
        let x = c.tensor(0, "x")?;
        let x = c.cx.g.cast(DType::Bool, x)?;
        Ok(c.cx.g.unary(Unary::Not, x)?)
    };
    bitwise_and = |c| bits(c, Binary::And);
    bitwise_or = |c| bits(c, Binary::Or);
    bitwise_xor = |c| bits(c, Binary::Xor);
    shift_left = |c| bits(c, Binary::Shl);
    shift_right = |c| bits(c, Binary::Shr);
    bitwise_not = |c| { let x = c.tensor(0, "x")?; Ok(c.cx.g.unary(Unary::Not, x)?) };

    absolute = |c| same_type(c, Unary::Abs);
    negative = |c| same_type(c, Unary::Neg);
    sign = |c| same_type(c, Unary::Sign);
    truncate = |c| integers_stay(c, Unary::Trunc);
    floor = |c| function(c, Unary::Floor);
    ceil = |c| function(c, Unary::Ceil);
    round = |c| rounded(c);
    square = |c| { let x = arithmetic_one(c)?; Ok(c.cx.g.mul(x, x)?) };
    exp = |c| function(c, Unary::Exp);
    expm1 = |c| function(c, Unary::Expm1);
    exp_2 = |c| {
        let x = c.floating(0, "x")?;
        let two = c.like(x, 2.0)?;
        Ok(c.cx.g.binary(Binary::Pow, two, x)?)
    };
    log = |c| function(c, Unary::Log);
    log1p = |c| function(c, Unary::Log1p);
    log_2 = |c| { let x = function(c, Unary::Log)?; scaled(c, x, std::f64::consts::LOG2_E) };
    log_10 = |c| { let x = function(c, Unary::Log)?; scaled(c, x, std::f64::consts::LOG10_E) };
    sqrt = |c| function(c, Unary::Sqrt);
    rsqrt = |c| function(c, Unary::Rsqrt);
    cbrt = |c| {
        let x = c.floating(0, "x")?;
        let (abs, sign, third) = (c.cx.g.unary(Unary::Abs, x)?, c.cx.g.unary(Unary::Sign, x)?, c.like(x, 1.0 / 3.0)?);
        let root = c.cx.g.binary(Binary::Pow, abs, third)?;
        Ok(c.cx.g.mul(root, sign)?)
    };
    reciprocal = |c| {
        let x = c.floating(0, "x")?;
        let one = c.like(x, 1.0)?;
        Ok(c.cx.g.div(one, x)?)
    };
    sin = |c| function(c, Unary::Sin);
    cos = |c| function(c, Unary::Cos);
    tan = |c| function(c, Unary::Tan);
    arcsin = |c| function(c, Unary::Asin);
    arccos = |c| function(c, Unary::Acos);
    arctan = |c| function(c, Unary::Atan);
    sinh = |c| function(c, Unary::Sinh);
    cosh = |c| function(c, Unary::Cosh);
    tanh = |c| function(c, Unary::Tanh);
    arcsinh = |c| function(c, Unary::Asinh);
    arccosh = |c| function(c, Unary::Acosh);
    arctanh = |c| function(c, Unary::Atanh);
    sigmoid = |c| function(c, Unary::Logistic);
    erf = |c| function(c, Unary::Erf);
    erfc = |c| {
        let y = function(c, Unary::Erf)?;
        let one = c.like(y, 1.0)?;
        Ok(c.cx.g.sub(one, y)?)
    };
    erfinv = |c| { let x = c.floating(0, "x")?; erfinv_of(c, x) };
    sinc = |c| {
        let x = c.floating(0, "x")?;
        let angle = scaled(c, x, std::f64::consts::PI)?;
        let (zero, one) = (c.like(x, 0.0)?, c.like(x, 1.0)?);
        let origin = c.cx.g.compare(Compare::Eq, x, zero)?;
        let safe = c.cx.g.select(origin, one, angle)?;
        let sine = c.cx.g.unary(Unary::Sin, safe)?;
        let y = c.cx.g.div(sine, safe)?;
        Ok(c.cx.g.select(origin, one, y)?)
    };
    deg_to_rad = |c| { let x = c.floating(0, "x")?; scaled(c, x, std::f64::consts::PI / 180.0) };
    rad_to_deg = |c| { let x = c.floating(0, "x")?; scaled(c, x, 180.0 / std::f64::consts::PI) };

    is_nan = |c| function(c, Unary::IsNan);
    is_finite = |c| function(c, Unary::IsFinite);
    is_inf = |c| {
        let x = c.floating(0, "x")?;
        let abs = c.cx.g.unary(Unary::Abs, x)?;
        equals(c, abs, f64::INFINITY)
    };
    is_pos_inf = |c| { let x = c.floating(0, "x")?; equals(c, x, f64::INFINITY) };
    is_neg_inf = |c| { let x = c.floating(0, "x")?; equals(c, x, f64::NEG_INFINITY) };
    is_real = |c| {
        let x = c.tensor(0, "x")?;
        let shape = c.cx.g.shape(x).clone();
        Ok(c.cx.g.full(DType::Bool, 1.0, &shape)?)
    };
    sign_bit = |c| {
        let x = c.floating(0, "x")?;
        let (zero, one) = (c.like(x, 0.0)?, c.like(x, 1.0)?);
        let below = c.cx.g.compare(Compare::Lt, x, zero)?;
        // Of the zeros, one has a negative reciprocal.
        let flipped = c.cx.g.div(one, x)?;
        let (at_zero, negative) = (c.cx.g.compare(Compare::Eq, x, zero)?, c.cx.g.compare(Compare::Lt, flipped, zero)?);
        let negative_zero = c.cx.g.binary(Binary::And, at_zero, negative)?;
        Ok(c.cx.g.binary(Binary::Or, below, negative_zero)?)
    };
    // Tensors are real.
    imaginary = |c| { let x = c.tensor(0, "x")?; c.like(x, 0.0) };
    angle = |c| {
        let x = c.floating(0, "x")?;
        let (zero, pi) = (c.like(x, 0.0)?, c.like(x, std::f64::consts::PI)?);
        let below = c.cx.g.compare(Compare::Lt, x, zero)?;
        let angle = c.cx.g.select(below, pi, zero)?;
        let nan = c.cx.g.unary(Unary::IsNan, x)?;
        Ok(c.cx.g.select(nan, x, angle)?)
    };
    nan_to_num = |c| replaced(c);
    clip = |c| clipped(c);
    where_ = |c| chosen(c);
    select = |c| first_of(c);
}

impl Call<'_> {
    /// A function of pairs of elements, shapes broadcast.
    pub(super) fn binary(&mut self, function: Binary, x: Value, y: Value) -> Out<Value> {
        Ok(self.cx.g.binary_broadcast(function, x, y)?)
    }

    /// A comparison, shapes broadcast.
    pub(super) fn compare(&mut self, relation: Compare, x: Value, y: Value) -> Out<Value> {
        let (x, y) = self.cx.g.broadcast_pair(x, y)?;
        Ok(self.cx.g.compare(relation, x, y)?)
    }
}

/// The only operand of arithmetic, where truth values count as integers.
fn arithmetic_one(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let dtype = if c.cx.g.ty(x).dtype == DType::Bool { DType::I32 } else { c.cx.g.ty(x).dtype };
    Ok(c.cx.g.cast(dtype, x)?)
}

fn arithmetic(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let (mut x, mut y) = c.pair()?;
    if !function.accepts(c.cx.g.ty(x).dtype) {
        (x, y) = (c.cx.g.cast(DType::I32, x)?, c.cx.g.cast(DType::I32, y)?);
    }
    c.binary(function, x, y)
}

fn extreme(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let (x, y) = c.pair()?;
    c.binary(function, x, y)
}

/// What is left of x divided by y towards zero: the remainder has the sign of x.
pub(super) fn truncated_remainder(c: &mut Call<'_>, x: Value, y: Value) -> Out<Value> {
    let (x, y) = c.cx.g.broadcast_pair(x, y)?;
    let (abs_x, abs_y) = (c.cx.g.unary(Unary::Abs, x)?, c.cx.g.unary(Unary::Abs, y)?);
    let rest = c.cx.g.binary(Binary::Mod, abs_x, abs_y)?;
    let (zero, minus) = (c.like(x, 0.0)?, c.cx.g.unary(Unary::Neg, rest)?);
    let negative = c.cx.g.compare(Compare::Lt, x, zero)?;
    Ok(c.cx.g.select(negative, minus, rest)?)
}

fn nan_ignored(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let (x, y) = c.pair()?;
    let (x, y) = c.cx.g.broadcast_pair(x, y)?;
    let z = c.cx.g.binary(function, x, y)?;
    if !c.cx.g.ty(x).dtype.is_float() {
        return Ok(z);
    }
    let (nan_x, nan_y) = (c.cx.g.unary(Unary::IsNan, x)?, c.cx.g.unary(Unary::IsNan, y)?);
    let z = c.cx.g.select(nan_y, x, z)?;
    Ok(c.cx.g.select(nan_x, y, z)?)
}

/// max(x, y) + log(1 + e^−|x − y|); equal infinities have no difference.
pub(super) fn log_add_exp_of(c: &mut Call<'_>, x: Value, y: Value) -> Out<Value> {
    let (x, y) = c.cx.g.broadcast_pair(x, y)?;
    let difference = c.cx.g.sub(x, y)?;
    let away = c.cx.g.unary(Unary::Abs, difference)?;
    let minus = c.cx.g.unary(Unary::Neg, away)?;
    let e = c.cx.g.unary(Unary::Exp, minus)?;
    let log = c.cx.g.unary(Unary::Log1p, e)?;
    let large = c.cx.g.binary(Binary::Max, x, y)?;
    let sum = c.cx.g.add(large, log)?;
    let (none, rough) = (c.cx.g.unary(Unary::IsNan, difference)?, c.cx.g.add(x, y)?);
    Ok(c.cx.g.select(none, rough, sum)?)
}

fn comparison(c: &mut Call<'_>, relation: Compare) -> Out<Value> {
    let (x, y) = c.pair()?;
    c.compare(relation, x, y)
}

fn logical(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let (x, y) = c.pair()?;
    let (x, y) = (c.cx.g.cast(DType::Bool, x)?, c.cx.g.cast(DType::Bool, y)?);
    c.binary(function, x, y)
}

fn bits(c: &mut Call<'_>, function: Binary) -> Out<Value> {
    let (x, y) = c.pair_of("x", "y")?;
    c.binary(function, x, y)
}

/// A function whose result has the operand's type.
fn same_type(c: &mut Call<'_>, function: Unary) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    if c.cx.g.ty(x).dtype == DType::Bool {
        // Truth values have no sign.
        return match function {
            Unary::Neg => Err(misfit("a truth value has no negative")),
            _ => Ok(x),
        };
    }
    Ok(c.cx.g.unary(function, x)?)
}

/// A function that leaves integers as they are.
fn integers_stay(c: &mut Call<'_>, function: Unary) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    if c.cx.g.ty(x).dtype.is_float() { Ok(c.cx.g.unary(function, x)?) } else { Ok(x) }
}

/// A function of floating numbers.
fn function(c: &mut Call<'_>, function: Unary) -> Out<Value> {
    let x = c.floating(0, "x")?;
    Ok(c.cx.g.unary(function, x)?)
}

fn rounded(c: &mut Call<'_>) -> Out<Value> {
    let decimals = c.int("decimals")?.unwrap_or(0);
    let x = c.tensor(0, "x")?;
    if !c.cx.g.ty(x).dtype.is_float() {
        return match decimals {
            0.. => Ok(x),
            _ => Err(unsupported("rounding integers to tens")),
        };
    }
    if decimals == 0 {
        return Ok(c.cx.g.unary(Unary::Round, x)?);
    }
    let power = i32::try_from(decimals).map_err(|_| misfit(format!("{decimals} decimals")))?;
    let factor = c.like(x, 10f64.powi(power))?;
    let large = c.cx.g.mul(x, factor)?;
    let whole = c.cx.g.unary(Unary::Round, large)?;
    Ok(c.cx.g.div(whole, factor)?)
}

/// Every element times a number.
pub(super) fn scaled(c: &mut Call<'_>, x: Value, factor: f64) -> Out<Value> {
    let factor = c.like(x, factor)?;
    Ok(c.cx.g.mul(x, factor)?)
}

fn equals(c: &mut Call<'_>, x: Value, number: f64) -> Out<Value> {
    let number = c.like(x, number)?;
    Ok(c.cx.g.compare(Compare::Eq, x, number)?)
}

/// The inverse of the error function: Winitzki's approximation, and three steps of Newton's method.
fn erfinv_of(c: &mut Call<'_>, x: Value) -> Out<Value> {
    const A: f64 = 0.147;
    let one = c.like(x, 1.0)?;
    let square = c.cx.g.mul(x, x)?;
    let rest = c.cx.g.sub(one, square)?;
    let log = c.cx.g.unary(Unary::Log, rest)?;
    let (half, ratio) = (scaled(c, log, 0.5)?, scaled(c, log, 1.0 / A)?);
    let offset = c.like(x, 2.0 / (std::f64::consts::PI * A))?;
    let b = c.cx.g.add(half, offset)?;
    let b_square = c.cx.g.mul(b, b)?;
    let under = c.cx.g.sub(b_square, ratio)?;
    let root = c.cx.g.unary(Unary::Sqrt, under)?;
    let inner = c.cx.g.sub(root, b)?;
    let abs = c.cx.g.unary(Unary::Sqrt, inner)?;
    let sign = c.cx.g.unary(Unary::Sign, x)?;
    let start = c.cx.g.mul(sign, abs)?;
    let mut y = start;
    for _ in 0..3 {
        let error = c.cx.g.unary(Unary::Erf, y)?;
        let error = c.cx.g.sub(error, x)?;
        let square = c.cx.g.mul(y, y)?;
        let e = c.cx.g.unary(Unary::Exp, square)?;
        let step = c.cx.g.mul(error, e)?;
        let step = scaled(c, step, std::f64::consts::PI.sqrt() / 2.0)?;
        y = c.cx.g.sub(y, step)?;
    }
    // At ±1 the start is infinite, and right.
    let finite = c.cx.g.unary(Unary::IsFinite, start)?;
    Ok(c.cx.g.select(finite, y, start)?)
}

/// |x − y| ≤ atol + rtol·|y|, and equal infinities.
pub(super) fn close(c: &mut Call<'_>) -> Out<Value> {
    let (x, y) = c.float_pair()?;
    let (x, y) = c.cx.g.broadcast_pair(x, y)?;
    let (relative, absolute) = (tolerance(c, 2, "rtol", 1e-5)?, tolerance(c, 3, "atol", 1e-8)?);
    let equal_nan = c.flag("equal_nan")?;
    let size = c.cx.g.unary(Unary::Abs, y)?;
    let allowed = scaled(c, size, relative)?;
    let absolute = c.like(x, absolute)?;
    let allowed = c.cx.g.add(allowed, absolute)?;
    let difference = c.cx.g.sub(x, y)?;
    let away = c.cx.g.unary(Unary::Abs, difference)?;
    let near = c.cx.g.compare(Compare::Le, away, allowed)?;
    // Next to an infinity everything would be near.
    let finite = c.cx.g.unary(Unary::IsFinite, y)?;
    let near = c.cx.g.binary(Binary::And, near, finite)?;
    let same = c.cx.g.compare(Compare::Eq, x, y)?;
    let near = c.cx.g.binary(Binary::Or, near, same)?;
    if !equal_nan {
        return Ok(near);
    }
    let (nan_x, nan_y) = (c.cx.g.unary(Unary::IsNan, x)?, c.cx.g.unary(Unary::IsNan, y)?);
    let both = c.cx.g.binary(Binary::And, nan_x, nan_y)?;
    Ok(c.cx.g.binary(Binary::Or, near, both)?)
}

/// A tolerance, which one operation takes as an argument of the call and another in its configuration.
fn tolerance(c: &mut Call<'_>, position: usize, key: &str, default: f64) -> Out<f64> {
    match c.constant_at(position, key)? {
        Some(json) => super::args::number(&json).ok_or_else(|| misfit(format!("`{key}` is {json}, not a number"))),
        None => Ok(c.number(key)?.unwrap_or(default)),
    }
}

fn replaced(c: &mut Call<'_>) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let dtype = c.cx.g.ty(x).dtype;
    let nan = c.number("nan")?.unwrap_or(0.0);
    let greatest = match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => 3.389_531_389_251_535_5e38,
        DType::F64 => f64::MAX,
        _ => f64::from(f32::MAX),
    };
    let (high, low) = (c.number("posinf")?.unwrap_or(greatest), c.number("neginf")?.unwrap_or(-greatest));
    if !dtype.is_float() {
        return Ok(x);
    }
    let mut y = x;
    for (what, instead) in [(f64::INFINITY, high), (f64::NEG_INFINITY, low)] {
        let (here, instead) = (equals(c, x, what)?, c.like(x, instead)?);
        y = c.cx.g.select(here, instead, y)?;
    }
    let (here, instead) = (c.cx.g.unary(Unary::IsNan, x)?, c.like(x, nan)?);
    Ok(c.cx.g.select(here, instead, y)?)
}

/// Bounds have the type of what they bound; the derivative is 1 at them, and a NaN stays.
fn clipped(c: &mut Call<'_>) -> Out<Value> {
    let mut x = arithmetic_one(c)?;
    for (position, name, outside) in [(2, "x_max", Compare::Gt), (1, "x_min", Compare::Lt)] {
        let bound = match c.maybe_operand(position, name)? {
            Some(operand) => operand,
            None => match c.attr(name)? {
                Some(json) => Operand::Number(json),
                None => continue,
            },
        };
        let bound = c.typed(&bound, c.cx.g.ty(x).dtype)?;
        let (wide, bound) = c.cx.g.broadcast_pair(x, bound)?;
        let outside = c.cx.g.compare(outside, wide, bound)?;
        x = c.cx.g.select(outside, bound, wide)?;
    }
    Ok(x)
}

/// Three tensors broadcast against each other.
pub(super) fn choose(c: &mut Call<'_>, condition: Value, x: Value, y: Value) -> Out<Value> {
    let condition = c.cx.g.cast(DType::Bool, condition)?;
    let (x, y) = c.cx.g.broadcast_pair(x, y)?;
    let (condition, x) = c.cx.g.broadcast_pair(condition, x)?;
    let shape = c.cx.g.shape(x).clone();
    let y = c.cx.g.broadcast_to(y, &shape)?;
    Ok(c.cx.g.select(condition, x, y)?)
}

/// `where(condition, x1, x2)`; the form that gives positions has no shape of its own.
fn chosen(c: &mut Call<'_>) -> Out<Value> {
    let condition = c.tensor(0, "condition")?;
    let (Some(x), Some(y)) = (c.maybe_operand(1, "x1")?, c.maybe_operand(2, "x2")?) else {
        return Err(unsupported("`where` with a condition alone, whose result has as many rows as there are hits,"));
    };
    let values = c.values(&[x, y])?;
    choose(c, condition, values[0], values[1])
}

/// The first choice whose condition holds.
fn first_of(c: &mut Call<'_>) -> Out<Value> {
    let list = |item: Option<&Item>| match item {
        Some(Item::List(items)) => items.len(),
        Some(Item::Const(Json::Array(items))) => items.len(),
        _ => 1,
    };
    let (conditions, choices) = (list(c.inputs.get(0, "condlist")), list(c.inputs.get(1, "choicelist")));
    if conditions != choices {
        return Err(misfit(format!("{conditions} conditions for {choices} choices")));
    }
    let conditions = c.many_at(0, "condlist")?;
    let mut operands = c.operands_at(1, "choicelist")?;
    operands.push(c.maybe_operand(2, "default")?.unwrap_or(Operand::Number(Json::Int(0))));
    let values = c.values(&operands)?;
    let (last, choices) = values.split_last().ok_or_else(|| misfit("has no choice"))?;
    let mut y = *last;
    for (condition, choice) in conditions.iter().zip(choices).rev() {
        y = choose(c, *condition, *choice, y)?;
    }
    Ok(y)
}
