//! Emission of the scalar table on floats (one or four lanes) and on single integers.

use super::emit::Emitter;
use super::lanes::{Stream, int_cc, scalar_type, signed};
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, Value, types};
use intwain_ir::DType;
use intwain_ir::scalar::expand::{self, Emit, Means};
use intwain_ir::scalar::{Binary, Compare, Libcall, Scalar, Unary};

impl Emitter<'_, '_> {
    fn float_constant(&mut self, dtype: DType, lanes: u8, x: f64) -> Value {
        match (dtype, lanes) {
            (DType::F64, _) => self.b.ins().f64const(x),
            (_, 1) => self.b.ins().f32const(x as f32),
            _ => Stream { e: self, lanes }.f32(x as f32),
        }
    }

    pub(super) fn unary_float(&mut self, op: Unary, dtype: DType, lanes: u8, v: Value) -> Value {
        let y = match op {
            Unary::Neg => return self.b.ins().fneg(v),
            Unary::Abs => return self.b.ins().fabs(v),
            Unary::IsNan => return self.b.ins().fcmp(FloatCC::Unordered, v, v),
            Unary::IsFinite => {
                let magnitude = self.b.ins().fabs(v);
                let inf = self.float_constant(dtype, lanes, f64::INFINITY);
                return self.b.ins().fcmp(FloatCC::LessThan, magnitude, inf);
            }
            Unary::Sign => {
                let (one, zero) = (self.float_constant(dtype, lanes, 1.0), self.float_constant(dtype, lanes, 0.0));
                let minus = self.b.ins().fneg(one);
                let above = self.b.ins().fcmp(FloatCC::GreaterThan, v, zero);
                let below = self.b.ins().fcmp(FloatCC::LessThan, v, zero);
                let y = self.choose(above, one, v);
                return self.choose(below, minus, y);
            }
            Unary::Sqrt => self.b.ins().sqrt(v),
            Unary::Rsqrt => {
                let one = self.float_constant(dtype, lanes, 1.0);
                let root = self.b.ins().sqrt(v);
                self.b.ins().fdiv(one, root)
            }
            Unary::Floor => self.b.ins().floor(v),
            Unary::Ceil => self.b.ins().ceil(v),
            Unary::Round => self.b.ins().nearest(v),
            Unary::Trunc => self.b.ins().trunc(v),
            _ => match expand::means(op, dtype) {
                Means::Libcall(f) if dtype == DType::F64 => self.call(f, &[v]),
                Means::Libcall(_) | Means::Expansion | Means::Native => {
                    expand::unary_f32(&mut Stream { e: self, lanes }, op, v)
                        .expect("every operation that isn't native is an expansion or a call")
                }
            },
        };
        self.round(dtype, y)
    }

    /// `constants` are those of the operands, where known.
    pub(super) fn binary_float(
        &mut self,
        op: Binary,
        dtype: DType,
        lanes: u8,
        a: Value,
        b: Value,
        constants: (Option<Scalar>, Option<Scalar>),
    ) -> Value {
        let y = match op {
            Binary::Add => self.b.ins().fadd(a, b),
            Binary::Sub => self.b.ins().fsub(a, b),
            Binary::Mul => self.b.ins().fmul(a, b),
            Binary::Div => self.b.ins().fdiv(a, b),
            Binary::FloorDiv => {
                let q = self.b.ins().fdiv(a, b);
                self.b.ins().floor(q)
            }
            Binary::Max | Binary::Min => return self.extremum(op, dtype, lanes, [a, b], constants),
            Binary::Mod => self.call_binary(dtype, lanes, Libcall::ModF32, Libcall::ModF64, a, b),
            Binary::Pow if dtype == DType::F64 => self.call(Libcall::PowF64, &[a, b]),
            Binary::Atan2 if dtype == DType::F64 => self.call(Libcall::Atan2F64, &[a, b]),
            Binary::Pow | Binary::Atan2 => {
                expand::binary_f32(&mut Stream { e: self, lanes }, op, a, b).expect("these are expansions")
            }
            Binary::And | Binary::Or | Binary::Xor | Binary::Shl | Binary::Shr => {
                unreachable!("the verifier refuses bitwise operations on floats")
            }
        };
        self.round(dtype, y)
    }

    fn call_binary(&mut self, dtype: DType, lanes: u8, single: Libcall, double: Libcall, a: Value, b: Value) -> Value {
        match (dtype, lanes) {
            (DType::F64, _) => self.call(double, &[a, b]),
            (_, 1) => self.call(single, &[a, b]),
            _ => {
                let each: Vec<Value> = (0..4u8)
                    .map(|i| {
                        let (x, y) = (self.b.ins().extractlane(a, i), self.b.ins().extractlane(b, i));
                        self.call(single, &[x, y])
                    })
                    .collect();
                self.pack(DType::F32, &each)
            }
        }
    }

