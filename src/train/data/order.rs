//! The order of rows in an epoch.
//!
//! Shuffled rows are a Fisher–Yates permutation: for i from n − 1 down to 1, position i is swapped with a position drawn
//! from 0..=i. The draws are 64-bit words of a counter-based generator (Philox4x32-10, keyed by the seed): word w of an epoch
//! is half w mod 2 of what the counter (w div 2, epoch) gives. A draw below k is the high half of word · k, where the low half
//! is at least 2⁶⁴ mod k; else the next word is taken. So the order depends on seed, epoch and number of rows only, on every
//! machine, and any epoch's order is found without those before it.

use std::num::NonZeroUsize;

use crate::frontend::Philox;

/// Whether an epoch takes the rows in an order of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// As they are in the file.
    Off,
    /// Anew in each epoch, by seed and epoch.
    Rows,
}

/// Where training is in its data: what the next step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in it, from 0.
    pub batch: u64,
}

/// The batches of one epoch: lists of rows. The last one has the rest.
#[derive(Clone, Debug)]
pub struct Epoch {
    /// `None` for the order of the file.
    order: Option<Vec<usize>>,
    rows: usize,
    batch: usize,
    next: usize,
}

impl Epoch {
    /// The batches of epoch `epoch` over `rows` rows, `batch` rows each.
    pub fn new(rows: usize, batch: NonZeroUsize, seed: u64, epoch: u64, shuffle: Shuffle) -> Epoch {
        let order = match shuffle {
            Shuffle::Off => None,
            Shuffle::Rows => Some(permutation(rows, seed, epoch)),
        };
        Epoch { order, rows, batch: batch.get(), next: 0 }
    }

    /// Goes on at batch `batch`: what is left of an epoch that was interrupted.
    pub fn from_batch(mut self, batch: u64) -> Epoch {
        let start = usize::try_from(batch).ok().and_then(|n| n.checked_mul(self.batch));
        self.next = start.map_or(self.rows, |start| start.min(self.rows));
        self
    }

    /// The batches of the whole epoch.
    pub fn batches(&self) -> usize {
        self.rows.div_ceil(self.batch)
    }
}

impl Iterator for Epoch {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let range = self.next..self.next.saturating_add(self.batch).min(self.rows);
        if range.is_empty() {
            return None;
        }
        self.next = range.end;
        Some(match &self.order {
            Some(order) => order[range].to_vec(),
            None => range.collect(),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.rows - self.next).div_ceil(self.batch);
        (left, Some(left))
    }
}

impl ExactSizeIterator for Epoch {}

/// The rows in the order of an epoch.
fn permutation(rows: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let mut words = Words { generator: Philox::new(seed, "rows"), epoch, next: 0, half: None };
    let mut order: Vec<usize> = (0..rows).collect();
    for i in (1..rows).rev() {
        order.swap(i, words.below(i as u64 + 1) as usize);
    }
    order
}

struct Words {
    generator: Philox,
    epoch: u64,
    next: u64,
    half: Option<u64>,
}

impl Words {
    fn word(&mut self) -> u64 {
        if let Some(half) = self.half.take() {
            return half;
        }
        let [lo, hi] = [self.next as u32, (self.next >> 32) as u32];
        self.next += 1;
        let [a, b, c, d] = self.generator.words([lo, hi, self.epoch as u32, (self.epoch >> 32) as u32]);
        self.half = Some(u64::from(d) << 32 | u64::from(c));
        u64::from(b) << 32 | u64::from(a)
    }

    /// Uniform in 0..k.
    fn below(&mut self, k: u64) -> u64 {
        let least = k.wrapping_neg() % k;
        loop {
            let product = u128::from(self.word()) * u128::from(k);
            if product as u64 >= least {
                return (product >> 64) as u64;
            }
        }
    }
}
