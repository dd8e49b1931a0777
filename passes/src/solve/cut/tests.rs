use super::*;

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

fn random(n: usize, seed: u64, chain: bool) -> CutProblem {
    let mut r = Lcg(seed);
    let ops = (0..n)
        .map(|_| {
            let work = r.below(1000) as f64 * 1e-6;
            CutOp { overhead: [4e-6; 2], work: [work, work * 2.0], share: work, live: 1e6 }
        })
        .collect();
    let mut values: Vec<CutValue> = (0..n)
        .map(|producer| CutValue { producer, consumers: Vec::new(), bytes: 1e4 * (1 + r.below(200)) as f64 })
        .collect();
    for op in 1..n {
        if chain {
            values[op - 1].consumers.push(op);
        } else {
            for _ in 0..1 + r.below(2) {
                let from = op - 1 - r.below(op.min(3) as u64) as usize;
                values[from].consumers.push(op);
            }
        }
    }
    CutProblem {
        ops,
        values,
        weights: Vec::new(),
        memory: [f64::INFINITY; 2],
        latency: 1e-5,
        seconds_per_byte: 1e-10,
        micro_batches: vec![1, 2, 4, 8],
        crossing: Crossing::Forward,
        min_share: 0.0,
        pins: Vec::new(),
    }
}

fn exhaustive(problem: &CutProblem) -> f64 {
    let n = problem.ops.len();
    let mut best = f64::INFINITY;
    for bits in 1u32..(1 << n) - 1 {
        let first: Vec<bool> = (0..n).map(|i| bits >> i & 1 == 1).collect();
        let closed = problem.values.iter().all(|v| first[v.producer] || v.consumers.iter().all(|&c| !first[c]));
        if closed {
            best = best.min(problem.price(&first).unwrap().time);
        }
    }
    best
}

#[test]
fn chains_are_exact() {
    for seed in 0..50 {
        let problem = random(12, seed, true);
        assert_eq!(problem.solve().unwrap().time, exhaustive(&problem));
    }
}

#[test]
fn graphs_on_unequal_devices_are_within_five_percent_of_the_best() {
    let mut exact = 0;
    for seed in 0..60 {
        let problem = random(12, seed, false);
        let (found, best) = (problem.solve().unwrap().time, exhaustive(&problem));
        assert!(found <= best * 1.05, "seed {seed}: {found} against {best}");
        exact += usize::from(found == best);
    }
    assert!(exact >= 50, "{exact} of 60");
}

#[test]
fn the_cut_is_a_downset_and_balanced_when_asked() {
    for seed in 0..20 {
        let mut problem = random(60, seed, false);
        problem.min_share = 0.25;
        problem.micro_batches = vec![1];
        let cut = problem.solve().unwrap();
        for value in &problem.values {
            let late = cut.segments[value.producer] == Segment::Second;
            assert!(!late || value.consumers.iter().all(|&c| cut.segments[c] == Segment::Second));
        }
        assert!(cut.shares.iter().all(|&s| s >= 0.25), "{:?}", cut.shares);
    }
}

#[test]
fn a_cut_that_fits_wins_over_a_faster_one() {
    let mut problem = random(10, 3, true);
    problem.weights = (0..10).map(|op| CutWeight { bytes: 1e9, users: vec![op] }).collect();
    problem.memory = [8.1e9, 3.1e9];
    let cut = problem.solve().unwrap();
    for segment in 0..2 {
        assert!(cut.memory[segment] <= problem.memory[cut.devices[segment]]);
    }
}

#[test]
fn pins_are_obeyed_at_the_least_cost() {
    for seed in 0..20 {
        let mut problem = random(11, seed, true);
        let free = problem.solve().unwrap();
        for op in 0..11 {
            for device in 0..2 {
                problem.pins = vec![(op, device)];
                let pinned = problem.solve().unwrap();
                assert_eq!(pinned.devices[usize::from(pinned.segments[op] == Segment::Second)], device);
                assert!(pinned.time >= free.time);
            }
        }
    }
}

#[test]
fn one_operation_cannot_be_cut() {
    assert_eq!(random(1, 0, true).solve(), None);
}
