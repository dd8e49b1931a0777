//! The evaluator against formulas written out in f64, on random shapes with extents of 0, 1 and primes.

use crate::cases::{Case, Fill, Random};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Tensor, interp};

const EXTENTS: [usize; 8] = [0, 1, 1, 2, 3, 5, 7, 11];

fn extent(random: &mut Random) -> usize {
    EXTENTS[random.below(EXTENTS.len())]
}

fn real(shape: &[usize], random: &mut Random) -> Tensor {
    Fill::Real(DType::F64, -1.0, 1.0).tensor(shape, random)
}

fn run(op: impl Into<Op>, args: Vec<Tensor>) -> Tensor {
    let case = Case { name: "formula".into(), op: op.into(), args };
    interp::run(&case.graph(), case.args.clone()).unwrap().remove(0)
}

#[track_caller]
fn assert_close(got: &Tensor, want: &[f64], what: &str) {
    let got = got.to_f64();
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 1e-13 * (1.0 + w.abs()), "{what}: element {i} is {g}, formula {w}");
    }
}

#[test]
fn matrix_products() {
    let mut random = Random::new(11);
    for _ in 0..60 {
        let [b, m, k, n] = [(); 4].map(|()| extent(&mut random));
        let (x, y) = (real(&[b, m, k], &mut random), real(&[k, b, n], &mut random));
        let (xs, ys) = (x.to_f64(), y.to_f64());
        let mut want = Vec::new();
        for i in 0..b {
            for r in 0..m {
                for c in 0..n {
                    want.push((0..k).map(|t| xs[(i * m + r) * k + t] * ys[(t * b + i) * n + c]).sum());
                }
            }
        }
        let op = ops::Contract { batch: vec![(0, 1)], contract: vec![(2, 0)] };
        assert_close(&run(op, vec![x, y]), &want, &format!("{b}×[{m}, {k}]·[{k}, {n}]"));
    }
}

/// Attributes of one spatial dimension and its extents.
struct Line {
    x: usize,
    k: usize,
    stride: usize,
    pads: (i64, i64),
    input_dilation: usize,
    dilation: usize,
}

impl Line {
    fn random(random: &mut Random) -> Line {
        Line {
            x: extent(random),
            k: 1 + random.below(3),
            stride: 1 + random.below(3),
            pads: (random.below(5) as i64 - 1, random.below(5) as i64 - 1),
            input_dilation: 1 + random.below(3),
            dilation: 1 + random.below(3),
        }
    }

    /// The padded, dilated line: which input position stands at each place.
    fn laid_out(&self) -> Vec<Option<usize>> {
        let mut line: Vec<Option<usize>> = Vec::new();
        for i in 0..self.x {
            if i > 0 {
                line.extend(std::iter::repeat_n(None, self.input_dilation - 1));
            }
            line.push(Some(i));
        }
        let edge = |n: i64, line: &mut Vec<Option<usize>>, front: bool| {
            for _ in 0..n.unsigned_abs() {
                match (n > 0, front) {
                    (true, true) => line.insert(0, None),
                    (true, false) => line.push(None),
                    (false, true) if !line.is_empty() => drop(line.remove(0)),
                    (false, true) => {}
                    (false, false) => drop(line.pop()),
                }
            }
        };
        // What is added before may be cropped from behind.
        for added in [true, false] {
            for (n, front) in [(self.pads.0, true), (self.pads.1, false)] {
                if (n > 0) == added {
                    edge(n, &mut line, front);
                }
            }
        }
        line
    }

    /// For each output position, the input position under each window element.
    fn windows(&self) -> Vec<Vec<Option<usize>>> {
        let line = self.laid_out();
        let reach = (self.k - 1) * self.dilation + 1;
        let starts = (0..line.len()).step_by(self.stride).filter(|p| p + reach <= line.len());
        starts.map(|p| (0..self.k).map(|i| line[p + i * self.dilation]).collect()).collect()
    }
}

fn two_lines(random: &mut Random) -> [Line; 2] {
    [Line::random(random), Line::random(random)]
}

