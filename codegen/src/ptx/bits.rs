//! Changes of type that keep bits.

use super::emit::{Emitter, Lanes};
use super::text::{Class, Value, int};
use intwain_ir::DType;
use intwain_ir::kernel::RegType;

impl Emitter<'_> {
    /// The bits of lanes in 32-bit words, first lane lowest. Less than a word stands in its low bits.
    pub(super) fn words_of(&mut self, dtype: DType, lanes: &[Value]) -> Lanes {
        let lanes: Lanes = lanes.iter().map(|x| self.t.in_reg(*x)).collect();
        match dtype.size() {
            1 => lanes.chunks(4).map(|bytes| self.joined(bytes)).collect(),
            2 => {
                let halves: Lanes = lanes.iter().map(|x| self.half(*x)).collect();
                halves.chunks(2).map(|pair| self.pair(pair)).collect()
            }
            4 => lanes.iter().map(|x| self.word(*x)).collect(),
            _ => lanes
                .iter()
                .flat_map(|x| {
                    let (lo, hi) = (self.t.fresh(Class::Int), self.t.fresh(Class::Int));
                    self.t.pure(&[lo, hi], &[*x], format_args!("mov.b64 {{{lo}, {hi}}}, {x};"));
                    [lo, hi]
                })
                .collect(),
        }
    }

    /// The lanes whose bits are in words.
    pub(super) fn lanes_of(&mut self, ty: RegType, words: &[Value]) -> Lanes {
        let class = Class::of(ty.dtype);
        let n = ty.lanes as usize;
        match ty.dtype.size() {
            1 => (0..n)
                .map(|i| {
                    let byte = match i % 4 {
                        0 => words[i / 4],
                        at => self.t.op(Class::Int, "shr.u32", &[words[i / 4], int(8 * at as i32)]),
                    };
                    self.wrap(ty.dtype, byte)
                })
                .collect(),
            2 => {
                let mut halves = Lanes::new();
                for w in words {
                    if halves.len() + 1 == n {
                        halves.push(self.t.op(Class::Half, "cvt.u16.u32", &[*w]));
                    } else {
                        let (lo, hi) = (self.t.fresh(Class::Half), self.t.fresh(Class::Half));
                        self.t.pure(&[lo, hi], &[*w], format_args!("mov.b32 {{{lo}, {hi}}}, {w};"));
                        halves.extend([lo, hi]);
                    }
                }
                if class == Class::Half {
                    return halves;
                }
                halves.iter().map(|h| self.t.op(Class::Int, "cvt.s32.s16", &[*h])).collect()
            }
            4 if class == Class::Int => words.into(),
            4 => words.iter().map(|w| self.t.op(class, "mov.b32", &[*w])).collect(),
            _ => words
                .chunks(2)
                .map(|w| {
                    let d = self.t.fresh(class);
                    self.t.pure(&[d], w, format_args!("mov.b64 {d}, {{{}, {}}};", w[0], w[1]));
                    d
                })
                .collect(),
        }
    }

    /// An f32 rounded to tf32.
    pub(super) fn tf32(&mut self, x: Value) -> Value {
        let x = self.t.in_reg(x);
        let bits = self.t.op(Class::Int, "cvt.rna.tf32.f32", &[x]);
        self.t.op(Class::Float, "mov.b32", &[bits])
    }

    fn word(&mut self, x: Value) -> Value {
        if x.class() == Class::Int { x } else { self.t.op(Class::Int, "mov.b32", &[x]) }
    }

    fn half(&mut self, x: Value) -> Value {
        if x.class() == Class::Half { x } else { self.t.op(Class::Half, "cvt.u16.u32", &[x]) }
    }

    fn pair(&mut self, halves: &[Value]) -> Value {
        match *halves {
            [lo, hi] => {
                // Two roundings at once, where these have just been rounded.
                if let (Some((dtype, a)), Some((other, b))) = (self.rounded.get(&lo), self.rounded.get(&hi))
                    && dtype == other
                {
                    let (name, args) = (if *dtype == DType::F16 { "f16x2" } else { "bf16x2" }, [*b, *a]);
                    return self.t.op(Class::Int, &format!("cvt.rn.{name}.f32"), &args);
                }
                let d = self.t.fresh(Class::Int);
                self.t.pure(&[d], halves, format_args!("mov.b32 {d}, {{{lo}, {hi}}};"));
                d
            }
            _ => self.t.op(Class::Int, "cvt.u32.u16", &halves[..1]),
        }
    }

    fn joined(&mut self, bytes: &[Value]) -> Value {
        let mut word = int(0);
        for (i, b) in bytes.iter().enumerate() {
            let low = self.t.op(Class::Int, "and.b32", &[*b, int(255)]);
            let placed = if i == 0 { low } else { self.t.op(Class::Int, "shl.b32", &[low, int(8 * i as i32)]) };
            word = if i == 0 { placed } else { self.t.op(Class::Int, "or.b32", &[word, placed]) };
        }
        word
    }
}
