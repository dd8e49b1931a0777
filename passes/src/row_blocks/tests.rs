//! One device and two give the same bits, wherever the rows are cut between blocks.

use super::*;
use crate::Numerics;
use crate::check::placement::{Interface, check};
use crate::differentiate::gradients;
use crate::forest;
use crate::partition::partition;
use crate::place::{Options, PlaceError, Plan, Planner, Strategy};
use crate::reshard::{apply, reshard};
use crate::samples::{arguments, convnet, dense, f32s, hardware, join, mlp, parts, towers, transformer};
use intwain_ir::interp::{run, run_devices};
use intwain_ir::scalar::{Binary, Unary};
use intwain_ir::{DType, Rows, Tensor, Trainable, Type, verify};
use std::sync::Arc;

/// Statistics of the batch, as normalisation in training has them, between two layers.
fn normalised(rows: usize) -> Graph {
    let mut g = Graph::new("normalised");
    let x = g.input("x", f32s([rows, 3, 4]), Rows::Batched);
    let h = dense(&mut g, "a", x, 5);
    let mean = |g: &mut Graph, v: Value| {
        let sum = g.reduce(Reduce::Sum, v, &[0, 1]).unwrap();
        let n = g.full(DType::F32, 1.0 / (rows * 3) as f64, &g.shape(sum).clone()).unwrap();
        let mean = g.mul(sum, n).unwrap();
        g.broadcast_to(mean, &g.shape(v).clone()).unwrap()
    };
    let m = mean(&mut g, h);
    let d = g.sub(h, m).unwrap();
    let squares = g.mul(d, d).unwrap();
    let variance = mean(&mut g, squares);
    let epsilon = g.full(DType::F32, 1e-3, &g.shape(variance).clone()).unwrap();
    let variance = g.add(variance, epsilon).unwrap();
    let r = g.unary(Unary::Rsqrt, variance).unwrap();
    let h = g.mul(d, r).unwrap();
    let y = dense(&mut g, "b", h, 2);
    g.output("y", y);
    g
}

/// A recurrent layer with masked steps and a head; the gates' kernel is seen whole by every step.
fn recurrent(rows: usize) -> Graph {
    let (time, units) = (4, 3);
    let mut body = Graph::new("cell");
    let h = body.input("h", f32s([rows, units]), Rows::Whole);
    let c = body.input("c", f32s([rows, units]), Rows::Whole);
    let x = body.input("x", f32s([rows, 4 * units]), Rows::Whole);
    let mask = body.input("mask", Type::new(DType::Bool, [rows]), Rows::Whole);
    let u = body.input("u", f32s([units, 4 * units]), Rows::Whole);
    let b = body.input("b", f32s([4 * units]), Rows::Whole);
    let z = body.matmul(h, u).unwrap();
    let z = body.add(z, x).unwrap();
    let z = body.binary_broadcast(Binary::Add, z, b).unwrap();
    let gate = |g: &mut Graph, k: usize| {
        let part = g.slice_dim(z, 1, k * units..(k + 1) * units).unwrap();
        g.unary(Unary::Tanh, part).unwrap()
    };
    let (i, f, n, o) = (gate(&mut body, 0), gate(&mut body, 1), gate(&mut body, 2), gate(&mut body, 3));
    let (kept, fresh) = (body.mul(f, c).unwrap(), body.mul(i, n).unwrap());
    let next = body.add(kept, fresh).unwrap();
    let shown = body.unary(Unary::Tanh, next).unwrap();
    let shown = body.mul(o, shown).unwrap();
    let mask = body.broadcast(mask, &Shape::from([rows, units]), &[0]).unwrap();
    let next = body.select(mask, next, c).unwrap();
    let shown = body.select(mask, shown, h).unwrap();
    body.output("h", shown);
    body.output("c", next);
    body.output("y", shown);

    let mut g = Graph::new("recurrent");
    let x = g.input("x", f32s([rows, time, 5]), Rows::Batched);
    let ids = g.input("ids", Type::new(DType::I32, [rows, time]), Rows::Batched);
    let x = dense(&mut g, "kernel", x, 4 * units);
    let x = g.transpose(x, &[1, 0, 2]).unwrap();
    let zero = g.full(DType::I32, 0.0, &Shape::from([rows, time])).unwrap();
    let mask = g.compare(intwain_ir::scalar::Compare::Ne, ids, zero).unwrap();
    let mask = g.transpose(mask, &[1, 0]).unwrap();
    let u = g.weight("u", f32s([units, 4 * units]), Trainable::Yes);
    let b = g.weight("b", f32s([4 * units]), Trainable::Yes);
    let start = g.full(DType::F32, 0.0, &Shape::from([rows, units])).unwrap();
    let scan = ops::Scan { count: time, states: 2, sequences: 2, body: Arc::new(body) };
    let r = g.push_all(scan, &[start, start, x, mask, u, b]).unwrap();
    let y = g.transpose(r[2], &[1, 0, 2]).unwrap();
    let y = dense(&mut g, "head", y, 2);
    g.output("y", y);
    g.output("last", r[0]);
    g
}

