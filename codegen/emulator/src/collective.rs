//! Instructions that a whole warp executes together: shuffles, votes, fragments (PTX ISA 9.7.9.6, 9.7.13, 9.7.14).

use crate::access;
use crate::error::FaultKind;
use crate::fast;
use crate::float::{self, Round};
use crate::op::{Address, Fragment, Inst, Op, Reg, Shuffle, Vote};
use crate::regs::lanes;
use crate::warp::{Machine, Next, State, Trouble};

/// Whether the executing lanes are those of the member mask. `Ok(false)`: some are still to come.
fn gathered(m: &Machine<'_, '_>, mask: Reg, exec: u32) -> Result<bool, Trouble> {
    m.need_reg(mask, exec)?;
    let lane = exec.trailing_zeros() as usize;
    let mask = m.warp.regs.get(mask, lane) as u32;
    let wrong = (FaultKind::MemberMask { mask, lanes: exec }, lane, None);
    let started = m.warp.groups.iter().fold(0, |all, g| all | g.mask);
    let same = lanes(exec).all(|l| mask >> l & 1 == 1);
    // Lanes beyond the end of the block never existed; a full mask is still the usual way to write it.
    let ghosts = !m.warp.born;
    match exec & !mask {
        0 if same && mask & !exec & !ghosts == 0 => Ok(true),
        0 if same && mask & !started & !ghosts == 0 => Ok(false),
        _ => Err(wrong),
    }
}

pub(crate) fn step(m: &mut Machine<'_, '_>, inst: &Inst, pc: u32, exec: u32) -> Result<Next, Trouble> {
    let member = match &inst.op {
        Op::Shfl { mask, .. } | Op::Vote { mask, .. } | Op::Redux { mask, .. } => Some(*mask),
        Op::Match { mask, .. } | Op::Elect { mask, .. } | Op::WarpSync { mask } => Some(*mask),
        _ => None,
    };
    if let Some(mask) = member
        && !gathered(m, mask, exec)?
    {
        return Ok(Next::Wait(State::Warp));
    }
    match &inst.op {
        &Op::Shfl { mode, d, p, a, b, c, .. } => shuffle(m, mode, d, p, [a, b, c], exec)?,
        &Op::Vote { mode, d, p, negated, .. } => {
            m.need(m.warp.regs.set_pred[p as usize], exec)?;
            let yes = (m.warp.regs.pred[p as usize] ^ if negated { u32::MAX } else { 0 }) & exec;
            let v = match mode {
                Vote::All => u64::from(yes == exec),
                Vote::Any => u64::from(yes != 0),
                Vote::Uni => u64::from(yes == exec || yes == 0),
                Vote::Ballot => u64::from(yes),
            };
            m.write(d, exec, |_, _| v);
        }
        &Op::Redux { f, d, a, .. } => {
            m.need_reg(a, exec)?;
            let mut values = lanes(exec).map(|lane| m.warp.regs.get(a, lane));
            let first = values.next().unwrap_or(0);
            let v = values.fold(first, |all, v| f.eval(all, v, 0));
            m.write(d, exec, |_, _| v);
        }
        &Op::Match { all, d, p, a, .. } => {
            m.need_reg(a, exec)?;
            let value: [u64; 32] = std::array::from_fn(|lane| m.warp.regs.get(a, lane));
            let same = |lane: usize| lanes(exec).filter(|&l| value[l] == value[lane]).fold(0u32, |all, l| all | 1 << l);
            m.write(d, exec, |_, lane| u64::from(if all && same(lane) != exec { 0 } else { same(lane) }));
            if let Some(p) = p {
                let p = Reg { class: crate::op::Class::Pred, slot: p };
                m.write(p, exec, |_, lane| u64::from(same(lane) == exec));
            }
        }
        &Op::Elect { d, p, .. } => {
            let leader = exec.trailing_zeros();
            d.into_iter().for_each(|d| m.write(d, exec, |_, _| u64::from(leader)));
            let p = Reg { class: crate::op::Class::Pred, slot: p };
            m.write(p, exec, |_, lane| u64::from(lane as u32 == leader));
        }
        &Op::ActiveMask { d } => m.write(d, exec, |_, _| u64::from(exec)),
        Op::WarpSync { .. } => m.warp.converge(),
        Op::LoadMatrix { d, address, transposed } => {
            whole_warp(exec)?;
            load_matrix(m, d, *address, *transposed, pc)?;
        }
        Op::Mma { f, k, half_accumulators, d, a, b, c } => {
            whole_warp(exec)?;
            for &r in a.iter().chain(b).chain(c) {
                m.need_reg(r, exec)?;
            }
            m.tally.stats.mma += 1;
            m.tally.stats.mma_flops += 2 * 16 * 8 * u64::from(*k);
            multiply(m, *f, *k as usize, *half_accumulators, d, [a, b, c]);
        }
        other => unreachable!("`{other:?}` is executed by the warp itself"),
    }
    Ok(Next::Forward)
}

