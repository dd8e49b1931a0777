//! Every rule of the verifier, broken once, is reported; several at once are all reported.

use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::{Reduce, Unary};
use intwain_ir::{DType, Def, Graph, Layout, Origin, ParamKind, Rows, Shape, Stage, Trainable, Type, Value, verify};
use std::sync::Arc;

fn ty() -> Type {
    Type::new(DType::F32, [4, 2])
}

/// relu-like chain with a weight and a state.
fn good() -> Graph {
    let mut g = Graph::new("good");
    let x = g.input("x", ty(), Rows::Batched);
    let w = g.weight("w", Type::new(DType::F32, [2, 3]), Trainable::Yes);
    let s = g.param("s", ty(), ParamKind::State { next: None });
    g.origin = Origin::new("dense");
    let y = g.matmul(x, w).unwrap();
    g.origin = Origin::new("tanh");
    let z = g.unary(Unary::Tanh, y).unwrap();
    let next = g.add(s, x).unwrap();
    g.params[2].kind = ParamKind::State { next: Some(next) };
    g.output("z", z);
    g
}

/// The same over two devices, rows split 3 and 1.
fn sharded(stage: Stage) -> Graph {
    let mut g = good();
    (g.stage, g.devices) = (stage, 2);
    let values: Vec<Value> = g.values.keys().collect();
    for v in values {
        let whole = v == g.params[1].value;
        g.values[v].layout = Some(if whole { Layout::Replicated } else { Layout::split(0, [3, 1]) });
    }
    g
}

