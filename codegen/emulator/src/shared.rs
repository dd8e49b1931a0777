//! Shared memory of a block with its shadow: who touched what, and when.
//!
//! Time is a clock per warp. A warp's clock moves when it passes a barrier, and the barrier makes every participant
//! know the clocks that the others had (vector clocks). An access is ordered before another one of a different warp
//! if the latter's warp knows its clock. Inside a warp only `bar.warp.sync` and barriers order different lanes (a
//! second, finer clock): shuffles and lockstep do not, as the memory model has it (PTX ISA 8.9).
//!
//! Reads are remembered as the set of warps that read at the latest clock; older reads by others are forgotten, which
//! can hide a race in programs of named barriers, but never invents one.

use crate::banks::Pattern;
use crate::error::FaultKind;
use crate::op::Order;
use crate::regs::lanes;

/// Several lanes read.
const MANY: u16 = 1 << 13;
/// The clock of a write that an asynchronous copy has yet to make.
const IN_FLIGHT: u32 = u32::MAX;

/// Marks a stamp as that of an atomic; threads have smaller numbers.
const ATOMIC: u64 = 1 << 14;

/// A past access: clock, finer clock, and the thread with a mark for atomics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Stamp(u64);

impl Stamp {
    #[inline(always)]
    fn new(clock: u32, step: u16, thread: u16) -> Stamp {
        Stamp(u64::from(clock) << 32 | u64::from(step) << 16 | u64::from(thread))
    }

    #[inline(always)]
    fn clock(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn step(self) -> u16 {
        (self.0 >> 16) as u16
    }

    fn thread(self) -> u16 {
        (self.0 & !ATOMIC) as u16
    }

    /// The same access, made by an atomic unless it is weak.
    fn in_order(self, order: Order) -> Stamp {
        Stamp(self.0 | if order == Order::Weak { 0 } else { ATOMIC })
    }

    fn is_atomic(self) -> bool {
        self.0 & ATOMIC != 0
    }
}

/// Past accesses of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Cell {
    /// The last write; clock 0 if there was none.
    written: Stamp,
    /// The last read since then; clock 0 if there was none.
    read: Stamp,
}

/// A warp that makes an access, and what it knows.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    /// Linear index of the warp's first thread.
    pub(crate) first: u16,
    pub(crate) step: u16,
    /// The clocks of all warps as known to this warp; its own entry is its own clock.
    pub(crate) clocks: &'a [u32],
    /// Accesses up to this clock are known, whoever made them.
    pub(crate) floor: u32,
}

impl Who<'_> {
    #[inline(always)]
    fn warp(self) -> usize {
        usize::from(self.first / 32)
    }

    #[inline(always)]
    fn clock(self) -> u32 {
        self.clocks[self.warp()]
    }

    #[inline(always)]
    fn thread(self, lane: u8) -> u16 {
        self.first + u16::from(lane)
    }

    /// Whether a past access is ordered before an access of `thread` now.
    fn sees(self, thread: u16, past: Stamp) -> bool {
        let warp = usize::from(past.thread() / 32);
        past.thread() == thread
            || match warp == self.warp() {
                true => (past.clock(), past.step()) < (self.clock(), self.step),
                false => past.clock() <= self.clocks[warp],
            }
    }
}

/// Shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    pub(crate) words: Vec<u32>,
    bytes: u32,
    /// log2 of the bytes of a cell.
    granule: u32,
    cells: Vec<Cell>,
    /// The warps that read a cell at the clock of its last read, if it has one.
    readers: Vec<u32>,
}

impl Shared {
    pub(crate) fn new(bytes: u64, granule: u32) -> Shared {
        let cells = bytes.div_ceil(u64::from(granule)) as usize;
        Shared {
            words: vec![0; bytes.div_ceil(4) as usize],
            bytes: bytes as u32,
            granule: granule.trailing_zeros(),
            cells: vec![Cell::default(); cells],
            readers: vec![0; cells],
        }
    }

    /// Forgets all values and accesses.
    pub(crate) fn reset(&mut self) {
        self.cells.fill(Cell::default());
    }

