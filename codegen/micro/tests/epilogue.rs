//! The epilogue sees every element once, complete.

#![allow(clippy::unwrap_used)]

mod common;

use common::{data, naive, run_cut};
use intwain_micro::{Contraction, Element, Epilogue, Isa, Plan, RightForm};
use proptest::prelude::*;
use std::cell::RefCell;

struct Seen {
    columns: usize,
    rows: usize,
    c: *mut f32,
    count: RefCell<Vec<u8>>,
}

/// Doubles the rectangle and counts it; C is dense here.
unsafe extern "C" fn double(context: *const (), b: usize, m0: usize, m1: usize, n0: usize, n1: usize) {
    // SAFETY: the test passes a `Seen` that outlives the run.
    let seen = unsafe { &*context.cast::<Seen>() };
    for m in m0..m1 {
        for n in n0..n1 {
            let at = (b * seen.rows + m) * seen.columns + n;
            seen.count.borrow_mut()[at] += 1;
            // SAFETY: inside C, in the rectangle handed over.
            unsafe { *seen.c.add(at) *= 2.0 };
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_element_once(batch in 1usize..4, m in 1usize..70, n in 1usize..90, k in 0usize..700, cuts in prop::collection::vec(any::<usize>(), 0..3)) {
        let mut d = Contraction::product(Element::F32, m, n, k);
        d.batch = vec![batch];
        d.a.batch = vec![0];
        d.b.batch = vec![0];
        d.c.batch = vec![(m * n) as isize];
        d.c.len *= batch;
        let (a, b) = (data::<f32>(m * k, 1), data::<f32>(k * n, 2));
        let mut expected = vec![0f32; d.c.len];
        naive(&d, &a, &b, &mut expected);
        for isa in Isa::supported() {
            let plan = Plan::new(&d, isa).unwrap();
            let mut c = vec![0f32; d.c.len];
            let pointer = c.as_mut_ptr();
            let seen = Seen { columns: n, rows: m, c: pointer, count: RefCell::new(vec![0; d.c.len]) };
            let epilogue = Epilogue { function: double, context: (&raw const seen).cast(), sums: std::ptr::null_mut() };
            // SAFETY: `c` outlives the call; the epilogue and the kernels take turns.
            let view = unsafe { std::slice::from_raw_parts_mut(pointer, d.c.len) };
            run_cut(&plan, RightForm::Plain, &a, &b, view, Some(epilogue), &cuts);
            prop_assert!(seen.count.borrow().iter().all(|s| *s == 1));
            for (x, y) in c.iter().zip(&expected) {
                prop_assert_eq!(x.to_bits(), (y * 2.0).to_bits());
            }
        }
    }
}
