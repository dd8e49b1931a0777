//! Random numbers as a function of what they are for.
//!
//! Philox4x32-10 (Salmon et al., SC 2011): the key comes from the seed and the variable's path, the counter is the element's
//! index in the whole variable. So a part of a variable holds the same numbers as the same part of the whole.

/// The generator for one variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Philox {
    key: [u32; 2],
}

impl Philox {
    /// The generator for what `path` names.
    pub(crate) fn new(seed: u64, path: &str) -> Philox {
        // FNV-1a, then a finaliser that spreads every bit of seed and hash over the key.
        let hash =
            path.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        let mut z = hash ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        Philox { key: [z as u32, (z >> 32) as u32] }
    }

    /// The generator for a part of what this one is for; part 0 has the same numbers.
    pub(crate) fn part(self, k: u32) -> Philox {
        let [a, b] = self.key;
        Philox { key: [a, b.wrapping_add(k.wrapping_mul(0x9e37_79b9))] }
    }

    /// Four words for a counter.
    pub(crate) fn words(self, counter: [u32; 4]) -> [u32; 4] {
        let mut x = counter;
        let mut k = self.key;
        for _ in 0..10 {
            let a = u64::from(x[0]) * 0xd251_1f53;
            let b = u64::from(x[2]) * 0xcd9e_8d57;
            x = [(b >> 32) as u32 ^ x[1] ^ k[0], b as u32, (a >> 32) as u32 ^ x[3] ^ k[1], a as u32];
            k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
        }
        x
    }

    fn pair(self, index: u64, attempt: u32) -> (f64, f64) {
        let [a, b, c, d] = self.words([index as u32, (index >> 32) as u32, attempt, 0]);
        let unit = |hi: u32, lo: u32| ((u64::from(hi) << 21 | u64::from(lo) >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (unit(a, b), unit(c, d))
    }

    /// Uniform in (0, 1).
    pub(crate) fn uniform(self, index: u64) -> f64 {
        self.pair(index, 0).0
    }

    /// Standard normal.
    pub(crate) fn normal(self, index: u64) -> f64 {
        self.nth_normal(index, 0)
    }

    /// Standard normal, drawn again while it is further than two deviations from 0.
    pub(crate) fn truncated_normal(self, index: u64) -> f64 {
        let draws = (0..64).map(|attempt| self.nth_normal(index, attempt));
        // Missing 64 times has a probability of 10⁻⁸⁶.
        draws.into_iter().find(|z| z.abs() <= 2.0).unwrap_or(0.0)
    }

    fn nth_normal(self, index: u64, attempt: u32) -> f64 {
        let (u, v) = self.pair(index, attempt);
        libm::sqrt(-2.0 * libm::log(u)) * libm::cos(std::f64::consts::TAU * v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known-answer vectors of Random123 (philox4x32, 10 rounds).
    #[test]
    fn words_are_philox() {
        let zero = Philox { key: [0, 0] };
        assert_eq!(zero.words([0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox { key: [u32::MAX; 2] };
        assert_eq!(ones.words([u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = Philox { key: [0xa409_3822, 0x299f_31d0] };
        assert_eq!(
            pi.words([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
