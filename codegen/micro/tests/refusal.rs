//! Descriptors that must not run.

#![allow(clippy::unwrap_used)]

use intwain_micro::{Contraction, Element, Error, Isa, Plan, Start, Summation, Window};

fn refused(change: impl FnOnce(&mut Contraction)) -> Error {
    let mut d = Contraction::product(Element::F32, 4, 5, 6);
    change(&mut d);
    Plan::new(&d, Isa::detect()).unwrap_err()
}

fn window() -> Window {
    Window {
        outer_dim: 0,
        k_dim: 0,
        stride: 1,
        dilation: 1,
        low_pad: 0,
        input_dilation: 1,
        extent: 9,
        address_stride: 1,
    }
}

#[test]
fn wrong_ranks() {
    assert!(matches!(refused(|d| d.a.outer.push(1)), Error::Rank { axis: "m", strides: 2, dims: 1, .. }));
    assert!(matches!(refused(|d| d.c.n.clear()), Error::Rank { axis: "n", .. }));
    assert!(matches!(refused(|d| d.batch.push(2)), Error::Rank { axis: "batch", .. }));
}

#[test]
fn reads_and_writes_outside() {
    assert!(matches!(refused(|d| d.a.len -= 1), Error::OutOfBounds { high: 23, len: 23, .. }));
    assert!(matches!(refused(|d| d.a.base = 1), Error::OutOfBounds { high: 24, .. }));
    assert!(matches!(refused(|d| d.b.k[0] = -5), Error::OutOfBounds { low: -25, .. }));
    assert!(matches!(refused(|d| d.c.len = 0), Error::OutOfBounds { .. }));
    assert!(matches!(refused(|d| d.a.windows.push(window())), Error::OutOfBounds { .. }));
}

#[test]
fn bad_windows() {
    assert!(matches!(
        refused(|d| d.a.windows.push(Window { outer_dim: 1, ..window() })),
        Error::WindowDim { axis: "m", dim: 1, .. }
    ));
    assert!(matches!(
        refused(|d| d.b.windows.push(Window { k_dim: 3, ..window() })),
        Error::WindowDim { axis: "k", .. }
    ));
    assert!(matches!(
        refused(|d| d.a.windows.push(Window { input_dilation: 0, ..window() })),
        Error::WindowZero { field: "input_dilation", .. }
    ));
}

#[test]
fn results_that_overlap_or_are_not_contiguous() {
    assert!(matches!(refused(|d| d.c.m[0] = 4), Error::Overlap { stride: 4, reach: 5 }));
    assert!(matches!(refused(|d| d.c.m[0] = 0), Error::Overlap { stride: 0, .. }));
    assert!(matches!(refused(|d| (d.c.m[0], d.c.n[0]) = (1, 4)), Error::ColumnStride { found: 4, expected: 1, .. }));
}

#[test]
fn trees() {
    assert_eq!(refused(|d| d.summation = Summation::Tree { length: 0 }), Error::EmptyBlocks);
    let both = |d: &mut Contraction| (d.summation, d.start) = (Summation::Tree { length: 2 }, Start::Accumulate);
    assert_eq!(refused(both), Error::TreeContinued);
}

#[test]
fn overflow() {
    assert!(matches!(refused(|d| (d.m[0], d.n[0]) = (1 << 40, 1 << 40)), Error::Overflow { .. }));
    assert!(matches!(refused(|d| d.a.outer[0] = isize::MAX), Error::Overflow { what: "A" }));
    assert!(matches!(
        refused(|d| d.a.windows.push(Window { low_pad: isize::MIN, ..window() })),
        Error::Overflow { what: "A" }
    ));
    assert!(matches!(
        refused(|d| d.a.windows.push(Window { stride: usize::MAX, ..window() })),
        Error::Overflow { what: "A" }
    ));
}
