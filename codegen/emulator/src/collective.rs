//! Instructions that a whole warp executes together: shuffles, votes (PTX ISA 9.7.9.6, 9.7.13).

use crate::error::FaultKind;
use crate::op::{Inst, Op, Reg, Shuffle, Vote};
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

pub(crate) fn step(m: &mut Machine<'_, '_>, inst: &Inst, exec: u32) -> Result<Next, Trouble> {
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
        other => unreachable!("`{other:?}` is executed by the warp itself"),
    }
    Ok(Next::Forward)
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
