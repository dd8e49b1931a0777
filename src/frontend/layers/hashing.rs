//! Hashing of integers into bins. Keras hashes the decimal text of a number, as bytes; here the bytes are made from its digits, and
//! the hash functions (FarmHash's 64-bit fingerprint, SipHash-2-4) are written in wrapping 64-bit arithmetic.

use intwain_ir::ops::Take;
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Shape, Value};

use super::build::Builder;
use super::cx::{Cx, Out, misfit};
use super::inputs::Inputs;
use super::preprocessing::{Encoding, encode, same, whole};
use super::tables;
use crate::frontend::cursor::{At, Fields};
use crate::frontend::json::Json;

/// A hash function of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Farm,
    /// With its key.
    Sip([i64; 2]),
}

impl Hash {
    /// A `salt` chooses SipHash.
    pub(super) fn read(fields: &Fields<'_>) -> Out<Hash> {
        let Some(at) = fields.opt("salt") else { return Ok(Hash::Farm) };
        match at.one_or_many().iter().map(At::int).collect::<Result<Vec<_>, _>>()?.as_slice() {
            [both] => Ok(Hash::Sip([*both, *both])),
            [a, b] => Ok(Hash::Sip([*a, *b])),
            _ => Err(at.expected("one or two integers").into()),
        }
    }
}

pub(super) fn hashing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let bins = fields.require("num_bins")?.positive()?;
    let masked = fields.opt("mask_value").map(|at| at.int()).transpose()?;
    let hash = Hash::read(fields)?;
    let encoding = Encoding::read(fields, &["int", "one_hot", "multi_hot", "count"])?;
    fields.neutral("sparse", &[Json::Bool(false)])?;
    let x = inputs.one()?.value;
    let cx = &mut b.cx;
    let x = whole(cx, x)?;
    let shape = cx.g.shape(x).clone();
    // Bin 0 is kept for the mask where there is one.
    let bin = match masked.filter(|_| bins > 1) {
        None => buckets(cx, x, bins as i64, hash)?,
        Some(mask) => {
            let bin = buckets(cx, x, bins as i64 - 1, hash)?;
            let (one, zero, mask) = (same(cx, 1, &shape)?, same(cx, 0, &shape)?, same(cx, mask, &shape)?);
            let bin = cx.g.add(bin, one)?;
            let here = cx.g.compare(Compare::Eq, x, mask)?;
            cx.g.select(here, zero, bin)?
        }
    };
    let dtype = cx.dtype;
    Ok(vec![encode(cx, bin, bins, encoding, dtype, None)?.into()])
}

/// A bin of several integers together: what a table of crossed features is.
pub(super) fn hashed_crossing(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let bins = fields.require("num_bins")?.positive()?;
    let encoding = [Encoding::Int, Encoding::OneHot][fields.choice("output_mode", &["int", "one_hot"])?];
    fields.neutral("sparse", &[Json::Bool(false)])?;
    fields.neutral("salt", &[])?;
    let features = inputs.many()?;
    let cx = &mut b.cx;
    let dims = cx.dims(features[0].value);
    if features.len() < 2 || dims.len() > 2 || dims.get(1).is_some_and(|&n| n != 1) {
        return Err(misfit(format!("crosses two or more columns, not {} tensors of shape {dims:?}", features.len())));
    }
    let shape = cx.g.shape(features[0].value).clone();
    let mut w = Words { cx, shape };
    let mut hash = w.number(0xDE_CAFC_AFFE)?;
    for feature in features {
        if w.cx.dims(feature.value) != dims || w.cx.g.ty(feature.value).dtype.is_float() {
            return Err(misfit("crosses integers of one shape"));
        }
        let feature = whole(w.cx, feature.value)?;
        hash = w.joined(hash, feature)?;
    }
    let bin = w.modulo(hash, bins as i64)?;
    let dtype = cx.dtype;
    Ok(vec![encode(cx, bin, bins, encoding, dtype, None)?.into()])
}

/// The hash of the decimal text of each integer, modulo `count`.
pub(super) fn buckets(cx: &mut Cx, x: Value, count: i64, hash: Hash) -> Out<Value> {
    let shape = cx.g.shape(x).clone();
    let mut w = Words { cx, shape };
    let text = Text::of(&mut w, x)?;
    let value = match hash {
        Hash::Farm => farm(&mut w, &text)?,
        Hash::Sip(key) => sip(&mut w, &text, key)?,
    };
    w.modulo(value, count)
}