/// Dense layers on rows that were merged with positions.
fn merged(rows: usize) -> Graph {
    let mut g = Graph::new("merged");
    let x = g.input("x", f32s([rows, 3, 4]), Rows::Batched);
    let x = g.reshape(x, &Shape::from([rows * 3, 4])).unwrap();
    let h = dense(&mut g, "a", x, 6);
    let h = g.unary(Unary::Tanh, h).unwrap();
    let h = g.reshape(h, &Shape::from([rows, 18])).unwrap();
    let y = dense(&mut g, "b", h, 2);
    g.output("y", y);
    g
}

fn models(rows: usize) -> Vec<Graph> {
    let all = [mlp(rows, 6), towers(rows), convnet(rows), transformer(rows), normalised(rows), recurrent(rows)];
    all.into_iter().chain([merged(rows)]).collect()
}

/// The graph of a model's gradients with every sum over rows in blocks.
fn trained(model: &Graph, exact: Exact) -> Graph {
    let g = dead_code(&simplify(&gradients(model).unwrap()).unwrap()).unwrap();
    let g = row_blocks(&g, exact).unwrap();
    verify(&g).unwrap_or_else(|p| panic!("{}: {}", g.name, p[0]));
    g
}

fn data(parts: [usize; 2]) -> Options {
    Options { strategy: Some(Strategy::Data), parts: Some(parts), numerics: Numerics::EXACT, ..Options::default() }
}

fn planned(graph: &Graph, options: Options) -> Result<Plan, PlaceError> {
    Planner::new(graph, &hardware("cpu"), options).plan()
}

/// The devices' graphs, checked.
fn divided(graph: &Graph, plan: &Plan) -> (Graph, Vec<Graph>) {
    let sharded = apply(graph, plan);
    verify(&sharded).unwrap_or_else(|p| panic!("{}: {}", graph.name, p[0]));
    let explicit = reshard(&sharded, &plan.nodes).unwrap();
    verify(&explicit).unwrap_or_else(|p| panic!("{}: {}", graph.name, p[0]));
    let raw = partition(&explicit).unwrap();
    let faults = check(graph, &Interface::of(&explicit), &raw);
    assert!(faults.is_empty(), "{}: {}", graph.name, faults[0]);
    let locals = forest(&raw).unwrap();
    for local in &locals {
        verify(local).unwrap_or_else(|p| panic!("{} on device {}: {}", graph.name, local.device, p[0]));
    }
    (explicit, locals)
}

fn on_two(graph: &Graph, plan: &Plan, args: &[Tensor]) -> Vec<Tensor> {
    let (explicit, locals) = divided(graph, plan);
    let own = (0..locals.len()).map(|k| parts(&explicit, args, k)).collect();
    join(&explicit, &locals, &run_devices(&locals, own).unwrap())
}

/// NaN is not equal to itself, −0 equals 0: bits are compared.
fn same_bits(graph: &Graph, what: &str, got: &[Tensor], want: &[Tensor]) {
    for ((a, b), output) in got.iter().zip(want).zip(&graph.outputs) {
        assert_eq!(a.ty, b.ty);
        let different = (0..a.elements()).find(|&i| a.get(i).bits() != b.get(i).bits());
        assert_eq!(different, None, "{} of `{}` {what}: {:?}", output.name, graph.name, plan_line(a, b, different));
    }
}

fn plan_line(a: &Tensor, b: &Tensor, at: Option<usize>) -> Option<(f64, f64)> {
    at.map(|i| (a.get(i).to_f64(), b.get(i).to_f64()))
}

