//! Matrix instructions: `ldmatrix` and `mma.sync` (PTX ISA 9.7.14.5).

use crate::access;
use crate::error::FaultKind;
use crate::float::{self, Round};
use crate::op::{Address, Fragment, Reg};
use crate::warp::{Machine, Trouble};

#[inline]
pub(crate) fn whole_warp(exec: u32) -> Result<(), Trouble> {
    let kind = FaultKind::MemberMask { mask: u32::MAX, lanes: exec };
    if exec == u32::MAX { Ok(()) } else { Err((kind, exec.trailing_zeros() as usize, None)) }
}

/// `ldmatrix`: lane l gives the address of row l % 8 of tile l / 8.
#[inline(always)]
pub(crate) fn load(
    m: &mut Machine<'_, '_>,
    d: &[Reg],
    a: Address,
    transposed: bool,
    pc: u32,
    exec: u32,
) -> Result<(), Trouble> {
    whole_warp(exec)?;
    let rows = u32::MAX >> (32 - 8 * d.len());
    access::need_address(m, a, rows)?;
    let at = access::addresses(m, a).map(|a| if a >> 60 == 1 { a & !(1 << 60) } else { a });
    access::aligned(&at, 16, rows)?;
    let narrow = access::shared_addresses(m, &at, 16, rows)?;
    let pattern = m.tally.follow(pc, m.warp.index, &narrow, 16, rows);
    let read = m.shared.read_all(m.warp.who(), narrow[0], 16, pattern);
    read.map_err(|(k, lane)| (k, lane, Some(at[lane])))?;
    for (tile, &reg) in d.iter().enumerate() {
        let words = &m.shared.words;
        let mut rows = [[0u32; 4]; 8];
        for (row, from) in rows.iter_mut().zip(&narrow[tile * 8..]) {
            row.copy_from_slice(&words[*from as usize / 4..][..4]);
        }
        let to = &mut m.warp.regs.w32[reg.slot as usize];
        if transposed {
            let half = |row: usize, column: usize| rows[row][column / 2] >> (16 * (column % 2)) & 0xffff;
            for lane in 0..32 {
                to[lane] = half(lane % 4 * 2, lane / 4) | half(lane % 4 * 2 + 1, lane / 4) << 16;
            }
        } else {
            to.copy_from_slice(rows.as_flattened());
        }
        m.warp.regs.set32[reg.slot as usize] = u32::MAX;
    }
    Ok(())
}

/// An f16 as f64: by scaling an f32 of the same digits, exact for all but infinities and NaN, which are put in.
#[inline(always)]
fn half_value(bits: u32) -> f64 {
    let digits = (bits & 0x7fff) << 13;
    let finite = f32::from_bits(digits) * f32::from_bits((254 - 15) << 23);
    let magnitude = if bits & 0x7c00 == 0x7c00 { f32::from_bits(digits | 0x7f80_0000) } else { finite };
    f64::from(f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16))
}

/// The values that a register of a fragment holds: two halves, or one tf32.
#[inline(always)]
fn elements(f: Fragment, bits: &[u32; 32]) -> [[f64; 32]; 2] {
    match f {
        Fragment::Half { brain: false } => [bits.map(|b| half_value(b & 0xffff)), bits.map(|b| half_value(b >> 16))],
        Fragment::Half { brain: true } => {
            [bits.map(|b| f64::from(f32::from_bits(b << 16))), bits.map(|b| f64::from(f32::from_bits(b & 0xffff_0000)))]
        }
        Fragment::Tf32 => [bits.map(|b| f64::from(f32::from_bits(b & !0x1fff))), [0.0; 32]],
    }
}

/// What `mma.sync` multiplies and adds.
#[derive(Clone, Copy)]
pub(crate) struct Operands<'a> {
    pub(crate) d: &'a [Reg],
    pub(crate) a: &'a [Reg],
    pub(crate) b: &'a [Reg],
    pub(crate) c: &'a [Reg],
}

/// `mma.m16n8kK`: exact products, summed with the accumulator in f64 in order of k and rounded once. The ISA leaves
/// order and intermediate rounding open (9.7.14.5.14); this is within every hardware's error.
#[inline(always)]
pub(crate) fn multiply(
    m: &mut Machine<'_, '_>,
    f: Fragment,
    k: usize,
    half: bool,
    o: Operands<'_>,
    exec: u32,
) -> Result<(), Trouble> {
    whole_warp(exec)?;
    for &r in o.a.iter().chain(o.b).chain(o.c) {
        m.need_reg(r, exec)?;
    }
    m.tally.stats.mma += 1;
    m.tally.stats.mma_flops += 2 * 16 * 8 * k as u64;
    let sums = products(&m.warp.regs.w32, f, k, o);
    let w32 = &mut m.warp.regs.w32;
    // Lane 4g + t holds rows g and g + 8, columns 2t and 2t + 1 (figure of 9.7.14.5.8).
    let at = |element: usize, lane: usize| sums[lane / 4 + element / 2 * 8][lane % 4 * 2 + element % 2];
    for (index, &r) in o.d.iter().enumerate() {
        let old = w32[o.c[index].slot as usize];
        let to = &mut w32[r.slot as usize];
        for lane in 0..32 {
            to[lane] = if half {
                let one = |e: usize| {
                    let old = half_value(old[lane] >> (16 * e) & 0xffff);
                    float::F16.round(at(2 * index + e, lane) + old, Round::Nearest) as u32
                };
                one(0) | one(1) << 16
            } else {
                let v = (at(index, lane) + f64::from(f32::from_bits(old[lane]))) as f32;
                if v.is_nan() { 0x7fff_ffff } else { v.to_bits() }
            };
        }
        m.warp.regs.set32[r.slot as usize] = u32::MAX;
    }
    Ok(())
}

/// The 16×8 product of the fragments, each element summed in order of k.
#[inline(always)]
fn products(w32: &[[u32; 32]], f: Fragment, k: usize, o: Operands<'_>) -> [[f64; 8]; 16] {
    let (per, step) = if f == Fragment::Tf32 { (1, 4) } else { (2, 8) };
    // `right` is stored by rows of k, so that the innermost loop runs over columns.
    let (mut left, mut right) = ([[0f64; 16]; 16], [[0f64; 8]; 16]);
    for (index, r) in o.a.iter().enumerate() {
        let v = elements(f, &w32[r.slot as usize]);
        for g in 0..8 {
            let row = &mut left[g + index % 2 * 8][index / 2 * step..][..4 * per];
            for t in 0..4 {
                (0..per).for_each(|e| row[per * t + e] = v[e][4 * g + t]);
            }
        }
    }
    for (index, r) in o.b.iter().enumerate() {
        let v = elements(f, &w32[r.slot as usize]);
        for t in 0..4 {
            for e in 0..per {
                let row = &mut right[index * step + per * t + e];
                for g in 0..8 {
                    row[g] = v[e][4 * g + t];
                }
            }
        }
    }
    let mut sums = [[0f64; 8]; 16];
    for (sums, left) in sums.iter_mut().zip(&left) {
        let mut row = [0f64; 8];
        for (&x, right) in left[..k].iter().zip(&right) {
            // Products of two halves or tf32 are exact in f64, so fusing changes nothing.
            row.iter_mut().zip(right).for_each(|(sum, &y)| *sum = fused(x, y, *sum));
        }
        *sums = row;
    }
    sums
}

/// `x * y + z` of an exact product, by whichever instruction the processor has.
#[inline(always)]
fn fused(x: f64, y: f64, z: f64) -> f64 {
    if cfg!(target_feature = "fma") { x.mul_add(y, z) } else { x * y + z }
}
