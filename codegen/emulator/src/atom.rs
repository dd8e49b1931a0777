//! Read-modify-writes (`atom` and `red`, PTX ISA 9.7.13.5 and 6).

use crate::access::{addresses, check_scope, need_address, note, resolve};
use crate::error::FaultKind;
use crate::op::{Atom, AtomOp, Order, Space};
use crate::race::Strength;
use crate::regs::lanes;
use crate::view::Layout;
use crate::warp::{Machine, Next, Trouble};

pub(crate) fn run(m: &mut Machine<'_, '_>, a: &Atom, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    m.need_reg(a.b, exec)?;
    a.c.map_or(Ok(()), |c| m.need_reg(c, exec))?;
    let all = addresses(m, a.address);
    for lane in lanes(exec) {
        let old = one(m, a, all[lane], lane).map_err(|kind| (kind, lane, Some(all[lane])))?;
        if let Some(d) = a.result {
            m.warp.regs.put(d, lane, old);
        }
    }
    if let Some(d) = a.result {
        m.warp.regs.mark(d, exec);
    }
    // A result that is read may be what a lock or a counter spins on.
    Ok(if a.result.is_some() { Next::Sync } else { Next::Forward })
}

fn one(m: &mut Machine<'_, '_>, a: &Atom, address: u64, lane: usize) -> Result<u64, FaultKind> {
    let bytes = a.ty.bytes();
    let (space, window) = resolve(a.space, address);
    let at = address.wrapping_sub(window);
    if at % u64::from(bytes) != 0 {
        return Err(FaultKind::Misaligned(bytes));
    }
    let b = m.warp.regs.get(a.b, lane);
    let c = a.c.map_or(0, |c| m.warp.regs.get(c, lane));
    let f = |old: u64| modify(a.op, old, b, c);
    match space {
        Space::Global | Space::Generic => {
            check_scope(m, a.order, a.scope, at)?;
            if let Some(who) = &m.warp.observer {
                let message = who.passes(a.order, a.scope, &m.warp.clocks);
                m.view.post(at, |older| match message {
                    Some(message) => Some(message.continues(older)),
                    None => older.cloned(),
                });
            }
            let old = m.view.update(at, bytes, f)?;
            m.tally.write(&[at; 32], bytes, 1, Layout::Same);
            let met = m.warp.observer.as_mut().zip(a.result.and_then(|_| m.view.message(at)));
            met.into_iter().for_each(|(who, message)| who.meets(message, a.order, a.scope));
            let noted = note(m, &[at; 32], bytes, 1 << lane, Layout::Same, (Strength::of(a.order, a.scope), true));
            noted.map_err(|(kind, _, _)| kind)?;
            if matches!(a.order, Order::Release | Order::AcqRel) && m.warp.observer.is_some() {
                m.warp.tick();
            }
            Ok(old)
        }
        Space::Shared => {
            let at = m.shared.narrow(&[at; 32], bytes, 1).map_err(|_| FaultKind::OutOfBounds("shared"))?[0];
            m.shared.update(m.warp.who(), lane as u8, at, bytes, f)
        }
        Space::Local => Err(FaultKind::ReadOnly("local (by an atomic)")),
        Space::Const => Err(FaultKind::ReadOnly("const")),
        Space::Param => Err(FaultKind::ReadOnly("parameter")),
    }
}

fn modify(op: AtomOp, old: u64, b: u64, c: u64) -> u64 {
    match op {
        AtomOp::Exch => b,
        AtomOp::Cas if old == b => c,
        AtomOp::Cas => old,
        AtomOp::Inc if old >= b => 0,
        AtomOp::Inc => old + 1,
        AtomOp::Dec if old == 0 || old > b => b,
        AtomOp::Dec => old - 1,
        AtomOp::Lane(f) => f.eval(old, b, 0),
    }
}
