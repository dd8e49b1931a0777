//! Races in global memory: accesses of different warps, blocks and devices that nothing orders.
//!
//! Every warp that ever ran has a number and a clock. The shadow of a word holds its last write and its last two
//! readers; a warp knows the clocks of the others of its block (module `shared`) and, by module `known`, those of other blocks
//! that reached it through a release and an acquire whose scopes include each other (PTX ISA 8.9). Earlier launches of
//! the same device are known; those of other devices only through flags or
//! [`AddressSpace::synchronise`](crate::AddressSpace::synchronise).
//!
//! Lanes of one warp are not told apart. Readers before the last two are forgotten, and so is a write to other bytes of
//! the same word: that can hide a race, but never invents one.

use crate::error::FaultKind;
use crate::known::Observer;
use crate::op::{Order, Scope};

/// Devices whose accesses are told apart; those of others are not checked.
pub(crate) const DEVICES: usize = 16;

/// A warp: its device and its number there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Agent(u64);

impl Agent {
    /// How far its number is behind that of another one, in a huge circle.
    pub(crate) fn after(self, other: Agent) -> u64 {
        self.0.wrapping_sub(other.0)
    }

    /// The warp `index` numbers later.
    pub(crate) fn next(self, index: u32) -> Agent {
        Agent(self.0 + u64::from(index))
    }

    pub(crate) fn new(device: u32, number: u64) -> Agent {
        Agent(u64::from(device) << NUMBER | number)
    }

    pub(crate) fn device(self) -> usize {
        (self.0 >> NUMBER) as usize
    }

    pub(crate) fn number(self) -> u64 {
        self.0 & ((1 << NUMBER) - 1)
    }
}

/// Bits of a warp's number.
const NUMBER: u32 = 34;

/// How an access may run into others (PTX ISA 8.7.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Strength {
    /// Unordered accesses by others are races.
    Weak,
    /// A `.nc` load: nobody may write the bytes during the launch.
    NonCoherent,
    /// Within a device.
    Gpu,
    /// Between devices.
    Sys,
}

impl Strength {
    pub(crate) fn of(order: Order, scope: Scope) -> Strength {
        match (order, scope) {
            (Order::Weak, _) | (_, Scope::Cta) => Strength::Weak,
            (_, Scope::Gpu) => Strength::Gpu,
            (_, Scope::Sys) => Strength::Sys,
        }
    }
}

/// A past access: agent, clock, strength, and which bytes of the word. Zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Event(u64);

const CLOCK: u64 = (1 << 20) - 1;

impl Event {
    fn new(agent: Agent, clock: u32, strength: Strength, bytes: u32) -> Event {
        Event(agent.0 << 26 | u64::from(clock).min(CLOCK) << 6 | (strength as u64) << 4 | u64::from(bytes))
    }

    pub(crate) fn agent(self) -> Agent {
        Agent(self.0 >> 26)
    }

    pub(crate) fn clock(self) -> u32 {
        (self.0 >> 6 & CLOCK) as u32
    }

    fn strength(self) -> Strength {
        match self.0 >> 4 & 3 {
            0 => Strength::Weak,
            1 => Strength::NonCoherent,
            2 => Strength::Gpu,
            _ => Strength::Sys,
        }
    }