    /// Checks an access of `bytes` bytes for every lane and narrows the addresses; lanes that do not execute get that
    /// of the first one that does. Gives the lane of a wrong address.
    #[inline(always)]
    pub(crate) fn narrow(&self, at: &[u64; 32], bytes: u32, exec: u32) -> Result<[u32; 32], usize> {
        let first = at[exec.trailing_zeros() as usize % 32];
        let (mut out, mut high) = ([0u32; 32], 0);
        for lane in 0..32 {
            let a = if exec >> lane & 1 == 1 { at[lane] } else { first };
            high = high.max(a);
            out[lane] = a as u32;
        }
        if high <= u64::from(self.bytes) && high + u64::from(bytes) <= u64::from(self.bytes) {
            return Ok(out);
        }
        let limit = u64::from(self.bytes);
        let wrong =
            |lane: &usize| exec >> lane & 1 == 1 && at[*lane].checked_add(bytes.into()).is_none_or(|e| e > limit);
        Err((0..32).find(wrong).unwrap_or(0))
    }

    #[inline(always)]
    fn range(&self, at: u32, bytes: u32) -> std::ops::Range<usize> {
        (at >> self.granule) as usize..((at + bytes - 1) >> self.granule) as usize + 1
    }

    #[inline]
    pub(crate) fn peek(&self, at: u32, bytes: u32) -> u64 {
        let low = u64::from(self.words[at as usize / 4]);
        match bytes {
            8 => low | u64::from(self.words[at as usize / 4 + 1]) << 32,
            _ => crate::scalar::keep(low >> (8 * (at % 4)), 8 * bytes),
        }
    }

    #[inline]
    pub(crate) fn poke(&mut self, at: u32, bytes: u32, v: u64) {
        let word = at as usize / 4;
        match bytes {
            8 => (self.words[word], self.words[word + 1]) = (v as u32, (v >> 32) as u32),
            4 => self.words[word] = v as u32,
            _ => {
                let shift = 8 * (at % 4);
                let field = ((1u32 << (8 * bytes)) - 1) << shift;
                self.words[word] = self.words[word] & !field | (v as u32) << shift & field;
            }
        }
    }

    /// Checks and notes the reads of a warp; gives the lane of a fault.
    #[inline(always)]
    pub(crate) fn read_all(
        &mut self,
        who: Who<'_>,
        base: u32,
        bytes: u32,
        pattern: &Pattern,
    ) -> Result<(), (FaultKind, usize)> {
        for place in &pattern.places {
            let thread = if place.several { MANY } else { who.thread(place.lane) };
            for cell in self.range(base.wrapping_add(place.delta), bytes) {
                if self.cells[cell].written.clock().wrapping_sub(1) >= who.floor {
                    self.may_read(who, cell, who.thread(place.lane), Order::Weak)
                        .map_err(|k| (k, usize::from(place.lane)))?;
                }
                self.note_read(who, cell, thread);
            }
        }
        Ok(())
    }

    /// Whether all the writes of a warp are in order without a closer look; notes them if so.
    #[inline(always)]
    pub(crate) fn write_all(&mut self, who: Who<'_>, base: u32, bytes: u32, pattern: &Pattern) -> bool {
        if pattern.shared || !self.all_known(who, base, bytes, pattern) {
            return false;
        }
        for place in &pattern.places {
            let stamp = Stamp::new(who.clock(), who.step, who.thread(place.lane));
            for cell in self.range(base.wrapping_add(place.delta), bytes) {
                self.overwrite(cell, stamp);
            }
        }
        true
    }

    #[inline(always)]
    fn all_known(&self, who: Who<'_>, base: u32, bytes: u32, pattern: &Pattern) -> bool {
        for place in &pattern.places {
            for cell in &self.cells[self.range(base.wrapping_add(place.delta), bytes)] {
                if cell.written.clock() > who.floor || cell.read.clock() > who.floor {
                    return false;
                }
            }
        }
        true
    }

    #[inline(always)]
    fn overwrite(&mut self, cell: usize, stamp: Stamp) {
        self.cells[cell] = Cell { written: stamp, read: Stamp::default() };
    }

    /// Loads up to 8 bytes of one lane; the range has been checked.
    pub(crate) fn load(&mut self, who: Who<'_>, lane: u8, at: u32, bytes: u32, order: Order) -> Result<u64, FaultKind> {
        let thread = who.thread(lane);
        for cell in self.range(at, bytes) {
            self.may_read(who, cell, thread, order)?;
            if order == Order::Weak {
                self.note_read(who, cell, thread);
            }
        }
        Ok(self.peek(at, bytes))
    }

    /// Stores up to 8 bytes of one lane; the range has been checked. Two unordered stores of the same value are no race.
    pub(crate) fn store(
        &mut self,
        who: Who<'_>,
        lane: u8,
        at: u32,
        bytes: u32,
        v: u64,
        order: Order,
    ) -> Result<(), FaultKind> {
        let same = self.peek(at, bytes) == v;
        for cell in self.range(at, bytes) {
            self.may_write(who, cell, who.thread(lane), order, same)?;
            self.overwrite(cell, Stamp::new(who.clock(), who.step, who.thread(lane)).in_order(order));
        }
        self.poke(at, bytes, v);
        Ok(())
    }

