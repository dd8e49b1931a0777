//! Shared memory of a block with its shadow: who touched what, and when.
//!
//! Time is a clock per warp. A warp's clock moves when it passes a barrier, and the barrier makes every participant
//! know the clocks that the others had (vector clocks). An access is ordered before another one of a different warp
//! if the latter's warp knows its clock. Inside a warp only `bar.warp.sync` and barriers order different lanes (a
//! second, finer clock): shuffles and lockstep do not, as the memory model has it (PTX ISA 8.9).
//!
//! Reads are remembered as the set of warps that read at the latest clock; older reads by others are forgotten, which
//! can hide a race in programs of named barriers, but never invents one.

use crate::error::FaultKind;

/// Several lanes read.
const MANY: u16 = u16::MAX;

#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// Clock of the last write; 0 if there was none.
    write: u32,
    write_step: u32,
    read: u32,
    read_step: u32,
    readers: u32,
    writer: u16,
    reader: u16,
    atomic: bool,
    in_flight: bool,
}

/// The thread that makes an access and what its warp knows.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub(crate) thread: u16,
    pub(crate) step: u32,
    /// The clocks of all warps as known to this warp; its own entry is its own clock.
    pub(crate) clocks: &'a [u32],
}

impl Who<'_> {
    fn warp(self) -> usize {
        usize::from(self.thread / 32)
    }

    fn clock(self) -> u32 {
        self.clocks[self.warp()]
    }

    /// Whether a past access of `thread` is ordered before an access now.
    fn sees(self, thread: u16, clock: u32, step: u32) -> bool {
        let warp = usize::from(thread / 32);
        thread == self.thread
            || if warp == self.warp() { (clock, step) < (self.clock(), self.step) } else { clock <= self.clocks[warp] }
    }
}

/// Shared memory.
#[derive(Debug, Clone)]
pub(crate) struct Shared {
    bytes: Vec<u8>,
    cells: Vec<Cell>,
    /// log2 of the bytes of a cell.
    granule: u32,
}

impl Shared {
    pub(crate) fn new(bytes: u64, granule: u32) -> Shared {
        let cells = bytes.div_ceil(u64::from(granule));
        let granule = granule.trailing_zeros();
        Shared { bytes: vec![0; bytes as usize], cells: vec![Cell::default(); cells as usize], granule }
    }

    #[inline]
    fn range(&self, address: u64, bytes: u32) -> Result<std::ops::Range<usize>, FaultKind> {
        let end = address.checked_add(u64::from(bytes)).filter(|&end| end <= self.bytes.len() as u64);
        if end.is_none() {
            return Err(FaultKind::OutOfBounds("shared"));
        }
        Ok(address as usize >> self.granule..((address as usize + bytes as usize - 1) >> self.granule) + 1)
    }

