//! Counts of what a launch did: instructions, bytes, sectors, bank conflicts.

use std::collections::HashMap;
use std::ops::AddAssign;

use crate::banks::Pattern;
use crate::op::{Inst, Op, Space};
use crate::view::Layout;

/// What a launch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Instructions executed, counted per warp.
    pub warp_instructions: u64,
    /// Instructions executed, counted per thread.
    pub thread_instructions: u64,
    /// The warp instructions by class.
    pub classes: Classes,
    /// Bytes requested from global memory by loads (asynchronous copies included).
    pub global_read: u64,
    /// Bytes written to global memory.
    pub global_written: u64,
    /// Bytes of global memory read at least once, in whole 4-byte words: what a perfect cache would fetch.
    pub distinct_read: u64,
    /// Bytes of global memory written at least once, in whole 4-byte words.
    pub distinct_written: u64,
    /// 32-byte sectors that global loads touch, each counted once a warp instruction.
    pub read_sectors: u64,
    /// 32-byte sectors that global stores touch, each counted once a warp instruction.
    pub written_sectors: u64,
    /// Global reads of threads by width: of 1, 2, 4, 8, 16, 32 bytes.
    pub reads_by_width: [u64; 6],
    /// Global writes of threads by width: of 1, 2, 4, 8, 16, 32 bytes.
    pub writes_by_width: [u64; 6],
    /// Passes over the 32 banks that loads, stores, `ldmatrix` and asynchronous copies take in shared memory: at least
    /// one for every 128 bytes that a warp instruction asks for.
    pub shared_wavefronts: u64,
    /// Those of the passes that only bank conflicts cause.
    pub shared_conflicts: u64,
    /// `mma.sync` instructions.
    pub mma: u64,
    /// Floating-point operations of `mma.sync`, a multiply-add counted as two.
    pub mma_flops: u64,
    /// Barriers passed, counted per block.
    pub barriers: u64,
}

/// Warp instructions by what they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Classes {
    /// Arithmetic, logic, conversion, comparison, moves.
    pub alu: u64,
    /// `ld` and `st` of global memory and generic addresses.
    pub global: u64,
    /// `ld` and `st` of shared memory.
    pub shared: u64,
    /// `ld` and `st` of parameters, constants and local memory.
    pub other_memory: u64,
    /// `atom` and `red`.
    pub atomic: u64,
    /// `cp.async` and its commits and waits.
    pub copy: u64,
    /// `ldmatrix`.
    pub ldmatrix: u64,
    /// `mma.sync`.
    pub mma: u64,
    /// Shuffles, votes and other exchanges within a warp.
    pub warp: u64,
    /// Barriers and fences.
    pub barrier: u64,
    /// Branches and ends.
    pub control: u64,
}

impl Classes {
    fn of(&mut self, op: &Op) -> &mut u64 {
        match op {
            Op::Fast32 { .. } | Op::Fast64 { .. } | Op::Wide { .. } | Op::Scalar { .. } | Op::Mov { .. } => {
                &mut self.alu
            }
            Op::Pack { .. } | Op::Unpack { .. } | Op::Setp { .. } | Op::Set { .. } | Op::Select { .. } => &mut self.alu,
            Op::Predicate { .. } | Op::Clock { .. } => &mut self.alu,
            Op::Extend { .. } | Op::Truncate { .. } | Op::Shift64 { .. } => &mut self.alu,
            Op::Branch { .. } | Op::Exit | Op::Trap => &mut self.control,
            Op::Load(a) | Op::Store(a) => match a.space {
                Space::Global | Space::Generic => &mut self.global,
                Space::Shared => &mut self.shared,
                Space::Local | Space::Const | Space::Param => &mut self.other_memory,
            },
            Op::Atom(_) => &mut self.atomic,
            Op::CopyAsync { .. } | Op::CopyCommit | Op::CopyWait { .. } => &mut self.copy,
            Op::LoadMatrix { .. } => &mut self.ldmatrix,
            Op::Mma { .. } => &mut self.mma,
            Op::Shfl { .. } | Op::Vote { .. } | Op::Redux { .. } | Op::Match { .. } => &mut self.warp,
            Op::ActiveMask { .. } | Op::Elect { .. } => &mut self.warp,
            Op::Barrier { .. } | Op::WarpSync { .. } | Op::Fence { .. } => &mut self.barrier,
        }
    }
}

impl AddAssign for Classes {
    fn add_assign(&mut self, o: Classes) {
        self.alu += o.alu;
        self.global += o.global;
        self.shared += o.shared;
        self.other_memory += o.other_memory;
        self.atomic += o.atomic;
        self.copy += o.copy;
        self.ldmatrix += o.ldmatrix;
        self.mma += o.mma;
        self.warp += o.warp;
        self.barrier += o.barrier;
        self.control += o.control;
    }
}

