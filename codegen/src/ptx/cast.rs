//! Conversions.

use super::emit::Emitter;
use super::float::truth;
use super::text::{Class, Value, float, int, literal, long};
use intwain_ir::DType;
use intwain_ir::scalar::{self, Scalar};

impl Emitter<'_> {
    /// An element as one of another type.
    pub(super) fn cast(&mut self, from: DType, to: DType, x: Value) -> Value {
        if from == to {
            return x;
        }
        if let Some(k) = Self::element(from, x) {
            return literal(scalar::cast(to, k));
        }
        match (from, to) {
            (DType::Bool, _) => {
                let [one, zero] = truth(to);
                self.select(x, one, zero)
            }
            (f, t) if f.is_float() && t.is_float() => self.float_to_float(f, t, x),
            (f, t) if f.is_float() => self.float_to_int(f, t, x),
            (f, t) if t.is_float() => self.int_to_float(f, t, x),
            (_, DType::Bool) => {
                let (ty, zero) = if from == DType::I64 { ("s64", long(0)) } else { ("s32", int(0)) };
                self.t.op(Class::Pred, &format!("setp.ne.{ty}"), &[x, zero])
            }
            (DType::U32, DType::I64) => self.t.op(Class::Long, "cvt.u64.u32", &[x]),
            (_, DType::I64) => self.t.op(Class::Long, "cvt.s64.s32", &[x]),
            (DType::I64, _) => {
                let low = self.t.op(Class::Int, "cvt.u32.u64", &[x]);
                self.wrap(to, low)
            }
            _ => self.wrap(to, x),
        }
    }

    fn int_to_float(&mut self, from: DType, to: DType, x: Value) -> Value {
        let source = match from {
            DType::I64 => "s64",
            DType::U32 => "u32",
            _ => "s32",
        };
        if to == DType::F64 {
            return self.t.op(Class::Double, &format!("cvt.rn.f64.{source}"), &[x]);
        }
        let y = self.t.op(Class::Float, &format!("cvt.rn.f32.{source}"), &[x]);
        self.narrow(to, y)
    }

    fn float_to_float(&mut self, from: DType, to: DType, x: Value) -> Value {
        match (from, to) {
            (DType::F64, DType::F32) => self.t.op(Class::Float, "cvt.rn.f32.f64", &[x]),
            (DType::F64, _) => {
                let single = self.odd_single(x);
                self.narrow(to, single)
            }
            (_, DType::F64) => {
                let single = self.widen(from, x);
                self.t.op(Class::Double, "cvt.f64.f32", &[single])
            }
            _ => {
                let single = self.widen(from, x);
                self.narrow(to, single)
            }
        }
    }

    /// Truncates and saturates; NaN gives 0.
    fn float_to_int(&mut self, from: DType, to: DType, x: Value) -> Value {
        let x = self.widen(from, x);
        let (source, zero) = match from {
            DType::F64 => ("f64", Value::Literal(Class::Double, 0)),
            _ => ("f32", float(0.0)),
        };
        let (class, target) = match to {
            DType::Bool => return self.t.op(Class::Pred, &format!("setp.neu.{source}"), &[x, zero]),
            DType::I64 => (Class::Long, "s64"),
            DType::U32 => (Class::Int, "u32"),
            _ => (Class::Int, "s32"),
        };
        let y = self.t.op(class, &format!("cvt.rzi.{target}.{source}"), &[x]);
        match to {
            DType::I8 | DType::U8 | DType::I16 => {
                let (lo, hi) = (literal(Scalar::lowest(to)), literal(Scalar::highest(to)));
                let y = self.t.op(class, "max.s32", &[y, lo]);
                let y = self.t.op(class, "min.s32", &[y, hi]);
                self.unless_nan(from, source, x, y)
            }
            _ => self.unless_nan(from, source, x, y),
        }
    }

    /// The machine turns NaN into 0 only between 32 bits.
    fn unless_nan(&mut self, from: DType, source: &str, x: Value, y: Value) -> Value {
        if from != DType::F64 && y.class() == Class::Int {
            return y;
        }
        let zero = if y.class() == Class::Long { long(0) } else { int(0) };
        let nan = self.t.op(Class::Pred, &format!("setp.nan.{source}"), &[x, x]);
        self.select(nan, zero, y)
    }
}