#[test]
fn convolutions() {
    let mut random = Random::new(12);
    for round in 0..150 {
        let lines = two_lines(&mut random);
        let [h, w] = lines.each_ref().map(Line::windows);
        let (groups, batch_groups) = [(1, 1), (2, 1), (3, 1), (1, 2)][random.below(4)];
        let (cg, og) = (random.below(4), 1 + random.below(3));
        let (channels, outputs) = (cg * groups, og * groups * batch_groups);
        let rows = extent(&mut random).min(3);
        let x = real(&[rows * batch_groups, lines[0].x, lines[1].x, channels], &mut random);
        let k = real(&[lines[0].k, lines[1].k, cg, outputs], &mut random);
        let (xs, ks) = (x.to_f64(), k.to_f64());
        let mut want = Vec::new();
        for n in 0..rows {
            for hy in &h {
                for wx in &w {
                    for o in 0..outputs {
                        let (group, row) = match batch_groups {
                            1 => (o / og, n),
                            _ => (0, o / og * rows + n),
                        };
                        let mut sum = 0.0;
                        for (i, y) in hy.iter().enumerate() {
                            for (j, x) in wx.iter().enumerate() {
                                let (Some(y), Some(x)) = (y, x) else { continue };
                                for c in 0..cg {
                                    let at = ((row * lines[0].x + y) * lines[1].x + x) * channels + group * cg + c;
                                    sum += xs[at] * ks[((i * lines[1].k + j) * cg + c) * outputs + o];
                                }
                            }
                        }
                        want.push(sum);
                    }
                }
            }
        }
        let op = ops::Conv {
            stride: lines.iter().map(|l| l.stride).collect(),
            pads: lines.iter().map(|l| l.pads).collect(),
            input_dilation: lines.iter().map(|l| l.input_dilation).collect(),
            kernel_dilation: lines.iter().map(|l| l.dilation).collect(),
            groups,
            batch_groups,
        };
        // Cropping more than there is gives no position, as any window that does not fit.
        assert_close(&run(op.clone(), vec![x, k]), &want, &format!("round {round}: {op:?}"));
    }
}

#[test]
fn pools() {
    let mut random = Random::new(13);
    for round in 0..150 {
        let mut lines = two_lines(&mut random);
        let function = [Reduce::Sum, Reduce::Max][random.below(2)];
        if function == Reduce::Max {
            lines.iter_mut().for_each(|l| l.input_dilation = 1);
        }
        let [h, w] = lines.each_ref().map(Line::windows);
        let (n, channels) = (extent(&mut random).min(3), extent(&mut random));
        let x = real(&[n, lines[0].x, lines[1].x, channels], &mut random);
        let xs = x.to_f64();
        let mut want = Vec::new();
        for row in 0..n {
            for hy in &h {
                for wx in &w {
                    for c in 0..channels {
                        let inside = hy.iter().flatten().flat_map(|y| wx.iter().flatten().map(move |x| (y, x)));
                        let values = inside.map(|(y, x)| xs[((row * lines[0].x + y) * lines[1].x + x) * channels + c]);
                        want.push(match function {
                            Reduce::Sum => values.sum(),
                            _ => values.fold(f64::NEG_INFINITY, f64::max),
                        });
                    }
                }
            }
        }
        let op = ops::Pool {
            function,
            size: lines.iter().map(|l| l.k).collect(),
            stride: lines.iter().map(|l| l.stride).collect(),
            pads: lines.iter().map(|l| l.pads).collect(),
            dilation: lines.iter().map(|l| l.dilation).collect(),
            input_dilation: lines.iter().map(|l| l.input_dilation).collect(),
        };
        let got = run(op.clone(), vec![x]);
        let finite = |v: &f64| if v.is_finite() { *v } else { -1e9 };
        let got =
            Tensor::from_f64(DType::F64, got.ty.shape.clone(), &got.to_f64().iter().map(finite).collect::<Vec<_>>());
        assert_close(&got, &want.iter().map(finite).collect::<Vec<_>>(), &format!("round {round}: {op:?}"));
    }
}

#[test]
fn softmaxes_and_norms() {
    let mut random = Random::new(14);
    for _ in 0..60 {
        let [a, n, b] = [(); 3].map(|()| extent(&mut random));
        let x = real(&[a, n, b], &mut random);
        let xs = x.to_f64();
        let at = |i: usize, k: usize, j: usize| xs[(i * n + k) * b + j];
        let (mut soft, mut log, mut norm) = (Vec::new(), Vec::new(), Vec::new());
        for i in 0..a {
            for k in 0..n {
                for j in 0..b {
                    let column: Vec<f64> = (0..n).map(|t| at(i, t, j)).collect();
                    let sum: f64 = column.iter().map(|v| v.exp()).sum();
                    soft.push(at(i, k, j).exp() / sum);
                    log.push(at(i, k, j) - sum.ln());
                    let mean = column.iter().sum::<f64>() / n as f64;
                    let variance = column.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
                    norm.push((at(i, k, j) - mean) / (variance + 0.01).sqrt());
                }
            }
        }
        let what = format!("[{a}, {n}, {b}]");
        assert_close(&run(ops::Softmax { dim: 1 }, vec![x.clone()]), &soft, &what);
        assert_close(&run(ops::LogSoftmax { dim: 1 }, vec![x.clone()]), &log, &what);
        assert_close(&run(ops::Standardize { dims: vec![1], epsilon: 0.01 }, vec![x]), &norm, &what);
    }
}

