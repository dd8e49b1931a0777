//! Loads (PTX ISA 9.7.9.8): whole warps at once where they can be, lane by lane where they must.

use crate::access::{
    addresses, aligned, check_scope, layout, local_range, need_address, note, share, shared_addresses,
};
use crate::error::FaultKind;
use crate::op::{Access, Order, Space};
use crate::race::Strength;
use crate::regs::lanes;
use crate::scalar::keep;
use crate::types::Ty;
use crate::view::Layout;
use crate::warp::{Machine, Next, Trouble};

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
                    m.view.load(at, bytes, Order::Weak)
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
    each_element(m, a, at, exec, |m, _, at| m.view.load(at, bytes, a.order))
}

#[inline(always)]
fn load_shared(m: &mut Machine<'_, '_>, a: &Access, at: &[u64; 32], pc: u32, exec: u32) -> Result<(), Trouble> {
    let bytes = a.ty.bytes();
    let whole = bytes * a.regs.len() as u32;
    let narrow = shared_addresses(m, at, whole, exec)?;
    let pattern = m.tally.follow(pc, m.warp.index, &narrow, whole, exec);
    if a.order != Order::Weak {
        return each_element(m, a, at, exec, |m, lane, at| {
            m.shared.load(m.warp.who(), lane as u8, at as u32, bytes, a.order)
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
