//! The oracle: the definition, element by element, and random descriptors.
#![allow(dead_code, unreachable_pub)]

pub mod conv;

use intwain_micro::{
    Contraction, Element, Epilogue, Isa, Operand, Output, Plan, RightForm, Start, Storage, Summation, Sums, Window,
};

/// f32 or f64 with exact fused multiply-add and bit comparison.
pub trait Real: Copy + Default + PartialEq + std::fmt::Debug {
    const ELEMENT: Element;
    fn fma(self, b: Self, c: Self) -> Self;
    fn from(x: f64) -> Self;
    fn bits(self) -> u64;
}

impl Real for f32 {
    const ELEMENT: Element = Element::F32;
    fn fma(self, b: f32, c: f32) -> f32 {
        self.mul_add(b, c)
    }
    fn from(x: f64) -> f32 {
        x as f32
    }
    fn bits(self) -> u64 {
        if self.is_nan() { 1 << 40 } else { u64::from(self.to_bits()) }
    }
}

impl Real for f64 {
    const ELEMENT: Element = Element::F64;
    fn fma(self, b: f64, c: f64) -> f64 {
        self.mul_add(b, c)
    }
    fn from(x: f64) -> f64 {
        x
    }
    fn bits(self) -> u64 {
        if self.is_nan() { f64::NAN.to_bits() } else { self.to_bits() }
    }
}

/// Row-major index tuples of a box.
pub fn indices(extents: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &e in extents {
        all = all.into_iter().flat_map(|p: Vec<usize>| (0..e).map(move |i| [p.as_slice(), &[i]].concat())).collect();
    }
    all
}

fn dot(index: &[usize], strides: &[isize]) -> isize {
    index.iter().zip(strides).map(|(i, s)| *i as isize * s).sum()
}

fn value<T: Real>(o: &Operand, data: &[T], batch: &[usize], outer: &[usize], k: &[usize]) -> T {
    let mut at = o.base as isize + dot(batch, &o.batch) + dot(outer, &o.outer) + dot(k, &o.k);
    for w in &o.windows {
        let v = (outer[w.outer_dim] * w.stride + k[w.k_dim] * w.dilation) as isize - w.low_pad;
        let q = w.input_dilation as isize;
        if v < 0 || v % q != 0 || v / q >= w.extent as isize {
            return T::default();
        }
        at += v / q * w.address_stride;
    }
    data[at as usize]
}

pub fn naive<T: Real>(d: &Contraction, a: &[T], b: &[T], c: &mut [T]) {
    let (ms, ns, ks) = (indices(&d.m), indices(&d.n), indices(&d.k));
    for batch in indices(&d.batch) {
        for m in &ms {
            for n in &ns {
                let at = d.c.base as isize + dot(&batch, &d.c.batch) + dot(m, &d.c.m) + dot(n, &d.c.n);
                let c = &mut c[at as usize];
                let acc = match d.start {
                    Start::Zero => T::default(),
                    Start::Accumulate => *c,
                };
                let step = |acc: T, k: &Vec<usize>| value(&d.a, a, &batch, m, k).fma(value(&d.b, b, &batch, n, k), acc);
                *c = match d.summation {
                    Summation::Chain => ks.iter().fold(acc, step),
                    Summation::Tree { length } => {
                        let mut level: Vec<T> = ks
                            .chunks(length)
                            .map(|block| {
                                let sum = block.iter().fold(T::default(), step);
                                (block.len()..length).fold(sum, |sum, _| T::default().fma(T::default(), sum))
                            })
                            .collect();
                        while level.len() > 1 {
                            let pair = |p: &[T]| if let [x, y] = p { x.fma(T::from(1.0), *y) } else { p[0] };
                            level = level.chunks(2).map(pair).collect();
                        }
                        level.pop().unwrap_or_default()
                    }
                };
            }
        }
    }
}

/// Numbers whose products need every bit.
pub fn data<T: Real>(len: usize, seed: u64) -> Vec<T> {
    let mut s = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            T::from((s >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0)
        })
        .collect()
}