/// Where the rows may be cut.
fn ends(rows: usize) -> Vec<usize> {
    let block = block_rows(rows);
    (0..=rows.div_ceil(block)).map(|k| (k * block).min(rows)).collect()
}

#[test]
fn every_cut_between_blocks_gives_the_bits_of_one_device() {
    for rows in [16, 12, 5, 3, 1, 20] {
        for model in models(rows) {
            let graph = trained(&model, Exact::default());
            let args = arguments(&graph, 5 + rows as u64);
            let whole = run(&graph, args.clone()).unwrap();
            for first in ends(rows) {
                let parts = [first, rows - first];
                let plan = planned(&graph, data(parts)).unwrap_or_else(|e| panic!("{} {rows}: {e}", graph.name));
                let x = &plan.layouts[graph.inputs().next().unwrap().value];
                assert_eq!(x, &Some(intwain_ir::Layout::split(0, parts)), "{} {rows}", graph.name);
                same_bits(&graph, &format!("cut {parts:?}"), &on_two(&graph, &plan, &args), &whole);
            }
        }
    }
}

/// Micro-batches of one batch: each gives nodes of the batch's tree.
#[test]
fn pieces_of_a_batch_give_nodes_of_its_tree() {
    let (rows, pieces) = (16, 4);
    for (model, piece) in models(rows).into_iter().zip(models(rows / pieces)).filter(|(m, _)| &*m.name != "normalised")
    {
        let graph = trained(&model, Exact::default());
        let part = trained(&piece, Exact { batch: Some(rows) });
        let args = arguments(&graph, 3);
        let whole = run(&graph, args.clone()).unwrap();
        let of = |k: usize| -> Vec<Tensor> {
            let share = |(p, arg): (&intwain_ir::Param, &Tensor)| {
                let dim = (0..arg.ty.rank()).find(|d| graph.shape(p.value)[*d] != part.shape(part_param(&part, p))[*d]);
                let sizes = vec![rows / pieces; pieces];
                dim.map_or(arg.clone(), |d| arg.part(&intwain_ir::Layout::split(d, sizes), k))
            };
            graph.params.iter().zip(&args).map(share).collect()
        };
        let results: Vec<Vec<Tensor>> = (0..pieces).map(|k| run(&part, of(k)).unwrap()).collect();
        for (at, output) in graph.outputs.iter().enumerate().filter(|(_, o)| o.name.starts_with("gw")) {
            let ty = graph.ty(output.value).clone();
            let shape = Shape::new(std::iter::once(pieces).chain(ty.shape.iter().copied()));
            let mut g = Graph::new("sum");
            let x = g.input("x", ty.with_shape(shape.clone()), Rows::Whole);
            let y = g.push(ops::TreeSum { spans: vec![2; pieces] }, &[x]).unwrap();
            g.output("y", y);
            let mut stack = Tensor::zeros(ty.with_shape(shape));
            results.iter().enumerate().for_each(|(k, r)| stack.set_row(k, &r[at]));
            let sums_in_order = graph.def_node(output.value).is_some_and(|id| has_scatter(&graph, id));
            if !sums_in_order {
                same_bits(
                    &graph,
                    &format!("in pieces, {}", output.name),
                    &run(&g, vec![stack]).unwrap(),
                    &whole[at..=at],
                );
            }
        }
    }
}

fn part_param(part: &Graph, p: &intwain_ir::Param) -> Value {
    part.params.iter().find(|q| q.name == p.name).unwrap().value
}

/// Whether a table's gradient, which is summed in the order of the rows, is part of a value.
fn has_scatter(graph: &Graph, id: NodeId) -> bool {
    let node = &graph.nodes[id];
    let below = |a: &Value| graph.def_node(*a).is_some_and(|id| has_scatter(graph, id));
    match node.op {
        Op::ScatterAdd(_) => true,
        Op::Binary(_) => node.args.iter().any(below),
        _ => false,
    }
}

/// What no tree has is refused with what is near.
#[test]
fn parts_that_end_within_a_block_are_refused() {
    for (rows, parts, near) in
        [(16, [9, 7], "8,8 and 10,6"), (20, [10, 10], "9,11 and 12,8"), (20, [19, 1], "18,2 and 20,0")]
    {
        let graph = trained(&mlp(rows, 6), Exact::default());
        let refused = planned(&graph, data(parts)).unwrap_err();
        assert!(refused.to_string().contains(near), "{refused}");
        // As a ratio of more rows they are rounded to blocks.
        let ratio = planned(&graph, data([parts[0] * 10, parts[1] * 10])).unwrap();
        assert!(ratio.layouts[graph.params[0].value].as_ref().is_some_and(|l| l.is_split()));
    }
    // Where no sum is over rows, rows are cut anywhere.
    let graph = mlp(16, 6);
    let plan = planned(&graph, data([9, 7])).unwrap();
    assert_eq!(plan.layouts[graph.params[0].value], Some(intwain_ir::Layout::split(0, [9, 7])));
}

