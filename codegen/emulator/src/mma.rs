//! Matrix instructions: `ldmatrix` and `mma.sync` (PTX ISA 9.7.14.5).

use crate::access;
use crate::error::FaultKind;
use crate::fast::{each, half_bits};
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
    let generic = access::addresses(m, a);
    let at = each(|lane| if generic[lane] >> 60 == 1 { generic[lane] & !(1 << 60) } else { generic[lane] });
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
            for (lane, to) in to.iter_mut().enumerate() {
                *to = half(lane % 4 * 2, lane / 4) | half(lane % 4 * 2 + 1, lane / 4) << 16;
            }
        } else {
            to.copy_from_slice(rows.as_flattened());
        }
        m.warp.regs.set32[reg.slot as usize] = u32::MAX;
    }
    Ok(())
}

fn half_value(bits: u32) -> f64 {
    f64::from(f32::from_bits(half_bits(bits)))
}

/// The values that a register of a fragment holds, as f32 bits: two halves, or one tf32.
#[inline(always)]
fn elements(f: Fragment, bits: &[u32; 32]) -> [[u32; 32]; 2] {
    match f {
        Fragment::Half { brain: false } => {
            [each(|lane| half_bits(bits[lane] & 0xffff)), each(|lane| half_bits(bits[lane] >> 16))]
        }
        Fragment::Half { brain: true } => [each(|lane| bits[lane] << 16), each(|lane| bits[lane] & 0xffff_0000)],
        Fragment::Tf32 => [each(|lane| bits[lane] & !0x1fff), [0; 32]],
    }
}

#[inline(always)]
fn widen<const N: usize>(bits: &[u32; N]) -> [f64; N] {
    each(|i| f64::from(f32::from_bits(bits[i])))
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
    let w32 = &mut m.warp.regs.w32;
    let mut sums = if half { halves(w32, o.c) } else { singles(w32, o.c) };
    add_products(&mut sums, w32, f, k, o);
    if half {
        put_halves(w32, o.d, &sums)
    } else {
        put_singles(w32, o.d, &sums)
    }
    o.d.iter().for_each(|r| m.warp.regs.set32[r.slot as usize] = u32::MAX);
    Ok(())
}

/// Rows and columns of the accumulators. Lane 4g + t holds rows g and g + 8, columns 2t and 2t + 1 (figure of
/// 9.7.14.5.8). Even columns come first in a row, so that neighbouring lanes are neighbours in it: see [`place`].
type Tile<T> = [[T; 8]; 16];

/// Where column `n` stands in a row of a [`Tile`].
#[inline(always)]
fn place(n: usize) -> usize {
    n % 2 * 4 + n / 2
}

/// Accumulators from four f32 registers.
#[inline(always)]
fn singles(w32: &[[u32; 32]], c: &[Reg]) -> Tile<f64> {
    let mut tile = [[0; 8]; 16];
    for (element, r) in c.iter().enumerate() {
        for (g, lanes) in w32[r.slot as usize].chunks_exact(4).enumerate() {
            let row = &mut tile[g + element / 2 * 8];
            row[element % 2 * 4..][..4].copy_from_slice(lanes);
        }
    }
    let mut wide = [[0.0; 8]; 16];
    wide.iter_mut().zip(&tile).for_each(|(wide, row)| *wide = widen(row));
    wide
}

#[inline(always)]
fn put_singles(w32: &mut [[u32; 32]], d: &[Reg], sums: &Tile<f64>) {
    let mut rounded = [[0; 8]; 16];
    for (rounded, row) in rounded.iter_mut().zip(sums) {
        *rounded = each(|n| if row[n].is_nan() { 0x7fff_ffff } else { (row[n] as f32).to_bits() });
    }
    for (element, r) in d.iter().enumerate() {
        for (g, lanes) in w32[r.slot as usize].chunks_exact_mut(4).enumerate() {
            let row = &rounded[g + element / 2 * 8];
            lanes.copy_from_slice(&row[element % 2 * 4..][..4]);
        }
    }
}