/// Sums of several launches. Distinct bytes add up too: each launch fetches its own.
impl AddAssign for Stats {
    fn add_assign(&mut self, o: Stats) {
        self.warp_instructions += o.warp_instructions;
        self.thread_instructions += o.thread_instructions;
        self.classes += o.classes;
        self.global_read += o.global_read;
        self.global_written += o.global_written;
        self.distinct_read += o.distinct_read;
        self.distinct_written += o.distinct_written;
        self.read_sectors += o.read_sectors;
        self.written_sectors += o.written_sectors;
        self.reads_by_width.iter_mut().zip(o.reads_by_width).for_each(|(a, b)| *a += b);
        self.writes_by_width.iter_mut().zip(o.writes_by_width).for_each(|(a, b)| *a += b);
        self.shared_wavefronts += o.shared_wavefronts;
        self.shared_conflicts += o.shared_conflicts;
        self.mma += o.mma;
        self.mma_flops += o.mma_flops;
        self.barriers += o.barriers;
    }
}

/// Patterns remembered for an instruction, each for its share of a block's warps.
const WAYS: u32 = 4;

/// Counts in the making, of one host thread.
pub(crate) struct Tally {
    pub(crate) stats: Stats,
    /// Executions of every instruction of the program.
    pub(crate) executed: Vec<u64>,
    /// How the lanes of each instruction lay in shared memory the last time.
    patterns: Vec<Pattern>,
    /// Where the patterns of an instruction begin.
    places: Vec<u32>,
    read: Footprint,
    written: Footprint,
}

impl Tally {
    pub(crate) fn new(code: &[Inst]) -> Tally {
        let mut next = 0;
        let places = code.iter().map(|inst| {
            let own = next;
            next += match &inst.op {
                Op::Load(a) | Op::Store(a) if matches!(a.space, Space::Shared | Space::Generic) => WAYS,
                Op::LoadMatrix { .. } | Op::CopyAsync { .. } => WAYS,
                _ => 0,
            };
            own
        });
        let places = places.collect();
        Tally {
            stats: Stats::default(),
            executed: vec![0; code.len()],
            patterns: vec![Pattern::default(); next as usize],
            places,
            read: Footprint::default(),
            written: Footprint::default(),
        }
    }

    /// Counts a global read of `bytes` bytes by every lane of `exec`.
    #[inline(always)]
    pub(crate) fn read(&mut self, at: &[u64; 32], bytes: u32, exec: u32, shape: Layout) {
        let n = u64::from(exec.count_ones());
        self.stats.global_read += n * u64::from(bytes);
        self.stats.reads_by_width[bytes.trailing_zeros().min(5) as usize] += n;
        self.stats.read_sectors += self.read.touch(at, bytes, exec, shape);
    }

    /// Counts a global write of `bytes` bytes by every lane of `exec`.
    #[inline(always)]
    pub(crate) fn write(&mut self, at: &[u64; 32], bytes: u32, exec: u32, shape: Layout) {
        let n = u64::from(exec.count_ones());
        self.stats.global_written += n * u64::from(bytes);
        self.stats.writes_by_width[bytes.trailing_zeros().min(5) as usize] += n;
        self.stats.written_sectors += self.written.touch(at, bytes, exec, shape);
    }

    /// Counts the read of a lane that gets fewer bytes than its instruction copies.
    pub(crate) fn read_part(&mut self, at: u64, bytes: u32) {
        self.stats.global_read += u64::from(bytes);
        self.stats.reads_by_width[bytes.ilog2() as usize] += 1;
        self.stats.read_sectors += 1;
        self.read.mark(at, u64::from(bytes));
    }

    /// Counts an access to shared memory of the instruction at `pc` and gives its pattern.
    #[inline(always)]
    pub(crate) fn follow(&mut self, pc: u32, warp: u32, at: &[u32; 32], bytes: u32, exec: u32) -> &Pattern {
        let pattern = &mut self.patterns[(self.places[pc as usize] + warp % WAYS) as usize];
        pattern.follow(at, bytes, exec);
        self.stats.shared_wavefronts += u64::from(pattern.cost.total);
        self.stats.shared_conflicts += u64::from(pattern.cost.extra);
        pattern
    }

    /// Adds what another host thread counted.
    pub(crate) fn merge(&mut self, other: Tally) {
        self.stats += other.stats;
        self.executed.iter_mut().zip(other.executed).for_each(|(a, b)| *a += b);
        self.read.merge(other.read);
        self.written.merge(other.written);
    }

    pub(crate) fn finish<'a>(self, ops: impl Iterator<Item = &'a Op>) -> Stats {
        let mut stats = self.stats;
        for (op, &n) in ops.zip(&self.executed) {
            stats.warp_instructions += n;
            *stats.classes.of(op) += n;
        }
        stats.distinct_read = self.read.bytes();
        stats.distinct_written = self.written.bytes();
        stats
    }
}

/// Bytes of a page of the footprint; its bits fill `WORDS` words, one bit for 4 bytes.
const PAGE: u64 = 1 << 16;
const WORDS: usize = (PAGE / 128) as usize;

