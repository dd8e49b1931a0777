//! The scalar table on integers and bool.

use super::EmitError;
use super::emit::Emitter;
use super::range::Interval;
use super::text::{Agreement, Class, Value, When, int, long};
use intwain_ir::DType;
use intwain_ir::scalar::{Binary, Compare, Unary};

/// Whether an operation is a loop.
pub(super) fn jumps(op: Binary, dtype: DType) -> bool {
    op == Binary::Pow && !dtype.is_float() && dtype != DType::Bool
}

/// How an integer type is computed.
#[derive(Clone, Copy)]
struct Width {
    class: Class,
    /// The suffix of arithmetic instructions: `s32`, `u32`, `s64`.
    ty: &'static str,
    /// The suffix of bitwise instructions.
    bits: &'static str,
}

fn width(dtype: DType) -> Width {
    match dtype {
        DType::I64 => Width { class: Class::Long, ty: "s64", bits: "b64" },
        DType::U32 => Width { class: Class::Int, ty: "u32", bits: "b32" },
        // Narrow types are widened; u8 too fits an s32.
        _ => Width { class: Class::Int, ty: "s32", bits: "b32" },
    }
}

impl Width {
    fn literal(self, x: i64) -> Value {
        if self.class == Class::Long { long(x) } else { int(x as i32) }
    }

    fn signed(self) -> bool {
        self.ty != "u32"
    }
}