    #[inline]
    fn peek(&self, address: u64, bytes: u32) -> u64 {
        let at = &self.bytes[address as usize..];
        match bytes {
            1 => u64::from(at[0]),
            2 => u64::from(u16::from_le_bytes([at[0], at[1]])),
            4 => u64::from(u32::from_le_bytes([at[0], at[1], at[2], at[3]])),
            _ => u64::from_le_bytes([at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7]]),
        }
    }

    #[inline]
    fn poke(&mut self, address: u64, bytes: u32, v: u64) {
        let at = address as usize;
        self.bytes[at..at + bytes as usize].copy_from_slice(&v.to_le_bytes()[..bytes as usize]);
    }

    /// Loads up to 8 bytes.
    #[inline]
    pub(crate) fn load(&mut self, who: Who<'_>, address: u64, bytes: u32, atomic: bool) -> Result<u64, FaultKind> {
        let range = self.range(address, bytes)?;
        for cell in &mut self.cells[range] {
            cell.note_read(who, atomic)?;
        }
        Ok(self.peek(address, bytes))
    }

    /// Loads a word.
    #[inline(always)]
    pub(crate) fn load_word(&mut self, who: Who<'_>, address: u64) -> Result<u32, FaultKind> {
        let at = address as usize;
        if address & 3 != 0 {
            return Err(FaultKind::Misaligned(4));
        }
        if self.granule == 2
            && let (Some(cell), Some(bytes)) = (self.cells.get_mut(at >> 2), self.bytes.get(at..at + 4))
        {
            cell.note_read(who, false)?;
            return Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        self.load(who, address, 4, false).map(|v| v as u32)
    }

    /// Stores up to 8 bytes. Two unordered stores of the same value are no race.
    #[inline]
    pub(crate) fn store(
        &mut self,
        who: Who<'_>,
        address: u64,
        bytes: u32,
        v: u64,
        atomic: bool,
    ) -> Result<(), FaultKind> {
        let range = self.range(address, bytes)?;
        let same = self.peek(address, bytes) == v;
        for cell in &mut self.cells[range] {
            cell.note_write(who, atomic, same)?;
        }
        self.poke(address, bytes, v);
        Ok(())
    }

    /// Reads, changes and writes in one step; gives the old value.
    pub(crate) fn update(
        &mut self,
        who: Who<'_>,
        address: u64,
        bytes: u32,
        f: impl Fn(u64) -> u64,
    ) -> Result<u64, FaultKind> {
        let range = self.range(address, bytes)?;
        for cell in &mut self.cells[range] {
            if cell.write == 0 {
                return Err(FaultKind::Uninitialised("shared"));
            }
            cell.note_write(who, true, false)?;
        }
        let old = self.peek(address, bytes);
        self.poke(address, bytes, f(old));
        Ok(old)
    }

    /// Marks the destination of an asynchronous copy; until it lands nobody may touch it.
    pub(crate) fn issue(&mut self, who: Who<'_>, address: u64, bytes: u32) -> Result<(), FaultKind> {
        let range = self.range(address, bytes)?;
        for cell in &mut self.cells[range] {
            cell.note_write(who, false, false)?;
            cell.in_flight = true;
        }
        Ok(())
    }

    /// Fills part of a copy's destination.
    pub(crate) fn deliver(&mut self, address: u64, data: &[u8]) {
        self.bytes[address as usize..address as usize + data.len()].copy_from_slice(data);
    }

    /// The issuer has waited: the bytes are as if it had written them now.
    pub(crate) fn land(&mut self, who: Who<'_>, address: u64, bytes: u32) {
        let cells = address as usize >> self.granule..((address as usize + bytes as usize - 1) >> self.granule) + 1;
        for cell in &mut self.cells[cells] {
            *cell = Cell { write: who.clock(), write_step: who.step, writer: who.thread, ..Cell::default() };
        }
    }
}

impl Cell {
    #[inline(always)]
    fn note_read(&mut self, who: Who<'_>, atomic: bool) -> Result<(), FaultKind> {
        if self.in_flight {
            return Err(FaultKind::InFlight);
        }
        if self.write == 0 {
            return Err(FaultKind::Uninitialised("shared"));
        }
        let ordered = atomic && self.atomic || who.sees(self.writer, self.write, self.write_step);
        if !ordered {
            return Err(FaultKind::Race { other: u32::from(self.writer), how: "read after write" });
        }
        if atomic {
            return Ok(());
        }
        let (clock, bit) = (who.clock(), 1 << who.warp());
        if self.readers != 0 && self.read == clock {
            if self.reader != who.thread {
                self.reader = MANY;
            }
            self.readers |= bit;
            self.read_step = who.step;
        } else if self.readers == 0 || clock > self.read {
            (self.read, self.read_step, self.readers, self.reader) = (clock, who.step, bit, who.thread);
        }
        Ok(())
    }

    #[inline]
    fn note_write(&mut self, who: Who<'_>, atomic: bool, same: bool) -> Result<(), FaultKind> {
        if self.in_flight {
            return Err(FaultKind::InFlight);
        }
        let ordered = atomic && self.atomic || who.sees(self.writer, self.write, self.write_step);
        if self.write != 0 && !same && !ordered {
            return Err(FaultKind::Race { other: u32::from(self.writer), how: "write after write" });
        }
        if self.readers != 0 && self.reader != who.thread {
            let how = "write after read";
            let own = 1u32 << who.warp();
            let mut others = self.readers & !own;
            if self.readers & own != 0 && (self.read, self.read_step) >= (who.clock(), who.step) {
                let other = if self.reader == MANY { who.warp() as u32 * 32 } else { u32::from(self.reader) };
                return Err(FaultKind::Race { other, how });
            }
            while others != 0 {
                let warp = others.trailing_zeros();
                others &= others - 1;
                if self.read > who.clocks[warp as usize] {
                    let other = if self.reader == MANY { warp * 32 } else { u32::from(self.reader) };
                    return Err(FaultKind::Race { other, how });
                }
            }
        }
        *self = Cell { write: who.clock(), write_step: who.step, writer: who.thread, atomic, ..Cell::default() };
        Ok(())
    }
}
