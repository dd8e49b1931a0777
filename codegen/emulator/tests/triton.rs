//! PTX that Triton 3.9 emitted for sm_80, from kernels written for this test, against f64.
#![allow(clippy::unwrap_used)]

mod common;
use common::*;

fn run(text: &str, kernel: &str, device: &Device, grid: [u32; 3], shared: u32, mut args: Vec<Arg>) {
    let module = Module::parse(text).unwrap_or_else(|e| panic!("{kernel}: {e}"));
    // Triton appends scratch pointers that these kernels do not use.
    let sizes = module.parameters(kernel).unwrap();
    args.resize(sizes.len(), Arg::U64(0));
    device.launch(&module, kernel, launch(grid, [128, 1, 1], shared), &args).unwrap_or_else(|e| panic!("{e}"));
}

fn bf16(v: f32) -> u16 {
    let bits = v.to_bits();
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn widen(v: u16) -> f32 {
    f32::from_bits(u32::from(v) << 16)
}

fn halves(device: &Device, values: &[u16]) -> u64 {
    device.upload(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()).unwrap()
}

fn both(f: impl Fn(Device)) {
    for schedule in [Schedule::Late, Schedule::Early] {
        let mut device = device();
        device.schedule = schedule;
        f(device);
    }
}

#[test]
fn pointwise_with_a_masked_tail() {
    both(|device| {
        let (n, mut random) = (1300, Random(1));
        let x: Vec<f32> = (0..n).map(|_| random.float() * 4.0).collect();
        let y: Vec<f32> = (0..n).map(|_| random.float() * 4.0).collect();
        let out = device.alloc(4 * n as u64).unwrap();
        let args =
            vec![Arg::U64(floats(&device, &x)), Arg::U64(floats(&device, &y)), Arg::U64(out), Arg::U32(n as u32)];
        run(include_str!("ptx/gelu_add.ptx"), "gelu_add", &device, [3, 1, 1], 0, args);
        for (i, v) in read_floats(&device, out, n).into_iter().enumerate() {
            let t = f64::from(x[i]) + f64::from(y[i]);
            let wanted = t / (1.0 + (-1.702 * t).exp());
            assert!((f64::from(v) - wanted).abs() < 2e-6 * (1.0 + wanted.abs()), "{i}: {v} {wanted}");
        }
    });
}

#[test]
fn softmax_of_rows() {
    both(|device| {
        let (rows, n, mut random) = (5usize, 333usize, Random(2));
        let x: Vec<f32> = (0..rows * n).map(|_| random.float() * 9.0).collect();
        let out = device.alloc(4 * (rows * n) as u64).unwrap();
        let args = vec![Arg::U64(floats(&device, &x)), Arg::U64(out), Arg::U32(n as u32), Arg::U32(n as u32)];
        run(include_str!("ptx/softmax.ptx"), "softmax", &device, [rows as u32, 1, 1], 16, args);
        let got = read_floats(&device, out, rows * n);
        for (row, got) in x.chunks(n).zip(got.chunks(n)) {
            let e: Vec<f64> = row.iter().map(|&v| f64::from(v).exp()).collect();
            let sum: f64 = e.iter().sum();
            for (e, &v) in e.iter().zip(got) {
                assert!((f64::from(v) - e / sum).abs() < 3e-6 * e / sum, "{v} {}", e / sum);
            }
        }
    });
}

#[test]
fn layer_norm_of_rows() {
    both(|device| {
        let (rows, n, mut random) = (3usize, 400usize, Random(3));
        let x: Vec<u16> = (0..rows * n).map(|_| bf16(random.float() * 3.0)).collect();
        let w: Vec<f32> = (0..n).map(|_| random.float()).collect();
        let b: Vec<f32> = (0..n).map(|_| random.float()).collect();
        let out = device.alloc(2 * (rows * n) as u64).unwrap();
        let args = vec![
            Arg::U64(halves(&device, &x)),
            Arg::U64(floats(&device, &w)),
            Arg::U64(floats(&device, &b)),
            Arg::U64(out),
            Arg::U32(n as u32),
            Arg::F32(1e-5),
        ];
        run(include_str!("ptx/layer_norm.ptx"), "layer_norm", &device, [rows as u32, 1, 1], 1024, args);
        let mut bytes = vec![0; 2 * rows * n];
        device.read(out, &mut bytes).unwrap();
        for (i, got) in bytes.chunks(2).map(|c| widen(u16::from_le_bytes([c[0], c[1]]))).enumerate() {
            let row: Vec<f64> = x[i / n * n..][..n].iter().map(|&v| f64::from(widen(v))).collect();
            let mean = row.iter().sum::<f64>() / n as f64;
            let var = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let wanted = (row[i % n] - mean) / (var + 1e-5).sqrt() * f64::from(w[i % n]) + f64::from(b[i % n]);
            assert!((f64::from(got) - wanted).abs() < 0.005 * (0.05 + wanted.abs()), "{i}: {got} {wanted}");
        }
    });
}

/// Small integers are exact in bf16 and in sums of any order, so the result must be exact.
#[test]
fn matmul_with_tensor_cores_and_asynchronous_copies() {
    both(|device| {
        let ([m, n, k], mut random) = ([50usize, 48usize, 112usize], Random(4));
        let mut small = |count: usize| -> Vec<f32> { (0..count).map(|_| (random.word() % 17) as f32 - 8.0).collect() };
        let (a, b) = (small(m * k), small(k * n));
        let half = |v: &[f32]| halves(&device, &v.iter().map(|&v| bf16(v)).collect::<Vec<_>>());
        let out = device.alloc(4 * (m * n) as u64).unwrap();
        let mut args = vec![Arg::U64(half(&a)), Arg::U64(half(&b)), Arg::U64(out)];
        args.extend([m, n, k].map(|v| Arg::U32(v as u32)));
        run(include_str!("ptx/matmul.ptx"), "matmul", &device, [2, 2, 1], 8192, args);
        for (i, v) in read_floats(&device, out, m * n).into_iter().enumerate() {
            let wanted: f32 = (0..k).map(|e| a[i / n * k + e] * b[e * n + i % n]).sum();
            assert_eq!(v, wanted, "{i}");
        }
    });
}

#[test]
fn matmul_in_tf32_through_four_stages() {
    both(|device| {
        let ([m, n, k], mut random) = ([50usize, 48usize, 176usize], Random(5));
        let mut small = |count: usize| -> Vec<f32> { (0..count).map(|_| (random.word() % 17) as f32 - 8.0).collect() };
        let (a, b) = (small(m * k), small(k * n));
        let out = device.alloc(4 * (m * n) as u64).unwrap();
        let mut args = vec![Arg::U64(floats(&device, &a)), Arg::U64(floats(&device, &b)), Arg::U64(out)];
        args.extend([m, n, k].map(|v| Arg::U32(v as u32)));
        run(include_str!("ptx/matmul_tf32.ptx"), "matmul", &device, [2, 2, 1], SHARED, args);
        for (i, v) in read_floats(&device, out, m * n).into_iter().enumerate() {
            let wanted: f32 = (0..k).map(|e| a[i / n * k + e] * b[e * n + i % n]).sum();
            assert_eq!(v, wanted, "{i}");
        }
    });
}

/// What Triton's metadata asks for: three buffers in flight of two 32×32 f32 tiles.
const SHARED: u32 = 3 * 2 * 32 * 32 * 4;

/// The tf32 product with one line changed; whether the launch faults.
fn mutant(change: impl Fn(usize, &str) -> Option<String>) -> Result<(), FaultKind> {
    let text = include_str!("ptx/matmul_tf32.ptx");
    let lines: Vec<String> =
        text.lines().enumerate().map(|(i, line)| change(i, line).unwrap_or_else(|| line.to_owned())).collect();
    let (device, n) = (device(), 160usize);
    let ones = floats(&device, &vec![1.0; n * n]);
    let out = device.alloc(4 * (n * n) as u64).unwrap();
    let mut args = vec![Arg::U64(ones), Arg::U64(ones), Arg::U64(out)];
    args.extend([Arg::U32(n as u32), Arg::U32(n as u32), Arg::U32(n as u32), Arg::U64(0), Arg::U64(0)]);
    let module = Module::parse(&lines.join("\n")).unwrap();
    match device.launch(&module, "matmul", launch([1, 1, 1], [128, 1, 1], SHARED), &args) {
        Ok(_) => Ok(()),
        Err(LaunchError::Fault(fault)) => Err(fault.kind),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn mutants_of_the_pipeline_are_caught() {
    mutant(|_, _| None).unwrap();
    let text = include_str!("ptx/matmul_tf32.ptx");
    let places = |word: &str| -> Vec<usize> {
        text.lines().enumerate().filter(|(_, l)| l.contains(word)).map(|(i, _)| i).collect()
    };
    let replace = |at: usize, by: &'static str| mutant(move |i, _| (i == at).then(|| by.to_owned()));
    // Each wait, letting one more group fly than it does; the doubled wait at the loop's end covers for its twin.
    let lax: Vec<_> =
        places("cp.async.wait_group").into_iter().map(|at| replace(at, "cp.async.wait_group 5;")).collect();
    assert!(lax.contains(&Err(FaultKind::InFlight)), "{lax:?}");
    // Each barrier removed. The one at the head of the loop is not needed: from the one before it to the one after it
    // shared memory is only read.
    let removed: Vec<_> = places("bar.sync").into_iter().map(|at| replace(at, "")).collect();
    let races = removed.iter().filter(|r| matches!(r, Err(FaultKind::Race { .. }))).count();
    assert_eq!((removed.len(), races), (6, 5), "{removed:?}");
}
