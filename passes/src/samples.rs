//! Small graphs and their execution on two devices, for tests.

use crate::hardware::{Catalogue, Hardware};
use crate::partition::partition;
use crate::place::{Options, Plan, Planner, Strategy};
use crate::reshard::{apply, reshard};
use intwain_ir::interp::{run, run_devices};
use intwain_ir::ops::{Concat, Contract, Conv, Iota, Softmax, Take};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Graph, Layout, Origin, ParamKind, Rows, Shape, Tensor, Trainable, Type, Value, verify};

/// Deterministic numbers in −1 … 1.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 40) as f64 / f64::from(1 << 23) - 1.0
    }
}

/// One argument per parameter; integers are below 7.
pub(crate) fn arguments(graph: &Graph, seed: u64) -> Vec<Tensor> {
    let mut noise = Noise(seed);
    let value = |ty: &Type, noise: &mut Noise| {
        let numbers: Vec<f64> = (0..ty.shape.elements())
            .map(|_| if ty.dtype.is_int() { ((noise.next() + 1.0) * 3.49).floor() } else { noise.next() })
            .collect();
        Tensor::from_f64(ty.dtype, ty.shape.clone(), &numbers)
    };
    graph.params.iter().map(|p| value(graph.ty(p.value), &mut noise)).collect()
}

pub(crate) fn hardware(name: &str) -> Hardware {
    Catalogue::built_in().get(name).unwrap()
}

/// What the devices of a plan compute, joined.
pub(crate) fn run_plan(graph: &Graph, plan: &Plan, args: &[Tensor]) -> Vec<Tensor> {
    let sharded = apply(graph, plan);
    verify(&sharded).unwrap_or_else(|p| panic!("sharded: {}", p[0]));
    let explicit = reshard(&sharded, &plan.nodes).unwrap();
    verify(&explicit).unwrap_or_else(|p| panic!("explicit: {}", p[0]));
    run_explicit(&explicit, args)
}

/// What the devices of an explicit graph compute, joined.
pub(crate) fn run_explicit(explicit: &Graph, args: &[Tensor]) -> Vec<Tensor> {
    let locals = partition(explicit).unwrap();
    for local in &locals {
        verify(local).unwrap_or_else(|p| panic!("local: {}", p[0]));
    }
    let results = run_devices(&locals, locals.iter().enumerate().map(|(k, _)| parts(explicit, args, k)).collect());
    join(explicit, &locals, &results.unwrap())
}

/// The arguments of a device's graph.
pub(crate) fn parts(explicit: &Graph, args: &[Tensor], device: usize) -> Vec<Tensor> {
    let part = |(p, arg): (&intwain_ir::Param, &Tensor)| {
        let layout = explicit.layout(p.value);
        layout.local_type(&arg.ty, device).map(|_| arg.part(&layout, device))
    };
    explicit.params.iter().zip(args).filter_map(part).collect()
}

/// The outputs, from the devices' outputs.
pub(crate) fn join(explicit: &Graph, locals: &[Graph], results: &[Vec<Tensor>]) -> Vec<Tensor> {
    let of = |k: usize, name: &str| {
        let at = locals[k].outputs.iter().position(|o| &*o.name == name);
        at.map(|at| results[k][at].clone())
    };
    let whole = |o: &intwain_ir::Output| match explicit.layout(o.value) {
        Layout::Replicated => {
            let copies: Vec<Tensor> = (0..locals.len()).filter_map(|k| of(k, &o.name)).collect();
            assert!(copies.windows(2).all(|c| c[0] == c[1]), "copies of {} differ", o.name);
            copies[0].clone()
        }
        Layout::Split { dim, .. } => {
            let parts: Vec<Tensor> = (0..locals.len()).map(|k| of(k, &o.name).unwrap()).collect();
            Tensor::join(&parts, dim)
        }
        Layout::On(k) => of(k, &o.name).unwrap(),
        Layout::Partial(_) => panic!("output {} is partial", o.name),
    };
    explicit.outputs.iter().map(whole).collect()
}

/// Plans, divides and runs a graph and compares it with the whole.
pub(crate) fn check_plan(graph: &Graph, hardware: &Hardware, options: Options) -> Plan {
    verify(graph).unwrap_or_else(|p| panic!("imported: {}", p[0]));
    let plan = Planner::new(graph, hardware, options).plan().unwrap();
    let args = arguments(graph, 11);
    let whole = run(graph, args.clone()).unwrap();
    let divided = run_plan(graph, &plan, &args);
    for ((a, b), output) in whole.iter().zip(&divided).zip(&graph.outputs) {
        assert_eq!(a.ty, b.ty, "{}", output.name);
        let scale = a.to_f64().iter().fold(1e-6, |m: f64, x| m.max(x.abs()));
        for (x, y) in a.to_f64().iter().zip(b.to_f64()) {
            let exact = matches!(plan.strategy, Strategy::One | Strategy::Data | Strategy::Pipeline);
            let fine = if exact { *x == y } else { (x - y).abs() <= 2e-5 * scale };
            assert!(fine, "{} of `{}`: {x} against {y} under {}", output.name, graph.name, plan.strategy);
        }
    }
    plan
}

