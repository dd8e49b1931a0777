//! Loads and stores (PTX ISA 9.7.9.8 to 11): whole warps at once where they can be, lane by lane where they must.

use crate::error::FaultKind;
use crate::lower_memory::{CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::memory::Layout;
use crate::op::{Access, Address, Class, Order, Scope, Space};
use crate::race::{self, Strength};
use crate::regs::lanes;
use crate::scalar::keep;
use crate::stats::consecutive;
use crate::types::Ty;
use crate::warp::{Machine, Next, Trouble};

/// The space of a generic address and where its window begins.
pub(crate) fn resolve(space: Space, address: u64) -> (Space, u64) {
    match (space, address >> 60) {
        (Space::Generic, 1) => (Space::Shared, SHARED_WINDOW),
        (Space::Generic, 2) => (Space::Local, LOCAL_WINDOW),
        (Space::Generic, 3) => (Space::Const, CONST_WINDOW),
        (Space::Generic, 4) => (Space::Param, PARAM_WINDOW),
        (Space::Generic, _) => (Space::Global, 0),
        (space, _) => (space, 0),
    }
}

/// The addresses of all lanes; those of lanes that do not execute mean nothing.
#[inline(always)]
pub(crate) fn addresses(m: &Machine<'_, '_>, a: Address) -> [u64; 32] {
    let offset = a.offset as u64;
    match a.base {
        None => [offset; 32],
        Some(r) if r.class == Class::W64 => m.warp.regs.w64[r.slot as usize].map(|b| b.wrapping_add(offset)),
        Some(r) => m.warp.regs.w32[r.slot as usize].map(|b| u64::from(b).wrapping_add(offset)),
    }
}

#[inline(always)]
pub(crate) fn need_address(m: &Machine<'_, '_>, a: Address, exec: u32) -> Result<(), Trouble> {
    a.base.map_or(Ok(()), |r| m.need_reg(r, exec))
}

/// `bytes` is a power of two.
#[inline(always)]
pub(crate) fn aligned(at: &[u64; 32], bytes: u32, exec: u32) -> Result<(), Trouble> {
    let mask = u64::from(bytes) - 1;
    if at.iter().fold(0, |all, a| all | a) & mask == 0 {
        return Ok(());
    }
    match crate::fast::mask(|lane| at[lane] & mask != 0) & exec {
        0 => Ok(()),
        bad => {
            let lane = bad.trailing_zeros() as usize;
            Err((FaultKind::Misaligned(bytes), lane, Some(at[lane])))
        }
    }
}

/// How the addresses of accesses of `bytes` bytes lie.
#[inline(always)]
pub(crate) fn layout(at: &[u64; 32], bytes: u32, exec: u32) -> Layout {
    let first = at[exec.trailing_zeros() as usize % 32];
    if crate::fast::mask(|lane| at[lane] != first) & exec == 0 {
        Layout::Same
    } else if exec == u32::MAX && consecutive(at, u64::from(bytes)) {
        Layout::Consecutive
    } else {
        Layout::Scattered
    }
}

/// Orders with a scope narrower than the system do not reach other devices' memory.
pub(crate) fn check_scope(m: &mut Machine<'_, '_>, order: Order, scope: Scope, address: u64) -> Result<(), FaultKind> {
    let name = match scope {
        Scope::Sys => return Ok(()),
        Scope::Gpu => "gpu",
        Scope::Cta => "cta",
    };
    if order != Order::Weak && m.view.owner(address)? != m.context.device {
        return Err(FaultKind::Scope(name));
    }
    Ok(())
}

/// The lanes of `rest` whose generic addresses lie in the same space as that of the first, that space, its window.
fn share(at: &[u64; 32], rest: u32) -> (u32, Space, u64) {
    let (space, window) = resolve(Space::Generic, at[rest.trailing_zeros() as usize % 32]);
    let members = crate::fast::mask(|lane| resolve(Space::Generic, at[lane]).0 == space) & rest;
    (members, space, window)
}

#[inline(always)]
pub(crate) fn load(m: &mut Machine<'_, '_>, a: &Access, pc: u32, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    let at = addresses(m, a.address);
    match a.space {
        Space::Generic => load_generic(m, a, &at, pc, exec)?,
        space => load_from(m, a, space, &at, pc, exec)?,
    }
    a.regs.iter().flatten().for_each(|&r| m.warp.regs.mark(r, exec));
    Ok(if a.order == Order::Weak { Next::Forward } else { Next::Sync })
}

#[inline(never)]
fn load_generic(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let mut rest = exec;
    while rest != 0 {
        let (members, space, window) = share(at, rest);
        rest &= !members;
        load_from(m, a, space, &at.map(|a| a.wrapping_sub(window)), pc, members)?;
    }
    Ok(())
}

#[inline(always)]
fn load_from(
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
        Space::Shared => load_shared(m, a, at, pc, exec),
        Space::Global | Space::Generic => {
            let shape = layout(at, whole, exec);
            load_global(m, a, at, shape, exec)?;
            m.tally.read(at, whole, exec, shape);
            if m.warp.observer.is_some() { observe_load(m, a, at, shape, exec) } else { Ok(()) }
        }
        Space::Local | Space::Const | Space::Param => {
            let (bytes, context) = (a.ty.bytes(), m.context);
            each_element(m, a, at, exec, |m, lane, at| match space {
                Space::Const => slice(&context.program.consts, at, bytes, "const"),
                Space::Param => slice(&context.params, at, bytes, "parameter"),
                _ => load_local(m, at, bytes, lane),
            })
        }
    }
}

