//! Stores (PTX ISA 9.7.9.11): whole warps at once where they can be, lane by lane where they must.

use crate::access::{
    addresses, aligned, check_scope, layout, local_range, need_address, note, share, shared_addresses,
};
use crate::error::FaultKind;
use crate::fast::each;
use crate::op::{Access, Order, Space};
use crate::race::Strength;
use crate::regs::lanes;
use crate::scalar::keep;
use crate::view::Layout;
use crate::warp::{Machine, Next, Trouble};

#[inline(always)]
pub(crate) fn store(m: &mut Machine<'_, '_>, a: &Access, pc: u32, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    for &reg in a.regs.iter().flatten() {
        m.need_reg(reg, exec)?;
    }
    let at = addresses(m, a.address);
    match a.space {
        Space::Generic => store_generic(m, a, &at, pc, exec)?,
        space => store_to(m, a, space, &at, pc, exec)?,
    }
    Ok(Next::Forward)
}

#[inline(never)]
fn store_generic(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let mut rest = exec;
    while rest != 0 {
        let (members, space, window) = share(at, rest);
        rest &= !members;
        store_to(m, a, space, &at.map(|a| a.wrapping_sub(window)), pc, members)?;
    }
    Ok(())
}

#[inline(always)]
fn store_to(
    m: &mut Machine<'_, '_>,
    a: &Access,
    space: Space,
    at: &[u64; 32],
    pc: u32,
    exec: u32,
) -> Result<(), Trouble> {
    let whole = a.ty.bytes() * a.regs.len() as u32;
    aligned(at, whole, exec)?;
    match space {
        Space::Shared => store_shared(m, a, at, pc, exec),
        Space::Global | Space::Generic => {
            let shape = layout(at, whole, exec);
            if a.order != Order::Weak && m.warp.observer.is_some() {
                publish(m, a, at, exec);
            }
            store_global(m, a, at, shape, exec)?;
            m.tally.write(at, whole, exec, shape);
            if m.warp.observer.is_some() { observe_store(m, a, at, shape, exec) } else { Ok(()) }
        }
        Space::Local => put_elements(m, a, at, exec, store_local),
        Space::Const => put_elements(m, a, at, exec, |_, _, _, _, _| Err(FaultKind::ReadOnly("const"))),
        Space::Param => put_elements(m, a, at, exec, |_, _, _, _, _| Err(FaultKind::ReadOnly("parameter"))),
    }
}

/// Stores lane by lane, element by element.
fn put_elements(
    m: &mut Machine<'_, '_>,
    a: &Access,
    at: &[u64; 32],
    exec: u32,
    mut f: impl FnMut(&mut Machine<'_, '_>, usize, u64, u32, u64) -> Result<(), FaultKind>,
) -> Result<(), Trouble> {
    let bytes = a.ty.bytes();
    for lane in lanes(exec) {
        for (index, &reg) in a.regs.iter().flatten().enumerate() {
            let at = at[lane].wrapping_add(index as u64 * u64::from(bytes));
            let v = keep(m.warp.regs.get(reg, lane), a.ty.width());
            f(m, lane, at, bytes, v).map_err(|k| (k, lane, Some(at)))?;
        }
    }
    Ok(())
}

fn store_local(m: &mut Machine<'_, '_>, lane: usize, at: u64, bytes: u32, v: u64) -> Result<(), FaultKind> {
    let range = local_range(m, at, bytes, lane)?;
    m.warp.local_set[range.clone()].fill(true);
    m.warp.local[range].copy_from_slice(&v.to_le_bytes()[..bytes as usize]);
    Ok(())
}

#[inline(always)]
fn store_global(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], shape: Layout, exec: u32) -> Result<(), Trouble> {
    let whole = a.ty.bytes() * a.regs.len() as u32;
    if a.order == Order::Weak {
        let w32 = &m.warp.regs.w32;
        let done = match *a.words {
            [d] => {
                let from = &w32[d as usize];
                m.view.scatter(at, exec, shape, |lane| [from[lane]])
            }
            [d, e] => m.view.scatter(at, exec, shape, |lane| [w32[d as usize][lane], w32[e as usize][lane]]),
            [d, e, f, g] => {
                let from = [d, e, f, g];
                m.view.scatter::<4>(at, exec, shape, |lane| each(|k| w32[from[k] as usize][lane]))
            }
            _ => {
                for lane in lanes(exec) {
                    m.view.check(at[lane], u64::from(whole)).map_err(|k| (k, lane, Some(at[lane])))?;
                }
                return put_elements(m, a, at, exec, |m, _, at, bytes, v| m.view.store(at, bytes, v, Order::Weak));
            }
        };
        return done.map_err(|(k, lane)| (k, lane, Some(at[lane])));
    }
    for lane in lanes(exec) {
        let checked =
            m.view.check(at[lane], u64::from(whole)).and_then(|()| check_scope(m, a.order, a.scope, at[lane]));
        checked.map_err(|k| (k, lane, Some(at[lane])))?;
    }
    put_elements(m, a, at, exec, |m, _, at, bytes, v| m.view.store(at, bytes, v, a.order))
}

#[inline(always)]
fn store_shared(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let whole = a.ty.bytes() * a.regs.len() as u32;
    let narrow = shared_addresses(m, at, whole, exec)?;
    let pattern = m.tally.follow(pc, m.warp.index, &narrow, whole, exec);
    let base = narrow[exec.trailing_zeros() as usize % 32];
    if a.order != Order::Weak || !m.shared.write_all(m.warp.who(), base, whole, pattern) {
        return put_elements(m, a, at, exec, |m, lane, at, bytes, v| {
            m.shared.store(m.warp.who(), lane as u8, at as u32, bytes, v, a.order)
        });
    }
    if a.words.is_empty() {
        return put_elements(m, a, at, exec, |m, _, at, bytes, v| {
            m.shared.poke(at as u32, bytes, v);
            Ok(())
        });
    }
    for (index, &s) in a.words.iter().enumerate() {
        let (from, to) = (&m.warp.regs.w32[s as usize], &mut m.shared.words[index..]);
        lanes(exec).for_each(|lane| to[narrow[lane] as usize / 4] = from[lane]);
    }
    Ok(())
}

/// Lets those who acquire from a store know what the warp knows.
#[inline(never)]
fn publish(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], exec: u32) {
    if let Some(who) = &m.warp.observer {
        let message = who.passes(a.order, a.scope, &m.warp.clocks);
        lanes(exec).for_each(|lane| m.view.post(at[lane], |_| message.clone()));
    }
}

#[inline(never)]
fn observe_store(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], shape: Layout, exec: u32) -> Result<(), Trouble> {
    let whole = a.ty.bytes() * a.regs.len() as u32;
    note(m, at, whole, exec, shape, (Strength::of(a.order, a.scope), true))?;
    if a.order == Order::Release {
        m.warp.tick();
    }
    Ok(())
}
