//! GFLOP/s of convolution and matrix shapes, beside matrixmultiply.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use intwain_micro::{Contraction, Element, Isa, Plan, RightForm};

#[path = "../tests/common/conv.rs"]
#[allow(dead_code, unreachable_pub)]
mod conv;

use conv::{Conv, Space};

fn batched(heads: usize, m: usize, n: usize, k: usize, transposed: bool) -> Contraction {
    let mut d = Contraction::product(Element::F32, m, n, k);
    d.batch = vec![heads];
    d.a.batch = vec![(m * k) as isize];
    d.b.batch = vec![(k * n) as isize];
    d.c.batch = vec![(m * n) as isize];
    d.a.len *= heads;
    d.b.len *= heads;
    d.c.len *= heads;
    if transposed {
        d.b.outer = vec![k as isize];
        d.b.k = vec![1];
    }
    d
}

/// Seconds of the fastest of several runs.
fn best(mut f: impl FnMut()) -> f64 {
    f();
    let begun = Instant::now();
    let mut best = f64::MAX;
    let mut rounds = 0;
    while rounds < 5 || begun.elapsed().as_secs_f64() < 0.4 {
        let t = Instant::now();
        f();
        best = best.min(t.elapsed().as_secs_f64());
        rounds += 1;
    }
    best
}

fn measure(name: &str, d: &Contraction, isas: &[Isa]) {
    let volume = |e: &[usize]| e.iter().product::<usize>();
    let (m, n, k, batches) = (volume(&d.m), volume(&d.n), volume(&d.k), volume(&d.batch));
    let flops = 2.0 * (m * n * k * batches) as f64;
    let a: Vec<f32> = (0..d.a.len).map(|i| (i % 17) as f32 - 8.0).collect();
    let b: Vec<f32> = (0..d.b.len).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut c = vec![0f32; d.c.len];
    print!("{name:<28}");
    for &isa in isas {
        let plan = Plan::new(d, isa).unwrap();
        let mut packed = vec![0f32; plan.packed_len()];
        let right = match d.right {
            RightForm::Plain => b.as_ptr(),
            RightForm::Packed => {
                // SAFETY: the buffers are as long as the plan asks.
                unsafe { plan.pack(b.as_ptr().cast(), packed.as_mut_ptr().cast()) };
                packed.as_ptr()
            }
        };
        let mut scratch = vec![0u8; plan.scratch_bytes()];
        let mut run = |tasks| {
            let (a, c) = (a.as_ptr().cast(), c.as_mut_ptr().cast());
            // SAFETY: the buffers are as long as the descriptor says.
            unsafe { plan.run(a, right.cast(), c, None, tasks, &mut scratch) };
            black_box(&mut *scratch);
        };
        // Best times of pieces too short to be interrupted add up to the time on an idle machine.
        let begun = Instant::now();
        run(0..plan.tasks());
        let pieces = ((begun.elapsed().as_secs_f64() / 1e-3).ceil() as usize).clamp(1, plan.tasks());
        let pieces = if d.right == RightForm::Plain { 1 } else { pieces };
        let mut times = vec![f64::MAX; pieces];
        let begun = Instant::now();
        let mut rounds = 0;
        while rounds < 5 || begun.elapsed().as_secs_f64() < 0.3 {
            for (i, best) in times.iter_mut().enumerate() {
                let t = Instant::now();
                run(i * plan.tasks() / pieces..(i + 1) * plan.tasks() / pieces);
                *best = best.min(t.elapsed().as_secs_f64());
            }
            rounds += 1;
        }
        let seconds: f64 = times.iter().sum();
        print!(" {isa:?} {:8.3} ms {:6.1} GF/s ({} tasks)", seconds * 1e3, flops / seconds / 1e9, plan.tasks());
    }
    if d.a.windows.is_empty() && d.b.windows.is_empty() {
        let seconds = best(|| {
            for batch in 0..batches {
                let (a, b) = (a[batch * m * k..].as_ptr(), b[batch * k * n..].as_ptr());
                let (k, n) = (k as isize, n as isize);
                // SAFETY: dense matrices inside the buffers.
                unsafe {
                    matrixmultiply::sgemm(
                        m,
                        k as usize,
                        n as usize,
                        1.0,
                        a,
                        k,
                        1,
                        b,
                        n,
                        1,
                        0.0,
                        c[batch * m * n as usize..].as_mut_ptr(),
                        n,
                        1,
                    );
                }
            }
            black_box(&mut *c);
        });
        print!("  matrixmultiply {:6.1} GF/s", flops / seconds / 1e9);
    }
    println!();
}

fn main() {
    let filter: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let wanted = |name: &str| filter.is_empty() || filter.iter().any(|f| name.contains(f.as_str()));
    let isas: Vec<Isa> = Isa::supported().into_iter().filter(|i| *i != Isa::Portable).collect();
    let isas = if isas.is_empty() { vec![Isa::Portable] } else { isas };
    let shape = |name, size, channels, filters, kernel, stride| {
        (name, Conv { batch: 8, groups: 1, channels, filters, space: vec![Space::same(size, kernel, stride); 2] })
    };
    let convs = [
        shape("conv 7x7s2 3-64 @224", 224, 3, 64, 7, 2),
        shape("conv 1x1 64-256 @56", 56, 64, 256, 1, 1),
        shape("conv 3x3 64-64 @56", 56, 64, 64, 3, 1),
        shape("conv 3x3 128-128 @28", 28, 128, 128, 3, 1),
        shape("conv 3x3 256-256 @14", 14, 256, 256, 3, 1),
        shape("conv 1x1 1024-256 @14", 14, 1024, 256, 1, 1),
        shape("conv 3x3 512-512 @7", 7, 512, 512, 3, 1),
        shape("conv 1x1s2 256-512 @56", 56, 256, 512, 1, 2),
        shape("conv 1x1 2048-512 @7", 7, 2048, 512, 1, 1),
        shape("conv 3x3 16-16 @32", 32, 16, 16, 3, 1),
    ];
    for (name, c) in convs.iter().filter(|(name, _)| wanted(name)) {
        measure(name, &Contraction { right: RightForm::Packed, ..c.forward(Element::F32) }, &isas);
    }
    for (name, c) in &convs {
        let name = name.replace("conv", "wgrad");
        if wanted(&name) {
            measure(&name, &c.weight_gradient(Element::F32), &isas);
        }
    }
    for (m, n, k) in
        [(1024, 1024, 1024), (256, 256, 256), (64, 64, 64), (8, 4096, 1024), (1, 1024, 1024), (512, 3072, 768)]
    {
        for right in [RightForm::Plain, RightForm::Packed] {
            let name = format!("gemm {m}x{n}x{k} {right:?}");
            if wanted(&name) {
                measure(&name, &Contraction { right, ..Contraction::product(Element::F32, m, n, k) }, &isas);
            }
        }
    }
    for (name, d) in [
        ("attention QK^T 96x64x64x32", batched(96, 64, 64, 32, true)),
        ("attention PV 96x64x32x64", batched(96, 64, 32, 64, false)),
        ("attention QK^T 16x512x512x64", batched(16, 512, 512, 64, true)),
        ("attention PV 16x512x64x512", batched(16, 512, 64, 512, false)),
    ] {
        if wanted(name) {
            measure(name, &d, &isas);
        }
    }
}
