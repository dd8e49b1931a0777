//! How the lanes of a warp lie in the banks of shared memory.

use crate::regs::lanes;

/// A place that a warp accesses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Bytes from the first executing lane's address.
    pub(crate) delta: u32,
    /// The first lane there.
    pub(crate) lane: u8,
    /// More lanes access it.
    pub(crate) several: bool,
}

/// What the addresses of a warp instruction have in common with those of its last execution: everything but the base.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pattern {
    exec: u32,
    bytes: u32,
    /// Place of the base within its word.
    phase: u32,
    deltas: [u32; 32],
    pub(crate) cost: Wavefronts,
    /// The distinct places.
    pub(crate) places: Vec<Place>,
    /// Some place is accessed by several lanes.
    pub(crate) shared: bool,
}

impl Pattern {
    /// Makes it describe an access; `at` holds the first executing lane's address where a lane does not execute.
    #[inline(always)]
    pub(crate) fn follow(&mut self, at: &[u32; 32], bytes: u32, exec: u32) {
        let base = at[exec.trailing_zeros() as usize % 32];
        let mut differs = (self.exec ^ exec) | (self.bytes ^ bytes) | (self.phase ^ (base % 4));
        for (delta, &at) in self.deltas.iter().zip(at) {
            differs |= delta ^ at.wrapping_sub(base);
        }
        if differs != 0 {
            self.renew(at, bytes, exec, base);
        }
    }

    #[cold]
    fn renew(&mut self, at: &[u32; 32], bytes: u32, exec: u32, base: u32) {
        (self.exec, self.bytes, self.phase) = (exec, bytes, base % 4);
        self.deltas = at.map(|a| a.wrapping_sub(base));
        self.cost = wavefronts(at, bytes, exec);
        self.places.clear();
        self.shared = false;
        for lane in lanes(exec) {
            let delta = self.deltas[lane];
            match self.places.iter_mut().rev().find(|p| p.delta == delta) {
                Some(place) => (place.several, self.shared) = (true, true),
                None => self.places.push(Place { delta, lane: lane as u8, several: false }),
            }
        }
    }
}

/// Passes that an access to shared memory takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Wavefronts {
    pub(crate) total: u32,
    pub(crate) extra: u32,
}

/// Passes over 32 banks of 4 bytes. Accesses of 8 and 16 bytes go by halves and quarters of the warp; in each such
/// phase a bank serves one of its words in a pass, whoever asks for it.
pub(crate) fn wavefronts(at: &[u32; 32], bytes: u32, exec: u32) -> Wavefronts {
    let (words, group) = (bytes.div_ceil(4), 32 / bytes.div_ceil(4).clamp(1, 32));
    let mut cost = Wavefronts::default();
    for phase in 0..32 / group {
        let members = exec & (u32::MAX >> (32 - group)) << (phase * group);
        if members == 0 {
            continue;
        }
        let (mut held, mut depth, mut taken, mut most) = ([0u32; 32], [0u8; 32], 0u32, 1u8);
        let mut spilled: Vec<u32> = Vec::new();
        for lane in lanes(members) {
            for word in at[lane] / 4..at[lane] / 4 + words {
                let bank = (word % 32) as usize;
                if taken >> bank & 1 == 0 {
                    (held[bank], depth[bank]) = (word, 1);
                    taken |= 1 << bank;
                } else if held[bank] != word && !spilled.contains(&word) {
                    spilled.push(word);
                    depth[bank] += 1;
                    most = most.max(depth[bank]);
                }
            }
        }
        cost.total += u32::from(most);
        cost.extra += u32::from(most) - 1;
    }
    cost
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(bytes: u32, exec: u32, at: impl Fn(u32) -> u32) -> (u32, u32) {
        let w = wavefronts(&std::array::from_fn(|lane| at(lane as u32)), bytes, exec);
        (w.total, w.extra)
    }

    #[test]
    fn bank_conflicts() {
        assert_eq!(cost(4, u32::MAX, |l| 4 * l), (1, 0));
        assert_eq!(cost(4, u32::MAX, |_| 64), (1, 0), "a broadcast");
        assert_eq!(cost(4, u32::MAX, |l| 8 * l), (2, 1));
        assert_eq!(cost(4, u32::MAX, |l| 128 * l), (32, 31));
        assert_eq!(cost(4, u32::MAX, |l| 132 * l), (1, 0), "a padded column");
        assert_eq!(cost(4, 0xf, |l| 128 * l), (4, 3));
        assert_eq!(cost(2, u32::MAX, |l| 2 * l), (1, 0), "halves of one word");
        assert_eq!(cost(8, u32::MAX, |l| 8 * l), (2, 0));
        assert_eq!(cost(16, u32::MAX, |l| 16 * l), (4, 0));
        assert_eq!(cost(16, u32::MAX, |l| 64 * l), (16, 12), "rows of 64 bytes: lanes 0, 2, 4, 6 share banks");
        assert_eq!(cost(16, u32::MAX, |l| 64 * l + 16 * (l / 2 % 4)), (4, 0), "the same rows, swizzled");
        assert_eq!(cost(16, 0xff, |l| 128 * l), (8, 7), "ldmatrix.x1 of unswizzled rows");
    }
}
