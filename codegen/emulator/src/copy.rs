//! Asynchronous copies from global to shared memory (`cp.async`, PTX ISA 9.7.9.25): checked and marked at issue,
//! carried out then or at the wait that forces them.

use crate::access::{addresses, aligned, layout, need_address, note, shared_addresses};
use crate::device::Schedule;
use crate::error::FaultKind;
use crate::fast;
use crate::op::{Address, Reg};
use crate::race::Strength;
use crate::regs::lanes;
use crate::warp::{Machine, Trouble};

/// The copies of one instruction.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    /// Lanes whose copies are in flight.
    lanes: u32,
    to: [u32; 32],
    from: [u64; 32],
    bytes: u32,
    /// Bytes really read; the rest is zeros.
    source: [u32; 32],
    /// The group of each lane; 0 until it is committed.
    group: [u32; 32],
}

#[inline(always)]
pub(crate) fn issue(
    m: &mut Machine<'_, '_>,
    [shared, global]: [Address; 2],
    bytes: u32,
    source: Option<Reg>,
    pc: u32,
    exec: u32,
) -> Result<(), Trouble> {
    need_address(m, shared, exec)?;
    need_address(m, global, exec)?;
    source.map_or(Ok(()), |s| m.need_reg(s, exec))?;
    let (to, from) = (addresses(m, shared), addresses(m, global));
    let source = source.map_or([bytes; 32], |s| m.warp.regs.w32[s.slot as usize].map(|n| n.min(bytes)));
    aligned(&to, bytes, exec)?;
    let to = shared_addresses(m, &to, bytes, exec)?;
    m.tally.follow(pc, m.warp.index, &to, bytes, exec);
    let reading = fast::mask(|lane| source[lane] > 0) & exec;
    aligned(&from, bytes, reading)?;
    let issued = m.shared.issue(m.warp.who(), &to, bytes, exec);
    issued.map_err(|(k, lane)| (k, lane, Some(u64::from(to[lane]))))?;
    let copy = Copy { lanes: exec, to, from, bytes, source, group: [0; 32] };
    // Reading now shows faults where they belong, and is the whole copy under the early schedule.
    transfer(m, &copy, exec, Schedule::Early).map_err(|(k, lane)| (k, lane, Some(from[lane])))?;
    m.warp.copies.push(copy);
    count(m, &from, &source, bytes, reading);
    if m.warp.observer.is_some() { observe(m, &from, &source, reading) } else { Ok(()) }
}

/// Notes the reads for the race check.
#[inline(never)]
fn observe(m: &mut Machine<'_, '_>, from: &[u64; 32], source: &[u32; 32], reading: u32) -> Result<(), Trouble> {
    let mut rest = reading;
    while rest != 0 {
        let bytes = source[rest.trailing_zeros() as usize];
        let alike = fast::mask(|lane| source[lane] == bytes) & rest;
        rest &= !alike;
        note(m, from, bytes, alike, layout(from, bytes, alike), (Strength::Weak, false))?;
    }
    Ok(())
}

#[inline(always)]
fn count(m: &mut Machine<'_, '_>, from: &[u64; 32], source: &[u32; 32], bytes: u32, reading: u32) {
    let whole = fast::mask(|lane| source[lane] == bytes) & reading;
    if whole != 0 {
        m.tally.read(from, bytes, whole, layout(from, bytes, whole));
    }
    for lane in lanes(reading & !whole) {
        m.tally.read_part(from[lane], source[lane]);
    }
}

/// Reads the sources of `members` and, if that is when copies land, writes them to their destinations.
#[inline(always)]
fn transfer(m: &mut Machine<'_, '_>, copy: &Copy, members: u32, at: Schedule) -> Result<(), (FaultKind, usize)> {
    let write = m.context.schedule == at;
    let (words, view) = (&mut m.shared.words, &mut *m.view);
    let empty = fast::mask(|lane| copy.source[lane] == 0) & members;
    if write {
        lanes(empty).for_each(|lane| words[copy.to[lane] as usize / 4..][..copy.bytes as usize / 4].fill(0));
    }
    let members = members & !empty;
    if members == 0 {
        return Ok(());
    }
    let whole = fast::mask(|lane| copy.source[lane] != copy.bytes) & members == 0;
    let shape = layout(&copy.from, copy.bytes, members);
    let place = |lane: usize| copy.to[lane] as usize / 4;
    match copy.bytes {
        16 if whole => view.gather::<4>(&copy.from, members, shape, |lane, v| {
            if write {
                words[place(lane)..][..4].copy_from_slice(&v);
            }
        }),
        8 if whole => view.gather::<2>(&copy.from, members, shape, |lane, v| {
            if write {
                words[place(lane)..][..2].copy_from_slice(&v);
            }
        }),
        4 if whole => view.gather::<1>(&copy.from, members, shape, |lane, [v]| {
            if write {
                words[place(lane)] = v;
            }
        }),
        _ => {
            for lane in lanes(members) {
                let (mut data, n) = ([0; 16], copy.source[lane] as usize);
                if n > 0 {
                    view.bytes(copy.from[lane], &mut data[..n]).map_err(|k| (k, lane))?;
                }
                if write {
                    for (word, v) in words[place(lane)..][..copy.bytes as usize / 4].iter_mut().zip(data.chunks(4)) {
                        *word = u32::from_le_bytes([v[0], v[1], v[2], v[3]]);
                    }
                }
            }
            Ok(())
        }
    }
}

#[inline(always)]
pub(crate) fn commit(m: &mut Machine<'_, '_>, exec: u32) {
    let committed = &mut m.warp.committed;
    committed.iter_mut().enumerate().for_each(|(lane, n)| *n += exec >> lane & 1);
    for copy in &mut m.warp.copies {
        let members = exec & copy.lanes;
        for (lane, (group, &now)) in copy.group.iter_mut().zip(committed.iter()).enumerate() {
            let open = members >> lane & 1 == 1 && *group == 0;
            *group = if open { now } else { *group };
        }
    }
}

/// Waits until at most `pending` groups are in flight; `None` waits for everything, grouped or not.
#[inline(always)]
pub(crate) fn wait(m: &mut Machine<'_, '_>, pending: Option<u32>, exec: u32) {
    if m.warp.copies.is_empty() {
        return;
    }
    let committed = m.warp.committed;
    let mut copies = std::mem::take(&mut m.warp.copies);
    copies.retain_mut(|copy| {
        let landed = match pending {
            None => exec & copy.lanes,
            Some(pending) => {
                let done =
                    |lane: usize| copy.group[lane] != 0 && copy.group[lane].saturating_add(pending) <= committed[lane];
                fast::mask(done) & exec & copy.lanes
            }
        };
        if landed != 0 {
            // Memory freed since issue reads as nothing; the host is not allowed to free it, and the kernel cannot.
            let _ = transfer(m, copy, landed, Schedule::Late);
            m.shared.land(m.warp.who(), &copy.to, copy.bytes, landed);
            copy.lanes &= !landed;
        }
        copy.lanes != 0
    });
    m.warp.copies = copies;
}