/// Which words of global memory a launch has touched.
#[derive(Default)]
struct Footprint {
    index: HashMap<u64, usize>,
    pages: Vec<[u32; WORDS]>,
    /// Pages met last (number plus one, place), by the low bits of their number.
    recent: [(u64, usize); 4],
}

impl Footprint {
    #[inline]
    fn page(&mut self, number: u64) -> &mut [u32; WORDS] {
        let slot = &mut self.recent[number as usize % 4];
        if slot.0 != number + 1 {
            let pages = &mut self.pages;
            let place = *self.index.entry(number).or_insert_with(|| {
                pages.push([0; WORDS]);
                pages.len() - 1
            });
            *slot = (number + 1, place);
        }
        &mut self.pages[slot.1]
    }

    /// Marks `bytes` bytes from `at`.
    #[inline]
    fn mark(&mut self, at: u64, bytes: u64) {
        let (mut word, end) = (at / 4, (at + bytes).div_ceil(4));
        while word < end {
            // All the bits that fall into one word of the page.
            let n = (32 - word % 32).min(end - word);
            let bits = (u32::MAX >> (32 - n)) << (word % 32);
            self.page(word * 4 / PAGE)[(word * 4 % PAGE / 128) as usize] |= bits;
            word += n;
        }
    }

    /// Marks an access and gives the number of its sectors.
    #[inline(always)]
    fn touch(&mut self, at: &[u64; 32], bytes: u32, exec: u32, shape: Layout) -> u64 {
        let wide = u64::from(bytes);
        let first = at[exec.trailing_zeros() as usize % 32];
        let whole = match shape {
            Layout::Consecutive => 32 * wide,
            Layout::Same => wide,
            Layout::Scattered => return self.touch_each(at, wide, exec),
        };
        self.mark(first, whole);
        (first + whole - 1) / 32 - first / 32 + 1
    }

    fn touch_each(&mut self, at: &[u64; 32], bytes: u64, exec: u32) -> u64 {
        let (mut seen, mut n, mut last, mut highest) = ([0u64; 32], 0, u64::MAX, 0);
        for (lane, &a) in at.iter().enumerate() {
            if exec >> lane & 1 == 0 || a == last {
                continue;
            }
            last = a;
            self.mark(a, bytes);
            let sector = a / 32;
            if n == 0 || sector > highest {
                highest = sector;
            } else if seen[..n].contains(&sector) {
                continue;
            }
            (seen[n], n) = (sector, n + 1);
        }
        n as u64
    }

    fn merge(&mut self, other: Footprint) {
        for (number, place) in other.index {
            let bits = &other.pages[place];
            self.page(number).iter_mut().zip(bits.iter()).for_each(|(a, b)| *a |= b);
        }
    }

    fn bytes(&self) -> u64 {
        self.pages.iter().flat_map(|p| p.iter()).map(|w| 4 * u64::from(w.count_ones())).sum()
    }
}

/// Whether the lanes lie side by side.
#[inline(always)]
pub(crate) fn consecutive(at: &[u64; 32], bytes: u64) -> bool {
    let mut off = 0;
    for (lane, &a) in at.iter().enumerate() {
        off |= a.wrapping_sub(at[0]).wrapping_sub(lane as u64 * bytes);
    }
    off == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::layout;

    #[test]
    fn sectors_and_distinct_words() {
        let mut f = Footprint::default();
        let at = |f: &dyn Fn(u64) -> u64| -> [u64; 32] { std::array::from_fn(|lane| f(lane as u64)) };
        assert_eq!(f.touch(&at(&|l| 4096 + 4 * l), 4, u32::MAX, layout(&at(&|l| 4096 + 4 * l), 4, u32::MAX)), 4);
        assert_eq!(f.bytes(), 128);
        assert_eq!(
            f.touch(&at(&|l| 4096 + 4 * (31 - l)), 4, u32::MAX, layout(&at(&|l| 4096 + 4 * (31 - l)), 4, u32::MAX)),
            4,
            "backwards"
        );
        assert_eq!(
            f.touch(&at(&|l| 4100 + 4 * l), 4, u32::MAX, layout(&at(&|l| 4100 + 4 * l), 4, u32::MAX)),
            5,
            "misaligned by a word"
        );
        assert_eq!(f.bytes(), 132);
        assert_eq!(
            f.touch(&at(&|l| (1 << 20) + 64 * l), 16, u32::MAX, layout(&at(&|l| (1 << 20) + 64 * l), 16, u32::MAX)),
            32
        );
        assert_eq!(f.bytes(), 132 + 512);
        assert_eq!(
            f.touch(&at(&|l| PAGE - 64 + 4 * l), 4, u32::MAX, layout(&at(&|l| PAGE - 64 + 4 * l), 4, u32::MAX)),
            4,
            "over a page's end"
        );
        assert_eq!(f.bytes(), 132 + 512 + 128);
        assert_eq!(f.touch(&at(&|_| 8), 2, 0x10, layout(&at(&|_| 8), 2, 0x10)), 1);
        assert_eq!(f.bytes(), 132 + 512 + 128 + 4);
    }
}