/// Accumulators from two registers of two f16 each.
#[inline(never)]
fn halves(w32: &[[u32; 32]], c: &[Reg]) -> Tile<f64> {
    let mut tile = [[0.0; 8]; 16];
    for (index, r) in c.iter().enumerate() {
        for (lane, bits) in w32[r.slot as usize].iter().enumerate() {
            let row = &mut tile[lane / 4 + index * 8];
            (row[lane % 4], row[lane % 4 + 4]) = (half_value(bits & 0xffff), half_value(bits >> 16));
        }
    }
    tile
}

#[inline(never)]
fn put_halves(w32: &mut [[u32; 32]], d: &[Reg], sums: &Tile<f64>) {
    for (index, r) in d.iter().enumerate() {
        for (lane, bits) in w32[r.slot as usize].iter_mut().enumerate() {
            let row = &sums[lane / 4 + index * 8];
            let [low, high] = [0, 4].map(|odd| float::F16.round(row[lane % 4 + odd], Round::Nearest) as u32);
            *bits = low | high << 16;
        }
    }
}

/// Adds the products of the fragments, for each element in order of k.
#[inline(always)]
fn add_products(sums: &mut Tile<f64>, w32: &[[u32; 32]], f: Fragment, k: usize, o: Operands<'_>) {
    match f {
        Fragment::Half { .. } => add_elements::<2>(sums, w32, f, k, o),
        Fragment::Tf32 => add_elements::<1>(sums, w32, f, k, o),
    }
}

/// The same for registers of `PER` elements.
#[inline(always)]
fn add_elements<const PER: usize>(sums: &mut Tile<f64>, w32: &[[u32; 32]], f: Fragment, k: usize, o: Operands<'_>) {
    let (per, step) = (PER, 4 * PER);
    // `right` is stored by rows of k, so that the innermost loop runs over columns. Of eight positions of k the even ones
    // come first on both sides, so that neighbouring lanes are neighbours.
    let (mut left, mut right) = ([[0u32; 16]; 16], [[0u32; 8]; 16]);
    for (index, r) in o.a.iter().enumerate() {
        let v = elements(f, &w32[r.slot as usize]);
        for g in 0..8 {
            let row = &mut left[g + index % 2 * 8][index / 2 * step..][..4 * per];
            row.chunks_exact_mut(4).zip(&v).for_each(|(row, v)| row.copy_from_slice(&v[4 * g..][..4]));
        }
    }
    for (index, r) in o.b.iter().enumerate() {
        let v = elements(f, &w32[r.slot as usize]);
        for (e, v) in v.iter().enumerate().take(per) {
            for t in 0..4 {
                let row = &mut right[index * step + 4 * e + t];
                (0..8).for_each(|n| row[place(n)] = v[4 * n + t]);
            }
        }
    }
    let mut columns = [[0f64; 8]; 16];
    columns.iter_mut().zip(&right).for_each(|(wide, row)| *wide = widen(row));
    // Four rows at a time keep enough sums in registers to hide the latency of an addition. Products of two halves or
    // tf32 are exact in f64, so fusing changes nothing.
    for (sums, left) in sums.chunks_exact_mut(4).zip(left.chunks_exact(4)) {
        let left = [widen(&left[0]), widen(&left[1]), widen(&left[2]), widen(&left[3])];
        let mut block = [sums[0], sums[1], sums[2], sums[3]];
        for at in (0..k).step_by(step).flat_map(|first| (0..4 * per).map(move |i| first + i % per * 4 + i / per)) {
            let right = &columns[at];
            for (sums, left) in block.iter_mut().zip(&left) {
                (0..8).for_each(|n| sums[n] = left[at].mul_add(right[n], sums[n]));
            }
        }
        sums.copy_from_slice(&block);
    }
}