    /// IEEE maximum or minimum. With a constant operand one machine instruction does it, whose second operand wins when
    /// a comparison fails; what is left is max(−0, +0), which adding +0 mends.
    fn extremum(
        &mut self,
        op: Binary,
        dtype: DType,
        lanes: u8,
        [a, b]: [Value; 2],
        constants: (Option<Scalar>, Option<Scalar>),
    ) -> Value {
        let usable = |c: Option<Scalar>| {
            c.filter(|c| {
                let x = c.to_f64();
                !(x.is_nan() || op == Binary::Min && x == 0.0 && x.is_sign_negative())
            })
        };
        let (constant, c, x) = match (usable(constants.0), usable(constants.1)) {
            (Some(k), _) => (k, a, b),
            (None, Some(k)) => (k, b, a),
            (None, None) => {
                return match op {
                    Binary::Max => self.b.ins().fmax(a, b),
                    _ => self.b.ins().fmin(a, b),
                };
            }
        };
        let better = match op {
            Binary::Max => self.b.ins().fcmp(FloatCC::LessThan, x, c),
            _ => self.b.ins().fcmp(FloatCC::LessThan, c, x),
        };
        let y = self.choose(better, c, x);
        if op == Binary::Max && constant.to_f64() == 0.0 && constant.to_f64().is_sign_positive() {
            let zero = self.float_constant(dtype, lanes, 0.0);
            return self.b.ins().fadd(y, zero);
        }
        y
    }