    fn touches(self, bytes: u32) -> bool {
        self.0 & u64::from(bytes) != 0
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cell {
    write: Event,
    reads: [Event; 2],
}

/// The shadow of 128 bytes: one cell as long as whole warps access them alike.
#[derive(Debug, Clone, Default)]
struct Line {
    cell: Cell,
    words: Option<Box<[Cell; 32]>>,
}

/// The shadow of a page.
#[derive(Debug)]
pub(crate) struct Shadow(Vec<Line>);

impl Shadow {
    pub(crate) fn new(bytes: u64) -> Shadow {
        Shadow(vec![Line::default(); bytes.div_ceil(128) as usize])
    }

    /// Forgets accesses to `bytes` bytes from `at`.
    pub(crate) fn forget(&mut self, at: usize, bytes: usize) {
        for (line, from, to) in lines(at, bytes) {
            let line = &mut self.0[line];
            if to - from == 128 {
                *line = Line::default();
            } else if line.words.is_some() || line.cell != Cell::default() {
                let cell = line.cell;
                let words = line.words.get_or_insert_with(|| Box::new([cell; 32]));
                words[from / 4..to.div_ceil(4)].fill(Cell::default());
            }
        }
    }

    /// Checks and notes an access to `bytes` bytes from `at`.
    pub(crate) fn note(&mut self, at: usize, bytes: usize, access: &Access<'_>) -> Result<(), FaultKind> {
        for (line, from, to) in lines(at, bytes) {
            let line = &mut self.0[line];
            if to - from == 128 {
                if let Some(words) = &mut line.words {
                    for cell in words.iter_mut() {
                        access.touch(cell, 0xf)?;
                    }
                    if access.write {
                        (line.cell, line.words) = (words[0], None);
                    }
                } else {
                    access.touch(&mut line.cell, 0xf)?;
                }
                continue;
            }
            let cell = line.cell;
            let words = line.words.get_or_insert_with(|| Box::new([cell; 32]));
            for (word, cell) in words.iter_mut().enumerate().take(to.div_ceil(4)).skip(from / 4) {
                let (low, high) = (from.max(word * 4) - word * 4, to.min(word * 4 + 4) - word * 4);
                access.touch(cell, (0xf >> (4 - (high - low))) << low)?;
            }
        }
        Ok(())
    }
}

/// The parts of a range by lines: line, first byte in it, end in it.
fn lines(at: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (at / 128..(at + bytes).div_ceil(128)).map(move |line| {
        let start = line * 128;
        (line, at.max(start) - start, (at + bytes).min(start + 128) - start)
    })
}

/// An access about to be noted.
pub(crate) struct Access<'a> {
    pub(crate) who: &'a Observer,
    /// Clocks of the warps of the block, as known to the warp.
    pub(crate) clocks: &'a [u32],
    pub(crate) strength: Strength,
    pub(crate) write: bool,
}

impl Access<'_> {
    /// Whether a past access happened before this one.
    fn ordered(&self, event: Event) -> bool {
        let (agent, own) = (event.agent(), self.who.block);
        match agent.after(own) {
            warp if warp == u64::from(self.who.index) => true,
            warp if warp < self.clocks.len() as u64 => event.clock() <= self.clocks[warp as usize],
            _ => self.who.known.includes(event),
        }
    }

    fn may_meet(&self, event: Event, bytes: u32) -> bool {
        if event == Event::default() || !event.touches(bytes) || self.ordered(event) {
            return true;
        }
        match (self.strength, event.strength()) {
            (Strength::Sys, Strength::Sys) => true,
            (Strength::Gpu | Strength::Sys, Strength::Gpu | Strength::Sys) => {
                event.agent().device() == self.who.block.device()
            }
            _ => false,
        }
    }

    /// Whether a past access belongs to the same launch.
    fn same_launch(&self, event: Event) -> bool {
        let agent = event.agent();
        event != Event::default() && agent.device() == self.who.block.device() && agent.number() >= self.who.launch
    }

    fn race(&self, event: Event, how: &'static str) -> FaultKind {
        let agent = event.agent();
        let own = self.same_launch(event).then(|| (agent.number() - self.who.launch) / self.clocks.len() as u64);
        FaultKind::GlobalRace { how, device: agent.device() as u32, block: own }
    }

    #[inline]
    fn touch(&self, cell: &mut Cell, bytes: u32) -> Result<(), FaultKind> {
        let now = Event::new(self.who.agent(), self.clocks[self.who.index as usize], self.strength, bytes);
        if self.write {
            if !self.may_meet(cell.write, bytes) {
                return Err(self.race(cell.write, "write after write"));
            }
            for read in cell.reads {
                let nc = read.strength() == Strength::NonCoherent && read.touches(bytes);
                if nc && self.same_launch(read) {
                    return Err(FaultKind::NonCoherent);
                }
                if !self.may_meet(read, bytes) {
                    return Err(self.race(read, "write after read"));
                }
            }
            *cell = Cell { write: now, reads: [Event::default(); 2] };
            return Ok(());
        }
        if self.strength == Strength::NonCoherent && self.same_launch(cell.write) && cell.write.touches(bytes) {
            return Err(FaultKind::NonCoherent);
        }
        if !self.may_meet(cell.write, bytes) {
            return Err(self.race(cell.write, "read after write"));
        }
        let last = cell.reads[0];
        if last != now {
            let same = last.agent() == now.agent()
                && last.strength() == self.strength
                && last.0 & 0xf & !u64::from(bytes) == 0;
            if !same {
                cell.reads[1] = last;
            }
            cell.reads[0] = now;
        }
        Ok(())
    }
}