/// Arithmetic modulo 2⁶⁴ on tensors of one shape.
struct Words<'c> {
    cx: &'c mut Cx,
    shape: Shape,
}

impl Words<'_> {
    fn number(&mut self, x: i64) -> Out<Value> {
        same(self.cx, x, &self.shape)
    }

    fn op(&mut self, function: Binary, a: Value, b: Value) -> Out<Value> {
        Ok(self.cx.g.binary(function, a, b)?)
    }

    fn with(&mut self, function: Binary, a: Value, b: i64) -> Out<Value> {
        let b = self.number(b)?;
        self.op(function, a, b)
    }

    fn add(&mut self, a: Value, b: Value) -> Out<Value> {
        self.op(Binary::Add, a, b)
    }

    fn mul(&mut self, a: Value, b: Value) -> Out<Value> {
        self.op(Binary::Mul, a, b)
    }

    fn xor(&mut self, a: Value, b: Value) -> Out<Value> {
        self.op(Binary::Xor, a, b)
    }

    /// Shifts zeros in from above, whatever the sign.
    fn shr(&mut self, a: Value, by: u32) -> Out<Value> {
        let shifted = self.with(Binary::Shr, a, i64::from(by))?;
        self.with(Binary::And, shifted, (u64::MAX >> by) as i64)
    }

    fn rotate_right(&mut self, a: Value, by: u32) -> Out<Value> {
        let (low, high) = (self.shr(a, by)?, self.with(Binary::Shl, a, i64::from(64 - by))?);
        self.op(Binary::Or, low, high)
    }

    fn rotate_left(&mut self, a: Value, by: u32) -> Out<Value> {
        self.rotate_right(a, 64 - by)
    }

    fn at_least(&mut self, a: Value, least: i64) -> Out<Value> {
        let least = self.number(least)?;
        Ok(self.cx.g.compare(Compare::Ge, a, least)?)
    }

    fn select(&mut self, cond: Value, yes: Value, no: Value) -> Out<Value> {
        Ok(self.cx.g.select(cond, yes, no)?)
    }

    /// The remainder of a word without a sign: of twice its half, and its last bit.
    fn modulo(&mut self, a: Value, by: i64) -> Out<Value> {
        let half = self.shr(a, 1)?;
        let half = self.with(Binary::Mod, half, by)?;
        let twice = self.add(half, half)?;
        let bit = self.with(Binary::And, a, 1)?;
        let sum = self.add(twice, bit)?;
        self.with(Binary::Mod, sum, by)
    }

    /// a ^ (a >> 47)
    fn mixed(&mut self, a: Value) -> Out<Value> {
        let high = self.shr(a, 47)?;
        self.xor(a, high)
    }

    /// TensorFlow's `FingerprintCat64`.
    fn joined(&mut self, a: Value, b: Value) -> Out<Value> {
        const MUL: i64 = 0xc6a4_a793_5bd1_e995u64 as i64;
        let inner = self.with(Binary::Mul, b, MUL)?;
        let inner = self.mixed(inner)?;
        let inner = self.with(Binary::Mul, inner, MUL)?;
        let outer = self.with(Binary::Xor, a, MUL)?;
        let result = self.xor(outer, inner)?;
        let result = self.with(Binary::Mul, result, MUL)?;
        let result = self.mixed(result)?;
        let result = self.with(Binary::Mul, result, MUL)?;
        self.mixed(result)
    }
}

/// The decimal text of integers.
struct Text {
    /// The number.
    x: Value,
    /// Without its sign.
    digits: Value,
    /// 1 for a minus in front, else 0.
    minus: Value,
    /// Characters.
    length: Value,
    /// 1, 10, 100 …
    powers: Value,
}

impl Text {
    fn of(w: &mut Words<'_>, x: Value) -> Out<Text> {
        let powers: Vec<i64> = (0..19).map(|k| 10i64.pow(k)).collect();
        let zero = w.number(0)?;
        let negative = w.cx.g.compare(Compare::Lt, x, zero)?;
        let minus = w.cx.g.cast(DType::I64, negative)?;
        let digits = w.cx.g.unary(Unary::Abs, x)?;
        // One digit, and one more for every power of ten from 10 on that is reached.
        let rank = w.shape.len();
        let wide = Shape::from(w.shape.iter().copied().chain([18]).collect::<Vec<_>>());
        let places: Vec<usize> = (0..rank).collect();
        let each = w.cx.g.broadcast(digits, &wide, &places)?;
        let steps = tables::integers(w.cx, DType::I64, &powers[1..])?;
        let steps = w.cx.g.broadcast(steps, &wide, &[rank])?;
        let reached = w.cx.g.compare(Compare::Ge, each, steps)?;
        let reached = w.cx.g.cast(DType::I64, reached)?;
        let more = w.cx.g.reduce(Reduce::Sum, reached, &[rank])?;
        let length = w.with(Binary::Add, more, 1)?;
        let length = w.add(length, minus)?;
        Ok(Text { x, digits, minus, length, powers: tables::integers(w.cx, DType::I64, &powers)? })
    }

