//! Fusion by substitution keeps every bit: random chains of operations, evaluated one after another and as one compute.

use crate::cases::{Fill, Random};
use intwain_ir::compute::{Compute, Expr};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Def, Graph, Rows, Scalar, Shape, Tensor, Type, Value, interp};

/// A random chain with its arguments.
struct Chain {
    g: Graph,
    args: Vec<Tensor>,
    random: Random,
}

impl Chain {
    fn input(&mut self, shape: &[usize], fill: Fill) -> Value {
        let t = fill.tensor(shape, &mut self.random);
        let v = self.g.input(&format!("x{}", self.args.len()), t.ty.clone(), Rows::Whole);
        self.args.push(t);
        v
    }

    fn real(&mut self, shape: &[usize]) -> Value {
        self.input(shape, Fill::Real(DType::F32, -1.0, 1.0))
    }

    fn push(&mut self, op: impl Into<Op>, args: &[Value]) -> Value {
        self.g.push(op, args).unwrap()
    }

    /// One more operation on `x`, of a random kind that fits.
    fn grow(&mut self, x: Value) -> Value {
        let s: Vec<usize> = self.g.shape(x).to_vec();
        let rank = s.len();
        let dim = if rank > 0 { self.random.below(rank) } else { 0 };
        let coin = self.random.below(2) == 0;
        match self.random.below(16) {
            0 => {
                let function = [Unary::Tanh, Unary::Exp, Unary::Neg, Unary::Abs, Unary::Logistic][self.random.below(5)];
                self.push(ops::Unary { function }, &[x])
            }
            1 => {
                let function = [Binary::Add, Binary::Mul, Binary::Max, Binary::Sub][self.random.below(4)];
                let y = if coin { self.real(&s) } else { x };
                self.push(ops::Binary { function }, &[x, y])
            }
            2 if rank < 4 => {
                let at = self.random.below(rank + 1);
                let mut shape = s.clone();
                shape.insert(at, 2);
                let dims = (0..=rank).filter(|d| *d != at).collect();
                self.push(ops::Broadcast { shape: Shape::from(shape), dims }, &[x])
            }
            3 => {
                let mut perm: Vec<usize> = (0..rank).collect();
                (1..rank).for_each(|i| perm.swap(i, self.random.below(i + 1)));
                self.push(ops::Transpose { perm }, &[x])
            }
            4 | 5 => {
                let edge = |r: &mut Random| r.below(4) as i64 - 1;
                let low: Vec<i64> = (0..rank).map(|_| edge(&mut self.random)).collect();
                let high: Vec<i64> = (0..rank).map(|_| edge(&mut self.random)).collect();
                let interior: Vec<usize> = (0..rank).map(|_| self.random.below(3) / 2).collect();
                let value = vec![Scalar::from_f64(DType::F32, [0.0, 1.5, -0.0][self.random.below(3)])];
                // Crops more than there is: the chain stays as it is.
                self.g.push(ops::Pad { low, high, interior, value }, &[x]).unwrap_or(x)
            }
            6 => {
                let start: Vec<usize> = s.iter().map(|&e| self.random.below(e + 1) / 2).collect();
                let stride = s.iter().map(|_| 1 + self.random.below(2)).collect();
                self.push(ops::Slice { start, limit: s.clone(), stride }, &[x])
            }
            7 if rank > 0 => {
                let function = Reduce::ALL[self.random.below(4)];
                let dims = if coin && rank > 1 { vec![0, rank - 1] } else { vec![dim] };
                self.push(ops::Reduce { function, dims }, &[x])
            }
            8 if rank > 0 => self.push(ops::Reverse { dims: vec![dim] }, &[x]),
            9 if rank > 0 => match self.random.below(3) {
                0 => self.push(ops::Softmax { dim }, &[x]),
                1 => self.push(ops::LogSoftmax { dim }, &[x]),
                _ => self.push(ops::Standardize { dims: vec![dim], epsilon: 0.1 }, &[x]),
            },
            10 if rank > 0 => {
                let mut shape = s.clone();
                shape[dim] = 2;
                let y = self.real(&shape);
                self.push(ops::Concat { dim }, &if coin { [x, y] } else { [y, x] })
            }
            11 => {
                let c = self.input(&s, Fill::Bool);
                let y = self.real(&s);
                self.push(ops::Select {}, &if coin { [c, x, y] } else { [c, y, x] })
            }
            12 if rank == 3 || rank == 4 => {
                let n = rank - 2;
                let op = ops::Conv {
                    stride: vec![1 + self.random.below(2); n],
                    pads: vec![(self.random.below(2) as i64, 1); n],
                    input_dilation: vec![1 + self.random.below(2); n],
                    kernel_dilation: vec![1 + self.random.below(2); n],
                    groups: 1,
                    batch_groups: 1,
                };
                let w: Vec<usize> = std::iter::repeat_n(2, n).chain([s[rank - 1], 2]).collect();
                let w = self.real(&w);
                self.push(op, &[x, w])
            }
            13 if rank == 3 || rank == 4 => {
                let n = rank - 2;
                let op = ops::Pool {
                    function: if coin { Reduce::Sum } else { Reduce::Max },
                    size: vec![2; n],
                    stride: vec![1 + self.random.below(2); n],
                    pads: vec![(1, self.random.below(2) as i64); n],
                    dilation: vec![1; n],
                    input_dilation: vec![1; n],
                };
                self.push(op, &[x])
            }
            14 if rank > 0 => {
                let y = self.real(&[3, s[dim]]);
                let op = ops::Contract { batch: vec![], contract: vec![if coin { (dim, 1) } else { (1, dim) }] };
                self.push(op, &if coin { [x, y] } else { [y, x] })
            }
            15 => {
                let wide = self.push(ops::Cast { to: DType::F64 }, &[x]);
                let root = self.g.unary(Unary::Sin, wide).unwrap();
                self.push(ops::Cast { to: DType::F32 }, &[root])
            }
            _ => self.push(ops::Unary { function: Unary::Neg }, &[x]),
        }
    }
}