/// The order of every reduction is that of its definition, bit for bit: f32 chains written out.
#[test]
fn orders_of_reductions() {
    let mut random = Random::new(15);
    for n in [0, 1, 7, 8, 9, 31] {
        let single = |shape: &[usize], r: &mut Random| Fill::Real(DType::F32, -1.0, 1.0).tensor(shape, r);
        let (x, y) = (single(&[3, n], &mut random), single(&[n, 2], &mut random));
        let f = |t: &Tensor, i: usize| t.get(i).to_f64() as f32;
        let product = run(ops::Contract { batch: vec![], contract: vec![(1, 0)] }, vec![x.clone(), y.clone()]);
        let inner = run(ops::Reduce { function: Reduce::Sum, dims: vec![1] }, vec![x.clone()]);
        let outer = run(ops::Reduce { function: Reduce::Sum, dims: vec![0] }, vec![y.clone()]);
        for r in 0..3 {
            for c in 0..2 {
                let chain = (0..n).fold(0f32, |acc, k| f(&x, r * n + k).mul_add(f(&y, k * 2 + c), acc));
                assert_eq!(f(&product, r * 2 + c), chain);
            }
            let mut p = [0f32; 8];
            (0..n).for_each(|k| p[k % 8] += f(&x, r * n + k));
            let lanes = ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));
            assert_eq!(f(&inner, r), lanes);
        }
        for c in 0..2 {
            assert_eq!(f(&outer, c), (0..n).fold(0f32, |acc, k| acc + f(&y, k * 2 + c)));
        }
    }
}

/// NaN and −0 go through reductions and windows as through the scalar table.
#[test]
fn special_numbers() {
    let nan = f64::NAN;
    let x = Tensor::from_f64(DType::F32, [1, 4, 1], &[1.0, nan, -0.0, -0.0]);
    let pool = |function: Reduce| ops::Pool {
        function,
        size: vec![2],
        stride: vec![2],
        pads: vec![(0, 0)],
        dilation: vec![1],
        input_dilation: vec![1],
    };
    let max = run(pool(Reduce::Max), vec![x.clone()]).to_f64();
    assert!(max[0].is_nan() && max[1] == 0.0 && max[1].is_sign_negative());
    // A sum starts at +0.
    let sum = run(pool(Reduce::Sum), vec![x]).to_f64();
    assert!(sum[0].is_nan() && sum[1].is_sign_positive());
    // What is padded takes part in a convolution: 0·∞ is NaN.
    let conv = ops::Conv {
        stride: vec![1],
        pads: vec![(1, 0)],
        input_dilation: vec![1],
        kernel_dilation: vec![1],
        groups: 1,
        batch_groups: 1,
    };
    let x = Tensor::from_f64(DType::F32, [1, 2, 1], &[1.0, 2.0]);
    let w = Tensor::from_f64(DType::F32, [2, 1, 1], &[f64::INFINITY, 1.0]);
    let y = run(conv, vec![x, w]).to_f64();
    assert!(y[0].is_nan() && y[1] == f64::INFINITY);
}

/// What the interpreter must manage for whole models to be run through it. Unoptimised dependencies do not count: this
/// crate is always built optimised.
#[test]
fn contractions_are_fast_enough() {
    let mut random = Random::new(16);
    let single = |shape: &[usize], r: &mut Random| Fill::Real(DType::F32, -1.0, 1.0).tensor(shape, r);
    let (x, w) = (single(&[1, 28, 28, 32], &mut random), single(&[3, 3, 32, 32], &mut random));
    let conv = ops::Conv {
        stride: vec![1, 1],
        pads: vec![(1, 1), (1, 1)],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups: 1,
        batch_groups: 1,
    };
    let steps = 28.0 * 28.0 * 32.0 * 9.0 * 32.0;
    let rate = |op: Op, args: Vec<Tensor>| {
        let once = || {
            let start = std::time::Instant::now();
            run(op.clone(), args.clone());
            steps / start.elapsed().as_secs_f64() / 1e6
        };
        (0..3).map(|_| once()).fold(0f64, f64::max)
    };
    let conv = rate(conv.into(), vec![x, w]);
    let (x, y) = (single(&[784, 288], &mut random), single(&[288, 32], &mut random));
    let dense = rate(ops::Contract { batch: vec![], contract: vec![(1, 0)] }.into(), vec![x, y]);
    // A tenth of what is expected, so that a busy machine does not fail it.
    assert!(conv > 5.0 && dense > 5.0, "convolution {conv:.0}, contraction {dense:.0} million steps a second");
}