    fn power(&self, w: &mut Words<'_>, exponent: Value) -> Out<Value> {
        let low = w.with(Binary::Max, exponent, 0)?;
        let inside = w.with(Binary::Min, low, 18)?;
        Ok(w.cx.g.push(Take { base: 0 }, &[self.powers, inside])?)
    }

    /// `width` digits as characters, the first in the lowest byte.
    fn bytes(&self, w: &mut Words<'_>, number: Value, width: u32) -> Out<Value> {
        let mut rest = number;
        let mut bytes = w.number((0..width).fold(0, |all, i| all | 0x30 << (8 * i)))?;
        for i in (0..width).rev() {
            let digit = w.with(Binary::Mod, rest, 10)?;
            let placed = w.with(Binary::Shl, digit, i64::from(8 * i))?;
            bytes = w.add(bytes, placed)?;
            if i > 0 {
                rest = w.with(Binary::FloorDiv, rest, 10)?;
            }
        }
        Ok(bytes)
    }

    /// The characters of a text that begins with a minus where there is one: `0` and `-` are three apart.
    fn signed(&self, w: &mut Words<'_>, bytes: Value) -> Out<Value> {
        let three = w.with(Binary::Mul, self.minus, -3)?;
        w.add(bytes, three)
    }

    /// `width` characters, behind which there are `behind` more. The minus is not among them.
    fn window(&self, w: &mut Words<'_>, behind: Value, width: u32) -> Out<Value> {
        let power = self.power(w, behind)?;
        let above = w.op(Binary::FloorDiv, self.digits, power)?;
        let number = w.with(Binary::Mod, above, 10i64.pow(width))?;
        self.bytes(w, number, width)
    }

    /// The first `width` characters of a text at least as long.
    fn first(&self, w: &mut Words<'_>, width: u32) -> Out<Value> {
        let behind = w.with(Binary::Sub, self.length, i64::from(width))?;
        let bytes = self.window(w, behind, width)?;
        self.signed(w, bytes)
    }

    /// The last `width` characters of a text that is at least as long; the minus among them where it is no longer.
    fn last(&self, w: &mut Words<'_>, width: u32, behind: i64) -> Out<Value> {
        let skipped = w.number(behind)?;
        let bytes = self.window(w, skipped, width)?;
        let whole = w.number(i64::from(width) + behind)?;
        let whole = w.cx.g.compare(Compare::Eq, self.length, whole)?;
        let signed = self.signed(w, bytes)?;
        w.select(whole, signed, bytes)
    }
}

const K0: i64 = 0xc3a5_c85c_97cb_3127u64 as i64;
const K1: i64 = 0xb492_b66f_be98_f273u64 as i64;
const K2: i64 = 0x9ae1_6a3b_2f90_404fu64 as i64;

/// FarmHash's fingerprint of texts of 1 to 20 characters.
fn farm(w: &mut Words<'_>, text: &Text) -> Out<Value> {
    let twice = w.add(text.length, text.length)?;
    let mul = w.with(Binary::Add, twice, K2)?;
    let (short, middle) = (farm_to_3(w, text)?, farm_to_7(w, text, mul)?);
    let (long, longest) = (farm_to_16(w, text, mul)?, farm_to_32(w, text, mul)?);
    let mut hash = short;
    for (least, longer) in [(4, middle), (8, long), (17, longest)] {
        let reached = w.at_least(text.length, least)?;
        hash = w.select(reached, longer, hash)?;
    }
    // The only number whose digits without the sign are no 64-bit number.
    let (least, known) = (w.number(i64::MIN)?, w.number(FARM_OF_MIN)?);
    let least = w.cx.g.compare(Compare::Eq, text.x, least)?;
    w.select(least, known, hash)
}

/// The fingerprint of `-9223372036854775808`, by TensorFlow.
const FARM_OF_MIN: i64 = 0x14b9_bc6f_6d28_37e0;

