//! Bit equality with the definition.

#![allow(clippy::unwrap_used)]

mod common;

use common::conv::{Conv, Space};
use common::{Draw, Real, check, data, naive, run_cut, same};
use intwain_micro::{Contraction, Element, Isa, Plan, RightForm, Start, Summation};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_match_the_chain(bytes in prop::collection::vec(any::<u8>(), 0..96), cuts in prop::collection::vec(any::<usize>(), 0..3)) {
        let d = Draw(&bytes).contraction(Element::F32);
        check::<f32>(&d, 7, &cuts).map_err(|e| TestCaseError::fail(format!("{e}\n{d:?}")))?;
        let d = Contraction { element: Element::F64, ..d };
        check::<f64>(&d, 9, &cuts).map_err(|e| TestCaseError::fail(format!("{e}\n{d:?}")))?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_convolutions_match_the_chain(
        bytes in prop::collection::vec(any::<u8>(), 40),
        cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let conv = common::convolution(&mut Draw(&bytes));
        let fail = |e| TestCaseError::fail(format!("{e}\n{conv:?}"));
        check::<f32>(&conv.forward(Element::F32), 3, &cuts).map_err(fail)?;
        check::<f32>(&conv.weight_gradient(Element::F32), 4, &cuts).map_err(fail)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors_match_the_tree(
        bytes in prop::collection::vec(any::<u8>(), 0..96),
        length in 1usize..24,
        cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let summation = Summation::Tree { length };
        let d = Contraction { start: Start::Zero, summation, ..Draw(&bytes).contraction(Element::F32) };
        check::<f32>(&d, 7, &cuts).map_err(|e| TestCaseError::fail(format!("{e}\n{d:?}")))?;
        let d = Contraction { element: Element::F64, ..d };
        check::<f64>(&d, 9, &cuts).map_err(|e| TestCaseError::fail(format!("{e}\n{d:?}")))?;
    }

    #[test]
    fn random_kernel_gradients_match_the_tree(
        bytes in prop::collection::vec(any::<u8>(), 40),
        rows in 1usize..9,
        block in 1usize..4,
        cuts in prop::collection::vec(any::<usize>(), 0..3),
    ) {
        let conv = Conv { batch: rows, ..common::convolution(&mut Draw(&bytes)) };
        let d = conv.weight_gradient(Element::F32);
        let length = block * conv.space.iter().map(|s| s.output).product::<usize>();
        let d = Contraction { summation: Summation::Tree { length }, ..d };
        check::<f32>(&d, 4, &cuts).map_err(|e| TestCaseError::fail(format!("{e}\n{conv:?}")))?;
    }
}

/// Trees over more blocks than one, of k that fits one block and of k that does not.
#[test]
fn blocked_products_match_the_tree() {
    for (m, n, k) in [(1, 70, 1000usize), (5, 97, 401), (63, 65, 641), (131, 33, 977), (500, 40, 30), (30, 330, 1130)] {
        for length in [1, 17, k / 8, k.div_ceil(5), k + 3] {
            let d =
                Contraction { summation: Summation::Tree { length }, ..Contraction::product(Element::F32, m, n, k) };
            check::<f32>(&d, 3, &[5, 11]).unwrap_or_else(|e| panic!("{e} {m} {n} {k} {length}"));
        }
    }
}

/// A block that is filled up has no −0, which underflow makes of products of opposite signs.
#[test]
fn blocks_are_filled_with_zeros() {
    let tiny = 1e-30f32;
    for (k, length, sign) in [(2, 2, true), (3, 2, true), (2, 3, false)] {
        let d = Contraction { summation: Summation::Tree { length }, ..Contraction::product(Element::F32, 1, 1, k) };
        let (a, b) = (vec![tiny; k], vec![-tiny; k]);
        let mut expected = [1f32];
        naive(&d, &a, &b, &mut expected);
        assert_eq!(expected[0].is_sign_negative(), sign && k % length == 0);
        check_with(&d, &a, &b, &expected);
    }
}

fn check_with(d: &Contraction, a: &[f32], b: &[f32], expected: &[f32]) {
    for isa in Isa::supported() {
        let plan = Plan::new(d, isa).unwrap();
        let mut c = vec![9f32; expected.len()];
        run_cut(&plan, RightForm::Plain, a, b, &mut c, None, &[]);
        same(&c, expected).unwrap();
    }
}

/// Convolutions that run on image rows, with several k blocks, bands and planes.
#[test]
fn image_convolutions_match_the_chain() {
    let two = |s: Space| vec![s; 2];
    let conv = |batch, channels, filters, space| Conv { batch, groups: 1, channels, filters, space };
    let valid = Space { low_pad: 0, output: 20, ..Space::same(22, 3, 1) };
    let cases = [
        conv(2, 3, 40, two(Space::same(30, 7, 2))),
        conv(2, 130, 5, two(Space::same(14, 3, 1))),
        conv(3, 20, 33, two(Space::same(15, 3, 1))),
        conv(2, 9, 4, two(valid)),
        conv(2, 9, 4, two(Space { dilation: 2, low_pad: 2, ..Space::same(16, 3, 1) })),
        conv(2, 30, 4, vec![Space { dilation: 2, low_pad: 2, ..Space::same(16, 3, 1) }, Space::same(29, 3, 1)]),
        conv(2, 30, 4, vec![valid, Space::same(29, 3, 2)]),
        conv(2, 9, 4, vec![Space::same(22, 3, 1), Space::same(30, 3, 1)]),
        conv(1, 8, 4, vec![Space::same(600, 5, 1)]),
        conv(1, 4, 4, vec![Space::same(4, 3, 1), Space::same(9, 3, 1), Space::same(15, 3, 1)]),
        Conv { groups: 2, ..conv(2, 12, 10, two(Space::same(14, 3, 1))) },
    ];
    let mut images = [0, 0];
    for case in &cases {
        for (d, images) in [case.forward(Element::F32), case.weight_gradient(Element::F32)].iter().zip(&mut images) {
            check::<f32>(d, 3, &[2, 7]).unwrap_or_else(|e| panic!("{e}\n{case:?}"));
            let plan = Plan::new(d, Isa::detect()).unwrap();
            *images += usize::from(format!("{plan:?}").contains("left: Image"));
        }
        let rows: usize = case.space.iter().map(|s| s.output).product();
        let tree = Summation::Tree { length: rows };
        check::<f32>(&Contraction { summation: tree, ..case.weight_gradient(Element::F32) }, 3, &[2, 7])
            .unwrap_or_else(|e| panic!("{e}\n{case:?}"));
        let wide = case.forward(Element::F64);
        check::<f64>(&wide, 3, &[2, 7]).unwrap_or_else(|e| panic!("{e}\n{case:?}"));
    }
    assert!(images.iter().all(|i| *i >= 5), "{images:?} of the cases ran on image rows");
}

/// Sizes that cross every block boundary: several blocks of k, several coalesced rows and columns.
#[test]
fn blocked_products_match_the_chain() {
    for (m, n, k) in
        [(1, 70, 1000), (2, 300, 700), (5, 97, 401), (63, 65, 641), (131, 33, 977), (500, 40, 30), (9, 1100, 330)]
    {
        for start in [Start::Zero, Start::Accumulate] {
            let d = Contraction { start, ..Contraction::product(Element::F32, m, n, k) };
            check::<f32>(&d, 3, &[5, 11]).unwrap();
        }
        check::<f64>(&Contraction::product(Element::F64, m, n, k), 3, &[4]).unwrap();
    }
}

#[test]
fn transposed_operands_match_the_chain() {
    for (m, n, k) in [(64, 64, 32), (33, 70, 700), (3, 40, 400)] {
        for (left, right) in [(true, false), (false, true), (true, true)] {
            let mut d = Contraction::product(Element::F32, m, n, k);
            if left {
                (d.a.outer, d.a.k) = (vec![1], vec![m as isize]);
            }
            if right {
                (d.b.outer, d.b.k) = (vec![k as isize], vec![1]);
            }
            check::<f32>(&d, 5, &[]).unwrap();
        }
    }
}

/// Rows and columns computed on their own have the bits they have in the whole.
#[test]
fn parts_have_the_bits_of_the_whole() {
    let (m, n, k) = (77, 100, 450);
    let (a, b) = (data::<f32>(m * k, 1), data::<f32>(k * n, 2));
    let whole = product(m, n, k, &a, &b);
    for split in [1, 13, 76] {
        let top = product(split, n, k, &a[..split * k], &b);
        let bottom = product(m - split, n, k, &a[split * k..], &b);
        same(&[top, bottom].concat(), &whole).unwrap();
    }
    for split in [1, 31, 99] {
        let columns = |from: usize, to: usize| -> Vec<f32> { b.chunks(n).flat_map(|r| r[from..to].to_vec()).collect() };
        let left = product(m, split, k, &a, &columns(0, split));
        let right = product(m, n - split, k, &a, &columns(split, n));
        let joined: Vec<f32> =
            left.chunks(split).zip(right.chunks(n - split)).flat_map(|(l, r)| [l, r].concat()).collect();
        same(&joined, &whole).unwrap();
    }
}

fn product(m: usize, n: usize, k: usize, a: &[f32], b: &[f32]) -> Vec<f32> {
    let plan = Plan::new(&Contraction::product(Element::F32, m, n, k), Isa::detect()).unwrap();
    let mut c = vec![f32::NAN; m * n];
    run_cut(&plan, RightForm::Plain, a, b, &mut c, None, &[]);
    c
}

#[test]
fn agrees_with_an_independent_library() {
    let (m, n, k) = (90, 110, 300);
    let (a, b) = (data::<f32>(m * k, 1), data::<f32>(k * n, 2));
    let c = product(m, n, k, &a, &b);
    let mut other = vec![0f32; m * n];
    // SAFETY: dense matrices of these sizes.
    unsafe {
        let (rk, rn) = (k as isize, n as isize);
        matrixmultiply::sgemm(m, k, n, 1.0, a.as_ptr(), rk, 1, b.as_ptr(), rn, 1, 0.0, other.as_mut_ptr(), rn, 1);
    }
    for (x, y) in c.iter().zip(&other) {
        assert!((x - y).abs() <= 1e-4, "{x} {y}");
    }
}

/// An absent element is a zero that is multiplied: a NaN or infinite weight beside it gives NaN, and −0 is not kept.
#[test]
fn padding_takes_part_as_zero() {
    let mut d = Contraction::product(Element::F32, 4, 1, 3);
    d.a = intwain_micro::Operand {
        len: 4,
        base: 0,
        batch: vec![],
        outer: vec![0],
        k: vec![0],
        windows: vec![intwain_micro::Window {
            outer_dim: 0,
            k_dim: 0,
            stride: 1,
            dilation: 1,
            low_pad: 1,
            input_dilation: 1,
            extent: 4,
            address_stride: 1,
        }],
    };
    for weights in [[f32::NAN, 1.0, 1.0], [f32::INFINITY, 1.0, 1.0], [-1.0, 0.0, -0.0]] {
        let a = [-0.0, 1.0, 2.0, 3.0];
        let mut expected = [0f32; 4];
        naive(&d, &a, &weights, &mut expected);
        assert_eq!(expected[0].is_nan(), !weights[0].is_finite());
        for isa in Isa::supported() {
            let plan = Plan::new(&d, isa).unwrap();
            let mut c = [9f32; 4];
            run_cut(&plan, RightForm::Plain, &a, &weights, &mut c, None, &[]);
            same(&c, &expected).unwrap();
        }
    }
}

#[test]
fn empty_extents() {
    for (m, n, k) in [(0, 3, 3), (3, 0, 3), (3, 3, 0), (0, 0, 0)] {
        let d = Contraction::product(Element::F32, m, n, k);
        check::<f32>(&d, 1, &[]).unwrap();
        assert_eq!(Plan::new(&d, Isa::detect()).unwrap().tasks() == 0, m * n == 0);
    }
    let d = Contraction { start: Start::Accumulate, ..Contraction::product(Element::F32, 20, 40, 0) };
    check::<f32>(&d, 1, &[]).unwrap();
    assert_eq!(f32::ELEMENT, Element::F32);
}