fn whole_warp(exec: u32) -> Result<(), Trouble> {
    let kind = FaultKind::MemberMask { mask: u32::MAX, lanes: exec };
    if exec == u32::MAX { Ok(()) } else { Err((kind, exec.trailing_zeros() as usize, None)) }
}

/// `shfl.sync` as PTX ISA 9.7.9.6 writes it in pseudo-code.
fn shuffle(
    m: &mut Machine<'_, '_>,
    mode: Shuffle,
    d: Reg,
    p: Option<u32>,
    [a, b, c]: [Reg; 3],
    exec: u32,
) -> Result<(), Trouble> {
    m.need_reg(b, exec)?;
    m.need_reg(c, exec)?;
    let value: [u64; 32] = std::array::from_fn(|lane| m.warp.regs.get(a, lane));
    let set = m.warp.regs.set_lanes(a);
    let (mut from, mut valid) = ([0usize; 32], 0u32);
    for lane in lanes(exec) {
        let by = m.warp.regs.get(b, lane) as i32 & 0x1f;
        let bits = m.warp.regs.get(c, lane) as i32;
        let (segment, clamp) = (bits >> 8 & 0x1f, bits & 0x1f);
        let max = lane as i32 & segment | clamp & !segment;
        let min = lane as i32 & segment;
        let (j, inside) = match mode {
            Shuffle::Up => (lane as i32 - by, lane as i32 - by >= max),
            Shuffle::Down => (lane as i32 + by, lane as i32 + by <= max),
            Shuffle::Bfly => (lane as i32 ^ by, lane as i32 ^ by <= max),
            Shuffle::Idx => (min | by & !segment, min | by & !segment <= max),
        };
        from[lane] = if inside { j as usize & 31 } else { lane };
        valid |= u32::from(inside) << lane;
        // Reading a lane that does not take part is undefined, and so is a value that is not there.
        if exec & set & 1 << from[lane] == 0 {
            return Err((FaultKind::UninitialisedRegister, lane, None));
        }
    }
    m.write(d, exec, |_, lane| value[from[lane]]);
    if let Some(p) = p {
        m.write(Reg { class: crate::op::Class::Pred, slot: p }, exec, |_, lane| u64::from(valid >> lane & 1));
    }
    Ok(())
}