/// Notes global accesses of a warp for the race check.
pub(crate) fn note(
    m: &mut Machine<'_, '_>,
    at: &[u64; 32],
    bytes: u32,
    exec: u32,
    shape: Layout,
    (strength, write): (Strength, bool),
) -> Result<(), Trouble> {
    let Some(who) = &m.warp.observer else { return Ok(()) };
    let access = race::Access { who, clocks: &m.warp.clocks, strength, write };
    m.view.note(at, bytes, exec, shape, &access).map_err(|(k, lane)| (k, lane, Some(at[lane])))
}

#[inline(never)]
fn observe_load(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], shape: Layout, exec: u32) -> Result<(), Trouble> {
    let strength = if a.read_only { Strength::NonCoherent } else { Strength::of(a.order, a.scope) };
    if a.order != Order::Weak {
        for lane in lanes(exec) {
            let (message, who) = (m.view.message(at[lane]), &mut m.warp.observer);
            if let (Some(message), Some(who)) = (message, who) {
                who.meets(message, a.order, a.scope);
            }
        }
    }
    note(m, at, a.ty.bytes() * a.regs.len() as u32, exec, shape, (strength, false))
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

/// Loads lane by lane, element by element.
fn each_element(
    m: &mut Machine<'_, '_>,
    a: &Access,
    at: &[u64; 32],
    exec: u32,
    mut f: impl FnMut(&mut Machine<'_, '_>, usize, u64) -> Result<u64, FaultKind>,
) -> Result<(), Trouble> {
    let bytes = u64::from(a.ty.bytes());
    for lane in lanes(exec) {
        for (index, reg) in a.regs.iter().enumerate() {
            let Some(reg) = *reg else { continue };
            let at = at[lane].wrapping_add(index as u64 * bytes);
            let v = f(m, lane, at).map_err(|k| (k, lane, Some(at)))?;
            m.warp.regs.put(reg, lane, extend(v, a.ty, a.extend));
        }
    }
    Ok(())
}

#[inline(always)]
fn load_global(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], shape: Layout, exec: u32) -> Result<(), Trouble> {
    let bytes = a.ty.bytes();
    let whole = bytes * a.regs.len() as u32;
    if a.order == Order::Weak {
        let w32 = &mut m.warp.regs.w32;
        let done = match *a.words {
            [d] => {
                let to = &mut w32[d as usize];
                m.view.gather(at, exec, shape, |lane, [v]| to[lane] = v)
            }
            [d, e] => m.view.gather(at, exec, shape, |lane, [v, w]| {
                w32[d as usize][lane] = v;
                w32[e as usize][lane] = w;
            }),
            [d, e, f, g] => m.view.gather(at, exec, shape, |lane, [v, w, x, y]| {
                w32[d as usize][lane] = v;
                w32[e as usize][lane] = w;
                w32[f as usize][lane] = x;
                w32[g as usize][lane] = y;
            }),
            _ => {
                return each_element(m, a, at, exec, |m, _, at| {
                    m.view.check(at, u64::from(bytes))?;
                    m.view.load(at, bytes, false)
                });
            }
        };
        return done.map_err(|(k, lane)| (k, lane, Some(at[lane])));
    }
    for lane in lanes(exec) {
        let checked =
            m.view.check(at[lane], u64::from(whole)).and_then(|()| check_scope(m, a.order, a.scope, at[lane]));
        checked.map_err(|k| (k, lane, Some(at[lane])))?;
    }
    each_element(m, a, at, exec, |m, _, at| m.view.load(at, bytes, true))
}