/// The compute of a value over the graph's parameters alone.
fn fuse(g: &Graph, value: Value) -> Compute {
    let Def::Node(node, 0) = g.values[value].def else { panic!("{value} is not computed") };
    let mut compute = g.compute(node).unwrap();
    // Operands are numbered by value: params first, then nodes.
    let args = g.nodes[node].args.clone();
    compute = compute.renumber(&|i| args[i].as_u32() as usize);
    while let Some(which) = computed_operand(g, &compute) {
        let Def::Node(producer, result) = g.values[Value::from_u32(which as u32)].def else { unreachable!() };
        let args = g.nodes[producer].args.clone();
        let made = g.compute(producer).unwrap();
        compute = compute.inline(which, &made, result, &|i| args[i].as_u32() as usize);
    }
    compute
}

fn computed_operand(g: &Graph, compute: &Compute) -> Option<usize> {
    let live = compute.reachable();
    let loads = compute.exprs().filter(|(id, _)| live[id.0 as usize]).filter_map(|(_, e)| match e {
        Expr::Load { operand, .. } => Some(*operand),
        _ => None,
    });
    loads.filter(|o| matches!(g.values[Value::from_u32(*o as u32)].def, Def::Node(..))).max()
}

#[test]
fn fused_chains_give_the_same_bits() {
    let mut fused_some = 0;
    for seed in 0..600 {
        let mut c = Chain { g: Graph::new("chain"), args: Vec::new(), random: Random::new(seed) };
        let rank = 1 + c.random.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| [1, 2, 3, 4, 5][c.random.below(5)]).collect();
        let first = c.real(&shape);
        let mut x = first;
        let length = 2 + c.random.below(3);
        for _ in 0..length {
            let next = c.grow(x);
            if c.g.shape(next).elements() > 600 {
                break;
            }
            x = next;
        }
        if c.g.def_node(x).is_none() {
            continue;
        }
        c.g.output("y", x);
        let want = interp::run(&c.g, c.args.clone()).unwrap().remove(0);
        let compute = fuse(&c.g, x);
        if compute.flops() > 3_000_000 {
            continue;
        }
        fused_some += usize::from(c.g.nodes.len() > 1);
        // Operands by value number; those of nodes are never read.
        let nothing = Tensor::zeros(Type::new(DType::F32, [0]));
        let mut operands = vec![&nothing; c.g.values.len()];
        for (p, t) in c.g.params.iter().zip(&c.args) {
            operands[p.value.as_u32() as usize] = t;
        }
        let got = interp::evaluate(&compute, &operands, &[&want.ty]).remove(0);
        let same = |i: usize| {
            let (a, b) = (got.get(i), want.get(i));
            a == b || (a.to_f64().is_nan() && b.to_f64().is_nan())
        };
        assert!(
            (0..want.elements()).all(same),
            "seed {seed}\n{}\n{compute}\n{:?}\n{:?}",
            c.g,
            got.to_f64(),
            want.to_f64()
        );
    }
    assert!(fused_some > 400, "{fused_some}");
}

/// A producer used in two places at different positions, and a row reduction inlined into a row reduction.
#[test]
fn one_producer_in_several_places() {
    let mut g = Graph::new("twice");
    let ty = Type::new(DType::F32, [3, 4]);
    let (x, w) = (g.input("x", ty, Rows::Whole), g.input("w", Type::new(DType::F32, [4, 4]), Rows::Whole));
    let xw = g.matmul(x, w).unwrap();
    let soft = g.push(ops::Softmax { dim: 1 }, &[xw]).unwrap();
    let again = g.push(ops::Standardize { dims: vec![0, 1], epsilon: 1e-3 }, &[soft]).unwrap();
    let y = g.mul(again, xw).unwrap();
    g.output("y", y);
    let mut random = Random::new(21);
    let real = Fill::Real(DType::F32, -1.0, 1.0);
    let args = vec![real.tensor(&[3, 4], &mut random), real.tensor(&[4, 4], &mut random)];
    let want = interp::run(&g, args.clone()).unwrap().remove(0);
    let compute = fuse(&g, y);
    let got = interp::evaluate(&compute, &[&args[0], &args[1]], &[&want.ty]).remove(0);
    assert_eq!(got, want);
}