/// `ldmatrix`: lane l gives the address of row l % 8 of tile l / 8.
fn load_matrix(m: &mut Machine<'_, '_>, d: &[Reg], a: Address, transposed: bool, pc: u32) -> Result<(), Trouble> {
    let rows = u32::MAX >> (32 - 8 * d.len());
    access::need_address(m, a, rows)?;
    let at = access::addresses(m, a).map(|a| if a >> 60 == 1 { a & !(1 << 60) } else { a });
    access::aligned(&at, 16, rows)?;
    let narrow = access::shared_addresses(m, &at, 16, rows)?;
    let pattern = m.tally.follow(pc, &narrow, 16, rows);
    let read = m.shared.read_all(m.warp.who(), narrow[0], 16, pattern);
    read.map_err(|(k, lane)| (k, lane, Some(at[lane])))?;
    for (tile, &reg) in d.iter().enumerate() {
        let words = &m.shared.words;
        let rows: [[u32; 4]; 8] = std::array::from_fn(|row| {
            let from = narrow[tile * 8 + row] as usize / 4;
            std::array::from_fn(|i| words[from + i])
        });
        let half = |row: usize, column: usize| rows[row][column / 2] >> (16 * (column % 2)) & 0xffff;
        m.warp.regs.w32[reg.slot as usize] = std::array::from_fn(|lane| {
            let (g, t) = (lane / 4, lane % 4);
            if transposed { half(2 * t, g) | half(2 * t + 1, g) << 16 } else { rows[g][t] }
        });
        m.warp.regs.mark(reg, u32::MAX);
    }
    Ok(())
}

/// An f16 as f64: by scaling an f32 of the same digits, exact for all but infinities and NaN.
fn half_value(bits: u32) -> f64 {
    if bits & 0x7c00 == 0x7c00 {
        return float::F16.value(u64::from(bits));
    }
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((254 - 15) << 23);
    f64::from(if bits & 0x8000 == 0 { magnitude } else { -magnitude })
}

/// `mma.m16n8kK`: exact products, summed with the accumulator in f64 in order of k and rounded once. The ISA leaves
/// order and intermediate rounding open (9.7.14.5.14); this is within every hardware's error.
fn multiply(m: &mut Machine<'_, '_>, f: Fragment, k: usize, half: bool, d: &[Reg], [a, b, c]: [&[Reg]; 3]) {
    // `right` is stored by rows of k, so that the innermost loop runs over columns.
    let (mut left, mut right) = ([[0f64; 16]; 16], [[0f64; 8]; 16]);
    let elements = |bits: u32| -> [f64; 2] {
        match f {
            Fragment::Half { brain: false } => [half_value(bits & 0xffff), half_value(bits >> 16)],
            Fragment::Half { brain: true } => [bits << 16, bits & 0xffff_0000].map(|b| f64::from(f32::from_bits(b))),
            Fragment::Tf32 => [f64::from(f32::from_bits(bits & !0x1fff)), 0.0],
        }
    };
    let (per, step) = if f == Fragment::Tf32 { (1, 4) } else { (2, 8) };
    let w32 = &m.warp.regs.w32;
    for (index, &r) in a.iter().enumerate() {
        for (lane, &bits) in w32[r.slot as usize].iter().enumerate() {
            let (g, t, v) = (lane / 4, lane % 4 * per, elements(bits));
            (0..per).for_each(|e| left[g + index % 2 * 8][t + index / 2 * step + e] = v[e]);
        }
    }
    for (index, &r) in b.iter().enumerate() {
        for (lane, &bits) in w32[r.slot as usize].iter().enumerate() {
            let (g, t, v) = (lane / 4, lane % 4 * per, elements(bits));
            (0..per).for_each(|e| right[t + index * step + e][g] = v[e]);
        }
    }
    let sums = fast::products(&left, &right[..k]);
    let mut out = [[0u64; 32]; 4];
    for (element, row) in out.iter_mut().enumerate() {
        let old = &w32[c[if half { element / 2 } else { element }].slot as usize];
        for (lane, out) in row.iter_mut().enumerate() {
            let sum = sums[lane / 4 + element / 2 * 8][lane % 4 * 2 + element % 2];
            *out = match half {
                false => match (sum + f64::from(f32::from_bits(old[lane]))) as f32 {
                    v if v.is_nan() => 0x7fff_ffff,
                    v => u64::from(v.to_bits()),
                },
                true => float::F16.round(sum + half_value(old[lane] >> (16 * (element % 2)) & 0xffff), Round::Nearest),
            };
        }
    }
    for (index, &r) in d.iter().enumerate() {
        m.write(r, u32::MAX, |_, lane| match half {
            false => out[index][lane],
            true => out[index * 2][lane] | out[index * 2 + 1][lane] << 16,
        });
    }
}