/// Runs a plan with its tasks in the given pieces (by cut points), each with fresh scratch, last piece first.
pub fn run_cut<T: Real>(
    plan: &Plan,
    right: RightForm,
    a: &[T],
    b: &[T],
    c: &mut [T],
    epilogue: Option<Epilogue>,
    cuts: &[usize],
) {
    let mut packed = vec![T::default(); plan.packed_len()];
    let b = match right {
        RightForm::Plain => b.as_ptr(),
        RightForm::Packed => {
            // SAFETY: the buffers are as long as the descriptor and the plan say.
            unsafe { plan.pack(b.as_ptr().cast(), packed.as_mut_ptr().cast()) };
            packed.as_ptr()
        }
    };
    let mut points: Vec<usize> = cuts.iter().map(|c| c % (plan.tasks() + 1)).chain([0, plan.tasks()]).collect();
    points.sort_unstable();
    for piece in points.windows(2).rev() {
        let mut scratch = vec![0xFFu8; plan.scratch_bytes()];
        let (a, c) = (a.as_ptr().cast(), c.as_mut_ptr().cast());
        // SAFETY: the buffers are as long as the descriptor says.
        unsafe { plan.run(a, b.cast(), c, epilogue, piece[0]..piece[1], &mut scratch) };
    }
}

pub fn same<T: Real>(found: &[T], expected: &[T]) -> Result<(), String> {
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        if f.bits() != e.bits() {
            return Err(format!("element {i}: {f:?}, expected {e:?}"));
        }
    }
    Ok(())
}

/// Compares every instruction set and both forms of B with the definition.
pub fn check<T: Real>(d: &Contraction, seed: u64, cuts: &[usize]) -> Result<(), String> {
    let (a, b, old): (Vec<T>, Vec<T>, Vec<T>) = (data(d.a.len, seed), data(d.b.len, seed + 1), data(d.c.len, seed + 2));
    let mut expected = old.clone();
    naive(d, &a, &b, &mut expected);
    for isa in Isa::supported() {
        for right in [RightForm::Plain, RightForm::Packed] {
            let plan = Plan::new(&Contraction { right, ..d.clone() }, isa).map_err(|e| e.to_string())?;
            let mut c = old.clone();
            run_cut(&plan, right, &a, &b, &mut c, None, cuts);
            same(&c, &expected).map_err(|e| format!("{isa:?} {right:?} {e}\n{plan:?}"))?;
        }
    }
    Ok(())
}

/// Random convolutions of ranks 1 to 3.
pub fn convolution(draw: &mut Draw<'_>) -> conv::Conv {
    let rank = 1 + draw.below(3);
    let most = [40, 19, 9][rank - 1];
    let space = |draw: &mut Draw<'_>| {
        let (kernel, stride) = (1 + draw.below(4), 1 + draw.below(3));
        let plain = draw.below(3) < 2;
        let dilation = if plain { 1 } else { 1 + draw.below(2) };
        let input_dilation = if plain { 1 } else { 1 + draw.below(2) };
        let (input, low_pad, high_pad) = (1 + draw.below(most), draw.below(4), draw.below(4));
        let padded = (input - 1) * input_dilation + 1 + low_pad + high_pad;
        let reach = (kernel - 1) * dilation + 1;
        let output = if padded < reach { 1 } else { (padded - reach) / stride + 1 };
        conv::Space { input, output, kernel, stride, dilation, low_pad: low_pad as isize - 1, input_dilation }
    };
    let space: Vec<conv::Space> = (0..rank).map(|_| space(draw)).collect();
    let outputs: usize = space.iter().map(|s| s.output * s.kernel).product();
    let few = (4000 / outputs).clamp(1, 19);
    conv::Conv {
        batch: 1 + draw.below(3),
        groups: 1 + draw.below(5) / 3,
        channels: 1 + draw.below(few),
        filters: [1, 3, 16, 33, 40][draw.below(5)].min(8000 / outputs + 1),
        space,
    }
}

/// Decisions drawn from bytes, so that failures shrink.
pub struct Draw<'a>(pub &'a [u8]);