/// Whatever the planner takes by itself is exact.
#[test]
fn every_split_that_is_not_named_is_exact() {
    for rows in [1, 5, 16] {
        for model in models(rows) {
            let graph = trained(&model, Exact::default());
            let args = arguments(&graph, 17);
            let whole = run(&graph, args.clone()).unwrap();
            for strategy in [Strategy::Data, Strategy::Mixed, Strategy::Pipeline] {
                let options = Options { strategy: Some(strategy), numerics: Numerics::EXACT, ..Options::default() };
                let plan = planned(&graph, options).unwrap();
                same_bits(&graph, strategy.name(), &on_two(&graph, &plan, &args), &whole);
            }
            let auto = planned(&graph, Options { numerics: Numerics::EXACT, ..Options::default() }).unwrap();
            assert_ne!(auto.strategy, Strategy::Tensor);
        }
    }
}

/// Only nodes of the tree go over the link.
#[test]
fn devices_exchange_sums_and_not_what_is_summed() {
    for (rows, parts) in [(16, [8, 8]), (16, [10, 6]), (20, [12, 8])] {
        let graph = trained(&mlp(rows, 6), Exact::default());
        let plan = planned(&graph, data(parts)).unwrap();
        let (_, locals) = divided(&graph, &plan);
        let weights: usize = graph.weights().map(|p| graph.ty(p.value).bytes()).sum();
        let gathered = |g: &Graph| -> usize {
            let sent = g.nodes.values().filter(|n| matches!(n.op, Op::AllGather(_)));
            sent.map(|n| g.ty(n.args[0]).bytes()).sum()
        };
        let nodes = |leaves: usize| leaves.count_ones() as usize;
        let block = block_rows(rows);
        let bytes = [gathered(&locals[0]), gathered(&locals[1])];
        // A part from the first leaf on is made of one node per bit of its number of leaves.
        assert_eq!(bytes[0], weights * nodes(parts[0] / block), "{rows} {parts:?}");
        assert!(bytes[1] <= 2 * weights);
        assert_eq!(plan.usage.communication_bytes, (bytes[0] + bytes[1]) as f64);
    }
}

/// A communication or a tree with a defect is noticed.
#[test]
fn defects_are_caught() {
    for rows in [16, 20] {
        for model in [mlp(rows, 6), convnet(rows), recurrent(rows)] {
            let graph = trained(&model, Exact::default());
            let plan = planned(&graph, Options { parts: None, ..data([1, 1]) }).unwrap();
            let explicit = reshard(&apply(&graph, &plan), &plan.nodes).unwrap();
            let locals = partition(&explicit).unwrap();
            let suspects = |g: &Graph| -> Vec<NodeId> {
                let interesting = |id: &NodeId| matches!(g.nodes[*id].op, Op::AllGather(_) | Op::Blocks(_));
                g.nodes.keys().filter(interesting).collect()
            };
            for at in suspects(&locals[1]) {
                let mut wrong = locals.clone();
                match &mut wrong[1].nodes[at].op {
                    Op::AllGather(op) => op.sizes.swap(0, 1),
                    Op::Blocks(op) => op.size += 1,
                    _ => continue,
                }
                let faults = check(&graph, &Interface::of(&explicit), &wrong);
                assert!(!faults.is_empty() || wrong[1] == locals[1], "{} {at}", graph.name);
            }
            let sums = locals[0].nodes.keys().filter(|id| matches!(locals[0].nodes[*id].op, Op::TreeSum(_)));
            for at in sums {
                let mut wrong = locals.clone();
                let Op::TreeSum(op) = &mut wrong[0].nodes[at].op else { continue };
                let leaves = op.spans.len();
                op.spans = vec![2; leaves];
                assert!(!check(&graph, &Interface::of(&explicit), &wrong).is_empty(), "{} {at}", graph.name);
            }
        }
    }
}
