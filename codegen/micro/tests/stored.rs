//! Operands of 16 bits give the bits of the same numbers in f32, and sums in scratch those in C.

#![allow(clippy::unwrap_used)]

mod common;

use common::conv::{Conv, Space};
use common::{Draw, naive, same};
use intwain_micro::{Contraction, Element, Epilogue, Isa, Plan, RightForm, Start, Storage, Sums};
use proptest::prelude::*;

/// Numbers of 16 bits, subnormals and zeros among them, with their values by the definition of the formats.
fn numbers(storage: Storage, len: usize, seed: u64) -> (Vec<u16>, Vec<f32>) {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let number = |_| {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        let (sign, fraction) = ((s >> 20) as u16 & 0x8000, (s >> 40) as u16);
        let (bits, fraction_bits, bias) = match storage {
            Storage::F16 => (sign | [0, 13, 14, 15][(s % 4) as usize] << 10 | fraction & 0x3ff, 10, 15),
            _ => (sign | [0, 125, 126, 127][(s % 4) as usize] << 7 | fraction & 0x7f, 7, 127),
        };
        let exponent = i32::from((bits & 0x7fff) >> fraction_bits);
        let fraction = f64::from(bits & ((1 << fraction_bits) - 1)) / f64::from(1 << fraction_bits);
        let magnitude = match exponent {
            0 => fraction * 2f64.powi(1 - bias),
            e => (1.0 + fraction) * 2f64.powi(e - bias),
        };
        (bits, if sign == 0 { magnitude } else { -magnitude } as f32)
    };
    (0..len).map(number).unzip()
}

/// What the epilogue is told, and the dense array it copies the sums to.
struct Copied {
    sums: *mut u8,
    pitch: usize,
    rows: usize,
    columns: usize,
    dense: *mut f32,
}

unsafe extern "C" fn copy(context: *const (), b: usize, m0: usize, m1: usize, n0: usize, n1: usize) {
    let copied = context.cast::<Copied>();
    // SAFETY: the test passes a `Copied` that outlives the run, and sums are there for the rectangle handed over.
    unsafe {
        let sums = (*copied).sums.cast::<f32>();
        for m in m0..m1 {
            for n in n0..n1 {
                let at = (b * (*copied).rows + m) * (*copied).columns + n;
                *(*copied).dense.add(at) = *sums.wrapping_add(m * (*copied).pitch + n);
            }
        }
    }
}

/// Runs a plan in two pieces.
fn run(plan: &Plan, a: &[u16], b: &[u16], c: *mut f32, epilogue: Option<Epilogue>, right: RightForm) {
    let mut packed = vec![0f32; plan.packed_len()];
    let b = match right {
        RightForm::Plain => b.as_ptr().cast(),
        RightForm::Packed => {
            // SAFETY: the buffers are as long as the descriptor and the plan say.
            unsafe { plan.pack(b.as_ptr().cast(), packed.as_mut_ptr().cast()) };
            packed.as_ptr().cast()
        }
    };
    let cut = plan.tasks() / 3;
    for tasks in [cut..plan.tasks(), 0..cut] {
        let mut scratch = vec![0xFFu8; plan.scratch_bytes()];
        // SAFETY: as above.
        unsafe { plan.run(a.as_ptr().cast(), b, c.cast(), epilogue, tasks, &mut scratch) };
    }
}

