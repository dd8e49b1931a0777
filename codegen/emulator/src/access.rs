//! Loads and stores (PTX ISA 9.7.9.8 to 11): whole warps at once where they can be, lane by lane where they must.

use crate::error::FaultKind;
use crate::fast::each;
use crate::lower_memory::{CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::op::{Address, Class, Order, Scope, Space};
use crate::race::{self, Strength};
use crate::stats::consecutive;
use crate::view::Layout;
use crate::warp::{Machine, Trouble};

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
        Some(r) if r.class == Class::W64 => {
            let base = &m.warp.regs.w64[r.slot as usize];
            each(|lane| base[lane].wrapping_add(offset))
        }
        Some(r) => {
            let base = &m.warp.regs.w32[r.slot as usize];
            each(|lane| u64::from(base[lane]).wrapping_add(offset))
        }
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
pub(crate) fn share(at: &[u64; 32], rest: u32) -> (u32, Space, u64) {
    let (space, window) = resolve(Space::Generic, at[rest.trailing_zeros() as usize % 32]);
    let members = crate::fast::mask(|lane| resolve(Space::Generic, at[lane]).0 == space) & rest;
    (members, space, window)
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

/// Where a lane's local bytes lie among those of the warp.
pub(crate) fn local_range(
    m: &Machine<'_, '_>,
    at: u64,
    bytes: u32,
    lane: usize,
) -> Result<std::ops::Range<usize>, FaultKind> {
    let each = m.context.program.local_bytes;
    if at.checked_add(u64::from(bytes)).is_none_or(|end| end > each) {
        return Err(FaultKind::OutOfBounds("local"));
    }
    let start = lane * each as usize + at as usize;
    Ok(start..start + bytes as usize)
}
