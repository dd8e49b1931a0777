//! Loads, stores, atomics and asynchronous copies (PTX ISA 9.7.9, 9.7.13).

use crate::device::Schedule;
use crate::error::FaultKind;
use crate::lower_memory::{CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::op::{Access, Address, Atom, AtomOp, Class, Order, Reg, Scope, Space};
use crate::regs::lanes;
use crate::scalar::keep;
use crate::shared::Who;
use crate::types::Ty;
use crate::warp::{Copy, Machine, Next, Trouble};

/// Resolves a generic address to its window.
fn resolve(space: Space, address: u64) -> (Space, u64) {
    match (space, address >> 60) {
        (Space::Generic, 1) => (Space::Shared, address - SHARED_WINDOW),
        (Space::Generic, 2) => (Space::Local, address - LOCAL_WINDOW),
        (Space::Generic, 3) => (Space::Const, address - CONST_WINDOW),
        (Space::Generic, 4) => (Space::Param, address - PARAM_WINDOW),
        (Space::Generic, _) => (Space::Global, address),
        (space, _) => (space, address),
    }
}

#[inline]
fn address_of(m: &Machine<'_, '_>, a: Address, lane: usize) -> u64 {
    let base = a.base.map_or(0, |r| m.warp.regs.get(r, lane));
    base.wrapping_add(a.offset as u64)
}

fn need_address(m: &Machine<'_, '_>, a: Address, exec: u32) -> Result<(), Trouble> {
    a.base.map_or(Ok(()), |r| m.need_reg(r, exec))
}

/// `bytes` is a power of two.
fn aligned(address: u64, bytes: u32) -> Result<(), FaultKind> {
    if address & (u64::from(bytes) - 1) == 0 { Ok(()) } else { Err(FaultKind::Misaligned(bytes)) }
}

/// Orders with a scope narrower than the system do not reach other devices' memory.
fn check_scope(m: &mut Machine<'_, '_>, order: Order, scope: Scope, address: u64) -> Result<(), FaultKind> {
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

pub(crate) fn load(m: &mut Machine<'_, '_>, a: &Access, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    let bytes = a.ty.bytes();
    if let (Space::Shared, 4, Order::Weak, &[Some(reg)], Some(base)) =
        (a.space, bytes, a.order, a.regs.as_slice(), a.address.base)
        && base.class == Class::W32
        && reg.class == Class::W32
    {
        load_words(m, reg.slot, base.slot, a.address.offset, exec)?;
        m.warp.regs.set32[reg.slot as usize] |= exec;
        return Ok(Next::Forward);
    }
    let whole = bytes * a.regs.len() as u32;
    let mut synchronises = false;
    for lane in lanes(exec) {
        let address = address_of(m, a.address, lane);
        let (space, at) = resolve(a.space, address);
        synchronises |= a.order != Order::Weak;
        let trouble = |kind| (kind, lane, Some(address));
        aligned(at, whole).map_err(trouble)?;
        if space == Space::Global {
            if a.regs.len() > 1 {
                m.view.check(at, u64::from(whole)).map_err(trouble)?;
            }
            if a.order != Order::Weak {
                check_scope(m, a.order, a.scope, at).map_err(trouble)?;
            }
            m.stats.global_read += u64::from(whole);
        }
        for (index, reg) in a.regs.iter().enumerate() {
            let Some(reg) = *reg else { continue };
            let at = at.wrapping_add(index as u64 * u64::from(bytes));
            let v = load_one(m, space, at, bytes, a.order != Order::Weak, lane).map_err(trouble)?;
            m.warp.regs.put(reg, lane, extend(v, a.ty, a.extend));
        }
    }
    a.regs.iter().flatten().for_each(|&r| m.warp.regs.mark(r, exec));
    Ok(if synchronises { Next::Sync } else { Next::Forward })
}

/// The frequent case: one word a lane from shared memory.
fn load_words(m: &mut Machine<'_, '_>, d: u32, base: u32, offset: i64, exec: u32) -> Result<(), Trouble> {
    let warp = &mut *m.warp;
    let from = warp.regs.w32[base as usize];
    let to = &mut warp.regs.w32[d as usize];
    let first = (warp.index * 32) as u16;
    for lane in lanes(exec) {
        let at = u64::from(from[lane]).wrapping_add(offset as u64);
        let who = Who { thread: first + lane as u16, step: warp.step, clocks: &warp.clocks };
        to[lane] = m.shared.load_word(who, at).map_err(|kind| (kind, lane, Some(at)))?;
    }
    Ok(())
}

#[inline]
fn extend(v: u64, ty: Ty, to: u32) -> u64 {
    if ty.is_signed() && to > ty.bits { keep(crate::scalar::integer(v, ty) as u64, to) } else { v }
}

#[inline]
fn load_one(
    m: &mut Machine<'_, '_>,
    space: Space,
    at: u64,
    bytes: u32,
    ordered: bool,
    lane: usize,
) -> Result<u64, FaultKind> {
    match space {
        Space::Global | Space::Generic => m.view.load(at, bytes, ordered),
        Space::Shared => m.shared.load(m.warp.who(lane), at, bytes, ordered),
        Space::Local => {
            let range = local_range(m, at, bytes, lane)?;
            if !m.warp.local_set[range.clone()].iter().all(|&s| s) {
                return Err(FaultKind::Uninitialised("local"));
            }
            Ok(word(&m.warp.local[range]))
        }
        Space::Const => slice(&m.context.program.consts, at, bytes, "const"),
        Space::Param => slice(&m.context.params, at, bytes, "parameter"),
    }
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

pub(crate) fn store(m: &mut Machine<'_, '_>, a: &Access, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    for &reg in a.regs.iter().flatten() {
        m.need_reg(reg, exec)?;
    }
    let bytes = a.ty.bytes();
    let whole = bytes * a.regs.len() as u32;
    let ordered = a.order != Order::Weak;
    for lane in lanes(exec) {
        let address = address_of(m, a.address, lane);
        let (space, at) = resolve(a.space, address);
        let trouble = |kind| (kind, lane, Some(address));
        aligned(at, whole).map_err(trouble)?;
        if space == Space::Global {
            m.view.check(at, u64::from(whole)).map_err(trouble)?;
            if ordered {
                check_scope(m, a.order, a.scope, at).map_err(trouble)?;
            }
            m.stats.global_written += u64::from(whole);
        }
        for (index, &reg) in a.regs.iter().flatten().enumerate() {
            let at = at.wrapping_add(index as u64 * u64::from(bytes));
            let v = keep(m.warp.regs.get(reg, lane), a.ty.width());
            store_one(m, space, at, bytes, v, ordered, lane).map_err(trouble)?;
        }
    }
    Ok(Next::Forward)
}

#[inline]
fn store_one(
    m: &mut Machine<'_, '_>,
    space: Space,
    at: u64,
    bytes: u32,
    v: u64,
    ordered: bool,
    lane: usize,
) -> Result<(), FaultKind> {
    match space {
        Space::Global | Space::Generic => m.view.store(at, bytes, v, ordered),
        Space::Shared => m.shared.store(m.warp.who(lane), at, bytes, v, ordered),
        Space::Local => {
            let range = local_range(m, at, bytes, lane)?;
            m.warp.local_set[range.clone()].fill(true);
            m.warp.local[range].copy_from_slice(&v.to_le_bytes()[..bytes as usize]);
            Ok(())
        }
        Space::Const => Err(FaultKind::ReadOnly("const")),
        Space::Param => Err(FaultKind::ReadOnly("parameter")),
    }
}

pub(crate) fn atom(m: &mut Machine<'_, '_>, a: &Atom, exec: u32) -> Result<Next, Trouble> {
    need_address(m, a.address, exec)?;
    m.need_reg(a.b, exec)?;
    a.c.map_or(Ok(()), |c| m.need_reg(c, exec))?;
    let bytes = a.ty.bytes();
    for lane in lanes(exec) {
        let address = address_of(m, a.address, lane);
        let (space, at) = resolve(a.space, address);
        let trouble = |kind| (kind, lane, Some(address));
        aligned(at, bytes).map_err(trouble)?;
        let b = m.warp.regs.get(a.b, lane);
        let c = a.c.map_or(0, |c| m.warp.regs.get(c, lane));
        let f = |old: u64| modify(a.op, old, b, c);
        let old = match space {
            Space::Global | Space::Generic => {
                check_scope(m, a.order, a.scope, at).map_err(trouble)?;
                m.stats.global_written += u64::from(bytes);
                m.view.update(at, bytes, f)
            }
            Space::Shared => m.shared.update(m.warp.who(lane), at, bytes, f),
            Space::Local => Err(FaultKind::ReadOnly("local (by an atomic)")),
            Space::Const => Err(FaultKind::ReadOnly("const")),
            Space::Param => Err(FaultKind::ReadOnly("parameter")),
        };
        let old = old.map_err(trouble)?;
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

/// `cp.async`: checked and marked now, carried out now or at the wait.
pub(crate) fn copy(
    m: &mut Machine<'_, '_>,
    shared: Address,
    global: Address,
    bytes: u32,
    source: Option<Reg>,
    exec: u32,
) -> Result<(), Trouble> {
    need_address(m, shared, exec)?;
    need_address(m, global, exec)?;
    source.map_or(Ok(()), |s| m.need_reg(s, exec))?;
    for lane in lanes(exec) {
        let (to, from) = (address_of(m, shared, lane), address_of(m, global, lane));
        let count = source.map_or(bytes, |s| (m.warp.regs.get(s, lane) as u32).min(bytes));
        aligned(to, bytes).map_err(|k| (k, lane, Some(to)))?;
        m.shared.issue(m.warp.who(lane), to, bytes).map_err(|k| (k, lane, Some(to)))?;
        if count > 0 {
            aligned(from, bytes).map_err(|k| (k, lane, Some(from)))?;
            m.view.check(from, u64::from(count)).map_err(|k| (k, lane, Some(from)))?;
            let step = copy_step(count);
            for at in (0..u64::from(count)).step_by(step as usize) {
                m.view.load(from + at, step, false).map_err(|k| (k, lane, Some(from + at)))?;
            }
        }
        m.stats.global_read += u64::from(count);
        let copy = Copy { lane, to, from, bytes, source: count, group: 0 };
        if m.context.schedule == Schedule::Early {
            deliver(m, &copy);
        }
        m.warp.copies.push(copy);
    }
    Ok(())
}

/// Bytes to read at once; the source of a copy is aligned to 4 at least.
fn copy_step(count: u32) -> u32 {
    if count.is_multiple_of(4) { 4 } else { 1 }
}

fn deliver(m: &mut Machine<'_, '_>, copy: &Copy) {
    let mut data = [0; 16];
    let step = copy_step(copy.source);
    for at in (0..copy.source).step_by(step as usize) {
        // Memory freed since issue reads as 0; the host is not allowed to free it, and the kernel cannot.
        let v = m.view.load(copy.from + u64::from(at), step, false).unwrap_or(0);
        data[at as usize..(at + step) as usize].copy_from_slice(&v.to_le_bytes()[..step as usize]);
    }
    m.shared.deliver(copy.to, &data[..copy.bytes as usize]);
}

pub(crate) fn commit(m: &mut Machine<'_, '_>, exec: u32) {
    lanes(exec).for_each(|lane| m.warp.committed[lane] += 1);
    let committed = m.warp.committed;
    for copy in m.warp.copies.iter_mut().filter(|c| c.group == 0 && exec >> c.lane & 1 == 1) {
        copy.group = committed[copy.lane];
    }
}

pub(crate) fn wait(m: &mut Machine<'_, '_>, pending: Option<u32>, exec: u32) {
    let committed = m.warp.committed;
    complete(m, exec, |copy| match pending {
        None => true,
        Some(pending) => copy.group != 0 && copy.group + pending <= committed[copy.lane],
    });
}

/// Completes the copies of `exec` that `done` picks.
pub(crate) fn complete(m: &mut Machine<'_, '_>, exec: u32, done: impl Fn(&Copy) -> bool) {
    if m.warp.copies.is_empty() {
        return;
    }
    let (landed, rest): (Vec<Copy>, Vec<Copy>) =
        std::mem::take(&mut m.warp.copies).into_iter().partition(|c| exec >> c.lane & 1 == 1 && done(c));
    m.warp.copies = rest;
    for copy in landed {
        if m.context.schedule == Schedule::Late {
            deliver(m, &copy);
        }
        m.shared.land(m.warp.who(copy.lane), copy.to, copy.bytes);
    }
}