fn check(d: &Contraction, seed: u64) -> Result<(), String> {
    for storage in [Storage::F16, Storage::Bf16] {
        let ((a, wide_a), (b, wide_b)) = (numbers(storage, d.a.len, seed), numbers(storage, d.b.len, seed + 1));
        let old = vec![0.5f32; d.c.len];
        let mut expected = old.clone();
        naive(d, &wide_a, &wide_b, &mut expected);
        let product = |extents: &[usize]| extents.iter().product::<usize>();
        let (batches, rows, columns) = (product(&d.batch), product(&d.m), product(&d.n));
        let mut alone = d.clone();
        (alone.start, alone.c.base, alone.c.len) = (Start::Zero, 0, batches * rows * columns);
        let strides = |extents: &[usize], unit: usize| -> Vec<isize> {
            (0..extents.len()).map(|i| (product(&extents[i + 1..]) * unit) as isize).collect()
        };
        alone.c.n = strides(&d.n, 1);
        alone.c.m = strides(&d.m, columns);
        alone.c.batch = strides(&d.batch, columns * rows);
        let mut dense = vec![0f32; alone.c.len];
        naive(&alone, &wide_a, &wide_b, &mut dense);
        for isa in Isa::supported() {
            for right in [RightForm::Plain, RightForm::Packed] {
                let plan = Plan::new(&Contraction { right, storage, ..d.clone() }, isa).map_err(|e| e.to_string())?;
                let mut c = old.clone();
                run(&plan, &a, &b, c.as_mut_ptr(), None, right);
                same(&c, &expected).map_err(|e| format!("{storage:?} {isa:?} {right:?} {e}\n{plan:?}"))?;

                let scratch = Contraction { right, storage, sums: Sums::Scratch, ..alone.clone() };
                let plan = Plan::new(&scratch, isa).map_err(|e| e.to_string())?;
                let mut found = vec![f32::NAN; dense.len()];
                let (sums, dense_to) = (std::ptr::null_mut(), found.as_mut_ptr());
                let mut copied = Copied { sums, pitch: plan.sums_pitch(), rows, columns, dense: dense_to };
                let context = &raw mut copied;
                // SAFETY: the context is alive.
                let sums = unsafe { &raw mut (*context).sums };
                let epilogue = Epilogue { function: copy, context: context.cast_const().cast(), sums };
                run(&plan, &a, &b, std::ptr::null_mut(), Some(epilogue), right);
                same(&found, &dense).map_err(|e| format!("scratch {storage:?} {isa:?} {right:?} {e}\n{plan:?}"))?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_descriptors(bytes in prop::collection::vec(any::<u8>(), 0..96)) {
        let d = Draw(&bytes).contraction(Element::F32);
        check(&d, 7).map_err(|e| TestCaseError::fail(format!("{e}\n{d:?}")))?;
    }

    #[test]
    fn random_convolutions(bytes in prop::collection::vec(any::<u8>(), 40)) {
        let conv = common::convolution(&mut Draw(&bytes));
        let fail = |e| TestCaseError::fail(format!("{e}\n{conv:?}"));
        check(&conv.forward(Element::F32), 3).map_err(fail)?;
        check(&conv.weight_gradient(Element::F32), 4).map_err(fail)?;
    }
}

/// Sizes that cross every block boundary, and images that need no padding: they are copied all the same.
#[test]
fn blocks_and_images() {
    for (m, n, k) in [(1, 70, 1000), (5, 97, 401), (131, 33, 977), (500, 1100, 30)] {
        check(&Contraction::product(Element::F32, m, n, k), 5).unwrap();
    }
    let valid = Space { low_pad: 0, output: 20, ..Space::same(22, 3, 1) };
    for space in [vec![valid; 2], vec![Space::same(30, 7, 2); 2], vec![valid, Space::same(29, 3, 2)]] {
        let conv = Conv { batch: 2, groups: 1, channels: 9, filters: 20, space };
        check(&conv.forward(Element::F32), 6).unwrap();
        check(&conv.weight_gradient(Element::F32), 6).unwrap();
    }
}

/// What has no meaning is refused.
#[test]
fn combinations_that_are_refused() {
    let d = Contraction { storage: Storage::F16, ..Contraction::product(Element::F64, 2, 2, 2) };
    assert!(Plan::new(&d, Isa::Portable).unwrap_err().to_string().contains("f32 only"));
    let d =
        Contraction { start: Start::Accumulate, sums: Sums::Scratch, ..Contraction::product(Element::F32, 2, 2, 2) };
    assert!(Plan::new(&d, Isa::Portable).unwrap_err().to_string().contains("start from zero"));
}
