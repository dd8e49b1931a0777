//! How large a message of gradients is best.
//!
//! G bytes of gradients appear evenly over the T seconds of the backward pass and are sent in k = G/b messages of b bytes,
//! each of which takes c = α + b/B on a link that carries one at a time. The j-th is ready at j·T/k and the link is free of
//! it after the later of its being ready and the end of the one before, so the last is over at
//!
//! ```text
//! max over j of j·T/k + (k − j + 1)·c = max(T/k + k·c, T + c)
//! ```
//!
//! since that is linear in j. The first term has its least value at b₀ = G·√(α/T), where what one more message costs is
//! what it saves of waiting for the first. The second, which counts where the link keeps up, grows with b, and is the
//! greater from b₁ = αG/(T − G/B) on, which exists where T > G/B. So the best size is b₀, or b₁ where that is less.
//! (Li et al., PyTorch Distributed, VLDB 2020, section 4.2.2, has the trade-off and 25 MB for whatever model; the closed
//! form is that of the planner's notes, section 4.10, which take b₁ wherever it exists: where T exceeds G/B by less than
//! √(αT), b₀ is better.)

use super::MOST;

/// What the size of messages depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes of all gradients, G.
    pub bytes: f64,
    /// Seconds over which they appear, T.
    pub seconds: f64,
    /// Seconds that a message costs whatever its size, α.
    pub latency: f64,
    /// Bytes per second of the link, B.
    pub bandwidth: f64,
}

impl Rates {
    /// Bytes of a message for which the last is over first.
    pub fn best(&self) -> f64 {
        let Rates { bytes, seconds, latency, bandwidth } = *self;
        let spare = seconds - bytes / bandwidth;
        let waiting = bytes * (latency / seconds).sqrt();
        let keeping_up = if spare > 0.0 { latency * bytes / spare } else { f64::INFINITY };
        waiting.min(keeping_up).min(bytes)
    }

    /// Seconds from the start of the backward pass until the last of messages of `bucket` bytes is over.
    pub fn finish(&self, bucket: f64) -> f64 {
        let Rates { bytes, seconds, latency, bandwidth } = *self;
        let (count, each) = (bytes / bucket, latency + bucket / bandwidth);
        (seconds / count + count * each).max(seconds + each)
    }
}

/// The best size for tensors that are not everywhere of one size and cannot be cut: of the sizes from half to twice
/// [`Rates::best`] at which a message can end, the one for which the last is over first; of those the smallest. `ready` are
/// seconds and bytes of each, in the order in which they become ready.
pub fn rounded(ready: &[(f64, usize)], rates: &Rates) -> usize {
    let best = rates.best();
    let mut ends = vec![(best.ceil() as usize).max(1)];
    let mut sum = 0;
    for (_, size) in ready.iter().filter(|r| (r.1 as f64) < 2.0 * best) {
        sum += size;
        if (0.5 * best..=2.0 * best).contains(&(sum as f64)) {
            // A tensor of that size itself is joined too.
            ends.push(sum + 1);
        }
    }
    ends.sort_unstable();
    let finish = |most: &usize| end(ready, *most, rates);
    ends.into_iter().min_by(|a, b| finish(a).total_cmp(&finish(b))).unwrap_or(1)
}

/// When the last message of up to `most` bytes is over, in seconds on the clock of `ready`.
pub fn end(ready: &[(f64, usize)], most: usize, rates: &Rates) -> f64 {
    let sizes: Vec<usize> = ready.iter().map(|r| r.1).collect();
    groups(&sizes, Some(most)).iter().fold(0.0, |free: f64, group| {
        let begin = group.iter().map(|&at| ready[at].0).fold(free, f64::max);
        let bytes: usize = group.iter().map(|&at| sizes[at]).sum();
        begin + rates.latency + bytes as f64 / rates.bandwidth
    })
}