fn farm_to_3(w: &mut Words<'_>, text: &Text) -> Out<Value> {
    let a = text.first(w, 1)?;
    // The middle character: the second of two or three.
    let half = w.with(Binary::Shr, text.length, 1)?;
    let behind = w.op(Binary::Sub, text.length, half)?;
    let behind = w.with(Binary::Sub, behind, 1)?;
    let b = text.window(w, behind, 1)?;
    let single = w.with(Binary::Sub, text.length, 1)?;
    let single = w.at_least(single, 1)?;
    let b = w.select(single, b, a)?;
    let c = text.last(w, 1, 0)?;
    let b = w.with(Binary::Shl, b, 8)?;
    let y = w.add(a, b)?;
    let c = w.with(Binary::Shl, c, 2)?;
    let z = w.add(text.length, c)?;
    let (y, z) = (w.with(Binary::Mul, y, K2)?, w.with(Binary::Mul, z, K0)?);
    let mixed = w.xor(y, z)?;
    let mixed = w.mixed(mixed)?;
    w.with(Binary::Mul, mixed, K2)
}

fn farm_to_7(w: &mut Words<'_>, text: &Text, mul: Value) -> Out<Value> {
    let (a, b) = (text.first(w, 4)?, text.last(w, 4, 0)?);
    let a = w.with(Binary::Shl, a, 3)?;
    let a = w.add(text.length, a)?;
    sixteen(w, a, b, mul)
}

fn farm_to_16(w: &mut Words<'_>, text: &Text, mul: Value) -> Out<Value> {
    let (a, b) = (text.first(w, 8)?, text.last(w, 8, 0)?);
    let a = w.with(Binary::Add, a, K2)?;
    let c = w.rotate_right(b, 37)?;
    let c = w.mul(c, mul)?;
    let c = w.add(c, a)?;
    let d = w.rotate_right(a, 25)?;
    let d = w.add(d, b)?;
    let d = w.mul(d, mul)?;
    sixteen(w, c, d, mul)
}

fn farm_to_32(w: &mut Words<'_>, text: &Text, mul: Value) -> Out<Value> {
    let a = text.first(w, 8)?;
    let a = w.with(Binary::Mul, a, K1)?;
    let behind = w.with(Binary::Sub, text.length, 16)?;
    let b = text.window(w, behind, 8)?;
    let c = text.last(w, 8, 0)?;
    let c = w.mul(c, mul)?;
    let d = text.last(w, 8, 8)?;
    let d = w.with(Binary::Mul, d, K2)?;
    let sum = w.add(a, b)?;
    let u = w.rotate_right(sum, 43)?;
    let turned = w.rotate_right(c, 30)?;
    let u = w.add(u, turned)?;
    let u = w.add(u, d)?;
    let v = w.with(Binary::Add, b, K2)?;
    let v = w.rotate_right(v, 18)?;
    let v = w.add(v, a)?;
    let v = w.add(v, c)?;
    sixteen(w, u, v, mul)
}

/// FarmHash's `HashLen16`.
fn sixteen(w: &mut Words<'_>, u: Value, v: Value, mul: Value) -> Out<Value> {
    let a = w.xor(u, v)?;
    let a = w.mul(a, mul)?;
    let a = w.mixed(a)?;
    let b = w.xor(v, a)?;
    let b = w.mul(b, mul)?;
    let b = w.mixed(b)?;
    w.mul(b, mul)
}

/// SipHash-2-4 of texts of 1 to 20 characters.
fn sip(w: &mut Words<'_>, text: &Text, key: [i64; 2]) -> Out<Value> {
    let start = |word: u64, key: i64| word as i64 ^ key;
    let mut v = [
        w.number(start(0x736f_6d65_7073_6575, key[0]))?,
        w.number(start(0x646f_7261_6e64_6f6d, key[1]))?,
        w.number(start(0x6c79_6765_6e65_7261, key[0]))?,
        w.number(start(0x7465_6462_7974_6573, key[1]))?,
    ];
    let behind = w.with(Binary::Sub, text.length, 16)?;
    let words = [text.first(w, 8)?, text.window(w, behind, 8)?];
    for (i, word) in words.into_iter().enumerate() {
        let next = absorbed(w, v, word)?;
        let there = w.at_least(text.length, 8 * (i as i64 + 1))?;
        for (old, new) in v.iter_mut().zip(next) {
            *old = w.select(there, new, *old)?;
        }
    }
    let tail = tail(w, text)?;
    v = absorbed(w, v, tail)?;
    v[2] = w.with(Binary::Xor, v[2], 0xff)?;
    for _ in 0..4 {
        v = round(w, v)?;
    }
    let (a, b) = (w.xor(v[0], v[1])?, w.xor(v[2], v[3])?);
    let hash = w.xor(a, b)?;
    let (least, known) = (w.number(i64::MIN)?, w.number(sip_of_min(key))?);
    let least = w.cx.g.compare(Compare::Eq, text.x, least)?;
    w.select(least, known, hash)
}