impl Emitter<'_> {
    fn int_op(&mut self, w: Width, name: &str, args: &[Value]) -> Value {
        let bitwise = matches!(name, "and" | "or" | "xor" | "not" | "shl");
        self.t.op(w.class, &format!("{name}.{}", if bitwise { w.bits } else { w.ty }), args)
    }

    fn test(&mut self, w: Width, op: &str, x: Value, y: Value) -> Value {
        self.t.op(Class::Pred, &format!("setp.{op}.{}", w.ty), &[x, y])
    }

    /// Cuts a result to a narrow type: the register form of its low bits.
    pub(super) fn wrap(&mut self, dtype: DType, x: Value) -> Value {
        match dtype {
            DType::I8 => self.t.op(Class::Int, "cvt.s32.s8", &[x]),
            DType::I16 => self.t.op(Class::Int, "cvt.s32.s16", &[x]),
            DType::U8 => self.t.op(Class::Int, "and.b32", &[x, int(255)]),
            _ => x,
        }
    }

    pub(super) fn unary_int(&mut self, op: Unary, dtype: DType, x: Value) -> Value {
        let w = width(dtype);
        match op {
            Unary::Neg => {
                let y = self.int_op(Width { ty: if w.class == Class::Long { "s64" } else { "s32" }, ..w }, "neg", &[x]);
                self.wrap(dtype, y)
            }
            Unary::Abs if matches!(dtype, DType::U8 | DType::U32) => x,
            Unary::Abs => {
                // Not `abs`, whose result for the least integer isn't specified.
                let minus = self.int_op(w, "neg", &[x]);
                let negative = self.test(w, "lt", x, w.literal(0));
                let y = self.select(negative, minus, x);
                self.wrap(dtype, y)
            }
            Unary::Sign => {
                let nonzero = self.test(w, "ne", x, w.literal(0));
                let y = self.select(nonzero, w.literal(1), w.literal(0));
                if matches!(dtype, DType::U8 | DType::U32) {
                    return y;
                }
                let negative = self.test(w, "lt", x, w.literal(0));
                self.select(negative, w.literal(-1), y)
            }
            Unary::Not if dtype == DType::Bool => self.t.op(Class::Pred, "not.pred", &[x]),
            Unary::Not => {
                let y = self.int_op(w, "not", &[x]);
                self.wrap(dtype, y)
            }
            Unary::IsNan => Value::Literal(Class::Pred, 0),
            Unary::IsFinite => Value::Literal(Class::Pred, 1),
            _ => x,
        }
    }

    pub(super) fn binary_bool(&mut self, op: Binary, x: Value, y: Value) -> Value {
        let (x, y) = (self.pred(x), self.pred(y));
        let (name, x, y) = match op {
            Binary::Add | Binary::Max | Binary::Or => ("or", x, y),
            Binary::Mul | Binary::Min | Binary::And | Binary::Div | Binary::FloorDiv => ("and", x, y),
            Binary::Sub | Binary::Xor => ("xor", x, y),
            Binary::Pow => ("or", x, self.t.op(Class::Pred, "not.pred", &[y])),
            Binary::Mod | Binary::Atan2 | Binary::Shl | Binary::Shr => {
                ("and", x, self.t.op(Class::Pred, "not.pred", &[y]))
            }
        };
        self.t.op(Class::Pred, &format!("{name}.pred"), &[x, y])
    }

    pub(super) fn compare_bool(&mut self, op: Compare, x: Value, y: Value) -> Value {
        let (x, y) = (self.pred(x), self.pred(y));
        let not = |e: &mut Self, v| e.t.op(Class::Pred, "not.pred", &[v]);
        let (name, x, y) = match op {
            Compare::Ne => ("xor", x, y),
            Compare::Eq => ("xor", x, not(self, y)),
            Compare::Lt => ("and", not(self, x), y),
            Compare::Le => ("or", not(self, x), y),
            Compare::Gt => ("and", x, not(self, y)),
            Compare::Ge => ("or", x, not(self, y)),
        };
        self.t.op(Class::Pred, &format!("{name}.pred"), &[x, y])
    }

    pub(super) fn compare_int(&mut self, op: Compare, dtype: DType, x: Value, y: Value) -> Value {
        self.test(width(dtype), op.name(), x, y)
    }

    pub(super) fn fma_int(&mut self, dtype: DType, x: Value, y: Value, z: Value) -> Value {
        if dtype == DType::Bool {
            let product = self.binary_bool(Binary::And, x, y);
            return self.binary_bool(Binary::Or, product, z);
        }
        let w = width(dtype);
        let y = self.int_op(w, "mad.lo", &[x, y, z]);
        self.wrap(dtype, y)
    }

    /// `range` is where x lies.
    pub(super) fn binary_int(
        &mut self,
        op: Binary,
        dtype: DType,
        x: Value,
        y: Value,
        range: Interval,
    ) -> Result<Value, EmitError> {
        let w = width(dtype);
        let result = match op {
            Binary::Add => self.int_op(w, "add", &[x, y]),
            Binary::Sub => self.int_op(w, "sub", &[x, y]),
            Binary::Mul => self.int_op(w, "mul.lo", &[x, y]),
            Binary::Max => self.int_op(w, "max", &[x, y]),
            Binary::Min => self.int_op(w, "min", &[x, y]),
            Binary::And => self.int_op(w, "and", &[x, y]),
            Binary::Or => self.int_op(w, "or", &[x, y]),
            Binary::Xor => self.int_op(w, "xor", &[x, y]),
            // The machine clamps counts to the width, and those of narrow types shift everything out of 32 bits too.
            Binary::Shl | Binary::Shr => {
                let count = self.shift_count(w, y);
                self.int_op(w, if op == Binary::Shl { "shl" } else { "shr" }, &[x, count])
            }
            Binary::Div | Binary::FloorDiv | Binary::Mod => match y.known() {
                Some(d) if d > 0 && w.signed() && (op != Binary::Div || range.lo >= 0) => {
                    self.divide_known(op, w, x, d, range)
                }
                _ => self.divide(op, w, x, y),
            },
            Binary::Pow => self.power(w, x, y),
            Binary::Atan2 => return Err(self.unsupported(format!("atan2 of {dtype}"))),
        };
        Ok(self.wrap(dtype, result))
    }

    /// A count as u32; negative ones are large.
    fn shift_count(&mut self, w: Width, y: Value) -> Value {
        match (w.class, y.known()) {
            (Class::Long, Some(n)) => int(if (0..64).contains(&n) { n as i32 } else { 64 }),
            (Class::Long, None) => {
                let count = self.t.op(Class::Long, "min.u64", &[y, long(64)]);
                self.t.op(Class::Int, "cvt.u32.u64", &[count])
            }
            _ => y,
        }
    }

    /// ⌊x/d⌋ or x mod d for a known d > 0.
    fn divide_known(&mut self, op: Binary, w: Width, x: Value, d: i64, range: Interval) -> Value {
        let modulo = op == Binary::Mod;
        if range.lo >= 0 && range.hi < d {
            return if modulo { x } else { w.literal(0) };
        }
        if d & (d - 1) == 0 {
            return match (modulo, d.ilog2()) {
                (true, _) => self.int_op(w, "and", &[x, w.literal(d - 1)]),
                (false, 0) => x,
                (false, n) => self.int_op(w, "shr", &[x, int(n as i32)]),
            };
        }
        let q = if range.lo >= 0 {
            self.natural_quotient(w, x, d)
        } else {
            // ⌊x/d⌋ = −1 − ⌊(−1 − x)/d⌋, and −1 − x is x with all bits turned.
            let width = if w.class == Class::Long { 63 } else { 31 };
            let sign = self.int_op(w, "shr", &[x, int(width)]);
            let natural = self.int_op(w, "xor", &[x, sign]);
            let q = self.natural_quotient(w, natural, d);
            self.int_op(w, "xor", &[q, sign])
        };
        if modulo { self.int_op(w, "mad.lo", &[q, w.literal(-d), x]) } else { q }
    }

    /// ⌊x/d⌋ for x ≥ 0 and a d that is no power of two.
    ///
    /// With n bits of x and l = ⌈log₂ d⌉, the multiplier m = ⌈2^(n + l) / d⌉ has n + 1 bits and is too large by less than
    /// 2^l / d · 2^−n of itself, so that ⌊x·m / 2^(n + l)⌋ is exact (Granlund and Montgomery, 1994).
    fn natural_quotient(&mut self, w: Width, x: Value, d: i64) -> Value {
        let bits = if w.class == Class::Long { 63 } else { 31 };
        let l = 64 - (d - 1).leading_zeros();
        let multiplier = (1u128 << (bits + l)).div_ceil(d as u128) as u64;
        let (suffix, m) = match w.class {
            Class::Long => ("u64", long(multiplier as i64)),
            _ => ("u32", int(multiplier as u32 as i32)),
        };
        let high = self.t.op(w.class, &format!("mul.hi.{suffix}"), &[x, m]);
        match l {
            1 => high,
            _ => self.t.op(w.class, &format!("shr.{suffix}"), &[high, int(l as i32 - 1)]),
        }
    }

    fn divide(&mut self, op: Binary, w: Width, x: Value, y: Value) -> Value {
        let zero = w.literal(0);
        if y.known() == Some(0) {
            return zero;
        }
        // Division by 0 isn't specified, and neither is that of the least integer by −1: both divide by 1 instead.
        let (divisor, is_zero, is_minus) = match y.known() {
            Some(-1) if w.signed() => (w.literal(1), None, Some(Value::Literal(Class::Pred, 1))),
            Some(_) => (y, None, None),
            None => {
                let is_zero = self.test(w, "eq", y, zero);
                let mut divisor = self.select(is_zero, w.literal(1), y);
                let is_minus = w.signed().then(|| self.test(w, "eq", y, w.literal(-1)));
                if let Some(m) = is_minus {
                    divisor = self.select(m, w.literal(1), divisor);
                }
                (divisor, Some(is_zero), is_minus)
            }
        };
        let q = self.int_op(w, "div", &[x, divisor]);
        let floors = w.signed() && op != Binary::Div;
        if op == Binary::Mod || floors {
            let whole = self.int_op(w, "mul.lo", &[q, divisor]);
            let r = self.int_op(w, "sub", &[x, whole]);
            if !floors {
                return r;
            }
            // Where the remainder is not 0 and its sign differs from the divisor's.
            let nonzero = self.test(w, "ne", r, zero);
            let signs = self.int_op(w, "xor", &[r, divisor]);
            let differ = self.test(w, "lt", signs, zero);
            let down = self.t.op(Class::Pred, "and.pred", &[nonzero, differ]);
            if op == Binary::Mod {
                let up = self.int_op(w, "add", &[r, divisor]);
                return self.select(down, up, r);
            }
            let less = self.int_op(w, "add", &[q, w.literal(-1)]);
            let q = self.select(down, less, q);
            return self.undefined_quotients(w, x, q, is_zero, is_minus);
        }
        self.undefined_quotients(w, x, q, is_zero, is_minus)
    }

    fn undefined_quotients(
        &mut self,
        w: Width,
        x: Value,
        mut q: Value,
        is_zero: Option<Value>,
        is_minus: Option<Value>,
    ) -> Value {
        if let Some(m) = is_minus {
            let minus = self.int_op(w, "neg", &[x]);
            q = self.select(m, minus, q);
        }
        match is_zero {
            Some(z) => self.select(z, w.literal(0), q),
            None => q,
        }
    }

    /// x^y by squaring; a negative exponent gives 1 for 1, ±1 for −1, else 0.
    fn power(&mut self, w: Width, x: Value, y: Value) -> Value {
        let negative = if w.signed() { self.test(w, "lt", y, w.literal(0)) } else { Value::Literal(Class::Pred, 0) };
        // Of a negative exponent only the last bit counts, and only for ±1.
        let one = self.test(w, "eq", x, w.literal(1));
        let minus = self.test(w, "eq", x, w.literal(-1));
        let unit = self.t.op(Class::Pred, "or.pred", &[one, minus]);
        let parity = self.int_op(w, "and", &[y, w.literal(1)]);
        let exponent = self.select(negative, parity, y);
        let unit_base = self.select(unit, x, w.literal(0));
        let base = self.select(negative, unit_base, x);
        // 0 to an even negative exponent would be 1 now; it is 0.
        let start = {
            let not_unit = self.t.op(Class::Pred, "not.pred", &[unit]);
            let lost = self.binary_bool(Binary::And, negative, not_unit);
            self.select(lost, w.literal(0), w.literal(1))
        };
        let (result, square, rest) = (self.t.fresh(w.class), self.t.fresh(w.class), self.t.fresh(w.class));
        self.t.copy(result, start);
        self.t.copy(square, base);
        self.t.copy(rest, exponent);
        let (again, done) = (self.t.label("power"), self.t.label("powered"));
        self.t.mark(&again);
        let none = self.test(w, "eq", rest, w.literal(0));
        self.t.jump_if(none, When::True, Agreement::Divergent, &done);
        let bit = self.int_op(w, "and", &[rest, w.literal(1)]);
        let odd = self.test(w, "ne", bit, w.literal(0));
        let product = self.int_op(w, "mul.lo", &[result, square]);
        let next = self.select(odd, product, result);
        self.t.copy(result, next);
        let squared = self.int_op(w, "mul.lo", &[square, square]);
        self.t.copy(square, squared);
        let half = self.int_op(w, "shr", &[rest, int(1)]);
        self.t.copy(rest, half);
        self.t.jump(&again);
        self.t.place(&done);
        result
    }
}