/// Tensors of these sizes, in the order in which they become ready, as messages of up to `most` bytes, each in that order.
/// One that is as large as a message is one of its own and does not close the message that is being filled; so what is
/// left for the last message, that of the first layers, is least.
pub fn groups(sizes: &[usize], most: Option<usize>) -> Vec<Vec<usize>> {
    let most = most.unwrap_or(0);
    let (mut closed, mut open, mut filled) = (Vec::new(), Vec::new(), 0);
    for (at, &size) in sizes.iter().enumerate() {
        if size >= most {
            closed.push(vec![at]);
            continue;
        }
        if filled + size > most || open.len() == MOST {
            closed.push(std::mem::take(&mut open));
            filled = 0;
        }
        open.push(at);
        filled += size;
    }
    if !open.is_empty() {
        closed.push(open);
    }
    closed.sort_by_key(|group| group.last().copied());
    closed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends `count` equal messages one after another, as they become ready.
    fn simulated(r: &Rates, count: usize) -> f64 {
        let each = r.latency + r.bytes / count as f64 / r.bandwidth;
        (1..=count).fold(0.0f64, |free, j| free.max(r.seconds * j as f64 / count as f64) + each)
    }

    fn cases() -> Vec<Rates> {
        let mut all = Vec::new();
        for bytes in [4e4, 1e6, 1e8, 1.4e9] {
            for latency in [1e-6, 1e-5, 2e-4] {
                for bandwidth in [1e10, 4.5e11] {
                    // From far less than what the link takes to far more, and just above it.
                    for share in [0.01, 0.5, 1.0, 1.0001, 1.02, 1.3, 3.0, 50.0] {
                        all.push(Rates { bytes, seconds: share * bytes / bandwidth, latency, bandwidth });
                    }
                }
            }
        }
        all
    }

    #[test]
    fn the_best_size_is_that_of_a_search() {
        for r in cases() {
            let search = (1..=400).map(|k| simulated(&r, k)).fold(f64::INFINITY, f64::min);
            let count = r.bytes / r.best();
            if count > 399.0 {
                continue;
            }
            let near = [count.floor().max(1.0), count.ceil()].map(|k| simulated(&r, k as usize));
            let found = near[0].min(near[1]);
            assert!((found - search).abs() <= 1e-9 * search, "{r:?}: {found} with {count}, {search} by search");
        }
    }

    #[test]
    fn the_end_is_that_of_a_simulation() {
        for r in cases() {
            for count in [1, 2, 7, 100] {
                let (formula, run) = (r.finish(r.bytes / count as f64), simulated(&r, count));
                assert!((formula - run).abs() <= 1e-9 * run, "{r:?}, {count}: {formula} {run}");
            }
        }
    }

    #[test]
    fn a_slow_backward_pass_takes_messages_with_which_the_link_keeps_up() {
        // 100 MB over 10 ms at 100 GB/s: the link needs 1 ms, so 10 µs·100 MB/9 ms.
        let r = Rates { bytes: 1e8, seconds: 1e-2, latency: 1e-5, bandwidth: 1e11 };
        assert!((r.best() - 1e-5 * 1e8 / 9e-3).abs() < 1.0);
        // A fast one: 100 MB·√(10 µs/0.5 ms).
        let fast = Rates { seconds: 5e-4, ..r };
        assert!((fast.best() - 1e8 * (1e-5f64 / 5e-4).sqrt()).abs() < 1.0);
        // All at once: one message.
        assert_eq!(Rates { seconds: 0.0, ..r }.best(), 1e8);
    }

    #[test]
    fn sizes_end_where_tensors_end() {
        // 64 tensors in 1.6 ms: by the formula 8.4 of them a message, which leaves a message of few for the end. With eleven,
        // the last one does not wait for the one before.
        let ready: Vec<(f64, usize)> = (1..=64).map(|k| (25e-6 * f64::from(k), 1 << 16)).collect();
        let rates = Rates { bytes: 64.0 * 65536.0, seconds: 1.6e-3, latency: 2e-4, bandwidth: 5e10 };
        let best = rounded(&ready, &rates);
        let search = (1..=64).map(|n| end(&ready, n * 65536 + 1, &rates)).fold(f64::INFINITY, f64::min);
        assert_eq!(end(&ready, best, &rates), search);
        assert!(best as f64 > rates.best() && (best - 1).is_multiple_of(65536), "{best}");
        // Large ones are not joined, so nothing ends with them.
        let mixed = [(1e-3, 4), (2e-3, 1 << 30), (3e-3, 4), (4e-3, 4)];
        assert!(rounded(&mixed, &Rates { bytes: 12.0, ..rates }) < 100);
        assert_eq!(rounded(&[], &Rates { bytes: 0.0, ..rates }), 1);
    }

    #[test]
    fn messages_are_filled_in_order_and_the_last_is_least() {
        assert_eq!(groups(&[4; 7], Some(8)), [vec![0, 1], vec![2, 3], vec![4, 5], vec![6]]);
        assert_eq!(groups(&[4; 3], None), [vec![0], vec![1], vec![2]]);
        // Large ones do not part small ones.
        assert_eq!(groups(&[1, 9, 1, 9, 1, 1], Some(3)), [vec![1], vec![3], vec![0, 2, 4], vec![5]]);
        assert_eq!(groups(&[1; 2 * MOST + 1], Some(1 << 20)).iter().map(Vec::len).collect::<Vec<_>>(), [MOST, MOST, 1]);
        for most in 1..40 {
            let sizes: Vec<usize> = (0..60).map(|i| 1 + i * 7 % 13).collect();
            let made = groups(&sizes, Some(most));
            let mut all: Vec<usize> = made.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..60).collect::<Vec<_>>());
            for group in made.iter().filter(|g| g.len() > 1) {
                assert!(group.iter().map(|&i| sizes[i]).sum::<usize>() <= most);
            }
        }
    }
}
