//! Bodies of scans as recurrent layers have them.

use intwain_ir::ops;
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{DType, Graph, Rows, Scalar, Shape, Type, Value};

fn f(dims: &[usize]) -> Type {
    Type::new(DType::F64, dims)
}

fn input(g: &mut Graph, name: &str, ty: Type) -> Value {
    g.input(name, ty, Rows::Whole)
}

/// A state of gates whose kernel is cut into its gates in every step; masked rows hold the state.
pub(crate) fn gated(batch: usize, units: usize) -> Graph {
    let mut g = Graph::new("gated");
    let h = input(&mut g, "h", f(&[batch, units]));
    let x = input(&mut g, "x", f(&[batch, 2 * units]));
    let mask = input(&mut g, "mask", Type::new(DType::Bool, [batch]));
    let u = input(&mut g, "u", f(&[units, 2 * units]));
    let b = input(&mut g, "b", f(&[2 * units]));
    let bias = g.broadcast(b, &Shape::from([batch, 2 * units]), &[1]).unwrap();
    let x = g.add(x, bias).unwrap();
    let part = |g: &mut Graph, v: Value, k: usize| g.slice_dim(v, 1, k * units..(k + 1) * units).unwrap();
    let (ur, uh) = (part(&mut g, u, 0), part(&mut g, u, 1));
    let product = g.matmul(h, ur).unwrap();
    let xr = part(&mut g, x, 0);
    let r = g.add(xr, product).unwrap();
    let r = g.unary(Unary::Tanh, r).unwrap();
    let kept = g.mul(r, h).unwrap();
    let product = g.matmul(kept, uh).unwrap();
    let xh = part(&mut g, x, 1);
    let next = g.add(xh, product).unwrap();
    let next = g.unary(Unary::Tanh, next).unwrap();
    let mask = g.broadcast(mask, &Shape::from([batch, units]), &[0]).unwrap();
    let next = g.select(mask, next, h).unwrap();
    g.output("h", next);
    g.output("y", next);
    g
}

/// A convolution of the state along one spatial dimension, its channels in `groups`.
pub(crate) fn convolving(batch: usize, width: usize, channels: usize, groups: usize) -> Graph {
    let mut g = Graph::new("convolving");
    let h = input(&mut g, "h", f(&[batch, width, channels]));
    let x = input(&mut g, "x", f(&[batch, width, channels]));
    let k = input(&mut g, "k", f(&[3, channels / groups, channels]));
    let b = input(&mut g, "b", f(&[channels]));
    let op = ops::Conv {
        stride: vec![1],
        pads: vec![(1, 1)],
        input_dilation: vec![1],
        kernel_dilation: vec![1],
        groups,
        batch_groups: 1,
    };
    let y = g.push(op, &[h, k]).unwrap();
    let y = g.binary_broadcast(Binary::Add, y, b).unwrap();
    let y = g.add(y, x).unwrap();
    let next = g.unary(Unary::Tanh, y).unwrap();
    g.output("h", next);
    g
}

/// The state attends to a memory that has the same rows; the query's kernel is scaled in every step, a mask of the rows
/// is part of the state's update.
pub(crate) fn attending(batch: usize, time: usize, units: usize) -> Graph {
    let mut g = Graph::new("attending");
    let h = input(&mut g, "h", f(&[batch, units]));
    let x = input(&mut g, "x", f(&[batch, units]));
    let memory = input(&mut g, "memory", f(&[batch, time, units]));
    let kept = input(&mut g, "kept", f(&[batch, units]));
    let w = input(&mut g, "w", f(&[units, units]));
    let scale = input(&mut g, "scale", f(&[units, units]));
    let w = g.mul(w, scale).unwrap();
    let w = g.unary(Unary::Neg, w).unwrap();
    let q = g.matmul(h, w).unwrap();
    let scores = ops::Contract { batch: vec![(0, 0)], contract: vec![(1, 2)] };
    let scores = g.push(scores, &[q, memory]).unwrap();
    let p = g.push(ops::Softmax { dim: 1 }, &[scores]).unwrap();
    let read = g.push(ops::Contract { batch: vec![(0, 0)], contract: vec![(1, 1)] }, &[p, memory]).unwrap();
    let read = g.mul(read, kept).unwrap();
    let next = g.add(x, read).unwrap();
    let next = g.unary(Unary::Tanh, next).unwrap();
    g.output("h", next);
    g
}

/// The kernel's norm scales the product: what the kernel gets through the norm is a sum over rows and steps times what is
/// the same in every step.
pub(crate) fn normed(batch: usize, units: usize) -> Graph {
    let mut g = Graph::new("normed");
    let h = input(&mut g, "h", f(&[batch, units]));
    let x = input(&mut g, "x", f(&[batch, units]));
    let w = input(&mut g, "w", f(&[units, units]));
    let product = g.matmul(h, w).unwrap();
    let squares = g.mul(w, w).unwrap();
    let norm = g.reduce(intwain_ir::scalar::Reduce::Sum, squares, &[0, 1]).unwrap();
    let one = g.push(ops::Constant { shape: Shape::default(), elements: vec![Scalar::from_f64(DType::F64, 1.0)] }, &[]);
    let norm = g.add(norm, one.unwrap()).unwrap();
    let norm = g.broadcast(norm, &Shape::from([batch, units]), &[]).unwrap();
    let y = g.div(product, norm).unwrap();
    let y = g.add(y, x).unwrap();
    let next = g.unary(Unary::Tanh, y).unwrap();
    g.output("h", next);
    g
}