fn problems(g: &Graph) -> Vec<String> {
    verify(g).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

#[track_caller]
fn reports(g: &Graph, want: &[&str]) {
    let got = problems(g);
    for w in want {
        assert!(got.iter().any(|p| p.contains(w)), "no problem says `{w}`: {got:#?}");
    }
    assert_eq!(got.len(), want.len(), "{got:#?}");
}

fn nth(g: &Graph, i: usize) -> intwain_ir::NodeId {
    g.nodes.keys().nth(i).unwrap()
}

fn value(i: u32) -> Value {
    Value::from_u32(i)
}

#[test]
fn good_graphs_have_no_problem() {
    reports(&good(), &[]);
    reports(&sharded(Stage::Sharded), &[]);
    reports(&sharded(Stage::Explicit), &[]);
}

#[test]
fn definitions() {
    let mut g = good();
    let n = nth(&g, 0);
    g.nodes[n].args[0] = g.outputs[0].value;
    reports(&g, &["n0 (dense): %4 is used before it is defined", "n0 (dense): contract: dimension 1 of f32[4, 3]"]);

    let mut g = good();
    g.nodes[n].args[1] = value(77);
    reports(&g, &["n0 (dense): %77 is used before it is defined"]);

    let mut g = good();
    let second = nth(&g, 1);
    g.nodes[second].results[0] = g.nodes[n].results[0];
    let got = problems(&g);
    assert!(got.iter().any(|p| p.contains("n1 (tanh): %3 is not defined here, or twice")), "{got:?}");

    let mut g = good();
    g.values[g.params[0].value].def = Def::Param(1);
    let got = problems(&g);
    assert!(got.iter().any(|p| p.contains("parameter `x` is not defined by %0")), "{got:?}");

    let mut g = good();
    g.outputs[0].value = value(77);
    reports(&g, &["output `z` is %77, which is not defined"]);

    let mut g = good();
    g.params[2].kind = ParamKind::State { next: Some(value(77)) };
    reports(&g, &["state `s` does not become a value of its type"]);
    g.params[2].kind = ParamKind::State { next: Some(g.outputs[0].value) };
    reports(&g, &["state `s` does not become a value of its type"]);
}

#[test]
fn names() {
    let mut g = good();
    g.input("w", ty(), Rows::Whole);
    let z = g.outputs[0].value;
    g.output("z", z);
    reports(&g, &["two parameters are named `w`", "two outputs are named `z`"]);
}

#[test]
fn types() {
    let mut g = good();
    let y = g.nodes[nth(&g, 1)].results[0];
    g.values[y].ty = Type::new(DType::F32, [4, 4]);
    reports(&g, &["n1 (tanh): results are [f32[4, 4]], inferred [f32[4, 3]]"]);

    let mut g = good();
    let n = nth(&g, 0);
    g.nodes[n].op = ops::Contract { batch: vec![], contract: vec![(0, 0)] }.into();
    reports(&g, &["n0 (dense): contract: dimension 0 of f32[4, 2] is not as dimension 0 of f32[2, 3]"]);

    let mut g = good();
    let x = g.params[0].value;
    g.values[x].ty = Type::new(DType::F32, [usize::MAX, 2]);
    let got = problems(&g);
    assert!(got.iter().any(|p| p.contains("an extent of f32[18446744073709551615, 2] is greater")), "{got:?}");
    g.values[x].ty = Type::new(DType::F32, [0, 1 << 30, 1 << 30, 1 << 30]);
    let got = problems(&g);
    assert!(got.iter().any(|p| p.contains("too many elements")), "{got:?}");
    g.values[x].ty = Type::new(DType::F32, vec![1; 17]);
    let got = problems(&g);
    assert!(got.iter().any(|p| p.contains("17 dimensions are more than 16")), "{got:?}");
}

#[test]
fn graphs_refuse_absurd_results() {
    let mut g = Graph::new("big");
    let x = g.input("x", Type::new(DType::F32, [1 << 20]), Rows::Whole);
    let outer = ops::Contract { batch: vec![], contract: vec![] };
    let y = g.push(outer.clone(), &[x, x]).unwrap();
    let e = g.push(outer, &[y, y]).unwrap_err().to_string();
    assert!(e.contains("too many elements"), "{e}");
    let e = g.push(ops::Concat { dim: 0 }, &vec![x; 4096]).unwrap_err().to_string();
    assert!(e.contains("greater than 2147483647"), "{e}");
}

#[test]
fn layouts() {
    let mut g = good();
    let x = g.params[0].value;
    g.values[x].layout = Some(Layout::Replicated);
    reports(&g, &["%0 has a layout at stage imported"]);
    g.stage = Stage::Local;
    reports(&g, &["%0 has a layout at stage local"]);

    let mut g = sharded(Stage::Sharded);
    g.values[x].layout = None;
    reports(&g, &["%0 has no layout"]);
    let misfits = [
        Layout::split(2, [3, 1]),
        Layout::split(0, [3, 2]),
        Layout::split(0, [4]),
        Layout::split(0, [usize::MAX, 5]),
        Layout::On(2),
    ];
    for l in misfits {
        g.values[x].layout = Some(l);
        reports(&g, &["does not fit %0: f32[4, 2]"]);
    }
    let mut g = Graph::new("flags");
    (g.stage, g.devices) = (Stage::Sharded, 2);
    let b = g.input("b", Type::new(DType::Bool, [2]), Rows::Whole);
    g.values[b].layout = Some(Layout::Partial(Reduce::Sum));
    reports(&g, &["layout P(sum) does not fit %0: bool[2]"]);
}

/// A graph at `stage` with one more operation on its output.
fn with(stage: Stage, op: impl Into<Op>) -> Graph {
    let mut g = if matches!(stage, Stage::Imported | Stage::Local) { good() } else { sharded(stage) };
    g.stage = stage;
    let z = g.outputs[0].value;
    let laid_out = g.values[z].layout.clone();
    for r in g.push_all(op, &[z]).unwrap() {
        g.values[r].layout = laid_out.clone();
    }
    g
}

#[test]
fn communication() {
    let bucket = |device, devices| {
        let kept = vec![ops::Kept::All];
        Op::from(ops::Bucket { channel: 1, function: Reduce::Sum, kept, device, devices })
    };
    let all: [Op; 7] = [
        bucket(0, 2),
        ops::AllReduce { channel: 1, function: Reduce::Sum, device: 0, devices: 2 }.into(),
        ops::AllGather { channel: 1, dim: 0, sizes: vec![4, 4], device: 0 }.into(),
        ops::AllToAll { channel: 1, from: 0, from_sizes: vec![4, 4], to: 1, to_sizes: vec![1, 2], device: 0 }.into(),
        ops::ReduceScatter { channel: 1, function: Reduce::Sum, dim: 0, sizes: vec![2, 2], device: 0 }.into(),
        ops::Send { channel: 1, to: 1 }.into(),
        ops::Reshard { channel: 1 }.into(),
    ];
    for op in all {
        let reshard = op.name() == "reshard";
        for stage in Stage::ALL {
            let allowed = if reshard { stage == Stage::Explicit } else { stage == Stage::Local };
            let want = format!("{} at stage {stage}", op.name());
            let g = with(stage, op.clone());
            let got: Vec<String> = problems(&g).into_iter().filter(|p| p.contains("at stage")).collect();
            assert_eq!(got.iter().any(|p| p.contains(&want)), !allowed, "{got:?}");
        }
    }
    let mut g = with(Stage::Local, ops::Send { channel: 5, to: 1 });
    g.devices = 2;
    reports(&g, &[]);
    g.push(ops::Recv { channel: 5, from: 1, ty: ty() }, &[]).unwrap();
    reports(&g, &["channel 5 is used twice"]);
    let wrong: [Op; 7] = [
        bucket(1, 2),
        bucket(0, 3),
        ops::Send { channel: 1, to: 0 }.into(),
        ops::Send { channel: 1, to: 2 }.into(),
        ops::AllReduce { channel: 1, function: Reduce::Sum, device: 1, devices: 2 }.into(),
        ops::AllReduce { channel: 1, function: Reduce::Sum, device: 0, devices: 3 }.into(),
        ops::ReduceScatter { channel: 1, function: Reduce::Sum, dim: 0, sizes: vec![2, 1, 1], device: 0 }.into(),
    ];
    for op in wrong {
        let mut g = with(Stage::Local, op);
        g.devices = 2;
        reports(&g, &["does not fit device 0 of 2"]);
    }
}

#[test]
fn rules() {
    let mut g = sharded(Stage::Explicit);
    let y = g.nodes[nth(&g, 0)].results[0];
    let z = g.outputs[0].value;
    g.values[y].layout = Some(Layout::split(1, [1, 2]));
    reports(
        &g,
        &[
            "n0 (dense): contract cannot take S(0,[3,1]) R to S(1,[1,2])",
            "n1 (tanh): unary cannot take S(1,[1,2]) to S(0,[3,1])",
        ],
    );
    // No function that is not linear sees a partial value, and no output is one.
    let mut g = sharded(Stage::Explicit);
    let (x, w) = (g.params[0].value, g.params[1].value);
    g.values[x].layout = Some(Layout::split(1, [1, 1]));
    g.values[w].layout = Some(Layout::split(0, [1, 1]));
    let s = g.params[2].value;
    g.values[s].layout = Some(Layout::split(1, [1, 1]));
    let next = g.nodes[nth(&g, 2)].results[0];
    g.values[next].layout = Some(Layout::split(1, [1, 1]));
    g.values[y].layout = Some(Layout::Partial(Reduce::Sum));
    g.values[z].layout = Some(Layout::Partial(Reduce::Sum));
    reports(&g, &["unary cannot take P(sum) to P(sum)", "output `z` is a partial value"]);
}

fn repeated(body: Graph) -> Graph {
    let mut g = Graph::new("outer");
    g.push_all(ops::Scan { count: 1, states: 0, sequences: 0, body: Arc::new(body) }, &[]).unwrap();
    g
}

#[test]
fn bodies() {
    let mut body = Graph::new("body");
    let x = body.full(DType::F32, 1.0, &Shape::from([2])).unwrap();
    let y = body.unary(Unary::Exp, x).unwrap();
    body.output("y", y);
    reports(&repeated(body.clone()), &[]);
    let mut wrong = body.clone();
    wrong.values[y].ty = Type::new(DType::F32, [3]);
    reports(&repeated(wrong), &["n0: in the body of scan: n1: results are [f32[3]], inferred [f32[2]]"]);
    let mut wrong = body.clone();
    wrong.stage = Stage::Local;
    reports(&repeated(wrong), &["the body of scan is at stage local"]);
}

#[test]
fn several_at_once() {
    let mut g = sharded(Stage::Explicit);
    let (x, z) = (g.params[0].value, g.outputs[0].value);
    g.values[x].layout = Some(Layout::On(7));
    let second = nth(&g, 1);
    g.nodes[second].op = ops::Unary { function: Unary::Not }.into();
    g.output("z", z);
    g.output("nowhere", value(99));
    let got = problems(&g);
    let want = [
        "layout X(7) does not fit %0",
        "n1 (tanh): unary: not does not apply to f32",
        "two outputs are named `z`",
        "output `nowhere` is %99, which is not defined",
        "n0 (dense): contract cannot take X(7) R to S(0,[3,1])",
    ];
    for w in want {
        assert!(got.iter().any(|p| p.contains(w)), "no problem says `{w}`: {got:#?}");
    }
}