/// The hash of `-9223372036854775808`.
fn sip_of_min(key: [i64; 2]) -> i64 {
    let text = *b"-9223372036854775808\0\0\0\x14";
    let key = key.map(|k| k as u64);
    let mut v = [
        0x736f_6d65_7073_6575 ^ key[0],
        0x646f_7261_6e64_6f6d ^ key[1],
        0x6c79_6765_6e65_7261 ^ key[0],
        0x7465_6462_7974_6573 ^ key[1],
    ];
    let round = |v: &mut [u64; 4]| {
        (v[0], v[2]) = (v[0].wrapping_add(v[1]), v[2].wrapping_add(v[3]));
        (v[1], v[3]) = (v[1].rotate_left(13) ^ v[0], v[3].rotate_left(16) ^ v[2]);
        v[0] = v[0].rotate_left(32);
        (v[2], v[0]) = (v[2].wrapping_add(v[1]), v[0].wrapping_add(v[3]));
        (v[1], v[3]) = (v[1].rotate_left(17) ^ v[2], v[3].rotate_left(21) ^ v[0]);
        v[2] = v[2].rotate_left(32);
    };
    for word in text.chunks(8) {
        let word = word.iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    (v[0] ^ v[1] ^ v[2] ^ v[3]) as i64
}

/// What is left behind the whole words, with the length in the highest byte.
fn tail(w: &mut Words<'_>, text: &Text) -> Out<Value> {
    let left = w.with(Binary::Mod, text.length, 8)?;
    let power = text.power(w, left)?;
    let number = w.op(Binary::Mod, text.digits, power)?;
    // The characters move to the front of eight, and what follows them is cut off.
    let eight = w.number(8)?;
    let empty = w.op(Binary::Sub, eight, left)?;
    let power = text.power(w, empty)?;
    let number = w.mul(number, power)?;
    let bytes = text.bytes(w, number, 8)?;
    let signed = text.signed(w, bytes)?;
    let long = w.at_least(text.length, 8)?;
    let bytes = w.select(long, bytes, signed)?;
    let bits = w.with(Binary::Mul, left, 8)?;
    let one = w.number(1)?;
    let mask = w.op(Binary::Shl, one, bits)?;
    let mask = w.with(Binary::Sub, mask, 1)?;
    let bytes = w.op(Binary::And, bytes, mask)?;
    let length = w.with(Binary::Shl, text.length, 56)?;
    w.op(Binary::Or, bytes, length)
}

fn absorbed(w: &mut Words<'_>, v: [Value; 4], word: Value) -> Out<[Value; 4]> {
    let mut v = v;
    v[3] = w.xor(v[3], word)?;
    v = round(w, v)?;
    v = round(w, v)?;
    v[0] = w.xor(v[0], word)?;
    Ok(v)
}

fn round(w: &mut Words<'_>, v: [Value; 4]) -> Out<[Value; 4]> {
    let [a, b, c, d] = v;
    let (a, c) = (w.add(a, b)?, w.add(c, d)?);
    let (b, d) = (w.rotate_left(b, 13)?, w.rotate_left(d, 16)?);
    let (b, d) = (w.xor(b, a)?, w.xor(d, c)?);
    let a = w.rotate_left(a, 32)?;
    let (c, a) = (w.add(c, b)?, w.add(a, d)?);
    let (b, d) = (w.rotate_left(b, 17)?, w.rotate_left(d, 21)?);
    let (b, d) = (w.xor(b, c)?, w.xor(d, a)?);
    let c = w.rotate_left(c, 32)?;
    Ok([a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of `tf.strings.to_hash_bucket_strong` with 2⁶³ − 1 buckets.
    #[test]
    fn the_least_number_hashes_as_in_tensorflow() {
        let bucket = |key| sip_of_min(key) as u64 % (i64::MAX as u64);
        assert_eq!(bucket([1, 2]), 6_437_832_829_967_508_285);
        assert_eq!(bucket([133, 137]), 7_192_410_156_709_985_988);
    }
}