#[inline(always)]
fn load_shared(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let bytes = a.ty.bytes();
    let whole = bytes * a.regs.len() as u32;
    let narrow = shared_addresses(m, at, whole, exec)?;
    let pattern = m.tally.follow(pc, m.warp.index, &narrow, whole, exec);
    if a.order != Order::Weak {
        return each_element(m, a, at, exec, |m, lane, at| {
            m.shared.load(m.warp.who(), lane as u8, at as u32, bytes, true)
        });
    }
    let base = narrow[exec.trailing_zeros() as usize % 32];
    let read = m.shared.read_all(m.warp.who(), base, whole, pattern);
    read.map_err(|(k, lane)| (k, lane, Some(at[lane])))?;
    if a.words.is_empty() {
        return each_element(m, a, at, exec, |m, _, at| Ok(m.shared.peek(at as u32, bytes)));
    }
    for (index, &d) in a.words.iter().enumerate() {
        let (to, from) = (&mut m.warp.regs.w32[d as usize], &m.shared.words[index..]);
        if exec == u32::MAX {
            for lane in 0..32 {
                to[lane] = from[narrow[lane] as usize / 4];
            }
        } else {
            lanes(exec).for_each(|lane| to[lane] = from[narrow[lane] as usize / 4]);
        }
    }
    Ok(())
}

/// The addresses of an access to shared memory, checked.
#[inline(always)]
pub(crate) fn shared_addresses(
    m: &Machine<'_, '_>,
    at: &[u64; 32],
    bytes: u32,
    exec: u32,
) -> Result<[u32; 32], Trouble> {
    m.shared.narrow(at, bytes, exec).map_err(|lane| (FaultKind::OutOfBounds("shared"), lane, Some(at[lane])))
}

fn load_local(m: &Machine<'_, '_>, at: u64, bytes: u32, lane: usize) -> Result<u64, FaultKind> {
    let range = local_range(m, at, bytes, lane)?;
    if !m.warp.local_set[range.clone()].iter().all(|&s| s) {
        return Err(FaultKind::Uninitialised("local"));
    }
    Ok(word(&m.warp.local[range]))
}

#[inline]
fn extend(v: u64, ty: Ty, to: u32) -> u64 {
    if ty.is_signed() && to > ty.bits { keep(crate::scalar::integer(v, ty) as u64, to) } else { v }
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn slice(from: &[u8], at: u64, bytes: u32, what: &'static str) -> Result<u64, FaultKind> {
    let range = usize::try_from(at).ok().and_then(|at| from.get(at..at.checked_add(bytes as usize)?));
    range.map(word).ok_or(FaultKind::OutOfBounds(what))
}

fn local_range(m: &Machine<'_, '_>, at: u64, bytes: u32, lane: usize) -> Result<std::ops::Range<usize>, FaultKind> {
    let each = m.context.program.local_bytes;
    if at.checked_add(u64::from(bytes)).is_none_or(|end| end > each) {
        return Err(FaultKind::OutOfBounds("local"));
    }
    let start = lane * each as usize + at as usize;
    Ok(start..start + bytes as usize)
}

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
            [d, e] => m.view.scatter(at, exec, shape, |lane| [d, e].map(|r| w32[r as usize][lane])),
            [d, e, f, g] => m.view.scatter(at, exec, shape, |lane| [d, e, f, g].map(|r| w32[r as usize][lane])),
            _ => {
                for lane in lanes(exec) {
                    m.view.check(at[lane], u64::from(whole)).map_err(|k| (k, lane, Some(at[lane])))?;
                }
                return put_elements(m, a, at, exec, |m, _, at, bytes, v| m.view.store(at, bytes, v, false));
            }
        };
        return done.map_err(|(k, lane)| (k, lane, Some(at[lane])));
    }
    for lane in lanes(exec) {
        let checked =
            m.view.check(at[lane], u64::from(whole)).and_then(|()| check_scope(m, a.order, a.scope, at[lane]));
        checked.map_err(|k| (k, lane, Some(at[lane])))?;
    }
    put_elements(m, a, at, exec, |m, _, at, bytes, v| m.view.store(at, bytes, v, true))
}

#[inline(always)]
fn store_shared(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let whole = a.ty.bytes() * a.regs.len() as u32;
    let narrow = shared_addresses(m, at, whole, exec)?;
    let pattern = m.tally.follow(pc, m.warp.index, &narrow, whole, exec);
    let base = narrow[exec.trailing_zeros() as usize % 32];
    if a.order != Order::Weak || !m.shared.write_all(m.warp.who(), base, whole, pattern) {
        let atomic = a.order != Order::Weak;
        return put_elements(m, a, at, exec, |m, lane, at, bytes, v| {
            m.shared.store(m.warp.who(), lane as u8, at as u32, bytes, v, atomic)
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