    /// Reads, changes and writes in one step; gives the old value.
    pub(crate) fn update(
        &mut self,
        who: Who<'_>,
        lane: u8,
        at: u32,
        bytes: u32,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        for cell in self.range(at, bytes) {
            if self.cells[cell].written.clock() == 0 {
                return Err(FaultKind::Uninitialised("shared"));
            }
            self.may_write(who, cell, who.thread(lane), Order::Relaxed, false)?;
            self.overwrite(cell, Stamp::new(who.clock(), who.step, who.thread(lane)).in_order(Order::Relaxed));
        }
        let old = self.peek(at, bytes);
        self.poke(at, bytes, f(old));
        Ok(old)
    }

    /// Marks the destinations of asynchronous copies; until they land nobody may touch them. Gives the lane of a fault.
    #[inline(always)]
    pub(crate) fn issue(
        &mut self,
        who: Who<'_>,
        at: &[u32; 32],
        bytes: u32,
        exec: u32,
    ) -> Result<(), (FaultKind, usize)> {
        for lane in lanes(exec) {
            let stamp = Stamp::new(IN_FLIGHT, 0, who.thread(lane as u8));
            for cell in self.range(at[lane], bytes) {
                if self.cells[cell].written.clock() > who.floor || self.cells[cell].read.clock() > who.floor {
                    self.may_write(who, cell, who.thread(lane as u8), Order::Weak, false).map_err(|k| (k, lane))?;
                }
                self.overwrite(cell, stamp);
            }
        }
        Ok(())
    }

    /// The issuer has waited: the bytes are as if it had written them now.
    #[inline(always)]
    pub(crate) fn land(&mut self, who: Who<'_>, at: &[u32; 32], bytes: u32, exec: u32) {
        for lane in lanes(exec) {
            let stamp = Stamp::new(who.clock(), who.step, who.thread(lane as u8));
            self.range(at[lane], bytes).for_each(|cell| self.overwrite(cell, stamp));
        }
    }

    #[cold]
    fn may_read(&self, who: Who<'_>, cell: usize, thread: u16, order: Order) -> Result<(), FaultKind> {
        let past = self.cells[cell].written;
        match past.clock() {
            IN_FLIGHT => Err(FaultKind::InFlight),
            0 => Err(FaultKind::Uninitialised("shared")),
            _ if order != Order::Weak && past.is_atomic() || who.sees(thread, past) => Ok(()),
            _ => Err(FaultKind::Race { other: u32::from(past.thread()), how: "read after write" }),
        }
    }

    #[inline(always)]
    fn note_read(&mut self, who: Who<'_>, cell: usize, thread: u16) {
        let (past, clock, bit) = (self.cells[cell].read, who.clock(), 1 << who.warp());
        if past.clock() == clock {
            let reader = if past.thread() == thread { thread } else { MANY };
            self.readers[cell] |= bit;
            self.cells[cell].read = Stamp::new(clock, who.step, reader);
        } else if clock > past.clock() {
            self.readers[cell] = bit;
            self.cells[cell].read = Stamp::new(clock, who.step, thread);
        }
    }

    #[cold]
    fn may_write(&self, who: Who<'_>, cell: usize, thread: u16, order: Order, same: bool) -> Result<(), FaultKind> {
        let past = self.cells[cell].written;
        if past.clock() == IN_FLIGHT {
            return Err(FaultKind::InFlight);
        }
        let ordered = order != Order::Weak && past.is_atomic() || who.sees(thread, past);
        if past.clock() != 0 && !same && !ordered {
            return Err(FaultKind::Race { other: u32::from(past.thread()), how: "write after write" });
        }
        let (read, readers) = (self.cells[cell].read, self.readers[cell]);
        if read.clock() == 0 || read.thread() == thread {
            return Ok(());
        }
        let race = |warp: u32| {
            let other = if read.thread() == MANY { warp * 32 } else { u32::from(read.thread()) };
            Err(FaultKind::Race { other, how: "write after read" })
        };
        let own = 1u32 << who.warp();
        if readers & own != 0 && (read.clock(), read.step()) >= (who.clock(), who.step) {
            return race(who.warp() as u32);
        }
        let mut others = readers & !own;
        while others != 0 {
            let warp = others.trailing_zeros();
            others &= others - 1;
            if read.clock() > who.clocks[warp as usize] {
                return race(warp);
            }
        }
        Ok(())
    }
}
