//! Building, checking, printing and running small kernels.

use super::*;
use crate::scalar::{Binary, Unary};

fn floats(xs: &[f32]) -> Memory {
    xs.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn tasks(begin: i64, end: i64) -> impl Fn(Id) -> i64 {
    move |id| match id {
        Id::TaskBegin => begin,
        Id::TaskEnd => end,
        _ => 0,
    }
}

/// y[i] = exp(x[i]) in vectors of four, and the running sum of x in y[n].
fn sample() -> Kernel {
    let mut b = Builder::new("sample", Entry::Tasks, Bound::Memory);
    let x = b.param(DType::F32, 8, Access::Constant);
    let y = b.param(DType::F32, 9, Access::Write);
    let (begin, end) = (b.id(Id::TaskBegin), b.id(Id::TaskEnd));
    let zero = b.constant(Scalar::zero(DType::F32));
    let l = b.open_loop(begin, end, 4, &[zero]);
    let (at, acc) = (l.var(), l.args().next().expect("one carried value"));
    let v = b.load(x, at, 0, 4);
    let e = b.unary(Unary::Exp, v);
    b.store(y, at, 0, e);
    let first = b.inst(RegType::scalar(DType::F32), Inst::Extract(v, 0));
    let next = b.binary(Binary::Add, acc, first);
    let sums = b.close_loop(l, &[next]);
    let last = b.index(8);
    b.store(y, last, 0, sums[0]);
    b.finish()
}

#[test]
fn runs() {
    let k = sample();
    verify(&k).expect("the kernel follows the rules");
    let x: Vec<f32> = (0..8).map(|i| i as f32 / 4.0).collect();
    let mut memory = vec![floats(&x), floats(&[0.0; 9])];
    run(&k, &mut memory, &tasks(0, 8)).expect("the kernel runs");
    let y = |i: usize| Scalar::read(DType::F32, &memory[1][i * 4..]).to_f64();
    for (i, x) in x.iter().enumerate() {
        assert!((y(i) - f64::from(*x).exp()).abs() < 1e-6);
    }
    assert_eq!(y(8), 1.0);
    assert_eq!(
        run(&k, &mut memory, &tasks(0, 12)).map_err(|f| f.to_string()),
        Err("p0 has 8 elements; element 8 was accessed".to_string())
    );
}

#[test]
fn prints() {
    let text = sample().to_string();
    assert!(text.contains("r9: f32 = carry r4 from r2 next r8"), "{text}");
    assert!(text.contains("for r3 in r0..r1 step 4 {"), "{text}");
}

#[test]
fn violations_are_reported() {
    let mut k = sample();
    k.params[1].access = Access::Constant;
    k.body.0.push(Stmt::Barrier);
    let undefined = k.regs.push(RegType::scalar(DType::F32));
    let twice = k.regs.keys().next().expect("there are registers");
    k.body.0.push(Stmt::Let(twice, Inst::Unary(Unary::Exp, undefined)));
    let defects = verify(&k).expect_err("the kernel breaks rules");
    let all = defects.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    for part in ["p1 is Constant", "synchronisation in a kernel for a CPU", "is used where", "defined twice"] {
        assert!(all.contains(part), "{part} is missing from\n{all}");
    }
}