pub(crate) fn f32s(shape: impl Into<Shape>) -> Type {
    Type::new(DType::F32, shape)
}

fn weight(g: &mut Graph, name: &str, shape: &[usize]) -> Value {
    g.weight(name, f32s(shape), Trainable::Yes)
}

/// Sets the layer of what follows.
fn layer(g: &mut Graph, name: &str) {
    g.origin = Origin::new(name);
}

pub(crate) fn dense(g: &mut Graph, name: &str, x: Value, units: usize) -> Value {
    layer(g, name);
    let k = *g.shape(x).last().unwrap();
    let (w, b) = (weight(g, &format!("{name}/kernel"), &[k, units]), weight(g, &format!("{name}/bias"), &[units]));
    let y = g.matmul(x, w).unwrap();
    g.binary_broadcast(Binary::Add, y, b).unwrap()
}

pub(crate) fn relu(g: &mut Graph, x: Value) -> Value {
    let zero = g.full(DType::F32, 0.0, &g.shape(x).clone()).unwrap();
    g.binary(Binary::Max, x, zero).unwrap()
}

/// Two hidden layers.
pub(crate) fn mlp(rows: usize, width: usize) -> Graph {
    let mut g = Graph::new("mlp");
    let x = g.input("x", f32s([rows, 12]), Rows::Batched);
    let h = dense(&mut g, "a", x, width);
    let h = relu(&mut g, h);
    let h = dense(&mut g, "b", h, width + 2);
    let h = relu(&mut g, h);
    let y = dense(&mut g, "c", h, 5);
    let y = g.push(Softmax { dim: 1 }, &[y]).unwrap();
    g.output("y", y);
    g
}

/// Two towers that meet in a product, and one table read by both.
pub(crate) fn towers(rows: usize) -> Graph {
    let mut g = Graph::new("towers");
    let table = weight(&mut g, "table", &[7, 6]);
    let mut ends = Vec::new();
    for name in ["user", "item"] {
        let ids = g.input(name, Type::new(DType::I32, [rows, 3]), Rows::Batched);
        layer(&mut g, &format!("{name}/embedding"));
        let e = g.push(Take { base: 0 }, &[table, ids]).unwrap();
        let e = g.reduce(Reduce::Sum, e, &[1]).unwrap();
        let e = dense(&mut g, &format!("{name}/dense"), e, 8);
        ends.push(relu(&mut g, e));
    }
    let product = g.mul(ends[0], ends[1]).unwrap();
    let score = g.reduce(Reduce::Sum, product, &[1]).unwrap();
    let score = g.unary(Unary::Tanh, score).unwrap();
    g.output("score", score);
    g
}

fn conv(g: &mut Graph, name: &str, x: Value, kernel: usize, channels: usize, groups: usize) -> Value {
    layer(g, name);
    let input = *g.shape(x).last().unwrap();
    let w = weight(g, &format!("{name}/kernel"), &[kernel, kernel, input / groups, channels]);
    let pad = (kernel / 2) as i64;
    let op = Conv {
        stride: vec![1, 1],
        pads: vec![(pad, pad); 2],
        input_dilation: vec![1, 1],
        kernel_dilation: vec![1, 1],
        groups,
        batch_groups: 1,
    };
    let y = g.push(op, &[x, w]).unwrap();
    let (scale, shift) =
        (weight(g, &format!("{name}/scale"), &[channels]), weight(g, &format!("{name}/shift"), &[channels]));
    let y = g.binary_broadcast(Binary::Mul, y, scale).unwrap();
    g.binary_broadcast(Binary::Add, y, shift).unwrap()
}

/// Residual blocks, a depthwise and a grouped convolution, a concatenation, pooling and a head.
pub(crate) fn convnet(rows: usize) -> Graph {
    let mut g = Graph::new("convnet");
    let x = g.input("image", f32s([rows, 6, 6, 3]), Rows::Batched);
    let mut x = conv(&mut g, "stem", x, 3, 8, 1);
    for block in 0..2 {
        let h = conv(&mut g, &format!("block{block}/a"), x, 1, 8, 1);
        let h = relu(&mut g, h);
        let h = conv(&mut g, &format!("block{block}/b"), h, 3, 8, if block == 0 { 8 } else { 2 });
        let h = conv(&mut g, &format!("block{block}/c"), h, 1, 8, 1);
        layer(&mut g, &format!("block{block}/add"));
        let sum = g.add(h, x).unwrap();
        x = relu(&mut g, sum);
    }
    let branch = conv(&mut g, "branch", x, 1, 4, 1);
    layer(&mut g, "concat");
    x = g.push(Concat { dim: 3 }, &[x, branch]).unwrap();
    layer(&mut g, "pool");
    let pooled = g.reduce(Reduce::Sum, x, &[1, 2]).unwrap();
    let y = dense(&mut g, "head", pooled, 10);
    g.output("logits", y);
    g
}