impl Draw<'_> {
    pub fn below(&mut self, n: usize) -> usize {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(*first) % n
    }

    fn extent(&mut self) -> usize {
        [1, 2, 3, 4, 5, 7, 8, 13, 16, 17, 31, 0][self.below(23) % 12]
    }

    fn extents(&mut self, most_dims: usize, most: usize) -> Vec<usize> {
        let mut volume = 1;
        (0..self.below(most_dims + 1))
            .map(|_| {
                let e = self.extent().min(most / volume);
                volume *= e.max(1);
                e
            })
            .collect()
    }

    /// Strides for dims in a random memory order with random gaps and signs; also the base and length.
    fn layout(&mut self, extents: &[usize], spread: bool) -> (Vec<isize>, usize, usize) {
        let mut order: Vec<usize> = (0..extents.len()).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, self.below(i + 1));
        }
        let mut strides = vec![0; extents.len()];
        let (mut next, mut base, mut reach) = (1isize, 0isize, 0isize);
        for i in order {
            let kind = self.below(8);
            if spread && kind == 0 {
                continue;
            }
            let step = next + isize::from(kind == 1);
            let last = (extents[i] as isize - 1).max(0) * step;
            reach += last;
            strides[i] = if kind == 2 { -step } else { step };
            base += if kind == 2 { last } else { 0 };
            next = reach + 1;
        }
        (strides, base as usize, reach as usize + 1)
    }

    fn operand(&mut self, batch: &[usize], outer: &[usize], k: &[usize], windowed: bool) -> Operand {
        let pairs = if windowed { self.below(outer.len().min(k.len()) + 1) } else { 0 };
        let mut windows = vec![];
        let mut extents: Vec<usize> = [batch, outer, k].concat();
        for i in 0..pairs {
            let (outer_dim, k_dim) = (outer.len() - 1 - i, i);
            extents[batch.len() + outer_dim] = 1;
            extents[batch.len() + outer.len() + k_dim] = 1;
            let w = Window {
                outer_dim,
                k_dim,
                stride: 1 + self.below(3),
                dilation: 1 + self.below(3),
                low_pad: self.below(7) as isize - 2,
                input_dilation: 1 + self.below(5) / 3,
                extent: 1 + self.below(9),
                address_stride: 0,
            };
            extents.push(w.extent);
            windows.push(w);
        }
        let (strides, base, len) = self.layout(&extents, true);
        let (b, rest) = strides.split_at(batch.len());
        let (o, rest) = rest.split_at(outer.len());
        let (k, coordinates) = rest.split_at(k.len());
        for (w, stride) in windows.iter_mut().zip(coordinates) {
            w.address_stride = *stride;
        }
        let zeroed = |strides: &[isize], hit: &dyn Fn(usize) -> bool| {
            strides.iter().enumerate().map(|(i, s)| if hit(i) { 0 } else { *s }).collect()
        };
        Operand {
            len,
            base,
            batch: b.to_vec(),
            outer: zeroed(o, &|i| windows.iter().any(|w| w.outer_dim == i)),
            k: zeroed(k, &|i| windows.iter().any(|w| w.k_dim == i)),
            windows: windows.clone(),
        }
    }

    pub fn contraction(&mut self, element: Element) -> Contraction {
        let batch = self.extents(2, 4);
        let m = self.extents(3, 90);
        let n = self.extents(2, 90);
        let k = self.extents(3, 60);
        let a_windows = self.below(3) > 0;
        let b_windows = self.below(4) == 0;
        let a = self.operand(&batch, &m, &k, a_windows);
        let b = self.operand(&batch, &n, &k, b_windows);
        let columns: usize = n.iter().product();
        let rows: Vec<usize> = [batch.as_slice(), &m].concat();
        let (strides, base, len) = self.layout(&rows, false);
        let wide = |s: &isize| *s * (columns.max(1) as isize + 1);
        let c = Output {
            len: len * (columns.max(1) + 1),
            base: base * (columns.max(1) + 1),
            batch: strides[..batch.len()].iter().map(wide).collect(),
            m: strides[batch.len()..].iter().map(wide).collect(),
            n: (0..n.len()).map(|i| n[i + 1..].iter().product::<usize>() as isize).collect(),
        };
        let start = if self.below(2) == 0 { Start::Zero } else { Start::Accumulate };
        Contraction {
            element,
            batch,
            m,
            n,
            k,
            a,
            b,
            c,
            start,
            summation: Summation::Chain,
            right: RightForm::Plain,
            storage: Storage::Element,
            sums: Sums::Result,
        }
    }
}
