use super::*;
use crate::check::memory::{MemoryFault, check};
use proptest::prelude::*;

fn own(size: usize, first: usize, last: usize) -> Buffer {
    Buffer { size, life: first..=last, storage: Storage::Own }
}

#[test]
fn a_chain_needs_two_buffers() {
    let buffers: Vec<Buffer> = (0..10).map(|i| own(1000, i, i + 1)).collect();
    let plan = plan(&buffers, 64);
    assert_eq!((plan.size, plan.lower_bound), (2048, 2048));
    assert!(check(&buffers, &plan, 64).is_empty());
}

#[test]
fn in_place_chains_need_one() {
    let mut buffers = vec![own(1024, 0, 1)];
    for i in 1..10 {
        buffers.push(Buffer { size: 1024, life: i..=i + 1, storage: Storage::InPlace { candidates: vec![i - 1] } });
    }
    let plan = plan(&buffers, 256);
    assert_eq!(plan.size, 1024);
    assert!(check(&buffers, &plan, 256).is_empty());
}

#[test]
fn no_work_in_place_while_the_operand_is_still_read() {
    let buffers =
        vec![own(256, 0, 5), Buffer { size: 256, life: 1..=2, storage: Storage::InPlace { candidates: vec![0] } }];
    assert_eq!(plan(&buffers, 256).size, 512);
}

#[test]
fn views_lie_in_what_they_show_and_keep_it_alive() {
    let view = Buffer { size: 100, life: 1..=9, storage: Storage::Within { of: 0, offset: 64 } };
    let buffers = vec![own(256, 0, 1), view, own(256, 5, 6)];
    let plan = plan(&buffers, 64);
    assert_eq!(plan.offsets[1], plan.offsets[0] + 64);
    assert_eq!(plan.size, 512);
    assert!(check(&buffers, &plan, 64).is_empty());
}

#[test]
fn the_checker_sees_moved_buffers() {
    let buffers: Vec<Buffer> = (0..4).map(|i| own(100, i, i + 1)).collect();
    let good = plan(&buffers, 64);
    let mut overlapping = good.clone();
    overlapping.offsets[1] = overlapping.offsets[0];
    assert!(matches!(check(&buffers, &overlapping, 64)[0], MemoryFault::Overlap { .. }));
    let mut misaligned = good.clone();
    misaligned.offsets[0] += 4;
    assert!(check(&buffers, &misaligned, 64).iter().any(|f| matches!(f, MemoryFault::Misaligned { .. })));
    let mut outside = good;
    outside.offsets[3] = outside.size;
    assert!(check(&buffers, &outside, 64).iter().any(|f| matches!(f, MemoryFault::Outside { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn random_plans_are_proved(raw in prop::collection::vec((0usize..5000, 0usize..40, 0usize..10, any::<bool>()), 0..60)) {
        let mut buffers: Vec<Buffer> = Vec::new();
        for (size, first, length, reuse) in raw {
            let candidates: Vec<usize> = (0..buffers.len()).filter(|&b| *buffers[b].life.end() == first).collect();
            let storage = if reuse { Storage::InPlace { candidates } } else { Storage::Own };
            buffers.push(Buffer { size, life: first..=first + length, storage });
        }
        let plan = plan(&buffers, 64);
        prop_assert_eq!(check(&buffers, &plan, 64), vec![]);
        prop_assert!(plan.size >= plan.lower_bound);
        prop_assert!(plan.ratio() < 1.35, "{}", plan.ratio());
    }
}