    pub(super) fn unary_int(&mut self, op: Unary, dtype: DType, v: Value) -> Value {
        match op {
            Unary::Neg => self.b.ins().ineg(v),
            Unary::Abs if signed(dtype) => {
                let minus = self.b.ins().ineg(v);
                let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, v, 0);
                self.b.ins().select(negative, minus, v)
            }
            Unary::Sign => {
                let ty = scalar_type(dtype);
                let nonzero = self.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0);
                let (zero, one) = (self.b.ins().iconst(ty, 0), self.b.ins().iconst(ty, 1));
                let y = self.b.ins().select(nonzero, one, zero);
                if !signed(dtype) {
                    return y;
                }
                let minus = self.b.ins().ineg(one);
                let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, v, 0);
                self.b.ins().select(negative, minus, y)
            }
            Unary::Not if dtype == DType::Bool => self.b.ins().icmp_imm_s(IntCC::Equal, v, 0),
            Unary::Not => self.b.ins().bnot(v),
            Unary::IsNan => self.b.ins().iconst(types::I8, 0),
            Unary::IsFinite => self.b.ins().iconst(types::I8, 1),
            _ => v,
        }
    }

    pub(super) fn binary_int(
        &mut self,
        op: Binary,
        dtype: DType,
        a: Value,
        b: Value,
        constant: Option<Scalar>,
    ) -> Value {
        let bool = dtype == DType::Bool;
        match op {
            Binary::Add | Binary::Max if bool => self.b.ins().bor(a, b),
            Binary::Mul | Binary::Min if bool => self.b.ins().band(a, b),
            Binary::Add => self.b.ins().iadd(a, b),
            Binary::Sub => self.b.ins().isub(a, b),
            Binary::Mul => self.b.ins().imul(a, b),
            Binary::And => self.b.ins().band(a, b),
            Binary::Or => self.b.ins().bor(a, b),
            Binary::Xor => self.b.ins().bxor(a, b),
            Binary::Max | Binary::Min => {
                let cc = if op == Binary::Max { Compare::Gt } else { Compare::Lt };
                let better = self.b.ins().icmp(int_cc(cc, dtype), a, b);
                self.b.ins().select(better, a, b)
            }
            Binary::FloorDiv | Binary::Mod => match constant.map(Scalar::to_i64) {
                Some(n) if n > 0 && matches!(dtype, DType::I64 | DType::I32) => self.divide(op, a, n),
                _ => {
                    let f = if op == Binary::Mod { Libcall::ModI64 } else { Libcall::FloorDivI64 };
                    self.call_int(f, dtype, a, b)
                }
            },
            Binary::Div => self.call_int(Libcall::DivI64, dtype, a, b),
            Binary::Pow => self.call_int(Libcall::PowI64, dtype, a, b),
            Binary::Shl | Binary::Shr => self.shift(op, dtype, a, b),
            Binary::Atan2 => unreachable!("the verifier refuses atan2 on integers"),
        }
    }

    /// ⌊a/n⌋ or a mod n for a known n > 0.
    fn divide(&mut self, op: Binary, a: Value, n: i64) -> Value {
        if n & (n - 1) == 0 {
            return match op {
                Binary::Mod => self.b.ins().band_imm_s(a, n - 1),
                _ => self.b.ins().sshr_imm_u(a, i64::from(n.ilog2())),
            };
        }
        let ty = self.b.func.dfg.value_type(a);
        let divisor = self.b.ins().iconst(ty, n);
        let q = self.b.ins().sdiv(a, divisor);
        let whole = self.b.ins().imul(q, divisor);
        let r = self.b.ins().isub(a, whole);
        let sign = self.b.ins().sshr_imm_u(r, i64::from(ty.bits()) - 1);
        match op {
            Binary::Mod => {
                let back = self.b.ins().band(sign, divisor);
                self.b.ins().iadd(r, back)
            }
            _ => self.b.ins().iadd(q, sign),
        }
    }

    fn call_int(&mut self, f: Libcall, dtype: DType, a: Value, b: Value) -> Value {
        let (a, b) = (self.extend(dtype, a), self.extend(dtype, b));
        let y = self.call(f, &[a, b]);
        let ty = scalar_type(dtype);
        if ty == types::I64 { y } else { self.b.ins().ireduce(ty, y) }
    }

    /// An integer or bool as i64.
    fn extend(&mut self, dtype: DType, x: Value) -> Value {
        match dtype {
            DType::I64 => x,
            d if signed(d) => self.b.ins().sextend(types::I64, x),
            _ => self.b.ins().uextend(types::I64, x),
        }
    }

    fn shift(&mut self, op: Binary, dtype: DType, a: Value, b: Value) -> Value {
        let ty = scalar_type(dtype);
        let bits = i64::from(ty.bits());
        let limit = self.b.ins().iconst(ty, bits);
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, b, limit);
        let zero = self.b.ins().iconst(ty, 0);
        match op {
            Binary::Shr if signed(dtype) => {
                let most = self.b.ins().iconst(ty, bits - 1);
                let count = self.b.ins().select(inside, b, most);
                self.b.ins().sshr(a, count)
            }
            Binary::Shr => {
                let y = self.b.ins().ushr(a, b);
                self.b.ins().select(inside, y, zero)
            }
            _ => {
                let y = self.b.ins().ishl(a, b);
                self.b.ins().select(inside, y, zero)
            }
        }
    }

    /// Conversion of one element.
    pub(super) fn cast(&mut self, from: DType, to: DType, v: Value) -> Value {
        if from == to {
            return v;
        }
        match (from.is_float(), to.is_float()) {
            (true, true) => self.cast_float(from, to, v),
            (true, false) => self.float_to_int(from, to, v),
            (false, true) => {
                let wide = self.extend(from, v);
                let ty = if to == DType::F64 { types::F64 } else { types::F32 };
                let y = self.b.ins().fcvt_from_sint(ty, wide);
                self.round(to, y)
            }
            (false, false) if to == DType::Bool => self.b.ins().icmp_imm_s(IntCC::NotEqual, v, 0),
            (false, false) => {
                let wide = self.extend(from, v);
                let ty = scalar_type(to);
                if ty == types::I64 { wide } else { self.b.ins().ireduce(ty, wide) }
            }
        }
    }

    fn cast_float(&mut self, from: DType, to: DType, v: Value) -> Value {
        match (from, to) {
            (DType::F64, DType::F32) => self.b.ins().fdemote(types::F32, v),
            (DType::F64, to @ DType::F16) => {
                let bits = self.call(Libcall::F64ToF16, &[v]);
                self.widen(to, bits)
            }
            (DType::F64, to) => {
                let bits = self.call(Libcall::F64ToBf16, &[v]);
                self.widen(to, bits)
            }
            (_, DType::F64) => self.b.ins().fpromote(types::F64, v),
            (_, to) => self.round(to, v),
        }
    }

    fn float_to_int(&mut self, from: DType, to: DType, v: Value) -> Value {
        if to == DType::Bool {
            let zero = self.float_constant(from, 1, 0.0);
            return self.b.ins().fcmp(FloatCC::NotEqual, v, zero);
        }
        let ty = scalar_type(to);
        match to {
            DType::I32 | DType::I64 => self.b.ins().fcvt_to_sint_sat(ty, v),
            DType::U32 => self.b.ins().fcvt_to_uint_sat(ty, v),
            _ => {
                let wide = self.b.ins().fcvt_to_sint_sat(types::I32, v);
                let bound = |e: &mut Self, x: Scalar| e.b.ins().iconst(types::I32, x.to_i64() & 0xffff_ffff);
                let (lo, hi) = (bound(self, Scalar::lowest(to)), bound(self, Scalar::highest(to)));
                let above = self.b.ins().icmp(IntCC::SignedGreaterThan, wide, hi);
                let y = self.b.ins().select(above, hi, wide);
                let below = self.b.ins().icmp(IntCC::SignedLessThan, y, lo);
                let y = self.b.ins().select(below, lo, y);
                self.b.ins().ireduce(ty, y)
            }
        }
    }
}
