//! The instruction stream for expansions on f32.

use super::emit::Emitter;
use super::text::{Class, Value, float, int};
use intwain_ir::scalar::Compare;
use intwain_ir::scalar::expand::Emit;

/// Writes the instructions of an expansion.
pub(super) struct Stream<'e, 'k> {
    e: &'e mut Emitter<'k>,
}

impl<'e, 'k> Stream<'e, 'k> {
    pub(super) fn new(e: &'e mut Emitter<'k>) -> Self {
        Stream { e }
    }

    fn f(&mut self, code: &str, args: &[Value]) -> Value {
        self.e.t.op(Class::Float, code, args)
    }

    fn i(&mut self, code: &str, args: &[Value]) -> Value {
        self.e.t.op(Class::Int, code, args)
    }
}

impl Emit for Stream<'_, '_> {
    type V = Value;

    fn f32(&mut self, x: f32) -> Value {
        float(x)
    }
    fn i32(&mut self, x: i32) -> Value {
        int(x)
    }
    fn neg(&mut self, x: Value) -> Value {
        self.f("neg.f32", &[x])
    }
    fn abs(&mut self, x: Value) -> Value {
        self.f("abs.f32", &[x])
    }
    fn add(&mut self, x: Value, y: Value) -> Value {
        self.f("add.rn.f32", &[x, y])
    }
    fn sub(&mut self, x: Value, y: Value) -> Value {
        self.f("sub.rn.f32", &[x, y])
    }
    fn mul(&mut self, x: Value, y: Value) -> Value {
        self.f("mul.rn.f32", &[x, y])
    }
    fn div(&mut self, x: Value, y: Value) -> Value {
        self.f("div.rn.f32", &[x, y])
    }
    fn fma(&mut self, x: Value, y: Value, z: Value) -> Value {
        self.f("fma.rn.f32", &[x, y, z])
    }
    fn sqrt(&mut self, x: Value) -> Value {
        self.f("sqrt.rn.f32", &[x])
    }
    fn compare(&mut self, op: Compare, x: Value, y: Value) -> Value {
        let name = if op == Compare::Ne { "neu" } else { op.name() };
        self.e.t.op(Class::Pred, &format!("setp.{name}.f32"), &[x, y])
    }
    fn select(&mut self, mask: Value, x: Value, y: Value) -> Value {
        self.e.select(mask, x, y)
    }
    fn bits(&mut self, x: Value) -> Value {
        self.i("mov.b32", &[x])
    }
    fn float(&mut self, x: Value) -> Value {
        self.f("mov.b32", &[x])
    }
    fn to_float(&mut self, x: Value) -> Value {
        self.f("cvt.rn.f32.s32", &[x])
    }
    fn iadd(&mut self, x: Value, y: Value) -> Value {
        self.i("add.s32", &[x, y])
    }
    fn isub(&mut self, x: Value, y: Value) -> Value {
        self.i("sub.s32", &[x, y])
    }
    fn iand(&mut self, x: Value, y: Value) -> Value {
        self.i("and.b32", &[x, y])
    }
    fn ior(&mut self, x: Value, y: Value) -> Value {
        self.i("or.b32", &[x, y])
    }
    fn shl(&mut self, x: Value, n: u32) -> Value {
        self.i("shl.b32", &[x, int(n as i32)])
    }
    fn sar(&mut self, x: Value, n: u32) -> Value {
        self.i("shr.s32", &[x, int(n as i32)])
    }
    fn ixor(&mut self, x: Value, y: Value) -> Value {
        self.i("xor.b32", &[x, y])
    }
    fn imul(&mut self, x: Value, y: Value) -> Value {
        self.i("mul.lo.s32", &[x, y])
    }
    fn umulhi(&mut self, x: Value, y: Value) -> Value {
        self.i("mul.hi.u32", &[x, y])
    }
    fn shl_by(&mut self, x: Value, n: Value) -> Value {
        self.i("shl.b32", &[x, n])
    }
    fn shr(&mut self, x: Value, n: u32) -> Value {
        self.i("shr.u32", &[x, int(n as i32)])
    }
}
