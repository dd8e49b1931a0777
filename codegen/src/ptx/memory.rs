//! Loads, stores and asynchronous copies.

use super::address::Address;
use super::emit::{Emitter, Lanes};
use super::text::{Class, Value, int};
use intwain_ir::DType;
use intwain_ir::kernel::{Access, Place, Reg, RegType};

/// The type of an element in memory.
fn memory_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool | DType::U8 => "u8",
        DType::I8 => "s8",
        DType::I16 => "s16",
        DType::F16 | DType::BF16 => "b16",
        DType::I32 => "s32",
        DType::U32 => "u32",
        DType::I64 => "s64",
        DType::F32 => "f32",
        DType::F64 => "f64",
    }
}

/// Bytes that one access can have.
const WIDEST: usize = 16;

/// `{a, b}`, or the value alone.
fn group(values: &[Value]) -> String {
    match values {
        [one] => one.to_string(),
        many => format!("{{{}}}", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn vector(lanes: usize) -> &'static str {
    match lanes {
        1 => "",
        2 => ".v2",
        _ => ".v4",
    }
}

/// Whether a vector is accessed in words of two elements.
fn halves(ty: RegType) -> bool {
    ty.dtype.size() == 2 && ty.lanes > 1
}

impl Emitter<'_> {
    /// Neighbouring elements to registers, in as few accesses as there can be. Predicates are new ones.
    pub(super) fn load_to(&mut self, lanes: Lanes, ty: RegType, from: Place, index: Reg, offset: i64) -> Lanes {
        let address = self.address(from, index, offset);
        let space = match from {
            Place::Param(i) => match self.kernel.params[i as usize].access {
                Access::Constant => "global.nc",
                Access::Read | Access::Write | Access::Update => "global",
            },
            Place::Buffer(_) => "shared",
        };
        if halves(ty) {
            let words: Lanes = (0..ty.lanes / 2).map(|_| self.t.fresh(Class::Int)).collect();
            let v = vector(words.len());
            let line = format!("ld.{space}{v}.b32 {}, {address};", group(&words));
            self.t.pure(&words, &address.uses(), format_args!("{line}"));
            return self.lanes_of(ty, &words);
        }
        let bool = ty.dtype == DType::Bool;
        let lanes = if bool { (0..ty.lanes).map(|_| self.t.fresh(Class::Int)).collect() } else { lanes };
        let size = ty.dtype.size();
        let at_once = (WIDEST / size).min(ty.lanes as usize);
        for (i, part) in lanes.chunks(at_once).enumerate() {
            let (v, m) = (vector(part.len()), memory_type(ty.dtype));
            let at = address.plus((i * at_once * size) as i64);
            self.t.pure(part, &at.uses(), format_args!("ld.{space}{v}.{m} {}, {at};", group(part)));
        }
        if !bool {
            return lanes;
        }
        lanes.iter().map(|x| self.t.op(Class::Pred, "setp.ne.s32", &[*x, int(0)])).collect()
    }

    /// Writes neighbouring elements.
    pub(super) fn store(&mut self, to: Place, index: Reg, offset: i64, value: Reg) {
        let ty = self.ty(value);
        let mut lanes = self.full_lanes(value);
        if ty.dtype == DType::Bool {
            lanes = lanes.iter().map(|p| self.number(*p)).collect();
        }
        let lanes: Lanes = lanes.iter().map(|x| self.t.in_reg(*x)).collect();
        let address = self.address(to, index, offset);
        let space = match to {
            Place::Param(_) => "global",
            Place::Buffer(_) => "shared",
        };
        if halves(ty) {
            let words = self.words_of(ty.dtype, &lanes);
            let (uses, v) = (address.with(&words), vector(words.len()));
            return self.t.line(&uses, format_args!("st.{space}{v}.b32 {address}, {};", group(&words)));
        }
        let size = ty.dtype.size();
        let at_once = (WIDEST / size).min(lanes.len());
        for (i, part) in lanes.chunks(at_once).enumerate() {
            let (v, m) = (vector(part.len()), memory_type(ty.dtype));
            let at = address.plus((i * at_once * size) as i64);
            self.t.line(&at.with(part), format_args!("st.{space}{v}.{m} {at}, {};", group(part)));
        }
    }

    /// Starts a copy to shared memory; where the guard doesn't hold, zeros are written and nothing is read.
    pub(super) fn async_copy(&mut self, to: Address, from: Address, bytes: u8, guard: Option<Reg>) {
        // Only copies of 16 bytes can pass the first cache by.
        let cache = if bytes == 16 { "cg" } else { "ca" };
        let mut uses = to.with(&from.uses());
        match guard {
            None => self.t.line(&uses, format_args!("cp.async.{cache}.shared.global {to}, {from}, {bytes};")),
            Some(g) => {
                let read = self.select(self.value(g), int(i32::from(bytes)), int(0));
                let read = self.t.in_reg(read);
                uses.push(read);
                self.t.line(&uses, format_args!("cp.async.{cache}.shared.global {to}, {from}, {bytes}, {read};"));
            }
        }
    }
}