/// Embedding, one block of attention with heads, a feed-forward network, and logits through the same table.
pub(crate) fn transformer(rows: usize) -> Graph {
    let (time, heads, size) = (4, 2, 3);
    let width = heads * size;
    let mut g = Graph::new("transformer");
    let ids = g.input("ids", Type::new(DType::I32, [rows, time]), Rows::Batched);
    let table = weight(&mut g, "table", &[14, width]);
    layer(&mut g, "embedding");
    let x = g.push(Take { base: 0 }, &[table, ids]).unwrap();
    let mut parts = Vec::new();
    for name in ["query", "key", "value"] {
        let p = dense(&mut g, name, x, width);
        parts.push(g.reshape(p, &Shape::from([rows, time, heads, size])).unwrap());
    }
    layer(&mut g, "attention");
    let scores =
        g.push(Contract { batch: vec![(0, 0), (2, 2)], contract: vec![(3, 3)] }, &[parts[0], parts[1]]).unwrap();
    let (i, j) = (
        g.push(Iota { dtype: DType::I32, shape: Shape::from([time, time]), dim: 0, start: 0 }, &[]).unwrap(),
        g.push(Iota { dtype: DType::I32, shape: Shape::from([time, time]), dim: 1, start: 0 }, &[]).unwrap(),
    );
    let seen = g.compare(intwain_ir::scalar::Compare::Ge, i, j).unwrap();
    let shape = g.shape(scores).clone();
    let seen = g.broadcast_to(seen, &shape).unwrap();
    let low = g.full(DType::F32, -1e9, &shape).unwrap();
    let scores = g.select(seen, scores, low).unwrap();
    let p = g.push(Softmax { dim: 3 }, &[scores]).unwrap();
    let mixed = g.push(Contract { batch: vec![(0, 0), (1, 2)], contract: vec![(3, 1)] }, &[p, parts[2]]).unwrap();
    let mixed = g.transpose(mixed, &[0, 2, 1, 3]).unwrap();
    let mixed = g.reshape(mixed, &Shape::from([rows, time, width])).unwrap();
    let out = dense(&mut g, "out", mixed, width);
    let x = g.add(x, out).unwrap();
    let h = dense(&mut g, "up", x, 2 * width);
    let h = relu(&mut g, h);
    let h = dense(&mut g, "down", h, width);
    let x = g.add(x, h).unwrap();
    layer(&mut g, "logits");
    let logits = g.push(Contract { batch: vec![], contract: vec![(2, 1)] }, &[x, table]).unwrap();
    g.output("logits", logits);
    g
}

/// A residual network of `blocks` blocks of three convolutions.
pub(crate) fn deep(rows: usize, blocks: usize) -> Graph {
    let mut g = Graph::new("deep");
    let x = g.input("image", f32s([rows, 56, 56, 3]), Rows::Batched);
    let mut x = conv(&mut g, "stem", x, 3, 256, 1);
    for block in 0..blocks {
        let h = conv(&mut g, &format!("block{block}/a"), x, 1, 64, 1);
        let h = relu(&mut g, h);
        let h = conv(&mut g, &format!("block{block}/b"), h, 3, 64, 1);
        let h = relu(&mut g, h);
        let h = conv(&mut g, &format!("block{block}/c"), h, 1, 256, 1);
        layer(&mut g, &format!("block{block}/add"));
        let sum = g.add(h, x).unwrap();
        x = relu(&mut g, sum);
    }
    let pooled = g.reduce(Reduce::Sum, x, &[1, 2]).unwrap();
    let y = dense(&mut g, "head", pooled, 1000);
    g.output("logits", y);
    g
}

/// Layers that are trained with momentum: variables and slots are states.
pub(crate) fn trained(rows: usize, width: usize) -> Graph {
    let mut g = Graph::new("trained");
    let x = g.input("x", f32s([rows, width]), Rows::Batched);
    let mut states = Vec::new();
    let mut h = x;
    for k in 0..3 {
        let ty = f32s([width, width]);
        let w = g.param(&format!("w{k}"), ty.clone(), ParamKind::State { next: None });
        let m = g.param(&format!("m{k}"), ty, ParamKind::State { next: None });
        states.push((w, m));
        h = g.matmul(h, w).unwrap();
    }
    let seeds = [(h, x)];
    let variables: Vec<Value> = states.iter().map(|s| s.0).collect();
    let gradients = intwain_ir::grad::backward(&mut g, &seeds, &variables).unwrap();
    for (k, ((w, m), d)) in states.into_iter().zip(gradients).enumerate() {
        let next_m = g.add(m, d.unwrap()).unwrap();
        let next_w = g.add(w, next_m).unwrap();
        g.params[1 + 2 * k].kind = ParamKind::State { next: Some(next_w) };
        g.params[2 + 2 * k].kind = ParamKind::State { next: Some(next_m) };
    }
    let mean = g.reduce(Reduce::Sum, h, &[0, 1]).unwrap();
    g.output("loss", mean);
    crate::simplify::dead_code(&g).unwrap()
}
